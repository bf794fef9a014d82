"""Fourier transforms: 5 n log2 n for n complex numbers, as a radix-2 transform takes, and half of it for real ones."""

from __future__ import annotations

from math import log2, prod

from torch_vis.analysis.cost.operation import Cost, Operation
from torch_vis.analysis.cost.registry import aten, cost


def _transform(count: int, lengths: list[int]) -> float:
    """FLOPs of complex transforms along axes of these lengths, of a tensor of ``count`` numbers."""
    return 5 * count * sum(log2(length) for length in lengths if length > 1)


@cost(*aten("_fft_c2c"), "prims::fft_c2c")
def complex_to_complex(op: Operation) -> Cost:
    """Along every axis named; a normalisation scales each number."""
    x = op.args[0]
    scaled = 2 * x.numel if len(op.args) > 2 and _is_normalised(op) else 0
    return Cost(round(_transform(x.numel, [x.shape[d] for d in op.args[1]])) + scaled)


@cost(*aten("_fft_r2c"))
def real_to_complex(op: Operation) -> Cost:
    """Along the last axis from real numbers, along the others on the half that is kept."""
    x, dims = op.args[0], op.args[1]
    last = x.shape[dims[-1]]
    half = x.numel // max(last, 1) * (last // 2 + 1)
    made = _transform(x.numel, [last]) / 2 + _transform(half, [x.shape[d] for d in dims[:-1]])
    return Cost(round(made) + (2 * op.out.numel if _is_normalised(op) else 0))


@cost(*aten("_fft_c2r"))
def complex_to_real(op: Operation) -> Cost:
    """Along the other axes on the half that is given, along the last to real numbers."""
    x, dims = op.args[0], op.args[1]
    made = _transform(x.numel, [x.shape[d] for d in dims[:-1]])
    made += _transform(op.out.numel, [op.args[3]]) / 2
    return Cost(round(made) + (op.out.numel if _is_normalised(op) else 0))


def _is_normalised(op: Operation) -> bool:
    return op.args[2] not in (0, False)


@cost(*aten("stft istft"))
def short_time(op: Operation) -> Cost | None:
    """Its frames and windows are not in the shapes alone; only inference mode shows it as one operation."""
    return None


@cost(*aten("fft_fftfreq fft_rfftfreq"))
def frequencies(op: Operation) -> Cost:
    """Filled in."""
    return op.count()


@cost(*aten("fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn"))
def plain_transform(op: Operation) -> Cost | None:
    """As inference mode shows it, where its result has the input's sizes and its axes are the last ones or named."""
    x, name = op.args[0], op.op.partition(".")[0]
    if x.shape != op.out.shape or op.arg(1, "n") is not None or not x.dtype.startswith("complex"):
        return None
    dims = op.arg(2, "dim", -1 if name.endswith("fft") else (-2, -1) if name.endswith("2") else None)
    axes = tuple(range(len(x.shape))) if dims is None else (dims,) if isinstance(dims, int) else dims
    scaled = 2 * x.numel if "ifft" in name else 0
    return (
        Cost(round(_transform(x.numel, [x.shape[d] for d in axes])) + scaled) if prod(x.shape) else op.count()
    )
