"""A chart as a Plotly figure."""

from __future__ import annotations

import math
from html import escape
from typing import Any, Literal

from torch_vis.errors import optional
from torch_vis.views.charts.chart import FEW_POINTS, INK, QUIET, Chart, Mark, Scale, Series
from torch_vis.views.charts.labels import shortened_alike

# Labels do not touch what they name.
SPACED = {"ticks": "outside", "ticklen": 6, "tickcolor": "rgba(0,0,0,0)"}
ROW = 22  # pixels, as all lengths here
LETTER = 6  # a small one
BUTTONS = ["select", "lasso", "zoomin", "zoomout", "autoscale"]  # of no use here, and in the way of the title
KEYS = 44  # from the top, below the title: where the legend begins


def figure(chart: Chart) -> Any:
    """The chart, drawn."""
    with optional("plotly"):
        import plotly.graph_objects as go
    drawing, sideways, labels = go.Figure(), chart.is_sideways, chart.rows
    row_of = {label: row for row, label in enumerate(labels)}
    layers = [
        [_guide(go, chart, series) for series in chart.guides],
        [_series(go, chart, series, row_of) for series in chart.colored],
    ]
    for layer in reversed(layers) if chart.kind == "areas" else layers:
        drawing.add_traces(layer)
    if chart.totals and not _is_at_the_end(chart):
        drawing.add_trace(_sums(go, chart))
    for mark in chart.marks if chart.kind == "points" else ():
        drawing.add_annotation(**_mark(chart, mark))
    for note in (*_stages(chart), *_beside(chart)):
        drawing.add_annotation(**note)
    for start, _ in chart.stages[1:]:
        drawing.add_vline(start, line={"color": INK, "width": 1, "dash": "dot"})
    _, keys = chart.legend_rows
    height = max(300, 150 + ROW * len(labels)) if sideways else 440 + 5 * chart.slanted
    height += 20 * keys
    # below the title whatever the width: Plotly then makes as much room above the chart as the rows of keys need
    legend = {"orientation": "h", "yref": "container", "y": 1 - KEYS / height, "yanchor": "top",
              "xref": "container", "x": 0.02, "traceorder": "normal"}  # fmt: skip
    drawing.update_layout(
        title={"text": escape(chart.title, quote=False), "x": 0.02, "y": 1, "yanchor": "top",
               "yref": "container", "pad": {"t": 18}, "font": {"size": 16}},
        template="plotly_white",
        barmode="overlay" if chart.kind == "spans" else "stack",
        height=height,
        margin={"l": 80, "r": _right(chart), "t": 60, "b": 60},
        legend=legend if keys else None,
        showlegend=bool(keys),
        font={"color": INK},
        modebar={"remove": BUTTONS},
    )  # fmt: skip
    figures, named = ("xaxis", "yaxis") if sideways else ("yaxis", "xaxis")
    axes = {figures: _axis(chart, "y"), named: _rows(chart, labels) if sideways else _axis(chart, "x")}
    drawing.update_layout(axes)
    return drawing


def _rows(chart: Chart, labels: list[Any]) -> dict[str, Any]:
    return {
        "title": {"text": escape(chart.x.title, quote=False), "standoff": 12},
        "automargin": True,
        "range": [len(labels) - 0.4, -0.6],
        "tickvals": list(range(len(labels))),
        "ticktext": [escape(label, quote=False) for label in shortened_alike([*map(str, labels)])],
        "showgrid": chart.kind == "dots",
        "zeroline": False,
        **SPACED,
    }


def _axis(chart: Chart, which: Literal["x", "y"]) -> dict[str, Any]:
    axis, ticks = (chart.x if which == "x" else chart.y), chart.scale(which)
    return {
        "title": {"text": escape(axis.title, quote=False), "standoff": 12},
        "type": "log" if axis.log else "linear",
        "automargin": True,
        "range": _range(ticks, axis.log),
        "tickvals": ticks.ticks,
        "ticktext": [escape(label, quote=False) for label in ticks.labels],
        "tickangle": (-45 if chart.slanted else 0) if axis.names else None,
        "ticklabeloverflow": "allow",  # the first of names that slant reaches to the left of the chart
        "zeroline": not axis.log and ticks.low <= 0 <= ticks.high,
        **SPACED,
    }


def _range(ticks: Scale, log: bool) -> list[float]:
    return [_logged(ticks.low, log), _logged(ticks.high, log)]


def _logged(number: float, log: bool) -> float:
    """Plotly wants the places of a logarithmic axis as powers of ten."""
    return math.log10(number) if log else number


def _guide(go: Any, chart: Chart, series: Series) -> Any:
    ends = [list(series.x), list(series.y)]
    x, y = ends[::-1] if chart.is_sideways else ends
    shape = "hv" if chart.kind == "areas" else "linear"
    line = {"color": series.color or QUIET, "dash": "dash", "width": 1.5, "shape": shape}
    return go.Scatter(
        x=x, y=y, name=escape(series.name, quote=False), mode="lines", line=line, hoverinfo="name"
    )


def _mark(chart: Chart, mark: Mark) -> dict[str, Any]:
    annotation = {
        "x": _logged(mark.x, chart.x.log), "y": _logged(mark.y, chart.y.log), "text": escape(mark.text, quote=False),
        "xanchor": "left" if mark.side > 0 else "right", "font": {"size": 10, "color": mark.color},
    }  # fmt: skip
    if not mark.is_far:
        return annotation | {"showarrow": False, "xshift": 7 * mark.side, "yshift": 15 * mark.lift}
    line = {"arrowhead": 0, "arrowwidth": 0.8, "arrowcolor": QUIET, "standoff": 4}
    return annotation | line | {"showarrow": True, "ax": 7 * mark.side, "ay": -15 * mark.lift}


def _stages(chart: Chart) -> list[dict[str, Any]]:
    return [
        {"x": start, "y": 1, "yref": "paper", "text": escape(name, quote=False), "showarrow": False,
         "xanchor": "left", "yanchor": "top", "font": {"size": 11}}
        for start, name in chart.stages_shown if name
    ]  # fmt: skip


def _right(chart: Chart) -> int:
    """The room to the right of the chart: what is beside it stands there."""
    wide = chart.side_columns[-1]
    return 20 + LETTER * wide if wide else 60 if chart.is_sideways else 30


def _beside(chart: Chart) -> list[dict[str, Any]]:
    """The figures of dots, in columns beside the chart."""
    columns = chart.side_columns
    return [
        {"x": 1, "xref": "paper", "xshift": 8 + LETTER * columns[figure.column], "y": figure.row,
         "text": escape(figure.text, quote=False), "showarrow": False, "xanchor": "left",
         "font": {"size": 10, "color": figure.color}}
        for figure in chart.side_figures
    ]  # fmt: skip


def _sums(go: Any, chart: Chart) -> Any:
    """What the bars of each row come to, to their right: to the left of one below zero stand the names of the rows."""
    sums = chart.totals
    return go.Scatter(
        x=[max(number, 0.0) for number in sums], y=list(range(len(sums))), mode="text",
        text=[f" {chart.y.text(number)}" for number in sums],
        textposition="middle right", textfont={"size": 10}, cliponaxis=False, hoverinfo="skip", showlegend=False,
    )  # fmt: skip


def _is_at_the_end(chart: Chart) -> bool:
    """Whether the figures of a chart of bars can stand at the end of each."""
    return len(chart.series) == 1 and all(number >= 0 for number in chart.series[0].y)


def _series(go: Any, chart: Chart, series: Series, row_of: dict[Any, int]) -> Any:
    common: dict[str, Any] = {
        "name": escape(series.name, quote=False),
        "hovertext": _hover(chart, series),
        "hoverinfo": "text+name",
    }
    if chart.is_sideways:
        common |= {"x": list(series.y), "y": [row_of[label] for label in series.x]}
        if chart.kind == "dots":
            return go.Scatter(mode="markers", marker={"color": series.color, "size": 8}, **common)
        if chart.kind == "spans":
            common |= {
                "x": [high - low for low, high in zip(series.low, series.high)],
                "base": list(series.low),
            }
            inside = {"text": list(series.marks), "textposition": "inside", "insidetextanchor": "middle"}
            edge = {"color": series.color, "line": {"width": 0.5, "color": "white"}}
            return go.Bar(orientation="h", marker=edge, textangle=0, **inside, **common)
        if chart.totals and _is_at_the_end(chart):
            common |= {
                "text": [chart.y.text(number) for number in series.y],
                "textposition": "outside",
                "textfont": {"size": 10},
                "cliponaxis": False,
            }
        # without a line around it, which would be white and hide a bar that is not wider
        look = {"color": series.color, "line": {"width": 0}}
        return go.Bar(orientation="h", marker=look, error_x=_spread(series), **common)
    common |= {"x": list(series.x), "y": list(series.y)}
    if chart.kind == "areas":
        shape = {"width": 0.5, "color": series.color, "shape": "hv"}
        return go.Scatter(mode="lines", stackgroup="one", line=shape, fillcolor=series.color, **common)
    if chart.kind == "lines":
        mode = "markers" if series.loose else "lines+markers" if len(series.x) <= FEW_POINTS else "lines"
        line = {"color": series.color, "dash": "7px,7px" if series.dashed else "solid"}
        marker = {"size": 9} if series.is_highlighted else None
        return go.Scatter(mode=mode, line=line, marker=marker, error_y=_spread(series), **common)
    return go.Scatter(mode="markers", marker={"color": series.color, "size": 7, "opacity": 0.75}, **common)


def _hover(chart: Chart, series: Series) -> list[str]:
    """What each is called and its figure."""
    labels = [str(label) for label in series.x] if chart.is_sideways else [""] * len(series.y)
    names = [*series.names] or [""] * len(labels)
    sums = dict(zip(chart.rows, chart.totals)) if len(chart.series) > 1 else {}
    figures = [
        chart.y.text(number) + (f" of {chart.y.text(sums[label])}" if label in sums else "")
        for label, number in zip(series.x, series.y)
    ]
    return [
        "<br>".join(escape(part, quote=False) for part in parts if part)
        for parts in zip(labels, names, figures)
    ]


def _spread(series: Series) -> dict[str, Any] | None:
    if not len(series.low):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - mid for high, mid in zip(series.high, series.y)],
        "arrayminus": [mid - low for low, mid in zip(series.low, series.y)],
        "thickness": 1,
    }
