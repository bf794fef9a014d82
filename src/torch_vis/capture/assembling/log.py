"""The log of a recording as columns: what the numbers in its rows mean, and what was measured along the run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from torch_vis.capture.recording.own_cost import recording_cost, regular_ns, weights
from torch_vis.capture.recording.recorder import FORWARD, CallInfo, Recorder
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.schema import Kind
from torch_vis.graph.tree import Tree, group_sums
from torch_vis.graph.types import Ints

# of the time of an operation, the most that the call from Python can be
LARGEST_PART = 0.85
# what runs beside a recorder runs on caches that it has filled: the most that an operation can lose by it, and what
# Python can between two of them, around the call of a module, and where the run begins
DISTURBED_NS, BETWEEN_NS, CALLING_NS, BEGINNING_NS = 50_000, 10_000, 15_000, 200_000
# numbers in a row before those of ``OpRows``: its length and the number of its operation
HEAD = 2


class OpRows(NamedTuple):
    """The operations of a recording, in order; start and stop are on Python's clock."""

    call: Ints
    scope: Ints
    site: Ints
    sequence: Ints
    backward: Ints
    # sequence numbers, which link backward to forward, are a thread's own
    thread: Ints
    grad_mode: Ints
    start: Ints
    stop: Ints
    # which function of torch's it belongs to; -1: the user's own line says so
    caller: Ints


class OpInputs(NamedTuple):
    """What operations read: the node, the value, the slot (-1 for a hidden read) and what is taken of it."""

    node: Ints
    value: Ints
    slot: Ints
    kind: Ints


class OpOutputs(NamedTuple):
    """What operations returned or wrote: the node, the value, and its position among the results.

    A value that was written has the slot of the argument as a negative number: -1 is the first.
    """

    node: Ints
    value: Ints
    slot: Ints


class ScopeRows(NamedTuple):
    """The scopes of a recording, in order; stop is 0 where only the operations inside say when it was."""

    module: Ints
    parent: Ints
    start: Ints
    stop: Ints
    # the recorder's own time inside
    overhead: Ints
    in_backward: Ints


# numbers in a row before the values that the operation read, wrote and returned
FIXED = HEAD + len(OpRows._fields)


def read_operations(rec: Recorder) -> OpRows:
    """The operations of a recording that has ended."""
    return _rows(*_in_order(rec))


def read_scopes(rec: Recorder) -> ScopeRows:
    """The scopes of a recording."""
    return ScopeRows(*table(rec.scopes, len(ScopeRows._fields)).T)


def read_log(rec: Recorder) -> tuple[OpRows, OpInputs, OpOutputs]:
    """The operations of a recording, their inputs and their outputs."""
    flat, starts = _in_order(rec)
    rows = _rows(flat, starts)
    slots = np.array([info.slots for info in rec.calls], dtype=np.int64)
    in_count = slots[rows.call] if len(slots) else np.zeros(0, dtype=np.int64)
    node, slot = spans(in_count)
    value = flat[np.repeat(starts + FIXED, in_count) + slot]
    inputs = OpInputs(node, value, slot, _kinds(rec.calls, rows.call, node))
    out_count = flat[starts] - FIXED - in_count
    out_node, position = spans(out_count)
    out_value = flat[np.repeat(starts + FIXED + in_count, out_count) + position]
    out_slot = _out_slots(rec.calls, rows.call[out_node], position)
    return rows, inputs, OpOutputs(out_node, out_value, out_slot)


def _in_order(rec: Recorder) -> tuple[Ints, Ints]:
    """All numbers of the log, and the index at which the row of each operation begins, in the order of operations."""
    flat = np.array(rec.log, dtype=np.int64)
    starts = np.array(rec.row_starts(), dtype=np.int64)
    return flat, starts[np.argsort(flat[starts + 1], kind="stable")]


def _rows(flat: Ints, starts: Ints) -> OpRows:
    return OpRows(*(flat[starts + column] for column in range(HEAD, FIXED)))


def _out_slots(calls: list[CallInfo], call: Ints, position: Ints) -> Ints:
    """The slots of outputs; in a row, values that were written come first, then those that were returned."""
    writes = np.array([len(info.writes) for info in calls], dtype=np.int64)
    written = writes[call] if len(calls) else position
    slot = position - written
    for row in np.flatnonzero(position < written):
        slot[row] = -1 - calls[call[row]].writes[position[row]]
    return slot


def _kinds(calls: list[CallInfo], call: Ints, node: Ints) -> Ints:
    """What is taken of each argument: its data, or only the shape where it is measured or written over."""
    kinds = np.full(len(node), Kind.DATA, dtype=np.int64)
    of_shape = {
        number: slots for number, info in enumerate(calls) if (slots := info.shape_only | info.overwrites)
    }
    if not of_shape:
        return kinds
    by_call = np.argsort(call, kind="stable")
    ranked = call[by_call]
    start = np.searchsorted(node, np.arange(len(call)))
    for number, slots in of_shape.items():
        low, high = np.searchsorted(ranked, [number, number + 1])
        rows = start[by_call[low:high]]
        for slot in slots:
            kinds[rows + slot] = Kind.SHAPE
    return kinds


def spans(counts: Ints) -> tuple[Ints, Ints]:
    """For rows grouped by owner: the owner of each row, and its position among the owner's rows.

    >>> [column.tolist() for column in spans(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - first[owner]


def offsets(owner: Ints, count: int) -> Ints:
    """The index at which each owner's rows begin, and at the end their number.

    >>> offsets(np.array([0, 0, 2]), 3).tolist()
    [0, 2, 2, 3]
    """
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count)[:count])]).astype(np.int64)


def table(rows: list[Any], width: int) -> Ints:
    """A list of equal tuples as a two-dimensional array."""
    return np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * width).reshape(-1, width)


def memory_columns(
    rec: Recorder, birth: Ints, death: Ints, first: Ints, largest: Ints, count: int, reused: Ints
) -> list[Column]:
    """Bytes that each operation allocated, that were freed after it, and that were alive then.

    Along storages: the operations that made them and before which they died, their first and their largest size.
    ``reused`` are storages that take the place of another in a run without a recorder, which then frees nothing.
    """
    allocated = np.flatnonzero(birth >= 0)
    alloc = np.bincount(birth[allocated], weights=first[allocated], minlength=count)[:count].astype(np.int64)
    # the size of a storage when it died: that after the last time that it was resized
    last = largest.copy()
    for storage, size, _ in rec.resizes:
        last[storage] = size
    dead = np.flatnonzero((death <= count) & (death > 0))
    free = np.bincount(death[dead] - 1, weights=last[dead], minlength=count)[:count].astype(np.int64)
    sizes: dict[int, int] = {}
    at_start = int(first[(birth < 0) & (death > 0)].sum())
    for storage, size, node in rec.resizes:
        before = sizes.get(storage, int(first[storage]))
        if size > before and count:
            alloc[min(node, count - 1)] += size - before
        elif size < before and node:
            free[node - 1] += before - size
        elif size < before:
            at_start -= before - size
        sizes[storage] = size
    np.subtract.at(alloc, birth[reused], first[reused])
    np.subtract.at(free, birth[reused], first[reused])
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


class UnseenCost(NamedTuple):
    """What recording took that the recorder did not measure: see ``own_cost``."""

    inside: Ints
    """Within the time of each operation."""
    around: Ints
    """Before and after it."""
    scope: int
    """For each call of a module or function."""
    error: int
    """How much more or less the run may have taken without any of it."""


def unseen_cost(rec: Recorder, rows: OpRows) -> UnseenCost:
    """The unseen cost of recording these operations."""
    count = len(rows.call)
    nothing = np.zeros(count, dtype=np.int64)
    regular = regular_ns(rec)
    if not count or not regular:
        return UnseenCost(nothing, nothing, 0, 0)
    cost = recording_cost()
    weight = weights([info.call for info in rec.calls])[rows.call]
    each = regular / weight.mean() * weight
    time = rows.stop - rows.start
    # the call from Python is not all of the time of even the smallest operation
    inside = np.minimum(cost.inside * each, LARGEST_PART * time).astype(np.int64)
    differentiated = (np.diff(rows.sequence, prepend=rows.sequence[0]) > 0) & (rows.backward == FORWARD)
    rate = np.where(differentiated, cost.differentiated, cost.around)
    rate[rows.backward != FORWARD] = cost.backward
    around = rate * each
    # copies are made for what backward will want
    around[differentiated] += cost.around * regular * rec.shallow_copies / max(int(differentiated.sum()), 1)
    around = around.astype(np.int64)
    scope = round(cost.scope * regular)
    error = cost.error * int((inside + around).sum()) + scope * (len(rec.scopes) - 1)
    error += int(np.minimum(time - inside, DISTURBED_NS).sum())
    error += BEGINNING_NS + BETWEEN_NS * count + CALLING_NS * (len(rec.scopes) - 1)
    return UnseenCost(inside, around, scope, round(error))


def time_columns(
    rec: Recorder, rows: OpRows, node_scope: Ints, ended: int, unseen: UnseenCost
) -> list[Column]:
    """When operations and module calls began, and how long they took; what recording took is taken off both."""
    scopes = read_scopes(rec)
    tree = Tree(scopes.parent)
    start, origin = scopes.start.copy(), scopes.start[0]
    time = rows.stop - rows.start - unseen.inside
    inclusive = np.where(scopes.stop > 0, scopes.stop - scopes.start - scopes.overhead, 0)
    timeless = scopes.stop == 0
    # the run is open to the end
    timeless[0] = False
    inclusive[0] = ended - origin - rec.overhead
    # backward has the scope of the forward operation, and runs in another
    around = tree.nearest(~timeless)[np.where(rows.backward == FORWARD, node_scope, rows.scope)]
    # taken off where it was spent, never more than there is: calls stay longer than the calls inside them
    spent = group_sums(around, unseen.inside + unseen.around, len(start))
    spent += unseen.scope * np.bincount(tree.parent[tree.parent >= 0], minlength=len(start))
    measured = tree.own(inclusive)
    least = np.minimum(measured, group_sums(around, time, len(start)))
    inclusive = tree.inclusive(np.maximum(measured - spent, least))
    if timeless.any():
        inclusive[timeless] = group_sums(node_scope, time, len(start))[timeless]
        first = np.full(len(start), np.iinfo(np.int64).max)
        np.minimum.at(first, node_scope, rows.start)
        unset = timeless & (start == 0)
        start[unset] = np.where(first[unset] < ended, first[unset], origin)
    own = tree.own(inclusive)
    return [
        Column("start_ns", rows.start - origin),
        Column("time_ns", time),
        Column("scope_start_ns", start - origin, along="scope"),
        Column("scope_time_ns", np.maximum(inclusive, 0), along="scope"),
        Column("scope_self_ns", np.maximum(own, 0), along="scope"),
    ]
