"""What each module came to in two runs: operations, parameters, time, memory and FLOPs of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.align import BETWEEN, Alignment
from torch_vis.graph.flow import parameters_used
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.text import count, duration, size
from torch_vis.views.text.table import Field, Listing

if TYPE_CHECKING:
    from torch_vis._trace import Trace

Pair = tuple[float | None, float | None]
SHOWN = 10
SUMMED = {
    "operations": "{:,}".format,
    "parameters": count,
    "time_ns": duration,
    "alloc_bytes": size,
    "flops": count,
    "moved_bytes": size,
}
TITLES = {"time_ns": "time", "alloc_bytes": "allocated", "flops": "FLOPs", "moved_bytes": "bytes moved"}


class ModuleDelta(NamedTuple):
    """One module in both runs: its paths, None where it is not, and what its own operations come to in each.

    Operations of the modules inside it count there, so that all of them add up to the runs. A figure is None where an
    operation has none.
    """

    a: str | None
    b: str | None
    operations: Pair
    parameters: Pair
    time_ns: Pair
    alloc_bytes: Pair
    flops: Pair
    moved_bytes: Pair

    def delta(self, name: str) -> float | None:
        """How much more of it ``b`` has; None where that is not known."""
        one, two = getattr(self, name)
        return None if one is None or two is None else two - one

    def flat(self) -> dict[str, Any]:
        """Its figures one by one: ``flops_a``, ``flops_b``, …"""
        pairs = {
            f"{name}_{side}": getattr(self, name)[place] for name in SUMMED for place, side in enumerate("ab")
        }
        return {"a": self.a, "b": self.b, **pairs}


def module_deltas(a: Trace, b: Trace, aligned: Alignment) -> list[ModuleDelta]:
    """What every module that runs operations comes to in each of two runs, in the order of ``a``.

    >>> import torch, torch_vis as tv
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.ones(1, 3))
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 4)), torch.ones(1, 3))
    >>> [(row.b, row.parameters, row.delta("flops")) for row in tv.compare(one, two).modules]
    [('0', (8, 16), 14)]
    """
    went: dict[str, str] = {}
    paths_a, paths_b = _paths(a.graph), _paths(b.graph)
    for here, there in enumerate(aligned.scope_to_b.tolist()):
        if there >= 0:
            went.setdefault(paths_a[here], paths_b[there])
    came = {there: here for here, there in went.items()}
    sums_a, sums_b = _sums(a), _sums(b)
    rows: list[tuple[str | None, str | None]] = [(path, went.get(path)) for path in sums_a]
    rows += [(came.get(path), path) for path in sums_b if came.get(path) not in sums_a]
    nothing: dict[str, float | None] = dict.fromkeys(SUMMED, 0)  # of one without operations of its own
    found = []
    for one, two in rows:
        before = nothing if one is None else sums_a.get(one, nothing)
        after = nothing if two is None else sums_b.get(two, nothing)
        found.append(ModuleDelta(one, two, *((before[name], after[name]) for name in SUMMED)))
    return found


def module_scopes(graph: Graph) -> Any:
    """For each scope the call of a module around it, or itself; 0 for that of the whole model."""
    found: list[int] = []
    kinds = [module.kind in BETWEEN for module in graph.modules]
    for scope, (module, parent) in enumerate(zip(graph.scope_module.tolist(), graph.scope_parent.tolist())):
        between = scope > 0 and kinds[module]
        found.append(found[parent] if between else 0 if is_root(graph, scope) else scope)
    return np.array(found, dtype=np.int64)


def is_root(graph: Graph, scope: int) -> bool:
    """Whether a call is that of the whole model, which a capture calls by its class, or the run itself."""
    if scope == 0 or not graph.scope_paths[scope]:
        return True
    path, type_, kind = graph.modules[int(graph.scope_module[scope])]
    if kind != "module" or path != type_:
        return False
    around = int(graph.scope_parent[scope])
    while around > 0 and (graph.scopes[around].kind in BETWEEN or not graph.scope_paths[around]):
        around = int(graph.scope_parent[around])
    return around == 0 and not any(other.startswith(f"{path}.") for other in graph.scope_paths)


def _paths(graph: Graph) -> list[str]:
    """For each scope the path of the module around it; that of the whole model is empty, whatever captured it."""
    return ["" if scope == 0 else graph.scope_paths[scope] for scope in module_scopes(graph).tolist()]


def _sums(trace: Trace) -> dict[str, dict[str, float | None]]:
    """Of each module with operations of its own what these come to."""
    graph = trace.graph
    paths: dict[str, int] = {}
    numbers = [paths.setdefault(path, len(paths)) for path in _paths(graph)]
    of = np.array(numbers, dtype=np.int64)[graph.node_scope]
    counts = np.bincount(of, minlength=len(paths))
    columns: dict[str, list[float | None]] = {"operations": counts.tolist()}
    for name in SUMMED:
        column = _column(trace.metrics, graph, name)
        if name != "operations":
            columns[name] = [None] * len(paths) if column is None else _totals(column, of, len(paths))
    if trace.meta.get("fake"):
        columns["time_ns"] = [None] * len(paths)
    return {
        path: {name: values[number] for name, values in columns.items()}
        for path, number in paths.items()
        if counts[number]
    }


def _column(metrics: Metrics, graph: Graph, name: str) -> Column | None:
    if name == "parameters":
        return parameters_used(graph)
    found: Column | None = metrics.get(name)
    return found


def _totals(column: Column, of: Any, count: int) -> list[float | None]:
    known = np.ones(len(of), dtype=bool) if column.known is None else column.known
    sums = np.bincount(of, np.where(known, column.values, 0), minlength=count)
    whole = np.bincount(of[~known], minlength=count) == 0
    return [round(total) if all_known else None for total, all_known in zip(sums.tolist(), whole.tolist())]


def largest(rows: list[ModuleDelta], are_medians: bool) -> Listing:
    """The modules that changed most, by the share of what all come to; by times alone, only if these are medians."""
    counted = [name for name in SUMMED if name != "time_ns"]
    totals = {name: sum(abs(row.delta(name) or 0) for row in rows) for name in SUMMED}

    def share(row: ModuleDelta, names: list[str]) -> float:
        return max(abs(row.delta(name) or 0) / (totals[name] or 1) for name in names)

    of = counted if any(totals[name] for name in counted) or not are_medians else ["time_ns"]
    found = sorted((row for row in rows if share(row, of)), key=lambda row: -share(row, of))
    fields = (
        Field("module", "module"),
        *(Field(name, TITLES.get(name, name), _signed(show), rare=True) for name, show in SUMMED.items()),
    )
    cells = [(_named(row), *(row.delta(name) for name in SUMMED)) for row in found]
    return Listing("Modules, by what their own operations come to: B − A", fields, cells, most=SHOWN)


def _named(row: ModuleDelta) -> str:
    one, two = (None if path is None else path or "(root)" for path in (row.a, row.b))
    if one is None or two is None:
        return f"{one or two} (only in {'A' if two is None else 'B'})"
    return one if one == two else f"{one} → {two}"


def _signed(show: Any) -> Any:
    def told(amount: float) -> str:
        return ("−" if amount < 0 else "+") + show(abs(int(amount))) if amount else "0"

    return told
