"""What a run measured, as columns along the rows of a forest."""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_vis.graph import Graph, Metrics
from torch_vis.graph.module_table import output_values
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.types import Bools, Floats, Ints
from torch_vis.views.terminal.forest import RECOMPUTED, Forest

MEASURED = (
    "time", "self", "mean", "backward", "backward_self", "recomputed", "recomputed_ops", "memory", "flops", "ops",
)  # fmt: skip


def rows_by_path(forest: Forest, graph: Graph) -> Ints:
    """For each call in the graph, the row of its module; what has no row goes to the call around it."""
    found = np.full(len(graph.scope_call), -1, dtype=np.int64)
    of_module = [
        -1 if module.kind not in ("module", "compiled") or (row := forest.row(module.path)) is None else row
        for module in graph.modules
    ]
    for scope, (module, parent) in enumerate(zip(graph.scope_module.tolist(), graph.scope_parent.tolist())):
        row = of_module[module] if scope else -1
        found[scope] = found[parent] if row < 0 and parent >= 0 else row
    return found


def measure(forest: Forest, graph: Graph, metrics: Metrics, row_of_scope: Ints) -> None:
    """Add a run's columns to a forest: calls, times, memory, FLOPs, operations, shapes at the border.

    As in the printed table, a call that backward runs again is none of forward: what it does counts as backward's.
    """
    tally = Tally(forest, graph, row_of_scope)
    numbers = forest.numbers
    is_call = tally.begins & ~tally.again
    ones = np.ones(len(row_of_scope))
    numbers["calls"] = tally.by_row(ones, is_call)
    never = tally.by_row(ones, tally.begins) == 0
    if "scope_time_ns" in metrics:
        taken = _without_backward(graph, metrics, tally.again)
        numbers["time"] = tally.by_row(taken, is_call & tally.outermost)
        numbers["self"] = tally.by_row(taken, is_call) - tally.inside(taken)
        numbers["mean"] = np.where(never, np.nan, numbers["time"] / np.maximum(numbers["calls"], 1))
    backward = graph.node_phase == Phase.BACKWARD
    if "time_ns" in metrics and backward.any():
        spent = _known(metrics, "time_ns")
        numbers["backward_self"] = tally.own(np.where(backward, spent, 0.0))
        numbers["backward"] = tally.inclusive(np.where(backward, spent, 0.0))
    if (graph.node_flags & Flag.RECOMPUTE).any():
        _recomputed(forest, graph, metrics, tally)
    if "alloc_bytes" in metrics:
        numbers["memory"] = tally.inclusive(np.where(backward, 0.0, _known(metrics, "alloc_bytes")))
    if "flops" in metrics:
        forward = graph.node_phase == Phase.FORWARD
        numbers["flops"] = tally.inclusive(np.where(forward, _known(metrics, "flops"), 0.0))
    numbers["ops"] = tally.inclusive(np.ones(len(graph)))
    for name in MEASURED:
        if name in numbers:
            numbers[name] = np.where(never, np.nan, np.maximum(numbers[name], 0))
    for name in ("time", "flops"):
        if name in numbers:
            share(forest, name)
    _shapes(forest, graph, row_of_scope)


def _recomputed(forest: Forest, graph: Graph, metrics: Metrics, tally: Tally) -> None:
    """What backward computed again: how long it took, how many operations, and a mark on what was checkpointed."""
    nodes = (graph.node_flags & Flag.RECOMPUTE != 0).astype(np.float64)
    if "time_ns" in metrics:
        forest.numbers["recomputed"] = tally.inclusive(nodes * _known(metrics, "time_ns"))
    forest.numbers["recomputed_ops"] = tally.inclusive(nodes)
    inside = tally.again[graph.scope_parent] & (graph.scope_parent >= 0)
    for row in tally.rows[tally.again & ~inside & tally.begins].tolist():
        forest.marks[row] = RECOMPUTED


def _without_backward(graph: Graph, metrics: Metrics, again: Bools) -> Floats:
    """How long each call took; the run itself, as long as its calls and its own forward operations."""
    taken = np.where(again, 0.0, metrics["scope_time_ns"].values.astype(np.float64))
    if len(taken) and graph.modules[graph.scope_module[0]].kind == "run" and "time_ns" in metrics:
        own = (graph.node_scope == 0) & (graph.node_phase != Phase.BACKWARD)
        taken[0] = taken[graph.scope_parent == 0].sum() + _known(metrics, "time_ns")[own].sum()
    return taken


def share(forest: Forest, name: str) -> None:
    """Add a column's share of the whole, the whole being what the outermost rows have together."""
    column = forest.numbers[name]
    total = float(np.nansum(column[forest.parent < 0]))
    forest.numbers[f"{name}_share"] = column / total if total > 0 else np.full(len(column), np.nan)


class Tally:
    """Sums over the calls of each row. A row that is called from within itself counts its outermost calls."""

    def __init__(self, forest: Forest, graph: Graph, row_of_scope: Ints) -> None:
        self.forest, self.graph, self.rows = forest, graph, row_of_scope
        self.again = graph.tree.recomputed
        """Calls that backward ran again."""
        self.tree = graph.tree.by_first_call
        above = np.where(self.tree.parent >= 0, row_of_scope[self.tree.parent], -1)
        kinds = np.array([module.kind in ("module", "compiled") for module in graph.modules], dtype=bool)
        own_kind = kinds[graph.scope_module] | (above != row_of_scope)
        self.begins = (row_of_scope >= 0) & own_kind
        """Calls of the row's own, as against functions that ran inside one."""
        # those that are no calls of their own are a group each, which never holds another
        self.outermost = self.tree.outermost(
            np.where(self.begins, row_of_scope, ~np.arange(len(row_of_scope)))
        )

    def by_row(self, figures: Floats, which: Bools) -> Floats:
        """The sum of a figure of calls, over some of each row's calls."""
        rows = self.rows[which]
        return self._sum(rows, figures[which])

    def _sum(self, rows: Ints, figures: Floats) -> Floats:
        return np.bincount(rows, weights=figures, minlength=len(self.forest)).astype(np.float64)

    def inside(self, figures: Floats) -> Floats:
        """The sum over the calls that each row's calls made."""
        found = np.zeros(len(self.forest))
        rows, begins = self.rows, self.begins
        callers = self._callers()
        which = np.flatnonzero(begins & (callers >= 0))
        np.add.at(found, rows[callers[which]], figures[which])
        return found

    def _callers(self) -> Ints:
        """For each call, the next one around it that is a call of a row's own."""
        parent = self.tree.parent
        return np.where(parent >= 0, self.tree.nearest(self.begins)[parent], -1)

    def own(self, figures: Floats) -> Floats:
        """A figure of operations, summed over each row's own operations."""
        rows = self.rows[self.graph.node_scope]
        keep = rows >= 0
        return self._sum(rows[keep], figures[keep])

    def inclusive(self, figures: Floats) -> Floats:
        """The same with all that ran inside the row's calls, whoever owns it."""
        sums = self.tree.inclusive(self.graph.tree.of_nodes(figures))
        return self.by_row(sums, self.begins & self.outermost)


def _known(metrics: Metrics, name: str) -> Floats:
    """A metric to be summed; what is not known of it adds nothing."""
    column = metrics[name]
    values = column.values.astype(np.float64)
    return values if column.known is None else np.where(column.known, values, 0.0)


def _shapes(forest: Forest, graph: Graph, row_of_scope: Ints) -> None:
    """The type of what each row hands out at its first call."""
    types: dict[int, Any] = {}
    sizes = np.full(len(forest), np.nan)
    for scope, value in sorted(output_values(graph).items(), reverse=True):
        row = int(row_of_scope[scope])
        if row >= 0:
            types[row] = graph.types[graph.value_type[value]]
            nbytes = types[row].nbytes
            sizes[row] = np.nan if nbytes is None else nbytes
    if types:
        forest.texts["out"] = lambda row: str(types[row]) if row in types else ""
        forest.numbers["out_bytes"] = sizes
