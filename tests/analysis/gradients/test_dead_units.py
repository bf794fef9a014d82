"""Units that never change and let no gradient through, by what the gradients of a run say themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv

ACTIVATIONS = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.ReLU6(inplace=True),
    nn.Hardtanh(),
    nn.Threshold(0.1, 0.0),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.SiLU(),
    nn.SiLU(inplace=True),
    nn.Hardswish(inplace=True),
    nn.Hardsigmoid(),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.ELU(),
    nn.SELU(),
    nn.Mish(),
    nn.Softplus(),
    nn.LeakyReLU(),
]


def first_layer(activation: nn.Module) -> nn.Sequential:
    """Units 0 to 3 are far below zero and 4 to 5 far above, for whatever comes in; 6 is at zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), activation, nn.Linear(16, 2))
    with torch.no_grad():
        model[0].bias[:4], model[0].bias[4:6] = -1000, 1000
        model[0].weight[6], model[0].bias[6] = 0, 0
    return model


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_units_are_stuck_exactly_where_no_gradient_gets_through(activation: nn.Module) -> None:
    model, x = first_layer(activation), torch.randn(4, 8)
    flow = tv.trace(model, x, backward=True).gradients()
    gone = set((model[0].weight.grad == 0).all(1).nonzero().flatten().tolist())
    if isinstance(activation, nn.LeakyReLU):
        assert not flow.rectifiers and not gone
        return
    (row,) = flow.rectifiers
    assert row.units == 16 and {*row.dead_units, *row.saturated_units} == gone
    with torch.no_grad():
        made = nn.Sequential(*model[:2])(x)
    assert (made[:, list(row.dead_units)] == 0).all()
    assert (made[:, list(row.saturated_units)] != 0).all()
    assert (row.dead, row.saturated) == (len(row.dead_units), len(row.saturated_units))
    assert flow.facts()["dead units"] == f"{row.dead} of 16"
    assert ("saturated units" in flow.facts()) == bool(row.saturated)


def test_a_channel_at_its_upper_bound_is_saturated() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU6(inplace=True), nn.Flatten(), nn.Linear(36, 1))
    with torch.no_grad():
        model[0].bias[:] = torch.tensor([0.0, 100.0, -100.0, 0.0])
    flow = tv.trace(model, torch.randn(2, 1, 3, 3), backward=True).gradients()
    (row,) = flow.rectifiers
    assert row.saturated_units == (1,) and 2 in row.dead_units
    (listed,) = flow.to_dict()["Units that are stuck for the whole batch"]
    assert listed["saturated"] == 1 and list(listed["saturated_units"]) == [1]


def test_zero_that_came_in_is_not_dead() -> None:
    """GELU of zero is zero, and its slope a half."""
    model = first_layer(nn.GELU())
    (row,) = tv.trace(model, torch.zeros(4, 8), backward=True).gradients().rectifiers
    assert row.dead_units == (0, 1, 2, 3)


def test_what_has_no_gradient_is_not_looked_at() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * torch.full((1, 2), 1000.0).sigmoid()

    assert not tv.trace(Gated(), torch.randn(4, 8), backward=True).gradients().rectifiers


def test_recomputed_activations_are_looked_at() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = first_layer(nn.GELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    flow = tv.trace(Checkpointed(), torch.randn(4, 8), backward=True).gradients()
    assert {row.dead_units for row in flow.rectifiers} == {(0, 1, 2, 3)}


def test_integers_that_become_floats_have_no_slope_to_ask_for() -> None:
    weight = torch.ones(3, requires_grad=True)

    def step(x: torch.Tensor, w: torch.Tensor) -> None:
        (x.clamp_min(0.5) * w).sum().backward()

    flow = tv.trace(step, torch.zeros(2, 3, dtype=torch.long), weight).gradients()
    assert [(row.units, row.dead) for row in flow.rectifiers] == [(3, 0)]


def test_bounds_in_a_tensor_are_left_out_where_they_cannot_be_looked_at() -> None:
    def step(x: torch.Tensor) -> None:
        torch.clamp(x, min=torch.zeros(3)).sum().backward()

    stuck = tv.trace(step, torch.full((2, 3), -1.0, requires_grad=True)).gradients()
    assert not stuck.rectifiers and "dead units" not in stuck.facts()
    moving = tv.trace(step, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)).gradients()
    assert [(row.units, row.dead) for row in moving.rectifiers] == [(3, 0)]


class Turned(nn.Module):
    """Channels that are moved to the end, as tokens of an image are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2).transpose(1, 2)


LAYERS = {
    "signal": ([nn.Conv1d(3, 5, 1), nn.ReLU()], (2, 3, 7)),
    "without a batch": ([nn.Conv1d(3, 5, 1), nn.ReLU()], (3, 7)),
    "image without a batch": ([nn.Conv2d(3, 5, 1), nn.ReLU()], (3, 7, 6)),
    "in place": ([nn.Conv1d(3, 5, 1), nn.Dropout(0.5), nn.ReLU(inplace=True)], (2, 3, 7)),
    "pooled": ([nn.Conv1d(3, 5, 1), nn.MaxPool1d(2), nn.ReLU()], (2, 3, 8)),
    "of statistics": ([nn.Conv1d(3, 5, 1), nn.BatchNorm1d(5).eval(), nn.ReLU()], (2, 3, 7)),
    "tokens": ([nn.Conv2d(3, 5, 1), Turned(), nn.ReLU()], (2, 3, 7, 6)),
    "features": ([nn.Linear(3, 5), nn.ReLU()], (2, 7, 3)),
    "features of an image": ([nn.Linear(3, 5), nn.ReLU()], (2, 7, 6, 3)),
}


@pytest.mark.parametrize("layers, shape", LAYERS.values(), ids=LAYERS.keys())
def test_units_are_channels_wherever_these_lie(layers: list[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*layers)
    with torch.no_grad():
        model[0].bias[:] = torch.tensor([2.0, 2.0, -100.0, 2.0, 2.0])
    flow = tv.trace(model, torch.randn(shape), backward=True).gradients()
    (row,) = flow.rectifiers
    assert (row.units, row.dead_units) == (5, (2,))


def test_channels_that_are_normalised_in_instances_stay_channels() -> None:
    model = nn.Sequential(nn.Conv1d(3, 5, 1), nn.InstanceNorm1d(5, affine=True), nn.ReLU())
    with torch.no_grad():
        model[1].bias[2] = -100
    (row,) = tv.trace(model, torch.randn(2, 3, 7), backward=True).gradients().rectifiers
    assert (row.units, row.dead_units) == (5, (2,))
