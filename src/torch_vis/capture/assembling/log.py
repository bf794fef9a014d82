"""The log of a recording as columns: what the numbers in its rows mean."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from torch_vis.capture.recording.recorder import CallInfo, Recorder
from torch_vis.graph.schema import Kind
from torch_vis.graph.types import Ints

# numbers in a row before those of ``OpRows``: its length and the number of its operation
HEAD = 2


class OpRows(NamedTuple):
    """The operations of a recording, in order; start and stop are on Python's clock."""

    call: Ints
    scope: Ints
    site: Ints
    sequence: Ints
    backward: Ints
    # links backward to forward here; a graph does not have it yet, and a run on several ranks or streams will want it
    thread: Ints
    grad_mode: Ints
    start: Ints
    stop: Ints


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
