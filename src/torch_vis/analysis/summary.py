"""What a trace comes to, as data: the totals and the module tree that ``print`` shows."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any, NamedTuple

from torch_vis.analysis.report import Charts, Report, most
from torch_vis.graph.lifetimes import next_run, peak_memory
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.module_table import ModuleTable
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import count, duration, size
from torch_vis.ops.cost.compute import why_uncovered
from torch_vis.views.charts.chart import COLORS, Axis, Chart, Series
from torch_vis.views.text.module_tree import gaps, remarks, table, totals
from torch_vis.views.text.table_layout import Field, Listing

BARS = 30
UNCOVERED = "Operators whose FLOPs are not known"


class ModuleSummary(NamedTuple):
    """All calls of one module from one place, with what it called: figures as in the table, None where not known.

    ``recomputed_ops`` are those of ``backward_ops`` that compute again what was checkpointed. ``incomplete`` names the
    figures that are too low, since an operation inside has none: ``("flops", "macs")``.
    """

    path: str
    type: str
    kind: str
    calls: int
    parameters: int
    outputs: tuple[str, ...]
    ops: int
    backward_ops: int
    recomputed_ops: int
    time_ns: int | None
    self_ns: int | None
    backward_ns: int | None
    alloc_bytes: int | None
    backward_bytes: int | None
    flops: int | None
    backward_flops: int | None
    macs: int | None
    backward_macs: int | None
    moved_bytes: int | None
    backward_moved_bytes: int | None
    incomplete: tuple[str, ...]


def module_summaries(table: ModuleTable) -> list[ModuleSummary]:
    """Every row of a module table, that of the run first."""
    return [
        ModuleSummary(
            node.path,
            node.type,
            node.kind,
            node.calls,
            sum(table.parameters[number].type.numel for number in node.parameters),
            tuple(map(str, node.outputs)),
            **{name: getattr(node.sums, name) for name in node.sums.__slots__},
        )
        for node in table.modules
    ]


class PhaseSummary(NamedTuple):
    """Forward, backward or optimizer: what its operations come to, None where nothing of it is known.

    ``incomplete`` names the figures that leave out operations of which they are not known.
    """

    phase: str
    operations: int
    time_ns: int | None
    alloc_bytes: int | None
    flops: int | None
    macs: int | None
    moved_bytes: int | None
    incomplete: tuple[str, ...]


SUMMED = PhaseSummary._fields[2:-1]


class SummaryReport(Report):
    """The totals and the module tree of a trace.

    >>> import torch, torch_vis as tv
    >>> s = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True).summary()
    >>> s.operations, s.parameters, s.macs, s.uncovered
    ({'forward': 3, 'backward': 10}, 8, 12, {})
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._outline = ModuleTable(run.graph, run.metrics)
        self.model: str | None = run.meta.get("model")
        """The class or the function that was traced."""
        self.operations = {
            Phase(phase).name.lower(): number
            for phase, number in sorted(Counter(run.graph.node_phase.tolist()).items())
        }
        """How many operations ran in each phase."""
        self.parameters = sum(parameter.type.numel for parameter in self._outline.parameters)
        """How many elements the parameters that the run used have."""
        self.parameter_bytes = _sum([parameter.type.nbytes for parameter in self._outline.parameters])
        """The bytes of these parameters."""
        self.inputs = {v.name or str(v.index): str(v.type) for v in run.graph.inputs if v.role == "input"}
        """The types of the inputs, by name."""
        self.outputs = {r.name: str(r.value.type) for r in run.graph.outcomes if r.kind == "output"}
        """The types of the outputs, by name."""
        self.flops, self.macs, self.moved_bytes = (
            self._total(name) for name in ("flops", "macs", "moved_bytes")
        )
        """Of all operations with a formula; None where there is none."""
        self.time_ns = self._total("time_ns")
        """The time of all operations added up; None where nothing was timed."""
        self.wall_ns: int | None = run.meta.get("wall_ns")
        """The time of the run by the clock."""
        self.uncovered = _uncovered(run)
        """Operators without a formula, with the number of their calls; the sums leave them out."""
        self.limits = run.limits
        """What could not be captured."""

    def _total(self, name: str) -> int | None:
        metrics = self._run.metrics
        total = metrics[name].total() if name in metrics else None
        return None if total is None else int(total)

    @cached_property
    def why_uncovered(self) -> dict[str, str]:
        """Why the cost of an operator is not known: no formula, one that leaves the case open, or one that failed.

        >>> import torch, torch_vis as tv
        >>> def by_numpy(x):
        ...     made = torch.empty(3)
        ...     made.numpy()[:] = 1
        ...     return made + x
        >>> [*tv.trace(by_numpy, torch.zeros(3)).summary().why_uncovered.values()]
        ['something outside of torch may have filled the memory; what it took is not known']
        """
        if not self.uncovered:
            return {}
        text = why_uncovered(self._run.graph, self._run.metrics.get("stored"))
        return {op: text.get(op, "it was not known when the file was written") for op in self.uncovered}

    @cached_property
    def peak_bytes(self) -> int | None:
        """The most that tensors held at once."""
        peak = peak_memory(self._run.metrics)
        return None if peak is None else peak.size_bytes

    @cached_property
    def steady_peak_bytes(self) -> int | None:
        """The same from the second step on, where this one made state of an optimizer; else None."""
        later = next_run(self._run.graph, self._run.metrics, self._run.meta)
        return None if later is None else later.peak_bytes

    @cached_property
    def phases(self) -> list[PhaseSummary]:
        """The totals by phase."""
        graph, metrics = self._run.graph, self._run.metrics
        result = []
        for phase, number in self.operations.items():
            inside = graph.node_phase == Phase[phase.upper()]
            sums = {name: _total_of(metrics, name, inside) for name in SUMMED}
            low = tuple(name for name in SUMMED if name in metrics and _has_gaps(metrics[name], inside))
            result.append(PhaseSummary(phase, number, **sums, incomplete=low))
        return result

    @cached_property
    def modules(self) -> list[ModuleSummary]:
        """The module tree in reading order, one row for each module and place that it was called from.

        The run itself is the first row where it ran operations outside of all modules.
        """
        run = self._outline.run
        is_idle = run.kind == "run" and not (run.own.ops or run.own.backward_ops)
        return module_summaries(self._outline)[1 if is_idle else 0 :]

    def facts(self) -> dict[str, str]:
        return totals(self._run.graph, self._run.metrics, self._run.meta, self._outline)

    def listings(self) -> list[Listing]:
        shown = {"ns": duration, "bytes": size, "flops": count, "ops": "{:,}".format}
        fields = []
        for name in ModuleSummary._fields:
            unit = name.rpartition("_")[2]
            text = name in ("path", "type", "kind", "outputs", "incomplete")
            show = None if text else shown.get(unit, "{:,}".format)
            fields.append(Field(name, name.replace("_", " "), show, rare=name == "recomputed_ops"))
        operators = (
            Field("operator", "operator"),
            Field("calls", "calls", "{:,}".format),
            Field("why", "why"),
        )
        uncovered = [(op, calls, self.why_uncovered[op]) for op, calls in self.uncovered.items()]
        phases = [Field("phase", "phase"), Field("operations", "operations", "{:,}".format)]
        for name in SUMMED:
            phases.append(Field(name, name.replace("_", " "), shown.get(name.rpartition("_")[2], count)))
        phases.append(Field("incomplete", "incomplete"))
        return [
            Listing("Modules", tuple(fields), self.modules),
            Listing("Phases", tuple(phases), self.phases),
            Listing(UNCOVERED, operators, uncovered),
        ]

    def notes(self) -> list[str]:
        """Which sums leave operations out, and what the rest stands for."""
        return gaps(self._run.metrics) + remarks(self._run.graph, self._run.meta)

    def charts(self) -> Charts:
        """The time of each module's own operations, where it was measured."""
        return Charts(time=self._time_chart) if self._timed else Charts()

    @cached_property
    def _timed(self) -> list[tuple[str, int, int, str]]:
        """Every module with the time of its own operations, forward and backward, and its class."""
        timed = [
            (module.path or module.type, module.own.time_ns or 0, module.own.backward_ns or 0, module.type)
            for module in self._outline.modules
            if module.kind != "run" and (module.own.time_ns or module.own.backward_ns)
        ]
        return sorted(timed, key=lambda row: -row[1] - row[2])

    def _time_chart(self) -> Chart:
        rows = self._timed[:BARS]
        names, forward, backward, types = zip(*rows, strict=True)
        stepping = any(row.phase == "optimizer" for row in self.phases)
        own = "forward and optimizer operations" if stepping else "forward operations"
        series = [Series(own, names, forward, types)]
        if any(backward):
            # in the colour that it has where time() shows Python between the two
            series.append(Series("backward operations", names, backward, types, color=COLORS[2]))
        title = f"Time by module, without the modules inside it{most(len(rows), len(self._timed))}"
        return Chart("bars", title, Axis("module"), Axis("time", "ns"), series)

    def table(self, *, width: int = 120) -> str:
        """As ``print`` shows the trace."""
        return table(self._run, width=width)

    def to_dict(self) -> dict[str, Any]:
        """Totals and modules as plain data, for JSON; ``facts`` and ``text`` are those of any report."""
        names = (
            "model operations parameters parameter_bytes inputs outputs flops macs moved_bytes peak_bytes "
            "steady_peak_bytes time_ns wall_ns uncovered why_uncovered"
        ).split()
        result = {name: getattr(self, name) for name in names}
        modules = [
            {**row._asdict(), "outputs": list(row.outputs), "incomplete": list(row.incomplete)}
            for row in self.modules
        ]
        phases = [{**row._asdict(), "incomplete": list(row.incomplete)} for row in self.phases]
        rest = {"facts": self.figures(), "text": dict(self.facts())}
        rest |= {"notes": self.notes(), "limits": list(self.limits)}
        return {**result, "phases": phases, "modules": modules, **rest}


def _uncovered(run: Run) -> dict[str, int]:
    return (
        dict(run.graph.operator_counts(run.metrics["flops"].unknown_rows)) if "flops" in run.metrics else {}
    )


def _total_of(metrics: Metrics, name: str, inside: Any) -> int | None:
    """The sum of a metric over some operations; None where nothing of it is known."""
    if name not in metrics:
        return None
    column = metrics[name]
    known = inside if column.known is None else inside & column.known
    return int(column.values[known].sum()) if known.any() or not inside.any() else None


def _has_gaps(column: Column, inside: Any) -> bool:
    return column.known is not None and bool((inside & ~column.known).any())


def _sum(sizes: list[int | None]) -> int | None:
    """The sum, None where a part of it is not known."""
    return None if None in sizes else sum(size for size in sizes if size is not None)
