"""What the explorer would show of a file, without a terminal: the tree as text, and as data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torch_vis.views.terminal.columns import chosen
from torch_vis.views.terminal.config import ExplorerConfig
from torch_vis.views.terminal.row_filter import Arrangement, RowListing
from torch_vis.views.terminal.source import Source

FITS = 60  # lines of a tree that opens by itself
FIGURES = {
    "params": "parameters",
    "elements": "elements",
    "bytes": "size_bytes",
    "buffer_bytes": "buffer_bytes",
}


def as_text(source: Source, *, depth: int | str | None = "auto") -> str:
    """The tree with repeated neighbours folded; as many levels as fit, a number of them, or with None all."""
    shown = Arrangement(source.forest)
    shown.find_repeats()
    shown.folding = True
    shown.open_to(_levels(shown) if depth == "auto" else len(source.forest) if depth is None else int(depth))
    columns = [name for name in chosen(source.forest, ExplorerConfig()) if not name.endswith("_share")]
    words = set(columns) & set(source.forest.texts)
    rows = shown.rows()
    empty = {name for name in words if not any(source.forest.texts[name](int(row)) for row in rows)}
    listing = RowListing(shown, rows, [name for name in columns if name not in empty])
    return listing.as_text(source.title, source.facts).rstrip("\n")


def _levels(shown: Arrangement) -> int:
    """The most levels that are no more than a screen or two."""
    most = int(shown.forest.depth.max(initial=0))
    for depth in range(1, most + 1):
        shown.open_to(depth)
        if len(shown.rows()) > FITS:
            return max(1, depth - 1)
    return max(1, most)


def as_data(source: Source) -> dict[str, Any]:
    """Every row with its path, what it is, and its figures; what is not known is null."""
    forest = source.forest
    rows = []
    for row in range(len(forest)):
        one: dict[str, Any] = {
            "path": forest.paths[row],
            "class": forest.types[row],
            "kind": forest.kind(row),
        }
        for name, key in FIGURES.items():
            if name in forest.numbers:
                figure = float(forest.numbers[name][row])
                one[key] = None if math.isnan(figure) else int(figure)
        details = source.details(row)
        one["tensors"] = [
            {
                "name": tensor.name, "role": tensor.role, "shape": tensor.shape, "dtype": tensor.dtype,
                "device": tensor.device, "size_bytes": tensor.nbytes,
            }
            for tensor in details.tensors
        ]  # fmt: skip
        if forest.kind(row) == "value":
            one["value"] = dict(details.facts).get("value")
        rows.append(one)
    total = {key: _first(forest.numbers.get(name)) for name, key in FIGURES.items() if name in forest.numbers}
    return {"title": source.title, "facts": list(source.facts), **total, "rows": rows}


def _first(column: Any) -> int | None:
    return int(column[0]) if len(column) and not np.isnan(column[0]) else None
