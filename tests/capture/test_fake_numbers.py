"""Runs by shapes know small numbers and take the way of the real run, or say which line asked for another one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.fake import difference
from torch_vis.errors import CaptureFailed

Build = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Build] = {
    "sgd": lambda p: torch.optim.SGD(p, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adafactor": torch.optim.Adafactor,
}


def llama(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=1, **options))


def tokens() -> torch.Tensor:
    return torch.arange(2 * 96).view(2, 96) % 64


@pytest.mark.parametrize("given", ["ones", "padded", "no mask", "no cache", "checkpointing"])
def test_transformers_takes_the_way_of_the_real_run(given: str) -> None:
    ids = tokens()
    kwargs: dict[str, Any] = {"labels": ids}
    if given in ("ones", "padded"):
        kwargs["attention_mask"] = torch.ones_like(ids)
    if given == "padded":
        kwargs["attention_mask"][0, :5] = 0
    if given == "no cache":
        kwargs["use_cache"] = False

    def trace(**options: Any) -> tv.Trace:
        model = llama()
        if given == "checkpointing":
            model.gradient_checkpointing_enable()
            model.train()
        return tv.trace(model, ids, kwargs=kwargs, loss=lambda output: output.loss, **options)

    real, fake = trace(hold=False), trace(fake=True)
    assert difference(real, fake) is None
    assert fake.memory().peak_bytes == real.memory().peak_bytes


def test_a_mask_without_numbers_is_made_and_memory_names_the_line_that_asked() -> None:
    with torch.device("meta"):
        model, ids = llama(), torch.ones(2, 96, dtype=torch.int64)
    trace = tv.trace(model, ids, kwargs={"attention_mask": torch.ones_like(ids)}, fake=True)
    asked = [limit for limit in trace.limits if "masking_utils.py:" in limit]
    assert asked and asked[0].kind == "branch"  # type: ignore[attr-defined]
    assert "masking_utils.py:" in str(trace.memory())
    assert not any(
        "masking_utils.py:" in note for note in tv.trace(llama(), tokens(), fake=True).memory().notes()
    )


def test_transformers_is_left_as_it_was_after_an_exception() -> None:
    utils = pytest.importorskip("transformers.utils.import_utils")
    before = utils.is_fake_tensor, torch.Tensor.__dict__.get("tolist"), torch.Tensor.__dict__.get("numpy")
    fakes = torch._subclasses.FakeTensor.tolist

    def fails(x: torch.Tensor) -> None:
        assert utils.is_fake_tensor is not before[0]
        raise KeyError("half-way")

    with pytest.raises(KeyError):
        tv.trace(fails, torch.ones(2), fake=True)
    after = utils.is_fake_tensor, torch.Tensor.__dict__.get("tolist"), torch.Tensor.__dict__.get("numpy")
    assert after == before and torch._subclasses.FakeTensor.tolist is fakes


class Decides(nn.Module):
    """Goes by numbers that follow from what it is given."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not bool(mask.all()):
            x = x[mask]
        counts = torch.bincount(mask.sum(-1), minlength=3).tolist()
        rows = mask.nonzero()
        for part in x.split(counts[: len(counts) - 1] or [len(x)]) if sum(counts[:-1]) == len(x) else [x]:
            x = x + part.sum()
        if int(mask.cumsum(0)[-1].max()) > 2:
            x = x * 2
        return x.sum() + rows.shape[0]


@pytest.mark.parametrize("mask", [torch.ones(4, 3).bool(), torch.eye(4, 3).bool(), torch.zeros(4, 3).bool()])
def test_numbers_that_follow_from_the_inputs_decide(mask: torch.Tensor) -> None:
    x = torch.randn(4, 3)
    real, fake = tv.trace(Decides(), x, mask), tv.trace(Decides(), x, mask, fake=True)
    assert difference(real, fake) is None


def test_numbers_that_are_written_over_are_forgotten() -> None:
    def decides(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        view = mask[0]
        view.copy_(x > 0)
        return x + 1 if bool(mask.all()) else x

    with pytest.raises(CaptureFailed, match="needs the numbers"):
        tv.trace(decides, torch.ones(3), torch.ones(2, 3).bool(), fake=True)
    mask = torch.ones(2, 3).bool()
    trace = tv.trace(lambda mask: bool(mask[0].zero_().any()) or mask + 1, mask, fake=True)
    assert [node.name for node in trace.graph.nodes][-1] == "add" and bool(mask.all())


def test_all_random_streams_are_put_back() -> None:
    def draws(x: torch.Tensor) -> torch.Tensor:
        return x * random.random() + np.random.rand() + torch.rand(3)

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    plain = random.random(), np.random.rand(), torch.rand(1)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    tv.trace(draws, torch.ones(3), fake=True)
    assert (random.random(), np.random.rand(), torch.rand(1)) == plain


# ---------------------------------------------------------------- models on the meta device


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def run(x: torch.Tensor) -> torch.Tensor:
            return self.inner((x * self.scale + self.shift).to(self.scale.device))

        return checkpoint(run, x, use_reentrant=False)


def training_step(
    make: Callable[[], nn.Module], build: Build, device: str
) -> tuple[Any, nn.Module, torch.Tensor]:
    with torch.device(device):
        model, x = make(), torch.ones(5, 8)
    optimizer = build(model.parameters())

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step, model, x


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_model_on_meta_is_as_one_on_the_cpu(name: str) -> None:
    here, _, x = training_step(Checkpointed, OPTIMIZERS[name], "cpu")
    step, model, nothing = training_step(Checkpointed, OPTIMIZERS[name], "meta")
    kinds = [type(tensor) for tensor in [*model.parameters(), *model.buffers()]]
    real, fake = tv.trace(here, x, hold=False), tv.trace(step, nothing, fake=True)
    assert difference(real, fake) is None
    assert fake.memory().peak_bytes == real.memory().peak_bytes
    assert [type(tensor) for tensor in [*model.parameters(), *model.buffers()]] == kinds
    assert all(p.device.type == "meta" and p.is_meta and not p.is_cpu for p in model.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("place", ["first", "between", "last"])
def test_the_peak_from_the_second_step_on(name: str, place: str) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3)))
    optimizer = OPTIMIZERS[name](model.parameters())

    def step(x: torch.Tensor) -> None:
        if place == "first":
            optimizer.zero_grad()
        loss = model(x).square().mean()
        if place == "between":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if place == "last":
            optimizer.zero_grad()

    def two_steps(x: torch.Tensor) -> None:
        step(x)
        step(x)

    for batch in (4, 400):
        x = torch.randn(batch, 32)
        first = tv.trace(step, x, fake=True)
        both = tv.trace(two_steps, x, fake=True).memory()
        report = first.memory()
        assert report.steady_peak_bytes == both.peak_bytes == first.summary().steady_peak_bytes
        assert report.to_dict()["facts"]["steady_peak_bytes"] == both.peak_bytes
        assert report.new_state_bytes > 0 and "from the second step on" in str(report)
        # which may be broken into lines
        assert "from the second step on" in " ".join(str(first).split())
    step(x)
    later = tv.trace(step, x, fake=True)
    assert later.memory().steady_peak_bytes is None and later.memory().peak_bytes == both.peak_bytes
    assert "from the second step on" not in str(later.memory())


# ---------------------------------------------------------------- routers of experts


class Router(nn.Module):
    """Sends each row to two of four experts, by the usual ways of asking which rows those are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, slot, None])
        mask = (chosen == 1).any(-1)
        out = out + x[mask].sum() + torch.masked_select(x, mask[:, None]).sum()
        counts = torch.bincount(chosen.flatten(), minlength=4).tolist()
        rows = x.repeat_interleave(2, 0)[chosen.flatten().argsort()]
        parts = [expert(part) for expert, part in zip(self.experts, rows.split(counts))]
        hot = torch.zeros_like(weights.new_empty(len(x), 4)).scatter_(1, chosen, 1.0)
        return out.sum() + torch.cat(parts).sum() + hot.sum(0).long().max().item()


@pytest.mark.parametrize(("how", "rows"), [("balanced", [16, 16, 16, 16]), ("worst", [32, 32, 0, 0])])
def test_what_a_router_chooses_can_be_assumed(how: str, rows: list[int]) -> None:
    model, x = Router(), torch.randn(32, 16)
    with pytest.raises(CaptureFailed, match="assume="):
        tv.trace(model, x, backward=True, fake=True)
    trace = tv.trace(model, x, backward=True, fake=True, assume={"tokens": how})
    products = [node for node in trace.graph.nodes if node.name == "addmm" and "experts" in node.path]
    assert [node.outputs[0].type.shape[0] for node in products] == rows * 2
    assert any(how in limit and "which of 4" in limit for limit in trace.limits)
    assert any("which of 4" in note for note in trace.memory().notes())


def test_experts_of_transformers_by_assumption() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = transformers.MixtralConfig(
        **sizes, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2
    )
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config)
    model.set_experts_implementation("eager")
    ids = tokens()
    options: Any = {"kwargs": {"labels": ids}, "loss": lambda output: output.loss, "fake": True}
    even, uneven = (tv.trace(model, ids, **options, assume={"tokens": how}) for how in ("balanced", "worst"))
    assert len(even.graph) > len(uneven.graph)


def test_assumptions_that_make_no_sense() -> None:
    model, x = nn.ReLU(), torch.ones(2)
    with pytest.raises(tv.errors.UsageError, match="add fake=True"):
        tv.trace(model, x, assume={"tokens": "worst"})
    with pytest.raises(tv.errors.TorchVisError, match="balanced"):
        tv.trace(model, x, fake=True, assume={"tokens": "balance"})
    with pytest.raises(tv.errors.TorchVisError, match="tokens"):
        tv.trace(model, x, fake=True, assume={"token": "worst"})


def names(t: tv.Trace) -> list[str]:
    return [node.name for node in t.graph.nodes]


class Skipping(nn.Module):
    """Layers that are skipped at random, as by LayerDrop."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.layers, self.chance = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), chance

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if torch.rand([]) < self.chance:
                continue
            x = layer(x)
        return x


def test_a_random_number_decides_as_the_middle_of_its_range() -> None:
    x, rarely, mostly = torch.randn(2, 4), Skipping(0.1), Skipping(0.9)
    state = torch.get_rng_state()
    kept, gone = tv.trace(rarely, x, backward=True, fake=True), tv.trace(mostly, x, fake=True)
    assert names(kept).count("addmm") == 3 and "addmm" not in names(gone)
    assert any(
        "decides by a random number, taken to be the middle of its range" in text for text in kept.limits
    )
    assert torch.equal(torch.get_rng_state(), state)
    noise = tv.trace(lambda x: x + torch.rand([]) * torch.randn(3), torch.ones(3), fake=True)
    assert not any("decides by" in text for text in noise.limits)


@pytest.mark.parametrize(
    "is_broken",
    [
        lambda x: not torch.isfinite(x).all(),
        lambda x: torch.isnan(x).any(),
        lambda x: torch.isinf(x).any() or torch.isnan(x).any(),
        lambda x: (x != x).any(),
        lambda x: (torch.isnan(x) | torch.isinf(x)).any().item(),
        lambda x: x.isfinite().logical_not().any(),
    ],
)
@pytest.mark.parametrize("size", [4, 2000])
def test_activations_are_taken_to_be_finite(is_broken: Any, size: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        return y.clamp(-1, 1) if is_broken(y) else y * 2

    t = tv.trace(program, torch.ones(size, size), fake=True)
    assert "clamp" not in names(t) and names(t)[-1] == "mul"
    assert any("whether numbers are finite, taken to be so" in text for text in t.limits)
