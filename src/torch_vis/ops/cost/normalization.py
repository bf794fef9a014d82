"""Normalisations and softmax, counted from their two-pass definitions.

Forward, for each group of ``n`` elements that share a mean: add them up and divide, subtract the mean, square
and add up and divide, ``1 / sqrt(var + eps)``, then scale, weight and bias each element. Backward, with ``y``
the normalised input and ``wg`` the weighted gradient: ``dx = rstd (wg - Σ wg / n - y Σ wg y / n)``, ``dw = Σ g
y``, ``db = Σ g``.
"""

from __future__ import annotations

from math import prod

from torch_vis.graph import TensorType
from torch_vis.ops.cost.registry import Cost, Operation, aten, elements, family

cost = family("normalization")

MEAN_AND_VARIANCE = 4  # for an element: into the sum, minus the mean, squared, into the sum of squares
PER_GROUP = 5  # two divisions by n, plus eps, the root, its inverse
FROM_VARIANCE = 3  # plus eps, the root, its inverse


def normalised(groups: int, n: int, *, weight: bool, bias: bool) -> Cost:
    """Forward over ``groups`` of ``n`` elements."""
    each = MEAN_AND_VARIANCE + 1 + weight + bias
    return Cost(groups * (n * each + PER_GROUP))


def gradients(groups: int, n: int, *, weight: bool, mask: tuple[bool, ...]) -> Cost:
    """Backward where the weight belongs to elements inside a group, so that its gradient is another sum."""
    for_input = (1 if weight else 0) + 1 + 2 + 4 if mask[0] else 0
    normal = 2 if mask[0] or mask[1] else 0
    each = for_input + normal + (2 if mask[1] else 0) + (1 if mask[2] else 0)
    return Cost(groups * (n * each + (2 if mask[0] else 0)))


def _is_given(tensor: object) -> bool:
    return isinstance(tensor, TensorType)


# Layers and groups


@cost(*aten("native_layer_norm layer_norm"))
def layer_norm(op: Operation) -> Cost:
    """Groups are the last dimensions."""
    n = prod(op.args[1])
    weight, bias = _is_given(op.arg(2, "weight")), _is_given(op.arg(3, "bias"))
    return normalised(op.args[0].numel // max(n, 1), n, weight=weight, bias=bias)


@cost(*aten("native_layer_norm_backward"))
def layer_norm_backward(op: Operation) -> Cost:
    """Groups are the last dimensions."""
    n = prod(op.args[2])
    return gradients(op.args[0].numel // max(n, 1), n, weight=_is_given(op.args[5]), mask=op.args[7])


@cost(*aten("native_group_norm"))
def group_norm(op: Operation) -> Cost:
    """Groups of channels of each sample."""
    groups = op.args[3] * op.args[6]
    n = op.args[0].numel // max(groups, 1)
    return normalised(groups, n, weight=_is_given(op.args[1]), bias=_is_given(op.args[2]))


@cost(*aten("group_norm"))
def plain_group_norm(op: Operation) -> Cost:
    """Groups of channels of each sample."""
    groups = op.args[0].shape[0] * op.args[1]
    n = op.args[0].numel // max(groups, 1)
    return normalised(groups, n, weight=_is_given(op.arg(2, "weight")), bias=_is_given(op.arg(3, "bias")))


@cost(*aten("native_group_norm_backward"))
def group_norm_backward(op: Operation) -> Cost:
    """Groups of channels of each sample."""
    groups = op.args[5] * op.args[8]
    n = op.args[0].numel // max(groups, 1)
    return gradients(groups, n, weight=_is_given(op.args[4]), mask=op.args[9])


@cost(*aten("rms_norm _fused_rms_norm"))
def rms_norm(op: Operation) -> Cost:
    """``x / sqrt(Σ x x / n + eps)``, weighted."""
    n = prod(op.args[1])
    weight = _is_given(op.arg(2, "weight"))
    return Cost(op.args[0].numel * (3 + weight) + 4 * (op.args[0].numel // max(n, 1)))


@cost(*aten("_fused_rms_norm_backward"))
def rms_norm_backward(op: Operation) -> Cost:
    """``dx = rstd (wg - y Σ wg y / n)``, ``dw = Σ g y``."""
    n, weight, mask = prod(op.args[2]), _is_given(op.args[4]), op.args[5]
    for_input = weight + 2 + 3 if mask[0] else 0
    each = for_input + (1 if mask[0] or mask[1] else 0) + (2 if mask[1] else 0)
    return Cost(op.args[0].numel * each + (op.args[0].numel // max(n, 1) if mask[0] else 0))


# Batches: a group is a channel, its weight one number


def _batch(op: Operation, *, training: bool, running: bool, channels: int | None = None) -> Cost:
    x = op.args[0]
    channels = x.shape[1] if channels is None else channels
    weight, bias = _is_given(op.arg(1, "weight")), _is_given(op.arg(2, "bias"))
    if training:
        # (1 - m) old + m new, the variance times n / (n - 1)
        updates = 3 + 4 if running else 0
        plain = normalised(channels, x.numel // max(channels, 1), weight=weight, bias=bias)
        return Cost(plain.flops + channels * updates)
    return Cost(x.numel * (2 + weight + bias) + FROM_VARIANCE * channels)


@cost(*aten("native_batch_norm batch_norm _batch_norm_impl_index cudnn_batch_norm miopen_batch_norm"))
@cost(*aten("_native_batch_norm_legit _native_batch_norm_legit_functional"))
def batch_norm(op: Operation) -> Cost:
    """From the batch's own statistics in training, from the running ones otherwise."""
    if op.overload == "no_stats":
        return _batch(op, training=bool(op.args[3]), running=False)
    return _batch(op, training=bool(op.args[5]), running=_is_given(op.args[3]))


@cost(*aten("_batch_norm_with_update _batch_norm_with_update_functional"))
def batch_norm_with_update(op: Operation) -> Cost:
    """In training."""
    return _batch(op, training=True, running=True)


@cost(*aten("_batch_norm_no_update _native_batch_norm_legit_no_training"))
def batch_norm_without_update(op: Operation) -> Cost:
    """By the running statistics, or by the batch's where there are no running ones."""
    return _batch(op, training=not _is_given(op.arg(3, "running_mean")), running=False)


@cost(*aten("instance_norm"))
def instance_norm(op: Operation) -> Cost:
    """A batch norm of each sample separately; running statistics are averaged over the samples."""
    x, running, own = op.args[0], _is_given(op.arg(3, "running_mean")), bool(op.args[5])
    plain = _batch(op, training=own, running=running and own, channels=x.shape[0] * x.shape[1])
    return Cost(plain.flops + (2 * (x.shape[0] + 1) * x.shape[1] if running and own else 0))


@cost(*aten("native_batch_norm_backward batch_norm_backward"))
def batch_norm_backward(op: Operation) -> Cost:
    """The sums over a channel are themselves the gradients of weight and bias."""
    g, weight = op.args[0], _is_given(op.args[2])
    return _batch_gradients(g, weight=weight, training=bool(op.args[7]), mask=op.args[9])


@cost(*aten("cudnn_batch_norm_backward miopen_batch_norm_backward"))
def cudnn_batch_norm_backward(op: Operation) -> Cost:
    """All three gradients, in training."""
    return _batch_gradients(op.args[1], weight=True, training=True, mask=(True, True, True))


def _batch_gradients(g: TensorType, *, weight: bool, training: bool, mask: tuple[bool, ...]) -> Cost:
    channels, for_weight, for_bias = g.shape[1], 4 * mask[1], 1 * mask[2]
    if training and mask[0]:
        return Cost(9 * g.numel + channels * (2 + weight))
    if training:
        return Cost(g.numel * (for_weight + for_bias))
    inverse = FROM_VARIANCE if mask[0] or mask[1] else 0
    return Cost(g.numel * (mask[0] + for_weight + for_bias) + channels * (inverse + (mask[0] and weight)))


@cost(*aten("batch_norm_stats"))
def batch_norm_stats(op: Operation) -> Cost:
    """Mean and inverse deviation of each channel."""
    return Cost(op.args[0].numel * MEAN_AND_VARIANCE + PER_GROUP * op.args[0].shape[1])


@cost(*aten("batch_norm_elemt"))
def batch_norm_elemt(op: Operation) -> Cost:
    """``(x - mean) rstd``, weight and bias."""
    return Cost(op.args[0].numel * (2 + _is_given(op.args[1]) + _is_given(op.args[2])))


@cost(*aten("batch_norm_backward_reduce"))
def batch_norm_backward_reduce(op: Operation) -> Cost:
    """``Σ g`` and ``Σ g (x - mean)``, and the gradient of the weight from it."""
    return Cost(op.args[0].numel * 4 + (op.args[0].shape[1] if op.args[6] else 0))


@cost(*aten("batch_norm_backward_elemt"))
def batch_norm_backward_elemt(op: Operation) -> Cost:
    """``(g - Σ g / n - (x - mean) k) (rstd w)`` with ``k = Σ g (x - mean) / n rstd rstd``."""
    return Cost(op.args[0].numel * 5 + op.args[0].shape[1] * (4 + _is_given(op.args[4])))


@cost(*aten("batch_norm_update_stats"))
def batch_norm_update_stats(op: Operation) -> Cost:
    """Mean and variance of each channel, and the running ones."""
    channels = op.args[0].shape[1]
    return Cost(op.args[0].numel * MEAN_AND_VARIANCE + channels * (2 + 3 + 4))


# Weights


@cost(*aten("_weight_norm_interface _weight_norm"))
def weight_norm(op: Operation) -> Cost:
    """``v (g / |v|)``."""
    v, groups = op.args[0], op.args[1].numel
    return Cost(v.numel * 3 + groups * 2)


@cost(*aten("_weight_norm_interface_backward"))
def weight_norm_backward(op: Operation) -> Cost:
    """With ``d = Σ dw v``: ``dv = (g / |v|) (dw - v d / |v|²)``, ``dg = d / |v|``."""
    v, groups = op.args[1], op.args[2].numel
    return Cost(v.numel * 5 + groups * 4)


# Softmax


def _rows(tensor: TensorType, dim: int | None) -> int:
    if not tensor.shape or not tensor.numel:
        return min(tensor.numel, 1)
    return tensor.numel // tensor.shape[-1 if dim is None else dim]


@cost(*aten("_softmax softmax special_softmax _safe_softmax _masked_softmax"), any_layout=True)
def softmax(op: Operation) -> Cost | None:
    """Subtract the largest, exp, add up, divide."""
    n = elements(op.args[0])
    return None if n is None else op.count(add=2 * n, call=n, div=n)


@cost(*aten("_log_softmax log_softmax special_log_softmax"))
def log_softmax(op: Operation) -> Cost:
    """``x - max - log Σ exp(x - max)``."""
    n = op.args[0].numel
    return op.count(add=3 * n, call=n + _rows(op.args[0], op.arg(1, "dim")))


@cost(*aten("_softmax_backward_data _masked_softmax_backward"))
def softmax_backward(op: Operation) -> Cost:
    """``y (g - Σ g y)``."""
    n = op.args[0].numel
    return op.count(add=2 * n, mul=2 * n)


@cost(*aten("_log_softmax_backward_data"))
def log_softmax_backward(op: Operation) -> Cost:
    """``g - exp(y) Σ g``."""
    n = op.args[0].numel
    return op.count(add=2 * n, mul=n, call=n)
