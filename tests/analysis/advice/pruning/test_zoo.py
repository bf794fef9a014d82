"""Every cut that models of the zoo allow: what is left is the whole model with the columns zero that read it."""

from __future__ import annotations

import pytest
import torch

from tests.zoo import ZOO, close_process_group, declare_torchvision_ops
from torch_vis.analysis.advice.pruning.trial import PruningTrials

declare_torchvision_ops()

# Cases of the zoo that have units to cut: how many groups, how many of them heads, and how many come to more than
# zeroing what they feed, since they are normalised together (the width of a transformer).
ZOO_GROUPS = {
    "checkpoint_reentrant": (1, 0, 0),
    "checkpoint_nonreentrant": (1, 0, 0),
    "traced_submodule": (1, 0, 0),
    "gradient_accumulation": (1, 0, 0),
    "embedding_sparse_gradient": (1, 0, 0),
    "gpt2_generate_static": (3, 0, 1),
    "resnet50_train": (13, 0, 0),
    "bert": (4, 2, 0),
    "bert_train": (4, 2, 0),
    "gpt2": (5, 2, 1),
    "gpt2_generate": (5, 2, 1),
    "t5": (7, 3, 0),
    "llama": (5, 2, 1),
    "mixtral": (2, 2, 0),
    "mamba": (3, 0, 1),
    "whisper": (12, 6, 1),
    "multihead_attention_fast_path": (1, 1, 0),
    "encoder_layer_fast_path": (2, 1, 0),
    "encoder_nested_fast_path": (4, 2, 0),
    "transformer_train": (10, 6, 0),
    "tied_weights": (1, 0, 0),
    "lstm": (1, 0, 0),
    "gru": (1, 0, 0),
    "hooks_change_values": (1, 0, 0),
    "resnet50": (13, 0, 0),
    "vit": (5, 2, 1),
    "swin": (9, 4, 1),
    "detr": (16, 5, 0),
    "yolo_like": (8, 0, 0),
}


@pytest.mark.parametrize("name", ZOO_GROUPS)
def test_every_cut_in_the_zoo_is_what_zeroing_gives(name):
    model, args, kwargs = ZOO[name].make()
    try:
        with torch.random.fork_rng():
            bench = PruningTrials(model, args, kwargs, None)
            free = [group for group in bench.dependencies.groups if not group.locked and len(group.units) > 1]
            tried = [bench.cut_group(group, bench.lightest(group, 0.5)) for group in free]
            mixed = [group for group in free if not group.exact]
            assert (len(free), sum(bool(g.heads) for g in free), len(mixed)) == ZOO_GROUPS[name]
            for group, trial in zip(free, tried):
                if trial.problem:
                    assert name in ("swin", "vit") and "is invalid for input of size" in trial.problem
                elif group.exact:
                    assert trial.error < 1e-5
            fits = [(g, bench.lightest(g, 0.5), t.changes) for g, t in zip(free, tried) if not t.problem]
            assert not bench.cut_all(fits).problem
    finally:
        close_process_group()
