"""Weights rounded as a narrow format would hold them: along which channels, and what that does to a recorded run.

Elements of one channel share a scale, which comes out of the products again. What a product sums over cannot keep a
scale of its own, so there is one for each index of the other dimensions: the output channels. Which dimensions those
are is read off the operations that multiply by the weight.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.graph.call import Slot, short_name
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.schema import Role, TensorType
from torch_vis.replay.perturb import perturbed
from torch_vis.replay.replay import Replay, ReplayPlan
from torch_vis.replay.slicing import needed_nodes
from torch_vis.replay.stepper import tensors_for_replay

# The dimensions that a product sums over, by the place of the argument.
SUMMED: dict[str, dict[int, tuple[int, ...]]] = {
    "mm": {0: (1,), 1: (0,)},
    "addmm": {1: (1,), 2: (0,)},
    "bmm": {0: (2,), 1: (1,)},
    "baddbmm": {1: (2,), 2: (1,)},
    "addbmm": {1: (0, 2), 2: (0, 1)},
    "mv": {0: (1,)},
    "addmv": {1: (1,)},
    "_grouped_mm": {0: (-1,), 1: (-2,)},
    "conv_tbc": {1: (0, 1)},
}
GENERAL = frozenset({"convolution", "_convolution", "convolution_overrideable"})
# places of their arguments
TRANSPOSED, GROUPS = 6, 8


class Channels(NamedTuple):
    """The dimensions of a weight along which every index has its own scale; the others share it.

    ``groups`` are equal parts of the first dimension, each with scales of its own: those of a grouped transposed
    convolution, which has its input channels first.

    >>> Channels((1,)).rows(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """

    kept: tuple[int, ...] = (0,)
    groups: int = 1

    def shape(self, shape: Sequence[int]) -> tuple[int, int]:
        """How many channels a weight of that shape has, and how many elements each."""
        count = self.groups * math.prod(shape[dim] for dim in self.kept)
        return count, math.prod(shape) // max(1, count)

    def rows(self, weight: torch.Tensor) -> torch.Tensor:
        """A row of elements for each channel."""
        split = weight.reshape(self.groups, -1, *weight.shape[1:])
        return split.permute(self._order(weight.dim())).reshape(self.shape(weight.shape))

    def weight(self, rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """The weight of that shape from such rows."""
        order = self._order(len(shape))
        split = (self.groups, shape[0] // self.groups, *shape[1:])
        back = sorted(range(len(order)), key=order.__getitem__)
        return rows.reshape([split[dim] for dim in order]).permute(back).reshape(tuple(shape))

    def _order(self, dims: int) -> list[int]:
        first = [0, *(dim + 1 for dim in self.kept)]
        return [*first, *(dim for dim in range(dims + 1) if dim not in first)]


def channels_of(graph: Graph, weight: int, nodes: Iterable[int]) -> Channels:
    """The output channels of a weight: the dimensions that none of the operations that read it sums over.

    A dimension that one of several products sums over has no scales. Operations that say nothing (a look-up, a fused
    kernel) take weights with the output first.
    """
    at_nodes = [channels for node in nodes for channels in _channels_at(graph.nodes[node], weight)]
    if not at_nodes:
        return Channels()
    dims = range(len(graph.values[weight].type.shape))
    kept = tuple(dim for dim in dims if all(dim in channels.kept for channels in at_nodes))
    groups = {channels.groups for channels in at_nodes}
    return Channels(kept, groups.pop() if len(groups) == 1 else 1)


def _channels_at(node: Node, weight: int) -> list[Channels]:
    """The dimensions that an operation does not sum over, for each argument that is the weight or a view of it."""
    storage = node.graph.value_storage
    by_slot = {
        slot: value for slot, value in enumerate(node.inputs) if storage[value.index] == storage[weight]
    }
    whole = node.graph.values[weight].type
    channels = []
    for position, argument in enumerate(node.call.args):
        if not isinstance(argument, Slot) or argument.number not in by_slot:
            continue
        seen = by_slot[argument.number].type
        summed, groups = _summed(node, position, seen)
        if summed is None:
            continue
        kept = tuple(dim for dim in range(len(whole.shape)) if not _overlaps(whole, dim, seen, summed))
        channels.append(Channels(kept, groups if seen.shape == whole.shape else 1))
    return channels


def _summed(node: Node, position: int, seen: TensorType) -> tuple[tuple[int, ...] | None, int]:
    """The dimensions of an argument that an operation sums over, None where it does not say; and the groups."""
    name, args = short_name(node.call.op), node.call.args
    dims = len(seen.shape)
    if name in SUMMED:
        summed = SUMMED[name].get(position)
        return None if summed is None else tuple(dim % dims for dim in summed), 1
    if "conv" not in name or position != 1:
        return None, 1
    general = name in GENERAL and len(args) > GROUPS
    if bool(args[TRANSPOSED]) if general else "transpose" in name:
        return (0, *range(2, dims)), int(args[GROUPS]) if general else 1
    return tuple(range(1, dims)), 1


def _overlaps(whole: TensorType, whole_dim: int, seen: TensorType, summed: Sequence[int]) -> bool:
    """Whether a dimension of a weight has to do with what is summed over in a view of it: by the strides of both."""
    if whole.shape[whole_dim] == 1:
        # nothing to keep apart
        return True
    first, end = whole.stride[whole_dim], whole.stride[whole_dim] * whole.shape[whole_dim]
    spans = ((seen.stride[dim], seen.stride[dim] * seen.shape[dim]) for dim in summed if seen.shape[dim] > 1)
    return any(low < end and first < high for low, high in spans)


# weights that share a scale in int4
GROUP = 128
# the largest float8_e4m3fn
FP8_MOST = 448.0


Rounder = Callable[[torch.Tensor], torch.Tensor]


class NumberFormat(NamedTuple):
    """A narrow format: bits of an element, how weights and activations are rounded, bytes of all scales of a weight.

    ``weight`` and ``scales`` take a weight, or its shape, with the channels first: see ``Channels.rows``.
    """

    name: str
    bits: int
    weight: Rounder
    # None: only weights are narrow
    activation: Rounder | None
    scales: Callable[[Sequence[int]], int]
    what: str


def sqnr(exact: torch.Tensor, rounded: torch.Tensor) -> float | None:
    """Signal to quantization noise in decibels: 6 more for each bit that is right.

    What is NaN or infinite to begin with is left out; None where nothing else is there.

    >>> sqnr(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
    20.0
    """
    signal, noise = _power(exact.float()), _power(exact.float() - rounded.float())
    if not math.isfinite(signal + noise):
        good = torch.isfinite(exact)
        if not bool(good.any()):
            return None
        kept = exact[good].double()
        signal, noise = _power(kept), _power(kept - rounded[good].double())
        if not math.isfinite(noise):
            return -math.inf
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _power(tensor: torch.Tensor) -> float:
    return float(tensor.square().sum(dtype=torch.float64))


def _of_finite(rounding: Rounder) -> Rounder:
    """The rounding of finite elements, which alone say what the scale is; NaN and infinity stay."""

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.numel():
            return tensor.clone()
        low, high = torch.aminmax(tensor)
        if math.isfinite(float(low)) and math.isfinite(float(high)):
            return rounding(tensor)
        good = torch.isfinite(tensor)
        return torch.where(good, rounding(torch.where(good, tensor, torch.zeros_like(tensor))), tensor)

    return rounded


def _int8_weight(weight: torch.Tensor) -> torch.Tensor:
    return _steps(weight, _amax_by_row(weight) / 127, -127, 127)


def _int8_activation(activation: torch.Tensor) -> torch.Tensor:
    low, high = activation.amin().clamp(max=0), activation.amax().clamp(min=0)
    scale = (high - low) / 255
    if not float(scale):
        return activation.clone()
    zero = torch.round(-low / scale)
    return (torch.clamp(torch.round(activation / scale) + zero, 0, 255) - zero) * scale


def _fp8(tensor: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    scale = torch.where(amax > 0, amax / FP8_MOST, torch.ones_like(amax))
    return (tensor / scale).to(torch.float8_e4m3fn).to(tensor.dtype) * scale


def _int4_weight(weight: torch.Tensor) -> torch.Tensor:
    rows = weight.reshape(weight.shape[0], -1)
    short = -rows.shape[1] % GROUP
    padded = torch.nn.functional.pad(rows, (0, short)).reshape(rows.shape[0], -1, GROUP)
    exact = padded.abs().amax(dim=-1, keepdim=True) / 7
    # as it is stored
    scale = exact.clamp(max=torch.finfo(torch.float16).max).to(torch.float16).to(exact.dtype)
    rounded = _steps(padded, scale, -7, 7)
    return rounded.reshape(rows.shape[0], -1)[:, : rows.shape[1]].reshape(weight.shape)


def _steps(tensor: torch.Tensor, scale: torch.Tensor, low: int, high: int) -> torch.Tensor:
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.clamp(torch.round(tensor / scale), low, high) * scale


def _amax_by_row(weight: torch.Tensor) -> torch.Tensor:
    return weight.abs().amax(dim=tuple(range(1, weight.dim())), keepdim=True)


FORMATS = {
    "int8": NumberFormat(
        "int8",
        8,
        _of_finite(_int8_weight),
        _of_finite(_int8_activation),
        lambda shape: 4 * shape[0],
        "a float32 scale for each output channel; a scale and a zero point for each tensor of activations (asymmetric)",
    ),
    "fp8": NumberFormat(
        "fp8",
        8,
        _of_finite(lambda weight: _fp8(weight, _amax_by_row(weight))),
        _of_finite(lambda activation: _fp8(activation, activation.abs().amax())),
        lambda shape: 4 * shape[0],
        "e4m3, a float32 scale for each output channel and for each tensor of activations (symmetric)",
    ),
    "int4": NumberFormat(
        "int4",
        4,
        _of_finite(_int4_weight),
        None,
        lambda shape: 2 * shape[0] * math.ceil(math.prod(shape[1:]) / GROUP),
        f"weights only, a float16 scale for each {GROUP} of an output channel",
    ),
}


class WeightFormat(NamedTuple):
    """A format for one weight, with the channels that have scales in it."""

    form: NumberFormat
    channels: Channels

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight as the format would hold it."""
        rows = self.form.weight(self.channels.rows(weight.float()))
        return self.channels.weight(rows, weight.shape)

    def size_bytes(self, shape: Sequence[int]) -> int:
        """What a weight of that shape takes, scales included."""
        return math.ceil(math.prod(shape) * self.form.bits / 8) + self.form.scales(self.channels.shape(shape))


class WeightReplacement(Protocol):
    """What is put in the place of a weight: ``WeightFormat``, or other numbers altogether."""

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """What stands there then."""


class Perturbation:
    """Other numbers in the place of a weight."""

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight with random numbers mixed in, the same ones every time."""
        return perturbed(weight, torch.Generator().manual_seed(0))


class WeightUse(NamedTuple):
    """An operation that multiplies by a parameter: its node, the parameter, and what it is multiplied with.

    Of several parameters (a recurrent layer's), what only the first one is multiplied with can be seen.
    """

    node: int
    weight: int
    name: str
    activations: tuple[int, ...]


def weight_uses(graph: Graph, nodes: Collection[int]) -> list[WeightUse]:
    """Of these operations, those that read a parameter of two dimensions or more, looked at through views."""
    # by memory, where each lies in it
    weights_in: dict[int, dict[tuple[int, int], int]] = {}
    for value in np.flatnonzero((graph.value_role == Role.PARAMETER) & (graph.value_producer < 0)).tolist():
        type_ = graph.types[graph.value_type[value]]
        if (
            len(type_.shape) >= 2
            and type_.layout == "strided"
            and type_.dtype in ("float32", "float16", "bfloat16")
        ):
            start = int(graph.value_offset[value])
            inside = weights_in.setdefault(int(graph.value_storage[value]), {})
            inside.setdefault((start, start + type_.numel), value)
    spans = {storage: sorted(inside.items()) for storage, inside in weights_in.items()}
    uses = []
    for node in nodes:
        read = [value.index for value in graph.nodes[node].inputs]
        of_read = [
            _lies_in(spans.get(int(graph.value_storage[v]), ()), int(graph.value_offset[v])) for v in read
        ]
        weights = [weight for weight in of_read if weight is not None]
        others = [v for v, weight in zip(read, of_read) if weight is None and _is_wide(graph, v)]
        for position, weight in enumerate(dict.fromkeys(weights)):
            name = graph.values[weight].name or str(weight)
            uses.append(WeightUse(node, weight, name, tuple(others[:1]) if not position else ()))
    return uses


def _lies_in(spans: Sequence[tuple[tuple[int, int], int]], offset: int) -> int | None:
    """The weight that a place in memory belongs to: those of a recurrent layer lie in one piece on a GPU.

    >>> weights = [((0, 4), 7), ((4, 10), 8)]
    >>> _lies_in(weights, 3), _lies_in(weights, 4), _lies_in(weights, 10)
    (7, 8, None)
    """
    index = bisect_right(spans, offset, key=lambda span: span[0][0]) - 1
    return spans[index][1] if index >= 0 and offset < spans[index][0][1] else None


def _is_wide(graph: Graph, value: int) -> bool:
    type_ = graph.types[graph.value_type[value]]
    return len(type_.shape) >= 2 and type_.dtype in ("float32", "float16", "bfloat16")


class QuantizedReplay(Replay):
    """A replay in which some weights, and what they are multiplied with, are rounded."""

    def __init__(
        self,
        graph: Graph,
        kept: KeptTensors,
        plan: ReplayPlan,
        weights: Mapping[int, WeightReplacement],
        activations: Mapping[tuple[int, int], NumberFormat],
    ) -> None:
        super().__init__(graph, kept, plan)
        self.at = -1
        self.activations = activations
        for value, replacement in weights.items():
            storage = int(graph.value_storage[value])
            self.memory[storage] = copy_of(self.memory[storage])
            tensor = self.tensor(value)
            tensor.copy_(replacement.rounded(tensor).to(tensor.dtype))

    def run_node(self, node: int, states: dict[int, object] | None) -> None:
        """Execute one node, with what it multiplies rounded."""
        self.at = node
        super().run_node(node, states)
        self.at = -1

    def tensor(self, value: int) -> torch.Tensor:
        """A value, rounded where a product reads it."""
        exact = super().tensor(value)
        form = self.activations.get((self.at, value))
        if form is None or form.activation is None:
            return exact
        return _like(exact, form.activation(exact.float()))


def _like(exact: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Rounded numbers with the strides of the exact ones, which some kernels look at."""
    tensor = torch.empty_strided(exact.shape, exact.stride(), dtype=exact.dtype, device=exact.device)
    return tensor.copy_(rounded)


class ForwardRun:
    """A recorded forward run that can be repeated with parts of it rounded."""

    def __init__(self, graph: Graph, kept: KeptTensors | None) -> None:
        self.graph, self.kept = graph, tensors_for_replay(graph, kept)
        self.plan = ReplayPlan(graph, self.kept)
        self.goals = [r for r, row in enumerate(graph.results) if row.kind == "output"]
        self.nodes = needed_nodes(graph, self.goals, [], [])

    def outputs(
        self,
        weights: Mapping[int, WeightReplacement] | None = None,
        activations: Mapping[tuple[int, int], NumberFormat] | None = None,
    ) -> list[torch.Tensor]:
        """The floating outputs of the run with these weights and activations rounded."""
        run = QuantizedReplay(self.graph, self.kept, self.plan, weights or {}, activations or {})
        run.run(self.nodes, states={})
        outputs = [run.tensor(self.graph.outcomes[goal].value.index) for goal in self.goals]
        return [tensor for tensor in outputs if tensor.is_floating_point()]

    def exact(self, value: int) -> torch.Tensor:
        """A tensor that came from outside, as the run found it."""
        return Replay(self.graph, self.kept, self.plan).tensor(value)
