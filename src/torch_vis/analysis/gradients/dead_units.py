"""Units that are stuck: what they give is the same for everything that came in, and no gradient gets through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.graph.call import Call, Slot, short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Phase
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.names import is_backward, is_in_place, plain_name
from torch_vis.replay.stepper import Stepper

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
    in_value, out_value = graph.in_value.tolist(), graph.out_value.tolist()
    axes = [UNKNOWN] * len(types)
    for node in np.flatnonzero(follow).tolist():
        outputs = out_value[last[node] : last[node + 1]]
        if not outputs:
            continue
        out = shapes[types[outputs[0]]]
        way = ways[calls[node]]
        if way == "channels":
            axis = 1 if len(out) > 1 else UNKNOWN
        elif way == "last":
            axis = len(out) - 1
        else:
            known = [value for value in in_value[first[node] : first[node + 1]] if axes[value] >= 0]
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
        return [index % len(shape) for index in call.args[1]].index(axis)
    if way in ("transpose", "t"):
        one, two = (index % len(shape) for index in (call.args[1:3] if way == "transpose" else (0, -1)))
        return {one: two, two: one}.get(axis, axis)
    return _viewed(shape, axis, out)


def _viewed(shape: tuple[int, ...], axis: int, out: tuple[int, ...]) -> int:
    """Where a dimension is after a view: where as much lies within each of its indices as did.

    Instances that are normalised apart are seen as more channels of one, and then again as before.

    >>> _viewed((2, 5, 7), 1, (2, 5, 1, 7)), _viewed((1, 10, 7), 1, (2, 5, 7)), _viewed((2, 5, 7), 1, (2, 35))
    (1, 1, -1)
    """
    within, size = prod(shape[axis + 1 :]), shape[axis]
    for index, length in enumerate(out):
        if length == size and prod(out[index + 1 :]) == within:
            return index
    apart = len(shape) == len(out) and axis == 1 and shape[0] == 1
    return axis if apart and out[0] * out[1] == size and out[2:] == shape[2:] else UNKNOWN


# Operations that cut to zero, by which units are counted in any run.
RECTIFIERS = frozenset({"relu", "threshold", "clamp_min", "relu6", "hardtanh"})
# Others that become flat at one end or both: activations of a run that has gradients.
FLATTEN = frozenset(
    "gelu silu mish hardswish hardsigmoid sigmoid tanh elu celu selu softplus clamp clamp_max hardshrink "
    "softshrink".split()
)


class Stuck(NamedTuple):
    """Of the units that an operation gives, those that are stuck at zero (dead) and elsewhere (saturated)."""

    units: int
    dead: list[int]
    saturated: list[int]


class Activations:
    """The activations of a run that is repeated: which operations they are, and which of their units are stuck."""

    def __init__(self, run: Stepper) -> None:
        self.run, graph = run, run.graph
        names = [short_name(call.op) for call in graph.calls]
        rectify = [number for number, name in enumerate(names) if plain_name(name) in RECTIFIERS]
        flatten = [number for number, name in enumerate(names) if plain_name(name) in FLATTEN]
        linked = graph.node_link[graph.node_phase == Phase.BACKWARD]
        has_gradient = np.zeros(len(graph), dtype=bool)
        has_gradient[linked[linked >= 0]] = True
        self.mask: Bools = np.isin(graph.node_call, rectify)
        self.mask |= np.isin(graph.node_call, flatten) & has_gradient
        writes = [number for number, name in enumerate(names) if is_in_place(name)]
        self._in_place = self.mask & np.isin(graph.node_call, writes)
        self._read: torch.Tensor | None = None

    def before(self, node: int) -> None:
        """Keep what the next operation reads if it will be overwritten."""
        self._read = self._given(node) if self._in_place[node] else None
        if self._read is not None:
            self._read = self._read.clone()

    def stuck(self, node: int, made: torch.Tensor) -> Stuck | None:
        """The units of what an activation has just made that are stuck, None where that cannot be told."""
        given = self._read if self._in_place[node] else self._given(node)
        graph, value = self.run.graph, self.run.graph.out_value[self.run.graph.out_start[node]]
        whole = made.dim() == len(graph.types[graph.value_type[value]].shape)  # no part of what is nested
        axis = int(self._axes[value]) if whole else -1
        return stuck_units(graph.calls[graph.node_call[node]], given, made, axis)

    @cached_property
    def _axes(self) -> Ints:
        return unit_axes(self.run.graph)

    def _given(self, node: int) -> torch.Tensor | None:
        """What an activation reads, None where it is not all that tells what it gives."""
        row = self.run.graph.nodes[node]
        slots = list(row.call.slots())
        if len(slots) != 1 or not row.call.args or not isinstance(row.call.args[0], Slot):
            return None
        return self.run.replay.tensor(row.inputs[slots[0]].index)


def stuck_units(call: Call, given: torch.Tensor | None, made: torch.Tensor, axis: int = -1) -> Stuck | None:
    """The units of what an activation ``made`` of what it was ``given`` that are stuck, None where none can be told.

    Zero alone does not tell: GELU and SiLU of zero are zero, and let gradients through. So the slope is asked for where
    a unit never changes. Without floating-point numbers that were given, zeros of a rectifier are told.
    ``axis`` is the dimension of the units, -1 where it is not known (see `unit_axes`).

    >>> call = Call("aten::hardtanh", (Slot(0), 0.0, 6.0), ())
    >>> x = torch.tensor([[-1.0, 1.0, 7.0], [-2.0, -2.0, 8.0]])
    >>> stuck_units(call, x, x.clamp(0, 6))
    Stuck(units=3, dead=[0], saturated=[2])
    """
    axis = usual_axis(made.dim()) if axis < 0 else axis
    rest = [number for number in range(made.dim()) if number != axis]
    first = made[tuple(slice(None) if number == axis else slice(0, 1) for number in range(made.dim()))]
    units = (made == first).all(dim=rest).nonzero().flatten()
    if not len(units):
        return Stuck(made.shape[axis], [], [])
    level = first.reshape(-1)[units]
    if given is not None and _has_slope(given) and given.shape == made.shape:
        flat = (_slope(call, given.index_select(axis, units)) == 0).all(dim=rest)
    elif plain_name(call.op) in RECTIFIERS:
        flat = level == 0
    else:
        return None
    return Stuck(made.shape[axis], units[flat & (level == 0)].tolist(), units[flat & (level != 0)].tolist())


def _has_slope(given: torch.Tensor) -> bool:
    """Whether the slope can be asked for there: integers have none."""
    return given.is_floating_point() and given.layout is torch.strided


def _slope(call: Call, given: torch.Tensor) -> torch.Tensor:
    """How much each element of what an activation makes changes with the one that it is made of."""
    operator: Any = getattr(torch.ops.aten, plain_name(call.op)).default
    with torch.enable_grad():
        x = given.detach().clone().requires_grad_()
        result = operator(x, *call.args[1:], **dict(call.kwargs))
        (slope,) = torch.autograd.grad(result.sum(), x)
    return slope
