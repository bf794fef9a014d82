"""The operations of a graph as named columns, and every connection between them, for tables and other graph tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Kind, Phase


def operations(graph: Graph) -> dict[str, tuple[Any, Any]]:
    """For each column its cells, one for every operation, and which of them are known (None: all, or None says so).

    ``shape`` and ``dtype`` are those of the first tensor that the operation makes.
    """
    modules, sites = graph.scope_module[graph.node_scope], graph.node_site
    first = graph.first_output
    type_of_first = np.where(first >= 0, graph.value_type[first], -1) if len(first) else first
    lines = np.array([*(site.line for site in graph.sites), 0], dtype=np.int64)
    return {
        "op": (_take([call.op.partition(".")[0] for call in graph.calls], graph.node_call), None),
        "name": (_take([short_name(call.op) for call in graph.calls], graph.node_call), None),
        "phase": (_take([phase.name.lower() for phase in Phase], graph.node_phase), None),
        "path": (_take([module.path for module in graph.modules], modules), None),
        "module": (_take([module.type for module in graph.modules], modules), None),
        "call": (graph.scope_call[graph.node_scope], None),
        "file": (_take([site.file for site in graph.sites], sites), None),
        "line": (lines[sites], sites >= 0),
        "function": (_take([site.function for site in graph.sites], sites), None),
        "shape": (_take([type_.shape for type_ in graph.types], type_of_first), None),
        "dtype": (_take([type_.dtype for type_ in graph.types], type_of_first), None),
        "input_shapes": (_input_shapes(graph), None),
        "link": (graph.node_link, graph.node_link >= 0),
    }


def _take(records: Sequence[Any], numbers: Any) -> Any:
    """One field for every operation; None where the number is -1."""
    table = np.empty(len(records) + 1, dtype=object)  # the None at the end is what -1 picks
    for number, record in enumerate(records):
        table[number] = record
    return table[numbers]


def _input_shapes(graph: Graph) -> Any:
    shapes = _take([type_.shape for type_ in graph.types], graph.value_type[graph.in_value])
    slots, start = graph.in_slot.tolist(), graph.in_start.tolist()
    by_node = np.empty(len(graph), dtype=object)
    for node in range(len(graph)):
        rows = sorted((slots[row], row) for row in range(start[node], start[node + 1]) if slots[row] >= 0)
        by_node[node] = tuple(shapes[row] for _, row in rows)
    return by_node


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
