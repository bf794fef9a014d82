"""One known change is named, as what it is and where; ``tools/pairs.py`` tries all pairs, these are the quick ones."""

from __future__ import annotations

import pytest

from tests.kit.pairs import PAIRS, wrongs

QUICK = (
    "activation of all blocks", "activation of one block", "hidden width", "heads", "mask shifted", "residual removed",
    "k and v swapped", "weights tied", "layers shared", "layer left out", "last token instead of mean", "detached",
    "dtype of all", "stride", "norm without affine", "skip removed", "frozen stem", "no change",
    "learning rate, slightly",
    "clipped by norm", "autocast", "gradients kept", "loss scaled", "step without change",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_the_change_is_named(name: str) -> None:
    assert list(wrongs(PAIRS[name])) == []


def test_there_are_pairs_of_all_kinds() -> None:
    assert len(PAIRS) == len({pair.name for pair in PAIRS.values()})
    assert sum(bool(pair.changes) for pair in PAIRS.values()) >= 70
    assert sum(bool(pair.sentence) for pair in PAIRS.values()) >= 70
