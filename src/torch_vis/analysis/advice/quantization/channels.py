"""The channels of a weight: which of its elements can share a scale that comes out of the products again.

What a product sums over cannot keep a scale of its own, so there is one for each index of the other dimensions: the
output channels. Which dimensions those are is read off the operations that multiply by the weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from torch_vis.graph.call import Slot, short_name
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.schema import TensorType

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
    """The channels of a weight that all of these operations, which read it, leave apart.

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
    """The channels that an operation leaves apart, for each of its arguments that is the weight or a view of it."""
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
