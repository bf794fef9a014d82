"""Where ranks lie on a mesh: their coordinates, the part of a tensor that each has, and what a copy of a rank is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Placement, RankGroup

DIVIDED = re.compile(r"(_?)(?:S|Shard|StridedShard)\((?:dim=)?(\d+)")


class Mesh(NamedTuple):
    """The axes of a mesh with the number of ranks on each; ranks are numbered along the last axis first.

    >>> mesh = Mesh.of({"dp": 2, "tp": 4})
    >>> mesh.size, mesh.place(6), mesh.rank({"dp": 1, "tp": 2})
    (8, {'dp': 1, 'tp': 2}, 6)
    """

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, axes: Any) -> Mesh:
        """The mesh that was asked for; raises for what is none."""
        if not isinstance(axes, Mapping) or not axes:
            raise UsageError(f"mesh is a dictionary such as {{'dp': 16, 'tp': 8}}, not {axes!r}")
        for axis, count in axes.items():
            if not isinstance(axis, str) or not axis.isidentifier():
                raise UsageError(f"an axis of the mesh has a name such as 'dp', not {axis!r}")
            if type(count) is not int or count < 1:
                raise UsageError(f"axis {axis} of the mesh has a number of ranks, at least 1, not {count!r}")
        return cls(tuple(axes.items()))

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return math.prod(count for _, count in self.axes)

    def place(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank."""
        place = {}
        for axis, count in reversed(self.axes):
            rank, place[axis] = divmod(rank, count)
        return dict(reversed(place.items()))

    def rank(self, place: Mapping[str, int]) -> int:
        """The rank at some coordinates."""
        number = 0
        for axis, count in self.axes:
            number = number * count + place[axis]
        return number


def local_shape(placement: Placement, place: Mapping[str, int], mesh: Mapping[str, int]) -> tuple[int, ...]:
    """The part of a tensor that the rank at some place has, in the sizes that ``torch.chunk`` gives.

    >>> row = Placement((10, 3), ("dp", "tp"), ("S(0)", "R"))
    >>> [local_shape(row, {"dp": place, "tp": 0}, {"dp": 4, "tp": 2}) for place in range(4)]
    [(3, 3), (3, 3), (3, 3), (1, 3)]
    """
    shape = list(placement.shape)
    rows = [(DIVIDED.match(text), axis) for axis, text in zip(placement.axes, placement.placements)]
    divided = [(match, axis) for match, axis in rows if match is not None and axis in mesh]
    # what is divided in strides is divided after the axes that follow
    for match, axis in sorted(divided, key=lambda row: row[0][1] == "_"):
        dim = int(match[2])
        size = -(-shape[dim] // mesh[axis])
        shape[dim] = max(0, min(size, shape[dim] - size * place[axis]))
    return tuple(shape)


def at_place(graph: Graph, here: Mapping[str, Any], there: Mapping[str, Any]) -> Graph:
    """The graph of a rank as that of another one which does the same at another place of the mesh.

    Groups have its members, and messages go to its neighbours. ``here`` and ``there`` are what the two say of
    themselves; without a mesh that has them all, the graph is as it was.
    """
    mesh, first, second = here.get("mesh"), here.get("coordinates"), there.get("coordinates")
    if not mesh or not first or not second or not (set(mesh) == set(first) == set(second)):
        return graph
    layout = Mesh(tuple(mesh.items()))
    if layout.rank(first) != here.get("rank"):
        return graph
    own = layout.rank(second)

    def group(row: RankGroup) -> RankGroup:
        places = [layout.place(rank) for rank in row.ranks]
        along = {axis for axis in mesh if len({place[axis] for place in places}) > 1}
        ranks = tuple(
            layout.rank({axis: place[axis] if axis in along else second[axis] for axis in mesh})
            for place in places
        )
        return row._replace(ranks=ranks, position=ranks.index(own) if own in ranks else -1)

    def peer(rank: int) -> int:
        place = layout.place(rank)
        return layout.rank({axis: (second[axis] + place[axis] - first[axis]) % mesh[axis] for axis in mesh})

    groups = tuple(group(row) if max(row.ranks, default=0) < layout.size else row for row in graph.groups)
    peers = graph.comm_peer
    if len(peers):
        moved = {rank: peer(rank) if 0 <= rank < layout.size else rank for rank in np.unique(peers).tolist()}
        peers = np.array([moved[rank] for rank in peers.tolist()], dtype=peers.dtype)
    return graph.replaced(groups=groups, comm_peer=peers)
