"""Two sequences laid over one another: in order, as much as there is in both, and in one piece."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from torch_vis.analysis.compare import sequence_diff as sequences
from torch_vis.analysis.compare.sequence_diff import common


def longest(one: list[int], two: list[int]) -> int:
    """The length of a longest common sequence, by the table that everybody knows."""
    row = [0] * (len(two) + 1)
    for here in one:
        before = row
        row = [0]
        for place, there in enumerate(two):
            row.append(before[place] + 1 if here == there else max(before[place + 1], row[-1]))
    return row[-1]


def edited(one: list[int], share: float, draw: random.Random) -> list[int]:
    kept = [item for item in one if draw.random() > share]
    return [other for item in kept for other in ([item] if draw.random() > share else [item, item + 1])]


@pytest.mark.parametrize("kinds", [2, 5, 40])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_pairs_are_equal_and_in_order(kinds: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(kinds)
    for most, stride, short in ((300, 60, 150), (300, 60, 0), (3, 4, 0)):
        monkeypatch.setattr(sequences, "MOST_EDITS", most)
        monkeypatch.setattr(sequences, "STRIDE", stride)
        monkeypatch.setattr(sequences, "SHORT", short)
        for _ in range(100):
            one = [draw.randrange(kinds) for _ in range(draw.randrange(40))]
            two = edited(one, share, draw)
            pairs = common(one, two)
            assert all(one[here] == two[there] for here, there in pairs)
            assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
            if most > len(one) and not short:
                assert len(pairs) == longest(one, two)


@pytest.mark.parametrize("kinds", [3, 1000])
def test_most_of_a_long_sequence_is_found_again(kinds: int) -> None:
    draw = random.Random(0)
    one = [draw.randrange(kinds) for _ in range(30_000)]
    two = edited(one, 0.02, draw)
    assert len(common(one, two)) > 0.97 * len(one)


@pytest.mark.parametrize("times", [30, 600, 6000])
def test_what_was_put_in_stays_in_one_piece(times: int) -> None:
    """The product that was put in is not taken for the one after it, though both are products."""
    one = ["mul", "add", "tanh"] * times
    two = (["mul", "add", "tanh"] * 7 + ["sin", "mul"]) * (times // 7) + ["mul", "add", "tanh"] * (times % 7)
    pairs = common(one, two)
    assert len(pairs) == len(one)
    put_in = {place + 1 for place, item in enumerate(two) if item == "sin"}
    assert not put_in & {there for _, there in pairs}
