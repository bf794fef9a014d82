"""Collectives of one rank whose others are not there: what each writes, in which group, and what memory it takes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

import torch_vis as tv
from tests.kit.ranks import Net, fake_group, mesh_of, shard
from torch_vis.ops.collectives import TABLE, collective, reduction, traffic

pytestmark = pytest.mark.filterwarnings("ignore")
RANKS = 4


def gathered() -> None:
    dist.all_gather([torch.empty(2) for _ in range(RANKS)], torch.ones(2))


def scattered(own: torch.Tensor) -> None:
    inputs = [torch.ones(2) for _ in range(RANKS)] if dist.get_rank() == 0 else None
    dist.scatter(own, inputs, src=0)


SINGLE: dict[str, tuple[Any, str, int, int]] = {
    # program, kind, tensors that are written on rank 0, and on rank 1
    "all_reduce": (lambda: dist.all_reduce(torch.ones(2)), "all_reduce", 1, 1),
    "all_gather": (gathered, "all_gather", 4, 4),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(torch.empty(8), torch.ones(2)), "all_gather", 1, 1,
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.ones(8)), "reduce_scatter", 1, 1,
    ),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(torch.empty(2), [torch.ones(2)] * RANKS), "reduce_scatter", 1, 1,
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(torch.empty(8), torch.ones(8)), "all_to_all", 1, 1,
    ),
    "broadcast": (lambda: dist.broadcast(torch.ones(2), src=0), "broadcast", 0, 1),
    "reduce": (lambda: dist.reduce(torch.ones(2), dst=0), "reduce", 1, 1),
    "scatter": (lambda: scattered(torch.empty(2)), "scatter", 1, 1),
    "send": (lambda: dist.send(torch.ones(2), 3, tag=7), "send", 0, 0),
    "recv": (lambda: dist.recv(torch.empty(2), 3, tag=7), "recv", 1, 1),
    "barrier": (dist.barrier, "barrier", 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", sorted(SINGLE))
def test_a_collective_writes_what_it_writes(name: str, rank: int) -> None:
    program, kind, *written = SINGLE[name]
    with fake_group(RANKS, rank):
        t = tv.trace(program)
    graph = t.graph
    (node,) = graph.comm_node.tolist()
    call = graph.calls[graph.node_call[node]]
    row = collective(call.op)
    assert row is not None and row.kind == kind
    outputs = graph.nodes[node].outputs
    assert len(outputs) == written[rank]
    (group,) = graph.groups
    assert group.ranks == (0, 1, 2, 3) and group.rank == rank and "world" in call.format()
    if kind in ("send", "recv"):
        assert (graph.comm_peer[0], graph.comm_tag[0]) == (3, 7)
    if row.op is not None:
        assert reduction(call) == "sum"
    (wait,) = graph.wait_node.tolist()
    assert [value.producer.index for value in graph.nodes[wait].inputs] == [node] * written[rank]
    assert graph.nodes[wait].outputs or not outputs


def test_each_group_is_known_by_itself_and_by_its_name_and_none_is_kept() -> None:
    functional = torch.distributed._functional_collectives

    def talk(x: torch.Tensor, pair: Any) -> torch.Tensor:
        for group in (dist.group.WORLD, pair, dist.group.WORLD, pair):
            dist.all_reduce(x, group=group)
        return functional.wait_tensor(functional.all_reduce(x, "sum", pair))

    with fake_group(RANKS, 0):
        pair = dist.new_group([0, 1])
        kept = weakref.ref(pair)
        t = tv.trace(talk, torch.ones(2), pair)
        del pair
    graph = t.graph
    assert [graph.groups[group].ranks for group in graph.comm_group] == [
        (0, 1, 2, 3), (0, 1), (0, 1, 2, 3), (0, 1), (0, 1),
    ]  # fmt: skip
    assert len(graph.groups) == 2 and graph.comm_seq.tolist() == [0, 0, 1, 1, 2]
    # the trace is there, and what it was recorded of is gone
    gc.collect()
    assert t.graph is graph and kept() is None


def test_every_operator_of_the_table_is_one_of_torch() -> None:
    for op in TABLE:
        assert torch._C._jit_get_schemas_for_operator(op), op


def test_bytes_are_those_of_a_ring() -> None:
    assert traffic("all_reduce", 1000, 1000, 4) == (1000, 1500)
    assert traffic("all_gather", 250, 1000, 4) == (1000, 750)
    assert traffic("reduce_scatter", 1000, 250, 4) == (1000, 750)
    assert traffic("scatter", 0, 100, 4, position=0, root=0) == (100, 300)
    assert traffic("gather", 100, 0, 4, position=1, root=0) == (100, 100)
    assert traffic("recv", 0, 100, 2) == (100, 0)
    assert traffic("other", 1, 1, 2) is None


def test_shapes_that_dtensor_works_out_are_no_operations() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with fake_group(8):
        model = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.ReLU(), torch.nn.Linear(48, 24))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh_of(("tp", 8)), plan)
        first, second = (tv.trace(model, torch.ones(4, 24)) for _ in range(2))
    names = [[node.op for node in t.graph.nodes] for t in (first, second)]
    assert names[0] == names[1]
    assert first.metrics["flops"].values.sum() == second.metrics["flops"].values.sum()


def training(**options: Any) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    net = shard(Net(32, 3), mesh_of(("dp", RANKS)), **options)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x = torch.randn(4, 3, 32)

    def step() -> None:
        net(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return net, optimizer, x, step


@pytest.mark.parametrize("keeps", [False, True], ids=["resharded", "kept whole"])
@pytest.mark.parametrize("steps_before", [0, 1])
def test_memory_is_what_the_tracker_of_fsdp_says(keeps: bool, steps_before: int) -> None:
    options = {"reshard_after_forward": not keeps}
    with fake_group(RANKS):
        net, optimizer, x, step = training(**options)
        for _ in range(steps_before):
            step()
        tracker = FSDPMemTracker(net, optimizer)
        tracker.track_inputs((x,))
        with tracker:
            step()
        expected = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
        *_, step = training(**options)
        for _ in range(steps_before):
            step()
        t = tv.trace(step)
    memory = t.memory()
    assert memory.peak_bytes == expected
    assert sum(share.size_bytes for share in memory.by_use) == expected


def test_groups_memory_and_placements_are_in_files(tmp_path: Any) -> None:
    with fake_group(RANKS):
        *_, step = training()
        t = tv.trace(step)
    assert "[4, 32]: S(0) on dp" in [str(row) for row in t.graph.placements]
    for name in ("step.tvz", "step.json"):
        t.save(tmp_path / name)
        other = tv.load(tmp_path / name)
        assert other.graph.groups == t.graph.groups and other.graph.groups[0].axis == "dp"
        for column in ("comm_node", "comm_seq", "wait_comm", "resize_bytes", "placed_how"):
            assert getattr(other.graph, column).tolist() == getattr(t.graph, column).tolist()
        assert other.memory().peak_bytes == t.memory().peak_bytes


def test_a_run_without_collectives_has_nothing_of_them() -> None:
    graph = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).graph
    assert not len(graph.comm_node) and not graph.groups and not len(graph.resize_node)


def test_torch_is_left_as_it_was() -> None:
    work = torch._C._distributed_c10d.Work
    before = work.wait, torch.UntypedStorage.resize_, "resize_" in vars(torch.UntypedStorage)
    with pytest.raises(ZeroDivisionError), fake_group(2):
        tv.trace(lambda: dist.all_reduce(torch.ones(2)) or 1 / 0)
    assert (work.wait, torch.UntypedStorage.resize_, "resize_" in vars(torch.UntypedStorage)) == before
