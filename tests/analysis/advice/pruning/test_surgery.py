"""Attention of fewer heads computes what torch's own does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from torch_vis.analysis.advice.pruning.surgery import FewerHeads


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("options", [{}, {"kdim": 12, "vdim": 20}, {"bias": False}])
def test_attention_of_fewer_heads_is_torchs_own_when_none_is_gone(first, options):
    torch.manual_seed(0)
    whole = nn.MultiheadAttention(32, 4, batch_first=first, **options).eval()
    fewer = copy.deepcopy(whole)
    fewer.__class__ = FewerHeads
    query, key = torch.randn(2, 5, 32), torch.randn(2, 7, options.get("kdim", 32))
    value = torch.randn(2, 7, options.get("vdim", 32))
    hidden = torch.zeros(2, 7, dtype=torch.bool)
    hidden[0, 5:] = True
    sides = [x if first else x.transpose(0, 1) for x in (query, key, value)]
    for mask in (None, torch.randn(5, 7), torch.rand(8, 5, 7) > 0.7):
        for weights in (True, False):
            for each in (True, False):
                how = {"attn_mask": mask, "key_padding_mask": hidden, "need_weights": weights}
                one = whole(*sides, **how, average_attn_weights=each)
                two = fewer(*sides, **how, average_attn_weights=each)
                assert torch.allclose(one[0], two[0], atol=1e-6, equal_nan=True)
                assert (one[1] is None) == (two[1] is None)
                assert one[1] is None or torch.allclose(one[1], two[1], atol=1e-6, equal_nan=True)
    single = [x[:, 0] if not first else x[0] for x in sides]
    for one, two in zip(whole(*single), fewer(*single)):
        assert one.shape == two.shape and torch.allclose(one, two, atol=1e-6)
