"""What a training step does with its gradients outside of backward: clipping, unscaling, an update by hand.

Such operations belong with the optimizer and not with forward. They read a parameter's gradient, or what others of
them made of it, and run outside of every module; nothing differentiates them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torch_vis.capture.columns import Ints


def on_gradients(
    possible: NDArray[np.bool_],
    start: Ints,
    read: Ints,
    maker: Ints,
    gradients: NDArray[np.bool_],
    kept: NDArray[np.bool_],
) -> Ints:
    """The operations, of those that are possible, that work on gradients.

    ``read`` are the values that operations take, from ``start`` on, ``maker`` is what made each value. ``gradients``
    are values that are a parameter's gradient, ``kept`` those of state, and of all that was there before the run,
    through which one step leads to the next.
    """
    reader = np.repeat(np.arange(len(possible)), np.diff(start))
    first = np.flatnonzero(possible[reader] & gradients[read])
    if not len(first):
        return np.zeros(0, dtype=np.int64)
    found = bytearray(len(possible) + 1)  # the last is for values that nothing made, or that are not followed
    makers = np.where(gradients[read] | ~kept[read], maker[read], -1).tolist()
    direct, edges, begin = gradients[read].tolist(), start.tolist(), int(reader[first[0]])
    for node in (np.flatnonzero(possible[begin:]) + begin).tolist():
        rows = range(edges[node], edges[node + 1])
        found[node] = any(direct[row] or found[makers[row]] for row in rows)
    return np.flatnonzero(np.frombuffer(found, dtype=np.uint8)[:-1])
