"""What the modules and optimizers of two runs were set to, and which constants follow from counting steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis.graph.call import Call
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Phase, TensorType
from torch_vis.graph.types import Ints
from torch_vis.replay.held_run import HeldRun

# The attribute that names the parameters without a gradient.
FROZEN = "frozen"
# Arguments of the constructors of layers that everyone knows by their order.
POSITIONAL = frozenset({
    "in_features", "out_features", "in_channels", "out_channels", "kernel_size", "num_features", "num_channels",
    "num_groups", "normalized_shape", "num_embeddings", "embedding_dim", "input_size", "hidden_size",
    "in1_features", "in2_features", "output_size",
})  # fmt: skip


# A number with more digits than anyone chose.
LONG_NUMBER = re.compile(r"-?\d+\.\d{7,}")


class Settings:
    """The settings of one run, as its circumstances (``meta``) have them; what is not there, or not as it should be, is
    not known.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        settings = meta.get("settings")
        table: Mapping[str, Any] = settings if isinstance(settings, Mapping) else {}
        rows, of = table.get("rows"), table.get("of")
        self._rows = [_row(row) for row in rows] if isinstance(rows, list) else []
        self._of: Mapping[str, Any] = of if isinstance(of, Mapping) else {}
        optimizers = table.get("optimizers")
        self.optimizers: list[Mapping[str, Any]] = [
            row for row in (optimizers if isinstance(optimizers, list) else []) if isinstance(row, Mapping)
        ]
        """Of each optimizer that made a step its name, its groups and the steps that it counts in plain numbers."""

    def of(self, path: str) -> tuple[dict[str, str], dict[str, str]] | None:
        """A module's required constructor arguments, and its other settings; None where they are unknown."""
        index = self._of.get(path)
        known = isinstance(index, int) and 0 <= index < len(self._rows)
        return self._rows[index] if known else None  # type: ignore[index]

    def value(self, path: str, name: str) -> str | None:
        """The setting of one attribute of a module; None where it is unknown."""
        row = self.of(path)
        return None if row is None else {**row[0], **row[1]}.get(name)

    def changed(self, path: str, other: Settings, path_b: str) -> list[str]:
        """The names of the attributes of a module that are not the same in another run.

        >>> import torch
        >>> from torch_vis.capture.settings import module_settings
        >>> drops = [Settings({"settings": module_settings([("drop", torch.nn.Dropout(p))])}) for p in (0.1, 0.2)]
        >>> drops[0].changed("drop", drops[1], "drop"), drops[1].made("drop", "Dropout", ["p"])
        (['p'], 'Dropout(p=0.2)')
        """
        a, b = self.of(path), other.of(path_b)
        if a is None or b is None:
            return []
        before, after = {**a[0], **a[1]}, {**b[0], **b[1]}
        # what one of the two does not have may be what could not be written down
        both = [name for name in before if name in after and before[name] != after[name]]
        return both + ([FROZEN] if (FROZEN in before) != (FROZEN in after) else [])

    def made(self, path: str, type_: str, names: Sequence[str] = ()) -> str:
        """A module as its constructor is called: its class, its required arguments, and the given others."""
        row = self.of(path)
        if row is None:
            return type_
        # others go by their order only where they did not change: heads=8 says more than 8
        shown = [
            _short(text) if name in POSITIONAL or name not in names else f"{name}={_short(text)}"
            for name, text in row[0].items()
        ]
        is_known = set(row[0]) <= POSITIONAL
        shown = shown if is_known else [text for name, text in zip(row[0], shown) if name in names]
        shown += [f"{name}={_short(row[1].get(name))}" for name in names if name not in (*row[0], FROZEN)]
        return f"{type_}({', '.join(shown)})" if shown else type_


def _short(text: str | None) -> str:
    """A setting as people write it: one number for several equal ones, and no more digits than it needs to differ.

    >>> _short("(3, 3)"), _short("(16,)"), _short("(1, 2)"), _short("0.3535533905932738")
    ('3', '16', '(1, 2)', '0.353553391')
    """
    if text is None:
        return "None"
    parts = text.removeprefix("(").removesuffix(")").rstrip(",").split(", ")
    if text.startswith("(") and len(set(parts)) == 1 and parts[0].isdigit():
        return parts[0]
    is_long = LONG_NUMBER.fullmatch(text) is not None
    return f"{float(text):.9g}" if is_long else text


def _row(plain: Any) -> tuple[dict[str, str], dict[str, str]]:
    parts = [plain.get(name) if isinstance(plain, Mapping) else None for name in ("made", "set")]
    arguments, assigned = (
        {str(name): str(text) for name, text in part.items()} if isinstance(part, Mapping) else {}
        for part in parts
    )
    return arguments, assigned


def counts_other_steps(a: HeldRun, b: HeldRun, to_b: Ints) -> list[int]:
    """The operations of ``b`` that differ in nothing but constants which an optimizer derives from its step count.

    That is so where both runs' optimizers are set alike and have made different numbers of steps, as far as known.
    """
    settings_a, settings_b = Settings(a.meta).optimizers, Settings(b.meta).optimizers
    names_a, names_b = (
        [(row.get("name"), row.get("groups")) for row in rows] for rows in (settings_a, settings_b)
    )
    if not settings_a or names_a != names_b or not _may_count_differently(a, b):
        return []
    graph_a, graph_b = a.graph, b.graph
    in_step = np.flatnonzero((to_b >= 0) & (graph_a.node_phase == Phase.OPTIMIZER))
    calls = zip(graph_a.node_call[in_step].tolist(), graph_b.node_call[to_b[in_step]].tolist())
    known: dict[tuple[int, int], bool] = {}
    excused = []
    for node, pair in zip(in_step.tolist(), calls):
        if pair not in known:
            known[pair] = _without_floats(graph_a.calls[pair[0]]) == _without_floats(graph_b.calls[pair[1]])
        other = int(to_b[node])
        if known[pair] and _output_types(graph_a, node) == _output_types(graph_b, other):
            excused.append(other)
    return excused


def _output_types(graph: Graph, node: int) -> list[TensorType]:
    return [
        graph.types[row]
        for row in graph.value_type[graph.out_value[slice(*graph.output_span(node))]].tolist()
    ]


def _may_count_differently(a: HeldRun, b: HeldRun) -> bool:
    steps = [[row.get("steps") for row in Settings(run.meta).optimizers] for run in (a, b)]
    if steps[0] != steps[1]:
        return True
    looked_at = [
        np.flatnonzero(
            (run.graph.node_phase == Phase.OPTIMIZER) & (run.graph.node_flags & Flag.ESCAPE != 0)
        ).tolist()
        for run in (a, b)
    ]
    values = [
        None if run.kept is None else [run.kept.python_values.get(node) for node in nodes]
        for run, nodes in zip((a, b), looked_at)
    ]
    if None in values:
        return bool(looked_at[0] and looked_at[1])
    return values[0] != values[1]


def _without_floats(item: Any) -> Any:
    """A call with its floating-point constants left out."""
    if isinstance(item, Call):
        return (
            item.op,
            _without_floats(item.args),
            tuple((name, _without_floats(value)) for name, value in item.kwargs),
        )
    if type(item) is tuple:
        return tuple(_without_floats(part) for part in item)
    return float if isinstance(item, (float, complex)) else item
