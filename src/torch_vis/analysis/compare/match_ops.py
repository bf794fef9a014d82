"""Which operation of one run became which of another, once it is known which calls belong together.

What forward runs is matched within two calls that belong together, in order. What backward runs belongs to an operation
of forward, and is matched with what belongs to that one's counterpart: so a change stays with the module that changed.
The order in which backward sums up gradients depends on who else asks for them; what such a sum is, its readers tell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from torch_vis.analysis.compare.outputs import match_results
from torch_vis.analysis.compare.sequence_diff import common, in_order
from torch_vis.analysis.compare.sides import RECOMPUTED, Side
from torch_vis.analysis.compare.wiring import (
    COMMUTATIVE,
    SUMS,
    Wiring,
    paths_of,
    places,
    roots,
    ways_shown,
    wiring,
)
from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag, Kind, Phase

# The same numbers in another type: where autocast puts them in, data still go the same way.
CASTS = frozenset({"aten::_to_copy", "prims::convert_element_type"})
# What autograd does to gradients when they are complete, which belongs to whichever part of them came last.
HANDED_ON = "aten::detach"  # which belongs to another part if something is written to the gradient later on
LAST = SUMS | {HANDED_ON}

Groups = dict[Any, list[int]]


def match_operations(one: Side, two: Side, scopes: Any) -> tuple[Any, Wiring]:
    """For each operation of ``one`` the operation of ``two`` that it became, -1 for none; and what these read."""
    matching = _Operations(one, two, scopes)
    forward = [Phase.FORWARD, Phase.OPTIMIZER, RECOMPUTED]
    matching.in_calls(forward)
    if matching.let_go():
        matching.in_calls(forward, only_exact=True)
    matching.by_reads(forward)
    matching.by_forward(only_alike=True)
    matching.by_readers()
    matching.by_forward()
    matching.by_readers()
    matching.in_calls([Phase.BACKWARD])
    matching.let_go()
    matching.dissolved()
    wired = matching.by_reads([*Phase, RECOMPUTED])
    if matching.part(wired):
        wired = matching.wired()
    return np.array(matching.to_b, dtype=np.int64), wired


class _Operations:
    """The operations of two graphs that belong together so far."""

    def __init__(self, one: Side, two: Side, scopes: Any) -> None:
        self.one, self.two = one, two
        self.a, self.b = one.graph, two.graph
        self.scopes: list[int] = scopes.tolist()
        self.to_b = [-1] * len(self.a)
        self.free = [True] * len(self.b)
        has_a = np.zeros(len(self.b.scope_call), dtype=bool)
        has_a[scopes[scopes >= 0]] = True
        self.around_a, self.around_b = _around(one, scopes >= 0), _around(two, has_a)
        self.makers_a, self.makers_b = _Makers(self.a), _Makers(self.b)
        self.belong_a, self.belong_b = _of_source(one), _of_source(two)
        self.paths = paths_of(self.a, self.b, scopes)
        self.shown = ways_shown(self.a, self.b)
        self.doubtful: set[int] = set()
        numbers: dict[Any, int] = {}
        self.calls = [
            [numbers.setdefault(call, len(numbers)) for call in graph.calls] for graph in (self.a, self.b)
        ]
        self.linked = _is_linked(one) and _is_linked(two)

    def _take(self, nodes: list[int], others: list[int], pairs: Iterable[tuple[int, int]]) -> None:
        for here, there in pairs:
            self.to_b[nodes[here]] = others[there]
            self.free[others[there]] = False

    def _in_order(self, nodes: list[int], others: list[int]) -> None:
        one, two = self.one, self.two
        coarse = one.operators(nodes), two.operators(others)
        if coarse[0] == coarse[1]:
            self._take(nodes, others, ((place, place) for place in range(len(nodes))))
        else:
            fine = one.exactly(nodes), two.exactly(others)
            pairs = in_order(*coarse, *fine)
            self._take(nodes, others, pairs)
            called = self._called(nodes, others)
            self.doubtful.update(
                nodes[here]
                for here, there in pairs
                if fine[0][here] != fine[1][there] or called[0][here] != called[1][there]
            )

    def _called(self, nodes: list[int], others: list[int]) -> tuple[list[Any], list[Any]]:
        """Operations with what they make, and the arguments that are no tensors."""
        (one, two), (call_a, call_b) = (self.one, self.two), self.calls
        return (
            [(*told, call_a[one.call[node]]) for told, node in zip(one.exactly(nodes), nodes)],
            [(*told, call_b[two.call[node]]) for told, node in zip(two.exactly(others), others)],
        )

    def in_calls(self, stages: Iterable[int], only_exact: bool = False) -> None:
        """Match what runs in two calls that belong together, in order; if wanted, only what is called the same."""
        wanted = set(stages)
        for (scope, stage), nodes in self.one.operations.items():
            others = self.two.operations.get((self.scopes[scope], stage)) if stage in wanted else None
            if others:
                nodes, others = self._left(nodes, others)
                if only_exact:
                    self._take(nodes, others, common(*self._called(nodes, others)))
                else:
                    self._in_order(nodes, others)

    def let_go(self) -> bool:
        """Part those that are only alike: what they are made of, and who reads them, leads to none that is sure.

        Says whether there were any.
        """
        if not self.doubtful:
            return False
        near: Groups = defaultdict(list)
        sure = []
        behind_a = _behind(self.one, self.makers_a, [other < 0 for other in self.to_b])
        behind_b = _behind(self.two, self.makers_b, self.free)
        for node, other in enumerate(self.to_b):
            if other < 0:
                continue
            theirs = {slot: behind_b[maker] for slot, maker in self.makers_b.of(other).items()}
            for slot, maker in self.makers_a.of(node).items():
                maker = behind_a[maker]
                if maker < 0:
                    if theirs.get(slot) == -1:
                        sure.append(node)
                elif self.to_b[maker] >= 0 and self.to_b[maker] in theirs.values():
                    if node in self.doubtful or maker in self.doubtful:
                        near[node].append(maker)
                        near[maker].append(node)
        sure += [node for node in near if node not in self.doubtful]
        while sure:
            node = sure.pop()
            self.doubtful.discard(node)
            sure += [other for other in near[node] if other in self.doubtful]
        for node in self.doubtful:
            self.free[self.to_b[node]] = True
            self.to_b[node] = -1
        some = bool(self.doubtful)
        self.doubtful.clear()
        return some

    def _left(self, nodes: list[int], others: list[int]) -> tuple[list[int], list[int]]:
        """Those without a counterpart that may have one: what belongs to a matched operation had its chance there."""
        one, two = self.one, self.two
        left_a = [
            node
            for node in nodes
            if self.to_b[node] < 0
            and (one.operator[one.call[node]] == HANDED_ON or not self._settled_a(node))
        ]
        return left_a, [
            node
            for node in others
            if self.free[node] and (two.operator[two.call[node]] == HANDED_ON or not self._settled_b(node))
        ]

    def _settled_a(self, node: int) -> bool:
        source = self.one.source[node]
        return self.linked and source >= 0 and self.to_b[source] >= 0

    def _settled_b(self, node: int) -> bool:
        source = self.two.source[node]
        return self.linked and source >= 0 and not self.free[source]

    def by_forward(self, only_alike: bool = False) -> None:
        """Match what belongs to two matched operations of forward; if wanted, only where it is all alike."""
        for source, nodes in self.belong_a.items():
            others = self.belong_b.get(self.to_b[source], [])
            if only_alike:
                if self.one.operators(nodes) == self.two.operators(others):
                    self._take(nodes, others, ((place, place) for place in range(len(nodes))))
                continue
            nodes = [node for node in nodes if self.to_b[node] < 0]
            others = [node for node in others if self.free[node]]
            if nodes and others:
                self._in_order(nodes, others)

    def by_readers(self) -> None:
        """Match what backward runs by who reads it, from the results on: the same operator, read in the same place."""
        left = [
            node
            for node, stage in enumerate(self.one.stage)
            if stage == Phase.BACKWARD and self.to_b[node] < 0
        ]
        if not left:
            return
        stack = self._results()
        for maker, reader, slot in self.makers_a.readers(left):
            if self.to_b[reader] >= 0:
                stack.append((maker, self.makers_b.of(self.to_b[reader]).get(slot, -1)))
        while stack:
            here, there = stack.pop()
            if self._may_be(here, there):
                self._take([here], [there], [(0, 0)])
                theirs = self.makers_b.of(there)
                stack += [(maker, theirs.get(slot, -1)) for slot, maker in self.makers_a.of(here).items()]

    def _results(self) -> list[tuple[int, int]]:
        """What made the results that both runs have."""
        pairs = match_results(self.a, self.b, np.array(self.scopes)).pairs
        maker_a, maker_b = self.a.value_producer, self.b.value_producer
        return [(int(maker_a[here.value]), int(maker_b[there.value])) for here, there in pairs]

    def _may_be(self, here: int, there: int) -> bool:
        one, two = self.one, self.two
        if here < 0 or there < 0 or self.to_b[here] >= 0 or not self.free[there]:
            return False
        operator = one.operator[one.call[here]]
        if operator != two.operator[two.call[there]] or one.stage[here] != two.stage[there]:
            return False
        if one.stage[here] != Phase.BACKWARD:
            return False
        if operator not in LAST and (self._settled_a(here) or self._settled_b(there)):
            return False
        scope_a, scope_b = one.solid[one.scope[here]], two.solid[two.scope[there]]
        around_a, around_b = self.around_a[scope_a], self.around_b[scope_b]
        if scope_a != around_a and scope_b != around_b:  # two modules of which neither became the other
            return False
        return self.scopes[around_a] == around_b

    def by_reads(self, stages: Collection[int]) -> Wiring:
        """Match what reads the same, wherever it runs, and in place of what reads something else."""
        wired = self.wired()
        if self._flow(wired, stages).run():
            wired = self.wired()
        before = list(self.to_b) if wired.reads else []
        if wired.reads and self._flow(wired, stages).untangle():
            untangled = self.wired()
            better = len(untangled.reads) < len(wired.reads)
            wired, self.to_b = (untangled, self.to_b) if better else (wired, before)
        free = np.ones(len(self.b) + 1, dtype=bool)  # the last one is for those without a counterpart
        free[self.to_b] = False
        self.free = free[:-1].tolist()
        return wired

    def _flow(self, wired: Wiring, stages: Collection[int]) -> Flow:
        return Flow(self.one, self.two, self.to_b, self.scopes, wired, stages, self.shown)

    def wired(self) -> Wiring:
        """What matched operations read."""
        return wiring(self.a, self.b, np.array(self.to_b, dtype=np.int64), self.paths, self.shown)

    def part(self, wired: Wiring) -> bool:
        """Part what reads other things in backward, and is not known to belong to an operation of forward.

        Says whether there was any.
        """
        nodes = [
            here
            for here, there in enumerate(self.to_b)
            if there in wired.reads
            and self.one.stage[here] == Phase.BACKWARD
            and (self.one.source[here] < 0 or self.two.source[there] < 0)
        ]
        for here in nodes:
            self.free[self.to_b[here]] = True
            self.to_b[here] = -1
        return bool(nodes)

    def dissolved(self) -> None:
        """Match operations whose call is gone with those that run in the call around it, or in another that is new."""
        left_a = self._grouped(self.one, self.around_a, [node for node, to in enumerate(self.to_b) if to < 0])
        left_b = self._grouped(self.two, self.around_b, [node for node, free in enumerate(self.free) if free])
        for (scope, stage), nodes in left_a.items():
            others = left_b.get((self.scopes[scope], stage))
            if others:
                nodes, others = self._left(nodes, others)
                pairs = common(self.one.exactly(nodes), self.two.exactly(others))
                self._take(nodes, others, pairs)
                self.doubtful.update(nodes[here] for here, _ in pairs)
        self.let_go()

    def _grouped(self, side: Side, around: list[int], nodes: list[int]) -> Groups:
        found: Groups = defaultdict(list)
        for node in nodes:
            found[around[side.scope[node]], side.stage[node]].append(node)
        return found


def _is_linked(side: Side) -> bool:
    """Whether most of backward is known to belong to something; little of what a compiler captured is."""
    known = [source >= 0 for source, stage in zip(side.source, side.stage) if stage == Phase.BACKWARD]
    return 2 * sum(known) > len(known)


def _around(side: Side, matched: Any) -> list[int]:
    """For each call itself where it has a counterpart, else the nearest one around it that has."""
    found = list(range(len(matched)))
    has = matched.tolist()
    for scope, parent in enumerate(side.graph.scope_parent.tolist()):
        if side.solid[scope] != scope:
            found[scope] = found[side.solid[scope]]
        elif parent >= 0 and not has[scope]:
            found[scope] = found[parent]
    return found


def _of_source(side: Side) -> Groups:
    """What backward runs, by the operation of forward that it belongs to."""
    found: Groups = defaultdict(list)
    for node, source in enumerate(side.source):
        if source >= 0:
            found[source].append(node)
    return found


def _behind(side: Side, makers: _Makers, alone: list[bool]) -> list[int]:
    """For each operation itself; of a cast without a counterpart what made its data, -1 for what was there before.

    The last one is for what nothing made.
    """
    graph = side.graph
    casts = np.array([operator in CASTS for operator in side.operator], dtype=bool)[graph.node_call]
    found = [*range(len(graph)), -1]
    for node in np.flatnonzero(
        casts & np.array(alone, dtype=bool)
    ).tolist():  # makers come before their readers
        found[node] = found[makers.of(node).get(0, node)]
    return found


class _Makers:
    """What made the arguments of operations."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.start: list[int] = graph.in_start.tolist()
        self.slot: list[int] = graph.in_slot.tolist()
        self.maker: list[int] = graph.value_producer[graph.in_value].tolist()

    def of(self, node: int) -> dict[int, int]:
        """What made each argument of an operation, by its place; -1 for what was there before."""
        rows = range(self.start[node], self.start[node + 1])
        return {
            self.slot[row]: self.maker[row] for row in reversed(rows)
        }  # the first of several parts of one

    def readers(self, nodes: list[int]) -> list[tuple[int, int, int]]:
        """Who reads what some operations make: the one that made it, the one that reads it, and in which place."""
        made = np.zeros(len(self.graph) + 1, dtype=bool)
        made[nodes] = True
        rows = np.flatnonzero(made[self.maker])  # the last one is for what nothing made
        reader = np.searchsorted(self.graph.in_start, rows, side="right") - 1
        return [(self.maker[row], node, self.slot[row]) for row, node in zip(rows.tolist(), reader.tolist())]


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
