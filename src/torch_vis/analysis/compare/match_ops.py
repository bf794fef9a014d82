"""Matches the operations of two runs, once it is known which calls of modules belong together.

Operations of forward are matched within matched modules, in order, like lines in a diff. That alone pairs operations
that only look alike, so pairs that share an operator and nothing else are dropped again unless data flow connects
them to a certain pair. Next comes data flow itself: the same call on the same inputs is the same operation, wherever
it runs. Operations of backward follow the operations of forward that they belong to, so that a change stays with the
module that changed; sums of gradients, whose order depends on who else adds to them, go by who reads them. What is
left is matched across module boundaries, because a compiler, or code that was written out, keeps the operations and
drops the call. ``PASSES`` lists all of this in order; each pass sees only what the ones before left unmatched, or
marked as uncertain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from torch_vis.analysis.compare.outputs import match_results
from torch_vis.analysis.compare.sequence_diff import common, in_order
from torch_vis.analysis.compare.sides import RECOMPUTED, MatchingPass, Side
from torch_vis.analysis.compare.wiring import (
    COMMUTATIVE,
    SUMS,
    Wiring,
    module_paths,
    output_places,
    roots,
    view_chains,
)
from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag, Kind, Phase
from torch_vis.graph.types import Bools, Ints

# Casts keep the data: where autocast inserts them, data still flow the same way.
CASTS = frozenset({"aten::_to_copy", "prims::convert_element_type"})
# What autograd does to a complete gradient. It belongs to whichever part of the gradient came last, and to another
# part if something is written to the gradient later on.
HANDED_ON = "aten::detach"
LAST = SUMS | {HANDED_ON}
# How often an operation is looked at again because what it reads was matched anew; bounds the work to linear time.
MOST_VISITS = 3

FORWARD = (Phase.FORWARD, Phase.OPTIMIZER, RECOMPUTED)
ALL = (*Phase, RECOMPUTED)
Groups = dict[Any, list[int]]
Pairs = Iterable[tuple[int, int]]


def match_operations(side_a: Side, side_b: Side, scope_to_b: Ints) -> tuple[Ints, Wiring]:
    """For each operation of ``a`` its counterpart in ``b``, -1 for none; and how the values of both correspond."""
    matcher = _OperationMatcher(side_a, side_b, scope_to_b)
    for step in PASSES:
        step.run(matcher)
    return np.array(matcher.to_b, dtype=np.int64), matcher.wiring


class _OperationMatcher:
    """The operations of two graphs that are matched so far."""

    wiring: Wiring

    def __init__(self, side_a: Side, side_b: Side, scope_to_b: Ints) -> None:
        self.side_a, self.side_b = side_a, side_b
        self.a, self.b = side_a.graph, side_b.graph
        self.scope_to_b: list[int] = scope_to_b.tolist()
        self.to_b = [-1] * len(self.a)
        self.free_b = [True] * len(self.b)
        matched_b = np.zeros(len(self.b.scope_call), dtype=bool)
        matched_b[scope_to_b[scope_to_b >= 0]] = True
        self.matched_scope_a = _nearest_matched(side_a, scope_to_b >= 0)
        self.matched_scope_b = _nearest_matched(side_b, matched_b)
        self.producers_a, self.producers_b = _Producers(self.a), _Producers(self.b)
        self.backward_a, self.backward_b = _backward_operations(side_a), _backward_operations(side_b)
        self.has_links = _has_links(side_a) and _has_links(side_b)
        self.paths = module_paths(self.a, self.b, scope_to_b)
        self.views = view_chains(self.a, self.b)
        numbers: dict[Any, int] = {}
        self.calls_a, self.calls_b = (
            [numbers.setdefault(call, len(numbers)) for call in graph.calls] for graph in (self.a, self.b)
        )
        self.uncertain: set[int] = set()
        """Operations of ``a`` that were paired by their operator, though arguments or outputs differ."""
        self.dropped_any = False

    # --- the passes ---

    def in_modules(self, stages: Collection[int], *, exact: bool = False) -> None:
        """Pair the operations of two matched modules in order; if wanted, only those that are called the same."""
        for (scope, stage), nodes_a in self.side_a.operations.items():
            nodes_b = self.side_b.operations.get((self.scope_to_b[scope], stage)) if stage in stages else None
            if nodes_b:
                nodes_a, nodes_b = self._unmatched(nodes_a, nodes_b)
                if exact:
                    self._pair(nodes_a, nodes_b, common(*self._exact_keys(nodes_a, nodes_b)))
                else:
                    self._pair_in_order(nodes_a, nodes_b)

    def drop_unconnected(self) -> None:
        """Drop the uncertain pairs that neither inputs nor readers connect to a certain pair."""
        self.dropped_any = False
        if not self.uncertain:
            return
        neighbours: Groups = defaultdict(list)
        certain = []
        source_a = _sources_of_casts(self.side_a, self.producers_a, [other < 0 for other in self.to_b])
        source_b = _sources_of_casts(self.side_b, self.producers_b, self.free_b)
        for node, other in enumerate(self.to_b):
            if other < 0:
                continue
            producers_b = {slot: source_b[producer] for slot, producer in self.producers_b.of(other).items()}
            for slot, producer in self.producers_a.of(node).items():
                producer = source_a[producer]
                if producer < 0:
                    if producers_b.get(slot) == -1:
                        certain.append(node)
                elif self.to_b[producer] >= 0 and self.to_b[producer] in producers_b.values():
                    if node in self.uncertain or producer in self.uncertain:
                        neighbours[node].append(producer)
                        neighbours[producer].append(node)
        certain += [node for node in neighbours if node not in self.uncertain]
        while certain:
            node = certain.pop()
            self.uncertain.discard(node)
            certain += [other for other in neighbours[node] if other in self.uncertain]
        self._drop(self.uncertain)
        self.dropped_any = bool(self.uncertain)
        self.uncertain.clear()

    def retry_exact(self) -> None:
        """Pair anew what is called exactly the same, if pairs were dropped that stood in its way."""
        if self.dropped_any:
            self.in_modules(FORWARD, exact=True)

    def by_inputs(self, stages: Collection[int]) -> None:
        """Pair equal calls on the same inputs, wherever they run, also instead of pairs that read something else."""
        self.wiring = self._wire()
        if self._input_matcher(stages).run():
            self.wiring = self._wire()
        before = list(self.to_b)
        if self.wiring.changed_inputs and self._input_matcher(stages).untangle():
            untangled = self._wire()
            if len(untangled.changed_inputs) < len(self.wiring.changed_inputs):
                self.wiring = untangled
            else:
                self.to_b = before
        # the last entry is for operations without a counterpart
        free = np.ones(len(self.b) + 1, dtype=bool)
        free[self.to_b] = False
        self.free_b = free[:-1].tolist()

    def by_forward(self, *, only_equal: bool = False) -> None:
        """Pair what belongs to two matched operations of forward; if wanted, only where all of it is alike."""
        for forward, nodes_a in self.backward_a.items():
            nodes_b = self.backward_b.get(self.to_b[forward], [])
            if only_equal:
                if self.side_a.operators(nodes_a) == self.side_b.operators(nodes_b):
                    self._pair(nodes_a, nodes_b, ((index, index) for index in range(len(nodes_a))))
                continue
            nodes_a = [node for node in nodes_a if self.to_b[node] < 0]
            nodes_b = [node for node in nodes_b if self.free_b[node]]
            if nodes_a and nodes_b:
                self._pair_in_order(nodes_a, nodes_b)

    def by_readers(self) -> None:
        """Pair operations of backward by who reads them, from the results back: equal operators in the same slot."""
        unmatched = [
            node
            for node, stage in enumerate(self.side_a.stage)
            if stage == Phase.BACKWARD and self.to_b[node] < 0
        ]
        if not unmatched:
            return
        stack = self._producers_of_results()
        for producer, reader, slot in self.producers_a.readers(unmatched):
            if self.to_b[reader] >= 0:
                stack.append((producer, self.producers_b.of(self.to_b[reader]).get(slot, -1)))
        while stack:
            node_a, node_b = stack.pop()
            if self._can_pair_backward(node_a, node_b):
                self._pair([node_a], [node_b], [(0, 0)])
                slots_b = self.producers_b.of(node_b)
                stack += [(node, slots_b.get(slot, -1)) for slot, node in self.producers_a.of(node_a).items()]

    def across_modules(self) -> None:
        """Pair what is left in an unmatched module with what is left in the matched one around it, and back."""
        groups_a = self._by_matched_scope(
            self.side_a, self.matched_scope_a, [node for node, other in enumerate(self.to_b) if other < 0]
        )
        groups_b = self._by_matched_scope(
            self.side_b, self.matched_scope_b, [node for node, free in enumerate(self.free_b) if free]
        )
        for (scope, stage), nodes_a in groups_a.items():
            nodes_b = groups_b.get((self.scope_to_b[scope], stage))
            if nodes_b:
                nodes_a, nodes_b = self._unmatched(nodes_a, nodes_b)
                pairs = common(self.side_a.signatures(nodes_a), self.side_b.signatures(nodes_b))
                self._pair(nodes_a, nodes_b, pairs)
                self.uncertain.update(nodes_a[a] for a, _ in pairs)

    def drop_rewired_backward(self) -> None:
        """Drop pairs of backward that read different things and are not known to belong to forward."""
        nodes = [
            node
            for node, other in enumerate(self.to_b)
            if other in self.wiring.changed_inputs
            and self.side_a.stage[node] == Phase.BACKWARD
            and (self.side_a.forward_of[node] < 0 or self.side_b.forward_of[other] < 0)
        ]
        if nodes:
            self._drop(nodes)
            self.wiring = self._wire()

    # --- what they share ---

    def _pair(self, nodes_a: list[int], nodes_b: list[int], pairs: Pairs) -> None:
        """Match operations by their indices in two lists."""
        for a, b in pairs:
            self.to_b[nodes_a[a]] = nodes_b[b]
            self.free_b[nodes_b[b]] = False

    def _drop(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.free_b[self.to_b[node]] = True
            self.to_b[node] = -1

    def _pair_in_order(self, nodes_a: list[int], nodes_b: list[int]) -> None:
        """Match equal operators in order; those that are called otherwise are uncertain."""
        operators_a, operators_b = self.side_a.operators(nodes_a), self.side_b.operators(nodes_b)
        if operators_a == operators_b:
            self._pair(nodes_a, nodes_b, ((index, index) for index in range(len(nodes_a))))
            return
        signatures_a, signatures_b = self.side_a.signatures(nodes_a), self.side_b.signatures(nodes_b)
        pairs = in_order(operators_a, operators_b, signatures_a, signatures_b)
        self._pair(nodes_a, nodes_b, pairs)
        exact_a, exact_b = self._exact_keys(nodes_a, nodes_b)
        self.uncertain.update(nodes_a[a] for a, b in pairs if exact_a[a] != exact_b[b])

    def _exact_keys(self, nodes_a: list[int], nodes_b: list[int]) -> tuple[list[Any], list[Any]]:
        """Operators with their output types, and the arguments that are no tensors."""
        side_a, side_b = self.side_a, self.side_b
        return (
            [(*key, self.calls_a[side_a.call[n]]) for key, n in zip(side_a.signatures(nodes_a), nodes_a)],
            [(*key, self.calls_b[side_b.call[n]]) for key, n in zip(side_b.signatures(nodes_b), nodes_b)],
        )

    def _unmatched(self, nodes_a: list[int], nodes_b: list[int]) -> tuple[list[int], list[int]]:
        """Operations without a counterpart that may still get one; not those that belong to a matched operation."""
        side_a, side_b = self.side_a, self.side_b
        return (
            [
                node
                for node in nodes_a
                if self.to_b[node] < 0
                and (side_a.operator[side_a.call[node]] == HANDED_ON or not self._follows_forward_a(node))
            ],
            [
                node
                for node in nodes_b
                if self.free_b[node]
                and (side_b.operator[side_b.call[node]] == HANDED_ON or not self._follows_forward_b(node))
            ],
        )

    def _follows_forward_a(self, node: int) -> bool:
        forward = self.side_a.forward_of[node]
        return self.has_links and forward >= 0 and self.to_b[forward] >= 0

    def _follows_forward_b(self, node: int) -> bool:
        forward = self.side_b.forward_of[node]
        return self.has_links and forward >= 0 and not self.free_b[forward]

    def _producers_of_results(self) -> list[tuple[int, int]]:
        """The operations that made the results that both runs have."""
        pairs = match_results(self.a, self.b, np.array(self.scope_to_b)).pairs
        producer_a, producer_b = self.a.value_producer, self.b.value_producer
        return [(int(producer_a[a.value]), int(producer_b[b.value])) for a, b in pairs]

    def _can_pair_backward(self, node_a: int, node_b: int) -> bool:
        side_a, side_b = self.side_a, self.side_b
        if node_a < 0 or node_b < 0 or self.to_b[node_a] >= 0 or not self.free_b[node_b]:
            return False
        operator = side_a.operator[side_a.call[node_a]]
        if operator != side_b.operator[side_b.call[node_b]]:
            return False
        if not side_a.stage[node_a] == side_b.stage[node_b] == Phase.BACKWARD:
            return False
        if operator not in LAST and (self._follows_forward_a(node_a) or self._follows_forward_b(node_b)):
            return False
        scope_a, scope_b = side_a.owner[side_a.scope[node_a]], side_b.owner[side_b.scope[node_b]]
        matched_a, matched_b = self.matched_scope_a[scope_a], self.matched_scope_b[scope_b]
        # two modules of which neither is matched
        if scope_a != matched_a and scope_b != matched_b:
            return False
        return self.scope_to_b[matched_a] == matched_b

    def _wire(self) -> Wiring:
        return Wiring(self.a, self.b, np.array(self.to_b, dtype=np.int64), self.paths, self.views)

    def _input_matcher(self, stages: Collection[int]) -> _InputMatcher:
        return _InputMatcher(
            self.side_a, self.side_b, self.to_b, self.scope_to_b, self.wiring, stages, self.views
        )

    def _by_matched_scope(self, side: Side, matched_scope: list[int], nodes: list[int]) -> Groups:
        groups: Groups = defaultdict(list)
        for node in nodes:
            groups[matched_scope[side.scope[node]], side.stage[node]].append(node)
        return groups


PASSES = (
    MatchingPass(
        "forward in order",
        "operations of forward, recomputation and optimizer in two matched modules, like lines in a diff",
        "addmm, relu, addmm and addmm, gelu, addmm: both addmm are paired",
        lambda matcher: matcher.in_modules(FORWARD),
    ),
    MatchingPass(
        "drop unconnected",
        "drops pairs that share no more than the operator and no data flow with a certain pair",
        "the mul of a mask that is gone, paired with the mul of a new scale",
        lambda matcher: matcher.drop_unconnected(),
    ),
    MatchingPass(
        "exact calls again",
        "operations of forward that are called exactly the same, where a dropped pair stood in the way",
        "a view to (4, 8) that had been paired with a view to (8, 4)",
        lambda matcher: matcher.retry_exact(),
    ),
    MatchingPass(
        "forward by inputs",
        "equal calls on the same inputs, wherever they run",
        "two lines that changed places; an activation that is now called by the parent module",
        lambda matcher: matcher.by_inputs(FORWARD),
    ),
    MatchingPass(
        "backward of equal forward",
        "what belongs to two matched operations of forward, where both have the same operators",
        "the mm, mm and sum of one Linear's backward",
        lambda matcher: matcher.by_forward(only_equal=True),
    ),
    MatchingPass(
        "backward by readers",
        "operations of backward whose readers are matched, from the gradients back",
        "the add that sums up the gradients of a residual connection",
        lambda matcher: matcher.by_readers(),
    ),
    MatchingPass(
        "backward of forward",
        "what is left of what belongs to two matched operations of forward, in order",
        "the first layer, whose backward needs no gradient of its input",
        lambda matcher: matcher.by_forward(),
    ),
    MatchingPass(
        "backward by readers again",
        "operations of backward whose readers were matched by the pass before",
        "a sum of gradients that such a backward reads",
        lambda matcher: matcher.by_readers(),
    ),
    MatchingPass(
        "backward in order",
        "what is left of backward in two matched modules",
        "a captured backward, which has no links to forward",
        lambda matcher: matcher.in_modules((Phase.BACKWARD,)),
    ),
    MatchingPass(
        "drop unconnected backward",
        "drops pairs that share no more than the operator and no data flow with a certain pair",
        "a sum of one gradient, paired with the sum of another",
        lambda matcher: matcher.drop_unconnected(),
    ),
    MatchingPass(
        "across modules",
        "what is left in an unmatched module, with what is left in the matched module around it",
        "a LayerNorm that was written out; a call that a compiler dropped",
        lambda matcher: matcher.across_modules(),
    ),
    MatchingPass(
        "drop unconnected across modules",
        "drops of these the ones that share no data flow with a certain pair",
        "a neg of a loss, paired with a neg of a rotary embedding",
        lambda matcher: matcher.drop_unconnected(),
    ),
    MatchingPass(
        "all by inputs",
        "equal calls on the same inputs, now that what made these is matched, backward included",
        "what follows an operation that was paired across modules",
        lambda matcher: matcher.by_inputs(ALL),
    ),
    MatchingPass(
        "drop rewired backward",
        "drops pairs of backward that read different things and belong to no operation of forward",
        "two mm of a captured backward, of different layers",
        lambda matcher: matcher.drop_rewired_backward(),
    ),
)


class _InputMatcher:
    """Matches operations by what they read: an equal call on the same inputs is the same operation.

    That is looked at where a pair does not read the same, and where an operation has no counterpart. ``to_b`` is
    changed in place; ``stages`` are those whose operations may be matched.
    """

    def __init__(
        self,
        side_a: Side,
        side_b: Side,
        to_b: list[int],
        scope_to_b: list[int],
        wiring: Wiring,
        stages: Collection[int],
        views: tuple[Ints, Ints],
    ) -> None:
        self.side_a, self.side_b, self.to_b, self.scope_to_b = side_a, side_b, to_b, scope_to_b
        self.stages = frozenset(stages)
        self.wiring, self.views = wiring, views
        self.to_a: list[int] = wiring.to_a.tolist()
        self.changed = False

    def run(self) -> bool:
        """Match, anew or for the first time, what reads the same; says whether there was any."""
        rewired = self.wiring.changed_inputs
        open_a = [n for n in self._in_stages(self.side_a) if self.to_b[n] < 0 or self.to_b[n] in rewired]
        open_b = [n for n in self._in_stages(self.side_b) if self.to_a[n] < 0 or n in rewired]
        if not open_a or not open_b:
            return False
        self._prepare()
        self.candidates: dict[Any, list[int]] = defaultdict(list)
        self.offered: set[int] = set()
        like_a, like_b = self._called_like_rewired()
        self._offer(sorted({*open_b, *like_b}))
        agenda, visits = open_a + like_a, Counter[int]()
        heapify(agenda)
        while agenda:
            node = heappop(agenda)
            visits[node] += 1
            if visits[node] > MOST_VISITS:
                continue
            for reader in self._match(node):
                heappush(agenda, reader)
        return self.changed

    def untangle(self) -> bool:
        """Match equal calls on equal inputs in order, where their readers read one another's counterparts.

        Says whether there were any.
        """
        self._prepare()
        groups: dict[Any, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        changes = (change for changes in self.wiring.changed_inputs.values() for change in changes)
        for change in changes:
            if min(change.a, change.b) < 0:
                continue
            node_a = self.inputs_a.producer[self.inputs_a.root[change.a]]
            node_b = self.inputs_b.producer[self.inputs_b.root[change.b]]
            if node_a < 0 or node_b < 0 or self.to_b[node_a] in (-1, node_b) or self.to_a[node_b] < 0:
                continue
            key = self._key_a(node_a)
            pairs = [(node_a, self.to_b[node_a]), (self.to_a[node_b], node_b)]
            if key is not None and all(self._key_a(a) == self._key_b(b) == key for a, b in pairs):
                for a, b in pairs:
                    groups[key][0].add(a)
                    groups[key][1].add(b)
        for nodes_a, nodes_b in groups.values():
            for a, b in zip(sorted(nodes_a), sorted(nodes_b)):
                self.to_b[a], self.to_a[b] = b, a
        return bool(groups)

    def _prepare(self) -> None:
        self.inputs_a = _InputRoots(self.side_a.graph, self.views[0])
        self.inputs_b = _InputRoots(self.side_b.graph, self.views[1])
        self.outside_to_b: list[int] = self.wiring.outside_to_b.tolist()
        self.calls_a, self.calls_b = _numbered_calls(self.side_a, self.side_b)

    def _in_stages(self, side: Side) -> list[int]:
        return [node for node, stage in enumerate(side.stage) if stage in self.stages]

    def _called_like_rewired(self) -> tuple[list[int], list[int]]:
        """Operations of both that are called like one with the wrong counterpart: that, or its own, may be theirs."""
        side_a, side_b = self.side_a, self.side_b
        wrong = {(self.calls_b[side_b.call[n]], side_b.stage[n]) for n in self.wiring.changed_inputs}

        def called_like(side: Side, calls: list[tuple[int, bool]]) -> list[int]:
            return [n for n in self._in_stages(side) if (calls[side.call[n]], side.stage[n]) in wrong]

        return called_like(side_a, self.calls_a), called_like(side_b, self.calls_b)

    def _offer(self, nodes: list[int]) -> None:
        """Make operations of ``b`` known by what they read."""
        for node in nodes:
            if node not in self.offered and self.side_b.stage[node] in self.stages:
                self.offered.add(node)
                key = self._key_b(node)
                if key is not None:
                    self.candidates[key].append(node)

    def _key_a(self, node: int) -> Any:
        inputs = self.inputs_a
        identities = []
        for value, view in inputs.of(node):
            producer = inputs.producer[value]
            other = self.to_b[producer] if producer >= 0 else self.outside_to_b[value]
            if other < 0:
                return None
            identities.append((other, inputs.place[value], view) if producer >= 0 else (-1, other, view))
        return self._key(self.calls_a[self.side_a.call[node]], self.side_a.stage[node], identities)

    def _key_b(self, node: int) -> Any:
        inputs = self.inputs_b
        identities = [
            (inputs.producer[value], inputs.place[value] if inputs.producer[value] >= 0 else value, view)
            for value, view in inputs.of(node)
        ]
        return self._key(self.calls_b[self.side_b.call[node]], self.side_b.stage[node], identities)

    def _key(self, call: tuple[int, bool], stage: int, identities: list[tuple[int, int, int]]) -> Any:
        if not identities:
            return None
        number, commutes = call
        return number, stage, tuple(sorted(identities) if commutes else identities)

    def _match(self, node: int) -> list[int]:
        """Match an operation of ``a`` with one that reads the same; returns those whose inputs changed by that."""
        key, before = self._key_a(node), self.to_b[node]
        if key is None or (before >= 0 and key == self._key_b(before)):
            return []
        candidates = [other for other in self.candidates.get(key, ()) if self._is_free(other)]
        in_module = [other for other in candidates if self._are_in_matched_modules(node, other)]
        # the same call in the same module stays there: that the module is given something else is the change
        stays = (
            before >= 0
            and self._are_in_matched_modules(node, before)
            and self._are_called_alike(node, before)
        )
        chosen = next(iter(in_module if stays else in_module or candidates), None)
        return [] if chosen is None else self._pair(node, chosen)

    def _is_free(self, other: int) -> bool:
        """Whether an operation of ``b`` has no counterpart that reads what it does."""
        node = self.to_a[other]
        return node < 0 or self._key_a(node) != self._key_b(other)

    def _are_called_alike(self, node: int, other: int) -> bool:
        return self.calls_a[self.side_a.call[node]] == self.calls_b[self.side_b.call[other]]

    def _are_in_matched_modules(self, node: int, other: int) -> bool:
        side_a, side_b = self.side_a, self.side_b
        scope_a, scope_b = side_a.owner[side_a.scope[node]], side_b.owner[side_b.scope[other]]
        return self.scope_to_b[scope_a] == scope_b

    def _pair(self, node: int, other: int) -> list[int]:
        """Match two operations; the ones that they were matched with are matched instead, if they are alike."""
        before_b, before_a = self.to_b[node], self.to_a[other]
        self.to_b[node], self.to_a[other] = other, node
        affected = self.inputs_a.readers(node)
        if before_b >= 0:
            self.to_a[before_b] = -1
        if before_a >= 0:
            fits = before_b >= 0 and self._are_alike(before_a, before_b)
            self.to_b[before_a] = before_b if fits else -1
            if fits:
                self.to_a[before_b] = before_a
            affected += [before_a, *self.inputs_a.readers(before_a)]
        self._offer(self.inputs_b.readers(other))
        if before_b >= 0:
            self._offer([before_b, *self.inputs_b.readers(before_b)])
        self.changed = True
        return [node for node in affected if self.side_a.stage[node] in self.stages]

    def _are_alike(self, node: int, other: int) -> bool:
        side_a, side_b = self.side_a, self.side_b
        same_operator = side_a.operator[side_a.call[node]] == side_b.operator[side_b.call[other]]
        same_stage = side_a.stage[node] == side_b.stage[other]
        return same_operator and same_stage and self._are_in_matched_modules(node, other)


class _InputRoots:
    """What the operations of one graph read: for each the roots of the values, and the views that lead to them."""

    def __init__(self, graph: Graph, views: Ints) -> None:
        self.graph = graph
        self.is_view: Bools = graph.node_flags & Flag.VIEW != 0
        root = roots(graph, self.is_view)
        self.root: list[int] = root.tolist()
        chosen = graph.in_kind != Kind.SHAPE
        self.start: list[int] = np.concatenate([[0], np.cumsum(chosen)])[graph.in_start].tolist()
        self.values: list[int] = root[graph.in_value[chosen]].tolist()
        self.views: list[int] = views[graph.in_value[chosen]].tolist()
        self.producer: list[int] = graph.value_producer.tolist()
        self.place: list[int] = output_places(graph).tolist()

    def of(self, node: int) -> list[tuple[int, int]]:
        """What an operation reads: the root of each value, and the views that lead to it."""
        span = slice(self.start[node], self.start[node + 1])
        return list(zip(self.values[span], self.views[span]))

    def readers(self, node: int) -> list[int]:
        """Who reads what an operation makes, or a view of it."""
        readers: list[int] = []
        stack = [node]
        while stack:
            for reader in self.graph.users(stack.pop()).tolist():
                readers.append(reader)
                if self.is_view[reader]:
                    stack.append(reader)
        return readers


class _Producers:
    """The operations that made the arguments of others."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.start: list[int] = graph.in_start.tolist()
        self.slot: list[int] = graph.in_slot.tolist()
        self.producer: list[int] = graph.value_producer[graph.in_value].tolist()

    def of(self, node: int) -> dict[int, int]:
        """By slot the producer of an operation's argument, of the first one in a list; -1 if it was there before."""
        rows = range(self.start[node], self.start[node + 1])
        return {self.slot[row]: self.producer[row] for row in reversed(rows)}

    def readers(self, nodes: list[int]) -> list[tuple[int, int, int]]:
        """Who reads what some operations make: the producer, the reader and its slot."""
        # the last entry is for what was there before
        chosen = np.zeros(len(self.graph) + 1, dtype=bool)
        chosen[nodes] = True
        rows = np.flatnonzero(chosen[self.producer])
        reader = np.searchsorted(self.graph.in_start, rows, side="right") - 1
        return [
            (self.producer[row], node, self.slot[row]) for row, node in zip(rows.tolist(), reader.tolist())
        ]


def _has_links(side: Side) -> bool:
    """Whether most of backward is known to belong to forward; little of what a compiler captured is."""
    known = [forward >= 0 for forward, stage in zip(side.forward_of, side.stage) if stage == Phase.BACKWARD]
    return 2 * sum(known) > len(known)


def _nearest_matched(side: Side, matched: Bools) -> list[int]:
    """For each scope itself where it is matched, else the nearest one around it that is."""
    nearest = list(range(len(matched)))
    is_matched = matched.tolist()
    for scope, parent in enumerate(side.graph.scope_parent.tolist()):
        if side.owner[scope] != scope:
            nearest[scope] = nearest[side.owner[scope]]
        elif parent >= 0 and not is_matched[scope]:
            nearest[scope] = nearest[parent]
    return nearest


def _backward_operations(side: Side) -> Groups:
    """The operations of backward, by the operation of forward that they belong to."""
    groups: Groups = defaultdict(list)
    for node, forward in enumerate(side.forward_of):
        if forward >= 0:
            groups[forward].append(node)
    return groups


def _sources_of_casts(side: Side, producers: _Producers, unmatched: list[bool]) -> list[int]:
    """For each operation itself; for an unmatched cast what made its data, -1 for what was there before.

    The last entry is for what was there before.
    """
    graph = side.graph
    casts = np.array([operator in CASTS for operator in side.operator], dtype=bool)[graph.node_call]
    sources = [*range(len(graph)), -1]
    # producers come before their readers
    for node in np.flatnonzero(casts & np.array(unmatched, dtype=bool)).tolist():
        sources[node] = sources[producers.of(node).get(0, node)]
    return sources


def _numbered_calls(side_a: Side, side_b: Side) -> tuple[list[tuple[int, bool]], list[tuple[int, bool]]]:
    """For each call of both graphs a number that is equal where the calls are, and whether operands may be swapped."""
    numbers: dict[Any, int] = {}
    numbered_a, numbered_b = (
        [
            (
                numbers.setdefault(call, len(numbers)),
                operator in COMMUTATIVE and not call.kwargs and len(call.args) == 2,
            )
            for call, operator in zip(side.graph.calls, side.operator)
        ]
        for side in (side_a, side_b)
    )
    return numbered_a, numbered_b
