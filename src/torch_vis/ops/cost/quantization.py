"""Quantized tensors: conversions, and products with packed weights.

A packed weight is an object of which the graph keeps no shape. A linear layer's follows from its input and its
output; what else the packing hides, a bias and the rescaling of the result, is left out. A convolution's window
cannot be known.
"""

from __future__ import annotations

from torch_vis.ops.cost.elementwise import Work, work
from torch_vis.ops.cost.registry import Cost, Operation, aten, family, nbytes, numel

cost = family("elementwise")

QUANTIZE = Work(add=1, div=1)  # round(x / scale) + zero point
DEQUANTIZE = Work(add=1, mul=1)  # (q - zero point) scale
FAKE = Work(add=2, mul=1, div=1)  # one after the other


@cost(*aten("quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic"))
def quantize(op: Operation) -> Cost:
    """To integers; a range that is found on the way takes comparisons."""
    return work(op, QUANTIZE, numel(op.outputs))


@cost(*aten("dequantize"))
def dequantize(op: Operation) -> Cost:
    """Back to numbers."""
    return work(op, DEQUANTIZE, numel(op.outputs))


@cost(*aten("fake_quantize_per_tensor_affine fake_quantize_per_channel_affine"))
@cost(*aten("fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask"))
@cost(*aten("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"))
@cost(*aten("_fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_channel_affine"))
def fake_quantize(op: Operation) -> Cost:
    """To integers and back."""
    return work(op, FAKE, op.out.numel)


LINEAR = "linear linear_relu linear_dynamic linear_relu_dynamic".split()
LINEAR_FP16 = "linear_dynamic_fp16 linear_relu_dynamic_fp16".split()


@cost(*(f"quantized::{name}" for name in LINEAR + LINEAR_FP16))
def linear(op: Operation) -> Cost:
    """``x @ w.T``; the weight has one byte an element, or two in fp16, and its sizes are those of input and output."""
    x = op.args[0]
    weights = x.shape[-1] * op.out.shape[-1] * (2 if "fp16" in op.op else 1)
    moved = nbytes(x, op.out)
    macs = op.out.numel * x.shape[-1]
    return Cost(2 * macs, macs, None if moved is None else moved + weights)


@cost("quantized::add", "quantized::add_relu", "quantized::mul", "quantized::mul_relu")
def arithmetic(op: Operation) -> Cost:
    """Both sides to numbers, one operation on them, and the result to integers."""
    tensors = sum(1 for _ in op.tensors())
    return Cost(op.out.numel * (2 * tensors + 1 + 2))


@cost("quantized::cat", "quantized::cat_relu")
def cat(op: Operation) -> Cost:
    """Every part to numbers and back, in the scale of the whole."""
    return Cost(op.out.numel * 4)


@cost(
    "quantized::relu6",
    "quantized::clamp",
    "quantized::threshold",
    "quantized::max_pool1d",
    "quantized::max_pool2d",
)
def compare(op: Operation) -> Cost:
    """Comparisons only."""
    return op.count()
