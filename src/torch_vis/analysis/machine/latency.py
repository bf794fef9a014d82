"""How long the traced run takes on a machine: the host issues operations, the device works them off.

On a GPU the two run side by side: a kernel starts when it has been launched and the one before it is done, and the host
waits only where a value is read back. On a CPU they take turns. ``Latency`` holds an estimate with a range in which the
time of the run is expected to lie nine times out of ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from torch_vis.analysis.machine import host_model as host_time
from torch_vis.analysis.machine.calibration import Calibration
from torch_vis.analysis.machine.datasheet_efficiency import Profiled, usual_host
from torch_vis.analysis.machine.features import Workload, workload
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.kernel_model import ARITHMETIC, VIEW, Estimate
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Phase
from torch_vis.graph.types import Bools, Floats
from torch_vis.ops.families import KINDS, REAL_DTYPES

TIMES = 1.645  # standard deviations that nine tenths lie within
WAITS = frozenset(
    {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select"}
)
COMMON = 0.05  # what every kernel of a run is off by alike: clocks, heat, how caches were left
ALIKE = 0.5  # how far what different operations of one kind are off by goes together
GAP_NS = 700.0  # between two kernels, where it was not measured
# Within a model operations take longer than alone: caches, memory and clocks are shared. On fifteen models that no
# calibration and no benchmark of ours contains, kernels took 6 % more on an H200, and so did its host; not so what
# was timed as a whole.
WITHIN = 1.06
SETTLE_NS = 20_000.0  # from the last kernel's end until the host has noticed
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
        estimate, host, name = Profiled(machine)(work), usual_host(machine), machine.name
        within = np.ones(len(work.op))
        per_class = estimate.time_ns + (GAP_NS * estimate.kernels if overlaps else 0.0)
    device = per_class[work.group]
    issue = host_time.per_node(graph, work, estimate, host) * within[work.group]
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
    calls = Counter(graph.calls[call].op for call in graph.node_call[missing].tolist()).most_common()
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
    found = np.asarray(table[graph.node_call])
    if not any(device.startswith("cuda") for device in graph.devices):
        return found  # traced elsewhere: what is on the CPU here would be on the device there
    here = np.array([device == "cpu" for device in graph.devices], dtype=np.bool_)
    first = graph.in_value[np.minimum(graph.in_start[:-1], max(len(graph.in_value) - 1, 0))]
    on_host = here[graph.storage_device[graph.value_storage[first]]]
    return np.asarray(found & ~on_host)


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
    one = 1.0 / np.maximum(kernels, 1.0)
    issued = np.stack([issue * one, issue * (1.0 - one)], axis=1)
    worked = np.stack([device * (1.0 - one), device * one], axis=1)
    waiting = np.stack([np.zeros_like(waits), waits], axis=1)
    return _followed(issued.ravel(), worked.ravel(), waiting.ravel())[1::2]


def _followed(issue: Floats, device: Floats, waits: Bools) -> Floats:
    """When each piece of work is done that is issued and then worked off, one after another."""
    made = np.empty(len(issue))
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
        made[part] = np.where(device[part] > 0, ready, np.maximum(issued, made[start - 1] if start else 0.0))
        device_at, host_at = float(ready[-1]), float(issued[-1])
        if waits[stop]:
            host_at = max(host_at, device_at) + SETTLE_NS
        start = stop + 1
    made[-1] = max(host_at, device_at + SETTLE_NS)
    return np.maximum.accumulate(made)


def _range(
    work: Workload,
    estimate: Estimate,
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
    took = np.diff(end, prepend=0.0)
    sums = (
        np.bincount(graph.node_phase, weights=took, minlength=len(Phase))
        if len(end)
        else np.zeros(len(Phase))
    )
    return {
        name: float(sums[place]) for place, name in enumerate(PHASES) if (graph.node_phase == place).any()
    }
