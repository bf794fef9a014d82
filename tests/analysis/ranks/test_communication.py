"""What a rank says to others, against figures by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import torch_vis as tv
from tests.kit.ranks import Net, fake_group, mesh_of, on_ranks, shard, training_step
from torch_vis.analysis.ranks.communication import CommunicationReport

pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH, LAYERS, RANKS = 32, 3, 4


def parameters_of(model: nn.Module) -> int:
    """Its bytes."""
    return sum(parameter.nbytes for parameter in model.parameters())


def report_of(make: Callable[[], nn.Module], x: torch.Tensor, *, fake: bool = False) -> CommunicationReport:
    """The communication of a step forward and backward."""
    with fake_group(RANKS):
        model = make()
        return tv.trace(lambda: model(x).pow(2).sum().backward(), fake=fake).communication()


@pytest.mark.parametrize("fake", [False, True])
def test_sharded_parameters_are_gathered_twice_and_their_gradients_scattered_once(fake: bool) -> None:
    net = Net(WIDTH, LAYERS)
    whole, layers = parameters_of(net), parameters_of(net.layers)
    report = report_of(
        lambda: shard(Net(WIDTH, LAYERS), mesh_of(("dp", RANKS))), torch.ones(2, WIDTH), fake=fake
    )
    by_operation = {row.name: row for row in report.by_operation}
    # the last to be gathered, that of the whole, is kept for backward
    assert by_operation["all_gather on dp"].bytes == whole + layers
    assert by_operation["reduce_scatter on dp"].bytes == whole
    assert report.bytes == 2 * whole + layers
    assert report.sent_bytes == (2 * whole + layers) * (RANKS - 1) // RANKS
    assert {row.name: row.bytes for row in report.by_phase} == {"forward": whole, "backward": whole + layers}
    assert {row.name.partition(".")[0] for row in report.by_module} >= {"layers"}
    assert report.by_axis[0].name == f"dp ({RANKS})" and report.unknown == 0


class Attention(nn.Module):
    """Products of queries, keys and values, of heads that each rank has some of."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # one input for three products, whose gradients are added up before they are sent
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])


class Layer(nn.Module):
    """Attention and two products, each with a branch around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        return x + self.down(F.gelu(self.up(x)))


def tensor_parallel() -> nn.Module:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    model = nn.Sequential(*(Layer(WIDTH) for _ in range(LAYERS)))
    once = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    for layer in model:
        plan: dict[str, Any] = {
            "attention": once, "attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(), "attention.out": RowwiseParallel(),
            "up": ColwiseParallel(), "down": RowwiseParallel(),
        }  # fmt: skip
        parallelize_module(layer, mesh_of(("tp", RANKS)), plan)
    return model


def test_tensor_parallel_layers_reduce_their_activations_four_times() -> None:
    tokens = (2, 8, WIDTH)
    x = torch.ones(tokens, requires_grad=True)
    report = report_of(tensor_parallel, x)
    activations = x.nbytes
    assert report.bytes == 4 * LAYERS * activations
    assert report.sent_bytes == 2 * (RANKS - 1) * 4 * LAYERS * activations // RANKS
    assert [row.name for row in report.by_operation] == ["all_reduce on tp"]
    assert {row.name: row.bytes for row in report.by_phase} == {
        "forward": 2 * LAYERS * activations, "backward": 2 * LAYERS * activations,
    }  # fmt: skip


def data_parallel(rank: int, count: int) -> tuple[Any, ...]:
    step = training_step("ddp", rank, count)
    step()
    step()
    report = tv.trace(step).communication()
    return report.bytes, report.sent_bytes, report.calls, report.exposed_ns, str(report)


def test_data_parallel_ranks_reduce_their_gradients_once() -> None:
    whole = parameters_of(Net())
    for nbytes, sent, calls, exposed, text in on_ranks(data_parallel, 2):
        assert (nbytes, sent, calls) == (whole, whole, 1)
        # the reducer waits by itself
        assert exposed is None and "nobody was seen waiting for 1 of 1" in text


def overlapped(rank: int, count: int) -> tuple[Any, ...]:
    x, other = torch.ones(1000), torch.ones(1000)

    def program() -> torch.Tensor:
        work = dist.all_reduce(x, async_op=True)
        y = other * 2
        work.wait()
        return y

    report = tv.trace(program).communication()
    (row,) = report.exchanges
    return (
        row.waited_ns,
        row.exposed_ns,
        row.span_ns,
        report.by_line[0].name,
        report.by_axis[0].bytes_per_second,
    )


def test_a_rank_that_waits_says_where() -> None:
    for waited, exposed, span, line, speed in on_ranks(overlapped, 2):
        assert waited <= exposed and waited <= span and "test_communication.py" in line and speed > 0


def test_a_run_that_talks_to_nobody_says_so() -> None:
    report = tv.trace(nn.ReLU(), torch.ones(2)).communication()
    assert report.table() == "Communication\n\ncollectives  none: this run talks to no other rank"
    assert (report.bytes, report.sent_bytes, report.calls) == (0, 0, 0)
    assert not report.charts() and not report.listings()
