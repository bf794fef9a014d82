"""What the host does between the operations of a profiled run, call of a module by call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torch_vis.capture.timing.match_events import current, ends
from torch_vis.capture.timing.profiler_run import Timeline, event_ns
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Ints


class Between(NamedTuple):
    """Of one profiled run: what the host did by itself in each call of a module, and where each operation ran."""

    host: Any
    where: Ints  # the call of a module, by time; -1 for an operation that is no event


def between(timeline: Timeline, places: Ints, scopes: Ints) -> Between:
    """Find what the host did besides operations and besides the calls inside a call.

    ``places`` are the events that are operations; ``scopes`` has parent, begin and end of the calls of that run. What
    the profiler took for events is taken off.
    """
    count, cost = len(scopes), event_ns()
    after, lasted = ends(timeline), timeline.stop - timeline.start
    times, inner = current(scopes)
    running = inner[np.searchsorted(times, timeline.start, side="right")]
    has = places >= 0
    own = places[has]
    inside = np.zeros(len(after) + 1, dtype=np.int64)
    np.add.at(inside, own, 1)
    np.add.at(inside, after[own], -1)
    others = np.flatnonzero(np.cumsum(inside)[:-1] == 0)
    took = np.where(scopes[:, 2] > 0, scopes[:, 2] - scopes[:, 1], 0)
    left = Tree(scopes[:, 0]).own(took)
    # half of an event's cost falls before or after its own time
    spent = np.bincount(running[own], weights=lasted[own] + cost / 2, minlength=count)
    spent = spent + cost * np.bincount(running[others], minlength=count)
    where = np.full(len(places), -1, dtype=np.int64)
    where[has] = running[own]
    return Between(np.maximum(left - spent, 0), where)
