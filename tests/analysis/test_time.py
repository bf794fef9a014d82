"""Times added up along a graph: by operator, line, phase, call and module, and they come to the whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.graphs import empty_graph
from tests.kit.traced import NAMES, traced
from torch_vis.analysis.time import DeviceUse, Gap, Timing, devices
from torch_vis.capture.recording import own_cost
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.run import Run
from torch_vis.graph.text import duration
from torch_vis.graph.tree import Tree
from torch_vis.interfaces.explorer.trace_source import TraceSource
from torch_vis.views.page.payload import payload


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_come_to_the_whole(name: str) -> None:
    t = traced(name)
    report = t.time()
    operations = t.metrics["time_ns"].total()
    assert report.total_ns == t.metrics["scope_time_ns"][0] == report.operations_ns + report.host_ns
    for groups in (report.operators, report.lines, report.phases):
        assert sum(row.time_ns for row in groups) == operations
        assert sum(row.operations for row in groups) == len(t.graph)
    for row in [*report.calls, *report.modules]:
        assert row.operations_ns + row.host_ns == row.inclusive_ns
    assert report.calls[0].operations_ns == operations
    assert sum(row.calls for row in report.modules) == sum(not row.again for row in report.calls)
    assert str(report).startswith("Time\n")
    json.dumps(report.to_dict())


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_the_same_times(name: str) -> None:
    t = traced(name)
    rows: dict[tuple[str, str], list[Any]] = {}
    for row in t.summary().modules:
        rows.setdefault((row.path, row.type), []).append(row)
    compared = 0
    for found in t.time().modules:
        same = rows.get((found.name, found.type), [])
        if len(same) != 1 or same[0].kind != "module":
            continue  # called from several places
        compared += 1
        assert (found.calls, found.inclusive_ns) == (same[0].calls, same[0].time_ns)
        assert found.backward_ns == (same[0].backward_ns or 0)
        assert found.self_ns == same[0].self_ns
    assert compared or not any(group[0].kind == "module" and len(group) == 1 for group in rows.values())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Layers(nn.Module):
    """Layers inside a module inside a module, checkpointed by ``run``."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.layers, self.run = nn.ModuleList(Layer() for _ in range(3)), run

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.run(layer, x)
        return x


CHECKPOINTED = {
    "reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
    "not reentrant": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
    "functions": lambda layer, x: checkpoint(lambda x: torch.sin(layer(x)), x, use_reentrant=False),
}


@pytest.mark.parametrize("how", CHECKPOINTED)
@pytest.mark.parametrize("repeat", [0, 2])
def test_what_is_computed_again_counts_in_backward_of_all_modules_around_it(how: str, repeat: int) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Layers(CHECKPOINTED[how]))
    t = tv.trace(model, torch.rand(4, 8), backward=True, repeat=repeat)
    report = t.time()
    rows = {row.name: row for row in report.modules if row.type != "run"}
    layers = [row for row in report.modules if row.type == "Layer"]
    assert [row.calls for row in layers] == [1, 1, 1]
    assert all(row.recomputed_ns > 0 and row.backward_ns > row.recomputed_ns for row in layers)
    for around in (rows[""], rows["1"]):
        for name in ("inclusive_ns", "operations_ns", "backward_ns", "recomputed_ns"):
            assert getattr(around, name) >= sum(getattr(row, name) for row in layers)
    for row in rows.values():
        table = next(
            module for module in t.summary().modules if module.path == row.name and module.kind != "run"
        )
        assert (row.inclusive_ns, row.self_ns) == (table.time_ns, table.self_ns)
        assert row.backward_ns == table.backward_ns
    assert rows[""].inclusive_ns + rows[""].backward_ns <= report.total_ns
    again = [row for row in report.calls if row.again and row.type == "Layer"]
    assert len(again) == 3 and all(row.recomputed_ns == 0 < row.operations_ns for row in again)
    bars = report.charts()["modules"].series
    assert sum(map(sum, (one.y for one in bars))) == sum(
        row.inclusive_ns + row.backward_ns for row in report.modules if row.type != "run"
    )


def test_what_is_computed_again_counts_where_it_was_computed_first() -> None:
    """A module that two others call, of which only the second is checkpointed."""

    class Caller(nn.Module):
        def __init__(self, shared: nn.Module, again: bool) -> None:
            super().__init__()
            self.shared, self.again = shared, again

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.shared, x, use_reentrant=True) if self.again else self.shared(x)

    shared = Layer()
    t = tv.trace(nn.Sequential(Caller(shared, False), Caller(shared, True)), torch.rand(2, 8), backward=True)
    modules = {row.name: row for row in t.time().modules if row.type == "Caller"}
    assert modules["0"].recomputed_ns == 0 < modules["1"].recomputed_ns
    for row in t.summary().modules:
        if row.type == "Caller":
            assert row.backward_ns == modules[row.path].backward_ns


def timed(model: nn.Module, x: Tensor) -> tuple[tv.Trace, Timing]:
    """A trace in which every operation takes 10 ns and every call of a module 100 ns for each one inside it."""
    t = tv.trace(model, x, backward=True, hold=False)
    size = np.ones(len(t.graph.scope_call), dtype=np.int64)
    for scope in range(len(size) - 1, 0, -1):
        size[t.graph.scope_parent[scope]] += size[scope]
    columns = [
        Column("time_ns", np.full(len(t.graph), 10)),
        Column("scope_time_ns", size * 100, along="scope"),
        Column("kernel_ns", np.full(len(t.graph), 7), known=np.arange(len(t.graph)) > 0),
    ]
    return t, Timing(t.graph, Metrics({column.name: column for column in columns}))


def test_self_and_inclusive_time_of_modules() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU()))
    t, timing = timed(model, torch.rand(2, 3))
    rows = {row.name: row for row in timing.by_module if row.type != "run"}
    assert rows[""].inclusive_ns == 400 and rows[""].self_ns == 100
    assert rows["1"].inclusive_ns == 200 and rows["1"].self_ns == 100 and rows["1.0"].inclusive_ns == 100
    assert rows["1"].operations_ns == 10 and rows["1"].host_ns == 190
    backward = [node for node in t.graph.nodes if node.phase == "backward" and node.path == "0"]
    assert backward and rows["0"].backward_ns == 10 * len(backward)
    assert rows["1.0"].kernel_ns == 14  # forward and backward


def test_no_time_is_less_than_nothing() -> None:
    t = tv.trace(nn.Sequential(nn.ReLU()), torch.rand(2), hold=False)
    columns = [
        Column("time_ns", np.full(len(t.graph), 10)),
        Column("scope_time_ns", np.arange(len(t.graph.scope_call)) * 100, along="scope"),
    ]
    timing = Timing(t.graph, Metrics({column.name: column for column in columns}))
    assert all(row.self_ns >= 0 for row in [*timing.by_call, *timing.by_module])


def test_a_module_called_again_counts_each_call_and_one_inside_itself_once() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            return self(self.act(x), depth - 1) if depth else self.act(x)

    _, timing = timed(Nested(), torch.rand(3, requires_grad=True))
    rows = {row.name: row for row in timing.by_module if row.type != "run"}
    assert rows["act"].calls == 3 and rows["act"].inclusive_ns == 300
    assert rows[""].calls == 3 and rows[""].inclusive_ns == 600  # the outermost call is around the others
    assert rows[""].self_ns == 300


def test_backward_operations_count_for_the_line_of_their_forward_operation() -> None:
    t = tv.trace(lambda x: x.sin(), torch.rand(3, requires_grad=True), backward=True)
    line = next(row for row in t.time().lines if "test_time" in row.name and "lambda" in row.name)
    backward = [node for node in t.graph.nodes if node.link is not None and node.link.name == "sin"]
    assert {"cos", "mul"} <= {node.name for node in backward} and line.operations == 1 + len(backward)


def test_a_kernel_time_that_is_not_known_is_none() -> None:
    t, timing = timed(nn.ReLU(), torch.rand(3, requires_grad=True))
    first = t.graph.nodes[0].name
    assert next(row for row in timing.by_operator if row.name == first).kernel_ns is None
    assert all(row.kernel_ns is not None for row in timing.by_operator if row.name != first)


def test_without_times_it_says_so() -> None:
    with pytest.raises(tv.errors.UsageError, match="no times"):
        tv.Trace(empty_graph(), Metrics()).time()


def test_figures() -> None:
    report = traced("bert").time()
    for name in report.charts():
        assert report.figure("plotly", chart=name).data
    assert report.figure("matplotlib").axes[0].get_title(loc="left").startswith("Time by module")
    with pytest.raises(tv.errors.NoMatch, match="operators"):
        report.figure(chart="operatorz")


def device_rows(
    starts: list[int], times: list[int], waits: Sequence[tuple[int, int]] = ()
) -> dict[str, list[Any]]:
    count = len(starts)
    return {
        "names": ["gemm", "cudaStreamSynchronize"],
        "kernel_name": [0] * count,
        "kernel_node": list(range(count)),
        "kernel_start_ns": starts,
        "kernel_time_ns": times,
        "kernel_device": [0] * count,
        "kernel_stream": [7] * count,
        "wait_name": [1] * len(waits),
        "wait_node": [-1] * len(waits),
        "wait_start_ns": [start for start, _ in waits],
        "wait_time_ns": [time for _, time in waits],
    }


def test_idle_time_is_what_no_stream_fills() -> None:
    use = DeviceUse(device_rows([0, 5, 40], [10, 20, 10]), 0)
    assert (use.span_ns, use.busy_ns, use.kernel_ns) == (50, 35, 40)
    assert use.gaps == [Gap(start_ns=25, time_ns=15, before=1, after=2)]
    assert use.launch_bound == pytest.approx(15 / 50)


def test_time_that_the_host_waits_is_no_launch_time() -> None:
    use = DeviceUse(device_rows([0, 100], [10, 10], [(5, 50)]), 0)
    assert use.waited_ns == 50 and use.launch_bound == pytest.approx(45 / 110)
    assert use.waits[0].name == "cudaStreamSynchronize" and use.waits[0].node is None


def test_no_kernels_no_devices() -> None:
    assert devices(device_rows([], [])) == []


# ---------------------------------------------------------------- a single run, without what recording took


def twenty_adds(x: Tensor) -> Tensor:
    for _ in range(20):
        x = torch.add(x, x)
    return x


@pytest.mark.parametrize("dear", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize(
    ("model", "inputs", "backward"),
    [
        (twenty_adds, torch.ones(4), False),
        (nn.Sequential(*[nn.Sequential(nn.Linear(16, 16)) for _ in range(10)]), torch.ones(2, 16), True),
        (nn.GRU(16, 16), torch.ones(30, 2, 16), False),
    ],
    ids=["adds", "linear", "gru"],
)
def test_what_recording_took_is_taken_off_where_it_was_spent(
    model: Any, inputs: Tensor, backward: bool, dear: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_cost, "_measured", own_cost.RecordingCost(*[dear] * 5, error=0.5))
    t = tv.trace(model, inputs, backward=backward)
    whole, tree = t.metrics["scope_time_ns"].values, Tree(t.graph.scope_parent)
    inside = tree.inclusive(np.bincount(t.graph.node_scope, t.metrics["time_ns"].values, len(whole)))
    assert (tree.own(whole) >= 0).all(), "a call is as long as the calls inside it"
    assert t.metrics["time_ns"].values.min() >= 0
    if not backward:
        assert (whole >= inside.astype(np.int64)).all(), "and as its operations"
    report = t.time()
    assert report.total_ns == whole[0] <= t.meta["wall_ns"]
    # nothing but the operations' own time is left where recording takes far more than it can
    assert dear < 1000 or report.total_ns <= report.operations_ns + 1
    assert report.low_ns <= report.total_ns <= report.high_ns


def test_the_same_time_is_told_everywhere() -> None:
    t = tv.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.ones(2, 8), backward=True)
    report = t.time()
    assert t.meta["wall_ns"] - t.meta["overhead_ns"] == report.total_ns == t.metrics["scope_time_ns"][0]
    assert report.low_ns <= report.total_ns <= report.high_ns
    assert report.figures()["error_ns"] == t.meta["overhead_error_ns"] > 0
    told = report.facts()["whole run"]
    assert duration(report.high_ns) in told or told.startswith(duration(report.total_ns))
    assert duration(report.total_ns) in TraceSource(t).facts
    assert f"± {duration(report.error_ns)} to record" in str(t)
    tables, _ = payload(t)
    assert tables["meta"]["overhead_ns"] == t.meta["overhead_ns"]


def test_a_range_is_told_where_it_matters() -> None:
    t = tv.trace(twenty_adds, torch.ones(4))

    def told(error_ns: int) -> str:
        run = Run(t.graph, t.metrics, t.limits, {**t.meta, "overhead_error_ns": error_ns})
        return tv.Trace.of(run).time().facts()["whole run"]

    assert told(1) == f"{duration(t.time().total_ns)}, without what recording took"
    about = told(t.time().total_ns // 5)
    assert about.startswith(
        f"about {duration(t.time().total_ns)} ({duration(round(t.time().total_ns * 0.8))} to "
    )
    assert told(t.time().total_ns // 2).startswith("between ") and "repeat=10" in told(10**9)
    assert told(10**9).startswith("at most ")


def usual_ns(program: Callable[[], Any]) -> int:
    """What a plain run takes, as a rule."""
    times = []
    for _ in range(60):
        begun = perf_counter_ns()
        program()
        times.append(perf_counter_ns() - begun)
    return sorted(times)[len(times) // 4]


def undisturbed(measure: Callable[[], Any]) -> Any:
    """What was measured while the system did not take the processor away: what others then do is no run's time."""
    resource = pytest.importorskip("resource")
    who = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    for _ in range(100):
        before = resource.getrusage(who).ru_nivcsw
        result = measure()
        if resource.getrusage(who).ru_nivcsw == before:
            return result
    return pytest.skip("this machine does too much else for times of microseconds")


SMALL_RUNS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "adds": (lambda: twenty_adds, (4,)),
    "linear": (lambda: nn.Sequential(*[nn.Linear(16, 16) for _ in range(10)]), (2, 16)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)),
        (1, 3, 8, 8),
    ),
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)), (8, 64)),
    "gru step": (lambda: nn.GRUCell(16, 16), (2, 16)),
    "gru": (lambda: nn.GRU(16, 16), (30, 2, 16)),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", SMALL_RUNS)
def test_a_plain_run_lies_in_the_range_that_is_told(name: str, backward: bool) -> None:
    model, shape = SMALL_RUNS[name][0](), SMALL_RUNS[name][1]
    x = torch.randn(shape, requires_grad=backward)

    def program() -> None:
        output = model(x)
        if backward:
            total = output[0].sum() + output[1].sum() if isinstance(output, tuple) else output.sum()
            total.backward()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = usual_ns(program)
        reports = [undisturbed(lambda: tv.trace(model, x, backward=backward)).time() for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    for report in reports:
        assert report.low_ns <= plain <= report.high_ns, (plain, report.facts())
        # so small a run has no headline that a plain one would not meet
        assert not report.facts()["whole run"].startswith(("about", duration(report.total_ns) + ","))


def test_functions_take_what_their_operations_and_gradients_take() -> None:
    trace = tv.trace(torch.nn.Linear(3, 2), torch.ones(4, 3), backward=True)
    time = trace.time()
    rows = {group.name: group for group in time.functions}
    assert "linear" in rows and "addmm" not in rows
    assert sum(group.time_ns for group in time.functions) == sum(group.time_ns for group in time.operators)
    assert sum(group.operations for group in time.functions) == len(trace.graph)
    own = [node.index for node in trace.graph.nodes if node.api == "linear"]
    gradients = [n for n in range(len(trace.graph)) if trace.graph.node_link[n] in own]
    assert rows["linear"].operations == len({*own, *gradients})
    assert str(time).index("Time by function") < str(time).index("Time by operator")
