"""Graph breaks as a table: the reason of each, the user's line, the partition that it ended, and torch's advice."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from types import SimpleNamespace
from typing import Any

WIDTH = 110


class Breaks(Sequence[Any]):
    """The breaks of a trace; each has ``reason``, ``explanation``, ``hints``, ``id``, ``file``, ``line``, ``function``,
    ``code``, ``partition`` and ``nodes``."""

    def __init__(self, program: Mapping[str, Any] | None) -> None:
        program = program or {}
        self.via: str | None = program.get("via")
        self.partitions: list[int] = list(program.get("partitions", ()))
        self.guards: tuple[str, ...] = tuple(program.get("guards", ()))
        self.recompilations = [SimpleNamespace(**row) for row in program.get("recompilations", ())]
        self._rows = [SimpleNamespace(**row) for row in program.get("breaks", ())]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        return self._rows[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"<{len(self)} graph breaks, {len(self.partitions)} partitions>"

    def __str__(self) -> str:
        if self.via not in ("dynamo", "aot"):
            return "no graph breaks are known: trace with via='dynamo'"
        sizes = ", ".join(f"{size:,}" for size in self.partitions) or "none"
        lines = [
            f"{_count(len(self), 'graph break')}; {_count(len(self.partitions), 'partition')} of {sizes} nodes"
        ]
        for number, row in enumerate(self._rows, 1):
            where = (
                f"{os.path.basename(row.file)}:{row.line} in {row.function}"
                if row.file
                else "an unknown line"
            )
            lines += ["", f"{number}. {row.reason}  [{row.id or 'no id'}]  {where}"]
            lines += [f"     {row.code}"] if row.code else []
            lines += _paragraph(row.explanation, "     ")
            for hint in row.hints:
                lines += _paragraph(hint, "     → ")
            lines.append(f"     ends partition {row.partition}, which holds {row.nodes:,} nodes")
        for row in self.recompilations:
            lines += [
                "",
                f"compiled again: {row.function} ({os.path.basename(row.file)}:{row.line}): {row.guard}",
            ]
        return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _paragraph(text: str, indent: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
