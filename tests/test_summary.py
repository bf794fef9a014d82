"""``t.summary()``: what ``print`` shows, as data."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.traced import NAMES, traced


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
    s = tv.trace(torch.linalg.eigvalsh, torch.eye(3)).summary()
    assert s.uncovered == {"aten::_linalg_eigh": 1} and s.flops is None
    assert "flops is not known for 1 of 1 operations" in str(s)


@pytest.mark.parametrize("name", NAMES)
def test_every_case_of_the_zoo_has_one(name):
    t = traced(name)
    s = t.summary()
    plain = json.loads(json.dumps(s.to_plain()))
    assert sum(plain["operations"].values()) == len(t.graph)
