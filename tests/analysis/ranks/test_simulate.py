"""Worlds that are not there: what is traced of them by shapes is what real ranks do."""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

import torch_vis as tv
from tests.kit.ranks import (
    MODES,
    RANKS,
    Block,
    Net,
    fake_group,
    mesh_of,
    on_ranks,
    shard,
    tensor_parallel,
    training_step,
)
from torch_vis.analysis.ranks.exchanges import Exchange, exchanges_of
from torch_vis.capture.fake_ranks import forget_meshes, make_optimizer_state
from torch_vis.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")
UNTIMED = dict.fromkeys(("exposed_ns", "waited_ns", "start_ns", "done_ns", "landed_ns", "quiet_ns", "node"))


def talk(t: tv.Trace) -> tuple[list[Exchange], int]:
    """What a rank says to others, without times and numbers of nodes; and its FLOPs."""
    return [row._replace(**UNTIMED) for row in exchanges_of(t)], t.summary().flops


def on_a_real_rank(rank: int, count: int, modes: list[str]) -> list[Any]:
    rows = []
    for mode in modes:
        step = training_step(mode, rank, count)
        # DistributedDataParallel puts its buckets together in the second step
        step()
        step()
        rows.append(talk(tv.trace(step, hold=False)))
    return rows


@pytest.mark.parametrize("count", [2, 4])
def test_simulated_ranks_do_what_real_ranks_do(count: int) -> None:
    modes = [mode for mode in MODES if RANKS.get(mode, 2) == count]
    real = on_ranks(on_a_real_rank, count, modes)
    for number, mode in enumerate(modes):
        at = iter(range(count))

        def make(mesh: Any, mode: str = mode, at: Any = at) -> Any:
            return training_step(mode, next(at), count)

        w = tv.simulate(make, mesh={"x": count}, ranks="all")
        assert not w.problems and len(w.meetings)
        for rank in range(count):
            assert talk(w[rank]) == real[rank][number], (mode, rank)


# ---------------------------------------------------------------- memory

HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
# mesh, rank, how it is built
CONFIGURATIONS: dict[str, tuple[dict[str, int], int, dict[str, Any]]] = {
    "sharded": ({"dp": 4}, 0, {}),
    "kept whole": ({"dp": 4}, 0, {"reshard_after_forward": False}),
    "kept in halves": ({"dp": 4}, 0, {"reshard_after_forward": 2}),
    "hybrid": ({"rep": 2, "dp": 2}, 0, {"axes": ("rep", "dp")}),
    "uneven, first": ({"dp": 3}, 0, {"width": 20}),
    "uneven, last": ({"dp": 3}, 2, {"width": 20}),
    "checkpoints": ({"dp": 4}, 0, {"again": True}),
    "tensor parallel": ({"dp": 2, "tp": 2}, 0, {}),
    "tensor parallel, checkpoints": ({"dp": 2, "tp": 2}, 3, {"again": True}),
    "offloaded": ({"dp": 4}, 0, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}),
    "half": ({"dp": 4}, 0, {"mp_policy": HALF}),
    "half, checkpoints": ({"dp": 4}, 1, {"mp_policy": HALF, "again": True}),
    "many tensors at once": ({"dp": 4}, 0, {"foreach": True}),
}


def build(
    mesh: Any,
    *,
    width: int = 32,
    again: bool = False,
    foreach: bool = False,
    axes: Any = "dp",
    **options: Any,
) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    net = Net(width, 3)
    if "tp" in mesh.mesh_dim_names:
        tensor_parallel(net, mesh["tp"])
    if again:
        for number, layer in enumerate(net.layers):
            net.layers[number] = checkpoint_wrapper(layer)
    shard(net, mesh[axes], **options)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=foreach)

    def step(x: torch.Tensor) -> None:
        net(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return net, optimizer, step


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_memory_of_a_simulated_rank_is_what_the_tracker_of_fsdp_says(name: str) -> None:
    mesh, rank, options = CONFIGURATIONS[name]
    x = torch.ones(4, 3, options.get("width", 32))
    forget_meshes()
    with fake_group(math.prod(mesh.values()), rank):
        net, optimizer, step = build(mesh_of(*mesh.items()), **options)
        make_optimizer_state(optimizer)
        tracker = FSDPMemTracker(net, optimizer)
        tracker.track_inputs((x,))
        with tracker:
            step(x)
        expected = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    w = tv.simulate(lambda mesh: build(mesh, **options)[2], x, mesh=mesh, ranks=[rank])
    assert w[rank].memory().peak_bytes == expected


# ---------------------------------------------------------------- what is worked out once


def test_meshes_and_layouts_are_worked_out_for_kinds_of_parameters_and_not_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._ops import utils

    calls: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    counted(DeviceMesh, "__init__")
    counted(utils, "expand_to_full_mesh_op_strategy")
    spent = []
    for layers in (2, 2, 8):
        calls.clear()

        def make(mesh: Any, layers: int = layers) -> Any:
            net = Net(32, layers)
            tensor_parallel(net, mesh["tp"])
            shard(net, mesh["dp"])
            optimizer = torch.optim.AdamW(net.parameters(), fused=True)

            def step(x: torch.Tensor) -> None:
                net(x).pow(2).mean().backward()
                optimizer.step()

            return step

        before = vars(DeviceMesh)["_concatenate"]
        tv.simulate(make, torch.ones(4, 3, 32), mesh={"dp": 2, "tp": 2}, ranks=[0])
        assert vars(DeviceMesh)["_concatenate"] is before
        spent.append(dict(calls))
    assert spent[1] == spent[2]


# ---------------------------------------------------------------- copies


def parallel(mesh: Any) -> Any:
    return build(mesh)[2]


def test_ranks_with_shards_of_one_size_are_traced_once(tmp_path: Path) -> None:
    w = tv.simulate(parallel, torch.ones(2, 3, 32), mesh={"dp": 3})
    # rows of the layers are divided in 11, 11 and 10, those of the head in 2, 2 and 0
    assert len(w) == 3 and sorted(w.exchanges) == [0, 2] and not w.problems
    second = tv.simulate(parallel, torch.ones(2, 3, 32), mesh={"dp": 3}, ranks=[1])[1]
    w.save(tmp_path / "w.tvz")
    for world in (w, tv.load(tmp_path / "w.tvz")):
        assert talk(world[1]) == talk(second)
        assert world[1].graph.groups == second.graph.groups
        assert world[1].memory().peak_bytes == second.memory().peak_bytes
        assert world[1].meta["coordinates"] == {"dp": 1}


def pipeline(mesh: Any) -> Any:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage, count = mesh.get_local_rank("pp"), mesh["pp"].size()
    part = nn.Sequential(*[Block(256) for _ in range(2)])
    schedule = Schedule1F1B(
        PipelineStage(part, stage, count, torch.device("cpu"), group=mesh.get_group("pp")),
        8,
        loss_fn=lambda output, target: ((output - target) ** 2).mean(),
    )

    def step(batch: torch.Tensor) -> None:
        if stage == 0:
            schedule.step(batch)
        else:
            schedule.step(**({"target": batch, "losses": []} if stage == count - 1 else {}))

    return step


def stage_of(trace: tv.Trace) -> str:
    """The path of the stage that a rank runs."""
    return f"stage {trace.meta['stage']}"


def test_each_stage_is_traced_and_a_pipeline_has_its_bubble() -> None:
    batch = torch.zeros(1, device="meta").expand(80000, 4, 256)
    w = tv.simulate(
        pipeline,
        batch,
        mesh={"pp": 4, "dp": 2},
        hardware="H100",
        links={"pp": "450 GB/s", "dp": ("50 GB/s", "5 us")},
    )
    assert sorted(w.exchanges) == [0, 2, 4, 6] and not w.problems
    assert [w[rank].meta["stage"] for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    # of copies, messages go to their own neighbours
    assert {row.peer for row in exchanges_of(w[5])} == {3, 7}
    time = w.step_time()
    # three of eleven slots, and what the transfers take
    assert 3 / 11 - 0.02 < time.idle_share < 0.4
    path = w.critical_path()
    assert "recorded step" not in str(path) and "times are predicted" in str(w.stragglers())
    assert time.total_ns == path.total_ns and "times are predicted" in str(path)
    # one micro-batch comes through all stages, and nobody is waited for who only waits
    assert set(path.by_rank) == {0, 2, 4, 6}
    assert path.communication_ns < 0.1 * path.total_ns
    assert time.predicted is not None and "H100" in str(time)
    # what was on its way while a rank computed is a part of the step
    assert all(0 <= row.hidden_ns <= row.compute_ns for row in time.ranks)
    # calls take the time in which they run: neither backward of a forward call, nor the bubble, is a part of it
    for rank, row in zip((0, 2, 4, 6), w.schedule().ranks):
        scopes = [scope for scope in w[rank].graph.scopes if scope.path == stage_of(w[rank])]
        times = w[rank].metrics["scope_time_ns"].values
        taken = sum(int(times[scope.index]) for scope in scopes)
        assert len(scopes) == 2 * row.microbatches
        assert taken == pytest.approx(row.forward_ns + row.backward_ns, rel=0.02), (rank, taken, row)
    # a stage alone learns its shapes from the one before all the same
    alone = tv.simulate(pipeline, batch, mesh={"pp": 4, "dp": 2}, ranks=[4])
    assert talk(alone[4]) == talk(w[4])


def test_with_an_older_torch_only_pipelines_of_unknown_shapes_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In torch 2.11 stages tell each other their shapes in another way; all else is simulated there."""
    from torch.distributed.pipelining import PipelineStage, schedules

    def learn(stage: Any, args: Any) -> None: ...

    monkeypatch.delattr(schedules, "InferenceMode")
    monkeypatch.setattr(PipelineStage, "_shape_inference", learn, raising=False)
    assert not tv.simulate(lambda mesh: lambda x: x.sum(), torch.ones(2), mesh={"dp": 2}).problems
    assert PipelineStage._shape_inference is learn

    def stage_that_learns(mesh: Any) -> Any:
        stage = PipelineStage(nn.Linear(2, 2), 0, 1, torch.device("cpu"), group=mesh["pp"].get_group())
        return lambda x: stage._shape_inference((x,))

    with pytest.raises(UsageError, match=r"stage 0 .* give PipelineStage input_args and output_args"):
        tv.simulate(stage_that_learns, torch.ones(2), mesh={"pp": 1})


def test_slower_links_are_exposed() -> None:
    x = torch.ones(2, 3, 32)
    slow, fast = (
        tv.simulate(
            parallel, x, mesh={"dp": 2, "tp": 2}, ranks=[0], hardware="H100", links={"dp": rate, "tp": rate}
        )
        for rate in ("1 MB/s", "400 Gbit/s")
    )
    assert slow.step_time().total_ns > 3 * fast.step_time().total_ns
    assert slow.step_time().exposed_share > 0.5
    # what it waits for ranks that do the same is no computation
    assert slow.critical_path().communication_ns > 0.5 * slow.critical_path().total_ns
    # the link of an axis carries one collective after the other
    sent = sum(row.sent_bytes or 0 for row in slow.exchanges[0] if row.axis == "dp")
    assert slow.step_time().total_ns > sent / 1e6 * 1e9


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mesh": {}}, "mesh is a dictionary"),
        ({"mesh": {"dp": 0}}, "axis dp of the mesh has a number of ranks"),
        ({"mesh": {"dp": 2}, "ranks": [2]}, "from 0 to 1"),
        ({"mesh": {"dp": 2}, "ranks": 1}, r"as in \[0, 1\], or 'all', not 1"),
        ({"mesh": {"dp": 2}, "ranks": "0"}, "or 'all', not '0'"),
        ({"mesh": {"dp": 2}, "links": {"dp": "1 GB/s"}}, "say hardware="),
        ({"mesh": {"dp": 2}, "hardware": "H100", "links": {"pd": "1 GB/s"}}, "did you mean 'dp'"),
        ({"mesh": {"dp": 2}, "hardware": "H100", "links": {"dp": "fast"}}, "'50 GB/s'"),
    ],
)
def test_what_is_no_world_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tv.errors.UsageError, match=words):
        tv.simulate(parallel, torch.ones(2, 3, 32), **options)


def test_a_decorator_may_give_the_step_more_than_the_batch() -> None:
    def decorated(mesh: Any) -> Any:
        model = nn.Linear(4, 4)

        def step(model: nn.Module, x: torch.Tensor) -> None:
            model(x).sum().backward()

        return functools.wraps(step)(lambda x: step(model, x))

    assert len(tv.simulate(decorated, torch.ones(1, 4), mesh={"dp": 2})) == 2


def test_a_program_that_fails_leaves_torch_as_it_was() -> None:
    import torch.distributed as dist

    def raises(mesh: Any) -> Any:
        net = build(mesh)[0]
        return lambda x: net(x) and 1 / 0

    with pytest.raises(tv.errors.UsageError, match="gives the step, a callable"):
        tv.simulate(lambda mesh: None, mesh={"dp": 2})
    with pytest.raises(tv.errors.UsageError, match=r"called without a batch.*missing a required argument"):
        tv.simulate(lambda mesh: lambda x: x, mesh={"dp": 2})
    with pytest.raises(tv.errors.UsageError, match="asks for an axis that the mesh does not have, only dp"):
        tv.simulate(lambda mesh: mesh["tp"], mesh={"dp": 2})
    with pytest.raises(tv.errors.UsageError, match="divides 6 ranks"):
        tv.fit(parallel, torch.ones(2, 3, 32), world=6, memory="1 GiB", tp=4)
    with pytest.raises((RuntimeError, tv.errors.CaptureFailed)):
        tv.simulate(raises, torch.ones(2, 3, 32), mesh={"dp": 2})

    def raises_on_one(mesh: Any) -> Any:
        if mesh.get_local_rank("dp") == 1:
            raise KeyError("no such shard")
        return parallel(mesh)

    with pytest.raises(KeyError, match="no such shard") as failure:
        tv.simulate(raises_on_one, torch.ones(2, 3, 32), mesh={"dp": 2})
    if sys.version_info >= (3, 11):
        assert failure.value.__notes__ == ["this is rank 1 of 2 (dp 1), by shapes"]
    assert not dist.is_initialized() and not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    with fake_group(2), pytest.raises(tv.errors.UsageError, match="a rank of a real job"):
        tv.simulate(parallel, torch.ones(2, 3, 32), mesh={"dp": 2})


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_may_be_converted_where_it_is_built(tied: bool) -> None:
    peaks = []
    for convert in (lambda net: net.to(torch.bfloat16), lambda net: net.double().half().bfloat16()):

        def make(mesh: Any, convert: Any = convert) -> Any:
            net = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16))
            if tied:
                net[2].weight = net[0].weight
            convert(net)
            assert {parameter.dtype for parameter in net.parameters()} == {torch.bfloat16}
            assert (net[2].weight is net[0].weight) == tied
            shard_all(net, mesh)
            return lambda x: net(x.bfloat16()).sum().backward()

        w = tv.simulate(make, torch.ones(2, 16), mesh={"dp": 2})
        kinds = {row.dtype for row in w.exchanges[0]}
        assert kinds == {"bfloat16"} and not w.problems
        peaks.append(w[0].memory().peak_bytes)
    assert peaks[0] == peaks[1]


def test_divided_tensors_on_the_meta_device_are_one_clear_error_and_simulated() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def make(mesh: Any) -> Any:
        with torch.device("meta"):
            net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return lambda x: net(x).sum().backward()

    x = torch.ones(2, 16)
    w = tv.simulate(make, x, mesh={"tp": 4})
    # the output of the second layer, and the gradient of the first one's input is not asked for
    assert [(row.kind, row.bytes) for row in w.exchanges[0]] == [("all_reduce", 2 * 16 * 4)]
    with fake_group(4):
        step = make(mesh_of(("tp", 4)))
        with pytest.raises(tv.errors.CaptureFailed, match=r"lies on the meta device.*tv\.simulate"):
            tv.trace(step, x, fake=True)


def shard_all(net: nn.Module, mesh: Any) -> None:
    """FSDP2 of the whole."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(net, mesh=mesh["dp"])


def test_fit_tries_other_parameters_of_make() -> None:
    from torch.distributed.fsdp import fully_shard

    def make(mesh: Any, wide: bool, layers: int = 3) -> Any:
        # there is nothing to be wide for on one rank
        if wide and mesh["dp"].size() == 2:
            return None
        width = 64 if wide else 32
        model = nn.Sequential(*[nn.Linear(32, width), nn.Linear(width, 32)] * 1)
        fully_shard(model, mesh=mesh["dp"])
        return lambda x: model(x).sum().backward()

    x = torch.ones(2, 32)
    report = tv.fit(make, x, world=4, memory="1 GiB", tp=(1, 2), options={"wide": (False, True)}, whole=False)
    rows = {(row.dp, row.options["wide"]): row for row in report.layouts}
    assert set(rows) == {(4, False), (4, True), (2, False)}
    assert rows[4, True].flops > rows[4, False].flops
    assert "wide=True" in str(report)
    for options, words in (
        ({"wise": (1,)}, "did you mean 'wide'"),
        ({"layers": (1,)}, "layers="),
        ({"wide": True}, "several values"),
        ({"wide": ()}, "no step"),
    ):
        with pytest.raises(UsageError, match=words):
            tv.fit(make, x, world=4, memory="1 GiB", options=options)
    with pytest.raises(UsageError, match="no step"):
        tv.fit(make, x, world=2, memory="1 GiB", options={"wide": (True,)})
