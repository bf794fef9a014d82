"""Whole networks have the multiply-adds that follow from their architecture, and torch's own where it counts all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import torch_vis as tv
from tests.zoo import declare_torchvision_ops
from torch_vis.ops.cost import costs, uncovered


def built(make: Callable[[], nn.Module]) -> nn.Module:
    """A full-size model with weights of zero, which are quickly made and cost as much as any."""
    with torch.device("meta"):
        model = make()
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.zero_()
    return model.eval()


def forward(model: nn.Module, x: torch.Tensor) -> tv.Trace:
    with torch.no_grad():
        return tv.trace(model, x, hold=False)


def macs(trace: tv.Trace) -> int:
    assert uncovered(trace.graph) == []
    total = costs(trace.graph)["macs"].total()
    assert isinstance(total, int)
    return total


def resnet50() -> int:
    """Bottlenecks of 1x1, 3x3 and 1x1 convolutions; the stride is in the 3x3."""
    total, channels, side = 112 * 112 * 64 * 3 * 7 * 7, 64, 56
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            out = side // 2 if stage and not block else side
            total += side * side * channels * width + out * out * (width * width * 9 + width * 4 * width)
            if not block:
                total += out * out * channels * 4 * width
            channels, side = 4 * width, out
    return total + 2048 * 1000


def encoder(layers: int, tokens: int, width: int) -> int:
    """Four projections, two products of attention, and a feed-forward layer four times as wide."""
    return layers * (tokens * width * width * (4 + 2 * 4) + 2 * tokens * tokens * width)


def vit_b_16() -> int:
    return 14 * 14 * 768 * 3 * 16 * 16 + encoder(12, 14 * 14 + 1, 768) + 768 * 1000


def test_resnet50() -> None:
    declare_torchvision_ops()
    torchvision = pytest.importorskip("torchvision")
    trace = forward(built(torchvision.models.resnet50), torch.zeros(1, 3, 224, 224))
    assert macs(trace) == resnet50() == 4_089_184_256


def test_vit_on_its_fast_path_and_off_it() -> None:
    declare_torchvision_ops()
    torchvision = pytest.importorskip("torchvision")
    model, x = built(torchvision.models.vit_b_16), torch.zeros(1, 3, 224, 224)
    fast, slow = forward(model, x), tv.trace(model, x, hold=False)
    assert "_native_multi_head_attention" in {node.name for node in fast.graph.nodes}
    assert "_native_multi_head_attention" not in {node.name for node in slow.graph.nodes}
    assert macs(fast) == macs(slow) == vit_b_16() == 17_563_828_224


def test_bert_base() -> None:
    declare_torchvision_ops()
    transformers = pytest.importorskip("transformers")
    model = built(lambda: transformers.BertModel(transformers.BertConfig()))
    pooler = 768 * 768
    assert macs(forward(model, torch.zeros(1, 128, dtype=torch.int64))) == encoder(12, 128, 768) + pooler
    assert encoder(12, 128, 768) + pooler == 11_174_215_680


def test_gpt2() -> None:
    declare_torchvision_ops()
    transformers = pytest.importorskip("transformers")
    model = built(lambda: transformers.GPT2Model(transformers.GPT2Config()))
    assert (
        macs(forward(model, torch.zeros(1, 128, dtype=torch.int64)))
        == encoder(12, 128, 768)
        == 11_173_625_856
    )


@pytest.mark.parametrize(("kind", "gates", "total"), [(nn.LSTM, 4, 45_875_200), (nn.GRU, 3, 34_406_400)])
def test_recurrent_networks(kind: Any, gates: int, total: int) -> None:
    model, x = kind(128, 256, 2), torch.zeros(50, 1, 128)
    by_hand = 50 * gates * 256 * ((128 + 256) + (256 + 256))
    assert macs(forward(model, x)) == macs(tv.trace(model, x)) == by_hand == total
    with torch.inference_mode():
        assert macs(tv.trace(model, x)) == total


class Mixed(nn.Module):
    """Convolutions and products that torch's own counter knows; of grouped ones it has too much in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=2, dilation=2),
            nn.ConvTranspose2d(8, 6, 3, stride=2),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(96, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return torch.baddbmm(y[:, None, :1], y[:, None], y[:, :, None]).flatten()


def tiny_bert() -> nn.Module:
    declare_torchvision_ops()
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return transformers.BertModel(transformers.BertConfig(**sizes, attn_implementation="eager"))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (Mixed, torch.zeros(2, 3, 16, 16)),
        (tiny_bert, torch.zeros(2, 12, dtype=torch.int64)),
        (lambda: nn.GRU(6, 5, 2), torch.zeros(4, 3, 6)),
    ],
    ids=["convolutions", "bert", "gru"],
)
def test_agreement_with_torch_forward_and_backward(make: Callable[[], nn.Module], x: torch.Tensor) -> None:
    model = make()

    def step() -> None:
        output = model(x)
        output = output if isinstance(output, torch.Tensor) else output[0]
        output.sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    assert 2 * macs(tv.trace(step)) == counter.get_total_flops()
