"""One measured figure, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HEADINGS = ("figure", "ours", "peer", "ratio", "by best", "target", "met")


class Row(NamedTuple):
    """One figure: both sides in words, their ratio by medians and by best samples, and whether the target is met.

    ``met`` is None for a row that is there for information only.
    """

    figure: str
    ours: str
    peer: str
    ratio: float
    target: str
    met: bool | None
    best: float | None = None


def at_most(figure: str, ours: str, peer: str, ratio: float, limit: float, best: float | None = None) -> Row:
    """A figure that must not be above its limit."""
    return Row(figure, ours, peer, ratio, f"≤ {limit:g}×", ratio <= limit, best)


def at_least(figure: str, ours: str, peer: str, ratio: float, limit: float, best: float | None = None) -> Row:
    """A figure that must not be below its limit."""
    return Row(figure, ours, peer, ratio, f"≥ {limit:g}×", ratio >= limit, best)


def for_information(row: Row) -> Row:
    """The same measurement without a verdict."""
    return row._replace(target="", met=None)


def within(figure: str, ours: float, limit: float, unit: str, note: str = "") -> Row:
    """An absolute figure with a limit in the same unit; the ratio is that of the two."""
    return Row(figure, f"{ours:.3g} {unit}", note, ours / limit, f"≤ {limit:g} {unit}", ours <= limit)


def table(rows: Sequence[Row]) -> str:
    """The rows as an aligned table."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADINGS))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in cells]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def _cells(row: Row) -> tuple[str, ...]:
    met = {True: "yes", False: "NO", None: "–"}[row.met]
    best = "" if row.best is None else f"{row.best:.2f}×"
    return (row.figure, row.ours, row.peer, f"{row.ratio:.2f}×", best, row.target, met)
