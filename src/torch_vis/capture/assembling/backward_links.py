"""Which forward operation each operation of a backward pass belongs to, and which of them recompute forward.

Backward computes without recording gradients, and what was checkpointed is computed again with it, by the same lines as
the first time. So nothing has to be noted for it while the program runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.log import OpInputs, OpRows
from torch_vis.capture.recording.recorder import ACCUMULATE, FORWARD, SEED, CallInfo
from torch_vis.graph.types import Bools, Ints

# how many nodes one write to a view makes, at the most
LATE_NODES = 4
# how many levels of differentiation there are beneath another, at the most
LEVELS = 3
# forward operations by source line and operator, and by source line and ""
NodesByLine = dict[tuple[int, str], list[int]]


def forward_of(rows: OpRows, calls: list[CallInfo], inputs: OpInputs, maker: Ints) -> Ints:
    """For each operation the one that it differentiates, -1 for none; ``maker`` is the operation that made each value.

    An operation that adds to a ``.grad`` has no number of its own and belongs to whatever made the gradient.
    """
    count = len(rows.call)
    links = np.full(count, -1, dtype=np.int64)
    backward = np.flatnonzero(rows.backward >= 0)
    if len(backward):
        owners = _owners(rows, calls, backward)
        links[backward] = np.where(owners < backward, owners, -1)
    start = np.searchsorted(inputs.node, np.arange(count + 1))
    for node in np.flatnonzero(rows.backward == ACCUMULATE).tolist():
        for row in range(int(start[node + 1]) - 1, int(start[node]) - 1, -1):
            producer = int(maker[inputs.value[row]])
            if producer >= 0 and links[producer] >= 0:
                links[node] = links[producer]
                break
    return links


def _owners(rows: OpRows, calls: list[CallInfo], backward: Ints) -> Ints:
    """The operation that made each backward node: the first to see the sequence number after the node's.

    Sequence numbers belong to the thread that made the node. A CPU backward runs on that thread, a CUDA backward on
    the engine's, which makes no nodes of its own unless a graph of the backward is asked for.
    """
    is_clone = np.array([info.plan.name == "aten::clone" for info in calls])[rows.call]
    is_write = np.array([bool(info.writes) for info in calls])[rows.call]
    links = np.full(len(backward), -1, dtype=np.int64)
    next_ = np.full(len(backward), -1, dtype=np.int64)
    wanted = rows.backward[backward] + 1
    for thread in dict.fromkeys(rows.thread.tolist()):
        own = np.flatnonzero(rows.thread == thread)
        # a thread's sequence numbers only grow
        index = np.searchsorted(rows.sequence[own], wanted)
        owner = own[np.minimum(index, len(own) - 1)]
        exact = (index < len(own)) & (rows.sequence[owner] == wanted)
        # an in-place activation makes its node, then a copy of its input, which makes one as well, then it writes
        after = own[np.minimum(index + 1, len(own) - 1)]
        copied = ~exact & (index + 1 < len(own)) & is_clone[owner] & is_write[after]
        copied &= (rows.sequence[owner] == wanted + 1) & (rows.sequence[after] == wanted + 1)
        owner = np.where(copied, after, owner)
        exact |= copied
        # a write to a view makes its nodes when it is done, and no later operation sees their numbers first
        before = own[np.maximum(index - 1, 0)]
        late = ~exact & (index > 0) & is_write[before] & (rows.sequence[before] >= wanted - LATE_NODES)
        mine = rows.thread[backward] == thread
        open_ = (links < 0) | mine
        links = np.where(open_ & exact, owner, np.where(open_ & late & (links < 0), before, links))
        skipped = ~exact & ~late & (index < len(own)) & (rows.sequence[owner] <= wanted + LEVELS)
        next_ = np.where(skipped & mine, owner, next_)
    # inside a transform an operation makes a node for each level that differentiates, and runs after the last of them:
    # it is the next one that is seen, unless that has backward operations of its own
    taken = np.zeros(len(rows.call), dtype=bool)
    taken[links[links >= 0]] = True
    return np.where((links < 0) & (next_ >= 0) & ~taken[next_], next_, links)


# ---------------------------------------------------------------- recomputed outside of the calls of modules


class Recomputed(NamedTuple):
    """Along the operations: which were recomputed, and which of forward they were the first time (-1: unknown)."""

    mask: Bools
    first: Ints


def find_recomputed(rows: OpRows, calls: list[CallInfo], links: Ints) -> Recomputed:
    """What was recomputed of functions; ``links`` are to the operations whose gradient needed it."""
    count = len(rows.call)
    result = Recomputed(np.zeros(count, dtype=bool), np.full(count, -1, dtype=np.int64))
    likely = (rows.backward >= 0) & (rows.grad_mode == 1) & (rows.site >= 0)
    if not likely.any():
        return result
    names = [info.call.op for info in calls]
    derived = np.array([name.partition(".")[0].endswith("_backward") for name in names])[rows.call]
    engine = np.unique(rows.site[(rows.backward == SEED) | (rows.backward == ACCUMULATE) | derived])
    # where all of backward is called from, what runs is backward, also if a graph of it is asked for
    lines = np.setdiff1d(rows.site[rows.backward >= 0], engine)
    by_line: NodesByLine = defaultdict(list)
    for node in np.flatnonzero((rows.backward == FORWARD) & np.isin(rows.site, lines)).tolist():
        site = int(rows.site[node])
        by_line[site, names[rows.call[node]]].append(node)
        by_line[site, ""].append(node)
    for nodes in _backward_nodes(rows, likely):
        _BackwardNode(rows, names, by_line, nodes).mark(int(links[nodes[0]]), result)
    return result


def _backward_nodes(rows: OpRows, likely: Bools) -> list[list[int]]:
    """The operations of each backward node that may have recomputed something, in order."""
    order = np.lexsort((np.arange(len(rows.call)), rows.thread))
    order = order[rows.backward[order] >= 0]
    ends = np.flatnonzero((np.diff(rows.backward[order]) != 0) | (np.diff(rows.thread[order]) != 0)) + 1
    return [nodes.tolist() for nodes in np.split(order, ends) if likely[nodes].any()]


class _BackwardNode:
    """The operations of one backward node: those that it had recomputed, then its own."""

    def __init__(self, rows: OpRows, names: list[str], by_line: NodesByLine, nodes: list[int]) -> None:
        self.rows, self.names, self.by_line, self.nodes = rows, names, by_line, nodes
        self.sites: list[int] = rows.site[nodes].tolist()

    def mark(self, link: int, result: Recomputed) -> None:
        """Mark the part that was recomputed, with the operation that each of it was the first time.

        ``link`` is the forward operation that the node differentiates.
        """
        sure = [index for index, node in enumerate(self.nodes) if self._is_sure(node)]
        if not sure:
            return
        begin, end = sure[0], sure[-1] + 1
        while begin and self._is_forward(begin - 1):
            begin -= 1
        while end < len(self.nodes) and self._is_forward(end):
            end += 1
        # it may have been recomputed itself
        if link >= 0 and result.first[link] >= 0:
            link = int(result.first[link])
        keys = [self._key(index) for index in range(begin, end)]
        times, seen = Counter(keys), Counter[tuple[int, str]]()
        first = -1
        for node, key in zip(self.nodes[begin:end], keys):
            same = self.by_line.get(key)
            if same:
                first = same[min(self._begin(same, link, times[key]) + seen[key], len(same) - 1)]
            seen[key] += 1
            result.mask[node], result.first[node] = True, first

    def _key(self, index: int) -> tuple[int, str]:
        """By what an operation is searched: its line and its operator, or its line alone."""
        key = self.sites[index], self.names[self.rows.call[self.nodes[index]]]
        return key if key in self.by_line else (self.sites[index], "")

    def _is_sure(self, node: int) -> bool:
        """Whether gradients were recorded, and the same line ran the same operator in forward."""
        key = int(self.rows.site[node]), self.names[self.rows.call[node]]
        return bool(self.rows.grad_mode[node] == 1) and key in self.by_line

    def _is_forward(self, index: int) -> bool:
        """Whether the line ran in forward: beside another operation, or in a function without gradients."""
        return (self.sites[index], "") in self.by_line

    def _begin(self, same: list[int], link: int, times: int) -> int:
        """Of the operations of one line, the first of so many that ran together with the linked one.

        Those are the last that ran before it, or where it ran without recording gradients, the first after it.
        """
        if link >= 0 and self.rows.grad_mode[link] != 1:
            return bisect_left(same, link)
        return max((bisect_right(same, link) if link >= 0 else len(same)) - times, 0)
