"""When blocks of memory begin, for those who count memory."""

from __future__ import annotations

import numpy as np

from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Role
from torch_vis.graph.types import Array

LIFT = "aten::lift_fresh"
GIVEN = (Role.INPUT, Role.PARAMETER, Role.BUFFER)


def block_births(graph: Graph) -> Array:
    """For each block the operation from which on it takes up memory; -1 for what was there before the run.

    ``torch.tensor(...)`` fills a block that no operation makes and hands it to ``lift_fresh``. Its contents come from
    outside, and so says ``storage_birth``; its memory does not.

    >>> import torch, torch_vis as tv
    >>> graph = tv.trace(lambda x: x.relu() + torch.tensor([1.0, 2.0]), torch.ones(2)).graph
    >>> graph.storage_birth.tolist(), block_births(graph).tolist()
    ([-1, 0, -1, 2], [-1, 0, 1, 2])
    """
    birth = graph.storage_birth.astype(np.int64)
    lifts = np.array([call.op.partition(".")[0] == LIFT for call in graph.calls], dtype=bool)
    if not lifts.any():
        return birth
    first = np.full(len(birth), -1, dtype=np.int64)
    backwards = slice(None, None, -1)  # the last write counts: the first reader
    first[graph.value_storage[graph.in_value[backwards]]] = graph.in_node[backwards]
    given = np.zeros(len(birth), dtype=bool)
    given[graph.value_storage[np.isin(graph.value_role, GIVEN)]] = True
    block = np.flatnonzero((birth < 0) & (first >= 0) & ~given)
    block = block[lifts[graph.node_call[first[block]]]]
    birth[block] = first[block]
    return birth
