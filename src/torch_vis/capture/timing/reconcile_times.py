"""Times of a run that add up, from runs that were timed in different ways.

Calls of modules are timed in some runs and operations in others, which the profiler slows down; and the medians of
parts do not come to the median of the whole. So the whole is what it was in runs without the profiler. It is divided
among the calls of modules near their medians, and the time that is a call's own among its operations and the host in
the ratio that they had under the profiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from torch_vis.graph.metrics import Column
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Ints


def agreed(runs: Any, parent: Ints) -> Ints:
    """The own time of each call, from the time of all calls run by run: the whole is the median of the whole.

    >>> runs = np.array([[10, 6, 2], [12, 6, 3], [14, 7, 4]])  # a call with two others in it
    >>> agreed(runs, np.array([-1, 0, 0])).tolist()
    [3, 6, 3]
    """
    tree = Tree(parent)
    own = tree.own(runs)
    own_middle, own_most = np.maximum(np.median(own, axis=0), 0).tolist(), own.max(axis=0).tolist()
    middle, most = np.median(runs, axis=0).tolist(), runs.max(axis=0).tolist()
    whole, found = middle.copy(), [0.0] * len(middle)
    for call, parts in enumerate(tree.children):  # those around come first
        found[call], *rest = shares(
            whole[call],
            [own_middle[call], *(middle[part] for part in parts)],
            [own_most[call], *(most[part] for part in parts)],
        )
        for part, share in zip(parts, rest):
            whole[part] = share
    return np.round(found).astype(np.int64)


def shares(whole: float, middle: list[float], most: list[float]) -> list[float]:
    """Parts that come to the whole: in the ratio of their medians, but as long as it goes none above its most.

    >>> shares(10, [4, 4], [4, 9])
    [4.0, 6.0]
    """
    together = sum(middle)
    rate = whole / together if together > 0 else 0.0
    found = [share * rate if rate <= 1 else min(share * rate, most_) for share, most_ in zip(middle, most)]
    left = whole - sum(found)
    room = [max(most_ - share, 0.0) for share, most_ in zip(found, most)]
    if left > 0 and sum(room) > 0:
        given = min(left / sum(room), 1.0)
        found = [share + spare * given for share, spare in zip(found, room)]
    found[0] += max(whole - sum(found), 0.0)
    return found


def divided(own: Ints, where: Ints, spent: Any, host: Any) -> Any:
    """By how much the time of each operation has to be multiplied: with the host's, they come to their call's own time.

    ``where`` is the call in which an operation ran, ``spent`` what it took under the profiler, ``host`` what the host
    took there besides operations, by call.

    >>> divided(np.array([10]), np.array([0, 0]), np.array([8, 8]), np.array([4])).tolist()
    [0.5, 0.5]
    """
    together = np.bincount(where, weights=spent, minlength=len(own)) + host
    rate = np.divide(own, together, out=np.zeros(len(own)), where=together > 0)
    return rate[where]


def with_functions(own: Ints, rows: Ints, parent: Ints, node_scope: Ints, time: Ints) -> Ints:
    """The time of all scopes, from the own time of those that are calls of modules (``rows``).

    Others have the time of operations in them (``time``, 0 for those that ran elsewhere), and what is inside them.
    """
    found = np.zeros(len(parent), dtype=np.int64)
    found[rows] = own
    within = np.zeros(len(parent), dtype=bool)
    within[rows] = True
    tree = Tree(parent)
    nearest = tree.nearest(within)
    other = ~within[node_scope]
    np.add.at(found, node_scope[other], time[other])
    np.subtract.at(found, nearest[node_scope[other]], time[other])
    return tree.inclusive(found)


def scope_columns(inclusive: Ints, rows: Ints, parent: Ints, quartiles: Any) -> Iterator[Column]:
    """Inclusive and own time of all scopes, and the quartiles of those that were timed (``rows``).

    These are as far from what the call came to, in proportion, as they were from its median.
    """
    middle, *spread = quartiles
    yield Column("scope_time_ns", inclusive, along="scope")
    rate = np.divide(inclusive[rows], middle, out=np.ones(len(rows)), where=middle > 0)
    for name, bounds, bound in zip(("low", "high"), spread, (np.minimum, np.maximum)):
        found = inclusive.copy()
        found[rows] = bound(np.round(bounds * rate).astype(np.int64), inclusive[rows])
        yield Column(f"scope_time_{name}_ns", found, along="scope")
    yield Column("scope_self_ns", Tree(parent).own(inclusive), along="scope")
