"""What CPU kernels return, where torch's own rules for shapes say otherwise.

Each rule was found by running the kernel over random shapes; `tests/capture/fake/test_kernel_shapes.py` does so again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torch_vis.graph.record import Limit

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
GROUPED = (*HALVES, torch.float32)  # precisions of the kernel
PAGE = 4096  # oneDNN starts each part of a workspace on a page
LINE = 64  # and each row in it on a cache line
SAMPLE = (3, 16, 300, 70)  # steps, batch, features and units that tell the parts of a workspace apart
WORKSPACE_LIMIT = Limit(
    "what oneDNN keeps of an LSTM for its backward pass is an estimate: the rule for its size does not hold on this "
    "machine",
    kind="memory",
)


class Corrections:
    """The rules of one fake run, and what had to be left open (``limits``)."""

    def __init__(self) -> None:
        self.limits: list[str] = []

    def instead(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operation gives where torch's rule refuses what the kernel does; None to ask torch."""
        rule = INSTEAD.get(func)
        return None if rule is None else rule(*args, **kwargs)

    def afterwards(self, func: Any, args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
        """What torch's rule gives, corrected."""
        rule = AFTERWARDS.get(func)
        if rule is None or args[0].device.type != "cpu":
            return out
        if rule is _recurrent and not workspace_rule_holds(args[0].dtype):
            if WORKSPACE_LIMIT not in self.limits:
                self.limits.append(WORKSPACE_LIMIT)
        return rule(args, out)


# ---------------------------------------------------------------- oneDNN's LSTM


def workspace_bytes(steps: int, batch: int, features: int, units: int, itemsize: int) -> int:
    """Bytes that oneDNN keeps of one layer and direction of an LSTM: gates and states of all steps, in whole pages.

    >>> workspace_bytes(20, 64, 32, 64, 4)
    5160960
    """
    wide, rows, states = max(features, units), steps * batch, 2 * (steps + 1) * batch
    parts = (
        rows * _row_bytes(4 * units, itemsize),
        rows * _row_bytes(units, itemsize),
        states * _row_bytes(wide, itemsize),
        states * _row_bytes(wide, 4),  # gradients are in single precision
        states * _row_bytes(wide, 4),
        states * units * itemsize,
        states * units * 4,
    )
    return sum(-(-part // PAGE) * PAGE for part in parts)


def _row_bytes(size: int, itemsize: int) -> int:
    """A row filled up to whole cache lines; one line more where rows would fall into the same places of a cache."""
    line = LINE // itemsize
    filled = -(-size // line) * line
    return (filled + line if filled % 256 == 0 else filled) * itemsize


@cache
def workspace_rule_holds(dtype: torch.dtype) -> bool:
    """Whether the kernel of this machine keeps what the rule says, seen from one small run."""
    steps, batch, features, units = SAMPLE
    with (
        _disable_current_modes(),
        torch._C._DisableTorchDispatch(),
        torch._C._DisableAutocast(),
        torch.enable_grad(),
    ):
        shapes = (
            (steps, batch, features),
            (4 * units, features),
            (4 * units, units),
            (4 * units,),
            (4 * units,),
            (batch, units),
            (batch, units),
        )
        tensors = [torch.zeros(shape, dtype=dtype, device="cpu") for shape in shapes]
        flags: tuple[Any, ...] = (False, [], 2, units, 1, True, False, False, True)
        try:
            kept = aten.mkldnn_rnn_layer.default(*tensors, *flags)[3]
        except RuntimeError:
            return False
        return bool(kept.numel() == workspace_bytes(*SAMPLE, dtype.itemsize))


def _recurrent(args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Torch's rule forgets the workspace; the kernel keeps one wherever a gradient may be asked for."""
    if not torch.is_grad_enabled():
        return (*out[:3], None)
    (steps, batch, features), units = args[0].shape, args[10]
    size = workspace_bytes(steps, batch, features, units, args[0].dtype.itemsize)
    return (*out[:3], out[3].new_empty(size))


def _recurrent_backward(args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each bias has a gradient of its own, where torch's rule gives one tensor for both."""
    return (*out[:4], torch.empty_like(out[4]), *out[5:])


# ---------------------------------------------------------------- norms of half precision


def _statistics(args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """Means and deviations are in single precision if the weights are, as under autocast."""
    if args[0].dtype not in HALVES or not any(_is_single(item) for item in args[1:]):
        return out
    return (out[0], *(part.new_empty(part.shape, dtype=torch.float32) for part in out[1:3]), *out[3:])


def _group_norm_backward(args: tuple[Any, ...], out: tuple[Any, ...]) -> tuple[Any, ...]:
    """The gradient of the input is as precise as the input."""
    if out[0] is None or out[0].dtype == args[1].dtype:
        return out
    return (torch.empty_like(out[0], dtype=args[1].dtype), *out[1:])


def _is_single(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype == torch.float32


# ---------------------------------------------------------------- products of groups of rows


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor | None:
    """Torch's rule is that of a CUDA kernel for bfloat16; the CPU's takes other precisions as well."""
    if a.device.type != "cpu" or a.dtype not in GROUPED or a.dtype != b.dtype or bias is not None:
        return None
    flat = a.dim() == 2, b.dim() == 2
    if (a.shape[-1] != b.shape[-2] and not all(flat)) or (offs is None) != (flat == (False, False)):
        return None
    if not (_is_aligned(a) and _is_aligned(b)):
        raise RuntimeError("_grouped_mm: strides should be multiple of 16 bytes")
    rows, columns = a.shape[-2], b.shape[-1]
    stack = {(True, True): offs, (False, False): a}.get(flat)
    dtype = out_dtype or a.dtype
    step = 16 // dtype.itemsize
    width = -(-columns // step) * step  # between rows, so that each starts at a multiple of 16 bytes
    if stack is None:
        return a.new_empty_strided((rows, columns), (width, 1), dtype=dtype)
    return a.new_empty_strided((stack.shape[0], rows, columns), (rows * width, width, 1), dtype=dtype)


def _is_aligned(matrix: torch.Tensor) -> bool:
    across, along = matrix.stride()[-2:]
    step = 16 // matrix.dtype.itemsize
    return (along if across == 1 and along >= max(1, matrix.shape[-2]) else across) % step == 0


INSTEAD: dict[Any, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_mm}
AFTERWARDS: dict[Any, Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]] = {
    aten.mkldnn_rnn_layer.default: _recurrent,
    aten.mkldnn_rnn_layer_backward.default: _recurrent_backward,
    aten.native_layer_norm.default: _statistics,
    aten.native_group_norm.default: _statistics,
    aten.native_batch_norm.default: _statistics,
    aten._native_batch_norm_legit.default: _statistics,
    aten._batch_norm_with_update.default: _statistics,
    aten.native_group_norm_backward.default: _group_norm_backward,
}
