"""The data inside a saved page, unpacked as the viewer unpacks them."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

import numpy as np


def page_data(html: str) -> dict[str, Any]:
    """The tables of a page, and its columns by name as lists of numbers.

    >>> page_data('<script type="application/json" id="tables">{"directory": []}</script>'
    ...     '<script type="text/plain" id="columns">eJwDAAAAAAE=</script>')
    {'directory': [], 'columns': {}}
    """
    tables = json.loads(_script(html, "tables"))
    if 'id="names"' in html:
        tables["tables"] = json.loads(_unpacked(_script(html, "names")))
    data = _unpacked(_script(html, "columns"))
    columns, at = {}, 0
    for name, code, difference, length in tables["directory"]:
        size = np.dtype(f"<{code}").itemsize * length
        columns[name] = _column(data[at : at + size], code, difference, length)
        at += size
    return {**tables, "columns": columns}


def world_data(html: str) -> dict[str, Any]:
    """What the page of several ranks says of them: facts, lanes and meetings, columns as lists of numbers.

    The traces of the ranks are left out: each is as it is on a page of its own.
    """
    world = json.loads(_script(html, "world"))

    def column(row: list[Any] | None) -> list[Any] | None:
        if row is None:
            return None
        code, difference, length, part = row
        return _column(_unpacked(_script(html, f"part-{part}")), code, difference, length)

    lanes = [
        {**lane, **{name: column(lane[name]) for name in ("start", "time", "phase", "live")}}
        for lane in world["lanes"]
    ]
    columns = {name: column(row) for name, row in world["columns"].items()}
    return {**world, "columns": columns, "lanes": lanes, "traces": len(world["traces"])}


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def _column(data: bytes, code: str, difference: bool, length: int) -> list[Any]:
    """The numbers of a column, from its bytes as the page has them: those of equal weight together."""
    dtype = np.dtype(f"<{code}")
    planes = np.frombuffer(data, dtype=np.uint8).reshape(dtype.itemsize, length)
    column = np.ascontiguousarray(planes.T).view(dtype).reshape(-1)
    numbers: list[Any] = (np.cumsum(column.astype(np.int64)) if difference else column).tolist()
    return numbers


def _script(html: str, name: str) -> str:
    match = re.search(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', html, re.DOTALL)
    assert match is not None, f"the page has no element {name!r}"
    return match[1]
