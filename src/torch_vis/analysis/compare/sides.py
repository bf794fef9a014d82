"""One of two graphs that are compared, as plain lists, and which of its calls count as calls of their own."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np

from torch_vis.analysis.compare.sequence_diff import common
from torch_vis.graph import Graph, TensorType
from torch_vis.graph.schema import Flag, Phase

TRANSPARENT = frozenset({"function", "compiled"})
RECOMPUTED = len(Phase)  # the stage of what backward computes again, which is none of its own


class Side:
    """One of the two graphs, as plain lists; ``known`` numbers what can be equal in both."""

    def __init__(self, graph: Graph, known: dict[Any, int]) -> None:
        self.graph = graph
        self.call: list[int] = graph.node_call.tolist()
        self.operator = [call.op.partition(".")[0] for call in graph.calls]
        self.made = self._made(known, [(row.dtype, row.shape) for row in graph.types])
        """A number for each operation that is equal where what it makes has the same shapes and types."""
        self.scope: list[int] = graph.node_scope.tolist()
        self.solid = _solid(graph)
        again = graph.node_flags & Flag.RECOMPUTE != 0
        self.stage: list[int] = np.where(again, RECOMPUTED, graph.node_phase).tolist()
        self.operations: dict[tuple[int, int], list[int]] = defaultdict(list)
        for node, (scope, stage) in enumerate(zip(self.scope, self.stage)):
            self.operations[self.solid[scope], stage].append(node)  # in order
        self.source = self._sources()
        """The operation of forward that each operation of backward belongs to, -1 for none."""

    def _sources(self) -> list[int]:
        """Links, but to what was computed first where they are to what was computed again."""
        first: dict[int, int] = {}
        for (scope, stage), nodes in self.operations.items():
            if stage == RECOMPUTED:
                before = self.operations.get((scope, Phase.FORWARD), [])
                pairs = common(self.operators(nodes), self.operators(before))
                first.update((nodes[here], before[there]) for here, there in pairs)
        return [
            first.get(link, -1) if link >= 0 and self.stage[link] == RECOMPUTED else link
            for link in self.graph.node_link.tolist()
        ]

    def laid_out(self, known: dict[Any, int]) -> list[int]:
        """The same as ``made``, by how it lies in memory as well."""
        return self._made(known, [(row.dtype, row.shape, row.layout, steps(row)) for row in self.graph.types])

    def _made(self, known: dict[Any, int], told: list[Any]) -> list[int]:
        """A number for each operation that is equal where what is told of the types that it makes is."""
        graph = self.graph
        kinds = [known.setdefault(one, len(known)) for one in told]
        made = [kinds[number] for number in graph.value_type[graph.out_value].tolist()]
        start = graph.out_start.tolist()
        return [known.setdefault(tuple(made[begin:end]), len(known)) for begin, end in pairwise(start)]

    def operators(self, nodes: list[int]) -> list[str]:
        """The operators of some operations."""
        return [self.operator[self.call[node]] for node in nodes]

    def exactly(self, nodes: list[int]) -> list[Any]:
        """Operators with what they make."""
        return [(self.operator[self.call[node]], self.made[node]) for node in nodes]


def steps(type_: TensorType) -> tuple[int, ...]:
    """The strides that make a difference: not of what has one element along a dimension, or none at all.

    >>> steps(TensorType("float32", (2, 1, 3), (3, 7, 1))), steps(TensorType("float32", (0, 3), (3, 1)))
    ((3, 1), ())
    """
    if not type_.numel:
        return ()
    return tuple(step for size, step in zip(type_.shape, type_.stride) if size != 1)


def _solid(graph: Graph) -> list[int]:
    """For each scope the one that counts: functions and compiled regions are part of what they are called in.

    A call that is made again in backward, and the place where a compiler puts a module's backward, are part of the
    call before.
    """
    kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
    first = graph.tree.first_calls
    solid: list[int] = []
    for scope, parent in enumerate(graph.scope_parent.tolist()):
        if parent >= 0 and kinds[scope] in TRANSPARENT:
            solid.append(solid[parent])
        else:
            solid.append(first.get(scope, scope))
    return solid
