"""The schedule of a pipeline: which stage runs which micro-batch when, and for how long it stands idle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torch_vis as tv
from tests.kit.ranks import on_ranks, training_step
from torch_vis.analysis.ranks.schedule import ScheduleReport, chunks_of
from torch_vis.graph.schema import Phase
from torch_vis.ops.collectives import waited

pytestmark = pytest.mark.filterwarnings("ignore")
STAGES, MICROBATCHES = 2, 4


def saved(rank: int, count: int, folder: str) -> None:
    step = training_step("1f1b", rank, count)
    step()
    tv.trace(step).save(f"{folder}/step.r{rank}.tvz")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tv.World:
    folder = tmp_path_factory.mktemp("pipeline")
    on_ranks(saved, STAGES, str(folder))
    joined = tv.join(str(folder / "step.r*.tvz"))
    assert joined is not None
    return joined


def test_every_micro_batch_is_there_in_both_directions(world: tv.World) -> None:
    report = world.schedule()
    assert (report.stages, report.microbatches, len(report.ranks)) == (STAGES, MICROBATCHES, STAGES)
    for rank in range(STAGES):
        rows = [chunk for chunk in report.chunks if chunk.rank == rank]
        assert {chunk.stage for chunk in rows} == {rank}
        order = [(chunk.what, chunk.microbatch) for chunk in rows]
        for what in ("forward", "backward"):
            assert [batch for way, batch in order if way == what] == list(range(MICROBATCHES))
        # one after the other, none at once
        ends = [chunk.start_ns + chunk.time_ns for chunk in rows]
        assert all(end <= later.start_ns for end, later in zip(ends, rows[1:]))
    # the last stage runs each backward right after its forward, the first runs ahead
    first, last = ([c.what for c in report.chunks if c.rank == rank] for rank in (0, STAGES - 1))
    assert last == ["forward", "backward"] * MICROBATCHES and first[:2] == ["forward", "forward"]


def test_time_is_work_or_idle(world: tv.World) -> None:
    report = world.schedule()
    for row in report.ranks:
        assert row.forward_ns + row.backward_ns + row.idle_ns == report.total_ns
        assert row.forward_ns > 0 and row.backward_ns > 0 and 0 < row.idle_share < 1
    assert report.idle_share == pytest.approx(np.mean([row.idle_share for row in report.ranks]))
    assert report.ideal_idle_share == (STAGES - 1) / (MICROBATCHES + STAGES - 1)
    text = str(report)
    assert "2 stages, 4 micro-batches" in text and "20.0 % if all stages took the same time" in text


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_it_is_drawn_as_a_gantt_chart(world: tv.World, renderer: str) -> None:
    report = world.schedule()
    figure = report.figure(renderer)
    starts = {chunk.start_ns - report.start_ns for chunk in report.chunks}
    if renderer == "plotly":
        assert [bar.name for bar in figure.data] == ["forward", "backward"]
        assert {start for bar in figure.data for start in bar.base} == starts
        assert figure.layout.barmode == "overlay"
    else:
        bars = [patch for container in figure.axes[0].containers for patch in container]
        assert {round(bar.get_x()) for bar in bars} == starts


def test_a_second_backward_of_a_micro_batch_is_that_of_weights(world: tv.World) -> None:
    """As schedules do that put off the gradients of weights: the operations of another micro-batch lie between."""
    graph = world[1].graph
    start, time = world.timeline.operations(1)
    backward = [chunk for chunk in world.schedule().chunks if chunk.rank == 1 and chunk.what == "backward"]
    moved = start.copy()
    own = np.flatnonzero(
        (start >= backward[0].start_ns)
        & (start < backward[0].start_ns + backward[0].time_ns)
        & (graph.node_phase == Phase.BACKWARD)
    )
    moved[own[len(own) // 2 :]] += int(time.sum() + start.max())
    parts = [chunk.what for chunk in chunks_of(1, graph, moved, time) if chunk.microbatch == 0]
    assert parts == ["forward", "backward", "weights"]


def test_ranks_without_a_pipeline_say_so(tmp_path: Path) -> None:
    report = ScheduleReport.__new__(ScheduleReport)
    report.chunks = []
    assert report.idle_share is None and not report.charts() and not report.listings()
    assert "none: no rank runs a stage of one" in str(report)


def test_waits_are_a_heat_map_of_each_rank(world: tv.World) -> None:
    for trace in world:
        column = waited(trace)
        assert column is not None and column.total() == trace.communication().waited_ns
        nodes = {trace.graph.nodes[int(node)].name for node in np.flatnonzero(column.values)}
        assert nodes == {"wait"}
