"""Graph breaks as a table: the reason of each, the user's line, the partition that it ended, what ran in eager mode."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch_vis.graph.text import inert, many
from torch_vis.views.text.table_layout import Field, Listing, table

WIDTH = 120
FIELDS = (
    Field("number", "#", str),
    Field("where", "where"),
    Field("reason", "reason"),
    Field("id", "page"),
    Field("partition", "ends partition", str),
    Field("nodes", "nodes", str),
    Field("lost", "ran eager", "{:,}".format),
    Field("times", "met", "{:,} ×".format),
)
AGAIN = (Field("function", "compiled again"), Field("where", "where"), Field("guard", "guard that failed"))


class EagerOperation(NamedTuple):
    """An operator that ran in eager mode, and how often at that line."""

    op: str
    times: int
    file: str
    line: int


class Breaks(Sequence[Any]):
    """The breaks of a trace; each has ``reason``, ``explanation``, ``hints``, ``id``, ``file``, ``line``, ``function``,
    ``code``, ``partition`` (None where it ended none) and its number of ``nodes``, all ``partitions`` that it ended,
    ``times`` and ``lost``, the operations that ran in eager mode because of it. ``lost`` of the whole has those that
    belong to no break."""

    def __init__(self, program: Mapping[str, Any] | None) -> None:
        program = program or {}
        self.via: str | None = program.get("via")
        self.partitions: list[int] = list(program.get("partitions", ()))
        self.guards: tuple[str, ...] = tuple(program.get("guards", ()))
        self.recompilations = [SimpleNamespace(**row) for row in program.get("recompilations", ())]
        self.lost = [EagerOperation(**row) for row in program.get("lost", ())]
        self._rows = [_row(row) for row in program.get("breaks", ())]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"<{many(len(self), 'graph break')}, {many(len(self.partitions), 'partition')}>"

    def __str__(self) -> str:
        if self.via not in ("dynamo", "aot"):
            return "no graph breaks are known: trace with via='dynamo'"
        lines = [self.title]
        if self._rows:
            lines += ["", *table(self.listing, WIDTH)]
        for number, row in enumerate(self._rows, 1):
            lines += ["", *_advice(number, row)]
        if self.lost:
            lines += ["", *_paragraph(f"ran eager, for no break: {names_of(self.lost)}", "   ")]
        if self.recompilations:
            rows = [(row.function, _location(row.file, row.line), row.guard) for row in self.recompilations]
            lines += ["", *table(Listing("", AGAIN, rows), WIDTH)]
        return "\n".join(map(inert, lines))

    @property
    def title(self) -> str:
        """What they come to, in a line."""
        sizes = ", ".join(f"{size:,}" for size in self.partitions)
        word = "node" if self.partitions == [1] else "nodes"
        parts = [many(len(self), "graph break")]
        parts.append(
            f"{many(len(self.partitions), 'partition')} of {sizes} {word}"
            if sizes
            else "nothing was captured"
        )
        eager = sum(part.times for row in self._rows for part in row.lost) + sum(
            part.times for part in self.lost
        )
        if eager:
            parts.append(f"{many(eager, 'operation')} ran in eager mode")
        return "; ".join(parts)

    @property
    def listing(self) -> Listing:
        """The breaks as rows."""
        rows = []
        for number, row in enumerate(self._rows, 1):
            where = f"{_location(row.file, row.line)} in {row.function}" if row.file else None
            lost = sum(part.times for part in row.lost)
            ended = ", ".join(map(str, row.partitions)) or None
            nodes = ", ".join(f"{self.partitions[part]:,}" for part in row.partitions) or None
            rows.append((number, where, row.reason, row.id or None, ended, nodes, lost, row.times))
        return Listing("", FIELDS, rows, most=200)


def _row(plain: Mapping[str, Any]) -> SimpleNamespace:
    row = SimpleNamespace(**{"times": 1, **plain})
    row.partitions, row.hints = tuple(plain.get("partitions", ())), tuple(row.hints)
    row.lost = [EagerOperation(**part) for part in plain.get("lost", ())]
    return row


def _advice(number: int, row: Any) -> list[str]:
    where = _location(row.file, row.line) if row.file else "an unknown line"
    lines = [f"{number}. {where}" + (f"   {row.code}" if row.code else "")]
    lines += _paragraph(row.explanation, "   ")
    for hint in row.hints:
        lines += _paragraph(hint, "   → ")
    if row.lost:
        lines += _paragraph(f"ran eager: {names_of(row.lost)}", "   ")
    return lines


def names_of(lost: Sequence[Any]) -> str:
    """The operations by line: ``item ×2 (model.py:9)``."""
    parts = []
    for part in lost:
        often = f" ×{part.times:,}" if part.times > 1 else ""
        where = f" ({_location(part.file, part.line)})" if part.file else ""
        parts.append(f"{part.op.rpartition('::')[2]}{often}{where}")
    return ", ".join(parts)


def _location(file: str, line: int) -> str:
    return f"{os.path.basename(file)}:{line}"


def _paragraph(text: str, indent: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
