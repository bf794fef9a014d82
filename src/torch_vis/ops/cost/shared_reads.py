"""Which bytes kernels are given more than once: a tensor that is named twice, or views that share memory.

A byte counts for the first tensor that has it. That is exact where tensors show the same bytes, whatever their shapes
(``x.t() @ x``), where each is one stretch of memory, where all are slices of one tensor along one axis
(``x[:, 1:] - x[:, :-1]``), and where one lies in a stretch that another takes whole. Tensors that overlap otherwise,
as slices along two axes may, count for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torch_vis.graph import Call, Graph, Slot, TensorType
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.cost.registry import touched
from torch_vis.ops.names import plain_name

OTHER = -1  # in ``rows`` of a region: bytes in no such pattern

# What is ``beta c + …``: a beta of zero means that c is not looked at, whatever it holds.
SCALED = frozenset("addmm addmv addbmm baddbmm addr _addmm_activation _sparse_addmm".split())

# What reads only some places of its first tensor, so that having that says nothing of the others. (Of what writes in
# place, torch refuses that the two share memory.)
LOOKUPS = frozenset(
    f"aten::{name}"
    for name in """
    index _unsafe_index _unsafe_masked_index index_select gather take take_along_dim masked_select embedding
    _embedding_bag _embedding_bag_forward_only embedding_bag nll_loss nll_loss2d nll_loss_nd nll_loss_forward
    nll_loss2d_forward
    """.split()
)


class Regions(NamedTuple):
    """The bytes of tensors by type: ``rows`` stretches of ``length``, each ``pitch`` after the last.

    The same bytes have the same ``key``. One stretch has the pitch 0. ``extent`` is from the first byte to the last, 0
    where that is not known.
    """

    key: Ints
    rows: Ints
    pitch: Ints
    length: Ints
    extent: Ints
    itemsize: Ints


def regions(types: Sequence[TensorType]) -> Regions:
    """The bytes that a tensor of each type has, counted from its first."""
    numbers: dict[object, int] = {}
    rows_of_types = []
    for index, type_ in enumerate(types):
        rows, pitch, length, extent, key = _region(type_)
        number = numbers.setdefault(("type", index) if key is None else key, len(numbers))
        rows_of_types.append((number, rows, pitch, length, extent, type_.itemsize or 1))
    return Regions(*np.array(rows_of_types, dtype=np.int64).reshape(-1, 6).T)


def _region(type_: TensorType) -> tuple[int, int, int, int, object]:
    """Rows, pitch, length and extent of a tensor's bytes, and by what they are the same as those of another type."""
    if not touched(type_) or len(type_.stride) != len(type_.shape) or type_.itemsize is None:
        return OTHER, 0, 0, 0, None
    steps = [
        (step * type_.itemsize, count) for count, step in zip(type_.shape, type_.stride) if count > 1 and step
    ]
    length, above = type_.itemsize, list[tuple[int, int]]()
    for step, count in sorted(steps):
        # the next stretch begins where this ends, or inside it
        if not above and step <= length:
            length += step * (count - 1)
        elif above and step == above[-1][0] * above[-1][1]:
            above[-1] = (above[-1][0], above[-1][1] * count)
        else:
            above.append((step, count))
    if not above:
        return 1, 0, length, length, (length,)
    (pitch, rows), *more = above
    extent = length + sum(step * (count - 1) for step, count in above)
    return (OTHER if more else rows), pitch, length, extent, (length, *above)


def unread_slots(calls: Sequence[Call]) -> Ints:
    """For each call the slot of a tensor that it is given and does not look at, -1 for none.

    >>> unread_slots([Call("aten::addmm", (Slot(0), Slot(1), Slot(2)), (("beta", 0),))]).tolist()
    [0]
    """
    slots = np.full(len(calls), -1, dtype=np.int64)
    for index, call in enumerate(calls):
        if call.op.startswith("aten::") and plain_name(call.op) in SCALED:
            beta, first = dict(call.kwargs).get("beta", 1), call.args[0] if call.args else None
            if type(beta) in (int, float, bool) and beta == 0 and type(first) is Slot:
                slots[index] = first.number
    return slots


def is_unread(graph: Graph) -> Bools:
    """For each input, whether its operation does not look at what is in it."""
    return _is_slot(graph, unread_slots(graph.calls))


def _is_slot(graph: Graph, slots: Ints) -> Bools:
    """For each input, whether it is in the slot that is given for its call, -1 for none."""
    if not (slots >= 0).any():
        return np.zeros(len(graph.in_value), dtype=np.bool_)
    return (graph.in_slot >= 0) & (graph.in_slot == slots[graph.node_call[graph.in_node]])


def read_bytes(graph: Graph, rows: Ints, size: Ints, types: Sequence[TensorType], number: Ints) -> Ints:
    """Of some inputs, in their order, the bytes that their operation does not read for one before.

    ``size`` are all that each has, ``number`` is its type among ``types``.
    """
    tables = [0 if call.op.partition(".")[0] in LOOKUPS else -1 for call in graph.calls]
    whole = np.flatnonzero(~_is_slot(graph, np.array(tables, dtype=np.int64))[rows])
    chosen, fresh = rows[whole], size.copy()
    block = graph.in_node[chosen] * np.int64(len(graph.storage_bytes))
    block += graph.value_storage[graph.in_value[chosen]]
    fresh[whole] = fresh_bytes(graph, chosen, size[whole], types, number[whole], block)
    return fresh


def fresh_bytes(
    graph: Graph, rows: Ints, size: Ints, types: Sequence[TensorType], number: Ints, owner: Ints
) -> Ints:
    """Of some inputs (``rows`` of ``in_value``) the bytes that none before it of the same owner has.

    ``size`` are all that each has, ``number`` is its type among ``types``. An owner is a kernel, or a group of them,
    together with one block of memory.
    """
    fresh = size.copy()
    together = np.flatnonzero(_is_repeated(owner) & (size > 0))
    if not len(together):
        return fresh
    table = regions(types)
    value, kind = graph.in_value[rows[together]], number[together]
    start = graph.value_offset[value] * table.itemsize[kind]
    _, group = np.unique(owner[together], return_inverse=True)
    group = group.reshape(-1)
    order = np.lexsort((together, start, table.key[kind], group))
    repeated = np.zeros(len(order), dtype=np.bool_)
    same = [np.diff(column[order]) == 0 for column in (group, table.key[kind], start)]
    repeated[order[1:]] = same[0] & same[1] & same[2]
    fresh[together[repeated]] = 0
    left = np.flatnonzero(~repeated)
    left = left[_is_repeated(group[left])]
    if len(left):
        fresh[together[left]] = _union(group[left], start[left], fresh[together[left]], table, kind[left])
    return fresh


def _is_repeated(owner: Ints) -> Bools:
    """Of each row, whether another one has the same owner."""
    if not len(owner):
        return np.zeros(0, dtype=np.bool_)
    order = np.argsort(owner, kind="stable")
    same = np.diff(owner[order]) == 0
    repeated = np.zeros(len(owner), dtype=np.bool_)
    repeated[order[1:]] = same
    repeated[order[:-1]] |= same
    return repeated


def _union(group: Ints, start: Ints, size: Ints, table: Regions, kind: Ints) -> Ints:
    """The sizes without what an earlier region of the same group has; no two are equal."""
    rows, pitch, length, extent = (column[kind] for column in table[1:5])
    fresh = size.copy()
    whole, rest = np.flatnonzero(rows == 1), np.flatnonzero(rows != 1)
    fresh[whole], covered = _stretches(group[whole], start[whole], start[whole] + length[whole])
    hidden = covered(group[rest], start[rest], start[rest] + extent[rest]) & (extent[rest] > 0)
    fresh[rest[hidden]] = 0
    sliced = rest[~hidden & (rows[rest] > 1)]
    _, plane = np.unique(np.stack([group[sliced], pitch[sliced]]), axis=1, return_inverse=True)
    several = _is_repeated(plane.reshape(-1))
    sliced, plane = sliced[several], plane.reshape(-1)[several]
    if len(sliced):
        fresh[sliced] = _sliced(plane, *(column[sliced] for column in (start, rows, pitch, length, size)))
    return fresh


def _sliced(plane: Ints, start: Ints, rows: Ints, pitch: Ints, length: Ints, size: Ints) -> Ints:
    """The same for rows of stretches that lie in one plane, if they differ along one of its axes alone."""
    fresh, count = size.copy(), int(plane.max()) + 1
    row, column = np.divmod(start - _least(start, plane, count)[plane], pitch)
    fits = _all(column + length <= pitch, plane, count)
    across = fits & _alike(row, plane, count) & _alike(rows, plane, count)
    along = fits & ~across & _alike(column, plane, count) & _alike(length, plane, count)
    for chosen, begin, extent, each in ((across, column, length, rows), (along, row, rows, length)):
        chosen_rows = np.flatnonzero(chosen[plane])
        ends = begin[chosen_rows] + extent[chosen_rows]
        fresh[chosen_rows] = _stretches(plane[chosen_rows], begin[chosen_rows], ends)[0] * each[chosen_rows]
    return fresh


def _least(values: Ints, group: Ints, count: int) -> Ints:
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, group, values)
    return least


def _all(holds: Bools, group: Ints, count: int) -> Bools:
    return np.bincount(group[~holds], minlength=count) == 0


def _alike(values: Ints, group: Ints, count: int) -> Bools:
    """For each group, whether all its values are the same."""
    return _all(values == _least(values, group, count)[group], group, count)


class _Covered:
    """The stretches of each group, joined where they touch."""

    def __init__(self, group: Ints, start: Ints, end: Ints) -> None:
        self.group, self.start, self.end = group, start, end

    def __call__(self, group: Ints, start: Ints, end: Ints) -> Bools:
        """Whether each of other stretches lies in one of these."""
        if not len(self.group):
            return np.zeros(len(group), dtype=np.bool_)
        points = np.unique(np.concatenate([self.start, start]))
        wide = len(points) + 1
        at = np.searchsorted(self.group * wide + np.searchsorted(points, self.start),
                             group * wide + np.searchsorted(points, start), side="right") - 1  # fmt: skip
        near = np.maximum(at, 0)
        return (at >= 0) & (self.group[near] == group) & (end <= self.end[near])


def _stretches(group: Ints, start: Ints, end: Ints) -> tuple[Ints, _Covered]:
    """Of each stretch what none before it in its group has, and the stretches joined."""
    order = np.lexsort((-end, start, group))
    g, s, e = group[order], start[order], end[order]
    # by their places, so that no sum of a group and a place is too large
    points = np.unique(e)
    reach = np.maximum.accumulate(g * (len(points) + 1) + np.searchsorted(points, e)) if len(g) else g
    before = np.full(len(g), np.iinfo(np.int64).min)
    follows = np.diff(g) == 0
    before[1:][follows] = points[(reach % (len(points) + 1))[:-1][follows]]
    fresh = np.empty(len(g), dtype=np.int64)
    fresh[order] = np.maximum(e - np.maximum(s, before), 0)
    first = np.flatnonzero(s > before)
    last = np.append(first[1:], len(g)) - 1
    return fresh, _Covered(g[first], s[first], points[reach[last] % (len(points) + 1)] if len(g) else e)
