"""Worlds that are not there: Llama 3 405B simulated on 1,024 ranks and as a pipeline, layouts that fit, joined ranks.

The peer of a simulated rank is the same step under torch's own fake tensors in the same fake process group, without
any recording. Both build the model, and both are timed alone in one process, one after the other.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

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


def parallelize(
    model: Llama, mesh: Any, *, checkpoint: bool, piped: bool = False, shard_loss: bool = True
) -> Llama:
    """Tensor and sequence parallel along ``tp``, activations recomputed, parameters divided along ``dp``."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if "tp" in mesh.mesh_dim_names and mesh["tp"].size() > 1:
        _divide(model, mesh["tp"], shard_loss)
    if checkpoint:
        for number, layer in enumerate(model.layers):
            model.layers[number] = checkpoint_wrapper(layer)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    # a pipeline keeps parameters whole from one micro-batch to the next
    options = {"mesh": mesh["dp"], "mp_policy": policy, "reshard_after_forward": not piped}
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def _divide(model: Llama, mesh: Any, shard_loss: bool) -> None:
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
                input_layouts=Shard(1),
                output_layouts=Shard(-1) if shard_loss else Replicate(),
                use_local_output=not shard_loss,
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


def training(
    mesh: Any, layers: int = LAYERS, checkpoint: Any = "layers.*", shard_loss: bool = True
) -> Callable[[Any], None]:
    """The step of one rank of a mesh with the axes dp and tp, and with pp more than 1 as a pipeline.

    Logits can be divided by words only where several ranks have some.
    """
    from torch.distributed.tensor.parallel import loss_parallel

    parallel = "tp" in mesh.mesh_dim_names and mesh["tp"].size() > 1

    if "pp" in mesh.mesh_dim_names and mesh["pp"].size() > 1:
        return _piped(mesh, layers, checkpoint)
    model = parallelize(Llama(layers), mesh, checkpoint=checkpoint is not None, shard_loss=shard_loss)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(tokens: torch.Tensor) -> None:
        with loss_parallel() if parallel and shard_loss else nullcontext():
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
    name = "a collective recorded, beyond two operations"
    rows.append(within(name, child.call("bench.ranks:collective"), 10, "µs"))
    for name, predicted, real, busy, usual in child.call("bench.ranks:against_real"):
        ratio = predicted / real
        rows.append(
            Row(
                f"{name}: step of two gloo ranks, predicted",
                f"{predicted * 1e3:.1f} ms",
                f"measured {real * 1e3:.1f} ms, {busy * 1e3:.1f} ms of it computed; the median {usual * 1e3:.1f} ms",
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
    """Seconds for layouts up to as many tensor parallel ranks as there are heads of keys; and how many there were."""
    import torch_vis as tv

    started = time.process_time()
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    report = tv.fit(
        layout, tokens, world=1024, memory="80 GiB", tp=(1, 2, 4, 8),
        checkpoint=(None, "layers.*"), options={"shard_loss": (False, True)}, layers=layers, whole=False,
    )  # fmt: skip
    return time.process_time() - started, len(report.layouts)


def layout(mesh: Any, layers: int, checkpoint: Any, shard_loss: bool) -> Callable[[Any], None] | None:
    """The step of a layout; there is none that divides a loss among one."""
    if shard_loss and mesh["tp"].size() == 1:
        return None
    return training(mesh, layers, checkpoint, shard_loss)


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


class PassOn(TorchDispatchMode):
    """Passes operations on: what torch takes for it that any mode is there."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def collective(calls: int = 3000) -> float:
    """Microseconds that recording a collective and its wait takes beyond that of two operations that write in place.

    Of both, what they take under a mode that records nothing is left out.
    """
    import torch.distributed as dist

    import torch_vis as tv
    from torch_vis.capture.fake_ranks import fake_rank

    def talk(x: torch.Tensor) -> None:
        for _ in range(calls):
            dist.all_reduce(x)

    def compute(x: torch.Tensor) -> None:
        for _ in range(calls):
            x.add_(1)
            x.mul_(1)

    def passed_on(program: Callable[[Any], None], x: torch.Tensor) -> None:
        with PassOn():  # type: ignore[no-untyped-call]
            program(x)

    with fake_rank(0, 8):
        x = torch.ones(4)
        best: dict[Any, float] = {}
        for _ in range(7):
            for program in (talk, compute):
                for name, run in (
                    ("passed on", lambda: passed_on(program, x)),  # noqa: B023
                    ("traced", lambda: tv.trace(program, x, hold=False)),  # noqa: B023
                ):
                    started = time.process_time()
                    run()
                    spent = time.process_time() - started
                    best[program, name] = min(best.get((program, name), spent), spent)
    own = {program: best[program, "traced"] - best[program, "passed on"] for program in (talk, compute)}
    return (own[talk] - own[compute]) / calls * 1e6


# ---------------------------------------------------------------- two ranks that are there


def against_real(seconds: float = 40.0) -> list[tuple[str, float, float, float, float]]:
    """Steps of two gloo ranks, as predicted by what these ranks measured of themselves, and as they are; in seconds.

    That is a round of all that little else disturbed. Then what the busier rank computes in it, which other work on the
    machine hardly changes, and the median of all rounds: as far as it is above, so much was the machine disturbed.
    """
    import torch.multiprocessing as mp

    import torch_vis as tv

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_measure, args=(folder, seconds), nprocs=2)
        measured = torch.load(os.path.join(folder, "times.pt"))
        machine = tv.hardware.load(os.path.join(folder, "ranks.json"))
    torch.set_num_threads(1)
    rows = []
    for name, (axis, make, batch) in small_programs().items():
        w = tv.simulate(make, batch, mesh={axis: 2}, hardware=machine)
        rows.append((name, w.step_time().total_ns / 1e9, *measured[name]))
    return rows


class Perceptron(nn.Module):
    """A block of a chain of linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        return torch.relu(self.down(torch.relu(self.up(x))))


class Normed(nn.Module):
    """A block with a norm and a wide middle, as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A branch around it."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _model(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    if kind == "perceptron":
        return nn.Sequential(*[Perceptron(512) for _ in range(4)])
    return nn.Sequential(*[Normed(192) for _ in range(4)])


def small_programs() -> dict[str, tuple[str, Callable[[Any], Any], torch.Tensor]]:
    """Each by name: the axis that it is divided along, what builds a rank's step, and its batch."""
    batches = {"perceptron": torch.ones(64, 512), "normed": torch.ones(4, 32, 192)}
    programs: dict[str, tuple[str, Callable[[Any], Any], torch.Tensor]] = {}
    for kind, batch in batches.items():
        # both compute the same, and say nothing
        programs[f"no talk, {kind}"] = ("dp", partial(_trained, kind, lambda model, mesh: model), batch)
        for mode, (axis, wrap) in WRAPS.items():
            programs[f"{mode}, {kind}"] = (axis, partial(_trained, kind, wrap), batch)
        programs[f"pipeline, {kind}"] = ("pp", partial(_staged, kind), batch)
    return programs


def _replicated(model: nn.Sequential, mesh: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group())


def _sharded(model: nn.Sequential, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _divided(model: nn.Sequential, mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


WRAPS = {"DDP": ("dp", _replicated), "FSDP2": ("dp", _sharded), "TP": ("tp", _divided)}


def _trained(kind: str, wrap: Callable[[Any, Any], nn.Module], mesh: Any) -> Callable[[torch.Tensor], None]:
    model = wrap(_model(kind), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: torch.Tensor) -> None:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _staged(kind: str, mesh: Any) -> Callable[[torch.Tensor], None]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    whole, stage = _model(kind), mesh.get_local_rank("pp")
    half = len(whole) // 2
    model = whole[:half] if stage == 0 else whole[half:]
    part = PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = ScheduleGPipe(part, 4, loss_fn=lambda out, target: (out - target).pow(2).mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(x: torch.Tensor) -> None:
        if stage == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)
        optimizer.step()
        optimizer.zero_grad()

    return step


# how often each step is timed before the calibration, and again after it
ROUNDS = 40


def _measure(rank: int, folder: str, seconds: float) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    import torch_vis as tv

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    steps = {}
    for name, (axis, make, batch) in small_programs().items():
        steps[name] = partial(make(init_device_mesh("cpu", (2,), mesh_dim_names=(axis,))), batch)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}

    def run(rounds: int) -> None:
        for _ in range(rounds):
            for name, step in steps.items():
                dist.barrier()
                started = time.perf_counter(), time.process_time()
                step()
                times[name].append((time.perf_counter() - started[0], time.process_time() - started[1]))

    # half of the steps before the calibration, half after it: what else runs on the machine comes and goes
    run(3)
    for row in times.values():
        row.clear()
    run(ROUNDS)
    tv.measure.calibrate(path=os.path.join(folder, "ranks.json"), seconds=seconds)
    run(ROUNDS)
    figures = torch.tensor([times[name] for name in steps], dtype=torch.float64)
    dist.all_reduce(figures, dist.ReduceOp.MAX)
    if rank == 0:
        # as in the calibration, of all rounds one that little else disturbed
        low = torch.cat([figures.quantile(0.1, dim=1), figures[..., :1].quantile(0.5, dim=1)], dim=1)
        torch.save(dict(zip(steps, low.tolist(), strict=True)), os.path.join(folder, "times.pt"))
    dist.barrier()
    dist.destroy_process_group()
