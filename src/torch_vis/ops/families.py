"""Kinds of operation that take their time for the same reason, and the element type that each one computes in."""

from __future__ import annotations

import numpy as np

from torch_vis.graph import Call, Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Flag
from torch_vis.graph.types import Ints
from torch_vis.ops.cost.data_movement import RANDOM, SORTING
from torch_vis.ops.cost.registry import formula_of

KINDS = (
    "matmul",
    "convolution",
    "attention",
    "recurrent",
    "normalization",
    "softmax",
    "reduction",
    "pooling",
    "indexing",
    "sorting",
    "random",
    "factorization",
    "elementwise",
    "copy",
    "optimizer",
    "view",
    "other",
)
"""The kinds, in the order of their codes. A ``view`` runs nothing on the device."""

NO_KERNEL = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided set_ resize_ _assert_tensor_metadata "
    "_fused_sdp_choice is_same_size lift_fresh detach detach_ _local_scalar_dense item _cudnn_init_dropout_state "
    "empty_permuted resize_as_ _has_compatible_shallow_copy_type".split()
)
NAMED = {**dict.fromkeys(SORTING.split(), "sorting"), **dict.fromkeys(RANDOM.split(), "random")}
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
    if name in NO_KERNEL:
        return "view"
    if (name.startswith(LISTED) and "adam" in name) or name.startswith("_foreach_"):
        return "optimizer"
    if "softmax" in name:
        return "softmax"
    entry = formula_of(op)
    if entry is None:
        return "other"
    if name in NAMED:
        return NAMED[name]
    return entry.family if entry.family in KINDS else "other"


def kinds(graph: Graph) -> Ints:
    """The code of each operation's kind, a place in ``KINDS``."""
    code = {kind: number for number, kind in enumerate(KINDS)}
    found: dict[str, int] = {}
    for call in graph.calls:
        if call.op not in found:
            found[call.op] = code[kind_of(call.op)]
    table = np.array([found[call.op] for call in graph.calls], dtype=np.int8)
    made = table[graph.node_call] if len(table) else np.zeros(len(graph), dtype=np.int8)
    made[(graph.node_flags & Flag.VIEW) != 0] = code["view"]
    return made


def dtypes(graph: Graph) -> Ints:
    """The code of the element type that each operation computes in, a place in ``REAL_DTYPES``.

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
