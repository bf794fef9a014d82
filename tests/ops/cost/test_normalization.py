"""Softmax and normalisations, and their gradients, cost what their definition counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.kit.cost_proofs import assert_counts, assert_values, cost_of, double, formula, tensor, traced
from tests.kit.counting import Array, array, counting, dot, exp, flops, log, numbers, sqrt

aten = torch.ops.aten
few = settings(max_examples=10)


def rows(x: Array, each: Any) -> Array:
    return array([each(row) for row in x], (len(x),))


def softmax(row: Array) -> Array:
    powers = exp(row - max(row))
    return powers / sum(powers)


def log_softmax(row: Array) -> Array:
    centred = row - max(row)
    return centred - log(sum(exp(centred)))


@few
@given(st.integers(1, 3), st.integers(1, 5))
def test_softmax_and_its_gradient(m: int, n: int) -> None:
    x, g = double(m, n), double(m, n)
    assert_counts(
        lambda x: torch.softmax(x, 1), lambda x: np.stack([softmax(r) for r in x]), x, op="_softmax"
    )
    assert_counts(
        lambda x: torch.log_softmax(x, 1),
        lambda x: np.stack([log_softmax(r) for r in x]),
        x,
        op="_log_softmax",
    )
    assert_counts(
        lambda g, y: aten._softmax_backward_data(g, y, 1, torch.float64),
        lambda g, y: np.stack([b * (a - dot(a, b)) for a, b in zip(g, y)]),
        g,
        torch.softmax(x, 1),
        op="_softmax_backward_data",
    )
    assert_counts(
        lambda g, y: aten._log_softmax_backward_data(g, y, 1, torch.float64),
        lambda g, y: np.stack([a - exp(b) * sum(a) for a, b in zip(g, y)]),
        g,
        torch.log_softmax(x, 1),
        op="_log_softmax_backward_data",
    )


def moments(row: Array, eps: float = 1e-5) -> tuple[Array, Any]:
    """A group with its mean taken off, and the inverse of its deviation."""
    centred = row - sum(row) / len(row)
    return centred, 1 / sqrt(dot(centred, centred) / len(row) + eps)


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine: bool) -> None:
    x, w, b = double(3, 5), double(5), double(5)

    def reference(x: Array) -> Array:
        made = []
        for row in x:
            centred, rstd = moments(row)
            made.append(centred * rstd * numbers(w) + numbers(b) if affine else centred * rstd)
        return np.stack(made)

    given_ = (w, b) if affine else (None, None)
    assert_counts(lambda x: torch.layer_norm(x, (5,), *given_), reference, x, op="native_layer_norm")


def spread(g: Array, y: Array, rstd: Any, factor: Array | None = None) -> Array:
    """The gradient through a normalisation."""
    weighted = g if factor is None else g * factor
    return rstd * (weighted - sum(weighted) / len(g) - y * (dot(weighted, y) / len(g)))


def test_layer_norm_backward() -> None:
    x, g, w, b = double(3, 5), double(3, 5), double(5), double(5)
    _, average, rstd = aten.native_layer_norm(x, [5], w, b, 1e-5)

    def reference(g: Array, x: Array, average: Array, rstd: Array, w: Array) -> Any:
        y = [(row - m) * s for row, m, s in zip(x, average.reshape(-1), rstd.reshape(-1))]
        dx = np.stack([spread(a, c, s, w) for a, c, s in zip(g, y, rstd.reshape(-1))])
        dw = array([dot(g[:, i], [row[i] for row in y]) for i in range(5)], (5,))
        return dx, dw, rows(g.T, sum)

    assert_counts(
        lambda g, x, m, s, w: aten.native_layer_norm_backward(g, x, [5], m, s, w, b, [True, True, True]),
        reference,
        g,
        x,
        average,
        rstd,
        w,
        op="native_layer_norm_backward",
    )


def test_group_norm_is_layer_norm_of_its_groups() -> None:
    x, w, b = double(2, 6, 4), double(6), double(6)
    one = cost_of(traced(functional.group_norm, x, 3, w, b), "native_group_norm")
    parts = cost_of(traced(torch.layer_norm, double(6, 8), (8,), double(8), double(8)))
    assert one.flops == parts.flops
    grads = [True, True, True]
    mean_, rstd = aten.native_group_norm(x, w, b, 2, 6, 4, 3, 1e-5)[1:]
    back = traced(
        lambda *a: aten.native_group_norm_backward(*a, 2, 6, 4, 3, grads), double(2, 6, 4), x, mean_, rstd, w
    )
    rows_ = double(6, 8)
    m, s = aten.native_layer_norm(rows_, [8], None, None, 1e-5)[1:]
    same = traced(
        lambda *a: aten.native_layer_norm_backward(*a, double(8), double(8), grads),
        double(6, 8),
        rows_,
        [8],
        m,
        s,
    )
    assert (
        cost_of(back, "native_group_norm_backward").flops == cost_of(same, "native_layer_norm_backward").flops
    )


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool) -> None:
    x, w, b = double(4, 3, 2), double(3), double(3)
    m, v = double(3), double(3, low=0.5, high=1)

    def channels(x: Array) -> Array:
        return x.transpose(1, 0, 2).reshape(3, -1)

    def reference(x: Array, w: Array, b: Array, m: Array, v: Array) -> Any:
        made = []
        for i, row in enumerate(channels(x)):
            if training:
                average = sum(row) / len(row)
                centred = row - average
                spread_ = dot(centred, centred) / len(row)
                m[i] = m[i] * 0.9 + average * 0.1
                v[i] = v[i] * 0.9 + (spread_ * (8 / 7)) * 0.1
                rstd = 1 / sqrt(spread_ + 1e-5)
            else:
                centred, rstd = row - m[i], 1 / sqrt(v[i] + 1e-5)
            made.append(centred * rstd * w[i] + b[i])
        return np.stack(made).reshape(3, 4, 2).transpose(1, 0, 2)

    def function(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        return aten.native_batch_norm(x, w, b, m.clone(), v.clone(), training, 0.1, 1e-5)

    assert_counts(function, reference, x, w, b, m, v, op="native_batch_norm")


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_backward(training: bool) -> None:
    x, g, w = double(4, 3), double(4, 3), double(3)
    m, v = double(3), double(3, low=0.5, high=1)
    _, average, rstd = aten.native_batch_norm(x, w, None, m.clone(), v.clone(), True, 0.1, 1e-5)

    def reference(g: Array, x: Array, w: Array, average: Array, rstd: Array, v: Array) -> Any:
        made: list[list[Any]] = [[], [], []]
        for i in range(3):
            row, up = x[:, i], g[:, i]
            inverse = rstd[i] if training else 1 / sqrt(v[i] + 1e-5)
            y = (row - average[i]) * inverse
            along, total = dot(up, y), sum(up)
            if training:
                made[0].append((w[i] * inverse) * (up - total / 4 - y * (along / 4)))
            else:
                made[0].append(up * (w[i] * inverse))
            made[1].append(along)
            made[2].append(total)
        return np.stack(made[0]).T, array(made[1], (3,)), array(made[2], (3,))

    def function(g: Any, x: Any, w: Any, average: Any, rstd: Any, v: Any) -> Any:
        nothing = torch.empty(0, dtype=torch.float64)
        saved = (average, rstd) if training else (nothing, nothing)
        call = aten.native_batch_norm_backward
        return call(g, x, w, average, v, *saved, training, 1e-5, [True, True, True])

    assert_counts(function, reference, g, x, w, average, rstd, v, op="native_batch_norm_backward")


def test_rms_norm() -> None:
    x, w = double(3, 5), double(5)

    def reference(x: Array, w: Array) -> Array:
        return np.stack([row * (1 / sqrt(dot(row, row) / len(row) + 1e-6)) * w for row in x])

    with torch.inference_mode():
        assert_counts(lambda x, w: torch.rms_norm(x, (5,), w, 1e-6), reference, x, w, op="rms_norm")


def test_weight_norm() -> None:
    v, g = double(3, 4), double(3, 1)

    def reference(v: Array, g: Array) -> Any:
        sizes = [sqrt(dot(row, row)) for row in v]
        return np.stack([row * (g[i, 0] / size) for i, (row, size) in enumerate(zip(v, sizes))])

    assert_counts(
        lambda v, g: aten._weight_norm_interface(v, g, 0), reference, v, g, op="_weight_norm_interface"
    )


def test_the_gradients_of_rms_norm_and_weight_norm() -> None:
    x, g, w = double(3, 5).requires_grad_(), double(3, 5), double(5).requires_grad_()
    torch.rms_norm(x, (5,), w, 1e-6).backward(g)
    rstd = (x.square().mean(1) + 1e-6).rsqrt()
    with counting() as tally:
        up, scale, inverse = numbers(g), numbers(w), numbers(rstd)
        y = numbers(x) * inverse[:, None]
        weighted = up * scale
        dx = [s * (a - b * (dot(a, b) / 5)) for a, b, s in zip(weighted, y, inverse)]
        dw = [dot(up[:, i], y[:, i]) for i in range(5)]
    assert_values((x.grad, w.grad), (np.stack(dx), array(dw, (5,))))
    types = (tensor(3, 5), tensor(3, 5), (5,), tensor(3, 1), tensor(5), (True, True))
    assert formula("_fused_rms_norm_backward", *types).flops == flops(tally)

    v, size = double(3, 4), double(3, 1)
    norms = torch.linalg.vector_norm(v, dim=1, keepdim=True)

    def reference(g: Array, v: Array, size: Array, norms: Array) -> Any:
        made: list[Any] = []
        for a, row, s, n in zip(g, v, size[:, 0], norms[:, 0]):
            along = dot(a, row)
            made.append(((s / n) * (a - row * (along / (n * n))), along / n))
        return np.stack([each[0] for each in made]), array([each[1] for each in made], (3, 1))

    assert_counts(
        lambda *given: aten._weight_norm_interface_backward(*given, 0),
        reference,
        double(3, 4),
        v,
        size,
        norms,
        op="_weight_norm_interface_backward",
    )
