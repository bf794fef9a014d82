"""Charts of figures along an axis: one description, drawn by Plotly or by Matplotlib."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np

from torch_vis.errors import no_match
from torch_vis.graph import Graph
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import count, duration, inert, inert_lines, size
from torch_vis.views.charts.labels import named_ticks

UNITS: dict[str, Callable[[Any], str]] = {"ns": duration, "bytes": size, "count": count}
# Eight colours that stay apart for colour-blind readers, in the order in which they are given out.
COLORS = ("#3b7dd8", "#e08a1e", "#2a9d8f", "#c8553d", "#8067b7", "#d4b106", "#39424e", "#4fa3c7")
QUIET = "#8a94a3"  # and what is lighter than all of them, for the rest
PALE = "#c9d1db"  # an area or a bar of what is left or idle
# The back-ends by path: they import this module, not the other way round.
RENDERERS = {"plotly": "torch_vis.views.charts.plotly", "matplotlib": "torch_vis.views.charts.matplotlib"}
INK, RULE = "#1c2430", "#dfe4ea"
TICKS = 6
FEW_POINTS = 40  # of a line, which are then marked one by one
ROOM = 0.04  # of an axis, kept free at its ends
NAMED = 0.05  # and for names of stages above what is drawn
SIDE = 3  # series of dots whose figures stand beside the chart
LETTER = 0.011  # of the width of a chart that is 700 pixels wide: a letter along an axis
KEYS = 100  # letters of a row of the legend
MOST_STAGES = 12  # a run that changes its phase more often has no stages marked
WHOLE, LONG = 1e4, 1e9  # plain figures in this range are written whole, as those below are


class Axis(NamedTuple):
    """What an axis shows; ``unit`` is ``"ns"``, ``"bytes"``, ``"count"``, ``"%"`` of a change, or empty.

    ``names`` are those of the places 0, 1, 2, … along it, of which as many are written as there is room for.
    """

    title: str
    unit: str = ""
    log: bool = False
    names: Sequence[str] = ()

    def text(self, number: float) -> str:
        """A figure as it is written along an axis, or beside what it is the figure of.

        >>> Axis("time", "ns").text(-1.5e6), Axis("share").text(0.12345), Axis("peak", "bytes").text(2048)
        ('−1.50 ms', '0.1235', '2.00 KiB')
        >>> Axis("samples per second").text(8000), Axis("samples per second").text(10000)
        ('8,000', '10,000')
        """
        if not math.isfinite(number):
            return str(number)
        # of a change
        if self.unit == "%":
            sign = "−" if number < 0 else "+" if number > 0 else ""
            return f"{sign}{abs(number):,.0f} %" if abs(number) >= 99.95 else f"{sign}{abs(number):.3g} %"
        show = UNITS.get(self.unit)
        plain = ",.0f" if WHOLE <= abs(number) < LONG else ",.4g"
        text = show(round(abs(number))) if show else format(abs(number), plain)
        return f"−{text}" if number < 0 else text


class Series(NamedTuple):
    """One line, area, set of bars or set of points; ``names`` are what a hover says of each.

    Of bars and dots, ``x`` are the labels. ``low`` and ``high`` are the ends of a range around each ``y``. ``marks``
    are texts that stand beside points, empty for a point without one; where two would overlap, the first is kept.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    names: Sequence[str] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    color: str = ""
    marks: Sequence[str] = ()
    dashed: bool = False
    loose: bool = False  # points of a chart of lines that no line joins

    @property
    def is_highlighted(self) -> bool:
        """Whether these are a few points that a chart of lines points out, not the rest of it."""
        return self.loose and len(self.x) <= FEW_POINTS and self.color != QUIET


class Scale(NamedTuple):
    """Where an axis of figures begins and ends, and what is written along it."""

    low: float
    high: float
    ticks: list[float]
    labels: list[str]


class SideFigure(NamedTuple):
    """A figure beside a chart of dots, in the row and the colour of its dot; each series has a column of them."""

    row: int
    column: int
    text: str
    color: str


class Chart(NamedTuple):
    """A chart: ``"bars"`` and ``"dots"`` lie on their side, a named row under another; ``"areas"`` are stacked.

    So are bars of several series, with their sum at the end: figures that do not add up to something are ``"dots"``.
    ``"spans"`` lie in their rows from ``low`` to ``high``, with their ``marks`` in them: a Gantt chart.
    """

    kind: Literal["bars", "dots", "lines", "areas", "points", "spans"]
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    guides: Sequence[Series] = ()  # dashed lines beneath the data, but over areas: a roof, a budget
    stages: Sequence[tuple[float, str]] = ()  # places along x where something begins, and what

    @property
    def is_sideways(self) -> bool:
        """Whether the labels stand one under another and the figures run to the right."""
        return self.kind in ("bars", "dots", "spans")

    @property
    def rows(self) -> list[Any]:
        """The labels of a chart that lies on its side, each once: as the axis names them, or else series by series."""
        return list(dict.fromkeys([*self.x.names, *(label for series in self.series for label in series.x)]))

    @property
    def totals(self) -> list[float]:
        """For each row of a chart of bars what stands at the end of it; nothing where that is not a sum of the bars.

        >>> parts = [Series("forward", ["a", "b"], [5, 3]), Series("backward", ["b"], [4])]
        >>> Chart("bars", "Time", Axis("module"), Axis("time", "ns"), parts).totals
        [5.0, 7.0]
        """
        figures = [float(number) for series in self.series for number in series.y]
        several = len(self.series) > 1
        if (
            self.kind != "bars"
            or any(len(series.low) for series in self.series)
            or (several and not all(number >= 0 for number in figures))  # nor what is not a number
        ):
            return []
        sums = dict.fromkeys(self.rows, 0.0)
        for series in self.series:
            for label, number in zip(series.x, series.y):
                sums[label] += float(number)
        return list(sums.values())

    @property
    def colored(self) -> list[Series]:
        """The series with their colours; beyond those that there are, lines are dashed."""
        return [
            series._replace(
                color=series.color or COLORS[index % len(COLORS)],
                dashed=series.dashed or (not series.color and index >= len(COLORS)),
            )
            for index, series in enumerate(self.series)
        ]

    def scale(self, which: Literal["x", "y"]) -> Scale:
        """The ends of an axis and round places along it.

        >>> bars = Chart("bars", "", Axis(""), Axis("memory", "bytes"), [Series("", ["a"], [5 * 1024**2])])
        >>> bars.scale("y").labels
        ['0 B', '1.00 MiB', '2.00 MiB', '3.00 MiB', '4.00 MiB', '5.00 MiB']
        """
        axis: Axis = getattr(self, which)
        if axis.names:
            return Scale(-0.6, len(axis.names) - 0.4, *named_ticks(axis.names))
        least, most = _extent(self, which)
        first = least
        if axis.log:
            return _log_scale(axis, least, most)
        from_zero = which == "y" and self.kind in ("bars", "areas", "lines", "spans")
        if from_zero or 0 <= least < (most - least):
            least, most = min(least, 0.0), max(most, 0.0)
        if most <= least:
            least, most = (least - 1.0, least + 1.0) if least else (0.0, 1.0)
        step = _step((most - least) / TICKS, 1024.0 if axis.unit == "bytes" else 1000.0)
        if axis.unit:
            step = max(step, 1.0)
        ticks = [
            step * number
            for number in range(math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9) + 1)
        ]
        room = ROOM * (most - least)
        # A point at the end would be cut in half.
        whole = self.kind in ("dots", "points") and first - least < room
        low = least - room if whole or (least and self.kind != "areas") else least
        end = most if self.kind == "areas" and which == "x" else most + room
        if which == "y" and self.stages:
            end += NAMED * (most - least)
        return Scale(low, end, ticks, [axis.text(tick) for tick in ticks])

    @property
    def slanted(self) -> int:
        """How many letters the longest name under the chart has, if names there have to slant; 0 if they lie flat.

        >>> names = ["conv", "norm", "head"]
        >>> line = Series("", range(3), [1, 2, 3])
        >>> Chart("lines", "", Axis("layer", names=names), Axis(""), [line]).slanted
        0
        """
        if not self.x.names or self.is_sideways:
            return 0
        low, high, ticks, labels = self.scale("x")
        spacing = min((after - before for before, after in itertools.pairwise(ticks)), default=high - low)
        longest = max(map(len, labels), default=0)
        return longest if LETTER * longest > spacing / (high - low) else 0

    @property
    def stages_shown(self) -> list[tuple[float, str]]:
        """The stages of a chart; one that is too short for its name has none."""
        if not self.stages:
            return []
        across = self.scale("x")
        ends = [start for start, _ in self.stages[1:]] + [across.high]
        return [
            (start, name if (end - start) / (across.high - across.low) > LETTER * (len(name) + 1) else "")
            for (start, name), end in zip(self.stages, ends)
        ]

    @property
    def legend_rows(self) -> tuple[int, int]:
        """The columns and the rows of the legend, which stands above the chart; none for a single series."""
        names = [series.name for series in (*self.guides, *self.series)]
        if len(names) < 2:
            return 0, 0
        columns = max(1, min(len(names), KEYS // (6 + max(map(len, names)))))
        return columns, -(-len(names) // columns)

    @property
    def side_figures(self) -> list[SideFigure]:
        """The figures of dots, where a row has one of each series, and series are few.

        >>> dots = [Series("a", ["x", "y"], [1500, 2]), Series("b", ["y"], [3])]
        >>> [tuple(figure[:3]) for figure in Chart("dots", "", Axis(""), Axis("time", "ns"), dots).side_figures]
        [(0, 0, '1.50 µs'), (1, 0, '2 ns'), (1, 1, '3 ns')]
        """
        if self.kind != "dots" or len(self.series) > SIDE:
            return []
        if any(len({*series.x}) < len(series.x) for series in self.series):
            return []
        row_of = {label: row for row, label in enumerate(self.rows)}
        return [
            SideFigure(row_of[label], column, self.y.text(number), series.color)
            for column, series in enumerate(self.colored)
            for label, number in zip(series.x, series.y)
        ]

    @property
    def side_columns(self) -> list[int]:
        """How many letters are to the left of each column of figures beside the chart, and of all of them at last."""
        widths = [0] * len(self.series)
        for figure in self.side_figures:
            widths[figure.column] = max(widths[figure.column], len(figure.text) + 2)
        return [sum(widths[:column]) for column in range(len(widths) + 1)]

    @property
    def marks(self) -> list[Mark]:
        """The texts beside points that overlap no earlier text and cover no other point.

        A text stands to the right of its point or to the left, and some lines above or below where it would lie on
        others. One of the form "first: this" is placed before the others, and says "first" alone where there is no room
        for all.
        """
        across, up = self.scale("x"), self.scale("y")
        room = _Room([*_points(self, across, up), *_along_guides(self, across, up)])
        wanted = [
            (x, y, text, series.color)
            for series in self.colored
            for x, y, text in zip(series.x, series.y, series.marks)
            if text and math.isfinite(x) and math.isfinite(y)
        ]
        marks = []
        for x, y, text, color in sorted(wanted, key=lambda row: COLON not in row[2]):
            point = _share(across, x, self.x.log), _share(up, y, self.y.log)
            for label in dict.fromkeys([text, text.partition(COLON)[0]]):
                free = room.find(*point, SMALL_LETTER * len(label))
                if free is not None:
                    marks.append(Mark(x, y, label, color, *free))
                    break
        return marks


def draw(chart: Chart, renderer: str = "plotly") -> Any:
    """A chart as the figure of a library.

    >>> chart = Chart("bars", "Time", Axis("module"), Axis("time", "ns"), [Series("self", ["a", "b"], [5, 3])])
    >>> type(draw(chart, "matplotlib")).__name__, type(draw(chart)).__name__
    ('Figure', 'Figure')
    """
    chart = _harmless(_with_last_steps(chart) if chart.kind == "areas" else chart)
    if renderer not in RENDERERS:
        raise no_match("renderer", str(renderer), RENDERERS)
    return import_module(RENDERERS[renderer]).figure(chart)


def _harmless(chart: Chart) -> Chart:
    """The chart with names of models and files made inert."""
    return chart._replace(
        title=inert(chart.title),
        x=_harmless_axis(chart.x),
        y=_harmless_axis(chart.y),
        series=[_harmless_series(series) for series in chart.series],
        guides=[_harmless_series(series) for series in chart.guides],
        stages=[(x, inert(name)) for x, name in chart.stages],
    )


def _harmless_axis(axis: Axis) -> Axis:
    return axis._replace(title=inert(axis.title), names=[inert(str(name)) for name in axis.names])


def _harmless_series(series: Series) -> Series:
    x = series.x
    if len(x) and isinstance(x[0], str):
        x = [inert(str(label)) for label in x]
    # a hover may have several lines
    names = [inert_lines(str(name)) for name in series.names]
    return series._replace(
        name=inert(series.name), x=x, names=names, marks=[inert(mark) for mark in series.marks]
    )


def _with_last_steps(chart: Chart) -> Chart:
    """The areas with an end: each figure holds until the next one, the last for as long as the one before it."""
    ends = [
        x[-1] + (x[-1] - x[-2] if len(x) > 1 else 1) for x in (series.x for series in chart.series) if len(x)
    ]
    end = max(ends, default=None)
    return chart._replace(
        series=[_until(end, series) for series in chart.series],
        guides=[_until(end, series) for series in chart.guides],
    )


def _until(end: Any, series: Series) -> Series:
    if end is None or not len(series.x):
        return series
    x, y, names = list(series.x), list(series.y), list(series.names)
    return series._replace(x=[*x, end], y=y + y[-1:], names=names + names[-1:])


def _log_scale(axis: Axis, least: float, most: float) -> Scale:
    """As far as the figures reach; where fewer than three round places lie within, as far as the next ones."""
    if least <= 0:
        least, most = 1.0, 10.0
    decades = math.log10(most / least)
    first, last = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
    parts = range(1, 10) if decades < 0.5 else (1, 2, 5) if decades < 3 else (1,)
    every = max(1, math.ceil(decades / (TICKS + 2)))
    round_ = [part * 10.0**power for power in range(first, last + 1, every) for part in parts]
    inside = [tick for tick in round_ if least * 0.999 <= tick <= most * 1.001]
    low, high = least, most
    if len(inside) < 3:
        low = max((tick for tick in round_ if tick <= least * 1.001), default=least)
        high = min((tick for tick in round_ if tick >= most * 0.999), default=most)
        high = high if high > low else low * 10
        inside = [tick for tick in [*round_, high] if low * 0.999 <= tick <= high * 1.001]
    room = (high / low) ** ROOM
    ticks = sorted(set(inside))
    return Scale(low / room, high * room, ticks, [_power(axis, tick) for tick in ticks])


def _power(axis: Axis, tick: float) -> str:
    if tick < 1 and not axis.unit:
        return f"{tick:.6g}"
    return axis.text(tick) if axis.unit else count(round(tick))


def _step(least: float, base: float) -> float:
    """The smallest of 1, 2, 5, 10, … (of bytes, 1, 2, 4, …) times a power of the base that is not under ``least``."""
    if least <= 0:
        return 1.0
    unit = base ** math.floor(math.log(least, base))
    factors = (
        (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if base == 1024 else (1, 2, 5, 10, 20, 50, 100, 200, 500)
    )
    for factor in (*factors, base):
        if unit * factor >= least * (1 - 1e-9):
            return float(unit * factor)
    return float(unit * base)


def _extent(chart: Chart, which: Literal["x", "y"]) -> tuple[float, float]:
    """The least and the most that stands along an axis; of a logarithmic one, of what is positive."""
    axis: Axis = getattr(chart, which)
    numbers: list[float] = []
    for series in [*chart.series, *chart.guides]:
        numbers += [float(number) for number in getattr(series, which)]
        numbers += [float(number) for number in (*series.low, *series.high)] if which == "y" else []
    if which == "y" and chart.kind == "areas":
        numbers += [float(sum(column)) for column in zip(*(series.y for series in chart.series))]
    # stacked as well
    if which == "y" and chart.kind == "bars":
        sums: dict[Any, float] = {}
        for series in chart.series:
            for label, height in zip(series.x, series.y):
                sums[label] = sums.get(label, 0.0) + float(height)
        numbers += sums.values()
    kept = [number for number in numbers if math.isfinite(number) and (number > 0 or not axis.log)]
    return min(kept, default=0.0), max(kept, default=1.0)


def stages_of(graph: Graph) -> list[tuple[float, str]]:
    """Where each phase of a run begins, along its operations; nothing for a run of a single one.

    >>> import torch, torch_vis as tv
    >>> stages_of(tv.trace(torch.nn.Linear(2, 1), torch.ones(1, 2), backward=True).graph)
    [(0.0, 'forward'), (3.0, 'backward')]
    """
    phases = graph.node_phase
    starts = np.flatnonzero(np.diff(phases, prepend=-1) != 0).tolist() if len(phases) else []
    if not 1 < len(starts) <= MOST_STAGES:
        return []
    return [(float(start), Phase(int(phases[start])).name.lower()) for start in starts]


SMALL_LETTER = 0.009  # of the width of a chart that is 700 pixels wide: a small letter
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


class _Room:
    """What is left of a chart for texts, in shares of its width and height."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self.points = points
        # from where to where, and how high
        self.texts: list[tuple[float, float, float]] = []
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
