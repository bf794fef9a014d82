"""Fourier transforms: 5 n log2 n for n complex numbers, as a radix-2 transform takes, and half of it for real ones."""

from __future__ import annotations

from math import log2

from torch_vis.ops.cost.registry import Cost, Operation, aten, family

cost = family("reduction")


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
    flops = _transform(x.numel, [last]) / 2 + _transform(half, [x.shape[d] for d in dims[:-1]])
    return Cost(round(flops) + (2 * op.out.numel if _is_normalised(op) else 0))


@cost(*aten("_fft_c2r"))
def complex_to_real(op: Operation) -> Cost:
    """Along the other axes on the half that is given, along the last to real numbers."""
    x, dims = op.args[0], op.args[1]
    flops = _transform(x.numel, [x.shape[d] for d in dims[:-1]])
    flops += _transform(op.out.numel, [op.args[3]]) / 2
    return Cost(round(flops) + (op.out.numel if _is_normalised(op) else 0))


def _is_normalised(op: Operation) -> bool:
    return op.args[2] not in (0, False)


@cost(*aten("fft_fftfreq fft_rfftfreq fft_fftshift fft_ifftshift"))
def arranged(op: Operation) -> Cost:
    """Filled in, or moved."""
    return op.count()


COMPLEX = "fft ifft fft2 ifft2 fftn ifftn".split()
TO_COMPLEX = "rfft rfft2 rfftn ihfft".split()
TO_REAL = "irfft irfft2 irfftn hfft".split()


@cost(*aten(f"fft_{name}" for name in (*COMPLEX, *TO_COMPLEX, *TO_REAL)))
def whole(op: Operation) -> Cost:
    """The transforms that users call, as inference mode shows them; what is put on or cut off first is not counted."""
    name = op.op.partition(".")[0].removeprefix("aten::fft_")
    x, out = op.args[0], op.out
    axes = _axes(op, name)
    if name in TO_REAL:
        lengths = [out.shape[d] for d in axes]
        half = out.numel // max(lengths[-1], 1) * (lengths[-1] // 2 + 1)
        flops = _transform(half, lengths[:-1]) + _transform(out.numel, lengths[-1:]) / 2
    elif name in TO_COMPLEX:
        size = op.arg(1, "n" if len(axes) == 1 else "s")
        asked = (size,) if isinstance(size, int) else size
        last = asked[-1] if asked else x.shape[axes[-1]]
        rows = out.numel // max(out.shape[axes[-1]], 1)
        flops = _transform(rows * last, [last]) / 2 + _transform(out.numel, [out.shape[d] for d in axes[:-1]])
    else:
        flops = _transform(out.numel, [out.shape[d] for d in axes])
        if name in ("fft", "ifft") and not x.dtype.startswith("complex"):
            flops /= 2
    inverse = name.startswith("i")
    scaled = {"ortho": True, "forward": not inverse}.get(op.arg(3, "norm") or "", inverse)
    return Cost(round(flops) + (scaled and (1 if name in TO_REAL else 2) * out.numel))


def _axes(op: Operation, name: str) -> list[int]:
    """The axes that are transformed, in order."""
    dims = op.arg(2, "dim", (-2, -1) if name.endswith("2") else -1 if not name.endswith("n") else None)
    if dims is None:
        size = op.arg(1, "s")
        count = len(op.args[0].shape)
        return list(range(count))[-len(size) if size else 0 :]
    return [dims] if isinstance(dims, int) else list(dims)
