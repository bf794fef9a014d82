"""A chart as a Matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from torch_vis.errors import optional
from torch_vis.views.charts.chart import FEW_POINTS, INK, QUIET, RULE, Chart, Series
from torch_vis.views.charts.labels import shortened_alike

WIDTH = 9.0  # inches, as all lengths here
ROW = 0.24
SPAN_LETTER = 0.012  # of the width of the chart: a small letter in a span
LEFT = 0.013  # of the width, free to the left of title and legend


def new_figure(**options: Any) -> Any:
    """A figure of pyplot's, which becomes the current one; as the value of a cell, a notebook shows it once."""
    with optional("matplotlib"):
        import matplotlib.pyplot as plt
    result: Any = plt.figure(**options)
    result._ipython_display_ = partial(_shown_as_a_value, result)
    return result


def _shown_as_a_value(figure: Any) -> None:
    """Keep the inline backend, which shows what is open at the end of a cell, from showing it a second time."""
    import matplotlib.pyplot as plt

    if "inline" in plt.get_backend():
        plt.close(figure)
    # IPython goes on to the ways in which it shows any figure
    raise NotImplementedError


def figure(chart: Chart) -> Any:
    """The chart, drawn."""
    with optional("matplotlib"):
        from matplotlib.transforms import blended_transform_factory
    sideways = chart.is_sideways
    keys = chart.legend_rows
    tall = max(2.4, 1.4 + ROW * len(chart.rows)) if sideways else 4.4 + 0.05 * chart.slanted
    drawing = new_figure(figsize=(WIDTH, tall + 0.2 * keys[1]), layout="constrained")
    axes = drawing.subplots()
    engine: Any = drawing.get_layout_engine()
    engine.set(w_pad=0.12, h_pad=0.12)
    draw_series = {"bars": _bars, "dots": _dots, "areas": _areas, "lines": _lines, "points": _points,
                   "spans": _spans}  # fmt: skip
    layers = [_guides, draw_series[chart.kind]]
    for layer in reversed(layers) if chart.kind == "areas" else layers:
        layer(axes, chart, chart.colored)
    _axis(axes, "x" if sideways else "y", chart, "y")
    if sideways:
        _row_labels(axes, chart)
    else:
        _axis(axes, "x", chart, "x")
        _stages(axes, chart)
    axes.grid(True, color=RULE, linewidth=0.6, axis="x" if chart.kind in ("bars", "spans") else "both")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    pad = 6.0
    if keys[0]:
        where: dict[str, Any] = {
            "loc": "lower left",
            "bbox_to_anchor": (LEFT, 1),
            "bbox_transform": blended_transform_factory(drawing.transFigure, axes.transAxes),
            "borderaxespad": 0.3,
            "borderpad": 0.2,
        }
        # the title makes the room for it; by itself it would push the chart away from the figure's edge
        axes.legend(ncols=keys[0], fontsize=8, frameon=False, **where).set_in_layout(False)
        pad += 3 + 13.5 * keys[1]
    title = axes.set_title(chart.title, loc="left", fontsize=11, color=INK, parse_math=False, pad=pad)
    title.set(x=LEFT, transform=blended_transform_factory(drawing.transFigure, title.get_transform()))
    return drawing


def _plain(text: str) -> str:
    """A text in which Matplotlib looks for no formulas."""
    return text.replace("$", r"\$")


def _axis(axes: Any, side: Literal["x", "y"], chart: Chart, which: Literal["x", "y"]) -> None:
    kind, ticks = (chart.x if which == "x" else chart.y), chart.scale(which)
    axis = getattr(axes, f"{side}axis")
    axis.set_label_text(_plain(kind.title))
    if kind.log:
        getattr(axes, f"set_{side}scale")("log")
    axis.set_ticks(ticks.ticks, [_plain(label) for label in ticks.labels])
    axis.set_ticks([], minor=True)
    if which == "x" and chart.slanted:
        for label in axis.get_ticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    getattr(axes, f"set_{side}lim")(ticks.low, ticks.high)


def _row_labels(axes: Any, chart: Chart) -> None:
    labels = chart.rows
    axes.set_ylabel(_plain(chart.x.title))
    axes.set_yticks(
        range(len(labels)), [_plain(label) for label in shortened_alike([*map(str, labels)])], fontsize=8
    )
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _guides(axes: Any, chart: Chart, _: Sequence[Series]) -> None:
    stepped: dict[str, Any] = {"drawstyle": "steps-post"} if chart.kind == "areas" else {}
    for series in chart.guides:
        ends = (series.y, series.x) if chart.is_sideways else (series.x, series.y)
        axes.plot(*ends, "--", color=series.color or QUIET, linewidth=1.2, label=series.name, **stepped)


def _stages(axes: Any, chart: Chart) -> None:
    for start, name in chart.stages_shown:
        if start > chart.stages[0][0]:
            axes.axvline(start, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(
            _plain(name), (start, 1), xycoords=("data", "axes fraction"), xytext=(3, -1),
            textcoords="offset points", fontsize=8, color=INK, va="top",
        )  # fmt: skip


def _bars(axes: Any, chart: Chart, series_: Sequence[Series]) -> None:
    row_of = {label: number for number, label in enumerate(chart.rows)}
    offsets = [0.0] * len(row_of)
    for series in series_:
        where = [row_of[label] for label in series.x]
        left = [offsets[row] for row in where]
        spread = None
        if len(series.low):
            spread = [
                [mid - low for low, mid in zip(series.low, series.y)],
                [high - mid for high, mid in zip(series.high, series.y)],
            ]
        axes.barh(where, series.y, left=left, color=series.color, label=series.name, xerr=spread)
        for row, number in zip(where, series.y):
            offsets[row] += number
    # to the right of it: to the left of a bar below zero stand the names of the rows
    for row, number in enumerate(chart.totals):
        axes.annotate(
            _plain(chart.y.text(number)), (max(number, 0), row), xytext=(3, 0), textcoords="offset points",
            fontsize=7, va="center",
        )  # fmt: skip


def _spans(axes: Any, chart: Chart, series_: Sequence[Series]) -> None:
    row_of = {label: number for number, label in enumerate(chart.rows)}
    across = chart.scale("y")
    for series in series_:
        where = [row_of[label] for label in series.x]
        wide = [high - low for low, high in zip(series.low, series.high)]
        axes.barh(
            where,
            wide,
            left=list(series.low),
            color=series.color,
            label=series.name,
            edgecolor="white",
            lw=0.5,
        )
        for row, low, length, mark in zip(where, series.low, wide, series.marks):
            if length / (across.high - across.low) > SPAN_LETTER * len(mark):
                axes.annotate(
                    _plain(mark), (low + length / 2, row), fontsize=7, color="white", ha="center", va="center"
                )


def _dots(axes: Any, chart: Chart, series_: Sequence[Series]) -> None:
    row_of = {label: number for number, label in enumerate(chart.rows)}
    for series in series_:
        where = [row_of[label] for label in series.x]
        axes.scatter(series.y, where, color=series.color, label=series.name, s=26, linewidths=0, zorder=3)
    columns = chart.side_columns
    for row, column, text, color in chart.side_figures:
        axes.annotate(
            _plain(text), (1, row), xycoords=("axes fraction", "data"), xytext=(6 + 4.4 * columns[column], 0),
            textcoords="offset points", fontsize=7, color=color, va="center", annotation_clip=False,
        )  # fmt: skip


def _areas(axes: Any, chart: Chart, series_: Sequence[Series]) -> None:
    if series_:
        names, colors = [series.name for series in series_], [series.color for series in series_]
        heights = [list(series.y) for series in series_]
        axes.stackplot(series_[0].x, *heights, labels=names, colors=colors, step="post", linewidth=0)


def _lines(axes: Any, chart: Chart, series_: Sequence[Series]) -> None:
    for series in series_:
        style: dict[str, Any] = {}
        if series.loose or len(series.x) <= FEW_POINTS:
            style |= {
                "marker": "o",
                "markersize": 5.5 if series.is_highlighted else 3.5,
            }
        style["linestyle"] = "none" if series.loose else (0, (4, 4)) if series.dashed else "-"
        axes.plot(series.x, series.y, color=series.color, label=series.name, linewidth=1.4, **style)
        if len(series.low):
            axes.fill_between(series.x, series.low, series.high, color=series.color, alpha=0.2, linewidth=0)


def _points(axes: Any, chart: Chart, series_: Sequence[Series]) -> None:
    for series in series_:
        axes.scatter(
            series.x, series.y, color=series.color, label=series.name, s=22, alpha=0.75, linewidths=0
        )
    for mark in chart.marks:
        # of the text, where the line that leads to it ends
        end = (0 if mark.side > 0 else 1, 0.5)
        line = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.6, "relpos": end} if mark.is_far else None
        axes.annotate(
            _plain(mark.text), (mark.x, mark.y), xytext=(5 * mark.side, 12 * mark.lift), textcoords="offset points",
            fontsize=7, color=mark.color, ha="left" if mark.side > 0 else "right", va="center", arrowprops=line,
        )  # fmt: skip
