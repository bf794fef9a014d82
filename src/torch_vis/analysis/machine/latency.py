"""How long the traced run takes on a machine: the host issues operations, the device works them off.

On a GPU the two run side by side: a kernel starts when it has been launched and the one before it is done, and the host
waits only where a value is read back. On a CPU they take turns. ``Latency`` holds an estimate with a range in which the
time of the run is expected to lie nine times out of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.machine import host_model as host_time
from torch_vis.analysis.machine.calibration import WAS_BUSY, Calibration, machine
from torch_vis.analysis.machine.datasheet_efficiency import DatasheetModel, usual_host
from torch_vis.analysis.machine.features import Workload, workload
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.kernel_model import ARITHMETIC, VIEW, KernelEstimate
from torch_vis.analysis.report import Charts, Report, least, summed
from torch_vis.errors import UsageError
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.call import short_name
from torch_vis.graph.lifetimes import peak_memory
from torch_vis.graph.module_table import own_operations
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import count, duration, many, size
from torch_vis.graph.types import Bools, Floats
from torch_vis.ops.display_names import op_label
from torch_vis.ops.families import KINDS, REAL_DTYPES, kinds, lists_tensors
from torch_vis.views.charts.chart import INK, PALE, Axis, Chart, Series, stages_of
from torch_vis.views.text.table_layout import Field, Listing

if TYPE_CHECKING:
    from torch_vis.analysis.machine.hardware import Hardware
    from torch_vis.graph.graph import Graph
    from torch_vis.graph.metrics import Metrics

# standard deviations that nine tenths lie within
TIMES = 1.645
WAITS = frozenset(
    {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select"}
)
# what every kernel of a run is off by alike: clocks, heat, how caches were left
COMMON = 0.05
# how far what different operations of one kind are off by goes together
ALIKE = 0.5
# between two kernels, where it was not measured
GAP_NS = 700.0
# Within a model operations take longer than alone: caches, memory and clocks are shared. On fifteen models that no
# calibration and no benchmark of ours contains, kernels took 6 % more on an H200, and so did its host; not so what
# was timed as a whole.
WITHIN = 1.06
# from the last kernel's end until the host has noticed
SETTLE_NS = 20_000.0
PHASES = ("forward", "backward", "optimizer")


class Latency(NamedTuple):
    """A prediction: totals, ranges, and per operation what the device and the host take.

    ``end_ns`` is when each operation is done. ``unknown`` are operators whose time is not known, with the number of
    their calls, which ``missing`` marks: they have no cost formula (compiled code, one's own), or the calibration timed
    nothing of their kind, which ``unlike`` marks, or the machine has no figure for their element type, which
    ``without`` marks. Each of them counts as what the roofs allow or as the smallest operation there is, so that with
    any of them all times are lower bounds and ``high_ns`` is None. ``taken_for`` are element types that were not timed,
    or have no figure, each with the one that it was counted as; None is for no figure.
    """

    machine: str
    overlaps: bool
    total_ns: float
    low_ns: float
    high_ns: float | None
    device_ns: Floats
    host_ns: Floats
    end_ns: Floats
    phases: dict[str, float]
    unknown: list[tuple[str, int]]
    missing: Bools
    unlike: Bools
    without: Bools
    taken_for: dict[str, str | None]

    @property
    def waits_for(self) -> str | None:
        """``"host"`` or ``"device"``: which of the two the run mostly waits for; None where times are not known."""
        if self.unknown:
            return None
        return "host" if self.host_ns.sum() >= self.device_ns.sum() else "device"


def predict(graph: Graph, metrics: Metrics, machine: Calibration | Hardware) -> Latency:
    """The time of a traced run on a machine that was calibrated, or of which the datasheet is known.

    >>> import torch, torch_vis as tv
    >>> from torch_vis.analysis.machine.hardware import find_hardware
    >>> t = tv.trace(torch.nn.Linear(512, 512), torch.ones(64, 512))
    >>> found = predict(t.graph, t.metrics, find_hardware("h100"))
    >>> found.low_ns < found.total_ns < found.high_ns
    True
    """
    work = workload(graph, metrics)
    overlaps = machine.class_ != "cpu"
    if isinstance(machine, Calibration):
        estimate, host, name = machine.kernels(work), machine.host, machine.device
        within = np.where(np.isfinite(estimate.host_ns) | (not overlaps), 1.0, WITHIN)
        per_class = machine.device_ns(estimate) * within
    else:
        estimate, host, name = DatasheetModel(machine)(work), usual_host(machine), machine.name
        within = np.ones(len(work.op))
        per_class = estimate.time_ns + (GAP_NS * estimate.kernels if overlaps else 0.0)
    device = per_class[work.group]
    issue = host_time.per_node(graph, work, estimate, host) * within[work.group]
    if not overlaps:
        issue = issue * (1.0 + (host.swept - 1.0) * host_time.swept_share(work))
    follow = partial(timeline, waits=_waits(graph), kernels=estimate.kernels[work.group], overlaps=overlaps)
    end = follow(issue, device)
    common = max(COMMON, machine.noise) if isinstance(machine, Calibration) else COMMON
    low, high = _range(work, estimate, device, issue, (host.error, common), follow)
    missing = (np.isnan(work.flops) | np.isnan(work.moved)) & (work.kind != VIEW)
    unlike = np.zeros_like(missing)
    if isinstance(machine, Calibration):
        unlike = ~missing & ~np.isin(work.kind, machine.samples.kind) & (work.kind != VIEW)
    taken_for, without = _element_types(work, machine)
    without &= ~missing
    missing, unlike, without = (
        (missing | unlike | without)[work.group],
        unlike[work.group],
        without[work.group],
    )
    calls = graph.operator_counts(missing)
    total = float(end[-1]) if len(end) else 0.0
    ends = low, None if calls else high
    phases, marks = _phases(graph, end), (missing, unlike, without)
    return Latency(name, overlaps, total, *ends, device, issue, end, phases, calls, *marks, taken_for)


def _element_types(work: Workload, machine: Calibration | Hardware) -> tuple[dict[str, str | None], Bools]:
    """The element types that nothing was measured in or published for, what stands in for each, and where none does."""
    arithmetic = np.isin(work.kind, [KINDS.index(name) for name in ARITHMETIC])
    if isinstance(machine, Calibration):
        foreign = machine.kernels.untimed(work.kind, work.dtype)
        names = [REAL_DTYPES[code] for code in np.unique(work.dtype[foreign]).tolist()]
        timed = {REAL_DTYPES[code] for code in np.unique(machine.samples.dtype).tolist()} & {*machine.peaks}
        slowest = min(timed, key=machine.peaks.__getitem__, default=None)
        return {name: name if name in machine.peaks else slowest for name in names}, np.zeros_like(foreign)
    used = {name: machine.figure_for(name) for name in REAL_DTYPES}
    without = arithmetic & np.array([used[name] is None for name in REAL_DTYPES])[work.dtype]
    names = [REAL_DTYPES[code] for code in np.unique(work.dtype[arithmetic]).tolist()]
    return {name: used[name] for name in names if used[name] != name}, without


def _waits(graph: Graph) -> Bools:
    """Where the host waits for the device: it reads a value that is not in its own memory."""
    if not len(graph):
        return np.zeros(0, dtype=np.bool_)
    table = np.array([short_name(call.op) in WAITS for call in graph.calls], dtype=np.bool_)
    reads_back = np.asarray(table[graph.node_call])
    if not any(device.startswith("cuda") for device in graph.devices):
        # traced elsewhere: what is on the CPU here would be on the device there
        return reads_back
    on_cpu = np.array([device == "cpu" for device in graph.devices], dtype=np.bool_)
    first = graph.in_value[np.minimum(graph.in_start[:-1], max(len(graph.in_value) - 1, 0))]
    on_host = on_cpu[graph.storage_device[graph.value_storage[first]]]
    return np.asarray(reads_back & ~on_host)


def timeline(issue: Floats, device: Floats, *, waits: Bools, kernels: Floats, overlaps: bool) -> Floats:
    """When each operation is done, in nanoseconds from the start.

    An operation of several kernels has the device begin when the first of them is launched.

    >>> host, work = np.array([10.0, 10.0, 10.0]), np.array([5.0, 50.0, 5.0])
    >>> rest = {"waits": np.zeros(3, dtype=bool), "kernels": np.ones(3)}
    >>> timeline(host, work, **rest, overlaps=False).tolist()
    [15.0, 75.0, 90.0]
    >>> (timeline(host, work, **rest, overlaps=True) - SETTLE_NS).round().tolist()[-1]
    75.0
    """
    if not len(issue):
        return np.zeros(0)
    if not overlaps:
        return np.asarray(np.cumsum(issue + device))
    # in two pieces: the launch of the first kernel lets all but the last begin, and the last waits for its own launch
    first = 1.0 / np.maximum(kernels, 1.0)
    issued = np.stack([issue * first, issue * (1.0 - first)], axis=1)
    worked = np.stack([device * (1.0 - first), device * first], axis=1)
    waiting = np.stack([np.zeros_like(waits), waits], axis=1)
    return _followed(issued.ravel(), worked.ravel(), waiting.ravel())[1::2]


def _followed(issue: Floats, device: Floats, waits: Bools) -> Floats:
    """When each piece of work is done that is issued and then worked off, one after another."""
    done = np.empty(len(issue))
    host_at = device_at = 0.0
    start = 0
    for stop in [*np.flatnonzero(waits).tolist(), len(issue) - 1]:
        part = slice(start, stop + 1)
        if start > stop:
            continue
        issued = host_at + np.cumsum(issue[part])
        worked = np.cumsum(device[part])
        # a kernel starts when it is issued and the one before is done: the latest of all such starts counts
        ready = np.maximum.accumulate(np.maximum(issued - (worked - device[part]), device_at)) + worked
        done[part] = np.where(device[part] > 0, ready, np.maximum(issued, done[start - 1] if start else 0.0))
        device_at, host_at = float(ready[-1]), float(issued[-1])
        if waits[stop]:
            host_at = max(host_at, device_at) + SETTLE_NS
        start = stop + 1
    done[-1] = max(host_at, device_at + SETTLE_NS)
    return np.maximum.accumulate(done)


def _range(
    work: Workload,
    estimate: KernelEstimate,
    device: Floats,
    issue: Floats,
    errors: tuple[float, float],
    follow: Callable[[Floats, Floats], Floats],
) -> tuple[float, float]:
    """The range of the total. Operations of one class are off alike, classes of one kind half so, kinds independently.

    ``errors`` are that of the host's costs and that which all of a run has in common.
    """
    if not len(device):
        return 0.0, 0.0
    per_class = np.bincount(work.group, weights=device, minlength=len(estimate.spread))
    total = max(float(per_class.sum()), 1.0)
    off = per_class * estimate.spread
    of_kind = np.bincount(work.kind, weights=off)
    spread = float(np.sqrt((1.0 - ALIKE) * (off**2).sum() + ALIKE * (of_kind**2).sum())) / total
    of_device = TIMES * float(np.hypot(spread, errors[1]))
    of_host = TIMES * float(np.hypot(*errors))
    ends = []
    for sign in (-1.0, 1.0):
        factors = np.exp(sign * of_host), np.exp(sign * of_device)
        ends.append(float(follow(issue * factors[0], device * factors[1])[-1]))
    return ends[0], ends[1]


def _phases(graph: Graph, end: Floats) -> dict[str, float]:
    """How much of the time passes in each phase that there is."""
    passed = np.diff(end, prepend=0.0)
    sums = (
        np.bincount(graph.node_phase, weights=passed, minlength=len(Phase))
        if len(end)
        else np.zeros(len(Phase))
    )
    return {name: float(sums[code]) for code, name in enumerate(PHASES) if (graph.node_phase == code).any()}


SLOWEST = 200
BARS = 20
# of the timeline
POINTS = 1000


class LatencyReport(Report):
    """A prediction: ``total_ns`` with ``low_ns`` and ``high_ns``, phases, kinds, modules and operations.

    ``hardware`` is a name (``"H100 SXM"``, see ``tv.hardware.known``) or a ``Hardware``: a device of which the
    datasheet is known, with a wide range. ``calibration`` is what ``tv.measure.calibrate`` measured on a machine, here
    or elsewhere (``tv.hardware.load``): far closer. Without either it is this machine, as it was calibrated before.

    Where the work of some operations is not known (``unknown_operations``: compiled code, operators without a cost
    formula), ``total_ns`` and all other times are lower bounds, and ``high_ns`` is None.

    >>> import torch, torch_vis as tv
    >>> report = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64)).latency(hardware="A100")
    >>> report.low_ns < report.total_ns < report.high_ns, [row[0] for row in report.kinds]
    (True, ['matmul', 'view'])
    """

    title = "Predicted latency"

    def __init__(self, run: Run, *, hardware: Any = None, calibration: Any = None) -> None:
        graph, metrics = run.graph, run.metrics
        if not len(graph):
            raise UsageError("this trace has no operations, so there is no time to predict")
        self.graph = graph
        """The graph of the run."""
        self.machine = machine(hardware, calibration, devices=run.meta.get("devices", ()))
        """The device that the prediction is for."""
        self.prediction = predict(graph, metrics, self.machine)
        """The time of every operation with its range."""
        peak = peak_memory(metrics)
        self.held = None if peak is None else peak.size_bytes
        """The bytes that the run holds at its peak; None where they are not known."""

    @property
    def total_ns(self) -> float:
        """What is expected; at least this where there are ``unknown_operations``."""
        return self.prediction.total_ns

    @property
    def low_ns(self) -> float:
        """Less than this is expected one time in twenty."""
        return self.prediction.low_ns

    @property
    def high_ns(self) -> float | None:
        """More than this is expected one time in twenty; None where the work of some operations is not known."""
        return self.prediction.high_ns

    @property
    def unknown_operations(self) -> int:
        """How many operations have work that is not known."""
        return int(self.prediction.missing.sum())

    @property
    def phases(self) -> dict[str, float]:
        """Nanoseconds that pass in each phase."""
        return self.prediction.phases

    @cached_property
    def kinds(self) -> list[tuple[Any, ...]]:
        """One row per kind of operation: how many, device time, host time, how many of unknown work."""
        return self._rows(kinds(self.graph).astype(np.int64), KINDS)

    @cached_property
    def modules(self) -> list[tuple[Any, ...]]:
        """One row per module for the operations that ran in it, not those of modules inside."""
        return self._rows(*own_operations(self.graph))

    @cached_property
    def operations(self) -> list[tuple[Any, ...]]:
        """The operations of the most device time: name, module, phase, device time, host time, number."""
        prediction, graph = self.prediction, self.graph
        rows = []
        for node in np.argsort(-prediction.device_ns, kind="stable")[:SLOWEST].tolist():
            missing = bool(prediction.missing[node])
            device = None if missing else int(prediction.device_ns[node])
            op = op_label(graph.calls[int(graph.node_call[node])].op)
            path = graph.scope_paths[int(graph.node_scope[node])]
            phase = Phase(graph.node_phase[node]).name.lower()
            rows.append((op, path, phase, device, summed(prediction.host_ns[node], missing), node))
        return rows

    def facts(self) -> Mapping[str, str]:
        """The total with its range, the two streams, the phases."""
        prediction = self.prediction
        device, host = duration(int(prediction.device_ns.sum())), duration(int(prediction.host_ns.sum()))
        how = "side by side" if prediction.overlaps else "in turns"
        basis = "from its datasheet"
        if isinstance(self.machine, Calibration):
            basis = f"as calibrated, at {duration(int(self.machine.host.unit_ns))} per small operation"
        both = f"{self._least}{device} and {host}, {how}"
        return {
            "machine": f"{prediction.machine}, {basis}",
            "time": self._time(),
            "device and host": both
            if prediction.waits_for is None
            else f"{both}; the run waits for the {prediction.waits_for}",
            "phases": ", ".join(
                f"{name} {self._least}{duration(int(time_ns))}" for name, time_ns in prediction.phases.items()
            ),
        }

    @property
    def _least(self) -> str:
        return "at least " if self.unknown_operations else ""

    def _time(self) -> str:
        total, low, high = self.total_ns, self.low_ns, self.high_ns
        if high is None:
            missing = f"{self.unknown_operations:,} of {len(self.graph):,} operations"
            return (
                f"at least {duration(int(total))} (low end {duration(int(low))}), no upper end: the time of {missing} "
                "is not known"
            )
        return f"{duration(int(total))}, nine times out of ten between {duration(int(low))} and {duration(int(high))}"

    def listings(self) -> Sequence[Listing]:
        """Kinds, modules, operations."""
        shown = least(duration)
        times = (Field("device_ns", "device", shown), Field("host_ns", "host", shown))
        unknown_work = Field("unknown", "of unknown work", count, rare=True)
        grouped = (Field("operations", "operations", count), *times, unknown_work)
        slow = (
            Field("operation", "operation"),
            Field("module", "module"),
            Field("phase", "phase"),
            *times,
            Field("node", "node", str),
        )
        unknown = (Field("operator", "operator"), Field("calls", "calls", count))
        return (
            Listing(
                "kinds",
                (Field("kind", "kind"), *grouped),
                self.kinds,
                heading="Predicted by kind of operation",
            ),
            Listing(
                "modules",
                (Field("module", "module"), *grouped),
                self.modules,
                heading="Predicted by module, without the modules inside it",
            ),
            Listing(
                "operations",
                slow,
                self.operations,
                heading="The operations of the most predicted device time",
            ),
            Listing("unknown", unknown, self.prediction.unknown, heading="Operators whose time is not known"),
        )

    def charts(self) -> Charts:
        """Kinds of operation by device and host time; both streams over the run."""
        return Charts(
            kinds=lambda: self._kinds_chart(f"p{self._where}"),
            timeline=lambda: self._timeline(f"P{self._where}"),
        )

    @property
    def _where(self) -> str:
        missing = self.unknown_operations
        left_out = f": at least, without the work of {missing:,} of {len(self.graph):,} operations"
        return f"redicted on {self.prediction.machine}{left_out if missing else ''}"

    def _kinds_chart(self, on: str) -> Chart:
        rows = self.kinds[:BARS]
        known = [row for row in rows if row[2] is not None]
        times = [
            Series("device", [row[0] for row in known], [row[2] for row in known]),
            Series("host", [row[0] for row in rows], [row[3] for row in rows]),
        ]
        title = f"Device and host time by kind of operation, {on}"
        # beside one another: device and host work at the same time, and the two add up to nothing
        return Chart("dots", title, Axis("kind"), Axis("time", "ns"), times)

    def _timeline(self, on: str) -> Chart:
        """The time that passes, as what the device does with it: what reaches the top is what the run waits for."""
        prediction = self.prediction
        worked, passed = np.cumsum(prediction.device_ns), prediction.end_ns
        idle = np.maximum(passed - worked, 0.0)
        rows = np.unique(np.linspace(0, len(passed) - 1, min(len(passed), POINTS)).astype(np.int64))
        x = rows.tolist()
        names = [f"{number:,} {self.graph.nodes[number].name}" for number in x]
        busy = worked[-1] / passed[-1] if passed[-1] > 0 else 0.0
        if prediction.overlaps:
            works, waits = "device at work", "device idle, waiting for the host"
            summary = f": the run waits for the {prediction.waits_for}; device busy {busy:.0%}"
        else:
            works, waits = "kernels", "Python and dispatch, in turns with them"
            summary = f": kernels {busy:.0%}, Python and dispatch {1 - busy:.0%}"
        bands = [
            Series(works, x, worked[rows].tolist(), names),
            Series(waits, x, idle[rows].tolist(), names, color=PALE),
        ]
        host = Series("host at work, added up", x, np.cumsum(prediction.host_ns)[rows].tolist(), color=INK)
        title = on + (summary if prediction.waits_for else "")
        axes = Axis("operation, in the order of the run", "count"), Axis("time from the start", "ns")
        lines = [host] if prediction.overlaps else []
        return Chart("areas", title, *axes, bands, lines, stages=stages_of(self.graph))

    def notes(self) -> Sequence[str]:
        """What the prediction rests on and leaves out."""
        notes = []
        unlike, without = int(self.prediction.unlike.sum()), int(self.prediction.without.sum())
        missing = self.unknown_operations - unlike - without
        if missing:
            notes.append(
                f"no cost formula says what {many(missing, 'operation')} did (compiled code, an operator of one's "
                "own): the time of that is not known, and sums count each as the smallest operation there is"
            )
        if unlike:
            notes.append(
                f"the calibration timed nothing of the kind of {many(unlike, 'operation')}: the time of that is "
                "not known, and sums count each as what memory and arithmetic allow at best"
            )
        notes += self._of_element_types(without)
        if isinstance(self.machine, Calibration):
            if self.machine.is_disturbed:
                notes.append(WAS_BUSY)
        else:
            notes += self._of_a_datasheet(self.machine)
        if self.prediction.overlaps:
            notes.append(
                f"the time ends when the host has noticed that the device is done, {duration(int(SETTLE_NS))} after it"
            )
            if self._is_one_by_one():
                notes.append(
                    "the optimizer goes tensor by tensor, as it does on a CPU; on a GPU torch takes them together: "
                    "make it with foreach=True to have that predicted"
                )
        if self.prediction.overlaps and self.prediction.waits_for == "host":
            notes.append(
                "Python between operations counts as in plain torch modules; libraries may take more"
            )
        return notes

    def _of_element_types(self, without: int) -> Iterator[str]:
        """What was counted as another element type, or has no figure."""
        taken_for = self.prediction.taken_for
        if without:
            names, available = (
                " and ".join(name for name, stand_in in taken_for.items() if stand_in is None),
                ", ".join(self.machine.peaks),
            )
            yield (
                f"{self.prediction.machine} has no figure for {names} (it has {available}): the time of "
                f"{many(without, 'operation')} is not known, and counts as at the lowest of its peaks; trace a run in "
                "a type that it has"
            )
        for name, stand_in in taken_for.items():
            if stand_in is None:
                continue
            if isinstance(self.machine, Calibration):
                how = (
                    "a single product"
                    if stand_in == name
                    else f"nothing, and it counts as {stand_in}, the slowest type that was timed"
                )
                yield f"in {name} the calibration timed {how}: the range is wider for that"
            else:
                yield f"{self.prediction.machine} has no figure for {name}: it counts as {stand_in}"

    def _is_one_by_one(self) -> bool:
        """Whether a run on a CPU has an optimizer that would run in another form on a GPU."""
        graph = self.graph
        stepping = graph.node_phase == Phase.OPTIMIZER
        on_gpu = any(device.startswith("cuda") for device in graph.devices)
        if on_gpu or not stepping.any():
            return False
        return not any(
            lists_tensors(graph.calls[call]) for call in np.unique(graph.node_call[stepping]).tolist()
        )

    def _of_a_datasheet(self, hardware: Hardware) -> Iterator[str]:
        """What a device's datasheet says against the prediction, or does not say."""
        if hardware.class_ == "accelerator":
            yield "what its host takes, and what share of its peak is reached, are those of a usual GPU"
        if self.held is not None and self.held > hardware.memory_bytes:
            yield (
                f"this run holds {size(self.held)} at its peak and {hardware.name} has {size(hardware.memory_bytes)}: "
                "it does not fit"
            )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        names = ("total_ns", "low_ns", "high_ns", "unknown_operations", "phases")
        totals = {name: getattr(self, name) for name in names}
        return {**totals, **super().to_dict()}

    def _rows(self, key: np.ndarray[Any, Any], names: Sequence[str]) -> list[tuple[Any, ...]]:
        prediction, size = self.prediction, len(names)
        number = np.bincount(key, minlength=size)
        device = np.bincount(key, weights=prediction.device_ns, minlength=size)
        host = np.bincount(key, weights=prediction.host_ns, minlength=size)
        unknown = np.bincount(key[prediction.missing], minlength=size).tolist()
        any_known = np.bincount(key[(prediction.device_ns > 0) & ~prediction.missing], minlength=size) > 0
        order = [row for row in np.lexsort((-host, -device)).tolist() if number[row]]
        return [
            (
                names[row],
                int(number[row]),
                summed(device[row] if any_known[row] or not unknown[row] else None, unknown[row]),
                summed(host[row], unknown[row]),
                unknown[row],
            )
            for row in order
        ]
