"""Names of operators, brought to one form: without namespace and overload, out of place, forward.

``graph.call.short_name`` takes namespace and overload off; what follows here starts from it.
"""

from __future__ import annotations

import re

from torch_vis.graph.call import short_name

BACKWARD = re.compile(r"(?<=.)(_double)?_backward(_data|_input|_for_cpu)?_?$")
IN_PLACE_DUNDER = re.compile(
    r"__i(and|or|xor|lshift|rshift|add|sub|mul|div|truediv|floordiv|mod|pow|matmul)__$"
)


def is_in_place(op: str) -> bool:
    """Whether an operator's name says that it writes its first argument.

    >>> is_in_place("aten::add_.Tensor"), is_in_place("__ior__"), is_in_place("__and__")
    (True, True, False)
    """
    return out_of_place(op) != op


def out_of_place(op: str) -> str:
    """The name of the operator that gives the same as a new tensor; namespace and overload stay.

    >>> out_of_place("aten::add_.Tensor"), out_of_place("relu_"), out_of_place("__ior__"), out_of_place("__and__")
    ('aten::add.Tensor', 'relu', '__or__', '__and__')
    """
    name, dot, overload = op.partition(".")
    if name.endswith("__"):
        name = IN_PLACE_DUNDER.sub(r"__\1__", name)
    elif name.endswith("_"):
        name = name[:-1]
    return f"{name}{dot}{overload}"


def plain_name(op: str) -> str:
    """An operator's short name, out of place: what tables of operators are keyed by.

    >>> plain_name("aten::add_.Tensor"), plain_name("relu_"), plain_name("_foreach_mul_")
    ('add', 'relu', '_foreach_mul')
    """
    return out_of_place(short_name(op))


def common_name(op: str) -> str:
    """The name that users know an operator by: also without the marks of torch's own variants.

    >>> common_name("aten::_softmax"), common_name("aten::native_layer_norm")
    ('softmax', 'layer_norm')
    """
    return plain_name(op).removeprefix("_").removeprefix("native_")


def forward_name(name: str) -> str:
    """The operator whose gradient a backward operator computes; any other name as it is.

    >>> forward_name("convolution_backward"), forward_name("_softmax_backward_data"), forward_name("mul")
    ('convolution', '_softmax', 'mul')
    """
    return BACKWARD.sub("", name)


def is_backward(op: str) -> bool:
    """Whether an operator's name says that it computes a gradient.

    >>> is_backward("aten::threshold_backward"), is_backward("aten::mkldnn_linear_backward_weights")
    (True, True)
    """
    return "_backward" in op
