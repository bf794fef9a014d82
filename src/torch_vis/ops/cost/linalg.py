"""Factorisations and solvers of linear algebra that take a fixed number of steps.

What is found by iteration is in ``spectral``.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torch_vis.graph import TensorType
from torch_vis.ops.cost.operation import Cost, Operation
from torch_vis.ops.cost.registry import aten, family

cost = family("factorization")


class Steps(NamedTuple):
    """Multiply-adds and other steps for one matrix."""

    mac: int = 0
    add: int = 0
    mul: int = 0
    div: int = 0
    call: int = 0


def times(op: Operation, matrix: TensorType, *parts: Steps) -> Cost:
    """The steps for every matrix of a batch."""
    batch = prod(matrix.shape[:-2])
    mac, add, mul, div, call = (batch * each for each in added(*parts))
    return op.count(mac=mac, add=add, mul=mul, div=div, call=call)


def lu_steps(rows: int, columns: int) -> Steps:
    """Gaussian elimination; exchanging rows is free.

    >>> lu_steps(2, 2)
    Steps(mac=1, add=0, mul=0, div=1, call=0)
    """
    pivots = range(min(rows, columns))
    return Steps(
        mac=sum((rows - j - 1) * (columns - j - 1) for j in pivots), div=sum(rows - j - 1 for j in pivots)
    )


def triangular_steps(n: int, right: int, *, unit: bool) -> Steps:
    """Substitution for ``right`` right-hand sides."""
    return Steps(mac=right * n * (n - 1) // 2, div=0 if unit else right * n)


def cholesky_steps(n: int) -> Steps:
    """Row by row."""
    return Steps(mac=(n**3 - n) // 6, div=n * (n - 1) // 2, call=n)


def added(*parts: Steps) -> Steps:
    """Steps one after the other."""
    return Steps(*(sum(column) for column in zip(*parts)))


def reflection(length: int) -> Steps:
    """A vector of that length made a multiple of the first unit vector."""
    return Steps(mac=length, add=2, mul=length - 1, div=2, call=1)


def reflections(length: int, columns: int) -> Steps:
    """One reflection ``a -= tau v (v a)``, whose vector begins with one, of some columns."""
    rest = length - 1
    return Steps(mac=2 * rest * columns, add=columns, mul=columns)


def qr_steps(rows: int, columns: int) -> Steps:
    """Householder: for each column its norm and reflection, applied to the columns after it."""
    parts = [Steps()]
    for j in range(min(rows - 1, columns)):  # a single element needs no reflection
        length = rows - j
        parts += [reflection(length), reflections(length, columns - j - 1)]
    return added(*parts)


def form_q_steps(rows: int, columns: int, count: int) -> Steps:
    """The product of ``count`` reflections, as a matrix: from the last to the first, on the columns from its own on."""
    parts = [Steps()]
    for j in range(min(count, rows - 1)):
        parts.append(reflections(rows - j, columns - j - 1))
        parts.append(Steps(add=1, mul=rows - j - 1))  # its own column is 1 - tau and -tau v
    return added(*parts)


@cost(*aten("linalg_lu_factor_ex linalg_lu_factor linalg_lu _lu_with_info"))
def lu(op: Operation) -> Cost:
    """Gaussian elimination."""
    a = op.args[0]
    return times(op, a, lu_steps(a.shape[-2], a.shape[-1]))


@cost(*aten("_linalg_det linalg_det det"))
def det(op: Operation) -> Cost:
    """The product of the pivots."""
    a = op.args[0]
    return times(op, a, lu_steps(a.shape[-1], a.shape[-1]), Steps(mul=a.shape[-1]))


@cost(*aten("_linalg_slogdet linalg_slogdet slogdet logdet"))
def slogdet(op: Operation) -> Cost:
    """The sum of the logarithms of the pivots."""
    a = op.args[0]
    n = a.shape[-1]
    return times(op, a, lu_steps(n, n), Steps(add=n, call=n))


def right_sides(solution: TensorType, n: int, batch: int) -> int:
    """How many right-hand sides each matrix has."""
    return solution.numel // max(n * batch, 1)


@cost(*aten("_linalg_solve_ex linalg_solve linalg_solve_ex"))
def solve(op: Operation) -> Cost:
    """Elimination, then substitution forwards and backwards."""
    a = op.args[0]
    n = a.shape[-1]
    right = right_sides(op.outputs[0], n, prod(a.shape[:-2]))
    return times(
        op, a, lu_steps(n, n), triangular_steps(n, right, unit=True), triangular_steps(n, right, unit=False)
    )


@cost(*aten("linalg_inv_ex linalg_inv inverse"))
def inverse(op: Operation) -> Cost:
    """The same with the identity on the right."""
    a = op.args[0]
    n = a.shape[-1]
    return times(op, a, lu_steps(n, n), triangular_steps(n, n, unit=True), triangular_steps(n, n, unit=False))


@cost(*aten("linalg_lu_solve lu_solve"))
def lu_solve(op: Operation) -> Cost:
    """Substitution forwards and backwards."""
    a = op.args[0] if "linalg" in op.op else op.args[1]
    n = a.shape[-1]
    right = right_sides(op.out, n, prod(a.shape[:-2]))
    return times(op, a, triangular_steps(n, right, unit=True), triangular_steps(n, right, unit=False))


@cost(*aten("linalg_solve_triangular triangular_solve"))
def solve_triangular(op: Operation) -> Cost:
    """Substitution."""
    newer = "linalg" in op.op
    a = op.args[0] if newer else op.args[1]
    unit = bool(op.arg(None if newer else 4, "unitriangular", False))
    n = a.shape[-1]
    right = right_sides(op.outputs[0], n, prod(a.shape[:-2]))
    return times(op, a, triangular_steps(n, right, unit=unit))


@cost(*aten("linalg_cholesky_ex linalg_cholesky cholesky"))
def cholesky(op: Operation) -> Cost:
    """``A = L Lᵀ``."""
    return times(op, op.args[0], cholesky_steps(op.args[0].shape[-1]))


@cost(*aten("cholesky_solve _cholesky_solve_helper"))
def cholesky_solve(op: Operation) -> Cost:
    """Substitution forwards and backwards."""
    a = op.args[1]
    n = a.shape[-1]
    both = triangular_steps(n, right_sides(op.out, n, prod(a.shape[:-2])), unit=False)
    return times(op, a, both, both)


@cost(*aten("cholesky_inverse"))
def cholesky_inverse(op: Operation) -> Cost:
    """The inverse of the factor, and half of its product with itself."""
    a = op.args[0]
    n = a.shape[-1]
    inverted = Steps(mac=(n**3 - n) // 6, div=n * (n + 1) // 2)
    return times(op, a, inverted, Steps(mac=n * (n + 1) * (n + 2) // 6))


@cost(*aten("linalg_ldl_factor linalg_ldl_factor_ex"))
def ldl(op: Operation) -> Cost:
    """``A = L D Lᵀ`` of a symmetric matrix, of which one half is computed, as if every pivot were a single element."""
    n = op.args[0].shape[-1]
    return times(op, op.args[0], Steps(mac=(n**3 - n) // 6, div=n * (n - 1) // 2))


@cost(*aten("linalg_ldl_solve"))
def ldl_solve(op: Operation) -> Cost:
    """Substitution forwards, a quotient by each pivot, and substitution backwards."""
    a = op.args[0]
    n = a.shape[-1]
    right = right_sides(op.out, n, prod(a.shape[:-2]))
    half = triangular_steps(n, right, unit=True)
    return times(op, a, half, Steps(div=right * n), half)


@cost(*aten("geqrf"))
def geqrf(op: Operation) -> Cost:
    """The reflections, not multiplied out."""
    a = op.args[0]
    return times(op, a, qr_steps(a.shape[-2], a.shape[-1]))


@cost(*aten("linalg_qr qr"))
def qr(op: Operation) -> Cost:
    """The reflections and, unless only R is asked for, their product."""
    a = op.args[0]
    rows, columns = a.shape[-2], a.shape[-1]
    if op.arg(1, "mode", "reduced") == "r":
        return times(op, a, qr_steps(rows, columns))
    wide = op.outputs[0].shape[-1]
    return times(op, a, qr_steps(rows, columns), form_q_steps(rows, wide, min(rows, columns)))


@cost(*aten("linalg_householder_product orgqr"))
def householder_product(op: Operation) -> Cost:
    """The product of the reflections."""
    a, tau = op.args[0], op.args[1]
    return times(op, a, form_q_steps(a.shape[-2], a.shape[-1], tau.shape[-1]))


@cost(*aten("ormqr"))
def ormqr(op: Operation) -> Cost:
    """The reflections applied to a matrix, from the left or from the right."""
    a, tau, other = op.args[:3]
    left = bool(op.arg(3, "left", True))
    many = other.shape[-1] if left else other.shape[-2]
    steps = [reflections(a.shape[-2] - j, many) for j in range(min(tau.shape[-1], a.shape[-2] - 1))]
    return times(op, a, *(steps or [Steps()]))
