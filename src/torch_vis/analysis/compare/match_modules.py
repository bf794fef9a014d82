"""Which call of a module in one run became which in another, from the outside in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.match_moved import match_elsewhere
from torch_vis.analysis.compare.match_similar import Anchor, Pairing, anchors
from torch_vis.analysis.compare.module_keys import (
    Key,
    calls_around,
    calls_inside,
    classes_of,
    ending,
    fingerprints,
    is_in,
    names_of,
    place_of,
)
from torch_vis.analysis.compare.module_weights import Contents
from torch_vis.analysis.compare.sequence_diff import common, in_any_order
from torch_vis.analysis.compare.sides import Side

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
