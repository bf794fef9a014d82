"""Columns as bytes: narrowed, differences where they are smaller, the bytes of equal weight together.

Files and the page pack columns in the same way; they differ in what they take where 32 bits are not enough.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph.types import Array, Ints

INTEGERS = ("i1", "i2", "i4", "i8")
FLOATS = ("f2", "f4", "f8")
LEVEL, QUICK_LEVEL = 6, 1
LARGE = 48_000_000  # bytes before compression from which on time matters more than size


class Encoded(NamedTuple):
    """A column's bytes, the numpy type that they are of, and whether they are differences of neighbours."""

    code: str
    difference: bool
    data: bytes


def encode(column: Array, longest: str = "i8") -> Encoded:
    """A column as bytes; whole numbers that 32 bits cannot hold are of type ``longest``.

    >>> encode(np.array([5, 6, 7, 8]))
    Encoded(code='i1', difference=True, data=b'\\x05\\x01\\x01\\x01')
    """
    if column.dtype.kind == "f":
        code = f"f{column.dtype.itemsize}"
        return Encoded(code, False, _planes(column.astype(f"<{code}", copy=False)))
    # unsigned 64-bit numbers wrap here, and wrap back when they are read
    wide = column.astype(np.int64)
    steps = np.diff(wide, prepend=np.int64(0))
    code, step_code = _narrowest(wide, longest), _narrowest(steps, longest)
    # what is not exact as a float has exact differences, if anything has
    plain = step_code == "f8"
    if not plain and (code != longest or step_code == longest):
        plain = _weight(wide) <= _weight(steps)
    if plain:
        return Encoded(code, False, _planes(wide.astype(f"<{code}")))
    return Encoded(step_code, True, _planes(steps.astype(f"<{step_code}")))


def decode(data: bytes, code: str, difference: bool) -> Array:
    """The column that was given to ``encode``, up to the width of its numbers.

    >>> decode(b"\\x05\\x01\\x01\\x01", "i1", True).tolist()
    [5, 6, 7, 8]
    """
    dtype = np.dtype(f"<{code}")
    planes = np.frombuffer(data, dtype=np.uint8).reshape(dtype.itemsize, -1)
    column: Array = np.ascontiguousarray(planes.T).reshape(-1).view(dtype)
    return np.cumsum(column, dtype=np.int64) if difference else column


def pack(columns: Mapping[str, Any]) -> tuple[list[list[Any]], str]:
    """The directory ``[name, code, is difference, length]`` of columns, and all their bytes as one base64 text.

    What 32 bits cannot hold is a float on the page; 2 says that differences are whole numbers and their sums are not.

    >>> directory, text = pack({"a": np.array([5, 6, 7])})
    >>> directory, len(text) > 0
    ([['a', 'i1', 1, 3]], True)
    """
    directory, parts = [], []
    for name, item in columns.items():
        column = np.asarray(item)
        if column.dtype == np.bool_:
            encoded = Encoded("u1", False, column.astype(np.uint8).tobytes())
        else:
            encoded = encode(column.astype("<f8") if column.dtype.kind == "f" else column, longest="f8")
        long = encoded.difference and _narrowest(column.astype(np.int64), "f8") == "f8"
        directory.append([name, encoded.code, 2 if long else int(encoded.difference), len(column)])
        parts.append(encoded.data)
    raw = b"".join(parts)
    packed = zlib.compress(raw, QUICK_LEVEL if len(raw) > LARGE else LEVEL)
    return directory, base64.b64encode(packed).decode("ascii")


def _narrowest(column: Ints, longest: str) -> str:
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    for code in INTEGERS[:3]:
        limits = np.iinfo(code)
        if limits.min <= low and high <= limits.max:
            return code
    return longest


def _weight(column: Ints) -> float:
    """About how much there is to store: the bits of the numbers, and how often a number is not its predecessor."""
    if len(column) < 2:
        return 0.0
    return float(np.log2(1.0 + np.abs(column.astype(np.float64))).mean()) + 4.0 * float(
        (column[1:] != column[:-1]).mean()
    )


def _planes(column: Array) -> bytes:
    """The lowest bytes of all numbers, then the next ones: what is alike stands together."""
    size = column.dtype.itemsize
    data: bytes = column.view(np.uint8).reshape(-1, size).T.tobytes() if size > 1 else column.tobytes()
    return data
