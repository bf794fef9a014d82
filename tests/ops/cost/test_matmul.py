"""Matrix products and convolutions cost what a loop over counting numbers counts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.cost_proofs import assert_counts, assert_values, cost_of, double, formula, tensor, traced
from tests.kit.counting import Array, Number, array, counting, dot, flops, matmul, numbers, zeros

aten = torch.ops.aten
few = settings(max_examples=12)
size = st.integers(1, 4)


@few
@given(size, size, size)
def test_products_of_matrices_and_vectors(m: int, k: int, n: int) -> None:
    assert_counts(torch.mm, matmul, double(m, k), double(k, n), op="mm", macs=True)
    assert_counts(
        torch.mv,
        lambda a, x: array((dot(row, x) for row in a), (len(a),)),
        double(m, k),
        double(k),
        op="mv",
        macs=True,
    )
    assert_counts(torch.dot, dot, double(k), double(k), op="dot", macs=True)


@few
@given(size, size, size, size)
def test_products_of_batches(b: int, m: int, k: int, n: int) -> None:
    def batched(x: Array, y: Array) -> Array:
        return np.stack([matmul(p, q) for p, q in zip(x, y)])

    x, y = double(b, m, k), double(b, k, n)
    assert_counts(torch.bmm, batched, x, y, op="bmm", macs=True)


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (0.5, 1), (1, 2.0), (0.5, 2.0)])
def test_a_product_added_to_something(beta: float, alpha: float) -> None:
    def reference(c: Array, product: Array) -> Array:
        scaled = product if alpha == 1 else product * alpha
        if beta == 0:
            return scaled
        # each element takes its own part of a bias that is stretched
        wide = array(list(np.broadcast_to(c, product.shape).reshape(-1)), product.shape)
        return (wide if beta == 1 else wide * beta) + scaled

    c, a, b = double(4), double(3, 2), double(2, 4)
    trace = traced(torch.addmm, c, a, b, beta=beta, alpha=alpha)
    found = cost_of(trace, "addmm")
    with counting() as tally:
        made = reference(numbers(c), matmul(numbers(a), numbers(b)))
    assert_values(trace.output, made)
    assert (found.flops, found.macs) == (flops(tally), 3 * 2 * 4)
    batch = cost_of(
        traced(torch.baddbmm, double(5, 3, 4), double(5, 3, 2), double(5, 2, 4), beta=beta, alpha=alpha)
    )
    assert batch.flops == 5 * found.flops
    one = cost_of(
        traced(torch.addbmm, double(3, 4), double(5, 3, 2), double(5, 2, 4), beta=beta, alpha=alpha)
    )
    assert (one.macs, one.flops) == (5 * found.macs, found.flops + 2 * 4 * found.macs)
    column = cost_of(traced(torch.addmv, double(3), double(3, 2), double(2), beta=beta, alpha=alpha))
    assert 4 * column.flops == found.flops


def test_an_outer_product_and_its_sum() -> None:
    assert_counts(torch.outer, np.outer, double(3), double(4), op="mul")
    assert_counts(
        torch.addr, lambda c, a, b: c + np.outer(a, b), double(3, 4), double(3), double(4), op="addr"
    )
    assert formula("ger", tensor(3), tensor(4), out=tensor(3, 4)).flops == 12


def test_linear_is_a_product_and_its_bias() -> None:
    x, w, b = double(2, 5, 3), double(4, 3), double(4)
    with torch.inference_mode():
        one, plain = traced(aten.linear, x, w, b), traced(aten.linear, x, w)
        parts = traced(lambda x, w, b: torch.mm(x.flatten(0, 1), w.t()) + b, x, w, b)
    assert [node.name for node in one.graph.nodes] == ["linear"]
    assert cost_of(one)[:2] == cost_of(parts)[:2]
    assert cost_of(one).flops - cost_of(plain).flops == 2 * 5 * 4
    back = formula("linear_backward", tensor(2, 5, 3), tensor(2, 5, 4), tensor(4, 3), (True, True, True))
    assert (back.macs, back.flops) == (2 * cost_of(one).macs, 4 * cost_of(one).macs + 2 * 5 * 4)


def test_matmul_of_any_shapes_is_its_batched_product() -> None:
    for a, b in [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((5, 1, 2, 3), (6, 3, 4)),
        ((2, 3), (5, 3, 4)),
    ]:
        x, y = double(*a), double(*b)
        with torch.inference_mode():
            one = traced(aten.matmul, x, y)
        assert [node.name for node in one.graph.nodes] == ["matmul"]
        assert cost_of(one).macs == cost_of(traced(torch.matmul, x, y)).macs == one.output.numel() * 3


def test_complex_numbers_take_four_products_for_one() -> None:
    a, b = (torch.randn(size, dtype=torch.complex128) for size in ((2, 3), (3, 4)))
    found = cost_of(traced(torch.mm, a, b))
    assert (found.flops, found.macs) == (8 * 24, 4 * 24)
    x, y = torch.randn(5, dtype=torch.complex128), torch.randn(5, dtype=torch.complex128)
    for function, reference in (
        (torch.add, lambda p, q: (p[0] + q[0], p[1] + q[1])),
        (torch.mul, lambda p, q: (p[0] * q[0] - p[1] * q[1], p[0] * q[1] + p[1] * q[0])),
        (torch.div, _quotient),
    ):
        trace = traced(function, x, y)
        with counting() as tally:
            made = reference((numbers(x.real), numbers(x.imag)), (numbers(y.real), numbers(y.imag)))
        assert_values((trace.output.real, trace.output.imag), made)
        assert cost_of(trace).flops == flops(tally)


def _quotient(p: Any, q: Any) -> Any:
    below = q[0] * q[0] + q[1] * q[1]
    return (p[0] * q[0] + p[1] * q[1]) / below, (p[1] * q[0] - p[0] * q[1]) / below


def test_products_of_small_integers_and_floats() -> None:
    a, b = torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)
    assert cost_of(traced(torch._int_mm, a, b), "_int_mm").macs == 32 * 16 * 8
    x, w, s = tensor(4, 16, dtype="float8_e4m3fn"), tensor(16, 8, dtype="float8_e4m3fn"), tensor()
    scaled = formula("_scaled_mm", x, w, s, s, out=tensor(4, 8, dtype="bfloat16"))
    assert (scaled.macs, scaled.flops) == (4 * 16 * 8, 2 * 4 * 16 * 8 + 2 * 4 * 8)


def test_a_grouped_product_is_the_products_of_its_groups() -> None:
    total, k, n, groups = 12, 8, 16, 3
    offsets = tensor(groups, dtype="int32")
    rows = formula("_grouped_mm", tensor(total, k), tensor(groups, k, n), offsets, out=tensor(total, n))
    summed = formula("_grouped_mm", tensor(k, total), tensor(total, n), offsets, out=tensor(groups, k, n))
    both = formula("_grouped_mm", tensor(groups, 4, k), tensor(groups, k, n), out=tensor(groups, 4, n))
    assert rows.macs == sum(rows_of * k * n for rows_of in (2, 7, 3))
    assert summed.macs == sum(k * part * n for part in (2, 7, 3))
    assert both.macs == groups * 4 * k * n


def test_a_bilinear_layer_is_the_loop_that_torch_runs() -> None:
    def reference(x: Array, y: Array, w: Array) -> Array:
        made = []
        for a, b in zip(x, y):
            for matrix in w:
                made.append(dot([dot(a, column) for column in matrix.T], b))
        return array(made, (len(x), len(w)))

    x, y, w = double(2, 3), double(2, 4), double(5, 3, 4)
    assert_counts(torch.nn.functional.bilinear, reference, x, y, w, op="_trilinear", macs=True)
    one = formula("bilinear", tensor(2, 3), tensor(2, 4), tensor(5, 3, 4), None, out=tensor(2, 5))
    assert one == cost_of(traced(torch.nn.functional.bilinear, x, y, w), "_trilinear")._replace(bytes=None)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("ij,jk", ((2, 3), (3, 4))),
        ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 6))),
        ("i,j->ij", ((3,), (4,))),
        ("ij,ij->ij", ((3, 4), (3, 4))),
        ("ijl,jk->ik", ((2, 3, 5), (3, 4))),
        ("ij->i", ((3, 4),)),
        ("ii->i", ((3, 3),)),
        ("ab,bc,cd->ad", ((2, 3), (3, 4), (4, 5))),
    ],
)
def test_einsum_is_what_it_becomes(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    tensors = [double(*shape) for shape in shapes]
    parts = traced(lambda: torch.einsum(equation, *tensors))
    with torch.inference_mode():
        one = traced(lambda: torch.einsum(equation, *tensors))
    assert [node.name for node in one.graph.nodes] == ["einsum"]
    if one.graph.nodes[0].flags != ("view",):
        assert cost_of(one)[:2] == cost_of(parts)[:2]


# Convolutions


def padded(x: Array, padding: tuple[int, ...]) -> Array:
    """Zeros around, which count as any number."""
    widths = [(0, 0), (0, 0), *((p, p) for p in padding)]
    return np.pad(x, widths, constant_values=Number(0))


def windows(
    out: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Any:
    """Every output position, and for every place of the window the input position under it."""
    for place in itertools.product(*map(range, out)):
        for tap in itertools.product(*map(range, kernel)):
            yield place, tap, tuple(p * s + t * d for p, s, t, d in zip(place, stride, tap, dilation))


def convolve(
    x: Array, w: Array, out: tuple[int, ...], stride: Any, padding: Any, dilation: Any, groups: int
) -> Array:
    x = padded(x, padding)
    made = zeros(len(x), len(w), *out)
    inside, per = w.shape[1], len(w) // groups
    for n, c in itertools.product(range(len(x)), range(len(w))):
        for place, tap, under in windows(out, w.shape[2:], stride, dilation):
            for i in range(inside):
                made[(n, c, *place)] += x[(n, c // per * inside + i, *under)] * w[(c, i, *tap)]
    return made


@st.composite
def convolutions(draw: Any) -> tuple[Any, ...]:
    dims = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2]))
    batch, c_in, c_out = (
        draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
    )
    kernel, stride, padding, dilation = (
        tuple(draw(st.integers(low, 2)) for _ in range(dims)) for low in (1, 1, 0, 1)
    )
    x = double(batch, c_in, *(draw(st.integers(3, 5)) for _ in range(dims)))
    return x, double(c_out, c_in // groups, *kernel), stride, padding, dilation, groups


@few
@given(convolutions())
def test_a_convolution_and_its_gradients(case: Any) -> None:
    x, w, stride, padding, dilation, groups = case
    dims = len(stride)
    given_ = (list(stride), list(padding), list(dilation), False, [0] * dims, groups)

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return aten.convolution(x, w, None, *given_)

    out = tuple(forward(x, w).shape[2:])
    assert_counts(
        forward,
        lambda x, w: convolve(x, w, out, stride, padding, dilation, groups),
        x,
        w,
        op="convolution",
        macs=True,
    )

    def gradients(g: Array, x: Array, w: Array) -> Any:
        wide = padded(x, padding)
        dx, dw = zeros(*wide.shape), zeros(*w.shape)
        inside, per = w.shape[1], len(w) // groups
        for n, c in itertools.product(range(len(x)), range(len(w))):
            for place, tap, under in windows(out, w.shape[2:], stride, dilation):
                for i in range(inside):
                    channel = c // per * inside + i
                    dx[(n, channel, *under)] += g[(n, c, *place)] * w[(c, i, *tap)]
                    dw[(c, i, *tap)] += g[(n, c, *place)] * wide[(n, channel, *under)]
        crop = (slice(None), slice(None), *(slice(p, p + s) for p, s in zip(padding, x.shape[2:])))
        return dx[crop], dw

    def backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return aten.convolution_backward(g, x, w, [0], *given_, [True, True, False])[:2]

    g = double(len(x), len(w), *out)
    assert_counts(backward, gradients, g, x, w, op="convolution_backward", macs=True)


@few
@given(convolutions())
def test_a_transposed_convolution(case: Any) -> None:
    # the gradient of a convolution's input, with the roles of its channels exchanged
    x, w, stride, _, dilation, groups = case
    dims = len(stride)
    w = double(x.shape[1], 2, *w.shape[2:])

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return aten.convolution(
            x, w, None, list(stride), [0] * dims, list(dilation), True, [0] * dims, groups
        )

    def reference(x: Array, w: Array) -> Array:
        out = tuple(
            (s - 1) * step + (k - 1) * d + 1
            for s, step, k, d in zip(x.shape[2:], stride, w.shape[2:], dilation)
        )
        made = zeros(len(x), 2 * groups, *out)
        per = x.shape[1] // groups
        for n, c in itertools.product(range(len(x)), range(x.shape[1])):
            for place, tap, under in windows(x.shape[2:], w.shape[2:], stride, dilation):
                for o in range(2):
                    made[(n, c // per * 2 + o, *under)] += x[(n, c, *place)] * w[(c, o, *tap)]
        return array((0.0 if isinstance(v, int) else v for v in made.reshape(-1)), made.shape)

    assert_counts(forward, reference, x, w, op="convolution", macs=True)


def test_a_grouped_convolution_is_separate_ones() -> None:
    x, w, b = double(2, 6, 7, 7), double(9, 2, 3, 3), double(9)
    whole = cost_of(traced(torch.nn.functional.conv2d, x, w, b, groups=3))
    parts = [
        cost_of(
            traced(
                torch.nn.functional.conv2d,
                x[:, 2 * i : 2 * i + 2],
                w[3 * i : 3 * i + 3],
                b[3 * i : 3 * i + 3],
            )
        )
        for i in range(3)
    ]
    assert (whole.flops, whole.macs) == (sum(p.flops for p in parts), sum(p.macs for p in parts))


def test_the_gradients_that_are_not_asked_for_are_not_counted() -> None:
    x, w = double(1, 2, 5, 5), double(3, 2, 3, 3)
    g = double(1, 3, 3, 3)

    def cost(*mask: bool) -> Any:
        call = aten.convolution_backward
        rest = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]
        return cost_of(
            traced(lambda g, x, w: call(g, x, w, [3], *rest, list(mask)), g, x, w), "convolution_backward"
        )

    forward = cost_of(traced(torch.nn.functional.conv2d, x, w)).macs
    assert [cost(*mask).macs for mask in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1))] == [
        forward,
        forward,
        0,
        2 * forward,
    ]
    assert cost(0, 0, 1).flops == g.numel()
    assert cost(1, 0, 0).bytes == 8 * (g.numel() + w.numel() + x.numel())  # the input is not read
    assert cost(0, 1, 0).bytes == 8 * (g.numel() + x.numel() + w.numel())


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("mkldnn_convolution", ("bias", (1, 1), (1, 1), (1, 1), 1)),
        ("conv2d", ("bias",)),
        ("_slow_conv2d_forward", ((3, 3), "bias", (1, 1), (1, 1))),
        ("_conv_depthwise2d", ((3, 3), "bias", (1, 1), (1, 1), (1, 1))),
        ("cudnn_convolution_relu", ("bias", (1, 1), (1, 1), (1, 1), 1)),
        ("convolution_overrideable", ("bias", (1, 1), (1, 1), (1, 1), False, (0, 0), 1)),
    ],
)
def test_every_kernel_of_a_convolution_costs_the_same(op: str, args: tuple[Any, ...]) -> None:
    x, w, b, out = tensor(2, 4, 8, 8), tensor(6, 4, 3, 3), tensor(6), tensor(2, 6, 8, 8)
    general = formula("convolution", x, w, b, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, out=out)
    assert formula(op, x, w, *(b if arg == "bias" else arg for arg in args), out=out) == general
    assert general.macs == math.prod(out.shape) * 4 * 9
