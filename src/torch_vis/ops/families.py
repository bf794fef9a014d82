"""Kinds of operation: those that take their time for the same reason, and those whose loops can be fused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Call, Graph, Slot, TensorType
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Flag
from torch_vis.graph.types import Ints
from torch_vis.ops.cost.elementwise import WORK
from torch_vis.ops.cost.registry import formula_of
from torch_vis.ops.names import forward_name, out_of_place, plain_name
from torch_vis.ops.op_table import FAMILY_BY_NAME, KINDS, LOOPS, LoopKind, names

LISTED = ("_foreach_", "_fused_", "_amp_")
REAL_DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""The element types that peaks are given for, in the order of their codes; ``tf32`` is float32 on tensor cores."""

DTYPE_OF = {
    "float64": "float64",
    "complex128": "float64",
    "float32": "float32",
    "complex64": "float32",
    "float16": "float16",
    "complex32": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "uint8": "int8",
    "qint8": "int8",
    "quint8": "int8",
}


def kind_of(op: str) -> str:
    """The kind of an operator.

    >>> kind_of("aten::addmm"), kind_of("aten::_softmax"), kind_of("aten::bernoulli_"), kind_of("mine::op")
    ('matmul', 'softmax', 'random', 'other')
    """
    name = short_name(op)
    by_name = FAMILY_BY_NAME.get(name)
    if by_name == "view":
        return by_name
    if (name.startswith(LISTED) and "adam" in name) or name.startswith("_foreach_"):
        return "optimizer"
    if "softmax" in name:
        return "softmax"
    entry = formula_of(op)
    return "other" if entry is None else by_name or entry.family


def kinds(graph: Graph) -> Ints:
    """The code of each operation's kind: its index in ``KINDS``."""
    code = {kind: number for number, kind in enumerate(KINDS)}
    by_op = {op: code[kind_of(op)] for op in {call.op for call in graph.calls}}
    table = np.array([by_op[call.op] for call in graph.calls], dtype=np.int8)
    column = table[graph.node_call] if len(table) else np.zeros(len(graph), dtype=np.int8)
    column[(graph.node_flags & Flag.VIEW) != 0] = code["view"]
    return column


def dtypes(graph: Graph) -> Ints:
    """The code of the element type that each operation computes in: its index in ``REAL_DTYPES``.

    It is the type of the operation's inputs that takes the fewest bytes and is a float, since mixed products run on
    the units of the narrower type; integers where there are only those; float32 where nothing says.
    """
    rank = np.array([_rank(type_.dtype) for type_ in graph.types], dtype=np.int64)
    best = np.zeros(len(graph), dtype=np.int64)
    for start, values in ((graph.in_start, graph.in_value), (graph.out_start, graph.out_value)):
        if len(values):
            cells = np.concatenate([rank[graph.value_type[values]], [0]])
            highest = np.maximum.reduceat(cells, np.minimum(start[:-1], len(values)))
            has = np.diff(start) > 0
            best = np.where(has & (best == 0), highest, best)
    order = ("float32", "int8", "float64", "float32", "bfloat16", "float16", "float8")
    return np.array([REAL_DTYPES.index(name) for name in order], dtype=np.int8)[best]


def _rank(dtype: str) -> int:
    """A number that is the higher the more an element type decides what an operation computes in."""
    if dtype.startswith("float8"):
        return 6
    ranks = {"float16": 5, "bfloat16": 4, "float32": 3, "float64": 2, "int8": 1}
    return ranks.get(DTYPE_OF.get(dtype, ""), 0)


def lists_tensors(call: Call) -> bool:
    """Whether an operator goes over lists of tensors, so that its cost on the host grows with their number."""
    return short_name(call.op).startswith(LISTED)


# Families of figures and pages, which colour an operation or a module by what its name says

# In the order of weight: a module is of the first family that one of its operations has.
FIGURE_FAMILIES: dict[str, str] = {
    "attention": r".*attention.*|_native_multi_head.*|_transformer_encoder.*|flex_.*",
    "convolution": r".*conv(olution)?(\d?d)?.*",
    "recurrent": r".*(lstm|gru|rnn).*",
    "matrix product": r"(add)?b?mm|(add)?mv|addr|baddbmm|addbmm|linear.*|matmul|einsum|v?dot|bilinear|_\w*_mm|ger",
    "embedding": r".*embedding.*",
    "normalisation": r".*norm.*|_batch_norm.*",
    "pooling": r".*pool.*|.*upsample.*|.*interpolat.*|.*grid_sampler.*",
    "loss": r".*(loss|cross_entropy|kl_div).*",
    "activation": r".*(relu|gelu|silu|elu|sigmoid|tanh|softmax|softplus|mish|swish|threshold|glu|prelu|softshrink).*",
    "random": r".*(dropout|rand|bernoulli|normal|uniform|multinomial|exponential|poisson).*",
    "optimizer": r"(_fused|_foreach).*",
    "reduction": r"(sum|mean|prod|amax|amin|max|min|argmax|argmin|std|var|var_mean|all|any|logsumexp|cumsum|cumprod"
    r"|topk|sort|median|nansum|count_nonzero|aminmax)(_.*|\d.*)?",
    "memory": r"(view|_?reshape.*|expand|permute|t|transpose|slice|select|squeeze|unsqueeze|split|unbind|cat|stack|"
    r"copy|clone|contiguous|_to_copy|to|empty|zeros?|ones?|full|new|arange|linspace|gather|scatter|index|masked|pad|"
    r"constant_pad|roll|flip|repeat|narrow|detach|alias|lift|as_strided|diagonal|tril|triu|chunk|unfold|fill|"
    r"_unsafe_view|_local_scalar_dense|set|resize|eye|tile|where|_reshape_alias|im2col|col2im|_assert|is_nonzero|item)(_.*|\d.*)?",
    "compiled": r"compiled|opaque.*",
}
OTHER_FIGURE = "elementwise"


@lru_cache(maxsize=4096)
def figure_family(name: str) -> str:
    """The family of an operator's short name; a backward operator is of its forward operator's family.

    >>> [figure_family(name) for name in ("convolution_backward", "addmm", "native_layer_norm", "mul")]
    ['convolution', 'matrix product', 'normalisation', 'elementwise']
    """
    forward = forward_name(name)
    for family, pattern in FIGURE_FAMILIES.items():
        if re.fullmatch(pattern, forward):
            return family
    return OTHER_FIGURE


Pattern = tuple[tuple[int, bool], ...]  # runs of axes, each with its size and whether it is summed up


class LoopNest(NamedTuple):
    """An operation's loop: its kind, the sizes that it runs over, and which of these it reduces (None: none)."""

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
    """Axes in runs of kept and of reduced ones; None if none is reduced.

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


def _arg(call: Call, position: int, name: str) -> Any:
    return call.args[position] if position < len(call.args) else dict(call.kwargs).get(name)


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
