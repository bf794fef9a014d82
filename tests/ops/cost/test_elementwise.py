"""Elementwise operators cost what their definition counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch.nn import functional

from tests.kit.cost_proofs import assert_values, cost_of, double, traced
from tests.kit.counting import (
    Array,
    array,
    choose,
    counting,
    erf,
    exp,
    expm1,
    flops,
    larger,
    log,
    log1p,
    numbers,
    ones_like,
    sigmoid,
    sin,
    smaller,
    sqrt,
    tanh,
    truncated,
    unit,
    zeros_like,
)
from torch_vis.ops.cost.elementwise import FREE, FUNCTIONS, WORK, Work

aten = torch.ops.aten
few = settings(max_examples=10)


def _silu_gradient(g: Array, x: Array) -> Array:
    s = sigmoid(x)
    return g * s * (1 + x * (1 - s))


def _mish_gradient(g: Array, x: Array) -> Array:
    t = tanh(log1p(exp(x)))
    return g * (t + x * sigmoid(x) * (1 - t * t))


def _sinc(x: Array) -> Array:
    scaled = x * math.pi
    return sin(scaled) / scaled


def _glu_gradient(g: Array, x: Array) -> Array:
    a, s = x[:, :2], sigmoid(x[:, 2:])
    first = g * s
    return np.concatenate([first, first * (1 - s) * a], axis=1)


def _softplus_gradient(g: Array, x: Array, beta: float) -> Array:
    z = exp(x * beta)
    return g * z / (z + 1)


def _gelu_gradient(g: Array, x: Array) -> Array:
    below = 0.5 * (1 + erf(x * math.sqrt(0.5)))
    density = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return g * (below + x * density)


# name: the operator, its definition; arguments are random numbers, as many as the definition takes
DEFINITIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (torch.add, lambda x, y: x + y),
    "sub": (torch.sub, lambda x, y: x - y),
    "mul": (torch.mul, lambda x, y: x * y),
    "div": (torch.div, lambda x, y: x / y),
    "neg": (torch.neg, lambda x: -x),
    "abs": (torch.abs, abs),
    "relu": (torch.relu, lambda x: larger(x, 0.0)),
    "clamp": (lambda x: torch.clamp(x, -1, 1), lambda x: smaller(larger(x, -1.0), 1.0)),
    "exp": (torch.exp, exp),
    "tanh": (torch.tanh, tanh),
    "sin": (torch.sin, sin),
    "reciprocal": (torch.reciprocal, lambda x: 1 / x),
    "rsqrt": (lambda x: torch.rsqrt(x.abs()), lambda x: 1 / sqrt(abs(x))),
    "frac": (torch.frac, lambda x: x - truncated(x)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.25), lambda x, y: x + 0.25 * (y - x)),
    "softshrink": (
        lambda x: functional.softshrink(x, 0.5),
        lambda x: choose(x > 0.5, x - 0.5, choose(x < -0.5, x + 0.5, zeros_like(x))),
    ),
    "leaky_relu": (lambda x: functional.leaky_relu(x, 0.1), lambda x: choose(x > 0, x, x * 0.1)),
    "leaky_relu_backward": (
        lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
        lambda g, x: choose(x > 0, g, g * 0.1),
    ),
    "_prelu_kernel": (aten._prelu_kernel, lambda x, w: choose(x > 0, x, w * x)),
    "_prelu_kernel_backward": (
        aten._prelu_kernel_backward,
        lambda g, x, w: (choose(x > 0, g, w * g), choose(x > 0, zeros_like(x), x * g)),
    ),
    "sigmoid": (torch.sigmoid, sigmoid),
    "sigmoid_backward": (aten.sigmoid_backward, lambda g, y: g * y * (1 - y)),
    "tanh_backward": (aten.tanh_backward, lambda g, y: g * (1 - y * y)),
    "silu": (functional.silu, lambda x: x / (1 + exp(-x))),
    "silu_backward": (aten.silu_backward, _silu_gradient),
    "mish": (functional.mish, lambda x: x * tanh(log1p(exp(x)))),
    "mish_backward": (aten.mish_backward, _mish_gradient),
    "hardsigmoid": (functional.hardsigmoid, lambda x: smaller(larger(x + 3, 0.0), 6.0) / 6),
    "hardsigmoid_backward": (aten.hardsigmoid_backward, lambda g, x: g / 6),
    "hardswish": (functional.hardswish, lambda x: x * smaller(larger(x + 3, 0.0), 6.0) / 6),
    "hardswish_backward": (aten.hardswish_backward, lambda g, x: g * (x / 3 + 0.5)),
    "log_sigmoid_forward": (
        lambda x: aten.log_sigmoid_forward(x)[0],
        lambda x: smaller(x, 0.0) - log1p(exp(-abs(x))),
    ),
    "log_sigmoid_backward": (
        lambda g, x: aten.log_sigmoid_backward(g, x, torch.exp(-x.abs())),
        lambda g, x: g / (1 + exp(x)),
    ),
    "logit": (lambda x: torch.logit(unit(x)), lambda x: log(unit(x) / (1 - unit(x)))),
    "logit_backward": (
        lambda g, x: aten.logit_backward(g, unit(x)),
        lambda g, x: g / (unit(x) * (1 - unit(x))),
    ),
    "logaddexp": (torch.logaddexp, lambda x, y: np.maximum(x, y) + log1p(exp(-abs(x - y)))),
    "xlogy": (lambda x, y: torch.xlogy(x, y.abs()), lambda x, y: x * log(abs(y))),
    "special_entr": (lambda x: torch.special.entr(x.abs()), lambda x: -abs(x) * log(abs(x))),
    "sinc": (torch.sinc, _sinc),
    "glu": (functional.glu, lambda x: x[:, :2] * sigmoid(x[:, 2:])),
    "glu_backward": (lambda g, x: aten.glu_backward(g[:, :2], x, 1), lambda g, x: _glu_gradient(g[:, :2], x)),
    "softplus": (lambda x: functional.softplus(x, beta=2), lambda x: log1p(exp(2 * x)) / 2),
    "softplus_backward": (
        lambda g, x: aten.softplus_backward(g, x, 2, 20),
        lambda g, x: _softplus_gradient(g, x, 2),
    ),
    "gelu": (functional.gelu, lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5)))),
    "gelu_backward": (aten.gelu_backward, _gelu_gradient),
    "elu": (lambda x: functional.elu(x, 0.5), lambda x: choose(x > 0, x, 0.5 * expm1(x))),
    "elu_backward": (
        lambda g, x: aten.elu_backward(g, 0.5, 1, 1, False, x),
        lambda g, x: choose(x > 0, g, g * (0.5 * exp(x))),
    ),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=3), lambda a, b, c: a + 3 * b * c),
    "addcdiv": (torch.addcdiv, lambda a, b, c: a + b / c),
    "native_dropout_backward": (
        lambda g, x: aten.native_dropout_backward(g, x > 0, 2.0),
        lambda g, x: g * choose(x > 0, ones_like(x), zeros_like(x)) * 2,
    ),
    "isclose": (
        lambda x, y: torch.isclose(x, y).double(),
        lambda x, y: (abs(x - y) <= 1e-8 + 1e-5 * abs(y)).astype(float),
    ),
}


def arity(reference: Callable[..., Any]) -> int:
    code = getattr(reference, "__code__", None)
    return 1 if code is None else code.co_argcount


@pytest.mark.parametrize("name", DEFINITIONS)
def test_an_elementwise_operator_is_its_definition(name: str) -> None:
    function, reference = DEFINITIONS[name]
    args = [double(3, 4) for _ in range(arity(reference))]
    with torch.inference_mode():  # which shows operators that are made of others as one
        trace = traced(function, *args)
    with counting() as tally:
        made = reference(*map(numbers, args))
    assert_values(trace.output, made)
    assert cost_of(trace, name)[:2] == (flops(tally), 0), tally


def test_every_definition_is_proved() -> None:
    known = {name: work for name, work in WORK.items() if work not in (Work(), Work(call=1))}
    same = {
        "special_": [name for name in known if name.startswith("special_")],
        "other names": "multiply divide true_divide square deg2rad rad2deg prelu log_sigmoid floor_divide".split(),
        "dropout, whose mask is random": "native_dropout _fused_dropout dropout feature_dropout alpha_dropout "
        "feature_alpha_dropout _masked_scale rrelu rrelu_with_noise rrelu_with_noise_backward".split(),
        "the same derivative": ["infinitely_differentiable_gelu_backward"],
        "base two": ["logaddexp2"],
    }
    assert set(known) - set(DEFINITIONS) - {name for names in same.values() for name in names} == set()


def test_comparisons_signs_and_roundings_are_free() -> None:
    x = double(5)
    free = [torch.sign, torch.floor, torch.round, torch.logical_not, torch.isnan, torch.signbit]
    both = [torch.maximum, torch.eq, torch.lt, torch.logical_and, torch.copysign]
    assert [cost_of(traced(each, x)).flops for each in free] == [0] * len(free)
    assert [cost_of(traced(each, x, x)).flops for each in both] == [0] * len(both)
    assert set(FREE.split()).isdisjoint(FUNCTIONS.split())


def test_a_result_that_is_stretched_counts_every_element() -> None:
    assert cost_of(traced(torch.add, double(3, 1), double(4))).flops == 12
    assert cost_of(traced(lambda x: torch.add(x, x, alpha=2), double(3))).flops == 6
    assert cost_of(traced(lambda x: x.add_(1), double(3))).flops == 3


def test_complex_numbers_from_real_ones_and_back() -> None:
    r, phi = double(5, low=0.5), double(5)
    made = traced(torch.polar, r, phi)
    with counting() as tally:
        real = numbers(r) * array((each.function(math.cos) for each in numbers(phi)), (5,))
        imaginary = numbers(r) * sin(numbers(phi))
    assert_values((made.output.real, made.output.imag), (real, imaginary))
    assert cost_of(made).flops == flops(tally)
    assert cost_of(traced(torch.abs, made.output)).flops == 5  # a root
    assert cost_of(traced(torch.sgn, made.output)).flops == 5 + 2 * 5  # and both parts divided by it
