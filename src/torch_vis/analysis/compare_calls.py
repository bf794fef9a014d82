"""Which call of a module in one run became which in another, from the outside in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare_sides import Side
from torch_vis.analysis.compare_weights import Contents
from torch_vis.analysis.sequences import common, in_any_order
from torch_vis.graph import Graph
from torch_vis.graph.schema import Phase


class Key(NamedTuple):
    """What two calls have to have in common, for each call of the one run and of the other."""

    a: Sequence[Any]
    b: Sequence[Any]
    in_any_order: bool = False
    names: tuple[Sequence[str], Sequence[str]] | None = None
    """By which of those that have it in common two calls belong together: see ``_by_name``."""
    if_numbers_changed: bool = False
    """Only those with numbers for names, and only if these are not the same in both."""
    if_as_many: tuple[Sequence[Any], Sequence[Any]] | None = None
    """Of what there have to be as many in both: where three layers became one, none of them is that one."""


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
    matching = _Matching(one, two, known, weights)
    stack, deferred, looked = [(0, 0)], [], False
    while stack:
        pair = stack.pop()
        stack += matching.pair_inside(*pair)
        deferred += matching.likely(*pair)
        if not stack:
            if (
                not looked
            ):  # before a call counts as one that was changed: it may be the same, wrapped or taken out
                matching.match_elsewhere()
                looked = True
            stack, deferred = matching.accept(deferred), []
    matching.match_places()
    return matching.found, matching.unsure


class _Matching:
    """The calls of two graphs that belong together so far."""

    def __init__(
        self, one: Side, two: Side, known: dict[Any, int], weights: tuple[Weights, Weights] | None
    ) -> None:
        self.one, self.two = one, two
        self.unsure: list[Alike] = []
        self.a, self.b = one.graph, two.graph
        self.inside_a, self.inside_b = _children(one), _children(two)
        self.classes = _types(self.a), _types(self.b)
        self.prints = [  # by all that is known of operations, and by their operators
            Key(
                _fingerprints(one, self.inside_a, told_a, known),
                _fingerprints(two, self.inside_b, told_b, known),
                if_as_many=counted,
            )
            for told_a, told_b, counted in (
                (one.exactly, two.exactly, None),
                (one.operators, two.operators, self.classes),
            )
        ]
        self.forward, self.in_forward = (  # a layer that comes first has less to do in backward
            Key(
                _fingerprints(one, self.inside_a, told_a, known, (Phase.FORWARD,)),
                _fingerprints(two, self.inside_b, told_b, known, (Phase.FORWARD,)),
            )
            for told_a, told_b in ((one.exactly, two.exactly), (one.operators, two.operators))
        )
        read_a, read_b = weights or (None, None)
        self.contents = Contents(one, self.inside_a, read_a), Contents(two, self.inside_b, read_b)
        self.keys = self._keys()
        self.found = np.full(len(self.a.scope_call), -1, dtype=np.int64)
        self.found[0] = 0
        self.came_from = {0: 0}

    def _keys(self) -> tuple[Key, ...]:
        names_a, names_b = (
            [_name(graph, n) for n in range(len(graph.scope_call))] for graph in (self.a, self.b)
        )
        exact, operators = self.prints
        labels = [name[0] for name in names_a], [name[0] for name in names_b]
        words_a, words_b = ([object() if _is_number(name) else name for name in side] for side in labels)
        return (
            Key(list(zip(words_a, exact.a)), list(zip(words_b, exact.b)), in_any_order=True),
            Key(self.forward.a, self.forward.b, names=labels),
            exact,
            Key(self.in_forward.a, self.in_forward.b, names=labels, if_numbers_changed=True),
            Key(names_a, names_b, in_any_order=True),
            Key([_ending(name) for name in names_a], [_ending(name) for name in names_b]),
            operators,
            Key(*self.classes, if_as_many=self.classes),
        )

    def _take(self, here: int, there: int) -> None:
        self.found[here] = there
        self.came_from[there] = here

    def _left(self, here: int, there: int) -> tuple[list[int], list[int]]:
        """The calls made directly inside two others that have no counterpart yet."""
        left_a = [scope for scope in self.inside_a[here] if self.found[scope] < 0]
        return left_a, [scope for scope in self.inside_b[there] if scope not in self.came_from]

    def pair_inside(self, here: int, there: int) -> list[tuple[int, int]]:
        """Match the calls inside two that belong together."""
        return self.accept(self._pair_up(*self._left(here, there), self.keys))

    def likely(self, here: int, there: int) -> list[tuple[int, int]]:
        """What is left inside two: of another class under the same name, or renamed and changed in the same place."""
        left_a, left_b = self._left(here, there)
        names_a, names_b = (
            [_name(graph, scope)[0] for scope in left] for graph, left in ((self.a, left_a), (self.b, left_b))
        )
        pairs = [(left_a[one], left_b[two]) for one, two in in_any_order(names_a, names_b)]
        return [*pairs, (left_a[0], left_b[0])] if len(left_a) == len(left_b) == 1 else pairs

    def accept(self, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Match pairs, but no call with a container of what came from elsewhere."""
        accepted = []
        for here, there in pairs:
            if self.found[here] >= 0 or there in self.came_from:
                continue
            went = [int(self.found[scope]) for scope in self.inside_a[here] if self.found[scope] >= 0]
            came = [self.came_from[scope] for scope in self.inside_b[there] if scope in self.came_from]
            if all(_is_in(self.b, one, there) for one in went) and all(
                _is_in(self.a, one, here) for one in came
            ):
                self._take(here, there)
                accepted.append((here, there))
        return accepted

    def match_elsewhere(self) -> None:
        """Match what is left by what it does, wherever it is called from: in a new container, or taken out of one."""
        for prints in self.prints:
            left_a = [s for s in np.flatnonzero(self.found < 0).tolist() if self.one.solid[s] == s]
            left_b = [
                s for s in range(len(self.b.scope_call)) if s not in self.came_from and self.two.solid[s] == s
            ]
            # under the same path it is the same, whatever else is alike
            paths = list(zip(self.a.scope_paths, prints.a)), list(zip(self.b.scope_paths, prints.b))
            for pair in self._pair_up(left_a, left_b, (Key(*paths, in_any_order=True), prints)):
                self._take(*pair)

    def _pair_up(self, left_a: list[int], left_b: list[int], keys: Iterable[Key]) -> list[tuple[int, int]]:
        """Pairs of calls that are alike by the first key, of the others by the next."""
        found: list[tuple[int, int]] = []
        for key in keys:
            if not left_a or not left_b:
                break
            here, there = [key.a[scope] for scope in left_a], [key.b[scope] for scope in left_b]
            if key.if_as_many is not None:
                kinds_a, kinds_b = key.if_as_many
                alike = _as_many([kinds_a[scope] for scope in left_a], [kinds_b[scope] for scope in left_b])
                here = [one if kinds_a[scope] in alike else object() for one, scope in zip(here, left_a)]
            if key.names is not None:
                names = [key.names[0][scope] for scope in left_a], [key.names[1][scope] for scope in left_b]
                if key.if_numbers_changed:
                    here, there = _if_numbers_changed(names, here, there)
                pairs = self._by_name(left_a, left_b, here, there, names)
            else:
                pairs = common(here, there)
            if key.in_any_order:
                pairs += in_any_order(here, there, pairs)
            found += [(left_a[place_a], left_b[place_b]) for place_a, place_b in pairs]
            used_a, used_b = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
            left_a = [scope for place, scope in enumerate(left_a) if place not in used_a]
            left_b = [scope for place, scope in enumerate(left_b) if place not in used_b]
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
            [place for place, name in enumerate(side) if _is_number(name)] for side in names
        )
        if not numbered_a or not numbered_b:
            return pairs
        of_a, of_b = [here[place] for place in numbered_a], [there[place] for place in numbered_b]
        counts_a, counts_b = Counter(of_a), Counter(of_b)
        both = counts_a.keys() & counts_b.keys()
        most = sum(min(counts_a[one], counts_b[one]) for one in both)
        named = [pair for pair in pairs if not _is_number(names[0][pair[0]])]
        if any(counts_a[one] != counts_b[one] for one in both):
            rows = [left_a[place] for place in numbered_a], [left_b[place] for place in numbered_b]
            told = self._by_weights(*rows, of_a, of_b)
            if told:
                return named + [(numbered_a[one], numbered_b[two]) for one, two in told]
            self._note(*rows, of_a, of_b)
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
        told_a, told_b = (
            [
                object() if (held := contents.of(scope)) is None else (one, held)
                for scope, one in zip(rows, of)
            ]
            for contents, rows, of in zip(self.contents, (rows_a, rows_b), (of_a, of_b))
        )
        anchors = common(told_a, told_b)
        found: list[tuple[int, int]] = []
        last_a = last_b = 0
        for one, two in [*anchors, (len(of_a), len(of_b))] if anchors else []:
            found += [
                (last_a + here, last_b + there) for here, there in common(of_a[last_a:one], of_b[last_b:two])
            ]
            found.append((one, two))
            last_a, last_b = one + 1, two + 1
        return found[:-1]

    def _note(self, rows_a: list[int], rows_b: list[int], of_a: list[Any], of_b: list[Any]) -> None:
        """Keep in mind what has weights, but is known by its number alone."""
        alike: dict[Any, Alike] = {}
        for place, (rows, of) in enumerate(((rows_a, of_a), (rows_b, of_b))):
            for scope, one in zip(rows, of):
                if self.contents[place].has(scope):
                    alike.setdefault(one, Alike([], []))[place].append(scope)
        self.unsure += [both for both in alike.values() if both.a and both.b and len(both.a) != len(both.b)]

    def match_places(self) -> None:
        """Match what was called from elsewhere, but is the same call by its whole path: fx leaves containers out."""
        rest = {
            _place(self.b, scope): scope
            for scope in range(len(self.b.scope_call))
            if scope not in self.came_from
        }
        for scope in np.flatnonzero(self.found < 0).tolist():
            there = rest.pop(_place(self.a, scope), -1)
            if there >= 0:
                self._take(scope, there)


def _is_number(name: str) -> bool:
    return name.rpartition(".")[2].isdigit()


def _if_numbers_changed(
    names: tuple[list[str], list[str]], here: list[Any], there: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The same keys for what has a number, if the numbers are others; unlike all for the rest."""
    numbers_a, numbers_b = (Counter(filter(_is_number, side)) for side in names)
    wanted = numbers_a != numbers_b
    one, two = (
        [key if wanted and _is_number(name) else object() for name, key in zip(side, keys)]
        for side, keys in zip(names, (here, there))
    )
    return one, two


def _as_many(here: list[Any], there: list[Any]) -> set[Any]:
    """What is as often in both."""
    counts_a, counts_b = Counter(here), Counter(there)
    return {one for one, times in counts_a.items() if counts_b[one] == times}


def _is_in(graph: Graph, scope: int, outer: int) -> bool:
    """Whether a call is made inside another."""
    while scope > outer:  # a call has a higher number than those around it
        scope = int(graph.scope_parent[scope])
    return scope == outer


def _place(graph: Graph, scope: int) -> Any:
    return graph.modules[int(graph.scope_module[scope])], int(graph.scope_call[scope])


def _children(side: Side) -> list[list[int]]:
    graph, solid = side.graph, side.solid
    found: list[list[int]] = [[] for _ in graph.scope_call]
    for scope, parent in enumerate(graph.scope_parent.tolist()):
        if parent >= 0 and solid[scope] == scope:
            found[solid[parent]].append(scope)
    return found


def _name(graph: Graph, scope: int) -> Any:
    """What a call is within the one around it: the last part of its path, and its class."""
    path, type_, kind = graph.modules[int(graph.scope_module[scope])]
    above = graph.scope_paths[int(graph.scope_parent[scope])]
    label = path[len(above) + 1 :] if above and path.startswith(above + ".") else path
    return label, type_, kind


def _ending(name: Any) -> Any:
    """The last part of a name, with its class: what is left where a list of layers was renamed."""
    return name[0].rpartition(".")[2], *name[1:]


def _type(graph: Graph, scope: int) -> Any:
    return graph.modules[int(graph.scope_module[scope])][1:]


def _types(graph: Graph) -> list[Any]:
    return [_type(graph, scope) for scope in range(len(graph.scope_call))]


def _fingerprints(
    side: Side,
    inside: list[list[int]],
    told: Callable[[list[int]], list[Any]],
    known: dict[Any, int],
    phases: Collection[int] = tuple(Phase),
) -> list[int]:
    """A number for each call that is equal where all that ran in it is, as far as ``told`` tells of operations."""
    graph = side.graph
    own: list[list[Any]] = [[] for _ in graph.scope_call]
    for (scope, phase), nodes in side.operations.items():
        if phase in phases:
            own[scope].extend(told(nodes))
    prints = [0] * len(own)
    for scope in range(len(own) - 1, -1, -1):
        key = (_type(graph, scope), tuple(own[scope]), tuple(prints[child] for child in inside[scope]))
        prints[scope] = known.setdefault(key, len(known))
    return prints
