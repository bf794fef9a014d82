"""Calls that belong together though they are made in different places: in a new container, or taken out of one."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from torch_vis.analysis.compare.module_keys import Key
from torch_vis.analysis.compare.sequence_diff import common, in_any_order

if TYPE_CHECKING:
    from torch_vis.analysis.compare.match_modules import Matching

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
