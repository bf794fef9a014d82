"""Two sequences laid over one another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

LONG = 2000  # beyond, only what is unique or at the ends is matched, to stay linear


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
    if not middle_a or not middle_b:
        inner = []
    elif max(len(middle_a), len(middle_b)) > LONG:
        inner = _anchors(middle_a, middle_b)
    else:
        blocks = SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_matching_blocks()
        inner = [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
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
