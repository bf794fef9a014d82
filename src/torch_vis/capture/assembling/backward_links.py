"""Which forward operation each operation of a backward pass belongs to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.log import OpRows
from torch_vis.capture.recording.recorder import ACCUMULATE, FORWARD, SEED, CallInfo
from torch_vis.graph.types import Bools, Ints

LATE_NODES = 4  # how many nodes one write to a view makes, at the most
LEVELS = 3  # how many levels of differentiation there are beneath another, at the most


def forward_of(rows: OpRows, calls: list[CallInfo], reader: Ints, read: Ints, maker: Ints) -> Ints:
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


def _owners(rows: OpRows, calls: list[CallInfo], backward: Ints) -> Ints:
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


def _each(known: list[bool], rows: OpRows) -> Bools:
    """What is known of call templates, for each operation."""
    found: Bools = np.array(known, dtype=bool)[rows.call]
    return found


NodesByLine = dict[tuple[int, str], list[int]]


class Recomputed(NamedTuple):
    """Along the operations: which were computed again, and which of forward they were the first time (-1: unknown)."""

    mask: Bools
    first: Ints


def computed_again(rows: OpRows, calls: list[CallInfo], links: Ints) -> Recomputed:
    """Find what was computed again; ``links`` are to the operations whose gradient asked for it."""
    found = Recomputed(np.zeros(len(rows.call), dtype=bool), np.full(len(rows.call), -1, dtype=np.int64))
    likely = (rows.backward >= 0) & (rows.grad_mode == 1) & (rows.site >= 0)
    if not likely.any():
        return found
    names = [info.call.op for info in calls]
    derived = np.array([name.partition(".")[0].endswith("_backward") for name in names])[rows.call]
    engine = np.unique(rows.site[(rows.backward == SEED) | (rows.backward == ACCUMULATE) | derived])
    # where all of backward is called from, what runs is backward, also if a graph of it is asked for
    before = (rows.backward == FORWARD) & np.isin(
        rows.site, np.setdiff1d(rows.site[rows.backward >= 0], engine)
    )
    places: NodesByLine = defaultdict(list)
    for node in np.flatnonzero(before).tolist():
        site = int(rows.site[node])
        places[site, names[rows.call[node]]].append(node)
        places[site, ""].append(node)
    for run in _runs(rows, likely):
        _BackwardNode(rows, names, places, run).settle(int(links[run[0]]), found)
    return found


def _runs(rows: OpRows, likely: Bools) -> list[list[int]]:
    """The operations of each node of backward that may have computed something again, in order."""
    order = np.lexsort((np.arange(len(rows.call)), rows.thread))
    order = order[rows.backward[order] >= 0]
    ends = np.flatnonzero((np.diff(rows.backward[order]) != 0) | (np.diff(rows.thread[order]) != 0)) + 1
    return [run.tolist() for run in np.split(order, ends) if likely[run].any()]


class _BackwardNode:
    """What one node of backward ran: what it had computed again, then its own."""

    def __init__(self, rows: OpRows, names: list[str], places: NodesByLine, nodes: list[int]) -> None:
        self.rows, self.names, self.places, self.nodes = rows, names, places, nodes
        self.sites: list[int] = rows.site[nodes].tolist()

    def settle(self, asked: int, found: Recomputed) -> None:
        """Mark the stretch that was computed again, and find where each of its operations ran the first time."""
        sure = [place for place, node in enumerate(self.nodes) if self._is_sure(node)]
        if not sure:
            return
        begin, end = sure[0], sure[-1] + 1
        while begin and self._is_forward(begin - 1):
            begin -= 1
        while end < len(self.nodes) and self._is_forward(end):
            end += 1
        if asked >= 0 and found.first[asked] >= 0:  # it was computed again itself
            asked = int(found.first[asked])
        keys = [self._key(place) for place in range(begin, end)]
        times, seen = Counter(keys), Counter[tuple[int, str]]()
        last = -1
        for node, key in zip(self.nodes[begin:end], keys):
            same = self.places.get(key)
            if same:
                last = same[min(self._begin(same, asked, times[key]) + seen[key], len(same) - 1)]
            seen[key] += 1
            found.mask[node], found.first[node] = True, last

    def _key(self, place: int) -> tuple[int, str]:
        """What an operation is looked for by: its line and its operator, or its line alone."""
        key = self.sites[place], self.names[self.rows.call[self.nodes[place]]]
        return key if key in self.places else (self.sites[place], "")

    def _is_sure(self, node: int) -> bool:
        """Whether gradients were recorded, and the same line ran the same operator in forward."""
        key = int(self.rows.site[node]), self.names[self.rows.call[node]]
        return bool(self.rows.grad_mode[node] == 1) and key in self.places

    def _is_forward(self, place: int) -> bool:
        """Whether the line ran in forward: what is beside an operation, or in a function without gradients."""
        return (self.sites[place], "") in self.places

    def _begin(self, same: list[int], asked: int, times: int) -> int:
        """Of the operations of one line, the first of so many that ran together with the one that asked.

        That is the last of what ran, or where it ran without recording gradients, the first.
        """
        if asked >= 0 and self.rows.grad_mode[asked] != 1:
            return bisect_left(same, asked)
        return max((bisect_right(same, asked) if asked >= 0 else len(same)) - times, 0)
