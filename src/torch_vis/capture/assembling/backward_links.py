"""Which forward operation each operation of a backward pass belongs to."""

from __future__ import annotations

import numpy as np

from torch_vis.capture.assembling.log import Rows
from torch_vis.capture.recording.recorder import ACCUMULATE, CallInfo
from torch_vis.graph.types import Bools, Ints

LATE_NODES = 4  # how many nodes one write to a view makes, at the most
LEVELS = 3  # how many levels of differentiation there are beneath another, at the most


def forward_of(rows: Rows, calls: list[CallInfo], reader: Ints, read: Ints, maker: Ints) -> Ints:
    """For each operation the one that it differentiates, -1 for none.

    ``reader`` and ``read`` are the operations and the values that they take, ``maker`` what made each value. What adds
    to a ``.grad`` has no number of its own and belongs to whatever made the gradient.
    """
    count = len(rows.call)
    links = np.full(count, -1, dtype=np.int64)
    backward = np.flatnonzero(rows.backward >= 0)
    if len(backward):
        owners = _owners(rows, calls, backward)
        links[backward] = np.where(owners < backward, owners, -1)
    start = np.searchsorted(reader, np.arange(count + 1))
    for node in np.flatnonzero(rows.backward == ACCUMULATE).tolist():
        for row in range(int(start[node + 1]) - 1, int(start[node]) - 1, -1):
            made_by = int(maker[read[row]])
            if made_by >= 0 and links[made_by] >= 0:
                links[node] = links[made_by]
                break
    return links


def _owners(rows: Rows, calls: list[CallInfo], backward: Ints) -> Ints:
    """The operation that made each backward node: the first to see the sequence number after the node's.

    Sequence numbers belong to the thread that made the node. A CPU backward runs on that thread, a CUDA backward on
    the engine's, which makes no nodes of its own unless a graph of the backward is asked for.
    """
    is_clone = _each([info.plan.name == "aten::clone" for info in calls], rows)
    is_write = _each([bool(info.writes) for info in calls], rows)
    links = np.full(len(backward), -1, dtype=np.int64)
    next_ = np.full(len(backward), -1, dtype=np.int64)
    wanted = rows.backward[backward] + 1
    for thread in dict.fromkeys(rows.thread.tolist()):
        own = np.flatnonzero(rows.thread == thread)
        numbers = rows.sequence[own]  # a thread's numbers only grow
        place = np.searchsorted(numbers, wanted)
        found = own[np.minimum(place, len(own) - 1)]
        exact = (place < len(own)) & (rows.sequence[found] == wanted)
        # an in-place activation makes its node, then a copy of its input, which makes one as well, then it writes
        after = own[np.minimum(place + 1, len(own) - 1)]
        copied = ~exact & (place + 1 < len(own)) & is_clone[found] & is_write[after]
        copied &= (rows.sequence[found] == wanted + 1) & (rows.sequence[after] == wanted + 1)
        found = np.where(copied, after, found)
        exact |= copied
        # a write to a view makes its nodes when it is done, and no later operation sees their numbers first
        before = own[np.maximum(place - 1, 0)]
        late = ~exact & (place > 0) & is_write[before] & (rows.sequence[before] >= wanted - LATE_NODES)
        mine = rows.thread[backward] == thread
        take = (links < 0) | mine
        links = np.where(take & exact, found, np.where(take & late & (links < 0), before, links))
        skipped = ~exact & ~late & (place < len(own)) & (rows.sequence[found] <= wanted + LEVELS)
        next_ = np.where(skipped & mine, found, next_)
    # inside a transform an operation makes a node for each level that differentiates, and runs after the last of them:
    # it is the next one that is seen, unless that has backward operations of its own
    taken = np.zeros(len(rows.call), dtype=bool)
    taken[links[links >= 0]] = True
    return np.where((links < 0) & (next_ >= 0) & ~taken[next_], next_, links)


def _each(known: list[bool], rows: Rows) -> Bools:
    """What is known of call templates, for each operation."""
    found: Bools = np.array(known, dtype=bool)[rows.call]
    return found
