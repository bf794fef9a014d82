"""``trace(repeat=)``: medians and spread of real runs, and no more left behind than one run leaves."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.kit.ranks import on_ranks, training_step
from tests.kit.side_effects import observe, plain_run, torch_globals
from tests.zoo import ZOO, Case, close_process_group, first_difference, floating_sum
from torch_vis import progress as progress_file
from torch_vis.capture.timing import profiler_events, repeat


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


# ---------------------------------------------------------------- what is left behind


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ZOO.items()])
def test_a_repeated_run_leaves_what_one_run_leaves(case: Case) -> None:
    plain = plain_run(case)
    before = torch_globals()
    traces: list[tv.Trace] = []

    def call(model: Any, args: Any, kwargs: Any) -> Any:
        loss = floating_sum if case.backward else None
        traces.append(tv.trace(model, *args, kwargs=kwargs, loss=loss, repeat=2))
        return traces[0].output

    repeated = observe(case, call)
    assert torch_globals() == before
    assert first_difference(plain, repeated) is None
    t = traces[0]
    if t.meta["repeat"] == 0:  # then it says why
        assert any("not repeated" in limit or "repeated run" in limit for limit in t.limits), t.limits
    else:
        time, low, high = (t.metrics[name].values for name in ("time_ns", "time_low_ns", "time_high_ns"))
        assert (low <= time).all() and (time <= high).all()
        add_up(t)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def train(repeat: int) -> list[Any]:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    inner = step_of(model, optimizer)
    history: list[float] = []
    count = 0

    def step(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        loss = inner(x * random.random() + float(np.random.rand()))
        history.append(float(loss))
        schedule.step()
        return loss

    losses = [tv.trace(step, torch.rand(6, 4), repeat=repeat).output for _ in range(3)]
    moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
    gradients = [parameter.grad for parameter in model.parameters()]
    streams = [torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())]
    return [losses, history, count, list(model.state_dict().values()), moments, gradients, streams,
            schedule.last_epoch, optimizer.param_groups[0]["lr"]]  # fmt: skip


def test_a_training_loop_goes_on_as_if_each_step_had_run_once() -> None:
    assert first_difference(train(0), train(2)) is None


def test_gradients_that_are_added_up() -> None:
    def run(repeat: int) -> Tensor:
        torch.manual_seed(0)
        model, x = nn.Linear(3, 2), torch.rand(5, 3)
        for _ in range(3):
            tv.trace(model, x, backward=True, repeat=repeat)
        assert model.weight.grad is not None
        return model.weight.grad

    assert torch.equal(run(0), run(2))


def test_the_graph_of_a_repeated_run_can_still_be_checked_and_differentiated() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    t = tv.trace(model, torch.rand(4, 3), repeat=2)
    assert t.check().results == 4
    t.output.sum().backward()  # no version counter has moved on


def test_a_cache_that_is_passed_in_grows_once() -> None:
    def grow(x: Tensor, cache: dict[str, list[Tensor]]) -> Tensor:
        cache.setdefault("keys", []).append(x * 2)
        return torch.stack(cache["keys"]).sum()

    cache: dict[str, list[Tensor]] = {"keys": [torch.ones(2)]}
    t = tv.trace(grow, torch.ones(2), cache, repeat=3)
    assert t.meta["repeat"] == 3 and len(cache["keys"]) == 2


def test_a_run_that_does_more_now_and_then_changes_nothing_more() -> None:
    """Only every third run steps: the weights that the first run left alone are those of one run."""

    class Sometimes:
        runs = 0  # a class's own, which nothing puts back

        def __init__(self) -> None:
            self.model = nn.Linear(3, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), 1.0)

        def step(self, x: Tensor) -> None:
            self.model(x).sum().backward()
            Sometimes.runs += 1
            if Sometimes.runs % 3 == 0:
                self.optimizer.step()

    owner = Sometimes()
    before = [parameter.detach().clone() for parameter in owner.model.parameters()]
    tv.trace(owner.step, torch.rand(2, 3), repeat=4)
    assert Sometimes.runs > 3
    assert all(torch.equal(a, b) for a, b in zip(before, owner.model.parameters()))


class Stops(nn.Module):
    """Raises in its fourth call."""

    done = 0  # a class's own, which nothing puts back

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.norm, self.error = nn.BatchNorm1d(3), error

    def forward(self, x: Tensor) -> Tensor:
        Stops.done += 1
        if Stops.done == 4:
            raise self.error
        return self.norm(x)


def after_one_run(x: Tensor) -> list[Tensor]:
    Stops.done = 0
    model = Stops(ValueError()).train()
    model(x)
    Stops.done = 0
    return list(model.state_dict().values())


def test_an_interrupted_repetition_leaves_what_one_run_leaves() -> None:
    model, x = Stops(KeyboardInterrupt()).train(), torch.rand(4, 3)
    expected, before = after_one_run(x), torch_globals()
    with pytest.raises(KeyboardInterrupt):
        tv.trace(model, x, repeat=5)
    assert torch_globals() == before and not torch.autograd._profiler_enabled()
    assert first_difference(expected, list(model.state_dict().values())) is None


def test_a_repetition_that_raises_is_told_and_the_trace_stands() -> None:
    model, x = Stops(ValueError("no more")).train(), torch.rand(4, 3)
    expected = after_one_run(x)
    t = tv.trace(model, x, repeat=5)
    assert any("ValueError: no more" in limit for limit in t.limits)
    assert first_difference(expected, list(model.state_dict().values())) is None
    assert t.check().results == 4


def test_without_keeping_tensors() -> None:
    model = nn.BatchNorm1d(3).train()
    t = tv.trace(model, torch.rand(4, 3), repeat=2, hold=False)
    assert model.num_batches_tracked == torch.tensor(1) and t.meta["repeat"] == 2
    with pytest.raises(tv.errors.TensorsMissing):
        t.check()


# ---------------------------------------------------------------- what is measured


def test_a_module_takes_as_long_as_it_does() -> None:
    class Sleeps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            import time

            time.sleep(0.01)
            return x + 1

    t = tv.trace(nn.Sequential(Sleeps(), nn.ReLU()), torch.rand(3), repeat=3)
    rows = {row.name: row for row in t.time().modules}
    assert rows["0"].inclusive_ns >= 10_000_000
    assert rows["0"].host_ns >= 5_000_000  # it is no operation's
    low, high = rows["0"].low_ns, rows["0"].high_ns
    assert low is not None and high is not None and low <= rows["0"].inclusive_ns <= high
    assert t.meta["plain_wall_ns"] >= 10_000_000


@pytest.mark.parametrize("mostly", [True, False])
def test_self_time_is_what_it_was_in_a_run(mostly: bool) -> None:
    """Of three modules another one is unlike the rest in every run: medians of the whole and of these do not mix."""

    class Sleeps(nn.Module):
        def __init__(self, turn: int) -> None:
            super().__init__()
            self.turn = turn

        def forward(self, x: Tensor) -> Tensor:
            import time

            self.turn += 1
            time.sleep(0.02 if (self.turn % 3 != 0) is mostly else 0)
            return x + 1

    t = tv.trace(nn.Sequential(*(Sleeps(turn) for turn in range(3))), torch.rand(3), repeat=3)
    (whole,) = (row for row in t.time().modules if row.type == "Sequential")
    # the medians of the three come to 20 ms more or less than the median of the whole; a busy machine sleeps longer
    assert whole.inclusive_ns > 10_000_000 and 0 <= whole.self_ns < whole.inclusive_ns / 2
    assert whole.self_ns == t.metrics["scope_self_ns"][whole.scope]


def add_up(t: tv.Trace) -> None:
    """Assert that operations come to what is said of all of them, and parts to no more than what they are parts of."""
    report = t.time()
    for groups in (report.operators, report.lines, report.phases):
        assert sum(row.time_ns for row in groups) == report.operations_ns
    assert report.operations_ns + report.host_ns == report.total_ns == t.metrics["scope_time_ns"][0]
    inside = np.zeros(len(report.calls), dtype=np.int64)
    for call in report.calls[1:]:
        inside[t.graph.scope_parent[call.scope]] += call.inclusive_ns
    for call in report.calls:
        assert 0 <= call.host_ns <= call.inclusive_ns == call.operations_ns + call.host_ns
        assert call.inclusive_ns == call.self_ns + inside[call.scope]
        assert call.self_ns == t.metrics["scope_self_ns"][call.scope] >= 0
        assert (call.low_ns or 0) <= call.inclusive_ns <= (call.high_ns or call.inclusive_ns)


def test_python_has_a_share_of_every_run_and_never_less_than_nothing() -> None:
    """Operations and calls are timed in turns; where the turns differ, the difference is no time of Python's."""

    def product(x: Tensor) -> Tensor:
        rows = 600 if torch._C._autograd._profiler_enabled() else 6
        return x[:rows] @ x

    t = tv.trace(product, torch.rand(600, 600), repeat=3)
    add_up(t)
    assert t.time().operations_ns > t.time().total_ns / 2  # as under the profiler


def test_a_large_product_takes_longer_than_a_view() -> None:
    x = torch.rand(600, 600)
    t = tv.trace(lambda x: (x @ x).t(), x, repeat=3)
    assert t.metrics["time_ns"][0] > t.metrics["time_ns"][1]
    assert t.time().operators[0].name == "mm"


def test_names_of_functions_stay_scopes_with_times() -> None:
    t = tv.trace(nn.Linear(3, 2), torch.rand(1, 3), functions=True, repeat=2)
    (function,) = [scope.index for scope in t.graph.scopes if scope.kind == "function"]
    inside = sum(t.metrics["time_ns"][node.index] for node in t.graph.nodes if node.scope.index == function)
    assert t.metrics["scope_time_ns"][function] == inside > 0


# ---------------------------------------------------------------- bad input, and the bar


@pytest.mark.parametrize("repeat", [-1, 2.5, True, "ten"])
def test_a_number_of_runs_is_wanted(repeat: Any) -> None:
    with pytest.raises(tv.errors.UsageError, match="number of runs"):
        tv.trace(nn.ReLU(), torch.ones(2), repeat=repeat)


def test_not_with_a_captured_program() -> None:
    with pytest.raises(tv.errors.UsageError, match="leave out fake and via"):
        tv.trace(nn.ReLU(), torch.ones(2), repeat=2, via="fx")


def test_an_iterator_would_be_used_up() -> None:
    batches = iter([torch.ones(2), torch.zeros(2)])
    with pytest.raises(tv.errors.UsageError, match="pass it to trace"):
        tv.trace(lambda: next(batches) + 1, repeat=2)
    assert torch.equal(next(batches), torch.ones(2))  # nothing ran


def test_not_inside_another_profile() -> None:
    with torch.profiler.profile(), pytest.raises(tv.errors.UsageError, match="profiler"):
        tv.trace(nn.ReLU(), torch.ones(2), repeat=2)


def test_a_run_that_ended_early_is_not_repeated() -> None:
    def fails(x: Tensor) -> None:
        raise ValueError(x + 1)

    t = tv.trace(fails, torch.ones(2), partial=True, repeat=2)
    assert len(t.graph) == 1 and t.meta["repeat"] == 0
    assert any("raised ValueError" in limit for limit in t.limits)


def test_nothing_is_printed_where_there_is_no_terminal() -> None:
    """In a process of its own: torch's profiler asks how much to log at its first use, and never again."""
    code = "import torch, torch_vis as tv; tv.trace(torch.nn.ReLU(), torch.ones(2), repeat=2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_shows_how_far_it_is(
    rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    assert list(progress_file.progress(range(3), "timing")) == [0, 1, 2]
    shown = capsys.readouterr()
    assert shown.out == "" and "timing" in shown.err
    assert rich or "timing 3/3" in shown.err


# ---------------------------------------------------------------- how often, and what is left attached


def test_it_says_how_often_the_program_ran(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor) -> Tensor:
        print("ran")
        return x.sin()

    t = tv.trace(program, torch.rand(3), repeat=5)
    assert t.time().executions == capsys.readouterr().out.count("ran") == 19
    assert t.meta["executions"] == {"recorded": 4, "plain": 5, "with calls timed": 5, "profiled": 5}
    assert t.time().facts()["runs in all"].startswith("19: ")
    assert tv.trace(program, torch.rand(3)).time().executions == 1


def test_runs_that_are_timed_come_before_the_device_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's profiler slows down what comes after it, the runs whose times are shown among them."""
    order: list[str] = []

    @contextmanager
    def attached() -> Iterator[profiler_events.DeviceProfiler]:
        order.append("attached")
        yield profiler_events.DeviceProfiler()
        order.append("let go")

    monkeypatch.setattr(repeat, "_uses_cuda", lambda graph: True)
    monkeypatch.setattr(repeat, "_settle", lambda kernels: None)
    monkeypatch.setattr(repeat, "device_profiler", attached)
    monkeypatch.setattr(repeat, "_wake", lambda kernels: None)
    for kind in ("plain", "followed", "profiled", "recorded", "on_device"):
        monkeypatch.setattr(repeat.Repeats, f"_{kind}", lambda self, kind=kind: order.append(kind))
    tv.trace(nn.Linear(2, 2), torch.rand(1, 2), repeat=4)
    timed = [place for place, kind in enumerate(order) if kind in ("plain", "followed", "profiled")]
    assert len(timed) == 12 and max(timed) < order.index("attached") and order[-1] == "let go"
    assert order.count("recorded") == 3 and order.count("on_device") == 4


def test_a_run_that_gives_lazy_parameters_their_shapes_is_not_repeated() -> None:
    """It cannot be run again from where it began; gradients and statistics stay those of one run."""

    def state(repeat: int) -> tuple[list[torch.Tensor], tv.Trace]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(2)
        )
        trace = tv.trace(model, torch.randn(5, 3), loss=lambda output: output.sum(), repeat=repeat)
        tensors = [
            *(parameter.grad for parameter in model.parameters()),
            *model.parameters(),
            *model.buffers(),
        ]
        return [tensor.clone() for tensor in tensors if tensor is not None], trace

    (plain, _), (repeated, trace) = state(0), state(2)
    assert all(map(torch.equal, plain, repeated)) and len(plain) == len(repeated)
    assert any("lazy parameters" in limit for limit in trace.limits)


def _losses(mode: str, repeat: int, rank: int, count: int) -> tuple[list[float], dict[str, int]]:
    step = training_step(mode, rank, count)
    losses, executions = [float(step())], {}
    if repeat:
        t = tv.trace(step, repeat=repeat)
        executions = t.meta["executions"]
        losses.append(float(t.output))
    else:
        losses.append(float(step()))
    return [*losses, float(step())], executions


def trains_on(mode: str) -> None:
    """A rank whose step was repeated goes on as one whose step was not."""
    plain = on_ranks(partial(_losses, mode, 0), 2)
    repeated = on_ranks(partial(_losses, mode, 2), 2)
    for (losses, _), (same, executions) in zip(plain, repeated, strict=True):
        assert losses == same and len(set(losses)) == 3
        assert executions["plain"] == 2 and executions["profiled"] == 2


@pytest.mark.parametrize("mode", ["ddp", "fsdp1", "fsdp2", "tp"])
def test_a_rank_is_repeated_and_trains_on_as_if_its_step_had_run_once(mode: str) -> None:
    """FSDP's memory of gathered parameters grows and shrinks within a step, and is empty before it and after."""
    # ranks are forked, and torch's profiler works in no child of a process that has used it
    code = f"from tests.capture.timing.test_repeat import trains_on; trains_on({mode!r})"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


class FakeProfile:
    """Stands for torch's profiler on a device: notes what the environment asks for when a block ends."""

    asked: list[str | None]

    def __init__(self, **options: Any) -> None:
        pass

    def __enter__(self) -> FakeProfile:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append(os.environ.get("TEARDOWN_CUPTI"))


@pytest.mark.parametrize("version, asked, expected", [
    ("12.8", None, ["0", "1"]), ("12.8", "1", ["0", "1"]), ("13.0", None, ["0", "1"]),
    ("12.4", None, ["0"]), ("12.8", "0", ["0"]), (None, None, ["0"]),
])  # fmt: skip
def test_the_devices_profiler_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch, version: str | None, asked: str | None, expected: list[str]
) -> None:
    FakeProfile.asked = []
    monkeypatch.setattr(profiler_events.profiler, "profile", FakeProfile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", version)
    if asked is None:
        monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
    else:
        monkeypatch.setenv("TEARDOWN_CUPTI", asked)
    with profiler_events.device_profiler() as state, FakeProfile():
        pass
    assert FakeProfile.asked == expected
    assert os.environ.get("TEARDOWN_CUPTI") == asked
    stays = version is not None and expected == ["0"]
    assert (state.reason is not None) == stays and (not stays or "stays attached" in str(state.reason))


def test_modules_nested_deep_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of a run are in each other, and each was asked for all that is in it."""

    class Within(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    model: torch.nn.Module = torch.nn.Linear(2, 2)
    for _ in range(40):
        model = Within(model)
    asked = []
    whole = torch.nn.Module.parameters
    monkeypatch.setattr(
        torch.nn.Module, "parameters", lambda self, *args: (asked.append(self), whole(self, *args))[1]
    )
    trace = tv.trace(model, torch.ones(1, 2), repeat=2)
    assert trace.meta["plain_wall_ns"] > 0 and len(asked) < 10


class ProfilerEvent:
    """One event of torch's profiler, of the name, number and time given."""

    def __init__(
        self, name: str, number: int, start: int, stop: int, *, linked: int = 0, device: str = "CPU"
    ) -> None:
        self.facts: dict[str, Any] = {
            "name": name, "correlation_id": number, "start_ns": start, "end_ns": stop,
            "linked_correlation_id": linked, "device_index": 0, "device_resource_id": 7, "start_thread_id": 1,
            "sequence_nr": -1, "is_async": False, "is_user_annotation": False,
            "device_type": getattr(torch._C._autograd.DeviceType, device),
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        fact = self.facts[name]
        return lambda: fact


class ProfilerResults:
    """Two operations; a call of CUDA's between them has the number of the first."""

    def events(self) -> list[ProfilerEvent]:
        return [
            ProfilerEvent("aten::mm", 41, 100, 200),
            ProfilerEvent("cudaLaunchKernel", 38, 120, 140, linked=41),
            ProfilerEvent("matmul_kernel", 38, 500, 900, linked=41, device="CUDA"),
            ProfilerEvent("cudaEventRecordWithFlags", 41, 210, 220),
            ProfilerEvent("aten::add", 42, 300, 400),
            ProfilerEvent("add_kernel", 44, 900, 950, linked=42, device="CUDA"),
        ]


def test_calls_of_the_device_are_numbered_by_themselves() -> None:
    timeline = profiler_events._read(ProfilerResults(), 0, 0)
    nodes = {"aten::mm": 0, "aten::add": 1}
    owner = np.array([nodes.get(timeline.names[name], -1) for name in timeline.name])
    run = repeat._run(timeline, owner, np.arange(2))
    assert [run.names[name] for name in run.device[:, 0]] == ["matmul_kernel", "add_kernel"]
    assert run.node.tolist() == [0, 1]
