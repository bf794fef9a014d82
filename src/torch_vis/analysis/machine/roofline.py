"""How near each operation comes to what the machine can do, and what holds it back.

``BOUND`` are the codes of the column ``bound``: arithmetic, memory, or the overhead of running an operation at all. An
operation is bound by overhead where both roofs together ask for less time than an operation takes that does nothing.
``peak_share`` is the time at the lower roof over the time that was measured: 1.0 is as fast as the machine can be.
Above 1.0, data came from a cache and not from memory, or the profile does not fit the machine that the trace is from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.machine.calibration import MEASURED, WAS_BUSY, machine, profile
from torch_vis.analysis.machine.datasheet_efficiency import roof_times
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.kernel_model import ARITHMETIC
from torch_vis.analysis.report import Charts, LowerBoundShare, Report, least, summed
from torch_vis.errors import UsageError
from torch_vis.graph import Column
from torch_vis.graph.module_table import own_operations
from torch_vis.graph.run import Run
from torch_vis.graph.text import count, duration, many, size
from torch_vis.graph.types import Array, Bools, Floats, Ints
from torch_vis.ops.display_names import op_label
from torch_vis.ops.families import KINDS, REAL_DTYPES, dtypes, kinds
from torch_vis.views.charts.chart import COLORS, Axis, Chart, Series
from torch_vis.views.charts.labels import shortened_alike
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    from torch_vis.analysis.machine.hardware import Hardware
    from torch_vis.graph.metrics import Column

VIEW = KINDS.index("view")
BOUND = ("none", "compute", "memory", "overhead")
"""What holds an operation back, in the order of the codes; 0 is for views, which do nothing."""


class Roofline(NamedTuple):
    """One row per operation. What is not known is NaN, and 0 in ``bound`` where ``known`` is False.

    ``intensity`` is FLOPs per byte, ``ideal_ns`` the time at the roof, ``time_ns`` what was measured, by the column
    that ``measured`` names. ``without`` are operations that arithmetic may bound, in an element type for which the
    machine has no figure: nothing is known of them.
    """

    hardware: Hardware
    measured: str
    kind: Ints
    dtype: Ints
    flops: Floats
    moved: Floats
    intensity: Floats
    ideal_ns: Floats
    time_ns: Floats
    bound: Ints
    known: Bools
    peak_share: Floats
    without: Bools

    def columns(self) -> tuple[Column, Column]:
        """``bound`` and ``peak_share`` as columns, to stand beside a graph."""
        shared = np.isfinite(self.peak_share)
        return (
            Column("bound", self.bound, known=self.known),
            Column("peak_share", np.where(shared, self.peak_share, 0.0), known=shared),
        )


def roofline(run: Run, hardware: Hardware) -> Roofline:
    """Every operation of a run against a machine's roofs.

    The time is that of kernels (``kernel_ns``) where it was measured, and of operations (``time_ns``) otherwise.

    >>> import torch, torch_vis as tv
    >>> from torch_vis.analysis.machine.hardware import find_hardware
    >>> t = tv.trace(torch.relu, torch.ones(4_000_000))
    >>> found = roofline(t, find_hardware("epyc-9654"))
    >>> BOUND[found.bound[0]], float(found.intensity[0])
    ('memory', 0.0)
    """
    graph, metrics = run.graph, run.metrics
    measured = "kernel_ns" if "kernel_ns" in metrics else "time_ns"
    if measured not in metrics:
        raise UsageError(
            "this trace has no times; trace a run that is timed, or use latency() for a prediction"
        )
    flops, moved, time_ns = (metrics[name].floats() for name in ("flops", "moved_bytes", measured))
    kind, dtype = kinds(graph), dtypes(graph)
    compute, memory = roof_times(hardware, kind, dtype, flops, moved)
    ideal = np.fmax(compute, memory)
    view = kind == VIEW
    costed = view | (np.isfinite(flops) & np.isfinite(moved))
    without = costed & np.isin(kind, [KINDS.index(name) for name in ARITHMETIC])
    without &= np.array([hardware.figure_for(name) is None for name in REAL_DTYPES])[dtype]
    known = costed & ~without
    bound = np.where(compute >= memory, 1, 2)
    bound[np.nan_to_num(compute) + np.nan_to_num(memory) < hardware.overhead_ns] = 3
    bound[view | ~known] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = np.where(moved > 0, flops / moved, np.nan)
        share = np.where((time_ns > 0) & known & ~view, ideal / time_ns, np.nan)
    codes = bound.astype(np.int8)
    return Roofline(
        hardware, measured, kind, dtype, flops, moved, intensity, ideal, time_ns, codes, known, share, without
    )


class RooflineTotals(NamedTuple):
    """Operations taken together: their number, time, work, time at the roof, and time by what bounds them.

    ``by_bound`` has a time for each of ``BOUND``, the first that of views. ``unknown`` operations, which took
    ``unknown_ns``, have no cost formula, or the machine no figure for their element type: the work is then what the
    others do at least, or None where there are none.
    """

    operations: int
    time_ns: float
    flops: float | None
    moved_bytes: float | None
    ideal_ns: float | None
    by_bound: tuple[float, ...]
    unknown: int
    unknown_ns: float

    @property
    def peak_share(self) -> float | None:
        """The time at the roofs over the time measured; with ``unknown`` operations it is at least this."""
        return self.ideal_ns / self.time_ns if self.time_ns > 0 and self.ideal_ns is not None else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; that of a part of the work says nothing of the whole."""
        if self.unknown or self.flops is None or not self.moved_bytes:
            return None
        return self.flops / self.moved_bytes

    @property
    def bound(self) -> str:
        """What bounds most of the time; ``"none"`` where that are views or is not known."""
        most = max(self.by_bound[1:])
        return BOUND[self.by_bound.index(most, 1)] if most > self.unknown_ns else BOUND[0]


def grouped(roofline: Roofline, key: Ints, count: int) -> list[RooflineTotals]:
    """The sums over operations of equal key, which runs from 0 to ``count``."""

    def total(values: Array) -> list[float]:
        sums = np.bincount(key, weights=np.nan_to_num(values), minlength=count)
        return [float(part) for part in sums]

    def known_part(values: Floats) -> list[float | None]:
        """A view beside something unknown says nothing of its work: what is known of the two is not "at least 0"."""
        some = np.bincount(key[np.isfinite(values) & (roofline.kind != VIEW)], minlength=count) > 0
        return [
            part if any_known or not unknown_count else None
            for part, any_known, unknown_count in zip(total(values), some, unknown)
        ]

    time_ns = np.nan_to_num(roofline.time_ns)
    ideal = np.where(roofline.known, np.where(time_ns > 0, np.nan_to_num(roofline.ideal_ns), 0.0), np.nan)
    number = np.bincount(key, minlength=count).tolist()
    unknown = np.bincount(key[~roofline.known], minlength=count).tolist()
    work = [known_part(values) for values in (roofline.flops, roofline.moved, ideal)]
    views = total(np.where(roofline.known & (roofline.bound == 0), time_ns, 0.0))
    bounds = [
        views,
        *(total(np.where(roofline.bound == code, time_ns, 0.0)) for code in range(1, len(BOUND))),
    ]
    unknown_ns = total(np.where(roofline.known, 0.0, time_ns))
    rows = zip(number, total(time_ns), *work, zip(*bounds), unknown, unknown_ns)
    return [RooflineTotals(*row) for row in rows]


def dtype_name(code: int) -> str:
    """The element type of a code."""
    return REAL_DTYPES[code]


# operations that a chart shows, those of the most time
POINTS = 2000
# of the FLOPs or the bytes: what an element type has to have to be drawn
VISIBLE = 0.01
# of each element type, points that are named, those of the most time
MARKS = 12
# letters of such a name
MARK = 40
# operations that are listed
SLOWEST = 200
# what of the time nothing bounds, and what has no formula
VIEWS, UNKNOWN = "views and the like", "not known"
Cells = tuple[Any, ...]


class RooflineReport(Report):
    """Every operation against a machine's roofs; ``operations``, ``modules`` and ``kinds`` are the rows.

    >>> import torch, torch_vis as tv
    >>> report = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64)).roofline(hardware="h100")
    >>> [(row[0], row[4]) for row in report.operations]
    [('addmm', 'overhead')]
    """

    title = "Roofline"

    def __init__(self, run: Run, hardware: Any = None) -> None:
        graph = run.graph
        if not len(graph):
            raise UsageError("this trace has no operations, so there is nothing to set against a roofline")
        self.graph = graph
        """The graph of the run."""
        self.hardware = profile(machine(hardware, devices=run.meta.get("devices", ())))
        """The device whose roofs these are."""
        self.roofline = roofline(run, self.hardware)
        """The figures of every operation."""

    @property
    def time_ns(self) -> float:
        """The time of all operations, as measured."""
        return self.total.time_ns

    @property
    def ideal_ns(self) -> float | None:
        """What they would take at the machine's roofs; None where no operation's work is known."""
        return self.total.ideal_ns

    @property
    def peak_share(self) -> float | None:
        """The time at the roofs over the time measured."""
        return self.total.peak_share

    def columns(self) -> tuple[Column, Column]:
        """``bound`` (a place in ``BOUND``) and ``peak_share``, one row per operation."""
        return self.roofline.columns()

    @cached_property
    def total(self) -> RooflineTotals:
        """All operations together."""
        return grouped(self.roofline, np.zeros(len(self.graph), dtype=np.int64), 1)[0]

    @cached_property
    def by_bound(self) -> dict[str, float]:
        """Nanoseconds by what bounds them, then those of views, and those with an unknown bound."""
        views, *bounds = self.total.by_bound
        return {**dict(zip(BOUND[1:], bounds)), VIEWS: views, UNKNOWN: self.total.unknown_ns}

    @cached_property
    def kinds(self) -> list[Cells]:
        """One row per kind of operation, the one of the most time first."""
        return self._by_group(self.roofline.kind.astype(np.int64), KINDS)

    @cached_property
    def modules(self) -> list[Cells]:
        """One row per module for the operations that ran in it, not those of modules inside."""
        return self._by_group(*own_operations(self.graph))

    def _by_group(self, group: Ints, names: Sequence[str]) -> list[Cells]:
        totals = grouped(self.roofline, group, len(names))
        return _by_time([(name, *_cells(row)) for name, row in zip(names, totals) if row.operations])

    @cached_property
    def operations(self) -> list[Cells]:
        """The operations of the most time, each with module, element type, what bounds it and its share of the peak."""
        roofline, graph = self.roofline, self.graph
        time_ns = np.nan_to_num(roofline.time_ns)
        chosen = np.argsort(-time_ns, kind="stable")
        chosen = chosen[(roofline.kind != KINDS.index("view"))[chosen]][:SLOWEST]
        rows = []
        for node in chosen.tolist():
            call = graph.calls[int(graph.node_call[node])]
            path = graph.scope_paths[int(graph.node_scope[node])]
            known = bool(roofline.known[node])
            rows.append(
                (
                    op_label(call.op),
                    path,
                    dtype_name(int(roofline.dtype[node])),
                    int(time_ns[node]),
                    BOUND[int(roofline.bound[node])] if known else None,
                    _number(roofline.intensity[node]),
                    _number(roofline.peak_share[node]),
                    node,
                )
            )
        return rows

    def facts(self) -> Mapping[str, str]:
        """The machine, the time by what bounds it, and the share of the peak."""
        time_ns = max(self.total.time_ns, 1.0)
        shares = ", ".join(
            f"{name} {100 * part / time_ns:.0f} %"
            for name, part in self.by_bound.items()
            if part / time_ns >= 0.005
        )
        share, unknown = self.total.peak_share, self.total.unknown
        rates = ", ".join(f"{name} {peak / 1e12:,.4g}" for name, peak in self.hardware.peaks.items())
        return {
            "machine": f"{self.hardware.name}: {rates} TFLOP/s, {self.hardware.bandwidth / 1e9:.4g} GB/s",
            "time": f"{duration(int(time_ns))} in {count(self.total.operations)} operations ({self.roofline.measured})",
            "bound by": shares or "nothing was timed",
            "share of the peak": "not known"
            if share is None
            else f"{'at least ' if unknown else ''}" + _percent(share),
        }

    def listings(self) -> Sequence[Listing]:
        """Operations, modules, kinds."""
        common = (
            Field("operations", "operations", count),
            Field("time_ns", "time", duration),
            Field("flops", "FLOPs", least(count)),
            Field("moved_bytes", "accessed", least(size)),
            Field("bound", "bound by"),
            Field("intensity", "FLOPs per byte", "{:.3g}".format),
            Field("peak_share", "of peak", least(_percent)),
            Field("unknown", "not known", count, rare=True),
        )
        slow = (
            Field("operation", "operation"),
            Field("module", "module"),
            Field("dtype", "type"),
            Field("time_ns", "time", duration),
            Field("bound", "bound by"),
            Field("intensity", "FLOPs per byte", "{:.3g}".format),
            Field("peak_share", "of peak", _percent),
            Field("node", "number", str),
        )
        return (
            Listing("kinds", (Field("kind", "kind"), *common), self.kinds, heading="By kind of operation"),
            Listing(
                "modules",
                (Field("module", "module"), *common),
                self.modules,
                heading="By module, without the modules inside it",
            ),
            Listing("operations", slow, self.operations, heading="The operations of the most time"),
        )

    def charts(self) -> Charts:
        """Operations over the roofs; where the time goes by what bounds it."""
        if not len(self._drawn):
            return Charts(bounds=self._bounds_chart)
        return Charts(roofline=self._roofline_chart, bounds=self._bounds_chart)

    def _roofline_chart(self) -> Chart:
        series = self._points()
        title = f"Roofline on {self.hardware.name}: each operation against what its bytes allow"
        axes = Axis("FLOPs per byte accessed", log=True), Axis("FLOP/s", log=True)
        return Chart("points", title, *axes, series, self._roofs(series))

    def _bounds_chart(self) -> Chart:
        parts = {name: int(time_ns) for name, time_ns in self.by_bound.items() if time_ns or name in BOUND}
        bars = Series("time", list(parts), list(parts.values()))
        title = f"Time by what bounds it on {self.hardware.name}"
        return Chart("bars", title, Axis("bound by"), Axis("time", "ns"), [bars])

    def _elsewhere(self) -> list[str]:
        """A sentence where the machine is of another class than the devices that the run was measured on."""
        on = {device.partition(":")[0] for device in self.graph.devices} - {"meta"}
        gpu = self.hardware.class_ != "cpu"
        if not on:
            return []
        if gpu == bool(on - {"cpu"}):
            if gpu or self.hardware.source == MEASURED:
                return []
            return [
                f"shares are of what all of {self.hardware.name} can do, with every core; "
                "tv.measure.calibrate() measures what the machine here does with the threads that there are"
            ]
        return [
            f"measured on {', '.join(sorted(on))}, not on {self.hardware.name}: shares of its peak and what bounds the "
            "run are not what they would be there; t.latency(hardware=…) predicts that"
        ]

    def notes(self) -> Sequence[str]:
        """Where the time is from, and what has no figure."""
        notes = [*self._elsewhere(), *([WAS_BUSY] if self.hardware.disturbed else [])]
        without = int(self.roofline.without.sum())
        missing = int((~self.roofline.known).sum()) - without
        notes += self._of_element_types(without)
        if missing:
            notes.append(
                f"{many(missing, 'operation')} {'has' if missing == 1 else 'have'} no cost formula (compiled code, an "
                "operator of one's own): what is done there and what bounds it is not known; sums with ≥ leave it out"
            )
        if self.roofline.measured == "time_ns" and self.hardware.class_ != "cpu":
            notes.append("times are of operations on the host, not of kernels: see time() for these")
        above = self.roofline.peak_share > 1.05
        computing = self.roofline.bound == BOUND.index("compute")
        reasons = (
            ("memory allows: their data came from a cache", above & ~computing),
            ("arithmetic allows: its peak was measured while something else ran", above & computing),
        )
        for reason, chosen in reasons:
            number = int(chosen.sum())
            if number:
                what = "1 operation is" if number == 1 else f"{number:,} operations are"
                notes.append(f"{what} faster than {reason}, or the run was not on {self.hardware.name}")
        return notes

    def _of_element_types(self, without: int) -> Iterator[str]:
        """The element types that have no figure of their own, and what stands in for them."""
        roofline, hardware = self.roofline, self.hardware
        arithmetic = np.isin(roofline.kind, [KINDS.index(name) for name in ARITHMETIC])
        used = [dtype_name(code) for code in np.unique(roofline.dtype[arithmetic]).tolist()]
        without_figure = [name for name in used if hardware.figure_for(name) is None]
        if without:
            yield (
                f"{hardware.name} has no figure for {' and '.join(without_figure)}: what bounds "
                f"{many(without, 'operation')} and what share of the peak that reached is not known"
            )
        for name in used:
            other = hardware.figure_for(name)
            if other not in (name, None):
                yield f"{hardware.name} has no figure for {name}: shares are of the peak of {other}"

    @property
    def _drawn(self) -> Ints:
        """The operations that are points of the chart: those that take longest, of all that have a point."""
        roofline = self.roofline
        time_ns = np.nan_to_num(roofline.time_ns)
        usable = (time_ns > 0) & (roofline.flops > 0) & (roofline.moved > 0)
        longest = np.argsort(-np.where(usable, time_ns, 0), kind="stable")[:POINTS]
        return longest[usable[longest]]

    def _points(self) -> list[Series]:
        """By element type; not of one that does next to nothing, as a counter in a model of floats does."""
        roofline, chosen = self.roofline, self._drawn
        time_ns = np.nan_to_num(roofline.time_ns)
        points: list[Series] = []
        for code in np.unique(roofline.dtype[chosen]).tolist():
            rows = chosen[roofline.dtype[chosen] == code]
            if all(
                part[rows].sum() < VISIBLE * part[chosen].sum() for part in (roofline.flops, roofline.moved)
            ):
                continue
            names = [self._name(node) for node in rows.tolist()]
            rates = roofline.flops[rows] / time_ns[rows] * 1e9
            color = COLORS[len(points) % len(COLORS)]
            marks = shortened_alike([self._mark(node) for node in rows[:MARKS].tolist()], MARK)
            marks += [""] * (len(rows) - len(marks))
            points.append(
                Series(
                    dtype_name(code),
                    roofline.intensity[rows].tolist(),
                    rates.tolist(),
                    names,
                    color=color,
                    marks=marks,
                )
            )
        return points

    def _mark(self, node: int) -> str:
        path = self.graph.scope_paths[int(self.graph.node_scope[node])]
        op = op_label(self.graph.calls[int(self.graph.node_call[node])].op)
        return f"{op} in {path}" if path else op

    def _name(self, node: int) -> str:
        graph = self.graph
        op = op_label(graph.calls[int(graph.node_call[node])].op)
        path = graph.scope_paths[int(graph.node_scope[node])]
        return f"{op} in {path}, {duration(int(self.roofline.time_ns[node]))}"

    def _roofs(self, points: Sequence[Series]) -> list[Series]:
        """The roof of each element type that is drawn, in its colour."""
        hardware = self.hardware
        used = {series.name: series.color for series in points}
        figures = {name: hardware.figure_for(name) for name in used}
        across = np.array(self.roofline.intensity)
        across = across[np.isfinite(across) & (across > 0)]
        low = float(across.min()) / 2 if len(across) else 0.1
        roofs = []
        for name, figure in figures.items():
            if figure is None:
                continue
            peak = hardware.peaks[figure]
            ridge = peak / hardware.bandwidth
            high = max(float(across.max()) * 2 if len(across) else 10.0, ridge * 4)
            xs = [min(low, ridge / 4), ridge, high]
            title = f"roof of {figure}: {peak / 1e12:.3g} TFLOP/s, {hardware.bandwidth / 1e9:.4g} GB/s"
            roofs.append(Series(title, xs, [xs[0] * hardware.bandwidth, peak, peak], color=used[name]))
        return roofs


def _by_time(rows: list[Cells]) -> list[Cells]:
    return sorted(rows, key=lambda row: -row[2])


def _cells(group: RooflineTotals) -> Cells:
    share, unknown = group.peak_share, group.unknown
    bound = group.bound if group.bound != "none" else None
    flops, moved = summed(group.flops, unknown), summed(group.moved_bytes, unknown)
    reached = share if share is None or not unknown else LowerBoundShare(share)
    return group.operations, int(group.time_ns), flops, moved, bound, group.intensity, reached, unknown


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
