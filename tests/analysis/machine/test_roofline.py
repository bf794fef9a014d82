"""What bounds an operation and how near it comes to the peak."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import torch_vis as tv
from tests.kit.calibrations import made_up
from tests.kit.graphs import empty_graph
from tests.kit.traced import NAMES, traced
from tests.kit.unknown_operator import WithUnknown, opaque
from torch_vis.analysis.machine.calibration import MEASURED
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.roofline import BOUND, RooflineReport, roofline
from torch_vis.errors import NoMatch, UsageError
from torch_vis.graph import Column, Metrics
from torch_vis.graph.run import Run
from torch_vis.ops.families import KINDS, kind_of

# 1 FLOP and 1 byte per ns, at least 100 ns for anything
PLAIN = Hardware(
    "plain", "gpu", {"float32": 1e9, "bfloat16": 4e9, "tf32": 2e9}, 1e9, 10**10, "made up", overhead_ns=100.0
)


def timed(trace: tv.Trace, ns: int) -> Metrics:
    return trace.metrics.with_column(Column("time_ns", np.full(len(trace.graph), ns)))


def bounds(trace: tv.Trace) -> list[str]:
    found = roofline(Run(trace.graph, timed(trace, 10**6)), PLAIN)
    return [BOUND[code] for code in found.bound]


def test_what_bounds_an_operation() -> None:
    product = tv.trace(torch.mm, torch.ones(64, 64), torch.ones(64, 64))
    assert bounds(product) == ["compute"]  # 524,288 FLOPs on 49,152 bytes
    assert bounds(tv.trace(torch.neg, torch.ones(1000))) == ["memory"]
    assert bounds(tv.trace(torch.neg, torch.ones(2))) == ["overhead"]
    assert bounds(tv.trace(torch.t, torch.ones(2, 2))) == ["none"]


def test_the_share_is_the_time_at_the_roof_over_the_time_measured() -> None:
    trace = tv.trace(torch.mm, torch.ones(64, 64), torch.ones(64, 64))
    found = roofline(Run(trace.graph, timed(trace, 4 * 2 * 64**3)), PLAIN)
    assert found.peak_share[0] == pytest.approx(0.25)
    assert found.intensity[0] == pytest.approx(2 * 64**3 / (3 * 64 * 64 * 4))


def test_each_element_type_has_its_own_roof() -> None:
    def ideal(dtype: torch.dtype) -> float:
        trace = tv.trace(torch.mm, torch.ones(64, 64, dtype=dtype), torch.ones(64, 64, dtype=dtype))
        return float(roofline(trace, PLAIN).ideal_ns[0])

    assert ideal(torch.float32) == 4 * ideal(torch.bfloat16)
    data, weight = torch.ones(1, 8, 16, 16), torch.ones(8, 8, 3, 3)
    conv = tv.trace(lambda x, w: torch.conv2d(x, w, padding=1), data, weight)
    flops = conv.metrics["flops"].total()
    assert flops is not None
    found = roofline(conv, PLAIN)
    assert np.nanmax(found.ideal_ns) == pytest.approx(flops / 2)  # torch lets convolutions use tf32


def test_kernel_times_count_where_they_were_measured() -> None:
    trace = tv.trace(torch.mm, torch.ones(64, 64), torch.ones(64, 64))
    kernels = trace.metrics.with_column(Column("kernel_ns", np.array([2 * 2 * 64**3])))
    found = roofline(Run(trace.graph, kernels), PLAIN)
    assert found.measured == "kernel_ns" and found.peak_share[0] == pytest.approx(0.5)


def test_what_has_no_formula_is_not_known() -> None:
    sparse = torch.eye(3).to_sparse()
    trace = tv.trace(torch.mm, sparse, sparse)
    report = trace.roofline(PLAIN)
    metrics = trace.with_metrics(report).metrics
    node = next(n.index for n in trace.graph.nodes if "mm" in n.op)
    assert metrics["bound"][node] is None and metrics["peak_share"][node] is None
    assert any("no cost formula" in note for note in report.notes())


def test_unknown_work_is_never_zero_in_a_sum() -> None:
    trace = tv.trace(WithUnknown(), torch.ones(8, 64))
    report = RooflineReport(Run(trace.graph, timed(trace, 10**6)), PLAIN)
    kinds = {row["kind"]: row for row in report.to_dict()["kinds"]}
    for name in ("flops", "moved_bytes", "peak_share", "intensity", "bound"):
        assert kinds["other"][name] is None and kinds["matmul"][name] is not None
    assert kinds["other"]["unknown"] == 1 and kinds["matmul"]["unknown"] == 0
    modules = {row["module"]: row for row in report.to_dict()["modules"]}
    mixed = modules["(WithUnknown)"]  # a relu beside it
    assert mixed["unknown"] == 1 and mixed["moved_bytes"] > 0 and mixed["intensity"] is None
    line = next(line for line in str(report).splitlines() if line.startswith("(WithUnknown)"))
    assert line.count("≥") == 3
    assert report.facts()["share of the peak"].startswith("at least")
    assert report.to_pandas()["unknown"].sum() == 1


def test_a_run_of_unknown_work_alone_has_no_figures() -> None:
    report = tv.trace(opaque, torch.ones(4)).roofline(PLAIN)
    assert report.total.flops is None and report.total.peak_share is None and report.total.bound == "none"
    facts = report.facts()
    assert facts["share of the peak"] == "not known" and facts["bound by"] == "not known 100 %"
    report.figure()


def test_what_the_time_is_bound_by_sums_to_all_of_it() -> None:
    trace = tv.trace(WithUnknown(), torch.ones(8, 64))
    report = RooflineReport(Run(trace.graph, timed(trace, 10**6)), PLAIN)
    assert sum(report.by_bound.values()) == pytest.approx(report.total.time_ns)
    assert "views and the like" in report.facts()["bound by"] and "not known" in report.facts()["bound by"]
    shares = [int(part) for part in report.facts()["bound by"].split() if part.isdigit()]
    assert 98 <= sum(shares) <= 102
    known = tv.trace(torch.relu, torch.ones(4)).roofline(PLAIN)
    assert "not known" not in str(known) and "≥" not in str(known) and "without formula" not in str(known)
    assert [*known.charts()["bounds"].series[0].x] == ["compute", "memory", "overhead"]


def test_the_columns_go_into_files_when_they_are_asked_to(tmp_path: pytest.TempPathFactory) -> None:
    trace = tv.trace(torch.nn.Linear(4, 4), torch.ones(2, 4))
    marked = trace.with_metrics(trace.roofline("h100"))
    assert "bound" not in trace.metrics, "asking a question changes nothing of the trace"
    path = f"{tmp_path}/run.tvz"
    marked.save(path)
    assert tv.load(path).metrics["bound"][:] == marked.metrics["bound"][:]


def test_sums_by_module_and_kind_agree_with_the_whole() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    report = tv.trace(model, torch.ones(4, 8), backward=True).roofline("a100")
    for rows in (report.kinds, report.modules):
        assert sum(row[1] for row in rows) == report.total.operations
        assert sum(row[3] for row in rows) == report.total.flops
    assert {row[0] for row in report.kinds} <= set(KINDS)
    assert sum(report.by_bound.values()) == pytest.approx(report.total.time_ns)


def test_the_report_is_read_drawn_and_written() -> None:
    report = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64)).roofline("a100")
    assert "addmm" in str(report) and "A100" in str(report)
    plotted = report.figure()
    assert plotted.layout.xaxis.type == plotted.layout.yaxis.type == "log"
    report.figure("matplotlib", chart="bounds")
    assert json.loads(json.dumps(report.to_dict()))["operations"][0]["operation"] == "addmm"
    assert report.to_pandas("operations")["bound"].tolist() == ["overhead"]


def test_notes_say_where_shares_mislead() -> None:
    product = tv.trace(torch.mm, torch.ones(64, 64), torch.ones(64, 64))
    shared = RooflineReport(
        Run(product.graph, timed(product, 2 * 64**3 // 2)), PLAIN
    ).notes()  # at twice the peak
    assert any("1 operation is faster than arithmetic allows" in note for note in shared)
    assert not any("memory allows" in note for note in shared)
    copied = tv.trace(torch.neg, torch.ones(1000))
    cached = RooflineReport(Run(copied.graph, timed(copied, 2000)), PLAIN).notes()
    assert any("faster than memory allows" in note for note in cached)
    named, measured = (replace(PLAIN, class_="cpu", source=source) for source in ("a datasheet", MEASURED))
    assert any("with every core" in note for note in product.roofline(hardware=named).notes())
    assert not any("with every core" in note for note in product.roofline(hardware=measured).notes())


def test_only_element_types_that_do_some_of_the_work_have_a_roof() -> None:
    """A counter of bytes beside a convolution is nothing that one wants to see a roof for."""
    convolution, counter = torch.nn.Conv2d(3, 16, 3), torch.zeros(1, dtype=torch.uint8)

    def step(x: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return convolution(x)

    report = tv.trace(step, torch.ones(2, 3, 32, 32)).roofline("a100")
    assert "int8" in {row[2] for row in report.operations}  # it is listed all the same
    chart = report.charts()["roofline"]
    assert [series.name for series in chart.series] == ["float32"]
    assert len(chart.guides) == 1 and "float32" in chart.guides[0].name
    counted = tv.trace(lambda x: (x + 1, x.float() * 2), torch.ones(64, 64, dtype=torch.uint8))
    both = counted.roofline("a100").charts()["roofline"]
    assert len(both.guides) == len(both.series) == 2


def test_without_a_name_it_takes_a_calibration_and_runs_nothing(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trace = tv.trace(torch.relu, torch.ones(2))
    with pytest.raises(UsageError, match=r"run tv.measure.calibrate\(\).*or name hardware"):
        trace.roofline()
    with pytest.raises(NoMatch, match="H100"):
        trace.roofline("h1000")


def test_an_empty_run_has_none() -> None:
    with pytest.raises(UsageError, match="no operations"):
        RooflineReport(Run(empty_graph(), Metrics()), PLAIN)


def test_kinds_of_operations() -> None:
    assert kind_of("aten::convolution_backward") == "convolution"
    assert kind_of("aten::_foreach_add_.List") == kind_of("aten::_fused_adamw_") == "optimizer"
    assert kind_of("aten::native_dropout") == "elementwise" and kind_of("aten::empty.memory_format") == "view"


@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_one(name: str) -> None:
    trace = traced(name)
    if not len(trace.graph):
        with pytest.raises(UsageError, match="no operations"):
            RooflineReport(trace, PLAIN)
        return
    report = RooflineReport(trace, PLAIN)
    bound, share = report.columns()
    assert len(bound) == len(share) == len(trace.graph)
    assert set(np.unique(bound.values)) <= set(range(len(BOUND)))
    assert (share.values >= 0).all() and np.isfinite(share.values).all()
    assert str(report)


def test_an_element_type_without_a_figure_has_no_share() -> None:
    for dtype, share, told in (
        (torch.float16, True, "plain has no figure for float16: shares are of the peak of bfloat16"),
        (torch.float64, False, "plain has no figure for float64: what bounds 1 operation"),
    ):
        trace = tv.trace(torch.mm, torch.ones(64, 64, dtype=dtype), torch.ones(64, 64, dtype=dtype))
        found = RooflineReport(Run(trace.graph, timed(trace, 10**6)), PLAIN)
        assert (found.total.peak_share is not None) == share == (found.operations[0][4] is not None)
        assert any(note.startswith(told) for note in found.notes())
        assert not any("no cost formula" in note for note in found.notes())
        roofs = [series.name for series in found.charts()["roofline"].guides]
        assert [name.split(":")[0] for name in roofs] == (["roof of bfloat16"] if share else [])


def test_a_busy_calibration_says_so_and_its_peaks_are_the_best_seen() -> None:
    machine = made_up("cpu")
    trace = tv.trace(torch.mm, torch.ones(8, 8), torch.ones(8, 8))
    for noise, busy in ((0.2, False), (0.9, True)):
        notes = trace.roofline(hardware=replace(machine, noise=noise)).notes()
        assert any("busy" in note for note in notes) == busy
    rates = machine.samples.flops / machine.samples.time_ns * 1e9
    best = rates[machine.samples.kind == KINDS.index("matmul")].max()
    slow = replace(machine, peaks={"float32": best / 3})
    assert slow.hardware.peaks["float32"] == pytest.approx(best)
    assert machine.hardware.peaks == machine.peaks
