"""Charts of memory as a reader sees them: a peak of one operation is found among thousands."""

from __future__ import annotations

import torch

import torch_vis as tv


class Spike(torch.nn.Module):
    """Many small operations, and one of much memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in range(60):
            x = x + 1
            if step == 40:
                x = x + x.expand(4096, 8).clone().mean(0)
        return x


def test_the_peak_is_marked_and_said() -> None:
    report = tv.trace(Spike(), torch.ones(8)).memory()
    chart = report.charts()["timeline"]
    (peak,) = chart.guides
    assert report.peak_node is not None and peak.name == "peak" and set(peak.y) == {report.peak_bytes}
    assert f"(operation {report.peak_node.index})" in chart.title
    (line,) = (drawn for drawn in report.figure().data if drawn.name == "peak")
    assert line.line.dash == "dash" and line.x[0] == 0 and line.x[-1] == len(report.graph)


def test_it_is_seen_where_backward_begins() -> None:
    trace = tv.trace(torch.nn.Linear(4, 4), torch.ones(2, 4), backward=True)
    begin = next(node.index for node in trace.graph.nodes if node.phase == "backward")
    for report in (trace.memory(), trace.memory().checkpoint("")):
        assert report.charts()["timeline"].stages == [(0, "forward"), (begin, "backward")]
    assert not tv.trace(Spike(), torch.ones(8)).memory().charts()["timeline"].stages


def test_checkpointed_and_plain_are_both_seen_where_they_are_the_same() -> None:
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4))
    )
    report = tv.trace(model, torch.ones(512, 64), backward=True).memory().checkpoint("?")
    now, then = report.charts()["timeline"].series
    assert (now.dashed, then.dashed) == (False, True)
