"""What the steps of a backward pass read of the forward pass, and when they let go of it.

A step is what autograd runs to differentiate one forward operation. It first takes out what that operation saved, then
computes, then brings gradients to the shapes and types they must have, then lets go of what was saved; adding gradients
up and putting them in their places comes last. Inside a checkpoint a step takes out a copy that was computed again,
which is gone as soon as it has computed.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from torch_vis.analysis.memory.untraced_run import plain_sums
from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import Lifetimes, Use
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.types import Bools, Ints

SHAPING = ("aten::sum.dim_IntList", "aten::view", "aten::_to_copy")
PLACING = ("aten::detach", "aten::clone", "aten::new_empty_strided", "aten::copy_", "aten::add_.Tensor")


class Reads(NamedTuple):
    """Reads by backward of what forward saved: the block, the reader, the operation that saved it."""

    block: Ints
    node: Ints
    link: Ints


class Steps:
    """The steps of the backward passes of a run; columns run along its operations, for those that are differentiated.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> steps = Steps(t.graph, t.memory().blocks)
    >>> [node.name for node in t.graph.nodes]
    ['t', 'addmm', 'sum', 'ones_like', 'expand', 't', 'mm', 't', 'sum', 'view', 'detach', 't', 'detach']
    >>> int(steps.start[1]), int(steps.computed[1]), int(steps.release[1])  # of addmm
    (5, 8, 10)
    """

    def __init__(self, graph: Graph, blocks: Lifetimes) -> None:
        self.graph, self.blocks = graph, blocks
        again = graph.node_flags & Flag.RECOMPUTE != 0
        self.backward = np.flatnonzero((graph.node_phase == Phase.BACKWARD) & ~again)
        self._link = graph.node_link[self.backward].astype(np.int64)

    @cached_property
    def reads(self) -> tuple[Ints, Ints]:
        """Reads of blocks by operations of backward, those that compute forward again left out."""
        block, node = self.blocks.readers
        chosen = np.zeros(len(self.graph), dtype=bool)
        chosen[self.backward] = True
        return block[chosen[node]], node[chosen[node]]

    @cached_property
    def saved(self) -> Reads:
        """Reads of what was there when the operation that is differentiated had run: it is what that one saved."""
        block, node = self.reads
        link = self.graph.node_link[node].astype(np.int64)
        there = (link >= 0) & (self.blocks.birth[block] <= link)
        return Reads(block[there], node[there], link[there])

    @cached_property
    def saves(self) -> Ints:
        """Which operations saved something."""
        result = np.zeros(len(self.graph), dtype=bool)
        result[self.saved.link] = True
        return result

    @cached_property
    def stop(self) -> Ints:
        """How far an operation has to run before all that it saved is there: the next one, or only itself.

        What it was given is saved before it runs, what it makes or writes after.
        """
        graph, result = self.graph, np.zeros(len(self.graph), dtype=np.int64)
        value, node = graph.in_value, graph.in_node
        link = graph.node_link[node].astype(np.int64)
        np.maximum.at(result, self.saved.link, self.saved.link)
        own = (link >= 0) & (graph.value_producer[value] == link)
        own &= (graph.node_phase[node] == Phase.BACKWARD) & (graph.node_flags[node] & Flag.RECOMPUTE == 0)
        result[link[own]] = link[own] + 1
        made = self.blocks.birth[self.saved.block] == self.saved.link
        result[self.saved.link[made]] = self.saved.link[made] + 1
        return result

    # ---------------------------------------------------------------- when

    @cached_property
    def start(self) -> Ints:
        """The first operation of each step; the number of operations where there is none."""
        result = np.full(len(self.graph), len(self.graph), dtype=np.int64)
        linked = self._link >= 0
        np.minimum.at(result, self._link[linked], self.backward[linked])
        return result

    @cached_property
    def computed(self) -> Ints:
        """The operation before which each step has computed its gradients."""
        late = self._of(SHAPING + PLACING) | plain_sums(self.graph)
        return np.minimum(self._ends(late), self.release)

    @cached_property
    def release(self) -> Ints:
        """The operation before which each step lets go of what was saved: as seen in the run, where it is seen."""
        result = self._ends(self._of(PLACING) | plain_sums(self.graph))
        over = self._ends(np.zeros(len(self.graph.calls), dtype=bool))
        block, node, link = self.saved
        last = np.full(len(self.blocks.birth), -1, dtype=np.int64)
        np.maximum.at(last, block, node)
        death = self.blocks.death[block]
        seen = (node == last[block]) & (death <= over[link])
        known = np.zeros(len(self.graph), dtype=np.int64)
        np.maximum.at(known, link[seen], death[seen])
        return np.where(known > 0, known, result)

    def _ends(self, late: Ints) -> Ints:
        """For each step the operation after its last one that is not of some kinds."""
        result = np.zeros(len(self.graph), dtype=np.int64)
        if not len(self.backward):
            return result
        chosen = (self._link >= 0) & ~late[self.graph.node_call[self.backward]]
        np.maximum.at(result, self._link[chosen], self.backward[chosen] + 1)
        return result

    def _of(self, names: tuple[str, ...]) -> Ints:
        return np.array([call.op in names for call in self.graph.calls], dtype=bool)

    @cached_property
    def repeated(self) -> bool:
        """Whether a step ran more than once, others in between: backward came by the same forward pass again."""
        _, node, link = self.saved
        count = len(self.graph)
        first, last = np.full(count, count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
        np.minimum.at(first, link, node)
        np.maximum.at(last, link, node)
        between = (
            (self._link >= 0) & (self.backward >= first[self._link]) & (self.backward <= last[self._link])
        )
        own = np.bincount(self._link[between], minlength=count)
        return bool((last - first + 1 > own).any())

    # ---------------------------------------------------------------- whose

    @cached_property
    def kept(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Reads of what forward made and saved, as columns.

        They are the block, the reader, the operation before which its step has computed, and the one before which it
        lets go. Of a reader that belongs to no forward operation, both are the end of its backward pass.
        """
        graph = self.graph
        block, node = self.reads
        saved = (self.blocks.use == Use.SAVED) & (self.blocks.birth >= 0)
        saved[saved] = graph.node_phase[self.blocks.birth[saved]] == Phase.FORWARD
        block, node = block[saved[block]], node[saved[block]]
        link = graph.node_link[node].astype(np.int64)
        others = np.flatnonzero(graph.node_phase != Phase.BACKWARD)
        over = np.append(others, len(graph))[np.searchsorted(others, node)]
        own = link >= 0
        computed = np.where(own, np.maximum(self.computed[link], node + 1), over)
        release = np.where(own, np.maximum(self.release[link], node + 1), over)
        return block, node, computed, release

    @cached_property
    def held(self) -> Bools:
        """Which blocks outlive the last step that reads them: then the program holds them, not autograd."""
        block, _, _, release = self.kept
        last = np.full(len(self.blocks.birth), -1, dtype=np.int64)
        np.maximum.at(last, block, release)
        result: Bools = (last >= 0) & (self.blocks.death > last)
        return result

    @property
    def retained(self) -> bool:
        """Whether backward let go of nothing that was saved: it kept its graph, or the program holds all of it."""
        block, node, _, release = self.kept
        last = np.full(len(self.blocks.birth), -1, dtype=np.int64)
        np.maximum.at(last, block, release)
        early = (last >= 0) & (
            last <= node.max(initial=-1)
        )  # the last step says nothing: after it all is gone
        return int(early.sum()) > 1 and bool(self.held[early].all())
