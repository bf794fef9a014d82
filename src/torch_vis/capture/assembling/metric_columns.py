"""What was measured along a run, as columns: when operations and module calls ran, how long, what they allocated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torch_vis.capture.assembling.log import OpRows, read_scopes
from torch_vis.capture.recording.recorder import Recorder
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.tree import Tree
from torch_vis.graph.types import Ints


def memory_columns(
    rec: Recorder, birth: Ints, death: Ints, first: Ints, largest: Ints, count: int
) -> list[Column]:
    """Bytes that each operation allocated, that were freed after it, and that were alive then.

    Along storages: the operations that made them and before which they died, their first and their largest size.
    """
    born = np.flatnonzero(birth >= 0)
    alloc = np.bincount(birth[born], weights=first[born], minlength=count)[:count].astype(np.int64)
    # the size of a storage when it died: that after the last time that it was resized
    last = largest.copy()
    for storage, size, _ in rec.resizes:
        last[storage] = size
    dead = np.flatnonzero((death <= count) & (death > 0))
    free = np.bincount(death[dead] - 1, weights=last[dead], minlength=count)[:count].astype(np.int64)
    sizes: dict[int, int] = {}
    for storage, size, node in rec.resizes:
        before = sizes.get(storage, int(first[storage]))
        alloc[node] += max(size - before, 0)
        free[node] += max(before - size, 0)
        sizes[storage] = size
    at_start = int(first[(birth < 0) & (death > 0)].sum())
    return [
        Column("alloc_bytes", alloc),
        Column("free_bytes", free),
        Column("live_bytes", at_start + np.cumsum(alloc - free)),
    ]


def with_stored(metrics: Metrics, stored: Mapping[int, int], count: int) -> Metrics:
    """The metrics and, where there were sparse or nested tensors, how many elements these hold: ``stored`` by value."""
    if not stored:
        return metrics
    numbers, known = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    numbers[list(stored)] = list(stored.values())
    known[list(stored)] = True
    return metrics.with_column(Column("stored", numbers, along="value", known=known))


def time_columns(rec: Recorder, rows: OpRows, node_scope: Ints, ended: int) -> list[Column]:
    """When operations and module calls began, and how long they took; recording itself is taken off the calls."""
    scopes = read_scopes(rec)
    start, origin = scopes.start.copy(), scopes.start[0]
    time = rows.stop - rows.start
    inclusive = np.where(scopes.stop > 0, scopes.stop - scopes.start - scopes.overhead, 0)
    timeless = scopes.stop == 0
    if timeless.any():
        spent = np.bincount(node_scope, weights=time, minlength=len(start)).astype(np.int64)
        inclusive[timeless] = spent[timeless]
        first = np.full(len(start), np.iinfo(np.int64).max)
        np.minimum.at(first, node_scope, rows.start)
        unset = timeless & (start == 0)
        start[unset] = np.where(first[unset] < ended, first[unset], origin)
    inclusive[0] = ended - origin - rec.overhead
    own = Tree(scopes.parent).own(inclusive)
    return [
        Column("start_ns", rows.start - origin),
        Column("time_ns", time),
        Column("scope_start_ns", start - origin, along="scope"),
        Column("scope_time_ns", np.maximum(inclusive, 0), along="scope"),
        Column("scope_self_ns", np.maximum(own, 0), along="scope"),
    ]
