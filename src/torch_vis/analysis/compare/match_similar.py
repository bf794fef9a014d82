"""Pairs of calls, among some of two runs, that are alike by one thing after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.analysis.compare.module_keys import Key, as_many, if_numbers_changed, is_number, lists_renamed
from torch_vis.analysis.compare.sequence_diff import common, in_any_order

if TYPE_CHECKING:
    from torch_vis.analysis.compare.match_modules import Matching


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
