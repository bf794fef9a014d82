"""``torch-vis run``: a script runs as Python runs it, the step asked for is traced, and the rest is the script's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torch_vis as tv
from tests.kit.forking import Server, cold, environment


def plain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What Python itself does."""
    command = [sys.executable, *words]
    return subprocess.run(command, check=False, cwd=folder, env=environment(), capture_output=True, text=True)


def phases(trace: tv.Trace) -> dict[str, int]:
    nodes = list(trace.graph.nodes)
    return {
        phase: sum(node.phase == phase for node in nodes) for phase in ("forward", "backward", "optimizer")
    }


def without_ours(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("torch-vis: ")]


def test_a_script_cannot_tell(folder: Path) -> None:
    """Arguments, names, paths and modules are those of Python, and torch is not there before the script asks for it."""
    for words in (
        ["environment.py", "--json", "-o", "x"],
        ["-m", "package.inside", "-q"],
        ["./package/inside.py"],
    ):
        ours = cold(folder, "run", "-o", "environment.tvz", *words)
        expected = json.loads(plain(folder, *words).stdout)
        assert json.loads(ours.out) == expected
        assert ours.code == 2 and "nothing was traced" in ours.lines[-1]


WORKERS = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
from torch.optim import optimizer

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        name = torch.nn.Module.__call__.__code__.co_name
        hooks = len(optimizer._global_optimizer_post_hooks)
        return torch.ones(3), torch.tensor([len(modes()), int(name != "_wrapped_call_impl"), hooks])

model = torch.nn.Linear(3, 1)
optim = torch.optim.SGD(model.parameters())
seen = []

def step(x):
    optim.zero_grad()
    model(x).sum().backward()
    optim.step()

step(torch.ones(2, 3))
# forked inside of the step that is recorded, and again inside of a call
for x, left in torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
    step(x)
    seen.append(left.sum().item())
print(seen)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_worker_that_is_forked_in_the_traced_step_is_left_alone(cli: Server, folder: Path) -> None:
    (folder / "workers.py").write_text(WORKERS)
    for words in ((), ("--step", "3"), ("--module", "Linear", "--step", "2")):
        done = cli("run", *words, "-o", "w.tvz", "workers.py")
        assert done.code == 0 and "[0, 0]" in done.out, (words, done.out, done.err)
        assert len(tv.load(folder / "w.tvz").graph)


def test_the_second_training_step(cli: Server, folder: Path) -> None:
    done = cli("run", "train.py", "--lr", "0.1")
    assert done.code == 0
    assert done.out == plain(folder, "train.py", "--lr", "0.1").stdout  # every loss, to the last digit
    assert [line for line in done.lines if "recording step 2" in line and "step 2:" not in line]
    trace = tv.load(folder / "train.tvz")
    counts = phases(trace)
    assert counts["forward"] and counts["backward"] and counts["optimizer"]
    assert trace.meta["model"] == "Net" and trace.meta["traced"] == "step 2"
    assert {"a", "b"} <= {scope.path for scope in trace.graph.scopes}
    assert len(trace.graph.find(op="addmm", phase="forward")) == 2  # one forward, not two
    assert (folder / "train.html").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "forwards", "steps"),
    [(["--step", "1"], 1, 1), (["--step", "4"], 1, 1), (["--steps", "1:3"], 3, 3)],
)
def test_other_steps(cli: Server, folder: Path, options: list[str], forwards: int, steps: int) -> None:
    done = cli("run", *options, "-o", "other.tvz", "train.py")
    assert done.code == 0, done.err
    trace = tv.load(folder / "other.tvz")
    assert len(trace.graph.find(op="addmm", phase="forward")) == 2 * forwards
    assert sum(scope.kind == "optimizer" for scope in trace.graph.scopes) == steps


def test_stopping_and_json(cli: Server, folder: Path) -> None:
    done = cli("run", "--json", "--stop", "--step", "3", "-o", "stop.tvz", "-o", "stop.md", "train.py")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["traced"] == "step 3" and found["files"] == ["stop.tvz", "stop.md"]
    assert found["operations"] == len(tv.load(folder / "stop.tvz").graph)
    assert "loss 2" in done.err and "loss 3" not in done.err  # what the script prints goes there meanwhile


@pytest.mark.parametrize("name", ["b", "Linear"])
def test_one_module_and_its_backward(cli: Server, folder: Path, name: str) -> None:
    done = cli("run", "--module", name, "--step", "2", "-o", "b.tvz", "train.py")
    assert done.code == 0, done.err
    trace = tv.load(folder / "b.tvz")
    forward = [node.name for node in trace.graph.nodes if node.phase == "forward"]
    assert forward == ["t", "addmm"]
    counts = phases(trace)
    assert (
        counts["backward"] >= 4 and not counts["optimizer"]
    )  # two gradients of weights and one that goes on
    assert {node.scope.type for node in trace.graph.nodes} == {"Linear"}
    assert trace.meta["model"] == "Linear" and trace.meta["wall_ns"] > 0
    gradients = [row.name for row in trace.graph.outcomes if row.kind == "gradient"]
    assert {"weight.grad", "bias.grad"} <= set(gradients)


def test_one_module_where_there_is_no_backward(cli: Server, folder: Path) -> None:
    done = cli("run", "--module", "b", "-o", "b.tvz", "infer.py")
    assert done.code == 0, done.err
    assert [node.name for node in tv.load(folder / "b.tvz").graph.nodes] == ["t", "addmm"]


def test_a_run_that_raised_shows_what_its_modules_gave(cli: Server, folder: Path) -> None:
    assert cli("run", "-o", "raised.tvz", "lstm.py", "fail").code == 1
    rows = {row["path"]: row for row in json.loads(cli("summary", "raised.tvz", "--json").out)["modules"]}
    assert rows["lstm"]["outputs"] == ["f32[2, 5, 16]"] and rows["fc"]["outputs"] == ["f32[2, 4]"]


def test_several_steps_are_called_steps(cli: Server) -> None:
    done = cli("run", "--steps", "1:3", "-o", "several.tvz", "lstm.py")
    said = [line.partition(": ")[2] for line in done.lines]
    assert "recording step 1 to 3 …" in said and any(line.startswith("step 1 to 3: ") for line in said)


def test_where_nothing_is_trained(cli: Server, folder: Path) -> None:
    for options, calls in ([], 1), (["--step", "3"], 1), (["--steps", "2:3"], 2):
        done = cli("run", *options, "-o", "infer.tvz", "infer.py")
        assert (done.code, done.out) == (0, "done\n")
        assert len(tv.load(folder / "infer.tvz").graph.find(op="addmm")) == 2 * calls
    single = cli("run", "-o", "infer.tvz", "train.py", "--steps", "1")  # a training that has no second step
    assert single.code == 0 and "--step N" in single.lines[-1]
    assert len(tv.load(folder / "infer.tvz").graph.find(op="addmm")) == 2


def test_two_optimizers_take_turns(cli: Server, folder: Path) -> None:
    assert cli("run", "-o", "gan.tvz", "gan.py").code == 0
    assert sum(scope.kind == "optimizer" for scope in tv.load(folder / "gan.tvz").graph.scopes) == 2


def test_modes_of_the_script_are_left_in_order(cli: Server, folder: Path) -> None:
    done = cli("run", "-o", "modes.tvz", "modes.py")
    rows = [tuple(map(int, line.split())) for line in done.out.splitlines()]
    assert [row[0] for row in rows] == [1, 2, 3, 4]
    assert len({row[1] for row in rows}) == 1  # its counts are the same in every step
    assert [row[2] for row in rows] == [1, 0, 0, 0]  # our mode, between steps 1 and 2


def test_compiled_models_are_compiled_once(cli: Server, folder: Path) -> None:
    done = cli("run", "-o", "compiled.tvz", "compiled.py")
    assert (done.code, done.out) == (0, "compiled 1\n"), done.err


def test_exceptions_and_codes_are_the_scripts(cli: Server, folder: Path) -> None:
    failed = cli("run", "-o", "failed.tvz", "train.py", "--fail-at", "2")
    expected = plain(folder, "train.py", "--fail-at", "2")
    assert failed.code == expected.returncode == 1
    assert without_ours(failed.err) == expected.stderr.splitlines()
    assert "as far as it went" in failed.err
    counts = phases(tv.load(folder / "failed.tvz"))
    assert counts["backward"] and not counts["optimizer"]
    assert cli("run", "-o", "code.tvz", "train.py", "--code", "7").code == 7
    wrong = cold(folder, "run", "wrong.py")
    assert without_ours(wrong.err) == plain(folder, "wrong.py").stderr.splitlines()
    assert wrong.code == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run"], "which script?"),
        (["run", "nothing.py"], "there is no script 'nothing.py'"),
        (["run", "-m", "nothing.here"], "there is no module 'nothing.here'"),
        (["run", "--step", "0", "train.py"], "--step: steps are counted from 1 up"),
        (["run", "--steps", "3:1", "train.py"], "'3:1' is not A:B"),
        (["run", "--setp", "2", "train.py"], "no option '--setp'; did you mean "),
        (["run", "-o", "x.tvx", "train.py"], "no file format '.tvx'; did you mean '.tvz'"),
        (["run", "-o", "nowhere/x.tvz", "train.py"], "cannot write nowhere/x.tvz: there is no folder"),
        (
            ["run", "--step", "9", "-o", "x.tvz", "train.py"],
            "step 9 never came; the script made 4 training steps",
        ),
        (
            ["run", "--step", "9", "-o", "x.tvz", "infer.py"],
            "step 9 never came; the script made 4 calls of a model",
        ),
        (["run", "--module", "lstn", "-o", "x.tvz", "lstm.py"], "no module 'lstn'; did you mean 'lstm'"),
        (["run", "--module", "fc", "--step", "9", "-o", "x.tvz", "lstm.py"], "the script made 3 calls of fc"),
    ],
)
def test_bad_input_is_one_line(cli: Server, words: list[str], says: str) -> None:
    done = cli(*words)
    assert done.code == 2
    assert says in done.lines[-1]
    assert sum("waiting" not in line for line in done.lines) == 1


LOOPS: list[Any] = [
    ("transformers", "trainer.py", 2),
    ("accelerate", "accelerated.py", 2),
    ("pytorch_lightning", "lit.py", 1),
]


@pytest.mark.parametrize(("library", "script", "forwards"), LOOPS, ids=[row[0] for row in LOOPS])
def test_training_loops_of_libraries(
    cli: Server, folder: Path, library: str, script: str, forwards: int
) -> None:
    """One optimizer step is traced, with all the forwards whose gradients it takes."""
    for needed in {library, "accelerate"} - ({"accelerate"} if library == "pytorch_lightning" else set()):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed; it comes with pip install 'torch-vis[loops,zoo]'")
    done = cli("run", "-o", "loop.tvz", script)
    assert done.code == 0 and "steps" in done.out, done.err
    trace = tv.load(folder / "loop.tvz")
    assert trace.meta["traced"] == "step 2"
    assert sum(scope.kind == "optimizer" for scope in trace.graph.scopes) == 1
    outer = [s for s in trace.graph.scopes if s.type in ("BertForSequenceClassification", "Net")]
    assert len(outer) == forwards
    matmuls = trace.graph.find(op="addmm", phase="forward")
    assert len(matmuls) >= 2 * forwards and not trace.graph.find(op="addmm", phase="optimizer")
    if script == "lit.py":  # of which training_step is called, and forward never
        assert trace.meta["model"] == "Lit"
        lit = next(scope for scope in trace.graph.scopes if scope.type == "Lit")
        assert lit.parent is not None and lit.parent.type == "run"
        assert [(s.path, s.parent.type) for s in outer if s.parent] == [("net", "Lit")]
