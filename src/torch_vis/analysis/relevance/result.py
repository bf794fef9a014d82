"""What an evaluation gives: the relevance of every node, and the account of where it went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.errors import missing_extra, no_match

if TYPE_CHECKING:
    import pandas


SHOWN = 0.05  # of what was put in: beyond, what stays at a node is explained
WHY = "the part of what is no input, such as a learned token or a constant; it does not reach the inputs"


class NodeRelevance(NamedTuple):
    """The account of one node."""

    name: str
    op: str
    module: str
    relevance: float
    """What it was given."""
    passed: float
    """What it handed on."""
    absorbed: float
    """What stayed: the part of constants, or all where there is no rule."""
    rule: str
    net: float | None = None


class Relevance(Mapping[str, float]):
    """The relevance of every node by name, in the order of the graph; ``print`` shows it as a table.

    ``tensors`` has it element by element for the inputs and for the nodes asked for (in mode ``contrastive`` the net of
    evidence for and against), ``rows`` what each node was given, handed on and kept, ``absorbed`` those that kept any.
    """

    def __init__(
        self, rows: list[NodeRelevance], tensors: dict[str, Any], inputs: list[str], put_in: float, mode: str
    ) -> None:
        self.rows = rows
        self.tensors = tensors
        self.inputs = inputs
        self.put_in = put_in
        self.mode = mode
        self._by_name = {row.name: row for row in rows}

    def __getitem__(self, name: str) -> float:
        if name not in self._by_name:
            raise no_match("node", str(name), self._by_name)
        return self._by_name[name].relevance

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def at_inputs(self) -> float:
        """How much arrived at the model's inputs."""
        return sum(self[name] for name in self.inputs)

    @property
    def absorbed(self) -> dict[str, float]:
        """What stayed on the way, by node: in constants that are joined or filled in, or where there is no rule."""
        return {row.name: row.absorbed for row in self.rows if row.absorbed}

    @property
    def error(self) -> float:
        """How much is unaccounted for, as a share of what was put in."""
        return abs(self.put_in - self.at_inputs - sum(self.absorbed.values())) / (abs(self.put_in) or 1.0)

    def positive(self, name: str) -> float:
        """What of a node's relevance speaks for the chosen output."""
        row = self._by_name.get(name)
        if row is None:
            raise no_match("node", name, self._by_name)
        return row.relevance if row.net is None else (row.relevance + row.net) / 2

    def negative(self, name: str) -> float:
        """What of it speaks against."""
        return self[name] - self.positive(name)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per node."""
        try:
            import pandas as pd
        except ImportError as error:
            raise missing_extra("pandas") from error
        return pd.DataFrame([row._asdict() for row in self.rows]).set_index("name")

    def __str__(self) -> str:
        contrast = self.mode == "contrastive"
        head = ["node", "module", "relevance", *(["for", "against"] if contrast else []), "absorbed", "rule"]
        lines = [head]
        for row in self.rows:
            numbers = [row.relevance]
            if contrast:
                numbers += [self.positive(row.name), self.negative(row.name)]
            shown = [f"{number:.4g}" for number in numbers]
            lines.append(
                [row.name, row.module, *shown, f"{row.absorbed:.4g}" if row.absorbed else "", row.rule]
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        kept = sum(self.absorbed.values())
        if contrast:
            text.append(
                "for and against: what raises the chosen output and what lowers it; relevance is their sum"
            )
        text += [
            f"{size:.4g} stays at {name} ({rule}): {WHY}" for name, size, rule in self._largest_absorbed()
        ]
        text.append(
            f"put in {self.put_in:.4g}: {self.at_inputs:.4g} at the inputs, {kept:.4g} absorbed, "
            f"{self.error:.1e} of it unaccounted for"
        )
        return "\n".join(text)

    def _largest_absorbed(self) -> list[tuple[str, float, str]]:
        """The nodes at which more than a twentieth of what was put in stays."""
        rows = [row for row in self.rows if abs(row.absorbed) > SHOWN * abs(self.put_in)]
        return [(row.name, row.absorbed, row.rule) for row in rows]

    def __repr__(self) -> str:
        return f"<Relevance of {len(self)} nodes, {self.mode}: {self.at_inputs:.4g} of {self.put_in:.4g} at the inputs>"
