"""Pooling, interpolation and Fourier transforms cost what a loop over counting numbers counts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.kit.cost_proofs import assert_counts, assert_values, cost_of, double, traced
from tests.kit.counting import Array, array, counting, dot, flops, numbers, zeros
from torch_vis.ops.cost.fourier import COMPLEX, TO_COMPLEX, TO_REAL

aten = torch.ops.aten


# Pooling


def squares(image: Array, size: int, stride: int) -> list[list[Array]]:
    steps = range(0, image.shape[0] - size + 1, stride)
    return [[image[i : i + size, j : j + size].reshape(-1) for j in steps] for i in steps]


def test_pooling_and_its_gradient() -> None:
    x = double(1, 1, 6, 6)

    def average(x: Array) -> Array:
        return np.array([[[[sum(w) / len(w) for w in row] for row in squares(x[0, 0], 3, 2)]]], dtype=object)

    assert_counts(lambda x: functional.avg_pool2d(x, 3, 2), average, x, op="avg_pool2d")
    assert_counts(
        lambda x: functional.max_pool2d(x, 3, 2),
        lambda x: np.array([[[[max(w) for w in row] for row in squares(x[0, 0], 3, 2)]]], dtype=object),
        x,
        op="max_pool2d_with_indices",
    )

    def spread(g: Array) -> Array:
        made = zeros(6, 6)
        for i, j in itertools.product(range(2), range(2)):
            share = g[0, 0, i, j] / 9
            for p, q in itertools.product(range(3), range(3)):
                made[2 * i + p, 2 * j + q] += share
        return made[None, None]

    assert_counts(
        lambda g: aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [0, 0], False, True, None),
        spread,
        double(1, 1, 2, 2),
        op="avg_pool2d_backward",
    )
    values, places = aten.max_pool2d_with_indices(x, [3, 3], [2, 2])

    def back(g: Array) -> Array:
        made = zeros(36)
        for each, place in zip(g.reshape(-1), places.reshape(-1).tolist()):
            made[place] += each
        return made.reshape(1, 1, 6, 6)

    assert_counts(
        lambda g: aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [0, 0], [1, 1], False, places),
        back,
        torch.rand_like(values),
        op="max_pool2d_with_indices_backward",
    )


@pytest.mark.parametrize(("size", "wanted"), [(5, 2), (7, 3), (4, 4), (3, 5)])
def test_windows_that_adapt(size: int, wanted: int) -> None:
    def window(i: int) -> slice:
        return slice(i * size // wanted, -(-(i + 1) * size // wanted))

    def reference(x: Array) -> Array:
        made = [
            sum(part) / len(part)
            for i, j in itertools.product(range(wanted), range(wanted))
            for part in [x[0, 0, window(i), window(j)].reshape(-1)]
        ]
        return array(made, (1, 1, wanted, wanted))

    x = double(1, 1, size, size)
    assert_counts(
        lambda x: aten._adaptive_avg_pool2d(x, [wanted, wanted]), reference, x, op="_adaptive_avg_pool2d"
    )
    back = cost_of(traced(aten._adaptive_avg_pool2d_backward, double(1, 1, wanted, wanted), x))
    assert back.flops == cost_of(traced(lambda x: aten._adaptive_avg_pool2d(x, [wanted, wanted]), x)).flops


# Interpolation


def cubic(t: float, a: float = -0.75) -> list[float]:
    def near(x: float) -> float:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: float) -> float:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def axis_taps(place: int, size: int, wanted: int, taps: int) -> list[tuple[int, float]]:
    """Which inputs, with which weights, an output along one axis is made of."""
    at = (place + 0.5) * size / wanted - 0.5
    if taps == 2:
        at = max(at, 0.0)
    low = math.floor(at)
    weights = [1 - (at - low), at - low] if taps == 2 else cubic(at - low)
    return [(min(max(low + k - (taps // 2 - 1), 0), size - 1), w) for k, w in enumerate(weights)]


@pytest.mark.parametrize(("mode", "taps"), [("bilinear", 2), ("bicubic", 4)])
def test_interpolation_and_its_gradient(mode: str, taps: int) -> None:
    size, wanted = 4, 7

    def reference(x: Array) -> Array:
        made = []
        for i, j in itertools.product(range(wanted), range(wanted)):
            rows, columns = axis_taps(i, size, wanted, taps), axis_taps(j, size, wanted, taps)
            inner = [dot([x[0, 0, p, q] for q, _ in columns], [w for _, w in columns]) for p, _ in rows]
            made.append(dot(inner, [w for _, w in rows]))
        return array(made, (1, 1, wanted, wanted))

    def gradient(g: Array) -> Array:
        made = zeros(1, 1, size, size)
        for i, j in itertools.product(range(wanted), range(wanted)):
            for p, v in axis_taps(i, size, wanted, taps):
                along = g[0, 0, i, j] * v
                for q, w in axis_taps(j, size, wanted, taps):
                    made[0, 0, p, q] += along * w
        return made

    op = f"upsample_{mode}2d"
    assert_counts(
        lambda x: functional.interpolate(x, (wanted, wanted), mode=mode),
        reference,
        double(1, 1, size, size),
        op=op,
    )
    assert_counts(
        lambda g: getattr(aten, f"{op}_backward")(g, [wanted, wanted], [1, 1, size, size], False, None, None),
        gradient,
        double(1, 1, wanted, wanted),
        op=f"{op}_backward",
    )


def test_interpolation_along_one_and_three_axes() -> None:
    line = cost_of(traced(lambda x: functional.interpolate(x, 8, mode="linear"), double(2, 3, 4)))
    assert line.flops == 2 * 3 * 8 * 2 * 2
    block = cost_of(
        traced(lambda x: functional.interpolate(x, (4, 4, 4), mode="trilinear"), double(1, 1, 2, 2, 2))
    )
    assert block.flops == 64 * 2 * (8 + 4 + 2)


@pytest.mark.parametrize(("size", "wanted"), [(9, 4), (4, 9), (8, 4)])
def test_smoothed_interpolation(size: int, wanted: int) -> None:
    def taps(place: int) -> list[tuple[int, float]]:
        scale = size / wanted
        reach, centre = max(scale, 1.0), scale * (place + 0.5)
        low = max(int(centre - reach + 0.5), 0)
        places = range(low, min(int(centre + reach + 0.5), size))
        weights = [max(0.0, 1 - abs((p - centre + 0.5) / max(scale, 1.0))) for p in places]
        return [(p, w / sum(weights)) for p, w in zip(places, weights)]

    def along(rows: Array) -> Array:
        return np.array(
            [
                [dot([row[p] for p, _ in taps(j)], [w for _, w in taps(j)]) for j in range(wanted)]
                for row in rows
            ],
            dtype=object,
        )

    def reference(x: Array) -> Array:
        return along(along(x[0, 0]).T).T[None, None]

    assert_counts(
        lambda x: functional.interpolate(x, (wanted, wanted), mode="bilinear", antialias=True),
        reference,
        double(1, 1, size, size),
        op="_upsample_bilinear2d_aa",
    )


@pytest.mark.parametrize("corners", [True, False])
def test_sampling_where_a_grid_points(corners: bool) -> None:
    x, grid = double(1, 3, 5, 6), double(1, 2, 4, 2, low=-0.7, high=0.7)

    def position(at: Any, size: int) -> Any:
        return (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2

    def reference(x: Array, grid: Array) -> Array:
        made = zeros(1, 3, 2, 4)
        for i, j in itertools.product(range(2), range(4)):
            at = [position(grid[0, i, j, 0], 6), position(grid[0, i, j, 1], 5)]
            low = [math.floor(float(each)) for each in at]
            rest = [each - start for each, start in zip(at, low)]
            weights = [(1 - each, each) for each in rest]
            corner = {(p, q): weights[1][p] * weights[0][q] for p in (0, 1) for q in (0, 1)}
            for c in range(3):
                made[0, c, i, j] = sum(x[0, c, low[1] + p, low[0] + q] * w for (p, q), w in corner.items())
        return made

    assert_counts(
        lambda x, grid: functional.grid_sample(x, grid, align_corners=corners),
        reference,
        x,
        grid,
        op="grid_sampler_2d",
    )


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
def test_the_gradient_of_sampling(mask: tuple[bool, bool]) -> None:
    g, x, grid = double(1, 3, 2, 4), double(1, 3, 5, 6), double(1, 2, 4, 2, low=-0.7, high=0.7)

    def reference(g: Array, x: Array, grid: Array) -> Any:
        dx, dgrid = zeros(1, 3, 5, 6), zeros(1, 2, 4, 2)
        for i, j in itertools.product(range(2), range(4)):
            at = [((grid[0, i, j, d] + 1) * size - 1) / 2 for d, size in enumerate((6, 5))]
            low = [math.floor(float(each)) for each in at]
            rest = [each - start for each, start in zip(at, low)]
            weights = [(1 - each, each) for each in rest]
            slopes = [0, 0]
            for p, q in itertools.product((0, 1), (0, 1)):
                corner = weights[1][p] * weights[0][q] if mask[0] else None
                for c in range(3):
                    place, up = (0, c, low[1] + p, low[0] + q), g[0, c, i, j]
                    if mask[0]:
                        dx[place] += up * corner
                    if mask[1]:
                        across, down = x[place] * weights[1][p] * up, x[place] * weights[0][q] * up
                        slopes[0] = slopes[0] + (across if q else -across)
                        slopes[1] = slopes[1] + (down if p else -down)
            if mask[1]:
                dgrid[0, i, j, 0], dgrid[0, i, j, 1] = slopes[0] * 3.0, slopes[1] * 2.5
        return dx if mask[0] else None, dgrid if mask[1] else None

    trace = traced(lambda *a: aten.grid_sampler_2d_backward(*a, 0, 0, False, list(mask)), g, x, grid)
    with counting() as tally:
        made = reference(numbers(g), numbers(x), numbers(grid))
    assert_values(trace.output, made)
    assert cost_of(trace, "grid_sampler_2d_backward").flops == flops(tally)


@pytest.mark.parametrize(("mode", "taps"), [(1, 1), (2, 4)])
def test_the_gradient_of_sampling_the_nearest_and_by_cubics(mode: int, taps: int) -> None:
    g, x, grid = double(1, 3, 2, 4), double(1, 3, 8, 9), double(1, 2, 4, 2, low=-0.4, high=0.4)

    def reference(g: Array, x: Array, grid: Array) -> Any:
        dx = zeros(1, 3, 8, 9)
        for i, j in itertools.product(range(2), range(4)):
            at = [((grid[0, i, j, d] + 1) * size - 1) / 2 for d, size in enumerate((9, 8))]
            if taps == 1:
                for c in range(3):
                    dx[0, c, round(float(at[1])), round(float(at[0]))] += g[0, c, i, j]
                continue
            low = [math.floor(float(each)) for each in at]
            weights = [cubic(each - start) for each, start in zip(at, low)]
            for c, p in itertools.product(range(3), range(4)):
                along = g[0, c, i, j] * weights[1][p]
                for q in range(4):
                    dx[0, c, low[1] + p - 1, low[0] + q - 1] += along * weights[0][q]
        return dx, None

    def function(*tensors: torch.Tensor) -> Any:
        return aten.grid_sampler_2d_backward(*tensors, mode, 0, False, [True, False])

    trace = traced(function, g, x, grid)
    with counting() as tally:
        made = reference(numbers(g), numbers(x), numbers(grid))
    assert_values(trace.output, made)
    assert cost_of(trace, "grid_sampler_2d_backward").flops == flops(tally)


def test_a_grid_from_a_matrix() -> None:
    theta = double(2, 2, 3)
    found = cost_of(traced(lambda t: aten.affine_grid_generator(t, [2, 1, 4, 5], False), theta))
    assert found.macs == 2 * 4 * 5 * 2 * 3


# Fourier transforms


Pair = tuple[Any, Any]


def fft(x: list[Pair]) -> list[Pair]:
    """Radix 2, on pairs of counting numbers; the twiddle factors are constants."""
    if len(x) == 1:
        return x
    even, odd = fft(x[::2]), fft(x[1::2])
    made: list[Any] = [None] * len(x)
    for k, ((a, b), (c, d)) in enumerate(zip(even, odd)):
        turn = np.exp(-2j * np.pi * k / len(x))
        p, q = c * turn.real - d * turn.imag, c * turn.imag + d * turn.real
        made[k], made[k + len(x) // 2] = (a + p, b + q), (a - p, b - q)
    return made


@pytest.mark.parametrize("n", [2, 4, 16])
def test_a_fourier_transform_is_the_radix_two_one(n: int) -> None:
    x = torch.complex(double(n), double(n))
    trace = traced(torch.fft.fft, x)
    with counting() as tally:
        made = fft(list(zip(numbers(x.real), numbers(x.imag))))
    assert_values(
        (trace.output.real, trace.output.imag),
        (array([p for p, _ in made], (n,)), array([q for _, q in made], (n,))),
    )
    assert cost_of(trace, "_fft_c2c").flops == flops(tally) == 5 * n * math.log2(n)
    real = cost_of(traced(torch.fft.rfft, double(n)), "_fft_r2c")
    assert real.flops == flops(tally) / 2
    back = cost_of(
        traced(lambda x: torch.fft.irfft(x, n), torch.complex(double(n // 2 + 1), double(n // 2 + 1)))
    )
    assert back.flops == flops(tally) / 2 + n  # and the division by n


def test_a_transform_along_several_axes_is_one_after_the_other() -> None:
    x = torch.complex(double(4, 8), double(4, 8))
    both = cost_of(traced(torch.fft.fft2, x), "_fft_c2c").flops
    each = [cost_of(traced(lambda x, d=d: torch.fft.fft(x, dim=d), x), "_fft_c2c").flops for d in (0, 1)]
    assert both == sum(each) == 5 * 32 * 5


@pytest.mark.parametrize("name", [*COMPLEX, *TO_COMPLEX, *TO_REAL])
@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_what_users_call_is_the_kernels_below_it(name: str, norm: str | None) -> None:
    x = double(3, 4, 8) if name in TO_COMPLEX else torch.complex(double(3, 4, 8), double(3, 4, 8))
    function = getattr(torch.fft, name)
    with torch.inference_mode():
        one = traced(lambda x: function(x, norm=norm), x)
    assert [node.name for node in one.graph.nodes] == [f"fft_{name}"]
    kernels = traced(lambda x: function(x, norm=norm), x)
    assert cost_of(one).flops == cost_of(kernels).flops
    if not name.endswith(("2", "n")):  # and with zeros put on to a length
        with torch.inference_mode():
            longer = traced(lambda x: function(x, 16, norm=norm), x)
        assert cost_of(longer).flops == cost_of(traced(lambda x: function(x, 16, norm=norm), x)).flops
