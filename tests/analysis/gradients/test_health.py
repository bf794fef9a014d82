"""Whether the numbers of a run are sound: ranges, NaN and infinity with where each was born, stuck units."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.zoo import ZOO
from torch_vis.cli.main import main
from torch_vis.errors import TensorsMissing, UsageError

INF = float("inf")


class Spoilt(nn.Module):
    """NaN in the middle of a run forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        ratio = (y - y) / (y - y)
        return self.second(ratio)


def test_a_run_forward_is_asked_where_nan_was_born() -> None:
    report = tv.trace(Spoilt(), torch.ones(2, 4)).health()
    assert report.nan_origin is not None and report.nan_origin.name == "div"
    assert report.infinity_origin is None and not report.nan_inputs
    assert report.nans == 8 + 8
    assert "at div (forward)" in report.facts()["first NaN"]
    assert {row.path: row.nans for row in report.modules}["second"] == 8


def test_infinity_has_its_own_origin_and_is_the_cause_of_nan() -> None:
    report = tv.trace(lambda x: (x.log() * 0).relu(), torch.tensor([[0.0, 1.0]])).health()
    assert report.infinity_origin is not None and report.infinity_origin.name == "log"
    assert report.nan_origin is not None and report.nan_origin.name == "mul"
    assert report.nan_cause.startswith("infinity, which first appeared at log")


def test_what_came_in_is_named() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    report = tv.trace(model, torch.tensor([[INF, 0.0]])).health()
    assert report.nan_inputs == ["weight"] and report.infinite_inputs == ["input"]


@pytest.mark.parametrize("backward", [False, True])
def test_ranges_are_those_of_the_tensors(backward: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    seen: dict[str, Tensor] = {}
    for name, part in model.named_children():
        part.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.detach()}))
    x = torch.randn(3, 4)
    t = tv.trace(model, x, backward=backward)
    report = t.health()
    rows = {row.path: row for row in report.modules}
    for name, tensor in seen.items():
        assert (rows[name].lowest, rows[name].highest) == (float(tensor.min()), float(tensor.max()))
    lowest = report.columns["lowest"]
    assert lowest.known is not None and np.isfinite(lowest.values[lowest.known]).all()
    assert {row.phase for row in report.operations} == ({"forward", "backward"} if backward else {"forward"})


def test_finite_elements_have_a_range_beside_others() -> None:
    report = tv.trace(torch.log, torch.tensor([-1.0, 0.0, 1.0, 2.0])).health()
    row = report.operations[0]
    assert (row.nans, row.infs, row.lowest) == (1, 1, 0.0) and row.highest == pytest.approx(0.6931, abs=1e-4)
    nothing = tv.trace(torch.log, torch.tensor([-1.0])).health()
    assert nothing.operations[0].lowest is None and nothing.lowest is None


def test_units_that_are_stuck_without_a_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.Sigmoid())
    with torch.no_grad():
        model[0].bias[2] = -1000.0
        model[2].bias[1] = 1000.0
    report = tv.trace(model, torch.randn(512, 4)).health()
    assert (report.dead_units, report.saturated_units) == (1, 1)
    stuck = {row.operator: (row.dead_units, row.saturated_units) for row in report.activations}
    assert stuck == {"relu": ((2,), ()), "sigmoid": ((), (1,))}
    rows = {row.path: row for row in report.modules}
    assert (rows["1"].dead, rows["3"].saturated, rows[""].units) == (1, 1, 12)


def test_it_agrees_with_the_report_on_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    t = tv.trace(model, torch.ones(2, 3), loss=lambda y: (y - torch.log(y * 0 - 1)).sum())
    health, gradients = t.health(), t.gradients()
    assert health.nan_origin is not None and gradients.nan_origin is not None
    assert health.nan_origin.index == gradients.nan_origin.index
    for name in ("norm", "nans", "infs", "dead_units"):
        np.testing.assert_array_equal(health.columns[name].values, gradients.columns[name].values)


def test_a_file_with_its_columns_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    t = tv.trace(Spoilt(), torch.ones(2, 4))
    report = t.health()
    t.with_metrics(report).save(tmp_path / "with.tvz")
    t.save(tmp_path / "without.tvz")
    loaded = tv.load(tmp_path / "with.tvz").health()
    assert loaded.facts() == report.facts()
    assert [row._replace(line=None, norm=0.0) for row in loaded.operations] == [
        row._replace(line=None, norm=0.0) for row in report.operations
    ]
    with pytest.raises(TensorsMissing, match="with_metrics"):
        tv.load(tmp_path / "without.tvz").health()
    assert main(["report", "health", str(tmp_path / "with.tvz")]) == 0
    assert "first NaN" in capsys.readouterr().out
    assert main(["report", "health", str(tmp_path / "without.tvz")]) != 0
    page = tmp_path / "run.html"
    t.with_metrics(report).save(page)
    assert "saturated_units" in page.read_text(encoding="utf-8")


def test_a_run_on_shapes_has_none() -> None:
    with pytest.raises(UsageError, match="shapes"):
        tv.trace(nn.ReLU(), torch.ones(2), fake=True).health()


@pytest.mark.parametrize(
    "name",
    [
        "sparse_coo",
        "nested_jagged",
        "quantized_linear",
        "lstm_cell_loop",
        "sgd_momentum_step",
        "tied_weights",
    ],
)
def test_models_of_every_sort_have_one(name: str) -> None:
    case = ZOO[name]
    model, args, kwargs = case.make()
    report = tv.trace(model, *args, kwargs=kwargs, backward=case.backward).health()
    json.dumps(report.to_dict(), default=str)
    assert str(report).startswith("Health\n")


def test_columns_of_another_run_are_refused_when_they_are_added() -> None:
    """And not when a page or a file is to be written of them."""
    one, two = (tv.trace(torch.nn.Sequential(*[torch.nn.Linear(3, 3)] * n), torch.ones(1, 3)) for n in (1, 2))
    with pytest.raises(UsageError, match=r"fit this run: metric .* has 4 rows where 2 belong"):
        one.with_metrics(two.health())
    with pytest.raises(UsageError, match="can run along node"):
        one.with_metrics(tv.types.Column("mine", np.ones(2), along="row"))
    assert "mine" in one.with_metrics(tv.types.Column("mine", np.ones(2))).metrics
