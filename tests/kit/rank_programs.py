"""Steps of two ranks, one per way in which people train and talk: hooks, wrappers, schedules, collectives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.kit.ranks import Block, Net, Step, mesh_of, shard

Program = Callable[[int], Step]


def trained(model: nn.Module, rank: int, *, x: torch.Tensor | None = None, optimizer: Any = None) -> Step:
    """A training step; ranks have different data."""
    data = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(rank)) if x is None else x
    updates = optimizer or torch.optim.AdamW(model.parameters())

    def step() -> torch.Tensor:
        loss = model(data).pow(2).mean()
        loss.backward()
        updates.step()
        updates.zero_grad()
        return loss

    return step


# ---------------------------------------------------------------- DistributedDataParallel


def hooked(hook: Any, state: Any = None) -> Program:
    """Gradients go through a hook; the last rank comes late, so that the others' callbacks run on another thread."""

    # torch reads annotations, and takes no strings for them
    def late(given, bucket):  # type: ignore[no-untyped-def]
        time.sleep(0.02 * dist.get_rank())
        return hook(given, bucket)

    def program(rank: int) -> Step:
        model = DistributedDataParallel(Net())
        model.register_comm_hook(state() if callable(state) else state, late)
        return trained(model, rank)

    return program


def halved(state: Any, bucket: Any) -> Any:
    """What torch's ``fp16_compress_hook`` does."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return fp16_compress_hook(state, bucket)


def gathered(state: Any, bucket: Any) -> Any:
    """The mean of all ranks' gradients, worked out where they arrive."""
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    future = dist.all_gather(parts, bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: torch.stack(done.value()).mean(0))


def compressed(state: Any, bucket: Any) -> Any:
    """What torch's ``powerSGD_hook`` does."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

    return powerSGD_hook(state, bucket)


def power_state() -> Any:
    """Compressed from the second step on."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    return PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)


class Unused(Net):
    """A net with a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(8, 8)


def replicated(net: Callable[[], nn.Module] = Net, **options: Any) -> Program:
    """Replicas, with these options."""
    return lambda rank: trained(DistributedDataParallel(net(), **options), rank)


def accumulated(rank: int) -> Step:
    """Two backward passes, of which the first tells nobody."""
    model = DistributedDataParallel(Net())
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        with model.no_sync():
            model(x).mean().backward()
        model(2 * x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def normalized(rank: int) -> Step:
    """Buffers of a batch norm are sent to all."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2))
    return trained(DistributedDataParallel(model), rank, x=torch.randn(2, 3, 8, 8))


def composed(rank: int) -> Step:
    """A replica that is made in the first forward."""
    from torch.distributed._composable import replicate

    return trained(replicate(Net()), rank)


def divided_state(rank: int) -> Step:
    """Each rank has the optimizer's state of a part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(Net())
    return trained(
        model, rank, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    )


# ---------------------------------------------------------------- shards


def flat(**options: Any) -> Program:
    """FSDP1 of each layer and of the whole."""

    def program(rank: int) -> Step:
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        chosen = dict(options)
        if "sharding_strategy" in chosen:
            chosen["sharding_strategy"] = ShardingStrategy[chosen["sharding_strategy"]]
        model = FullyShardedDataParallel(
            Net(),
            device_id=torch.device("cpu"),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            use_orig_params=True,
            **chosen,
        )
        return trained(model, rank)

    return program


def evaluated(rank: int) -> Step:
    """Shards without a backward pass: the root's stay whole after the first step."""
    net = shard(Net(), mesh_of(("dp", 2)))
    x = torch.randn(4, 8)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return net(x)

    return step


def clipped(rank: int) -> Step:
    """Two backward passes of which one is not synchronised, and gradients clipped by their norm on all ranks."""
    net = shard(Net(), mesh_of(("dp", 2)))
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        for last in (False, True):
            net.set_requires_gradient_sync(last)  # type: ignore[operator]
            net(x).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- pipelines


def staged(schedule: str) -> Program:
    """Two stages on each rank, in one of torch's schedules."""

    def program(rank: int) -> Step:
        from torch.distributed.pipelining import PipelineStage, schedules

        parts = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)]
        places = [rank, 3 - rank] if "V" in schedule else [rank, rank + 2]
        stages = [PipelineStage(part, at, 4, torch.device("cpu")) for part, at in zip(parts, places)]
        optimizer = torch.optim.AdamW([weight for part in parts for weight in part.parameters()])
        runner = getattr(schedules, schedule)(
            stages, 4, loss_fn=lambda output, target: ((output - target) ** 2).mean()
        )
        x, y = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(8, 8)

        def step() -> None:
            runner.step(
                *((x,) if 0 in places else ()), **({"target": y, "losses": []} if 3 in places else {})
            )
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


# ---------------------------------------------------------------- collectives


def several_at_once(rank: int) -> Step:
    """Collectives of several tensors, one of them empty, by torch's manager and by its functions."""
    import torch.distributed._functional_collectives as functional

    def step() -> torch.Tensor:
        given = [torch.arange(4.0) + rank, torch.arange(6.0) * (rank + 1)]
        whole, parts = [torch.empty(8), torch.empty(12)], [torch.empty(2), torch.empty(3)]
        dist.all_reduce_coalesced([given[0][:0], given[1]])
        with dist._coalescing_manager(async_ops=True) as manager:
            for out, item in zip(whole, given):
                dist.all_gather_into_tensor(out, item)
        manager.wait()
        with dist._coalescing_manager(async_ops=True) as manager:
            for out, item in zip(parts, given):
                dist.reduce_scatter_tensor(out, item)
        manager.wait()
        group = dist.group.WORLD
        divided = functional.reduce_scatter_tensor_coalesced(given, "sum", [0, 0], group)
        nothing = given[0][2:2]
        nothing.add_(1)
        dist.all_reduce(nothing)
        return sum(item.sum() for item in (*given, *whole, *parts, *divided))  # type: ignore[return-value]

    return step


def returned_early(rank: int) -> Step:
    """What the program returns of functional collectives, it has not waited for."""
    import torch.distributed._functional_collectives as functional

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))

    def step() -> Any:
        group = dist.group.WORLD
        divided = functional.reduce_scatter_tensor(x, "sum", 0, group)
        return divided, {"turned": functional.all_reduce(x, "max", group).t()}

    return step


def by_futures(rank: int) -> Step:
    """What is received is read in callbacks, and after a future is done."""

    def step() -> torch.Tensor:
        time.sleep(0.02 * rank)
        x, y = torch.arange(4.0) + rank, torch.arange(3.0)
        doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
        dist.all_reduce(y, async_op=True).get_future().wait()
        return doubled.wait().sum() + y.sum()

    return step


PROGRAMS: dict[str, Program] = {
    "hook in half precision": hooked(halved),
    "hook that gathers": hooked(gathered),
    "unused": replicated(Unused, find_unused_parameters=True),
    "static": replicated(static_graph=True),
    "static, unused": replicated(Unused, static_graph=True, gradient_as_bucket_view=True),
    "accumulated": accumulated,
    "normalized": normalized,
    "composed": composed,
    "divided state": divided_state,
    "flat, gradients": flat(sharding_strategy="SHARD_GRAD_OP"),
    "flat, ahead": flat(forward_prefetch=True),
    "evaluated": evaluated,
    "clipped": clipped,
    "interleaved": staged("ScheduleInterleaved1F1B"),
    "zero bubble": staged("ScheduleInterleavedZeroBubble"),
    "zero bubble, V": staged("ScheduleZBVZeroBubble"),
    "several at once": several_at_once,
    "by futures": by_futures,
    "returned early": returned_early,
}
# in the middle of a training they do something else than in its second step
LATER: dict[str, Program] = {"hook that compresses": hooked(compressed, power_state)}
