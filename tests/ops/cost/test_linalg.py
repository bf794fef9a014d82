"""Factorisations and solvers cost what the textbook loop counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kit.cost_proofs import SIZES, check, cost_of, dominant, double, substituted, traced
from tests.kit.counting import Array, array, dot, sqrt


def eliminated(a: Array) -> Array:
    """Gaussian elimination in place, without exchanges."""
    rows, columns = a.shape
    for j in range(min(rows, columns)):
        for i in range(j + 1, rows):
            a[i, j] = a[i, j] / a[j, j]
            for k in range(j + 1, columns):
                a[i, k] = a[i, k] - a[i, j] * a[j, k]
    return a


@pytest.mark.parametrize("n", SIZES)
def test_elimination_and_what_follows_from_it(n: int) -> None:
    a, b = dominant(n), double(n, 2)
    check(lambda a: torch.linalg.lu_factor(a)[0], eliminated, a, op="linalg_lu_factor_ex")

    def solved(a: Array, b: Array) -> Array:
        lu = eliminated(a)
        return substituted(lu, substituted(lu, b, lower=True, unit=True), lower=False, unit=False)

    check(torch.linalg.solve, solved, a, b, op="_linalg_solve_ex")

    def determinant(a: Array) -> Any:
        lu, made = eliminated(a), 1
        for i in range(n):
            made = made * lu[i, i]
        return made

    check(torch.linalg.det, determinant, a, op="_linalg_det")
    identity = torch.eye(n, dtype=torch.float64)
    assert (
        cost_of(traced(torch.linalg.inv, a)).flops == cost_of(traced(torch.linalg.solve, a, identity)).flops
    )


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("unit", [True, False])
def test_substitution(n: int, unit: bool) -> None:
    a = dominant(n).tril()
    a = a / a.diagonal() if unit else a
    check(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, unitriangular=unit),
        lambda a, b: substituted(a, b, lower=True, unit=unit),
        a,
        double(n, 3),
        op="linalg_solve_triangular",
    )


@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n: int) -> None:
    a = dominant(n)
    a = a @ a.T

    def reference(a: Array) -> Array:
        made = array([0.0] * n * n, (n, n))
        for j in range(n):
            for i in range(j, n):
                total = a[i, j]
                for k in range(j):
                    total = total - made[i, k] * made[j, k]
                made[i, j] = sqrt(total) if i == j else total / made[j, j]
        return made

    check(torch.linalg.cholesky, reference, a, op="linalg_cholesky_ex")


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (5, 3), (3, 5)])
def test_reflections(rows: int, columns: int) -> None:
    def reference(a: Array) -> Any:
        for j in range(min(rows - 1, columns)):  # a single element needs no reflection
            alpha, size = a[j, j], sqrt(dot(a[j:, j], a[j:, j]))
            beta = -size if alpha > 0 else size
            tau, scale = (beta - alpha) / beta, 1 / (alpha - beta)
            for i in range(j + 1, rows):
                a[i, j] = a[i, j] * scale
            a[j, j] = beta
            for k in range(j + 1, columns):
                along = a[j, k]
                for i in range(j + 1, rows):
                    along = along + a[i, j] * a[i, k]
                along = along * tau
                a[j, k] = a[j, k] - along
                for i in range(j + 1, rows):
                    a[i, k] = a[i, k] - a[i, j] * along
        return a

    check(lambda a: torch.geqrf(a)[0], reference, double(rows, columns), op="geqrf")


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (5, 3)])
def test_the_product_of_reflections(rows: int, columns: int) -> None:
    a, tau = torch.geqrf(double(rows, columns))

    def reference(a: Array, tau: Array) -> Array:
        made = array([float(i == j) for i in range(rows) for j in range(columns)], (rows, columns))
        for j in reversed(range(min(columns, rows - 1))):
            for k in range(j + 1, columns):
                along = made[j, k]
                for i in range(j + 1, rows):
                    along = along + a[i, j] * made[i, k]
                along = along * tau[j]
                made[j, k] = made[j, k] - along
                for i in range(j + 1, rows):
                    made[i, k] = made[i, k] - a[i, j] * along
            made[j, j] = 1 - tau[j]
            for i in range(j + 1, rows):
                made[i, j] = -tau[j] * a[i, j]
        return made

    check(torch.linalg.householder_product, reference, a, tau, op="linalg_householder_product")
    parts = cost_of(traced(torch.geqrf, double(rows, columns))).flops
    parts += cost_of(traced(torch.linalg.householder_product, a, tau)).flops
    assert cost_of(traced(torch.linalg.qr, double(rows, columns))).flops == parts


def test_a_batch_is_so_many_matrices() -> None:
    one, many = (
        cost_of(traced(torch.linalg.inv, dominant(4))),
        cost_of(traced(torch.linalg.inv, dominant(4).repeat(6, 1, 1))),
    )
    assert many.flops == 6 * one.flops
