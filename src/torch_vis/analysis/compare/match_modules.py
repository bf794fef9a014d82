"""Matches the calls of modules of two runs.

Calls are compared by keys, from the strictest to the loosest (``ModuleMatcher._keys``): what forward does in them, the
weights that they read, their names, their classes. The matching starts at the two runs as a whole and goes inwards:
the calls inside a matched pair are matched with one another, then those inside these. What is left after that may have
been wrapped in a container, taken out of one or moved to another parent, so it is looked for anywhere, the surest
evidence first, and each new pair is again followed inwards. Only then are calls paired that have no more in common than
a name or a position. ``PASSES`` lists all of this in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.module_keys import (
    CallWeights,
    Key,
    WeightDigest,
    call_key,
    children_of,
    classes_of,
    empty_calls,
    fingerprints,
    is_index,
    is_inside,
    last_part,
    local_names,
    only_renumbered,
    parents_of,
    with_lists_renamed,
)
from torch_vis.analysis.compare.sequence_diff import common, in_any_order
from torch_vis.analysis.compare.sides import MatchingPass, Side
from torch_vis.graph.types import Ints

# Unmatched containers inside containers that are looked into at once; bounds the work to linear time.
MOST_LEVELS = 4
# Calls of a module before and after one, among which to look for a matched one.
NEARBY = 8

Pairs = list[tuple[int, int]]


class AmbiguousGroup(NamedTuple):
    """Equal calls with weights, more of them in one run than in the other; only their indices differ."""

    a: list[int]
    b: list[int]


def match_modules(
    side_a: Side,
    side_b: Side,
    known: dict[Any, int],
    weights: tuple[WeightDigest, WeightDigest] | None = None,
) -> tuple[Ints, list[AmbiguousGroup]]:
    """For each call of ``a`` its counterpart in ``b``, -1 for none; and the calls distinguished by nothing but indices.

    Where one run has more of equal calls than the other, equal weights tell which of them are new.
    """
    matcher = ModuleMatcher(side_a, side_b, known, weights)
    for step in PASSES:
        step.run(matcher)
    return np.array(matcher.to_b, dtype=np.int64), list(matcher.ambiguous.values())


class ModuleMatcher:
    """The calls of two graphs that are matched so far."""

    def __init__(
        self,
        side_a: Side,
        side_b: Side,
        known: dict[Any, int],
        weights: tuple[WeightDigest, WeightDigest] | None,
    ) -> None:
        self.side_a, self.side_b = side_a, side_b
        self.a, self.b = side_a.graph, side_b.graph
        self.to_b = [-1] * len(self.a.scope_call)
        self.to_b[0] = 0
        self.to_a = {0: 0}
        self.deferred: Pairs = []
        """Pairs with nothing but a name or a position in common, for when nothing better was found."""
        self.ambiguous: dict[int, AmbiguousGroup] = {}
        """By the first call of each group in ``a``."""
        self.children_a, self.children_b = children_of(side_a), children_of(side_b)
        self.parent_a, self.parent_b = parents_of(self.children_a), parents_of(self.children_b)
        self.holds_a, self.holds_b = [False] * len(self.children_a), [False] * len(self.children_b)
        """Whether a matched call is made inside each."""
        self.weights_a, self.weights_b = (
            CallWeights(side, children, digest, known)
            for side, children, digest in zip(
                (side_a, side_b), (self.children_a, self.children_b), weights or (None, None)
            )
        )
        self.is_empty_a, self.is_empty_b = (
            empty_calls(side_a, self.children_a),
            empty_calls(side_b, self.children_b),
        )
        """Whether nothing runs in each, as in an ``Identity``: that two do nothing is no evidence."""
        self.names_a, self.names_b = local_names(self.a), local_names(self.b)
        self.classes = classes_of(self.a), classes_of(self.b)
        self.exact = Key(
            fingerprints(side_a, self.children_a, side_a.signatures, known),
            fingerprints(side_b, self.children_b, side_b.signatures, known),
        )
        self.operators = Key(
            fingerprints(side_a, self.children_a, side_a.operators, known),
            fingerprints(side_b, self.children_b, side_b.operators, known),
        )
        self.keys = self._keys()
        self._module_a: list[int] = self.a.scope_module.tolist()
        self._module_b: list[int] = self.b.scope_module.tolist()
        self._calls_of_module: dict[int, list[int]] = defaultdict(list)
        for scope, module in enumerate(self._module_a):
            self._calls_of_module[module].append(scope)

    def _keys(self) -> tuple[Key, ...]:
        """By what the calls inside a matched pair are paired: strictest first, each for what those before left."""
        exact, operators = self.exact, self.operators
        labels = [name[0] for name in self.names_a], [name[0] for name in self.names_b]
        return (
            # the same operations and shapes under the same name: what did not change
            exact._replace(labels=labels),
            # the same operations and shapes with the same weights: of equal layers, the ones that moved
            exact._replace(by_weights=True),
            # the same operations and shapes, in order: renamed
            exact._replace(only_renamed=True),
            # the same operators under an index that changed: a wider layer behind an inserted one
            operators._replace(labels=labels, only_renumbered=True),
            # the same name and class: a layer with other contents
            Key(self.names_a, self.names_b, in_any_order=True),
            # the same last part of the name and class: a layer with other contents in a renamed list
            Key([last_part(name) for name in self.names_a], [last_part(name) for name in self.names_b]),
            # the same operators, if both have equally many of the class: renamed, with other shapes
            operators._replace(only_equal_counts=self.classes),
            # the same class, if both have equally many of it: renamed, with other contents
            Key(*self.classes, only_equal_counts=self.classes),
        )

    # --- from the outside in ---

    def descend(self, pairs: Pairs) -> None:
        """Match what is inside matched pairs, and inside these; what is only likely is kept for later."""
        stack = list(pairs)
        while stack:
            pair = stack.pop()
            stack += self.accept(self.pair_up(*self._calls_inside(*pair), self.keys))
            self.deferred += self._likely(*pair)

    def accept(self, pairs: Pairs) -> Pairs:
        """Match pairs, but no call with a container of what came from elsewhere; returns those that were matched."""
        accepted = []
        for scope, other in pairs:
            if self.to_b[scope] >= 0 or other in self.to_a:
                continue
            inside_b = [self.to_b[child] for child in self.children_a[scope] if self.to_b[child] >= 0]
            inside_a = [self.to_a[child] for child in self.children_b[other] if child in self.to_a]
            if all(is_inside(self.b, child, other) for child in inside_b) and all(
                is_inside(self.a, child, scope) for child in inside_a
            ):
                self._pair(scope, other)
                accepted.append((scope, other))
        return accepted

    def pair_up(self, calls_a: list[int], calls_b: list[int], keys: Iterable[Key]) -> Pairs:
        """Pairs of some calls that are equal by the first key, of the others by the next."""
        return _Pairing(self, calls_a, calls_b).run(keys)

    def _pair(self, scope: int, other: int) -> None:
        self.to_b[scope] = other
        self.to_a[other] = scope
        for parent, holds, inner in (
            (self.parent_a, self.holds_a, scope),
            (self.parent_b, self.holds_b, other),
        ):
            outer = parent[inner]
            while outer >= 0 and not holds[outer]:
                holds[outer] = True
                outer = parent[outer]

    def _unmatched_inside(self, scope: int, other: int) -> tuple[list[int], list[int]]:
        """The unmatched calls made directly inside two others."""
        return (
            [child for child in self.children_a[scope] if self.to_b[child] < 0],
            [child for child in self.children_b[other] if child not in self.to_a],
        )

    def _calls_inside(self, scope: int, other: int) -> tuple[list[int], list[int]]:
        """The calls inside two others; of unmatched containers that hold matched calls, also what is inside them.

        A container of all that one of them calls is looked into as well, if the other makes several calls.
        """
        children_a, children_b = self.children_a, self.children_b
        wraps_a = children_a[scope] if len(children_a[scope]) < 2 <= len(children_b[other]) else ()
        wraps_b = children_b[other] if len(children_b[other]) < 2 <= len(children_a[scope]) else ()
        return (
            _opened(children_a, scope, lambda s: self.to_b[s] < 0 and (self.holds_a[s] or s in wraps_a)),
            _opened(children_b, other, lambda s: s not in self.to_a and (self.holds_b[s] or s in wraps_b)),
        )

    def _likely(self, scope: int, other: int) -> Pairs:
        """What is left inside two: of another class under one name, or renamed and changed in the same position."""
        left_a, left_b = self._unmatched_inside(scope, other)
        labels_a, labels_b = [self.names_a[s][0] for s in left_a], [self.names_b[s][0] for s in left_b]
        pairs = [(left_a[a], left_b[b]) for a, b in in_any_order(labels_a, labels_b)]
        if len(left_a) == len(left_b) == 1:
            if self._are_in_position(*self._calls_inside(scope, other), left_a[0], left_b[0]):
                pairs.append((left_a[0], left_b[0]))
        return pairs

    def _are_in_position(self, calls_a: list[int], calls_b: list[int], scope: int, other: int) -> bool:
        """Whether two calls come after and before calls that are matched."""
        anchors_a, anchors_b = _anchors(self.to_b, calls_a, calls_b)
        keys_a = [True if call == scope else anchors_a.get(call, object()) for call in calls_a]
        keys_b = [True if call == other else anchors_b.get(call, object()) for call in calls_b]
        return (calls_a.index(scope), calls_b.index(other)) in common(keys_a, keys_b)

    def accept_likely(self) -> None:
        """Match what has a name or a position in common, and what is inside it."""
        while self.deferred:
            pairs, self.deferred = self.deferred, []
            self.descend(self.accept(pairs))

    def by_path(self) -> None:
        """Match calls of one path and number, whatever they are made inside of."""
        free = {
            call_key(self.b, scope): scope
            for scope in range(len(self.b.scope_call))
            if scope not in self.to_a
        }
        for scope in [scope for scope, other in enumerate(self.to_b) if other < 0]:
            other = free.pop(call_key(self.a, scope), -1)
            if other >= 0:
                self._pair(scope, other)

    # --- anywhere ---

    def take(self, pairs: Pairs) -> None:
        """Match pairs from anywhere, the outer ones first, and what is inside them with one another."""
        for pair in sorted(pairs):
            if self._is_in_order(*pair):
                self.descend(self.accept([pair]))

    def _is_in_order(self, scope: int, other: int) -> bool:
        """Whether the calls of the module nearby are matched with calls on the same side of the other."""
        calls = self._calls_of_module[self._module_a[scope]]
        index = bisect_left(calls, scope)
        before, after = calls[max(index - NEARBY, 0) : index][::-1], calls[index + 1 : index + 1 + NEARBY]
        for nearby, is_later in ((before, True), (after, False)):
            matched = (self.to_b[call] for call in nearby if self.to_b[call] >= 0)
            same_module = (call for call in matched if self._module_b[call] == self._module_b[other])
            nearest = next(same_module, other)
            if nearest != other and (other > nearest) != is_later:
                return False
        return True

    def _unmatched(self) -> tuple[list[int], list[int]]:
        owner_a, owner_b = self.side_a.owner, self.side_b.owner
        return (
            [scope for scope, other in enumerate(self.to_b) if other < 0 and owner_a[scope] == scope],
            [scope for scope in range(len(owner_b)) if scope not in self.to_a and owner_b[scope] == scope],
        )

    def by_weights(self) -> None:
        """Match calls that do the same with the same weights, under the same path first."""
        left_a, left_b = self._unmatched()
        exact_a, exact_b = [self.exact.a[s] for s in left_a], [self.exact.b[s] for s in left_b]
        if not set(exact_a) & set(exact_b):
            return
        keys_a = _with_weights(left_a, exact_a, self.weights_a)
        keys_b = _with_weights(left_b, exact_b, self.weights_b)
        paths_a = [(self.a.scope_paths[s], key) for s, key in zip(left_a, keys_a)]
        paths_b = [(self.b.scope_paths[s], key) for s, key in zip(left_b, keys_b)]
        pairs = in_any_order(paths_a, paths_b)
        keys_a, keys_b = _without(keys_a, (a for a, _ in pairs)), _without(keys_b, (b for _, b in pairs))
        ordered = common(keys_a, keys_b)
        pairs += [*ordered, *in_any_order(keys_a, keys_b, ordered)]
        self.take([(left_a[a], left_b[b]) for a, b in pairs])

    def unique_fingerprints(self) -> None:
        """Match the only calls that do something, in either of the runs."""
        left_a, left_b = self._unmatched()
        busy_a = [scope for scope in left_a if not self.is_empty_a[scope]]
        busy_b = [scope for scope in left_b if not self.is_empty_b[scope]]
        self.take(_unique_pairs(busy_a, busy_b, self.exact))

    def parents_of_matched(self) -> None:
        """Match calls of one class where all matched calls inside one have their counterparts inside the other.

        These have to be most of what has weights, as far as weights are known.
        """
        # how many calls inside one were matched when last counted
        matched_inside: dict[int, int] = {}
        # from the inside out
        for scope in reversed(self._unmatched()[0]):
            inside = [self.to_b[child] for child in self.children_a[scope] if self.to_b[child] >= 0]
            if len({self.parent_b[child] for child in inside}) != 1:
                continue
            other = self.parent_b[inside[0]]
            if self.classes[0][scope] != self.classes[1][other]:
                continue
            # counted again only if there are at least as many as last time: the count doubles, so work stays linear
            if matched_inside.get(other, 0) > len(inside):
                continue
            matched_inside[other] = sum(child in self.to_a for child in self.children_b[other])
            if matched_inside[other] != len(inside):
                continue
            with_digest = min(
                sum(self.weights_a.digest(child) is not None for child in self.children_a[scope]),
                sum(self.weights_b.digest(child) is not None for child in self.children_b[other]),
            )
            if 2 * sum(self.weights_b.has(child) for child in inside) > with_digest:
                self.take([(scope, other)])

    def unique_containers(self) -> None:
        """Match the only containers of a class, if most of what one of them calls is also called by the other."""
        left_a, left_b = self._unmatched()
        containers_a = [scope for scope in left_a if self.children_a[scope]]
        containers_b = [scope for scope in left_b if self.children_b[scope]]
        pairs = []
        for scope, other in _unique_pairs(containers_a, containers_b, Key(*self.classes)):
            calls_a = Counter(self.operators.a[child] for child in self.children_a[scope])
            calls_b = Counter(self.operators.b[child] for child in self.children_b[other])
            if 2 * (calls_a & calls_b).total() > min(calls_a.total(), calls_b.total()):
                pairs.append((scope, other))
        self.take(pairs)

    def whole_models(self) -> None:
        """Match the only calls that the two runs make, and have not matched yet."""
        left_a, left_b = self._unmatched_inside(0, 0)
        if len(left_a) == len(left_b) == 1:
            self.take([(left_a[0], left_b[0])])

    def inside_again(self) -> None:
        """Match what is left inside matched pairs: unmatched containers in them may hold matched calls by now."""
        left_a, left_b = self._unmatched()
        outer_a = {self.parent_a[scope] for scope in left_a if self.to_b[self.parent_a[scope]] >= 0}
        outer_b = {self.parent_b[scope] for scope in left_b if self.parent_b[scope] in self.to_a}
        pairs = [(scope, self.to_b[scope]) for scope in sorted(outer_a)]
        self.descend([pair for pair in pairs if pair[1] in outer_b])

    def by_fingerprint(self) -> None:
        """Match what does the same: under the same path, then in order between the calls that are matched."""
        for key in (self.exact, self.operators._replace(only_equal_counts=self.classes)):
            # under the same path it is the same, whatever else is equal
            with_paths = list(zip(self.a.scope_paths, key.a)), list(zip(self.b.scope_paths, key.b))
            self._in_order(Key(*with_paths, in_any_order=True))
            if key is self.exact:
                self._note_unequal_counts(key)
            busy_a = [object() if empty else row for row, empty in zip(key.a, self.is_empty_a)]
            busy_b = [object() if empty else row for row, empty in zip(key.b, self.is_empty_b)]
            self._in_order(key._replace(a=busy_a, b=busy_b))

    def _in_order(self, key: Key) -> None:
        left_a, left_b = self._unmatched()
        keys_a, keys_b = {key.a[scope] for scope in left_a}, {key.b[scope] for scope in left_b}
        if keys_a & keys_b:
            calls_a = [s for s, other in enumerate(self.to_b) if other >= 0 or key.a[s] in keys_b]
            calls_b = [s for s in range(len(key.b)) if s in self.to_a or key.b[s] in keys_a]
            self.take(self.pair_up(calls_a, calls_b, (key,)))

    # --- what only indices tell apart ---

    def note_ambiguous(
        self, calls_a: list[int], calls_b: list[int], keys_a: list[Any], keys_b: list[Any]
    ) -> None:
        """Record calls with weights and equal keys of which one run has more."""
        groups: dict[Any, AmbiguousGroup] = {}
        for scope, key in zip(calls_a, keys_a):
            if self.weights_a.has(scope):
                groups.setdefault(key, AmbiguousGroup([], [])).a.append(scope)
        for scope, key in zip(calls_b, keys_b):
            if self.weights_b.has(scope):
                groups.setdefault(key, AmbiguousGroup([], [])).b.append(scope)
        for group in groups.values():
            if group.a and group.b and len(group.a) != len(group.b):
                self.ambiguous[group.a[0]] = group

    def _note_unequal_counts(self, key: Key) -> None:
        """Record what one run has more of, and is about to be matched in order; not what is inside it."""
        left_a, left_b = self._unmatched()
        count_a, count_b = Counter(key.a[s] for s in left_a), Counter(key.b[s] for s in left_b)
        unequal = {k for k in count_a.keys() & count_b.keys() if count_a[k] != count_b[k]}

        def outermost(scopes: list[int], keys: Any, side: Side) -> list[int]:
            parents = side.graph.scope_parent
            return [
                scope
                for scope in scopes
                if keys[scope] in unequal and keys[side.owner[int(parents[scope])]] not in unequal
            ]

        calls_a, calls_b = outermost(left_a, key.a, self.side_a), outermost(left_b, key.b, self.side_b)
        self.note_ambiguous(calls_a, calls_b, [key.a[s] for s in calls_a], [key.b[s] for s in calls_b])


PASSES = (
    MatchingPass(
        "inside matched calls",
        "calls inside two matched ones, from the whole run inwards, by the keys of ModuleMatcher._keys",
        "encoder.layers.3 in both runs; the same layer under another name",
        lambda matcher: matcher.descend([(0, 0)]),
    ),
    MatchingPass(
        "equal weights",
        "calls anywhere that do the same with the same weights",
        "a block that was put into a Sequential",
        lambda matcher: matcher.by_weights(),
    ),
    MatchingPass(
        "unique fingerprint",
        "calls anywhere that do what no other call does",
        "the one Conv2d of a model, wrapped, in a run that kept no weights",
        lambda matcher: matcher.unique_fingerprints(),
    ),
    MatchingPass(
        "parents of matched calls",
        "calls of one class whose matched children are children of the other",
        "an encoder that was wrapped, and one of whose layers changed",
        lambda matcher: matcher.parents_of_matched(),
    ),
    MatchingPass(
        "unique containers",
        "the only containers of a class, if most of what they call is equal",
        "a decoder that was moved, with a layer more",
        lambda matcher: matcher.unique_containers(),
    ),
    MatchingPass(
        "whole models",
        "the only unmatched calls directly inside the two runs",
        "two models of different classes",
        lambda matcher: matcher.whole_models(),
    ),
    MatchingPass(
        "inside matched calls again",
        "calls inside matched ones, containers that hold matched calls looked into",
        "a new layer beside one that was wrapped",
        lambda matcher: matcher.inside_again(),
    ),
    MatchingPass(
        "equal fingerprint",
        "calls anywhere that do the same: under the same path, then in order between matched calls",
        "twelve equal activations, each moved into its layer",
        lambda matcher: matcher.by_fingerprint(),
    ),
    MatchingPass(
        "likely",
        "calls inside matched ones with nothing but a name or a position in common",
        "act: ReLU, now GELU; the only layer between two matched ones",
        lambda matcher: matcher.accept_likely(),
    ),
    MatchingPass(
        "equal path",
        "calls of one path and number that are made inside different ones",
        "a capture by torch.fx, which leaves containers out",
        lambda matcher: matcher.by_path(),
    ),
)


class _Anchor(NamedTuple):
    """The key that two matched calls share, by the index of the first."""

    scope: int

    @property
    def label(self) -> str:
        """A name for both, which ends in an index, so that it keeps its position among others that do."""
        return f"matched.{self.scope}"


def _anchors(
    to_b: list[int], calls_a: list[int], calls_b: list[int]
) -> tuple[dict[int, _Anchor], dict[int, _Anchor]]:
    """A shared key for matched calls that are both among some."""
    among_b = set(calls_b)
    pairs = [(scope, to_b[scope]) for scope in calls_a if to_b[scope] in among_b]
    return {a: _Anchor(a) for a, _ in pairs}, {b: _Anchor(a) for a, b in pairs}


class _Pairing:
    """Pairs some calls of two runs by one key after another; matched ones keep their position among them."""

    def __init__(self, matcher: ModuleMatcher, calls_a: list[int], calls_b: list[int]) -> None:
        self.matcher, self.calls_a, self.calls_b = matcher, calls_a, calls_b
        self.anchors_a, self.anchors_b = _anchors(matcher.to_b, calls_a, calls_b)
        self.free_a = {scope for scope in calls_a if matcher.to_b[scope] < 0}
        self.free_b = {scope for scope in calls_b if scope not in matcher.to_a}

    def run(self, keys: Iterable[Key]) -> Pairs:
        """Pairs that are equal by the first key, of the others by the next."""
        pairs: Pairs = []
        for key in keys:
            if not self.free_a or not self.free_b:
                break
            left_a = [scope for scope in self.calls_a if scope in self.free_a or scope in self.anchors_a]
            left_b = [scope for scope in self.calls_b if scope in self.free_b or scope in self.anchors_b]
            indices = self._equal(key, left_a, left_b)
            new = [(left_a[a], left_b[b]) for a, b in indices if left_a[a] in self.free_a]
            self.free_a -= {a for a, _ in new}
            self.free_b -= {b for _, b in new}
            pairs += new
        return pairs

    def _equal(self, key: Key, left_a: list[int], left_b: list[int]) -> Pairs:
        """The indices, among what is left, of calls that are equal by a key."""
        keys_a = [self.anchors_a.get(scope) or key.a[scope] for scope in left_a]
        keys_b = [self.anchors_b.get(scope) or key.b[scope] for scope in left_b]
        if key.only_equal_counts is not None:
            keys_a = self._if_equal_counts(key.only_equal_counts, left_a, keys_a)
        if key.only_renamed:
            keys_a, keys_b = self._only_renamed(left_a, left_b, keys_a, keys_b)
        if key.labels is not None:
            labels = with_lists_renamed(
                _labels(key.labels[0], self.anchors_a, left_a), _labels(key.labels[1], self.anchors_b, left_b)
            )
            if key.only_renumbered:
                keys_a, keys_b = only_renumbered(labels, keys_a, keys_b)
            pairs = self._by_label(left_a, left_b, keys_a, keys_b, labels)
        elif key.by_weights:
            pairs = self._by_weights(left_a, left_b, keys_a, keys_b)
        else:
            pairs = common(keys_a, keys_b)
        return [*pairs, *(in_any_order(keys_a, keys_b, pairs) if key.in_any_order else ())]

    def _if_equal_counts(self, kinds: tuple[Any, Any], left_a: list[int], keys_a: list[Any]) -> list[Any]:
        """The same keys, unlike all others for kinds of which one run has more."""
        count_a = Counter(kinds[0][scope] for scope in self.free_a)
        count_b = Counter(kinds[1][scope] for scope in self.free_b)
        return [
            key
            if scope in self.anchors_a or count_a[kinds[0][scope]] == count_b[kinds[0][scope]]
            else object()
            for key, scope in zip(keys_a, left_a)
        ]

    def _only_renamed(
        self, left_a: list[int], left_b: list[int], keys_a: list[Any], keys_b: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The keys of calls; with their weights for those whose name, if it is no index, and class are in both."""
        matcher = self.matcher
        names_a, names_b = (
            [names[scope] for scope in left]
            for names, left in ((matcher.names_a, left_a), (matcher.names_b, left_b))
        )
        both = {name for name in {*names_a} & {*names_b} if not is_index(name[0])}
        weighted_a = _with_weights(left_a, keys_a, matcher.weights_a)
        weighted_b = _with_weights(left_b, keys_b, matcher.weights_b)
        return (
            [row if name in both else key for key, row, name in zip(keys_a, weighted_a, names_a)],
            [row if name in both else key for key, row, name in zip(keys_b, weighted_b, names_b)],
        )

    def _by_label(
        self,
        left_a: list[int],
        left_b: list[int],
        keys_a: list[Any],
        keys_b: list[Any],
        labels: tuple[list[str], list[str]],
    ) -> Pairs:
        """Indices of what has equal keys: by name, whatever the order; an index for a name is a position too.

        So of those with indices the order counts, if it leaves nothing over and the indices do. Where one run has
        more of them, weights tell which of them the other has.
        """
        labelled_a, labelled_b = list(zip(labels[0], keys_a)), list(zip(labels[1], keys_b))
        pairs = common(labelled_a, labelled_b)
        pairs = [*pairs, *in_any_order(labelled_a, labelled_b, pairs)]
        pairs = self._put_right(pairs, left_a, left_b, keys_a)
        indexed_a, indexed_b = (
            [index for index, label in enumerate(names) if is_index(label)] for names in labels
        )
        if not indexed_a or not indexed_b:
            return pairs
        of_a, of_b = [keys_a[index] for index in indexed_a], [keys_b[index] for index in indexed_b]
        counts_a, counts_b = Counter(of_a), Counter(of_b)
        both = counts_a.keys() & counts_b.keys()
        most = sum(min(counts_a[key], counts_b[key]) for key in both)
        named = [pair for pair in pairs if not is_index(labels[0][pair[0]])]
        if any(counts_a[key] != counts_b[key] for key in both):
            calls_a, calls_b = [left_a[index] for index in indexed_a], [left_b[index] for index in indexed_b]
            by_weights = self._by_weights(calls_a, calls_b, of_a, of_b)
            if by_weights:
                return named + [(indexed_a[a], indexed_b[b]) for a, b in by_weights]
            self.matcher.note_ambiguous(calls_a, calls_b, of_a, of_b)
        if len(pairs) - len(named) == most:
            return pairs
        ordered = common(of_a, of_b)
        if len(ordered) < most:
            return pairs
        return named + [(indexed_a[a], indexed_b[b]) for a, b in ordered]

    def _put_right(self, pairs: Pairs, left_a: list[int], left_b: list[int], keys_a: list[Any]) -> Pairs:
        """The same, but what has changed places goes where its weights are: ``k`` and ``v`` that were swapped.

        That is so where the weights of a pair differ, and each of the two has those of another such pair's partner.
        """
        counts = Counter(keys_a[a] for a, _ in pairs)
        weights_a, weights_b = self.matcher.weights_a, self.matcher.weights_b
        digests = {
            (a, b): (weights_a.digest(left_a[a]), weights_b.digest(left_b[b]))
            for a, b in pairs
            if counts[keys_a[a]] > 1 and left_a[a] in self.free_a
        }
        wrong = [pair for pair, (digest_a, digest_b) in digests.items() if None not in (digest_a, digest_b)]
        wrong = [pair for pair in wrong if digests[pair][0] != digests[pair][1]]
        at_a = _once((keys_a[a], digests[a, b][0], a) for a, b in wrong)
        at_b = _once((keys_a[a], digests[a, b][1], b) for a, b in wrong)
        right = {a: at_b[key] for key, a in at_a.items() if key in at_b}
        moved_b = set(right.values())
        # only where all of them find their places: the others would have to go somewhere
        if {b for a, b in wrong if a in right} != moved_b:
            return pairs
        return [(a, right.get(a, b)) for a, b in pairs]

    def _by_weights(
        self, calls_a: list[int], calls_b: list[int], keys_a: list[Any], keys_b: list[Any]
    ) -> Pairs:
        """Indices of what has equal keys and weights, and of what has equal keys between; none where none has."""
        if not _repeated_in_both(keys_a, keys_b):
            return []
        weighted_a = _with_weights(calls_a, keys_a, self.matcher.weights_a)
        weighted_b = _with_weights(calls_b, keys_b, self.matcher.weights_b)
        ordered = common(weighted_a, weighted_b)
        moved = in_any_order(weighted_a, weighted_b, ordered)
        if not any(self._has_equal_weights(weighted_a[a]) for a, _ in [*ordered, *moved]):
            return []
        keys_a, keys_b = _without(keys_a, (a for a, _ in moved)), _without(keys_b, (b for _, b in moved))
        pairs = list(moved)
        last_a = last_b = 0
        for a, b in [*ordered, (len(keys_a), len(keys_b))]:
            between = common(keys_a[last_a:a], keys_b[last_b:b])
            pairs += [(last_a + inner_a, last_b + inner_b) for inner_a, inner_b in between]
            pairs += [(a, b)] if a < len(keys_a) else []
            last_a, last_b = a + 1, b + 1
        return pairs

    def _has_equal_weights(self, key: Any) -> bool:
        """Whether it is by their weights that two calls have this key."""
        if not isinstance(key, _Anchor):
            return True
        matcher = self.matcher
        digest = matcher.weights_a.digest(key.scope)
        return digest is not None and digest == matcher.weights_b.digest(matcher.to_b[key.scope])


def _once(rows: Iterable[tuple[Any, Any, int]]) -> dict[tuple[Any, Any], int]:
    """By key and digest the index of the call that has them, if it is the only one."""
    indices: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for key, digest, index in rows:
        indices[key, digest].append(index)
    return {key: matches[0] for key, matches in indices.items() if len(matches) == 1}


def _opened(children: list[list[int]], outer: int, is_open: Callable[[int], bool]) -> list[int]:
    """The calls made directly inside another, each followed by what is inside it where it is open."""
    calls: list[int] = []
    stack = [(scope, 0) for scope in reversed(children[outer])]
    while stack:
        scope, level = stack.pop()
        calls.append(scope)
        if level < MOST_LEVELS and is_open(scope):
            stack += [(inner, level + 1) for inner in reversed(children[scope])]
    return calls


def _labels(labels: Any, anchors: dict[int, _Anchor], scopes: list[int]) -> list[str]:
    return [anchors[scope].label if scope in anchors else labels[scope] for scope in scopes]


def _with_weights(scopes: list[int], keys: list[Any], weights: CallWeights) -> list[Any]:
    """Keys of calls with their weights; those whose weights are unknown are unlike all others."""
    digests = [weights.digest(scope) for scope in scopes]
    return [
        key if isinstance(key, _Anchor) else object() if digest is None else (key, digest)
        for key, digest in zip(keys, digests)
    ]


def _without(keys: list[Any], indices: Iterable[int]) -> list[Any]:
    """The same keys, unlike all others at some indices."""
    keys = list(keys)
    for index in indices:
        keys[index] = object()
    return keys


def _repeated_in_both(keys_a: list[Any], keys_b: list[Any]) -> bool:
    """Whether both have a key that one of them has more than once, so that the key is ambiguous."""
    counts_a, counts_b = Counter(keys_a), Counter(keys_b)
    return any(counts_a[key] > 1 or counts_b[key] > 1 for key in counts_a.keys() & counts_b.keys())


def _unique_pairs(left_a: list[int], left_b: list[int], key: Key) -> Pairs:
    """Pairs of calls whose key each run has once."""
    count_a, count_b = Counter(key.a[scope] for scope in left_a), Counter(key.b[scope] for scope in left_b)
    scope_b: dict[Any, int] = {key.b[scope]: scope for scope in left_b}
    return [
        (scope, scope_b[key.a[scope]])
        for scope in left_a
        if count_a[key.a[scope]] == count_b[key.a[scope]] == 1
    ]
