"""One rank of eight on a GPU, the others not there: memory against CUDA's allocator, kernels, streams, the proof."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_vis as tv
from tests.kit.ranks import fake_group

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
RANKS = {"dp": 4, "tp": 2}
FAR = 0.02
# operations of which each has a kernel
KERNELS = {"mm", "_fused_adamw_"}


class Sizes(NamedTuple):
    """A small Llama."""

    width: int = 2048
    heads: int = 16
    layers: int = 6
    words: int = 32_000
    tokens: int = 2048
    batch: int = 2


SMALL = Sizes(32, 4, 2, 64, 16, 2)


class Layer(nn.Module):
    """Attention and a gated unit, each with a branch around it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.size = width // sizes.heads
        self.first_norm, self.second_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.first_norm(x)
        # of the heads, a rank has its own
        query, key, value = (
            project(normed).view(*x.shape[:2], -1, self.size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.second_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Embedding, layers, head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm, self.head = nn.RMSNorm(sizes.width), nn.Linear(sizes.width, sizes.words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make(mesh: Any, sizes: Sizes, device: str) -> Callable[[torch.Tensor], None]:
    """A training step: FSDP2 in half precision along dp, tensor parallel along tp."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    with torch.device(device):
        model = Llama(sizes)
    columns = dict.fromkeys(("query", "key", "value", "gate", "up"), ColwiseParallel())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        parallelize_module(
            layer, mesh["tp"], {**columns, "out": RowwiseParallel(), "down": RowwiseParallel()}
        )
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(tokens: torch.Tensor) -> None:
        logits = model(tokens)
        F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Rank:
    """Rank 0 of the eight on a device, after two steps."""

    def __init__(self, device: str, sizes: Sizes) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(device, tuple(RANKS.values()), mesh_dim_names=tuple(RANKS))
        self.step = make(mesh, sizes, device)
        self.tokens = torch.randint(
            sizes.words, (sizes.batch, sizes.tokens), generator=torch.Generator().manual_seed(0)
        ).to(device)
        for _ in range(2):
            self.step(self.tokens)


def plain_peak(rank: Rank) -> int:
    """The most that CUDA's allocator had given out at once, in a step without us."""
    # what another test left in cycles, such as the traceback of its failure
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    rank.step(rank.tokens)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def talk(t: tv.Trace) -> list[tuple[str, str | None, int]]:
    return [(row.kind, row.axis, row.bytes) for row in t.communication().exchanges]


def assert_a_rank(t: tv.Trace, layers: int) -> None:
    """Both axes are there: shards are gathered twice and reduced once, each layer adds its rows up."""
    kinds = [(kind, axis) for kind, axis, _ in talk(t)]
    assert kinds.count(("all_gather", "dp")) == 2 * layers + 1
    assert kinds.count(("reduce_scatter", "dp")) == layers + 1
    assert kinds.count(("all_reduce", "tp")) >= 4 * layers


def test_the_rank_on_the_cpu() -> None:
    with fake_group(8):
        rank = Rank("cpu", SMALL)
        t = tv.trace(rank.step, rank.tokens)
        assert_a_rank(t, SMALL.layers)
        t.check()
        shapes = tv.trace(rank.step, rank.tokens, fake=True)
    assert talk(shapes) == talk(t) and shapes.memory().peak_bytes == t.memory().peak_bytes
    assert {node.name for node in t.graph.nodes} >= KERNELS


@GPU
def test_memory_is_that_of_the_allocator() -> None:
    with fake_group(8):
        rank = Rank("cuda", Sizes())
        plain = plain_peak(rank)
        t = tv.trace(rank.step, rank.tokens, hold=False)
        shapes = tv.trace(rank.step, rank.tokens, fake=True)
        after = plain_peak(rank)
    figures = {}
    for name, run in (("recorded", t), ("by shapes", shapes)):
        memory = run.memory()
        (device,) = memory.cuda
        figures[name] = memory.peak_bytes / plain
        figures[f"{name}, allocator and cuBLAS"] = device.peak_bytes / plain
    print(f"one rank of eight: max_memory_allocated {plain / 2**20:,.1f} MiB, after us {after / 2**20:,.1f}")
    for name, ratio in figures.items():
        print(f"  {name}: {ratio * plain / 2**20:,.1f} MiB, ratio {ratio:.4f}")
    # nothing of ours is left on the device
    assert abs(after / plain - 1) < 0.001
    assert all(abs(ratio - 1) <= FAR for ratio in figures.values()), figures


@GPU
def test_kernels_and_streams_are_there() -> None:
    with fake_group(8):
        rank = Rank("cuda", Sizes(layers=2))
        t = tv.trace(rank.step, rank.tokens, repeat=3)
        assert_a_rank(t, 2)
    device, kernel = t.meta["device_time"], t.metrics["kernel_ns"]
    streams = sorted(set(device["kernel_stream"]))
    print(
        f"one rank of eight: {len(device['kernel_name']):,} kernels on streams {streams}, {device['unmatched']} of no "
        f"operation; {kernel.total() / 1e6:.2f} of {device['total_ns'] / 1e6:.2f} ms in operations"
    )
    # shards are gathered, and gradients reduced, on streams of their own
    assert len(streams) > 1
    assert device["unmatched"] == 0, [str(limit) for limit in t.limits]
    assert kernel.total() > 0.9 * device["total_ns"]
    assert all(kernel[node.index] > 0 for node in t.graph.nodes if node.name in KERNELS)


@GPU
def test_the_rank_is_proved() -> None:
    with fake_group(8):
        rank = Rank("cuda", Sizes(layers=2, tokens=256))
        t = tv.trace(rank.step, rank.tokens)
        assert_a_rank(t, 2)
        print(f"one rank of eight: {t.check()}")
        rank.step(rank.tokens)
