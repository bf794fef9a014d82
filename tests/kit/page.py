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
        tables["tables"] = json.loads(zlib.decompress(base64.b64decode(_script(html, "names"))))
    data = zlib.decompress(base64.b64decode(_script(html, "columns")))
    columns, at = {}, 0
    for name, code, difference, length in tables["directory"]:
        dtype = np.dtype(f"<{code}")
        size = dtype.itemsize * length
        planes = np.frombuffer(data[at : at + size], dtype=np.uint8).reshape(dtype.itemsize, length)
        column = np.ascontiguousarray(planes.T).view(dtype).reshape(-1)
        columns[name] = (np.cumsum(column.astype(np.int64)) if difference else column).tolist()
        at += size
    return {**tables, "columns": columns}


def _script(html: str, name: str) -> str:
    match = re.search(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', html, re.DOTALL)
    assert match is not None, f"the page has no element {name!r}"
    return match[1]
