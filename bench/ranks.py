"""Worlds that are not there: Llama 3 405B simulated on 1,024 ranks and as a pipeline, layouts that fit, joined ranks.

The peer of a simulated rank is the same step under torch's own fake tensors in the same fake process group, without
any recording. Both build the model, and both are timed alone in one process, one after the other.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench import child
from bench.row import Row, at_most, within

GIB = 2**30
TOKENS = 8192
# Llama 3 405B
WIDTH, HEADS, KV_HEADS, INNER, VOCABULARY, LAYERS = 16384, 128, 8, 53248, 128256, 126


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """Attend to what came before."""
        heads = [
            project(x).view(x.shape[0], x.shape[1], -1, self.size).transpose(1, 2)
            for project in (self.wq, self.wk, self.wv)
        ]
        q, k = (_turned(part, turn) for part in heads[:2])
        mixed = F.scaled_dot_product_attention(q, k, heads[2], is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


def _turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-second, first], -1) * turn[1]


class FeedForward(nn.Module):
    """A gated linear unit."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Widen, gate, narrow."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    """One layer."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.feed_forward = Attention(width, heads, kv_heads), FeedForward(width, inner)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """Attention and the unit, each with a branch around it."""
        x = x + self.attention(self.attention_norm(x), turn)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The layers from one number to another; the first part has the embedding, the last one the head."""

    def __init__(self, layers: int, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.layers = nn.ModuleList(Layer(WIDTH, HEADS, KV_HEADS, INNER) for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH) if last else None
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None
        self.register_buffer("turn", torch.ones(2, TOKENS, WIDTH // HEADS), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of tokens, or what the next part gets."""
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers:
            x = layer(x, self.turn)
        return x if self.norm is None else self.output(self.norm(x))


def parallelize(model: Llama, mesh: Any, *, checkpoint: bool, piped: bool = False) -> Llama:
    """Tensor and sequence parallel along ``tp``, activations recomputed, parameters divided along ``dp``."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if "tp" in mesh.mesh_dim_names and mesh["tp"].size() > 1:
        _divide(model, mesh["tp"])
    if checkpoint:
        for number, layer in enumerate(model.layers):
            model.layers[number] = checkpoint_wrapper(layer)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    # a pipeline keeps parameters whole from one micro-batch to the next
    options = {"mesh": mesh["dp"], "mp_policy": policy, "reshard_after_forward": not piped}
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def _divide(model: Llama, mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    whole: dict[str, Any] = {}
    if model.embed is not None:
        whole["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if model.norm is not None:
        whole |= {
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
    parallelize_module(model, mesh, whole)
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
        ),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy; of divided logits without gathering them."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import loss_parallel

    if isinstance(logits, DTensor):
        with loss_parallel():
            return F.cross_entropy(logits.flatten(0, 1), target.flatten())
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def training(mesh: Any, layers: int = LAYERS, checkpoint: Any = "layers.*") -> Callable[[Any], None]:
    """The step of one rank of a mesh with the axes dp and tp, and with pp more than 1 as a pipeline."""
    from torch.distributed.tensor.parallel import loss_parallel

    if "pp" in mesh.mesh_dim_names and mesh["pp"].size() > 1:
        return _piped(mesh, layers, checkpoint)
    model = parallelize(Llama(layers), mesh, checkpoint=checkpoint is not None)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(tokens: torch.Tensor) -> None:
        with loss_parallel():
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _piped(mesh: Any, layers: int, checkpoint: Any) -> Callable[[Any], None]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor.parallel import loss_parallel

    stage, count = mesh.get_local_rank("pp"), mesh["pp"].size()
    own = layers // count + (stage < layers % count)
    model = Llama(own, stage == 0, stage == count - 1)
    parallelize(model, mesh, checkpoint=checkpoint is not None, piped=True)
    part = PipelineStage(model, stage, count, torch.device("cpu"), group=mesh.get_group("pp"))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    schedule = Schedule1F1B(part, MICRO_BATCHES, loss_fn=loss_of)

    def step(tokens: torch.Tensor) -> None:
        with loss_parallel():
            if stage == 0:
                schedule.step(tokens)
            else:
                schedule.step(**({"target": tokens} if stage == count - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


MICRO_BATCHES = 16
