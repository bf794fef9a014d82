"""The memory of a run in which some calls of modules are checkpointed: all together, or each in a run of its own.

What a checkpointed call makes and saves for itself is gone after forward. When backward comes to the call, it is there
once more, as a copy that was computed again. The first one stays as long as anybody else needs it: the program, a
step of backward outside the call, or another checkpointed call that was given it.

Of many runs, each has a timeline that differs from that of the recorded run in few places. It is told by its changes,
and the highest of the run between two of them is looked up, so that all calls together cost about as much as the blocks
of memory inside them, not calls times operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_vis.graph.schema import Phase
from torch_vis.graph.types import Ints

if TYPE_CHECKING:
    from torch_vis.analysis.memory.checkpointing import Checkpointing


class Changes(NamedTuple):
    """How runs differ from the recorded one: the run, the operation from which on it does, and by how many bytes."""

    run: Ints
    when: Ints
    size: Ints


def peaks_alone(run: Checkpointing, scopes: Ints) -> Ints:
    """For each of some calls, the peak of the run if it were the only one that is checkpointed."""
    if not len(scopes):
        return np.zeros(0, dtype=np.int64)
    found = _Checkpointed(run, scopes, alone=True)
    return np.maximum(found.highest(), found.while_computing_again(found.before()))[scopes]


def together(run: Checkpointing, scopes: Ints) -> tuple[Ints, int, Ints]:
    """The bytes alive during each operation if some calls, none inside another, are checkpointed.

    With it come the most that is alive while one is computed again, and the calls that are.
    """
    found = _Checkpointed(run, scopes, alone=False)
    live = found.live()
    most = found.while_computing_again(found.before(live))
    return live, int(most.max(initial=0)), np.intersect1d(scopes, found.copied_by)


class _Checkpointed:
    """Calls that are checkpointed, each in a run of its own or all in one; columns run along all scopes.

    A run is told by the scope of its call, or is number 0.
    """

    def __init__(self, run: Checkpointing, scopes: Ints, *, alone: bool) -> None:
        self.run, self.graph, self.blocks = run, run.graph, run.blocks
        self.count, self.alone = len(run.tree), alone
        self.wanted = np.zeros(self.count, dtype=bool)
        self.wanted[scopes] = True
        self.again = np.where(self.wanted, run.again, len(self.graph))
        self._own_copies()
        self.changes = self._changed()

    def _around(self, scope: Ints, least: Ints | int = 0) -> tuple[Ints, Ints]:
        """The calls in question around each scope, itself included, as deep as ``least`` or deeper: rows and calls."""
        parent, depth, wanted = self.run.tree.parent, self.run.tree.depth, self.wanted
        row, least = np.arange(len(scope)), np.broadcast_to(least, len(scope))
        rows: list[Ints] = [row[:0]]
        calls: list[Ints] = [row[:0]]
        while len(row):
            inside = depth[scope] >= least[row]
            row, scope = row[inside], scope[inside]
            rows.append(row[wanted[scope]])
            calls.append(scope[wanted[scope]])
            scope = parent[scope]
            row, scope = row[scope >= 0], scope[scope >= 0]
        return np.concatenate(rows), np.concatenate(calls)

    # ---------------------------------------------------------------- what a call forgets and keeps

    def _own_copies(self) -> None:
        """Find the blocks that calls made and backward reads: until when the block is needed, and until when a copy.

        Sets pairs of a block and a call around what made it, in order: ``made``, ``made_by`` and ``needed``; and of
        these where the call itself saved the block: ``copied``, ``copied_by`` and ``copied_until``.
        """
        graph, blocks, run = self.graph, self.blocks, self.run
        block, node, computed, release = run.steps.kept
        own = graph.node_scope[blocks.birth[block]].astype(np.int64)
        shared = run.tree.depth[run.tree.common(own, graph.node_scope[node].astype(np.int64))]
        row, call = self._around(own)
        inside = shared[row] >= run.tree.depth[call]
        key, place = np.unique(block[row] * self.count + call, return_inverse=True)
        self.made, self.made_by = key // self.count, key % self.count
        needed, until = run.last_needed[self.made] + 1, np.zeros(len(key), dtype=np.int64)
        np.maximum.at(needed, place[~inside], release[row[~inside]])
        np.maximum.at(until, place[inside], computed[row[inside]])
        death = blocks.death[self.made]
        self.needed = np.where(run.steps.held[self.made], death, np.minimum(needed, death))
        copied = until > 0
        self.copied, self.copied_by, self.copied_until = (
            self.made[copied],
            self.made_by[copied],
            until[copied],
        )

    def _given(self) -> tuple[Ints, Ints]:
        """Pairs of a block from outside a call and that call, which holds on to it until its backward is done."""
        graph, blocks, run = self.graph, self.blocks, self.run
        block, node = blocks.readers
        chosen = (graph.node_phase[node] == Phase.FORWARD) & (blocks.birth[block] >= 0)
        chosen &= blocks.death[block] <= len(graph)
        pairs = np.unique(np.stack([block[chosen], graph.node_scope[node[chosen]].astype(np.int64)]), axis=1)
        pairs = pairs[:, graph.node_phase[blocks.birth[pairs[0]]] == Phase.FORWARD]
        block, scope = pairs
        shared = run.tree.common(graph.node_scope[blocks.birth[block]].astype(np.int64), scope)
        row, call = self._around(scope, run.tree.depth[shared] + 1)
        some = self.again[call] < len(graph)
        return block[row[some]], call[some]

    def _changed(self) -> Changes:
        """Where blocks live shorter or longer than in the recorded run, and where copies do."""
        blocks, total = self.blocks, len(self.blocks.birth)
        block, call = self._given()
        given, made = self._runs(call) * total + block, self._runs(self.made_by) * total + self.made
        key, place = np.unique(np.concatenate([made, given]), return_inverse=True)
        run, block = key // total, key % total
        until = blocks.death[block]
        until[place[: len(made)]] = self.needed  # a block has one call around it in each run
        np.maximum.at(until, place[len(made) :], self.run.ends[call])
        other = until != blocks.death[block]
        run, block, until = run[other], block[other], until[other]
        size, copy = blocks.bytes[block], blocks.bytes[self.copied]
        there = self._runs(self.copied_by)
        return Changes(
            np.concatenate([run, run, there, there]),
            np.concatenate([until, blocks.death[block], self.again[self.copied_by], self.copied_until]),
            np.concatenate([-size, size, copy, -copy]),
        )

    def _runs(self, call: Ints) -> Ints:
        return call if self.alone else np.zeros_like(call)

    # ---------------------------------------------------------------- how high the run goes

    def live(self) -> Ints:
        """The bytes alive during each recorded operation, with all calls in one run."""
        change = np.zeros(len(self.graph) + 1, dtype=np.int64)
        np.add.at(change, np.minimum(self.changes.when, len(self.graph)), self.changes.size)
        found: Ints = self.blocks.live + np.cumsum(change[:-1])
        return found

    def highest(self) -> Ints:
        """The highest of the recorded operations, for each run."""
        blocks, nodes = self.blocks, len(self.graph)
        call, when, level = _levels(*self.changes)
        last = np.append(call[1:] != call[:-1], True)[: len(call)]
        stop = np.where(last, nodes, np.append(when[1:], nodes)[: len(call)])
        first = np.append(True, last[:-1])[: len(call)]
        call = np.concatenate([call, call[first]])  # and what comes before the first change
        start = np.concatenate([when, np.zeros(int(first.sum()), dtype=np.int64)])
        stop = np.concatenate([stop, when[first]])
        level = np.concatenate([level, np.zeros(int(first.sum()), dtype=np.int64)])
        some = start < stop
        found = np.full(self.count, 0, dtype=np.int64)
        np.maximum.at(found, call[some], _highest(blocks.live, start[some], stop[some]) + level[some])
        untouched = np.ones(self.count, dtype=bool)
        untouched[call] = False
        return np.where(untouched, blocks.peak_bytes, found)

    def before(self, live: Ints | None = None) -> Ints:
        """For each call the bytes alive when it is about to be computed again."""
        here = np.minimum(self.again, max(0, len(self.graph) - 1))
        copies = self._sums(self.copied_by, self.blocks.bytes[self.copied])
        if live is None:  # each in a run of its own
            run, when, size = self.changes
            past = when <= self.again[run]
            level: Ints = self.blocks.live[here] + self._sums(run[past], size[past])
        else:
            level = live[here]
        found: Ints = level - self.run.made_at[here] - copies
        return found

    def _sums(self, call: Ints, size: Ints) -> Ints:
        return np.bincount(call, weights=size, minlength=self.count).astype(np.int64)

    def while_computing_again(self, before: Ints) -> Ints:
        """The highest while each call is computed again; 0 for one that never is."""
        graph, blocks, run = self.graph, self.blocks, self.run
        mine = np.flatnonzero(blocks.birth >= 0)
        mine = mine[graph.node_phase[blocks.birth[mine]] == Phase.FORWARD]
        row, call = self._around(graph.node_scope[blocks.birth[mine]].astype(np.int64))
        block, stop = mine[row], run.runs[1][call]
        runs = blocks.birth[block] < stop
        block, call, stop = block[runs], call[runs], stop[runs]
        copied = np.isin(block * self.count + call, self.copied * self.count + self.copied_by)
        end = np.where(copied, stop, np.minimum(blocks.death[block], stop))
        size = blocks.bytes[block]
        call, _, level = _levels(
            np.concatenate([call, call]),
            np.concatenate([blocks.birth[block], end]),
            np.concatenate([size, -size]),
        )
        most = np.zeros(self.count, dtype=np.int64)
        np.maximum.at(most, call, level)
        return np.where(self.again < len(graph), before + most, 0)


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
