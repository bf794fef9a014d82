"""Attention weights of every kernel are those of the plain path; the logit lens; edges and paths by the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from torch_vis.errors import NoMatch, UsageError

transformers = pytest.importorskip("transformers")


def gpt2(attention: str, layers: int = 2) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_head=4, n_embd=32, vocab_size=60, n_positions=16, attn_implementation=attention,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)
    return model


IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])


def test_fused_attention_has_the_weights_of_the_eager_path() -> None:
    eager = gpt2("eager")
    expected = eager(IDS, output_attentions=True).attentions
    for attention in ("sdpa", "eager"):
        report = tv.trace(gpt2(attention), IDS).attention()
        assert report.names == ["transformer.h.0.attn", "transformer.h.1.attn"]
        assert bool(report.fused) == (attention == "sdpa")
        for weights, reference in zip(report.weights.values(), expected):
            torch.testing.assert_close(weights, reference)
    one = tv.trace(gpt2("sdpa"), IDS).attention("h.1.attn", IDS + 1, tokens=list("abcdef"))
    assert one.names == ["transformer.h.1.attn"]
    reference = eager(IDS + 1, output_attentions=True).attentions[1]
    torch.testing.assert_close(one.head("transformer.h.1.attn", 3, sample=1), reference[1, 3])
    assert "writing-mode" in one._repr_html_() and ">f<" in one._repr_html_()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_torchs_own_layers(grad: bool, masked: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=not masked).eval()
    x = torch.randn(2, 5, 16)
    mask = torch.tensor([[False] * 3 + [True] * 2, [False] * 4 + [True]]) if masked else None
    y = x if masked else layer.norm1(x)
    _, expected = layer.self_attn(y, y, y, key_padding_mask=mask, average_attn_weights=False)
    with torch.set_grad_enabled(grad):
        (weights,) = tv.trace(layer, x, kwargs={"src_key_padding_mask": mask}).attention().weights.values()
    torch.testing.assert_close(weights, expected.detach())


def test_attention_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="no attention"):
        tv.trace(nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1)), torch.ones(1, 2, 3)).attention()
    t = tv.trace(gpt2("sdpa"), IDS)
    with pytest.raises(UsageError, match=r"h\.0\.attn"):
        t.attention("ln_f")
    with pytest.raises(NoMatch):
        t.attention()["transformer.h.7.attn"]
    with pytest.raises(UsageError, match="4 heads"):
        t.attention().head("transformer.h.0.attn", 4)


def test_the_logit_lens_is_norm_and_head_after_each_layer() -> None:
    model = gpt2("sdpa", layers=3)
    t = tv.trace(model, IDS)
    lens = t.logit_lens(tokens=list("abcdef"), decode=lambda index: f"w{index}")
    assert lens.names == [f"transformer.h.{layer}" for layer in range(3)]
    states = model(IDS, output_hidden_states=True).hidden_states
    for layer in range(2):
        expected = model.lm_head(model.transformer.ln_f(states[layer + 1]))
        torch.testing.assert_close(lens[f"transformer.h.{layer}"], expected.detach())
    assert torch.equal(lens["transformer.h.2"], t.output.logits)
    first = int(t.output.logits[0, -1].argmax())
    assert int(lens.rank(first)[-1, 0, -1]) == 0 and lens.rows[-1].guess.startswith("w")
    assert lens.figure("matplotlib") is not None
    with pytest.raises(UsageError, match="shapes"):
        t.logit_lens("h.0 | lm_head")
    with pytest.raises(UsageError, match="at="):
        tv.trace(nn.Linear(3, 3), torch.ones(2, 3)).logit_lens()


def logit(output: Any) -> torch.Tensor:
    return output.logits[0, -1, 7] - output.logits[0, -1, 9]


def test_edges_and_paths_are_those_of_the_residual_stream() -> None:
    model = gpt2("sdpa")
    t = tv.trace(model, IDS[:1])
    other = IDS[:1].clone()
    other[0, 2] = 30
    parts = {ids: _parts(model, ids) for ids in (IDS[:1], other)}
    was, now = parts.values()
    base = was["embedding"] + was["0.attn"] + was["0.mlp"] + was["1.attn"]
    patched = base - was["0.attn"] + now["0.attn"]
    with torch.no_grad():
        through = base + model.transformer.h[1].mlp(model.transformer.h[1].ln_2(patched))
        plain = float(logit(t.output))
        expected = {
            "transformer.h.0.attn -> transformer.h.1.mlp": float(_logit(model, through)) - plain,
            "transformer.h.0.attn -> output": float(_logit(model, patched + was["1.mlp"])) - plain,
        }
    report = t.attribute_edges(logit, other, between="h.*.attn | h.*.mlp", top=20)
    effects = {row.edge: row.exact for row in report.rows}
    run = t.run(other, keep="all")
    for edge, effect in expected.items():
        assert effects[edge] == pytest.approx(effect, abs=1e-5)
        path = edge.split(" -> ")
        rerun = t.patch_path(path, tv.edit.patch_from(run))
        assert float(logit(rerun.output)) - plain == pytest.approx(effect, abs=1e-5)
    assert len(report.rows) == 10 and report.figure("matplotlib") is not None
    frozen = t.patch_path(["h.0.attn", "h.1.mlp"], tv.edit.patch_from(run), frozen="h.*.attn | h.*.mlp")
    assert float(logit(frozen.output)) - plain == pytest.approx(next(iter(expected.values())), abs=1e-5)
    with pytest.raises(UsageError, match="frozen"):
        t.patch_path(["h.0.mlp", "h.0.attn"], tv.edit.zero())
    with pytest.raises(UsageError, match="at least two"):
        t.patch_path(["h.0.mlp"], tv.edit.zero())


def test_a_path_passes_through_normalisations_that_are_written_out() -> None:
    """Those of Llama are a power, a mean and products: they pass a change on as a layer norm of torch does."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=40,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids, other = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 20, 3, 4]])
    t = tv.trace(model, ids)
    run = t.run(other, keep="all")
    parts = {}
    for tokens in (ids, other):
        with torch.no_grad(), tv.live(model, keep=["layers.0.self_attn", "model.norm.input"]) as live:
            model(tokens)
        parts[tokens] = {name: calls[0] for name, calls in live.kept.items()}
    was, now = (part["model.layers.0.self_attn"] for part in parts.values())
    was, now = (part[0] if isinstance(part, tuple) else part for part in (was, now))
    with torch.no_grad():
        expected = model.lm_head(model.model.norm(parts[ids]["model.norm.input"] - was + now))
    rerun = t.patch_path(["layers.0.self_attn", "output"], tv.edit.patch_from(run))
    torch.testing.assert_close(rerun.output.logits, expected, atol=1e-5, rtol=1e-5)
    through = t.patch_path(["layers.0.self_attn", "layers.1.mlp"], tv.edit.patch_from(run))
    assert not torch.equal(through.output.logits, t.output.logits)
    assert not torch.equal(through.output.logits, rerun.output.logits)


def _parts(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    body = model.transformer
    h = body.wte(ids) + body.wpe(torch.arange(ids.shape[1]))
    parts = {"embedding": h}
    for number, block in enumerate(body.h):
        parts[f"{number}.attn"] = block.attn(block.ln_1(h))[0]
        h = h + parts[f"{number}.attn"]
        parts[f"{number}.mlp"] = block.mlp(block.ln_2(h))
        h = h + parts[f"{number}.mlp"]
    return parts


def _logit(model: Any, h: torch.Tensor) -> torch.Tensor:
    logits = model.lm_head(model.transformer.ln_f(h))
    return logits[0, -1, 7] - logits[0, -1, 9]


def test_edges_between_operations_are_what_run_makes_of_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3), nn.Tanh())
    x, other = torch.randn(2, 4), torch.randn(2, 4)
    t = tv.trace(model, x)

    def measure(y: torch.Tensor) -> torch.Tensor:
        return y[:, 1].sum()

    report = t.attribute_edges(measure, other, top=3)
    assert [row.exact is not None for row in report.rows] == [True] * 3 + [False] * (len(report.rows) - 3)
    run = t.run(other, keep="all")
    for row in report.rows:
        if row.exact is not None and row.sender != "input":
            patched = t.run(replace={row.edge: tv.edit.patch_from(run)})
            assert float(measure(patched.output)) - report.measured == pytest.approx(row.exact, abs=1e-6)
    # the last edge is all of it, but for the curve of what follows
    (last,) = [row for row in report.rows if row.receiver == "3/tanh#5"]
    y = model[:3](x).detach()
    slope = (1 - torch.tanh(y) ** 2)[:, 1] * (model[:3](other).detach() - y)[:, 1]
    assert last.estimate == pytest.approx(float(slope.sum()), abs=1e-5)
    with pytest.raises(UsageError, match="other inputs"):
        t.attribute_edges(measure)
