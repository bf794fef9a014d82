"""Pooling and interpolation.

An average adds up its whole window, padding included, and divides once; a maximum only compares.
"""

from __future__ import annotations

from math import prod

from torch_vis.graph import TensorType
from torch_vis.ops.cost.elementwise import Work
from torch_vis.ops.cost.registry import Cost, Operation, aten, family, nbytes

cost = family("pooling")


def _window(op: Operation, position: int, dims: int) -> int:
    size = op.arg(position, "kernel_size")
    sizes = (size,) if isinstance(size, int) else size
    return prod(sizes) if len(sizes) > 1 or dims == 1 else sizes[0] ** dims


def _dims(op: Operation) -> int:
    return next(int(letter) for letter in op.op if letter.isdigit())


@cost(*aten("avg_pool1d avg_pool2d avg_pool3d"))
def average(op: Operation) -> Cost:
    """The sum of each window, divided."""
    n = op.out.numel
    return op.count(add=n * _window(op, 1, _dims(op)), div=n)


@cost(*aten("avg_pool2d_backward avg_pool3d_backward"))
def average_backward(op: Operation) -> Cost:
    """Each gradient, divided, added to its whole window."""
    n = op.args[0].numel
    return op.count(add=n * _window(op, 2, _dims(op)), div=n)


def adaptive_terms(sizes: tuple[int, ...], wanted: tuple[int, ...]) -> int:
    """How many elements the windows of an adaptive pooling hold together; window i is [⌊i s / w⌋, ⌈(i + 1) s / w⌉).

    >>> adaptive_terms((5,), (2,))  # 0, 1, 2 and 2, 3, 4
    6
    """
    return prod(
        sum(-(-(i + 1) * size // want) - i * size // want for i in range(want))
        for size, want in zip(sizes, wanted)
    )


@cost(
    *aten(
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
    )
)
@cost(*aten("mkldnn_adaptive_avg_pool2d"))
def adaptive_average(op: Operation) -> Cost:
    """The sum of each window, divided."""
    dims = _dims(op)
    x, out = op.args[0].shape, op.out.shape
    return op.count(add=prod(x[:-dims]) * adaptive_terms(x[-dims:], out[-dims:]), div=op.out.numel)


@cost(*aten("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward"))
@cost(*aten("mkldnn_adaptive_avg_pool2d_backward"))
def adaptive_average_backward(op: Operation) -> Cost:
    """Each gradient, divided, added to its whole window."""
    dims = _dims(op)
    g, x = op.args[0].shape, op.args[1].shape
    return op.count(add=prod(g[:-dims]) * adaptive_terms(x[-dims:], g[-dims:]), div=op.args[0].numel)


@cost(
    *aten(
        "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"
    )
)
@cost(
    *aten(
        "mkldnn_max_pool2d mkldnn_max_pool3d quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d"
    )
)
@cost(
    *aten(
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d"
    )
)
@cost(*aten("max_unpool2d max_unpool3d"))
def largest(op: Operation) -> Cost:
    """Comparisons and copies only."""
    return op.count()


@cost(*aten("max_pool2d_with_indices_backward max_pool3d_with_indices_backward max_pool2d_backward"))
@cost(*aten("mkldnn_max_pool2d_backward mkldnn_max_pool3d_backward"))
@cost(*aten("adaptive_max_pool2d_backward adaptive_max_pool3d_backward"))
@cost(*aten("fractional_max_pool2d_backward fractional_max_pool3d_backward"))
def largest_backward(op: Operation) -> Cost:
    """Each gradient added to the element that was the largest."""
    return op.count(add=op.args[0].numel)


# Interpolation: each output is a weighted sum, taken along one axis after the other, innermost first. Weights that
# follow from the sizes alone are worked out once for an axis and do not count; those of ``grid_sample`` come from the
# grid's numbers and do.
NEAREST = "nearest1d nearest2d nearest3d".split()
EXACT = "1d 2d 3d".split()
TAPS = {"linear1d": (2, 1), "bilinear2d": (2, 2), "trilinear3d": (2, 3), "bicubic2d": (4, 2)}
WIDTH = {"bilinear2d": 2, "bicubic2d": 4, "lanczos2d": 6}  # how far a smoothing filter reaches, in pixels


def _kind(op: Operation) -> str:
    return op.op.partition(".")[0].split("upsample_")[1].removesuffix("_backward").removesuffix("_aa")


@cost(
    *aten(f"upsample_{kind}" for kind in NEAREST), *aten(f"_upsample_nearest_exact{kind}" for kind in EXACT)
)
def nearest(op: Operation) -> Cost:
    """Copies; only what is copied is read."""
    return op.count(bytes=_copied(op))


def _copied(op: Operation) -> int | None:
    source, written = nbytes(op.args[0]), nbytes(op.out)
    return None if source is None or written is None else min(source, written) + written


@cost(*aten(f"upsample_{kind}_backward" for kind in NEAREST))
@cost(*aten(f"_upsample_nearest_exact{kind}_backward" for kind in EXACT))
def nearest_backward(op: Operation) -> Cost:
    """Every gradient is added to the element that it is a copy of."""
    return op.count(add=op.args[0].numel)


@cost(*aten(f"upsample_{kind}" for kind in TAPS))
def smooth(op: Operation) -> Cost:
    """With t taps, t multiply-adds for each of the t, or t², rows that the next axis combines."""
    taps, dims = TAPS[_kind(op)]
    terms = op.out.numel * sum(taps**axis for axis in range(1, dims + 1))
    return op.count(add=terms, mul=terms)


@cost(*aten(f"upsample_{kind}_backward" for kind in TAPS))
def smooth_backward(op: Operation) -> Cost:
    """Each gradient times the weights of one axis, then of the next, and added to every tap."""
    taps, dims = TAPS[_kind(op)]
    n = op.args[0].numel
    return op.count(add=n * taps**dims, mul=n * sum(taps**axis for axis in range(1, dims + 1)))


@cost(*aten(f"_upsample_{kind}_aa" for kind in WIDTH))
def antialiased(op: Operation) -> Cost:
    """One pass along the rows, then one along the columns; when it shrinks an image, a filter reaches further."""
    factors = op.arg(3, "scale_factors") if op.overload == "vec" else op.args[3:5]
    return _passes(op, op.args[0].shape, op.out.shape, bool(op.args[2]), factors)


@cost(*aten(f"_upsample_{kind}_aa_backward" for kind in WIDTH))
def antialiased_backward(op: Operation) -> Cost:
    """The same passes the other way."""
    return _passes(op, op.args[2], op.args[0].shape, bool(op.args[3]), op.args[4:6])


def _passes(
    op: Operation,
    before: tuple[int, ...],
    after: tuple[int, ...],
    corners: bool,
    factors: tuple[float | None, ...] | None,
) -> Cost:
    given = (*(factors or ()), None, None)
    width = WIDTH[_kind(op)]
    tall, wide = (_filter_taps(before[d], after[d], width, corners, given[d - 2]) for d in (2, 3))
    terms = prod(before[:2]) * (before[2] * wide + after[3] * tall)
    return op.count(add=terms, mul=terms)


def _filter_taps(size: int, wanted: int, width: int, corners: bool, factor: float | None) -> int:
    """Taps of all outputs along one axis together."""
    if corners:
        scale = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    else:
        scale = 1 / factor if factor else size / max(wanted, 1)
    reach = width / 2 * max(scale, 1.0)
    total = 0
    for pixel in range(wanted):
        centre = scale * (pixel + 0.5)
        total += min(int(centre + reach + 0.5), size) - max(int(centre - reach + 0.5), 0)
    return total


# Sampling where a grid points

BILINEAR, BICUBIC = 0, 2
CUBIC = Work(add=13, mul=12)  # the four weights of a cubic along one axis, from a fraction


def _points(op: Operation, grid: TensorType, corners: bool) -> tuple[int, int, Work]:
    """How many points, of how many dimensions, and the work that turns a coordinate into a position."""
    dims = grid.shape[-1]
    # ((x + 1) size - 1) / 2, or (x + 1) / 2 (size - 1) where the corners are aligned
    return (
        grid.numel // max(dims, 1),
        dims,
        Work(add=1, mul=1, div=1) if corners else Work(add=2, mul=1, div=1),
    )


def _sampled(op: Operation, grid: TensorType, channels: int, mode: int, corners: bool) -> dict[str, int]:
    points, dims, each = _points(op, grid, corners)
    add, mul, div = points * dims * each.add, points * dims * each.mul, points * dims * each.div
    # the fraction and its rest on each axis, their products, then the weighted sum
    if mode == BILINEAR:
        add += points * 2 * dims + points * channels * 2**dims
        mul += points * 2**dims * (dims - 1) + points * channels * 2**dims
    elif mode == BICUBIC:
        add += points * dims * (1 + CUBIC.add) + points * channels * 20
        mul += points * dims * CUBIC.mul + points * channels * 20
    return {"add": add, "mul": mul, "div": div}


@cost(*aten("grid_sampler_2d grid_sampler_3d grid_sampler _grid_sampler_2d_cpu_fallback"))
def grid_sample(op: Operation) -> Cost:
    """Positions from the grid, weights from their fractions, and a weighted sum for each channel."""
    x, grid, mode = op.args[:3]
    return op.count(**_sampled(op, grid, x.shape[1], mode, bool(op.args[4])))


@cost(*aten("cudnn_grid_sampler"))
def cudnn_grid_sample(op: Operation) -> Cost:
    """Bilinear, corners aligned."""
    return op.count(**_sampled(op, op.args[1], op.args[0].shape[1], BILINEAR, True))


@cost(*aten("grid_sampler_2d_backward grid_sampler_3d_backward"))
def grid_sample_backward(op: Operation) -> Cost | None:
    """Weights as forward, each gradient spread over its corners, and if bilinear the slope of each coordinate.

    The nearest element has no slope; that of a cubic is not covered.
    """
    _, x, grid, mode, _, corners, mask = op.args[:7]
    points, dims, _ = _points(op, grid, bool(corners))
    work = _sampled(op, grid, 0, mode, bool(corners))
    if mode != BILINEAR:
        if mode == BICUBIC and mask[1]:
            return None
        # of one axis first, then of the other
        adds, muls = (16, 20) if mode == BICUBIC else (1, 0)
        work["add"] += points * x.shape[1] * adds * mask[0]
        work["mul"] += points * x.shape[1] * muls * mask[0]
        return op.count(**work)
    spread = points * x.shape[1] * 2**dims
    if mask[0]:
        work["add"] += spread
        work["mul"] += spread
    else:
        # the weights of the corners are not needed
        work["mul"] -= points * 2**dims * (dims - 1)
    if mask[1]:
        work["add"] += spread * dims
        work["mul"] += spread * dims * dims + points * dims
    return op.count(**work)


@cost(*aten("affine_grid_generator"))
def affine_grid(op: Operation) -> Cost:
    """Every point of a plain grid, with a one put on, times the matrix."""
    return op.count(mac=op.out.numel * op.args[0].shape[-1])
