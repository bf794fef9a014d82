"""``torch-vis run`` under torchrun: one file of all ranks, files of each, the end of all, and a rank that raises."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import torch_vis as tv
from tests.kit.forking import Server, environment
from torch_vis.cli.script.job import Job
from torch_vis.errors import UsageError

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    if "--raise" in sys.argv and rank == 1 and step == 1:
        raise ValueError("on purpose")
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} is done", flush=True)
"""


def torchrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script on two ranks, traced."""
    (folder / "train.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    return subprocess.run(
        [*command, "-m", "torch_vis", "run", *words], cwd=folder, env={**environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_all_ranks_are_in_one_file_and_the_script_goes_on(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "train.py")
    assert done.returncode == 0, done.stderr
    assert "rank 0 is done" in done.stdout and "rank 1 is done" in done.stdout
    assert "wrote train.tvz, 2 ranks" in done.stderr
    world = tv.load(tmp_path / "train.tvz")
    assert isinstance(world, tv.World) and world.ranks == [0, 1] and world.problems == []
    assert {trace.meta["traced"] for trace in world} == {"step 2"}
    kinds = [row.kind for row in world.meetings]
    assert "all_reduce" in kinds
    assert (tmp_path / "train.html").exists()


def test_stop_ends_all_ranks(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "--stop", "--ranks", "1", "-o", "one.tvz", "train.py")
    assert done.returncode == 0, done.stderr
    assert "is done" not in done.stdout
    # one rank alone is an ordinary trace
    trace = tv.load(tmp_path / "one.tvz")
    assert isinstance(trace, tv.Trace) and trace.meta["rank"] == 1


def test_a_rank_that_raises_leaves_the_files_of_all(tmp_path: Path, cli: Server) -> None:
    done = torchrun(tmp_path, "-o", "step.tvz", "train.py", "--raise")
    assert done.returncode == 1 and "ValueError: on purpose" in done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.tvz")) == ["step.r0.tvz", "step.r1.tvz"]
    joined = cli("join", *map(str, sorted(tmp_path.glob("*.tvz"))), "-o", str(tmp_path / "all.tvz"))
    assert joined.code == 1, joined.err
    assert "rank 1 never comes to" in joined.out and "where rank 0 waits" in joined.out
    report = cli("report", "communication", str(tmp_path / "all.tvz"))
    assert report.code == 1 and "never comes to" in report.out
    assert cli("summary", f"{tmp_path / 'all.tvz'}#0").code == 0
    said = cli("summary", str(tmp_path / "all.tvz"))
    assert said.code == 2 and "name one, as in" in said.err


# a lock that is taken twice: no signal gets a thread out of it, as none does out of a wait for another rank
HANGS = """
import ctypes, torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    loss = model(torch.ones(4, 8)).sum()
    if step == 1:
        lock, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        library.pthread_mutex_lock(lock)
        print("hangs", flush=True)
        library.pthread_mutex_lock(lock)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="locks of another library")
def test_a_rank_that_hangs_leaves_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANGS)
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "torch_vis", "run", "-o", "step.tvz", "train.py"],
        cwd=tmp_path, env={**environment(), **ranks}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "hangs\n"
    # until it is really there
    time.sleep(1.0)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + 15 and "rank 0 hangs; this is what it did so far" in said
    trace = tv.load(tmp_path / "step.r0.tvz")
    assert trace.meta["traced"] == "step 2, as far as it went"
    assert {node.phase for node in trace.graph.nodes} == {"forward"}


SLEEPS = """
import threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    if step == 1 and dist.get_rank() == 0:
        # said when the step has ended and its trace is on its way to the other
        waits = threading.Timer(2.0, print, ["waits"], {"flush": True})
        optimizer.register_step_post_hook(lambda *_: waits.start())
    model(torch.ones(4, 8)).sum().backward()
    if step == 1 and dist.get_rank() == 1:
        print("sleeps", flush=True)
        time.sleep(1000)
    optimizer.step()
"""


def test_a_rank_that_waits_for_the_trace_of_another_leaves_its_own(tmp_path: Path, cli: Server) -> None:
    (tmp_path / "train.py").write_text(SLEEPS)
    process = subprocess.Popen(
        [
            sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "torch_vis", "run", "-o", "step.tvz", "train.py",
        ],
        cwd=tmp_path, env={**environment(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(2)) == ["sleeps\n", "waits\n"]
    process.terminate()
    process.communicate(timeout=120)
    traces = [tv.load(tmp_path / f"step.r{rank}.tvz") for rank in range(2)]
    assert [trace.meta["traced"] for trace in traces] == ["step 2", "step 2, as far as it went"]
    # what they did until then is one step all the same
    done = cli(
        "join", str(tmp_path / "step.r0.tvz"), str(tmp_path / "step.r1.tvz"), "-o", str(tmp_path / "w.tvz")
    )
    assert done.code == 0 and len(tv.load(tmp_path / "w.tvz")) == 2


GOES_ON = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    model(torch.ones(4, 8)).sum().backward()
    if step == 1 and dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))
    optimizer.step()
    if step == 1:
        print("sleeps", flush=True)
        time.sleep(1000)
"""


def test_a_rank_whose_trace_nobody_fetched_leaves_a_file(tmp_path: Path, cli: Server) -> None:
    (tmp_path / "train.py").write_text(GOES_ON)
    process = subprocess.Popen(
        [
            sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "torch_vis", "run", "-o", "step.tvz", "train.py",
        ],
        cwd=tmp_path, env={**environment(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    # rank 1 has left the trace of its step; rank 0 waits for it where it never comes
    assert process.stdout.readline() == "sleeps\n"
    time.sleep(1.0)
    process.terminate()
    process.communicate(timeout=120)
    traces = [tv.load(tmp_path / f"step.r{rank}.tvz") for rank in range(2)]
    assert [trace.meta["traced"] for trace in traces] == ["step 2, as far as it went", "step 2"]
    done = cli("join", str(tmp_path / "step.r0.tvz"), str(tmp_path / "step.r1.tvz"))
    assert done.code == 1 and "rank 1 never comes to all_reduce (sum) of 12 B" in done.out
    # without the file of that rank, where the other waits is known all the same
    alone = cli("join", str(tmp_path / "step.r0.tvz"), "--partial")
    assert alone.code == 1 and "rank 1 not here" in alone.out
    assert "rank 0 waits in all_reduce (sum) of 12 B" in alone.out


def test_which_ranks_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "64")
    assert len(Job.here(None).traced) == 16 and Job.here(None).traced[:2] == (0, 4)
    assert Job.here("all").traced == tuple(range(64))
    job = Job.here("3,5")
    assert job.traced == (3, 5) and job.is_traced and not job.is_first and job.rank == 5
    with pytest.raises(UsageError, match="ranks from 0 to 63"):
        Job.here("64")


PIPELINE = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble
dist.init_process_group("gloo")
count = dist.get_world_size()
mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("pp", "dp"))
at = mesh.get_local_rank("pp")
parts = [nn.Linear(8, 8) for _ in range(2)]
# the last stage is on the first rank, and learns its shapes from the second, which learns them from the first
places = [at, 3 - at]
group, device = mesh.get_group("pp"), torch.device("cpu")
stages = [PipelineStage(part, place, 4, device, group=group) for part, place in zip(parts, places)]
optimizer = torch.optim.SGD([weight for part in parts for weight in part.parameters()], 0.1)
schedule = ScheduleZBVZeroBubble(stages, 2, loss_fn=lambda output, target: (output - target).pow(2).mean())
for _ in range(2):
    x = torch.ones(4, 8)
    schedule.step(*((x,) if at == 0 else ()), **({"target": x, "losses": []} if at == 0 else {}))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def simulated(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the pipeline as ranks that are not there."""
    (folder / "train.py").write_text(PIPELINE)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torch_vis", "run", *words, "-o", "step.tvz", "train.py"],
        cwd=folder, env={**environment(), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def test_stages_of_a_simulated_script_learn_their_shapes_from_each_other(tmp_path: Path) -> None:
    done = simulated(tmp_path, "--world", "pp=2", "--ranks", "all")
    assert done.returncode == 0, done.stderr
    world = tv.load(tmp_path / "step.tvz")
    assert isinstance(world, tv.World) and world.ranks == [0, 1] and not world.problems
    assert {row.kind for row in world.meetings} == {"message"} and len(world.meetings) == 8
    # one that is laid out otherwise than was said is no rank of that world
    done = simulated(tmp_path, "--world", "pp=4")
    assert done.returncode == 2 and "--world says pp=4, and the script's own mesh has 2 ranks" in done.stderr
