"""Graphs of a run on shapes against those of the run itself."""

from __future__ import annotations

import numpy as np

import torch_vis as tv

COLUMNS = """storage_birth storage_death storage_bytes value_role value_producer value_storage node_phase node_scope
node_link""".split()


def difference(real: tv.Trace, fake: tv.Trace) -> str | None:
    """The first thing in which two graphs differ."""
    a, b = real.graph, fake.graph
    if [node.call.op for node in a.nodes] != [node.call.op for node in b.nodes]:
        return "operations"
    if [(v.type.dtype, v.type.shape) for v in a.values] != [(v.type.dtype, v.type.shape) for v in b.values]:
        return "types"
    return next((c for c in COLUMNS if not np.array_equal(getattr(a, c), getattr(b, c))), None)
