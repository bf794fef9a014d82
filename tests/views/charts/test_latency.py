"""The predicted timeline as a reader sees it: device and host apart, whichever of the two the run waits for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import torch_vis as tv
from torch_vis.analysis.machine.latency import POINTS, LatencyReport
from torch_vis.views.charts.chart import Chart


def predicted(hardware: str, *, wide: int, deep: int = 6) -> LatencyReport:
    model = torch.nn.Sequential(*(torch.nn.Linear(wide, wide) for _ in range(deep)))
    return tv.trace(model, torch.ones(wide, wide), fake=True).latency(hardware=hardware)


def heights(chart: Chart) -> dict[str, np.ndarray]:
    return {series.name: np.array(series.y) for series in (*chart.series, *chart.guides)}


def test_where_the_run_waits_for_the_host_the_device_is_seen_to_idle() -> None:
    report = predicted("h100", wide=8)
    assert report.prediction.waits_for == "host"
    chart = report.charts()["timeline"]
    work, idle, host = heights(chart).values()
    assert [*heights(chart)] == [
        "device at work", "device idle, waiting for the host", "host at work, added up",
    ]  # fmt: skip
    assert "the run waits for the host" in chart.title and "busy" in chart.title
    assert np.allclose(work + idle, report.prediction.end_ns) and idle[-1] > work[-1]
    # no two of what is drawn lie upon one another: the host's line runs along the top of the areas, which are filled
    tops = (work, work + idle)
    assert all(np.abs(one - two).max() > 0.2 * report.total_ns for one, two in itertools.pairwise(tops))
    assert np.abs(host - work).max() > 0.2 * report.total_ns


def test_where_the_run_waits_for_the_device_the_host_is_seen_ahead() -> None:
    report = predicted("t4", wide=4096)
    assert report.prediction.waits_for == "device"
    chart = report.charts()["timeline"]
    work, idle, host = heights(chart).values()
    assert "the run waits for the device" in chart.title
    assert idle[-1] < 0.05 * work[-1] and host[-1] < 0.5 * work[-1]


def test_on_a_processor_kernels_and_python_take_turns() -> None:
    report = predicted("Xeon Platinum 8480+", wide=64)
    chart = report.charts()["timeline"]
    kernels, python = heights(chart).values()
    assert "waits" not in chart.title and not chart.guides
    assert np.allclose(kernels, np.cumsum(report.prediction.device_ns))
    assert np.allclose(python, np.cumsum(report.prediction.host_ns))
    shares = [int(word.strip("%,")) for word in chart.title.split() if word.strip(",").endswith("%")]
    assert sum(shares) in (99, 100, 101) and shares[0] == round(100 * kernels[-1] / report.total_ns)


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_both_are_drawn(renderer: str) -> None:
    report = predicted("h100", wide=8)
    figure = report.figure(renderer, chart="timeline")
    if renderer == "plotly":
        assert [drawn.fillcolor is not None for drawn in figure.data] == [True, True, False]
        assert figure.data[1].hovertext[1].startswith("1 ")
        return
    (axes,) = figure.axes
    assert len(axes.collections) == 2 and len(axes.lines) == 1
    colors = {tuple(area.get_facecolor()[0]) for area in axes.collections}
    assert len(colors) == 2


def test_the_end_of_a_long_run_is_in_the_picture() -> None:
    report = predicted("h100", wide=8, deep=POINTS)
    assert len(report.graph) > POINTS
    for series in (chart := report.charts()["timeline"]).series:
        assert len(series.x) <= POINTS and series.x[-1] == len(report.graph) - 1
    assert sum(series.y[-1] for series in chart.series) == pytest.approx(report.total_ns)
