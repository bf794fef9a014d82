"""A quiet place to take times in: one core that nobody else uses, as far as the pace of small operations can tell.

On shared machines the pace of a core changes from second to second with what its neighbour does, and a process that
wanders between cores wakes sleeping ones. Times that are the host's vary by half there, and by a twentieth here.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from torch_vis.analysis.machine.probes.clocks import USUAL, Burst, burst, pace_ns, undisturbed

LOOKING_S = 2.0  # for the best pace of all cores


class Pace(NamedTuple):
    """What a small operation took at its best anywhere, and usually while times were taken."""

    best_ns: float
    usual_ns: float


class Taken(NamedTuple):
    """The median time of some runs, and what a small operation took the host around them, where that was measured."""

    time_ns: float
    unit_ns: float | None


class Quiet:
    """Takes times on a quiet core; where cores cannot be chosen it only takes times.

    The process stays on that core only as long, so that all else is not slowed down by who comes to it later.
    """

    def __init__(self, device: str, best_ns: float = math.inf) -> None:
        self.device = device
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.core = self.cores[0] if self.cores else None
        self.best = min(best_ns, *(pace_ns(device) for _ in range(20)))
        self.paces: list[float] = []
        end = time.perf_counter() + LOOKING_S
        while self.cores and time.perf_counter() < end:
            for core in self.cores:
                self._pace_on(core)
        self._stay_on(*self.cores)

    def burst(self, call: Callable[[], Any], device: str, count: int) -> Burst:
        """Some runs in a row; if something disturbed them, the next will be on another core."""
        if self.core is not None:
            self._stay_on(self.core)
        result = burst(call, device, count)
        if result.pace_ns > USUAL * self.best:
            self._move()
        self._stay_on(*self.cores)
        self.paces.append(result.pace_ns)
        return result

    def taken(self, bursts: list[Burst]) -> Taken:
        """What the runs took that nothing disturbed, or those that were disturbed least."""
        chosen = undisturbed(bursts, self.best)
        times = [time_ns for run_ in chosen for time_ns in run_.times]
        return Taken(median(times), median(run_.pace_ns for run_ in chosen))

    def pace(self) -> Pace:
        """How quiet it was."""
        return Pace(self.best, median(self.paces) if self.paces else self.best)

    def _move(self) -> None:
        """Go to a core that runs at its usual pace now, or else to the fastest."""
        paces = {}
        for core in random.sample(self.cores, len(self.cores)):
            paces[core] = self._pace_on(core)
            if paces[core] <= USUAL * self.best:
                return
        if paces:
            self.core = min(paces, key=lambda core: paces[core])
            self._stay_on(self.core)

    def _pace_on(self, core: int) -> float:
        """The pace of a core, where this process then is."""
        self.core = core
        self._stay_on(core)
        pace = pace_ns(self.device)
        self.best = min(self.best, pace)
        return pace

    def _stay_on(self, *cores: int) -> None:
        """Keep every thread of this process on some cores."""
        for thread in os.listdir("/proc/self/task") if cores else ():
            try:
                os.sched_setaffinity(int(thread), cores)
            except OSError:
                pass  # it has just ended
