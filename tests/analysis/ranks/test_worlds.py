"""Ranks joined: who meets whom, who waits for whom, what does not agree, and the one file of all of them."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_vis as tv
from tests.kit.ranks import fake_group, mesh_of, on_ranks, training_step
from torch_vis.analysis.ranks.exchanges import Exchange
from torch_vis.analysis.ranks.meetings import Meeting, meetings_of, waits_for_the_absent
from torch_vis.analysis.ranks.waiting import (
    Clock,
    CriticalPathReport,
    RankTimeline,
    StragglersReport,
    clocks_of,
    off_by,
)
from torch_vis.graph import GraphBuilder, Metrics
from torch_vis.graph.run import Run

pytestmark = pytest.mark.filterwarnings("ignore")


def each_rank(program: Callable[[int], Any], count: int = 3, *, fake: bool = True) -> list[tv.Trace]:
    """The traces of a program on ranks that are not there together."""
    traces = []
    for rank in range(count):
        with fake_group(count, rank):
            traces.append(tv.trace(lambda rank=rank: program(rank), fake=fake))
    return traces


# ---------------------------------------------------------------- ranks that do not agree


def one_is_left_out(rank: int) -> None:
    for number in range(4):
        if (rank, number) != (1, 2):
            dist.all_reduce(torch.ones(8 + number))


def one_more(rank: int) -> None:
    dist.all_reduce(torch.ones(8))
    if rank == 1:
        dist.barrier()
    dist.all_reduce(torch.ones(9))


def another_operation(rank: int) -> None:
    if rank == 1:
        dist.broadcast(torch.ones(8), src=0)
    else:
        dist.all_reduce(torch.ones(8))


def another_size(rank: int) -> None:
    dist.all_reduce(torch.ones(8 if rank == 1 else 16))


def another_type(rank: int) -> None:
    dist.all_reduce(torch.ones(8, dtype=torch.bfloat16 if rank == 1 else torch.float32))


def another_reduction(rank: int) -> None:
    dist.all_reduce(torch.ones(8), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def another_root(rank: int) -> None:
    dist.broadcast(torch.ones(8), src=2 if rank == 1 else 0)


def a_message_that_nobody_receives(rank: int) -> None:
    if rank == 1:
        dist.send(torch.ones(8), 2, tag=3)
    if rank == 2:
        dist.recv(torch.ones(8), 1, tag=4)


@pytest.mark.parametrize(
    ("program", "what", "words"),
    [
        (
            one_is_left_out,
            "missing",
            ["never comes to all_reduce (sum) of 40 B float32, number 2", "ranks 0, 2 wait"],
        ),
        (one_more, "extra", ["runs barrier", "which ranks 0, 2 never come to"]),
        (another_operation, "operation", ["runs broadcast", "where ranks 0, 2 run all_reduce"]),
        (another_size, "size", ["of 32 B", "of 64 B"]),
        (another_type, "dtype", ["bfloat16", "float32"]),
        (another_reduction, "reduction", ["all_reduce (max)", "all_reduce (sum)"]),
        (another_root, "root", ["broadcast of root 2", "broadcast of root 0"]),
    ],
)
def test_a_rank_that_does_otherwise_is_named(program: Any, what: str, words: list[str]) -> None:
    world = tv.join(each_rank(program))
    assert world is not None
    (problem,) = world.problems
    assert (problem.rank, problem.what) == (1, what)
    text = str(problem)
    assert "rank 1" in text and program.__name__ in text and "test_worlds.py" in text
    assert all(word in text for word in words), text
    assert what in str(world.communication()) and text[:40] in str(world)
    with pytest.raises(tv.errors.CheckFailed, match="ranks do not agree: rank 1"):
        world.check()


def test_messages_that_find_nobody_are_named_on_both_sides() -> None:
    world = tv.join(each_rank(a_message_that_nobody_receives))
    assert world is not None
    texts = sorted(map(str, world.problems))
    assert "rank 1 sends a message to rank 2, which never receives it: tag 3" in texts[0]
    assert "rank 2 waits for a message from rank 1, which never sends it: tag 4" in texts[1]


def test_what_follows_a_missing_collective_still_finds_its_counterpart() -> None:
    world = tv.join(each_rank(one_is_left_out))
    assert world is not None
    assert [sorted(row.parts) for row in world.meetings] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 1, 2]]


def test_groups_that_ranks_number_for_themselves_are_told_apart_by_their_members() -> None:
    def program(rank: int) -> None:
        groups = [dist.new_group(list(pair)) for pair in ((0, 1), (0, 2), (1, 2))]
        for group, pair in zip(groups, ((0, 1), (0, 2), (1, 2))):
            if rank in pair:
                dist.all_reduce(torch.ones(2 + sum(pair)), group=group)

    world = tv.join(each_rank(program))
    assert world is not None and world.problems == []
    assert sorted(sorted(row.parts) for row in world.meetings) == [[0, 1], [0, 2], [1, 2]]


# ---------------------------------------------------------------- ranks that are none


OTHER = "import torch\nimport torch.distributed as dist\ndef program(rank):\n    dist.broadcast(torch.ones(8), 0)\n"


def plain(rank: int) -> None:
    dist.all_reduce(torch.ones(8))


def test_ranks_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    traces = each_rank(plain)
    with pytest.raises(tv.errors.UsageError, match=r"of 3 ranks 1 is missing; partial=True"):
        tv.join([traces[0], traces[2]])
    world = tv.join([traces[0], traces[2]], partial=True)
    assert world is not None and world.ranks == [0, 2] and world.problems == []
    with pytest.raises(tv.errors.UsageError, match="rank 0 is there twice"):
        tv.join([*traces, traces[0]])
    with pytest.raises(tv.errors.UsageError, match="is no rank of a job"):
        tv.join([tv.trace(torch.nn.ReLU(), torch.ones(2))])
    with pytest.raises(tv.errors.UsageError, match="ranks 0 and 1 are of jobs of another size: 3 and 2"):
        tv.join([traces[0], each_rank(plain, 2)[1]])
    names: dict[str, Any] = {}
    exec(compile(OTHER, "other.py", "exec"), names)
    other = each_rank(names["program"])
    with pytest.raises(tv.errors.UsageError, match=r"ranks 0 and 1 are of different programs.*other\.py"):
        tv.join([traces[0], *other[1:]])
    for rank, trace in enumerate(traces):
        trace.meta["traced"] = f"step {2 + (rank == 2)}"
    with pytest.raises(tv.errors.UsageError, match="ranks 0 and 2 are of different steps: step 2 and step 3"):
        tv.join(traces)
    with pytest.raises(tv.errors.UsageError, match="this process is none"):
        tv.join(traces[0])
    with pytest.raises(tv.errors.UsageError, match="no file is called"):
        tv.join(str(tmp_path / "step.r*.tvz"))
    with pytest.raises(tv.errors.NoMatch, match="no rank 7; there are ranks 0, 2"):
        world[7]


def saved(rank: int, count: int, folder: str) -> None:
    step = training_step("fsdp2", rank, count)
    step()
    tv.trace(step).save(f"{folder}/step.r{rank}.tvz")


def test_files_of_ranks_are_joined_and_of_different_steps_are_not(tmp_path: Path) -> None:
    on_ranks(saved, 2, str(tmp_path))
    world = tv.join(str(tmp_path / "step.r*.tvz"))
    assert world is not None and len(world) == 2 and not world.problems
    assert [trace.meta["rank"] for trace in world] == [0, 1]
    with pytest.raises(tv.errors.TensorsMissing, match="joined without their tensors"):
        world.check()
    assert world.stragglers().meetings == len(world.meetings) == 8
    assert "Critical path" in str(world.critical_path()) and world.critical_path().total_ns > 0
    comparison = world.compare(0, 1)
    assert "rank 0" in str(comparison)
    # all but the times and the place among ranks is in the file once
    world.save(tmp_path / "step.tvz")
    with zipfile.ZipFile(tmp_path / "step.tvz") as archive:
        index = json.loads(archive.read("ranks.json"))
    first, second = (row["entries"] for row in index["ranks"])
    different = {name for name in first if first[name] != second[name]}
    assert {name.partition("/")[0] for name in different} <= {
        "metrics",
        "header.json",
        "tables.json",
        "columns",
    }
    # when Python lets go of memory is each rank's own affair
    columns = {name for name in different if name.startswith("columns/")} - {"columns/storage_death"}
    assert len(columns) <= 1, different
    fields = [dict(row["tables.json"]) for row in (first, second)]
    # a rank copies its part out of the whole by a number of its own
    assert {name for name in fields[0] if fields[0][name] != fields[1][name]} <= {"groups", "calls"}
    again = tv.load(tmp_path / "step.tvz")
    assert isinstance(again, tv.World) and len(again) == 2
    for rank in (0, 1):
        assert again[rank].graph.node_call.tolist() == world[rank].graph.node_call.tolist()
        assert again[rank].meta == world[rank].meta and again[rank].limits == world[rank].limits
    assert str(again) == str(world)
    data = (tmp_path / "step.tvz").read_bytes()
    (tmp_path / "cut.tvz").write_bytes(data[: len(data) // 2])
    with pytest.raises(tv.errors.CorruptFile):
        tv.load(tmp_path / "cut.tvz")
    # one of them a minute later
    late = tv.load(tmp_path / "step.r1.tvz")
    late.meta["began_ns"] += 60 * 10**9
    with pytest.raises(
        tv.errors.UsageError, match="different steps: by their clocks they missed each other by"
    ):
        tv.join([tv.load(tmp_path / "step.r0.tvz"), late])
    with pytest.raises(tv.errors.UsageError, match="writes one rank"):
        world.save(tmp_path / "step.svg")


def test_perfetto_has_a_process_per_rank_and_arrows_between_them(tmp_path: Path) -> None:
    on_ranks(saved, 2, str(tmp_path))
    world = tv.join(str(tmp_path / "step.r*.tvz"))
    assert world is not None
    world.save(tmp_path / "step.perfetto.json")
    events = json.loads((tmp_path / "step.perfetto.json").read_text())["traceEvents"]
    names = {row["pid"]: row["args"]["name"] for row in events if row["name"] == "process_name"}
    assert sorted(names) == [1, 2] and names[2].startswith("rank 1")
    arrows: dict[str, list[dict[str, Any]]] = {}
    for row in events:
        if row.get("cat") == "ranks":
            arrows.setdefault(row["id"], []).append(row)
    assert len(arrows) == len(world.meetings)
    operations = [row for row in events if row.get("cat") == "operation"]
    for ends in arrows.values():
        assert [row["ph"] for row in ends] == ["s", "f"] and {row["pid"] for row in ends} == {1, 2}
        for end in ends:
            around = [
                row
                for row in operations
                if (row["pid"], row["tid"]) == (end["pid"], end["tid"])
                and row["ts"] <= end["ts"] <= row["ts"] + row["dur"]
            ]
            assert around, "an arrow ends at an operation"


def test_a_world_needs_times_for_who_waits() -> None:
    world = tv.join(each_rank(plain))
    assert world is not None
    with pytest.raises(tv.errors.UsageError, match="by shapes alone"):
        world.stragglers()
    assert world.memory().peak_bytes == 32 and "0–2" in str(world.memory())


# ---------------------------------------------------------------- times, by hand

MS = 1_000_000


def exchange(kind: str, start: float, waiting: float, done: float, **more: Any) -> Exchange:
    """A collective of two ranks, with its times in milliseconds."""
    fields: dict[str, Any] = {
        "node": 0, "kind": kind, "axis": "dp", "members": (0, 1), "phase": "forward", "path": "layer", "line": "a.py:1",
        "bytes": 8, "sent_bytes": 8.0, "exposed_ns": 0, "waited_ns": round((done - waiting) * MS),
        "start_ns": round(start * MS), "done_ns": round(done * MS), "dtype": "float32", "elements": 2,
        "reduction": None, "peer": None, "tag": 0, "number": 0,
    }  # fmt: skip
    return Exchange(**{**fields, **more})


def run(began: float, wall: float, host: str = "here") -> Run:
    meta = {"began_ns": round(began * MS), "wall_ns": round(wall * MS), "host": host}
    return Run(GraphBuilder().build(), Metrics(), (), meta)


def timeline(ranks: dict[int, list[Exchange]], runs: dict[int, Run]) -> RankTimeline:
    meetings = meetings_of(ranks).rows
    return RankTimeline(runs, meetings, ranks, clocks_of(runs, meetings, ranks, {}))


def test_the_rank_that_comes_late_is_the_straggler_and_on_the_critical_path() -> None:
    # both begin at 0; rank 1 comes to the first collective 50 ms late, and both to the second at the same time
    ranks = {
        0: [exchange("all_reduce", 10, 10, 62), exchange("all_gather", 70, 80, 80, number=1)],
        1: [exchange("all_reduce", 60, 60, 62), exchange("all_gather", 70, 80, 80, number=1)],
    }
    line = timeline(ranks, {0: run(0, 90), 1: run(0, 85)})
    stragglers = StragglersReport(line)
    assert stragglers.slowest is not None
    assert (stragglers.slowest.rank, stragglers.slowest.imposed_ns, stragglers.slowest.last) == (
        1,
        50 * MS,
        2,
    )
    waited = {row.rank: row.waited_ns for row in stragglers.ranks}
    assert waited == {0: 50 * MS, 1: 0}
    assert "rank 1 lets others wait 50.0 ms, most before a.py:1 (layer)" in str(stragglers)
    path = CriticalPathReport(line)
    stretches = [(row.rank, row.what, row.start_ns // MS, row.time_ns // MS) for row in path.stretches]
    assert stretches == [(1, "compute", 0, 60), (0, "communication", 60, 2), (0, "compute", 62, 28)]
    assert (path.total_ns, path.compute_ns) == (90 * MS, 88 * MS)
    assert path.by_rank == {1: 60 * MS, 0: 30 * MS}


def test_a_rank_that_runs_nothing_until_another_comes_has_waited_for_it() -> None:
    # the reducer of DistributedDataParallel waits in C++: rank 0 runs nothing from 20 to 75, and rank 1 comes at 70
    unseen: dict[str, Any] = {"waited_ns": None, "done_ns": None, "exposed_ns": None}
    ranks = {
        0: [exchange("all_reduce", 15, 0, 0, **unseen, landed_ns=75 * MS, quiet_ns=55 * MS)],
        1: [exchange("all_reduce", 70, 0, 0, **unseen, landed_ns=76 * MS, quiet_ns=5 * MS)],
    }
    stragglers = StragglersReport(timeline(ranks, {0: run(0, 90), 1: run(0, 90)}))
    assert stragglers.slowest is not None and (stragglers.slowest.rank, stragglers.unseen) == (1, 1)
    assert stragglers.slowest.imposed_ns == 50 * MS
    assert "at 1 collectives C++ code waited, unseen" in str(stragglers)


def late(rank: int, count: int) -> list[tuple[int, int]]:
    """Rank 1 comes 50 ms late, four times: to collectives that it waits for itself, and to those of a reducer."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))

    def own() -> None:
        for _ in range(4):
            time.sleep(0.05 * rank)
            dist.all_reduce(torch.ones(4))

    def reducer() -> None:
        for _ in range(4):
            time.sleep(0.05 * rank)
            model(torch.ones(1, 8)).sum().backward()
            # of a gradient that nobody looks at, nobody would be seen to wait
            model.module.weight.grad.sum()

    reducer()
    results = []
    for program in (own, reducer):
        dist.barrier()
        world = tv.join(tv.trace(program), check=False)
        slowest = None if world is None else world.stragglers().slowest
        results += [(-1, 0)] if slowest is None else [(slowest.rank, slowest.imposed_ns)]
    return results


def test_a_straggler_of_50_ms_is_found() -> None:
    for rank, imposed in on_ranks(late, 2)[0]:
        assert rank == 1 and imposed > 3 * 50 * MS


def test_who_is_late_to_what_nobody_waits_for_costs_nothing() -> None:
    ranks = {0: [exchange("all_reduce", 10, 70, 70)], 1: [exchange("all_reduce", 60, 70, 71)]}
    stragglers = StragglersReport(timeline(ranks, {0: run(0, 90), 1: run(0, 90)}))
    assert stragglers.slowest is None and [row.imposed_ns for row in stragglers.ranks] == [0, 0]


def test_of_a_message_the_receiver_waits_for_the_sender_alone() -> None:
    ranks = {
        0: [exchange("send", 40, 40, 41, peer=1)],
        1: [exchange("recv", 5, 5, 42, peer=0)],
    }
    stragglers = StragglersReport(timeline(ranks, {0: run(0, 50), 1: run(0, 50)}))
    assert stragglers.slowest is not None and stragglers.slowest.rank == 0
    assert stragglers.slowest.imposed_ns == 35 * MS


def test_a_sender_that_stands_until_somebody_receives_waits_for_the_receiver() -> None:
    ranks = {
        0: [exchange("send", 5, 5, 42, peer=1)],
        1: [exchange("recv", 40, 40, 42, peer=0)],
    }
    together = timeline(ranks, {0: run(0, 50), 1: run(0, 50)})
    stragglers = StragglersReport(together)
    assert stragglers.slowest is not None and stragglers.slowest.rank == 1
    assert stragglers.slowest.imposed_ns == 35 * MS
    # what happens until the message is sent is what the receiver does until it comes
    path = CriticalPathReport(together)
    assert path.by_rank[1] == 40 * MS and path.total_ns == 50 * MS
    # one that was sent, and not waited for, holds nobody up
    ranks[0] = [exchange("send", 5, 5, 6, peer=1)]
    assert StragglersReport(timeline(ranks, {0: run(0, 50), 1: run(0, 50)})).slowest is None


def test_clocks_of_other_hosts_are_bounded_by_what_ranks_got() -> None:
    # what rank 1 calls 1000 ms is 0 ms on rank 0: it got what rank 0 gave at 10 no sooner, and the other way round
    ranks = {
        0: [exchange("all_reduce", 10, 10, 14), exchange("all_reduce", 20, 20, 22, number=1)],
        1: [exchange("all_reduce", 13, 13, 14), exchange("all_reduce", 18, 18, 21, number=1)],
    }
    runs = {0: run(0, 30), 1: run(1000, 30, "there")}
    meetings = meetings_of(ranks).rows
    clock = clocks_of(runs, meetings, ranks, {})[1]
    # its beginning is no more than 1 ms after that of rank 0, and no more than 1 ms before it
    assert clock == Clock(1, "there", -1000 * MS, MS, "collectives")
    assert clocks_of(runs, meetings, ranks, {1: (5, 7)})[1] == Clock(1, "there", 5, 7, "round trips")
    here = clock._replace(rank=0, offset_ns=0)
    assert off_by(runs, meetings, ranks, {0: here, 1: clock}) == {}
    wrong = off_by(runs, meetings, ranks, {0: here, 1: clock._replace(offset_ns=0)})
    assert wrong == {1: 999 * MS}


def test_a_rank_that_hangs_waits_for_those_that_left_nothing() -> None:
    ranks = {
        0: [
            exchange("all_reduce", 1, 1, 2),
            exchange("all_reduce", 5, 5, 6, number=1)._replace(done_ns=None),
        ],
        1: [exchange("recv", 1, 1, 2, peer=0)._replace(done_ns=None)],
    }
    runs = {rank: run(0, 10) for rank in ranks}
    # the end of a step that was not waited for is nobody's hang
    assert waits_for_the_absent(runs, {0: ranks[0]}) == []
    for row in runs.values():
        row.meta["traced"] = "step 2, as far as it went"
    (first,) = waits_for_the_absent(runs, {0: ranks[0]})
    assert str(first) == (
        "rank 0 waits in all_reduce of 8 B float32, number 1 of dp at a.py:1 (layer), "
        "for rank 1: no trace was left there"
    )
    assert "for rank 0" in str(waits_for_the_absent({1: runs[1]}, {1: ranks[1]})[0])
    # of ranks that are here the meetings tell
    assert waits_for_the_absent(runs, ranks) == []


def test_nobody_waits_for_nothing() -> None:
    # a rank that gives no numbers, or none to this one, may come any time
    for kind, more in (
        ("all_reduce", {"elements": 0, "bytes": 0, "sent_bytes": 0.0}),
        ("all_to_all", {"sent_bytes": 0.0}),
    ):
        ranks = {0: [exchange(kind, 1, 1, 2, **more)], 1: [exchange(kind, 900, 900, 901, **more)]}
        runs = {0: run(0, 1000), 1: run(0, 1000)}
        meetings = meetings_of(ranks).rows
        assert off_by(runs, meetings, ranks, clocks_of(runs, meetings, ranks, {})) == {}
    even = {0: [exchange("all_to_all", 1, 1, 2, sent_bytes=4.0)], 1: [exchange("all_to_all", 900, 900, 901)]}
    even[1][0] = even[1][0]._replace(sent_bytes=4.0)
    meetings = meetings_of(even).rows
    assert off_by(runs, meetings, even, clocks_of(runs, meetings, even, {})) == {1: 898 * MS}


def test_meetings_have_their_ranks() -> None:
    ranks = {0: [exchange("barrier", 0, 0, 1)], 1: [exchange("barrier", 0, 0, 1)]}
    assert meetings_of(ranks).rows == [Meeting("barrier", "dp", (0, 1), 0, {0: 0, 1: 0})]


# ---------------------------------------------------------------- what ranks got is what ranks gave


def changed(rank: int, count: int, mode: str) -> str:
    """A rank says that it got something else than it did."""
    step = training_step(mode, rank, count)
    step()
    t = tv.trace(step)
    assert t.kept is not None
    if rank == 1:
        node = int(t.graph.wait_node[0])
        t.kept.opaque_outputs[node][0].view(-1)[0].add_(1.0)
    world = tv.join(t)
    if world is None:
        return ""
    try:
        world.check()
    except tv.errors.CheckFailed as error:
        return str(error)
    return "nothing was found"


@pytest.mark.parametrize(
    ("mode", "words"), [("fsdp2", "other bytes than were given"), ("tp", "off by up to 1")]
)
def test_what_was_not_given_is_found(mode: str, words: str) -> None:
    text, _ = on_ranks(changed, 2, mode)
    assert "rank 1 got" in text and words in text, text


def reduced(rank: int, count: int) -> dict[str, str]:
    """Numbers that double precision does not hold, that are too large for their type, or that are none."""
    import torch.distributed._functional_collectives as functional

    largest, operations = torch.finfo(torch.float16).max, dist.ReduceOp
    rows: dict[str, tuple[torch.Tensor, Any]] = {
        "large": (torch.tensor([2**60 + 1 + rank, -(2**61) - rank]), operations.SUM),
        "running over": (torch.tensor([200, 100 + rank], dtype=torch.uint8), operations.SUM),
        "running over in a product": (torch.tensor([2**40 + 1, 7]), operations.PRODUCT),
        "bits": (torch.tensor([5 - rank, 6]), operations.BOR),
        "common bits": (torch.tensor([5 - rank, 6], dtype=torch.int32), operations.BAND),
        "complex": (torch.tensor([1 + 2j * rank, -3j]), operations.SUM),
        "large products": (torch.linspace(1e3, 3e4, 50) + 0.1 * rank, operations.PRODUCT),
        "too large": (torch.tensor([largest, 1.0], dtype=torch.float16), operations.SUM),
        "none": (torch.tensor([[1.0, 2.0], [torch.nan, 5.0]][rank]), operations.MAX),
        "nothing": (torch.empty(0), operations.SUM),
    }

    def program(given: torch.Tensor, operation: Any) -> torch.Tensor:
        out = given.clone()
        dist.all_reduce(out, op=operation)
        return out * 1

    def of_two_types() -> Any:
        parts = [torch.ones(3) * rank, torch.arange(5) + rank]
        return [
            part * 1 for part in functional.all_gather_into_tensor_coalesced(parts, group=dist.group.WORLD)
        ]

    steps: dict[str, Any] = {name: lambda row=row: program(*row) for name, row in rows.items()}
    steps["two types"] = of_two_types
    answers = {}
    for name, step in steps.items():
        for change in (False, True):
            t = tv.trace(step)
            contents = [] if t.kept is None else [*t.kept.opaque_outputs.values()]
            if change and rank == 1 and contents[0][0].numel():
                # the last number, by as little as its type can
                last = contents[0][0].view(-1)[-1:]
                last.copy_(last * (1 + 1j) if last.is_complex() else last * 2)
            world = tv.join(t)
            if world is not None:
                try:
                    answers[f"{name}, changed" if change else name] = str(world.check())
                except tv.errors.CheckFailed as error:
                    answers[f"{name}, changed" if change else name] = f"failed: {error}"
    return answers


def test_numbers_are_reduced_as_their_type_does() -> None:
    answers, _ = on_ranks(reduced, 2)
    for name, answer in answers.items():
        if not name.endswith(", changed"):
            assert "not looked at" not in answer and "failed" not in answer, (name, answer)
        elif name != "nothing, changed":
            assert "failed" in answer and "rank 1 got" in answer, (name, answer)


def without_tensors(rank: int, count: int) -> str:
    x = torch.ones(4)
    t = tv.trace(lambda: dist.all_reduce(x), hold=False)
    world = tv.join(t)
    try:
        tv.join(t, check=True)
    except tv.errors.UsageError as error:
        assert "hold=True" in str(error)
    if world is None:
        return ""
    try:
        world.check()
    except tv.errors.TensorsMissing:
        return "missing"
    return ""


def without_words(rank: int, count: int) -> str:
    world = tv.join(tv.trace(lambda: torch.ones(4) * 2))
    return "" if world is None else str(world.check())


def test_ranks_that_say_nothing_agree() -> None:
    told, _ = on_ranks(without_words, 2)
    assert told.startswith("0 collectives got what was given")


def test_ranks_without_tensors_can_be_joined_and_not_checked() -> None:
    assert on_ranks(without_tensors, 2) == ["missing", ""]


def unevenly_divided(rank: int, count: int) -> dict[str, tuple[int, int, int]]:
    """Programs in which ranks give and get different amounts, or one of them runs out of input."""
    import torch.distributed._functional_collectives as functional
    from torch.distributed.algorithms.join import Join
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = mesh_of(("dp", count))
    whole, rows = torch.randn(7, 3), torch.randn(4, 3)
    taken = [[1, 3], [2, 2]]
    given, got = taken[rank], [taken[other][rank] for other in range(count)]
    replica = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))

    def gathered() -> torch.Tensor:
        part = distribute_tensor(whole, mesh, [Shard(0)])
        return part.redistribute(mesh, [Replicate()]).to_local() * 2

    def routed() -> torch.Tensor:
        return functional.all_to_all_single(rows, got, given, dist.group.WORLD) * 2

    def routed_in_place() -> torch.Tensor:
        out = torch.empty(sum(got), 3)
        dist.all_to_all_single(out, rows, got, given)
        return out * 2

    def objects() -> list[Any]:
        every: list[Any] = [None] * count
        dist.all_gather_object(every, "x" * (1 + 50 * rank))
        return every

    def out_of_input() -> None:
        with Join([replica]):
            for _ in range(1 + rank):
                replica(torch.ones(2, 4)).sum().backward()

    def nothing_written() -> torch.Tensor:
        memory = torch.empty(1000)
        dist.broadcast(memory, 0)
        return memory * 2

    programs = (gathered, routed, routed_in_place, objects, out_of_input, nothing_written)
    results = {}
    for program in programs:
        program()
        world = tv.join(tv.trace(program))
        if world is not None:
            assert not world.problems, (program.__name__, world.problems)
            agreement = world.check()
            results[program.__name__] = (agreement.exact, agreement.summed, agreement.skipped)
    return results


def test_ranks_may_give_different_amounts() -> None:
    results, _ = on_ranks(unevenly_divided, 2)
    # nobody says what is in the rest of a buffer that was made larger for the object of another rank
    assert results.pop("objects") == (1, 0, 1)
    assert all(skipped == 0 for _, _, skipped in results.values()), results
    assert results["gathered"][0] >= 1 and results["routed"] == results["routed_in_place"] == (1, 0, 0)
    assert results["out_of_input"][1] > 1 and results["nothing_written"] == (1, 0, 0)


def misrouted(rank: int, count: int) -> str:
    """Ranks exchange uneven parts, and one of them says that it got something else."""
    rows, taken = torch.randn(4, 3), [[1, 3], [2, 2]]
    out = torch.empty(sum(taken[other][rank] for other in range(count)), 3)
    sizes = [taken[other][rank] for other in range(count)]
    t = tv.trace(lambda: dist.all_to_all_single(out, rows, sizes, taken[rank]))
    assert t.kept is not None
    if rank == 1:
        t.kept.opaque_outputs[int(t.graph.wait_node[0])][0].view(-1)[-1].add_(1.0)
    world = tv.join(t)
    if world is None:
        return ""
    with pytest.raises(tv.errors.CheckFailed) as failure:
        world.check()
    return str(failure.value)


def test_uneven_parts_that_went_wrong_are_found() -> None:
    text, _ = on_ranks(misrouted, 2)
    assert "all_to_all" in text and "rank 1 got other bytes than were given" in text
