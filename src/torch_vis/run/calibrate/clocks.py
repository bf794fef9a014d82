"""The clocks of a calibration: the host's for programs and CPU operations, the profiler's for kernels on a GPU."""

from __future__ import annotations

import bisect
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch

from torch_vis.run.calibrate.sizes import Work

MARK = "torch_vis probe"
HOT, COLD = 2, 1  # runs of a probe with its data in the caches, and without
FLUSH_BYTES, CPU_FLUSH_BYTES = 256 << 20, 32 << 20
PART = 250  # probes in one session of the profiler


class Timed(NamedTuple):
    """How long one call took on the device, and in how many kernels."""

    time_ns: float
    kernels: float


def synchronize(device: str) -> None:
    """Wait until a device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def wall(call: Work, device: str, times: int) -> list[float]:
    """Nanoseconds of some runs, waiting for the device at the ends only."""
    found = []
    for _ in range(times):
        synchronize(device)
        start = time.perf_counter_ns()
        kept = call()
        synchronize(device)
        found.append(float(time.perf_counter_ns() - start))
        del kept
    return found


def host_unit(device: str) -> float:
    """Nanoseconds that the host takes for one small operation."""
    data = torch.zeros(16, device=device)
    found = []
    for _ in range(15):
        synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(50):
            data.add_(1.0)
        found.append((time.perf_counter_ns() - start) / 50)
    return float(median(found))


def cpu_times(makers: Iterable[Callable[[], Work]]) -> Iterator[Timed | None]:
    """The time of each operation on the CPU, its call included; None where it cannot be run.

    As on a GPU, it lies between that with data in the caches and that with data in memory.
    """
    flush = torch.zeros(CPU_FLUSH_BYTES // 4)
    for make in makers:
        work = _made(make)
        if work is None:
            yield None
            continue
        hot = median(wall(work, "cpu", 3))
        flush.add_(1.0)
        cold = wall(work, "cpu", 1)[0]
        yield Timed((hot * max(hot, cold)) ** 0.5, 1.0)


def _made(make: Callable[[], Work]) -> Work | None:
    """A probe set up and run once; None if this build of torch has no such kernel."""
    try:
        work = make()
        work()
    except (RuntimeError, NotImplementedError):
        return None
    return work


def kernel_times(makers: Sequence[Callable[[], Work]], device: str) -> list[Timed | None]:
    """The time that the kernels of each operation take on a GPU, by the profiler's device activity.

    Half of the runs find their data in the caches and half do not: in a model, what an operation reads was often,
    but not always, written just before.
    """
    flush = torch.empty(FLUSH_BYTES // 4, device=device)
    with _profiler() as profile:
        for number, make in enumerate(makers):
            work = _made(make)
            if work is None:
                continue
            for turn in range(HOT + COLD):
                if turn >= HOT:
                    flush.zero_()
                with torch.profiler.record_function(f"{MARK} {number} {turn}"):
                    work()
        synchronize(device)
    by_turn = _kernels(profile)
    return [
        _combined([by_turn.get((number, turn)) for turn in range(HOT + COLD)])
        for number in range(len(makers))
    ]


def _combined(turns: list[Timed | None]) -> Timed | None:
    hot = [found.time_ns for found in turns[:HOT] if found is not None]
    cold = [found.time_ns for found in turns[HOT:] if found is not None]
    kernels = [found.kernels for found in turns if found is not None]
    if not hot or not cold:
        return None
    return Timed((min(hot) * median(cold)) ** 0.5, float(median(kernels)))


@contextmanager
def _profiler() -> Iterator[Any]:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=activities, acc_events=False) as profile:
            yield profile


def _kernels(profile: Any) -> dict[tuple[int, int], Timed]:
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
    for correlation, linked, took in kernels:
        at = launched.get(correlation) or issued.get(linked)
        place = bisect.bisect_right(starts, at) - 1 if at is not None else -1
        if at is None or place < 0 or at > marks[place][1]:
            continue
        number, turn = map(int, marks[place][2].split()[-2:])
        total = sums.setdefault((number, turn), [0.0, 0.0])
        total[0] += took
        total[1] += 1
    return {key: Timed(*total) for key, total in sums.items()}


def gap_ns(device: str, kernel_ns: float) -> float:
    """Nanoseconds between two kernels of a stream that is never empty."""
    if not device.startswith("cuda"):
        return 0.0
    data = torch.zeros(4096, device=device)
    heavy = torch.randn(4096, 4096, device=device, dtype=torch.float32)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    found = []
    for _ in range(5):
        for _ in range(4):
            heavy @ heavy  # while these run, the host gets ahead
        start.record()
        for _ in range(200):
            data.add_(1.0)
        end.record()
        torch.cuda.synchronize(device)
        found.append(start.elapsed_time(end) * 1e6 / 200)
    return float(max(min(found) - kernel_ns, 0.0))
