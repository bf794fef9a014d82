"""Which dimension of a tensor its units lie along: channels of a convolution come first, features of a layer last."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from torch_vis.graph.call import Call
from torch_vis.graph.graph import Graph
from torch_vis.graph.types import Ints
from torch_vis.ops.names import is_backward, plain_name

LAST = frozenset({"addmm", "mm", "linear", "native_layer_norm", "_fused_rms_norm"})
VIEWS = frozenset("view _unsafe_view reshape _reshape_alias flatten unflatten unsqueeze squeeze".split())
PASSING = (
    "pool",
    "upsample",
    "_pad",
    "slice",
    "split",
    "chunk",
    "cat",
)  # words for what keeps dimensions in order
MIXING = ("mm", "matmul", "attention", "fft", "linalg", "lstm", "gru", "rnn")  # what makes units anew
UNKNOWN = -1


def usual_axis(dim: int) -> int:
    """Where units lie in a tensor of which nothing else is known.

    >>> usual_axis(2), usual_axis(3), usual_axis(4)
    (1, 2, 1)
    """
    return 1 if dim >= 4 else dim - 1


def unit_axes(graph: Graph) -> Ints:
    """The dimension of each value along which its units lie, -1 where the operations do not tell.

    Convolutions and normalisations of batches and groups have channels in the second one, linear layers features in
    the last. From there on it is followed through views and through operations that keep the shape and are no products.

    >>> import torch_vis as tv
    >>> from torch import nn, ones
    >>> graph = tv.trace(nn.Sequential(nn.Conv1d(3, 5, 1), nn.ReLU()), ones(2, 3, 7)).graph
    >>> [int(unit_axes(graph)[node.outputs[0].index]) for node in graph.nodes]
    [1, 1]
    """
    ways = [_way(call) for call in graph.calls]
    follow = np.array([way != "" for way in ways], dtype=bool)[graph.node_call] if ways else np.zeros(0, bool)
    shapes = [type_.shape for type_ in graph.types]
    types, calls = graph.value_type.tolist(), graph.node_call.tolist()
    first, last = graph.in_start.tolist(), graph.out_start.tolist()
    read, made = graph.in_value.tolist(), graph.out_value.tolist()
    axes = [UNKNOWN] * len(types)
    for node in np.flatnonzero(follow).tolist():
        outputs = made[last[node] : last[node + 1]]
        if not outputs:
            continue
        out = shapes[types[outputs[0]]]
        way = ways[calls[node]]
        if way == "channels":
            axis = 1 if len(out) > 1 else UNKNOWN
        elif way == "last":
            axis = len(out) - 1
        else:
            known = [value for value in read[first[node] : first[node + 1]] if axes[value] >= 0]
            before = [(shapes[types[value]], axes[value]) for value in known]
            axis = _followed(way, graph.calls[calls[node]], before, out)
        for value in outputs:
            axes[value] = axis if len(shapes[types[value]]) == len(out) else UNKNOWN
    return np.array(axes, dtype=np.int8)


def _way(call: Call) -> str:
    """How an operator has to do with where units lie."""
    name = plain_name(call.op)
    if not call.op.startswith("aten::") or is_backward(name):
        return ""
    if "convolution" in name or "batch_norm" in name or name == "native_group_norm":
        return "channels"
    if name in LAST:
        return "last"
    if name in ("permute", "transpose", "t"):
        return name
    if name in VIEWS:
        return "view"
    if any(word in name for word in PASSING):
        return "passes"
    return "" if any(word in name for word in MIXING) else "keeps"


def _followed(
    way: str, call: Call, before: Sequence[tuple[tuple[int, ...], int]], out: tuple[int, ...]
) -> int:
    """Where units are in what an operation gives, by where they are in what it reads."""
    if way in ("passes", "keeps"):
        fit = {axis for shape, axis in before if (shape == out if way == "keeps" else len(shape) == len(out))}
        return fit.pop() if len(fit) == 1 else UNKNOWN
    if not before:
        return UNKNOWN
    shape, axis = before[0]
    if way == "permute":
        return [place % len(shape) for place in call.args[1]].index(axis)
    if way in ("transpose", "t"):
        one, two = (place % len(shape) for place in (call.args[1:3] if way == "transpose" else (0, -1)))
        return {one: two, two: one}.get(axis, axis)
    return _viewed(shape, axis, out)


def _viewed(shape: tuple[int, ...], axis: int, out: tuple[int, ...]) -> int:
    """Where a dimension is after a view: where as much lies within each of its indices as did.

    Instances that are normalised apart are seen as more channels of one, and then again as before.

    >>> _viewed((2, 5, 7), 1, (2, 5, 1, 7)), _viewed((1, 10, 7), 1, (2, 5, 7)), _viewed((2, 5, 7), 1, (2, 35))
    (1, 1, -1)
    """
    within, size = prod(shape[axis + 1 :]), shape[axis]
    for place, length in enumerate(out):
        if length == size and prod(out[place + 1 :]) == within:
            return place
    apart = len(shape) == len(out) and axis == 1 and shape[0] == 1
    return axis if apart and out[0] * out[1] == size and out[2:] == shape[2:] else UNKNOWN
