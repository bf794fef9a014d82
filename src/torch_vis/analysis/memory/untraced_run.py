"""The blocks of a run as torch makes them when nobody records: gradients added up in place."""

from __future__ import annotations

import numpy as np

from torch_vis.graph.call import Slot
from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import Lifetimes
from torch_vis.graph.schema import Flag, Kind, Phase
from torch_vis.graph.types import Ints

PLAIN_SUM = (Slot(0), Slot(1))


def plain_sums(graph: Graph) -> Ints:
    """Which call templates add two tensors and nothing more, as autograd does where gradients meet."""
    return np.array(
        [call.op == "aten::add.Tensor" and call.args == PLAIN_SUM for call in graph.calls], dtype=bool
    )


def in_place_sums(graph: Graph, blocks: Lifetimes) -> tuple[Ints, Ints]:
    """Blocks that a plain run would not make, and for each the block that it would write to in its place.

    Where two gradients meet, autograd adds the second into the first. Under a dispatch mode it makes a third, since it
    cannot know who else looks at the first. Such a sum is told by its first operand, which dies right after it. If that
    one is a view (the gradient of a transposed weight), a third is made in any case.
    """
    sums = plain_sums(graph)
    nodes: Ints = (
        np.flatnonzero((graph.node_phase == Phase.BACKWARD) & sums[graph.node_call]) if len(sums) else sums
    )
    not_made, reused = [], []
    for node in np.asarray(nodes).tolist():
        first, stop = graph.input_span(node)
        rows = (
            np.flatnonzero((graph.in_slot[first:stop] == 0) & (graph.in_kind[first:stop] != Kind.SHAPE))
            + first
        )
        operand, total = (int(graph.in_value[rows[0]]) if len(rows) else -1), int(graph.first_output[node])
        if operand < 0 or total < 0:
            continue
        maker = int(graph.value_producer[operand])
        if maker >= 0 and graph.node_flags[maker] & Flag.VIEW:
            continue
        old, new = int(graph.value_storage[operand]), int(graph.value_storage[total])
        if (
            blocks.death[old] == node + 1
            and blocks.bytes[old] == blocks.bytes[new]
            and blocks.birth[new] == node
        ):
            not_made.append(new)
            reused.append(old)
    return np.array(not_made, dtype=np.int64), np.array(reused, dtype=np.int64)


def plain_live(graph: Graph, blocks: Lifetimes) -> Ints:
    """Bytes alive while each operation runs, in a plain run."""
    not_made, _ = in_place_sums(graph, blocks)
    live = blocks.live.copy()
    np.subtract.at(live, blocks.birth[not_made], blocks.bytes[not_made])
    return live
