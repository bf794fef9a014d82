"""Real ranks: what is recorded of each, and that the proof of one talks to no other."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_vis as tv
from tests.kit.ranks import MODES, RANKS, on_ranks, training_step
from torch_vis.capture.recording.collectives import Pending
from torch_vis.ops.collectives import collective

pytestmark = pytest.mark.filterwarnings("ignore")


def traced_and_checked(rank: int, count: int, mode: str) -> dict[str, Any]:
    """Trace a step, and prove it on one rank after the other: none can have joined in."""
    step = training_step(mode, rank, count)
    # DistributedDataParallel puts its buckets together in the second step
    step()
    step()
    t = tv.trace(step)
    # in the opposite order of ranks, and only once the one before is done
    time.sleep(0.3 * (count - 1 - rank))
    proof = t.check()
    graph = t.graph
    world = tv.join(t)
    assert (world is None) == (rank > 0)
    joined = None
    if world is not None:
        agreement = world.check()
        joined = (len(world), len(world.meetings), agreement.exact + agreement.summed, agreement.skipped)
    kinds = [collective(graph.calls[graph.node_call[node]].op) for node in graph.comm_node]
    return {
        "share": proof.pruned / proof.operations,
        "kinds": [row.kind for row in kinds if row is not None],
        "waits": len(graph.wait_node),
        "phases": [graph.nodes[int(node)].phase for node in graph.comm_node],
        "views": [graph.nodes[int(node)].flags for node in graph.comm_node],
        "meta": {key: t.meta.get(key) for key in ("rank", "world_size", "mesh", "coordinates", "stage")},
        "joined": joined,
        "limits": [limit.kind for limit in t.limits],
    }


@pytest.mark.parametrize("mode", MODES)
def test_each_rank_is_proved_without_the_others(mode: str) -> None:
    count = RANKS.get(mode, 2)
    rows = on_ranks(traced_and_checked, count, mode)
    for rank, row in enumerate(rows):
        assert row["kinds"] and row["waits"] and row["meta"]["rank"] == rank
        # the forward and backward that lead to what is sent are part of the proof
        assert row["share"] > (0.4 if mode == "messages" else 0.7), row["share"]
        assert all("collective" in flags and "view" not in flags for flags in row["views"])
        # the buckets of DistributedDataParallel are memory that only C++ knows before
        assert mode == "ddp" or "opaque" not in row["limits"]
    ranks, meetings, agreed, skipped = rows[0]["joined"]
    # every collective was found on all its ranks, and carried what was given
    assert (ranks, skipped) == (count, 0) and agreed == meetings > 0
    if mode == "fsdp2":
        assert rows[0]["kinds"] == ["all_gather"] * 5 + ["reduce_scatter"] * 3
        assert rows[0]["phases"] == ["forward"] * 3 + ["backward"] * 5
        assert rows[1]["meta"]["mesh"] == {"dp": 2} and rows[1]["meta"]["coordinates"] == {"dp": 1}
    if mode == "1f1b":
        assert [row["meta"]["stage"] for row in rows] == [0, 1]
        sends = [phase for kind, phase in zip(rows[1]["kinds"], rows[1]["phases"]) if kind == "send"]
        receives = [phase for kind, phase in zip(rows[1]["kinds"], rows[1]["phases"]) if kind == "recv"]
        assert (sends, receives) == (["backward"] * 4, ["forward"] * 4)


def one_alone(rank: int, count: int) -> str:
    x = torch.ones(4) * (rank + 1)

    def program() -> torch.Tensor:
        dist.all_reduce(x)
        return x * 2

    t = tv.trace(program)
    if rank:
        return ""
    # the other rank is somewhere else; a replay with other inputs and one step by step are as quiet
    told = str(t.check())
    assert torch.equal(t.output, torch.full((4,), 6.0))
    return told


def test_one_rank_alone_can_be_checked() -> None:
    told, _ = on_ranks(one_alone, 2)
    assert "equal bit for bit: 3 operations in order" in told


def wrong_wait(rank: int, count: int) -> str:
    """What is received is taken from the wait: bytes that are changed there change the result."""
    x = torch.ones(4)

    def program() -> torch.Tensor:
        dist.all_reduce(x)
        return x * 2

    t = tv.trace(program)
    held = t.kept
    assert held is not None
    ((node, contents),) = held.opaque_outputs.items()
    assert t.graph.nodes[node].name == "wait"
    contents[0].add_(1)
    try:
        t.check()
    except tv.errors.CheckFailed as error:
        return str(error)
    return ""


def test_received_bytes_matter_to_the_proof() -> None:
    for told in on_ranks(wrong_wait, 2):
        assert "differ" in told


class LateWork:
    """A handle whose future is done before it says so itself, as gloo's is for a moment."""

    def __init__(self, *, has_future: bool = True) -> None:
        self.has_future = has_future
        self.future: torch.futures.Future[int] = torch.futures.Future()

    def is_completed(self) -> bool:
        return False

    def get_future(self) -> Any:
        if not self.has_future:
            raise RuntimeError("a message has none")
        return self.future


def test_what_a_future_says_is_there_has_arrived() -> None:
    work = LateWork()
    pending = Pending(0, [], work, 0, 0)
    assert not pending.is_done()
    work.future.set_result(1)
    assert pending.is_done()
    message = Pending(0, [], LateWork(has_future=False), 0, 0)
    assert not message.is_done() and not message.has_future


def singles(rank: int, count: int) -> dict[str, Any]:
    """Every way to talk, by itself: traced, proved while the other is elsewhere, joined."""
    import torch.distributed._functional_collectives as functional

    everyone = list(range(count))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    wide = torch.randn(4 * count, 8, generator=torch.Generator().manual_seed(rank))

    def parts() -> list[torch.Tensor]:
        return [torch.empty(4, 8) for _ in everyone]

    def filled(run: Any, *shape: int) -> Any:
        def program() -> torch.Tensor:
            out = torch.empty(*shape)
            run(out)
            return out * 2

        return program

    def listed(run: Any) -> Any:
        def program() -> torch.Tensor:
            out = parts()
            run(out)
            return sum(out) * 2  # type: ignore[return-value]

        return program

    def changed(run: Any) -> Any:
        def program() -> torch.Tensor:
            y = x.clone()
            run(y)
            return y * 2

        return program

    def message(y: torch.Tensor) -> None:
        dist.send(y, 1, tag=7) if rank == 0 else dist.recv(y, 0, tag=7)

    def from_anybody(y: torch.Tensor) -> None:
        dist.send(y, 0) if rank else dist.recv(y)

    def coalesced() -> torch.Tensor:
        several = [x.clone(), x.clone()]
        with dist._coalescing_manager(async_ops=True) as manager:
            for y in several:
                dist.all_reduce(y)
        manager.wait()
        return several[0] + several[1]

    programs = {
        "all_reduce": changed(dist.all_reduce),
        "largest": changed(lambda y: dist.all_reduce(y, op=dist.ReduceOp.MAX)),
        "coalesced": coalesced,
        "all_gather": filled(lambda out: dist.all_gather_into_tensor(out, x), 4 * count, 8),
        "all_gather of a list": listed(lambda out: dist.all_gather(out, x)),
        "reduce_scatter": filled(lambda out: dist.reduce_scatter_tensor(out, wide), 4, 8),
        "broadcast": changed(lambda y: dist.broadcast(y, 0)),
        "all_to_all": filled(lambda out: dist.all_to_all_single(out, wide), 4 * count, 8),
        "message": changed(message),
        "message from anybody": changed(from_anybody),
        "reduce": changed(lambda y: dist.reduce(y, 0)),
        "gather": listed(lambda out: dist.gather(x, out if rank == 0 else None, 0)),
        "scatter": filled(
            lambda out: dist.scatter(out, [*wide.chunk(count)] if rank == 0 else None, 0), 4, 8
        ),
        "barrier": changed(lambda y: dist.barrier()),
        "functional all_reduce": lambda: functional.all_reduce(x, "sum", everyone) * 2,
        "functional all_gather": lambda: functional.all_gather_tensor(x, 0, everyone) * 2,
        "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(wide, "sum", 0, everyone) * 2,
        # what is waited for is a view of what is received
        "functional all_gather, turned": lambda: functional.all_gather_tensor(x, 0, everyone).t() * 2,
        "functional all_reduce, turned": lambda: functional.all_reduce(x, "sum", everyone).t() * 2,
    }
    results = {}
    for name, program in programs.items():
        t = tv.trace(program)
        t.check()
        world = tv.join(t)
        if world is not None:
            agreement = world.check()
            assert agreement.exact + agreement.summed == len(world.meetings) == 1, (name, agreement)
        (row,) = t.communication().exchanges
        assert row.members == (0, 1) and row.waited_ns is not None, name
        results[name] = (row.kind, row.bytes, row.sent_bytes, row.peer, row.tag, row.reduction)
    return results


def test_every_collective_by_itself() -> None:
    first, second = on_ranks(singles, 2)
    # of two ranks, a tensor of 128 bytes on each: what the message is, and what each sends of it
    both = {
        "all_reduce": ("all_reduce", 128, 128, None, 0, "sum"),
        "largest": ("all_reduce", 128, 128, None, 0, "max"),
        "coalesced": ("all_reduce", 256, 256, None, 0, "sum"),
        "all_gather": ("all_gather", 256, 128, None, 0, None),
        "all_gather of a list": ("all_gather", 256, 128, None, 0, None),
        "reduce_scatter": ("reduce_scatter", 256, 128, None, 0, "sum"),
        "broadcast": ("broadcast", 128, 64, 0, 0, None),
        "all_to_all": ("all_to_all", 256, 128, None, 0, None),
        "reduce": ("reduce", 128, 64, 0, 0, "sum"),
        "barrier": ("barrier", 0, 0, None, 0, None),
        "functional all_reduce": ("all_reduce", 128, 128, None, 0, "sum"),
        "functional all_gather": ("all_gather", 256, 128, None, 0, None),
        "functional reduce_scatter": ("reduce_scatter", 256, 128, None, 0, "sum"),
        "functional all_gather, turned": ("all_gather", 256, 128, None, 0, None),
        "functional all_reduce, turned": ("all_reduce", 128, 128, None, 0, "sum"),
    }
    one_sided = {
        "message": (("send", 128, 128, 1, 7, None), ("recv", 128, 0, 0, 7, None)),
        "message from anybody": (("recv", 128, 0, 1, 0, None), ("send", 128, 128, 0, 0, None)),
        "gather": (("gather", 128, 0, 0, 0, None), ("gather", 128, 128, 0, 0, None)),
        "scatter": (("scatter", 128, 128, 0, 0, None), ("scatter", 128, 0, 0, 0, None)),
    }
    assert first == {**both, **{name: rows[0] for name, rows in one_sided.items()}}
    assert second == {**both, **{name: rows[1] for name, rows in one_sided.items()}}


def on_threads(rank: int, count: int) -> dict[str, Any]:
    """A sum that a thread of the program's asks for: one that the step starts, and one that was there before."""
    method = vars(dist.ProcessGroup)["allreduce"]
    x = torch.full((4,), float(rank + 1))

    def started() -> torch.Tensor:
        y = x.clone()
        thread = threading.Thread(target=dist.all_reduce, args=(y,))
        thread.start()
        thread.join()
        return y * 2

    def waited_for_here() -> torch.Tensor:
        y = x.clone()
        with ThreadPoolExecutor(1) as own:
            own.submit(dist.all_reduce, y, async_op=True).result().wait()
        return y * 2

    results = {}
    for program in (started, waited_for_here):
        t = tv.trace(program)
        t.check()
        world = tv.join(t)
        assert world is None or world.check().summed == 1
        (row,) = t.communication().exchanges
        results[program.__name__] = (row.kind, row.bytes, row.waited_ns is not None, t.limits)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        def handed() -> None:
            pool.submit(lambda: dist.all_reduce(x)).result()

        t = tv.trace(handed)
        results["handed"] = [(limit.kind, limit.site is not None, str(limit)) for limit in t.limits]
    # what stood for the group's methods is gone
    results["is as before"] = vars(dist.ProcessGroup)["allreduce"] is method
    return results


def test_collectives_on_threads_of_the_program() -> None:
    for results in on_ranks(on_threads, 2):
        assert results["started"] == results["waited_for_here"] == ("all_reduce", 16, True, ())
        ((kind, has_site, text),) = results["handed"]
        assert (kind, has_site) == ("missing", True)
        assert "test_ranks.py" in text and "1 × collectives" in text
        assert results["is as before"]
