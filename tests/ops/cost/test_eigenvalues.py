"""Singular values, eigenvalues and least squares: what is direct costs what the textbook loop counts.

What iterates is an estimate, and it is held against an iteration that is run here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.kit.cost_proofs import SIZES, assert_values, check, cost_of, dominant, double, substituted, traced
from tests.kit.counting import Array, Number, counting, dot, floats, flops, numbers, sqrt
from torch_vis.ops.cost.linalg import (
    BULGE_OF_THREE,
    BULGE_OF_TWO,
    TURNED,
    hessenberg_steps,
    rotations,
)

aten = torch.ops.aten  # of which the public functions ask for vectors whenever they are traced
TALL = [(1, 1), (2, 1), (3, 3), (5, 3), (6, 5)]


def singular_values(x: torch.Tensor) -> Any:
    return aten._linalg_svd(x, False, False)


def symmetric_values(x: torch.Tensor) -> Any:
    return aten._linalg_eigh(x, "L", False)


def reflected(vector: Array) -> tuple[Array, Any]:
    """Make a vector a multiple of the first unit vector in place; the rest of the direction, and the factor."""
    alpha, size = vector[0], sqrt(dot(vector, vector))
    beta = -size if alpha > 0 else size
    tau, scale = (beta - alpha) / beta, 1 / (alpha - beta)
    rest = vector[1:] * scale
    vector[0], vector[1:] = beta, Number(0)
    return rest, tau


def apply(rest: Array, tau: Any, column: Array) -> None:
    """Reflect another vector in place."""
    along = column[0]
    for v, c in zip(rest, column[1:]):
        along = along + v * c
    along = along * tau
    column[0] = column[0] - along
    for i, v in enumerate(rest):
        column[i + 1] = column[i + 1] - v * along


def two_diagonals(a: Array) -> Array:
    rows, columns = a.shape
    for j in range(columns):
        if rows - j > 1:
            rest, tau = reflected(a[j:, j])
            for k in range(j + 1, columns):
                apply(rest, tau, a[j:, k])
        if columns - j - 1 > 1:
            rest, tau = reflected(a[j, j + 1 :])
            for i in range(j + 1, rows):
                apply(rest, tau, a[i, j + 1 :])
    return a


def three_diagonals(a: Array) -> Array:
    """Only the lower half of a symmetric matrix is read and written."""
    for j in range(len(a) - 2):
        rest, tau = reflected(a[j + 1 :, j])
        v, b = np.array([Number(1), *rest]), a[j + 1 :, j + 1 :]
        p = np.array([tau * dot([b[max(i, k), min(i, k)] for k in range(len(v))], v) for i in range(len(v))])
        w = p - v * ((tau * 0.5) * dot(p, v))
        for i in range(len(v)):
            for k in range(i + 1):
                b[i, k] = b[i, k] - v[i] * w[k] - w[i] * v[k]
    return a


def one_diagonal_below(a: Array) -> Array:
    n = len(a)
    for j in range(n - 2):
        rest, tau = reflected(a[j + 1 :, j])
        for k in range(j + 1, n):
            apply(rest, tau, a[j + 1 :, k])
        for i in range(n):
            apply(rest, tau, a[i, j + 1 :])
    return a


@pytest.mark.parametrize(("rows", "columns"), TALL)
def test_singular_values(rows: int, columns: int) -> None:
    a = double(rows, columns)
    with counting() as tally:
        made = two_diagonals(numbers(a))
    np.testing.assert_allclose(np.linalg.svd(floats(made))[1], torch.linalg.svdvals(a), rtol=1e-9)
    sweeps = rotations(columns) * sum(BULGE_OF_TWO)
    for matrix in (a, a.T):
        assert cost_of(traced(singular_values, matrix)).flops == flops(tally) + sweeps


@pytest.mark.parametrize("n", SIZES)
def test_eigenvalues_of_a_symmetric_matrix(n: int) -> None:
    a = double(n, n)
    a = a + a.T
    with counting() as tally:
        made = floats(three_diagonals(numbers(a)))
    lower = np.tril(made)
    whole = lower + np.tril(lower, -1).T
    np.testing.assert_allclose(np.linalg.eigvalsh(whole), torch.linalg.eigvalsh(a), rtol=1e-9, atol=1e-9)
    sweeps = rotations(n) * sum(BULGE_OF_THREE)
    assert cost_of(traced(symmetric_values, a)).flops == flops(tally) + sweeps


@pytest.mark.parametrize("n", SIZES)
def test_the_direct_part_of_eigenvalues_of_any_matrix(n: int) -> None:
    a = double(n, n)
    with counting() as tally:
        made = floats(one_diagonal_below(numbers(a)))
    assert not np.tril(made, -2).any()
    np.testing.assert_allclose(
        np.sort_complex(np.linalg.eigvals(made)), np.sort_complex(np.linalg.eigvals(a.numpy())), rtol=1e-6
    )
    mac, *others = hessenberg_steps(n)
    assert flops(tally) == 2 * mac + sum(others)
    values, both = (cost_of(traced(f, a)).flops for f in (aten._linalg_eigvals, torch.linalg.eig))
    assert flops(tally) <= values <= both


def test_eigenvalues_grow_as_the_textbook_says() -> None:
    """``10 n³`` FLOPs for the values; ``25 n³`` with the triangular form, and the vectors from that."""
    n = 400
    a = torch.empty(n, n)
    values, both = (
        cost_of(traced(f, a.normal_())).flops / n**3 for f in (aten._linalg_eigvals, torch.linalg.eig)
    )
    assert values == pytest.approx(10, rel=0.01)
    assert both == pytest.approx(25 + 1 / 3 + 1, rel=0.01)


def test_vectors_are_the_reflections_and_rotations() -> None:
    rows, columns = 7, 4
    a = double(rows, columns)
    without = cost_of(traced(singular_values, a))
    thin = cost_of(traced(lambda x: torch.linalg.svd(x, full_matrices=False), a))
    turned = rotations(columns) * (rows + columns) * sum(TURNED)
    left = cost_of(traced(torch.linalg.householder_product, a, torch.rand(columns).double()))
    inner = torch.rand(columns - 1, columns - 1).double()
    right = cost_of(traced(torch.linalg.householder_product, inner, torch.rand(columns - 2).double()))
    assert thin.flops == without.flops + turned + left.flops + right.flops
    assert cost_of(traced(torch.linalg.svd, a)).flops > thin.flops


def rotations_taken(diagonal: np.ndarray, beside: np.ndarray) -> int:
    """How many rotations a symmetric matrix of three diagonals takes, by shifted steps until it has one."""
    n, count = len(diagonal), 0
    t = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    while n > 1:
        if abs(t[n - 1, n - 2]) < 1e-14 * (abs(t[n - 1, n - 1]) + abs(t[n - 2, n - 2])):
            n -= 1
            continue
        half, b = (t[n - 2, n - 2] - t[n - 1, n - 1]) / 2, t[n - 1, n - 2]
        shift = t[n - 1, n - 1] - b * b / (half + (1 if half >= 0 else -1) * np.hypot(half, b))
        q, r = np.linalg.qr(t[:n, :n] - shift * np.eye(n))
        t[:n, :n] = r @ q + shift * np.eye(n)
        count += n - 1
    return count


def test_two_sweeps_for_each_value_is_what_it_takes() -> None:
    random = np.random.default_rng(0)
    for n in (8, 20, 40):
        taken = np.mean(
            [rotations_taken(random.normal(size=n), random.normal(size=n - 1)) for _ in range(10)]
        )
        assert 0.6 < taken / rotations(n) < 1.4, (n, taken, rotations(n))


def test_complex_matrices_cost_more_in_their_direct_part() -> None:
    a = double(6, 6)
    for function in (singular_values, symmetric_values, aten._linalg_eigvals):
        real, other = (cost_of(traced(function, x)).flops for x in (a, a.to(torch.complex128)))
        assert real < other < 6 * real
    real, other = (cost_of(traced(aten._linalg_eigvals, x)).macs for x in (a, a.to(torch.complex128)))
    assert other == 4 * real


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (6, 3), (3, 6)])
def test_pseudo_inverses_are_made_of_their_parts(rows: int, columns: int) -> None:
    a, k = double(rows, columns), min(rows, columns)
    parts = cost_of(traced(lambda x: torch.linalg.svd(x, full_matrices=False), a))
    product = cost_of(traced(torch.mm, double(columns, k), double(k, rows)))
    found = cost_of(traced(torch.linalg.pinv, a), "linalg_pinv")
    assert found.flops == parts.flops + product.flops + columns * k + k + 1
    square = double(4, 4)
    hermitian = cost_of(traced(lambda x: torch.linalg.pinv(x, hermitian=True), square + square.T))
    assert hermitian.flops < cost_of(traced(torch.linalg.pinv, square)).flops


# Least squares


def reduced(a: Array, b: Array, *, exchange: bool) -> list[int]:
    """Reflections of the columns in place, those of b with them; the order of the columns."""
    rows, columns = a.shape
    order = list(range(columns))
    sizes = [sqrt(dot(a[:, k], a[:, k])) for k in range(columns)] if exchange else []
    for j in range(min(rows, columns)):
        if exchange:
            best = max(range(j, columns), key=lambda k: float(sizes[k]))
            a[:, [j, best]] = a[:, [best, j]]
            order[j], order[best] = order[best], order[j]
            sizes[best] = sizes[j]
        if rows - j > 1:
            rest, tau = reflected(a[j:, j])
            for other, first in ((a, j + 1), (b, 0)):
                for k in range(first, other.shape[1]):
                    apply(rest, tau, other[j:, k])
        for k in range(j + 1, columns) if exchange else ():
            share = abs(a[j, k]) / sizes[k]
            sizes[k] = sizes[k] * sqrt(larger_than_nothing(1 - share * share))
    return order


def larger_than_nothing(x: Number) -> Number:
    """A difference that rounding made negative."""
    return x if x > 0 else Number(0)


@pytest.mark.parametrize("driver", ["gels", "gelsy"])
@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (6, 3), (5, 1)])
def test_least_squares(rows: int, columns: int, driver: str) -> None:
    a, b = double(rows, columns), double(rows, 2)

    def reference(a: Array, b: Array) -> Array:
        order = reduced(a, b, exchange=driver == "gelsy")
        solved = substituted(a[:columns], b[:columns], lower=False, unit=False)
        return solved[np.argsort(order)]

    trace = traced(lambda a, b: torch.linalg.lstsq(a, b, driver=driver)[0], a, b)
    with counting() as tally:
        made = reference(*map(numbers, (a, b)))
    assert_values(trace.output, made)
    over = 2 * max(rows - columns, 0) * 2 if driver == "gels" else 0  # the sums of the squares that remain
    assert cost_of(trace, "linalg_lstsq").flops == flops(tally) + over


def test_least_squares_of_a_wide_matrix() -> None:
    rows, columns = 3, 5
    a, b = double(rows, columns), double(rows, 2)

    def reference(a: Array, b: Array) -> Array:
        turned, kept = a.T.copy(), []
        for j in range(rows):
            kept.append(reflected(turned[j:, j]))
            for k in range(j + 1, rows):
                apply(*kept[j], turned[j:, k])
        solved = substituted(turned[:rows].T, b, lower=True, unit=False)
        made = np.concatenate([solved, numbers(torch.zeros(columns - rows, 2))])
        for j in reversed(range(rows)):
            for k in range(2):
                apply(*kept[j], made[j:, k])
        return made

    check(lambda a, b: torch.linalg.lstsq(a, b, driver="gels")[0], reference, a, b, op="linalg_lstsq")
    by_values = cost_of(traced(lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd")[0], a, b))
    assert by_values.flops > cost_of(traced(lambda a: torch.linalg.svd(a, full_matrices=False), a)).flops


# Symmetric factorisation


@pytest.mark.parametrize("n", SIZES)
def test_symmetric_factors(n: int) -> None:
    a = dominant(n)
    a, b = a + a.T, double(n, 2)

    check(lambda a: torch.linalg.ldl_factor(a)[0].tril(), _factored(n), a, op="linalg_ldl_factor_ex")
    factor, pivots = torch.linalg.ldl_factor(a)

    def solved(factor: Array, b: Array) -> Array:
        between = substituted(factor, b, lower=True, unit=True)
        for i in range(n):
            between[i] = between[i] / factor[i, i]
        return substituted(factor.T, between, lower=False, unit=True)

    trace = traced(lambda f, b: torch.linalg.ldl_solve(f, pivots, b), factor, b)
    with counting() as tally:
        made = solved(numbers(factor), numbers(b))
    assert_values(trace.output, made)
    assert cost_of(trace, "linalg_ldl_solve").flops == flops(tally)


def _factored(n: int) -> Any:
    """The factor below the diagonal and the pivots on it."""

    def factored(a: Array) -> Array:
        for j in range(n):
            column = a[:, j].copy()
            for i in range(j + 1, n):
                a[i, j] = column[i] / column[j]
            for i in range(j + 1, n):
                for k in range(j + 1, i + 1):
                    a[i, k] = a[i, k] - a[i, j] * column[k]
        for i in range(n):
            for k in range(i + 1, n):
                a[i, k] = Number(0)
        return a

    return factored


# Exponentials


def test_an_exponential_is_five_products() -> None:
    """Of a matrix whose norm is between 1.5 and 3, for which torch takes the highest degree without squaring."""
    n = 6
    a = torch.rand(2, n, n)
    a = 2 * a / a.sum(-2).amax()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.matrix_exp(a)
    products = sum(event.count for event in profile.key_averages() if event.key == "aten::bmm")
    assert cost_of(traced(torch.matrix_exp, a)).macs == products * 2 * n**3
    assert cost_of(traced(torch.matrix_exp, torch.rand(3, 1, 1))).flops == 3


def test_a_batch_is_so_many_of_each() -> None:
    one = double(4, 4)
    for function in (torch.linalg.svd, torch.linalg.eigh, torch.linalg.eig, torch.linalg.pinv):
        assert (
            cost_of(traced(function, one.expand(5, 4, 4).clone())).flops
            == 5 * cost_of(traced(function, one)).flops
        )
