"""Gathering and scattering: what counts is the elements that are picked or put, not the tensor they lie in."""

from __future__ import annotations

from math import prod
from typing import Any

from torch_vis.graph import TensorType
from torch_vis.ops.cost.elementwise import factor
from torch_vis.ops.cost.reduction import norm_root, norm_work
from torch_vis.ops.cost.registry import UNKNOWN_BYTES, Cost, Operation, aten, family, nbytes, tensors_in
from torch_vis.ops.names import plain_name

cost = family("indexing")


def _sum(*parts: int | None) -> int:
    """Bytes added up; not known if one part is not."""
    return (
        UNKNOWN_BYTES if any(part is None or part < 0 for part in parts) else sum(part or 0 for part in parts)
    )


def _elements(tensor: TensorType, count: int) -> int | None:
    return None if tensor.itemsize is None else tensor.itemsize * count


# Picking


@cost(*aten("index _unsafe_index index_select gather take take_along_dim masked_select"))
def pick(op: Operation) -> Cost:
    """Reads the indices and the elements that it returns."""
    source = op.args[0]
    indices = tensors_in(op.args[1:])
    return op.count(bytes=_sum(nbytes(*indices), _elements(source, op.out.numel), nbytes(op.out)))


@cost(*aten("_unsafe_masked_index"))
def pick_masked(op: Operation) -> Cost:
    """The same under a mask."""
    return pick(op)


@cost(*aten("embedding"))
def embedding(op: Operation) -> Cost:
    """Reads the indices and the rows that they name."""
    return pick(op)


@cost(*aten("embedding_dense_backward embedding_backward"))
def embedding_backward(op: Operation) -> Cost:
    """Every gradient is added to its row; scaled by how often the row is named, where that is asked for."""
    n = op.args[0].numel
    return op.count(add=n, div=n if op.arg(4, "scale_grad_by_freq", False) else 0)


@cost(*aten("embedding_renorm"))
def embedding_renorm(op: Operation) -> Cost:
    """For every index the norm of its row, ``limit / (norm + eps)``, and the row times it.

    A row that is named twice, or short enough, is counted like any other.
    """
    weight, indices, p = op.args[0], op.args[1], op.args[3]
    rows, n = indices.numel, indices.numel * weight.shape[-1]
    counted = norm_work(p, n)
    return op.count(
        add=counted.get("add", 0) + rows,
        mul=counted.get("mul", 0) + n,
        div=rows,
        call=counted.get("call", 0) + rows * norm_root(p),
        bytes=_sum(nbytes(indices), _elements(weight, 2 * n)),
    )


SUM, MEAN, MAX = 0, 1, 2  # how an embedding bag combines rows


@cost(*aten("_embedding_bag _embedding_bag_forward_only embedding_bag"))
def embedding_bag(op: Operation) -> Cost:
    """The rows of each bag added up, weighted where there are weights, divided for a mean; only these are read."""
    weight, indices, offsets = op.args[:3]
    mode, scales = op.arg(4, "mode", SUM), op.arg(6, "per_sample_weights")
    n = indices.numel * weight.shape[1]
    moved = _sum(nbytes(indices, offsets, scales, *op.outputs), _elements(weight, n))
    return op.count(
        add=0 if mode == MAX else n,
        mul=0 if scales is None else n,
        div=op.outputs[0].numel if mode == MEAN else 0,
        bytes=moved,
    )


@cost(*aten("_embedding_bag_backward _embedding_bag_dense_backward"))
def embedding_bag_backward(op: Operation) -> Cost:
    """The gradient of each bag added to each of its rows."""
    dense = "dense" in op.op
    g, indices = op.args[0], op.args[1]
    mode, scales = op.args[7 if dense else 8], op.args[8 if dense else 10]
    n = g.numel if mode == MAX else indices.numel * g.shape[1]
    return op.count(add=n, mul=0 if scales is None else n, div=n if mode == MEAN else 0)


@cost(*aten("_embedding_bag_per_sample_weights_backward"))
def embedding_weights_backward(op: Operation) -> Cost:
    """For every index the product of its row with the gradient of its bag."""
    g, weight, indices, offsets, bags = op.args[:5]
    n = indices.numel * weight.shape[1]
    return op.count(
        add=n, mul=n, bytes=_sum(nbytes(g, indices, offsets, bags, *op.outputs), _elements(weight, n))
    )


# Putting: a result of its own is a whole copy, in place only the elements that are put are written


def _put(op: Operation, count: int | None, read: tuple[Any, ...], *, adds: bool, **work: int) -> Cost:
    """So many elements written, and read before if they are added to."""
    if not op.is_in_place:
        return op.count(**work)
    written = None if count is None else _elements(op.args[0], count * (2 if adds else 1))
    return op.count(**work, bytes=_sum(nbytes(*tensors_in(read)), written))


def put_count(tensor: TensorType, indices: tuple[Any, ...]) -> int | None:
    """How many elements a tuple of indices names; a mask does not say.

    >>> row = TensorType("int64", (5,), (1,))
    >>> put_count(TensorType("float32", (9, 4), (4, 1)), (row,))
    20
    """
    given = [index for index in indices if isinstance(index, TensorType)]
    if any(index.dtype in ("bool", "uint8") for index in given):
        return None
    free = [size for dim, size in enumerate(tensor.shape) if dim >= len(indices) or indices[dim] is None]
    dims = max((len(index.shape) for index in given), default=0)
    padded = [(1,) * (dims - len(index.shape)) + tuple(index.shape) for index in given]
    return prod(max(sizes) if min(sizes) else 0 for sizes in zip(*padded)) * prod(free)


@cost(*aten("index_put _unsafe_index_put _index_put_impl"))
def index_put(op: Operation) -> Cost | None:
    """Values put, or added, where the indices point."""
    values, adds = op.args[2], bool(op.arg(3, "accumulate", False))
    count = put_count(op.args[0], op.args[1])
    if count is None and values.numel != 1:
        # a mask takes as many values as it has true elements, which may be none
        count = values.numel
    if adds and count is None:
        return None
    return _put(op, count, (op.args[1], values), adds=adds, add=(count or 0) if adds else 0)


@cost(*aten("_unsafe_masked_index_put_accumulate"))
def masked_put(op: Operation) -> Cost:
    """Values added where the indices point, those outside the mask as zeros."""
    return op.count(add=op.args[3].numel)


@cost(*aten("put"))
def put(op: Operation) -> Cost:
    """Values put, or added, by flat index."""
    count, adds = op.args[1].numel, bool(op.arg(3, "accumulate", False))
    return _put(op, count, op.args[1:3], adds=adds, add=count if adds else 0)


@cost(*aten("index_add"))
def index_add(op: Operation) -> Cost:
    """``alpha`` times the source added to the rows named."""
    source = op.args[3]
    scaled = source.numel * factor(op.arg(None, "alpha", 1))
    return _put(op, source.numel, op.args[2:4], adds=True, add=source.numel, mul=scaled)


@cost(*aten("index_copy"))
def index_copy(op: Operation) -> Cost:
    """Rows copied to where the index points."""
    return _put(op, op.args[3].numel, op.args[2:4], adds=False)


@cost(*aten("index_fill"))
def index_fill(op: Operation) -> Cost:
    """Rows filled."""
    x, dim, index = op.args[:3]
    size = x.shape[dim] if x.shape else 1
    return _put(op, x.numel // max(size, 1) * index.numel, (index,), adds=False)


@cost(*aten("scatter scatter_add scatter_reduce"))
def scatter(op: Operation) -> Cost | None:
    """For every index one element put, added, multiplied or compared; a mean divides at the end."""
    index, source = op.args[2], op.arg(3, "src")
    count = index.numel
    how = "add" if plain_name(op.op) == "scatter_add" else op.arg(4, "reduce")
    work = {
        "add": {"add": count},
        "sum": {"add": count},
        "multiply": {"mul": count},
        "prod": {"mul": count},
    }.get(how, {})
    if how == "mean":
        work = {"add": count, "div": op.args[0].numel}
    written = _put(op, count, (index,), adds=how is not None, **work)
    if written.bytes is None or not isinstance(source, TensorType):
        return written
    return written._replace(bytes=_sum(written.bytes, _elements(source, count)))


@cost(*aten("index_reduce"))
def index_reduce(op: Operation) -> Cost:
    """Rows multiplied, compared or averaged into the rows named."""
    source, how = op.args[3], op.args[4]
    n = source.numel
    work = {"prod": {"mul": n}, "mean": {"add": n, "div": op.args[0].numel}}.get(how, {})
    return _put(op, n, op.args[2:4], adds=True, **work)
