"""``t.report``: everything that can be found out, in one file."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.traced import NAMES, traced
from torch_vis.errors import UsageError
from torch_vis.reports.whole import gathered


def small() -> tv.Trace:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return tv.trace(model, torch.randn(4, 8), backward=True)


def test_markdown_has_every_part(tmp_path):
    t = small()
    t.report(tmp_path / "run.md")
    text = (tmp_path / "run.md").read_text()
    for title in ("Modules", "Memory", "Time", "Fusion", "Gradient flow", "Not in this report"):
        assert f"## {title}" in text, title
    assert "tv.calibrate()" in text or "## Roofline" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(
        line.count("|") == before.count("|") for before, line in pairwise(rows) if line.startswith("|--")
    )


def test_json_is_data(tmp_path):
    t = small()
    t.report(tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["summary"]["flops"] == t.metrics["flops"].total()
    assert found["memory"]["facts"] and found["time"]["facts"] and found["gradients"]["Gradients by layer"]


def test_a_loaded_trace_has_what_needs_no_tensors(tmp_path):
    t = small()
    t.save(tmp_path / "run.tvz")
    found, missing = gathered(tv.load(tmp_path / "run.tvz"))
    assert {"memory", "time", "fusion", "partition"} <= set(found)
    assert "holds no tensors" in missing["gradients"]


def test_names_are_text(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<img src=x>|a", nn.Linear(2, 2))

        def forward(self, x):
            return next(self.children())(x)

    tv.trace(Odd(), torch.ones(1, 2), backward=True).report(tmp_path / "odd.md")
    assert "<img" not in (tmp_path / "odd.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_case_of_the_zoo(name, tmp_path):
    t = traced(name)
    t.report(tmp_path / "case.md")
    t.report(tmp_path / "case.json")
    assert json.loads((tmp_path / "case.json").read_text())["summary"]["operations"] == t.summary().operations


def test_bad_names(tmp_path):
    with pytest.raises(UsageError, match=r"\.md or \.json"):
        small().report(tmp_path / "run.docx")
    assert not list(tmp_path.iterdir())
