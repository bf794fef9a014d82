"""Which parameter, buffer or gradient a piece of memory belongs to, where it is read through another tensor."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import torch

from torch_vis.graph.schema import Role, TensorType

Name = tuple[Role, int]  # and the number of the name


class ByteSpan(NamedTuple):
    """From where to where a tensor reaches in its storage, in bytes; one that does not say has all of it."""

    start: float = 0
    end: float = float("inf")


def span_of(tensor: torch.Tensor) -> ByteSpan:
    """The span of a tensor."""
    try:
        return _span(
            int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.element_size()
        )
    except (RuntimeError, NotImplementedError):
        return ByteSpan()


def span_at(offset: int, type_: TensorType) -> ByteSpan:
    """The span of a tensor of a type.

    >>> span_at(2, TensorType("float32", (2, 3), (4, 1)))
    ByteSpan(start=8, end=36)
    """
    if type_.layout != "strided" or type_.itemsize is None:
        return ByteSpan()
    return _span(offset, type_.shape, type_.stride, type_.itemsize)


def _span(offset: int, shape: tuple[int, ...], stride: tuple[int, ...], size: int) -> ByteSpan:
    reach = 0 if 0 in shape else 1 + sum((many - 1) * step for many, step in zip(shape, stride))
    return ByteSpan(offset * size, (offset + reach) * size)


class NamedMemory:
    """Named tensors by where they lie. Several may share one piece of memory: recurrent layers on a GPU do.

    >>> places = NamedMemory()
    >>> places.add(0, ByteSpan(0, 8), (Role.PARAMETER, 1))
    >>> places.add(0, ByteSpan(8, 16), (Role.PARAMETER, 2))
    >>> places.find(0, ByteSpan(8, 12)), places.find(0, ByteSpan(0, 16)), places.find(1, ByteSpan(0, 8))
    ((<Role.PARAMETER: 2>, 2), None, None)
    """

    def __init__(self) -> None:
        self._names: dict[int, dict[ByteSpan, Name]] = {}
        self._sorted: dict[int, list[tuple[ByteSpan, Name]]] = {}

    @property
    def storages(self) -> list[int]:
        """Those that hold a named tensor."""
        return list(self._names)

    def of_role(self, role: Role) -> list[int]:
        """Storages whose first named tensor has a role."""
        return [storage for storage, names in self._names.items() if next(iter(names.values()))[0] == role]

    def add(self, storage: int, span: ByteSpan, name: Name) -> None:
        """A named tensor; of several in one place the first counts."""
        self._names.setdefault(storage, {}).setdefault(span, name)

    def find(self, storage: int, span: ByteSpan) -> Name | None:
        """The tensor that a span lies in; None for what reaches beyond it, as memory that several lie in.

        One that has its memory alone has all of it, however large it is in the end: it may have been resized.
        """
        if storage not in self._sorted:
            self._sorted[storage] = sorted(self._names.get(storage, {}).items(), key=lambda place: place[0])
        places = self._sorted[storage]
        if len(places) == 1:
            return places[0][1]
        at = bisect_right(places, span.start, key=lambda place: place[0].start) - 1
        while at >= 0:
            if span.end <= places[at][0].end:
                return places[at][1]
            at -= 1
        return None
