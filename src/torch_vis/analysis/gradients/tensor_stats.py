"""What was in the tensors of a run, as columns: norms, NaN, dead units.

The run itself keeps no tensors. It is repeated from what the trace holds, bit for bit, and looked at on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.capture.modes import with_gradients
from torch_vis.graph.call import Call, Slot, short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column
from torch_vis.graph.schema import Flag, Phase, Role
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.names import is_backward, is_in_place, plain_name
from torch_vis.ops.op_table import RESHAPES, UNINITIALIZED
from torch_vis.replay.replay import replay_context
from torch_vis.replay.stepper import Stepper, observe

ORDERED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
CONTENTS = ("norm", "nans", "infs", "units", "dead_units")
UNFILLED = UNINITIALIZED | {"resize"}


def contents(graph: Graph, kept: KeptTensors | None) -> dict[str, Column]:
    """The columns ``norm``, ``nans``, ``infs``, ``units`` and ``dead_units`` along the operations.

    ``norm`` is the Euclidean norm of all floating-point elements that an operation made. It is not known for what has
    none, for memory that is not yet filled, and for views, except those that are results of the run. ``units`` and
    ``dead_units`` are known for operations that cut to zero (ReLU) or become flat (GELU, where it has a gradient): how
    many channels they give, and how many of these are zero for everything that came in and let no gradient through.
    Channels lie where the operations before put them (`unit_axes`).
    """
    return contents_and_norms(graph, kept, ())[0]


def contents_and_norms(
    graph: Graph, kept: KeptTensors | None, values: Iterable[int], *, health: bool = False
) -> tuple[dict[str, Column], dict[int, float], dict[int, InactiveUnits]]:
    """Those columns, the norm of some values when they were made, and by operation the dead and saturated units.

    All come of one run. For a report on its ``health``, there are ``lowest``, ``highest`` and ``saturated_units`` too,
    and activations that become flat count where nothing is differentiated.
    """
    count = len(graph)
    norm = np.zeros(count)
    numbers = {name: np.zeros(count, dtype=np.int64) for name in CONTENTS[1:]}
    known = np.zeros(count, dtype=bool)
    numbers_made = makes_numbers(graph, graph.result_value)
    wanted = np.array(sorted(values), dtype=np.int64)
    norms = {value: _norm(tensor) for value, tensor in outside_tensors(graph, kept, wanted)}
    indices = made_where(graph, wanted)
    stuck: dict[int, InactiveUnits] = {}
    run = Stepper(graph, kept)
    activations = Activations(run, every=health)
    ranges = {name: np.zeros(count) for name in ("lowest", "highest")}
    finite = np.zeros(count, dtype=bool)

    def see(node: int, outputs: list[torch.Tensor]) -> None:
        for value, index in indices.get(node, ()):
            norms[value] = _norm(outputs[index])
        if not numbers_made[node]:
            return
        floating = [part for tensor in outputs for part in _floating(tensor)]
        if not floating:
            return
        known[node] = True
        norm[node], numbers["nans"][node], numbers["infs"][node] = _size(floating)
        if health:
            ends = _range(floating, whole=not (numbers["nans"][node] or numbers["infs"][node]))
            if ends is not None:
                finite[node] = True
                ranges["lowest"][node], ranges["highest"][node] = ends
        if activations.mask[node] and floating[0].dim() >= 2 and floating[0].is_floating_point():
            units = activations.stuck(node, floating[0])
            if units is not None:
                stuck[node] = units
                numbers["units"][node], numbers["dead_units"][node] = units.units, len(units.dead)

    shown = numbers_made.copy()
    shown[list(indices)] = True
    with replay_context(run.plan.generators):
        for node in run.steps(activations.before):
            if shown[node]:
                see(node, run.outputs(node))
    counted = np.zeros(count, dtype=bool)
    counted[list(stuck)] = True
    result = {"norm": Column("norm", norm, known=known)}
    for name, column in numbers.items():
        result[name] = Column(name, column, known=counted if name.endswith("units") else known)
    if health:
        saturated = np.zeros(count, dtype=np.int64)
        saturated[list(stuck)] = [len(units.saturated) for units in stuck.values()]
        result["saturated_units"] = Column("saturated_units", saturated, known=counted)
        result |= {name: Column(name, column, known=finite) for name, column in ranges.items()}
    return result, {value: norm for value, norm in norms.items() if norm is not None}, stuck


def norms_of_values(graph: Graph, kept: KeptTensors | None, values: Iterable[int]) -> dict[int, float | None]:
    """The norm of each of some values as it was when it was made; None where it has no floating-point elements."""
    wanted = np.array(sorted(values), dtype=np.int64)
    norms = {value: _norm(tensor) for value, tensor in outside_tensors(graph, kept, wanted)}
    indices = made_where(graph, wanted)

    def see(node: int, outputs: list[torch.Tensor]) -> None:
        for value, index in indices[node]:
            norms[value] = _norm(outputs[index])

    shown = np.zeros(len(graph), dtype=bool)
    shown[list(indices)] = True
    observe(graph, kept, see, shown)
    return norms


def parameter_norms(graph: Graph, kept: KeptTensors | None) -> dict[str, float]:
    """The norm of each parameter before the run, by name."""
    values = np.flatnonzero((graph.value_role == Role.PARAMETER) & (graph.value_producer < 0))
    norms = {value: _norm(tensor) for value, tensor in outside_tensors(graph, kept, values)}
    return {graph.values[value].name or "": norm for value, norm in norms.items() if norm is not None}


def frozen_parameters(kept: KeptTensors | None) -> set[str]:
    """The parameters that ask for no gradient, by name; those inside a wrapper do not say."""
    versions = kept.versions if kept is not None else ()
    return {
        n for n, tensor, _ in versions if isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
    }


def outside_faults(graph: Graph, kept: KeptTensors | None) -> dict[str, tuple[int, int]]:
    """Of the tensors that the run was given, those with elements that are NaN or infinite, with how many of each."""
    result = {}
    for value, tensor in outside_tensors(graph, kept, np.flatnonzero(graph.value_producer < 0)):
        parts = _floating(tensor)
        _, nans, infs = _size(parts) if parts else (0.0, 0, 0)
        if nans or infs:
            result[graph.values[value].name or str(value)] = (nans, infs)
    return result


def outside_tensors(
    graph: Graph, kept: KeptTensors | None, values: Any
) -> Iterator[tuple[int, torch.Tensor]]:
    """Those of some values that the run was given, as it found them."""
    run = Stepper(graph, kept)
    for value in values[graph.value_producer[values] < 0].tolist():
        yield value, run.replay.tensor(value)


def made_where(graph: Graph, values: Any) -> dict[int, list[tuple[int, int]]]:
    """For each operation that makes some of these values: which ones, and their positions among its outputs."""
    result: dict[int, list[tuple[int, int]]] = {}
    for value in values[graph.value_producer[values] >= 0].tolist():
        node = int(graph.value_producer[value])
        index = graph.out_value[slice(*graph.output_span(node))].tolist().index(value)
        result.setdefault(node, []).append((value, index))
    return result


def makes_numbers(graph: Graph, seen: Any = ()) -> Any:
    """A mask of the operations that make numbers: not views, but for those that make one of ``seen``, nor memory not
    yet filled.

    What a collective gives is on its way until it is waited for, and must not be read before.
    """
    views = (graph.node_flags & Flag.VIEW) != 0
    producers = graph.value_producer[np.asarray(seen, dtype=np.int64)]
    views[producers[producers >= 0]] = False
    calls = [n for n, call in enumerate(graph.calls) if "c10d" in call.op.partition("::")[0]]
    return ~(views | _named(graph, UNFILLED) | np.isin(graph.node_call, calls))


def _named(graph: Graph, names: frozenset[str]) -> Any:
    hit = [n for n, call in enumerate(graph.calls) if plain_name(call.op) in names]
    return np.isin(graph.node_call, hit)


def _floating(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.is_nested:
        return [part for inner in tensor.unbind() for part in _floating(inner)]
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or not tensor.numel():
        return []
    return [tensor] if tensor.is_floating_point() or tensor.is_complex() else []


def _norm(tensor: torch.Tensor) -> float | None:
    parts = _floating(tensor)
    return _size(parts)[0] if parts else None


def _size(outputs: list[torch.Tensor]) -> tuple[float, int, int]:
    """The Euclidean norm of all elements, and how many of them are no number or infinite."""
    total = 0.0
    for tensor in outputs:
        wide = torch.float64 if tensor.dtype in (torch.float64, torch.complex128) else torch.float32
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        total += float(torch.linalg.vector_norm(real.to(wide))) ** 2
    if np.isfinite(total):
        return total**0.5, 0, 0
    nans = sum(int(torch.isnan(tensor).sum()) for tensor in outputs)
    return total**0.5, nans, sum(int(torch.isinf(tensor).sum()) for tensor in outputs)


def _range(outputs: list[torch.Tensor], *, whole: bool) -> tuple[float, float] | None:
    """The lowest and the highest of the finite elements, None without any; ``whole``: all of them are.

    Complex numbers are in the range of their parts.
    """
    ends = []
    for tensor in outputs:
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        # some short types have no order of their own
        real = real if real.dtype in ORDERED else real.float()
        chosen = real if whole else real[torch.isfinite(real)]
        if chosen.numel():
            ends.append([float(end) for end in torch.aminmax(chosen.detach())])
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


LAST = frozenset({"addmm", "mm", "linear", "native_layer_norm", "_fused_rms_norm"})
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
    rules = [_axis_rule(call) for call in graph.calls]
    follow = (
        np.array([rule != "" for rule in rules], dtype=bool)[graph.node_call] if rules else np.zeros(0, bool)
    )
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
        rule = rules[calls[node]]
        if rule == "channels":
            axis = 1 if len(out) > 1 else UNKNOWN
        elif rule == "last":
            axis = len(out) - 1
        else:
            known = [value for value in in_value[first[node] : first[node + 1]] if axes[value] >= 0]
            before = [(shapes[types[value]], axes[value]) for value in known]
            axis = _followed(rule, graph.calls[calls[node]], before, out)
        for value in outputs:
            axes[value] = axis if len(shapes[types[value]]) == len(out) else UNKNOWN
    return np.array(axes, dtype=np.int8)


def _axis_rule(call: Call) -> str:
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
    if name in RESHAPES:
        return "view"
    if any(word in name for word in PASSING):
        return "passes"
    return "" if any(word in name for word in MIXING) else "keeps"


def _followed(
    rule: str, call: Call, before: Sequence[tuple[tuple[int, ...], int]], out: tuple[int, ...]
) -> int:
    """Where units are in what an operation gives, by where they are in what it reads."""
    if rule in ("passes", "keeps"):
        fit = {
            axis for shape, axis in before if (shape == out if rule == "keeps" else len(shape) == len(out))
        }
        return fit.pop() if len(fit) == 1 else UNKNOWN
    if not before:
        return UNKNOWN
    shape, axis = before[0]
    if rule == "permute":
        return [index % len(shape) for index in call.args[1]].index(axis)
    if rule in ("transpose", "t"):
        a, b = (index % len(shape) for index in (call.args[1:3] if rule == "transpose" else (0, -1)))
        return {a: b, b: a}.get(axis, axis)
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
    folded = len(shape) == len(out) and axis == 1 and shape[0] == 1
    return axis if folded and out[0] * out[1] == size and out[2:] == shape[2:] else UNKNOWN


# Operations that cut to zero, by which units are counted in any run.
RECTIFIERS = frozenset({"relu", "threshold", "clamp_min", "relu6", "hardtanh"})
# Others that become flat at one end or both: activations of a run that has gradients.
FLATTEN = frozenset(
    "gelu silu mish hardswish hardsigmoid sigmoid tanh elu celu selu softplus clamp clamp_max hardshrink "
    "softshrink".split()
)


class InactiveUnits(NamedTuple):
    """Of the units that an operation gives, those that are stuck at zero (dead) and elsewhere (saturated)."""

    units: int
    dead: list[int]
    saturated: list[int]


class Activations:
    """The activations of a run that is repeated: which operations, and which of their units are dead or saturated."""

    def __init__(self, run: Stepper, *, every: bool = False) -> None:
        self.run, graph = run, run.graph
        names = [short_name(call.op) for call in graph.calls]
        rectify = [number for number, name in enumerate(names) if plain_name(name) in RECTIFIERS]
        flatten = [number for number, name in enumerate(names) if plain_name(name) in FLATTEN]
        linked = graph.node_link[graph.node_phase == Phase.BACKWARD]
        has_gradient = np.zeros(len(graph), dtype=bool)
        has_gradient[linked[linked >= 0]] = True
        self.mask: Bools = np.isin(graph.node_call, rectify)
        self.mask |= np.isin(graph.node_call, flatten) & (has_gradient | every)
        writes = [number for number, name in enumerate(names) if is_in_place(name)]
        self._in_place = self.mask & np.isin(graph.node_call, writes)
        self._read: torch.Tensor | None = None

    def before(self, node: int) -> None:
        """Keep what the next operation reads if it will be overwritten."""
        self._read = self._given(node) if self._in_place[node] else None
        if self._read is not None:
            self._read = self._read.clone()

    def stuck(self, node: int, outputs: torch.Tensor) -> InactiveUnits | None:
        """The dead and saturated units of the output that an activation has just made, None where that is unknown."""
        given = self._read if self._in_place[node] else self._given(node)
        graph, value = self.run.graph, self.run.graph.out_value[self.run.graph.out_start[node]]
        # no part of what is nested
        whole = outputs.dim() == len(graph.types[graph.value_type[value]].shape)
        axis = int(self._axes[value]) if whole else -1
        return stuck_units(graph.calls[graph.node_call[node]], given, outputs, axis)

    @cached_property
    def _axes(self) -> Ints:
        return unit_axes(self.run.graph)

    def _given(self, node: int) -> torch.Tensor | None:
        """An activation's input, None where its output depends on more than that."""
        row = self.run.graph.nodes[node]
        slots = list(row.call.slots())
        if len(slots) != 1 or not row.call.args or not isinstance(row.call.args[0], Slot):
            return None
        return self.run.replay.tensor(row.inputs[slots[0]].index)


def stuck_units(
    call: Call, given: torch.Tensor | None, outputs: torch.Tensor, axis: int = -1
) -> InactiveUnits | None:
    """The dead and saturated units of an activation's output, by its input; None where that is unknown.

    Zero alone does not tell: GELU and SiLU of zero are zero, and let gradients through. So the slope is asked for where
    a unit never changes. Without floating-point numbers that were given, zeros of a rectifier are told.
    ``axis`` is the dimension of the units, -1 where it is not known (see `unit_axes`).

    >>> call = Call("aten::hardtanh", (Slot(0), 0.0, 6.0), ())
    >>> x = torch.tensor([[-1.0, 1.0, 7.0], [-2.0, -2.0, 8.0]])
    >>> stuck_units(call, x, x.clamp(0, 6))
    InactiveUnits(units=3, dead=[0], saturated=[2])
    """
    axis = usual_axis(outputs.dim()) if axis < 0 else axis
    rest = [number for number in range(outputs.dim()) if number != axis]
    first = outputs[tuple(slice(None) if number == axis else slice(0, 1) for number in range(outputs.dim()))]
    units = (outputs == first).all(dim=rest).nonzero().flatten()
    if not len(units):
        return InactiveUnits(outputs.shape[axis], [], [])
    level = first.reshape(-1)[units]
    if given is not None and _has_slope(given) and given.shape == outputs.shape:
        flat = (_slope(call, given.index_select(axis, units)) == 0).all(dim=rest)
    elif plain_name(call.op) in RECTIFIERS:
        flat = level == 0
    else:
        return None
    return InactiveUnits(
        outputs.shape[axis], units[flat & (level == 0)].tolist(), units[flat & (level != 0)].tolist()
    )


def _has_slope(given: torch.Tensor) -> bool:
    """Whether the slope can be asked for there: integers have none."""
    return given.is_floating_point() and given.layout is torch.strided


def _slope(call: Call, given: torch.Tensor) -> torch.Tensor:
    """How much each element of what an activation makes changes with the one that it is made of."""
    operator: Any = getattr(torch.ops.aten, plain_name(call.op)).default
    with with_gradients():
        x = given.detach().clone().requires_grad_()
        result = operator(x, *call.args[1:], **dict(call.kwargs))
        (slope,) = torch.autograd.grad(result.sum(), x)
    return slope
