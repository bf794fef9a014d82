"""What kernels take for themselves beyond their results: an estimate, by rules found from the allocators' events.

oneDNN computes a convolution on copies in which channels come in blocks of 16, and copies its result back; some other
kernels keep sums or masks aside. cuDNN copies in a like manner, to put channels last. Kernels without a rule were seen
to take nothing, or too little to matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import gt
from typing import NamedTuple

import numpy as np

from torch_vis.graph.call import Call, Slot
from torch_vis.graph.flow import inputs_by_slot, outputs_by_slot
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import TensorType
from torch_vis.graph.types import Ints

BLOCK = 16  # channels that oneDNN keeps together, with 512-bit registers
SMALL = 20480  # elements up to which a convolution of one small image is left to torch's own kernel
HALVES = ("bfloat16", "float16")


class Kernel(NamedTuple):
    """One operation as a rule sees it."""

    call: Call
    inputs: Sequence[TensorType]
    outputs: Sequence[TensorType]
    threads: int

    def literal(self, index: int) -> object:
        """An argument that is not a tensor."""
        return self.call.args[index] if index < len(self.call.args) else None

    def tensor(self, index: int) -> TensorType | None:
        """The type of an argument that is a tensor, None if it is not there."""
        result = self.literal(index)
        return (
            self.inputs[result.number]
            if isinstance(result, Slot) and result.number < len(self.inputs)
            else None
        )


class Scratch(NamedTuple):
    """Scratch of every operation in bytes, as far as there are rules for it."""

    bytes: Ints
    ruled: int
    """Operations that a rule was found for."""


Rule = Callable[[Kernel], int]


def scratch_bytes(graph: Graph, *, threads: int = 1) -> Scratch:
    """What each operation of a run takes for itself beyond what it leaves behind.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Conv2d(16, 32, 3, bias=False), torch.ones(2, 16, 8, 8))
    >>> scratch_bytes(t.graph).bytes.tolist()  # the input and the weights in blocks: 8192 + 18432
    [26624]
    """
    names = [call.op.partition(".")[0] for call in graph.calls]
    rules = [RULES.get(name) or CUDA_RULES.get(name) for name in names]
    has = np.array([rule is not None for rule in rules], dtype=bool)
    result = np.zeros(len(graph), dtype=np.int64)
    nodes = np.flatnonzero(has[graph.node_call]) if rules else np.zeros(0, dtype=np.int64)
    known: dict[tuple[int, ...], int] = {}
    ruled = 0
    for node in nodes.tolist():
        device, number = _device(graph, node), int(graph.node_call[node])
        rule = (RULES if device == "cpu" else CUDA_RULES if device.startswith("cuda") else {}).get(
            names[number]
        )
        if rule is None:
            continue
        inputs, outputs = _types(graph, node)
        key = (number, device == "cpu", len(inputs), *inputs, *outputs)
        if key not in known:
            types = graph.types
            kernel = Kernel(
                graph.calls[number], [types[i] for i in inputs], [types[i] for i in outputs], threads
            )
            known[key] = rule(kernel)
        result[node] = known[key]
        ruled += 1
    return Scratch(result, ruled)


def _device(graph: Graph, node: int) -> str:
    value = int(graph.first_output[node])
    return graph.devices[int(graph.storage_device[graph.value_storage[value]])] if value >= 0 else ""


def _types(graph: Graph, node: int) -> tuple[list[int], list[int]]:
    outputs = [value for slot, value in outputs_by_slot(graph, node).items() if slot >= 0]
    types = graph.value_type
    return types[[*inputs_by_slot(graph, node).values()]].tolist(), types[outputs].tolist()


# ---------------------------------------------------------------- convolutions


def _filled(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK


def _blocked(type: TensorType, *dims: int) -> int:
    """Bytes with the sizes of some dimensions filled up to whole blocks."""
    shape = [_filled(size) if dim in dims else size for dim, size in enumerate(type.shape)]
    return prod(shape) * (type.itemsize or 4)


def _data(type: TensorType) -> int:
    return _blocked(type, 1) if type.shape[1] >= BLOCK else 0  # few channels are read as they lie


def _weights(type: TensorType, groups: int) -> int:
    if groups > 1 and type.shape[1] == 1:
        return _blocked(type, 0)
    return _blocked(type, 0, 1) if type.shape[1] >= BLOCK else _blocked(type, 0)


def _channels_last(type: TensorType) -> bool:
    spread = prod(type.shape[2:]) > 1  # else both layouts are the same
    return len(type.shape) >= 4 and spread and type.stride[1] == 1 and type.shape[1] > 1


def _copies(*types: TensorType) -> int:
    """Bytes of what is laid out anew first: slices, what is turned round, and one number expanded to many."""
    return sum(type.nbytes or 0 for type in types if not (_is_dense(type) or _channels_last(type)))


def _is_dense(type: TensorType) -> bool:
    step = 1
    for size, stride in zip(reversed(type.shape), reversed(type.stride), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _by_torch(data: TensorType, weight: TensorType, strided: bool, groups: int, threads: int) -> bool:
    """Whether torch's own kernel runs in the place of oneDNN's."""
    if data.dtype != "float32":
        return data.dtype not in HALVES
    window = weight.shape[2:]
    if (
        all(size == 1 for size in window)
        and not strided
        and data.shape[0] < 16
        and threads == 1
        and len(window) == 2
    ):
        return True
    small = groups == 1 and data.shape[0] == 1 and data.numel <= SMALL
    return small and not all(size > 3 for size in window)


def _columns(weight: TensorType, result: TensorType) -> int:
    """The windows of an image written out, which torch's own kernel multiplies by the weights."""
    if all(size == 1 for size in weight.shape[2:]):
        return 0
    return prod(weight.shape[1:]) * prod(result.shape[2:]) * (weight.itemsize or 4)


def _convolution(kernel: Kernel) -> int:
    data, weight, result = kernel.tensor(0), kernel.tensor(1), kernel.outputs[0] if kernel.outputs else None
    if data is None or weight is None or result is None or len(data.shape) < 3:
        return 0
    strided, groups = _strided(kernel.literal(3), kernel.literal(5)), _groups(kernel.literal(8))
    copies = _copies(data, weight)
    if _by_torch(data, weight, strided, groups, kernel.threads):
        return copies + _columns(weight, result)
    packed = _weights(weight, groups)
    if _channels_last(data) or _channels_last(weight):
        return packed
    blocked, kept = _blocked(result, 1), result.nbytes or 0
    return copies + max(_data(data) + packed + blocked - kept, blocked)


def _convolution_backward(kernel: Kernel) -> int:
    gradient, data, weight = kernel.tensor(0), kernel.tensor(1), kernel.tensor(2)
    if gradient is None or data is None or weight is None or len(data.shape) < 3:
        return 0
    strided, groups = _strided(kernel.literal(4), kernel.literal(6)), _groups(kernel.literal(9))
    copies = _copies(gradient, data, weight)
    last = _channels_last(data) or _channels_last(weight)
    turned = (gradient.nbytes or 0) if last and not _channels_last(gradient) and not copies else 0
    if _by_torch(data, weight, strided, groups, kernel.threads):
        return copies + turned + _columns(weight, gradient)
    packed, plain = _weights(weight, groups), weight.nbytes or 0
    if last:
        return copies + turned + _with_channels_last(kernel, data, weight, groups)
    of_weights = _blocked(gradient, 1) + _data(data) + packed - plain
    return copies + max(of_weights, packed, _of_data(kernel, gradient, data, weight, groups))


def _with_channels_last(kernel: Kernel, data: TensorType, weight: TensorType, groups: int) -> int:
    """What gradients take with channels last: weights in blocks, group by group, and as they are once or twice."""
    wanted, plain = kernel.literal(10), weight.nbytes or 0
    of_weights = not isinstance(wanted, tuple) or bool(wanted[1])
    if groups > 1 and weight.shape[1] == 1:
        if not of_weights:
            return _weights(weight, groups)
        packed = plain * BLOCK * BLOCK if _is_spread(kernel, data, weight) else _weights(weight, groups)
        return packed + plain
    each = _filled(weight.shape[0] // groups) * groups * _filled(weight.shape[1]) * prod(weight.shape[2:])
    again = of_weights and not _channels_last(weight)
    return each * (weight.itemsize or 4) + (2 if again else 1) * plain


def _is_spread(kernel: Kernel, data: TensorType, weight: TensorType) -> bool:
    """Whether depthwise weights are laid out as matrices, each of a block of channels by another.

    For their gradient, oneDNN has a kernel for windows up to three wide that lie in the image, and none for others.
    """
    if data.dtype != "float32":
        return False
    window, image, steps = weight.shape[2:], data.shape[2:], kernel.literal(6)
    if isinstance(steps, tuple) and _strided(steps, None):
        reach = [1 + (size - 1) * int(step) for size, step in zip(window, steps)]
        if any(map(gt, reach, image)):
            return False
    return window[-1] > 3 or window[-1] == 1 < window[0] or any(map(gt, window, image))


def _of_data(kernel: Kernel, gradient: TensorType, data: TensorType, weight: TensorType, groups: int) -> int:
    """What the gradient of the data takes, beyond the two that are kept: it is in blocks of channels as well."""
    wanted, plain = kernel.literal(10), weight.nbytes or 0
    if groups != 1 or kernel.literal(7) or (isinstance(wanted, tuple) and not wanted[0]):
        return 0
    if not _strided(kernel.literal(4), None):
        blocked = _blocked(gradient, 1) + _blocked(weight, 0, 1) + _blocked(data, 1)
        return blocked - (data.nbytes or 0) - plain
    # windows that leave pixels out write on zeros, and there are three images for a moment
    return 0 if _strided(kernel.literal(6), None) else 2 * (data.nbytes or 0) - plain


def _strided(stride: object, dilation: object) -> bool:
    return any(isinstance(item, tuple) and any(size != 1 for size in item) for item in (stride, dilation))


def _groups(item: object) -> int:
    return item if isinstance(item, int) else 1


# ---------------------------------------------------------------- copies of what does not lie as a kernel wants it


def _matrices(kernel: Kernel) -> int:
    """Copies of factors that BLAS cannot read, such as an expanded gradient: neither rows nor columns are in order."""
    factors = kernel.inputs[1:] if "add" in kernel.call.op else kernel.inputs
    return sum(type.nbytes or 0 for type in factors if len(type.stride) > 1 and not _is_matrix(type))


def _batches(kernel: Kernel) -> int:
    """The same of batches, whose matrices are then multiplied one by one."""
    factors = kernel.inputs[1:] if "add" in kernel.call.op else kernel.inputs
    odd = [type for type in factors if len(type.stride) == 3 and type.shape[0] and not _is_matrix(type)]
    return sum((type.nbytes or 0) // type.shape[0] for type in odd)


def _is_matrix(type: TensorType) -> bool:
    """Whether a matrix, or each of a batch, has a stride of 1 in one dimension and a larger one in the other.

    A sparse one has no strides, and is not to be asked about.
    """
    (rows, columns), (down, right) = type.shape[-2:], type.stride[-2:]
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))


def _rows(kernel: Kernel) -> int:
    """Copies of all arguments whose elements do not follow each other."""
    return _relaid(*(type for type in kernel.inputs if len(type.shape) > 1))


def _first(kernel: Kernel) -> int:
    """A copy of the first argument, likewise."""
    return _relaid(*kernel.inputs[:1])


def _relaid(*types: TensorType) -> int:
    return sum(type.nbytes or 0 for type in types if not _is_dense(type))


def _gelu_backward(kernel: Kernel) -> int:
    """oneDNN's kernel, for inputs that lie in order, lays the gradient out anew, and one that is turned round twice."""
    gradient, data = kernel.inputs[0], kernel.inputs[1]
    approximate = dict(kernel.call.kwargs).get("approximate", "none")
    if approximate != "none" or data.dtype != "float32" or not _is_dense(data) or _is_dense(gradient):
        return 0
    is_turned = _is_dense(gradient._replace(shape=gradient.shape[::-1], stride=gradient.stride[::-1]))
    return (2 if is_turned else 1) * (gradient.nbytes or 0)


# ---------------------------------------------------------------- others


def _batch_norm_backward(kernel: Kernel) -> int:
    """A copy of the input's gradient, where gradient and input have one layout; else elements are taken one by one."""
    gradient, data = kernel.tensor(0), kernel.tensor(1)
    mask = kernel.literal(9)
    if gradient is None or data is None or (isinstance(mask, tuple) and mask and not mask[0]):
        return 0
    both_last = _channels_last(gradient) and _channels_last(data)
    return (gradient.nbytes or 0) if both_last or (_is_dense(gradient) and _is_dense(data)) else 0


def _pool_backward(kernel: Kernel) -> int:
    """A gradient that is laid out anew, and the result with its indices where the input lies in another order."""
    gradient, data = kernel.tensor(0), kernel.tensor(1)
    if gradient is None or data is None:
        return 0
    turned = kernel.outputs if _channels_last(gradient) != _channels_last(data) else ()
    indices = kernel.inputs[2:] if turned else ()
    return _copies(gradient) + sum(type.nbytes or 0 for type in (*turned, *indices))


def _gradient(kernel: Kernel) -> int:
    """A gradient that is laid out anew; channels may come last."""
    return _copies(*kernel.inputs[:1])


def _layer_norm_backward(kernel: Kernel) -> int:
    normalized = kernel.literal(2)
    size = prod(part for part in normalized if isinstance(part, int)) if isinstance(normalized, tuple) else 0
    return 2 * size * 4 * kernel.threads + _relaid(*kernel.inputs[:2])


def _safe_softmax(kernel: Kernel) -> int:
    """A mask of what is minus infinity, and which rows are nothing else."""
    scores = kernel.inputs[0]
    return scores.numel + scores.numel // max(1, scores.shape[-1] if scores.shape else 1)


def _attention_backward(kernel: Kernel) -> int:
    """The gradient laid out like the result, and the scores of one block of queries for each thread."""
    gradient, keys = kernel.inputs[0], kernel.inputs[2]
    block = min(keys.shape[2], 256) if keys.shape[2] < 768 else 512
    return (gradient.nbytes or 0) + kernel.threads * block * min(keys.shape[2], 512) * (keys.itemsize or 4)


def _attention(kernel: Kernel) -> int:
    """The scores of one block of queries and keys, and its results, for each thread."""
    query, key = kernel.inputs[0], kernel.inputs[1]
    rows = 32 if query.shape[2] < 192 else 64 if query.shape[2] < 768 else 256
    return kernel.threads * rows * (min(key.shape[2], 512) + query.shape[3] + 2) * 4


def _recurrent(kernel: Kernel) -> int:
    """The weights of both products with longer rows, all gates of all steps, and a gradient that is laid out anew."""
    if len(kernel.inputs) < 3 or len(kernel.inputs[0].shape) != 3:
        return 0
    steps, batch, _ = kernel.inputs[0].shape
    gates = -(-kernel.inputs[1].shape[0] // BLOCK) * BLOCK
    gates += BLOCK if gates % 256 == 0 else 0  # rows that would fall into the same places of a cache
    weights = sum((part.shape[0] + BLOCK) * part.shape[1] for part in kernel.inputs[1:3])
    gradient = kernel.tensor(10)  # there is one in the backward pass
    return 4 * (weights + steps * batch * gates) + (0 if gradient is None else _copies(gradient))


def _half_mean(kernel: Kernel) -> int:
    """A copy of all elements in single precision, where a whole tensor in half precision is averaged."""
    if len(kernel.call.args) > 1 or kernel.inputs[0].dtype not in HALVES:
        return 0
    return 4 * kernel.inputs[0].numel


# ---------------------------------------------------------------- CUDA


def _cudnn(kernel: Kernel) -> int:
    """Input and weights with channels last; the result is written where it belongs."""
    data, weight = kernel.tensor(0), kernel.tensor(1)
    if data is None or weight is None or _channels_last(data):
        return 0
    return (data.nbytes or 0) + (weight.nbytes or 0)


def _cudnn_backward(kernel: Kernel) -> int:
    types = [kernel.tensor(index) for index in (0, 1, 2)]
    if any(type is None or _channels_last(type) for type in types[:2]):
        return 0
    return sum(type.nbytes or 0 for type in types if type is not None)


def _efficient_attention_backward(kernel: Kernel) -> int:
    """The gradient laid out like the result, and two numbers for each row."""
    gradient = kernel.inputs[0]
    return (gradient.nbytes or 0) + 8 * gradient.numel // max(1, gradient.shape[-1])


CUDA_RULES: dict[str, Rule] = {
    "aten::convolution": _cudnn,
    "aten::convolution_backward": _cudnn_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_attention_backward,
}
RULES: dict[str, Rule] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_safe_softmax": _safe_softmax,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::mkldnn_rnn_layer": _recurrent,
    "aten::mkldnn_rnn_layer_backward": _recurrent,
    "aten::mean": _half_mean,
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::mv", "aten::addmv"), _matrices),
    **dict.fromkeys(("aten::bmm", "aten::baddbmm"), _batches),
    **dict.fromkeys(("aten::_softmax", "aten::_log_softmax"), _rows),
    **dict.fromkeys(("aten::_softmax_backward_data", "aten::_log_softmax_backward_data"), _rows),
    **dict.fromkeys(("aten::native_layer_norm", "aten::nll_loss_forward"), _first),
    "aten::embedding_dense_backward": _first,
    **dict.fromkeys(
        (
            "aten::avg_pool2d_backward",
            "aten::max_pool2d_with_indices_backward",
            "aten::_adaptive_avg_pool2d_backward",
        ),
        _pool_backward,
    ),
    **dict.fromkeys(("aten::upsample_nearest2d_backward", "aten::upsample_bilinear2d_backward"), _gradient),
    "aten::gelu_backward": _gelu_backward,
}
# kernels whose rules are far off for some shapes
ROUGH = frozenset(
    {
        "aten::convolution",
        "aten::convolution_backward",
        "aten::mkldnn_rnn_layer",
        "aten::mkldnn_rnn_layer_backward",
    }
)
