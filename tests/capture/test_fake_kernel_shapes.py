"""Where torch's rules for shapes are not what CPU kernels do: a fake run follows the kernels."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import torch_vis as tv
from tests.kit.fake import difference
from torch_vis.capture import fake as fake_rules

aten = torch.ops.aten
needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN"
)


def kept_by_the_kernel(steps: int, batch: int, features: int, units: int, dtype: torch.dtype) -> int:
    shapes: list[tuple[int, ...]] = [(steps, batch, features), (4 * units, features), (4 * units, units)]
    shapes += [(4 * units,), (4 * units,), (batch, units), (batch, units)]
    tensors = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    flags = (False, [], 2, units, 1, True, False, False, True)
    return int(aten.mkldnn_rnn_layer(*tensors, *flags)[3].numel())


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_workspace_of_an_lstm_is_as_large_as_the_kernels(dtype: torch.dtype) -> None:
    numbers = random.Random(0)
    try:
        kept_by_the_kernel(1, 1, 1, 1, dtype)
    except RuntimeError:
        pytest.skip("this processor has no kernel for it")
    for _ in range(40):
        shape = (
            numbers.choice((1, 2, numbers.randint(1, 40))),
            numbers.choice((1, 2, numbers.randint(1, 50))),
            numbers.choice((64, 256, numbers.randint(1, 500))),
            numbers.choice((64, 256, numbers.randint(1, 300))),
        )
        assert fake_rules.workspace_bytes(*shape, dtype.itemsize) == kept_by_the_kernel(*shape, dtype), shape


class Tagger(nn.Module):
    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__()
        self.memory = nn.LSTM(*sizes, **options)
        self.head = nn.Linear(sizes[1] * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(x)[0])


LSTMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "batch first": ((32, 64), {"batch_first": True}),
    "two layers, both ways": ((64, 96, 2), {"bidirectional": True, "dropout": 0.5}),
    "no bias": ((5, 7, 2), {"bias": False}),
}


@needs_onednn
@pytest.mark.parametrize("name", LSTMS)
def test_a_training_step_of_an_lstm(name: str) -> None:
    sizes, options = LSTMS[name]
    model = Tagger(*sizes, **options)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(12, 20, sizes[0])

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    fake = tv.trace(step, x, fake=True)
    real = tv.trace(step, x, hold=False)
    assert difference(real, fake) is None
    assert fake.memory().peak_bytes == real.memory().peak_bytes
    assert not any("oneDNN" in limit for limit in fake.limits)
    with torch.no_grad():
        assert difference(tv.trace(model, x, hold=False), tv.trace(model, x, fake=True)) is None


@needs_onednn
def test_a_machine_whose_kernel_keeps_something_else_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_rules, "PAGE", 64)
    fake_rules.workspace_rule_holds.cache_clear()
    try:
        fake = tv.trace(Tagger(4, 8), torch.ones(3, 2, 4), fake=True)
        assert sum("an LSTM" in limit for limit in fake.limits) == 1
    finally:
        fake_rules.workspace_rule_holds.cache_clear()


def test_norms_keep_what_they_do_under_autocast() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.GroupNorm(4, 8), nn.Flatten(2),
        nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4),
    )  # fmt: skip
    x = torch.randn(64, 3, 8, 8)

    def step(x: torch.Tensor) -> None:
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()

    fake = tv.trace(step, x, fake=True)
    real = tv.trace(step, x, hold=False)
    assert difference(real, fake) is None
    assert fake.memory().peak_bytes == real.memory().peak_bytes


def test_autocast_keeps_no_fake_weights() -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tv.trace(model, x, backward=True, fake=True)
        after = model(x)
    assert not isinstance(after, FakeTensor) and after.isfinite().all()


MATRICES = {
    "rows by expert": ((12, 16), (3, 16, 8), True),
    "rows by transposed expert": ((12, 16), (3, 7, 16), True),
    "gradients of experts": ((16, 12), (12, 8), True),
    "a stack": ((3, 6, 16), (3, 16, 8), False),
}


@pytest.mark.skipif(not hasattr(aten, "_grouped_mm"), reason="torch has no grouped products")
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products(name: str, dtype: torch.dtype) -> None:
    one, other, offsets = MATRICES[name]
    a, b = torch.ones(one, dtype=dtype), torch.ones(other, dtype=dtype)
    ends = torch.tensor([4, 8, 12], dtype=torch.int32) if offsets else None

    def product() -> Any:
        return aten._grouped_mm(a, b.transpose(1, 2) if "transposed" in name else b, ends)

    try:
        real = tv.trace(product)
    except RuntimeError as error:  # rows that are not aligned, in half precision
        with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
            tv.trace(product, fake=True)
        assert "multiple of 16 bytes" in str(error)
        return
    assert difference(real, tv.trace(product, fake=True)) is None


def test_a_mixture_of_experts_trains() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads))
    ids = torch.randint(0, 64, (2, 6))
    fake = tv.trace(model, ids, loss=lambda output: output.logits.sum(), fake=True)
    real = tv.trace(model, ids, loss=lambda output: output.logits.sum(), hold=False)
    assert difference(real, fake) is None


def test_a_failure_is_raised_and_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = list(log.filters)
    with pytest.raises(RuntimeError, match=r"reduction dim|cannot be multiplied"):
        tv.trace(nn.Linear(3, 2), torch.ones(2, 5), fake=True)
    assert "failed while attempting" not in capfd.readouterr().err
    assert log.filters == before
