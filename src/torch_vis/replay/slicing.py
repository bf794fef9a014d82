"""Which operations a run has to execute: what depends on a change, what that rests on, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.replay.replay import ReplayPlan
from torch_vis.replay.targets import Target, value_names


def descendants(graph: Graph, values: set[int]) -> Any:
    """A mask of the values that depend on the bytes of the given ones, themselves included."""
    touched = np.zeros(len(graph.value_type), dtype=bool)
    touched[list(values)] = True
    for value in values:  # other tensors from outside on the same memory
        if graph.value_producer[value] < 0:
            touched |= (graph.value_storage == graph.value_storage[value]) & (graph.value_producer < 0)
    reads = graph.in_kind != Kind.SHAPE
    for node in range(len(graph)):
        start, stop = graph.input_span(node)
        made = graph.out_value[slice(*graph.output_span(node))]
        if (touched[graph.in_value[start:stop]] & reads[start:stop]).any():
            touched[made] = True
            continue
        carried = graph.value_carries[made]
        touched[made[(carried >= 0) & touched[carried]]] = True
    return touched


def needed_nodes(
    graph: Graph, goals: list[int], kept: list[Target], patched: list[Target], deciding: Sequence[int] = ()
) -> list[int]:
    """The operations that lead to the results that change, to what is kept, replaced or decided by, in order."""
    wanted = [pair for goal in goals for pair in graph.outcomes[goal].sources()]
    wanted += [(value, int(Kind.WHOLE)) for target in patched for value in target.values]
    wanted += [(value, int(Kind.WHOLE)) for target in kept for _, value in value_names(graph, target)]
    for node in deciding:
        span = slice(*graph.input_span(node))
        wanted += [(int(v), int(k)) for v, k in zip(graph.in_value[span], graph.in_kind[span])]
    nodes, _ = graph.ancestors(wanted)
    random = np.flatnonzero(graph.node_flags & Flag.RANDOM)
    if len(random) and nodes[random].any():
        # Each takes the generator as the one before it left it, so those before have to draw as well.
        before = random[: int(np.flatnonzero(nodes[random])[-1]) + 1]
        for node in before[~nodes[before]].tolist():
            made = graph.out_value[slice(*graph.output_span(node))].tolist()
            wanted += [(value, int(Kind.WHOLE)) for value in made]
        nodes, _ = graph.ancestors(wanted)
    nodes[list(deciding)] = True
    return np.flatnonzero(nodes).tolist()


def only_touched(
    graph: Graph,
    plan: ReplayPlan,
    needed: Sequence[int],
    touched: Any,
    kept: list[Target],
    patched: list[Target],
    deciding: Sequence[int] = (),
) -> list[int]:
    """Of the needed operations, those that depend on a change, where the memory of a whole run is at hand.

    Memory that is written in place holds only its last version, so whoever touches it brings along all who write it.
    """
    made_by = graph.out_node
    run = np.zeros(len(graph), dtype=bool)
    run[made_by[touched[graph.out_value]]] = True
    asked = [value for target in patched for value in target.values]
    asked += [value for target in kept for _, value in value_names(graph, target)]
    producers = graph.value_producer[asked]
    run[producers[producers >= 0]] = True
    run[[target.after for target in (*patched, *kept)]] = True
    run[list(deciding)] = True
    may = np.zeros(len(graph), dtype=bool)
    may[list(needed)] = True
    run &= may
    written_out = plan.written[graph.value_storage[graph.out_value]]
    written_in = plan.written[graph.value_storage[graph.in_value]]
    while True:
        blocks = np.zeros(len(graph.storage_bytes), dtype=bool)
        blocks[graph.value_storage[graph.out_value[written_out & run[made_by]]]] = True
        blocks[graph.value_storage[graph.in_value[written_in & run[graph.in_node]]]] = True
        more = run.copy()
        more[made_by[blocks[graph.value_storage[graph.out_value]]]] = True
        if (more == run).all():
            return np.flatnonzero(run).tolist()
        run = more
