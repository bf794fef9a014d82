"""Which parameter, buffer or gradient a piece of memory belongs to, where it is read through another tensor."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import torch

from torch_vis.graph.schema import Role, TensorType

# a role and the number of a name
Owner = tuple[Role, int]


class ByteSpan(NamedTuple):
    """The first byte of a tensor in its storage and one past its last; all of it where the tensor does not say."""

    start: float = 0
    end: float = float("inf")


def span_of(tensor: torch.Tensor) -> ByteSpan:
    """The bytes of a tensor."""
    try:
        offset, shape = int(tensor.storage_offset()), tuple(tensor.shape)
        return _span(offset, shape, tensor.stride(), tensor.element_size())
    except (RuntimeError, NotImplementedError):
        return ByteSpan()


def span_at(offset: int, type_: TensorType) -> ByteSpan:
    """The bytes of a tensor of a type at an offset.

    >>> span_at(2, TensorType("float32", (2, 3), (4, 1)))
    ByteSpan(start=8, end=36)
    """
    if type_.layout != "strided" or type_.itemsize is None:
        return ByteSpan()
    return _span(offset, type_.shape, type_.stride, type_.itemsize)


def _span(offset: int, shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> ByteSpan:
    elements = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))
    return ByteSpan(offset * itemsize, (offset + elements) * itemsize)


class NamedMemory:
    """Named tensors by the memory they lie on. Several may share one storage: recurrent layers on a GPU do.

    >>> memory = NamedMemory()
    >>> memory.add(0, ByteSpan(0, 8), (Role.PARAMETER, 1))
    >>> memory.add(0, ByteSpan(8, 16), (Role.PARAMETER, 2))
    >>> memory.owner(0, ByteSpan(8, 12)), memory.owner(0, ByteSpan(0, 16)), memory.owner(1, ByteSpan(0, 8))
    ((<Role.PARAMETER: 2>, 2), None, None)
    """

    def __init__(self) -> None:
        self._owners: dict[int, dict[ByteSpan, Owner]] = {}
        self._sorted: dict[int, list[tuple[ByteSpan, Owner]]] = {}

    @property
    def storages(self) -> list[int]:
        """The storages that hold a named tensor."""
        return list(self._owners)

    def storages_of(self, role: Role) -> list[int]:
        """The storages whose first named tensor has a role."""
        return [storage for storage, owners in self._owners.items() if next(iter(owners.values()))[0] == role]

    def add(self, storage: int, span: ByteSpan, owner: Owner) -> None:
        """Add a named tensor; of several on the same bytes the first counts."""
        self._owners.setdefault(storage, {}).setdefault(span, owner)

    def owner(self, storage: int, span: ByteSpan) -> Owner | None:
        """The tensor that a span lies in; None where it reaches beyond one.

        One that has its memory alone has all of it, however large it is in the end: it may have been resized.
        """
        if storage not in self._sorted:
            self._sorted[storage] = sorted(self._owners.get(storage, {}).items(), key=lambda row: row[0])
        rows = self._sorted[storage]
        if len(rows) == 1:
            return rows[0][1]
        index = bisect_right(rows, span.start, key=lambda row: row[0].start) - 1
        while index >= 0:
            if span.end <= rows[index][0].end:
                return rows[index][1]
            index -= 1
        return None
