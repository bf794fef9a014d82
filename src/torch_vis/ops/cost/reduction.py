"""Reductions and running sums: a sum of ``n`` elements is ``n`` additions, its accumulator starting from zero."""

from __future__ import annotations

import math
from typing import Any

from torch_vis.graph import TensorType
from torch_vis.ops.cost.registry import Cost, Operation, aten, elements, family, nbytes, together

cost = family("reduction")


@cost(*aten("sum nansum cumsum count_nonzero sum_to_size _sparse_sum"), "prims::sum", any_layout=True)
def add_up(op: Operation) -> Cost | None:
    """One addition an element."""
    n = elements(op.args[0])
    return None if n is None else op.count(add=n)


@cost(*aten("prod cumprod"), "prims::prod")
def multiply_up(op: Operation) -> Cost:
    """One product an element."""
    return op.count(mul=op.args[0].numel)


@cost(*aten("mean nanmean"))
def mean(op: Operation) -> Cost:
    """The sum, divided."""
    return op.count(add=op.args[0].numel, div=op.out.numel)


@cost(*aten("var std var_mean std_mean"))
def variance(op: Operation) -> Cost:
    """The mean, then the sum of the squared differences from it, divided; the deviation is its root."""
    n, results = op.args[0].numel, op.outputs[0].numel
    return op.count(add=3 * n, mul=n, div=2 * results, call=results if "std" in op.op else 0)


def norm_work(p: Any, n: int) -> dict[str, int]:
    """What the sum inside a norm of order ``p`` takes over ``n`` elements.

    >>> norm_work(2, 10), norm_work(1, 10)
    ({'add': 10, 'mul': 10}, {'add': 10})
    """
    if p in (math.inf, -math.inf):
        return {}
    if p in (0, 1):
        return {"add": n}
    return {"add": n, "mul": n} if p == 2 else {"add": n, "call": n}


def norm_root(p: Any) -> int:
    """Whether a norm of order ``p`` ends with a root."""
    return 0 if p in (0, 1, math.inf, -math.inf) else 1


@cost(*aten("linalg_vector_norm norm native_norm frobenius_norm"))
def norm(op: Operation) -> Cost:
    """The sum of the powers, and its root; absolute values are free."""
    given = None if "frobenius" in op.op else op.arg(1, "ord", op.kwargs.get("p", 2))
    p = 2 if given is None else given
    counted = norm_work(p, op.args[0].numel)
    roots = op.out.numel * norm_root(p)
    return op.count(**{**counted, "call": counted.get("call", 0) + roots})


@cost(*aten("linalg_norm"))
def plain_norm(op: Operation) -> Cost | None:
    """The root of the sum of all squares, unless another norm is named."""
    if op.arg(1, "ord") is not None or op.arg(2, "dim") is not None:
        return None
    n = op.args[0].numel
    return op.count(add=n, mul=n, call=op.out.numel)


@cost(*aten("linalg__powsum"))
def power_sum(op: Operation) -> Cost:
    """The same without the root."""
    return op.count(**norm_work(op.arg(1, "ord", 2), op.args[0].numel))


@cost(*aten("renorm"))
def renorm(op: Operation) -> Cost:
    """The norm of every slice, ``limit / (norm + eps)``, and every element times it."""
    x, p, dim = op.args[:3]
    slices = x.shape[dim]
    counted = norm_work(p, x.numel)
    add, call = counted.get("add", 0) + slices, counted.get("call", 0) + slices * norm_root(p)
    return op.count(add=add, mul=counted.get("mul", 0) + x.numel, div=slices, call=call)


@cost(*aten("logsumexp special_logsumexp"))
def logsumexp(op: Operation) -> Cost:
    """``max + log Σ exp(x - max)``."""
    n, results = op.args[0].numel, op.out.numel
    return op.count(add=2 * n + results, call=n + results)


@cost(*aten("logcumsumexp _logcumsumexp"))
def logcumsumexp(op: Operation) -> Cost:
    """``max + log1p(exp(-|a - b|))`` of each element and what came before it."""
    n = op.args[0].numel
    return op.count(add=2 * n, call=2 * n)


@cost(*aten("trace"))
def trace(op: Operation) -> Cost:
    """The sum of the diagonal, which is all that is read."""
    x = op.args[0]
    diagonal = min(x.shape)
    return op.count(add=diagonal, bytes=(x.itemsize or 0) * diagonal + (nbytes(op.out) or 0))


@cost(*aten("diff"))
def difference(op: Operation) -> Cost:
    """Differences of neighbours, taken ``n`` times; what is put on before and after counts as there."""
    times, dim = op.arg(1, "n", 1), op.arg(2, "dim", -1)
    out = op.out.shape
    size = out[dim] if out else 0
    rows = op.out.numel // max(size, 1)
    return op.count(add=sum(rows * (size + step) for step in range(times)))


@cost(
    *aten(
        "max min amax amin aminmax _aminmax argmax argmin any all median nanmedian mode kthvalue cummax cummin"
    )
)
@cost(*aten("_cummax_helper _cummin_helper _is_all_true _is_any_true"), "prims::amax", "prims::amin")
def compare(op: Operation) -> Cost:
    """Comparisons only."""
    return op.count()


# Distances


@cost(*aten("dist"))
def dist(op: Operation) -> Cost:
    """The norm of the difference."""
    a, b = op.args[0], op.args[1]
    n = max(a.numel, b.numel)
    p = op.arg(2, "p", 2)
    counted = norm_work(p, n)
    return op.count(
        **{**counted, "add": counted.get("add", 0) + n, "call": counted.get("call", 0) + norm_root(p)}
    )


@cost(*aten("pairwise_distance"))
def pairwise_distance(op: Operation) -> Cost:
    """The norm of the difference of two rows, plus eps."""
    a, b, p = op.args[0], op.args[1], op.arg(2, "p", 2.0)
    distance = _pair_work(op, op.out.numel, max(a.shape[-1], b.shape[-1]), p)
    return distance._replace(flops=distance.flops + op.out.numel * max(a.shape[-1], b.shape[-1]))


def _pair_work(op: Operation, pairs: int, width: int, p: float) -> Cost:
    counted = norm_work(p, pairs * width)
    add, call = counted.get("add", 0) + pairs * width, counted.get("call", 0) + pairs * norm_root(p)
    return op.count(**{**counted, "add": add, "call": call})


@cost(*aten("cdist _cdist_forward _pdist_forward pdist"))
def distances(op: Operation) -> Cost:
    """The norm of the difference of every pair of rows."""
    single = "pdist" in op.op
    p = op.arg(1, "p", 2.0) if single else op.arg(2, "p", 2.0)
    return _pair_work(op, op.out.numel, op.args[0].shape[-1], p)


@cost(*aten("_cdist_backward _pdist_backward"))
def distances_backward(op: Operation) -> Cost:
    """For every pair and place the difference, its share of the distance, times the gradient, into the sum.

    With rows of one matrix among themselves, it goes into the sums of both.
    """
    single = "_pdist" in op.op
    pairs, width, p = op.args[0].numel, op.args[1].shape[-1], op.args[2 if single else 3]
    if p == 0:
        return op.count()
    places, sums = pairs * width, 2 if single else 1
    share = {1: {}, 2: {"div": places}, math.inf: {}}.get(p, {"div": places, "call": places})
    return op.count(add=places * (1 + sums), mul=places, **share)


@cost(*aten("_euclidean_dist"))
def euclidean(op: Operation) -> Cost:
    """``sqrt(|a|² + |b|² - 2 a b)`` as one product of widened matrices."""
    a, b = op.args[0], op.args[1]
    squares = a.numel + b.numel
    return op.count(
        add=squares, mul=squares + a.numel, mac=op.out.numel * (a.shape[-1] + 2), call=op.out.numel
    )


@cost(*aten("cosine_similarity"))
def cosine_similarity(op: Operation) -> Cost:
    """Both vectors divided by their norms, multiplied and added up."""
    a, b = op.args[0], op.args[1]
    dim = op.arg(2, "dim", 1)
    n = op.out.numel * max(_size(a, dim), _size(b, dim))
    return op.count(add=3 * n, mul=3 * n, div=2 * n, call=2 * op.out.numel)


def _size(tensor: TensorType, dim: int) -> int:
    return tensor.shape[dim] if tensor.shape else 1


# Counting into bins


@cost(*aten("bincount"))
def bincount(op: Operation) -> Cost:
    """One addition an element."""
    return op.count(add=op.args[0].numel)


@cost(*aten("histc"))
def histc(op: Operation) -> Cost:
    """``(x - low) / (high - low) bins`` says which bin to add one to."""
    n = op.args[0].numel
    return op.count(add=2 * n + 1, mul=n, div=n)


@cost(*aten("histogram _histogramdd_from_bin_cts _histogramdd_from_bin_tensors"))
def histogram(op: Operation) -> Cost:
    """The same along every axis of a point; among edges that are given, the bin is searched for.

    A density divides every bin by the sum of all, and by its width along each axis.
    """
    x, many, bins = op.args[0], "histogramdd" in op.op, op.outputs[0]
    axes = x.shape[-1] if many else 1
    points = x.numel // max(axes, 1)
    if op.overload == "bins_tensor" or "bin_tensors" in op.op:
        counted = op.count(add=points)
    else:
        counted = op.count(add=x.numel + points + axes, mul=x.numel, div=x.numel)
    if not op.arg(None, "density", False):
        return counted
    return together(counted, op.count(add=bins.numel + sum(bins.shape), div=bins.numel * (1 + axes)))


@cost(*aten("_histogramdd_bin_edges"))
def bin_edges(op: Operation) -> Cost:
    """Smallest and largest of each axis, and edges filled in between."""
    return op.count()


@cost(*aten("segment_reduce"))
def segment_reduce(op: Operation) -> Cost | None:
    """Every element goes into the total of its segment, which for a mean is divided."""
    n, how = op.args[0].numel, op.args[1]
    if how in ("max", "min"):
        return op.count()
    if how == "prod":
        return op.count(mul=n)
    return op.count(add=n, div=op.out.numel if how == "mean" else 0) if how in ("sum", "mean") else None


@cost(*aten("_segment_reduce_backward"))
def segment_reduce_backward(op: Operation) -> Cost | None:
    """A sum passes its gradient on and a mean divides it.

    The largest and the smallest share it among the elements that equal them, which are counted, and a product passes on
    ``g y / x``; an element that is zero, for which the others are multiplied again, is counted like any other.
    """
    how, n = op.args[3], op.out.numel
    work = {
        "sum": {},
        "mean": {"div": n},
        "max": {"add": n, "div": n},
        "min": {"add": n, "div": n},
        "prod": {"mul": op.args[0].numel, "div": n},
    }
    return op.count(**work[how]) if how in work else None
