"""The diff of two sequences: which elements of one are which of the other, in linear time."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

# Up to this length the longest common blocks are looked for, which takes more than linear time.
SHORT = 150
# Edits that a longer sequence is searched for; beyond, it is cut at what is unique in both.
MOST_EDITS = 300
# Edits by which to go on where nothing is unique.
STRIDE = 60


def common(a: list[Any], b: list[Any]) -> list[tuple[int, int]]:
    """Indices of equal elements of two sequences, in order.

    >>> common(["a", "b", "c"], ["a", "x", "c"])
    [(0, 0), (2, 2)]
    """
    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    tail = next((i for i in range(shorter - head) if a[-1 - i] != b[-1 - i]), shorter - head)
    start = [(i, i) for i in range(head)]
    end = [(len(a) - i, len(b) - i) for i in range(tail, 0, -1)]
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    inner = _blocks(middle_a, middle_b)
    if inner is None:
        inner = _long(middle_a, middle_b)
    return [*start, *((i + head, j + head) for i, j in inner), *end]


def in_order(
    coarse_a: list[Any], coarse_b: list[Any], fine_a: list[Any], fine_b: list[Any]
) -> list[tuple[int, int]]:
    """Indices that are equal by a coarse key, in order; of two ways, the one in which more agree by a fine key.

    >>> in_order(list("tat"), list("t"), [1, 2, 3], [3]), in_order(list("ttt"), list("ttt"), [1, 2, 3], [2, 3, 4])
    ([(2, 0)], [(0, 0), (1, 1), (2, 2)])
    """
    plain = common(coarse_a, coarse_b)
    if len(plain) == len(coarse_a) == len(coarse_b):
        return plain
    finer: list[tuple[int, int]] = []
    last_a = last_b = 0
    for index_a, index_b in [*common(fine_a, fine_b), (len(coarse_a), len(coarse_b))]:
        between = common(coarse_a[last_a:index_a], coarse_b[last_b:index_b])
        finer += [(last_a + i, last_b + j) for i, j in between]
        finer.append((index_a, index_b))
        last_a, last_b = index_a + 1, index_b + 1
    finer.pop()

    def agreeing(pairs: list[tuple[int, int]]) -> tuple[int, int]:
        return len(pairs), sum(fine_a[i] == fine_b[j] for i, j in pairs)

    return max(finer, plain, key=agreeing)


def in_any_order(
    keys_a: list[Any], keys_b: list[Any], pairs: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """Indices of equal elements that are in none of the pairs, the first of ``a`` with the first of ``b``.

    >>> in_any_order(["a", "b", "a"], ["b", "a"]), in_any_order(["a", "b", "a"], ["b", "a"], [(0, 1)])
    ([(0, 1), (1, 0)], [(1, 0)])
    """
    used_a, used_b = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    waiting: dict[Any, list[int]] = defaultdict(list)
    for index in range(len(keys_b) - 1, -1, -1):
        if index not in used_b:
            waiting[keys_b[index]].append(index)
    return [
        (index, waiting[key].pop())
        for index, key in enumerate(keys_a)
        if index not in used_a and waiting[key]
    ]


def increasing(numbers: list[int]) -> set[int]:
    """The indices of a longest increasing subsequence.

    >>> sorted(increasing([3, 0, 1, 2]))
    [1, 2, 3]
    """
    # for each length the index of the smallest number that a subsequence ends with
    ends: list[int] = []
    before = [-1] * len(numbers)
    for index, number in enumerate(numbers):
        length = bisect_left(ends, number, key=numbers.__getitem__)
        before[index] = ends[length - 1] if length else -1
        ends[length : length + 1] = [index]
    chosen: set[int] = set()
    index = ends[-1] if ends else -1
    while index >= 0:
        chosen.add(index)
        index = before[index]
    return chosen


def _blocks(a: list[Any], b: list[Any]) -> list[tuple[int, int]] | None:
    """By the longest run that both have, then those before and after it; None for long sequences."""
    if not a or not b:
        return []
    if max(len(a), len(b)) > SHORT:
        return None
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]


def _long(a: list[Any], b: list[Any]) -> list[tuple[int, int]]:
    """Of sequences that may be of any length, in linear time."""
    in_a, in_b = set(a), set(b)
    kept_a = [index for index, item in enumerate(a) if item in in_b]
    kept_b = [index for index, item in enumerate(b) if item in in_a]
    both_a, both_b = [a[index] for index in kept_a], [b[index] for index in kept_b]
    pairs = _fewest_edits(both_a, both_b)
    if pairs is None:
        pairs = _anchored(both_a, both_b)
    return _closed_up(a, b, [(kept_a[i], kept_b[j]) for i, j in pairs])


def _closed_up(a: list[Any], b: list[Any], pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same, with equal elements next to the pair after them where possible: what was inserted stays in one piece.

    >>> _closed_up(list("tmat"), list("tsmmat"), [(0, 0), (1, 2), (2, 4), (3, 5)])
    [(0, 0), (1, 3), (2, 4), (3, 5)]
    """
    matches: list[tuple[int, int]] = []
    next_a, next_b = len(a), len(b)
    for i, j in reversed(pairs):
        if i == next_a - 1 and b[next_b - 1] == a[i]:
            j = next_b - 1
        elif j == next_b - 1 and a[next_a - 1] == b[j]:
            i = next_a - 1
        matches.append((i, j))
        next_a, next_b = i, j
    return matches[::-1]


def _fewest_edits(a: list[Any], b: list[Any]) -> list[tuple[int, int]] | None:
    """By the fewest edits; None where these are too many."""
    if abs(len(a) - len(b)) > MOST_EDITS:
        return None
    pairs, end = _furthest(a, b, (0, 0), MOST_EDITS)
    return pairs if end == (len(a), len(b)) else None


def _in_strides(a: list[Any], b: list[Any]) -> list[tuple[int, int]]:
    """As far as some edits lead, then on from there."""
    matches: list[tuple[int, int]] = []
    end = (0, 0)
    while end[0] < len(a) and end[1] < len(b):
        pairs, end = _furthest(a, b, end, STRIDE)
        matches += pairs
    return matches


def _furthest(
    a: list[Any], b: list[Any], begin: tuple[int, int], edits: int
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """The pairs on the path that gets furthest with so many edits, and the indices that it gets to (Myers' diff).

    A path goes along a diagonal (insertions less deletions) while elements are equal.
    """
    begin_a, begin_b = begin
    size_a, size_b = len(a) - begin_a, len(b) - begin_b
    # for each diagonal the index in a that was reached
    at = {1: 0}
    steps: list[dict[int, int]] = []
    # how far, how evenly, with how many edits, on which diagonal
    best = (0, 0, 0, 0)
    for edit in range(edits + 1):
        steps.append(dict(at))
        for diagonal in range(-edit, edit + 1, 2):
            before = _previous_diagonal(at, diagonal, edit)
            # an element of a is left out, else one of b
            i = at[before] + (before < diagonal)
            j = i - diagonal
            while i < size_a and j < size_b and a[begin_a + i] == b[begin_b + j]:
                i, j = i + 1, j + 1
            at[diagonal] = i
            if i <= size_a and j <= size_b:
                best = max(best, (i + j, -abs(diagonal), -edit, diagonal))
        if best[0] == size_a + size_b:
            break
    far, _, edit, diagonal = best
    i, j = (far + diagonal) // 2, (far - diagonal) // 2
    end = (begin_a + i, begin_b + j)
    matches: list[tuple[int, int]] = []
    for step in range(-edit, -1, -1):
        before = _previous_diagonal(steps[step], i - j, step) if step else 0
        start = steps[step][before] if step else 0
        while i > start and j > start - before:
            i, j = i - 1, j - 1
            matches.append((begin_a + i, begin_b + j))
        i, j = start, start - before
    return matches[::-1], end


def _previous_diagonal(at: dict[int, int], diagonal: int, edit: int) -> int:
    """The diagonal beside it from which one is reached with one edit more."""
    if diagonal == -edit or (diagonal != edit and at[diagonal - 1] < at[diagonal + 1]):
        return diagonal + 1
    return diagonal - 1


def _anchored(a: list[Any], b: list[Any]) -> list[tuple[int, int]]:
    """By what is unique in both, and between."""
    matches: list[tuple[int, int]] = []
    last_a = last_b = 0
    for end_a, end_b in [*_anchors(a, b), (len(a), len(b))]:
        part_a, part_b = a[last_a:end_a], b[last_b:end_b]
        between = _blocks(part_a, part_b)
        if between is None:
            between = _fewest_edits(part_a, part_b)
        if between is None:
            between = _in_strides(part_a, part_b)
        matches += [(last_a + i, last_b + j) for i, j in between]
        matches.append((end_a, end_b))
        last_a, last_b = end_a + 1, end_b + 1
    return matches[:-1]


def _anchors(a: list[Any], b: list[Any]) -> list[tuple[int, int]]:
    """Elements that are unique in both, as far as their order agrees, and what runs on equally from each."""
    at_a, at_b = _unique(a), _unique(b)
    pairs = sorted((at_a[key], at_b[key]) for key in at_a.keys() & at_b.keys())
    matches: list[tuple[int, int]] = []
    last_a = last_b = -1
    for start_a, start_b in pairs:
        if start_a <= last_a or start_b <= last_b:
            continue
        while start_a - 1 > last_a and start_b - 1 > last_b and a[start_a - 1] == b[start_b - 1]:
            start_a, start_b = start_a - 1, start_b - 1
        while start_a < len(a) and start_b < len(b) and a[start_a] == b[start_b]:
            matches.append((start_a, start_b))
            last_a, last_b = start_a, start_b
            start_a, start_b = start_a + 1, start_b + 1
    return matches


def _unique(items: list[Any]) -> dict[Any, int]:
    indices: dict[Any, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        indices[item].append(index)
    return {item: positions[0] for item, positions in indices.items() if len(positions) == 1}
