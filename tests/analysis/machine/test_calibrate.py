"""Calibration: measures, is kept and found again, and leaves nothing behind when it is interrupted."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.kit.calibrations import made_up
from torch_vis import progress
from torch_vis.analysis.machine import calibrate as calibrating
from torch_vis.analysis.machine import calibration
from torch_vis.analysis.machine.host_model import FROM_CPP, from_cpp
from torch_vis.analysis.machine.probes import ProbeSampler, clocks
from torch_vis.analysis.machine.probes.clocks import KernelTime
from torch_vis.analysis.machine.probes.operations import (
    ConvolutionSizes,
    _convolution,
    all_probes,
    convolutions,
    vocabularies,
)
from torch_vis.analysis.machine.probes.programs import all_programs, runs
from torch_vis.errors import NoMatch, UsageError
from torch_vis.ops.families import KINDS


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tv.Trace]:
    """A file with a calibration of this CPU that was given very little time, and something to predict with it."""
    path = tmp_path_factory.mktemp("cache") / "machine.json"
    tv.measure.calibrate(device="cpu", path=path, seconds=4)
    return path, tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64))


def test_it_measures_this_machine(measured: tuple[Path, tv.Trace]) -> None:
    path, trace = measured
    machine = tv.hardware.load(path)
    assert machine.class_ == "cpu" and machine.circumstances["torch"] == torch.__version__
    assert 1e8 < machine.peaks["float32"] < 1e14 and machine.bandwidth > 1e8
    assert 100 < machine.host.unit_ns < 1e7
    assert len(machine.samples.op) > 5 and (machine.samples.time_ns > 0).all()
    found = tv.Trace.latency(trace, calibration=machine)
    assert 0 < found.low_ns < found.total_ns < found.high_ns


def test_what_was_measured_is_found_again(
    measured: tuple[Path, tv.Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = measured
    monkeypatch.setattr(calibrating, "_measure", lambda *a: pytest.fail("measured again"))
    again = tv.measure.calibrate(device="cpu", path=path)
    assert len(again.samples.op) == len(tv.hardware.load(path).samples.op)


@pytest.mark.parametrize("change", ["other threads", "damaged", "asked for"])
def test_it_is_measured_anew_when_it_must(
    measured: tuple[Path, tv.Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = tmp_path / "machine.json"
    content = measured[0].read_bytes()
    path.write_bytes(content[: len(content) // 2] if change == "damaged" else content)
    fresh = tv.hardware.load(measured[0])
    monkeypatch.setattr(calibrating, "_measure", lambda *given: replace(fresh, device="measured anew"))
    if change == "other threads":
        key = {**calibration.circumstances("cpu"), "threads": -1}
        monkeypatch.setattr(calibrating, "circumstances", lambda device: key)
    made = tv.measure.calibrate(device="cpu", path=path, again=change == "asked for")
    assert made.device == tv.hardware.load(path).device == "measured anew"


def test_the_cache_is_in_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    key = calibration.circumstances("cpu")
    assert calibration.cache_path(key).is_relative_to(tmp_path)
    other = {**key, "threads": key["threads"] + 1}
    assert calibration.cache_path(other) != calibration.cache_path(key)
    assert calibration.cached("cpu") is None


def test_a_trace_finds_this_machines_calibration(
    measured: tuple[Path, tv.Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trace = measured
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = calibration.cache_path(calibration.circumstances("cpu"))
    place.parent.mkdir(parents=True)
    place.write_bytes(path.read_bytes())
    assert (
        trace.roofline().hardware.name == trace.latency().prediction.machine == calibration.processor_name()
    )


@pytest.mark.parametrize("stage", ["_programs", "_samples"])
def test_interrupted_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrating, "_programs", lambda *given: ([], 1000.0))
    monkeypatch.setattr(calibrating, stage, interrupt)
    before = torch.random.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        tv.measure.calibrate(device="cpu", path=tmp_path / "machine.json", seconds=1)
    assert os.listdir(tmp_path) == []
    assert torch.equal(torch.random.get_rng_state(), before)


def test_devices_that_cannot_be_calibrated_are_refused() -> None:
    with pytest.raises(NoMatch, match="cpu"):
        tv.measure.calibrate(device="tpu")
    for wrong in (0, -1.0, float("nan"), float("inf"), "a minute"):
        with pytest.raises(UsageError, match="above 0"):
            tv.measure.calibrate(device="cpu", seconds=wrong)  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no CUDA device"):
            tv.measure.calibrate(device="cuda")


def test_any_beginning_of_the_probes_has_every_kind() -> None:
    flops = dict.fromkeys(("float32", "bfloat16"), 2e6)
    probes = all_probes(ProbeSampler("cpu", flops, 2e5), ("float32", "bfloat16"), share=0.3)
    few = {probe.family for probe in probes[: len(probes) // 3]}
    assert {"matmul", "convolution", "attention", "elements", "lookup", "pooling", "optimizer"} <= few
    again = all_probes(ProbeSampler("cpu", flops, 2e5), ("float32", "bfloat16"), share=0.3)
    assert [probe.family for probe in again] == [probe.family for probe in probes]


def test_half_of_the_convolutions_are_heavy_and_first_layers_have_no_gradient_of_the_image() -> None:
    most = {"float32": 2e11, "tf32": 1.3e12, "bfloat16": 3e12}
    for dtype, limit in (("float32", most["tf32"] / 8), ("bfloat16", most["bfloat16"] / 8)):
        probes = list(convolutions(ProbeSampler("cpu", most, 1e8), dtype, 60))
        flops = [probe.make.args[2].flops for probe in probes if probe.family == "convolution"]
        assert max(flops) <= limit and 30 <= sum(one > limit / 50 for one in flops) <= 50
    image = ConvolutionSizes(1, 8, 3, 4, 3, 1, 1, False)
    trace = tv.trace(_convolution(ProbeSampler("cpu", most, 1e8), "float32", image, True))
    asked = [call.args[-1] for call in trace.graph.calls if "convolution_backward" in call.op]
    assert asked == [(False, True, False)]


def test_vocabularies_are_large_and_mostly_no_round_number() -> None:
    flops = {"float32": 2e11, "bfloat16": 3e12}
    drawn = [probe.make.args[2] for probe in vocabularies(ProbeSampler("cpu", flops, 1e8), "bfloat16", 40)]
    words = [max(one.rows, one.depth, one.columns) for one in drawn]
    assert len(drawn) == 40 and {one.form for one in drawn} == {"right", "plain", "left"}
    assert min(words) >= 10_000 and 10 <= sum(count % 8 != 0 for count in words) <= 35


def test_a_probe_is_one_operation_and_keeps_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    flops = dict.fromkeys(("float32", "bfloat16"), 2e6)
    probes = all_probes(ProbeSampler("cpu", flops, 2e5), ("float32",), share=0.05)
    times = (KernelTime(float(place), 1.0) for place in range(len(probes)))  # a probe's time is its place
    monkeypatch.setattr("torch_vis.analysis.machine.probes.clocks.cpu_times", lambda works: times)
    samples = calibrating._on_cpu(probes, math.inf, lambda: None)
    places = samples.time_ns.astype(int).tolist()
    assert places == sorted(set(places))
    assert len(places) > 0.95 * len(probes)  # those that run in many operations say nothing of one
    of_kind = {(probes[place].family, KINDS[kind]) for place, kind in zip(places, samples.kind)}
    for family in ("matmul", "convolution", "normalization", "softmax", "optimizer"):
        assert {kind for of, kind in of_kind if of == family} == {family}
    assert {("bmm", "matmul"), ("lookup", "indexing"), ("pooling", "pooling")} <= of_kind


def test_every_program_runs_both_ways() -> None:
    for number, program in enumerate(all_programs(("float32",), deep=False)):
        for run in runs(program, number, "cpu", "float32").values():
            run()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_shows_how_much_of_the_time_has_passed(
    monkeypatch: pytest.MonkeyPatch, rich: bool
) -> None:
    screen, clock = Terminal(), iter([0.0, 1.0, 3.0, 9.0])
    monkeypatch.setattr("sys.stderr", screen)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    shown = []
    with progress.time_progress(4.0, "calibrating") as look:
        for _ in range(3):
            look()
            shown.append(re.findall(r"(\d+)(?:%|/100)", screen.getvalue())[-1])
    assert shown == ["25", "75", "100"]  # and no more than all of it


def test_what_emptying_the_caches_costs_the_code_is_no_time_of_an_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hot, cold, code = 2_000.0, 30_000.0, 28_000.0
    monkeypatch.setattr(clocks, "_cold_code_ns", lambda flush: code)
    monkeypatch.setattr(clocks, "wall", lambda work, device, count: [hot] * 3 if count == 3 else [cold])
    # it was the mean of hot and cold, four times as much
    (timed,) = clocks.cpu_times([lambda: lambda: None])
    assert timed == KernelTime(hot, 1.0)


def test_a_run_that_others_interrupt_is_no_time_of_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = iter([9_000_000.0, 4_000.0, 9_000_000.0])
    hot = [4_000.0, 9_000_000.0, 9_000_000.0]
    monkeypatch.setattr(clocks, "_cold_code_ns", lambda flush: 0.0)
    monkeypatch.setattr(clocks, "wall", lambda work, device, count: hot if count == 3 else [next(cold)])
    (timed,) = clocks.cpu_times([lambda: lambda: None])
    assert timed == KernelTime(4_000.0, 1.0)


def test_the_best_of_short_stretches_counts() -> None:
    calls = iter(range(10**9))

    def call() -> None:
        # every second stretch is interrupted
        if (next(calls) // 100) % 2:
            time.sleep(2e-5)

    assert clocks.best_seconds(call, "cpu") < 2e-5


def test_operations_that_cpp_calls_cost_the_host_less() -> None:
    layer = torch.nn.GRU(4, 4)
    trace = tv.trace(layer, torch.ones(3, 2, 4))
    inside = from_cpp(trace.graph)
    assert inside.sum() == len(trace.graph) - 1 and not inside[0]
    machine = made_up("cpu")
    cheap = machine.host.unit_ns * FROM_CPP * len(trace.graph)
    assert trace.latency(calibration=machine).total_ns < 2 * cheap + 5 * machine.host.unit_ns
    assert not from_cpp(tv.trace(torch.nn.GRUCell(4, 4), torch.ones(2, 4)).graph).any()


@pytest.mark.parametrize(
    "change",
    [
        {"version": "x"},
        {"version": None},
        {"peaks": []},
        {"peaks": {"float32": float("nan")}},
        {"copies": [[0, -1]]},
        {"floor_ns": 0},
        {"floor_ns": 10**400},
        {"noise": -1},
        {"class": "\x1b]0;owned\x07"},
        {"host": {"unit_ns": 0, "terms": {}, "error": 0.1}},
    ],
)
def test_a_file_with_figures_that_no_machine_has_is_one_error(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(made_up().to_dict() | change))
    with pytest.raises(tv.errors.FileError) as raised:
        tv.hardware.load(path)
    assert str(raised.value).isprintable()


def test_what_one_thread_gives_way_to_is_no_time_of_what_it_computes() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        (alone,) = clocks.wall(lambda: time.sleep(0.2), "cpu", 1)
        torch.set_num_threads(2)
        (shared,) = clocks.wall(lambda: time.sleep(0.2), "cpu", 1)
    finally:
        torch.set_num_threads(threads)
    # what several threads compute together is known by the clock on the wall alone
    assert alone < 100e6 < 200e6 <= shared


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_however_little_time_there_is_what_every_model_is_full_of_is_timed(dtype: str) -> None:
    flops = dict.fromkeys(("float32", "bfloat16"), 5e8)
    probes = all_probes(ProbeSampler("cpu", flops, 4e6), ("float32", "bfloat16"))[: calibrating.LEAST_PROBES]
    with tv.record(hold=False) as t:
        for probe in probes:
            if probe.family == "basic":
                probe.make()()
    graph, moved = t.graph, t.metrics["moved_bytes"].values
    for op in ("copy_", "clone", "add.Tensor", "relu", "sum"):
        sizes = [
            moved[number]
            for number, call in enumerate(graph.node_call.tolist())
            if graph.calls[call].op == f"aten::{op}"
            and graph.types[graph.value_type[graph.in_value[graph.in_start[number]]]].dtype == dtype
        ]
        assert sizes and min(sizes) < 20_000 and max(sizes) > 500_000, op


def test_a_host_that_computes_itself_is_slower_where_its_caches_are_swept(tmp_path: Path) -> None:
    quick = made_up("cpu")
    machine = replace(quick, host=quick.host._replace(swept=3.0))

    def host_ns(width: int, calibration: Any) -> float:
        t = tv.trace(
            torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]), torch.ones(8, width)
        )
        return float(t.latency(calibration=calibration).prediction.host_ns.sum())

    # a small model leaves Python's code and data where they are
    assert host_ns(8, machine) == pytest.approx(host_ns(8, quick), rel=0.01)
    assert host_ns(1024, machine) == pytest.approx(3 * host_ns(1024, quick), rel=0.1)
    machine.save(tmp_path / "machine.json")
    assert tv.hardware.load(tmp_path / "machine.json").host.swept == 3.0
    on_gpu = replace(made_up("gpu"), host=machine.host)
    assert host_ns(1024, on_gpu) == host_ns(1024, made_up("gpu"))
