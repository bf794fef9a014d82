"""The picture as a Plotly figure: pan and zoom, and every fact when the pointer is on a box, a frame or a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from torch_vis.errors import optional
from torch_vis.graph.run import Run
from torch_vis.graph.text import inert
from torch_vis.views.figure.options import FigureOptions
from torch_vis.views.figure.palette import FAINT, HEAT, INK, STROKE, WIRE, ink, mixed, small_ink
from torch_vis.views.figure.scene import (
    HEAD,
    LINE,
    PADDING,
    SMALL,
    TITLE,
    Scene,
    Wire,
    scene,
    strokes,
    text_width,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
ABOVE = 44  # pixels above the picture
PATCHES = 60  # of the colour scale
PILL = 12  # pixels of a radius from which on a corner is drawn with more pieces
STEPS = 8  # straight pieces that a curve is drawn with
WIDEST_TEXT = 100  # letters in a line of a hover
Points = list[tuple[float | None, float | None]]


def draw(run: Run, options: FigureOptions) -> Figure:
    """Draw into a new figure; one unit of its axes is a pixel at the figure's own size."""
    with optional("plotly"):
        import plotly.graph_objects as go
    drawn = scene(run, options)
    figure = go.Figure()
    for trace in [
        *_frames(drawn),
        *_wires(drawn),
        *_plates(drawn),
        *_boxes(drawn),
        *_words(drawn),
        *_hovers(drawn),
        *_scale(drawn),
    ]:
        figure.add_trace(go.Scatter(trace))
    figure.update_layout(_layout(drawn))
    return figure


def _text(text: str) -> str:
    """A text as Plotly shows it: its markup is HTML's, but for quotes, which it leaves as they are written."""
    return escape(inert(text), quote=False)


def _layout(drawn: Scene) -> dict[str, Any]:
    axis = {"visible": False, "fixedrange": False, "constrain": "domain"}
    return {
        "width": round(drawn.width),
        "height": round(drawn.height) + ABOVE,
        "margin": {"l": 0, "r": 0, "t": ABOVE, "b": 0},  # room for a title of the user's own
        "xaxis": {**axis, "range": [0, drawn.width]},
        "yaxis": {**axis, "range": [drawn.height, 0], "scaleanchor": "x"},
        "plot_bgcolor": "#ffffff",
        "paper_bgcolor": "#ffffff",
        "dragmode": "pan",
        "hovermode": "closest",
        "hoverdistance": 12,
        "showlegend": False,
        "font": {"family": FONT, "color": INK},
        "hoverlabel": {
            "align": "left",
            "bgcolor": "#ffffff",
            "font": {"family": FONT, "size": 11, "color": INK},
        },
    }


def _shape(name: str, points: Points, fill: str, stroke: str, width: float = 0.8) -> dict[str, Any]:
    return {
        "name": name,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "mode": "lines",
        "fill": "toself",
        "fillcolor": fill,
        "line": {"color": stroke, "width": width},
        "hoverinfo": "skip",
    }


def _rectangle(x: float, y: float, width: float, height: float, round_: float) -> Points:
    """The outline of a rectangle with round corners, and a gap after it."""
    import math

    radius = min(round_, width / 2, height / 2)
    points: Points = []
    for turn, (cx, cy) in enumerate(
        [
            (x + width - radius, y + radius),
            (x + width - radius, y + height - radius),
            (x + radius, y + height - radius),
            (x + radius, y + radius),
        ]
    ):
        steps = 3 if radius < PILL else 8
        for step in range(steps + 1):
            angle = math.pi / 2 * (turn - 1 + step / steps)
            points.append((round(cx + radius * math.cos(angle), 1), round(cy + radius * math.sin(angle), 1)))
    return [*points, points[0], (None, None)]


def _frames(drawn: Scene) -> Iterable[dict[str, Any]]:
    """Frames level by level, so that an inner one lies on top of the one around it."""
    levels: dict[tuple[int, str, tuple[str, float]], Points] = {}
    for frame in drawn.frames:
        outline = _rectangle(frame.x, frame.y, frame.width, frame.height, 7)
        levels.setdefault((frame.level, frame.fill, frame.rim), []).extend(outline)
    for (_, fill, rim), points in sorted(levels.items()):
        yield _shape("frames", points, fill, *rim)


def _wires(drawn: Scene) -> Iterable[dict[str, Any]]:
    lines: Points = []
    tips: Points = []
    for wire in drawn.wires:
        for part in wire.parts:
            lines += [*flattened(part, wire.is_sideways), (None, None)]
        tips += [*wire.tip, wire.tip[0], (None, None)]
    if lines:
        yield {
            "x": [x for x, _ in lines],
            "y": [y for _, y in lines],
            "mode": "lines",
            "line": {"color": WIRE, "width": 1.3},
            "hoverinfo": "skip",
            "name": "edges",
        }
        yield _shape("tips", tips, WIRE, WIRE, 0)


def _plates(drawn: Scene) -> Iterable[dict[str, Any]]:
    """A plate of the frame's own colour under each title, so that a line that passes does not cross it out."""
    plates: dict[str, Points] = {}
    for frame in drawn.frames:
        y = frame.y + frame.height - HEAD + 2 if frame.title_below else frame.y + 4
        plate = _rectangle(frame.x + 6, y, text_width(frame.title, SMALL + 1) + 4, HEAD - 6, 2)
        plates.setdefault(frame.fill, []).extend(plate)
    for fill, points in plates.items():
        yield _shape("plates", points, fill, fill, 0)


def flattened(points: Sequence[tuple[float, float]], is_sideways: bool = False) -> Points:
    """A line through its knots as straight pieces: an S between ranks is drawn with several."""
    pieces: Points = []
    for letter, corners in strokes(points, is_sideways):
        if letter == "C":
            start: Any = pieces[-1]
            pieces += [_bezier(start, corners, step / STEPS) for step in range(1, STEPS)]
        pieces.append((round(corners[-1][0], 1), round(corners[-1][1], 1)))
    return pieces


def _bezier(
    start: tuple[float, float], corners: Sequence[tuple[float, float]], t: float
) -> tuple[float, float]:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x, y = (sum(w * p[axis] for w, p in zip(weights, [start, *corners])) for axis in (0, 1))
    return round(x, 1), round(y, 1)


def _boxes(drawn: Scene) -> Iterable[dict[str, Any]]:
    """Boxes colour by colour: many shapes in one trace draw fast."""
    behind: dict[str, Points] = {}
    front: dict[tuple[str, tuple[str, float]], Points] = {}
    swatches: dict[str, Points] = {}
    for box in drawn.boxes:
        outline = _rectangle(box.x, box.y, box.width, box.height, box.corner)
        front.setdefault((box.fill, box.rim), []).extend(outline)
        # a second card behind stands for the others
        if box.item.count > 1:
            card = _rectangle(box.x + 3, box.y + 3, box.width, box.height, box.corner)
            behind.setdefault(box.fill, []).extend(card)
    for _name, fill, x, y in drawn.legend:
        swatches.setdefault(fill, []).extend(_rectangle(x, y, 12, 12, 3))
    for fill, points in behind.items():
        yield _shape("cards", points, fill, STROKE)
    for (fill, rim), points in front.items():
        yield _shape("boxes", points, fill, *rim)
    for fill, points in swatches.items():
        yield _shape("legend", points, fill, STROKE)


def _words(drawn: Scene) -> Iterable[dict[str, Any]]:
    """Every text, those of one size, colour and alignment together; x and y are of its middle."""
    groups: dict[tuple[float, str, str], list[tuple[float, float, str]]] = {}

    def write(
        x: float, y: float, text: str, size: float, color: str = INK, align: str = "middle center"
    ) -> None:
        if text:
            groups.setdefault((size, color, align), []).append((x, y, _text(text)))

    write(24, 22, drawn.title, 16, INK, "middle right")
    write(24, 41, drawn.caption, SMALL + 1, FAINT, "middle right")
    for text, x, y in drawn.headings:
        write(x, y - 4, text, TITLE, FAINT)
    for frame in drawn.frames:
        y = frame.y + frame.height - HEAD / 2 - 2 if frame.title_below else frame.y + HEAD / 2 + 2
        write(frame.x + 8, y, frame.title, SMALL + 1, FAINT, "middle right")
    for box in drawn.boxes:
        at, middle = box.y + PADDING + 4.5, box.x + box.width / 2
        write(middle, at, box.title, TITLE, ink(box.fill))
        for text in box.words:
            at += LINE - 1
            write(middle, at, text, SMALL, small_ink(box.fill))
    for name, _, x, y in drawn.legend:
        write(x + 15, y + 6, name, SMALL, FAINT, "middle right")
    if drawn.scale is not None:
        x, y, width = drawn.scale
        for share, text in drawn.colors.ticks()[::2]:
            align = {0.0: "middle right", 0.5: "middle center", 1.0: "middle left"}[share]
            write(x + width * share, y + 18, text, SMALL, FAINT, align)
        write(x + width + 10, y + 5, drawn.note, SMALL, FAINT, "middle right")
    for (size, color, align), rows in groups.items():
        yield {
            "x": [round(x, 1) for x, _, _ in rows],
            "y": [round(y, 1) for _, y, _ in rows],
            "text": [text for _, _, text in rows],
            "mode": "text",
            "textposition": align,
            "textfont": {"size": size, "color": color},
            "hoverinfo": "skip",
        }


def _hovers(drawn: Scene) -> Iterable[dict[str, Any]]:
    """Invisible points that carry the facts: several along a wide box, one where a line begins, one at a title."""
    places: list[tuple[float, float, str]] = []
    for wire in drawn.wires:
        x, y = wire.parts[0][0]
        below = 6 if wire.parts[0][1][1] >= y else -6
        places.append((x, y + below, _edge_text(wire)))
    for frame in drawn.frames:
        y = frame.y + frame.height - HEAD / 2 if frame.title_below else frame.y + HEAD / 2
        for x in _along(frame.x + 8, text_width(frame.title, SMALL + 1)):
            places.append((x, y, _hover(frame.title, frame.facts)))
    yield _hover_points(places, "modules and edges")
    places = []
    for box in drawn.boxes:
        for x in _along(box.x, box.width):
            places.append((x, box.y + box.height / 2, _hover(box.title, box.facts)))
    yield _hover_points(places, "operations")


def _hover_points(places: list[tuple[float, float, str]], name: str) -> dict[str, Any]:
    return {
        "x": [round(x, 1) for x, _, _ in places],
        "y": [round(y, 1) for _, y, _ in places],
        "mode": "markers",
        "marker": {"size": 22, "opacity": 0, "symbol": "square"},
        "hovertext": [text for _, _, text in places],
        "hoverinfo": "text",
        "name": name,
    }


def _along(left: float, width: float) -> list[float]:
    count = max(1, round(width / 44))
    return [left + width * (index + 0.5) / count for index in range(count)]


def _hover(title: str, facts: Sequence[tuple[str, str]]) -> str:
    lines = [f"<b>{_text(title)}</b>"]
    lines += [f"{name}: {_wrapped(text)}" for name, text in facts]
    return "<br>".join(lines)


def _edge_text(wire: Wire) -> str:
    many = f" and {wire.count - 1} more" if wire.count > 1 else ""
    ends = f"{_text(wire.source.title)} → {_text(wire.target.title)}"
    return f"{ends}<br><b>{_text(wire.label)}</b>{many}"


def _wrapped(text: str) -> str:
    pieces = [text[start : start + WIDEST_TEXT] for start in range(0, min(len(text), 600), WIDEST_TEXT)]
    return "<br>   ".join(map(_text, pieces)) + (" …" if len(text) > 600 else "")


def _scale(drawn: Scene) -> Iterable[dict[str, Any]]:
    if drawn.scale is None:
        return
    left, y, width = drawn.scale
    step = width / PATCHES
    for index in range(PATCHES):
        x = left + step * index
        patch: Points = [(x, y), (x + step, y), (x + step, y + 10), (x, y + 10), (x, y)]
        yield _shape("scale", patch, mixed(HEAT, (index + 0.5) / PATCHES), STROKE, 0)
