"""The dimensions of a run's tensors, followed from the parameters on: what the rules of operators read and write.

Every index along every dimension of a parameter has an id. Rules pass the ids on, tie those together that have to be
cut at once, and lock those that cannot be cut. ``Dimensions`` keeps what they say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_vis.graph import Graph, Slot
from torch_vis.graph.graph import Node
from torch_vis.graph.schema import Role
from torch_vis.graph.types import Ints
from torch_vis.ops.names import plain_name

Ids = Ints
# for each dimension the ids of its indices, None where they are not followed
Dims = list["Ids | None"]


@dataclass(eq=False)
class Grid:
    """A dimension that a view has split, before it is known which part is the one that can be cut.

    Of ``(batch, 96)`` seen as ``(batch, 3, 4, 8)`` the ids of 96 stand in a grid of 3 by 4 by 8. Taking one of the
    three makes that axis ``rigid``: what goes, goes from all three. At the first operation that computes, the
    outermost axis that is left is ``kept`` (the heads), and what lies within one of its indices is tied together.
    """

    ids: Ids
    rigid: set[int] = field(default_factory=set)
    kept: int | None = None

    def along(self, axis: int) -> Ids:
        """The ids along an axis, of the first index of all others."""
        return self.ids[tuple(slice(None) if other == axis else 0 for other in range(self.ids.ndim))]


@dataclass(frozen=True, eq=False)
class GridAxis:
    """One axis of a grid, in the place of a dimension's ids."""

    grid: Grid
    axis: int

    def __len__(self) -> int:
        return int(self.grid.ids.shape[self.axis])


DimEntry = Ids | GridAxis | None


class Dimensions:
    """The ids along every tensor's dimensions, and what is known of them so far.

    ``shapes`` are those of parameters by name, where they are known: other tensors on the memory of one go by its name
    as well, such as the buffer that all weights of a recurrent layer lie in on a GPU.
    """

    def __init__(self, graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
        self.graph = graph
        self.ids: dict[str, list[Ids]] = {}
        """Of each parameter and buffer, by dimension."""
        self.count = 0
        self.edges: list[tuple[Ids, Ids]] = []
        """Ids that are tied, pair by pair."""
        self.locks: list[tuple[Ids, str]] = []
        """Ids that cannot be cut, and why."""
        self.fed: list[Ids] = []
        """Columns of parameters that are summed over."""
        self.mixed: list[tuple[Ids, str]] = []
        """Ids that depend on others along the same dimension, and the operator that makes them."""
        self.attended: list[tuple[Ids, str]] = []
        """Ids of attention heads, and the module that has them."""
        self.sizes: list[tuple[Ids, str]] = []
        """Ids of which a module's program spells out the size, and that module."""
        self.numbered: list[tuple[Ids, str]] = []
        """Ids that a program takes by number, and how."""
        self.lines: list[Ids] = []
        """What was kept of each grid."""
        self.is_used = True
        """Whether results depend on the operation that is looked at."""
        self._dims: dict[int, list[DimEntry]] = {}
        # parameters, and what only arranges one
        self._plain: set[int] = set()
        # first and last ids, in turn, of what is no parameter's
        self._loose: list[int] = []
        self._number_parameters(shapes)

    def _number_parameters(self, shapes: Mapping[str, Sequence[int]]) -> None:
        graph = self.graph
        owned = np.isin(graph.value_role, [Role.PARAMETER, Role.BUFFER]) & (graph.value_producer < 0)
        for index in np.flatnonzero(owned).tolist():
            value = graph.values[index]
            if not value.name or value.type.layout != "strided":
                continue
            if tuple(shapes.get(value.name, value.shape)) != tuple(value.shape):
                continue
            if value.name not in self.ids:
                self.ids[value.name] = [self._new_ids(length) for length in value.shape]
            if [len(ids) for ids in self.ids[value.name]] == list(value.shape):
                self._dims[index] = list(self.ids[value.name])
                self._plain.add(index)

    def _new_ids(self, length: int) -> Ids:
        self.count += length
        return np.arange(self.count - length, self.count)

    def entries(self, value: int) -> list[DimEntry]:
        """What stands for a value's dimensions: ids, or axes of what a view has split and nothing decided yet."""
        entries = self._dims.get(value)
        if entries is None:
            return [None] * len(self.graph.values[value].shape)
        if any(isinstance(entry, GridAxis) and entry.grid.kept is not None for entry in entries):
            entries = [
                self.settled(entry) if isinstance(entry, GridAxis) and entry.grid.kept is not None else entry
                for entry in entries
            ]
            self._dims[value] = entries
        return entries

    def set_entries(self, value: int, entries: list[DimEntry], *, plain: bool) -> None:
        """Say what stands for a value's dimensions; ``plain`` of one that only arranges a parameter."""
        self._dims[value] = entries
        if plain:
            self._plain.add(value)

    def dims(self, value: int) -> Dims:
        """The ids along a value's dimensions."""
        return [self.settled(entry) for entry in self.entries(value)]

    def settled(self, entry: DimEntry) -> Ids | None:
        """The ids for one dimension; of a grid, one axis is kept and what lies within each of its indices tied."""
        if not isinstance(entry, GridAxis):
            return entry
        grid = entry.grid
        if grid.kept is None:
            grid.kept = min(set(range(grid.ids.ndim)) - grid.rigid, default=0)
            for axis in range(grid.ids.ndim):
                if axis != grid.kept:
                    self.stiffen(grid, axis)
            self.lines.append(grid.along(grid.kept))
        return grid.along(grid.kept) if entry.axis == grid.kept else None

    def stiffen(self, grid: Grid, axis: int) -> None:
        """Tie what stands along an axis: it goes as a whole or not at all."""
        if axis not in grid.rigid:
            grid.rigid.add(axis)
            first = np.broadcast_to(np.take(grid.ids, [0], axis=axis), grid.ids.shape)
            self.edges.append((first.ravel(), grid.ids.ravel()))

    def tie(self, a: Ids | None, b: Ids | None, why: str) -> Ids | None:
        """Two dimensions that go together, index by index; one that is not followed locks the other."""
        if a is None or b is None or len(a) != len(b):
            self.lock([a, b], why)
            return None
        self.edges.append((a, b))
        # a parameter's can be followed further
        return b if self.is_loose(a) else a

    def loose(self, length: int) -> Ids:
        """Ids for a broadcast dimension: it takes the units of what it is combined with."""
        ids = self._new_ids(length)
        self._loose += [self.count - length, self.count]
        return ids

    def is_loose(self, entry: DimEntry) -> bool:
        """Whether a dimension is one of those."""
        return isinstance(entry, np.ndarray) and bisect_right(self._loose, int(entry[0])) % 2 == 1

    def lock(self, dims: Sequence[Ids | None], why: str) -> None:
        """Nothing of these may be cut."""
        self.locks += [(ids, why) for ids in dims if ids is not None]

    def is_plain(self, value: int) -> bool:
        """Whether a value is a parameter, as it is or in another arrangement."""
        return value in self._plain

    def feed(self, ids: Ids | None) -> None:
        """Columns of a parameter that are summed over: where these are zero, nothing of the unit arrives."""
        if ids is not None:
            self.fed.append(ids)

    def mix(self, dims: Sequence[Ids | None], op: str) -> None:
        """What others along the same dimension depend on: a unit left out need not be the same as one that is zero.

        Nothing of what the run's results do not depend on, as attention weights that nobody looks at.
        """
        if self.is_used:
            self.mixed += [(ids, op) for ids in dims if ids is not None]

    def attend(self, dims: Sequence[Ids | None], path: str) -> None:
        """What a module multiplies activations along, each index for itself: heads."""
        self.attended += [(ids, path) for ids in dims if ids is not None]

    def number(self, ids: Ids, path: str, why: str) -> None:
        """A module's program takes parts of these by number, as those of queries: only whole heads may be cut."""
        self.size(ids, path)
        self.numbered.append((ids, why))

    def size(self, ids: Ids, path: str) -> None:
        """A module's program spells out sizes of these."""
        self.sizes.append((ids, path))


@dataclass
class RuleContext:
    """One operation, as a rule sees it."""

    dimensions: Dimensions
    node: Node
    inputs: list[int]

    def arg(self, position: int, default: Any = None) -> Any:
        """An argument by its position; a tensor as its dimensions, what a view has split decided."""
        args = self.node.call.args
        return self._resolved(args[position]) if position < len(args) else default

    def _resolved(self, item: Any) -> Any:
        if isinstance(item, Slot):
            return self.dimensions.dims(self.inputs[item.number])
        if type(item) is tuple and any(isinstance(part, Slot) for part in item):
            return [self._resolved(part) for part in item]
        return item

    def value(self, position: int) -> int:
        """The index of a tensor argument's value."""
        return self.inputs[self.node.call.args[position].number]

    def entries(self, position: int) -> list[DimEntry]:
        """The dimensions of a tensor argument, what a view has split left open."""
        return self.dimensions.entries(self.value(position))

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of a tensor argument."""
        return self.dimensions.graph.values[self.value(position)].shape

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self.node.outputs[0].shape

    def tie(self, a: Ids | None, b: Ids | None) -> Ids | None:
        """Two dimensions that go together."""
        why = f"{self.node.name} joins it with an input, or with what cannot be followed"
        return self.dimensions.tie(a, b, why)

    def contract(self, x: int, x_ids: Ids | None, weight: int, weight_ids: Ids | None) -> None:
        """Two dimensions that are summed over together, of the arguments at two positions.

        Where one is a parameter's, zeroing it there is what cutting comes to; two activations have no such place.
        """
        self.tie(x_ids, weight_ids)
        if self.dimensions.is_plain(self.value(weight)):
            self.dimensions.feed(weight_ids)
        elif self.dimensions.is_plain(self.value(x)):
            self.dimensions.feed(x_ids)
        else:
            self.mix([x_ids, weight_ids])

    def joined(self, *tensors: tuple[Sequence[Ids | None], Sequence[int]], shape: Sequence[int]) -> Dims:
        """The dimensions of what several tensors give when they are broadcast to one shape, aligned at the end."""
        out: Dims = [None] * len(shape)
        seen = [False] * len(shape)
        for dims, sizes in tensors:
            for back in range(1, min(len(sizes), len(shape)) + 1):
                if sizes[-back] == shape[-back] and (shape[-back] > 1 or not seen[-back]):
                    out[-back] = self.tie(out[-back], dims[-back]) if seen[-back] else dims[-back]
                    seen[-back] = True
        return out

    def mix(self, dims: Sequence[Ids | None]) -> None:
        """Dimensions along which elements depend on each other here."""
        self.dimensions.mix(dims, plain_name(self.node.name))

    def lock(self, dims: Sequence[Ids | None], why: str) -> None:
        """Nothing of these may be cut."""
        self.dimensions.lock(dims, why)


Rule = Callable[[RuleContext], Sequence[Sequence[DimEntry]]]
