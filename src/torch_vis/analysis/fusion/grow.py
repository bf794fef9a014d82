"""Which operations become one kernel: groups are grown along dependences, in sweeps that can make no cycle.

A sweep goes through the groups in an order that their dependences allow and gives each a level, above those of all
that it depends on. A group may join those that it reads from only if it joins *all* of the highest level: what it
reads of other groups then lies lower, so no path leads out of the joint group and back into it. Sweeps go forward (an
operation joins what made its input) and backward (it joins what uses its output), each linear in the dependences.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_vis.analysis.fusion.dependences import Edges, Flow, Rel
from torch_vis.graph.schema import Flag
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.loops import Kind

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

    def __init__(self, flow: Flow, home: Ints, is_result: Bools) -> None:
        self.edges: Edges = flow.edges
        self.kept = flow.kept
        self.of: Ints = np.arange(len(flow.kind), dtype=np.int64)
        self.level = self.of
        joins = np.isin(flow.kind, (Kind.POINT, Kind.ROWS, Kind.GATHER, Kind.JOIN, Kind.HEAVY))
        draws = (flow.graph.node_flags & Flag.RANDOM) != 0
        columns = (
            home,
            flow.numel,
            flow.pattern,
            flow.kind == Kind.HEAVY,
            draws,
            np.zeros_like(draws),
            is_result,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.traits = [Traits(*row) if ok else None for ok, row in zip(joins.tolist(), rows, strict=True)]
        self.is_view = flow.is_view.tolist()
        self.is_silent = (flow.is_view | (flow.kind == Kind.FREE)).tolist()

    def sweep(self, *, forward: bool, heavy: bool) -> None:
        """Let every group join its neighbours on one side; with ``heavy``, matrix products and what follows too."""
        order = np.argsort(self.level if forward else -self.level, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        near, far = (
            (self.edges.source, self.edges.target) if forward else (self.edges.target, self.edges.source)
        )
        rows = np.argsort(place[far], kind="stable")
        start = np.searchsorted(place[far][rows], np.arange(len(order) + 1)).tolist()
        self.order = order.tolist()
        walk = _Walk(self, place[near][rows].tolist(), *(column[rows].tolist() for column in self.edges[2:]))
        walk.forward, walk.with_heavy = forward, heavy
        walk.run(start)
        self._contract(walk, place, forward)

    def _contract(self, walk: _Walk, place: Ints, forward: bool) -> None:
        """Make one group of those that joined, and keep the dependences between different ones."""
        lead = _leaders(walk.lead)
        leaders, number = np.unique(lead, return_inverse=True)
        number = number.reshape(-1)[place]
        levels = np.array(walk.level, dtype=np.int64)[leaders]
        self.level = levels if forward else levels.max(initial=0) - levels
        self.traits = [walk.traits[leader] for leader in leaders.tolist()]
        self.is_view = [False] * len(leaders)
        silent = [self.is_silent[group] for group in self.order]
        self.is_silent = [silent[leader] for leader in leaders.tolist()]
        self.of = number[self.of]
        source, target = number[self.edges.source], number[self.edges.target]
        apart = source != target
        self.edges = Edges(source[apart], target[apart], *(column[apart] for column in self.edges[2:]))

    def join_level(self, groups: Ints, keys: Ints) -> None:
        """Join groups of one level that have the same key, where their traits allow it: no path can be between them."""
        first: dict[int, int] = {}
        lead = list(range(len(self.traits)))
        for group, key in zip(groups.tolist(), keys.tolist()):
            with_ = first.setdefault(key, group)
            a, b = _find(lead, with_), _find(lead, group)
            if a == b or self.level[a] != self.level[b]:
                continue
            one, two = self.traits[a], self.traits[b]
            if one is None or two is None or one.numel != two.numel or one.heavy or two.heavy:
                continue
            if one.turned or two.turned or not _go_together(one, two, False):
                continue
            lead[b] = a
            self.traits[a] = _joined(one, two, False)
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
            merged = _joined(merged, other, self.rel[edge] == Rel.TURNED)
        if inline and (len(leaders) > 1 or any(self.find(near[e]) != leaders[0] for e in range(start, stop))):
            return False  # what is computed where it is used has no other user
        chief = leaders[0]
        for leader in (*leaders[1:], group):
            self.lead[leader] = chief
        self.traits[chief] = merged
        return True

    def _fit(self, a: Traits, b: Traits, edge: int) -> int:
        """Whether ``b`` can take what it reads of ``a`` in one loop with it."""
        rel, size = self.rel[edge], self.numel[edge]
        if rel in (Rel.ORDER, Rel.WINDOW) or (a.turned and a.pattern >= 0):
            return NO
        inline = NO
        if a.pattern < 0 and not (a.heavy or a.draws or a.result):
            inline = INLINE
        if b.turned and (b.pattern >= 0 or a.pattern >= 0):
            return inline
        rows = self.kept[a.pattern] if a.pattern >= 0 else -1
        if rel == Rel.SAME:
            if size == a.numel == b.numel or (size == rows and (a.pattern == b.pattern or b.numel == size)):
                return YES
            if b.pattern >= 0 and a.pattern < 0 and size == a.numel == self.kept[b.pattern]:
                return YES
        elif rel == Rel.TURNED:
            if size == a.numel == b.numel and a.pattern < 0 and not a.heavy:
                return YES
        elif rel == Rel.SPREAD and size == rows > 1 and self.spread[edge] == a.pattern and a.numel == b.numel:
            return YES
        return inline


def _find(lead: list[int], group: int) -> int:
    while lead[group] != group:
        lead[group] = group = lead[lead[group]]
    return group


def _leaders(lead: list[int]) -> Ints:
    """Of all groups at once, the one that each has gone into."""
    found = np.array(lead, dtype=np.int64)
    while ((further := found[found]) != found).any():
        found = further
    return found


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
