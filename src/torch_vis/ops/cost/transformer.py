"""The encoder fast path: multi-head attention and a whole encoder layer, each one operation, counted by their parts."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torch_vis.graph import TensorType
from torch_vis.ops.cost import attention, normalization
from torch_vis.ops.cost.operation import Cost, NestedType, Operation, is_sized, together
from torch_vis.ops.cost.registry import aten, family

cost = family("attention")


def _linear(rows: int, weight: TensorType) -> Cost:
    """A linear layer with bias."""
    macs = rows * weight.numel
    return Cost(2 * macs + rows * weight.shape[0], macs)


class _Extent(NamedTuple):
    """Rows to project of queries, keys and values, and the square of scores: sequences, queries and keys of each."""

    rows: tuple[int, int, int]
    batch: int
    queries: int
    keys: int

    @classmethod
    def of(cls, q: TensorType, k: TensorType, v: TensorType) -> _Extent:
        """That of plain tensors."""
        rows = prod(q.shape[:-1]), prod(k.shape[:-1]), prod(v.shape[:-1])
        return cls(rows, q.shape[0], q.shape[1], k.shape[1])


def _multi_head(
    extent: _Extent, heads: int, weight: TensorType, out: TensorType, mask: TensorType | None
) -> Cost:
    """Three projections with bias, the queries scaled, attention for each head, and the projection of the result."""
    width, rows = weight.shape[1], extent.rows
    macs = sum(rows) * width * width
    into = Cost(2 * macs + sum(rows) * width + rows[0] * width, macs)
    scores = extent.batch * heads * extent.queries * extent.keys
    between = scores * (attention.SOFTMAX + attention.adds(mask))
    products = scores * 2 * (width // heads)
    return together(into, Cost(2 * products + between, products), _linear(rows[0], out))


@cost(*aten("_native_multi_head_attention"))
def multi_head(op: Operation) -> Cost:
    """Attention with its projections; the weights, where they are wanted, are averaged over the heads."""
    q, k, v, _, heads, weight, _, out = op.args[:8]
    made = _multi_head(_Extent.of(q, k, v), heads, weight, out, op.arg(9, "mask"))
    if op.arg(10, "need_weights", True) and op.arg(11, "average_attn_weights", True):
        weights = q.shape[0] * q.shape[1] * k.shape[1]
        made = together(made, Cost(weights * heads + weights))
    return made


@cost(*aten("_triton_multi_head_attention"))
def triton_multi_head(op: Operation) -> Cost:
    """Attention with its projections."""
    q, k, v, _, heads, weight, _, out = op.args[:8]
    return _multi_head(_Extent.of(q, k, v), heads, weight, out, op.arg(9, "mask"))


@cost(*aten("_transform_bias_rescale_qkv"))
def bias_and_rescale(op: Operation) -> Cost:
    """The bias of all three projections, and the scale of the queries."""
    return op.count(add=op.args[0].numel, mul=op.args[0].numel // 3)


@cost(*aten("_transformer_encoder_layer_fwd"), any_layout=True)
def encoder_layer(op: Operation) -> Cost | None:
    """Attention, two linear layers with an activation between them, two sums and two normalisations.

    A nested batch is padded for attention only: its scores are those of the box that it was made from.
    """
    x, width, heads, weight, _, out, _, use_gelu = op.args[:8]
    first, second, mask = op.args[14], op.args[16], op.arg(18, "mask")
    extent = _encoder_extent(x, width)
    if extent is None:
        return None
    rows = extent.rows[0]
    norm = normalization.normalised(rows, width, weight=True, bias=True)
    return together(
        _multi_head(extent, heads, weight, out, mask),
        _linear(rows, first),
        Cost(5 * rows * first.shape[0] if use_gelu else 0),
        _linear(rows, second),
        Cost(2 * rows * width),
        norm,
        norm,
    )


def _encoder_extent(x: TensorType, width: int) -> _Extent | None:
    if not isinstance(x, NestedType):
        return _Extent.of(x, x, x) if is_sized(x) else None
    if x.box is None:
        return None
    rows = x.stored // width
    return _Extent((rows, rows, rows), x.box[0], x.box[1], x.box[1])
