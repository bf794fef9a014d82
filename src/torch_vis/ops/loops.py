"""How an operator goes over its elements: what a compiler must know of it to put it in one kernel with others.

======== ==============================================================================================================
VIEW     moves nothing; what reads its output reads the tensor under it
FREE     runs no kernel: gives out memory, asks for a size
POINT    one loop over the result; each element is made from the elements at its own place
ROWS     a reduction or normalisation: a loop over its input, in which some axes are summed up
GATHER   one loop over the result that reads at other places: lookups, pooling, resampling, padding
JOIN     one loop over the result, of which each input makes a part: concatenation
HEAVY    a matrix product or convolution: a library's kernel, or a template that pointwise work can follow
OTHER    everything else: attention kernels, sorting, writes to places, operators that are not torch's own
======== ==============================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch_vis.graph import Call, Slot, TensorType
from torch_vis.graph.call import short_name
from torch_vis.ops.cost.elementwise import WORK
from torch_vis.ops.names import out_of_place, plain_name
from torch_vis.ops.op_table import LOOPS, LoopKind, names

Pattern = tuple[tuple[int, bool], ...]  # runs of axes, each with its size and whether it is summed up


class LoopNest(NamedTuple):
    """An operation's loop: its kind, the sizes that it runs over, and which of these it sums up (None: none)."""

    kind: LoopKind
    shape: tuple[int, ...] = ()
    pattern: Pattern | None = None


LAST_DIM = {  # where a softmax names the axis that it sums over
    "_softmax": 1, "softmax": 1, "_log_softmax": 1, "log_softmax": 1, "_safe_softmax": 1,
    "_softmax_backward_data": 2, "_log_softmax_backward_data": 2,
}  # fmt: skip
LAYER_NORMS = {  # and where a normalisation of trailing axes names their sizes
    "native_layer_norm": 1, "layer_norm": 1, "rms_norm": 1, "_fused_rms_norm": 1,
    "native_layer_norm_backward": 2, "_fused_rms_norm_backward": 2,
}  # fmt: skip
BATCH_NORMS = {  # and where a batch normalisation says if it takes the batch's own statistics
    "native_batch_norm": 5, "batch_norm": 5, "cudnn_batch_norm": 5, "_native_batch_norm_legit": 5,
    "_native_batch_norm_legit_functional": 5, "native_batch_norm_backward": True, "_batch_norm_impl_index": 5,
    "_native_batch_norm_legit_no_training": None, "_batch_norm_no_update": None,
    "_batch_norm_with_update": True, "_batch_norm_with_update_functional": True, "cudnn_batch_norm_backward": True,
}  # fmt: skip
GROUP_NORMS = {"native_group_norm": (0, 6), "group_norm": (0, 1), "native_group_norm_backward": (1, 8)}

TABLE: dict[str, LoopKind] = {**dict.fromkeys(WORK, LoopKind.POINT), **LOOPS}
LOSSES = frozenset(names("losses").split())
SPACES = ("aten::", "prims::")


def loop_kind(op: str) -> LoopKind:
    """The kind of an operator by its full name, whatever it is called with.

    >>> loop_kind("aten::add_.Tensor").name, loop_kind("aten::mm").name, loop_kind("mylib::scale").name
    ('POINT', 'HEAVY', 'OTHER')
    """
    if not op.startswith(SPACES):
        return LoopKind.OTHER
    name = short_name(op)
    return TABLE.get(name, TABLE.get(out_of_place(name), LoopKind.OTHER))


def loop_of(call: Call, inputs: dict[int, TensorType], outputs: Sequence[TensorType]) -> LoopNest:
    """The loop of one call, from the types of the tensors in its slots and of its outputs.

    >>> from torch_vis.graph import Call, Slot, TensorType
    >>> x, y = TensorType("float32", (8, 4), (4, 1)), TensorType("float32", (8, 1), (1, 1))
    >>> loop_of(Call("aten::sum.dim_IntList", (Slot(0), (1,), True), ()), {0: x}, [y])
    LoopNest(kind=<LoopKind.ROWS: 4>, shape=(8, 4), pattern=((8, False), (4, True)))
    """
    kind = loop_kind(call.op)
    if kind in (LoopKind.OTHER, LoopKind.FREE) or not outputs:
        return LoopNest(LoopKind.FREE if kind == LoopKind.FREE else LoopKind.OTHER)
    if any(type_.layout != "strided" or type_.itemsize is None for type_ in (*inputs.values(), *outputs)):
        return LoopNest(LoopKind.OTHER)
    if kind != LoopKind.ROWS:
        return LoopNest(kind, outputs[0].shape)
    first = _first(call, inputs)
    if first is None:
        return LoopNest(LoopKind.OTHER)
    if outputs[0].numel == first.numel and _is_pointwise(call):
        return LoopNest(LoopKind.POINT, outputs[0].shape)
    axes = _axes(call, first, outputs[0])
    if axes is None:
        return LoopNest(LoopKind.OTHER)
    shape, summed = axes
    runs = pattern(shape, summed)
    return LoopNest(LoopKind.POINT, shape) if runs is None else LoopNest(LoopKind.ROWS, shape, runs)


def pattern(shape: Sequence[int], summed: Sequence[bool]) -> Pattern | None:
    """Axes in runs of those that are kept and those that are summed up; None if none is.

    Sizes of one are left out and neighbours joined, so that ``view`` does not change it.

    >>> pattern((2, 3, 1, 4), (False, False, True, True)), pattern((6, 4), (False, True))
    (((6, False), (4, True)), ((6, False), (4, True)))
    """
    runs: list[tuple[int, bool]] = []
    for size, is_summed in zip(shape, summed, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == bool(is_summed):
            runs[-1] = (runs[-1][0] * size, bool(is_summed))
        else:
            runs.append((size, bool(is_summed)))
    return tuple(runs) if any(is_summed for _, is_summed in runs) else None


def kept(runs: Pattern) -> int:
    """How many sums a pattern makes."""
    count = 1
    for size, is_summed in runs:
        count *= 1 if is_summed else size
    return count


def _first(call: Call, inputs: dict[int, TensorType]) -> TensorType | None:
    """The type of the first tensor among the arguments."""
    slot = next((arg for arg in call.args if isinstance(arg, Slot)), None)
    return None if slot is None else inputs.get(slot.number)


def _is_pointwise(call: Call) -> bool:
    """Whether a call of an operator that can reduce does not: ``max(a, b)``, a loss without reduction, ``eval``."""
    name = plain_name(call.op)
    if name in BATCH_NORMS:
        position = BATCH_NORMS[name]
        return position is None or (position is not True and not _arg(call, position, "training"))
    return name in LOSSES or (name in ("max", "min") and ".other" in call.op)


def _arg(call: Call, position: int, name: str, default: Any = None) -> Any:
    return call.args[position] if position < len(call.args) else dict(call.kwargs).get(name, default)


def _axes(call: Call, first: TensorType, output: TensorType) -> tuple[tuple[int, ...], list[bool]] | None:
    """The sizes that a reduction runs over, and for each if it is summed up; None if the call does not say."""
    name, shape = short_name(call.op), first.shape
    rank = len(shape)
    if name in LAST_DIM:
        return _summed(shape, [_arg(call, LAST_DIM[name], "dim")])
    if name in LAYER_NORMS:
        sizes = _arg(call, LAYER_NORMS[name], "normalized_shape")
        count = len(sizes) if isinstance(sizes, tuple) else 1
        return shape, [axis >= rank - count for axis in range(rank)]
    if name in BATCH_NORMS:
        return shape, [axis != 1 for axis in range(rank)]
    if name in GROUP_NORMS:
        groups = _arg(call, GROUP_NORMS[name][1], "group")
        if not isinstance(groups, int) or not rank or first.numel == 0:
            return None
        rows = shape[0] * groups
        return (rows, first.numel // rows), [False, True]
    if name in LOSSES:
        return shape, [True] * rank
    dims = _arg(call, 2 if name in ("linalg_vector_norm", "norm") else 1, "dim")
    if dims is None or dims == () or isinstance(dims, bool):
        return (shape, [True] * rank) if output.numel == 1 else None
    return _summed(shape, dims if isinstance(dims, tuple) else [dims])


def _summed(shape: tuple[int, ...], dims: Sequence[Any]) -> tuple[tuple[int, ...], list[bool]] | None:
    rank = len(shape)
    if not all(isinstance(dim, int) and -rank <= dim < rank for dim in dims):
        return None
    wanted = {dim % rank for dim in dims}
    return shape, [axis in wanted for axis in range(rank)]
