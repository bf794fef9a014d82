"""Attention kernels: ``softmax(scale q kᵀ + bias) v``, counted as these two products and what lies between them.

The whole square of scores is counted, also where a mask is causal or a window: that is the definition, and so a
fused kernel costs what its unfused form does. A kernel that skips the masked half executes up to half of these
FLOPs: for causal scores of n queries and n keys, (n + 1) / 2n of them.

Backward kernels are counted with the scores worked out again from ``q`` and ``k``, as they all do: five
products to the forward's two, where the unfused form, which keeps the scores, has four.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torch_vis.graph import TensorType
from torch_vis.ops.cost import normalization
from torch_vis.ops.cost.registry import Cost, NestedType, Operation, aten, family, is_sized, together

cost = family("attention")

SOFTMAX = 4  # subtract the largest, exp, add up, divide


class ScoreSizes(NamedTuple):
    """Batch times heads, queries, keys, and the widths of keys and of values."""

    rows: int
    queries: int
    keys: int
    width: int
    value_width: int


def heads_first(q: TensorType, k: TensorType, v: TensorType) -> ScoreSizes:
    """Tensors of shape (batch, heads, length, width); grouped keys are used once for every head of the queries."""
    return ScoreSizes(prod(q.shape[:-2]), q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1])


def length_first(q: TensorType, k: TensorType, v: TensorType) -> ScoreSizes:
    """Tensors of shape (batch, length, heads, width)."""
    return ScoreSizes(q.shape[0] * q.shape[2], q.shape[1], k.shape[1], q.shape[3], v.shape[3])


def forward(op: Operation, sizes: ScoreSizes, *, bias: TensorType | None, dropout: float, lse: bool) -> Cost:
    """Scores, scale, bias, softmax, dropout and the weighted sum of values."""
    rows, queries, keys, width, value_width = sizes
    scores = rows * queries * keys
    each = 1 + SOFTMAX + adds(bias) + (2 if dropout else 0)
    products = op.count(mac=scores * (width + value_width))
    return products._replace(flops=products.flops + each * scores + (2 * rows * queries if lse else 0))


def backward(
    op: Operation, sizes: ScoreSizes, *, bias: TensorType | None, dropout: float, bias_grad: bool
) -> Cost:
    """The scores recomputed, then the gradients of values, scores, keys and queries.

    With ``p = exp(scale q kᵀ - lse)`` and ``delta = Σ g out``: ``dv = pᵀ g``, ``ds = p (g vᵀ - delta) scale``,
    ``dq = ds k``, ``dk = dsᵀ q``.
    """
    rows, queries, keys, width, value_width = sizes
    scores = rows * queries * keys
    each = 1 + adds(bias) + 2 + 2 + 1 + (4 if dropout else 0) + int(bias_grad)
    products = op.count(mac=scores * (3 * width + 2 * value_width))
    return products._replace(flops=products.flops + each * scores + 2 * rows * queries * value_width)


def adds(bias: TensorType | None) -> int:
    """Additions per score: a mask of truth values chooses, and any other is added."""
    return 0 if bias is None or bias.dtype == "bool" else 1


def _mask(op: Operation, position: int | None, name: str) -> TensorType | None:
    mask = op.arg(position, name)
    return mask if isinstance(mask, TensorType) and mask.numel else None


def _gives_lse(op: Operation) -> bool:
    return len(op.outputs) > 1 and op.outputs[1].numel > 0


@cost(*aten("_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu"))
def flash(op: Operation) -> Cost:
    """The kernels of PyTorch's own attention that give the log of the sums for backward."""
    index = 6 if op.overload == "quantized" else 3
    dropout = op.arg(index, "dropout_p", 0.0)
    return forward(
        op, heads_first(*op.args[:3]), bias=_mask(op, None, "attn_mask"), dropout=dropout, lse=_gives_lse(op)
    )


@cost(*aten("_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"))
def with_bias(op: Operation) -> Cost:
    """Kernels that take a bias, and whether to give the log of the sums."""
    bias, lse = _mask(op, 3, "attn_bias"), bool(op.arg(4, "compute_log_sumexp", False))
    return forward(
        op,
        heads_first(*op.args[:3]),
        bias=bias,
        dropout=op.arg(5, "dropout_p", 0.0),
        lse=lse and _gives_lse(op),
    )


@cost(*aten("_scaled_dot_product_fused_attention_overrideable"))
def overrideable(op: Operation) -> Cost:
    """The operator that custom backends implement."""
    bias, dropout = _mask(op, 3, "attn_bias"), op.arg(4, "dropout_p", 0.0)
    return forward(op, heads_first(*op.args[:3]), bias=bias, dropout=dropout, lse=_gives_lse(op))


@cost(*aten("scaled_dot_product_attention _scaled_dot_product_attention_math _triton_scaled_dot_attention"))
@cost(*aten("_scaled_dot_product_attention_math_for_mps"))
def plain(op: Operation) -> Cost:
    """Attention as one operation whatever kernel serves it, as inference mode shows it."""
    triton = "_triton" in op.op
    bias = None if triton else _mask(op, 3, "attn_mask")
    dropout = op.arg(3 if triton else 4, "dropout_p", 0.0)
    return forward(op, heads_first(*op.args[:3]), bias=bias, dropout=dropout, lse=False)


@cost(*aten("_flash_attention_forward"))
def flash_inner(op: Operation) -> Cost | None:
    """Sequences of one length; packed ones have theirs in a tensor."""
    if op.arg(3, "cum_seq_q") is not None or op.arg(None, "block_table") is not None:
        return None
    return forward(
        op, length_first(*op.args[:3]), bias=None, dropout=op.arg(7, "dropout_p", 0.0), lse=_gives_lse(op)
    )


@cost(*aten("_flash_attention_forward_no_dropout_inplace"))
def flash_in_place(op: Operation) -> Cost | None:
    """The same, into a tensor that is given."""
    if op.arg(4, "cum_seq_q") is not None or op.arg(None, "block_table") is not None:
        return None
    return forward(op, length_first(*op.args[1:4]), bias=None, dropout=0.0, lse=True)


@cost(*aten("_efficient_attention_forward"))
def efficient_inner(op: Operation) -> Cost | None:
    """Sequences of one length; packed ones have theirs in a tensor."""
    if op.arg(4, "cu_seqlens_q") is not None or op.arg(None, "seqlen_k") is not None:
        return None
    bias, lse = _mask(op, 3, "bias"), bool(op.arg(10, "compute_log_sumexp", False))
    return forward(op, length_first(*op.args[:3]), bias=bias, dropout=op.arg(8, "dropout_p", 0.0), lse=lse)


@cost(*aten("_cudnn_attention_forward"))
def cudnn_inner(op: Operation) -> Cost | None:
    """Sequences of one length; packed ones have theirs in a tensor."""
    if op.arg(4, "cum_seq_q") is not None:
        return None
    bias, lse = _mask(op, 3, "attn_bias"), bool(op.arg(8, "compute_log_sumexp", False))
    return forward(op, heads_first(*op.args[:3]), bias=bias, dropout=op.arg(9, "dropout_p", 0.0), lse=lse)


@cost(*aten("_scaled_dot_product_flash_attention_backward"))
def flash_backward(op: Operation) -> Cost:
    """Gradients of queries, keys and values."""
    dropout = op.arg(10, "dropout_p", 0.0)
    return backward(op, heads_first(*op.args[1:4]), bias=None, dropout=dropout, bias_grad=False)


@cost(*aten("_scaled_dot_product_flash_attention_for_cpu_backward"))
def cpu_flash_backward(op: Operation) -> Cost:
    """Gradients of queries, keys and values."""
    bias, dropout = _mask(op, None, "attn_mask"), op.arg(6, "dropout_p", 0.0)
    return backward(op, heads_first(*op.args[1:4]), bias=bias, dropout=dropout, bias_grad=False)


@cost(*aten("_scaled_dot_product_efficient_attention_backward"))
def efficient_backward(op: Operation) -> Cost:
    """Gradients of queries, keys, values and, where asked for, of the bias."""
    bias, mask = _mask(op, 4, "attn_bias"), op.args[10]
    sizes, dropout = heads_first(*op.args[1:4]), op.args[9]
    return backward(op, sizes, bias=bias, dropout=dropout, bias_grad=bool(mask[3]) and bias is not None)


@cost(*aten("_scaled_dot_product_fused_attention_overrideable_backward"))
def overrideable_backward(op: Operation) -> Cost:
    """Gradients of queries, keys, values and, where asked for, of the bias."""
    bias, mask = _mask(op, 4, "attn_bias"), op.args[5]
    sizes, dropout = heads_first(*op.args[1:4]), op.args[12]
    return backward(op, sizes, bias=bias, dropout=dropout, bias_grad=bool(mask[3]) and bias is not None)


@cost(*aten("_scaled_dot_product_cudnn_attention_backward"))
def cudnn_backward(op: Operation) -> Cost:
    """Gradients of queries, keys and values."""
    bias, dropout = _mask(op, 8, "attn_bias"), op.args[13]
    return backward(op, heads_first(*op.args[1:4]), bias=bias, dropout=dropout, bias_grad=False)


@cost(*aten("_cudnn_attention_backward"))
def cudnn_inner_backward(op: Operation) -> Cost | None:
    """Sequences of one length; packed ones have theirs in a tensor."""
    if _mask(op, 9, "cum_seq_q") is not None:
        return None
    return cudnn_backward(op)


@cost(*aten("_flash_attention_backward"))
def flash_inner_backward(op: Operation) -> Cost | None:
    """Sequences of one length; packed ones have theirs in a tensor."""
    if _mask(op, 6, "cum_seq_q") is not None:
        return None
    dropout = op.arg(10, "dropout_p", 0.0)
    return backward(op, length_first(*op.args[1:4]), bias=None, dropout=dropout, bias_grad=False)


@cost(*aten("_efficient_attention_backward"))
def efficient_inner_backward(op: Operation) -> Cost | None:
    """Sequences of one length; packed ones have theirs in a tensor."""
    if op.arg(6, "cu_seqlens_q") is not None:
        return None
    bias, dropout = _mask(op, 4, "bias"), op.args[11]
    return backward(
        op,
        length_first(*op.args[1:4]),
        bias=bias,
        dropout=dropout,
        bias_grad=bool(op.args[15]) and bias is not None,
    )


# The encoder fast path: multi-head attention and a whole encoder layer, each one operation, counted by their parts


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
    between = scores * (SOFTMAX + adds(mask))
    products = scores * 2 * (width // heads)
    return together(into, Cost(2 * products + between, products), _linear(rows[0], out))


@cost(*aten("_native_multi_head_attention"))
def multi_head(op: Operation) -> Cost:
    """Attention with its projections; the weights, where they are wanted, are averaged over the heads."""
    q, k, v, _, heads, weight, _, out = op.args[:8]
    result = _multi_head(_Extent.of(q, k, v), heads, weight, out, op.arg(9, "mask"))
    if op.arg(10, "need_weights", True) and op.arg(11, "average_attn_weights", True):
        weights = q.shape[0] * q.shape[1] * k.shape[1]
        result = together(result, Cost(weights * heads + weights))
    return result


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
