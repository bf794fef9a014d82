"""The operations of a recording found again in a profile of the same run without a recorder.

Torch does a few things differently where a mode is active: it adds gradients up out of place, say, and takes ``linear``
apart in another way. So the two sequences are alike but not equal. They are compared piece by piece: what one call of a
module did by itself, and what one node of the backward pass did, are pieces that both runs have. Within a piece, an
event belongs to the next operation of its name (in place or not), and whatever lies inside the event is part of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from torch_vis.capture.timing.profiler_run import Timeline
from torch_vis.graph.types import Ints
from torch_vis.ops.names import out_of_place

FORWARD, ACCUMULATE, SEED = -1, -2, -3  # what stands in the place of a backward node's number, as in the log
ENGINE = "autograd::engine::evaluate_function: "
COMPILED = "## Call CompiledFxGraph"  # what Inductor calls a run of its code
AHEAD = 8  # operations that may be left out at a time
SKIPS = 24  # events that are looked at on the way to one of the right name


class Pieces(NamedTuple):
    """For operations or events in order: the piece that each lies in, and its name."""

    scope: Ints  # number of the module call
    backward: Ints  # number of the backward node, counted from the beginning of the run
    names: list[str]


def pieces_of_events(timeline: Timeline, scopes: Ints, first_number: int) -> Pieces:
    """The pieces that events lie in; ``scopes`` has parent, begin and end of the module calls of that run."""
    count = len(timeline.start)
    scope, backward = np.zeros(count, dtype=np.int64), np.full(count, FORWARD, dtype=np.int64)
    if count:
        times, inner = current(scopes)
        main = timeline.thread == timeline.thread[np.argmin(timeline.start)]
        scope[main] = inner[np.searchsorted(times, timeline.start[main], side="right")]
    after = ends(timeline)
    engine = np.array([name.startswith(ENGINE) for name in timeline.names], dtype=bool)
    for event in np.flatnonzero(engine[timeline.name]).tolist() if count else ():
        number = int(timeline.sequence[event])
        outside = number < 0 or number >= 1 << 62
        backward[event : after[event]] = ACCUMULATE if outside else number - first_number
    return Pieces(scope, backward, [timeline.names[name] for name in timeline.name.tolist()])


def ends(timeline: Timeline) -> Ints:
    """For each event, the number of the first one after it that is not inside it."""
    after = np.arange(1, len(timeline.start) + 1)
    for thread in np.unique(timeline.thread).tolist():
        first, last = np.searchsorted(timeline.thread, [thread, thread + 1]).tolist()
        inside = first + np.searchsorted(timeline.start[first:last], timeline.stop[first:last])
        after[first:last] = np.maximum(after[first:last], inside)
    return after


def current(scopes: Ints) -> tuple[Ints, Ints]:
    """At which times the innermost module call changes, and which it is from the one before that time on."""
    count = len(scopes)
    closed = np.flatnonzero(scopes[:, 2] > 0)
    closed = closed[closed > 0]
    times = np.concatenate([scopes[1:, 1], scopes[closed, 2]])
    inner = np.concatenate([np.arange(1, count), scopes[closed, 0]])
    # of equal times, calls are left from the inside out before others are entered
    order = np.lexsort((np.concatenate([np.arange(1, count), -closed]), times))
    return times[order], np.concatenate([[0], inner[order]])


def align(nodes: Pieces, events: Pieces, after: Ints) -> Ints:
    """The event of each operation, -1 for none.

    >>> none, names = np.zeros(3, dtype=np.int64), ["aten::ones", "aten::sin", "aten::add"]
    >>> nodes = Pieces(none, none - 1, names)
    >>> events = Pieces(none, none - 1, ["aten::ones", "aten::fill_", "aten::add_"])
    >>> align(nodes, events, np.array([2, 2, 3])).tolist()
    [0, -1, 2]
    """
    found = np.full(len(nodes.names), -1, dtype=np.int64)
    backward = np.where(nodes.backward == SEED, FORWARD, nodes.backward)
    having: dict[Any, list[int]] = defaultdict(list)
    for event, key in enumerate(zip(events.scope.tolist(), events.backward.tolist())):
        having[key].append(event)
    wanted: dict[Any, list[int]] = defaultdict(list)
    for node, key in enumerate(zip(nodes.scope.tolist(), backward.tolist())):
        wanted[key].append(node)
    inside = after.tolist()
    for key, own in wanted.items():
        if key in having:
            piece = _Piece(having[key], events.names, inside)
            found[own] = piece.align([_plain(nodes.names[node]) for node in own])
    return found


def _plain(name: str) -> str:
    return "torch_vis::compiled" if name.startswith(COMPILED) else out_of_place(name)


class _Piece:
    """The events of one piece: their numbers, and the places among those of each name."""

    def __init__(self, events: list[int], names: list[str], after: list[int]) -> None:
        self.events = events
        self.after = [bisect_left(events, after[event]) for event in events]
        self.places: dict[str, list[int]] = {}
        for place, event in enumerate(events):
            self.places.setdefault(_plain(names[event]), []).append(place)

    def align(self, wanted: list[str]) -> list[int]:
        """Walk along both sequences; the operation that costs least to go to comes next."""
        found = [-1] * len(wanted)
        node = at = 0
        while node < len(wanted):
            best = (AHEAD + SKIPS, 0, -1)
            for left_out in range(min(AHEAD, len(wanted) - node)):
                if left_out >= best[0]:
                    break
                place = self._next(wanted[node + left_out], at)
                if place >= 0:
                    best = min(best, (left_out + self._skipped(at, place), left_out, place))
            _, left_out, place = best
            if place < 0:
                node += 1
                continue
            found[node + left_out] = self.events[place]
            node += left_out + 1
            at = self.after[place]
        return found

    def _next(self, name: str, at: int) -> int:
        having = self.places.get(name, [])
        turn = bisect_left(having, at)
        return having[turn] if turn < len(having) else -1

    def _skipped(self, at: int, place: int) -> int:
        """How many events end before this one begins, those inside of others not counted."""
        count = 0
        while at < place and count < SKIPS:
            if self.after[at] <= place:
                count += 1
                at = self.after[at]
            else:
                at += 1  # it lies in this one
        return count
