"""Programs on several ranks: real ones by gloo, each in a fork that has torch already, or one of a fake group."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

Step = Callable[[], Any]
MODES = ("ddp", "fsdp1", "fsdp2", "hsdp", "tp", "sequence", "fsdp2_tp", "gpipe", "1f1b", "messages")
RANKS = {"hsdp": 4, "fsdp2_tp": 4}
SECONDS = 120


class Block(nn.Module):
    """A layer with a branch around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """A few such layers and a head."""

    def __init__(self, width: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def on_ranks(function: Callable[..., Any], count: int, *args: Any) -> list[Any]:
    """What ``function(rank, count, *args)`` returns on each of so many ranks of a gloo group."""
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    # torch's own modules, loaded once and not by each rank
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        ranks = [
            context.Process(target=_rank, args=(function, rank, count, path, args, answers), daemon=True)
            for rank in range(count)
        ]
        for process in ranks:
            process.start()
        results: dict[int, Any] = {}
        try:
            while len(results) < count:
                rank, error, result = answers.get(timeout=SECONDS)
                if error:
                    raise AssertionError(f"rank {rank}: {error}")
                results[rank] = result
        except queue.Empty:
            raise AssertionError(f"ranks that hang: {sorted(set(range(count)) - set(results))}") from None
        finally:
            for process in ranks:
                process.join(10 if len(results) == count else 0)
                process.kill()
    return [results[rank] for rank in range(count)]


def _rank(function: Callable[..., Any], rank: int, count: int, path: str, args: Any, answers: Any) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=count)
        result = function(rank, count, *args)
        # the job goes on
        dist.barrier()
        answers.put((rank, None, result))
        dist.destroy_process_group()
    except BaseException:
        answers.put((rank, traceback.format_exc(), None))


@contextmanager
def fake_group(count: int, rank: int = 0) -> Iterator[None]:
    """One rank of a job whose other ranks are not there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def training_step(mode: str, rank: int, count: int) -> Step:
    """One training step of a small net, parallel in one of ``MODES``."""
    torch.manual_seed(0)
    if mode in ("gpipe", "1f1b"):
        return _pipeline(mode, rank, count)
    if mode == "messages":
        return _messages(rank, count)
    model = _PARALLEL[mode](Net(), count)
    same_input = mode in ("tp", "sequence", "fsdp2_tp")
    x = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(0 if same_input else rank))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> torch.Tensor:
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def _ddp(net: Net, count: int) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net)


def _fsdp1(net: Net, count: int) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device("cpu"))


def shard(net: Net, mesh: Any, **options: Any) -> Net:
    """FSDP2 of each layer and of the whole."""
    from torch.distributed.fsdp import fully_shard

    for layer in net.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def mesh_of(*axes: tuple[str, int]) -> Any:
    """A mesh of CPU ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    names, sizes = zip(*axes)
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def tensor_parallel(net: Net, mesh: Any) -> Net:
    """Columns of one layer and rows of the next divided."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for layer in net.layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


class _Sequence(nn.Module):
    """Tensor parallel layers between which the sequence is divided."""

    def __init__(self, net: Net, mesh: Any) -> None:
        super().__init__()
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )

        self.net, self.mesh = net, mesh
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        for layer in net.layers:
            parallelize_module(layer, mesh, plan)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        part = DTensor.from_local(x, self.mesh, [Replicate()]).redistribute(self.mesh, [Shard(1)])
        for layer in self.net.layers:
            local = part.to_local() + layer.down(F.gelu(layer.up(layer.norm(part))))
            part = DTensor.from_local(local, self.mesh, [Shard(1)])
        return self.net.head(part.redistribute(self.mesh, [Replicate()]).to_local())


def _both(net: Net, count: int) -> nn.Module:
    mesh = mesh_of(("dp", count // 2), ("tp", 2))
    return shard(tensor_parallel(net, mesh["tp"]), mesh["dp"])


_PARALLEL: dict[str, Callable[[Net, int], nn.Module]] = {
    "ddp": _ddp,
    "fsdp1": _fsdp1,
    "fsdp2": lambda net, count: shard(net, mesh_of(("dp", count))),
    "hsdp": lambda net, count: shard(net, mesh_of(("replicate", 2), ("shard", count // 2))),
    "tp": lambda net, count: tensor_parallel(net, mesh_of(("tp", count))),
    "sequence": lambda net, count: _Sequence(net, mesh_of(("tp", count))),
    "fsdp2_tp": _both,
}


def _pipeline(mode: str, rank: int, count: int) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    part = nn.Sequential(Block(8), nn.Linear(8, 8))
    stage = PipelineStage(part, rank, count, torch.device("cpu"))
    optimizer = torch.optim.AdamW(part.parameters())
    kind = ScheduleGPipe if mode == "gpipe" else Schedule1F1B
    schedule = kind(stage, 4, loss_fn=lambda output, target: ((output - target) ** 2).mean())
    x, y = torch.randn(8, 3, 8), torch.zeros(8, 3, 8)

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == count - 1:
            schedule.step(target=y, losses=[])
        else:
            schedule.step()
        optimizer.step()

    return step


def _messages(rank: int, count: int) -> Step:
    """Every way to talk, some of it waited for later, and messages around a ring."""
    given, kept = torch.randn(4, 8), torch.zeros(4, 8)

    def step() -> torch.Tensor:
        first = dist.all_reduce(given, async_op=True)
        parts = [torch.empty(4, 8) for _ in range(count)]
        second = dist.all_gather(parts, kept + rank, async_op=True)
        first.wait()
        total = given.sum()
        second.wait()
        total = total + sum(part.sum() for part in parts)
        received = torch.empty(4, 8)
        messages = [
            dist.P2POp(dist.isend, given * 2, (rank + 1) % count),
            dist.P2POp(dist.irecv, received, (rank - 1) % count),
        ]
        for message in dist.batch_isend_irecv(messages):
            message.wait()
        rows, turned = torch.randn(2 * count, 8), torch.empty(2 * count, 8)
        dist.all_to_all_single(turned, rows)
        dist.broadcast(kept, src=0)
        summed = torch.randn(3)
        dist.reduce(summed, dst=1)
        dist.barrier()
        dist.all_gather_object([None] * count, {"rank": rank})
        own = torch.empty(2, 8)
        dist.reduce_scatter_tensor(own, rows)
        return total + received.sum() + turned.sum() + kept.sum() + summed.sum() + own.sum()

    return step
