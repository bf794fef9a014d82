"""Rows of cells set in columns: a title, a rule, text to the left and figures to the right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from textwrap import wrap
from typing import Any, NamedTuple

GAP = "  "
LEAST = 16  # letters that a column of text keeps when there is no room
PATH = 72  # letters of a path that stands in a sentence


class Field(NamedTuple):
    """One column of a listing: its name in data, its title in a table, and how a person reads a cell of it."""

    name: str
    title: str
    show: Callable[[Any], str] | None = None  # None: text, set to the left
    rare: bool = False  # a table without anything but 0 in it is without it


class Listing(NamedTuple):
    """Rows under a title; a table shows the first ``most`` of them. A cell that is None is not known.

    In data the rows are found by ``title``; ``heading`` is what a reader sees, where that needs more words.
    """

    title: str
    fields: tuple[Field, ...]
    rows: Sequence[Sequence[Any]]
    most: int = 20
    heading: str = ""

    def shown(self) -> tuple[tuple[Field, ...], list[list[str]]]:
        """The rows that there is room for, as texts; columns that say nothing are left out.

        >>> Listing("", (Field("a", "a"), Field("b", "b", str)), [("x", None), ("", None)]).shown()[1]
        [['x'], ['']]
        """
        rows = self.rows[: self.most]
        told = [
            place
            for place, field in enumerate(self.fields)
            if any(row[place] not in ((None, "", 0) if field.rare else (None, "")) for row in rows)
        ]
        fields = tuple(self.fields[place] for place in told)
        return fields, [
            [cell(field, row[place]) for field, place in zip(fields, told, strict=True)] for row in rows
        ]

    def to_plain(self) -> list[dict[str, Any]]:
        """The rows as dictionaries; NaN and infinity, for which JSON has no form, as texts."""
        names = [field.name for field in self.fields]
        return [dict(zip(names, map(_plain, row), strict=True)) for row in self.rows]


def _plain(item: Any) -> Any:
    return str(item) if isinstance(item, float) and not isfinite(item) else item


def table(listing: Listing, width: int = 120) -> list[str]:
    """A listing as lines of text that fit a width; texts are cut short where they must be.

    A column of which nothing is known is left out.

    >>> fields = (Field("module", "module"), Field("time_ns", "time", "{:,} ns".format))
    >>> print("\\n".join(table(Listing("", fields, [("encoder", 1200), ("head", None)]))))
    module       time
    ───────  ────────
    encoder  1,200 ns
    head            –
    """
    fields, cells = listing.shown()
    longest = [max((len(row[place]) for row in cells), default=0) for place in range(len(fields))]
    wanted = [max(len(field.title), long) for field, long in zip(fields, longest, strict=True)]
    if sum(wanted) + len(GAP) * (len(wanted) - 1) > width:
        wanted = [max(_least(field), long) for field, long in zip(fields, longest, strict=True)]
    widths = _fitted(fields, wanted, width)
    lines = _titles(fields, widths)
    lines += [GAP.join("─" * wide for wide in widths), *(_line(fields, row, widths) for row in cells)]
    if len(listing.rows) > len(cells):
        lines.append(f"… and {len(listing.rows) - len(cells):,} more")
    heading = listing.heading or listing.title
    return [*([heading] if heading else []), *lines]


def _least(field: Field) -> int:
    """What a title needs where there is little room: above figures it may stand in several lines."""
    return len(field.title) if field.show is None else max(map(len, field.title.split()), default=0)


def _titles(fields: Sequence[Field], widths: Sequence[int]) -> list[str]:
    """The titles, those of several lines down to the rule."""
    titles = [wrap(field.title, wide) or [""] for field, wide in zip(fields, widths, strict=True)]
    deep = max(map(len, titles), default=1)
    padded = [[""] * (deep - len(title)) + title for title in titles]
    return [_line(fields, row, widths) for row in zip(*padded, strict=True)]


def cell(field: Field, item: Any) -> str:
    """One cell as a person reads it."""
    if item is None:
        return "–"
    return str(item) if field.show is None else field.show(item)


def cut(text: str, wide: int) -> str:
    """A text that fits: a path by the first letters of where it begins, all else without its middle.

    Of a path the end and the numbers tell one from another.

    >>> cut("encoder.layer.11.attention.output.dense", 26), cut("lib/bert/modeling.py:9 in forward", 30)
    ('e.l.11.a.output.dense', 'l/b/modeling.py:9 in forward')
    >>> cut("embedding → add → native_layer_norm", 20)
    'embedd…ve_layer_norm'
    """
    path, space, rest = text.partition(" ")
    separator = "/" if "/" in path else "."
    parts = path.split(separator)
    over = len(text) - wide
    for place, part in enumerate(parts[:-1]):
        if over > 0 and len(part) > 1 and not part.isdigit():
            parts[place] = part[0]
            over -= len(part) - 1
    text = separator.join(parts) + space + rest
    if over <= 0:
        return text
    head = (wide - 1) // 3
    return f"{text[:head]}…{text[len(text) - (wide - 1 - head) :]}"


def _fitted(fields: Sequence[Field], wanted: Sequence[int], width: int) -> list[int]:
    """The widths, with text columns cut where there is most to spare."""
    widths = list(wanted)
    texts = [place for place, field in enumerate(fields) if field.show is None]
    too_much = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while too_much > 0 and texts:
        place = max(texts, key=lambda text: widths[text])
        if widths[place] <= LEAST:
            break
        cut = min(too_much, max(1, (widths[place] - LEAST) // 2))
        widths[place] -= cut
        too_much -= cut
    return widths


def _line(fields: Sequence[Field], cells: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for field, cell, wide in zip(fields, cells, widths, strict=True):
        text = cell if len(cell) <= wide else cut(cell, wide)
        parts.append(text.ljust(wide) if field.show is None else text.rjust(wide))
    return GAP.join(parts).rstrip()
