"""Attention heads as units to be cut, and the check that every cut has to pass: the whole model with them at zero."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_vis as tv
from tests.kit.heads import (
    FAMILIES,
    Kept,
    X,
    made,
)
from tests.zoo import ZOO, declare_torchvision_ops
from torch_vis.analysis.advice.pruning.trial import MIXED, OTHER, PruningTrials
from torch_vis.analysis.compare.numeric.tensor_distance import distance_of

declare_torchvision_ops()


def tensors(output):
    output = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [
        one for one in (output if isinstance(output, tuple) else (output,)) if isinstance(one, torch.Tensor)
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_without_heads_is_the_model_with_their_columns_at_zero(name):
    _, projection, dimension, word, columns, changed = FAMILIES[name]
    model, args = made(name)
    bench = PruningTrials(model, args, {}, None)
    groups = [group for group in bench.dependencies.groups if group.heads]
    projections = [path for path, _ in model.named_parameters() if re.search(projection + r"\.weight$", path)]
    assert len(groups) == len(projections) > 0 and not any(group.locked for group in groups)
    for group, path in zip(groups, projections):
        units = group.units[1::2]
        tried = bench.cut_group(group, units)
        assert not tried.problem and {change.name for change in tried.changes} == changed
        heads = [int(number) for number in re.findall(r"\d+", group.named(units).rpartition(word)[2])]
        assert heads == list(range(1, len(group.units), 2))
        zero = copy.deepcopy(model)
        with torch.no_grad():
            for head in heads:
                zero.get_parameter(path).narrow(dimension, head * columns, columns).zero_()
            whole, without, left = (
                tensors(model(*args)),
                tensors(zero(*args)),
                tensors(tried.model.eval()(*args)),
            )
        assert tried.model.get_parameter(path).shape[dimension] == columns * (len(group.units) - len(heads))
        assert distance_of(without, left).relative < 1e-6 < 1e-3 < distance_of(whole, without).relative


def test_names_in_the_table_and_the_figure():
    model, args = made("llama")
    found = tv.advise.pruning(model, *args, ratio=0.5)
    names = {head.name for head in found.heads}
    assert names == {
        f"model.layers.{layer}.self_attn, key/value head {head}" for layer in (0, 1) for head in (0, 1)
    }
    assert sum(head.cut for head in found.heads) == 2 and all(name in str(found) for name in names)
    assert found.facts()["heads"] == "2 of 4 cut"
    rows = [cut for cut in found.groups if cut.heads]
    assert [(cut.units, cut.cut, cut.problem) for cut in rows] == [(2, 1, "")] * 2
    assert found.model.model.layers[0].self_attn.q_proj.out_features == 16
    assert found.model.model.layers[0].self_attn.k_proj.out_features == 8
    shown = found.figure(chart="heads")
    assert set(shown.layout.yaxis.ticktext) == names and [bars.name for bars in shown.data] == [
        "cut",
        "stays",
    ]
    assert len(found.to_pandas("Attention heads")) == 4


def test_the_lightest_heads_go_and_the_rest_is_trained_on():
    model, args = made("timm")
    with torch.no_grad():
        for block in model.blocks:
            for part in range(3):
                block.attn.qkv.weight[part * 32 + 16 : part * 32 + 24] *= 0.01
            block.attn.proj.weight[:, 16:24] *= 0.01
    found = tv.advise.pruning(model, *args, ratio=0.25)
    assert [head.name for head in found.heads if head.cut] == [
        "blocks.0.attn, head 2",
        "blocks.1.attn, head 2",
    ]
    assert "blocks.0.attn, head 2" in str(found)
    assert model.blocks[0].attn.num_heads == 4 and found.model.blocks[0].attn.num_heads == 3
    found.model(*args).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in found.model.parameters())


def test_numbers_are_changed_in_the_copy_and_nowhere_else():
    model, args = made("settings")
    state = copy.deepcopy(model.state_dict())
    found = tv.advise.pruning(model, *args, ratio=0.5)
    assert model.a.config is model.b.config and model.a.config.heads == 4
    assert found.model.a.config.heads == found.model.b.config.heads == 2
    assert [str(change) for cut in found.groups for change in cut.changes] == [
        "a.config.heads 4 → 2",
        "b.config.heads 4 → 2",
    ]
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_what_runs_but_is_wrong_is_not_taken():
    class Literal(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(24, 96), nn.Linear(32, 24)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    found = tv.advise.pruning(
        nn.Sequential(Literal(), nn.Linear(24, 6), nn.Linear(6, 2)), torch.randn(2, 5, 24)
    )
    heads = [cut for cut in found.groups if cut.heads]
    assert [cut.problem for cut in heads] == [OTHER] and found.model[0].qkv.out_features == 96
    assert heads[0].name.startswith("0, head ") and not any(head.cut for head in found.heads)
    assert found.model[1].out_features == 4


def test_heads_of_a_program_that_fixes_its_width_are_told_with_the_reason():
    model, args, kwargs = ZOO["swin"].make()
    found = tv.advise.pruning(model, *args, kwargs=kwargs, ratio=0.5)
    problems = {cut.problem for cut in found.groups if cut.heads}
    assert problems and all("is invalid for input of size" in problem for problem in problems)


def test_heads_that_are_normalised_together_are_left_whole():
    class Normed(Kept):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(32)
            self.to_out = nn.Sequential(self.norm, self.to_out)

    found = tv.advise.pruning(
        nn.Sequential(Normed(), nn.Linear(24, 6), nn.Linear(6, 2)), torch.randn(2, 5, 24)
    )
    assert [cut.problem for cut in found.groups if cut.heads] == [MIXED]


def test_weights_that_are_looked_at_lock_heads():
    class Shown(Kept):
        def forward(self, x):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
            weights = (q @ k.transpose(-1, -2)).softmax(-1)
            return self.to_out((weights @ v).transpose(1, 2).flatten(2)), weights

    found = tv.advise.pruning(Shown(), torch.randn(*X))
    assert not found.heads and "it is the run's output" in {group.locked for group in found.locked}


def test_what_is_kept_by_the_module_around_is_not_shared_out():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.a, self.b = 4, Kept(), Kept()

        def forward(self, x):
            self.a.heads = self.b.heads = self.heads
            return self.b(self.a(x))

    torch.manual_seed(0)
    model = nn.Sequential(Around(), nn.Linear(24, 6), nn.Linear(6, 2))
    found = tv.advise.pruning(model, torch.randn(*X), ratio=0.5)
    problems = [cut.problem for cut in found.groups if cut.heads]
    assert len(problems) == 2 and all(problems)  # one number for both: neither can go alone
    assert found.model[0].heads == 4 and found.model[1].out_features == 3


def test_groups_that_do_not_go_together():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x):
            if self.a.out_features < 6 and self.b.out_features < 8:
                raise ValueError("too thin")
            return self.c(F.relu(self.b(F.relu(self.a(x)))))

    found = tv.advise.pruning(Picky(), torch.ones(2, 4))
    assert [cut.problem for cut in found.groups] == ["", "not together with the others: ValueError: too thin"]
    assert found.model.a.out_features == 4 and found.model.b.out_features == 8


def test_heads_are_tried_even_where_groups_are_not():
    model, args = made("gpt2")
    found = tv.advise.pruning(model, *args, ratio=0.5, each=False)
    assert found.model.transformer.h[0].attn.split_size == 16 and found.facts()["heads"] == "4 of 8 cut"


def test_a_column_that_is_left_out_is_seen():
    """The check can fail: a dependency that is forgotten gives a model that is not the one with zeroed columns."""
    model, args = made("kept")
    bench = PruningTrials(model, args, {}, None)
    group = next(group for group in bench.dependencies.groups if group.heads)
    rows, columns = bench.dependencies.ids["0.to_qkv.weight"][0], bench.dependencies.ids["0.to_out.weight"][1]
    bench.dependencies.unit[columns] = np.roll(
        bench.dependencies.unit[columns], 8
    )  # heads read by their neighbours
    assert len(rows) == 96
    assert bench.cut_group(group, group.units[:1]).problem == OTHER
