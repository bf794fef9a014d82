"""Steps predicted from what the ranks of a job measured of themselves."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

import torch_vis as tv
from tests.kit.calibrations import made_up
from torch_vis.analysis.machine.calibrate import _computed
from torch_vis.analysis.machine.calibration import RankLinks
from torch_vis.errors import UsageError

MS = 1e6


def links(**changes: Any) -> RankLinks:
    """Round figures: 1 ms for any collective, 1 ms more for each million bytes."""
    times = {
        kind: [(0, MS), (10**6, 2 * MS)] for kind in ("all_reduce", "all_gather", "reduce_scatter", "send")
    }
    return RankLinks(2, times, 1.0, {})._replace(**changes)


def sharded(mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*[fully_shard(nn.Linear(256, 256), mesh=mesh["dp"]) for _ in range(4)])
    fully_shard(model, mesh=mesh["dp"])
    return lambda x: model(x).sum().backward()


def step_ns(measured: RankLinks | None, **options: Any) -> float:
    machine = replace(made_up("cpu"), links=measured)
    w = tv.simulate(sharded, torch.ones(8, 256), mesh={"dp": 2}, hardware=machine, **options)
    return float(w.step_time().total_ns)


def test_measured_links_need_no_others() -> None:
    with pytest.raises(UsageError, match="under torchrun"):
        step_ns(None)
    assert step_ns(links()) < step_ns(links(times={kind: [(0, 50 * MS)] for kind in links().times}))
    # what is said counts more than what was measured
    assert step_ns(links(), links={"dp": "1 GB/s"}) < step_ns(links())


def test_each_kind_takes_its_own_time() -> None:
    slow = {**links().times, "reduce_scatter": [(0, 500 * MS)]}
    difference = step_ns(links(times=slow)) - step_ns(links())
    # each of four layers adds its gradients up
    assert 4 * 490 * MS < difference < 4 * 500 * MS


def test_what_is_not_hidden_takes_its_time_from_computing() -> None:
    none, half, all_of_it = (step_ns(links(hidden=share)) for share in (0.0, 0.5, 1.0))
    assert none > half > all_of_it
    assert half == pytest.approx((none + all_of_it) / 2, rel=0.02)


def test_python_around_a_collective_counts_for_each() -> None:
    t = tv.simulate(sharded, torch.ones(8, 256), mesh={"dp": 2})[0]
    count = len(t.graph.comm_node)
    hidden = links(times={kind: [(0, 0.0)] for kind in links().times})
    more = hidden._replace(issue_ns={"sharded": 3 * MS, "functional": 100 * MS})
    assert step_ns(more) - step_ns(hidden) == pytest.approx(count * 3 * MS, rel=0.01)


def test_messages_of_a_pipeline_take_what_was_measured_around_messages() -> None:
    measured = links(issue_ns={"plain": 7 * MS, "message": 2 * MS})
    assert measured.around_ns("c10d::send") == measured.around_ns("c10d::recv_") == 2 * MS
    assert measured.around_ns("c10d::allreduce_") == 7 * MS
    assert links(issue_ns={"plain": 7 * MS}).around_ns("c10d::send") == 0.0


def test_a_calibration_with_links_is_kept_in_its_file(tmp_path: Path) -> None:
    machine = replace(made_up("cpu"), links=links(hidden=0.25, issue_ns={"sharded": 5.0}))
    machine.save(tmp_path / "ranks.json")
    assert tv.hardware.load(tmp_path / "ranks.json").links == machine.links
    made_up("cpu").save(tmp_path / "alone.json")
    assert tv.hardware.load(tmp_path / "alone.json").links is None
    assert "2 ranks" in str(machine) and "ranks" not in str(made_up("cpu"))


def _calibrate(rank: int, folder: str) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    machine = tv.measure.calibrate(path=f"{folder}/ranks.json", seconds=2)
    again = tv.measure.calibrate(path=f"{folder}/ranks.json", seconds=2)
    assert machine.links is not None and again.links is not None
    assert machine.circumstances["ranks"] == 2
    # the ranks can still talk
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_measure_how_they_talk(tmp_path: Path) -> None:
    mp.spawn(_calibrate, args=(str(tmp_path),), nprocs=2)
    measured = tv.hardware.load(tmp_path / "ranks.json").links
    assert measured is not None and measured.ranks == 2 and 0 <= measured.hidden <= 1
    assert {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"} <= set(measured.times)
    for rows in measured.times.values():
        sizes, times = zip(*rows)
        assert sorted(sizes) == list(sizes) and sorted(times) == list(times) and times[0] > 0
        # sixteen million bytes take longer than a few hundred
        assert times[-1] > 2 * times[0]
    assert {"sharded", "plain", "functional", "message"} <= set(measured.issue_ns)
    w = tv.simulate(
        sharded, torch.ones(8, 256), mesh={"dp": 2}, hardware=tv.hardware.load(tmp_path / "ranks.json")
    )
    assert w.step_time().total_ns > 0


def test_the_report_says_what_it_rests_on() -> None:
    machine = replace(made_up("cpu"), links=links())
    w = tv.simulate(sharded, torch.ones(8, 256), mesh={"dp": 2}, hardware=machine)
    assert "did among ranks of a job" in str(w.step_time()).replace("\n ", "")
    given = tv.simulate(sharded, torch.ones(8, 256), mesh={"dp": 2}, hardware=machine, links={"dp": "1 GB/s"})
    assert "among ranks of a job" not in str(given.step_time()) and "latency per hop" in str(
        given.step_time()
    )


def test_what_a_rank_waits_is_not_what_python_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    assert _computed(lambda: time.sleep(0.2), "cpu") < 100 * MS
    assert _computed(lambda: sum(range(2_000_000)), "cpu") > 1 * MS
