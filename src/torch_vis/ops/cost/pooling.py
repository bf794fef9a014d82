"""Pooling: an average adds up its whole window, padding included, and divides once; a maximum only compares."""

from __future__ import annotations

from math import prod

from torch_vis.ops.cost.operation import Cost, Operation
from torch_vis.ops.cost.registry import aten, family

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
