"""Who reads whose bytes: exact edges through views, aliases and in-place writes.

Memory that is written once, by the operation that made it, needs no thought: every reader depends on the value it
names. Only buffers that were written again are followed write by write.

A tensor covers a region of its buffer: a start and, per dimension, a step and a count. Regions that are slices of one
layout become boxes (a range per digit of a mixed-radix byte address), and boxes can be compared exactly. What does not
fit that form is compared byte by byte while it is small, and otherwise taken to overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.log import OpInputs
from torch_vis.graph.schema import Kind, TensorType
from torch_vis.graph.types import Bools, Ints

Addresses = Ints
# first, last, step
Range = tuple[int, int, int]
Box = tuple[Range, ...]
# regions of up to this size are compared byte by byte
ENUMERATE_BYTES = 1 << 18
# plain numbers: enums are slow to look up
DATA, WHOLE, SHAPE = int(Kind.DATA), int(Kind.WHOLE), int(Kind.SHAPE)
# buffers up to this size are followed byte by byte
SMALL_BYTES = 1 << 14
# with more writers of one region than this, a reader names the newest version with all that it carries
MANY = 8
# beyond every address
NO_END = 1 << 62


# ---------------------------------------------------------------- regions


class Region(NamedTuple):
    """The bytes of a tensor: start, and ``(step, count)`` per dimension, smallest step first."""

    start: int
    dims: tuple[tuple[int, int], ...]

    @property
    def stop(self) -> int:
        """One past the last byte."""
        return self.start + sum(step * (count - 1) for step, count in self.dims) + 1


def region(offset: int, shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> Region | None:
    """The region of a strided tensor, its dimensions merged where they run on; None if it has no elements.

    >>> region(1, (2, 3), (3, 1), 4)
    Region(start=4, dims=((1, 24),))
    >>> region(0, (4,), (5,), 4)
    Region(start=0, dims=((1, 4), (20, 4)))
    """
    if 0 in shape:
        return None
    steps = sorted(
        (step * itemsize, size) for step, size in zip(stride, shape, strict=True) if size > 1 and step
    )
    dims = [(1, itemsize)]
    for step, size in steps:
        last, count = dims[-1]
        if step == last * count:
            dims[-1] = (last, count * size)
        else:
            dims.append((step, size))
    return Region(offset * itemsize, tuple(dims))


def radices(shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The values of the digits of a buffer's byte addresses, largest first: its strides in bytes.

    >>> radices((2, 3), (3, 1), 4)
    (12, 4, 1)
    """
    digits = [1]
    for step in sorted(
        {s * itemsize for s, size in zip(stride, shape, strict=True) if size > 1 and s} | {itemsize}
    ):
        if step > digits[-1] and step % digits[-1] == 0:
            digits.append(step)
    return tuple(reversed(digits))


def box_of(area: Region, radices: tuple[int, ...]) -> Box | None:
    """The region as a range per digit, None where it is no box in these digits.

    >>> box_of(region(0, (2, 2), (3, 1), 4), (12, 4, 1))
    ((0, 1, 1), (0, 1, 1), (0, 3, 1))
    """
    ratios = [1 << 62] + [radices[i - 1] // radices[i] for i in range(1, len(radices))]
    digits = [area.start // radix % ratio for radix, ratio in zip(radices, ratios, strict=True)]
    ranges: list[Range] = [(digit, digit, 1) for digit in digits]
    open_ = [True] * len(radices)
    for step, count in area.dims:
        if count == 1:
            continue
        i = next(i for i, radix in enumerate(radices) if radix <= step)
        if step % radices[i] or not open_[i]:
            return None
        stride = step // radices[i]
        if stride > 1:
            last = digits[i] + (count - 1) * stride
            if last >= ratios[i]:
                return None
            ranges[i], open_[i] = (digits[i], last, stride), False
            continue
        while True:
            if not open_[i]:
                return None
            if digits[i] + count <= ratios[i]:
                ranges[i], open_[i] = (digits[i], digits[i] + count - 1, 1), False
                break
            if digits[i] or count % ratios[i]:
                return None
            ranges[i], open_[i] = (0, ratios[i] - 1, 1), False
            count //= ratios[i]
            i -= 1
    return tuple(ranges)


def ranges_meet(a: Range, b: Range) -> bool:
    """Whether two ranges share a number.

    >>> ranges_meet((0, 8, 2), (1, 9, 2)), ranges_meet((0, 8, 2), (3, 4, 1))
    (False, True)
    """
    low, high = max(a[0], b[0]), min(a[1], b[1])
    if low > high:
        return False
    if a[2] == 1 and b[2] == 1:
        return True
    if a[2] < b[2]:
        a, b = b, a
    # the first of the sparser one that is in reach
    first = a[0] + -(-(low - a[0]) // a[2]) * a[2]
    tries = range(first, high + 1, a[2])[: b[2]]
    return any((number - b[0]) % b[2] == 0 for number in tries)


def boxes_meet(a: Box, b: Box) -> bool:
    """Whether two boxes share a byte."""
    return all(map(ranges_meet, a, b))


def range_holds(a: Range, b: Range) -> bool:
    """Whether range ``a`` has every number of ``b``."""
    if a[0] > b[0] or a[1] < b[1]:
        return False
    return a[2] == 1 or ((b[0] - a[0]) % a[2] == 0 and (b[2] % a[2] == 0 or b[0] == b[1]))


def box_holds(a: Box, b: Box) -> bool:
    """Whether box ``a`` has every byte of ``b``."""
    return all(map(range_holds, a, b))


def regions_meet(a: Region, b: Region) -> bool:
    """Whether two regions of any form share a byte; True where it would be too costly to find out."""
    if a.start >= b.stop or b.start >= a.stop:
        return False
    left, right = _bytes(a), _bytes(b)
    if left is None or right is None:
        return True
    return bool(np.isin(left, right, assume_unique=False).any())


def _bytes(area: Region) -> Addresses | None:
    total = 1
    for _, count in area.dims:
        total *= count
    return None if total > ENUMERATE_BYTES else every_byte(area)


def every_byte(area: Region) -> Addresses:
    """The address of every byte of a region.

    >>> every_byte(Region(4, ((1, 2), (8, 2)))).tolist()
    [4, 12, 5, 13]
    """
    addresses = np.array([area.start], dtype=np.int64)
    for step, count in area.dims:
        addresses = (addresses[:, None] + np.arange(count, dtype=np.int64) * step).reshape(-1)
    return addresses


def bytes_of(area: Region) -> slice | Addresses:
    """The region as an index into an array of bytes."""
    if len(area.dims) == 1 and area.dims[0][0] == 1:
        return slice(area.start, area.stop)
    return every_byte(area)


# ---------------------------------------------------------------- buffers


class Write(NamedTuple):
    """One write: the value it made, the region, and the region as a box if it is one."""

    value: int
    area: Region
    box: Box | None


class SmallBuffer:
    """A small block of memory, of which the writer of every byte is known: exact whatever the views."""

    def __init__(self, base: int, size: int, inert: Callable[[], bool]) -> None:
        self.base = self.newest = base
        # nothing leads to the base, so that naming it costs no precision
        self.inert = False
        self._base_inert = inert
        # no write to a small buffer is ever guessed
        self.guessed = 0
        # partial writes since the last whole one
        self.chain = 0
        self.size = max(size, 1)
        # the one value whose bytes fill it, if there is one
        self.sole: int | None = base
        # otherwise the value that wrote each byte
        self.owner: Addresses | None = None

    def write(self, value: int, area: Region | None) -> bool:
        """Add a write; whether it left part of the buffer as it was."""
        if area is None:
            return False
        self.newest = value
        if area.start == 0 and len(area.dims) == 1 and area.stop >= self.size:
            self.sole, self.owner, self.size = value, None, area.stop
            self.chain, self.inert = 0, False
            return False
        if self.owner is None:
            self.inert = self.sole == self.base and self._base_inert()
            self.owner = np.full(self.size, self.sole, dtype=np.int64)
            self.sole = None
        # the block was made larger
        if area.stop > self.size:
            grown = np.full(area.stop - self.size, self.base, dtype=np.int64)
            self.owner = np.concatenate([self.owner, grown])
            self.size = area.stop
        self.owner[bytes_of(area)] = value
        self.chain += 1
        return True

    def origins(self, area: Region | None) -> tuple[int, ...] | None:
        """The values whose bytes the region holds, oldest first; None means the newest version with all it carries."""
        if area is None:
            return ()
        if self.owner is None:
            assert self.sole is not None
            return (self.sole,)
        owners = self.owner[bytes_of(area)] if area.stop <= self.size else self.owner
        values = sorted(set(owners.tolist()))
        if len(values) > MANY and len(values) >= self.chain + (0 if self.inert else 1):
            return None
        return tuple(values)


class Buffer:
    """A block of memory written piece by piece, in time order.

    The pieces are kept by one digit of their address (the one in which the first partial write is
    smallest), so that a loop over rows, columns or positions finds its pieces by bisection.
    """

    def __init__(
        self, base: int, size: int, inert: Callable[[], bool], radices: Callable[[], tuple[int, ...]]
    ) -> None:
        self.size = size
        self.base = self.newest = base
        self.guessed = 0
        # nothing leads to the base, so that naming it costs no precision
        self.inert = False
        self.radices: tuple[int, ...] = ()
        # asked at the first partial write: most buffers never see one
        self._base_inert, self._radices = inert, radices
        self._reset(Write(base, Region(0, ((1, max(size, 1)),)), None))

    def _reset(self, write: Write) -> None:
        """Begin anew with a write of the whole buffer."""
        self.bottom = write
        # a cell is a range of the key digit; here where each begins, and the writes visible in it, oldest first
        self.starts = [0]
        self.stacks: list[tuple[Write, ...]] = [(write,)]
        # in how many cells each value is visible
        self.cells = {write.value: 1}
        # partial writes since this one
        self.chain = 0
        # the digit of the address that pieces are kept by, -1 before the first partial write
        self.key = -1
        # the smallest box around all partial writes, None where one is no box
        self.hull: Box | None = None

    def write(self, value: int, area: Region | None) -> bool:
        """Add a write; whether it left part of the buffer as it was."""
        if area is None:
            return False
        if area.start == 0 and area.dims == ((1, self.size),):
            self._reset(Write(value, area, None))
            self.newest = value
            self.inert = False
            return False
        if not self.radices:
            self.radices = self._radices()
            self.inert = self.bottom.value == self.base and self._base_inert()
        box = box_of(area, self.radices)
        write = Write(value, area, box)
        if self.key < 0 and box is not None:
            self._choose_key(box)
        low, high = self._key_range(box)
        first, last = self._split(low), self._split(high + 1)
        for cell in range(first, last):
            old = self.stacks[cell]
            kept = tuple(piece for piece in old if not self._hides(write, piece))
            for piece in old:
                if piece not in kept:
                    self._drop(piece)
            self.stacks[cell] = (*kept, write)
        self.cells[value] = last - first
        self.chain += 1
        self.newest = value
        if box is None:
            self.hull = None
            self.guessed += 1
        elif self.hull is None:
            self.hull = box if self.chain == 1 else None
        else:
            self.hull = tuple(
                (min(a[0], b[0]), max(a[1], b[1]), 1) for a, b in zip(self.hull, box, strict=True)
            )
        return True

    def origins(self, area: Region | None) -> tuple[int, ...] | None:
        """The values whose bytes the region holds, oldest first; None means the newest version with all it carries."""
        if area is None:
            return ()
        if self.chain == 0:
            return (self.bottom.value,)
        box = box_of(area, self.radices)
        if self.chain > MANY and self._takes_all(area, box):
            return None
        low, high = self._key_range(box)
        values: set[int] = set()
        cell = bisect_right(self.starts, low) - 1
        while cell < len(self.starts) and self.starts[cell] <= high:
            edge = self.starts[cell + 1] - 1 if cell + 1 < len(self.starts) else NO_END
            clipped = self._clip(box, self.starts[cell], edge)
            if clipped is not False:
                for piece in reversed(self.stacks[cell]):
                    if self._meets(piece, area, clipped):
                        values.add(piece.value)
                        if self._covers(piece, clipped):
                            break
            cell += 1
        return tuple(sorted(values))

    def _takes_all(self, area: Region, box: Box | None) -> bool:
        """Whether a region holds bytes of every write, so that the newest version with all it carries is exact."""
        if self.hull is None or box is None or not box_holds(box, self.hull):
            return False
        all_live = len(self.cells) >= self.chain + 1 and self.bottom.value in self.cells
        if not all_live and not (self.inert and len(self.cells) >= self.chain):
            return False
        return self.inert or (area.start == 0 and area.dims == ((1, self.size),))

    def _choose_key(self, box: Box) -> None:
        """Keep pieces by the digit of which this box takes the smallest share."""
        extents = [max(self.size // self.radices[0], 1)]
        extents += [self.radices[i - 1] // self.radices[i] for i in range(1, len(self.radices))]
        share = [(last - first + 1) / extent for (first, last, _), extent in zip(box, extents, strict=True)]
        self.key = share.index(min(share))

    def _key_range(self, box: Box | None) -> tuple[int, int]:
        """The first and the last of the key digit in a box; everything for what is no box."""
        if box is None or self.key < 0:
            return 0, NO_END - 2
        return box[self.key][0], box[self.key][1]

    def _split(self, at: int) -> int:
        """Make a cell begin at ``at`` and return its index."""
        index = bisect_left(self.starts, at)
        if index == len(self.starts) or self.starts[index] != at:
            if at >= NO_END - 1:
                return len(self.starts)
            self.starts.insert(index, at)
            self.stacks.insert(index, self.stacks[index - 1])
            for piece in self.stacks[index]:
                self.cells[piece.value] += 1
        return index

    def _drop(self, piece: Write) -> None:
        """Note that a write is no longer visible in one of its cells."""
        self.cells[piece.value] -= 1
        if not self.cells[piece.value]:
            del self.cells[piece.value]

    def _hides(self, over: Write, under: Write) -> bool:
        """Whether a write leaves nothing of an older one within a cell that its key range fills."""
        if over.box is None:
            return over.area == under.area
        if over.box[self.key][2] != 1:
            return over.box == under.box
        if under.box is None:
            if under is not self.bottom:
                return over.area == under.area
            return self._fills(over.box)
        return all(
            range_holds(a, b)
            for i, (a, b) in enumerate(zip(over.box, under.box, strict=True))
            if i != self.key
        )

    def _fills(self, box: Box) -> bool:
        """Whether a box takes every byte of the cells in its key range."""
        for i, (first, last, step) in enumerate(box):
            if i == self.key:
                continue
            extent = self.radices[i - 1] // self.radices[i] if i else max(-(-self.size // self.radices[0]), 1)
            if first or step != 1 or last < extent - 1:
                return False
        return True

    def _clip(self, box: Box | None, low: int, high: int) -> Box | bool | None:
        """The part of a box in one cell: None if it is no box, False if nothing of it lies there."""
        if box is None or self.key < 0:
            return None
        first, last, step = box[self.key]
        if first < low:
            first += -(-(low - first) // step) * step
        last = min(last, high)
        if first > last:
            return False
        return (*box[: self.key], (first, last, step), *box[self.key + 1 :])

    def _meets(self, piece: Write, area: Region, clipped: Box | bool | None) -> bool:
        """Whether a write shares a byte with the part of a region in one cell."""
        if piece is self.bottom:
            return True
        if piece.box is not None and isinstance(clipped, tuple):
            return boxes_meet(piece.box, clipped)
        return regions_meet(piece.area, area)

    def _covers(self, piece: Write, clipped: Box | bool | None) -> bool:
        """Whether a write has every byte of the part of a region in one cell, as far as that can be said."""
        return piece.box is not None and isinstance(clipped, tuple) and box_holds(piece.box, clipped)


# ---------------------------------------------------------------- edges


class ValueMemory(NamedTuple):
    """The values of a run and the memory they lie on; ``maker`` is the node that made or wrote each, -1 for none."""

    storage: Ints
    offset: Ints
    type: Ints
    maker: Ints
    writes: Bools
    size: Ints
    types: list[TensorType]


def resolve_reads(
    memory: ValueMemory,
    reads: OpInputs,
    views: Callable[[int], dict[int, list[int]]],
    inert: Callable[[int], bool],
    aliases: Ints,
) -> tuple[OpInputs, Ints, int]:
    """The reads with hidden ones added, the older value that each value carries, and how many writes were guessed.

    ``views(node)`` gives the values a node returns that alias its inputs, by storage; ``inert(value)`` says whether
    a value was made from nothing but shapes; ``aliases`` are values that lie in known memory though no operation made
    them.
    """
    carries = np.full(len(memory.storage), -1, dtype=np.int64)
    written = np.unique(memory.storage[np.concatenate([np.flatnonzero(memory.writes), aliases])])
    if not len(written):
        return reads, carries, 0
    is_written = np.zeros(len(memory.size), dtype=bool)
    is_written[written] = True
    rows = np.flatnonzero(is_written[memory.storage[reads.value]])
    writes = np.flatnonzero(memory.writes)
    follower = _Follower(memory, carries, views, inert)
    # one walk through time: a node's reads come before its writes
    times = np.concatenate([reads.node[rows] * 2, memory.maker[writes] * 2 + 1])
    items = np.concatenate([rows, writes])
    kind = reads.kind.copy()
    hidden: list[tuple[int, int, int]] = []
    order = np.argsort(times, kind="stable")
    for time, item in zip(times[order].tolist(), items[order].tolist(), strict=True):
        if time & 1:
            follower.write(item)
        else:
            node = time >> 1
            if kind[item] == SHAPE:
                continue
            kind[item], others = follower.read(node, int(reads.value[item]))
            hidden.extend((node, value, other_kind) for value, other_kind in others)
    if hidden:
        unique = sorted(set(hidden))
        extra = np.array(unique, dtype=np.int64)
        reads = OpInputs(
            np.concatenate([reads.node, extra[:, 0]]),
            np.concatenate([reads.value, extra[:, 1]]),
            np.concatenate([reads.slot, np.full(len(extra), -1, dtype=np.int64)]),
            np.concatenate([kind, extra[:, 2]]),
        )
    else:
        reads = reads._replace(kind=kind)
    return reads, carries, follower.guessed


class _Follower:
    """Follows reads and writes of memory through time."""

    def __init__(
        self,
        memory: ValueMemory,
        carries: Ints,
        views: Callable[[int], dict[int, list[int]]],
        inert: Callable[[int], bool],
    ) -> None:
        self.memory = memory
        self.carries = carries
        self.views = views
        self.inert = inert
        self.buffers: dict[int, Buffer | SmallBuffer] = {}
        # for each view: the values whose bytes it showed when it was made
        self.view_origins: dict[int, tuple[int, ...] | None] = {}
        # the first value on each storage
        self.first = np.full(len(memory.size), -1, dtype=np.int64)
        # assigned from the last on, so that the first value stays
        self.first[memory.storage[::-1]] = np.arange(len(memory.storage))[::-1]
        self.guessed = 0
        # the node that was asked last, and its views by storage
        self.viewer = -1
        self.viewed: dict[int, list[int]] = {}

    def area(self, value: int) -> Region | None:
        row = self.memory.types[self.memory.type[value]]
        # a tensor without plain memory is read and written as one piece
        if row.layout != "strided":
            return Region(0, ((1, 1),))
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
                digits = partial(radices, row.shape, row.stride, row.itemsize or 1)
                buffer = Buffer(base, size, lambda: self.inert(base), digits)
            self.buffers[storage] = buffer
        return buffer

    def write(self, value: int) -> None:
        buffer = self.buffer(value)
        older, before = buffer.newest, buffer.guessed
        if buffer.write(value, self.area(value)):
            self.carries[value] = older
        self.guessed += buffer.guessed - before

    def read(self, node: int, value: int) -> tuple[int, list[tuple[int, int]]]:
        """What kind of read the value that a node names is, and which other values it reads through it, with kinds."""
        buffer = self.buffer(value)
        if node != self.viewer:
            self.viewer, self.viewed = node, self.views(node)
        views = self.viewed.get(int(self.memory.storage[value]), ())
        # a node that returns several views (a split) takes no bytes: the readers of each view do
        if len(views) > 1:
            return SHAPE, []
        origins = buffer.origins(self.area(views[0] if views else value))
        if views:
            self.view_origins[views[0]] = origins
        # a view that shows the same bytes as when it was made stands for them
        if value in self.view_origins and self.view_origins[value] == origins and not views:
            if origins is not None or buffer.newest < value:
                return DATA, []
        if origins is None:
            newest = buffer.newest
            return (WHOLE, []) if newest == value else (SHAPE, [(newest, WHOLE)])
        from_outside = self.memory.maker[value] < 0 and self.memory.maker[buffer.base] < 0
        others = [o for o in origins if o != value and not (from_outside and o == buffer.base)]
        kind = DATA if len(others) < len(origins) else SHAPE
        return kind, [(other, DATA) for other in others]
