"""``t.summary()``: what ``print`` shows, as data."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.traced import NAMES, traced
from torch_vis.analysis.cost import Cost, cost, registry


def test_totals_are_those_of_the_table():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    t = tv.trace(model, torch.randn(2, 3, 8, 8), backward=True)
    s = t.summary()
    assert (
        s.parameters == sum(p.numel() for p in model.parameters()) and s.parameter_bytes == 4 * s.parameters
    )
    assert sum(s.operations.values()) == len(t.graph)
    assert s.flops == t.metrics["flops"].total() and s.macs == t.metrics["macs"].total()
    assert s.inputs == {"input": "f32[2, 3, 8, 8]"} and s.outputs == {"output": "f32[2, 2]"}
    assert f"{s.parameters:,}" in str(s) and str(s) == t.table(width=120)
    assert {row.path: row.type for row in s.modules} == {
        "": "Sequential", "0": "Conv2d", "1": "ReLU", "2": "Flatten", "3": "Linear"
    }  # fmt: skip
    top = s.modules[0]
    assert top.flops + top.backward_flops == s.flops and top.parameters == s.parameters


def test_what_has_no_formula_is_named():
    sparse = torch.eye(3).to_sparse()  # how many products two of them have depends on their places
    s = tv.trace(torch.mm, sparse, sparse).summary()
    assert s.uncovered == {"aten::mm": 1} and s.flops is None
    assert "flops is not known for 1 of 1 operations" in str(s)


def test_a_formula_that_failed_is_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_FORMULAS", dict(registry._FORMULAS))
    monkeypatch.delitem(registry._FORMULAS, "aten::erfinv", raising=False)
    cost("aten::erfinv")(lambda op: Cost(op.args[7]))
    t = tv.trace(torch.erfinv, torch.zeros(3))
    why = "its formula failed: IndexError: tuple index out of range"
    assert t.summary().why_uncovered == {"aten::erfinv": why}
    t.report(tmp_path / "run.md")
    assert f"| aten::erfinv | 1 | {why} |" in (tmp_path / "run.md").read_text()
    t.report(tmp_path / "run.json")
    plain = json.loads((tmp_path / "run.json").read_text())
    assert plain["summary"]["why_uncovered"] == {"aten::erfinv": why}


@pytest.mark.parametrize("name", NAMES)
def test_every_case_of_the_zoo_has_one(name):
    t = traced(name)
    s = t.summary()
    plain = json.loads(json.dumps(s.to_plain()))
    assert sum(plain["operations"].values()) == len(t.graph)
