"""Where memory goes: the timeline by use, the peak and its tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.graphs import empty_graph, one_node_graph
from tests.kit.traced import NAMES, traced
from torch_vis.analysis.memory.report import MemoryReport
from torch_vis.errors import UsageError
from torch_vis.graph.lifetimes import Lifetimes, Use
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.run import Run


@pytest.mark.parametrize("name", NAMES)
def test_uses_add_up_to_the_measured_bytes(name: str) -> None:
    trace = traced(name)
    blocks = Lifetimes(trace.graph, trace.metrics)
    live, freed = trace.metrics["live_bytes"].values, trace.metrics["free_bytes"].values
    assert np.array_equal(blocks.after.sum(axis=0), live)
    assert np.array_equal(blocks.during.sum(axis=0), live + freed)


@pytest.mark.parametrize("name", NAMES)
def test_every_case_has_a_report(name: str) -> None:
    report = traced(name).memory()
    assert sum(share.size_bytes for share in report.by_use) == sum(t.size_bytes for t in report.peak)
    assert sum(share.size_bytes for share in report.by_module) == sum(
        share.size_bytes for share in report.by_line
    )
    assert str(report).startswith("Memory\n")
    json.dumps(report.to_dict())
    chart = report.charts().get("timeline")
    assert (
        chart is None
        or max(sum(heights) for heights in zip(*(s.y for s in chart.series))) == report.peak_bytes
    )


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.sigmoid(self.first(x))) * self.scale + x


def training_step() -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = Residual()
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


def test_the_peak_is_made_of_named_tensors() -> None:
    step, model = training_step()
    x = torch.randn(64, 8)
    step(x)
    report = tv.trace(step, x).memory()
    assert sum(tensor.size_bytes for tensor in report.peak) == report.peak_bytes
    uses = {use: {t.name for t in report.peak if t.use == use} for use in {t.use for t in report.peak}}
    assert uses["parameter"] == {name for name, _ in model.named_parameters()}
    assert {"x", "scale"} <= uses["buffer or input"]
    assert {"Adam.first.weight.exp_avg", "Adam.second.bias.exp_avg_sq"} <= uses["optimizer state"]
    hidden = [t for t in report.peak if t.use == "saved for backward" and t.type.shape == (64, 32)]
    assert [t.path for t in hidden] == [""] and hidden[0].site is not None
    assert hidden[0].site.file == __file__ and hidden[0].born is not None and hidden[0].dies is not None
    state = [t for t in report.peak if t.name == "Adam.first.weight.exp_avg"]
    assert [t.path for t in state] == ["first"]


def test_a_block_is_saved_only_if_backward_reads_it() -> None:
    report = tv.trace(
        lambda x: (x * 2).exp().sum(), torch.ones(8, requires_grad=True), backward=True
    ).memory()
    by_name = {tensor.born: tensor.use for tensor in report.lifetimes if tensor.type.shape == (8,)}
    assert (by_name[0], by_name[1]) == (
        "activation",
        "saved for backward",
    )  # exp keeps its result, not its input


def test_gradients_that_stay_are_told_from_those_that_do_not() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    report = tv.trace(model, torch.ones(2, 4), backward=True).memory()
    made = [t for t in report.lifetimes if t.use == "gradient"]
    assert {t.name for t in made} == {f"{name}.grad" for name, _ in model.named_parameters()}
    assert all(t.dies is None for t in made)
    assert {t.path for t in made} == {"0", "1"}


def test_a_gradient_has_the_shape_of_its_parameter() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(2 * 3 * 8, 3))
    shapes = {f"{name}.grad": tuple(parameter.shape) for name, parameter in model.named_parameters()}
    report = tv.trace(model, torch.ones(2, 1, 3, 4), backward=True).memory()
    assert {t.name: t.type.shape for t in report.lifetimes if t.use == "gradient"} == shapes


def test_what_dies_right_after_an_operation_counts_while_it_runs() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        for _ in range(3):
            x = x + 1  # both the old and the new are there for a moment
        return x

    trace = tv.trace(chain, torch.ones(256))
    assert trace.memory().peak_bytes == 3 * 1024
    assert int(trace.metrics["live_bytes"].values.max()) == 2 * 1024


def test_blocks_that_grow_are_followed() -> None:
    def grow(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(0)
        torch.add(x, 1, out=out)
        return out * 2

    trace = tv.trace(grow, torch.ones(256))
    blocks = trace.memory().blocks
    assert np.array_equal(blocks.after.sum(axis=0), trace.metrics["live_bytes"].values)
    assert blocks.after[Use.ACTIVATION, 0] == 0


def test_small_graphs() -> None:
    for graph in (empty_graph(), one_node_graph()):
        zeros = np.zeros(len(graph), dtype=np.int64)
        metrics = Metrics({name: Column(name, zeros) for name in ("alloc_bytes", "free_bytes", "live_bytes")})
        report = MemoryReport(Run(graph, metrics))
        assert str(report) and report.checkpoints == []


def test_a_trace_without_memory_columns_says_what_to_do() -> None:
    trace = tv.trace(nn.ReLU(), torch.ones(2))
    with pytest.raises(UsageError, match="record it again"):
        MemoryReport(Run(trace.graph, Metrics()))


def test_it_survives_a_file(tmp_path: Any) -> None:
    trace = tv.trace(Residual(), torch.ones(4, 8), backward=True)
    trace.save(tmp_path / "run.tvz")
    assert str(tv.load(tmp_path / "run.tvz").memory()) == str(trace.memory())


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_figures(renderer: str) -> None:
    pytest.importorskip(renderer)
    report = tv.trace(Residual(), torch.ones(4, 8), backward=True).memory()
    for chart in ("timeline", "modules"):
        assert report.figure(renderer, chart=chart) is not None


def test_a_long_timeline_is_drawn_in_few_points_that_keep_the_peak() -> None:
    def many(x: torch.Tensor) -> torch.Tensor:
        for number in range(5000):
            x = x + 1
            if number == 3000:
                torch.ones(100_000)
        return x

    report = tv.trace(many, torch.ones(4)).memory()
    series = report.charts()["timeline"].series
    assert len(series[0].x) == 2000
    assert max(sum(heights) for heights in zip(*(s.y for s in series))) == report.peak_bytes


def test_the_counter_of_adam_is_there_from_its_first_step_on() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())

    def backward(x: torch.Tensor) -> None:
        model(x).square().sum().backward()

    def step(x: torch.Tensor) -> None:
        backward(x)
        optimizer.step()
        optimizer.zero_grad()

    x = torch.randn(256, 64)
    alone = tv.trace(backward, x)
    model.zero_grad()
    first, second = tv.trace(step, x), tv.trace(step, x)
    counted = [tensor for tensor in first.memory().lifetimes if tensor.name.endswith(".step")]
    assert len(counted) == 2
    for tensor in counted:
        assert tensor.born is not None and first.graph.nodes[tensor.born].name == "lift_fresh"
        assert tensor.use == "optimizer state" and tensor.size_bytes == 4 and tensor.dies is None
    assert first.memory().peak_node.phase == "backward"
    assert first.memory().peak_bytes == alone.memory().peak_bytes == first.summary().peak_bytes
    assert {tensor.born for tensor in second.memory().lifetimes if tensor.name.endswith(".step")} == {None}


def test_an_operation_is_told_by_itself_or_by_its_number() -> None:
    t, other = (tv.trace(Residual(), torch.ones(4, 8), backward=True) for _ in range(2))
    report = t.memory()
    peak = report.peak_node
    assert report.at(peak) == report.at(peak.index) == report.at(np.int64(peak.index)) == report.peak
    for number in (10**9, -1, len(t.graph)):
        with pytest.raises(UsageError, match=f"has operations 0 to {len(t.graph) - 1}"):
            report.at(number)
    with pytest.raises(UsageError, match="not by 'sum'"):
        report.at("sum")
    with pytest.raises(UsageError, match="another graph"):
        report.at(other.graph.nodes[0])


class Around(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.a_module_with_a_long_name = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a_module_with_a_long_name(x)


def test_a_long_path_is_cut_where_the_peak_is_told() -> None:
    model: torch.nn.Module = torch.nn.Linear(4, 4)
    for _ in range(12):
        model = Around(model)
    trace = tv.trace(model, torch.ones(1, 4))
    peak = trace.memory().peak_node
    assert peak is not None and len(peak.path) > 300
    text = trace.table(width=130)
    (line,) = (line for line in text.splitlines() if line.startswith("peak memory"))
    for told in (line, trace.memory().facts()["peak"]):
        assert "in …a_module" in told and told.endswith("a_module_with_a_long_name") and len(told) < 130


def test_state_that_grows_has_no_second_step() -> None:
    """LBFGS adds directions with each step: a figure from the first one would be too low for all later ones."""
    model, x = torch.nn.Linear(16, 16), torch.randn(4, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = model(x).square().sum()
        total.backward()
        return total

    trace = tv.trace(lambda: optimizer.step(loss))
    memory = trace.memory()
    assert memory.steady_peak_bytes is None and memory.new_state_bytes > 0
    assert any("LBFGS.weight.old_dirs" in note and "not known" in note for note in memory.notes())
    assert "second step" not in str(memory) + str(trace)
