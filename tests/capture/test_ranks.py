"""Real ranks: what is recorded of each, and that the proof of one talks to no other."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_vis as tv
from tests.kit.ranks import MODES, RANKS, on_ranks, training_step
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
