"""The picture as a Matplotlib figure: vector output, one axes, ready for ``plt.title`` and ``savefig``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_vis.errors import optional
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.run import Run
from torch_vis.views.charts.matplotlib import new_figure
from torch_vis.views.figure.options import FigureOptions
from torch_vis.views.figure.palette import FAINT, HEAT, INK, STROKE, WIRE, ink, small_ink
from torch_vis.views.figure.scene import LINE, PADDING, SMALL, TITLE, Box, Frame, Scene, Wire, scene, strokes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.transforms import Bbox

POINTS = 72.0  # to an inch; a pixel of the scene is drawn as one
LARGEST = 60.0  # inches; beyond, everything is drawn smaller
BELOW_ALL, BEHIND, BETWEEN, ABOVE, ON_TOP = 1, 2, 3, 4, 5


def draw(run: Run, options: FigureOptions) -> Figure:
    """Draw into a new figure of pyplot, which becomes the current one."""
    drawn = scene(run, options)
    figure: Figure = new_figure(figsize=_inches(drawn))
    _fill(figure, drawn)
    return figure


def _inches(drawn: Scene) -> tuple[float, float]:
    scale = min(1.0, LARGEST * POINTS / max(drawn.width, drawn.height))
    return drawn.width * scale / POINTS, drawn.height * scale / POINTS


def _fill(figure: Figure, drawn: Scene) -> None:
    figure.subplots_adjust(0.0, 0.0, 1.0, 1.0)
    axes = figure.add_subplot()
    axes.set_xlim(0, drawn.width)
    axes.set_ylim(drawn.height, 0)
    axes.set_aspect("equal")
    axes.axis("off")
    pen = _Pen(axes, _inches(drawn)[0] * POINTS / drawn.width)
    pen.write(24, 28, drawn.title, 16, weight="bold")
    pen.write(24, 45, drawn.caption, SMALL + 1, color=FAINT)
    for frame in drawn.frames:
        pen.frame(frame)
    for wire in drawn.wires:
        pen.wire(wire)
    for box in drawn.boxes:
        pen.box(box)
    for text, x, y in drawn.headings:
        pen.write(x, y, text, TITLE, color=FAINT, align="center")
    pen.legend(drawn)
    axes.set_axes_locator(_InProportion(figure, axes))


class _InProportion:
    """Keeps words and lines as large beside the boxes as they were drawn, whatever size the figure is given later.

    Matplotlib asks it for the place of the axes before everything that is drawn. What somebody else has set stays.
    """

    def __init__(self, figure: Figure, axes: Axes) -> None:
        self.figure = figure
        self.axes = axes
        self.unit = self._points()
        self.sizes: list[tuple[Any, str, float]] = [
            (artist, name, getattr(artist, f"get_{name}")())
            for artists, name in ((axes.texts, "fontsize"), (axes.patches, "linewidth"))
            for artist in artists
        ]
        self.given = [size for _, _, size in self.sizes]

    def __call__(self, axes: Any, renderer: Any) -> Bbox:
        """The place that the axes have anyway; what is on them has its size by then."""
        scale = self._points() / self.unit
        for number, (artist, name, size) in enumerate(self.sizes):
            if getattr(artist, f"get_{name}")() != self.given[number]:
                continue
            getattr(artist, f"set_{name}")(size * scale)
            self.given[number] = getattr(artist, f"get_{name}")()
        return self.axes.get_position(original=True)

    def get_subplotspec(self) -> SubplotSpec | None:
        """Where the axes are in a grid, which ``tight_layout`` asks for."""
        return self.axes.get_subplotspec()

    def _points(self) -> float:
        """How many points a unit of the drawing takes, its sides in proportion."""
        place = self.axes.get_position(original=True)
        (left, right), (bottom, top) = self.axes.get_xlim(), self.axes.get_ylim()
        width, height = self.figure.get_size_inches()
        return POINTS * min(
            place.width * width / abs(right - left), place.height * height / abs(top - bottom)
        )


class _Pen:
    """Draws the parts of a scene onto axes."""

    def __init__(self, axes: Axes, scale: float) -> None:
        self.axes = axes
        self.scale = scale

    def write(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        color: str = INK,
        align: str = "left",
        weight: str = "normal",
        rim: str | None = None,
    ) -> None:
        """Put a text on its baseline."""
        from matplotlib.patheffects import withStroke

        # parse_math off: a dollar in a module's name is a dollar.
        written = self.axes.text(
            x, y, text, size=size * self.scale, color=color, ha=align, va="baseline", weight=weight
        )
        written.set_parse_math(False)
        written.set_zorder(ON_TOP)
        written.set_clip_on(True)
        if rim:
            written.set_path_effects([withStroke(linewidth=4 * self.scale, foreground=rim)])

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        round_: float,
        fill: str,
        rim: tuple[str, float],
        order: int,
    ) -> None:
        """A rectangle with round corners."""
        from matplotlib.patches import FancyBboxPatch

        stroke, thick = rim
        style = f"round,pad=0,rounding_size={max(0.1, min(round_, width / 2, height / 2))}"
        self.axes.add_patch(
            FancyBboxPatch(
                (x, y), width, height, boxstyle=style, fc=fill, ec=stroke, lw=thick * self.scale, zorder=order
            )
        )

    def frame(self, frame: Frame) -> None:
        """The outline of a module, and its title."""
        self.rectangle(frame.x, frame.y, frame.width, frame.height, 7, frame.fill, frame.rim, BELOW_ALL)
        at = frame.y + frame.height - 8 if frame.title_below else frame.y + 15
        self.write(frame.x + 10, at, frame.title, SMALL + 1, color=FAINT, rim=frame.fill)

    def wire(self, wire: Wire) -> None:
        """A line with its tip."""
        from matplotlib.patches import PathPatch, Polygon
        from matplotlib.path import Path

        for part in wire.parts:
            points, codes = curve_path(part, wire.is_sideways)
            patch = PathPatch(Path(points, codes), fc="none", ec=WIRE, lw=1.2 * self.scale, zorder=BEHIND)
            self.axes.add_patch(patch)
        self.axes.add_patch(Polygon(wire.tip, closed=True, fc=WIRE, ec="none", zorder=BETWEEN))

    def box(self, box: Box) -> None:
        """A box and its words."""
        # a second card behind stands for the others
        if box.item.count > 1:
            self.rectangle(
                box.x + 3, box.y + 3, box.width, box.height, box.corner, box.fill, (STROKE, 0.8), BETWEEN
            )
        self.rectangle(box.x, box.y, box.width, box.height, box.corner, box.fill, box.rim, ABOVE)
        middle, y = box.x + box.width / 2, box.y + PADDING + 8.5
        self.write(middle, y, box.title, TITLE, color=ink(box.fill), align="center")
        for text in box.words:
            y += LINE - 1
            self.write(middle, y, text, SMALL, color=small_ink(box.fill), align="center")

    def legend(self, drawn: Scene) -> None:
        """Swatches, or the colour scale."""
        for name, fill, x, y in drawn.legend:
            self.rectangle(x, y, 12, 12, 3, fill, (STROKE, 0.8), ABOVE)
            self.write(x + 16, y + 10, name, SMALL, color=FAINT)
        if drawn.scale is not None:
            from matplotlib.colors import LinearSegmentedColormap

            x, y, width = drawn.scale
            map_ = LinearSegmentedColormap.from_list("heat", HEAT)
            self.axes.imshow(
                [[step / 255 for step in range(256)]],
                cmap=map_,
                extent=(x, x + width, y + 10, y),
                aspect="auto",
                zorder=ABOVE,
            )
            self.axes.set_xlim(0, drawn.width)
            self.axes.set_ylim(drawn.height, 0)
            self.axes.set_aspect("equal")
            for share, text in drawn.colors.ticks()[::2]:
                align = {0.0: "left", 0.5: "center", 1.0: "right"}[share]
                self.write(x + width * share, y + 22, text, SMALL, color=FAINT, align=align)
            self.write(x + width + 12, y + 9, drawn.note, SMALL, color=FAINT)


def curve_path(
    points: Sequence[tuple[float, float]], is_sideways: bool = False
) -> tuple[list[tuple[float, float]], list[int]]:
    """The knots of a line as vertices and codes of a Matplotlib path."""
    numbers = {"M": 1, "L": 2, "C": 4}
    vertices: list[tuple[float, float]] = []
    codes: list[int] = []
    for letter, corners in strokes(points, is_sideways):
        vertices += corners
        codes += [numbers[letter]] * len(corners)
    return vertices, codes


class _Picture:
    """Writes the picture in one of Matplotlib's file formats."""

    format = "png"

    def save(
        self,
        path: PathLike,
        run: Run,
    ) -> None:
        """Write the picture with the usual options, without touching pyplot's figures."""
        with optional("matplotlib"):
            from matplotlib.figure import Figure
        drawn = scene(run, FigureOptions())
        figure = Figure(figsize=_inches(drawn))
        _fill(figure, drawn)
        with replacing(path) as file:
            figure.savefig(file, format=self.format, dpi=144)


class Png(_Picture):
    """A picture in pixels."""


class Pdf(_Picture):
    """A picture on one page, as vectors."""

    format = "pdf"
