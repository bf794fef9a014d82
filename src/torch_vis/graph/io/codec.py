"""Columns packed for the page: narrowed, differences where they are smaller, bytes sorted by their weight, deflated."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL, QUICK_LEVEL = 6, 1
LARGE = 48_000_000  # bytes before compression from which on time matters more than size
WIDEST = 2**53  # beyond, a number of the page is not exact


def pack(columns: Mapping[str, Any]) -> tuple[list[list[Any]], str]:
    """The directory ``[name, code, is difference, length]`` of columns, and all their bytes as one base64 text.

    >>> directory, text = pack({"a": np.array([5, 6, 7])})
    >>> directory, len(text) > 0
    ([['a', 'i1', 1, 3]], True)
    """
    directory, parts = [], []
    for name, column in columns.items():
        code, difference, data = _encode(np.asarray(column))
        directory.append([name, code, difference, len(column)])
        parts.append(data)
    raw = b"".join(parts)
    packed = zlib.compress(raw, QUICK_LEVEL if len(raw) > LARGE else LEVEL)
    return directory, base64.b64encode(packed).decode("ascii")


def _encode(column: Any) -> tuple[str, int, bytes]:
    if column.dtype == np.bool_:
        return "u1", 0, column.astype(np.uint8).tobytes()
    if column.dtype.kind == "f":
        return "f8", 0, _planes(column.astype("<f8"))
    wide = column.astype(np.int64)
    steps = np.diff(wide, prepend=np.int64(0))
    code, step_code = _narrowest(wide), _narrowest(steps)
    if step_code == "f8" or (code != "f8" and _weight(wide) <= _weight(steps)):
        return code, 0, _planes(wide.astype(f"<{code}"))
    return step_code, 1 if code != "f8" else 2, _planes(steps.astype(f"<{step_code}"))


def _narrowest(column: Any) -> str:
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    for code in ("i1", "i2", "i4"):
        limits = np.iinfo(code)
        if limits.min <= low and high <= limits.max:
            return code
    return "f8"


def _weight(column: Any) -> float:
    """About how much there is to store: the bits of the numbers, and how often a number is not its predecessor."""
    if len(column) < 2:
        return 0.0
    return float(np.log2(1.0 + np.abs(column)).mean()) + 4.0 * float((column[1:] != column[:-1]).mean())


def _planes(column: NDArray[Any]) -> bytes:
    """The lowest bytes of all numbers, then the next ones: what is alike stands together."""
    size = column.dtype.itemsize
    data: bytes = column.view(np.uint8).reshape(-1, size).T.tobytes() if size > 1 else column.tobytes()
    return data
