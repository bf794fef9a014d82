"""Parameters as a figure of operations: each counts once, where its elements are first used."""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_vis.graph import Column, Graph
from torch_vis.graph.schema import Flag, Kind, Phase, Role


def parameters(graph: Graph) -> Column:
    """For each operation how many parameters it is the first of the forward pass to use.

    A view hands its parameter on: the weight of a ``Linear`` counts at the product, not at the transposition before it.
    A parameter that nothing but views ever touches counts at the first of them.
    """
    counts = np.zeros(len(graph), dtype=np.int64)
    views = looked_through(graph)
    source = sources(graph, views)
    reader, value = graph.in_node, source[graph.in_value]
    outside = (graph.value_role[value] == Role.PARAMETER) & (graph.value_producer[value] < 0)
    rows = np.flatnonzero(outside & (graph.node_phase[reader] == Phase.FORWARD))
    rows = rows[np.lexsort((rows, views[reader[rows]]))]  # real use before views, then in order
    value = value[rows]
    places = np.stack([graph.value_storage[value], graph.value_offset[value], graph.value_type[value]])
    _, first = np.unique(places, axis=1, return_index=True)
    sizes = np.array([type_.numel for type_ in graph.types], dtype=np.int64)
    np.add.at(counts, reader[rows[first]], sizes[graph.value_type[value[first]]])
    return Column("parameters", counts)


def looked_through(graph: Graph) -> Any:
    """Which operations only look at memory that is there, so that the page does not draw them."""
    return (graph.node_flags & (Flag.VIEW | Flag.ESCAPE)) == Flag.VIEW


def sources(graph: Graph, views: Any) -> Any:
    """For each value the one whose elements it shows, views looked through."""
    source = np.arange(len(graph.value_type), dtype=np.int64)
    rows = np.flatnonzero(views[graph.in_node] & (graph.in_kind != Kind.SHAPE))
    read = np.full(len(graph), -1, dtype=np.int64)
    read[graph.in_node[rows[::-1]]] = graph.in_value[rows[::-1]]  # the first one counts
    made_by = np.repeat(np.arange(len(graph)), np.diff(graph.out_start))
    shown = read[made_by] >= 0
    source[graph.out_value[shown]] = read[made_by[shown]]
    while True:  # each round doubles how far it looks
        further = source[source]
        if np.array_equal(further, source):
            return source
        source = further
