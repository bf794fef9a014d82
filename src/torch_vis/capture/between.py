"""What the host does between the operations of a profiled run, call of a module by call.

Whole and parts are of one run: the medians of each, of different runs, can differ by more than lies between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_vis.capture.aligning import Pieces, ends
from torch_vis.capture.columns import Ints
from torch_vis.capture.profiled import Timeline, event_ns


def parts(timeline: Timeline, events: Pieces, places: Ints, scopes: Ints) -> Any:
    """For each call of a module, with those inside it: the time of its operations, and what the host did besides.

    ``places`` are the events that are operations; ``scopes`` has parent, begin and end of the calls of that run. What
    the profiler took for events is in neither.
    """
    count, cost = len(scopes), event_ns()
    after, lasted = ends(timeline), timeline.stop - timeline.start
    own = places[places >= 0]
    inside = np.zeros(len(after) + 1, dtype=np.int64)
    np.add.at(inside, own, 1)
    np.add.at(inside, after[own], -1)
    others = np.flatnonzero(np.cumsum(inside)[:-1] == 0)
    # half of an event's cost falls before or after its own time
    spent = np.maximum(lasted[own] - cost * (after[own] - own - 0.5), 0)
    where = events.scope[own]
    sums = np.stack(
        [
            np.bincount(where, weights=spent, minlength=count),
            np.bincount(where, weights=lasted[own] + cost / 2, minlength=count)
            + cost * np.bincount(events.scope[others], minlength=count),
        ]
    )
    sums = upwards(sums, scopes[:, 0])
    return np.stack([sums[0], np.maximum(scopes[:, 2] - scopes[:, 1] - sums[1], 0)])


def upwards(sums: Any, parent: Sequence[int] | Ints) -> Any:
    """Sums over each call and those inside it, along the last axis; parents come before the calls in them."""
    found = sums.copy()
    for scope in range(found.shape[-1] - 1, 0, -1):
        found[..., parent[scope]] += found[..., scope]
    return found


def host_shares(runs: Sequence[Any], unseen: Any) -> Any:
    """The median over runs of the share that is the host's; ``unseen`` is the time of operations that are no events."""
    spent, host = np.stack(runs, axis=1)
    spent, host = spent + unseen, np.maximum(host - unseen, 0)
    whole = spent + host
    return np.median(np.divide(host, whole, out=np.zeros_like(whole), where=whole > 0), axis=0)
