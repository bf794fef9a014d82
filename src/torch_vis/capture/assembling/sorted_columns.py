"""Small operations on columns that the assembly of a graph is made of."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from torch_vis.graph.types import Bools, Ints


def spans(counts: Ints) -> tuple[Ints, Ints]:
    """For rows grouped by owner: the owner of each row, and its place within the owner's rows.

    >>> [column.tolist() for column in spans(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - first[owner]


def offsets(owner: Ints, count: int) -> Ints:
    """Where each owner's rows begin, and at the end their number.

    >>> offsets(np.array([0, 0, 2]), 3).tolist()
    [0, 2, 2, 3]
    """
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count)[:count])]).astype(np.int64)


def table(rows: list[Any], width: int) -> Ints:
    """A list of equal tuples as a two-dimensional array."""
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * width).reshape(-1, width)


def call_numbers(module: Ints) -> Ints:
    """For each scope, how many calls of the same module came before it.

    >>> call_numbers(np.array([0, 1, 1, 2, 1])).tolist()
    [0, 0, 1, 0, 2]
    """
    order = np.argsort(module, kind="stable")
    ranked = module[order]
    first = np.searchsorted(ranked, ranked)
    numbers = np.empty(len(module), dtype=np.int64)
    numbers[order] = np.arange(len(module)) - first
    return numbers


def carry_down(mask: Bools, parent: Ints) -> None:
    """Mark whatever is inside of something marked; parents come first.

    >>> mask = np.array([False, True, False, False])
    >>> carry_down(mask, np.array([-1, 0, 1, 0]))
    >>> mask.tolist()
    [False, True, True, False]
    """
    if not mask.any():
        return
    marks = mask.tolist()
    for row, above in enumerate(parent.tolist()):
        marks[row] = marks[row] or (above >= 0 and marks[above])
    mask[:] = marks
