"""Times of a run that add up, from runs that were timed in different ways.

Calls of modules are timed in some runs and operations in others, which the profiler slows down; and the medians of
parts do not come to the median of the whole. So the whole is what it was in runs without the profiler. It is divided
among the calls of modules near their medians, and the time that is a call's own among its operations and the host in
the ratio that they had under the profiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from torch_vis.capture.timing.profiler_events import Timeline, current, ends, event_ns
from torch_vis.graph.metrics import Column
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Ints

# ---------------------------------------------------------------- the host between operations


class HostGaps(NamedTuple):
    """Of one profiled run: the time of the host by itself in each call of a module, and where each operation ran."""

    host: Any
    call: Ints
    """The call of a module that each operation ran in, by time; -1 for an operation that is no event."""


def host_gaps(timeline: Timeline, events: Ints, scopes: Ints) -> HostGaps:
    """What the host did besides operations and besides the calls inside a call.

    ``events`` are those of the operations; ``scopes`` has parent, begin and end of the calls of that run. The time of
    the profiler itself is taken off.
    """
    count, cost = len(scopes), event_ns()
    after, lasted = ends(timeline), timeline.stop - timeline.start
    times, inner = current(scopes)
    running = inner[np.searchsorted(times, timeline.start, side="right")]
    has = events >= 0
    own = events[has]
    inside = np.zeros(len(after) + 1, dtype=np.int64)
    np.add.at(inside, own, 1)
    np.add.at(inside, after[own], -1)
    others = np.flatnonzero(np.cumsum(inside)[:-1] == 0)
    took = np.where(scopes[:, 2] > 0, scopes[:, 2] - scopes[:, 1], 0)
    left = Tree(scopes[:, 0]).own(took)
    # half of an event's cost falls before or after its own time
    spent = np.bincount(running[own], weights=lasted[own] + cost / 2, minlength=count)
    spent = spent + cost * np.bincount(running[others], minlength=count)
    call = np.full(len(events), -1, dtype=np.int64)
    call[has] = running[own]
    return HostGaps(np.maximum(left - spent, 0), call)


# ---------------------------------------------------------------- times that add up


def agreed(runs: Any, parent: Ints) -> Ints:
    """The own time of each call, from the time of all calls run by run: the whole is the median of the whole.

    >>> runs = np.array([[10, 6, 2], [12, 6, 3], [14, 7, 4]])  # a call with two others in it
    >>> agreed(runs, np.array([-1, 0, 0])).tolist()
    [3, 6, 3]
    """
    tree = Tree(parent)
    own = tree.own(runs)
    own_middle, own_most = np.maximum(np.median(own, axis=0), 0).tolist(), own.max(axis=0).tolist()
    middle, most = np.median(runs, axis=0).tolist(), runs.max(axis=0).tolist()
    whole, agreed_own = middle.copy(), [0.0] * len(middle)
    # Parents come first.
    for call, parts in enumerate(tree.children):
        agreed_own[call], *rest = shares(
            whole[call],
            [own_middle[call], *(middle[part] for part in parts)],
            [own_most[call], *(most[part] for part in parts)],
        )
        for part, share in zip(parts, rest):
            whole[part] = share
    return np.round(agreed_own).astype(np.int64)


def shares(whole: float, middle: list[float], most: list[float]) -> list[float]:
    """Parts that add up to the whole: in the ratio of their medians, but none above its maximum as far as possible.

    >>> shares(10, [4, 4], [4, 9])
    [4.0, 6.0]
    """
    together = sum(middle)
    rate = whole / together if together > 0 else 0.0
    parts = [share * rate if rate <= 1 else min(share * rate, limit) for share, limit in zip(middle, most)]
    left = whole - sum(parts)
    room = [max(limit - share, 0.0) for share, limit in zip(parts, most)]
    if left > 0 and sum(room) > 0:
        given = min(left / sum(room), 1.0)
        parts = [share + spare * given for share, spare in zip(parts, room)]
    parts[0] += max(whole - sum(parts), 0.0)
    return parts


def time_factors(own: Ints, call: Ints, spent: Any, host: Any) -> Any:
    """The factor for the time of each operation: with the host's, they then add up to their call's own time.

    ``call`` is that in which an operation ran, ``spent`` its time under the profiler, ``host`` the host's time besides
    operations, by call.

    >>> time_factors(np.array([10]), np.array([0, 0]), np.array([8, 8]), np.array([4])).tolist()
    [0.5, 0.5]
    """
    together = np.bincount(call, weights=spent, minlength=len(own)) + host
    rate = np.divide(own, together, out=np.zeros(len(own)), where=together > 0)
    return rate[call]


def with_functions(own: Ints, rows: Ints, parent: Ints, node_scope: Ints, time: Ints) -> Ints:
    """The time of all scopes, from the own time of those that are calls of modules (``rows``).

    Others have the time of operations in them (``time``, 0 for those that ran elsewhere), and what is inside them.
    """
    times = np.zeros(len(parent), dtype=np.int64)
    times[rows] = own
    within = np.zeros(len(parent), dtype=bool)
    within[rows] = True
    tree = Tree(parent)
    nearest = tree.nearest(within)
    other = ~within[node_scope]
    np.add.at(times, node_scope[other], time[other])
    np.subtract.at(times, nearest[node_scope[other]], time[other])
    return tree.inclusive(times)


def scope_columns(inclusive: Ints, rows: Ints, parent: Ints, quartiles: Any) -> Iterator[Column]:
    """Inclusive and own time of all scopes, and the quartiles of those that were timed (``rows``).

    These are as far from what the call came to, in proportion, as they were from its median.
    """
    middle, *spread = quartiles
    yield Column("scope_time_ns", inclusive, along="scope")
    rate = np.divide(inclusive[rows], middle, out=np.ones(len(rows)), where=middle > 0)
    for name, bounds, bound in zip(("low", "high"), spread, (np.minimum, np.maximum)):
        column = inclusive.copy()
        column[rows] = bound(np.round(bounds * rate).astype(np.int64), inclusive[rows])
        yield Column(f"scope_time_{name}_ns", column, along="scope")
    yield Column("scope_self_ns", Tree(parent).own(inclusive), along="scope")
