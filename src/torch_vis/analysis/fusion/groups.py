"""The groups of operations that a compiler could make one kernel of, and the bytes that each would not have to move.

Groups are grown along dependences, in sweeps that can make no cycle. A sweep goes through the groups in an order that
their dependences allow and gives each a level, above those of all that it depends on. A group may join those that it
reads from only if it joins *all* of the highest level: what it reads of other groups then lies lower, so no path leads
out of the joint group and back into it. Sweeps go forward (an operation joins what made its input) and backward (it
joins what uses its output), each linear in the dependences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from torch_vis.analysis.fusion.dependences import DependenceEdges, Dependences, LoopRelation
from torch_vis.graph import Column, Graph
from torch_vis.graph.schema import Flag
from torch_vis.graph.schema import Kind as Read
from torch_vis.graph.tree import group_rows, group_sums
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.cost.compute import costs
from torch_vis.ops.cost.shared_reads import fresh_bytes, is_unread, read_bytes
from torch_vis.ops.op_table import LoopKind

NO, YES, INLINE = 0, 1, 2


class Traits(NamedTuple):
    """What decides if two groups go into one kernel.

    ``home`` is what they must share (phase, device, stretch between data for Python), ``numel`` the size of the loop,
    ``pattern`` which of its axes are summed up (-1: none).
    """

    home: int
    numel: int
    pattern: int
    heavy: bool
    draws: bool
    turned: bool  # some of it runs over the axes in another order than the rest
    result: bool  # something of it is a result of the run


class Merger:
    """Groups of a graph's operations, at first of one each; ``of`` has the group of every operation."""

    def __init__(self, flow: Dependences, home: Ints, is_result: Bools) -> None:
        self.edges: DependenceEdges = flow.edges
        self.kept = flow.kept
        self.of: Ints = np.arange(len(flow.kind), dtype=np.int64)
        self.level = self.of
        joins = np.isin(
            flow.kind, (LoopKind.POINT, LoopKind.ROWS, LoopKind.GATHER, LoopKind.JOIN, LoopKind.HEAVY)
        )
        draws = (flow.graph.node_flags & Flag.RANDOM) != 0
        columns = (
            home,
            flow.numel,
            flow.pattern,
            flow.kind == LoopKind.HEAVY,
            draws,
            np.zeros_like(draws),
            is_result,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.traits = [Traits(*row) if ok else None for ok, row in zip(joins.tolist(), rows, strict=True)]
        self.is_view = flow.is_view.tolist()
        self.is_silent = (flow.is_view | (flow.kind == LoopKind.FREE)).tolist()

    def sweep(self, *, forward: bool, heavy: bool) -> None:
        """Let every group join its neighbours on one side; with ``heavy``, matrix products and what follows too."""
        order = np.argsort(self.level if forward else -self.level, kind="stable")
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        near, far = (
            (self.edges.source, self.edges.target) if forward else (self.edges.target, self.edges.source)
        )
        rows, begins = group_rows(position[far], len(order))
        start = begins.tolist()
        self.order = order.tolist()
        walk = _Walk(
            self, position[near][rows].tolist(), *(column[rows].tolist() for column in self.edges[2:])
        )
        walk.forward, walk.with_heavy = forward, heavy
        walk.run(start)
        self._contract(walk, position, forward)

    def _contract(self, walk: _Walk, position: Ints, forward: bool) -> None:
        """Make one group of those that joined, and keep the dependences between different ones."""
        lead = _leaders(walk.lead)
        leaders, number = np.unique(lead, return_inverse=True)
        number = number.reshape(-1)[position]
        levels = np.array(walk.level, dtype=np.int64)[leaders]
        self.level = levels if forward else levels.max(initial=0) - levels
        self.traits = [walk.traits[leader] for leader in leaders.tolist()]
        self.is_view = [False] * len(leaders)
        silent = [self.is_silent[group] for group in self.order]
        self.is_silent = [silent[leader] for leader in leaders.tolist()]
        self.of = number[self.of]
        source, target = number[self.edges.source], number[self.edges.target]
        crossing = source != target
        self.edges = DependenceEdges(
            source[crossing], target[crossing], *(column[crossing] for column in self.edges[2:])
        )

    def join_level(self, groups: Ints, keys: Ints) -> None:
        """Join groups of one level that have the same key, where their traits allow it: no path can be between them."""
        first: dict[int, int] = {}
        lead = list(range(len(self.traits)))
        for group, key in zip(groups.tolist(), keys.tolist()):
            with_ = first.setdefault(key, group)
            a, b = _find(lead, with_), _find(lead, group)
            if a == b or self.level[a] != self.level[b]:
                continue
            left, right = self.traits[a], self.traits[b]
            if left is None or right is None or left.numel != right.numel or left.heavy or right.heavy:
                continue
            if left.turned or right.turned or not _go_together(left, right, False):
                continue
            lead[b] = a
            self.traits[a] = _joined(left, right, False)
        self.of = _leaders(lead)[self.of]


class _Walk:
    """One sweep: levels, traits and leaders of the groups in the order of the walk."""

    forward = True
    with_heavy = False

    def __init__(
        self, merger: Merger, near: list[int], rel: list[int], numel: list[int], spread: list[int]
    ) -> None:
        self.near, self.rel, self.numel, self.spread = near, rel, numel, spread
        self.kept = merger.kept
        self.traits = [merger.traits[group] for group in merger.order]
        self.is_view = [merger.is_view[group] for group in merger.order]
        self.is_silent = [merger.is_silent[group] for group in merger.order]
        self.lead = list(range(len(self.traits)))
        self.level = [0] * len(self.traits)

    def find(self, group: int) -> int:
        return _find(self.lead, group)

    def run(self, start: list[int]) -> None:
        """Let each group join those before it, or give it a level of its own."""
        level, near, traits, is_view = self.level, self.near, self.traits, self.is_view
        for group, begin in enumerate(start[:-1]):
            end = start[group + 1]
            if begin == end:
                level[group] = -1 if self.is_silent[group] else 0
                continue
            top = level[near[begin]]
            for edge in range(begin + 1, end):
                if level[near[edge]] > top:
                    top = level[near[edge]]
            if traits[group] is not None:
                joins = self._join(group, begin, end, top)
            else:
                joins = is_view[group] and self._follow(group, begin, end, top)
            level[group] = top if joins else top + 1

    def _follow(self, group: int, start: int, stop: int, top: int) -> bool:
        """A view goes with what it is taken of."""
        if not self.forward:
            return False
        leaders = {self.find(self.near[e]) for e in range(start, stop) if self.level[self.near[e]] == top}
        if len(leaders) > 1:
            return False
        self.lead[group] = leaders.pop()
        return True

    def _join(self, group: int, start: int, stop: int, top: int) -> bool:
        level, near = self.level, self.near
        own = self.traits[group]
        assert own is not None
        merged, leaders, inline = own, [], False
        for edge in range(start, stop):
            if level[near[edge]] != top:
                continue
            leader = self.find(near[edge])
            other = self.traits[leader]
            if other is None:
                return False
            if leader not in leaders:
                if not _go_together(merged, other, self.with_heavy):
                    return False
                leaders.append(leader)
            fit = self._fit(other, own, edge) if self.forward else self._fit(own, other, edge)
            if fit == NO or (fit == INLINE and self.forward):
                return False
            inline = inline or fit == INLINE
            merged = _joined(merged, other, self.rel[edge] == LoopRelation.TURNED)
        if inline and (len(leaders) > 1 or any(self.find(near[e]) != leaders[0] for e in range(start, stop))):
            # what is computed where it is used has no other user
            return False
        chief = leaders[0]
        for leader in (*leaders[1:], group):
            self.lead[leader] = chief
        self.traits[chief] = merged
        return True

    def _fit(self, a: Traits, b: Traits, edge: int) -> int:
        """Whether ``b`` can take what it reads of ``a`` in one loop with it."""
        rel, size = self.rel[edge], self.numel[edge]
        if rel in (LoopRelation.ORDER, LoopRelation.WINDOW) or (a.turned and a.pattern >= 0):
            return NO
        inline = NO
        if a.pattern < 0 and not (a.heavy or a.draws or a.result):
            inline = INLINE
        if b.turned and (b.pattern >= 0 or a.pattern >= 0):
            return inline
        rows = self.kept[a.pattern] if a.pattern >= 0 else -1
        if rel == LoopRelation.SAME:
            if size == a.numel == b.numel or (size == rows and (a.pattern == b.pattern or b.numel == size)):
                return YES
            if b.pattern >= 0 and a.pattern < 0 and size == a.numel == self.kept[b.pattern]:
                return YES
        elif rel == LoopRelation.TURNED:
            if size == a.numel == b.numel and a.pattern < 0 and not a.heavy:
                return YES
        elif (
            rel == LoopRelation.SPREAD
            and size == rows > 1
            and self.spread[edge] == a.pattern
            and a.numel == b.numel
        ):
            return YES
        return inline


def _find(lead: list[int], group: int) -> int:
    while lead[group] != group:
        lead[group] = group = lead[lead[group]]
    return group


def _leaders(lead: list[int]) -> Ints:
    """Of all groups at once, the one that each has gone into."""
    leader = np.array(lead, dtype=np.int64)
    while ((further := leader[leader]) != leader).any():
        leader = further
    return leader


def _go_together(a: Traits, b: Traits, heavy: bool) -> bool:
    """Whether two groups can be in one kernel at all, whatever passes between them."""
    if a.home != b.home or (a.draws and b.draws):
        return False
    if a.pattern >= 0 and b.pattern >= 0 and a.pattern != b.pattern:
        return False
    if a.heavy or b.heavy:
        return heavy and not (a.heavy and b.heavy) and a.pattern < 0 and b.pattern < 0
    return True


def _joined(a: Traits, b: Traits, turned: bool) -> Traits:
    return Traits(
        a.home,
        max(a.numel, b.numel),
        max(a.pattern, b.pattern),
        a.heavy or b.heavy,
        a.draws or b.draws,
        a.turned or b.turned or turned,
        a.result or b.result,
    )


KINDS = ("pointwise", "reduction", "epilogue", "horizontal")


def fuse(graph: Graph, *, moved: Column | None = None, owner: Ints | None = None) -> Fusion:
    """Find what could be fused; ``moved`` are the bytes that each operation moves, worked out where not given.

    ``owner`` gives each operation a number, and only those with the same one are put together.

    >>> import torch, torch_vis as tv
    >>> fusion = fuse(tv.trace(lambda x: (x * 2).relu().sum(), torch.ones(8)).graph)
    >>> fusion.members(0).tolist(), fusion.kind(0), int(fusion.saved[0])
    ([0, 1, 2], 'reduction', 128)
    """
    flow = Dependences(graph)
    results = result_values(graph, flow.root)
    is_result = np.zeros(len(graph), dtype=bool)
    producers = graph.value_producer[np.flatnonzero(results)]
    is_result[producers[producers >= 0]] = True
    merger = Merger(flow, _homes(flow, owner), is_result)
    merger.sweep(forward=True, heavy=False)
    merger.sweep(forward=False, heavy=False)
    merger.sweep(forward=True, heavy=True)
    merger.sweep(forward=False, heavy=True)
    _join_siblings(flow, merger)
    moved = costs(graph)["moved_bytes"] if moved is None else moved
    return Fusion(flow, merger.of, results, moved, merger.traits)


def result_values(graph: Graph, root: Ints) -> Bools:
    """The values, views looked through, that somebody beside the run's own operations may look at.

    Results of the run; memory that was there before it; what a later write leaves standing; what is read by an alias.
    """
    is_result = np.zeros(len(graph.value_type), dtype=bool)
    is_result[graph.result_value] = True
    is_result[graph.in_value[(graph.in_slot < 0) & (graph.in_kind != Read.SHAPE)]] = True
    carried = graph.value_carries[graph.value_carries >= 0]
    is_result[carried] = True
    is_result |= graph.storage_birth[graph.value_storage] < 0
    is_result[root[is_result]] = True
    return is_result


def _homes(flow: Dependences, owner: Ints | None) -> Ints:
    """What operations must share to be put together: phase, device, no data for Python between them."""
    graph = flow.graph
    escapes = (graph.node_flags & Flag.ESCAPE) != 0
    home = np.cumsum(escapes) - escapes
    for column in (graph.node_phase, flow.device + 1, owner):
        if column is not None and len(column):
            home = home * (int(column.max()) + 1) + column
    return home.astype(np.int64)


def _join_siblings(flow: Dependences, merger: Merger) -> None:
    """Join groups that read one tensor over the same loop, where nothing passes between them."""
    graph = flow.graph
    rows = np.flatnonzero(flow.reads & np.isin(flow.kind[graph.in_node], (LoopKind.POINT, LoopKind.ROWS)))
    if not len(rows):
        return
    value, node = graph.in_value[rows], graph.in_node[rows]
    root = flow.root[value]
    sizes = np.array([type_.numel for type_ in graph.types], dtype=np.int64)[graph.value_type[value]]
    whole = (sizes == flow.numel[node]) & (sizes > 1) & (graph.value_type[value] == graph.value_type[root])
    group = merger.of[node]
    producer = graph.value_producer[root]
    outside = (producer < 0) | (merger.of[np.maximum(producer, 0)] != group)
    chosen = whole & outside
    level = np.asarray(merger.level)[group[chosen]]
    merger.join_level(group[chosen], root[chosen] * (int(merger.level.max(initial=0)) + 1) + level)


@dataclass
class Fusion:
    """Groups of two and more kernels, numbered by their first operation; what belongs to none is left out.

    ``of`` has the group of every operation, -1 for none. A view is in the group that makes and reads what it shows.
    ``merged`` numbers groups of one as well, and ``traits`` are those of each such number.
    """

    flow: Dependences
    merged: Ints
    results: Bools
    moved: Column
    traits: list[Traits | None]

    @property
    def graph(self) -> Graph:
        """The graph that it is about."""
        return self.flow.graph

    @cached_property
    def is_kernel(self) -> Bools:
        """For each operation, whether it runs a kernel: it is no view and does more than to give out memory."""
        return (self.flow.kind != LoopKind.VIEW) & (self.flow.kind != LoopKind.FREE)

    @cached_property
    def of(self) -> Ints:
        """The group of every operation, -1 for none."""
        count = np.bincount(self.merged[self.is_kernel], minlength=int(self.merged.max(initial=-1)) + 1)
        group = np.where(count[self.merged] > 1, self.merged, -1) if len(self.merged) else self.merged
        group[(self.flow.kind == LoopKind.FREE)] = -1
        loose = self.flow.is_view & (group >= 0) & ~self._inner_views(group)
        group[loose] = -1
        chosen = group[group >= 0]
        _, first, number = np.unique(chosen, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first))
        group[group >= 0] = rank[number.reshape(-1)]
        return group

    def _inner_views(self, group: Ints) -> Bools:
        """The views through which an operation reads something of its own group."""
        graph = self.graph
        source, target, _, _ = graph.edges(shape=False)
        order = np.argsort(-target, kind="stable")
        inner = np.zeros(len(graph), dtype=bool)
        viewed = self.flow.is_view
        keep = viewed[source[order]] & (group[source[order]] == group[target[order]])
        for start, end in zip(source[order][keep].tolist(), target[order][keep].tolist()):
            if not viewed[end] or inner[end]:
                inner[start] = True
        return inner

    @cached_property
    def count(self) -> int:
        """How many groups there are."""
        return int(self.of.max(initial=-1)) + 1

    @cached_property
    def _listed(self) -> tuple[Ints, Ints]:
        return group_rows(self.of, self.count)

    def members(self, group: int) -> Ints:
        """The operations of a group, views included, in the order in which they ran."""
        order, start = self._listed
        return order[start[group] : start[group + 1]]

    @cached_property
    def kernels(self) -> Ints:
        """How many kernels each group has; fused, it is one."""
        chosen = self.of[self.is_kernel & (self.of >= 0)]
        return np.bincount(chosen, minlength=self.count)

    @cached_property
    def kinds(self) -> Ints:
        """The kind of each group, as its place in ``KINDS``."""
        kinds = np.zeros(self.count, dtype=np.int64)
        inner = self._inner_edges
        linked = np.zeros(self.count, dtype=bool)
        linked[self.of[inner]] = True
        kinds[~linked] = KINDS.index("horizontal")
        for kind, name in ((LoopKind.ROWS, "reduction"), (LoopKind.HEAVY, "epilogue")):
            having = self.of[(self.flow.kind == kind) & (self.of >= 0)]
            kinds[having[linked[having]]] = KINDS.index(name)
        return kinds

    @cached_property
    def _inner_edges(self) -> Ints:
        """The readers of dependences inside groups that carry bytes from one kernel to another."""
        edges = self.flow.edges
        group = self.of[edges.target]
        inner = (group >= 0) & (self.of[edges.source] == group) & (edges.rel != LoopRelation.ORDER)
        return edges.target[inner & self.is_kernel[edges.target]]

    def kind(self, group: int) -> str:
        """``"pointwise"``, ``"reduction"``, ``"epilogue"`` (after a matrix product) or ``"horizontal"``."""
        return KINDS[int(self.kinds[group])]

    # ------------------------------------------------------------ bytes

    @cached_property
    def reads(self) -> tuple[Ints, Ints, Ints]:
        """Every read of a kernel: its row, the value under it and the bytes that move for it.

        A byte that a kernel is given twice is read once. Of a table only the rows looked up are read, and nothing of
        memory that is only written over: what an operation moves tells how much less than all of its arguments that is.
        """
        return self._read[:3]

    @cached_property
    def _read(self) -> tuple[Ints, Ints, Ints, Bools]:
        """The same, and whether all bytes of the tensor are read."""
        graph, flow = self.graph, self.flow
        rows = np.flatnonzero(flow.reads)
        value, node = graph.in_value[rows], graph.in_node[rows].astype(np.int64)
        size = read_bytes(graph, rows, self._whole(rows), graph.types, graph.value_type[value])
        out_bytes, producer = self._made
        whole = np.bincount(node, weights=size, minlength=len(graph))
        whole += np.bincount(producer, weights=out_bytes, minlength=len(graph))
        slots = int(max(graph.in_slot.max(initial=0), -graph.out_slot.min(initial=0))) + 1
        over = graph.out_slot < 0
        into = np.isin(node * slots + graph.in_slot[rows], producer[over] * slots - graph.out_slot[over] - 1)
        read = _without(size, node, self._beyond(whole), np.lexsort((-size, ~into, node)))
        return rows, flow.root[value], read, read == size

    def _whole(self, rows: Ints) -> Ints:
        """All bytes of what a kernel is given by some inputs, and looks at."""
        graph = self.graph
        size = self.flow.bytes_of_type[graph.value_type[graph.in_value[rows]]]
        return np.where(self.is_kernel[graph.in_node[rows]] & ~is_unread(graph)[rows], size, 0)

    def again(self, chosen: Bools, owner: Ints) -> Ints:
        """Of some reads the bytes that need not move when all of one owner are one kernel: another has them before.

        Of a tensor that is not read whole, as a table that is looked up in, nobody knows if the rows are the same.
        """
        graph = self.graph
        rows, root, size, whole = self._read
        full = self._whole(rows)
        candidates = np.flatnonzero(chosen & whole & (full > 0))
        block = owner[candidates] * len(graph.value_type) + root[candidates]
        kind = graph.value_type[graph.in_value[rows[candidates]]]
        left = fresh_bytes(graph, rows[candidates], full[candidates], graph.types, kind, block)
        read = np.zeros(len(rows), dtype=np.int64)
        read[candidates] = np.maximum(size[candidates] - left, 0)
        return read

    @cached_property
    def _made(self) -> tuple[Ints, Ints]:
        """Of every row of ``out_value`` the bytes, and the operation."""
        graph = self.graph
        producer = graph.out_node
        size = self.flow.bytes_of_type[graph.value_type[graph.out_value]]
        return np.where(self.is_kernel[producer], size, 0), producer

    def _beyond(self, total: Ints) -> Ints:
        """For each operation, by how much a total is more than what it moves; 0 where that is not known."""
        return np.where(self.moved.known_rows, np.maximum(total - self.moved.values, 0), 0).astype(np.int64)

    @cached_property
    def written(self) -> Ints:
        """For each value the bytes that move when it is written: less than it has where only a part of it is new."""
        graph = self.graph
        rows, _, read = self.reads
        size, producer = self._made
        total = np.bincount(producer, weights=size, minlength=len(graph))
        total += np.bincount(graph.in_node[rows], weights=read, minlength=len(graph))
        written = np.zeros(len(graph.value_type), dtype=np.int64)
        written[graph.out_value] = _without(
            size, producer, self._beyond(total), np.argsort(producer, kind="stable")
        )
        return written

    @cached_property
    def _inside(self) -> Bools:
        """Of the reads, those of something that the reader's own group made."""
        return self.within(self.of)

    def within(self, of: Ints) -> Bools:
        """Of the reads, those of something made in the reader's own part, given the part of every operation."""
        rows, root, _ = self.reads
        producer, part = self.graph.value_producer[root], of[self.graph.in_node[rows]]
        computed = (producer >= 0) & self.is_kernel[
            producer
        ]  # memory that was only given out has nothing to read
        return (part >= 0) & computed & (of[producer] == part)

    @cached_property
    def vanishing(self) -> Bools:
        """For each value, whether it would never be written: it is made in a group and used nowhere else."""
        return self._unwritten(self._inside)

    def _unwritten(self, inside: Bools) -> Bools:
        root, count = self.reads[1], len(self.graph.value_type)
        own, total = np.bincount(root[inside], minlength=count), np.bincount(root, minlength=count)
        return (own > 0) & (own == total) & ~self.results

    def kept(self, of: Ints, count: int) -> tuple[Ints, Ints]:
        """For each part, by the part ``of`` each operation, the bytes that need not move when it is one kernel.

        First what it makes for itself: every read of it, and the writes that vanish. Then further reads of a tensor
        that one of its kernels reads already.
        """
        graph = self.graph
        rows, _, size = self.reads
        part, inside = of[graph.in_node[rows]], self.within(of)
        gone = np.flatnonzero(self._unwritten(inside))
        internal = group_sums(part[inside], size[inside], count)
        internal += group_sums(of[graph.value_producer[gone]], self.written[gone], count)
        outside = (part >= 0) & ~inside
        return internal, group_sums(part[outside], self.again(outside, part)[outside], count)

    @cached_property
    def _kept(self) -> tuple[Ints, Ints]:
        return self.kept(self.of, self.count)

    @property
    def intermediate(self) -> Ints:
        """For each group the bytes of what passes inside it: every read of them, and the writes that vanish."""
        return self._kept[0]

    @property
    def shared(self) -> Ints:
        """For each group the bytes of further reads of a tensor that one of its kernels reads already."""
        return self._kept[1]

    @cached_property
    def saved(self) -> Ints:
        """For each group, the bytes that would not have to be moved."""
        return self.intermediate + self.shared

    @cached_property
    def before(self) -> Ints:
        """For each group, the bytes that its operations move now, as far as they are known."""
        inside = self.of >= 0
        return group_sums(self.of[inside], self.moved.values[inside], self.count)

    @cached_property
    def uncovered(self) -> Ints:
        """For each group, how many of its operations move bytes that are not known."""
        return np.bincount(self.of[(self.of >= 0) & self.moved.unknown_rows], minlength=self.count)


def _without(size: Ints, node: Ints, less: Ints, order: Ints) -> Ints:
    """Sizes of rows, of which each operation's first ones, in an order by operation, are taken away up to a sum."""
    each = size[order]
    before = np.cumsum(each) - each
    # of the first row of the same operation
    start = np.searchsorted(node[order], node[order])
    taken = np.clip(less[node[order]] - (before - before[start]), 0, each) if len(each) else each
    left = size.copy()
    left[order] -= taken
    return left
