"""The explorer as a program for the terminal: the tree on one side, a panel on the other, keys for everything."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from rich.style import Style
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Input, Static, Tab, Tabs

from torch_vis.errors import no_match
from torch_vis.views.terminal.columns import available, chosen
from torch_vis.views.terminal.config import ExplorerConfig
from torch_vis.views.terminal.palette import DARK, LIGHT, THEMES, palette
from torch_vis.views.terminal.panel_app import SideApp
from torch_vis.views.terminal.panels.table import PANELS
from torch_vis.views.terminal.row_filter import Arrangement, is_expression
from torch_vis.views.terminal.screens import ChooseColumns, Help
from torch_vis.views.terminal.source import Source
from torch_vis.views.terminal.tree import ModuleTree

FIRST_SCREEN = 40  # rows to open with, about
IDLE_S = 0.4  # after the first screen, when what a filter needs can be prepared


class Explorer(SideApp):
    """Shows one source. ``run()`` takes the terminal until the user quits."""

    TITLE = "torch_vis"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (130, "-wide")]  # noqa: RUF012  (Textual's own form)
    CSS = """
    #top { height: 1; padding: 0 1; background: $panel; }
    #body { layout: vertical; height: 1fr; }
    .-wide #body { layout: horizontal; }
    ModuleTree { width: 1fr; height: 1fr; min-height: 8; }
    #side { height: 45%; width: 1fr; border-top: solid $panel; }
    .-wide #side { height: 1fr; width: 44%; border-top: none; border-left: solid $panel; }
    #side.-off { display: none; }
    Tabs { height: 2; }
    Tab { padding: 0 1 0 0; }
    #scroll { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    #scroll > Static { width: 100%; height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    #filter { display: none; border: none; height: 1; padding: 0 1; background: $panel; }
    #keys { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "question_mark", "help", "help", key_display="?"
        ),  # what a newcomer needs comes first: the line
        Binding("q", "quit", "quit", key_display="q"),  # of keys at the bottom is cut at its end
        Binding("ctrl+c", "quit", "quit", show=False),
        Binding("slash", "filter", "filter", key_display="/", priority=True),
        Binding("enter", "keep_filter", "keep the filter", show=False, priority=True),
        Binding("space", "pin", "hold"),
        Binding("tab", "panel(1)", "panel", priority=True),
        Binding("shift+tab", "panel(-1)", "panel back", show=False, priority=True),
        *(Binding(str(number), f"panel_number({number})", "panel", show=False) for number in range(1, 10)),
        Binding("left_square_bracket", "scroll_panel(-1)", "panel up", show=False),
        Binding("right_square_bracket", "scroll_panel(1)", "panel down", show=False),
        Binding("plus,equals_sign", "depth(1)", "deeper", key_display="+"),
        Binding("minus", "depth(-1)", "shallower", key_display="-"),
        Binding("e", "below(True)", "open below", show=False),
        Binding("c", "below(False)", "close below", show=False),
        Binding("E", "everything(True)", "open all", show=False),
        Binding("C", "everything(False)", "close all", show=False),
        Binding("z", "fold", "fold"),
        Binding("f", "flat", "flat", show=False),
        Binding("n", "match(1)", "next match", show=False),
        Binding("N", "match(-1)", "previous match", show=False),
        Binding("escape", "clear", "clear", show=False),
        Binding("v", "columns", "columns"),
        Binding("o", "sort", "sort"),
        Binding("O", "turn", "turn order", show=False),
        Binding("b", "bars", "bars", show=False),
        Binding("i", "histograms", "histograms", show=False),
        Binding("p", "side", "panel on/off", show=False),
        Binding("y", "copy_path", "copy path", show=False),
        Binding("Y", "copy_panel", "copy panel", show=False),
        Binding("s", "save", "save"),
        Binding("a", "batch", "batch size", show=False),
        Binding("t", "theme", "dark/light", show=False),
    ]

    def __init__(self, source: Source, config: ExplorerConfig | None = None) -> None:
        super().__init__(source)
        self.config = config or ExplorerConfig()
        self.arrangement = Arrangement(source.forest, max_depth=self.config.max_depth)
        self.arrangement.open_to(_opening_depth(self.arrangement))
        self._froze = False
        self.filtered = ""
        """The filter that the rows on show answer."""
        self._as_text = False  # it is no regular expression
        self._depth = int(source.forest.depth[self.arrangement.rows()].max(initial=0))
        self._set_theme(self.config.color_scheme)

    def _set_theme(self, scheme: str) -> None:
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        name = THEMES.get(scheme, scheme)
        if name not in self.available_themes:
            raise no_match("color scheme", scheme, [*THEMES, *self.available_themes])
        self.theme = name

    def compose(self) -> ComposeResult:
        """The line at the top, tree and panel, the filter's line, the keys."""
        config = self.config
        yield Static(self._top(), id="top")
        with Container(id="body"):
            columns = chosen(self.source.forest, config)
            yield ModuleTree(self.arrangement, columns, bars=not config.compact_view, id="tree")
            with Vertical(id="side", classes="-off" if config.compact_view else ""):
                yield Tabs(*(Tab(one.title, id=name) for name, one in PANELS.items()), id="tabs")
                with VerticalScroll(id="scroll", can_focus=False):
                    yield Static(id="panel")
        yield Input(
            placeholder="filter: text or a regular expression; Enter keeps it, Escape clears it", id="filter"
        )
        yield Static(self._keys(), id="keys")

    def on_mount(self) -> None:
        """The keys go to the tree."""
        self.query_one(Tabs).can_focus = False
        self.tree_view.focus()
        self.watch(self, "theme", self._recoloured, init=False)
        self.set_timer(IDLE_S, self._prepare_filter)
        self._froze = not gc.get_freeze_count()
        if (
            self._froze
        ):  # the collector would go through all of a large model, for a second, while someone types
            gc.freeze()

    def on_unmount(self) -> None:
        """The collector has all objects again."""
        if self._froze:
            gc.unfreeze()

    def _top(self) -> Text:
        colours = palette(self.current_theme.dark)
        text = Text.assemble((self.source.title, colours.title), no_wrap=True, overflow="ellipsis")
        for fact in self.source.facts:
            text.append("  ·  ", style=colours.faint)
            text.append(fact, style=colours.number)
        if self.source.other is not None:
            text.append(f"  against {self.source.other.title}", style=colours.warn)
        found = self.arrangement.matching
        if found is not None:
            text.append(f"  ·  {int(found.sum()):,} match", style=colours.match)
            if self._as_text:
                text.append("  ·  no regular expression, so taken as text", style=colours.warn)
        return text

    def _keys(self) -> Text:
        """The line at the bottom: a widget for each key, as Textual's own has, would take a third of the start."""
        colours = palette(self.current_theme.dark)
        text = Text(no_wrap=True, overflow="ellipsis")
        for binding in self.BINDINGS:
            assert isinstance(binding, Binding)
            if binding.show:
                key = binding.key_display or binding.key.partition(",")[0]
                click = Style(meta={"@click": f"app.{binding.action}"})
                text.append(f"{key} ", style=colours.type + click)
                text.append(f"{binding.description}  ", style=colours.dim + click)
        return text

    def _recoloured(self) -> None:
        self.query_one("#top", Static).update(self._top())
        self.query_one("#keys", Static).update(self._keys())
        self.redraw_panel()

    # the tree

    def action_depth(self, step: int) -> None:
        """Open one level more or less."""
        most = int(self.source.forest.depth.max(initial=0))
        self._depth = max(0, min(most, self._depth + step))
        self.arrangement.open_to(self._depth)
        self.tree_view.rearrange()

    def action_below(self, is_open: bool) -> None:
        """Open or close the row and all below it."""
        if self.tree_view.row >= 0:
            self.arrangement.open_below(self.tree_view.row, is_open)
            self.tree_view.rearrange()

    def action_everything(self, is_open: bool) -> None:
        """Open or close all."""
        self._depth = int(self.source.forest.depth.max(initial=0)) if is_open else 0
        self.arrangement.open_to(self._depth if is_open else 1)
        self.tree_view.rearrange()

    @work(group="fold", thread=True)
    def action_fold(self) -> None:
        """Fold repeated neighbours, or unfold them; comparing all modules is done beside the screen's own work."""
        self.arrangement.find_repeats()
        self.from_worker(self._toggle_folding)

    def _toggle_folding(self) -> None:
        self.arrangement.folding = not self.arrangement.folding
        self.tree_view.rearrange()

    def action_flat(self) -> None:
        """A list, or the tree."""
        self.arrangement.flat = not self.arrangement.flat
        self.tree_view.rearrange()

    def action_sort(self) -> None:
        """Sort by the next column; after the last, as the model has it."""
        places = [None, "name", *self.tree_view.columns]
        at = places.index(self.arrangement.sort) if self.arrangement.sort in places else 0
        self.sort_by(places[(at + 1) % len(places)])

    def sort_by(self, column: str | None) -> None:
        """Sort the neighbours by a column, the largest first; None is the model's own order."""
        if column in self.source.forest.later:
            self._with_columns([column], partial(self.sort_by, column))
            return
        self.arrangement.sort = column
        self.arrangement.descending = column in self.source.forest.numbers
        self.tree_view.rearrange()

    def action_turn(self) -> None:
        """Turn the order of the sorting."""
        self.arrangement.descending = not self.arrangement.descending
        self.tree_view.rearrange()

    @on(ModuleTree.Sort)
    def _sort_clicked(self, event: ModuleTree.Sort) -> None:
        if event.column == self.arrangement.sort:
            self.action_turn()
        else:
            self.sort_by(event.column)

    def action_bars(self) -> None:
        """Bars on or off."""
        self.tree_view.bars = not self.tree_view.bars
        self.tree_view.refresh()

    @work
    async def action_columns(self) -> None:
        """Ask which columns to show."""
        tree = self.tree_view
        found: Any = await self.push_screen_wait(ChooseColumns(available(self.source.forest), tree.columns))
        if found is not None:
            self._with_columns(found, partial(tree.set_columns, found))

    @work(exclusive=True, group="columns", thread=True)
    def _with_columns(self, names: Sequence[str], then: Callable[[], None]) -> None:
        """Compute the columns that are not there yet, beside the screen's own work, and go on."""
        for name in names:
            self.source.forest.complete(name)
        self.from_worker(then)

    # the filter

    def action_filter(self) -> None:
        """Begin to type a filter; in a line that is being typed, a stroke like any other.

        The key comes here before all others, so that letters that follow in the same instant find the line in place.
        """
        if isinstance(self.focused, Input):
            self.focused.insert_text_at_cursor("/")
            return
        if len(self.screen_stack) > 1:
            return
        line = self.query_one("#filter", Input)
        line.display = True
        self.screen.set_focus(line)  # at once: the next letter is typed before the screen is drawn again

    @work(group="prepare", thread=True)
    def _prepare_filter(self) -> None:
        """Put the words together that are looked through, before the first letter is typed."""
        self.arrangement.searchable()

    @on(Input.Changed, "#filter")
    def _typed(self, event: Input.Changed) -> None:
        self._search(event.value)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enter keeps the filter while it is being typed; everywhere else it is the key of what has the focus."""
        if action == "keep_filter":
            return self.focused is not None and self.focused.id == "filter"
        return super().check_action(action, parameters)

    def action_keep_filter(self) -> None:
        """Back to the tree, at once as in `action_filter`: the next key is a command, not a letter of the filter."""
        self.screen.set_focus(self.tree_view)

    @work(exclusive=True, group="filter")
    async def _search(self, pattern: str) -> None:
        """Look through the rows a stretch at a time; the next letter ends this search."""
        shown = self.arrangement
        self._as_text = not is_expression(pattern)
        if not pattern:
            shown.matching = None
        else:
            found = np.zeros(len(shown.forest), dtype=bool)
            for part in shown.searching(pattern):
                found |= part
                await asyncio.sleep(0)
            shown.matching = found
        self._show_matches()
        self.filtered = pattern

    def _show_matches(self) -> None:
        tree, found = self.tree_view, self.arrangement.matching
        keep = None
        if found is not None and found.any() and not (tree.row >= 0 and found[tree.row]):
            keep = int(np.argmax(found))
        tree.rearrange(keep=keep)
        self.query_one("#top", Static).update(self._top())

    def action_clear(self) -> None:
        """Forget the filter, and what is held."""
        line = self.query_one("#filter", Input)
        line.display = False
        line.value = ""
        self.tree_view.pinned = None
        if self.arrangement.matching is not None:
            if self.tree_view.row >= 0:
                self.arrangement.reveal(self.tree_view.row)
            self.arrangement.matching = None
            self._show_matches()
        self.tree_view.focus()

    def action_match(self, step: int) -> None:
        """Go to the next or the previous row that matches."""
        tree, found = self.tree_view, self.arrangement.matching
        if found is None or not found.any():
            return
        places = np.flatnonzero(found[tree.rows])
        if not len(places):
            return
        after = places[places > tree.cursor] if step > 0 else places[places < tree.cursor][::-1]
        tree._go(int(after[0] if len(after) else places[0 if step > 0 else -1]))

    # looks

    def action_theme(self) -> None:
        """Dark or light."""
        self.theme = THEMES["light" if self.current_theme.dark else "dark"]

    def action_help(self) -> None:
        """All keys."""
        self.push_screen(Help(self.source.notes))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the palette offers beside Textual's own."""
        yield from super().get_system_commands(screen)
        for name, one in PANELS.items():
            yield SystemCommand(
                f"Panel: {one.title}", f"Show {one.title.lower()}", partial(self.show_panel, name)
            )
        for column in available(self.source.forest):
            yield SystemCommand(
                f"Sort by {column}", "Sort neighbours by this column", partial(self.sort_by, column)
            )
        yield SystemCommand("Choose columns", "Which columns the tree shows", self.action_columns)
        yield SystemCommand("Save the view", "As text, JSON, a page or a picture", self.action_save)
        yield SystemCommand("Batch size", "How large a batch could be", self.action_batch)
        yield SystemCommand("Fold repeats", "Repeated neighbours as one line", self.action_fold)
        yield SystemCommand("Flat list", "A list in the place of the tree", self.action_flat)


def _opening_depth(shown: Arrangement) -> int:
    """The deepest level at which everything still fits on about one screen; at least one."""
    forest = shown.forest
    counts = np.cumsum(np.bincount(forest.depth)) if len(forest) else np.zeros(1)
    fitting = np.flatnonzero(counts <= FIRST_SCREEN)
    return max(1, int(fitting[-1]) if len(fitting) else 1)
