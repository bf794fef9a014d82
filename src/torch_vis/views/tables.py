"""Rows of cells set in columns: a title, a rule, text to the left and figures to the right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NamedTuple

GAP = "  "
LEAST = 16  # letters that a column of text keeps when there is no room


class Field(NamedTuple):
    """One column of a listing: its name in data, its title in a table, and how a person reads a cell of it."""

    name: str
    title: str
    show: Callable[[Any], str] | None = None  # None: text, set to the left


class Listing(NamedTuple):
    """Rows under a title; a table shows the first ``most`` of them. A cell that is None is not known."""

    title: str
    fields: tuple[Field, ...]
    rows: Sequence[Sequence[Any]]
    most: int = 20

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
    shown = listing.rows[: listing.most]
    told = [place for place in range(len(listing.fields)) if any(row[place] is not None for row in shown)]
    fields = tuple(listing.fields[place] for place in told)
    shown = [[row[place] for place in told] for row in shown]
    cells = [[cell(field, item) for field, item in zip(fields, row, strict=True)] for row in shown]
    wanted = [
        max([len(field.title), *(len(row[place]) for row in cells)]) for place, field in enumerate(fields)
    ]
    widths = _fitted(fields, wanted, width)
    lines = [_line(fields, [field.title for field in fields], widths)]
    lines += [GAP.join("─" * wide for wide in widths), *(_line(fields, row, widths) for row in cells)]
    if len(listing.rows) > len(shown):
        lines.append(f"… and {len(listing.rows) - len(shown):,} more")
    return [*([listing.title] if listing.title else []), *lines]


def cell(field: Field, item: Any) -> str:
    """One cell as a person reads it."""
    if item is None:
        return "–"
    return str(item) if field.show is None else field.show(item)


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
        text = cell if len(cell) <= wide else cell[: wide - 1] + "…"
        parts.append(text.ljust(wide) if field.show is None else text.rjust(wide))
    return GAP.join(parts).rstrip()
