"""The one table engine: rows of cells set in columns that fit a width, text to the left and figures to the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import isfinite
from textwrap import wrap
from typing import Any, NamedTuple

from torch_vis.graph.text import inert

GAP = "  "
LEAST = 16
PATH = 72  # letters of a path that stands in a sentence


class Field(NamedTuple):
    """One column of a listing: its name in data, its title in a table, and how a person reads a cell of it."""

    name: str
    title: str
    # None: text, set to the left.
    show: Callable[[Any], str] | None = None
    # A table without anything but 0 in it is without this column.
    rare: bool = False
    # Letters that a column of text keeps when there is no room.
    least: int = LEAST
    # The order in which columns are left out when there is no room; 0 for one that never is.
    drop: int = 0
    # A heading over this column and those beside it with the same one.
    group: str = ""

    @property
    def full_title(self) -> str:
        """The title with the heading over it."""
        return f"{self.group} {self.title}".lstrip()


class Listing(NamedTuple):
    """Rows under a title; a table shows the first ``most`` of them. A cell that is None is not known.

    In data the rows are found by ``title``; ``heading`` is what a reader sees, where that needs more words.
    """

    title: str
    fields: tuple[Field, ...]
    rows: Sequence[Sequence[Any]]
    most: int = 20
    heading: str = ""
    # Texts may fill the empty cells after them, as the names in a tree do; what is too long is cut at its end.
    spanning: bool = False

    def shown(self) -> tuple[tuple[Field, ...], list[list[str]]]:
        """The rows that there is room for, as texts; columns that say nothing are left out.

        >>> Listing("", (Field("a", "a"), Field("b", "b", str)), [("x", None), ("", None)]).shown()[1]
        [['x'], ['']]
        """
        rows = self.rows[: self.most]
        kept = [
            column
            for column, field in enumerate(self.fields)
            if any(row[column] not in ((None, "", 0) if field.rare else (None, "")) for row in rows)
        ]
        fields = tuple(self.fields[column] for column in kept)
        return fields, [[cell(self.fields[column], row[column]) for column in kept] for row in rows]

    def to_dict(self) -> list[dict[str, Any]]:
        """The rows as dictionaries; NaN and infinity, for which JSON has no form, as texts."""
        names = [field.name for field in self.fields]
        return [dict(zip(names, map(json_number, row), strict=True)) for row in self.rows]


def html_table(listing: Listing) -> str:
    """A listing as a table of a notebook; names are text, whatever is in them.

    >>> html_table(Listing("", (Field("a", "a<b"),), [("x",)]))
    '<table><tr><th style="text-align:left">a&lt;b</th></tr><tr><td style="text-align:left">x</td></tr></table>'
    """
    fields, rows = listing.shown()
    sides = [f'style="text-align:{"left" if field.show is None else "right"}"' for field in fields]
    titles = [field.full_title for field in fields]
    lines = [("th", titles), *(("td", row) for row in rows)]
    body = "".join(
        "<tr>"
        + "".join(f"<{tag} {side}>{escape(inert(text))}</{tag}>" for side, text in zip(sides, cells))
        + "</tr>"
        for tag, cells in lines
    )
    heading = listing.heading or listing.title
    caption = f'<caption style="text-align:left">{escape(inert(heading))}</caption>' if heading else ""
    left = len(listing.rows) - len(rows)
    more = f"<p>… and {left:,} more</p>" if left > 0 else ""
    return f"<table>{caption}{body}</table>{more}"


def json_number(item: Any) -> Any:
    """A cell as JSON has it: what is no finite number, as text."""
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
    lines = fitted(listing, width).lines
    hidden = len(listing.rows) - listing.most
    heading = listing.heading or listing.title
    more = [f"… and {hidden:,} more"] if hidden > 0 else []
    return [inert(text) for text in [*([heading] if heading else []), *lines, *more]]


class FittedTable(NamedTuple):
    """The lines of a table, the columns that there was no room for, and the width at which all would fit."""

    lines: list[str]
    left_out: list[Field]
    whole_width: int


def fitted(listing: Listing, width: int) -> FittedTable:
    """The titles, the rule and the rows of a listing, with columns left out and texts cut short until they fit."""
    every, cells = listing.shown()
    kept = list(range(len(every)))
    whole_width = least = _least_width(listing, every, cells)
    droppable = sorted(
        (column for column in kept if every[column].drop), key=lambda column: every[column].drop
    )
    for column in droppable:
        if least <= width:
            break
        kept.remove(column)
        least = _least_width(
            listing, [every[index] for index in kept], [[row[index] for index in kept] for row in cells]
        )
    fields, cells = [every[column] for column in kept], [[row[column] for column in kept] for row in cells]
    wanted = _wanted(listing, fields, cells, [len(field.title) for field in fields])
    if total(wanted) > width:
        wanted = _wanted(listing, fields, cells, [_least_title(field) for field in fields])
    widths = _widths(listing, fields, cells, wanted, width)
    left_out = [field for column, field in enumerate(every) if column not in kept]
    return FittedTable(_lines(listing, fields, cells, widths), left_out, whole_width)


def _least_width(listing: Listing, fields: Sequence[Field], cells: Sequence[Sequence[str]]) -> int:
    """How wide a table is with texts as short as they may be."""
    wanted = _wanted(listing, fields, cells, [len(field.title) for field in fields])
    return total(
        wide if field.show else min(wide, field.least) for field, wide in zip(fields, wanted, strict=True)
    )


def _wanted(
    listing: Listing, fields: Sequence[Field], cells: Sequence[Sequence[str]], titles: Sequence[int]
) -> list[int]:
    """How wide each column would be if nothing had to be cut; a text that fills several asks for none of them."""
    wanted = list(titles)
    for row in cells:
        for text, columns in _spans(listing, fields, row):
            if len(columns) == 1:
                wanted[columns[0]] = max(wanted[columns[0]], len(text))
    return wanted


def _widths(
    listing: Listing,
    fields: Sequence[Field],
    cells: Sequence[Sequence[str]],
    wanted: Sequence[int],
    width: int,
) -> list[int]:
    """The widths of the columns, and the first as wide as texts that fill all columns of text ask for."""
    texts = [column for column, field in enumerate(fields) if field.show is None]
    figures = sum(len(GAP) + wide for wide, field in zip(wanted, fields) if field.show is not None)
    room = width - figures if texts else width
    asked = [wanted[column] for column in texts]
    shrunk = shrink(asked, [fields[column].least for column in texts], room, further=listing.spanning)
    widths = list(wanted)
    for column, wide in zip(texts, shrunk, strict=True):
        widths[column] = wide
    if listing.spanning and texts:
        first = (_spans(listing, fields, row)[0] for row in cells)
        longest = max((len(text) for text, columns in first if len(columns) == len(texts)), default=0)
        widths[0] += max(0, min(room, longest) - total(shrunk))
    return widths


def shrink(wanted: Sequence[int], least: Sequence[int], room: int, *, further: bool = False) -> list[int]:
    """Widths that fit a room: what is too much is taken where there is most to spare, beyond the least if need be.

    >>> shrink([30, 10], [16, 16], 32), shrink([30, 10], [16, 16], 20), shrink([30, 10], [16, 16], 20, further=True)
    ([20, 10], [16, 10], [9, 9])
    """
    widths = [min(ask, max(room, low)) for ask, low in zip(wanted, least, strict=True)]
    while widths and total(widths) > room:
        spare = [wide - min(low, ask) for wide, low, ask in zip(widths, least, wanted, strict=True)]
        column = spare.index(max(spare))
        if spare[column] <= 0:
            column = widths.index(max(widths))
            if not further or widths[column] <= 1:
                break
        widths[column] -= 1
    return widths


def total(widths: Iterable[int]) -> int:
    """The width of columns side by side."""
    widths = list(widths)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _spans(listing: Listing, fields: Sequence[Field], row: Sequence[str]) -> list[tuple[str, list[int]]]:
    """A row's texts, each with the columns that it may fill: its own and, where texts span, empty ones after it."""
    spans: list[tuple[str, list[int]]] = []
    for column, (field, text) in enumerate(zip(fields, row, strict=True)):
        if listing.spanning and column and field.show is None and not text:
            spans[-1][1].append(column)
        else:
            spans.append((text, [column]))
    return spans


def _lines(
    listing: Listing, fields: Sequence[Field], cells: Sequence[Sequence[str]], widths: Sequence[int]
) -> list[str]:
    """The headings over columns, the titles, the rule and the rows."""
    lines = [*_groups(fields, widths), *_titles(fields, widths)]
    lines.append("─" * total(widths) if listing.spanning else GAP.join("─" * wide for wide in widths))
    for row in cells:
        parts = []
        for text, columns in _spans(listing, fields, row):
            wide = total(widths[column] for column in columns)
            if len(text) > wide:
                text = text[: wide - 1] + "…" if listing.spanning else cut(text, wide)
            parts.append(text.ljust(wide) if fields[columns[0]].show is None else text.rjust(wide))
        lines.append(GAP.join(parts).rstrip())
    return lines


def _groups(fields: Sequence[Field], widths: Sequence[int]) -> list[str]:
    """The line of headings over neighbouring columns; none where no column has one."""
    if not any(field.group for field in fields):
        return []
    parts: list[tuple[str, list[int]]] = []
    for field, wide in zip(fields, widths, strict=True):
        if not parts or parts[-1][0] != field.group:
            parts.append((field.group, []))
        parts[-1][1].append(wide)
    texts = (f" {group} ".center(total(wide), "─") if group else " " * total(wide) for group, wide in parts)
    return [GAP.join(texts).rstrip()]


def _least_title(field: Field) -> int:
    """What a title needs where there is little room: above figures it may stand in several lines."""
    return len(field.title) if field.show is None else max(map(len, field.title.split()), default=0)


def _titles(fields: Sequence[Field], widths: Sequence[int]) -> list[str]:
    """The titles, those of several lines down to the rule."""
    titles = [wrap(field.title, wide) or [""] for field, wide in zip(fields, widths, strict=True)]
    deep = max(map(len, titles), default=1)
    padded = [[""] * (deep - len(title)) + title for title in titles]
    right = [field.show is not None for field in fields]
    return [line(row, widths, right) for row in zip(*padded, strict=True)]


def line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Cells that fit side by side; those of figures are set to the right.

    >>> line(["a", "1"], [3, 4], [False, True])
    'a       1'
    """
    parts = (
        text.rjust(wide) if is_figure else text.ljust(wide)
        for text, wide, is_figure in zip(cells, widths, right, strict=True)
    )
    return GAP.join(parts).rstrip()


def cell(field: Field, item: Any) -> str:
    """One cell as a person reads it."""
    if item is None:
        return "–"
    return str(item) if field.show is None else field.show(item)


def cut(text: str, wide: int) -> str:
    """A text that fits: a path by its end, with the number of the layer that it is in, all else without its middle.

    >>> cut("encoder.layer.11.attention.output.dense", 26), cut("encoder.layer.11.attention.output.dense", 20)
    ('…11.attention.output.dense', '…11.…output.dense')
    >>> cut("lib/bert/modeling.py:9 in forward", 30), cut("embedding → add → native_layer_norm", 20)
    ('…bert/modeling.py:9 in forward', 'embedd…ve_layer_norm')
    >>> cut("lib/bert/modeling.py:9 in forward", 22), cut("fc.0", 9)
    ('…modeling.py:9 in for…', 'fc.0')
    """
    if len(text) <= wide:
        return text
    path, space, rest = text.partition(" ")
    separator = "/" if "/" in path else "."
    parts = path.split(separator)
    number, left = "", len(path)
    for start, part in enumerate(parts):
        before = f"…{number}{separator}…" if number else "…"
        if start and len(before) + left + len(space + rest) <= wide:
            return before + separator.join(parts[start:]) + space + rest
        left -= len(part) + 1
        if part.isdigit() and separator == ".":
            number = part
    if separator == "/" and len(parts) > 1:
        # The file and its line say more than the end of what follows them.
        return f"{f'…{parts[-1]}{space}{rest}'[: wide - 1]}…"
    head = (wide - 1) // 3
    return f"{text[:head]}…{text[len(text) - (wide - 1 - head) :]}"
