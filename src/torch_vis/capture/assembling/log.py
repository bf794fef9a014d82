"""The log of a recording as columns: what the numbers in its rows are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.edges import Reads
from torch_vis.capture.assembling.sorted_columns import spans
from torch_vis.capture.recording.recorder import CallInfo, Recorder
from torch_vis.graph.schema import Kind
from torch_vis.graph.types import Ints

HEAD = 2  # numbers in a row before its columns: its length and the number of its operation


class Rows(NamedTuple):
    """The operations of a recording, in order; begin and end are on Python's clock."""

    call: Ints
    scope: Ints
    site: Ints
    sequence: Ints
    backward: Ints
    thread: Ints
    grad_mode: Ints
    begun: Ints
    ended: Ints


class Made(NamedTuple):
    """What operations returned or wrote: the node, the value, and the place among the results.

    A value that was written has the slot of the argument as a negative number: -1 is the first.
    """

    node: Ints
    value: Ints
    slot: Ints


FIXED = HEAD + len(Rows._fields)


def rows_of(rec: Recorder) -> Rows:
    """The operations of a recording that has ended."""
    return _rows(*_in_order(rec))


def read_log(rec: Recorder) -> tuple[Rows, Reads, Made]:
    """The operations of a recording, what they name as arguments, and what they made."""
    flat, starts = _in_order(rec)
    rows = _rows(flat, starts)
    slots = np.array([info.slots for info in rec.calls], dtype=np.int64)
    in_count = slots[rows.call] if len(slots) else np.zeros(0, dtype=np.int64)
    node, slot = spans(in_count)
    value = flat[np.repeat(starts + FIXED, in_count) + slot]
    reads = Reads(node, value, slot, _kinds(rec.calls, rows.call, node))
    out_count = flat[starts] - FIXED - in_count
    out_node, place = spans(out_count)
    out_value = flat[np.repeat(starts + FIXED + in_count, out_count) + place]
    return rows, reads, Made(out_node, out_value, _out_slots(rec.calls, rows.call[out_node], place))


def _in_order(rec: Recorder) -> tuple[Ints, Ints]:
    """All numbers of the log, and where the row of each operation begins."""
    flat = np.array(rec.log, dtype=np.int64)
    starts = np.array(rec.row_places(), dtype=np.int64)
    return flat, starts[np.argsort(flat[starts + 1], kind="stable")]


def _rows(flat: Ints, starts: Ints) -> Rows:
    return Rows(*(flat[starts + column] for column in range(HEAD, FIXED)))


def _out_slots(calls: list[CallInfo], call: Ints, place: Ints) -> Ints:
    """Values that were written come first in a row, then those that were returned."""
    writes = np.array([len(info.writes) for info in calls], dtype=np.int64)
    written = writes[call] if len(calls) else place
    slot = place - written
    for row in np.flatnonzero(place < written):
        slot[row] = -1 - calls[call[row]].writes[place[row]]
    return slot


def _kinds(calls: list[CallInfo], call: Ints, node: Ints) -> Ints:
    """What is taken of each argument: of one that is merely measured or written over, its shape."""
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
