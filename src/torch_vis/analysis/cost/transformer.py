"""The encoder fast path: multi-head attention and a whole encoder layer, each one operation, counted by their parts."""

from __future__ import annotations

from math import prod

from torch_vis.analysis.cost import attention, normalization
from torch_vis.analysis.cost.operation import Cost, Operation, together
from torch_vis.analysis.cost.registry import aten, cost
from torch_vis.graph import TensorType


def _linear(rows: int, weight: TensorType) -> Cost:
    """A linear layer with bias."""
    macs = rows * weight.numel
    return Cost(2 * macs + rows * weight.shape[0], macs)


def _multi_head(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    heads: int,
    weight: TensorType,
    out: TensorType,
    mask: TensorType | None,
) -> Cost:
    """Three projections with bias, the queries scaled, attention for each head, and the projection of the result."""
    width = weight.shape[1]
    projected = [prod(each.shape[:-1]) for each in (q, k, v)]
    macs = sum(projected) * width * width
    into = Cost(2 * macs + sum(projected) * width + projected[0] * width, macs)
    rows, queries, keys = q.shape[0] * heads, q.shape[1], k.shape[1]
    scores = rows * queries * keys
    between = scores * (attention.SOFTMAX + attention.adds(mask))
    products = scores * 2 * (width // heads)
    return together(into, Cost(2 * products + between, products), _linear(projected[0], out))


@cost(*aten("_native_multi_head_attention"))
def multi_head(op: Operation) -> Cost:
    """Attention with its projections; the weights, where they are wanted, are averaged over the heads."""
    q, k, v, _, heads, weight, _, out = op.args[:8]
    made = _multi_head(q, k, v, heads, weight, out, op.arg(9, "mask"))
    if op.arg(10, "need_weights", True) and op.arg(11, "average_attn_weights", True):
        weights = q.shape[0] * q.shape[1] * k.shape[1]
        made = together(made, Cost(weights * heads + weights))
    return made


@cost(*aten("_triton_multi_head_attention"))
def triton_multi_head(op: Operation) -> Cost:
    """Attention with its projections."""
    q, k, v, _, heads, weight, _, out = op.args[:8]
    return _multi_head(q, k, v, heads, weight, out, op.arg(9, "mask"))


@cost(*aten("_transform_bias_rescale_qkv"))
def bias_and_rescale(op: Operation) -> Cost:
    """The bias of all three projections, and the scale of the queries."""
    return op.count(add=op.args[0].numel, mul=op.args[0].numel // 3)


@cost(*aten("_transformer_encoder_layer_fwd"))
def encoder_layer(op: Operation) -> Cost:
    """Attention, two linear layers with an activation between them, two sums and two normalisations."""
    x, _, heads, weight, _, out, _, use_gelu = op.args[:8]
    first, second, mask = op.args[14], op.args[16], op.arg(18, "mask")
    rows, hidden = prod(x.shape[:-1]), prod(x.shape[:-1]) * first.shape[0]
    norm = normalization.normalised(rows, x.shape[-1], weight=True, bias=True)
    return together(
        _multi_head(x, x, x, heads, weight, out, mask),
        _linear(rows, first),
        Cost(5 * hidden if use_gelu else 0),
        _linear(rows, second),
        Cost(2 * x.numel),
        norm,
        norm,
    )
