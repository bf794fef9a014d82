"""The picture as an SVG file of its own: vector text, no library needed, facts as tooltips."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torch_vis.graph.io.atomic import PathLike, write_text
from torch_vis.graph.run import Run
from torch_vis.graph.text import inert
from torch_vis.views.figure.options import FigureOptions
from torch_vis.views.figure.palette import FAINT, HEAT, INK, STROKE, WIRE, ink, small_ink
from torch_vis.views.figure.scene import LINE, PADDING, SMALL, TITLE, Box, Frame, Scene, Wire, scene, strokes

FONT = "'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif"


def save(path: PathLike, run: Run) -> None:
    """Write the picture with the usual options."""
    draw(run, FigureOptions()).save(path)


class Drawing:
    """An SVG picture that shows itself in a notebook; ``str()`` is its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def save(self, path: PathLike) -> None:
        """Write it to a file."""
        write_text(path, self.text)

    def _repr_svg_(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text


def draw(run: Run, options: FigureOptions) -> Drawing:
    """Draw with options of your own."""
    return Drawing(svg(scene(run, options)))


def svg(drawn: Scene) -> str:
    """A scene as the text of an SVG document."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawn.width:.0f}" height="{drawn.height:.0f}" '
        f'viewBox="0 0 {drawn.width:.1f} {drawn.height:.1f}" font-family="{FONT}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(24, 28, inert(drawn.title), 16, weight="bold"),
        _text(24, 45, drawn.caption, SMALL + 1, fill=FAINT),
    ]
    parts += [_frame(frame) for frame in drawn.frames]
    parts += [_wire(wire) for wire in drawn.wires]
    parts += [_frame_title(frame) for frame in drawn.frames]
    parts += [_box(box) for box in drawn.boxes]
    parts += [_text(x, y, text, TITLE, fill=FAINT, anchor="middle") for text, x, y in drawn.headings]
    parts += _legend(drawn)
    return "\n".join([*parts, "</svg>\n"])


def curve(points: Sequence[tuple[float, float]], is_sideways: bool = False) -> str:
    """The path of a line through its knots: pieces along the way it runs straight, those across as an S."""
    return "".join(
        letter + " ".join(f"{x:.1f} {y:.1f}" for x, y in corners)
        for letter, corners in strokes(points, is_sideways)
    )


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    fill: str = INK,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    bold = f' font-weight="{weight}"' if weight != "normal" else ""
    side = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{side}{bold}>{escape(text)}</text>'
    )


def _tooltip(title: str, facts: Sequence[tuple[str, str]]) -> str:
    lines = [title, *(f"{name}: {text}" for name, text in facts)]
    text = "\n".join(inert(line) for line in lines)
    return f"<title>{escape(text)}</title>"


def _frame(frame: Frame) -> str:
    color, rim = frame.rim
    width = f' stroke-width="{rim:g}"' if rim != 1 else ""
    return (
        f"<g>{_tooltip(frame.title, frame.facts)}"
        f'<rect x="{frame.x:.1f}" y="{frame.y:.1f}" width="{frame.width:.1f}" height="{frame.height:.1f}" rx="7" '
        f'fill="{frame.fill}" stroke="{color}"{width}/></g>'
    )


def _frame_title(frame: Frame) -> str:
    """After the lines, with a rim of the frame's own colour, so that a line that passes does not cross it out."""
    at = frame.y + frame.height - 8 if frame.title_below else frame.y + 15
    text = _text(frame.x + 10, at, frame.title, SMALL + 1, fill=FAINT)
    return text.replace("<text ", f'<text stroke="{frame.fill}" stroke-width="4" paint-order="stroke" ', 1)


def _wire(wire: Wire) -> str:
    lines = "".join(curve(part, wire.is_sideways) for part in wire.parts)
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in wire.tip)
    many = f" and {wire.count - 1} more" if wire.count > 1 else ""
    title = _tooltip(f"{wire.source.title} → {wire.target.title}: {wire.label}{many}", ())
    return (
        f'<g>{title}<path d="{lines}" fill="none" stroke="{WIRE}" stroke-width="1.3"/>'
        f'<polygon points="{corners}" fill="{WIRE}"/></g>'
    )


def _box(box: Box) -> str:
    middle, y = box.x + box.width / 2, box.y + PADDING + 8.5
    lines = [_text(middle, y, box.title, TITLE, fill=ink(box.fill), anchor="middle")]
    for text in box.words:
        y += LINE - 1
        lines.append(_text(middle, y, text, SMALL, fill=small_ink(box.fill), anchor="middle"))
    under = ""
    # a second card behind stands for the others
    if box.item.count > 1:
        under = (
            f'<rect x="{box.x + 3:.1f}" y="{box.y + 3:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
            f'rx="{box.corner:g}" fill="{box.fill}" stroke="{STROKE}" stroke-width="0.8"/>'
        )
    return (
        f"<g>{_tooltip(box.title, box.facts)}{under}"
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="{box.corner:g}" '
        f'fill="{box.fill}" stroke="{box.rim[0]}" stroke-width="{box.rim[1]:g}"/>{"".join(lines)}</g>'
    )


def _legend(drawn: Scene) -> list[str]:
    parts = []
    for name, fill, x, y in drawn.legend:
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" rx="3" fill="{fill}" stroke="{STROKE}" '
            'stroke-width="0.8"/>'
        )
        parts.append(_text(x + 16, y + 10, name, SMALL, fill=FAINT))
    if drawn.scale is not None:
        x, y, width = drawn.scale
        stops = "".join(
            f'<stop offset="{index / (len(HEAT) - 1):.2f}" stop-color="{color}"/>'
            for index, color in enumerate(HEAT)
        )
        parts.append(f'<defs><linearGradient id="heat">{stops}</linearGradient></defs>')
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="10" fill="url(#heat)" stroke="{STROKE}" '
            'stroke-width="0.6"/>'
        )
        for share, text in drawn.colors.ticks()[::2]:
            anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[share]
            parts.append(_text(x + width * share, y + 22, text, SMALL, fill=FAINT, anchor=anchor))
        parts.append(_text(x + width + 12, y + 9, drawn.note, SMALL, fill=FAINT))
    return parts
