"""Stretches of long scopes: viewers need minutes for thousands of nodes side by side, and nobody finds anything there.

Where a scope has very many operations and calls directly in it, they go by their order into boxes of some hundreds.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.types import Ints

LONG = 1000  # things directly in a scope from which on it is taken apart
LENGTH = 200  # of a stretch; of a very long scope, so that it has as many stretches as things in each


class Stretches:
    """Numbers the stretches of every scope, apart for each part of the run."""

    def __init__(self, graph: Graph, parts: Ints, main: int) -> None:
        self._main = main
        self._parent: list[int] = graph.scope_parent.tolist()
        self._length = {
            place: max(LENGTH, isqrt(count))
            for place, count in self._count(graph, parts).items()
            if count > LONG
        }
        self._next: dict[tuple[int, int], int] = {}

    def next(self, scope: int, part: int) -> int:
        """The stretch of the next thing that is directly in a scope; -1 where there are none."""
        place = (self.inside(scope), part)
        length = self._length.get(place)
        if length is None:
            return -1
        number = self._next[place] = self._next.get(place, -1) + 1
        return number // length

    def inside(self, scope: int) -> int:
        """The scope itself, but one number for the run and the traced module: both are the main graph."""
        return 0 if scope == self._main else scope

    def _count(self, graph: Graph, parts: Ints) -> dict[tuple[int, int], int]:
        """How many operations and calls are directly in each scope, by part of the run."""
        pairs, numbers = np.unique(np.stack([graph.node_scope, parts]), axis=1, return_counts=True)
        found: dict[tuple[int, int], int] = {}
        seen: set[tuple[int, int]] = set()
        for scope, part, count in zip(*pairs.tolist(), numbers.tolist()):
            place = (self.inside(scope), part)
            found[place] = found.get(place, 0) + count
            while place[0] and place not in seen:
                seen.add(place)
                place = (self.inside(self._parent[place[0]]), part)
                found[place] = found.get(place, 0) + 1
        return found
