"""Which bytes of a buffer a tensor covers, and which of two tensors cover the same.

A tensor covers a region of its buffer: a start and, per dimension, a step and a count. Regions that are slices of one
layout become boxes (a range per digit of a mixed-radix byte address), and boxes can be compared exactly. What does not
fit that form is compared byte by byte while it is small, and otherwise taken to overlap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_vis.graph.types import Ints

Addresses = Ints
# first, last, step
Range = tuple[int, int, int]
Box = tuple[Range, ...]
ENUMERATE_BYTES = 1 << 18


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
