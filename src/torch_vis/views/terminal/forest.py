"""A tree of modules as flat columns, rows in the order in which a reader meets them.

A row's subtree is the stretch ``row .. end[row]``, so that sums over it are differences of one running sum, and
hiding it is one slice. Nothing here walks the tree by recursion, and no object is made per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torch_vis.graph import Graph, Metrics
from torch_vis.graph.module_table import call_times, output_values
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Array, Bools, Floats, Ints

RECOMPUTED = "recomputed"  # what a row is marked with whose module backward ran again


class Forest:
    """Names, classes and figures of a tree; a figure that is not known is NaN.

    ``numbers`` holds a column per figure, ``texts`` a function of the row per column of words, so that words are made
    for the rows on the screen only.

    >>> forest = Forest(["net", "conv", "fc"], ["Net", "Conv2d", "Linear"], [-1, 0, 0])
    >>> forest.paths, forest.end.tolist(), forest.subtotal(np.array([0, 5, 2])).tolist()
    (['', 'conv', 'fc'], [3, 2, 3], [7, 5, 2])
    """

    def __init__(
        self,
        names: list[str],
        types: list[str],
        parent: Sequence[int],
        *,
        paths: list[str] | None = None,
        kinds: list[str] | None = None,
    ) -> None:
        self.names = names
        self.types = types
        self.parent: Ints = np.asarray(parent, dtype=np.int64)
        self.kinds = kinds
        tree = Tree(self.parent)
        self.depth, self.end = tree.depth, np.arange(len(tree)) + tree.size
        self.paths = _paths(names, parent) if paths is None else paths
        self.numbers: dict[str, Floats] = {}
        self.texts: dict[str, Callable[[int], str]] = {"type": types.__getitem__}
        self.later: dict[str, Callable[[], Floats]] = {}
        """Columns of figures that take a while, by what computes them; ``complete`` does it."""
        self.marks: dict[int, str] = {}
        """A word beside the names of some rows, which the filter finds as well."""
        self.sharing: Sharing | None = None
        self._signatures: Ints | None = None
        self.describe: Callable[[int], Any] = lambda row: ()
        """What of a row, beside its class and its children, must agree for two rows to be alike."""

    def __len__(self) -> int:
        return len(self.names)

    def kind(self, row: int) -> str:
        """What a row stands for: ``"module"``, ``"tensor"``, ``"shared"``, ``"function"``…"""
        return "module" if self.kinds is None else self.kinds[row]

    def children(self, row: int) -> list[int]:
        """The rows directly below a row; for -1 the outermost ones."""
        rows, row_below = [], row + 1
        stop = len(self) if row < 0 else int(self.end[row])
        while row_below < stop:
            rows.append(row_below)
            row_below = int(self.end[row_below])
        return rows

    def subtotal(self, own: Array) -> Array:
        """The sum of a column over each row's subtree."""
        running = np.concatenate([[0], np.cumsum(own)])
        return running[self.end] - running[:-1]

    def complete(self, name: str) -> None:
        """Compute a column that was left for later."""
        compute = self.later.get(name)
        if compute is not None:
            self.numbers[name] = compute()
            self.later.pop(name, None)

    def row(self, path: str) -> int | None:
        """The row of a path, None where there is none."""
        return self._by_path.get(path)

    @property
    def _by_path(self) -> dict[str, int]:
        index: dict[str, int] | None = self.__dict__.get("_paths_index")
        if index is None:
            index = {}
            for row in range(len(self) - 1, -1, -1):
                index[self.paths[row]] = row
            self.__dict__["_paths_index"] = index
        return index

    @property
    def signatures(self) -> Ints:
        """Rows that are alike all the way down have equal numbers."""
        if self._signatures is None:
            known: dict[Any, int] = {}
            inside: list[list[Any]] = [[] for _ in self.names]
            signatures = np.zeros(len(self), dtype=np.int64)
            parents = self.parent.tolist()
            for row in range(len(self) - 1, -1, -1):
                key = (self.types[row], self.describe(row), tuple(inside[row]))
                number = known.setdefault(key, len(known))
                signatures[row] = number
                inside[row] = []
                if parents[row] >= 0:
                    inside[parents[row]].append((self.names[row], number))
            self._signatures = signatures
        return self._signatures


class Sharing:
    """Which things (parameters) each row holds itself, where one thing may be held by several rows.

    ``row`` and ``item`` are one pair per holding, rows ascending; ``size`` is a figure per item. A sum over a subtree
    counts an item once, however many rows of the subtree hold it.

    >>> forest = Forest(["net", "a", "b"], ["N", "A", "B"], [-1, 0, 0])
    >>> Sharing(forest, [1, 2, 2], [0, 0, 1], [10, 5]).inclusive(np.array([10, 5])).tolist()
    [15, 10, 15]
    """

    def __init__(
        self, forest: Forest, row: Sequence[int], item: Sequence[int], size: Sequence[int] | Ints
    ) -> None:
        self.forest = forest
        self.row: Ints = np.asarray(row, dtype=np.int64)
        self.item: Ints = np.asarray(item, dtype=np.int64)
        self.size: Ints = np.asarray(size, dtype=np.int64)
        self._again = self._meetings()

    def own(self, figure: Array) -> Array:
        """A figure of the items, summed over what each row holds itself."""
        sums = np.bincount(self.row, weights=figure[self.item], minlength=len(self.forest))
        return sums if figure.dtype.kind == "f" else sums.astype(np.int64)

    def inclusive(self, figure: Array) -> Array:
        """The same over each row's subtree, every item once."""
        own = self.own(figure)
        meeting, item = self._again
        if len(meeting):
            twice = np.bincount(meeting, weights=figure[item], minlength=len(own))
            own = own - twice.astype(own.dtype)
        return self.forest.subtotal(own)

    def over(self, rows: Ints, figure: Array) -> int:
        """The sum over some rows and all below them, every item once."""
        held = [
            self.item[slice(*np.searchsorted(self.row, [row, self.forest.end[row]]))] for row in rows.tolist()
        ]
        return int(figure[np.unique(np.concatenate(held))].sum())

    def _meetings(self) -> tuple[Ints, Ints]:
        """For each item held again, the lowest row that contains both."""
        counts = np.bincount(self.item, minlength=len(self.size))
        again = np.flatnonzero(counts[self.item] > 1)
        order = again[np.lexsort((self.row[again], self.item[again]))]
        meeting, item = [], []
        parent, end = self.forest.parent, self.forest.end
        for a, b in zip(order[:-1].tolist(), order[1:].tolist()):
            if self.item[a] != self.item[b]:
                continue
            above = int(self.row[a])
            while above >= 0 and not above <= self.row[b] < end[above]:
                above = int(parent[above])
            if above >= 0:
                meeting.append(above)
                item.append(int(self.item[a]))
        return np.asarray(meeting, dtype=np.int64), np.asarray(item, dtype=np.int64)


def _paths(names: list[str], parent: Sequence[int]) -> list[str]:
    """The dotted paths; an outermost row is the model itself and has none."""
    paths: list[str] = []
    for name, up in zip(names, parent):
        if up < 0:
            paths.append("")
        else:
            above = paths[up]
            paths.append(f"{above}.{name}" if above else name)
    return paths


MEASURED = (
    "time", "self", "mean", "backward", "backward_self", "recomputed", "recomputed_ops", "memory", "flops", "ops",
)  # fmt: skip


def rows_by_path(forest: Forest, graph: Graph) -> Ints:
    """For each call in the graph, the row of its module; what has no row goes to the call around it."""
    of_module = [
        -1 if module.kind not in ("module", "compiled") or (row := forest.row(module.path)) is None else row
        for module in graph.modules
    ]
    rows = np.array(of_module, dtype=np.int64)[graph.scope_module]
    # the first scope is the run itself
    rows[:1] = -1
    nearest = graph.tree.nearest(rows >= 0)
    return np.where(nearest >= 0, rows[nearest], -1)


def measure(forest: Forest, graph: Graph, metrics: Metrics, row_of_scope: Ints) -> None:
    """Add a run's columns to a forest: calls, times, memory, FLOPs, operations, shapes at the border.

    As in the printed table, a call that backward runs again is none of forward: what it does counts as backward's.
    """
    tally = Tally(forest, graph, row_of_scope)
    numbers = forest.numbers
    is_call = tally.begins & ~tally.is_recomputed
    ones = np.ones(len(row_of_scope))
    numbers["calls"] = tally.by_row(ones, is_call)
    never = tally.by_row(ones, tally.begins) == 0
    if "scope_time_ns" in metrics:
        taken = call_times(graph, metrics)
        numbers["time"] = tally.by_row(taken, is_call & tally.outermost)
        numbers["self"] = tally.by_row(taken, is_call) - tally.inside(taken)
        numbers["mean"] = np.where(never, np.nan, numbers["time"] / np.maximum(numbers["calls"], 1))
    backward = graph.node_phase == Phase.BACKWARD
    if "time_ns" in metrics and backward.any():
        spent = metrics["time_ns"].floats(0.0)
        numbers["backward_self"] = tally.own(np.where(backward, spent, 0.0))
        numbers["backward"] = tally.inclusive(np.where(backward, spent, 0.0))
    if (graph.node_flags & Flag.RECOMPUTE).any():
        _recomputed(forest, graph, metrics, tally)
    if "alloc_bytes" in metrics:
        numbers["memory"] = tally.inclusive(np.where(backward, 0.0, metrics["alloc_bytes"].floats(0.0)))
    if "flops" in metrics:
        forward = graph.node_phase == Phase.FORWARD
        numbers["flops"] = tally.inclusive(np.where(forward, metrics["flops"].floats(0.0), 0.0))
    numbers["ops"] = tally.inclusive(np.ones(len(graph)))
    for name in MEASURED:
        if name in numbers:
            numbers[name] = np.where(never, np.nan, np.maximum(numbers[name], 0))
    for name in ("time", "flops"):
        if name in numbers:
            share(forest, name)
    _shapes(forest, graph, row_of_scope)


def _recomputed(forest: Forest, graph: Graph, metrics: Metrics, tally: Tally) -> None:
    """What backward recomputed: how long it took, how many operations, and a mark on what was checkpointed."""
    nodes = (graph.node_flags & Flag.RECOMPUTE != 0).astype(np.float64)
    if "time_ns" in metrics:
        forest.numbers["recomputed"] = tally.inclusive(nodes * metrics["time_ns"].floats(0.0))
    forest.numbers["recomputed_ops"] = tally.inclusive(nodes)
    inside = tally.is_recomputed[graph.scope_parent] & (graph.scope_parent >= 0)
    for row in tally.rows[tally.is_recomputed & ~inside & tally.begins].tolist():
        forest.marks[row] = RECOMPUTED


def share(forest: Forest, name: str) -> None:
    """Add a column's share of the whole, the whole being what the outermost rows have together."""
    column = forest.numbers[name]
    total = float(np.nansum(column[forest.parent < 0]))
    forest.numbers[f"{name}_share"] = column / total if total > 0 else np.full(len(column), np.nan)


class Tally:
    """Sums over the calls of each row. A row that is called from within itself counts its outermost calls."""

    def __init__(self, forest: Forest, graph: Graph, row_of_scope: Ints) -> None:
        self.forest, self.graph, self.rows = forest, graph, row_of_scope
        self.is_recomputed = graph.tree.recomputed
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
        sums = np.zeros(len(self.forest))
        rows, begins = self.rows, self.begins
        callers = self._callers()
        which = np.flatnonzero(begins & (callers >= 0))
        np.add.at(sums, rows[callers[which]], figures[which])
        return sums

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
