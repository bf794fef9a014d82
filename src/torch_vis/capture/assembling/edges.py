"""Who reads whose bytes: exact edges through views, aliases and in-place writes.

Memory that is written once, by the operation that made it, needs no thought: every reader depends on the value it
names. Only buffers that were written again are followed write by write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.buffers import SMALL_BYTES, Buffer, SmallBuffer
from torch_vis.capture.assembling.regions import Region, radices, region
from torch_vis.graph.schema import Kind, TensorType
from torch_vis.graph.types import Bools, Ints

DATA, WHOLE, SHAPE = (
    int(Kind.DATA),
    int(Kind.WHOLE),
    int(Kind.SHAPE),
)  # plain numbers: enums are slow to look up


class Reads(NamedTuple):
    """Reads as columns: the node, the value named, the slot (-1 for hidden ones) and what is taken of it."""

    node: Ints
    value: Ints
    slot: Ints
    kind: Ints


class Memory(NamedTuple):
    """The values of a run and where they lie; ``maker`` is the node that made or wrote each, -1 for none."""

    storage: Ints
    offset: Ints
    type: Ints
    maker: Ints
    writes: Bools
    size: Ints
    types: list[TensorType]


def resolve(
    memory: Memory,
    reads: Reads,
    views: Callable[[int], dict[int, list[int]]],
    inert: Callable[[int], bool],
    aliases: Ints,
) -> tuple[Reads, Ints, int]:
    """The reads with hidden ones added, what each value carries, and how many writes could only be guessed at.

    ``views(node)`` gives the values a node returns that alias its inputs, by storage; ``inert(value)`` tells whether
    nothing leads to it; ``aliases`` are values that lie in known memory though no operation made them.
    """
    carries = np.full(len(memory.storage), -1, dtype=np.int64)
    dirty = np.unique(memory.storage[np.concatenate([np.flatnonzero(memory.writes), aliases])])
    if not len(dirty):
        return reads, carries, 0
    is_dirty = np.zeros(len(memory.size), dtype=bool)
    is_dirty[dirty] = True
    rows = np.flatnonzero(is_dirty[memory.storage[reads.value]])
    writes = np.flatnonzero(memory.writes)
    follower = _Follower(memory, carries, views, inert)
    # one walk through time: a node's reads come before its writes
    times = np.concatenate([reads.node[rows] * 2, memory.maker[writes] * 2 + 1])
    what = np.concatenate([rows, writes])
    kind = reads.kind.copy()
    hidden: list[tuple[int, int, int]] = []
    order = np.argsort(times, kind="stable")
    for time, item in zip(times[order].tolist(), what[order].tolist(), strict=True):
        if time & 1:
            follower.write(item)
        else:
            node = time >> 1
            if kind[item] == SHAPE:
                continue
            taken, others = follower.read(node, int(reads.value[item]))
            kind[item] = taken
            hidden.extend((node, value, how) for value, how in others)
    if hidden:
        unique = sorted(set(hidden))
        extra = np.array(unique, dtype=np.int64)
        reads = Reads(
            np.concatenate([reads.node, extra[:, 0]]),
            np.concatenate([reads.value, extra[:, 1]]),
            np.concatenate([reads.slot, np.full(len(extra), -1, dtype=np.int64)]),
            np.concatenate([kind, extra[:, 2]]),
        )
    else:
        reads = reads._replace(kind=kind)
    return reads, carries, follower.guessed


class _Follower:
    def __init__(
        self,
        memory: Memory,
        carries: Ints,
        views: Callable[[int], dict[int, list[int]]],
        inert: Callable[[int], bool],
    ) -> None:
        self.memory = memory
        self.carries = carries
        self.views = views
        self.inert = inert
        self.buffers: dict[int, Buffer | SmallBuffer] = {}
        self.made_from: dict[int, tuple[int, ...] | None] = {}
        self.first = np.full(len(memory.size), -1, dtype=np.int64)
        self.first[memory.storage[::-1]] = np.arange(len(memory.storage))[
            ::-1
        ]  # the last to be assigned is the first value
        self.guessed = 0
        self.viewer = -1
        self.viewed: dict[int, list[int]] = {}

    def area(self, value: int) -> Region | None:
        row = self.memory.types[self.memory.type[value]]
        if row.layout != "strided":
            return Region(0, ((1, 1),))  # a tensor without plain memory is read and written as one piece
        return region(int(self.memory.offset[value]), row.shape, row.stride, row.itemsize or 1)

    def buffer(self, value: int) -> Buffer | SmallBuffer:
        storage = int(self.memory.storage[value])
        buffer = self.buffers.get(storage)
        if buffer is None:
            base = int(self.first[storage])
            row = self.memory.types[self.memory.type[base]]
            size = int(self.memory.size[storage]) if row.layout == "strided" else 1
            if size <= SMALL_BYTES:
                buffer = SmallBuffer(base, size, lambda: self.inert(base))
            else:
                places = lambda: radices(row.shape, row.stride, row.itemsize or 1)  # noqa: E731
                buffer = Buffer(base, size, lambda: self.inert(base), places)
            self.buffers[storage] = buffer
        return buffer

    def write(self, value: int) -> None:
        buffer = self.buffer(value)
        older, before = buffer.newest, buffer.guessed
        if buffer.write(value, self.area(value)):
            self.carries[value] = older
        self.guessed += buffer.guessed - before

    def read(self, node: int, value: int) -> tuple[int, list[tuple[int, int]]]:
        """What the node takes of the value it names, and what it takes from others."""
        buffer = self.buffer(value)
        if node != self.viewer:
            self.viewer, self.viewed = node, self.views(node)
        views = self.viewed.get(int(self.memory.storage[value]), ())
        if len(views) > 1:
            return SHAPE, []
        origins = buffer.origins(self.area(views[0] if views else value))
        if views:
            self.made_from[views[0]] = origins
        if value in self.made_from and self.made_from[value] == origins and not views:
            if origins is not None or buffer.newest < value:
                return DATA, []
        if origins is None:
            newest = buffer.newest
            return (WHOLE, []) if newest == value else (SHAPE, [(newest, WHOLE)])
        outside = self.memory.maker[value] < 0 and self.memory.maker[buffer.base] < 0
        others = [o for o in origins if o != value and not (outside and o == buffer.base)]
        kind = DATA if len(others) < len(origins) else SHAPE
        return kind, [(other, DATA) for other in others]
