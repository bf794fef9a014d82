"""One of two graphs that are compared, as plain lists, and by what its operations can be recognised."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.sequence_diff import common
from torch_vis.graph import Graph, TensorType
from torch_vis.graph.schema import Flag, Phase

# Kinds of scopes that belong to the module that they are called in.
TRANSPARENT = frozenset({"function", "compiled"})
# The stage of what backward recomputes, which is no phase of its own.
RECOMPUTED = len(Phase)


class MatchingPass(NamedTuple):
    """One step of matching: its name, what it pairs or drops, an example, and the method that does it."""

    name: str
    what: str
    example: str
    run: Callable[[Any], None]


class Side:
    """One of the two graphs; ``known`` numbers what can be equal in both, and is shared by the two sides."""

    def __init__(self, graph: Graph, known: dict[Any, int]) -> None:
        self.graph = graph
        self.call: list[int] = graph.node_call.tolist()
        self.operator = [call.op.partition(".")[0] for call in graph.calls]
        self.output_types = self._numbered(known, [(row.dtype, row.shape) for row in graph.types])
        """A number for each operation, equal where the shapes and dtypes of the outputs are."""
        self.scope: list[int] = graph.node_scope.tolist()
        self.owner = _owners(graph)
        """For each scope the call that it counts as: functions and compiled regions count as their callers."""
        recomputed = graph.node_flags & Flag.RECOMPUTE != 0
        self.stage: list[int] = np.where(recomputed, RECOMPUTED, graph.node_phase).tolist()
        """The phase of each operation, or ``RECOMPUTED``."""
        self.operations: dict[tuple[int, int], list[int]] = defaultdict(list)
        """The operations of each call and stage, in order; not those of calls inside it."""
        for node, (scope, stage) in enumerate(zip(self.scope, self.stage)):
            self.operations[self.owner[scope], stage].append(node)
        self.forward_of = self._forward_operations()
        """The operation of forward that each operation of backward belongs to, -1 for none."""

    def operators(self, nodes: list[int]) -> list[str]:
        """The operators of some operations."""
        return [self.operator[self.call[node]] for node in nodes]

    def signatures(self, nodes: list[int]) -> list[Any]:
        """Operators with the shapes and dtypes of their outputs."""
        return [(self.operator[self.call[node]], self.output_types[node]) for node in nodes]

    def layouts(self, known: dict[Any, int]) -> list[int]:
        """A number for each operation, equal where shapes, dtypes, layouts and strides of the outputs are."""
        rows = self.graph.types
        return self._numbered(known, [(row.dtype, row.shape, row.layout, strides_of(row)) for row in rows])

    def _numbered(self, known: dict[Any, int], of_types: list[Any]) -> list[int]:
        """A number for each operation, equal where what is given of its outputs' types is."""
        graph = self.graph
        numbers = [known.setdefault(key, len(known)) for key in of_types]
        outputs = [numbers[type_] for type_ in graph.value_type[graph.out_value].tolist()]
        starts = graph.out_start.tolist()
        return [known.setdefault(tuple(outputs[begin:end]), len(known)) for begin, end in pairwise(starts)]

    def _forward_operations(self) -> list[int]:
        """The links of the graph; those to a recomputed operation lead to the one that was computed first."""
        first: dict[int, int] = {}
        for (scope, stage), nodes in self.operations.items():
            if stage == RECOMPUTED:
                forward = self.operations.get((scope, Phase.FORWARD), [])
                pairs = common(self.operators(nodes), self.operators(forward))
                first.update((nodes[a], forward[b]) for a, b in pairs)
        return [
            first.get(link, -1) if link >= 0 and self.stage[link] == RECOMPUTED else link
            for link in self.graph.node_link.tolist()
        ]


def strides_of(type_: TensorType) -> tuple[int, ...]:
    """The strides that matter: not those of dimensions of size one, nor of a tensor without elements.

    >>> strides_of(TensorType("float32", (2, 1, 3), (3, 7, 1))), strides_of(TensorType("float32", (0, 3), (3, 1)))
    ((3, 1), ())
    """
    if not type_.numel:
        return ()
    return tuple(stride for size, stride in zip(type_.shape, type_.stride) if size != 1)


def _owners(graph: Graph) -> list[int]:
    """For each scope the call that it counts as.

    A call that backward recomputes, and where a compiler puts the backward of a module, count as the first call.
    """
    kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
    first = graph.tree.first_calls
    owners: list[int] = []
    for scope, parent in enumerate(graph.scope_parent.tolist()):
        if parent >= 0 and kinds[scope] in TRANSPARENT:
            owners.append(owners[parent])
        else:
            owners.append(first.get(scope, scope))
    return owners
