"""Two sequences laid over one another."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

SHORT = 150  # up to here, the longest blocks are looked for, which takes more than linear time
MOST_EDITS = 300  # that a longer sequence is searched for; beyond, it is cut at what is unique in both
STRIDE = 60  # edits by which to go on where nothing is unique


def common(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """Places of two sequences that belong together, in order.

    >>> common(["a", "b", "c"], ["a", "x", "c"])
    [(0, 0), (2, 2)]
    """
    shorter = min(len(one), len(two))
    head = next((i for i in range(shorter) if one[i] != two[i]), shorter)
    tail = next((i for i in range(shorter - head) if one[-1 - i] != two[-1 - i]), shorter - head)
    start = [(i, i) for i in range(head)]
    end = [(len(one) - i, len(two) - i) for i in range(tail, 0, -1)]
    middle_a, middle_b = one[head : len(one) - tail], two[head : len(two) - tail]
    inner = _blocks(middle_a, middle_b)
    if inner is None:
        inner = _long(middle_a, middle_b)
    return [*start, *((i + head, j + head) for i, j in inner), *end]


def in_order(
    coarse_a: list[Any], coarse_b: list[Any], fine_a: list[Any], fine_b: list[Any]
) -> list[tuple[int, int]]:
    """Places that belong together by a coarse key, in order; of two ways, the one in which more agree by a fine one.

    >>> in_order(list("tat"), list("t"), [1, 2, 3], [3]), in_order(list("ttt"), list("ttt"), [1, 2, 3], [2, 3, 4])
    ([(2, 0)], [(0, 0), (1, 1), (2, 2)])
    """
    plain = common(coarse_a, coarse_b)
    if len(plain) == len(coarse_a) == len(coarse_b):
        return plain
    finer: list[tuple[int, int]] = []
    last_a = last_b = 0
    for place_a, place_b in [*common(fine_a, fine_b), (len(coarse_a), len(coarse_b))]:
        between = common(coarse_a[last_a:place_a], coarse_b[last_b:place_b])
        finer += [(last_a + here, last_b + there) for here, there in between]
        finer.append((place_a, place_b))
        last_a, last_b = place_a + 1, place_b + 1
    finer.pop()

    def agreeing(pairs: list[tuple[int, int]]) -> tuple[int, int]:
        return len(pairs), sum(fine_a[here] == fine_b[there] for here, there in pairs)

    return max(finer, plain, key=agreeing)


def in_any_order(
    here: list[Any], there: list[Any], pairs: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """Places of equal elements that are in none of the pairs, the first of one with the first of the other.

    >>> in_any_order(["a", "b", "a"], ["b", "a"]), in_any_order(["a", "b", "a"], ["b", "a"], [(0, 1)])
    ([(0, 1), (1, 0)], [(1, 0)])
    """
    used_a, used_b = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    waiting: dict[Any, list[int]] = defaultdict(list)
    for place in range(len(there) - 1, -1, -1):
        if place not in used_b:
            waiting[there[place]].append(place)
    return [
        (place, waiting[key].pop()) for place, key in enumerate(here) if place not in used_a and waiting[key]
    ]


def increasing(numbers: list[int]) -> set[int]:
    """The places of a longest run of numbers that increase.

    >>> sorted(increasing([3, 0, 1, 2]))
    [1, 2, 3]
    """
    ends: list[int] = []  # the place of the smallest number that a run of each length ends with
    before = [-1] * len(numbers)
    for place, number in enumerate(numbers):
        length = bisect_left(ends, number, key=numbers.__getitem__)
        before[place] = ends[length - 1] if length else -1
        ends[length : length + 1] = [place]
    found: set[int] = set()
    place = ends[-1] if ends else -1
    while place >= 0:
        found.add(place)
        place = before[place]
    return found


def _blocks(one: list[Any], two: list[Any]) -> list[tuple[int, int]] | None:
    """By the longest run that both have, then those before and after it; None for long sequences."""
    if not one or not two:
        return []
    if max(len(one), len(two)) > SHORT:
        return None
    blocks = SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()
    return [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]


def _long(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """Of sequences that may be of any length, in linear time."""
    in_a, in_b = set(one), set(two)
    kept_a = [place for place, item in enumerate(one) if item in in_b]
    kept_b = [place for place, item in enumerate(two) if item in in_a]
    both_a, both_b = [one[place] for place in kept_a], [two[place] for place in kept_b]
    pairs = _fewest_edits(both_a, both_b)
    if pairs is None:
        pairs = _anchored(both_a, both_b)
    return _drawn_together(one, two, [(kept_a[here], kept_b[there]) for here, there in pairs])


def _drawn_together(one: list[Any], two: list[Any], pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same, but with what is equal next to the pair after it where it can be: what was put in stays in one piece.

    >>> _drawn_together(list("tmat"), list("tsmmat"), [(0, 0), (1, 2), (2, 4), (3, 5)])
    [(0, 0), (1, 3), (2, 4), (3, 5)]
    """
    found: list[tuple[int, int]] = []
    next_a, next_b = len(one), len(two)
    for here, there in reversed(pairs):
        if here == next_a - 1 and two[next_b - 1] == one[here]:
            there = next_b - 1
        elif there == next_b - 1 and one[next_a - 1] == two[there]:
            here = next_a - 1
        found.append((here, there))
        next_a, next_b = here, there
    return found[::-1]


def _fewest_edits(one: list[Any], two: list[Any]) -> list[tuple[int, int]] | None:
    """By the fewest elements that have to be left out; None where these are too many."""
    if abs(len(one) - len(two)) > MOST_EDITS:
        return None
    pairs, end = _furthest(one, two, (0, 0), MOST_EDITS)
    return pairs if end == (len(one), len(two)) else None


def _in_strides(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """As far as it gets with some elements left out, then on from there."""
    found: list[tuple[int, int]] = []
    end = (0, 0)
    while end[0] < len(one) and end[1] < len(two):
        pairs, end = _furthest(one, two, end, STRIDE)
        found += pairs
    return found


def _furthest(
    one: list[Any], two: list[Any], begin: tuple[int, int], edits: int
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """The pairs on the way that gets furthest with so many elements left out, and the places that it gets to.

    A way goes along a diagonal (what it left out of ``two`` less what it left out of ``one``) while elements are equal.
    """
    begin_a, begin_b = begin
    size_a, size_b = len(one) - begin_a, len(two) - begin_b
    at = {1: 0}  # for each diagonal the place in ``one`` that was reached
    steps: list[dict[int, int]] = []
    best = (0, 0, 0, 0)  # how far, how evenly, with how many edits, on which diagonal
    for edit in range(edits + 1):
        steps.append(dict(at))
        for diagonal in range(-edit, edit + 1, 2):
            before = _came_from(at, diagonal, edit)
            here = at[before] + (before < diagonal)  # one of ``one`` is left out, else one of ``two``
            there = here - diagonal
            while here < size_a and there < size_b and one[begin_a + here] == two[begin_b + there]:
                here, there = here + 1, there + 1
            at[diagonal] = here
            if here <= size_a and there <= size_b:
                best = max(best, (here + there, -abs(diagonal), -edit, diagonal))
        if best[0] == size_a + size_b:
            break
    far, _, edit, diagonal = best
    here, there = (far + diagonal) // 2, (far - diagonal) // 2
    end = (begin_a + here, begin_b + there)
    found: list[tuple[int, int]] = []
    for step in range(-edit, -1, -1):
        before = _came_from(steps[step], here - there, step) if step else 0
        start = steps[step][before] if step else 0
        while here > start and there > start - before:
            here, there = here - 1, there - 1
            found.append((begin_a + here, begin_b + there))
        here, there = start, start - before
    return found[::-1], end


def _came_from(at: dict[int, int], diagonal: int, edit: int) -> int:
    """The diagonal beside it from which one is reached with one edit more."""
    if diagonal == -edit or (diagonal != edit and at[diagonal - 1] < at[diagonal + 1]):
        return diagonal + 1
    return diagonal - 1


def _anchored(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """By what is unique in both, and between."""
    found: list[tuple[int, int]] = []
    last_a = last_b = 0
    for end_a, end_b in [*_anchors(one, two), (len(one), len(two))]:
        part_a, part_b = one[last_a:end_a], two[last_b:end_b]
        between = _blocks(part_a, part_b)
        if between is None:
            between = _fewest_edits(part_a, part_b)
        if between is None:
            between = _in_strides(part_a, part_b)
        found += [(last_a + here, last_b + there) for here, there in between]
        found.append((end_a, end_b))
        last_a, last_b = end_a + 1, end_b + 1
    return found[:-1]


def _anchors(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """Elements that are unique in both, as far as their order agrees, and what runs on equally from each."""
    at_a, at_b = _unique(one), _unique(two)
    pairs = sorted((at_a[key], at_b[key]) for key in at_a.keys() & at_b.keys())
    found: list[tuple[int, int]] = []
    last_a = last_b = -1
    for start_a, start_b in pairs:
        if start_a <= last_a or start_b <= last_b:
            continue
        while start_a - 1 > last_a and start_b - 1 > last_b and one[start_a - 1] == two[start_b - 1]:
            start_a, start_b = start_a - 1, start_b - 1
        while start_a < len(one) and start_b < len(two) and one[start_a] == two[start_b]:
            found.append((start_a, start_b))
            last_a, last_b = start_a, start_b
            start_a, start_b = start_a + 1, start_b + 1
    return found


def _unique(items: list[Any]) -> dict[Any, int]:
    places: dict[Any, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        places[item].append(place)
    return {item: found[0] for item, found in places.items() if len(found) == 1}
