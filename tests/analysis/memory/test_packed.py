"""Weights that a quantized module has packed: named with their bytes, since no operation shows them as tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*:UserWarning"),
]


def quantized(model: nn.Module) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM})  # type: ignore[no-untyped-call]


def said(trace: tv.Trace) -> str:
    (limit,) = (limit for limit in trace.limits if "packed weights" in limit)
    return limit


def test_linear_layers_say_how_many_bytes_are_not_counted() -> None:
    model = quantized(nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8)))
    trace = tv.trace(model, torch.randn(1, 64))
    elements = 64 * 32 + 32 + 32 * 8 + 8
    size = 64 * 32 + 4 * 32 + 32 * 8 + 4 * 8  # weights of one byte, biases of four
    assert said(trace).startswith("2 × packed weights") and f"{size:,} bytes ({elements:,} elements)" in said(
        trace
    )
    assert "not among" not in said(trace) and "packed weights" in str(trace.memory())
    assert "packed weights" in " ".join(str(trace).split())


def test_a_layer_that_is_called_twice_counts_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    model, x = quantized(Twice()), torch.randn(2, 16)
    trace = tv.trace(model, x)
    assert [node.name for node in trace.graph.nodes] == ["linear_dynamic"] * 2
    assert said(trace).startswith("1 × packed weights")
    assert trace.check().operations == 2  # it raises unless a replay gives the same


def test_what_a_recurrent_layer_packs_inside_what_it_packs() -> None:
    trace = tv.trace(quantized(nn.Sequential(nn.LSTM(32, 16, 2))), torch.randn(5, 1, 32))
    elements = 4 * 16 * (32 + 16) + 4 * 16 * (16 + 16) + 4 * 16 * 2 * 2
    assert f"({elements:,} elements)" in said(trace)


def test_a_convolution_and_a_model_without_packed_weights() -> None:
    layer = torch.ao.nn.quantized.Conv2d(3, 8, 3)
    x = torch.quantize_per_tensor(torch.rand(1, 3, 8, 8), 0.1, 0, torch.quint8)
    assert f"({8 * 3 * 9 + 8:,} elements)" in said(tv.trace(layer, x))
    plain = tv.trace(nn.Linear(4, 4), torch.ones(1, 4))
    assert plain.limits == () and not any("packed" in note for note in plain.memory().notes())
