"""The tree of modules on the screen: only the lines in sight are ever made."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from torch_vis.graph.text import inert
from torch_vis.graph.types import Ints
from torch_vis.views.terminal.columns import COLUMNS, TEXT, Arrangement, RowListing, cell
from torch_vis.views.terminal.columns import PLAIN as COUNTED
from torch_vis.views.terminal.panel_canvas import Palette, palette

GAP = 2
NAME_WIDTH = (16, 44)
SHORTEST = 6  # of a name that is cut for what stands beside it
PLAIN = Style()


class ModuleTree(ScrollView, can_focus=True):
    """The rows that an arrangement shows, with columns of figures and a bar behind each."""

    DEFAULT_CSS = """
    ModuleTree { background: $background; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "page down", show=False),
        Binding("home,g", "edge(0)", "first", show=False),
        Binding("end,G", "edge(-1)", "last", show=False),
        Binding("left,h", "left", "close", show=False),
        Binding("right,l", "right", "open", show=False),
        Binding("shift+left,H", "sideways(-1)", "columns left", show=False),
        Binding("shift+right,L", "sideways(1)", "columns right", show=False),
        Binding("enter", "open_close", "open/close"),
    ]

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class Sort(Message):
        """A heading was clicked."""

        def __init__(self, column: str | None) -> None:
            super().__init__()
            self.column = column

    def __init__(
        self, arrangement: Arrangement, columns: list[str], *, bars: bool = True, **options: Any
    ) -> None:
        super().__init__(**options)
        self.arrangement = arrangement
        self.forest = arrangement.forest
        self.columns = columns
        self.first_column = 0
        self.bars = bars
        self.pinned: int | None = None
        self.rows: Ints = arrangement.rows()
        self.cursor = 0
        self._tops: dict[str, float] = {}
        self._widths: dict[str, int] = {}
        self.palette: Palette = palette(True)
        self._name_width = NAME_WIDTH[0]
        self._measure()

    # what is shown

    @property
    def row(self) -> int:
        """The row under the cursor; -1 where none is shown."""
        return int(self.rows[self.cursor]) if len(self.rows) else -1

    def rearrange(self, *, keep: int | None = None) -> None:
        """Show what the arrangement says now; the cursor stays on its row, or on the nearest above it that is left."""
        row = self.row if keep is None else keep
        self.rows = self.arrangement.rows()
        self._measure()
        self.cursor = self._nearest(row)
        self.refresh()
        self._into_view()
        if len(self.rows):
            self.post_message(self.Moved(self.row))

    def set_columns(self, columns: list[str]) -> None:
        """Show other columns."""
        self.columns, self.first_column = columns, 0
        self._measure()
        self.refresh()

    def on_mount(self) -> None:
        """Take the colours of the theme, and follow it."""
        self.watch(self.app, "theme", self._recolour)
        self._recolour()

    def _recolour(self) -> None:
        self.palette = palette(self.app.current_theme.dark)
        self.refresh()

    def _nearest(self, row: int) -> int:
        places = (
            {int(shown): at for at, shown in enumerate(self.rows.tolist())} if self.arrangement.sort else None
        )
        while row >= 0:
            if places is not None:
                at = places.get(row, -1)
            else:
                at = int(np.searchsorted(self.rows, row))
                at = at if at < len(self.rows) and self.rows[at] == row else -1
            if at >= 0:
                return at
            row = int(self.forest.parent[row])
        return 0

    def _measure(self) -> None:
        """How wide everything is; names are as wide as those on show need, within bounds."""
        lengths = self._lengths()[self.rows]
        if not self.arrangement.flat:
            lengths = lengths + 2 * self.forest.depth[self.rows]
        widest = int(lengths.max(initial=0)) + 3
        self._name_width = max(NAME_WIDTH[0], min(widest, NAME_WIDTH[1]))
        self.virtual_size = Size(0, len(self.rows) + 1)

    def in_sight(self) -> list[str]:
        """The columns that fit beside the names, whole."""
        room = self.size.width - self._name_width - 1
        names = []
        for name in self.columns[self.first_column :]:
            room -= self._width(name) + GAP
            if room < 0:
                break
            names.append(name)
        return names

    def _lengths(self) -> Ints:
        flat = self.arrangement.flat
        known: dict[bool, Ints] = self.__dict__.setdefault("_name_lengths", {})
        if flat not in known:
            words = self.forest.paths if flat else self.forest.names
            known[flat] = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
            for row, mark in self.forest.marks.items():
                known[flat][row] += len(mark) + 1
        return known[flat] + (8 if self.arrangement.is_folded else 0)

    def _width(self, name: str) -> int:
        if name not in self._widths:
            spec = COLUMNS[name]
            if name == "type":
                longest = max(map(len, set(self.forest.types)), default=0)
                self._widths[name] = max(6, min(longest, 20))
            elif spec.kind == TEXT:
                some = [self.forest.texts[name](int(row)) for row in self.rows[:60].tolist()]
                self._widths[name] = max(
                    len(spec.title), min(max(map(cell_len, some), default=0), spec.width)
                )
            else:
                self._widths[name] = spec.width
        return self._widths[name]

    # lines

    def render_line(self, y: int) -> Strip:
        """One line of the widget: the headings, or a row."""
        width = self.size.width
        if y == 0:
            return self._line(self._headings(), width, PLAIN)
        position = int(self.scroll_offset.y) + y - 1
        if position >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        row = int(self.rows[position])
        ground = self.palette.cursor if position == self.cursor else PLAIN
        return self._line(self._cells(row), width, ground)

    def _line(self, parts: tuple[list[Segment], list[Segment]], width: int, ground: Style) -> Strip:
        name, rest = parts
        fixed = Strip(name).adjust_cell_length(self._name_width)
        base = self.rich_style + ground
        strip = Strip.join([fixed, Strip(rest)]).adjust_cell_length(width)
        return Strip([Segment(inert(s.text), base + s.style if s.style else base) for s in strip], width)

    def _headings(self) -> tuple[list[Segment], list[Segment]]:
        colours, sort = self.palette, self.arrangement.sort
        arrow = "▾" if self.arrangement.descending else "▴"
        first = Segment(
            "  module" + (f" {arrow}" if sort == "name" else ""),
            colours.sorted if sort == "name" else colours.head,
        )
        rest = []
        shown = self.in_sight()
        for name in shown:
            text = COLUMNS[name].title + (arrow if sort == name else "")
            width = self._width(name)
            text = text.ljust(width) if COLUMNS[name].kind == TEXT else text.rjust(width)
            rest += [Segment(" " * GAP), Segment(text, colours.sorted if sort == name else colours.head)]
        if self.first_column + len(shown) < len(self.columns):
            rest.append(Segment("›", colours.sorted))
        return [first], rest

    def _cells(self, row: int) -> tuple[list[Segment], list[Segment]]:
        rest: list[Segment] = []
        for name in self.in_sight():
            rest.append(Segment(" " * GAP))
            if COLUMNS[name].kind == TEXT:
                style = self.palette.type if name == "type" else self.palette.dim
                text = self.forest.texts[name](row)
                rest.append(Segment(_fit(text, self._width(name)), style))
            else:
                rest += self._figure(name, row)
        return self._name_cells(row), rest

    def _name_cells(self, row: int) -> list[Segment]:
        shown, colours = self.arrangement, self.palette
        depth = 0 if shown.flat else int(self.forest.depth[row])
        mark = "  "
        if shown.has_children[row] and not shown.flat:
            opened = shown.is_open[row] or shown.matching is not None
            mark = "▾ " if opened else "▸ "
        style = colours.name
        if self.pinned == row:
            style = colours.pinned
        elif self.forest.kind(row) == "shared":
            style = colours.dim + Style(italic=True)
        elif shown.matching is not None:
            style = colours.match if shown.matching[row] else colours.dim
        label = ("● " if self.pinned == row else "") + shown.label(row)
        label += " ↺" if self.forest.kind(row) == "shared" else ""
        room = self._name_width - 2 * depth - 2
        # deeper than the column is wide: the depth as a number
        if room < 6:
            guide, room = f"{depth:>3} ", self._name_width - 6
        else:
            guide = "│ " * depth
        word = f" {self.forest.marks[row]}" if row in self.forest.marks else ""
        # the name goes before its mark
        if word and room < len(word) + SHORTEST:
            word = ""
        label = label if cell_len(label) + len(word) <= room else _fit(label, room - len(word))
        word = _fit(word, room - cell_len(label))
        parts = [(guide, colours.faint), (mark, colours.dim), (label, style), (word, colours.dim)]
        return [Segment(text, look) for text, look in parts]

    def _figure(self, name: str, row: int) -> list[Segment]:
        figure = self.figure(name, row)
        width = self._width(name)
        text = cell(name, figure).rjust(width)
        zero = figure == 0
        style = self.palette.faint if zero else self.palette.number
        if not self.bars or zero or figure != figure or COLUMNS[name].kind == COUNTED:
            return [Segment(text, style)]
        filled = round(width * min(1.0, figure / self._top(name)))
        bar = style + Style(bgcolor=self.palette.bars[COLUMNS[name].kind])
        return [Segment(text[:filled], bar), Segment(text[filled:], style)]

    def figure(self, name: str, row: int) -> float:
        """A row's figure; of a fold, the sum over its members where that means something."""
        return self.listing.figure(name, row)

    @property
    def listing(self) -> RowListing:
        """The rows and columns on show."""
        return RowListing(self.arrangement, self.rows, self.columns)

    def _top(self, name: str) -> float:
        if name not in self._tops:
            top = float(np.nanmax(self.forest.numbers[name], initial=0.0))
            self._tops[name] = top or 1.0
        return self._tops[name]

    # keys

    def action_move(self, step: int) -> None:
        """Go up or down."""
        self.go_to(self.cursor + step)

    def action_page(self, step: int) -> None:
        """Go a screen up or down."""
        self.go_to(self.cursor + step * max(1, self.size.height - 2))

    def action_edge(self, position: int) -> None:
        """Go to the first or the last row."""
        self.go_to(position if position >= 0 else len(self.rows) - 1)

    def action_left(self) -> None:
        """Close the row, or go to the one above it."""
        row = self.row
        if row < 0:
            return
        if self.arrangement.is_open[row] and not self.arrangement.flat:
            self.action_open_close()
        elif self.forest.parent[row] >= 0:
            self.go_to(self._nearest(int(self.forest.parent[row])))

    def action_right(self) -> None:
        """Open the row, or go into it."""
        row = self.row
        if row < 0 or not self.arrangement.has_children[row] or self.arrangement.flat:
            return
        if self.arrangement.is_open[row]:
            self.go_to(self.cursor + 1)
        else:
            self.action_open_close()

    def action_open_close(self) -> None:
        """Open or close the row; with a filter set, only to be seen once that is cleared."""
        row = self.row
        if row >= 0 and self.arrangement.has_children[row]:
            self.arrangement.is_open[row] = not self.arrangement.is_open[row]
            self.rearrange()

    def action_sideways(self, step: int) -> None:
        """Move the columns."""
        last = max(0, len(self.columns) - 1)
        self.first_column = max(0, min(last, self.first_column + step))
        self.refresh()

    def go_to(self, position: int) -> None:
        """Put the cursor on a line of those on show."""
        position = max(0, min(position, len(self.rows) - 1))
        if position != self.cursor and len(self.rows):
            self.cursor = position
            self.refresh()
            self._into_view()
            self.post_message(self.Moved(self.row))

    def _into_view(self) -> None:
        top, height = int(self.scroll_offset.y), max(1, self.size.height - 1)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)

    def on_click(self, event: events.Click) -> None:
        """Go to a row, open it where its mark is clicked, sort where a heading is."""
        position = int(self.scroll_offset.y) + event.y - 1
        if event.y == 0:
            self.post_message(self.Sort(self._column_at(event.x)))
        elif position < len(self.rows):
            again = position == self.cursor
            self.go_to(position)
            depth = 0 if self.arrangement.flat else int(self.forest.depth[self.row])
            if again or event.x // 2 == depth:
                self.action_open_close()

    def _column_at(self, x: int) -> str | None:
        if x < self._name_width:
            return "name"
        right_edge = self._name_width
        for name in self.in_sight():
            right_edge += self._width(name) + GAP
            if x < right_edge:
                return name
        return None

    def watch_scroll_y(self, old: float, new: float) -> None:
        """The lines in sight change."""
        super().watch_scroll_y(old, new)
        self.refresh(Region(0, 0, *self.size))


def _fit(text: str, width: int) -> str:
    """A text cut or filled to a width in cells.

    >>> _fit("convolution", 6), _fit("fc", 4)
    ('convo…', 'fc  ')
    """
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + "…" if width > 0 else ""
