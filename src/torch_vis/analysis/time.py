"""Where the time of a run goes, as a report: operations, modules, source lines, phases, and what a device did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.report import Charts, Report, most
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import duration
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.api_level import called_functions
from torch_vis.ops.display_names import op_label, place_label
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.module_tree import AGAIN, compiling
from torch_vis.views.text.table_layout import Field, Listing

BARS = 20
SLOWEST = 200
GAPS = 200
# a time that is off by no more than this part is told without its range
SURE = 0.05
# and one that is off by more than this part is not told at all
UNSURE = 0.3


def _time(time_ns: int) -> str:
    """What is left of a difference may be less than nothing."""
    return duration(time_ns) if time_ns >= 0 else f"-{duration(-time_ns)}"


CALLS = (
    Field("calls", "calls", "{:,}".format),
    Field("whole_ns", "in all", duration),
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
        """The graph, the columns and the circumstances of the run."""
        self._timing = Timing(run.graph, run.metrics)
        self._limits = run.limits

    # ---------------------------------------------------------------- what it found

    @property
    def total_ns(self) -> int:
        """The time of the whole run on the host, recording taken off."""
        return self._timing.total_ns

    @property
    def error_ns(self) -> int:
        """How much more or less the whole run may have taken, since what recording took is in part an estimate.

        Operations also run slower beside a recorder, on caches that it has filled, and may be interrupted on a busy
        machine; small ones may take a fraction of what they took here.
        0 of runs that were repeated: they were timed without recording.
        """
        return 0 if self.runs else int(self.meta.get("overhead_error_ns") or 0)

    @property
    def low_ns(self) -> int:
        """The least that the whole run took."""
        return max(self.total_ns - self.error_ns, 0)

    @property
    def high_ns(self) -> int:
        """The most that the whole run took."""
        return self.total_ns + self.error_ns

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
    def executions(self) -> int:
        """How often the program ran for this report, the recorded run among them."""
        return sum(self.meta.get("executions", {"recorded": 1}).values())

    @property
    def operators(self) -> list[Group]:
        """Operations by kind, the longest first."""
        return self._timing.by_operator

    @property
    def functions(self) -> list[Group]:
        """Operations, and those of gradients, by the function that the program called, the longest first."""
        return self._timing.by_function

    @property
    def lines(self) -> list[Group]:
        """Operations by the source line that called them, the longest first."""
        return self._timing.by_line

    @property
    def phases(self) -> list[Group]:
        """Operations by phase, in order."""
        return self._timing.by_phase

    @property
    def modules(self) -> list[CallTime]:
        """Modules with all of their calls, the longest first."""
        return self._timing.by_module

    @property
    def calls(self) -> list[CallTime]:
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
        result = {"whole run": f"{duration(self.total_ns)}, {runs}" if self.runs else self._single_run()}
        if self.plain_wall_ns is not None:
            low, high = (duration(self.meta[f"plain_wall_{end}_ns"]) for end in ("low", "high"))
            result["plain run"] = (
                f"{duration(self.plain_wall_ns)}, the median of others that nothing watched, half of them within "
                f"{low} to {high}"
            )
        if self.runs and "executions" in self.meta:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.meta["executions"].items())
            result["runs in all"] = f"{self.executions:,}: {kinds}"
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

    def _single_run(self) -> str:
        """The time of the recorded run, and how sure it is."""
        total, error = self.total_ns, self.error_ns
        if error <= SURE * total:
            return f"{duration(total)}, without what recording took"
        low, high = duration(self.low_ns), duration(self.high_ns)
        if error > UNSURE * total:
            bounds = f"between {low} and {high}" if self.low_ns else f"at most {high}"
            return f"{bounds}: what recording and other processes took hides it; trace(..., repeat=10) times it alone"
        return f"about {duration(total)} ({low} to {high}): what recording took is taken off, in part by an estimate"

    def listings(self) -> Sequence[Listing]:
        """Functions, operators, modules, lines, phases, operations, calls; kernels, waits and gaps of a device."""
        total = max(self.total_ns, 1)
        has_backward = any(row.backward_ns for row in self.modules)
        result = [
            self._groups("functions", "function", self.functions, total),
            self._groups("operators", "operator", self.operators, total),
            Listing("modules", (Field("module", "module"), Field("class", "class"), *CALLS),
                    [_called(row, row.calls, has_backward) for row in self.modules if self._is_module(row)],
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
            rows = [_called(row, row.scope, has_backward) for row in calls]
            result.append(Listing("calls", fields, rows, most=10, heading="Time by call of a module"))
        return result + [listing for use in self.devices for listing in self._device_listings(use)]

    def notes(self) -> Sequence[str]:
        """What the figures are not."""
        result = [
            "inclusive counts the modules inside, self does not; both are times of forward calls, and divide into "
            "operations and Python. backward is the time of the operations that compute gradients of the module's; in "
            "all is inclusive plus backward"
        ]
        if any(row.again for row in self.calls):
            result.append(
                f"what was checkpointed is recomputed in backward and counts there; {AGAIN} marks the calls that "
                "backward makes for it"
            )
        if not self.runs:
            result.append(
                "one run under the recorder, first calls included; the time of recording is subtracted as a probe of "
                "small operations in this process estimates it; trace(..., repeat=10) gives medians of runs without a "
                "recorder"
            )
        else:
            result.append(
                "the whole run is the median of runs in which only calls of modules were timed; a call has its share "
                "of that, and operations and Python have their shares of a call under the profiler, so that all times "
                "add up"
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
        words = ("repeated", "in another form", "launched by no", "on the device", "stays attached")
        return [*result, *(limit for limit in self._limits if any(word in limit for word in words))]

    def _is_module(self, row: CallTime) -> bool:
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
            [node.index, op_label(node.call.op), place_label(self.graph, node.scope.index),
             *(self.metrics[name][node.index] for name in having), _line_text(node)]
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
        name = op_label(result.call.op)
        return f"{name} in {result.path}" if result.path else name

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


def _called(row: CallTime, number: int, has_backward: bool) -> list[Any]:
    quartiles = (row.low_ns, row.high_ns)
    # what recording took is taken off by an estimate
    host = row.host_ns if row.host_ns >= 0 else None
    times = (row.self_ns, row.operations_ns, host, row.backward_ns, row.recomputed_ns)
    name = (row.name or ("whole run" if row.scope == 0 else row.type)) + (f" {AGAIN}" if row.again else "")
    whole = row.inclusive_ns + row.backward_ns if has_backward else None
    return [name, row.type, number, whole, row.inclusive_ns, *quartiles, *times, row.kernel_ns]


def _line_text(node: Node) -> str | None:
    """The line that an operation is due to; of a gradient, that of what it is the gradient of."""
    line = node.user_line
    if line is None:
        return None
    return line.short if line == node.site else f"gradient of {PurePath(line.file).name}:{line.line}"


def _bars(title: str, axis: str, series: Sequence[Series]) -> Chart:
    return Chart("bars", title, Axis(axis), Axis("time", "ns"), series)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "–"


class KernelLaunches(NamedTuple):
    """All launches of one kernel, copy or fill."""

    name: str
    launches: int
    time_ns: int


class Wait(NamedTuple):
    """A call in which the host waited for the device, and the operation that it was part of, if one is known."""

    name: str
    start_ns: int
    time_ns: int
    node: int | None


class Gap(NamedTuple):
    """A time in which the device was idle, and the operations whose kernels ran before and after it."""

    start_ns: int
    time_ns: int
    before: int | None
    after: int | None


class DeviceUse:
    """One device during the run that ``meta["device_time"]`` describes; times are from the beginning of that run.

    >>> rows = {"kernel_name": [0, 0], "kernel_node": [3, 4], "kernel_start_ns": [10, 30], "kernel_time_ns": [5, 5],
    ...         "kernel_device": [0, 0], "kernel_stream": [7, 7], "names": ["gemm"], "wait_name": [], "wait_node": [],
    ...         "wait_start_ns": [], "wait_time_ns": []}
    >>> use = DeviceUse(rows, 0)
    >>> use.span_ns, use.busy_ns, use.launch_bound, use.gaps
    (25, 10, 0.6, [Gap(start_ns=15, time_ns=15, before=3, after=4)])
    """

    def __init__(self, events: Mapping[str, Any], device: int) -> None:
        own = np.flatnonzero(np.array(events["kernel_device"], dtype=np.int64) == device)
        start = np.array(events["kernel_start_ns"], dtype=np.int64)[own]
        own = own[np.argsort(start, kind="stable")]
        self.number = device
        self._names: list[str] = list(events["names"])
        self._start, self._time, self._node, self._name = (
            np.array(events[f"kernel_{column}"], dtype=np.int64)[own]
            for column in ("start_ns", "time_ns", "node", "name")
        )
        self.waits = [
            Wait(self._names[name], start, time, node if node >= 0 else None)
            for name, start, time, node in zip(
                events["wait_name"], events["wait_start_ns"], events["wait_time_ns"], events["wait_node"]
            )
        ]

    @property
    def launches(self) -> int:
        """How many kernels, copies and fills ran."""
        return len(self._start)

    @property
    def kernel_ns(self) -> int:
        """Their time added up; where streams overlap it is more than the time that the device was busy."""
        return int(self._time.sum())

    @property
    def span_ns(self) -> int:
        """From the beginning of the first to the end of the last."""
        return int((self._start + self._time).max() - self._start.min()) if self.launches else 0

    @property
    def busy_ns(self) -> int:
        """How long at least one of them was running."""
        return self.span_ns - int(self._gaps[:, 1].sum())

    @property
    def waited_ns(self) -> int:
        """How long the host waited for devices."""
        return sum(wait.time_ns for wait in self.waits)

    @property
    def launch_bound(self) -> float:
        """The share of the span in which the device was idle while the host was not waiting for it: it was late."""
        begin, length = self._gaps[:, 0], self._gaps[:, 1]
        waited = np.zeros(len(begin), dtype=np.int64)
        for wait in self.waits:
            shared = np.minimum(begin + length, wait.start_ns + wait.time_ns) - np.maximum(
                begin, wait.start_ns
            )
            waited += np.maximum(shared, 0)
        return float((length - np.minimum(waited, length)).sum() / self.span_ns) if self.span_ns else 0.0

    @cached_property
    def gaps(self) -> list[Gap]:
        """When it was idle, the longest first."""
        order = np.argsort(-self._gaps[:, 1], kind="stable")
        return [
            Gap(begin, length, before if before >= 0 else None, after if after >= 0 else None)
            for begin, length, before, after in self._gaps[order].tolist()
        ]

    @cached_property
    def kernels(self) -> list[KernelLaunches]:
        """By name, the longest first."""
        many = np.bincount(self._name, minlength=len(self._names))
        time = np.bincount(self._name, weights=self._time, minlength=len(self._names))
        result = [
            KernelLaunches(name, int(many[n]), int(time[n])) for n, name in enumerate(self._names) if many[n]
        ]
        return sorted(result, key=lambda kernel: (-kernel.time_ns, kernel.name))

    @cached_property
    def _gaps(self) -> Ints:
        """Begin and length of each idle time, and the nodes before and after it."""
        if not self.launches:
            return np.zeros((0, 4), dtype=np.int64)
        stop = self._start + self._time
        until = np.maximum.accumulate(stop)
        last = np.maximum.accumulate(np.where(stop == until, np.arange(len(stop)), 0))
        idle = np.flatnonzero(self._start[1:] > until[:-1])
        return np.stack(
            [until[idle], self._start[idle + 1] - until[idle], self._node[last[idle]], self._node[idle + 1]],
            axis=1,
        )


def devices(events: Mapping[str, Any]) -> list[DeviceUse]:
    """Every device that did something, the busiest first."""
    uses = [DeviceUse(events, device) for device in sorted(set(events["kernel_device"]))]
    return sorted(uses, key=lambda use: -use.kernel_ns)


class Group(NamedTuple):
    """Operations of one kind, line or phase, and the time that they took; ``kernel_ns`` is a device's, where known."""

    name: str
    operations: int
    time_ns: int
    kernel_ns: int | None


class CallTime(NamedTuple):
    """A call of a module, or all calls of one: ``operations_ns`` + ``host_ns`` = ``inclusive_ns``.

    ``self_ns`` is what the modules that it calls do not take, and never less than 0. ``recomputed_ns`` is the part of
    ``backward_ns`` that computes again what was checkpointed; a call that backward made for it has that as its
    inclusive time. ``low_ns`` and ``high_ns`` are quartiles over repeated runs, where it was repeated; ``kernel_ns``
    is what devices did for it, backward included, where that is known.
    """

    name: str
    type: str
    calls: int
    inclusive_ns: int
    self_ns: int
    operations_ns: int
    host_ns: int
    backward_ns: int
    recomputed_ns: int
    low_ns: int | None
    high_ns: int | None
    kernel_ns: int | None
    scope: int
    """Number of the call, or of the first one."""
    again: bool = False
    """Whether backward made the call, to compute again what was checkpointed."""


class Timing:
    """The times of a run, added up along its graph.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> timing = Timing(t.graph, t.metrics)
    >>> sorted(group.name for group in timing.by_operator)
    ['addmm', 'relu', 't']
    >>> sum(group.time_ns for group in timing.by_operator) + timing.host_ns == timing.total_ns
    True
    """

    def __init__(self, graph: Graph, metrics: Metrics) -> None:
        if "time_ns" not in metrics or "scope_time_ns" not in metrics:
            raise UsageError("this trace has no times: it was recorded without, or on shapes alone")
        self.graph, self.metrics = graph, metrics
        self.time: Ints = metrics["time_ns"].values.astype(np.int64)
        self.inclusive: Ints = metrics["scope_time_ns"].values.astype(np.int64)
        self.kernel: Column | None = None
        if "kernel_ns" in metrics:
            self.kernel = metrics["kernel_ns"]
        self.is_recomputed = graph.tree.recomputed

    @property
    def total_ns(self) -> int:
        """The time of the whole run on the host."""
        return int(self.inclusive[0])

    @property
    def operations_ns(self) -> int:
        """The time of all operations."""
        return int(self.time.sum())

    @property
    def host_ns(self) -> int:
        """What is left of the whole: Python, dispatch, the autograd engine, waiting between operations."""
        return self.total_ns - self.operations_ns

    # ---------------------------------------------------------------- operations

    @cached_property
    def by_operator(self) -> list[Group]:
        """By operator, overloads together, the longest first."""
        names = [op_label(call.op) for call in self.graph.calls]
        return self._grouped(names, self.graph.node_call)

    @cached_property
    def by_function(self) -> list[Group]:
        """By the function that the program called, the longest first; what computes its gradients counts with it."""
        names, of_node = called_functions(self.graph)
        return self._grouped(names, of_node)

    @cached_property
    def by_line(self) -> list[Group]:
        """By source line, the longest first; a backward operation counts for the line of its forward operation."""
        graph = self.graph
        names = [*(site.short for site in graph.sites), "no source line"]
        linked = graph.node_link >= 0
        site = np.where(linked, graph.node_site[graph.node_link], graph.node_site)
        return self._grouped(names, np.where(site < 0, len(names) - 1, site))

    @cached_property
    def by_phase(self) -> list[Group]:
        """By phase, in order."""
        names = [phase.name.lower() for phase in Phase]
        result = {group.name: group for group in self._grouped(names, self.graph.node_phase)}
        return [result[name] for name in names if name in result]

    def _grouped(self, names: Sequence[str], rows: Any) -> list[Group]:
        numbers: dict[str, int] = {}
        of = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
        group = of[rows] if len(rows) else np.zeros(0, dtype=np.int64)
        many = np.bincount(group, minlength=len(numbers))
        time = np.bincount(group, weights=self.time, minlength=len(numbers))
        kernel = self._kernels(group, len(numbers))
        result = [
            Group(name, int(many[number]), int(time[number]), kernel[number])
            for name, number in numbers.items()
            if many[number]
        ]
        return sorted(result, key=lambda row: (-row.time_ns, row.name))

    def _kernels(self, group: Ints, count: int) -> list[int | None]:
        """Device time by group; None where no operation of it is known."""
        if self.kernel is None:
            return [None] * count
        known = np.ones(len(group), dtype=bool) if self.kernel.known is None else self.kernel.known
        spent = np.bincount(group[known], weights=self.kernel.values[known], minlength=count)
        some = np.bincount(group[known], minlength=count)
        return [int(time) if many else None for time, many in zip(spent, some)]

    # ---------------------------------------------------------------- modules

    @cached_property
    def by_call(self) -> list[CallTime]:
        """Every call of a module, function or optimizer, in order; the first is the run."""
        graph, is_recomputed = self.graph, self.is_recomputed
        backward = graph.node_phase == Phase.BACKWARD
        repeated = backward & (graph.node_flags & Flag.RECOMPUTE != 0)
        first = graph.tree.by_first_call
        inside = self._inside(self.time, ~backward, graph.tree)
        inside[is_recomputed] = self._inside(
            self.time, repeated & is_recomputed[graph.node_scope], graph.tree
        )[is_recomputed]
        behind = self._inside(self.time, backward, first)
        recomputed = self._inside(self.time, repeated, first)
        behind[is_recomputed] -= recomputed[is_recomputed]
        recomputed[is_recomputed] = 0
        # the run is around its backward pass
        inside[0], behind[0], recomputed[0] = self.operations_ns, 0, 0
        own = self._own()
        low, high = (self._spread(name) for name in ("scope_time_low_ns", "scope_time_high_ns"))
        kernel: Any = [None] * len(own)
        if self.kernel is not None:
            known = np.ones(len(graph), dtype=bool) if self.kernel.known is None else self.kernel.known
            kernel = self._inside(self.kernel.values.astype(np.int64), known, first).tolist()
        return [
            CallTime(
                name=graph.scope_paths[scope],
                type=graph.modules[module].type,
                calls=1,
                inclusive_ns=int(self.inclusive[scope]),
                self_ns=int(own[scope]),
                operations_ns=int(inside[scope]),
                host_ns=int(self.inclusive[scope] - inside[scope]),
                backward_ns=int(behind[scope]),
                recomputed_ns=int(recomputed[scope]),
                low_ns=low[scope],
                high_ns=high[scope],
                kernel_ns=kernel[scope],
                scope=scope,
                again=bool(is_recomputed[scope]),
            )
            for scope, module in enumerate(graph.scope_module.tolist())
        ]

    @cached_property
    def by_module(self) -> list[CallTime]:
        """Every module with all of its calls, the longest first; calls inside a call of the same count once.

        Those that backward made again are no calls of the module here, but part of its backward time.
        """
        calls: dict[int, list[CallTime]] = {}
        for call in self.by_call:
            calls.setdefault(int(self.graph.scope_module[call.scope]), []).append(call)
        outermost = self.graph.tree.by_first_call.outermost(self.graph.scope_module)
        return sorted(
            (
                self._module(group, [call for call in group if outermost[call.scope]])
                for group in calls.values()
            ),
            key=lambda row: (-row.inclusive_ns - row.backward_ns, row.scope),
        )

    def _module(self, group: list[CallTime], outer: list[CallTime]) -> CallTime:
        """All calls of a module as one; ``outer`` are those that are inside no other of them."""
        first = [call for call in group if not call.again]
        once = [call for call in outer if not call.again]
        # what was computed again took its time in backward, of which modules have the operations
        recomputed = sum(call.operations_ns if call.again else call.recomputed_ns for call in outer)
        behind = sum(call.backward_ns + (call.operations_ns if call.again else 0) for call in outer)
        alone = len(first) == 1
        return group[0]._replace(
            calls=len(first),
            inclusive_ns=sum(call.inclusive_ns for call in once),
            self_ns=sum(call.self_ns + self._made_again[call.scope] for call in first),
            operations_ns=sum(call.operations_ns for call in once),
            host_ns=sum(call.host_ns for call in once),
            backward_ns=behind,
            recomputed_ns=recomputed,
            low_ns=first[0].low_ns if alone else None,  # quartiles of calls do not add up
            high_ns=first[0].high_ns if alone else None,
            kernel_ns=None if self.kernel is None else sum(call.kernel_ns or 0 for call in outer),
            again=False,
        )

    @cached_property
    def _made_again(self) -> list[int]:
        """For each call the time of the recomputed calls inside it."""
        result = np.zeros(len(self.inclusive), dtype=np.int64)
        parent = self.graph.scope_parent
        outer = self.is_recomputed & ~self.is_recomputed[parent]
        np.add.at(result, parent[outer], self.inclusive[outer])
        return list(result.tolist())

    def _own(self) -> Ints:
        """What the calls inside each call do not take."""
        # what recording took is taken off by an estimate
        return np.maximum(self.graph.tree.own(self.inclusive), 0)

    def _spread(self, name: str) -> list[int | None]:
        return self.metrics[name][:] if name in self.metrics else [None] * len(self.inclusive)

    def _inside(self, amount: Ints, chosen: Bools, tree: Tree) -> Ints:
        """Sums over some operations of each call and of the calls inside it."""
        return tree.inclusive(self.graph.tree.of_nodes(amount, chosen))
