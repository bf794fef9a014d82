"""Linear algebra: factorisations and solvers, singular values, eigenvalues and the exponential of a matrix.

Factorisations take a number of steps that is known. For singular values and eigenvalues a matrix is first reduced by
reflections to two diagonals or to a triangle with one diagonal below, which is known too. Then sweeps of rotations make
the diagonals beside the main one vanish. How many depends on the numbers; two sweeps for each value is what textbooks
reckon with, and what is counted: an estimate. A library that divides and conquers takes other steps. The exponential
of a matrix is an estimate of the same kind.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torch_vis.graph import TensorType
from torch_vis.ops.cost.registry import COMPLEX_MAC, COMPLEX_MUL, Cost, Operation, aten, family, together

cost = family("factorization")


class MatrixSteps(NamedTuple):
    """Multiply-adds and other steps for one matrix."""

    mac: int = 0
    add: int = 0
    mul: int = 0
    div: int = 0
    call: int = 0


def times(op: Operation, matrix: TensorType, *parts: MatrixSteps) -> Cost:
    """The steps for every matrix of a batch."""
    batch = prod(matrix.shape[:-2])
    mac, add, mul, div, call = (batch * each for each in added(*parts))
    return op.count(mac=mac, add=add, mul=mul, div=div, call=call)


def lu_steps(rows: int, columns: int) -> MatrixSteps:
    """Gaussian elimination; exchanging rows is free.

    >>> lu_steps(2, 2)
    MatrixSteps(mac=1, add=0, mul=0, div=1, call=0)
    """
    pivots = range(min(rows, columns))
    return MatrixSteps(
        mac=sum((rows - j - 1) * (columns - j - 1) for j in pivots), div=sum(rows - j - 1 for j in pivots)
    )


def triangular_steps(n: int, right: int, *, unit: bool) -> MatrixSteps:
    """Substitution for ``right`` right-hand sides."""
    return MatrixSteps(mac=right * n * (n - 1) // 2, div=0 if unit else right * n)


def cholesky_steps(n: int) -> MatrixSteps:
    """Row by row."""
    return MatrixSteps(mac=(n**3 - n) // 6, div=n * (n - 1) // 2, call=n)


def added(*parts: MatrixSteps) -> MatrixSteps:
    """MatrixSteps one after the other."""
    return MatrixSteps(*(sum(column) for column in zip(*parts)))


def reflection(length: int) -> MatrixSteps:
    """A vector of that length made a multiple of the first unit vector."""
    return MatrixSteps(mac=length, add=2, mul=length - 1, div=2, call=1)


def reflections(length: int, columns: int) -> MatrixSteps:
    """One reflection ``a -= tau v (v a)``, whose vector begins with one, of some columns."""
    rest = length - 1
    return MatrixSteps(mac=2 * rest * columns, add=columns, mul=columns)


def qr_steps(rows: int, columns: int) -> MatrixSteps:
    """Householder: for each column its norm and reflection, applied to the columns after it."""
    parts = [MatrixSteps()]
    # a single element needs no reflection
    for j in range(min(rows - 1, columns)):
        length = rows - j
        parts += [reflection(length), reflections(length, columns - j - 1)]
    return added(*parts)


def form_q_steps(rows: int, columns: int, count: int) -> MatrixSteps:
    """The product of ``count`` reflections, as a matrix: from the last to the first, on the columns from its own on."""
    parts = [MatrixSteps()]
    for j in range(min(count, rows - 1)):
        parts.append(reflections(rows - j, columns - j - 1))
        # its own column is 1 - tau and -tau v
        parts.append(MatrixSteps(add=1, mul=rows - j - 1))
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
    return times(op, a, lu_steps(a.shape[-1], a.shape[-1]), MatrixSteps(mul=a.shape[-1]))


@cost(*aten("_linalg_slogdet linalg_slogdet slogdet logdet"))
def slogdet(op: Operation) -> Cost:
    """The sum of the logarithms of the pivots."""
    a = op.args[0]
    n = a.shape[-1]
    return times(op, a, lu_steps(n, n), MatrixSteps(add=n, call=n))


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
    inverted = MatrixSteps(mac=(n**3 - n) // 6, div=n * (n + 1) // 2)
    return times(op, a, inverted, MatrixSteps(mac=n * (n + 1) * (n + 2) // 6))


@cost(*aten("linalg_ldl_factor linalg_ldl_factor_ex"))
def ldl(op: Operation) -> Cost:
    """``A = L D Lᵀ`` of a symmetric matrix, of which one half is computed, as if every pivot were a single element."""
    n = op.args[0].shape[-1]
    return times(op, op.args[0], MatrixSteps(mac=(n**3 - n) // 6, div=n * (n - 1) // 2))


@cost(*aten("linalg_ldl_solve"))
def ldl_solve(op: Operation) -> Cost:
    """Substitution forwards, a quotient by each pivot, and substitution backwards."""
    a = op.args[0]
    n = a.shape[-1]
    right = right_sides(op.out, n, prod(a.shape[:-2]))
    half = triangular_steps(n, right, unit=True)
    return times(op, a, half, MatrixSteps(div=right * n), half)


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
    return times(op, a, *(steps or [MatrixSteps()]))


# Singular values, eigenvalues, and what is made of them

SWEEPS = 2  # for each value: an estimate
BULGE_OF_TWO = MatrixSteps(
    mul=16, add=10, div=4, call=2
)  # one place on, in a matrix of two diagonals: two rotations
BULGE_OF_THREE = MatrixSteps(
    mul=18, add=10, div=2, call=1
)  # the same in a symmetric one of three diagonals: one
TURNED = MatrixSteps(mul=4, add=2)  # a rotation of two numbers


def repeated(step: MatrixSteps, count: int) -> MatrixSteps:
    """The same step so many times."""
    return MatrixSteps(*(count * each for each in step))


def rotations(size: int) -> int:
    """How many rotations all sweeps over a matrix of this size have, the part that is not done shrinking by one.

    >>> rotations(4)  # two sweeps each of 3, 2 and 1
    12
    """
    return SWEEPS * size * (size - 1) // 2


def bidiagonal_steps(rows: int, columns: int) -> MatrixSteps:
    """Golub and Kahan: a reflection of each column from the left, and of each row from the right, of a tall matrix.

    The leading terms are ``2 m n² - 2/3 n³`` multiply-adds.
    """
    parts = [MatrixSteps()]
    for j in range(columns):
        below, after = rows - j, columns - j - 1
        if below > 1:
            parts += [reflection(below), reflections(below, after)]
        if after > 1:
            parts += [reflection(after), reflections(after, below - 1)]
    return added(*parts)


def tridiagonal_steps(n: int) -> MatrixSteps:
    """Householder: reflections from both sides of a symmetric matrix, ``2/3 n³`` multiply-adds.

    Each takes ``p = tau A v``, ``w = p - (tau/2 pᵀv) v`` and ``A - v wᵀ - w vᵀ``, of which one half is computed.
    """
    parts = [MatrixSteps()]
    for m in range(n - 1, 1, -1):
        parts.append(reflection(m))
        parts.append(MatrixSteps(mac=m * m + m + m + m * (m + 1), mul=m + 2))
    return added(*parts)


def hessenberg_steps(n: int) -> MatrixSteps:
    """Reflections from both sides that leave one diagonal below the main one, ``5/3 n³`` multiply-adds."""
    parts = [MatrixSteps()]
    for m in range(n - 1, 1, -1):
        parts += [reflection(m), reflections(m, m), reflections(m, n)]
    return added(*parts)


def _is_complex(matrix: TensorType) -> bool:
    return matrix.dtype.startswith("complex")


def _reals(matrix: TensorType) -> int:
    """How many real numbers one of its elements is."""
    return 2 if _is_complex(matrix) else 1


def _real(matrix: TensorType, *parts: MatrixSteps) -> Cost:
    """MatrixSteps on real numbers, for every matrix of a batch."""
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
    # a single number is its own eigenvalue
    beyond_one = n**3 - n
    if "eigvals" in op.op:
        parts = [hessenberg_steps(n), MatrixSteps(mac=beyond_one * 10 // 3)]
    else:
        parts = [
            hessenberg_steps(n),
            form_q_steps(n - 1, n - 1, n - 2),
            MatrixSteps(mac=beyond_one * 61 // 6),
        ]
        parts.append(MatrixSteps(mac=beyond_one // 6, div=n * (n - 1) // 2))
        parts.append(MatrixSteps(mac=n * n * (n + 1) // 2 + n * n, div=n * n, call=n))
    # the results are complex either way, so that only the matrix tells
    real = _real(a, *parts)
    if _is_complex(a):
        rest = real.flops - 2 * real.macs
        return Cost(2 * COMPLEX_MAC * real.macs + COMPLEX_MUL * rest, COMPLEX_MAC * real.macs)
    return real


@cost(*aten("linalg_pinv pinverse"))
def pinv(op: Operation) -> Cost:
    """Singular values, or eigenvalues, and vectors; the inverse of each value times its vector; and a product."""
    a = op.args[0]
    rows, columns = a.shape[-2:]
    k = min(rows, columns)
    hermitian = bool(op.arg(2, "hermitian", False))
    values = eigh_cost(op, a, vectors=True) if hermitian else svd_cost(op, a, vectors=True)
    return together(
        values,
        times(op, a, MatrixSteps(mac=columns * k * rows, mul=columns * k)),
        _real(a, MatrixSteps(div=k, mul=1)),
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
    residuals = times(op, a, MatrixSteps(mul=over, add=over))
    driver = op.arg(None, "driver") or "gelsy"
    if driver in ("gelsd", "gelss"):
        applied = MatrixSteps(mac=(rows + columns) * short * right, div=short * right)
        return together(svd_cost(op, a, vectors=True), times(op, a, applied), residuals)
    parts = [qr_steps(long, short), triangular_steps(short, right, unit=False)]
    parts += [reflections(long - j, right) for j in range(min(short, long - 1))]
    if driver == "gelsy":
        pairs = short * (short - 1) // 2
        parts.append(MatrixSteps(mac=long * short, add=pairs, mul=2 * pairs, div=pairs, call=short + pairs))
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
        return times(op, a, MatrixSteps(call=n))
    return times(op, a, MatrixSteps(mac=5 * n**3, mul=25 * n * n, add=(25 + 2 + 1) * n * n))
