"""Maps as pictures: grids of numbers with named rows and columns, maps over images, and text coloured by numbers.

One description, drawn by Plotly or Matplotlib, and as HTML without any library, for notebooks and files.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import no_match, optional
from torch_vis.graph.text import inert
from torch_vis.views.charts.matplotlib import new_figure

# from low to high: blue over white to red, and white over yellow and red to black
DIVERGING = ("#2166ac", "#67a9cf", "#f7f7f7", "#ef8a62", "#b2182b")
SEQUENTIAL = ("#fbfcfd", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
HEAT = ("#000004", "#51127c", "#b73779", "#fc8961", "#fcfdbf")
COVER = 0.75  # how much of an image the strongest part of a map covers
STRONG = 99.5  # per cent of a map's elements are below what is drawn strongest
COLUMNS = 4  # panels side by side
LABELS = 48  # rows or columns that are named one by one


class NumberGrid(NamedTuple):
    """Numbers with named rows and columns; ``texts`` stand in the cells."""

    title: str
    numbers: Any
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    row_title: str = ""
    column_title: str = ""
    texts: Sequence[Sequence[str]] = ()
    diverging: bool = False


class Overlay(NamedTuple):
    """A map over an image (height × width × 3, from 0 to 1); the map may be smaller and is then scaled up."""

    title: str
    image: Any
    numbers: Any
    diverging: bool = False


class ColoredText(NamedTuple):
    """Pieces of text, each with a number that colours it."""

    title: str
    pieces: Sequence[str]
    numbers: Sequence[float]


class MapPicture(NamedTuple):
    """Panels of one figure, side by side."""

    title: str
    panels: Sequence[NumberGrid | Overlay | ColoredText]

    def draw(self, renderer: str = "plotly") -> Any:
        """The figure of a library: ``"plotly"``, ``"matplotlib"``, or ``"html"`` as text without one.

        >>> grid = NumberGrid("effect", [[0.0, 1.0]], ["a"], ["x", "y"])
        >>> type(MapPicture("p", [grid]).draw("matplotlib")).__name__, MapPicture("p", [grid]).draw("html")[:4]
        ('Figure', '<fig')
        """
        if renderer not in RENDERERS:
            raise no_match("renderer", str(renderer), [*RENDERERS])
        return RENDERERS[renderer](self)


# ---------------------------------------------------------------- numbers to colours


def limits(numbers: Any, diverging: bool) -> tuple[float, float]:
    """The range that colours stand for: around zero where signs matter."""
    finite = np.asarray(numbers, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return (-1.0, 1.0) if diverging else (0.0, 1.0)
    if diverging:
        most = float(np.abs(finite).max()) or 1.0
        return -most, most
    low, high = min(float(finite.min()), 0.0), float(finite.max())
    return (low, high) if high > low else (low, low + 1.0)


def colored(numbers: Any, low: float, high: float, scale: Sequence[str]) -> Any:
    """Numbers as colours, red, green and blue from 0 to 1; what is no number is grey.

    >>> colored([[0.0, 1.0]], 0.0, 1.0, ("#000000", "#ffffff")).tolist()
    [[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]]
    """
    anchors = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in scale])
    array = np.asarray(numbers, dtype=np.float64)
    share = np.clip((array - low) / (high - low), 0.0, 1.0)
    known = np.isfinite(share)
    places = np.where(known, share, 0.0) * (len(anchors) - 1)
    rows = [np.interp(places, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    return np.where(known[..., None], np.stack(rows, -1), 0.8)


def scaled(numbers: Any, height: int, width: int) -> Any:
    """A map stretched to another size, straight between its points.

    >>> scaled([[0.0, 1.0]], 1, 4).tolist()
    [[0.0, 0.25, 0.75, 1.0]]
    """
    array = np.asarray(numbers, dtype=np.float64)
    for axis, size in ((0, height), (1, width)):
        count = array.shape[axis]
        if count == size:
            continue
        places = np.clip((np.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
        below = np.floor(places).astype(int)
        above = np.minimum(below + 1, count - 1)
        share = (places - below).reshape(-1, *([1] * (array.ndim - axis - 1)))
        array = np.take(array, below, axis) * (1 - share) + np.take(array, above, axis) * share
    return array


def blended(overlay: Overlay) -> Any:
    """The image with the map over it; where the map is nothing, the image is as it was."""
    image = np.clip(np.asarray(overlay.image, dtype=np.float64), 0.0, 1.0)
    numbers = scaled(overlay.numbers, *image.shape[:2])
    # a few strong pixels would leave all others pale
    most = float(np.nanpercentile(np.abs(numbers), STRONG)) if numbers.size else 0.0
    if most > 0:
        numbers = np.clip(numbers, -most, most)
    low, high = limits(numbers, overlay.diverging)
    colors = colored(numbers, low, high, DIVERGING if overlay.diverging else HEAT)
    strength = np.abs(numbers) / max(abs(low), abs(high))
    cover = COVER * np.clip(np.nan_to_num(strength), 0.0, 1.0)[..., None]
    # a grey image under a coloured map: what is coloured is the map
    grey = image.mean(-1, keepdims=True) * 0.7 + image * 0.3
    return grey * (1 - cover) + colors * cover


def _scale(panel: NumberGrid) -> Sequence[str]:
    return DIVERGING if panel.diverging else SEQUENTIAL


# ---------------------------------------------------------------- HTML


def png(pixels: Any) -> bytes:
    """An image (height × width × 3, from 0 to 1) as a PNG file.

    >>> png(np.zeros((2, 2, 3)))[1:4]
    b'PNG'
    """
    array = (np.clip(np.asarray(pixels), 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
    height, width = array.shape[:2]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), array.reshape(height, -1)], 1).tobytes()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 6)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _img(pixels: Any, width: int, *, sharp: bool) -> str:
    data = base64.b64encode(png(pixels)).decode()
    style = f"width:{width}px;{'image-rendering:pixelated;' if sharp else ''}display:block;border:1px solid #dfe4ea"
    return f'<img alt="" style="{style}" src="data:image/png;base64,{data}">'


def _text(text: object) -> str:
    return escape(inert(str(text)))


def html(picture: MapPicture) -> str:
    """The picture as a piece of HTML that needs nothing from elsewhere."""
    panels = "".join(f"<div>{_panel_html(panel)}</div>" for panel in picture.panels)
    style = "font:13px/1.45 system-ui,sans-serif;color:#1c2430;background:#fff;padding:10px;margin:0"
    grid = "display:flex;flex-wrap:wrap;gap:18px;align-items:flex-start"
    return (
        f'<figure style="{style}"><figcaption style="font-weight:600;margin-bottom:8px">{_text(picture.title)}'
        f'</figcaption><div style="{grid}">{panels}</div></figure>'
    )


def _panel_html(panel: NumberGrid | Overlay | ColoredText) -> str:
    title = f'<div style="margin-bottom:4px">{_text(panel.title)}</div>' if panel.title else ""
    if isinstance(panel, Overlay):
        return title + _img(blended(panel), 260, sharp=False)
    if isinstance(panel, ColoredText):
        return title + _colored_html(panel)
    return title + _grid_html(panel)


def _colored_html(panel: ColoredText) -> str:
    low, high = limits(panel.numbers, True)
    colors = colored(panel.numbers, low, high, DIVERGING)
    spans = []
    for piece, number, color in zip(panel.pieces, panel.numbers, colors):
        background = "rgb({:.0f},{:.0f},{:.0f})".format(*(color * 255))
        ink = "#fff" if float(color.mean()) < 0.5 else "#1c2430"
        spans.append(
            f'<span title="{number:.4g}" style="background:{background};color:{ink};padding:2px 3px;margin:1px;'
            f'border-radius:3px;display:inline-block;white-space:pre">{_text(piece)}</span>'
        )
    return f'<div style="max-width:720px">{"".join(spans)}</div>'


def _grid_html(panel: NumberGrid) -> str:
    numbers = np.asarray(panel.numbers, dtype=np.float64)
    low, high = limits(numbers, panel.diverging)
    colors = colored(numbers, low, high, _scale(panel))
    if max(numbers.shape) > LABELS:
        scale = f'<div style="color:#5b6572">{low:.3g} … {high:.3g}</div>'
        return _img(colors, min(3 * numbers.shape[1], 520), sharp=True) + scale
    # a table can be read, copied, and hovered over
    cell = "width:22px;height:20px;padding:0 2px;text-align:center;font-size:11px"
    rows = []
    for index, row in enumerate(numbers):
        name = panel.rows[index] if index < len(panel.rows) else ""
        cells = []
        for column, number in enumerate(row):
            color = colors[index, column]
            text = panel.texts[index][column] if len(panel.texts) else ""
            ink = "#fff" if float(color.mean()) < 0.5 else "#1c2430"
            background = "rgb({:.0f},{:.0f},{:.0f})".format(*(color * 255))
            cells.append(
                f'<td title="{number:.4g}" style="{cell};background:{background};color:{ink}">{_text(text)}</td>'
            )
        label = '<th style="text-align:right;font-weight:400;padding-right:6px;white-space:pre">'
        rows.append(f"<tr>{label}{_text(name)}</th>{''.join(cells)}</tr>")
    turned = (
        "writing-mode:vertical-rl;transform:rotate(180deg);font-weight:400;font-size:11px;white-space:pre"
    )
    names = [
        panel.columns[column] if column < len(panel.columns) else "" for column in range(numbers.shape[1])
    ]
    foot = "".join(f'<td><div style="{turned};margin:auto">{_text(name)}</div></td>' for name in names)
    axes = " × ".join(filter(None, [panel.row_title, panel.column_title]))
    note = f'<div style="color:#5b6572">{_text(axes)} &nbsp; {low:.3g} … {high:.3g}</div>'
    return f'<table style="border-collapse:collapse">{"".join(rows)}<tr><th></th>{foot}</tr></table>{note}'


# ---------------------------------------------------------------- libraries


def matplotlib_figure(picture: MapPicture) -> Any:
    """The picture drawn by Matplotlib."""
    with optional("matplotlib"):
        from matplotlib.colors import LinearSegmentedColormap
    count = len(picture.panels)
    across = min(count, COLUMNS)
    down = math.ceil(count / max(across, 1))
    wide, high = _inches(picture)
    figure = new_figure(figsize=(max(wide * across, 3.2), high * down + 0.5), layout="constrained")
    figure.suptitle(inert(picture.title))
    for number, panel in enumerate(picture.panels):
        axes = figure.add_subplot(down, across, number + 1)
        axes.set_title(inert(panel.title), fontsize=10)
        if isinstance(panel, Overlay):
            axes.imshow(blended(panel))
            axes.set_axis_off()
            continue
        if isinstance(panel, ColoredText):
            panel = _as_grid(panel)
        numbers = np.asarray(panel.numbers, dtype=np.float64)
        low, top = limits(numbers, panel.diverging)
        colormap = LinearSegmentedColormap.from_list("map", list(_scale(panel)))
        image = axes.imshow(numbers, vmin=low, vmax=top, cmap=colormap, aspect="auto")
        _name_axis(axes.set_xticks, panel.columns, numbers.shape[1], rotation=90)
        _name_axis(axes.set_yticks, panel.rows, numbers.shape[0])
        axes.set(xlabel=inert(panel.column_title), ylabel=inert(panel.row_title))
        for (row, column), amount in np.ndenumerate(numbers) if len(panel.texts) else ():
            share = (amount - low) / (top - low)
            dark = abs(share - 0.5) > 0.35 if panel.diverging else share > 0.6
            axes.text(column, row, inert(panel.texts[row][column]), ha="center", va="center", fontsize=7,
                      color="white" if dark else "black")  # fmt: skip
        figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def _inches(picture: MapPicture) -> tuple[float, float]:
    """How large a panel is drawn, by what is in it."""
    grids = [panel for panel in picture.panels if isinstance(panel, NumberGrid)]
    if not grids:
        return 3.2, 3.2 if any(isinstance(panel, Overlay) for panel in picture.panels) else 2.0
    rows = max(min(len(panel.numbers), LABELS) for panel in grids)
    columns = max(min(len(panel.numbers[0]) if len(panel.numbers) else 1, LABELS) for panel in grids)
    wide = 0.55 if any(len(panel.texts) for panel in grids) else 0.24
    return 1.8 + wide * columns, 1.2 + 0.24 * rows


def _name_axis(set_ticks: Any, names: Sequence[str], count: int, **look: Any) -> None:
    if len(names) == count and count <= LABELS:
        set_ticks(range(count), [inert(str(name)) for name in names], fontsize=8, **look)


def _as_grid(panel: ColoredText) -> NumberGrid:
    pieces = [f"{number} {piece}" for number, piece in enumerate(panel.pieces)]
    return NumberGrid(panel.title, [list(panel.numbers)], [""], pieces, diverging=True)


def plotly_figure(picture: MapPicture) -> Any:
    """The picture drawn by Plotly."""
    with optional("plotly"):
        import plotly.graph_objects as plotly
        from plotly.subplots import make_subplots
    count = max(len(picture.panels), 1)
    across = min(count, COLUMNS)
    down = math.ceil(count / across)
    titles = [inert(panel.title) for panel in picture.panels]
    figure = make_subplots(down, across, subplot_titles=titles)
    for number, panel in enumerate(picture.panels):
        cell = {"row": number // across + 1, "col": number % across + 1}
        if isinstance(panel, Overlay):
            figure.add_trace(plotly.Image(z=(blended(panel) * 255).astype(np.uint8)), **cell)
            figure.update_xaxes(visible=False, **cell)
            figure.update_yaxes(visible=False, **cell)
            continue
        if isinstance(panel, ColoredText):
            panel = _as_grid(panel)
        numbers = np.asarray(panel.numbers, dtype=np.float64)
        low, high = limits(numbers, panel.diverging)
        heat = plotly.Heatmap(
            z=numbers, zmin=low, zmax=high, colorscale=list(_scale(panel)), showscale=number == 0,
            text=[[inert(text) for text in row] for row in panel.texts] or None,
            texttemplate="%{text}" if len(panel.texts) else None,
        )  # fmt: skip
        figure.add_trace(heat, **cell)
        # by number, so that names which occur twice stay apart
        for update, names, size, title in (
            (figure.update_xaxes, panel.columns, numbers.shape[1], panel.column_title),
            (figure.update_yaxes, panel.rows, numbers.shape[0], panel.row_title),
        ):
            named = len(names) == size and size <= LABELS
            ticks = {"tickvals": [*range(size)], "ticktext": [inert(str(name)) for name in names]}
            update(title_text=inert(title), **(ticks if named else {}), **cell)
        figure.update_yaxes(autorange="reversed", **cell)
    wide, high = _inches(picture)
    figure.update_layout(
        title=inert(picture.title),
        height=int(96 * high * down) + 120,
        width=max(int(96 * wide * across) + 80, 420),
    )
    return figure


RENDERERS = {"plotly": plotly_figure, "matplotlib": matplotlib_figure, "html": html}
