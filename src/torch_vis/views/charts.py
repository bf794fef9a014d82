"""Charts of figures along an axis, drawn by Plotly or by Matplotlib from one description."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Literal, NamedTuple

from torch_vis.errors import missing_extra, no_match
from torch_vis.views.units import count, duration, size

UNITS: dict[str, Callable[[Any], str]] = {"ns": duration, "bytes": size, "count": count}
# Eight colours that stay apart for colour-blind readers, in the order in which they are given out.
COLORS = ("#3b7dd8", "#e08a1e", "#2a9d8f", "#c8553d", "#8067b7", "#d4b106", "#5f6b7a", "#4fa3c7")
RENDERERS = ("plotly", "matplotlib")
INK, RULE = "#1c2430", "#dfe4ea"
TICKS = 6


class Axis(NamedTuple):
    """What an axis shows; ``unit`` is ``"ns"``, ``"bytes"``, ``"count"`` or empty for plain numbers."""

    title: str
    unit: str = ""
    log: bool = False


class Series(NamedTuple):
    """One line, area, set of bars or set of points; ``names`` are what a hover says of each.

    Of bars, ``x`` are the labels. ``low`` and ``high`` are the ends of a range around each ``y``.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    names: Sequence[str] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    color: str = ""


class Chart(NamedTuple):
    """A chart: ``"bars"`` lie on their side, one under another; ``"areas"`` are stacked."""

    kind: Literal["bars", "lines", "areas", "points"]
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    guides: Sequence[Series] = ()  # lines beneath the data: a roof, a budget


def draw(chart: Chart, renderer: str = "plotly") -> Any:
    """A chart as the figure of a library.

    >>> chart = Chart("bars", "Time", Axis("module"), Axis("time", "ns"), [Series("self", ["a", "b"], [5, 3])])
    >>> type(draw(chart, "matplotlib")).__name__, type(draw(chart)).__name__
    ('Figure', 'Figure')
    """
    if renderer == "plotly":
        return _plotly(chart)
    if renderer == "matplotlib":
        return _matplotlib(chart)
    raise no_match("renderer", str(renderer), RENDERERS)


def ticks(axis: Axis, most: float, least: float = 0.0) -> tuple[list[float], list[str]]:
    """Round places along an axis, and what is written there.

    >>> ticks(Axis("memory", "bytes"), 5 * 1024**2)[1]
    ['0 B', '1.00 MiB', '2.00 MiB', '3.00 MiB', '4.00 MiB', '5.00 MiB']
    """
    show: Callable[[Any], str] = UNITS.get(axis.unit, _plain)
    if axis.log:
        low = math.floor(math.log10(least)) if least > 0 else 0
        high = math.ceil(math.log10(most)) if most > 0 else low
        every = max(1, (high - low) // TICKS + 1)
        places = [10.0**power for power in range(low, high + 1, every)]
        written = UNITS.get(axis.unit, count)
        return places, [written(int(place)) if place >= 1 else f"{place:g}" for place in places]
    step = _step(max(most, 0.0) / TICKS, 1024.0 if axis.unit == "bytes" else 1000.0)
    places = [step * number for number in range(int(max(most, 0.0) / step) + 1)]
    return places, [show(int(place) if axis.unit else place) for place in places]


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


def _plain(number: float) -> str:
    return f"{number:,.4g}"


def _colored(chart: Chart) -> list[Series]:
    return [
        series if series.color else series._replace(color=COLORS[place % len(COLORS)])
        for place, series in enumerate(chart.series)
    ]


def _extent(chart: Chart, which: Literal["x", "y"]) -> tuple[float, float]:
    """The least and the most that stands along an axis; of a logarithmic one, of what is positive."""
    axis: Axis = getattr(chart, which)
    found: list[float] = []
    for series in [*chart.series, *chart.guides]:
        found += [float(number) for number in getattr(series, which)]
        found += [float(number) for number in series.high] if which == "y" else []
    if which == "y" and chart.kind == "areas":
        found += [float(sum(column)) for column in zip(*(series.y for series in chart.series))]
    if which == "y" and chart.kind == "bars":  # stacked as well
        sums: dict[Any, float] = {}
        for series in chart.series:
            for label, height in zip(series.x, series.y):
                sums[label] = sums.get(label, 0.0) + float(height)
        found += sums.values()
    kept = [number for number in found if math.isfinite(number) and (number > 0 or not axis.log)]
    return min(kept, default=0.0), max(kept, default=1.0)


# ---------------------------------------------------------------- Plotly


def _plotly(chart: Chart) -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise missing_extra("plotly") from error
    figure = go.Figure()
    for series in chart.guides:
        figure.add_trace(
            go.Scatter(x=list(series.x), y=list(series.y), name=escape(series.name, quote=False), mode="lines",
                       line={"color": series.color or "#8a94a3", "dash": "dash", "width": 1.5}, hoverinfo="name")
        )  # fmt: skip
    for series in _colored(chart):
        figure.add_trace(_plotly_series(go, chart, series))
    figure.update_layout(
        title={"text": escape(chart.title, quote=False)},
        template="plotly_white",
        barmode="stack",
        height=max(360, 120 + 22 * _rows(chart)) if chart.kind == "bars" else 460,
        margin={"l": 80, "r": 30, "t": 60, "b": 60},
        legend={"orientation": "h", "y": -0.18} if len(chart.series) + len(chart.guides) > 1 else None,
        showlegend=len(chart.series) + len(chart.guides) > 1,
        font={"color": INK},
    )
    figures, labels = ("xaxis", "yaxis") if chart.kind == "bars" else ("yaxis", "xaxis")
    axes = {figures: _plotly_axis(chart, "y"), labels: _plotly_axis(chart, "x")}
    if chart.kind == "bars":
        axes[labels] = {"autorange": "reversed", "automargin": True, "title": {"text": chart.x.title}}
    figure.update_layout(axes)
    return figure


def _rows(chart: Chart) -> int:
    return len({label for series in chart.series for label in series.x})


def _plotly_axis(chart: Chart, which: Literal["x", "y"]) -> dict[str, Any]:
    axis: Axis = getattr(chart, which)
    found: dict[str, Any] = {
        "title": {"text": axis.title},
        "type": "log" if axis.log else "-",
        "automargin": True,
    }
    if axis.unit or axis.log:
        least, most = _extent(chart, which) if chart.kind != "bars" or which == "y" else (0.0, 1.0)
        found["tickvals"], found["ticktext"] = ticks(axis, most, least)
    if not axis.log and which == "y":
        found["rangemode"] = "tozero"
    return found


def _plotly_series(go: Any, chart: Chart, series: Series) -> Any:
    show = UNITS.get(chart.y.unit)
    said = [show(int(number)) if show else _plain(number) for number in series.y]
    names = [escape(name, quote=False) for name in series.names] or [""] * len(said)
    hover = [f"{name}<br>{figure}" if name else figure for name, figure in zip(names, said)]
    spread = None
    if len(series.low):
        spread = {
            "type": "data",
            "symmetric": False,
            "array": [high - mid for high, mid in zip(series.high, series.y)],
            "arrayminus": [mid - low for low, mid in zip(series.low, series.y)],
            "thickness": 1,
        }
    common: dict[str, Any] = {
        "name": escape(series.name, quote=False),
        "hovertext": hover,
        "hoverinfo": "text+name",
    }
    if chart.kind == "bars":
        labels = [escape(str(label), quote=False) for label in series.x]
        return go.Bar(
            y=labels, x=list(series.y), orientation="h", marker_color=series.color, error_x=spread, **common
        )
    common |= {"x": list(series.x), "y": list(series.y)}
    if chart.kind == "areas":
        shape = {"width": 0.5, "color": series.color, "shape": "hv"}
        return go.Scatter(mode="lines", stackgroup="one", line=shape, fillcolor=series.color, **common)
    if chart.kind == "lines":
        return go.Scatter(mode="lines", line={"color": series.color}, error_y=spread, **common)
    return go.Scatter(mode="markers", marker={"color": series.color, "size": 7, "opacity": 0.75}, **common)


# ---------------------------------------------------------------- Matplotlib


def _matplotlib(chart: Chart) -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise missing_extra("matplotlib") from error
    tall = max(3.2, 1.2 + 0.28 * _rows(chart)) if chart.kind == "bars" else 4.6
    figure, axes = plt.subplots(figsize=(9.0, tall), layout="constrained")
    for series in chart.guides:
        axes.plot(series.x, series.y, "--", color=series.color or "#8a94a3", linewidth=1.2, label=series.name)
    draw_series = {"bars": _bars, "areas": _areas, "lines": _lines, "points": _points}[chart.kind]
    draw_series(axes, _colored(chart))
    axes.set_title(chart.title, loc="left", fontsize=11, color=INK, parse_math=False)
    sideways = chart.kind == "bars"
    _matplotlib_axis(axes.xaxis if sideways else axes.yaxis, chart, "y")
    if sideways:
        axes.set_ylabel(chart.x.title)
        axes.invert_yaxis()
    else:
        _matplotlib_axis(axes.xaxis, chart, "x")
    axes.grid(True, color=RULE, linewidth=0.6, axis="x" if sideways else "both")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if len(chart.series) + len(chart.guides) > 1:
        axes.legend(fontsize=8, frameon=False)
    return figure


def _matplotlib_axis(axis: Any, chart: Chart, which: Literal["x", "y"]) -> None:
    kind: Axis = getattr(chart, which)
    least, most = _extent(chart, which)
    axis.set_label_text(kind.title)
    if kind.log:
        axis._set_axes_scale("log")
    if kind.unit or kind.log:
        places, labels = ticks(kind, most, least)
        axis.set_ticks(places, labels)
        axis.set_ticks([], minor=True)


def _bars(axes: Any, colored: Sequence[Series]) -> None:
    labels = list(dict.fromkeys(label for series in colored for label in series.x))
    places = {label: place for place, label in enumerate(labels)}
    offsets = [0.0] * len(labels)
    for series in colored:
        rows = [places[label] for label in series.x]
        left = [offsets[row] for row in rows]
        spread = None
        if len(series.low):
            spread = [
                [mid - low for low, mid in zip(series.low, series.y)],
                [high - mid for high, mid in zip(series.high, series.y)],
            ]
        axes.barh(rows, series.y, left=left, color=series.color, label=series.name, xerr=spread)
        for row, number in zip(rows, series.y):
            offsets[row] += number
    axes.set_yticks(range(len(labels)), [str(label).replace("$", r"\$") for label in labels], fontsize=8)


def _areas(axes: Any, colored: Sequence[Series]) -> None:
    if colored:
        names, colors = [series.name for series in colored], [series.color for series in colored]
        heights = [list(series.y) for series in colored]
        axes.stackplot(colored[0].x, *heights, labels=names, colors=colors, step="post", linewidth=0)


def _lines(axes: Any, colored: Sequence[Series]) -> None:
    for series in colored:
        axes.plot(series.x, series.y, color=series.color, label=series.name)
        if len(series.low):
            axes.fill_between(series.x, series.low, series.high, color=series.color, alpha=0.2, linewidth=0)


def _points(axes: Any, colored: Sequence[Series]) -> None:
    for series in colored:
        axes.scatter(
            series.x, series.y, color=series.color, label=series.name, s=22, alpha=0.75, linewidths=0
        )
