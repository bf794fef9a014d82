"""The operations as a table: named columns that the CSV file and the pandas frame share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Phase


def operations(graph: Graph) -> dict[str, tuple[Any, Any]]:
    """For each column its cells, one for every operation, and which of them are known (None: all, or None says so).

    ``shape`` and ``dtype`` are those of the first tensor that the operation makes.
    """
    modules, sites = graph.scope_module[graph.node_scope], graph.node_site
    first = graph.first_output
    made = np.where(first >= 0, graph.value_type[first], -1) if len(first) else first
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
        "shape": (_take([type_.shape for type_ in graph.types], made), None),
        "dtype": (_take([type_.dtype for type_ in graph.types], made), None),
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
    found = np.empty(len(graph), dtype=object)
    for node in range(len(graph)):
        rows = sorted((slots[row], row) for row in range(start[node], start[node + 1]) if slots[row] >= 0)
        found[node] = tuple(shapes[row] for _, row in rows)
    return found
