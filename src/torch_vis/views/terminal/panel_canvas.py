"""What panels write on: headings, facts, tables and small charts, in the colours of the theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.theme import Theme

from torch_vis.graph.text import inert
from torch_vis.graph.types import Floats
from torch_vis.views.terminal.source import Advice
from torch_vis.views.text.table_layout import GAP, shrink

DARK = Theme(
    name="torch-vis-dark",
    primary="#7aa2f7",
    secondary="#bb9af7",
    accent="#e0af68",
    warning="#e0af68",
    error="#f7768e",
    success="#9ece6a",
    foreground="#c8d0e8",
    background="#14161f",
    surface="#14161f",
    panel="#1d2030",
    dark=True,
    variables={"footer-key-foreground": "#7aa2f7", "footer-description-foreground": "#8a93b2"},
)
LIGHT = Theme(
    name="torch-vis-light",
    primary="#2e5cb8",
    secondary="#7847bd",
    accent="#9a5b00",
    warning="#9a5b00",
    error="#b3261e",
    success="#3c7a1a",
    foreground="#22263a",
    background="#fbfbfd",
    surface="#fbfbfd",
    panel="#eceef5",
    dark=False,
    variables={"footer-key-foreground": "#2e5cb8", "footer-description-foreground": "#5b6280"},
)
THEMES = {"dark": DARK.name, "light": LIGHT.name}


class Palette(NamedTuple):
    """One style for each thing that is drawn."""

    name: Style
    type: Style
    number: Style
    dim: Style
    faint: Style
    head: Style
    sorted: Style
    cursor: Style
    pinned: Style
    match: Style
    good: Style
    warn: Style
    bad: Style
    title: Style
    bars: dict[str, str]
    heat: tuple[str, str]


def palette(dark: bool) -> Palette:
    """The styles for a dark or a light ground."""
    if dark:
        colours = ("#d6dcf2", "#7aa2f7", "#b6bfdc", "#7d86a6", "#3a4058", "#8a93b2", "#e0af68")
        marks = ("#2b3350", "#e0af68", "#ff9e64", "#9ece6a", "#e0af68", "#f7768e", "#bb9af7")
        bars = {
            "count": "#2c3a5e",
            "bytes": "#2a4a45",
            "time": "#5a3a2e",
            "share": "#3a3358",
            "plain": "#33384d",
            "norm": "#2f4a33",
        }
        return _make(colours, marks, bars, ("#1d2030", "#e0af68"))
    colours = ("#1b1f33", "#2e5cb8", "#333a55", "#6b7290", "#cdd2e2", "#5b6280", "#9a5b00")
    marks = ("#d8e0f6", "#9a5b00", "#b3261e", "#3c7a1a", "#9a5b00", "#b3261e", "#7847bd")
    bars = {
        "count": "#d4e0fb",
        "bytes": "#cfeee4",
        "time": "#fbdcc8",
        "share": "#e5dcfa",
        "plain": "#e3e6f0",
        "norm": "#d8efd2",
    }
    return _make(colours, marks, bars, ("#eceef5", "#9a5b00"))


def _make(
    colours: tuple[str, ...], marks: tuple[str, ...], bars: dict[str, str], heat: tuple[str, str]
) -> Palette:
    name, type_, number, dim, faint, head, order = colours
    cursor, pinned, match, good, warn, bad, title = marks
    return Palette(
        name=Style(color=name),
        type=Style(color=type_),
        number=Style(color=number),
        dim=Style(color=dim),
        faint=Style(color=faint),
        head=Style(color=head, bold=True),
        sorted=Style(color=order, bold=True),
        cursor=Style(bgcolor=cursor),
        pinned=Style(color=pinned, bold=True),
        match=Style(color=match, bold=True),
        good=Style(color=good),
        warn=Style(color=warn),
        bad=Style(color=bad, bold=True),
        title=Style(color=title, bold=True),
        bars=bars,
        heat=heat,
    )


NARROWEST = 6  # cells that a column keeps when there is no room
EIGHTHS = " ▁▂▃▄▅▆▇█"
PARTS = " ▏▎▍▌▋▊▉█"


class PanelCanvas:
    """Lines of a panel, one below the other.

    >>> from torch_vis.views.terminal.panel_canvas import palette
    >>> canvas = PanelCanvas(40, palette(True))
    >>> canvas.facts([("class", "Linear"), ("parameters", "8")])
    >>> print(canvas.text().plain)
    class       Linear
    parameters  8
    """

    def __init__(
        self,
        width: int,
        colours: Palette,
        *,
        dark: bool = True,
        histograms: bool = False,
        batch_sizes: Sequence[Advice] = (),
    ) -> None:
        self.width = max(20, width)
        self.colours = colours
        self.dark = dark
        self.histograms = histograms
        """Whether the user asked how the tensors' elements are spread."""
        self.batch_sizes = batch_sizes
        """What was found out about batch sizes, if the user asked for it."""
        self.lines: list[Text] = []
        self.goal: int | None = None
        """The line that should be in sight."""

    def text(self) -> Text:
        """All of it, with nothing in it that a terminal would obey."""
        for line in self.lines:
            line.plain = inert(line.plain)
        return Text("\n").join(self.lines)

    def blank(self) -> None:
        """An empty line."""
        if self.lines and self.lines[-1].plain:
            self.lines.append(Text())

    def heading(self, words: str, note: str = "") -> None:
        """The title of a part."""
        self.blank()
        self.put((words, self.colours.title), (f"  {note}" if note else "", self.colours.dim))

    def put(self, *parts: tuple[str, Style]) -> None:
        """A line of differently coloured parts."""
        self.lines.append(Text.assemble(*(part for part in parts if part[0])))

    def say(self, words: str, style: Style | None = None) -> None:
        """A sentence, wrapped."""
        column = 0
        for word in words.split():
            if column and column + 1 + cell_len(word) > self.width:
                column = 0
            if column:
                self.lines[-1].append(" " + word, style=style or self.colours.number)
                column += 1 + cell_len(word)
            else:
                self.put((word, style or self.colours.number))
                column = cell_len(word)

    def missing(self, words: str) -> None:
        """What this panel would need."""
        self.say(words, self.colours.dim)

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Names and what they are, in two columns."""
        wide = max((cell_len(name) for name, _ in pairs), default=0)
        for name, fact in pairs:
            for number, line in enumerate(wrap(fact, max(12, self.width - wide - 2)) or [""]):
                label = name if number == 0 else ""
                self.put((label.ljust(wide) + "  ", self.colours.dim), (line, self.colours.name))

    def table(
        self,
        heads: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: str = "",
        styles: Sequence[Style | None] = (),
    ) -> None:
        """Cells in columns; ``right`` has an ``r`` for each column that is aligned to the right.

        A column without anything in it is left out. Where there is no room, the widest column is the one that is cut.
        """
        kept = [column for column in range(len(heads)) if any(row[column] for row in rows)]
        cells = [[str(row[column]) for column in kept] for row in [heads, *rows]]
        right = "".join(right[column] if column < len(right) else "l" for column in kept)
        styles = [styles[column] if column < len(styles) else None for column in kept]
        wanted = [max(cell_len(row[column]) for row in cells) for column in range(len(kept))]
        widths = shrink(wanted, [NARROWEST] * len(wanted), self.width)
        for number, row in enumerate(cells):
            line = Text()
            for column, (text, width) in enumerate(zip(row, widths, strict=True)):
                text = cut(text, width)
                fill = " " * (width - cell_len(text))
                text = fill + text if right[column] == "r" else text + fill
                style = self.colours.head if number == 0 else styles[column]
                line.append(text + (GAP if column < len(row) - 1 else ""), style=style or self.colours.number)
            line.rstrip()
            self.lines.append(line)

    def bar(
        self, label: str, share: float, text: str, *, label_width: int, style: Style | None = None
    ) -> None:
        """A name, a bar from the left, and its figure."""
        room = max(4, self.width - label_width - 12)
        self.put(
            (cut(label, label_width).ljust(label_width) + " ", self.colours.dim),
            (horizontal(share, room).ljust(room), style or self.colours.type),
            (f" {text:>10}", self.colours.number),
        )


def cut(text: str, width: int) -> str:
    """A text of at most ``width`` cells.

    >>> cut("convolution", 6)
    'convo…'
    """
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[:-1]
    return text + "…"


def horizontal(share: float, width: int) -> str:
    """A bar that fills a share of a width, to an eighth of a cell.

    >>> horizontal(0.5, 4), horizontal(0.0, 4)
    ('██', '')
    """
    if math.isnan(share):
        return ""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    return ("█" * (eighths // 8) + PARTS[eighths % 8]).rstrip()


def sparkline(figures: Sequence[float], width: int) -> str:
    """A curve one line high; of more figures than cells, the highest of each stretch.

    >>> sparkline([0, 1, 2, 4], 10)
    ' ▂▄█'
    """
    points = squeeze(np.asarray(figures, dtype=np.float64), width)
    top = float(np.nanmax(points)) if len(points) and not np.isnan(points).all() else 0.0
    if top <= 0:
        return "▁" * len(points)
    return "".join(EIGHTHS[0 if math.isnan(point) else round(point / top * 8)] for point in points)


def squeeze(figures: Floats, width: int) -> Floats:
    """At most ``width`` figures: the highest of each equal stretch."""
    if len(figures) <= width or width <= 0:
        return figures
    edges = np.linspace(0, len(figures), width + 1).astype(np.int64)[:-1]
    return np.maximum.reduceat(figures, edges)


def chart(figures: Floats, width: int, height: int) -> list[str]:
    """A filled curve ``height`` lines high, from the top line down."""
    points = squeeze(figures, width)
    top = float(points.max(initial=0.0)) or 1.0
    levels = np.round(points / top * height * 8).astype(int)
    lines = []
    for line in range(height - 1, -1, -1):
        lines.append("".join(EIGHTHS[int(min(8, max(0, level - line * 8)))] for level in levels))
    return lines


def short(figure: float | None) -> str:
    """A figure in four digits.

    >>> short(0.00012), short(None), short(3.0), short(123456.0)
    ('1.2e-04', '–', '3', '1.23e+05')
    """
    if figure is None:
        return "–"
    if figure == 0:
        return "0"
    if abs(figure) < 1e-3 or abs(figure) >= 1e5:
        return f"{figure:.3g}" if abs(figure) >= 1e5 else f"{figure:.1e}"
    return f"{figure:.4g}"
