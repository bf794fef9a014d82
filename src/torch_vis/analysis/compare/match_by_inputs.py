"""Operations matched by what they read, where their order in a call says too little or they run in another call.

Two calls of the same operator on the same things are the same operation. That is looked at where a pair does not read
the same, and where an operation has no counterpart: lines that changed places, and what was moved to another module.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from torch_vis.analysis.compare.sides import Side
from torch_vis.analysis.compare.wiring import COMMUTATIVE, Wiring, places, roots
from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag, Kind

OFTEN = 3  # times that an operation is looked at again, since what it reads was matched anew


class _Reads:
    """What the operations of one graph read: for each the values, as what they are views of and in which way."""

    def __init__(self, graph: Graph, shown: Any) -> None:
        self.graph = graph
        same = roots(graph, graph.node_flags & Flag.VIEW != 0)
        self.same: list[int] = same.tolist()
        chosen = graph.in_kind != Kind.SHAPE
        self.start: list[int] = np.concatenate([[0], np.cumsum(chosen)])[graph.in_start].tolist()
        self.values: list[int] = same[graph.in_value[chosen]].tolist()
        self.ways: list[int] = shown[graph.in_value[chosen]].tolist()
        self.maker: list[int] = graph.value_producer.tolist()
        self.place: list[int] = places(graph).tolist()
        self.views = graph.node_flags & Flag.VIEW != 0

    def of(self, node: int) -> list[tuple[int, int]]:
        """What an operation reads: a value, and in which way."""
        span = slice(self.start[node], self.start[node + 1])
        return list(zip(self.values[span], self.ways[span]))

    def users(self, node: int) -> list[int]:
        """Who reads what an operation makes, or a view of it."""
        found: list[int] = []
        stack = [node]
        while stack:
            for user in self.graph.users(stack.pop()).tolist():
                found.append(user)
                if self.views[user]:
                    stack.append(user)
        return found


class Flow:
    """Two graphs whose operations are being matched by what they read.

    ``to_b`` has the counterparts of operations and is changed, ``scopes`` those of calls; ``stages`` are those whose
    operations may be matched, ``shown`` the ways in which values show what they are views of.
    """

    def __init__(
        self,
        one: Side,
        two: Side,
        to_b: list[int],
        scopes: list[int],
        wired: Wiring,
        stages: Collection[int],
        shown: tuple[Any, Any],
    ) -> None:
        self.shown = shown
        self.one, self.two, self.to_b, self.scopes = one, two, to_b, scopes
        self.stages = frozenset(stages)
        self.from_a = [-1] * len(two.graph)
        for here, there in enumerate(to_b):
            if there >= 0:
                self.from_a[there] = here
        self.wired = wired
        self.open_a = [here for here in self._of_stage(one) if to_b[here] < 0 or to_b[here] in wired.reads]
        self.open_b = [
            there for there in self._of_stage(two) if self.from_a[there] < 0 or there in wired.reads
        ]
        self.changed = False

    def _of_stage(self, side: Side) -> list[int]:
        return [node for node, stage in enumerate(side.stage) if stage in self.stages]

    def run(self) -> bool:
        """Match, anew or for the first time, what reads the same; says whether there was any."""
        if not self.open_a or not self.open_b:
            return False
        self._look_up()
        self.index: dict[Any, list[int]] = defaultdict(list)
        self.indexed: set[int] = set()
        self._offer(self.open_b)
        agenda, looked = self.open_a + self._like_those_that_differ(), Counter[int]()
        heapify(agenda)
        while agenda:
            here = heappop(agenda)
            looked[here] += 1
            if looked[here] > OFTEN:
                continue
            for user in self._match(here):
                heappush(agenda, user)
        return self.changed

    def _look_up(self) -> None:
        self.reads_a = _Reads(self.one.graph, self.shown[0])
        self.reads_b = _Reads(self.two.graph, self.shown[1])
        self.given: list[int] = self.wired.given_to_b.tolist()
        self.calls = _shared_calls(self.one, self.two)

    def untangle(self) -> bool:
        """Match what is called the same and reads the same in order, where who reads it does not read its counterpart.

        Says whether there was any.
        """
        self._look_up()
        groups: dict[Any, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        for read in (
            read for reads in self.wired.reads.values() for read in reads if min(read.a, read.b) >= 0
        ):
            here = self.reads_a.maker[self.reads_a.same[read.a]]
            there = self.reads_b.maker[self.reads_b.same[read.b]]
            if here < 0 or there < 0 or self.to_b[here] in (-1, there) or self.from_a[there] < 0:
                continue
            key = self._key_a(here)
            pairs = [(here, self.to_b[here]), (self.from_a[there], there)]
            if key is not None and all(self._key_a(a) == self._key_b(b) == key for a, b in pairs):
                for one, two in pairs:
                    groups[key][0].add(one)
                    groups[key][1].add(two)
        for of_a, of_b in groups.values():
            for one, two in zip(sorted(of_a), sorted(of_b)):
                self.to_b[one], self.from_a[two] = two, one
        return bool(groups)

    def _like_those_that_differ(self) -> list[int]:
        """Operations called as one that has the wrong counterpart, which may be theirs."""
        wrong = {(self.calls[1][self.two.call[there]], self.two.stage[there]) for there in self.wired.reads}
        return [
            here
            for here in self._of_stage(self.one)
            if (self.calls[0][self.one.call[here]], self.one.stage[here]) in wrong
        ]

    def _offer(self, nodes: list[int]) -> None:
        for node in nodes:
            if node not in self.indexed and self.two.stage[node] in self.stages:
                self.indexed.add(node)
                key = self._key_b(node)
                if key is not None:
                    self.index[key].append(node)

    def _key_b(self, node: int) -> Any:
        reads = self.reads_b
        found = [
            (reads.maker[value], reads.place[value] if reads.maker[value] >= 0 else value, way)
            for value, way in reads.of(node)
        ]
        return self._key(self.calls[1][self.two.call[node]], self.two.stage[node], found)

    def _key_a(self, node: int) -> Any:
        reads = self.reads_a
        found = []
        for value, way in reads.of(node):
            maker = reads.maker[value]
            other = self.to_b[maker] if maker >= 0 else self.given[value]
            if other < 0:
                return None
            found.append((other, reads.place[value], way) if maker >= 0 else (-1, other, way))
        return self._key(self.calls[0][self.one.call[node]], self.one.stage[node], found)

    def _key(self, call: tuple[int, bool], stage: int, found: list[tuple[int, int, int]]) -> Any:
        if not found:
            return None
        number, commutes = call
        return number, stage, tuple(sorted(found) if commutes else found)

    def _match(self, here: int) -> list[int]:
        """Match an operation of ``a`` with one that reads the same; returns those whose reads are others by that."""
        key, before = self._key_a(here), self.to_b[here]
        if key is None or (before >= 0 and key == self._key_b(before)):
            return []
        offers = [there for there in self.index.get(key, ()) if self._is_free(there)]
        beside = [there for there in offers if self._are_beside(here, there)]
        chosen = next(iter(beside or offers), None)
        return [] if chosen is None else self._pair(here, chosen)

    def _is_free(self, there: int) -> bool:
        """Whether an operation of ``b`` has no counterpart that reads what it does."""
        other = self.from_a[there]
        return other < 0 or self._key_a(other) != self._key_b(there)

    def _are_beside(self, here: int, there: int) -> bool:
        one, two = self.one, self.two
        return self.scopes[one.solid[one.scope[here]]] == two.solid[two.scope[there]]

    def _pair(self, here: int, there: int) -> list[int]:
        before, other = self.to_b[here], self.from_a[there]
        self.to_b[here], self.from_a[there] = there, here
        again = self.reads_a.users(here)
        if before >= 0:
            self.from_a[before] = -1
        if other >= 0:
            fits = before >= 0 and self._are_alike(other, before)
            self.to_b[other] = before if fits else -1
            if fits:
                self.from_a[before] = other
            again += [other, *self.reads_a.users(other)]
        self._offer(
            [*self.reads_b.users(there), *([before, *self.reads_b.users(before)] if before >= 0 else [])]
        )
        self.changed = True
        return [node for node in again if self.one.stage[node] in self.stages]

    def _are_alike(self, here: int, there: int) -> bool:
        one, two = self.one, self.two
        same = one.operator[one.call[here]] == two.operator[two.call[there]]
        return same and one.stage[here] == two.stage[there] and self._are_beside(here, there)


def _shared_calls(one: Side, two: Side) -> tuple[list[tuple[int, bool]], list[tuple[int, bool]]]:
    """For each call of both graphs a number that is equal where the calls are, and whether operands may be swapped."""
    numbers: dict[Any, int] = {}
    found = []
    for side in (one, two):
        found.append([
            (
                numbers.setdefault(call, len(numbers)),
                operator in COMMUTATIVE and not call.kwargs and len(call.args) == 2,
            )
            for call, operator in zip(side.graph.calls, side.operator)
        ])  # fmt: skip
    return found[0], found[1]
