"""Which bytes of a buffer were last written by whom: byte by byte in a small one, piece by piece in a large one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from torch_vis.capture.assembling.regions import (
    Addresses,
    Box,
    Region,
    box_holds,
    box_of,
    boxes_meet,
    bytes_of,
    range_holds,
    regions_meet,
)

SMALL_BYTES = 1 << 14
MANY = 8  # writers of one region, above which a reader names the newest version with all that it carries


class Write(NamedTuple):
    """One write: the value it made, the region, and the region as a box if it is one."""

    value: int
    area: Region
    box: Box | None


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
