"""The page of several ranks: a lane for each, what they say to each other, and the page of every rank in one file.

Ranks of one program differ in their times and in little else, so every column and table is in the file once, however
many ranks have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph.io.codec import pack
from torch_vis.graph.run import Run
from torch_vis.graph.text import inert
from torch_vis.views.page.page import document, json_text
from torch_vis.views.page.payload import VERSION, unpacked
from torch_vis.views.text.breaks import Breaks


class Lane(NamedTuple):
    """Ranks that do the same at the same time, as one row of the page."""

    ranks: Sequence[tuple[int, int]]
    """The ranks in it, as first and last of each unbroken stretch."""
    trace: int
    """Which of the page's traces is theirs."""
    start: Any
    """When each operation begins on the axis of all lanes; then its time, its phase, the bytes alive after it."""
    time: Any
    phase: Any
    live: Any
    """None where no memory was recorded."""
    facts: Mapping[str, Any]
    """What is said of it: plain data."""


def world_html(
    title: str,
    about: Mapping[str, Any],
    columns: Mapping[str, Any],
    lanes: Sequence[Lane],
    traces: Sequence[Run],
) -> str:
    """The page as text: ``about`` are plain facts of all ranks, ``columns`` the rows of their meetings."""
    parts = _Parts()
    rows = []
    for lane in lanes:
        row: dict[str, Any] = {
            "ranks": [list(span) for span in lane.ranks],
            "trace": lane.trace,
            "start": parts.column(lane.start),
            "time": parts.column(lane.time),
            "phase": parts.column(lane.phase),
            "live": None if lane.live is None else parts.column(lane.live),
        }
        rows.append({**row, **lane.facts})
    world = {
        "version": VERSION,
        "title": inert(title),
        "about": dict(about),
        "columns": {name: parts.column(column) for name, column in columns.items()},
        "lanes": rows,
        "traces": [parts.trace(run) for run in traces],
    }
    elements = [f'<script type="application/json" id="world">{json_text(world)}</script>\n']
    elements += [
        f'<script type="text/plain" id="part-{number}">{text}</script>\n'
        for number, text in enumerate(parts.texts)
    ]
    return document(title, "".join(elements), world=True)


class _Parts:
    """Texts of the page, each once: columns as they are packed, and tables as JSON."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)

    def _number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def column(self, column: Any) -> list[Any]:
        """How a column is packed, and the number of its text."""
        ((_, *how),), text = pack({"": np.asarray(column)})
        return [*how, self._number(text)]

    def trace(self, run: Run) -> dict[str, Any]:
        """The tables of a rank's page by the number of their text, and its columns."""
        tables, columns = unpacked(run, breaks=[vars(row) for row in Breaks(run.meta.get("program"))])
        fields: dict[str, Any] = {"version": VERSION, **tables}
        inner = fields.pop("tables")
        return {
            "tables": [[name, self._number(json_text(field))] for name, field in fields.items()],
            "inner": [[name, self._number(json_text(field))] for name, field in inner.items()],
            "columns": [[name, *self.column(column)] for name, column in columns.items()],
        }
