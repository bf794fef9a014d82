"""Texts beside the points of a chart: where there is room for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from torch_vis.views.charts.chart import Chart, Scale, colored, scale

LETTER = 0.009  # of the width of a chart that is 700 pixels wide: a small letter
LINE = 0.05  # of the height of a chart: a line of small text
LIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4)  # lines above a point where its text may stand, the nearest first
FAR = 2  # lines from its point on a text has a line that leads to it
COLON = ": "
PIECES = 50  # of a line under the points, on which no text is to lie


class Mark(NamedTuple):
    """A text beside a point: to its right (``side`` 1) or left (-1), and how many lines above it."""

    x: float
    y: float
    text: str
    color: str
    side: int
    lift: int

    @property
    def is_far(self) -> bool:
        """Whether a line has to lead from the text to its point."""
        return abs(self.lift) >= FAR


def marked(chart: Chart) -> list[Mark]:
    """The texts that stand beside points: those that overlap none before, and that lie on no other points.

    A text stands to the right of its point or to the left, and some lines above or below where it would lie on others.
    One of the form "first: this" is placed before the others, and says "first" alone where there is no room for all.
    """
    across, up = scale(chart, "x"), scale(chart, "y")
    room = _Room([*_points(chart, across, up), *_along_guides(chart, across, up)])
    wanted = [
        (x, y, text, series.color)
        for series in colored(chart)
        for x, y, text in zip(series.x, series.y, series.marks)
        if text and math.isfinite(x) and math.isfinite(y)
    ]
    marks = []
    for x, y, text, color in sorted(wanted, key=lambda row: COLON not in row[2]):
        point = _share(across, x, chart.x.log), _share(up, y, chart.y.log)
        for label in dict.fromkeys([text, text.partition(COLON)[0]]):
            free = room.find(*point, LETTER * len(label))
            if free is not None:
                marks.append(Mark(x, y, label, color, *free))
                break
    return marks


class _Room:
    """What is left of a chart for texts, in shares of its width and height."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self.points = points
        self.texts: list[tuple[float, float, float]] = []  # from where to where, and how high
        self.lines: list[
            tuple[float, float, float]
        ] = []  # that lead to texts: where, and from how low to how high

    def find(self, x: float, middle: float, wide: float) -> tuple[int, int] | None:
        """The side of a point on which its text stands, and how many lines above it; None where nothing is free."""
        first = 1 if x + wide < 1.02 else -1
        if not self._is_clear(*_ends(x, wide, first), middle):
            return None
        for lift in LIFTS:
            for side in (first, -first):
                start, end = _ends(x, wide, side)
                if self._is_free(start, end, x, middle, lift):
                    self.texts.append((start, end, middle + lift * LINE))
                    if abs(lift) >= FAR:
                        self.lines.append((x, *_between(middle, lift)))
                    return side, lift
        return None

    def _is_clear(self, start: float, end: float, at: float) -> bool:
        """Whether a text would lie within the chart and on no other text."""
        return (
            start > 0 < at < 1.02
            and end < 1.02
            and all(abs(at - other) > LINE or start > to or end < begin for begin, to, other in self.texts)
        )

    def _is_free(self, start: float, end: float, own_x: float, middle: float, lift: int) -> bool:
        """Whether a text would lie on nothing at all, and the line that leads to it on no other text."""
        at = middle + lift * LINE
        if not self._is_clear(start, end, at):
            return False
        if any(start <= x <= end and low < at < high for x, low, high in self.lines):
            return False
        low, high = _between(middle, lift)
        if abs(lift) >= FAR and any(a <= own_x <= b and low < other < high for a, b, other in self.texts):
            return False
        # its own point, and those on top of that, are not under it
        return not any(
            start - 0.01 < x < end + 0.01 and abs(x - own_x) > 0.004 and abs(y - at) < 0.6 * LINE
            for x, y in self.points
        )


def _ends(x: float, wide: float, side: int) -> tuple[float, float]:
    return (x, x + wide) if side > 0 else (x - wide, x)


def _between(middle: float, lift: int) -> tuple[float, float]:
    at = middle + lift * LINE
    return min(middle, at), max(middle, at)


def _points(chart: Chart, across: Scale, up: Scale) -> list[tuple[float, float]]:
    return [
        (_share(across, x, chart.x.log), _share(up, y, chart.y.log))
        for series in chart.series
        for x, y in zip(series.x, series.y)
        if math.isfinite(x) and math.isfinite(y)
    ]


def _along_guides(chart: Chart, across: Scale, up: Scale) -> list[tuple[float, float]]:
    points = []
    for guide in chart.guides:
        ends = [
            (_share(across, x, chart.x.log), _share(up, y, chart.y.log)) for x, y in zip(guide.x, guide.y)
        ]
        for (left, low), (right, high) in itertools.pairwise(ends):
            parts = [piece / PIECES for piece in range(PIECES + 1)]
            points += [(left + part * (right - left), low + part * (high - low)) for part in parts]
    return points


def _share(along: Scale, number: float, log: bool) -> float:
    low, high, at = (
        (math.log10(part) if log and part > 0 else part) for part in (along.low, along.high, number)
    )
    return (at - low) / (high - low)
