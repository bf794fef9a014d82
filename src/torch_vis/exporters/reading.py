"""What exporters ask of a graph: the parts of a run, the scope of the main graph, what an operation reads."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.types import Ints


class Part(IntEnum):
    """What a box's operations were run for; a box has operations of one part only."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    RECOMPUTE = 3


def main_scope(graph: Graph) -> int:
    """The scope whose inside is the main graph: the run, or its one call of the traced module."""
    outermost = np.flatnonzero(graph.scope_parent == 0).tolist()
    modules = [(scope, graph.modules[graph.scope_module[scope]]) for scope in outermost]
    traced = [scope for scope, module in modules if module.kind in ("module", "compiled") and not module.path]
    return traced[0] if len(traced) == 1 else 0


def node_parts(graph: Graph) -> Ints:
    """The part of the run that each operation belongs to."""
    parts = np.array([Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER], dtype=np.int8)[graph.node_phase]
    again = (graph.node_flags & Flag.RECOMPUTE != 0) & (graph.node_phase == Phase.BACKWARD)
    return np.where(again, np.int8(Part.RECOMPUTE), parts)


def node_reads(graph: Graph) -> list[list[tuple[int, int]]]:
    """For each operation the values that it depends on, with their slots: arguments in order, then what else it reads.

    Slot -1 is a read that no argument names: bytes that came through an alias, or the version that a partial write was
    laid over.
    """
    found: list[dict[tuple[int, int], None]] = [{} for _ in range(len(graph))]
    order = np.lexsort((graph.in_slot, graph.in_slot < 0, graph.in_node))
    rows = (graph.in_node[order], graph.in_slot[order], graph.in_value[order])
    for node, slot, value in zip(*(column.tolist() for column in rows)):
        found[node][slot, value] = None
    named: dict[int, set[int]] = {}
    for value, node in zip(*_laid_over(graph)):
        values = named.get(node) or named.setdefault(node, {read for _, read in found[node]})
        if value not in values:
            values.add(value)
            found[node][-1, value] = None
    return [list(reads) for reads in found]


def _laid_over(graph: Graph) -> tuple[list[int], list[int]]:
    """The versions that partial writes were laid over, with the operations that wrote; one's own are left out."""
    over = np.flatnonzero((graph.value_carries >= 0) & (graph.value_producer >= 0))
    below, writer = graph.value_carries[over], graph.value_producer[over]
    apart = graph.value_producer[below] != writer
    return below[apart].tolist(), writer[apart].tolist()
