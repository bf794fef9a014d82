"""The memory of a checkpointed run, told from a run without checkpoints, over many small nets: to the byte."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from torch_vis.graph.schema import Flag

WIDTH = 16
CALLS = [(0,), (1,), (3,), (1, 2), (0, 1, 2, 3)]

# what saves its result, its input, both, a mask or nothing; in a block of its own or in place
MAKERS: dict[str, Callable[[], nn.Module]] = {
    "ReLU": nn.ReLU,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "Softmax": partial(nn.Softmax, -1),
    "LogSoftmax": partial(nn.LogSoftmax, -1),
    "GELU": nn.GELU,
    "ELU": nn.ELU,
    "PReLU": nn.PReLU,
    "Dropout": nn.Dropout,
    "LayerNorm": partial(nn.LayerNorm, WIDTH),
    "BatchNorm": partial(nn.BatchNorm1d, WIDTH),
    "Identity": nn.Identity,
    "ReLU+Tanh": lambda: nn.Sequential(nn.ReLU(), nn.Tanh()),
    "ReLU_": partial(nn.ReLU, inplace=True),
    "ELU_": partial(nn.ELU, inplace=True),
    "SiLU_": partial(nn.SiLU, inplace=True),
}


class Plain(nn.Module):
    def __init__(self, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.act = act()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.body(x))


class Residual(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x + self.body(x))


class ResidualInPlace(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        out += x
        return self.act(out)


class ActsFirst(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(self.act(x))


class Net(nn.Module):
    def __init__(self, block: type[Plain], act: str, numbered: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.blocks, self.numbered = nn.ModuleList(block(MAKERS[act]) for _ in range(4)), numbered

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number in self.numbered else block(x)
        return x


def backward(net: nn.Module, x: torch.Tensor) -> tv.Trace:
    return tv.trace(net, x, backward=True)


def with_loss(net: nn.Module, x: torch.Tensor) -> tv.Trace:
    """The step itself holds the output until backward is done."""

    def step(x: torch.Tensor) -> torch.Tensor:
        out = net(x)
        loss = F.cross_entropy(out, torch.arange(len(x)) % WIDTH)
        loss.backward()
        return loss

    return tv.trace(step, x)


def with_optimizer(net: nn.Module, x: torch.Tensor) -> tv.Trace:
    optimizer = torch.optim.Adam(net.parameters())

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.mse_loss(net(x), x).backward()
        optimizer.step()

    return tv.trace(step, x)


def mixed(net: nn.Module, x: torch.Tensor) -> tv.Trace:
    def step(x: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = net(x)
        out.float().pow(2).sum().backward()

    return tv.trace(step, x)


def compare(record: Callable[..., tv.Trace], block: type[Plain], act: str, rows: int) -> None:
    """Every choice of blocks: the peak, and the memory during every operation that is not computed again."""
    x = torch.randn(rows, WIDTH)
    plain = record(Net(block, act), x)
    report = plain.memory()
    for numbered in CALLS:
        real = record(Net(block, act, numbered), x)
        found = report.checkpoint([f"blocks.{number}" for number in numbered])
        blocks = real.memory().blocks
        assert found.peak_bytes == blocks.peak_bytes, numbered
        again = real.graph.node_flags & Flag.RECOMPUTE != 0
        assert found.recomputing == (blocks.live[again].max() > blocks.live[~again].max()), numbered
        assert np.array_equal(found.live, blocks.live[~again]), numbered
        extra = real.metrics["flops"].total() - plain.metrics["flops"].total()
        assert found.extra_flops == extra, numbered


@pytest.mark.parametrize("act", MAKERS)
@pytest.mark.parametrize("block", [Plain, Residual, ResidualInPlace])
def test_whatever_a_block_ends_in(block: type[Plain], act: str) -> None:
    compare(backward, block, act, 64)


@pytest.mark.parametrize("act", ["ReLU", "GELU", "Dropout", "BatchNorm"])
def test_whatever_a_block_begins_with(act: str) -> None:
    compare(backward, ActsFirst, act, 64)


@pytest.mark.parametrize("act", ["ReLU", "GELU", "ReLU_"])
@pytest.mark.parametrize("rows", [4, 256], ids=["weights are most", "activations are most"])
@pytest.mark.parametrize("record", [with_loss, with_optimizer, mixed])
def test_whatever_the_step_does(record: Callable[..., tv.Trace], rows: int, act: str) -> None:
    compare(record, ResidualInPlace, act, rows)


class Branches(nn.Module):
    """Two results of a checkpointed block, one of which it saves itself, and both of which others save."""

    def __init__(self, numbered: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.block, self.numbered = Two(), numbered

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        one, two = checkpoint(self.block, x, use_reentrant=False) if self.numbered else self.block(x)
        return torch.tanh(self.second(one) * two)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one = torch.relu(self.inner(x))
        return one, self.outer(one).sigmoid().exp()


@pytest.mark.parametrize("record", [backward, with_loss, with_optimizer])
def test_a_block_of_two_results(record: Callable[..., tv.Trace]) -> None:
    x = torch.randn(64, WIDTH)
    found = record(Branches(False), x).memory().checkpoint("block")
    blocks = record(Branches(True), x).memory().blocks
    assert found.peak_bytes == blocks.peak_bytes
