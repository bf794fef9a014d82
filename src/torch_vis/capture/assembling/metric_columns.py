"""What was measured along a run, as columns: when operations and module calls ran, how long, what they allocated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torch_vis.capture.assembling.log import table
from torch_vis.capture.recording.recorder import Recorder
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Ints


def memory_columns(
    rec: Recorder, birth: Ints, death: Ints, first: Ints, most: Ints, count: int
) -> list[Column]:
    """Bytes that each operation allocated, that were freed after it, and that were alive then.

    Along storages: the operations that made them and before which they died, their first and their largest size.
    """
    born = np.flatnonzero(birth >= 0)
    alloc = np.bincount(birth[born], weights=first[born], minlength=count)[:count].astype(np.int64)
    last = most.copy()  # what a storage had when it died: its size after the last time that it was resized
    for storage, now, _ in rec.resizes:
        last[storage] = now
    dead = np.flatnonzero((death <= count) & (death > 0))
    free = np.bincount(death[dead] - 1, weights=last[dead], minlength=count)[:count].astype(np.int64)
    size: dict[int, int] = {}
    for storage, now, node in rec.resizes:
        before = size.get(storage, int(first[storage]))
        alloc[node] += max(now - before, 0)
        free[node] += max(before - now, 0)
        size[storage] = now
    start = int(first[(birth < 0) & (death > 0)].sum())
    return [
        Column("alloc_bytes", alloc),
        Column("free_bytes", free),
        Column("live_bytes", start + np.cumsum(alloc - free)),
    ]


def with_stored(metrics: Metrics, stored: Mapping[int, int], count: int) -> Metrics:
    """The metrics and, where there were sparse or nested tensors, how many elements these hold: ``stored`` by value."""
    if not stored:
        return metrics
    numbers, known = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    numbers[list(stored)] = list(stored.values())
    known[list(stored)] = True
    return metrics.with_column(Column("stored", numbers, along="value", known=known))


def time_columns(rec: Recorder, begun: Ints, ended: Ints, node_scope: Ints, stop: int) -> list[Column]:
    """When operations and module calls began, and how long they took; recording itself is taken off the calls."""
    rows = table(rec.scopes, 6)
    start, origin = rows[:, 2].copy(), rows[0, 2]
    inclusive = np.where(rows[:, 3] > 0, rows[:, 3] - rows[:, 2] - rows[:, 4], 0)
    timeless = rows[:, 3] == 0  # calls that only their operations tell of
    if timeless.any():
        spent = np.bincount(node_scope, weights=ended - begun, minlength=len(rows)).astype(np.int64)
        inclusive[timeless] = spent[timeless]
        first = np.full(len(rows), np.iinfo(np.int64).max)
        np.minimum.at(first, node_scope, begun)
        unset = timeless & (start == 0)
        start[unset] = np.where(first[unset] < stop, first[unset], origin)
    inclusive[0] = stop - origin - rec.overhead
    own = Tree(rows[:, 1]).own(inclusive)
    return [
        Column("start_ns", begun - origin),
        Column("time_ns", ended - begun),
        Column("scope_start_ns", start - origin, along="scope"),
        Column("scope_time_ns", np.maximum(inclusive, 0), along="scope"),
        Column("scope_self_ns", np.maximum(own, 0), along="scope"),
    ]
