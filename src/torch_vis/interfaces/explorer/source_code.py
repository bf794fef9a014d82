"""The program text of a class or of a line, for the source panel."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

from torch_vis.views.terminal.source import SourceCode

AROUND = 30


def class_source(kind: type) -> SourceCode | None:
    """The text of a class, pointing at its ``forward``; None where there is no text (made at run time, compiled)."""
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind) or ""
    except (OSError, TypeError):
        return _function_source(getattr(kind, "forward", None))
    marks = []
    forward: Any = kind.__dict__.get("forward")
    try:
        start = inspect.getsourcelines(forward)[1] if forward is not None else 0
    except (OSError, TypeError):
        start = 0
    if first <= start < first + len(lines):
        marks.append(start)
    return SourceCode(file, max(first, 1), "".join(lines), tuple(marks), kind.__qualname__)


def _function_source(function: Any) -> SourceCode | None:
    try:
        lines, first = inspect.getsourcelines(function)
        return SourceCode(
            inspect.getsourcefile(function) or "", first, "".join(lines), (first,), function.__qualname__
        )
    except (OSError, TypeError, AttributeError):
        return None


def lines_source(file: str, marks: list[int], title: str) -> SourceCode | None:
    """The stretch of a file around some lines; None where the file cannot be read."""
    lines = linecache.getlines(file)
    if not lines or not marks:
        return None
    first, last = max(1, min(marks) - AROUND), min(len(lines), max(marks) + AROUND)
    return SourceCode(file, first, "".join(lines[first - 1 : last]), tuple(sorted(set(marks))), title)
