"""What a training step does with its gradients outside of backward: clipping, unscaling, an update by hand.

Such operations belong with the optimizer and not with forward. They run outside of every module, nothing differentiates
them, and they read a gradient, or what others of them made of it, and besides that nothing but state and what is made
of it. What also reads an input or an activation, as a saliency or an attack on the input does, computes something new,
unless it writes to a gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_vis.graph.types import Bools, Ints


class Reads(NamedTuple):
    """What operations read, in their order: the reader, what made the value, whether it is a gradient, and state."""

    start: Ints
    maker: Ints
    gradient: Bools
    kept: Bools


def on_gradients(possible: Bools, writes: Bools, reads: Reads) -> Ints:
    """The operations, of those that are possible, that work on gradients; ``writes`` are those that write to one.

    >>> reads = Reads(np.array([0, 1, 3, 5]), np.array([-1, 0, -1, 1, 1]), np.array([1, 0, 0, 0, 0]) > 0,
    ...               np.array([0, 0, 1, 0, 0]) > 0)
    >>> on_gradients(np.ones(3, dtype=bool), np.zeros(3, dtype=bool), reads).tolist()
    [0, 1, 2]
    """
    count = len(possible)
    reader = np.repeat(np.arange(count), np.diff(reads.start))
    if not (possible[reader] & reads.gradient).any():
        return np.zeros(0, dtype=np.int64)
    found, free = bytearray(count + 1), bytearray(count + 1)  # the last is for values that nothing made
    edges, makers = reads.start.tolist(), reads.maker.tolist()
    gradient, kept, may, into = (column.tolist() for column in (reads.gradient, reads.kept, possible, writes))
    for node in range(count):
        rows = range(edges[node], edges[node + 1])
        free[node] = all(kept[row] or free[makers[row]] for row in rows)
        if may[node] and any(gradient[row] or (not kept[row] and found[makers[row]]) for row in rows):
            own = (gradient[row] or kept[row] or found[makers[row]] or free[makers[row]] for row in rows)
            found[node] = into[node] or all(own)
    return np.flatnonzero(np.frombuffer(found, dtype=np.uint8)[:-1])
