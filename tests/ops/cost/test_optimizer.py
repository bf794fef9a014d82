"""Operators on lists and fused optimizer steps cost what their tensors one by one do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.kit.cost_proofs import assert_values, cost_of, double, traced
from tests.kit.counting import counting, flops, numbers, sqrt


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add", (1.5,)),
        ("mul", (2.0,)),
        ("div", (3.0,)),
        ("sqrt", ()),
        ("exp", ()),
        ("sigmoid", ()),
        ("reciprocal", ()),
        ("rsqrt", ()),
        ("neg", ()),
        ("abs", ()),
        ("tanh", ()),
        ("clamp_min", (0.5,)),
        ("pow", (3.0,)),
    ],
)
def test_a_list_is_its_tensors(name: str, args: tuple[Any, ...]) -> None:
    tensors = [double(3, low=0.5), double(2, 4, low=0.5)]
    many = cost_of(traced(lambda: getattr(torch, f"_foreach_{name}")(tensors, *args)))
    each = [cost_of(traced(lambda x: getattr(torch, name)(x, *args), tensor)) for tensor in tensors]
    assert (many.flops, many.bytes) == (sum(one.flops for one in each), sum(one.bytes for one in each))


def test_lists_of_several() -> None:
    a, b, c = ([double(3), double(2, 4)] for _ in range(3))
    cases = {
        "add": (lambda: torch._foreach_add(a, b, alpha=2), lambda x, y, z: torch.add(x, y, alpha=2)),
        "lerp": (lambda: torch._foreach_lerp(a, b, 0.3), lambda x, y, z: torch.lerp(x, y, 0.3)),
        "addcmul": (lambda: torch._foreach_addcmul(a, b, c, 1), torch.addcmul),
        "addcdiv": (
            lambda: torch._foreach_addcdiv(a, b, c, [1.0, 2.0]),
            lambda x, y, z: torch.addcdiv(x, y, z, value=1 if x.dim() == 1 else 2),
        ),
        "norm": (lambda: torch._foreach_norm(a), lambda x, y, z: torch.linalg.vector_norm(x)),
    }
    for many, one in cases.values():
        each = [cost_of(traced(one, *row)).flops for row in zip(a, b, c)]
        assert cost_of(traced(many)).flops == sum(each)


def state(*names: str) -> dict[str, torch.Tensor]:
    return {name: double(5, low=0.5) for name in names}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adam(kind: str, decay: float) -> None:
    s, step = state("p", "g", "m", "v"), torch.tensor(3.0)
    p, g, m, v = (numbers(s[name]) for name in "pgmv")
    with counting() as tally:
        first, second = 1 - 0.9**3, (1 - 0.99**3) ** 0.5
        if decay and kind == "adam":
            g = g + p * decay
        elif decay:
            p = p - p * (0.01 * decay)
        m = m + (g - m) * 0.1
        v = v * 0.99 + g * g * 0.01
        p = p - m / (sqrt(v) / second + 1e-8) * (0.01 / first)

    def fused() -> None:
        lists = [[s["p"]], [s["g"]], [s["m"]], [s["v"]], [], [step]]
        options = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": decay, "eps": 1e-8}
        getattr(torch, f"_fused_{kind}_")(*lists, **options, amsgrad=False, maximize=False)

    found = cost_of(traced(fused), f"_fused_{kind}_")
    assert_values([s["p"], s["m"], s["v"]], (p, m, v))
    assert found.flops == flops(tally)
    assert found.bytes == 8 * 5 * (4 + 3) + 4  # reads all four and the step, writes all but the gradient


@pytest.mark.parametrize(
    ("nesterov", "dampening", "decay"), [(False, 0.0, 0.0), (True, 0.0, 0.1), (False, 0.5, 0.1)]
)
def test_sgd(nesterov: bool, dampening: float, decay: float) -> None:
    s = state("p", "g", "b")
    p, g, b = (numbers(s[name]) for name in "pgb")
    with counting() as tally:
        g = g + p * decay if decay else g
        b = b * 0.9 + (g * (1 - dampening) if dampening else g)
        step = g + b * 0.9 if nesterov else b
        p = p - step * 0.1

    def fused() -> None:
        options = {
            "weight_decay": decay,
            "momentum": 0.9,
            "lr": 0.1,
            "dampening": dampening,
            "nesterov": nesterov,
        }
        torch._fused_sgd_([s["p"]], [s["g"]], [s["b"]], **options, maximize=False, is_first_step=False)

    found = cost_of(traced(fused), "_fused_sgd_")
    assert_values([s["p"], s["b"]], (p, b))
    assert found.flops == flops(tally)


def test_adagrad() -> None:
    s, step = state("p", "g", "s"), torch.tensor(3.0)
    p, g, total = (numbers(s[name]) for name in "pgs")
    with counting() as tally:
        total = total + g * g
        p = p - g / (sqrt(total) + 1e-8) * 0.1

    def fused() -> None:
        options = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
        torch._fused_adagrad_([s["p"]], [s["g"]], [s["s"]], [step], **options)

    found = cost_of(traced(fused), "_fused_adagrad_")
    assert_values([s["p"], s["s"]], (p, total))
    assert found.flops == flops(tally)


def test_a_fused_step_is_a_step_of_lists() -> None:
    def cost(**options: bool) -> int:
        torch.manual_seed(0)
        weights = [torch.randn(40, 30, requires_grad=True), torch.randn(70, requires_grad=True)]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer = torch.optim.Adam(weights, weight_decay=0.1, **options)
        optimizer.step()
        return cost_of(traced(optimizer.step)).flops

    each = np.array([cost(fused=True), cost(foreach=True), cost(foreach=False)]) / (40 * 30 + 70)
    assert each[0] == pytest.approx(15, abs=0.1)
    assert np.ptp(each) < 2  # the ways to write it differ by one product here and there
