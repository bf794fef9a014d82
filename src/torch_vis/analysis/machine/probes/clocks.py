"""How a calibration takes times, by the host's clock and by the profiler of kernels; and the peaks of a device."""

from __future__ import annotations

import bisect
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torch_vis.analysis.machine.probes import Work
from torch_vis.capture.timing.profiler_events import profiled
from torch_vis.capture.undo import Undo, context, without_warnings

MARK = "torch_vis probe"
# of the way from the time with data in the caches to that with data in memory
COLDNESS = 0.6
# of a CPU: the median over towers of nine kinds of blocks, where each operation was timed in a step, hot and cold
CPU_COLDNESS = 0.85
# times the best pace of the host that still counts as its usual one
USUAL = 1.15
# operations that show the pace of the host
SMALL = 25
HOST_TIMES = 3
COLD_TIMES = 9
# of an operation on the CPU
COLD_RUNS = 3
FLUSH_BYTES, CPU_FLUSH_BYTES = 256 << 20, 32 << 20
# probes in one session of the profiler
PART = 120


class KernelTime(NamedTuple):
    """How long one call took on the device, and in how many kernels."""

    time_ns: float
    kernels: float


def synchronize(device: str) -> None:
    """Wait until a device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def wall(call: Work, device: str, count: int) -> list[float]:
    """Nanoseconds of some runs, waiting for the device at the ends only.

    What one thread computes alone takes no longer than this thread's own time: what it gives way to is left out.
    """
    alone = not device.startswith("cuda") and torch.get_num_threads() == 1
    own = 0.0
    times = []
    for _ in range(count):
        synchronize(device)
        if alone:
            own = time.thread_time_ns()
        start = time.perf_counter_ns()
        result = call()
        synchronize(device)
        passed = float(time.perf_counter_ns() - start)
        if alone:
            passed = min(passed, float(time.thread_time_ns() - own))
        times.append(passed)
        del result
    return times


class Burst(NamedTuple):
    """Some runs one after another, and the pace of the host before or after them, whichever was slower."""

    pace_ns: float
    times: list[float]


@cache
def _small(device: str) -> torch.Tensor:
    return torch.zeros(16, device=device)


def pace_ns(device: str) -> float:
    """Nanoseconds that the host takes for one small operation: more when others use its core, caches or memory."""
    data = _small(device)
    times = []
    # the first finds its code and data out of the caches
    for _ in range(3):
        synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(SMALL):
            data.add_(1.0)
        times.append(time.perf_counter_ns() - start)
    synchronize(device)
    return min(times) / SMALL


def burst(call: Work, device: str, count: int) -> Burst:
    """Some runs, after one that is not counted, with the pace of the host around them."""
    call()
    before = pace_ns(device)
    run_times = wall(call, device, count)
    return Burst(max(before, pace_ns(device)), run_times)


def undisturbed(bursts: Sequence[Burst], best_ns: float) -> list[Burst]:
    """Those bursts in which the host ran at its usual pace; if those are few, the third that is nearest to it.

    >>> undisturbed([Burst(10.0, [5.0]), Burst(10.5, [5.2]), Burst(17.0, [8.0])], 10.0)
    [Burst(pace_ns=10.0, times=[5.0]), Burst(pace_ns=10.5, times=[5.2])]
    """
    by_pace = sorted(bursts, key=lambda burst_: burst_.pace_ns)
    usual = sum(burst_.pace_ns <= USUAL * best_ns for burst_ in bursts)
    return by_pace[: max(usual, 2, len(bursts) // 3)]


def host_times(builders: Sequence[Callable[[], Work] | None], device: str) -> list[float | None]:
    """How long the host takes to issue each call, in small operations; None where there is none to make."""
    counts: list[float | None] = []
    for make in builders:
        work = _made(make) if make is not None else None
        if work is None:
            counts.append(None)
            continue
        times = []
        for _ in range(HOST_TIMES):
            before = pace_ns(device)
            start = time.perf_counter_ns()
            result = work()
            time_ns = time.perf_counter_ns() - start
            del result
            synchronize(device)
            times.append(time_ns / max(before, pace_ns(device)))
        counts.append(median(times))
    return counts


def cpu_times(builders: Iterable[Callable[[], Work]]) -> Iterator[KernelTime | None]:
    """The time of each operation on the CPU, its call included; None where it cannot be run.

    As on a GPU, it lies between that with data in the caches and that with data in memory, and nearer to
    the latter. What empties the caches takes the code out of them as well, which in a model is there: what that costs
    an operation without data is left out.
    """
    flush = torch.zeros(CPU_FLUSH_BYTES // 4)
    code = _cold_code_ns(flush)
    for make in builders:
        work = _made(make)
        if work is None:
            yield None
            continue
        # the least of a few: what else runs on the cores, another rank say, only adds to what an operation takes
        hot = min(wall(work, "cpu", 3))
        cold = math.inf
        for _ in range(COLD_RUNS):
            flush.add_(1.0)
            cold = min(cold, wall(work, "cpu", 1)[0] - code)
        yield KernelTime(hot * (max(hot, cold) / hot) ** CPU_COLDNESS, 1.0)


def _cold_code_ns(flush: torch.Tensor) -> float:
    """How much longer a small operation takes when nothing of it is in the caches."""
    small = _small("cpu")
    extra = []
    for _ in range(COLD_TIMES):
        hot = min(wall(lambda: small.add(1.0), "cpu", 3))
        flush.add_(1.0)
        extra.append(wall(lambda: small.add(1.0), "cpu", 1)[0] - hot)
    return max(median(extra), 0.0)


def _made(make: Callable[[], Work]) -> Work | None:
    """A probe set up and run once; None if this build of torch has no such kernel."""
    try:
        work = make()
        work()
    except (RuntimeError, NotImplementedError):
        return None
    return work


def kernel_times(
    builders: Sequence[tuple[int, Callable[[], Work]]], device: str, mark: Callable[[int], None]
) -> list[KernelTime | None]:
    """The time that the kernels of each numbered operation take on a GPU, by the profiler's device activity.

    One run finds its data in the caches and one does not: in a model, what an operation reads was often, but not
    always, written just before. ``mark`` is called around one of the runs, with twice the number and one more.
    """
    flush = torch.empty(FLUSH_BYTES // 4, device=device)
    with _profiler() as profile:
        for number, make in builders:
            work = _made(make)
            if work is None:
                continue
            mark(2 * number)
            with torch.profiler.record_function(f"{MARK} {number} 0"):
                work()
            mark(2 * number + 1)
            flush.zero_()
            with torch.profiler.record_function(f"{MARK} {number} 1"):
                work()
        synchronize(device)
    by_turn = _kernels(profile)
    return [_combined(by_turn.get((number, 0)), by_turn.get((number, 1))) for number, _ in builders]


def _combined(hot: KernelTime | None, cold: KernelTime | None) -> KernelTime | None:
    if hot is None or cold is None:
        return None
    return KernelTime(hot.time_ns ** (1 - COLDNESS) * cold.time_ns**COLDNESS, cold.kernels)


@context
def _profiler(undo: Undo) -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    undo.enter(without_warnings())
    return undo.enter(profiled(torch.profiler.profile(activities=activities, acc_events=False)))


def _kernels(profile: Any) -> dict[tuple[int, int], KernelTime]:
    """Sums over the kernels launched inside each mark: a kernel belongs to the mark that its launch lies in."""
    marks: list[tuple[int, int, str]] = []
    launched: dict[int, int] = {}
    issued: dict[int, int] = {}
    kernels: list[tuple[int, int, int]] = []
    on_device = torch.autograd.DeviceType.CUDA
    for event in profile.profiler.kineto_results.events():
        name = event.name()
        if event.device_type() == on_device:
            if not name.startswith(MARK):
                kernels.append((event.correlation_id(), event.linked_correlation_id(), event.duration_ns()))
        elif name.startswith(MARK):
            marks.append((event.start_ns(), event.start_ns() + event.duration_ns(), name))
        elif name.startswith("cu"):
            launched[event.correlation_id()] = event.start_ns()
        else:
            issued[event.correlation_id()] = event.start_ns()
    marks.sort()
    starts = [mark[0] for mark in marks]
    sums: dict[tuple[int, int], list[float]] = {}
    for correlation, linked, duration in kernels:
        launch_ns = launched.get(correlation) or issued.get(linked)
        index = bisect.bisect_right(starts, launch_ns) - 1 if launch_ns is not None else -1
        if launch_ns is None or index < 0 or launch_ns > marks[index][1]:
            continue
        number, turn = map(int, marks[index][2].split()[-2:])
        total = sums.setdefault((number, turn), [0.0, 0.0])
        total[0] += duration
        total[1] += 1
    return {key: KernelTime(*total) for key, total in sums.items()}


def gap_ns(device: str, kernel_ns: float) -> float:
    """Nanoseconds between two kernels of a stream that is never empty."""
    if not device.startswith("cuda"):
        return 0.0
    data = torch.zeros(4096, device=device)
    heavy = torch.randn(4096, 4096, device=device, dtype=torch.float32)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(5):
        for _ in range(4):
            # while these run, the host gets ahead
            heavy @ heavy
        start.record()
        for _ in range(200):
            data.add_(1.0)
        end.record()
        torch.cuda.synchronize(device)
        times.append(start.elapsed_time(end) * 1e6 / 200)
    return float(max(min(times) - kernel_ns, 0.0))


GPU_SIDES, CPU_SIDES = (4096, 8192), (512, 1024)
GPU_COPIES = [1 << power for power in range(16, 31, 2)]
CPU_COPIES = [1 << power for power in range(12, 27, 2)]
# seconds for one figure
TAKES = 0.1
# on a CPU, seconds between two looks at the clock, and how often
STRETCH, STRETCHES = 1e-3, 60


def peaks(device: str, dtypes: tuple[str, ...], others: tuple[str, ...] = ()) -> dict[str, float]:
    """FLOP/s that the best of a few square products reaches; on a GPU also float32 convolutions, which use ``tf32``.

    Of the ``others``, the smallest product alone; an element type that the device has no products in is left out.
    """
    on_gpu = device.startswith("cuda")
    sides = GPU_SIDES if on_gpu else CPU_SIDES
    rates = {dtype: max(_rate(side, dtype, device) for side in sides) for dtype in dtypes}
    for dtype in others:
        try:
            rates[dtype] = _rate(sides[0], dtype, device)
        except (RuntimeError, TypeError):
            continue
    if on_gpu and torch.backends.cudnn.allow_tf32:
        data = torch.randn(32, 512, 56, 56, device=device)
        weight = torch.randn(512, 512, 3, 3, device=device)
        seconds = best_seconds(lambda: F.conv2d(data, weight, padding=1), device)
        rates["tf32"] = 2.0 * 32 * 56 * 56 * 512 * 512 * 9 / seconds
    return rates


def _rate(side: int, dtype: str, device: str) -> float:
    """FLOP/s of one square product."""
    a, b = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return 2.0 * side**3 / best_seconds(lambda: torch.mm(a, b), device)


def copies(device: str) -> list[tuple[int, float]]:
    """Bytes per second, read and written together, of copies of growing size: the steps are the caches."""
    rates = []
    for size in GPU_COPIES if device.startswith("cuda") else CPU_COPIES:
        source = torch.zeros(size // 8, device=device)
        target = torch.empty_like(source)
        seconds = best_seconds(lambda s=source, t=target: t.copy_(s), device)  # type: ignore[misc]
        rates.append((size, size / seconds))
    return rates


def best_seconds(call: Work, device: str) -> float:
    """Seconds per call at best: several calls between two looks at the clock, so that launching is hidden."""
    wall(call, device, 2)
    once = min(wall(call, device, 2)) / 1e9
    # a host that others use interrupts now and then: of short stretches some are left alone
    stretch = TAKES / 5 if device.startswith("cuda") else STRETCH
    count = max(1, min(100, round(stretch / max(once, 1e-6))))

    def several() -> None:
        for _ in range(count):
            call()

    started = time.perf_counter()
    seconds: list[float] = []
    most = 5 if device.startswith("cuda") else STRETCHES
    while len(seconds) < most and (not seconds or time.perf_counter() - started < TAKES):
        seconds.append(wall(several, device, 1)[0] / count / 1e9)
    return min(seconds)


def memory_bytes(device: str) -> int:
    """Bytes of memory that a device has."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        # not told on this system
        return 1 << 33
