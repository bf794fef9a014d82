"""Which call of a module in one run became which in another, from the outside in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare_elsewhere import match_elsewhere
from torch_vis.analysis.compare_keys import (
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
from torch_vis.analysis.compare_sides import Side
from torch_vis.analysis.compare_weights import Contents
from torch_vis.analysis.sequences import common, in_any_order


class Alike(NamedTuple):
    """Calls that nothing but their numbers tells apart, more of them in one run than in the other."""

    a: list[int]
    b: list[int]


class Anchor(NamedTuple):
    """What two calls have in common that belong together already, by the number of the first."""

    scope: int

    @property
    def label(self) -> str:
        """What to call both: as one has to have a number for a name that has its place among others that have."""
        return f"matched.{self.scope}"


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
        self.exact, self.operators = (  # what forward does: by all that is known of operations, and by their operators
            Key(fingerprints(one, self.inside_a, told_a, known), fingerprints(two, self.inside_b, told_b, known))
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
        known_a, known_b = self._anchors(rows_a, rows_b)
        keys_a = [True if scope == here else known_a.get(scope, object()) for scope in rows_a]
        keys_b = [True if scope == there else known_b.get(scope, object()) for scope in rows_b]
        return (rows_a.index(here), rows_b.index(there)) in common(keys_a, keys_b)

    def _anchors(self, rows_a: list[int], rows_b: list[int]) -> tuple[dict[int, Anchor], dict[int, Anchor]]:
        """Of calls that belong together already, and are both among some, what is equal for the two."""
        theirs = set(rows_b)
        pairs = [(scope, int(self.found[scope])) for scope in rows_a if self.found[scope] in theirs]
        return {one: Anchor(one) for one, _ in pairs}, {two: Anchor(one) for one, two in pairs}

    def accept(self, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Match pairs, but no call with a container of what came from elsewhere."""
        accepted = []
        for here, there in pairs:
            if self.found[here] >= 0 or there in self.came_from:
                continue
            went = [int(self.found[scope]) for scope in self.inside_a[here] if self.found[scope] >= 0]
            came = [self.came_from[scope] for scope in self.inside_b[there] if scope in self.came_from]
            if all(is_in(self.b, one, there) for one in went) and all(
                is_in(self.a, one, here) for one in came
            ):
                self._take(here, there)
                accepted.append((here, there))
        return accepted

    def pair_up(self, rows_a: list[int], rows_b: list[int], keys: Iterable[Key]) -> list[tuple[int, int]]:
        """Pairs of calls that are alike by the first key, of the others by the next.

        Those that belong together already stay in place, so that the order counts between them.
        """
        known_a, known_b = self._anchors(rows_a, rows_b)
        free_a = {scope for scope in rows_a if self.found[scope] < 0}
        free_b = {scope for scope in rows_b if scope not in self.came_from}
        found: list[tuple[int, int]] = []
        for key in keys:
            if not free_a or not free_b:
                break
            left_a = [scope for scope in rows_a if scope in free_a or scope in known_a]
            left_b = [scope for scope in rows_b if scope in free_b or scope in known_b]
            here = [known_a.get(scope) or key.a[scope] for scope in left_a]
            there = [known_b.get(scope) or key.b[scope] for scope in left_b]
            if key.if_as_many is not None:
                kinds_a, kinds_b = key.if_as_many
                alike = as_many([kinds_a[scope] for scope in free_a], [kinds_b[scope] for scope in free_b])
                here = [
                    one if scope in known_a or kinds_a[scope] in alike else object()
                    for one, scope in zip(here, left_a)
                ]
            if key.names is not None:
                names = lists_renamed(
                    [known_a[s].label if s in known_a else key.names[0][s] for s in left_a],
                    [known_b[s].label if s in known_b else key.names[1][s] for s in left_b],
                )
                if key.if_numbers_changed:
                    here, there = if_numbers_changed(names, here, there)
                places = self._by_name(left_a, left_b, here, there, names)
            elif key.weights:
                places = self._by_weights(left_a, left_b, here, there)
            else:
                places = common(here, there)
            if key.in_any_order:
                places += in_any_order(here, there, places)
            pairs = [(left_a[one], left_b[two]) for one, two in places if left_a[one] in free_a]
            free_a -= {one for one, _ in pairs}
            free_b -= {two for _, two in pairs}
            found += pairs
        return found

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
            self.note(*rows, of_a, of_b)
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
        told_a, told_b = self.told(rows_a, of_a, 0), self.told(rows_b, of_b, 1)
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

    def told(self, rows: list[int], of: list[Any], place: int) -> list[Any]:
        """What calls can be told by, with their weights; those whose weights say nothing are unlike all others."""
        held = [self.contents[place].of(scope) for scope in rows]
        return [
            one if isinstance(one, Anchor) else object() if weights is None else (one, weights)
            for one, weights in zip(of, held)
        ]

    def _is_told(self, told: Any) -> bool:
        """Whether it is by their weights that two calls belong together."""
        if not isinstance(told, Anchor):
            return True
        weights = self.contents[0].of(told.scope)
        return weights is not None and weights == self.contents[1].of(int(self.found[told.scope]))

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
    stack = inside[outer][::-1]
    while stack:
        scope = stack.pop()
        found.append(scope)
        if is_open(scope):
            stack += reversed(inside[scope])
    return found


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
