"""A quiet place to take times in: one core that nobody else uses, as far as a loop of plain Python can tell.

On shared machines the pace of a core changes from second to second with what its neighbour does, and a process that
wanders between cores wakes sleeping ones. Times that are the host's vary by half there, and by a twentieth here.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from torch_vis.run.calibrate.clocks import USUAL, Burst, burst, pace_ns, undisturbed

TRIES = 8
LOOKING_S = 2.0  # for the best pace of all cores


class Pace(NamedTuple):
    """What the loop took at its best anywhere, and usually while times were taken."""

    best_ns: float
    usual_ns: float


class Quiet:
    """Keeps this process on a quiet core and takes times there; where cores cannot be chosen it only takes times."""

    def __init__(self, device: str, best_ns: float = math.inf) -> None:
        self.device = device
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.best = min(best_ns, *(pace_ns() for _ in range(20)))
        self.paces: list[float] = []
        end = time.perf_counter() + LOOKING_S
        while time.perf_counter() < end:
            self.move()

    def move(self) -> None:
        """Go to the core that is the fastest now."""
        paces = {}
        for core in self.cores:
            _stay_on(core)
            paces[core] = min(pace_ns() for _ in range(5))
        if paces:
            _stay_on(min(paces, key=lambda core: paces[core]))
            self.best = min(self.best, *paces.values())

    def bursts(self, call: Callable[[], Any], count: int) -> list[Burst]:
        """Some runs in a row, again on another core as long as something disturbs them."""
        found = []
        for _ in range(TRIES):
            found.append(burst(call, self.device, count))
            if found[-1].pace_ns <= USUAL * self.best:
                break
            self.move()
        self.paces.append(min(one.pace_ns for one in found))
        return found

    def burst(self, call: Callable[[], Any], device: str, count: int) -> Burst:
        """The least disturbed of these, for a calibration to use in place of its own."""
        return min(self.bursts(call, count), key=lambda one: one.pace_ns)

    def median(self, bursts: list[Burst]) -> float:
        """The median time of the runs that nothing disturbed, or of those that were disturbed least."""
        return median(undisturbed(bursts, self.best))

    def pace(self) -> Pace:
        """How quiet it was; only what was measured at the same pace can be compared."""
        return Pace(self.best, median(self.paces) if self.paces else self.best)


def _stay_on(core: int) -> None:
    """Keep every thread of this process on one core."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), {core})
        except OSError:
            pass  # it has just ended
