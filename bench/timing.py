"""Samples of several sides, taken in turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

Action = Callable[[], Any]
cpu = time.process_time
wall = time.perf_counter


def nothing() -> None:
    """Does nothing."""


class Side(NamedTuple):
    """What is timed, what has to happen around it untimed, and how often one sample repeats it."""

    run: Action
    before: Action = nothing
    after: Action = nothing
    repeats: int = 1


class Samples:
    """Seconds per side, one sample a round; the samples of a round were taken next to each other."""

    def __init__(self, seconds: Mapping[str, list[float]]) -> None:
        self.seconds = dict(seconds)

    def median(self, side: str) -> float:
        """The middle sample of a side."""
        return median(self.seconds[side])

    def best(self, side: str) -> float:
        """The fastest sample of a side."""
        return min(self.seconds[side])

    def added(self, side: str, plain: str = "plain") -> float:
        """What a side takes beyond the plain one: the median of the differences within a round."""
        return median(a - b for a, b in zip(self.seconds[side], self.seconds[plain]))

    def best_added(self, side: str, plain: str = "plain") -> float:
        """The same from the fastest samples."""
        return self.best(side) - self.best(plain)

    def ratio(self, side: str, other: str) -> float:
        """The median of the ratios within a round."""
        return median(a / b for a, b in zip(self.seconds[side], self.seconds[other]))

    def best_ratio(self, side: str, other: str) -> float:
        """The ratio of the fastest samples."""
        return self.best(side) / self.best(other)


def interleave(
    sides: Mapping[str, Side | Action],
    *,
    rounds: int,
    warmups: int = 1,
    clock: Callable[[], float] = cpu,
) -> Samples:
    """Time every side once a round, the first one of the round changing from round to round.

    The clock counts processor time unless told otherwise: the same work takes the same processor time whoever else uses
    the machine.
    """
    whole = {name: side if isinstance(side, Side) else Side(side) for name, side in sides.items()}
    names = list(whole)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmups, rounds):
        for step in range(len(names)):
            name = names[(turn + step) % len(names)]
            took = sample(whole[name], clock)
            if turn >= 0:
                seconds[name].append(took)
    return Samples(seconds)


def sample(side: Side, clock: Callable[[], float] = cpu) -> float:
    """The seconds of one run, the middle one of its repeats; what it returns is let go after the clock has stopped.

    Garbage is collected after ``before``, so that what that leaves behind is not charged to the run. Only the first
    repeat gets a full collection: it walks through all memory, and a run of a few milliseconds after it would show
    mostly how the processor's caches fill again. Sides that are compared need the same number of repeats.
    """
    took = []
    for repeat in range(side.repeats):
        side.before()
        gc.collect(1 if repeat else 2)
        try:
            start = clock()
            kept = side.run()
            took.append(clock() - start)
            del kept
        finally:
            side.after()
    return median(took)
