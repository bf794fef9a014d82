"""Predicted latency: the two streams, the range, and what it says of operations that it does not know."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_vis as tv
from tests.kit.calibrations import UNIT_NS, made_up
from tests.kit.graphs import empty_graph
from tests.kit.traced import NAMES, traced
from tests.kit.unknown_operator import WithUnknown
from torch_vis.analysis.machine.features import workload
from torch_vis.analysis.machine.hardware import find_hardware
from torch_vis.analysis.machine.host_model import Equation, HostCosts, counts, fit, per_node, usual
from torch_vis.analysis.machine.kernel_model import KernelEstimate
from torch_vis.analysis.machine.latency import SETTLE_NS, WITHIN, LatencyReport, predict, timeline
from torch_vis.errors import CorruptFile, NewerFile, NotOurFile, UsageError
from torch_vis.graph import Metrics
from torch_vis.graph.run import Run
from torch_vis.ops.families import kind_of


def one_by_one(issue: list[float], device: list[float], waits: list[bool], kernels: list[int]) -> float:
    """The two streams followed kernel by kernel."""
    host = ready = 0.0
    for spent, work, wait, count in zip(issue, device, waits, kernels):
        for _ in range(count):
            host += spent / count
            ready = max(ready, host) + work / count
        if wait:
            host = max(host, ready) + SETTLE_NS
    return max(host, ready + SETTLE_NS)


@pytest.mark.parametrize("seed", range(20))
def test_two_streams_run_side_by_side(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 60))
    issue, device = random.uniform(0, 10, count), random.uniform(0, 20, count)
    waits = random.random(count) < 0.1
    kernels = random.integers(1, 6, count)
    streams = {"waits": waits, "kernels": kernels.astype(float)}
    end = timeline(issue, device, **streams, overlaps=True)
    followed = one_by_one(issue.tolist(), device.tolist(), waits.tolist(), kernels.tolist())
    assert end[-1] == pytest.approx(followed)
    assert (np.diff(end) >= 0).all()
    assert timeline(issue, device, **streams, overlaps=False)[-1] == pytest.approx((issue + device).sum())


def test_small_work_waits_for_the_host_and_large_for_the_device() -> None:
    @torch.no_grad()
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.mm(x, x)
        return x

    small, large = (tv.trace(chain, torch.zeros(side, side)) for side in (16, 1024))
    found = predict(small.graph, small.metrics, made_up())
    assert found.waits_for == "host" and found.total_ns == pytest.approx(20 * UNIT_NS, rel=0.3)
    found = predict(large.graph, large.metrics, made_up())
    each = 1000 + 2 * 1024**3 / 5e3
    assert found.waits_for == "device" and found.total_ns == pytest.approx(20 * WITHIN * each, rel=0.1)
    on_cpu = predict(large.graph, large.metrics, made_up("cpu"))  # nothing runs side by side there
    assert on_cpu.total_ns == pytest.approx((on_cpu.host_ns + on_cpu.device_ns).sum())


def test_sizes_that_were_never_measured_follow_the_roofs() -> None:
    trace = tv.trace(torch.mm, torch.zeros(3000, 1000), torch.zeros(1000, 3000))
    found = predict(trace.graph, trace.metrics, made_up())
    assert found.device_ns[-1] == pytest.approx(1000 + 2 * 3000 * 3000 * 1000 / 5e3, rel=0.25)


def test_the_range_holds_the_estimate_and_widens_with_what_is_unsure() -> None:
    trace = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64))
    sure, unsure = (predict(trace.graph, trace.metrics, made_up(error=error)) for error in (0.05, 0.4))
    for found in (sure, unsure):
        assert found.low_ns < found.total_ns < found.high_ns
    assert unsure.high_ns - unsure.low_ns > 2 * (sure.high_ns - sure.low_ns)
    unlike = predict(trace.graph, trace.metrics, find_hardware("h100"))
    assert unlike.high_ns / unlike.low_ns > 2  # a datasheet promises little


def test_phases_add_up() -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    trace = tv.trace(step)
    report = trace.latency(calibration=made_up())
    assert list(report.phases) == ["forward", "backward", "optimizer"]
    assert sum(report.phases.values()) == pytest.approx(report.total_ns)


def test_reading_a_value_back_makes_the_host_wait() -> None:
    def run(x: torch.Tensor, look: bool) -> torch.Tensor:
        y = torch.mm(x, x)
        if look and y.sum().item() > 0:
            y = y + 1
        return torch.mm(y, y)

    plain, looked = (tv.trace(run, torch.zeros(1024, 1024), look) for look in (False, True))
    quick, slow = (predict(t.graph, t.metrics, made_up()) for t in (plain, looked))
    assert slow.total_ns > quick.total_ns + SETTLE_NS / 2


def test_what_has_no_formula_is_listed() -> None:
    sparse = torch.eye(3).to_sparse()
    report = tv.trace(torch.mm, sparse, sparse).latency(hardware="h100")
    assert report.prediction.unknown == [("aten::mm", 1)]
    assert any("no cost formula" in note for note in report.notes())


def test_work_that_is_not_known_is_not_taken_for_small() -> None:
    """One of the operations is an operator of one's own: all sums are lower bounds, and there is no upper end."""
    model, x = WithUnknown(), torch.ones(8, 64)
    trace = tv.trace(model, x)
    for report in (trace.latency(hardware="a100"), trace.latency(calibration=made_up("cpu"))):
        assert (
            report.high_ns is None and report.unknown_operations == 1 and report.prediction.waits_for is None
        )
        facts = report.facts()
        assert facts["time"].startswith("at least") and "nine times" not in facts["time"]
        assert f"1 of {len(trace.graph)} operations is not known" in facts["time"]
        assert "waits for" not in facts["device and host"] and "at least" in facts["device and host"]
        assert "forward at least" in facts["phases"]
        plain = json.loads(json.dumps(report.to_dict()))
        assert plain["high_ns"] is None and plain["unknown_operations"] == 1
        kinds = {row["kind"]: row for row in plain["kinds"]}
        assert kinds["other"]["device_ns"] is None and kinds["other"]["unknown"] == 1
        assert kinds["matmul"]["device_ns"] > 0 and kinds["matmul"]["unknown"] == 0
        own = next(row for row in plain["operations"] if row["operation"] == "opaque")
        assert own["device_ns"] is None
        assert "≥" in next(line for line in str(report).splitlines() if line.startswith("(WithUnknown)"))
        for chart in report.charts().values():
            assert "without the work of 1 of" in chart.title
        report.figure()
        report.figure("matplotlib")
    assert trace.latency(hardware="a100").low_ns > tv.trace(model.known, x).latency(hardware="a100").low_ns


def test_a_run_whose_work_is_known_says_nothing_of_lower_bounds() -> None:
    report = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64)).latency(hardware="a100")
    assert "at least" not in str(report) and "≥" not in str(report) and "unknown" not in str(report)
    assert report.unknown_operations == 0 and report.total_ns < report.high_ns
    assert "without the work" not in report.charts()["kinds"].title


def test_unknown_work_has_no_upper_end_in_the_report_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "torch_vis.analysis.machine.calibration.this_machine", lambda devices=(): made_up("cpu")
    )
    trace = tv.trace(WithUnknown(), torch.ones(8, 64))
    for name in ("all.md", "all.json"):
        trace.report(tmp_path / name)
        assert "no upper end" in (tmp_path / name).read_text()


def test_recurrent_layers_are_told_by_steps_layers_batch_and_width() -> None:
    layer = torch.nn.LSTM(32, 64, 2, batch_first=True)
    trace = tv.trace(layer, torch.ones(4, 16, 32), backward=True)
    work = workload(trace.graph, trace.metrics)
    rows = [row for row, op in enumerate(work.op) if "rnn" in op or "lstm" in op]
    assert rows
    for row in rows:
        steps, layers, batch, width = work.sizes[row, :4]
        assert (steps, batch, width) == (4.0, 2.0, 3 * 6.0) and layers in (0.0, 1.0)


def test_costs_of_the_host_are_found_from_programs() -> None:
    def chain(x: torch.Tensor, adds: int, products: int) -> torch.Tensor:
        for _ in range(adds):
            x = x + 1
        for _ in range(products):
            x = torch.mm(x, x)
        return x

    equations, graphs = [], []
    for adds, products in ((10, 0), (0, 10), (20, 10), (5, 30)):
        trace = tv.trace(chain, torch.zeros(4, 4), adds, products)
        work = workload(trace.graph, trace.metrics)
        single = estimated(len(work.op))
        took = 7_000.0 * adds + 21_000.0 * products
        equations.append(Equation(counts(trace.graph, work, single), took))
        graphs.append((trace.graph, work, single, took))
    costs = fit(equations, UNIT_NS)
    for graph, work, single, took in graphs:
        assert per_node(graph, work, single, costs).sum() == pytest.approx(took, rel=0.12)
    assert costs.error < 0.4


def estimated(classes: int) -> KernelEstimate:
    """An estimate of one kernel each, with nothing measured as a whole."""
    return KernelEstimate(np.zeros(classes), np.ones(classes), np.zeros(classes), np.full(classes, np.nan))


def test_what_was_measured_as_a_whole_is_not_put_together_from_parts() -> None:
    trace = tv.trace(lambda x: torch.mm(x, x) + 1, torch.zeros(4, 4))
    work = workload(trace.graph, trace.metrics)
    product = work.op.index("mm")
    whole = estimated(len(work.op))
    whole.host_ns[product] = 5e6
    costs = HostCosts(UNIT_NS, {}, 0.1)
    issue = per_node(trace.graph, work, whole, costs)[work.group == product]
    assert issue.tolist() == [pytest.approx(5e6, rel=0.01)]
    assert not any("mm" in name for name in counts(trace.graph, work, whole))


def test_a_gpus_host_is_as_hosts_usually_are_until_programs_say_otherwise() -> None:
    trace = tv.trace(lambda x: torch.mm(x, x), torch.zeros(4, 4))
    work = workload(trace.graph, trace.metrics)
    single = estimated(len(work.op))
    one = counts(trace.graph, work, single)
    before = per_node(trace.graph, work, single, usual(UNIT_NS, 0.1)).sum()
    assert per_node(trace.graph, work, single, fit([], UNIT_NS, on_gpu=True)).sum() == pytest.approx(before)
    slow = [Equation(one, 2 * before)] * 100
    after = [
        per_node(trace.graph, work, single, fit(slow, UNIT_NS, noise=noise, on_gpu=True)).sum()
        for noise in (0.05, 0.5, 5.0)
    ]
    assert after[0] == pytest.approx(2 * before, rel=0.02)
    assert after == sorted(after, reverse=True) and after[2] < 1.1 * before


def test_a_slower_host_slows_what_waits_for_it() -> None:
    @torch.no_grad()
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.mm(x, x)
        return x

    machine = made_up()
    recurrent = machine.samples._replace(host_ns=np.full(len(machine.samples.op), 1e5))
    busy = replace(machine, samples=recurrent).at_pace(2 * UNIT_NS)
    assert busy.host.unit_ns == 2 * UNIT_NS and (busy.samples.host_ns == 2e5).all()
    for side, factor in ((16, 2.0), (1024, 1.0)):
        trace = tv.trace(chain, torch.zeros(side, side))
        times = [predict(trace.graph, trace.metrics, one).total_ns - SETTLE_NS for one in (machine, busy)]
        assert times[1] / times[0] == pytest.approx(factor, rel=0.02)
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "7", None):
        with pytest.raises(UsageError, match="above 0"):
            machine.at_pace(wrong)
    with pytest.raises(UsageError, match="calibrate"):
        made_up("cpu").at_pace(UNIT_NS)


def test_what_is_like_nothing_that_was_timed_has_no_upper_end() -> None:
    trace = tv.trace(lambda x: (x @ x).sort()[0], torch.rand(64, 64))
    report = tv.Trace.latency(trace, calibration=made_up())  # which timed matrix products only
    assert report.high_ns is None and report.unknown_operations == 1 and report.total_ns > 0
    assert report.prediction.unknown == [("aten::sort", 1)]
    assert any("timed nothing of the kind of 1 operation" in note for note in report.notes())
    assert not any("no cost formula" in note for note in report.notes())
    assert tv.Trace.latency(trace, hardware="A100").high_ns is not None


def test_a_busy_machine_says_so() -> None:
    trace = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64))
    for noise, busy in ((0.2, False), (0.9, True)):
        machine = replace(made_up(), noise=noise)
        assert ("again=True" in str(machine)) == busy
        assert any("busy" in note for note in tv.Trace.latency(trace, calibration=machine).notes()) == busy


def test_an_optimizer_that_would_run_in_another_form_is_told() -> None:
    model = torch.nn.Linear(4, 4)

    def told(foreach: bool, hardware: str) -> bool:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)

        def step() -> None:
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

        trace = tv.trace(step)
        return any("foreach=True" in note for note in tv.Trace.latency(trace, hardware=hardware).notes())

    assert told(False, "A100") and not told(True, "A100") and not told(False, "EPYC 9654")


def test_a_run_that_does_not_fit_says_so() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(60_000, 80_000)  # 19 GB of weights
    trace = tv.trace(model, torch.ones(1, 60_000, device="meta"))
    small, large = (tv.Trace.latency(trace, hardware=name).notes() for name in ("T4", "A100"))
    assert any("T4 has 14.9 GiB: it does not fit" in note for note in small)
    assert not any("does not fit" in note for note in large)


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten::sort", "sorting"),
        ("aten::topk", "sorting"),
        ("aten::bernoulli_.float", "random"),
        ("aten::randn_like", "random"),
        ("aten::_linalg_svd", "factorization"),
        ("aten::linalg_qr", "factorization"),
        ("aten::clone", "copy"),
        ("aten::mm", "matmul"),
    ],
)
def test_what_takes_its_time_for_other_reasons_is_of_another_kind(op: str, kind: str) -> None:
    assert kind_of(op) == kind


@pytest.mark.parametrize(
    ("left", "right", "uneven"),
    [
        (torch.zeros(4, 768), torch.zeros(768, 64), 0.0),
        (torch.zeros(4, 768), torch.zeros(768, 65), 2.0),  # rows of 260 bytes
        (torch.zeros(4, 768), torch.zeros(66, 768).t(), 1.0),  # only the result's rows
        (torch.zeros(768, 5).t(), torch.zeros(768, 64), 2.0),  # a weight's gradient: the left side's rows
        (torch.zeros(5, 768), torch.zeros(768, 64), 0.0),  # an odd number of rows is none of their length
        (torch.zeros(4, 767).bfloat16(), torch.zeros(767, 64).bfloat16(), 8.0),
    ],
)
def test_rows_where_wide_loads_cannot_begin_are_told_apart(
    left: torch.Tensor, right: torch.Tensor, uneven: float
) -> None:
    trace = tv.trace(torch.mm, left, right)
    work = workload(trace.graph, trace.metrics)
    assert work.sizes[work.op.index("mm"), 4] == uneven


@pytest.mark.parametrize(("class_", "passes"), [("gpu", 1), ("cpu", 0)])
def test_a_bias_is_a_pass_of_its_own_on_gpus(class_: str, passes: int) -> None:
    machine = made_up(class_)
    data = torch.zeros(2, 3, 64, 64, requires_grad=True)
    found = []
    for bias in (False, True):
        trace = tv.trace(torch.nn.Conv2d(3, 8, 3, bias=bias), data, backward=True)
        work = workload(trace.graph, trace.metrics)
        estimate = machine.kernels(work)
        found.append([estimate.time_ns[work.op.index(f"convolution{end}")] for end in ("", "_backward")])
    made = 4 * 2 * 8 * 62 * 62  # bytes: both ways forward, read once in backward
    for (without, with_bias), moved in zip(zip(*found), (2 * made, made)):
        assert with_bias - without == pytest.approx(
            passes * (machine.floor_ns + moved / 100), rel=0.01, abs=1
        )


def test_a_whole_layer_in_one_operation_costs_the_host_its_own_operations_once() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    with torch.no_grad():
        trace = tv.trace(layer, torch.zeros(2, 5, 32))
    work = workload(trace.graph, trace.metrics)
    place = work.op.index("_transformer_encoder_layer_fwd")
    costs = usual(UNIT_NS, 0.1)
    issue = []
    for kernels in (1.0, 10.0, 12.0):  # on a CPU, and in two numbers of kernels on a GPU
        estimate = estimated(len(work.op))
        estimate.kernels[place] = kernels
        issue.append(per_node(trace.graph, work, estimate, costs)[work.group == place].sum())
    assert issue[1] - issue[0] > 15 * UNIT_NS
    assert issue[2] - issue[1] == pytest.approx(2 * costs.terms["launch"])


def test_single_measurements_are_followed_and_far_from_them_it_is_unsure() -> None:
    machine = made_up()
    sides = (64, 192, 1024, 1536)  # two that were measured, and two between
    traces = [tv.trace(torch.mm, torch.zeros(side, side), torch.zeros(side, side)) for side in sides]
    found = [machine.kernels(workload(t.graph, t.metrics)) for t in traces]
    for side, estimate in zip(sides, found):
        assert estimate.time_ns[0] == pytest.approx(1000 + 2.0 * side**3 / 5e3, rel=0.1)
    near = found[0].spread[0]
    odd = tv.trace(torch.mm, torch.zeros(3, 50_001), torch.zeros(50_001, 3))
    assert machine.kernels(workload(odd.graph, odd.metrics)).spread[0] > 2 * near


def test_more_powerful_machines_are_predicted_faster() -> None:
    trace = tv.trace(lambda x: x @ x @ x, torch.zeros(2048, 2048))
    times = [tv.Trace.latency(trace, hardware=name).total_ns for name in ("t4", "a100", "h100")]
    assert times == sorted(times, reverse=True)


def test_a_calibration_travels_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    made_up().save(path)
    read = tv.hardware.load(path)
    trace = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64))
    here, there = (tv.Trace.latency(trace, calibration=one).total_ns for one in (made_up(), read))
    assert there == pytest.approx(here, rel=1e-3)
    assert read.hardware.peak("float32") == 1e13 and read.bandwidth == 1e11


def test_files_that_are_no_calibration_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    for content, error in (
        ("not JSON", NotOurFile),
        ('{"format": "other"}', NotOurFile),
        ('{"format": "torch_vis calibration", "version": 99}', NewerFile),
        ('{"format": "torch_vis calibration", "version": 4}', NotOurFile),
        ('{"format": "torch_vis calibration", "version": 5}', CorruptFile),
    ):
        path.write_text(content)
        with pytest.raises(error):
            tv.hardware.load(path)
    plain = made_up().to_dict()
    plain["samples"]["time_ns"].pop()
    path.write_text(json.dumps(plain))
    with pytest.raises(CorruptFile, match="length"):
        tv.hardware.load(path)


def test_what_cannot_be_predicted_is_said() -> None:
    trace = tv.trace(torch.relu, torch.ones(2))
    with pytest.raises(UsageError, match="not both"):
        trace.latency(hardware="h100", calibration=made_up())
    with pytest.raises(UsageError, match=r"hardware\.load"):
        trace.latency(calibration="machine.json")
    with pytest.raises(UsageError, match="no operations"):
        LatencyReport(Run(empty_graph(), Metrics()), calibration=made_up())


def test_the_report_is_read_drawn_and_written() -> None:
    report = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64), backward=True).latency(hardware="a100")
    assert "A100" in str(report) and "addmm" in str(report)
    report.figure()
    report.figure("matplotlib", chart="timeline")
    kinds, along = report.charts().values()
    assert kinds.title != along.title and "A100" in kinds.title and "A100" in along.title
    reach = max(figure for series in kinds.series for figure in series.y)
    assert kinds.scale("y").high < 1.1 * reach  # device and host overlap, and are not stacked
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["low_ns"] < plain["total_ns"] < plain["high_ns"]
    assert sum(row[1] for row in report.modules) == len(report.graph)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_a_prediction(name: str) -> None:
    trace = traced(name)
    for machine in (made_up(), made_up("cpu"), find_hardware("a100")):
        found = predict(trace.graph, trace.metrics, machine)
        assert len(found.device_ns) == len(found.host_ns) == len(trace.graph)
        assert 0 <= found.low_ns <= found.total_ns and (found.low_ns > 0) == bool(len(trace.graph))
        assert found.high_ns is None if found.unknown else found.total_ns <= found.high_ns < np.inf
        assert sum(found.phases.values()) == pytest.approx(found.total_ns)


def product(dtype: torch.dtype, side: int = 1024) -> tv.Trace:
    return tv.trace(
        torch.mm, torch.ones(side, side, dtype=dtype), torch.ones(side, side, dtype=dtype), fake=True
    )


def test_an_element_type_that_was_not_timed_goes_by_its_peak_and_is_less_sure() -> None:
    measured = made_up("cpu")
    with_peak = replace(measured, peaks={**measured.peaks, "float64": 0.25e13})
    plain = predict_on(product(torch.float32), measured)
    by_peak, unknown = (predict_on(product(torch.float64), machine) for machine in (with_peak, measured))
    assert by_peak.prediction.device_ns.sum() == pytest.approx(4 * plain.prediction.device_ns.sum(), rel=0.1)
    widths = [
        found.high_ns / found.low_ns for found in (plain, by_peak, unknown) if found.high_ns is not None
    ]
    assert widths == sorted(widths) and widths[1] > 1.5 * widths[0] and widths[2] > 3 * widths[1]
    assert not plain.prediction.taken_for and not any("calibration timed" in note for note in plain.notes())
    assert "in float64 the calibration timed a single product" in by_peak.notes()[0]
    assert "in float64 the calibration timed nothing" in unknown.notes()[0]


def test_what_arithmetic_does_not_bound_needs_no_figure() -> None:
    found = predict_on(tv.trace(torch.exp, torch.ones(64, dtype=torch.float64)), made_up("cpu"))
    assert found.high_ns is not None and not found.prediction.taken_for


def test_a_datasheet_without_the_element_type_says_so() -> None:
    stands_in = predict_on(product(torch.bfloat16), find_hardware("v100"))
    assert stands_in.prediction.taken_for == {"bfloat16": "float32"} and stands_in.high_ns is not None
    assert "has no figure for bfloat16: it counts as float32" in " ".join(stands_in.notes())
    none = predict_on(product(torch.float64), find_hardware("tpu-v4"))
    assert (
        none.unknown_operations == 1 and none.high_ns is None and none.facts()["time"].startswith("at least")
    )
    assert "TPU v4 has no figure for float64 (it has bfloat16, int8)" in none.notes()[0]
    assert "no cost formula" not in " ".join(none.notes())


def predict_on(trace: tv.Trace, machine: Any) -> LatencyReport:
    return LatencyReport(trace, calibration=machine)
