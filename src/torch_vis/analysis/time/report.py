"""Where the time of a run goes, as a report: operations, modules, source lines, phases, and what a device did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from torch_vis.analysis.report import Charts, Report, most
from torch_vis.analysis.time.breakdown import Called, Group, Timing
from torch_vis.analysis.time.device_activity import DeviceUse, devices
from torch_vis.graph.graph import Node
from torch_vis.graph.record import Run
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import duration
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.notes import AGAIN, compiling
from torch_vis.views.text.table import Field, Listing

BARS = 20
SLOWEST = 200
GAPS = 200


def _time(time_ns: int) -> str:
    """What is left of a difference may be less than nothing."""
    return duration(time_ns) if time_ns >= 0 else f"-{duration(-time_ns)}"


CALLS = (
    Field("calls", "calls", "{:,}".format),
    Field("inclusive_ns", "inclusive", duration),
    Field("low_ns", "from", duration),
    Field("high_ns", "to", duration),
    Field("self_ns", "self", duration),
    Field("operations_ns", "in operations", duration),
    Field("host_ns", "in Python", _time),
    Field("backward_ns", "backward", duration),
    Field("recomputed_ns", "of it again", duration, rare=True),
    Field("kernel_ns", "on device", duration),
)


class TimeReport(Report):
    """The time of a run on the host and, of a repeated run on CUDA, on the device.

    ``operators``, ``lines`` and ``phases`` are operations added up; they come to ``operations_ns``, and that with
    ``host_ns`` to ``total_ns``. ``modules`` and ``calls`` have inclusive and self time. Of a run traced with
    ``repeat=``, the whole is a median, and every other figure its part of that.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> report = tv.trace(model, torch.ones(1, 3), backward=True).time()
    >>> [row.name for row in report.phases]
    ['forward', 'backward']
    >>> linear = next(row for row in report.modules if row.name == "0")
    >>> linear.operations_ns + linear.host_ns == linear.inclusive_ns
    True
    """

    title = "Time"

    def __init__(self, run: Run) -> None:
        self.graph, self.metrics, self.meta = run.graph, run.metrics, run.meta
        self._timing = Timing(run.graph, run.metrics)
        self._limits = run.limits

    # ---------------------------------------------------------------- what it found

    @property
    def total_ns(self) -> int:
        """The time of the whole run on the host, recording taken off."""
        return self._timing.total_ns

    @property
    def operations_ns(self) -> int:
        """The time of all operations on the host."""
        return self._timing.operations_ns

    @property
    def host_ns(self) -> int:
        """What the host did besides operations: Python, dispatch, the autograd engine."""
        return self._timing.host_ns

    @property
    def plain_wall_ns(self) -> int | None:
        """The time of a run that nothing watched, up to the end of the last kernel; None where it was not repeated."""
        return self.meta.get("plain_wall_ns")

    @property
    def runs(self) -> int:
        """How many runs the figures are medians of; 0 where they are of the recorded run."""
        return int(self.meta.get("repeat", 0))

    @property
    def operators(self) -> list[Group]:
        """Operations by kind, the longest first."""
        return self._timing.by_operator

    @property
    def lines(self) -> list[Group]:
        """Operations by the source line that called them, the longest first."""
        return self._timing.by_line

    @property
    def phases(self) -> list[Group]:
        """Operations by phase, in order."""
        return self._timing.by_phase

    @property
    def modules(self) -> list[Called]:
        """Modules with all of their calls, the longest first."""
        return self._timing.by_module

    @property
    def calls(self) -> list[Called]:
        """Every call of a module, in order; the first is the run."""
        return self._timing.by_call

    @cached_property
    def slowest(self) -> list[Node]:
        """The operations that took longest, one by one."""
        order = np.argsort(-self._timing.time, kind="stable")[:SLOWEST]
        return [Node(self.graph, int(node)) for node in order]

    @cached_property
    def devices(self) -> list[DeviceUse]:
        """What each CUDA device did, the busiest first; of a repeated run only."""
        return devices(self.meta["device_time"]) if "device_time" in self.meta else []

    @property
    def device(self) -> DeviceUse | None:
        """The busiest device, None where there is none or the run was not repeated."""
        return self.devices[0] if self.devices else None

    # ---------------------------------------------------------------- as a table

    def facts(self) -> Mapping[str, str]:
        """What it all comes to."""
        runs = f"the median of {self.runs:,} runs in which calls of modules were timed"
        how = runs if self.runs else "without what recording took"
        result = {"whole run": f"{duration(self.total_ns)}, {how}"}
        if self.plain_wall_ns is not None:
            low, high = (duration(self.meta[f"plain_wall_{end}_ns"]) for end in ("low", "high"))
            result["plain run"] = (
                f"{duration(self.plain_wall_ns)}, the median of others that nothing watched, half of them within "
                f"{low} to {high}"
            )
        result["operations"] = f"{duration(self.operations_ns)} ({_share(self.operations_ns, self.total_ns)})"
        compiled = 0 if self.runs else self.meta.get("compile_ns")
        result["Python and dispatch"] = f"{_time(self.host_ns)} ({_share(self.host_ns, self.total_ns)})" + (
            f", {duration(compiled)} of it to compile" if compiled else ""
        )
        for use in self.devices:
            result[f"cuda:{use.number}"] = (
                f"{use.launches:,} kernels and copies, busy {duration(use.busy_ns)}, "
                f"{_share(use.busy_ns, self.plain_wall_ns or 0)} of a plain run; under the profiler, idle and "
                f"waiting for launches {use.launch_bound:.0%} of {duration(use.span_ns)}"
            )
            if use.waits:
                result["host waits"] = f"{len(use.waits):,} times, {duration(use.waited_ns)}"
        return result

    def listings(self) -> Sequence[Listing]:
        """Operators, modules, lines, phases, single operations and calls; kernels, waits and gaps of a device."""
        total = max(self.total_ns, 1)
        result = [
            self._groups("operators", "operator", self.operators, total),
            Listing("modules", (Field("module", "module"), Field("class", "class"), *CALLS),
                    [_called(row, row.calls) for row in self.modules if self._is_module(row)],
                    heading="Time by module"),
            self._groups("lines", "source line", self.lines, total),
            self._groups("phases", "phase", self.phases, total),
            self._slowest_listing(),
        ]  # fmt: skip
        if len(self.calls) > len(self.modules):
            calls = sorted(self.calls, key=lambda row: (-row.inclusive_ns, row.scope))
            fields = (
                Field("module", "call of"),
                Field("class", "class"),
                Field("scope", "scope", str),
                *CALLS[1:],
            )
            rows = [_called(row, row.scope) for row in calls]
            result.append(Listing("calls", fields, rows, most=10, heading="Time by call of a module"))
        return result + [listing for use in self.devices for listing in self._device_listings(use)]

    def notes(self) -> Sequence[str]:
        """What the figures are not."""
        result = [
            "inclusive is with the modules inside, self without; both are of calls forward, and each is operations and "
            "Python; backward is that of operations whose gradients it computes"
        ]
        if any(row.again for row in self.calls):
            result.append(
                f"what was checkpointed is computed again in backward and counts there; {AGAIN} marks the calls that "
                "backward makes for it"
            )
        if not self.runs:
            result.append(
                "one run under the recorder: small operations seem longer than they are, and first calls are among "
                "them; trace(..., repeat=10) gives medians of runs at their own pace"
            )
        else:
            result.append(
                "the whole run is the median of runs in which calls of modules were timed; calls have the part of it "
                "that they took there, operations and Python the parts of a call that they took under the profiler, so "
                "that all of them add up"
            )
        if self.plain_wall_ns is not None:
            result.append(
                "the whole run and the plain run are of different runs, which took turns: either can be shorter where "
                "they differ by less than runs vary"
            )
        if self.device is not None:
            result.append(
                "the profiler slows the host down, so a device is idle longer under it than in a plain run"
            )
        result += compiling(self.meta)
        words = ("repeated", "in another form", "launched by no", "on the device")
        return [*result, *(limit for limit in self._limits if any(word in limit for word in words))]

    def _is_module(self, row: Called) -> bool:
        return self.graph.modules[int(self.graph.scope_module[row.scope])].kind != "run"

    def _groups(self, title: str, name: str, groups: Sequence[Group], total: int) -> Listing:
        fields = [
            Field(title.removesuffix("s"), name),
            Field("operations", "operations", "{:,}".format),
            Field("time_ns", "time", duration),
            Field("share", "of the run", "{:.1%}".format),
        ]
        rows = [[row.name, row.operations, row.time_ns, row.time_ns / total] for row in groups]
        if "kernel_ns" in self.metrics:
            fields.append(Field("kernel_ns", "on device", duration))
            rows = [[*cells, row.kernel_ns] for cells, row in zip(rows, groups)]
        return Listing(title, tuple(fields), rows, heading=f"Time by {name}")

    def _slowest_listing(self) -> Listing:
        names = ["time_ns", "time_low_ns", "time_high_ns", "kernel_ns"]
        titles = {"time_ns": "time", "time_low_ns": "from", "time_high_ns": "to", "kernel_ns": "on device"}
        having = [name for name in names if name in self.metrics]
        fields = [Field("node", "number", str), Field("operation", "operation"), Field("module", "module")]
        fields += [Field(name, titles[name], duration) for name in having] + [Field("line", "source line")]
        rows = [
            [node.index, node.name, node.path or "(run)", *(self.metrics[name][node.index] for name in having),
             node.site.short if node.site is not None else None]
            for node in self.slowest
        ]  # fmt: skip
        return Listing("slowest operations", tuple(fields), rows, most=10, heading="The slowest operations")

    def _device_listings(self, use: DeviceUse) -> list[Listing]:
        where = f" on cuda:{use.number}"
        time = Field("time_ns", "time", duration)
        kernels = (Field("kernel", "kernel"), Field("launches", "launches", "{:,}".format), time)
        waits = (
            Field("call", "host waits in"),
            Field("operation", "operation"),
            Field("line", "source line"),
            time,
        )
        gaps = (Field("before", "idle after"), Field("after", "until"), time)
        return [
            Listing(f"kernels{where}", kernels, use.kernels, most=15, heading=f"Kernels{where}"),
            Listing(
                f"host waits{where}",
                waits,
                [
                    [wait.name, self._named(wait.node), self._line(wait.node), wait.time_ns]
                    for wait in sorted(use.waits, key=lambda wait: -wait.time_ns)
                ],
                most=10,
                heading=f"Where the host waits{where}",
            ),
            Listing(
                f"idle{where}",
                gaps,
                [[self._named(gap.before), self._named(gap.after), gap.time_ns] for gap in use.gaps[:GAPS]],
                most=10,
                heading=f"When nothing runs{where}",
            ),
        ]

    def _named(self, node: int | None) -> str | None:
        if node is None:
            return None
        result = Node(self.graph, node)
        return f"{result.name} in {result.path}" if result.path else result.name

    def _line(self, node: int | None) -> str | None:
        site = None if node is None else Node(self.graph, node).site
        return None if site is None else site.short

    # ---------------------------------------------------------------- as a figure

    def charts(self) -> Charts:
        """Bars by module (forward operations, host, backward), by operator, by line; of a device, its kernels."""
        if not len(self.graph):
            return Charts()
        builders: dict[str, Callable[[], Chart]] = {}
        if any(self._is_module(row) for row in self.modules):
            builders["modules"] = self._modules_chart
        builders["operators"] = lambda: _groups_chart("operator", self.operators)
        builders["lines"] = lambda: _groups_chart("source line", self.lines)
        if self.device is not None and self.device.launches:
            builders["kernels"] = self._kernels_chart
        return Charts(**builders)

    def _modules_chart(self) -> Chart:
        every = [row for row in self.modules if self._is_module(row)]
        modules = every[:BARS]
        labels = [f"{row.name} {row.type}" if row.name not in ("", row.type) else row.type for row in modules]
        stepping = (self.graph.node_phase == Phase.OPTIMIZER).any()
        own = "forward and optimizer operations" if stepping else "forward operations"
        parts = {
            own: [row.operations_ns for row in modules],
            "Python and dispatch": [max(row.host_ns, 0) for row in modules],
            "backward operations": [row.backward_ns - row.recomputed_ns for row in modules],
            "computed again in backward": [row.recomputed_ns for row in modules],
        }
        series = [Series(name, labels, times) for name, times in parts.items() if any(times)]
        title = f"Time by module, with the modules inside it{most(len(modules), len(every))}"
        return _bars(title, "module", series)

    def _kernels_chart(self) -> Chart:
        assert self.device is not None
        kernels = self.device.kernels[:BARS]
        series = Series("device", [row.name for row in kernels], [row.time_ns for row in kernels])
        title = f"Kernel time on cuda:{self.device.number}{most(len(kernels), len(self.device.kernels))}"
        return _bars(title, "kernel", [series])


def _groups_chart(kind: str, groups: Sequence[Group]) -> Chart:
    shown = groups[:BARS]
    series = Series("host", [row.name for row in shown], [row.time_ns for row in shown])
    return _bars(f"Time by {kind}{most(len(shown), len(groups))}", kind, [series])


def _called(row: Called, number: int) -> list[Any]:
    quartiles = (row.low_ns, row.high_ns)
    host = row.host_ns if row.host_ns >= 0 else None  # what recording took is taken off by an estimate
    times = (row.self_ns, row.operations_ns, host, row.backward_ns, row.recomputed_ns)
    name = (row.name or "(root)") + (f" {AGAIN}" if row.again else "")
    return [name, row.type, number, row.inclusive_ns, *quartiles, *times, row.kernel_ns]


def _bars(title: str, axis: str, series: Sequence[Series]) -> Chart:
    return Chart("bars", title, Axis(axis), Axis("time", "ns"), series)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "–"
