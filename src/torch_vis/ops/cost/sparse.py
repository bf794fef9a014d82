"""Operators that only sparse tensors have; what counts is the elements that are stored."""

from __future__ import annotations

from torch_vis.ops.cost.operation import Cost, Operation, SparseType, elements, is_sized
from torch_vis.ops.cost.registry import aten, family

cost = family("other")


@cost(*aten("_coalesce coalesce"), any_layout=True)
def coalesce(op: Operation) -> Cost | None:
    """Every stored element is added to the one of its place; finding that is sorting."""
    stored = elements(op.args[0])
    return None if stored is None else op.count(add=stored)


@cost(*aten("_sparse_mm_reduce_impl"), any_layout=True)
def product_reduced(op: Operation) -> Cost | None:
    """Every stored element times a row of the other matrix, and of these the sum, the mean, or the largest."""
    a, b, how = op.args[:3]
    if not isinstance(a, SparseType) or not is_sized(b):
        return None
    pairs = a.stored * b.shape[-1]
    if how not in ("sum", "mean"):
        return op.count(mul=pairs)
    return op.count(mac=pairs, div=op.out.numel if how == "mean" else 0)


@cost(*aten("_sparse_mm_reduce_impl_backward"), any_layout=True)
def product_reduced_backward(op: Operation) -> Cost | None:
    """The gradients of both factors; where the largest was chosen, each result has one element that it came from."""
    a, g, _, how, _, mask = op.args[:6]
    if not isinstance(a, SparseType) or not is_sized(g):
        return None
    wanted = bool(mask[0]) + bool(mask[1])
    if how not in ("sum", "mean"):
        return op.count(mac=g.numel * wanted)
    return op.count(mac=a.stored * g.shape[-1] * wanted, div=a.stored * wanted if how == "mean" else 0)
