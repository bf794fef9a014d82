"""Which bytes of a buffer were last written by whom.

A tensor covers a region of its buffer: a start and, per dimension, a step and a count. Regions that are slices of one
layout become boxes (a range per digit of a mixed-radix byte address), and boxes can be compared exactly. What does not
fit that form is compared byte by byte while it is small, and otherwise taken to overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.int64]
Range = tuple[int, int, int]  # first, last, step
Box = tuple[Range, ...]
ENUMERATE_BYTES = 1 << 18
SMALL_BYTES = 1 << 14
MANY = 8


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
    """The place values of a buffer's byte addresses, largest first.

    >>> radices((2, 3), (3, 1), 4)
    (12, 4, 1)
    """
    found = [1]
    for step in sorted(
        {s * itemsize for s, size in zip(stride, shape, strict=True) if size > 1 and s} | {itemsize}
    ):
        if step > found[-1] and step % found[-1] == 0:
            found.append(step)
    return tuple(reversed(found))


def box_of(area: Region, places: tuple[int, ...]) -> Box | None:
    """The region as a range per digit, None where it is no box in these place values.

    >>> box_of(region(0, (2, 2), (3, 1), 4), (12, 4, 1))
    ((0, 1, 1), (0, 1, 1), (0, 3, 1))
    """
    ratios = [1 << 62] + [places[i - 1] // places[i] for i in range(1, len(places))]
    digits = [area.start // place % ratio for place, ratio in zip(places, ratios, strict=True)]
    ranges: list[Range] = [(digit, digit, 1) for digit in digits]
    open_ = [True] * len(places)
    for step, count in area.dims:
        if count == 1:
            continue
        i = next(i for i, place in enumerate(places) if place <= step)
        if step % places[i] or not open_[i]:
            return None
        stride = step // places[i]
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
    first = a[0] + -(-(low - a[0]) // a[2]) * a[2]  # the first of the sparser one that is in reach
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
    """Whether two regions of any form share a byte; True when that is too costly to tell."""
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
    found = np.array([area.start], dtype=np.int64)
    for step, count in area.dims:
        found = (found[:, None] + np.arange(count, dtype=np.int64) * step).reshape(-1)
    return found


class Write(NamedTuple):
    """One write: the value it made, the region, and the region as a box if it is one."""

    value: int
    area: Region
    box: Box | None


def bytes_of(area: Region) -> slice | Addresses:
    """The region as an index into an array of bytes."""
    if len(area.dims) == 1 and area.dims[0][0] == 1:
        return slice(area.start, area.stop)
    return every_byte(area)


class SmallBuffer:
    """A small block of memory written piece by piece: the writer of every byte, which is exact whatever the views."""

    def __init__(self, base: int, size: int, inert: Callable[[], bool]) -> None:
        self.base = self.newest = base
        self.inert = False
        self._base_inert = inert
        self.guessed = 0
        self.chain = 0
        self.size = max(size, 1)
        self.sole: int | None = base  # who wrote all of it, if it was one write
        self.owner: Addresses | None = None

    def write(self, value: int, area: Region | None) -> bool:
        """Note a write; whether it left part of the buffer as it was."""
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
        if area.stop > self.size:  # the block was made larger
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
        held = self.owner[bytes_of(area)] if area.stop <= self.size else self.owner
        found = sorted(set(held.tolist()))
        if len(found) > MANY and len(found) >= self.chain + (0 if self.inert else 1):
            return None
        return tuple(found)


class Buffer:
    """A block of memory written piece by piece, in time order.

    The pieces are kept by one digit of their address (the one in which the first partial write is
    smallest), so that a loop over rows, columns or positions finds its pieces by bisection.
    """

    def __init__(
        self, base: int, size: int, inert: Callable[[], bool], places: Callable[[], tuple[int, ...]]
    ) -> None:
        self.size = size
        self.base = self.newest = base
        self.guessed = 0
        self.inert = False  # nothing leads to the base, so that naming it costs no precision
        self.places: tuple[int, ...] = ()
        self._base_inert, self._places = (
            inert,
            places,
        )  # asked at the first partial write: most buffers never see one
        self._reset(Write(base, Region(0, ((1, max(size, 1)),)), None))

    def _reset(self, write: Write) -> None:
        self.bottom = write
        self.starts = [0]
        self.stacks: list[tuple[Write, ...]] = [(write,)]
        self.cells = {write.value: 1}
        self.chain = 0
        self.key = -1
        self.hull: Box | None = None

    def write(self, value: int, area: Region | None) -> bool:
        """Note a write; whether it left part of the buffer as it was."""
        if area is None:
            return False
        if area.start == 0 and area.dims == ((1, self.size),):
            self._reset(Write(value, area, None))
            self.newest = value
            self.inert = False
            return False
        if not self.places:
            self.places = self._places()
            self.inert = self.bottom.value == self.base and self._base_inert()
        box = box_of(area, self.places)
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
        box = box_of(area, self.places)
        if self.chain > MANY and self._takes_all(area, box):
            return None
        low, high = self._key_range(box)
        found: dict[int, None] = {}
        cell = bisect_right(self.starts, low) - 1
        while cell < len(self.starts) and self.starts[cell] <= high:
            edge = self.starts[cell + 1] - 1 if cell + 1 < len(self.starts) else 1 << 62
            here = self._clip(box, self.starts[cell], edge)
            if here is not False:
                for piece in reversed(self.stacks[cell]):
                    if self._meets(piece, area, here):
                        found[piece.value] = None
                        if self._covers(piece, here):
                            break
            cell += 1
        return tuple(sorted(found))

    def _takes_all(self, area: Region, box: Box | None) -> bool:
        if self.hull is None or box is None or not box_holds(box, self.hull):
            return False
        all_live = len(self.cells) >= self.chain + 1 and self.bottom.value in self.cells
        if not all_live and not (self.inert and len(self.cells) >= self.chain):
            return False
        return self.inert or (area.start == 0 and area.dims == ((1, self.size),))

    def _choose_key(self, box: Box) -> None:
        extents = [max(self.size // self.places[0], 1)]
        extents += [self.places[i - 1] // self.places[i] for i in range(1, len(self.places))]
        share = [(last - first + 1) / extent for (first, last, _), extent in zip(box, extents, strict=True)]
        self.key = share.index(min(share))

    def _key_range(self, box: Box | None) -> tuple[int, int]:
        if box is None or self.key < 0:
            return 0, (1 << 62) - 2
        return box[self.key][0], box[self.key][1]

    def _split(self, at: int) -> int:
        """Make a cell begin at ``at`` and return its place."""
        place = bisect_left(self.starts, at)
        if place == len(self.starts) or self.starts[place] != at:
            if at >= (1 << 62) - 1:
                return len(self.starts)
            self.starts.insert(place, at)
            self.stacks.insert(place, self.stacks[place - 1])
            for piece in self.stacks[place]:
                self.cells[piece.value] += 1
        return place

    def _drop(self, piece: Write) -> None:
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
            extent = self.places[i - 1] // self.places[i] if i else max(-(-self.size // self.places[0]), 1)
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

    def _meets(self, piece: Write, area: Region, here: Box | bool | None) -> bool:
        if piece is self.bottom:
            return True
        if piece.box is not None and isinstance(here, tuple):
            return boxes_meet(piece.box, here)
        return regions_meet(piece.area, area)

    def _covers(self, piece: Write, here: Box | bool | None) -> bool:
        return piece.box is not None and isinstance(here, tuple) and box_holds(piece.box, here)
