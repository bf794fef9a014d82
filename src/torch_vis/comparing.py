"""``compare(a, b)``: in what two traces differ, as data, as a table and as a page."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare import align, module_of
from torch_vis.analysis.compare_sides import steps
from torch_vis.errors import TensorsMissing, UsageError, missing_extra
from torch_vis.graph.graph import Rows
from torch_vis.graph.recomputed import first_calls
from torch_vis.graph.rows import Node, Scope
from torch_vis.graph.words import many
from torch_vis.run.weights import contents_of
from torch_vis.tracing import Trace
from torch_vis.views.charts import Axis, Chart, Series, draw
from torch_vis.views.units import count, duration, size

if TYPE_CHECKING:
    import pandas

    from torch_vis.reports.differences import Differences

FIGURES = {
    "operations": ("{:,}".format, None),
    "parameters": (count, None),
    "time": (duration, "time_ns"),
    "allocated": (size, "alloc_bytes"),
    "peak memory": (size, None),
    "FLOPs": (count, "flops"),
    "bytes moved": (size, "moved_bytes"),
}
MOST_ROWS = 20
MOST_LOOKED_AT = 2000  # operations, for lines that are equal


class Change(NamedTuple):
    """An operation that is in both traces, but not the same: the two, and what differs."""

    before: Node
    after: Node
    what: tuple[str, ...]


class Comparison:
    """Two traces, aligned by structure; ``a`` is the earlier one.

    >>> import torch, torch_vis as tv
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()), torch.ones(1, 3))
    >>> found = tv.compare(one, two)
    >>> [node.name for node in found.added], [node.name for node in found.removed], len(found.changed)
    (['tanh'], ['relu'], 2)
    """

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a, self.b = a, b
        weights = contents_of(a.graph, a._held), contents_of(b.graph, b._held)
        self.alignment = align(a.graph, b.graph, weights)

    @property
    def same(self) -> bool:
        """Whether both ran the same operations, with the same arguments, shapes and types."""
        return not (len(self.added) or len(self.removed) or self.changed or self.reordered_modules)

    @cached_property
    def added(self) -> Rows[Node]:
        """Operations of ``b`` that ``a`` does not have."""
        kept = np.zeros(len(self.b.graph), dtype=bool)
        kept[self.alignment.to_b[self.alignment.to_b >= 0]] = True
        return Rows(self.b.graph, Node, np.flatnonzero(~kept))

    @cached_property
    def removed(self) -> Rows[Node]:
        """Operations of ``a`` that ``b`` does not have."""
        return Rows(self.a.graph, Node, np.flatnonzero(self.alignment.to_b < 0))

    @cached_property
    def changed(self) -> list[Change]:
        """Operations that both have, with other arguments, shapes, types or strides."""
        found = []
        for one in np.flatnonzero(self.alignment.to_b >= 0).tolist():
            two = int(self.alignment.to_b[one])
            if self.alignment.changed[two]:
                before, after = self.a.graph.nodes[one], self.b.graph.nodes[two]
                found.append(Change(before, after, tuple(_differences(before, after))))
        return found

    @cached_property
    def added_modules(self) -> list[Scope]:
        """Calls of modules that only ``b`` makes; not those that it makes again in backward."""
        kept = {
            *self.alignment.scope_to_b[self.alignment.scope_to_b >= 0].tolist(),
            *first_calls(self.b.graph),
        }
        return [scope for scope in self.b.graph.scopes if scope.index not in kept and scope.kind == "module"]

    @cached_property
    def removed_modules(self) -> list[Scope]:
        """Calls of modules that only ``a`` makes; not those that it makes again in backward."""
        again = first_calls(self.a.graph)
        gone = [n for n in np.flatnonzero(self.alignment.scope_to_b < 0).tolist() if n not in again]
        return [scope for scope in (self.a.graph.scopes[n] for n in gone) if scope.kind == "module"]

    @cached_property
    def moved_modules(self) -> list[tuple[Scope, Scope]]:
        """Calls of modules that both make, under another path."""
        found = []
        for one, two in enumerate(self.alignment.scope_to_b.tolist()):
            if two >= 0:
                before, after = self.a.graph.scopes[one], self.b.graph.scopes[two]
                if before.path != after.path and before.kind == "module":
                    found.append((before, after))
        return found

    @cached_property
    def reordered_modules(self) -> list[tuple[Scope, Scope]]:
        """Calls of modules that both make, in another order: the fewest that would have to move."""
        calls = [
            (one, two)
            for one, two in enumerate(self.alignment.scope_to_b.tolist())
            if two >= 0 and self.a.graph.scopes[one].kind == "module"
        ]
        kept = _increasing([two for _, two in calls])
        moved = {one: two for place, (one, two) in enumerate(calls) if place not in kept}
        parent = self.a.graph.scope_parent
        return [
            (self.a.graph.scopes[one], self.b.graph.scopes[two])
            for one, two in moved.items()
            if int(parent[one]) not in moved  # what is inside has moved with it
        ]

    @cached_property
    def figures(self) -> dict[str, tuple[float | None, float | None]]:
        """What each of the two comes to: operations, parameters, time, memory, FLOPs; None where not known.

        Those that ``incomplete`` names are too low.
        """
        found: dict[str, tuple[float | None, float | None]] = {}
        for name, (_, metric) in FIGURES.items():
            if metric is not None:
                found[name] = (_total(self.a, metric), _total(self.b, metric))
        found["peak memory"] = (self.a.summary().peak_bytes, self.b.summary().peak_bytes)
        both = (self.a.meta.get("parameters"), self.b.meta.get("parameters"))
        return {"operations": (len(self.a.graph), len(self.b.graph)), "parameters": both, **found}

    @cached_property
    def incomplete(self) -> dict[str, tuple[bool, bool]]:
        """The figures that leave out operations of which they are not known, and in which of the two they do."""
        found = {
            name: (_is_low(self.a, metric), _is_low(self.b, metric))
            for name, (_, metric) in FIGURES.items()
            if metric is not None
        }
        return {name: low for name, low in found.items() if any(low)}

    def figure(self, renderer: str = "plotly") -> Any:
        """How much more or less of each figure ``b`` has, as bars in per cent of ``a``; those that are complete.

        >>> import torch, torch_vis as tv
        >>> one = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> two = tv.trace(torch.nn.Linear(3, 4), torch.ones(1, 3))
        >>> len(tv.compare(one, two).figure().data[0].x)
        7
        """
        known = {
            name: pair
            for name, pair in self.figures.items()
            if pair[0] and pair[1] is not None and name not in self.incomplete
        }
        changes = [100 * ((two or 0) / (one or 1) - 1) for one, two in known.values()]
        told = [
            f"{_cell(one, FIGURES[n][0])} → {_cell(two, FIGURES[n][0])}" for n, (one, two) in known.items()
        ]
        series = Series("B − A", list(known), changes, told)
        return draw(Chart("bars", "B against A", Axis(""), Axis("B − A, in % of A"), [series]), renderer)

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each operation that was added, removed or changed.

        >>> import torch, torch_vis as tv
        >>> one, two = tv.trace(torch.nn.ReLU(), torch.ones(2)), tv.trace(torch.nn.Tanh(), torch.ones(2))
        >>> tv.compare(one, two).to_pandas()["change"].tolist()
        ['added', 'removed']
        """
        try:
            import pandas
        except ImportError as error:
            raise missing_extra("pandas") from error
        rows = [{"change": "added", **_plain(node), "what": ""} for node in self.added]
        rows += [{"change": "removed", **_plain(node), "what": ""} for node in self.removed]
        rows += [
            {"change": "changed", **_plain(row.after), "what": "; ".join(row.what)} for row in self.changed
        ]
        return pandas.DataFrame(rows, columns=["change", "node", "op", "module", "phase", "outputs", "what"])

    def differences(self, *, tolerance: float = 0.0) -> Differences:
        """Where the two part numerically: both runs are repeated side by side from the tensors that they hold.

        For two runs of one model: eager and captured, fp32 and bf16, before and after a change. Operations that differ
        by no more than ``tolerance``, relative to their norm, are left out.

        >>> import torch, torch_vis as tv
        >>> x = torch.ones(1, 3)
        >>> model = torch.nn.Linear(3, 2)
        >>> found = tv.compare(tv.trace(model, x), tv.trace(model, x, via="export")).differences()
        >>> len(found.rows), found.results["output"][1].relative
        (0, 0.0)
        """
        from torch_vis.reports.differences import Differences

        for name, trace in (("A", self.a), ("B", self.b)):
            if trace.meta.get("fake"):
                raise TensorsMissing(
                    f"{name} was traced with fake=True: nothing was computed that could differ"
                )
        return Differences(self.a, self.b, self.alignment, tolerance)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (``.html``) that shows both runs as one graph, with what was added, removed and changed."""
        from torch_vis.views.web.compare import save_comparison

        if os.path.splitext(os.fspath(path))[1].lower() not in (".html", ".htm"):
            raise UsageError(
                f"a comparison is saved as a page: name a file that ends in .html, not {os.fspath(path)}"
            )
        save_comparison(path, _parts(self.a), _parts(self.b), self.alignment)

    def show(self) -> str:
        """Open that page: in the notebook that this is called from, or else in the browser; returns the file's path.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.ReLU(), torch.ones(2))
        >>> path = tv.compare(t, t).show()  # doctest: +SKIP
        """
        from torch_vis.views.web.show import present, temporary

        path = temporary("comparison")
        self.save(path)
        return present(path)

    def to_plain(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "same": self.same,
            "figures": {name: {"a": a, "b": b} for name, (a, b) in self.figures.items()},
            "incomplete": {name: {"a": a, "b": b} for name, (a, b) in self.incomplete.items()},
            "added": [_plain(node) for node in self.added],
            "removed": [_plain(node) for node in self.removed],
            "changed": [
                {"before": _plain(row.before), "after": _plain(row.after), "what": list(row.what)}
                for row in self.changed
            ],
            "added_modules": [scope.path for scope in self.added_modules],
            "removed_modules": [scope.path for scope in self.removed_modules],
            "moved_modules": [[one.path, two.path] for one, two in self.moved_modules],
            "reordered_modules": [one.path for one, _ in self.reordered_modules],
        }

    def __repr__(self) -> str:
        parts = (len(self.added), len(self.removed), len(self.changed))
        return "<Comparison: {:,} added, {:,} removed, {:,} changed>".format(*parts)

    def __str__(self) -> str:
        lines = [f"{'':12}  {'A':>12}  {'B':>12}  {'B − A':>12}"]
        for name, (one, two) in self.figures.items():
            show = FIGURES[name][0]
            low = self.incomplete.get(name, (False, False))
            delta = "" if one is None or two is None or any(low) else _signed(two - one, show)
            cells = [f"{'≥ ' if too else ''}{_cell(amount, show)}" for amount, too in zip((one, two), low)]
            lines.append(f"{name:12}  {cells[0]:>12}  {cells[1]:>12}  {delta:>12}")
        kept = len(self.a.graph) - len(self.removed)
        lines += ["", f"{many(kept, 'operation')} in both, {len(self.changed):,} of them changed"]
        lines += _listed(
            "only in A", [_line(node) for node in self.removed[:MOST_LOOKED_AT]], len(self.removed)
        )
        lines += _listed("only in B", [_line(node) for node in self.added[:MOST_LOOKED_AT]], len(self.added))
        changed = [f"{_line(row.after)}: {'; '.join(row.what)}" for row in self.changed[:MOST_ROWS]]
        lines += _listed("changed", changed, len(self.changed))
        gone = [_called(scope) for scope in self.removed_modules[:MOST_ROWS]]
        lines += _listed("modules only in A", gone, len(self.removed_modules))
        new = [_called(scope) for scope in self.added_modules[:MOST_ROWS]]
        lines += _listed("modules only in B", new, len(self.added_modules))
        moved = [
            f"{one.path or '(root)'} → {two.path or '(root)'}" for one, two in self.moved_modules[:MOST_ROWS]
        ]
        lines += _listed("modules under another path", moved, len(self.moved_modules))
        order = [one.path for one, _ in self.reordered_modules[:MOST_ROWS]]
        lines += _listed("modules called in another order", order, len(self.reordered_modules))
        return "\n".join([*lines, "", *self._notes()])

    def _notes(self) -> list[str]:
        found = []
        if self.incomplete:
            found.append(
                "≥: operations of which it is not known are left out, so that the two cannot be compared"
            )
        for name, trace in (("A", self.a), ("B", self.b)):
            if trace.meta.get("fake"):
                found.append(
                    f"{name} was not run (fake=True): it took no time, and made no numbers to compare"
                )
        return [*found, "times are those of one run each; trace(..., repeat=10) gives medians"]


def compare(a: Trace, b: Trace) -> Comparison:
    """Lay two traces over one another by their structure, not by number or name alone.

    >>> import torch, torch_vis as tv
    >>> x = torch.ones(1, 3)
    >>> tv.compare(tv.trace(torch.nn.ReLU(), x), tv.trace(torch.nn.ReLU(), x)).same
    True
    """
    for one in (a, b):
        if not isinstance(one, Trace):
            raise UsageError(f"compare() takes two traces, not {type(one).__name__}")
    return Comparison(a, b)


def _increasing(numbers: list[int]) -> set[int]:
    """The places of a longest run of numbers that increase."""
    ends: list[int] = []  # the place of the smallest number that a run of each length ends with
    before = [-1] * len(numbers)
    for place, number in enumerate(numbers):
        length = bisect_left(ends, number, key=numbers.__getitem__)
        before[place] = ends[length - 1] if length else -1
        ends[length : length + 1] = [place]
    found: set[int] = set()
    place = ends[-1] if ends else -1
    while place >= 0:
        found.add(place)
        place = before[place]
    return found


def _parts(trace: Trace) -> Any:
    return trace.graph, trace.metrics, trace.limits, trace.meta


def _total(trace: Trace, metric: str) -> float | None:
    if metric == "time_ns" and trace.meta.get("fake"):
        return None
    return trace.metrics[metric].total() if metric in trace.metrics else None


def _is_low(trace: Trace, metric: str) -> bool:
    """Whether operations are missing from a total."""
    column = trace.metrics.get(metric)
    return column is not None and column.uncovered > 0


def _called(scope: Scope) -> str:
    return f"{scope.path or '(root)'} ({scope.type})"


def _differences(before: Node, after: Node) -> list[str]:
    found = []
    made = [(", ".join(str(value.type) for value in node.outputs)) for node in (before, after)]
    if made[0] != made[1]:
        found.append(f"{made[0]} → {made[1]}")
    elif any(steps(one.type) != steps(two.type) for one, two in zip(before.outputs, after.outputs)):
        strides = [", ".join(str(value.type.stride) for value in node.outputs) for node in (before, after)]
        found.append(f"strides {strides[0]} → {strides[1]}")
    calls = before.call.format(), after.call.format()
    if calls[0] != calls[1]:
        found.append(f"{calls[0]} → {calls[1]}")
    elif before.call != after.call:
        found.append(f"{before.call.op} → {after.call.op}")
    return found


def _plain(node: Node) -> dict[str, Any]:
    made = [str(value.type) for value in node.outputs]
    return {
        "node": node.index,
        "op": node.op,
        "module": module_of(node),
        "phase": node.phase,
        "outputs": made,
    }


def _line(node: Node) -> str:
    return f"{node.name} in {module_of(node) or 'the run'}" + (
        f" ({node.phase})" if node.phase != "forward" else ""
    )


def _listed(title: str, lines: list[str], total: int) -> list[str]:
    """Lines under a title, equal ones as one, those beyond the most that are shown as a number."""
    if not total:
        return []
    shown = list(Counter(lines).items())[:MOST_ROWS]
    rest = total - sum(times for _, times in shown)
    told = [f"  {line} × {times:,}" if times > 1 else f"  {line}" for line, times in shown]
    return ["", f"{title} ({total:,})", *told, *([f"  … and {rest:,} more"] if rest else [])]


def _cell(amount: float | None, show: Any) -> str:
    return "" if amount is None else show(int(amount))


def _signed(amount: float, show: Any) -> str:
    return ("−" if amount < 0 else "+") + show(abs(int(amount))) if amount else "0"
