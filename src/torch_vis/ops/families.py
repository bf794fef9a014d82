"""Kinds of operation that take their time for the same reason, and the element type that each one computes in."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from torch_vis.graph import Call, Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Flag
from torch_vis.graph.types import Ints
from torch_vis.ops.cost.registry import formula_of
from torch_vis.ops.names import forward_name
from torch_vis.ops.op_table import FAMILY_BY_NAME, KINDS

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
