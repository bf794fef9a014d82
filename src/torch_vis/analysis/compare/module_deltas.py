"""What each module came to in two runs: operations, parameters, time, memory and FLOPs of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.align import BETWEEN, Alignment
from torch_vis.graph.flow import parameters_used
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column
from torch_vis.graph.text import count, duration, size
from torch_vis.graph.types import Ints
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    from torch_vis._trace import Trace
from collections.abc import Iterable
from functools import cached_property

from torch_vis.analysis.compare.sequence_diff import increasing
from torch_vis.graph.graph import Scope

FigurePair = tuple[float | None, float | None]
# The path of a module in a run, and in the other.
RowKey = tuple[str | None, str | None]
MOST_SHOWN = 10
# The figures of a module, and how each is written.
SUMMED: dict[str, Callable[[int], str]] = {
    "operations": "{:,}".format,
    "parameters": count,
    "time_ns": duration,
    "alloc_bytes": size,
    "flops": count,
    "moved_bytes": size,
}
TITLES = {"time_ns": "time", "alloc_bytes": "allocated", "flops": "FLOPs", "moved_bytes": "bytes accessed"}


class ModuleDelta(NamedTuple):
    """One module in both runs: its paths, None where it is not, and what its own operations come to in each.

    Operations of the modules inside it count there, so that all of them add up to the runs. A figure is None where an
    operation has none.
    """

    a: str | None
    b: str | None
    operations: FigurePair
    parameters: FigurePair
    time_ns: FigurePair
    alloc_bytes: FigurePair
    flops: FigurePair
    moved_bytes: FigurePair

    def delta(self, name: str) -> float | None:
        """How much more of it ``b`` has; None where that is not known."""
        a, b = getattr(self, name)
        return None if a is None or b is None else b - a

    def flat(self) -> dict[str, Any]:
        """Its figures one by one: ``flops_a``, ``flops_b``, …"""
        figures = {
            f"{name}_{run}": getattr(self, name)[index] for name in SUMMED for index, run in enumerate("ab")
        }
        return {"a": self.a, "b": self.b, **figures}


def module_deltas(a: Trace, b: Trace, alignment: Alignment) -> list[ModuleDelta]:
    """What every module that runs operations comes to in each of two runs, in the order of ``a``.

    >>> import torch, torch_vis as tv
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.ones(1, 3))
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 4)), torch.ones(1, 3))
    >>> [(row.b, row.parameters, row.delta("flops")) for row in tv.compare(one, two).modules]
    [('0', (8, 16), 14)]
    """
    paths_a, paths_b = _module_paths(a.graph), _module_paths(b.graph)
    scope_to_b = alignment.scope_to_b.tolist()
    scope_to_a = {other: scope for scope, other in enumerate(scope_to_b) if other >= 0}
    sums_a = _sums(a, _row_keys(paths_a, paths_b, scope_to_b, a.graph))
    keys_b = _row_keys(
        paths_b, paths_a, [scope_to_a.get(scope, -1) for scope in range(len(paths_b))], b.graph
    )
    sums_b = _sums(b, [(path_a, path_b) for path_b, path_a in keys_b])
    # of a module without operations of its own
    nothing: dict[str, float | None] = dict.fromkeys(SUMMED, 0)
    deltas = []
    for paths in dict.fromkeys([*sums_a, *sums_b]):
        before, after = sums_a.get(paths, nothing), sums_b.get(paths, nothing)
        deltas.append(ModuleDelta(*paths, *((before[name], after[name]) for name in SUMMED)))
    return deltas


def _row_keys(paths: list[str], other_paths: list[str], to_other: list[int], graph: Graph) -> list[RowKey]:
    """For each scope the row that it counts in: the path of its module, and the path of its counterpart.

    A module that became a call of another has a row of its own. A call without a counterpart counts with the others of
    its module.
    """
    modules = module_scopes(graph).tolist()
    first: dict[str, str] = {}
    for path, module in zip(paths, modules):
        if to_other[module] >= 0:
            first.setdefault(path, other_paths[to_other[module]])
    return [
        (path, other_paths[to_other[module]] if to_other[module] >= 0 else first.get(path))
        for path, module in zip(paths, modules)
    ]


def module_scopes(graph: Graph) -> Ints:
    """For each scope the call of a module around it, or itself; 0 for that of the whole model."""
    stands = np.array([module.kind not in BETWEEN for module in graph.modules], dtype=bool)[
        graph.scope_module
    ]
    stands[:1] = True
    owners = np.array([0 if is_root(graph, scope) else scope for scope in range(len(stands))], dtype=np.int64)
    result: Ints = owners[graph.tree.nearest(stands)]
    return result


def is_root(graph: Graph, scope: int) -> bool:
    """Whether a call is that of the whole model, which a capture calls by its class, or the run itself."""
    if scope == 0 or not graph.scope_paths[scope]:
        return True
    path, type_, kind = graph.modules[int(graph.scope_module[scope])]
    if kind != "module" or path != type_:
        return False
    parent = int(graph.scope_parent[scope])
    while parent > 0 and (graph.scopes[parent].kind in BETWEEN or not graph.scope_paths[parent]):
        parent = int(graph.scope_parent[parent])
    return parent == 0 and not any(other.startswith(f"{path}.") for other in graph.scope_paths)


def _module_paths(graph: Graph) -> list[str]:
    """For each scope the path of the module around it; that of the whole model is empty, whatever captured it."""
    return ["" if scope == 0 else graph.scope_paths[scope] for scope in module_scopes(graph).tolist()]


def _sums(trace: Trace, keys: list[RowKey]) -> dict[RowKey, dict[str, float | None]]:
    """Of each row with operations what these come to; ``keys`` says of each scope which row it counts in."""
    graph = trace.graph
    numbers: dict[RowKey, int] = {}
    of_scope = [numbers.setdefault(key, len(numbers)) for key in keys]
    module = np.array(of_scope, dtype=np.int64)[graph.node_scope]
    counts = np.bincount(module, minlength=len(numbers))
    columns: dict[str, list[float | None]] = {"operations": counts.tolist()}
    for name in SUMMED:
        if name == "operations":
            continue
        column = parameters_used(graph) if name == "parameters" else trace.metrics.get(name)
        is_unknown = column is None or (name == "time_ns" and trace.meta.get("fake"))
        columns[name] = [None] * len(numbers) if is_unknown else _totals(column, module, len(numbers))
    return {
        key: {name: totals[number] for name, totals in columns.items()}
        for key, number in numbers.items()
        if counts[number]
    }


def _totals(column: Column, module: Ints, count: int) -> list[float | None]:
    """The sum of a column for each module, None where an operation has no figure."""
    known = np.ones(len(module), dtype=bool) if column.known is None else column.known
    sums = np.bincount(module, np.where(known, column.values, 0), minlength=count)
    is_known = np.bincount(module[~known], minlength=count) == 0
    return [round(total) if all_known else None for total, all_known in zip(sums.tolist(), is_known.tolist())]


def largest_deltas(deltas: list[ModuleDelta], have_medians: bool) -> Listing:
    """The modules that changed most, by the share of what all come to; by times alone only if these are medians."""
    counted = [name for name in SUMMED if name != "time_ns"]
    totals = {name: sum(abs(row.delta(name) or 0) for row in deltas) for name in SUMMED}
    names = counted if any(totals[name] for name in counted) or not have_medians else ["time_ns"]

    def share(row: ModuleDelta) -> float:
        return max(abs(row.delta(name) or 0) / (totals[name] or 1) for name in names)

    def text(show: Callable[[int], str]) -> Callable[[float], str]:
        return lambda amount: signed(amount, show)

    largest = sorted((row for row in deltas if share(row)), key=lambda row: -share(row))
    fields = (
        Field("module", "module"),
        *(Field(name, TITLES.get(name, name), text(show), rare=True) for name, show in SUMMED.items()),
    )
    cells = [(_path_text(row), *(row.delta(name) for name in SUMMED)) for row in largest]
    return Listing("Modules, by what their own operations come to: B − A", fields, cells, most=MOST_SHOWN)


def _path_text(row: ModuleDelta) -> str:
    a, b = (None if path is None else path or "(root)" for path in (row.a, row.b))
    if a is None or b is None:
        return f"{a or b} (only in {'A' if b is None else 'B'})"
    return a if a == b else f"{a} → {b}"


def signed(amount: float, show: Callable[[int], str]) -> str:
    """A difference with its sign.

    >>> signed(-1200, count), signed(0, count)
    ('−1,200', '0')
    """
    return ("−" if amount < 0 else "+") + show(abs(int(amount))) if amount else "0"


ScopePairs = list[tuple[Scope, Scope]]


class ModuleLists:
    """What became of the modules of ``a`` in ``b``."""

    def __init__(self, a: Graph, b: Graph, alignment: Alignment) -> None:
        self.a, self.b, self.alignment = a, b, alignment

    @cached_property
    def changed(self) -> ScopePairs:
        """Modules in the same place that are of another class, by their first calls; not the model as a whole."""
        a, b = self.a, self.b
        changed: dict[int, tuple[Scope, Scope]] = {}
        for scope, other in enumerate(self.alignment.scope_to_b.tolist()):
            module = int(a.scope_module[scope])
            before, after = a.modules[module], b.modules[int(b.scope_module[other])]
            if other < 0 or before.type == after.type or before.kind != "module" or module in changed:
                continue
            if not is_root(a, scope) and not is_root(b, other):
                changed[module] = a.scopes[scope], b.scopes[other]
        return list(changed.values())

    @cached_property
    def added(self) -> list[Scope]:
        """Calls of modules that only ``b`` makes, those recomputed in backward left out."""
        scope_to_b = self.alignment.scope_to_b
        known = {*scope_to_b[scope_to_b >= 0].tolist(), *self.b.tree.first_calls}
        return _modules(scope for scope in self.b.scopes if scope.index not in known)

    @cached_property
    def removed(self) -> list[Scope]:
        """Calls of modules that only ``a`` makes, those recomputed in backward left out."""
        recomputed = self.a.tree.first_calls
        removed = np.flatnonzero(self.alignment.scope_to_b < 0).tolist()
        return _modules(self.a.scopes[scope] for scope in removed if scope not in recomputed)

    @cached_property
    def moved(self) -> ScopePairs:
        """Calls of modules that both make, under another path."""
        moved = []
        for scope, other in enumerate(self.alignment.scope_to_b.tolist()):
            if other < 0:
                continue
            before, after = self.a.scopes[scope], self.b.scopes[other]
            if before.path != after.path and before.kind == "module":
                if not (is_root(self.a, scope) and is_root(self.b, other)):
                    moved.append((before, after))
        return moved

    @cached_property
    def reordered(self) -> ScopePairs:
        """Calls of modules that both make, in another order: the fewest that would have to move."""
        calls = [
            (scope, other)
            for scope, other in enumerate(self.alignment.scope_to_b.tolist())
            if other >= 0 and self.a.scopes[scope].kind == "module"
        ]
        in_order = increasing([other for _, other in calls])
        moved = {scope: other for index, (scope, other) in enumerate(calls) if index not in in_order}
        parent = self.a.scope_parent
        # what is inside has moved with it
        outermost = ((scope, other) for scope, other in moved.items() if int(parent[scope]) not in moved)
        return [(self.a.scopes[scope], self.b.scopes[other]) for scope, other in outermost]


def _modules(scopes: Iterable[Scope]) -> list[Scope]:
    """Those that are calls of modules; not the whole model a second time, inside what a compiler captured of it."""
    return [
        scope
        for scope in scopes
        if scope.kind == "module" and not (scope.path and is_root(scope.graph, scope.index))
    ]
