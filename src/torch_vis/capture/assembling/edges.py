"""Who reads whose bytes: exact edges through views, aliases and in-place writes, in linear time.

Memory that is written once, by the operation that made it, needs no thought: every reader depends on the value it
names. Only buffers that were written again are followed write by write.

A tensor covers a region of its buffer: a start and, per dimension, a step and a count. The regions of all tensors that
ever lay in a buffer divide it into cells, and each cell holds the number of the last write to it. So edges are exact
whatever the views. What that may cost is bounded: a buffer has a budget of steps, and earns more of them with every
read and write. What goes beyond it is taken to depend on all that it might, and is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby, pairwise
from math import gcd, prod
from operator import itemgetter
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from torch_vis.capture.assembling.log import OpInputs
from torch_vis.graph.schema import Kind, TensorType
from torch_vis.graph.types import Bools, Ints

# numbers of writes
Writes = NDArray[np.int32]
# first, last, step
Range = tuple[int, int, int]
Box = tuple[Range, ...]
# the values that a region shows; None means the newest version with all that it carries
Origins = tuple[int, ...] | None
# plain numbers: enums are slow to look up
DATA, WHOLE, SHAPE = int(Kind.DATA), int(Kind.WHOLE), int(Kind.SHAPE)
# with more writers of one region than this, a reader names the newest version with all that it carries
MANY = 8
# beyond every address
NO_END = 1 << 62
# A step is a look at one cell, 1 to 2 ns. What a buffer may take at once, and what it earns with each read or write
FIRST_STEPS, STEPS_PER_ACCESS = 1 << 23, 1 << 15
# what a look at a region, at a write that may be anywhere in its span, and an edge of many take
STEPS, LOOSE_STEPS, EDGE_STEPS = 64, 32, 256
# most cells of a buffer; memory is taken only for those that are looked at
MOST_CELLS = 1 << 25
# most places at which boxes may begin or end in one digit of an address
MOST_CUTS = 1 << 20


# ---------------------------------------------------------------- regions


class Region(NamedTuple):
    """The bytes of a tensor: start, and ``(step, count)`` per dimension, smallest step first."""

    start: int
    dims: tuple[tuple[int, int], ...]

    @property
    def stop(self) -> int:
        """One past the last byte."""
        return self.start + sum(step * (count - 1) for step, count in self.dims) + 1

    def is_whole(self, size: int) -> bool:
        """Whether the region is all of a block of a size."""
        return self.start == 0 and len(self.dims) == 1 and self.dims[0][1] >= size

    def in_units(self, unit: int) -> Region:
        """The region counted in units of several bytes; a unit must divide its start, its steps and its runs."""
        (_, run), *dims = self.dims
        return Region(
            self.start // unit, ((1, run // unit), *((step // unit, count) for step, count in dims))
        )


def region(offset: int, shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> Region | None:
    """The region of a strided tensor, its dimensions merged where they run on or overlap; None if it has no elements.

    The first dimension is a run of bytes: its step is 1.

    >>> region(1, (2, 3), (3, 1), 4)
    Region(start=4, dims=((1, 24),))
    >>> region(0, (4,), (5,), 4)
    Region(start=0, dims=((1, 4), (20, 4)))
    >>> region(0, (7, 4), (2, 1), 4)
    Region(start=0, dims=((1, 64),))
    """
    if 0 in shape:
        return None
    steps = sorted(
        (step * itemsize, size) for step, size in zip(stride, shape, strict=True) if size > 1 and step
    )
    dims = [(1, itemsize)]
    for step, size in steps:
        last, count = dims[-1]
        if step % last == 0 and step <= last * count:
            dims[-1] = (last, count + step // last * (size - 1))
        else:
            dims.append((step, size))
    return Region(offset * itemsize, tuple(dims))


# ---------------------------------------------------------------- cells


def unit_of(areas: Iterable[Region]) -> int:
    """The largest unit in bytes that no region begins or ends inside of.

    >>> unit_of([Region(16, ((1, 8), (32, 4))), Region(0, ((1, 64),))])
    8
    """
    unit = 0
    for area in areas:
        unit = gcd(unit, area.start, area.dims[0][1], *(step for step, _ in area.dims[1:]))
    return max(unit, 1)


def radices_of(areas: Iterable[Region]) -> tuple[int, ...]:
    """The digits in which most regions are boxes: the steps that most regions have, each a divisor of the next.

    >>> radices_of([Region(0, ((1, 2), (8, 4))), Region(2, ((1, 2), (8, 4))), Region(0, ((1, 1), (3, 2)))])
    (8, 1)
    """
    counts = Counter(step for area in areas for step, count in area.dims[1:] if count > 1)
    digits = [1]
    for step, _ in counts.most_common():
        if step not in digits and all(step % other == 0 or other % step == 0 for other in digits):
            digits.append(step)
    return tuple(sorted(digits, reverse=True))


def box_of(area: Region, radices: tuple[int, ...]) -> Box | None:
    """The region as a range per digit of the address, largest digit first; None where it is no box in these digits.

    >>> box_of(Region(4, ((1, 4), (12, 2))), (12, 4, 1))
    ((0, 1, 1), (1, 1, 1), (0, 3, 1))
    """
    ratios = [NO_END, *(larger // smaller for larger, smaller in pairwise(radices))]
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


class Cells:
    """The cells that the views of a block divide it into, the last write to each, and which of them each view shows.

    Where all views are boxes in the digits of one mixed-radix address, a cell is a box as well, between places where
    some view begins or ends: a cache that is filled position by position has one per position, however large it is.
    Otherwise a cell is the most bytes that no view divides. Where that would be too many cells, views that are no
    boxes have none.
    """

    def __init__(self, areas: Iterable[Region], most: int) -> None:
        # for each region the cells that it shows, as a part of one array of numbers of writes
        self.shown: dict[Region, Writes] = {}
        # for each region the first cell that it shows and one past the last in each digit, where cells are boxes
        self.bounds: dict[Region, list[tuple[int, int]]] = {}
        unit = unit_of(areas)
        counted = {area: area.in_units(unit) for area in areas}
        radices = radices_of(counted.values())
        boxes = {area: box_of(in_units, radices) for area, in_units in counted.items()}
        is_grid = all(box is not None for box in boxes.values())
        if not (is_grid and self._fill_grid(boxes, len(radices), most)):
            count = max((area.stop for area in counted.values()), default=0)
            if count <= most:
                self._fill_line(counted, count)
            elif not is_grid:
                self._fill_grid(boxes, len(radices), most)

    def _fill_grid(self, boxes: dict[Region, Box | None], digits: int, most: int) -> bool:
        """Make cells between the ends of all boxes; False where these are too many."""
        cuts: list[set[int]] = [{0} for _ in range(digits)]
        # where a box has steps, every place is a cell
        stepped = [(NO_END, 0)] * digits
        for box in boxes.values():
            for digit, (first, last, step) in enumerate(box or ()):
                cuts[digit].update((first, last + 1))
                if step > 1:
                    stepped[digit] = min(stepped[digit][0], first), max(stepped[digit][1], last + 1)
        if any(stop - start > MOST_CUTS for start, stop in stepped):
            return False
        ordered = [sorted(points.union(range(*ends))) for points, ends in zip(cuts, stepped, strict=True)]
        if prod(map(len, ordered)) > most:
            return False
        index = [{point: number for number, point in enumerate(points)} for points in ordered]
        owner = np.zeros([len(points) for points in ordered], dtype=np.int32)
        for area, box in boxes.items():
            if box is not None:
                ends = [(at[first], at[last + 1]) for at, (first, last, _) in zip(index, box, strict=True)]
                steps = [step for _, _, step in box]
                self.shown[area] = owner[tuple(map(slice, *zip(*ends, strict=True), steps))]
                self.bounds[area] = ends
        return True

    def _fill_line(self, counted: dict[Region, Region], count: int) -> None:
        """Make a cell of each unit."""
        owner = np.zeros(count, dtype=np.int32)
        width = owner.itemsize
        for area, (start, dims) in counted.items():
            counts, steps = [count for _, count in dims], [step * width for step, _ in dims]
            self.shown[area] = np.ndarray(counts, owner.dtype, owner, start * width, steps)


# ---------------------------------------------------------------- buffers


class Buffer:
    """A block of memory in time: which write each of its cells holds, as far as its budget allows to follow that.

    Writes are numbered from 0, which is the block as it was first seen. Every read and write earns steps, and looking
    at a cell or naming a write takes some. A read that costs more than is left names the newest version with all that
    it carries, and a write that costs more is taken to be anywhere in its span: ``guessed`` says so of the last read.
    """

    def __init__(self, base: int, size: int, inert: Callable[[], bool], areas: Iterable[Region]) -> None:
        self.base = self.newest = base
        self.size = size
        # the steps that it has earned and taken
        self.earned, self.taken = FIRST_STEPS, 0
        self.guessed = False
        # the value that each write made
        self._values = [base]
        # the number of the last write of the whole block: cells with smaller numbers hold it
        self._bottom = 0
        self._base_inert = inert
        self._areas = areas
        # made at the first partial write: most buffers never see one
        self._cells: Cells | None = None
        # origins that were asked for, with the write that was the newest then
        self._known: dict[Region, tuple[int, Origins, bool]] = {}
        self._begin()

    def _begin(self) -> None:
        """Forget all partial writes, since the whole block has been written."""
        # nothing leads to what the partial writes were laid over, so that naming it costs no precision
        self.inert = False
        # partial writes that are taken to be anywhere in their span: number, first byte, one past the last
        self._loose: list[tuple[int, int, int]] = []
        # whether no two partial writes overlap, how many cells they have, and their bounds in each digit
        self._disjoint = True
        self._written = 0
        self._hull: list[tuple[int, int]] | None = None

    @property
    def _chain(self) -> int:
        """How many partial writes there were since the last whole one."""
        return len(self._values) - 1 - self._bottom

    def _take(self, steps: int) -> bool:
        """Take steps from the budget; False where there are not as many."""
        if self.taken + steps > self.earned:
            return False
        self.taken += steps
        return True

    def write(self, value: int, area: Region | None) -> bool:
        """Add a write; returns whether it left a part of the buffer as it was."""
        self.earned += STEPS_PER_ACCESS
        if area is None:
            return False
        self.newest = value
        number = len(self._values)
        self._values.append(value)
        if area.is_whole(self.size):
            self._bottom = number
            self._begin()
            return False
        if self._cells is None:
            self._cells = Cells(self._areas, MOST_CELLS)
        if self._chain == 1:
            self.inert = self._bottom == 0 and self._base_inert()
        shown = self._cells.shown.get(area)
        if shown is None or not self._take(STEPS + shown.size):
            self._loose.append((number, area.start, area.stop))
            return True
        self._disjoint = self._disjoint and bool(shown.max() <= self._bottom)
        self._written += shown.size
        shown[...] = number
        bounds = self._cells.bounds.get(area)
        if self._chain == 1:
            self._hull = bounds
        elif bounds is None or self._hull is None:
            self._hull = None
        else:
            self._hull = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(self._hull, bounds, strict=True)]
        return True

    def origins(self, area: Region | None) -> Origins:
        """The values whose bytes the region holds, oldest first; None means the newest version with all it carries."""
        self.earned += STEPS_PER_ACCESS
        self.guessed = False
        if area is None:
            return ()
        if not self._chain:
            return (self._values[self._bottom],)
        newest = len(self._values) - 1
        known = self._known.get(area)
        if known is None or known[0] != newest:
            origins = self._find(area)
            known = self._known[area] = newest, origins, self.guessed
        _, origins, self.guessed = known
        return origins

    def _find(self, area: Region) -> Origins:
        assert self._cells is not None
        shown = self._cells.shown.get(area)
        if shown is not None and self._takes_all(area, shown.size):
            return None
        if shown is None or not self._take(STEPS + shown.size + LOOSE_STEPS * len(self._loose)):
            self.guessed = True
            return None
        numbers = self._numbers(shown)
        stop = area.stop
        loose = [number for number, first, end in self._loose if first < stop and area.start < end]
        numbers = sorted({*numbers, *loose}) if loose else numbers
        self.guessed = bool(loose)
        partial = len(numbers) - (numbers[0] == self._bottom)
        # each write is there, and what they were laid over is there as well or does not matter
        if len(numbers) > MANY and partial == self._chain and (self.inert or partial < len(numbers)):
            return None
        if len(numbers) > MANY and not self._take(EDGE_STEPS * len(numbers)):
            self.guessed = True
            return None
        return tuple(map(self._values.__getitem__, numbers))

    def _takes_all(self, area: Region, cells: int) -> bool:
        """Whether a region holds bytes of every write, as far as that is seen without a look at its cells.

        The newest version with all that it carries is exact then.
        """
        if self._chain <= MANY or self._hull is None or self._loose or not self._disjoint:
            return False
        assert self._cells is not None
        bounds = self._cells.bounds[area]
        if any(a > c or b < d for (a, b), (c, d) in zip(bounds, self._hull, strict=True)):
            return False
        # cells between the steps of a region are not its own
        if cells < prod(b - a for a, b in bounds):
            return False
        return self.inert or cells > self._written

    def _numbers(self, shown: Writes) -> list[int]:
        """The numbers of the writes that cells hold, in order."""
        numbers = np.maximum(shown, self._bottom).reshape(-1)
        # a table of all writes since is faster than sorting, unless it is larger than what there is to sort
        if self._chain > 8 * len(numbers):
            return cast(list[int], np.unique(numbers).tolist())
        is_there = np.zeros(self._chain + 1, dtype=bool)
        is_there[numbers - self._bottom] = True
        return (np.flatnonzero(is_there) + self._bottom).tolist()


# ---------------------------------------------------------------- edges


class ValueMemory(NamedTuple):
    """The values of a run and the memory they lie on; ``producer`` is the node that made or wrote each, -1 for none."""

    storage: Ints
    offset: Ints
    type: Ints
    producer: Ints
    writes: Bools
    size: Ints
    types: list[TensorType]


class GuessedReads(NamedTuple):
    """A block of memory of which reads name more writes than they may have to: its first value, and the readers."""

    base: int
    nodes: list[int]


class ResolvedReads(NamedTuple):
    """The reads with hidden ones added, the older value that each value carries, and what was guessed."""

    reads: OpInputs
    carries: Ints
    guesses: list[GuessedReads]
    # how many steps of the budgets were used
    steps: int


class Access(NamedTuple):
    """A read or a write of a block: when, of which value, its row among the reads, and the tensor whose region it is.

    ``shown`` is -1 for an operation that returns several views, which takes no bytes itself.
    """

    node: int
    value: int
    row: int
    shown: int
    is_write: bool
    is_view: bool


def resolve_reads(
    memory: ValueMemory,
    reads: OpInputs,
    views: tuple[Ints, Ints],
    inert: Callable[[int], bool],
    aliases: Ints,
) -> ResolvedReads:
    """Follow all memory that is written more than once through time.

    ``views`` are nodes that return a value that aliases their inputs, and those values; ``inert(value)`` says whether
    a value was made from nothing but shapes; ``aliases`` are values that lie in known memory though no operation made
    them.
    """
    carries = np.full(len(memory.storage), -1, dtype=np.int64)
    is_written = np.zeros(len(memory.size), dtype=bool)
    is_written[memory.storage[memory.writes]] = True
    is_written[memory.storage[aliases]] = True
    if not is_written.any():
        return ResolvedReads(reads, carries, [], 0)
    follower = _Follower(memory, carries, inert, reads.kind.copy())
    for storage, accesses in groupby(_accesses(memory, reads, views, is_written), itemgetter(0)):
        follower.follow(storage, [access for _, access in accesses])
    kind, hidden = follower.kind, follower.hidden()
    reads = OpInputs(
        np.concatenate([reads.node, hidden.node]),
        np.concatenate([reads.value, hidden.value]),
        np.concatenate([reads.slot, hidden.slot]),
        np.concatenate([kind, hidden.kind]),
    )
    return ResolvedReads(reads, carries, follower.guesses, follower.steps)


def _accesses(
    memory: ValueMemory, reads: OpInputs, views: tuple[Ints, Ints], is_written: Bools
) -> Iterator[tuple[int, Access]]:
    """What is read and written in each storage that is written more than once, by storage, then by time."""
    viewers, viewed = (column[is_written[memory.storage[views[1]]]] for column in views)
    views_of: dict[tuple[int, int], list[int]] = {}
    for node, storage, value in zip(viewers.tolist(), memory.storage[viewed].tolist(), viewed.tolist()):
        views_of.setdefault((node, storage), []).append(value)
    rows = np.flatnonzero(is_written[memory.storage[reads.value]] & (reads.kind != SHAPE))
    writes = np.flatnonzero(memory.writes)
    # a node's reads come before its writes
    times = np.concatenate([reads.node[rows] * 2, memory.producer[writes] * 2 + 1])
    items = np.concatenate([rows, writes])
    values = np.concatenate([reads.value[rows], writes])
    order = np.lexsort((times, memory.storage[values]))
    columns = (column[order].tolist() for column in (memory.storage[values], times, items, values))
    for storage, time, item, value in zip(*columns, strict=True):
        node, is_write = time >> 1, bool(time & 1)
        shown_views = () if is_write else views_of.get((node, storage), ())
        shown = value if not shown_views else shown_views[0] if len(shown_views) == 1 else -1
        yield storage, Access(node, value, item, shown, is_write, bool(shown_views))


class _Follower:
    """Follows reads and writes of memory through time, one block after the other."""

    def __init__(self, memory: ValueMemory, carries: Ints, inert: Callable[[int], bool], kind: Ints) -> None:
        self.memory = memory
        self.carries = carries
        self.inert = inert
        self.kind = kind
        self.guesses: list[GuessedReads] = []
        self.steps = 0
        # edges that no argument names: reader, value, kind
        self._hidden: tuple[list[int], list[int], list[int]] = [], [], []
        # the first value on each storage, assigned from the last on, so that the first stays
        self._first = np.full(len(memory.size), -1, dtype=np.int64)
        self._first[memory.storage[::-1]] = np.arange(len(memory.storage))[::-1]
        # regions by offset and type
        self._regions: dict[tuple[int, int], Region | None] = {}
        # lists are faster to look at one by one
        self._offset, self._type = memory.offset.tolist(), memory.type.tolist()

    def follow(self, storage: int, accesses: list[Access]) -> None:
        """Follow one block from its first access to its last."""
        base = int(self._first[storage])
        strided = self.memory.types[self._type[base]].layout == "strided"
        size = int(self.memory.size[storage]) if strided else 1
        areas = [self._area(access.shown) for access in accesses]
        buffer = Buffer(base, size, lambda: self.inert(base), {area for area in areas if area is not None})
        from_outside = bool(self.memory.producer[base] < 0)
        # for each view: the values whose bytes it showed when it was made
        seen: dict[int, Origins] = {}
        guessed: list[int] = []
        for access, area in zip(accesses, areas, strict=True):
            if access.is_write:
                older = buffer.newest
                if buffer.write(access.value, area):
                    self.carries[access.value] = older
            # a node that returns several views (a split) takes no bytes: the readers of each view do
            elif access.shown < 0:
                self.kind[access.row] = SHAPE
            elif self._read(access, buffer, buffer.origins(area), seen, from_outside) and buffer.guessed:
                guessed.append(access.node)
        self.steps += buffer.taken
        if guessed:
            self.guesses.append(GuessedReads(base, guessed))

    def _read(
        self, access: Access, buffer: Buffer, origins: Origins, seen: dict[int, Origins], from_outside: bool
    ) -> bool:
        """Note of which kind a read is and which other values it names; False where it names nothing but a view."""
        node, value, newest = access.node, access.value, buffer.newest
        if access.is_view:
            seen[access.shown] = origins
        # a view that shows the same bytes as when it was made stands for them; an empty one shows none
        elif (
            origins != ()
            and value in seen
            and seen[value] == origins
            and (origins is not None or newest < value)
        ):
            return False
        if origins is None:
            self.kind[access.row] = WHOLE if newest == value else SHAPE
            self._add_hidden(node, () if newest == value else (newest,), WHOLE)
            return True
        outside = buffer.base if from_outside and self.memory.producer[value] < 0 else -1
        others = [origin for origin in origins if origin != value and origin != outside]
        if len(others) == len(origins):
            self.kind[access.row] = SHAPE
        self._add_hidden(node, others, DATA)
        return True

    def _add_hidden(self, node: int, values: Collection[int], kind: int) -> None:
        for column, items in zip(self._hidden, ([node] * len(values), values, [kind] * len(values))):
            column.extend(items)

    def hidden(self) -> OpInputs:
        """The edges that no argument names, each once."""
        node, value, kind = (np.array(column, dtype=np.int64) for column in self._hidden)
        order = np.lexsort((kind, value, node))
        node, value, kind = node[order], value[order], kind[order]
        is_new = np.ones(len(order), dtype=bool)
        is_new[1:] = (np.diff(node) != 0) | (np.diff(value) != 0) | (np.diff(kind) != 0)
        slot = np.full(int(is_new.sum()), -1, dtype=np.int64)
        return OpInputs(node[is_new], value[is_new], slot, kind[is_new])

    def _area(self, value: int) -> Region | None:
        if value < 0:
            return None
        key = self._offset[value], self._type[value]
        if key not in self._regions:
            row = self.memory.types[key[1]]
            # a tensor without plain memory is read and written as one piece
            self._regions[key] = (
                region(key[0], row.shape, row.stride, row.itemsize or 1)
                if row.layout == "strided"
                else Region(0, ((1, 1),))
            )
        return self._regions[key]
