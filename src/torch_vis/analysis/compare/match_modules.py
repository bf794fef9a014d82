"""Which call of a module in one run became which in another, from the outside in."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.module_keys import (
    Contents,
    Key,
    as_many,
    calls_around,
    calls_inside,
    classes_of,
    ending,
    fingerprints,
    if_numbers_changed,
    is_in,
    is_number,
    lists_renamed,
    names_of,
    place_of,
)
from torch_vis.analysis.compare.sequence_diff import common, in_any_order
from torch_vis.analysis.compare.sides import Side


class Anchor(NamedTuple):
    """What two calls have in common that belong together already, by the number of the first."""

    scope: int

    @property
    def label(self) -> str:
        """What to call both: as one has to have a number for a name that has its place among others that have."""
        return f"matched.{self.scope}"


def anchors(found: Any, rows_a: list[int], rows_b: list[int]) -> tuple[dict[int, Anchor], dict[int, Anchor]]:
    """Of calls that belong together already, and are both among some, what is equal for the two."""
    theirs = set(rows_b)
    pairs = [(scope, int(found[scope])) for scope in rows_a if found[scope] in theirs]
    return {one: Anchor(one) for one, _ in pairs}, {two: Anchor(one) for one, two in pairs}


class Pairing:
    """Some calls of two runs; those that belong together already keep their place, and the order counts between."""

    def __init__(self, matching: Matching, rows_a: list[int], rows_b: list[int]) -> None:
        self.matching, self.rows_a, self.rows_b = matching, rows_a, rows_b
        self.known_a, self.known_b = anchors(matching.found, rows_a, rows_b)
        self.free_a = {scope for scope in rows_a if matching.found[scope] < 0}
        self.free_b = {scope for scope in rows_b if scope not in matching.came_from}

    def run(self, keys: Iterable[Key]) -> list[tuple[int, int]]:
        """Pairs of calls that are alike by the first key, of the others by the next."""
        found: list[tuple[int, int]] = []
        for key in keys:
            if not self.free_a or not self.free_b:
                break
            left_a = [scope for scope in self.rows_a if scope in self.free_a or scope in self.known_a]
            left_b = [scope for scope in self.rows_b if scope in self.free_b or scope in self.known_b]
            places = self._places(key, left_a, left_b)
            pairs = [(left_a[one], left_b[two]) for one, two in places if left_a[one] in self.free_a]
            self.free_a -= {one for one, _ in pairs}
            self.free_b -= {two for _, two in pairs}
            found += pairs
        return found

    def _places(self, key: Key, left_a: list[int], left_b: list[int]) -> list[tuple[int, int]]:
        """The places, among those that are left, of what is alike by a key."""
        here = [self.known_a.get(scope) or key.a[scope] for scope in left_a]
        there = [self.known_b.get(scope) or key.b[scope] for scope in left_b]
        if key.if_as_many is not None:
            here = self._if_as_many(key.if_as_many, left_a, here)
        if key.names is not None:
            names = lists_renamed(
                _labels(key.names[0], self.known_a, left_a), _labels(key.names[1], self.known_b, left_b)
            )
            if key.if_numbers_changed:
                here, there = if_numbers_changed(names, here, there)
            places = self._by_name(left_a, left_b, here, there, names)
        elif key.weights:
            places = self._by_weights(left_a, left_b, here, there)
        else:
            places = common(here, there)
        return [*places, *(in_any_order(here, there, places) if key.in_any_order else ())]

    def _if_as_many(self, kinds: tuple[Any, Any], left_a: list[int], here: list[Any]) -> list[Any]:
        """The same keys, unlike all others for that of which there are not as many in both."""
        alike = as_many(
            [kinds[0][scope] for scope in self.free_a], [kinds[1][scope] for scope in self.free_b]
        )
        return [
            one if scope in self.known_a or kinds[0][scope] in alike else object()
            for one, scope in zip(here, left_a)
        ]

    def _by_name(
        self,
        left_a: list[int],
        left_b: list[int],
        here: list[Any],
        there: list[Any],
        names: tuple[list[str], list[str]],
    ) -> list[tuple[int, int]]:
        """Places of what is alike: by name, whatever the order, but where a name is a number, that is a place as well.

        So of those with numbers the order counts, if it leaves nothing over and the numbers do. Where there are
        more of them in one run, weights tell which of them the others have.
        """
        pairs = [*common(list(zip(names[0], here)), list(zip(names[1], there)))]
        pairs += in_any_order(list(zip(names[0], here)), list(zip(names[1], there)), pairs)
        numbered_a, numbered_b = (
            [place for place, name in enumerate(side) if is_number(name)] for side in names
        )
        if not numbered_a or not numbered_b:
            return pairs
        of_a, of_b = [here[place] for place in numbered_a], [there[place] for place in numbered_b]
        counts_a, counts_b = Counter(of_a), Counter(of_b)
        both = counts_a.keys() & counts_b.keys()
        most = sum(min(counts_a[one], counts_b[one]) for one in both)
        named = [pair for pair in pairs if not is_number(names[0][pair[0]])]
        if any(counts_a[one] != counts_b[one] for one in both):
            rows = [left_a[place] for place in numbered_a], [left_b[place] for place in numbered_b]
            told = self._by_weights(*rows, of_a, of_b)
            if told:
                return named + [(numbered_a[one], numbered_b[two]) for one, two in told]
            self.matching.note(*rows, of_a, of_b)
        if len(pairs) - len(named) == most:
            return pairs
        ordered = common(of_a, of_b)
        if len(ordered) < most:
            return pairs
        return named + [(numbered_a[one], numbered_b[two]) for one, two in ordered]

    def _by_weights(
        self, rows_a: list[int], rows_b: list[int], of_a: list[Any], of_b: list[Any]
    ) -> list[tuple[int, int]]:
        """Places of what is alike and has equal weights, and of what is alike between; none where none has."""
        if not _several_in_both(of_a, of_b):
            return []
        told_a, told_b = self.matching.told(rows_a, of_a, 0), self.matching.told(rows_b, of_b, 1)
        anchors = common(told_a, told_b)
        moved = in_any_order(told_a, told_b, anchors)
        of_a, of_b = _without(of_a, [one for one, _ in moved]), _without(of_b, [two for _, two in moved])
        found = list(moved)
        last_a = last_b = 0
        if not any(self._is_told(told_a[one]) for one, _ in [*anchors, *moved]):
            return []
        for one, two in [*anchors, (len(of_a), len(of_b))]:
            between = common(of_a[last_a:one], of_b[last_b:two])
            found += [(last_a + here, last_b + there) for here, there in between]
            found += [(one, two)] if one < len(of_a) else []
            last_a, last_b = one + 1, two + 1
        return found

    def _is_told(self, told: Any) -> bool:
        """Whether it is by their weights that two calls belong together."""
        if not isinstance(told, Anchor):
            return True
        one, two = self.matching.contents
        weights = one.of(told.scope)
        return weights is not None and weights == two.of(int(self.matching.found[told.scope]))


def _labels(names: Any, known: dict[int, Anchor], scopes: list[int]) -> list[str]:
    return [known[scope].label if scope in known else names[scope] for scope in scopes]


def _several_in_both(here: list[Any], there: list[Any]) -> bool:
    """Whether there is anything in both that is in one of them more than once, so that it does not tell which it is."""
    counts_a, counts_b = Counter(here), Counter(there)
    return any(counts_a[one] > 1 or counts_b[one] > 1 for one in counts_a.keys() & counts_b.keys())


def _without(of: list[Any], places: list[int]) -> list[Any]:
    """The same, with something unlike all else in some places."""
    found = list(of)
    for place in places:
        found[place] = object()
    return found


DEEPEST = (
    4  # containers in containers that are looked into at once, so that all of them together take linear time
)


class Alike(NamedTuple):
    """Calls that nothing but their numbers tells apart, more of them in one run than in the other."""

    a: list[int]
    b: list[int]


Weights = Callable[[int], Any]
"""For a value what its contents can be told by, equal where they are; None where they say nothing."""


def match_calls(
    one: Side, two: Side, known: dict[Any, int], weights: tuple[Weights, Weights] | None = None
) -> tuple[Any, list[Alike]]:
    """For each call of ``one`` the call of ``two`` that it became, -1 for none; and those that were matched by number.

    Where there are more of what is alike in one run than in the other, equal weights tell which of them is new.
    """
    matching = Matching(one, two, known, weights)
    matching.descend([(0, 0)])
    # before a call counts as one that was changed: it may be the same, wrapped or taken out
    match_elsewhere(matching)
    while matching.deferred:
        pairs, matching.deferred = matching.deferred, []
        matching.descend(matching.accept(pairs))
    matching.match_places()
    return matching.found, list(matching.unsure.values())


class Matching:
    """The calls of two graphs that belong together so far."""

    def __init__(
        self, one: Side, two: Side, known: dict[Any, int], weights: tuple[Weights, Weights] | None
    ) -> None:
        self.one, self.two = one, two
        self.unsure: dict[int, Alike] = {}
        """By the first of them in ``a``."""
        self.a, self.b = one.graph, two.graph
        self.inside_a, self.inside_b = calls_inside(one), calls_inside(two)
        self.around_a, self.around_b = calls_around(self.inside_a), calls_around(self.inside_b)
        self.hold_a, self.hold_b = [False] * len(self.inside_a), [False] * len(self.inside_b)
        """Whether a call that belongs together with another is made inside each."""
        self.classes = classes_of(self.a), classes_of(self.b)
        (
            self.exact,
            self.operators,
        ) = (  # what forward does: by all that is known of operations, and by their operators
            Key(
                fingerprints(one, self.inside_a, told_a, known),
                fingerprints(two, self.inside_b, told_b, known),
            )
            for told_a, told_b in ((one.exactly, two.exactly), (one.operators, two.operators))
        )
        self.contents = tuple(
            Contents(side, inside, read, known)
            for side, inside, read in zip((one, two), (self.inside_a, self.inside_b), weights or (None, None))
        )
        self.names = names_of(self.a), names_of(self.b)
        self.keys = self._keys()
        self.found = np.full(len(self.a.scope_call), -1, dtype=np.int64)
        self.found[0] = 0
        self.came_from = {0: 0}
        self.deferred: list[tuple[int, int]] = []

    def _keys(self) -> tuple[Key, ...]:
        exact, operators = self.exact, self.operators
        names_a, names_b = self.names
        labels = [name[0] for name in names_a], [name[0] for name in names_b]
        return (
            exact._replace(names=labels),
            exact._replace(weights=True),
            exact,
            operators._replace(names=labels, if_numbers_changed=True),
            Key(names_a, names_b, in_any_order=True),
            Key([ending(name) for name in names_a], [ending(name) for name in names_b]),
            operators._replace(if_as_many=self.classes),
            Key(*self.classes, if_as_many=self.classes),
        )

    def descend(self, pairs: list[tuple[int, int]]) -> None:
        """Match what is inside pairs that belong together, and inside those; keep what is only likely for later."""
        stack = list(pairs)
        while stack:
            pair = stack.pop()
            stack += self.pair_inside(*pair)
            self.deferred += self.likely(*pair)

    def _take(self, here: int, there: int) -> None:
        self.found[here] = there
        self.came_from[there] = here
        for around, hold, scope in ((self.around_a, self.hold_a, here), (self.around_b, self.hold_b, there)):
            scope = around[scope]
            while scope >= 0 and not hold[scope]:
                hold[scope] = True
                scope = around[scope]

    def left(self, here: int, there: int) -> tuple[list[int], list[int]]:
        """The calls made directly inside two others that have no counterpart yet."""
        left_a = [scope for scope in self.inside_a[here] if self.found[scope] < 0]
        return left_a, [scope for scope in self.inside_b[there] if scope not in self.came_from]

    def pair_inside(self, here: int, there: int) -> list[tuple[int, int]]:
        """Match the calls inside two that belong together."""
        return self.accept(self.pair_up(*self._rows(here, there), self.keys))

    def _rows(self, here: int, there: int) -> tuple[list[int], list[int]]:
        """The calls inside two others, and those inside containers that have no counterpart, but hold what has.

        A container of all that one of them calls is looked into as well, if the other makes several calls.
        """
        inside_a, inside_b = self.inside_a, self.inside_b
        only_a = inside_a[here] if len(inside_a[here]) < 2 <= len(inside_b[there]) else ()
        only_b = inside_b[there] if len(inside_b[there]) < 2 <= len(inside_a[here]) else ()
        return (
            _opened(inside_a, here, lambda s: self.found[s] < 0 and (self.hold_a[s] or s in only_a)),
            _opened(inside_b, there, lambda s: s not in self.came_from and (self.hold_b[s] or s in only_b)),
        )

    def likely(self, here: int, there: int) -> list[tuple[int, int]]:
        """What is left inside two: of another class under the same name, or renamed and changed in the same place."""
        left_a, left_b = self.left(here, there)
        names_a, names_b = (
            [names[scope][0] for scope in left] for names, left in zip(self.names, (left_a, left_b))
        )
        pairs = [(left_a[one], left_b[two]) for one, two in in_any_order(names_a, names_b)]
        only = left_a[:1] + left_b[:1] if len(left_a) == len(left_b) == 1 else None
        if only and self._are_in_place(*self._rows(here, there), *only):
            pairs.append((only[0], only[1]))
        return pairs

    def _are_in_place(self, rows_a: list[int], rows_b: list[int], here: int, there: int) -> bool:
        """Whether two of some calls come after and before those that belong together."""
        known_a, known_b = anchors(self.found, rows_a, rows_b)
        keys_a = [True if scope == here else known_a.get(scope, object()) for scope in rows_a]
        keys_b = [True if scope == there else known_b.get(scope, object()) for scope in rows_b]
        return (rows_a.index(here), rows_b.index(there)) in common(keys_a, keys_b)

    def accept(self, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Match pairs, but no call with a container of what came from elsewhere."""
        accepted = []
        for here, there in pairs:
            if self.found[here] >= 0 or there in self.came_from:
                continue
            went = [int(self.found[scope]) for scope in self.inside_a[here] if self.found[scope] >= 0]
            came = [self.came_from[scope] for scope in self.inside_b[there] if scope in self.came_from]
            if all(is_in(self.b, s, there) for s in went) and all(is_in(self.a, s, here) for s in came):
                self._take(here, there)
                accepted.append((here, there))
        return accepted

    def pair_up(self, rows_a: list[int], rows_b: list[int], keys: Iterable[Key]) -> list[tuple[int, int]]:
        """Pairs of calls that are alike by the first key, of the others by the next."""
        return Pairing(self, rows_a, rows_b).run(keys)

    def told(self, rows: list[int], of: list[Any], place: int) -> list[Any]:
        """What calls can be told by, with their weights; those whose weights say nothing are unlike all others."""
        held = [self.contents[place].of(scope) for scope in rows]
        return [
            one if isinstance(one, Anchor) else object() if weights is None else (one, weights)
            for one, weights in zip(of, held)
        ]

    def note(self, rows_a: list[int], rows_b: list[int], of_a: list[Any], of_b: list[Any]) -> None:
        """Keep in mind what has weights, but is known by its number alone."""
        alike: dict[Any, Alike] = {}
        for place, (rows, of) in enumerate(((rows_a, of_a), (rows_b, of_b))):
            for scope, one in zip(rows, of):
                if self.contents[place].has(scope):
                    alike.setdefault(one, Alike([], []))[place].append(scope)
        for both in alike.values():
            if both.a and both.b and len(both.a) != len(both.b):
                self.unsure[both.a[0]] = both

    def match_places(self) -> None:
        """Match what was called from elsewhere, but is the same call by its whole path: fx leaves containers out."""
        rest = {
            place_of(self.b, scope): scope
            for scope in range(len(self.b.scope_call))
            if scope not in self.came_from
        }
        for scope in np.flatnonzero(self.found < 0).tolist():
            there = rest.pop(place_of(self.a, scope), -1)
            if there >= 0:
                self._take(scope, there)


def _opened(inside: list[list[int]], outer: int, is_open: Callable[[int], bool]) -> list[int]:
    """The calls made directly inside another, each followed by what is inside it where it is open."""
    found: list[int] = []
    stack = [(scope, 0) for scope in reversed(inside[outer])]
    while stack:
        scope, depth = stack.pop()
        found.append(scope)
        if depth < DEEPEST and is_open(scope):
            stack += [(inner, depth + 1) for inner in reversed(inside[scope])]
    return found


NEAR = 8  # calls of a module, before and after one, among which to look for one that has a counterpart


def match_elsewhere(matching: Matching) -> None:
    """Match what is left, the surest first: each pair from the outside in, with what is inside it.

    What does the same and has the same weights, or is the only one that does it; then the containers of most of the
    same, and the models as a whole, so that names and places inside them count; then what does the same.
    """
    elsewhere = _Elsewhere(matching)
    elsewhere.by_weights()
    elsewhere.only_ones()
    elsewhere.around_the_same()
    elsewhere.containers()
    left_a, left_b = matching.left(0, 0)
    if len(left_a) == len(left_b) == 1:
        elsewhere.take([(left_a[0], left_b[0])])
    elsewhere.once_more()
    elsewhere.by_what_they_do()


class _Elsewhere:
    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.module_a: list[int] = matching.a.scope_module.tolist()
        self.module_b: list[int] = matching.b.scope_module.tolist()
        self.calls: dict[int, list[int]] = defaultdict(list)
        for scope, module in enumerate(self.module_a):
            self.calls[module].append(scope)

    def take(self, pairs: list[tuple[int, int]]) -> None:
        """Match pairs, the outer ones first, and what is inside them with one another."""
        for pair in sorted(pairs):
            if self._is_in_order(*pair):
                self.matching.descend(self.matching.accept([pair]))

    def _is_in_order(self, here: int, there: int) -> bool:
        """Whether the calls of a module just before and after one are matched with calls before and after the other."""
        found, calls = self.matching.found, self.calls[self.module_a[here]]
        at = bisect_left(calls, here)
        for near, is_later in (
            (calls[max(at - NEAR, 0) : at][::-1], True),
            (calls[at + 1 : at + 1 + NEAR], False),
        ):
            others = (int(found[scope]) for scope in near if found[scope] >= 0)
            other = next((one for one in others if self.module_b[one] == self.module_b[there]), there)
            if other != there and (there > other) != is_later:
                return False
        return True

    def _left(self) -> tuple[list[int], list[int]]:
        found = self.matching
        left_a = [s for s, to in enumerate(found.found.tolist()) if to < 0 and found.one.solid[s] == s]
        solid = found.two.solid
        return left_a, [s for s in range(len(solid)) if s not in found.came_from and solid[s] == s]

    def by_weights(self) -> None:
        """Match what does the same with the same weights, under the same path first."""
        found = self.matching
        left_a, left_b = self._left()
        exact_a, exact_b = [found.exact.a[s] for s in left_a], [found.exact.b[s] for s in left_b]
        if not set(exact_a) & set(exact_b):
            return
        told_a, told_b = found.told(left_a, exact_a, 0), found.told(left_b, exact_b, 1)
        paths_a = [(found.a.scope_paths[s], told) for s, told in zip(left_a, told_a)]
        paths_b = [(found.b.scope_paths[s], told) for s, told in zip(left_b, told_b)]
        pairs = in_any_order(paths_a, paths_b)
        for one, two in pairs:
            told_a[one], told_b[two] = object(), object()
        ordered = common(told_a, told_b)
        pairs += [*ordered, *in_any_order(told_a, told_b, ordered)]
        self.take([(left_a[one], left_b[two]) for one, two in pairs])

    def only_ones(self) -> None:
        """Match what nothing else does, in either of the runs."""
        found = self.matching
        left_a, left_b = self._left()
        self.take(_unique(left_a, left_b, found.exact))

    def around_the_same(self) -> None:
        """Match calls of one class where all inside them that has a counterpart has it in the other.

        That has to be most of what has weights, as far as these are known and tell anything.
        """
        found = self.matching
        at_least: dict[int, int] = {}  # how many calls inside one had a counterpart when last counted
        for here in reversed(self._left()[0]):  # from the inside out
            went = [int(found.found[scope]) for scope in found.inside_a[here] if found.found[scope] >= 0]
            if len({found.around_b[scope] for scope in went}) != 1:
                continue
            there = found.around_b[went[0]]
            if found.classes[0][here] != found.classes[1][there] or at_least.get(there, 0) > len(went):
                continue
            # counted a few times at most: once more only if here are as many as there were in all, so they double
            at_least[there] = sum(scope in found.came_from for scope in found.inside_b[there])
            if at_least[there] != len(went):
                continue
            told = min(
                sum(contents.of(scope) is not None for scope in inside)
                for contents, inside in zip(found.contents, (found.inside_a[here], found.inside_b[there]))
            )
            if 2 * sum(found.contents[1].has(scope) for scope in went) > told:
                self.take([(here, there)])

    def containers(self) -> None:
        """Match the only ones of a class that most of what they call is alike in: of one of the two, at least."""
        found = self.matching
        left_a = [scope for scope in self._left()[0] if found.inside_a[scope]]
        left_b = [scope for scope in self._left()[1] if found.inside_b[scope]]
        alike = []
        for here, there in _unique(left_a, left_b, Key(*found.classes)):
            one = Counter(found.operators.a[scope] for scope in found.inside_a[here])
            two = Counter(found.operators.b[scope] for scope in found.inside_b[there])
            if 2 * (one & two).total() > min(one.total(), two.total()):
                alike.append((here, there))
        self.take(alike)

    def once_more(self) -> None:
        """Match what is left inside pairs: containers without a counterpart may be open by now."""
        found = self.matching
        left_a, left_b = self._left()
        outer_a = {found.around_a[scope] for scope in left_a if found.found[found.around_a[scope]] >= 0}
        outer_b = {found.around_b[scope] for scope in left_b if found.around_b[scope] in found.came_from}
        pairs = [(scope, int(found.found[scope])) for scope in sorted(outer_a)]
        found.descend([(here, there) for here, there in pairs if there in outer_b])

    def by_what_they_do(self) -> None:
        """Match what does the same: under the same path, then in order, between those that belong together already."""
        found = self.matching
        for prints in (found.exact, found.operators._replace(if_as_many=found.classes)):
            # under the same path it is the same, whatever else is alike
            paths = list(zip(found.a.scope_paths, prints.a)), list(zip(found.b.scope_paths, prints.b))
            self._in_order(Key(*paths, in_any_order=True))
            if prints is found.exact:
                self._note(prints)
            self._in_order(prints)

    def _in_order(self, key: Key) -> None:
        found = self.matching
        left_a, left_b = self._left()
        keys_a, keys_b = {key.a[scope] for scope in left_a}, {key.b[scope] for scope in left_b}
        rows_a = [scope for scope, to in enumerate(found.found.tolist()) if to >= 0 or key.a[scope] in keys_b]
        rows_b = [scope for scope in range(len(key.b)) if scope in found.came_from or key.b[scope] in keys_a]
        if keys_a & keys_b:
            self.take(found.pair_up(rows_a, rows_b, (key,)))

    def _note(self, prints: Key) -> None:
        """Keep in mind what is not as often in both, and is matched in order; not what is inside it."""
        found = self.matching
        left_a, left_b = self._left()
        count_a, count_b = Counter(prints.a[s] for s in left_a), Counter(prints.b[s] for s in left_b)
        unlike = {one for one in count_a.keys() & count_b.keys() if count_a[one] != count_b[one]}
        rows_a, rows_b = (
            [
                scope
                for scope in left
                if of[scope] in unlike and of[side.solid[int(side.graph.scope_parent[scope])]] not in unlike
            ]
            for left, of, side in ((left_a, prints.a, found.one), (left_b, prints.b, found.two))
        )
        found.note(rows_a, rows_b, [prints.a[s] for s in rows_a], [prints.b[s] for s in rows_b])


def _unique(left_a: list[int], left_b: list[int], key: Key) -> list[tuple[int, int]]:
    """Pairs of what is there once in both, by a key."""
    count_a, count_b = Counter(key.a[scope] for scope in left_a), Counter(key.b[scope] for scope in left_b)
    there: dict[Any, int] = {key.b[scope]: scope for scope in left_b}
    return [
        (scope, there[key.a[scope]])
        for scope in left_a
        if count_a[key.a[scope]] == count_b[key.a[scope]] == 1
    ]
