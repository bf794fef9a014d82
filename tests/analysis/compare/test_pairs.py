"""One known change is named, as what it is and where; ``tools/pairs.py`` tries all pairs, these are the quick ones."""

from __future__ import annotations

import pytest

from tests.kit.pairs import wrongs
from tests.kit.task_pairs import PAIRS

QUICK = (
    "activation of all blocks", "activation of one block", "hidden width", "heads", "mask shifted", "residual removed",
    "k and v swapped", "weights tied", "layers shared", "layer left out", "last token instead of mean", "detached",
    "dtype of all", "stride", "norm without affine", "skip removed", "frozen stem", "no change",
    "learning rate, slightly",
    "gan: the fakes not detached", "gan: a critic's fakes not detached", "gan: critic", "target: not updated",
    "contrast: one side detached", "small: groups", "decoder: mask off by one", "vae: code detached",
    "reader: detached", "reader: cast", "reader: a step for each part", "reader: shared",
    "tagger: detached", "diffusion: schedule", "diffusion: beta", "diffusion: rate", "diffusion: says the picture",
    "pupil: not scaled back", "wasserstein: sign", "cache: base",
    "clipped by norm", "autocast", "gradients kept", "loss scaled", "step without change",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_the_change_is_named(name: str) -> None:
    assert list(wrongs(PAIRS[name])) == []


def test_there_are_pairs_of_all_kinds() -> None:
    assert len(PAIRS) == len({pair.name for pair in PAIRS.values()})
    assert sum(bool(pair.changes) for pair in PAIRS.values()) >= 300
    assert sum(bool(pair.sentence) for pair in PAIRS.values()) >= 250
