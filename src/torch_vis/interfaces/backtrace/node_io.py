"""What every node took and gave in one run."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.fx.node import map_arg

from torch_vis.analysis.relevance.fx_steps import Steps
from torch_vis.errors import TensorsMissing, UsageError, no_match
from torch_vis.interfaces.backtrace.graph import NodeFacts, read_by


class NodeIO(Mapping[str, dict[str, Any]]):
    """By the name of a node: ``{"input": [...], "output": ...}``, the tensors of the run themselves and not copies.

    ``output`` is what the model returned. A node that was not kept raises ``TensorsMissing``.
    """

    def __init__(
        self,
        steps: Steps,
        nodes: Mapping[str, NodeFacts],
        values: list[Any],
        output: Any,
        kept: frozenset[str] | None,
    ) -> None:
        self._steps, self._nodes, self._values, self._kept = steps, nodes, values, kept
        self.output = output

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._nodes:
            raise no_match("node", str(name), self._nodes)
        if self._kept is not None and name not in self._kept:
            raise TensorsMissing(f"{name!r} was not kept; name it in predict(..., keep=[...]) or keep='all'")
        places, values = self._steps.places, self._values
        node = self._steps.by_name[name]
        read = [values[places[source]] for source in read_by(node) if source.name in self._nodes]
        return {"input": read, "output": self.output if node.op == "output" else values[places[node]]}

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes) if self._kept is None else (n for n in self._nodes if n in self._kept)

    def __len__(self) -> int:
        return len(self._nodes) if self._kept is None else len(self._kept)

    def __repr__(self) -> str:
        return f"<NodeIO: {len(self)} of {len(self._nodes)} nodes>"

    @property
    def is_whole(self) -> bool:
        """Whether every node was kept."""
        return self._kept is None

    def raw(self) -> list[Any]:
        """Every node's value in the graph's own order, weights included."""
        return self._values


def selected(keep: Any, nodes: Mapping[str, NodeFacts]) -> frozenset[str] | None:
    """The nodes that ``keep`` names; None for all of them."""
    if keep == "all":
        return None
    outputs = [name for name, row in nodes.items() if row.type == "output"]
    if keep == "outputs":
        return frozenset(outputs)
    patterns = [keep] if isinstance(keep, str) else keep
    if not isinstance(patterns, Iterable):
        raise UsageError(f"keep is 'all', 'outputs', a name or a list of names, not {keep!r}")
    found: set[str] = set(outputs)
    for pattern in patterns:
        chosen = {
            name
            for name, row in nodes.items()
            if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(row.module, pattern)
        }
        if not chosen:
            raise no_match("node or module", str(pattern), {*nodes, *(row.module for row in nodes.values())})
        found |= chosen
    return frozenset(found)


def needed(steps: Steps, names: frozenset[str]) -> frozenset[int]:
    """The places whose values the named nodes' inputs and outputs are."""
    found: set[int] = set()
    for place, node in enumerate(steps.nodes):
        if node.name in names:
            found.add(place)
            map_arg((node.args, node.kwargs), lambda source: found.add(steps.places[source]))
    return frozenset(found)
