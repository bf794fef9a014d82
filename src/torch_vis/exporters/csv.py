"""The operations as a CSV file: one row each, with every metric; what is not known is an empty cell.

A spreadsheet runs a cell that begins like a formula, so a text that does has an apostrophe before that: ``'=1+1``. One
more is put there if it has some already, so that whoever takes one away has the text again.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from torch_vis.exporters.operations import operations
from torch_vis.graph import Column
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.run import Run
from torch_vis.graph.text import inert

# separators of fields in some countries stand for the beginning of a cell
FORMULA = re.compile("(^|[;|])(?='*[=+@\uff1d\uff0b\uff0d\uff20-])")


def save(path: PathLike, run: Run) -> None:
    """Write the table as UTF-8, with a header; a shape is written ``2x128x768``."""
    columns: dict[str, Any] = {"node": range(len(run.graph))}
    for name, (cells, known) in operations(run.graph).items():
        columns[name] = _texts(name, cells, known)
    for name, column in run.metrics.items():
        if column.along == "node":
            columns[name] = _metric(column)
    with replacing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="", write_through=True)
        writer = csv.writer(text)
        writer.writerow(map(harmless, columns))
        writer.writerows(zip(*columns.values(), strict=True))
        # or closing it would close the file before it is in its place
        text.detach()


def _texts(name: str, cells: Any, known: Any) -> list[Any]:
    items = cells.tolist()
    if known is not None:
        return [cell if is_known else None for cell, is_known in zip(items, known.tolist())]
    if name == "shape":
        return [None if shape is None else "x".join(map(str, shape)) or "scalar" for shape in items]
    if name == "input_shapes":
        return [" ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) for shapes in items]
    return [harmless(item) if isinstance(item, str) else item for item in items]


def harmless(text: str) -> str:
    """A text that a spreadsheet takes for one, and a terminal prints: no formula at its beginning or after a separator.

    >>> harmless("=1+1"), harmless("'-x"), harmless("a;@b"), harmless("fc.weight")
    ("'=1+1", "''-x", "a;'@b", 'fc.weight')
    """
    return FORMULA.sub(r"\1'", inert(text))


def _metric(column: Column) -> list[Any]:
    return column[:] if column.known is not None else column.values.tolist()
