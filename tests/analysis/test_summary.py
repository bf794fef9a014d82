"""``t.summary()``: what ``print`` shows, as data."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.traced import NAMES, traced
from torch_vis.ops.cost import Cost, register_cost, registry


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
    assert f"{s.parameters:,}" in str(s) and s.table() == t.table(width=120)
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


class Own(nn.Module):
    """A layer, and an operation that has no formula."""

    def __init__(self, op):
        super().__init__()
        self.layer, self.op = nn.Linear(3, 4), op

    def forward(self, x):
        return self.op(self.layer(x))


@pytest.fixture(scope="module")
def own_op():
    @torch.library.custom_op("torch_vis_tests::squared", mutates_args=())
    def squared(x: torch.Tensor) -> torch.Tensor:
        return x * x

    squared.register_autograd(
        lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return squared


def test_rows_that_leave_operations_out_say_so(own_op):
    t = tv.trace(nn.Sequential(Own(own_op), nn.Linear(4, 4)), torch.ones(4, 3), backward=True)
    s = t.summary()
    rows = {row.path: row for row in s.modules}
    assert rows["0"].flops == rows["0.layer"].flops == 4 * 4 * 3 * 2 + 16
    unknown = ("flops", "macs", "moved_bytes")
    assert {path: row.incomplete for path, row in rows.items()} == {
        "": unknown, "0": unknown, "0.layer": (), "1": ()
    }  # fmt: skip
    assert {row.phase: row.incomplete for row in s.phases} == {"forward": unknown, "backward": ()}
    shown = {
        line.split()[1] if line[0] in "├└│" else line.split()[0]: line for line in str(s).splitlines() if line
    }
    assert "≥ 112" in shown["0"] and "≥ 256" in shown["Sequential"]
    assert "≥" not in shown["1"] and " 144 " in shown["1"]
    plain = json.loads(json.dumps(s.to_dict()))
    assert plain["modules"][0]["incomplete"] == plain["phases"][0]["incomplete"] == list(unknown)


def test_bytes_that_leave_operations_out_say_so(tmp_path):
    t = tv.trace(lambda a, b: (a @ b) + 1, torch.eye(3).to_sparse(), torch.ones(3, 2))
    assert t.metrics["flops"][:] == [12, 6] and t.metrics["moved_bytes"][:] == [None, 48]
    note = "moved_bytes is not known for 1 of 2 operations; sums leave them out"
    assert "18 FLOPs, 6 MACs; at least 48 B accessed" in str(t) and f"• {note}" in str(t)
    assert "at least 18" not in str(t)
    s = t.summary()
    assert s.notes() == [note] and s.phases[0].incomplete == ("moved_bytes",)
    t.report(tmp_path / "run.md")
    assert note.replace("_", "\\_") in (tmp_path / "run.md").read_text()
    nothing = tv.trace(lambda a, b: a @ b, torch.eye(3).to_sparse(), torch.ones(3, 2))
    assert "12 FLOPs, 6 MACs\n" in str(nothing) and "moved_bytes is not known for 1 of 1" in str(nothing)


def test_a_formula_that_failed_is_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_FORMULAS", dict(registry._FORMULAS))
    monkeypatch.delitem(registry._FORMULAS, "aten::erfinv", raising=False)
    register_cost("aten::erfinv")(lambda op: Cost(op.args[7]))
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
    plain = json.loads(json.dumps(s.to_dict()))
    assert sum(plain["operations"].values()) == len(t.graph)
