"""Singular values, eigenvalues and what is made of them: counted by the textbook algorithm, and in part an estimate.

A matrix is first reduced by reflections to two diagonals or to a triangle with one diagonal below, in a number of steps
that is known. Then sweeps of rotations make the diagonals beside the main one vanish. How many depends on the numbers;
two sweeps for each value that is found is what the textbooks reckon with, and what is counted here. A library that
divides and conquers takes other steps. The exponential of a matrix is an estimate of the same kind.
"""

from __future__ import annotations

from math import prod

from torch_vis.graph import TensorType
from torch_vis.ops.cost.linalg import (
    Steps,
    added,
    form_q_steps,
    qr_steps,
    reflection,
    reflections,
    right_sides,
    times,
    triangular_steps,
)
from torch_vis.ops.cost.operation import COMPLEX_MAC, COMPLEX_MUL, Cost, Operation, together
from torch_vis.ops.cost.registry import aten, family

cost = family("factorization")

SWEEPS = 2  # for each value: an estimate
BULGE_OF_TWO = Steps(
    mul=16, add=10, div=4, call=2
)  # one place on, in a matrix of two diagonals: two rotations
BULGE_OF_THREE = Steps(mul=18, add=10, div=2, call=1)  # the same in a symmetric one of three diagonals: one
TURNED = Steps(mul=4, add=2)  # a rotation of two numbers


def repeated(step: Steps, count: int) -> Steps:
    """The same step so many times."""
    return Steps(*(count * each for each in step))


def rotations(size: int) -> int:
    """How many rotations all sweeps over a matrix of this size have, the part that is not done shrinking by one.

    >>> rotations(4)  # two sweeps each of 3, 2 and 1
    12
    """
    return SWEEPS * size * (size - 1) // 2


def bidiagonal_steps(rows: int, columns: int) -> Steps:
    """Golub and Kahan: a reflection of each column from the left, and of each row from the right, of a tall matrix.

    The leading terms are ``2 m n² - 2/3 n³`` multiply-adds.
    """
    parts = [Steps()]
    for j in range(columns):
        below, after = rows - j, columns - j - 1
        if below > 1:
            parts += [reflection(below), reflections(below, after)]
        if after > 1:
            parts += [reflection(after), reflections(after, below - 1)]
    return added(*parts)


def tridiagonal_steps(n: int) -> Steps:
    """Householder: reflections from both sides of a symmetric matrix, ``2/3 n³`` multiply-adds.

    Each takes ``p = tau A v``, ``w = p - (tau/2 pᵀv) v`` and ``A - v wᵀ - w vᵀ``, of which one half is computed.
    """
    parts = [Steps()]
    for m in range(n - 1, 1, -1):
        parts.append(reflection(m))
        parts.append(Steps(mac=m * m + m + m + m * (m + 1), mul=m + 2))
    return added(*parts)


def hessenberg_steps(n: int) -> Steps:
    """Reflections from both sides that leave one diagonal below the main one, ``5/3 n³`` multiply-adds."""
    parts = [Steps()]
    for m in range(n - 1, 1, -1):
        parts += [reflection(m), reflections(m, m), reflections(m, n)]
    return added(*parts)


def _is_complex(matrix: TensorType) -> bool:
    return matrix.dtype.startswith("complex")


def _reals(matrix: TensorType) -> int:
    """How many real numbers one of its elements is."""
    return 2 if _is_complex(matrix) else 1


def _real(matrix: TensorType, *parts: Steps) -> Cost:
    """Steps on real numbers, for every matrix of a batch."""
    mac, *others = added(*parts)
    batch = prod(matrix.shape[:-2])
    return Cost(batch * (2 * mac + sum(others)), batch * mac)


def svd_cost(op: Operation, a: TensorType, *, vectors: bool, full: bool = False) -> Cost:
    """Two diagonals, the sweeps, and where vectors are wanted the reflections multiplied out and turned along.

    For a tall matrix of n columns the sweeps have ``n (n - 1)`` rotations from either side. A wide one is the same
    transposed.
    """
    columns, rows = sorted(a.shape[-2:])
    count = rotations(columns)
    exact, turned = bidiagonal_steps(rows, columns), repeated(BULGE_OF_TWO, count)
    if vectors:
        wide = rows if full else columns
        left = form_q_steps(rows, wide, columns)
        right = form_q_steps(columns - 1, columns - 1, columns - 2)
        exact = added(exact, left, right)
        turned = added(turned, repeated(TURNED, count * (rows + columns) * _reals(a)))
    return together(times(op, a, exact), _real(a, turned))


def eigh_cost(op: Operation, a: TensorType, *, vectors: bool) -> Cost:
    """Three diagonals, the sweeps, and where vectors are wanted the reflections multiplied out and turned along."""
    n = a.shape[-1]
    count = rotations(n)
    exact, turned = tridiagonal_steps(n), repeated(BULGE_OF_THREE, count)
    if vectors:
        exact = added(exact, form_q_steps(n - 1, n - 1, n - 2))
        turned = added(turned, repeated(TURNED, count * n * _reals(a)))
    return together(times(op, a, exact), _real(a, turned))


@cost(*aten("_linalg_svd linalg_svd svd"))
def svd(op: Operation) -> Cost:
    """Singular values, with their vectors unless they are not wanted; an estimate."""
    a = op.args[0]
    if op.op.startswith("aten::svd"):
        return svd_cost(op, a, vectors=bool(op.arg(2, "compute_uv", True)), full=not op.arg(1, "some", True))
    full = bool(op.arg(1, "full_matrices", "_linalg_svd" not in op.op))
    return svd_cost(op, a, vectors=bool(op.arg(2, "compute_uv", True)), full=full)


@cost(*aten("linalg_svdvals"))
def svdvals(op: Operation) -> Cost:
    """Singular values; an estimate."""
    return svd_cost(op, op.args[0], vectors=False)


@cost(*aten("_linalg_eigh linalg_eigh linalg_eigvalsh"))
def eigh(op: Operation) -> Cost:
    """Eigenvalues of a symmetric matrix, with their vectors unless they are not wanted; an estimate."""
    wanted = "eigvalsh" not in op.op and bool(op.arg(2, "compute_v", True))
    return eigh_cost(op, op.args[0], vectors=wanted)


@cost(*aten("linalg_eig linalg_eigvals _linalg_eigvals"))
def eig(op: Operation) -> Cost:
    """Eigenvalues of any matrix, and their vectors; an estimate.

    Reflections leave one diagonal below the main one, and Francis's sweeps of two shifts at once take it away: with
    what went before, ``10 n³`` FLOPs for the values alone and ``25 n³`` with the triangle and what brought it about. A
    vector is found by substitution in the triangle, brought back by a product, and divided by its length.
    """
    a = op.args[0]
    n = a.shape[-1]
    beyond_one = n**3 - n  # a single number is its own eigenvalue
    if "eigvals" in op.op:
        parts = [hessenberg_steps(n), Steps(mac=beyond_one * 10 // 3)]
    else:
        parts = [hessenberg_steps(n), form_q_steps(n - 1, n - 1, n - 2), Steps(mac=beyond_one * 61 // 6)]
        parts.append(Steps(mac=beyond_one // 6, div=n * (n - 1) // 2))
        parts.append(Steps(mac=n * n * (n + 1) // 2 + n * n, div=n * n, call=n))
    made = _real(a, *parts)  # the results are complex either way, so that only the matrix tells
    if _is_complex(a):
        rest = made.flops - 2 * made.macs
        return Cost(2 * COMPLEX_MAC * made.macs + COMPLEX_MUL * rest, COMPLEX_MAC * made.macs)
    return made


@cost(*aten("linalg_pinv pinverse"))
def pinv(op: Operation) -> Cost:
    """Singular values, or eigenvalues, and vectors; the inverse of each value times its vector; and a product."""
    a = op.args[0]
    rows, columns = a.shape[-2:]
    k = min(rows, columns)
    hermitian = bool(op.arg(2, "hermitian", False))
    found = eigh_cost(op, a, vectors=True) if hermitian else svd_cost(op, a, vectors=True)
    return together(
        found, times(op, a, Steps(mac=columns * k * rows, mul=columns * k)), _real(a, Steps(div=k, mul=1))
    )


@cost(*aten("linalg_lstsq"))
def lstsq(op: Operation) -> Cost:
    """Least squares by reflections, or by singular values where the driver says so (then an estimate).

    The reflections of the matrix, or of its transpose if it is wide, are applied to the right-hand sides, and a
    triangle is solved, as large as a matrix of full rank has it. The driver that exchanges columns, which is the
    processor's default, keeps their lengths besides.
    """
    a = op.args[0]
    rows, columns = a.shape[-2:]
    batch, long, short = prod(a.shape[:-2]), max(rows, columns), min(rows, columns)
    right = right_sides(op.outputs[0], columns, batch)
    over = max(rows - columns, 0) * right if len(op.outputs) > 1 and op.outputs[1].numel else 0
    residuals = times(op, a, Steps(mul=over, add=over))
    driver = op.arg(None, "driver") or "gelsy"
    if driver in ("gelsd", "gelss"):
        applied = Steps(mac=(rows + columns) * short * right, div=short * right)
        return together(svd_cost(op, a, vectors=True), times(op, a, applied), residuals)
    parts = [qr_steps(long, short), triangular_steps(short, right, unit=False)]
    parts += [reflections(long - j, right) for j in range(min(short, long - 1))]
    if driver == "gelsy":
        pairs = short * (short - 1) // 2
        parts.append(Steps(mac=long * short, add=pairs, mul=2 * pairs, div=pairs, call=short + pairs))
    return together(times(op, a, *parts), residuals)


@cost(*aten("linalg_matrix_exp matrix_exp"))
def matrix_exp(op: Operation) -> Cost:
    """A polynomial of degree 18 in five products, which suits a norm of 1.5 to 3; an estimate.

    A smaller matrix takes a lower degree, and a larger one a squaring for each doubling of its norm. The five factors
    are sums of five multiples each; the norm is a sum of every element.
    """
    a = op.args[0]
    n = a.shape[-1]
    if n <= 1:
        return times(op, a, Steps(call=n))
    return times(op, a, Steps(mac=5 * n**3, mul=25 * n * n, add=(25 + 2 + 1) * n * n))
