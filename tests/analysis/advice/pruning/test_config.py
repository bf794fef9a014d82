"""Pruned models that are built from a configuration: saved and loaded again, or said not to be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.heads import made

CORRECTED = {
    "llama": {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1},
    "gpt2": {"n_embd": 16, "n_head": 2},
    "vit": {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2},
}


@pytest.mark.parametrize("name", CORRECTED)
def test_a_configuration_whose_numbers_are_plain_is_corrected(name, tmp_path):
    model, args = made(name)
    before = dict(vars(model.config))
    found = tv.advise.pruning(model, *args, ratio=0.5)
    (settings,) = found.settings
    assert {change.attribute: change.after for change in settings.changes} == CORRECTED[name]
    assert any("the configuration was corrected" in note for note in found.notes())
    assert vars(model.config) == before  # that of the model itself
    assert {name: getattr(found.model.config, name) for name in CORRECTED[name]} == CORRECTED[name]
    found.model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.allclose(again(*args).logits, found.model.eval()(*args).logits, atol=1e-6)
        if name != "vit":
            ids = args[0]
            mask = torch.ones_like(ids)
            tokens = found.model.generate(
                ids, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0
            )
            assert tokens.shape[1] > ids.shape[1]


def llama(width):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=width,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    return transformers.LlamaForCausalLM(config).eval(), torch.arange(8).unsqueeze(0)


def test_sizes_that_were_the_same_and_are_cut_by_different_amounts_are_told_apart(tmp_path):
    """The width of the model and that of all heads together: 64 both, and then 45 and 48."""
    model, ids = llama(64)
    found = tv.advise.pruning(model, ids, ratio=0.3)
    (settings,) = found.settings
    assert {change.attribute: change.after for change in settings.changes} == {
        "hidden_size": 45,
        "intermediate_size": 34,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    }
    found.model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, found.model.eval()(ids).logits, atol=1e-6)


def test_numbers_that_a_configuration_refuses_do_not_correct_it():
    model, ids = llama(32)  # 22 of 32 are left, which three heads do not divide
    (settings,) = tv.advise.pruning(model, ids, ratio=0.3).settings
    assert not settings.changes and "config.hidden_size 32" in settings.wrong


@pytest.mark.parametrize("name", ["bert", "neox"])
def test_a_configuration_that_cannot_say_it_is_told_to_be_wrong(name, tmp_path):
    """Fewer heads of the same width: these derive the width of a head from the width of the model."""
    model, args = made(name)
    found = tv.advise.pruning(model, *args, ratio=0.5)
    (settings,) = found.settings
    assert not settings.changes
    assert {"config.num_attention_heads 4", "config.hidden_size 32"} <= {*settings.wrong}
    (note,) = (note for note in found.notes() if "config" in note)
    assert "no longer describes the model" in note and "torch.save(found.model" in note
    assert found.model.config.num_attention_heads == 4
    torch.save(found.model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False).eval()
    with torch.no_grad():
        assert torch.equal(again(*args)[0], found.model.eval()(*args)[0])


def test_a_model_inside_another_is_corrected_where_it_is():
    class Around(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.last = inner, nn.Linear(32, 3)

        def forward(self, ids):
            return self.last(self.inner(ids).last_hidden_state)

    model, args = made("gpt2")
    found = tv.advise.pruning(Around(model.transformer), *args, ratio=0.5)
    (settings,) = found.settings
    assert settings.path == "inner" and found.model.inner.config.n_embd == 16
    assert isinstance(found.model.inner, type(model.transformer)) and found.model.last.in_features == 16


def test_a_model_without_a_configuration_has_nothing_to_tell():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = tv.advise.pruning(model, torch.ones(1, 4))
    assert not found.settings and not any("config" in note for note in found.notes())
