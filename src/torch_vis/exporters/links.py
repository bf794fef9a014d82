"""Every connection of a graph between things that have an id: operations, tensors from outside, results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.schema import Kind


class Link(NamedTuple):
    """A tensor that passes from one thing to another; an operation goes by its number, others by ``"value:3"``."""

    source: int | str
    target: int | str
    value: int
    kind: int


def links(graph: Graph) -> Iterator[Link]:
    """Links between operations, from outside to operations, and from either to the results."""
    for row in zip(*(column.tolist() for column in graph.edges()), strict=True):
        yield Link(*row)
    entry = graph.value_producer[graph.in_value] < 0
    rows = (graph.in_node[entry], graph.in_value[entry], graph.in_kind[entry])
    for node, value, kind in zip(*(column.tolist() for column in rows), strict=True):
        yield Link(f"value:{value}", node, value, kind)
    for value in np.flatnonzero(graph.value_carries >= 0).tolist():
        below = int(graph.value_carries[value])
        if graph.value_producer[below] < 0 <= graph.value_producer[value]:  # laid over a tensor from outside
            yield Link(f"value:{below}", int(graph.value_producer[value]), below, int(Kind.WHOLE))
    for result in graph.outcomes:
        for value, kind in result.sources():
            producer = int(graph.value_producer[value])
            source = producer if producer >= 0 else f"value:{value}"
            yield Link(source, f"result:{result.index}", value, kind)
