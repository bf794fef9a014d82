"""Convolutions: every output element sums over its whole window, padding included, as the definition has it.

A transposed convolution is counted from its input: every input element is spread over a whole window. The
gradient of the input is the transposed convolution of the gradient, and that of the weight takes as many
multiply-adds again.
"""

from __future__ import annotations

from math import prod

from torch_vis.graph import TensorType
from torch_vis.ops.cost.registry import Cost, Operation, aten, family, nbytes

cost = family("convolution")


def window_macs(tensor: TensorType, weight: TensorType) -> int:
    """Multiply-adds of a convolution, given its output, or its input if it is transposed."""
    return tensor.numel * prod(weight.shape[1:])


def _forward(op: Operation, *, bias: TensorType | None, transposed: bool = False) -> Cost:
    counted = op.args[0] if transposed else op.out
    return op.count(mac=window_macs(counted, op.args[1]), add=0 if bias is None else op.out.numel)


@cost(*aten("convolution _convolution convolution_overrideable"))
def convolution(op: Operation) -> Cost:
    """The general operator, which says whether it is transposed."""
    return _forward(op, bias=op.arg(2, "bias"), transposed=bool(op.arg(6, "transposed", False)))


@cost(
    *aten(
        "conv1d conv2d conv3d _convolution_mode mkldnn_convolution _nnpack_spatial_convolution miopen_convolution"
    )
)
@cost(*aten("miopen_depthwise_convolution cudnn_convolution_relu miopen_convolution_relu"))
def plain_convolution(op: Operation) -> Cost:
    """Kernels that take input, weight and bias first."""
    return _forward(op, bias=op.arg(2, "bias"))


@cost(
    *aten(
        "_slow_conv2d_forward slow_conv3d_forward slow_conv3d slow_conv_dilated2d slow_conv_dilated3d thnn_conv2d"
    )
)
@cost(*aten("_conv_depthwise2d conv_depthwise3d"))
def sized_convolution(op: Operation) -> Cost:
    """Kernels that take the window's size before the bias."""
    return _forward(op, bias=op.arg(3, "bias"))


@cost(*aten("cudnn_convolution _mps_convolution"))
def biasless_convolution(op: Operation) -> Cost:
    """Kernels without bias."""
    return _forward(op, bias=None)


@cost(*aten("cudnn_convolution_add_relu miopen_convolution_add_relu"))
def added_convolution(op: Operation) -> Cost:
    """A convolution, the sum with ``alpha z``, the bias and a ReLU."""
    z, alpha, bias = op.args[2], op.arg(3, "alpha", 1), op.arg(4, "bias")
    n = op.out.numel
    scaled = 0 if alpha in (None, 1) else z.numel
    return op.count(mac=window_macs(op.out, op.args[1]), add=n + (0 if bias is None else n), mul=scaled)


@cost(*aten("conv_transpose1d conv_transpose2d conv_transpose3d miopen_convolution_transpose"))
def transposed_convolution(op: Operation) -> Cost:
    """Kernels that take input, weight and bias first."""
    return _forward(op, bias=op.arg(2, "bias"), transposed=True)


@cost(*aten("slow_conv_transpose2d slow_conv_transpose3d"))
def sized_transposed_convolution(op: Operation) -> Cost:
    """Kernels that take the window's size before the bias."""
    return _forward(op, bias=op.arg(3, "bias"), transposed=True)


@cost(*aten("cudnn_convolution_transpose"))
def biasless_transposed_convolution(op: Operation) -> Cost:
    """Kernels without bias."""
    return _forward(op, bias=None, transposed=True)


@cost(*aten("conv_tbc"))
def conv_tbc(op: Operation) -> Cost:
    """Time, batch, channel: weights of shape (window, channels in, channels out), and a bias always."""
    return op.count(mac=op.out.numel * prod(op.args[1].shape[:2]), add=op.out.numel)


@cost(*aten("convolution_backward"))
def convolution_backward(op: Operation) -> Cost:
    """The gradients of input, weight and bias, as far as asked for; each reads only what it needs."""
    g, x, weight = op.args[:3]
    transposed, mask = bool(op.args[7]), op.args[10]
    return _backward(op, g, x, weight, transposed, mask)


@cost(*aten("convolution_backward_overrideable"))
def convolution_backward_overrideable(op: Operation) -> Cost:
    """The same for custom backends, whose operator takes no sizes of the bias."""
    g, x, weight = op.args[:3]
    transposed, mask = bool(op.args[6]), op.args[9]
    return _backward(op, g, x, weight, transposed, mask)


@cost(*aten("_slow_conv2d_backward.output_mask"))
def slow_backward(op: Operation) -> Cost:
    """The plain two-dimensional kernel."""
    g, x, weight = op.args[:3]
    return _backward(op, g, x, weight, False, op.args[6])


def _backward(
    op: Operation, g: TensorType, x: TensorType, weight: TensorType, transposed: bool, mask: tuple[bool, ...]
) -> Cost:
    macs = window_macs(x if transposed else g, weight)
    read = nbytes(g, weight if mask[0] else None, x if mask[1] else None)
    written = nbytes(*op.outputs)
    moved = None if read is None or written is None else read + written
    return op.count(mac=macs * (mask[0] + mask[1]), add=g.numel * mask[2], bytes=moved)
