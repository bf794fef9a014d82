"""Training steps are compared: what a step does more leaves the rest of it as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv


class Twice(nn.Module):
    """A layer that is called twice, so that its gradients are sums."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), Twice(), nn.TransformerEncoderLayer(4, 2, 8, 0.0)],
    ids=["layers", "shared", "transformer"],
)
def test_clipping_gradients_only_adds_to_a_step(model: nn.Module) -> None:
    optimizer, x = torch.optim.SGD(model.parameters(), 0.1), torch.randn(2, 4)

    def step(clip: bool) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    found = tv.compare(tv.trace(step, False), tv.trace(step, True))
    assert not found.removed and not found.changed
    assert {node.phase for node in found.added} == {"optimizer"}


class Counting(torch.optim.Optimizer):
    """Counts its steps in plain numbers, as optimizers of other packages do."""

    def __init__(self, parameters: Any, decay: float = 0.9) -> None:
        super().__init__(parameters, {"lr": 0.1, "step": 0})
        self.decay = decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] += 1
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * (self.decay ** group["step"]))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    kind.__name__: kind
    for kind in (
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.Adamax,
        torch.optim.SGD,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
    )
} | {
    "foreach": partial(torch.optim.AdamW, foreach=True),
    "counting": Counting,
}


def stepped(
    make: Callable[..., torch.optim.Optimizer], steps: int, change: Callable[[Any], None]
) -> tv.Trace:
    """One step of a small model after some others."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    optimizer = make(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(steps):
        step()
    change(optimizer)
    return tv.trace(step)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_that_a_step_is_a_later_one_is_no_change(name: str, tmp_path: Path) -> None:
    runs = [stepped(OPTIMIZERS[name], steps, lambda optimizer: None) for steps in (1, 3)]
    assert tv.compare(*runs).same
    for number, run in enumerate(runs):
        run.save(tmp_path / f"{number}.tvz")
    assert tv.compare(*(tv.load(tmp_path / f"{number}.tvz") for number in range(2))).same


def set_rate(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.02


@pytest.mark.parametrize("steps", [1, 3])
def test_another_rate_is_a_change_in_any_step(steps: int) -> None:
    runs = [stepped(torch.optim.Adam, 1, lambda optimizer: None), stepped(torch.optim.Adam, steps, set_rate)]
    assert not tv.compare(*runs).same


def test_another_constant_in_the_same_step_is_a_change() -> None:
    runs = [stepped(partial(Counting, decay=decay), 1, lambda optimizer: None) for decay in (0.9, 0.8)]
    assert not tv.compare(*runs).same


def test_a_setting_that_operations_read_from_memory_is_a_change() -> None:
    def step(etas: tuple[float, float]) -> tv.Trace:
        torch.manual_seed(0)
        layer, x = nn.Linear(4, 4), torch.ones(2, 4)
        optimizer = torch.optim.Rprop(layer.parameters(), etas=etas)

        def run() -> None:
            optimizer.zero_grad()
            layer(x).sum().backward()
            optimizer.step()

        return tv.trace(run)

    comparison = tv.compare(step((0.5, 1.2)), step((0.5, 1.3)))
    assert not comparison.same
    assert [str(line) for line in comparison.lines] == ["Rprop etas (0.5, 1.2) → (0.5, 1.3)"]
    assert tv.compare(step((0.5, 1.2)), step((0.5, 1.2))).same


def test_the_rate_that_a_scheduler_began_with_is_no_change_of_its_own() -> None:
    def step(rate: float) -> tv.Trace:
        torch.manual_seed(0)
        layer, x = nn.Linear(4, 4), torch.ones(2, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)

        def run() -> None:
            layer(x).sum().backward()
            optimizer.step()
            schedule.step()

        return tv.trace(run)

    lines = tv.compare(step(0.1), step(0.2)).lines
    assert [str(line) for line in lines] == ["SGD lr 0.1 → 0.2"]
