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
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
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
    """Cross entropy; of divided logits without gathering them, since steps run within ``loss_parallel``."""
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


# ---------------------------------------------------------------- the figures


def run(quick: bool) -> list[Row]:
    """Each figure in a process of its own."""
    layers = 8 if quick else LAYERS
    rows = []
    plain = child.call("bench.ranks:plain", layers=layers)
    ours = child.call("bench.ranks:simulated", layers=layers)
    name = f"405B, {layers} layers, one rank of 1,024"
    rows.append(
        within(name, ours["whole"], 30, "s", f"{ours['operations']:,} operations, {ours['peak']:.2f} GiB")
    )
    rows.append(
        at_most(
            f"{name}: the step",
            f"{ours['step']:.1f} s",
            f"plain fake step {plain:.1f} s",
            ours["step"] / plain,
            1.5,
        )
    )
    seconds = child.call("bench.ranks:stages", layers=18 if quick else LAYERS)
    rows.append(within("405B, PP 9 × DP 16 × TP 8, 16 micro-batches, three stages", seconds, 70, "s"))
    seconds, count = child.call("bench.ranks:layouts", layers=16 if quick else LAYERS)
    rows.append(within(f"fit: {count} layouts of 405B on 1,024 ranks", seconds, 60, "s"))
    rows.append(within("join of 8 ranks × 50,000 operations", child.call("bench.ranks:joined"), 2, "s"))
    rows.append(within("a collective recorded", child.call("bench.ranks:collective"), 10, "µs"))
    predicted, real = child.call("bench.ranks:against_real")
    ratio = predicted / real
    rows.append(
        Row(
            "step of two gloo ranks, predicted",
            f"{predicted * 1e3:.1f} ms",
            f"measured {real * 1e3:.1f} ms",
            ratio,
            "within 25 %",
            abs(ratio - 1) <= 0.25,
        )
    )
    return rows


def simulated(layers: int) -> dict[str, float]:
    """One rank of 128 × TP 8: seconds with building, and of the recorded step alone."""
    import torch_vis as tv
    from torch_vis.capture.session import Capture

    timed = {}
    original = Capture.run

    def record(self: Any, *args: Any, **options: Any) -> None:
        started = time.process_time()
        original(self, *args, **options)
        timed["step"] = time.process_time() - started

    Capture.run = record  # type: ignore[method-assign]
    started = time.process_time()
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    w = tv.simulate(lambda mesh: training(mesh, layers), tokens, mesh={"dp": 128, "tp": 8}, ranks=[0])
    whole = time.process_time() - started
    return {
        **timed,
        "whole": whole,
        "operations": len(w[0].graph),
        "peak": w[0].memory().peak_bytes / GIB,
    }


def plain(layers: int) -> float:
    """Seconds of the same step under torch's fake tensors alone, in the same fake process group."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    from torch_vis.capture.fake_ranks import fake_rank, make_optimizer_state

    with fake_rank(0, 1024):
        mesh = init_device_mesh("cpu", (128, 8), mesh_dim_names=("dp", "tp"))
        with torch.device("meta"):
            model = parallelize(Llama(layers), mesh, checkpoint=True)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            make_optimizer_state(optimizer)
            tokens = torch.zeros(1, TOKENS, dtype=torch.long)
            started = time.process_time()
            with loss_parallel():
                F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            return time.process_time() - started


def stages(layers: int) -> float:
    """Seconds for the first, the second and the last stage of nine."""
    import torch_vis as tv

    started = time.process_time()
    tokens = torch.zeros(MICRO_BATCHES, TOKENS, dtype=torch.long)
    mesh = {"pp": 9, "dp": 16, "tp": 8}
    tv.simulate(lambda mesh: training(mesh, layers), tokens, mesh=mesh, ranks=[0, 128, 1024])
    return time.process_time() - started


def layouts(layers: int) -> tuple[float, int]:
    """Seconds for layouts with as many tensor parallel ranks as there are heads of keys; and how many there were."""
    import torch_vis as tv

    started = time.process_time()
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    report = tv.fit(
        training, tokens, world=1024, memory="80 GiB", tp=(1, 2, 4, 8),
        checkpoint=(None, "layers.*"), layers=layers, whole=False,
    )  # fmt: skip
    return time.process_time() - started, len(report.layouts)


def joined() -> float:
    """Seconds to join the files of 8 ranks of 50,000 operations each."""
    import torch.distributed as dist

    import torch_vis as tv
    from torch_vis.capture.fake_ranks import fake_rank

    def program(x: torch.Tensor) -> None:
        for number in range(50_000):
            x = x + 1
            if number % 50 == 0:
                dist.all_reduce(x)

    with tempfile.TemporaryDirectory() as folder:
        for rank in range(8):
            with fake_rank(rank, 8):
                tv.trace(program, torch.ones(4), hold=False).save(os.path.join(folder, f"step.r{rank}.tvz"))
        started = time.perf_counter()
        w = tv.join(os.path.join(folder, "step.r*.tvz"))
        assert w is not None and not w.problems and len(w.meetings) == 1000
        return time.perf_counter() - started


def collective(calls: int = 3000) -> float:
    """Microseconds that recording adds to a collective and its wait."""
    import torch.distributed as dist

    import torch_vis as tv
    from torch_vis.capture.fake_ranks import fake_rank

    def program(x: torch.Tensor) -> None:
        for _ in range(calls):
            dist.all_reduce(x)

    with fake_rank(0, 8):
        x = torch.ones(4)
        times: dict[str, list[float]] = {"plain": [], "traced": []}
        for _ in range(5):
            for name, function in (
                ("plain", program),
                ("traced", lambda x: tv.trace(program, x, hold=False)),
            ):
                started = time.process_time()
                function(x)
                times[name].append(time.process_time() - started)
    best = {name: min(rows) for name, rows in times.items()}
    return (best["traced"] - best["plain"]) / calls * 1e6


def against_real() -> tuple[float, float]:
    """The step of a small sharded net on two gloo ranks, predicted after a calibration, and measured; in seconds."""
    import torch.multiprocessing as mp

    import torch_vis as tv
    from torch_vis.analysis.ranks.step_time import AxisLink

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_measure, args=(folder,), nprocs=2)
        measured = torch.load(os.path.join(folder, "times.pt"))
        # measured now, by the same machine that ran the ranks, and kept nowhere
        calibration = tv.measure.calibrate(path=os.path.join(folder, "calibration.json"))
    # all_gather of so many bytes: what a start takes, and what a byte
    small, large = measured["small"], measured["large"]
    rate = (large[0] - small[0]) / max(large[1] - small[1], 1e-9)
    link = AxisLink(rate, 0.0, max(small[1] - small[0] / rate, 0.0) * 1e9)
    w = tv.simulate(_small, torch.ones(64, 1024), mesh={"dp": 2}, hardware=calibration, links={"dp": link})
    return w.step_time().total_ns / 1e9, measured["step"]


def _small(mesh: Any) -> Callable[[torch.Tensor], None]:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)])
    for block in model:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _measure(rank: int, folder: str) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

    def best(function: Callable[[], Any], rounds: int = 15) -> float:
        times = []
        for _ in range(rounds):
            dist.barrier()
            started = time.perf_counter()
            function()
            times.append(time.perf_counter() - started)
        return sorted(times)[rounds // 2]

    times: dict[str, Any] = {}
    for name, elements in (("small", 1024), ("large", 1 << 20)):
        given, whole = torch.ones(elements), torch.ones(2 * elements)
        times[name] = (elements * 4, best(lambda: dist.all_gather_into_tensor(whole, given)))  # noqa: B023
    step, x = _small(mesh), torch.ones(64, 1024)
    times["step"] = best(lambda: step(x))
    if rank == 0:
        torch.save(times, os.path.join(folder, "times.pt"))
    dist.barrier()
    dist.destroy_process_group()
