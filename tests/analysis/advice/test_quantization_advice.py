"""What quantization advises: nothing from what the output does not show, and no more than holds together."""

from __future__ import annotations

import contextlib
import copy
import math

import pytest
import torch
from torch import nn

import torch_vis as tv
from torch_vis.analysis.advice.rounding import FORMATS, sqnr


def head_of_zeros() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    return model


class Branch(nn.Module):
    """A branch that is let in by a factor, as many begin it."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branch, self.gate = nn.Linear(8, 8), nn.Parameter(torch.full((8,), gate))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.gate * self.branch(x))


class Adapter(nn.Module):
    """A low-rank change of a layer, the second factor of which begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model", "hidden"),
    [
        (head_of_zeros(), {"0.weight", "2.weight"}),
        (Branch(0.0), {"branch.weight"}),
        (Branch(1e-7), {"branch.weight"}),
        (Adapter(), {"down.weight", "up.weight"}),
    ],
    ids=["head", "branch", "next to nothing", "adapter"],
)
def test_what_the_output_does_not_show_gets_no_advice(model: nn.Module, hidden: set[str]) -> None:
    found = tv.advise.quantization(model, X, floor_db=20.0)
    assert found.hidden.keys() == hidden
    for row in found.rows:
        assert (row.output_db is None) == (row.weight in hidden)
        assert (found.advice[row.weight] is None) == (row.weight in hidden)
    assert "inf" not in " ".join(found.facts().values())
    assert "not known" in found.facts() and "keep as they are" not in found.facts()
    advice = found.listings()[1].to_dict()
    zeros = {name for name in hidden if not model.get_parameter(name).any()}
    assert {row["weight"] for row in advice if row["format"] == "not known"} == hidden - zeros
    assert {row["weight"] for row in advice if row["format"] == "all zeros"} == zeros
    assert not any(name in found.facts()["not known"] for name in zeros)
    assert all(name in found.facts()["all zeros"] for name in zeros)
    assert all(any(name in note for note in found.notes()) for name in hidden)


@pytest.mark.parametrize("gate", [1.0, 0.05])
def test_a_branch_that_is_let_in_is_shown(gate: float) -> None:
    assert tv.advise.quantization(Branch(gate), X).hidden == {}


def test_a_weight_that_a_format_holds_exactly_is_exact_where_the_output_depends_on_it() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 4, bias=False)
    layer.weight.data = 7 * layer.weight.data.sign()
    found = tv.advise.quantization(layer, X, formats="int4")
    assert found.rows[0].output_db == math.inf and not found.hidden
    assert found.advice == {"weight": "int4"}


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 0.5 * layer(x).relu()
        return x


def test_advice_holds_when_all_of_it_is_followed() -> None:
    """Each layer alone is above the floor in int4; together they are not."""
    model, x = Deep(), torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    found = tv.advise.quantization(model, x, formats="int4")
    assert set(found.alone.values()) == {"int4"}
    assert found.whole[0].output_db is not None and found.whole[0].output_db < found.floor_db
    taken_back = [name for name, form in found.advice.items() if form is None]
    assert 0 < len(taken_back) < 8
    followed = copy.deepcopy(model)
    for name, form in found.advice.items():
        if form is not None:
            parameter = followed.get_parameter(name)
            parameter.data = FORMATS[form].weight(parameter.data)
    with torch.no_grad():
        reached = sqnr(model(x), followed(x))
    assert reached is not None and reached >= found.floor_db
    assert found.advised is not None
    assert found.advised.whole.output_db == pytest.approx(reached, abs=1e-3)
    assert found.advised.alone_db == pytest.approx(found.whole[0].output_db)
    worst = {row.weight for row in found.sensitive[: len(taken_back)]}
    assert worst == set(taken_back)
    assert f"{len(taken_back)} of 16" in found.facts()["advised"]


def test_one_step_less_taken_back_would_not_do() -> None:
    model, x = Deep(), torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    found = tv.advise.quantization(model, x, formats="int4")
    taken_back = [row.weight for row in found.sensitive if found.advice[row.weight] is None]
    followed = copy.deepcopy(model)
    for name in {*found.advice} - {*taken_back[:-1]}:
        parameter = followed.get_parameter(name)
        parameter.data = FORMATS["int4"].weight(parameter.data)
    with torch.no_grad():
        reached = sqnr(model(x), followed(x))
    assert reached is not None and reached < found.floor_db


def test_the_bytes_of_a_mixed_advice_are_those_of_its_formats() -> None:
    model, x = Deep(), torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    found = tv.advise.quantization(model, x)
    assert set(found.advice.values()) == {"int4", "int8"}
    after = {(row.weight, row.format): row.bytes_after for row in found.rows}
    assert found.advised is not None
    assert found.advised.whole.bytes_after == sum(after[name, form] for name, form in found.advice.items())
    assert found.advised.whole.bytes_before == 16 * 64 * 64 * 4


def test_nothing_is_advised_together_where_nothing_is_advised() -> None:
    found = tv.advise.quantization(Deep(), torch.randn(2, 64), floor_db=1e9)
    assert set(found.advice.values()) == {None}
    assert "advised" not in found.facts()


def test_a_default_device_does_not_matter_to_a_weight_that_the_output_hides() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(4, 8)
    nn.init.zeros_(model[2].weight)
    with torch.device("meta"):
        found = tv.advise.quantization(model, x)
    assert set(found.hidden) == {"0.weight", "2.weight"}


class Counting(nn.Module):
    """A layer that counts its runs in a buffer, and is interrupted by a batch of five."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs = self.runs + 1
        if x.shape[0] == 5:
            raise KeyboardInterrupt
        return x


@pytest.mark.parametrize("rows", [4, 5])
def test_the_model_is_not_changed_by_a_run_that_is_interrupted(rows: int) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), Counting())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyboardInterrupt) if rows == 5 else contextlib.nullcontext():
        tv.advise.quantization(model, torch.randn(rows, 8), effect=False)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_no_floor_is_so_low_that_what_is_hidden_gets_advice() -> None:
    found = tv.advise.quantization(head_of_zeros(), X, floor_db=-math.inf)
    assert found.advice == {"0.weight": None, "2.weight": None}


class Chosen(Deep):
    """A model that gives whole numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).argmax(-1)


@pytest.mark.parametrize(
    ("model", "effect"), [(Deep(), False), (Chosen(), True)], ids=["not asked", "integers"]
)
def test_nothing_is_said_of_formats_together_where_nothing_was_run_together(
    model: nn.Module, effect: bool
) -> None:
    found = tv.advise.quantization(model, torch.randn(2, 64), effect=effect, floor_db=20.0)
    assert any(found.advice.values()) and found.advice == found.alone
    assert found.advised is None and "advised" not in found.facts()
    assert {title for row in found.listings()[1].to_dict() for title in row} == {"weight", "format"}
    assert "together" not in " ".join(str(found).split()).replace("not run together", "")
    assert any("not run together" in note for note in found.notes())
