"""Texts beside the points of a chart: where there is room for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from torch_vis.views.charts import Chart, Scale, colored, scale

LETTER = 0.009  # of the width of a chart that is 700 pixels wide: a small letter
LINE = 0.05  # of the height of a chart: a line of small text
LIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4)  # lines above a point where its text may stand, the nearest first
FAR = 2  # lines from its point on a text has a line that leads to it
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

    A text stands to the right of its point, to the left where there is no room, and some lines above or below where it
    would lie on other points.
    """
    across, up = scale(chart, "x"), scale(chart, "y")
    taken: list[tuple[float, float, float]] = []
    points = [*_points(chart, across, up), *_along_guides(chart, across, up)]
    found = []
    for series in colored(chart):
        for x, y, text in zip(series.x, series.y, series.marks):
            if not text or not (math.isfinite(x) and math.isfinite(y)):
                continue
            place, middle = _share(across, x, chart.x.log), _share(up, y, chart.y.log)
            wide = LETTER * len(text)
            side = 1 if place + wide < 1.02 else -1
            start, end = (place, place + wide) if side > 0 else (place - wide, place)
            clear = [lift for lift in LIFTS if _is_clear(taken, start, end, middle + lift * LINE)]
            if 0 not in clear or start <= 0:
                continue
            covered = {lift: _covered(points, start, end, middle + lift * LINE, place) for lift in clear}
            lift = min(clear, key=covered.__getitem__)  # the first of those that cover least
            if not covered[lift]:
                taken.append((start, end, middle + lift * LINE))
                found.append(Mark(x, y, text, series.color, side, lift))
    return found


def _is_clear(taken: Sequence[tuple[float, float, float]], start: float, end: float, middle: float) -> bool:
    """Whether a text would lie within the chart and on no other text."""
    return 0 < middle < 1.02 and all(
        abs(middle - other) > LINE or start > to or end < begin for begin, to, other in taken
    )


def _points(chart: Chart, across: Scale, up: Scale) -> list[tuple[float, float]]:
    return [
        (_share(across, x, chart.x.log), _share(up, y, chart.y.log))
        for series in chart.series
        for x, y in zip(series.x, series.y)
        if math.isfinite(x) and math.isfinite(y)
    ]


def _along_guides(chart: Chart, across: Scale, up: Scale) -> list[tuple[float, float]]:
    found = []
    for guide in chart.guides:
        ends = [
            (_share(across, x, chart.x.log), _share(up, y, chart.y.log)) for x, y in zip(guide.x, guide.y)
        ]
        for (left, low), (right, high) in itertools.pairwise(ends):
            parts = [piece / PIECES for piece in range(PIECES + 1)]
            found += [(left + part * (right - left), low + part * (high - low)) for part in parts]
    return found


def _covered(
    points: Sequence[tuple[float, float]], start: float, end: float, middle: float, own: float
) -> int:
    """How many points lie under a text, or so near that they touch it, other than its own and those on top of that."""
    return sum(
        start - 0.01 < x < end + 0.01 and abs(x - own) > 0.004 and abs(y - middle) < 0.6 * LINE
        for x, y in points
    )


def _share(along: Scale, number: float, log: bool) -> float:
    low, high, here = (
        (math.log10(part) if log and part > 0 else part) for part in (along.low, along.high, number)
    )
    return (here - low) / (high - low)
