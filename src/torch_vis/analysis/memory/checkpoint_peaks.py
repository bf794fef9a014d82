"""The peak of a run if one call of a module were checkpointed, for many calls at once.

Each call has a timeline of its own, which differs from that of the run in few places. It is told by its changes, and
the highest of the run between two of them is looked up, so that all calls together cost about as much as the blocks
of memory inside them, not calls times operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_vis.analysis.memory.blocks import Ints
from torch_vis.graph.schema import Phase

if TYPE_CHECKING:
    from torch_vis.analysis.memory.checkpointing import Checkpointing


def peaks_alone(run: Checkpointing, scopes: Ints) -> Ints:
    """For each of some calls, the peak of the run if it were the only one that is checkpointed."""
    if not len(scopes):
        return np.zeros(0, dtype=np.int64)
    found = _Alone(run, scopes)
    return np.maximum(found.beside(), found.while_computing_again())[scopes]


class _Alone:
    """Calls that are each checkpointed in a run of its own; columns run along all scopes."""

    def __init__(self, run: Checkpointing, scopes: Ints) -> None:
        self.run, self.graph, self.blocks = run, run.graph, run.blocks
        self.count = len(run.parent)
        self.wanted = np.zeros(self.count, dtype=bool)
        self.wanted[scopes] = True
        self.gone, self.gone_from = self._forgotten()
        self.again = self._begins()
        self.kept, self.kept_by = self._kept()

    def _around(self, scope: Ints, least: Ints | int = 0) -> tuple[Ints, Ints]:
        """The calls in question around each scope, itself included, as deep as ``least`` or deeper: rows and calls."""
        parent, depth, wanted = self.run.parent, self.run.depth, self.wanted
        row, least = np.arange(len(scope)), np.broadcast_to(least, len(scope))
        rows, calls = [row[:0]], [row[:0]]
        while len(row):
            inside = depth[scope] >= least[row]
            row, scope = row[inside], scope[inside]
            rows.append(row[wanted[scope]])
            calls.append(scope[wanted[scope]])
            scope = parent[scope]
            row, scope = row[scope >= 0], scope[scope >= 0]
        return np.concatenate(rows), np.concatenate(calls)

    # ---------------------------------------------------------------- what a call forgets and keeps

    def _forgotten(self) -> tuple[Ints, Ints]:
        """Pairs of a block and a call that forgets it."""
        block = np.flatnonzero(self.run.forgettable >= 0)
        row, call = self._around(self.run.forgettable[block])
        return block[row], call

    def _begins(self) -> Ints:
        """The operation before which each call is computed again."""
        block, node = self.run.backward_reads()
        first = np.full(len(self.blocks.birth), len(self.graph), dtype=np.int64)
        np.minimum.at(first, block, node)
        found = np.full(self.count, len(self.graph), dtype=np.int64)
        np.minimum.at(found, self.gone_from, first[self.gone])
        return found

    def _kept(self) -> tuple[Ints, Ints]:
        """Pairs of a block from outside a call and that call, which holds on to it longer than the run does now."""
        graph, blocks, run = self.graph, self.blocks, self.run
        block, node = blocks.readers
        chosen = (graph.node_phase[node] == Phase.FORWARD) & (blocks.birth[block] >= 0)
        chosen &= blocks.death[block] <= len(graph)
        pairs = np.unique(np.stack([block[chosen], graph.node_scope[node[chosen]].astype(np.int64)]), axis=1)
        pairs = pairs[:, graph.node_phase[blocks.birth[pairs[0]]] == Phase.FORWARD]
        block, scope = pairs
        shared = run.common(graph.node_scope[blocks.birth[block]].astype(np.int64), scope)
        row, call = self._around(scope, run.depth[shared] + 1)
        longer = (run.ends[call] > blocks.death[block[row]]) & (self.again[call] < len(graph))
        held = np.unique(np.stack([block[row[longer]], call[longer]]), axis=1)
        return held[0], held[1]

    # ---------------------------------------------------------------- how high the run goes

    def beside(self) -> Ints:
        """The highest of the recorded operations, for each call."""
        blocks, nodes = self.blocks, len(self.graph)
        size, again = blocks.bytes[self.gone], self.again[self.gone_from]
        left = np.minimum(self.run.last_read()[self.gone] + 1, again)
        kept = blocks.bytes[self.kept]
        until = np.minimum(self.run.ends[self.kept_by], nodes)
        call, when, level = _levels(
            np.concatenate([self.gone_from, self.gone_from, self.kept_by, self.kept_by]),
            np.concatenate([left, again, blocks.death[self.kept], until]),
            np.concatenate([-size, size, kept, -kept]),
        )
        last = np.append(call[1:] != call[:-1], True)
        stop = np.where(last, nodes, np.append(when[1:], nodes))
        first = np.append(True, last[:-1])
        call = np.concatenate([call, call[first]])  # and what comes before the first change
        start = np.concatenate([when, np.zeros(int(first.sum()), dtype=np.int64)])
        stop = np.concatenate([stop, when[first]])
        level = np.concatenate([level, np.zeros(int(first.sum()), dtype=np.int64)])
        some = start < stop
        found = np.zeros(self.count, dtype=np.int64)
        np.maximum.at(found, call[some], _highest(blocks.live, start[some], stop[some]) + level[some])
        return found

    def while_computing_again(self) -> Ints:
        """The highest while each call is computed again; 0 for one that never is."""
        graph, blocks, run = self.graph, self.blocks, self.run
        here = np.minimum(self.again, max(0, len(graph) - 1))
        held = np.bincount(self.gone_from, weights=blocks.bytes[self.gone], minlength=self.count)
        there = blocks.death[self.kept] <= self.again[self.kept_by]
        kept = np.bincount(self.kept_by[there], weights=blocks.bytes[self.kept[there]], minlength=self.count)
        before = blocks.live[here] - run.made_by(here) + (kept - held).astype(np.int64)
        mine = np.flatnonzero(blocks.birth >= 0)
        mine = mine[graph.node_phase[blocks.birth[mine]] == Phase.FORWARD]
        row, call = self._around(graph.node_scope[blocks.birth[mine]].astype(np.int64))
        block, stop = mine[row], run.runs[1][call]
        runs = blocks.birth[block] < stop
        block, call, stop = block[runs], call[runs], stop[runs]
        top = run.forgettable[block]
        forgotten = (top >= 0) & (run.depth[call] <= run.depth[top])  # both are around the block's own scope
        end = np.where(forgotten, stop, np.minimum(blocks.death[block], stop))
        size = blocks.bytes[block]
        call, _, level = _levels(
            np.concatenate([call, call]),
            np.concatenate([blocks.birth[block], end]),
            np.concatenate([size, -size]),
        )
        most = np.zeros(self.count, dtype=np.int64)
        np.maximum.at(most, call, level)
        return np.where(self.wanted & (self.again < len(graph)), before + most, 0)


def _levels(call: Ints, when: Ints, change: Ints) -> tuple[Ints, Ints, Ints]:
    """Changes summed up along each call's time: one row for each time at which something changes.

    >>> [column.tolist() for column in _levels(*np.array([[2, 1, 2, 2], [5, 3, 5, 9], [4, 7, 1, -5]]))]
    [[1, 2, 2], [3, 5, 9], [7, 5, 0]]
    """
    order = np.lexsort((when, call))
    call, when, total = call[order], when[order], np.cumsum(change[order])
    new = np.flatnonzero(np.append(True, call[1:] != call[:-1])) if len(call) else order
    before = np.repeat(np.where(new > 0, total[new - 1], 0), np.diff(np.append(new, len(call))))
    last = np.append((call[1:] != call[:-1]) | (when[1:] != when[:-1]), True)[: len(call)]
    return call[last], when[last], (total - before)[last]


def _highest(level: Ints, start: Ints, stop: Ints) -> Ints:
    """The highest of a level in many stretches, none of them empty.

    Two stretches of a power of two cover any other. Of each power only those in question are looked up.

    >>> _highest(np.array([3, 1, 4, 1, 5]), np.array([0, 1, 0, 3]), np.array([2, 4, 5, 4])).tolist()
    [3, 4, 5, 1]
    """
    found, width, length = np.zeros(len(start), dtype=np.int64), 1, stop - start
    while len(level):
        chosen = (length >= width) & (length < 2 * width)
        found[chosen] = np.maximum(level[start[chosen]], level[stop[chosen] - width])
        level = np.maximum(level[:-width], level[width:])
        width *= 2
    return found
