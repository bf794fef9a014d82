"""The explorer as a program for the terminal: the tree on one side, a panel on the other, keys for everything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import numpy as np
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Input, Static, Tab, Tabs

from torch_vis.errors import TorchVisError, no_match
from torch_vis.views.tui.arrange import Arrangement
from torch_vis.views.tui.columns import available, chosen
from torch_vis.views.tui.config import ExplorerConfig
from torch_vis.views.tui.palette import DARK, LIGHT, THEMES, palette
from torch_vis.views.tui.panels import details, source
from torch_vis.views.tui.panels.sheet import Sheet
from torch_vis.views.tui.panels.table import PANELS
from torch_vis.views.tui.saving import save_view
from torch_vis.views.tui.screens import AskPath, ChooseColumns, Help
from torch_vis.views.tui.subject import Subject
from torch_vis.views.tui.tree import ModuleTree

FIRST_SCREEN = 40  # rows to open with, about


class Explorer(App[None]):
    """Shows one subject. ``run()`` takes the terminal until the user quits."""

    TITLE = "torch_vis"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (130, "-wide")]  # noqa: RUF012  (Textual's own form)
    CSS = """
    #top { height: 1; padding: 0 1; background: $panel; }
    #body { layout: vertical; height: 1fr; }
    .-wide #body { layout: horizontal; }
    ModuleTree { width: 1fr; height: 1fr; min-height: 8; }
    #side { height: 45%; width: 1fr; border-top: solid $panel; }
    .-wide #side { height: 1fr; width: 42%; border-top: none; border-left: solid $panel; }
    #side.-off { display: none; }
    Tabs { height: 2; }
    Tab { padding: 0 1; }
    #scroll { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    #scroll > Static { width: 100%; height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    #filter { display: none; border: none; height: 1; padding: 0 1; background: $panel; }
    Footer { background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True),
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
        Binding("t", "theme", "dark/light", show=False),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, subject: Subject, config: ExplorerConfig | None = None) -> None:
        super().__init__()
        self.subject = subject
        self.config = config or ExplorerConfig()
        self.arrangement = Arrangement(subject.forest, max_depth=self.config.max_depth)
        self.arrangement.open_to(_opening_depth(self.arrangement))
        self.panel = "details"
        self.histograms = False
        self._depth = int(subject.forest.depth[self.arrangement.rows()].max(initial=0))
        self._sheet: Sheet | None = None
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
            columns = chosen(self.subject.forest, config)
            yield ModuleTree(self.arrangement, columns, bars=not config.compact_view, id="tree")
            with Vertical(id="side", classes="-off" if config.compact_view else ""):
                yield Tabs(*(Tab(one.title, id=name) for name, one in PANELS.items()), id="tabs")
                with VerticalScroll(id="scroll", can_focus=False):
                    yield Static(id="panel")
        yield Input(
            placeholder="filter: text or a regular expression; Enter keeps it, Escape clears it", id="filter"
        )
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """The keys go to the tree."""
        self.query_one(Tabs).can_focus = False
        self.tree_view.focus()
        self.watch(self, "theme", self._recoloured, init=False)

    @property
    def tree_view(self) -> ModuleTree:
        """The tree on the screen."""
        return self.query_one(ModuleTree)

    @property
    def row(self) -> int:
        """The row that the panel is about: the one that is held, or else the one under the cursor."""
        tree = self.tree_view
        return tree.row if tree.pinned is None else tree.pinned

    def _top(self) -> Text:
        colours = palette(self.current_theme.dark)
        text = Text.assemble((self.subject.title, colours.title), no_wrap=True, overflow="ellipsis")
        for fact in self.subject.facts:
            text.append("  ·  ", style=colours.faint)
            text.append(fact, style=colours.number)
        if self.subject.other is not None:
            text.append(f"  against {self.subject.other.title}", style=colours.warn)
        found = self.arrangement.matching
        if found is not None:
            text.append(f"  ·  {int(found.sum()):,} match", style=colours.match)
        return text

    def _recoloured(self) -> None:
        self.query_one("#top", Static).update(self._top())
        self.redraw_panel()

    # the panel

    @on(ModuleTree.Moved)
    def _moved(self) -> None:
        if self.tree_view.pinned is None:
            self.redraw_panel()

    @on(Tabs.TabActivated)
    def _chosen_panel(self, event: Tabs.TabActivated) -> None:
        if event.tab.id and event.tab.id != self.panel:
            self.show_panel(event.tab.id)

    def show_panel(self, name: str) -> None:
        """Bring a panel to the front."""
        self.panel = name
        self.query_one("#side").remove_class("-off")
        self.query_one(Tabs).active = name
        self.redraw_panel()

    def redraw_panel(self) -> None:
        """Fill the panel anew, beside the tree's own work; of several requests the last counts."""
        if not self.query_one("#side").has_class("-off"):
            self._fill_panel(self.panel, self.row, self.query_one("#scroll").size.width - 3)

    def on_resize(self) -> None:
        """Panels are laid out for their width."""
        self.call_after_refresh(self.redraw_panel)

    @work(exclusive=True, group="panel", thread=True)
    def _fill_panel(self, name: str, row: int, width: int) -> None:
        dark = self.current_theme.dark
        sheet = Sheet(width, palette(dark))
        if row >= 0:
            draw: Any = PANELS[name].draw
            if name == "details":
                draw = partial(details.draw, histograms=self.histograms)
            elif name == "source":
                draw = partial(source.draw, dark=dark)
            try:
                draw(self.subject, row, sheet)
            except (
                Exception
            ) as error:  # a model's own property may raise; it is shown, and the explorer goes on
                sheet.heading("This panel could not be filled")
                sheet.say(f"{type(error).__name__}: {error}", sheet.colours.bad)
        self.call_from_thread(self._show_sheet, name, row, sheet)

    def _show_sheet(self, name: str, row: int, sheet: Sheet) -> None:
        if (name, row) != (self.panel, self.row) or not self.is_running:
            return
        self._sheet = sheet
        self.query_one("#panel", Static).update(sheet.text())
        scroll = self.query_one("#scroll", VerticalScroll)
        goal = 0 if sheet.goal is None else max(0, sheet.goal - 3)
        self.call_after_refresh(scroll.scroll_to, y=goal, animate=False)

    def action_panel(self, step: int) -> None:
        """Go to the next or the previous panel."""
        if len(self.screen_stack) > 1:
            (self.screen.focus_next if step > 0 else self.screen.focus_previous)()
            return
        names = list(PANELS)
        self.show_panel(names[(names.index(self.panel) + step) % len(names)])

    def action_panel_number(self, number: int) -> None:
        """Go to a panel."""
        self.show_panel(list(PANELS)[number - 1])

    def action_scroll_panel(self, step: int) -> None:
        """Scroll the panel by half of it."""
        scroll = self.query_one("#scroll", VerticalScroll)
        scroll.scroll_relative(y=step * max(1, scroll.size.height // 2), animate=False)

    def action_side(self) -> None:
        """Show or hide the panel."""
        self.query_one("#side").toggle_class("-off")
        self.call_after_refresh(self.redraw_panel)

    def action_pin(self) -> None:
        """Hold the row in the panel, or let go of it."""
        tree = self.tree_view
        tree.pinned = None if tree.pinned == tree.row else tree.row
        tree.refresh()
        self.redraw_panel()

    def action_histograms(self) -> None:
        """Show or hide how the tensors' elements are spread."""
        self.histograms = not self.histograms
        self.show_panel("details")

    # the tree

    def action_depth(self, step: int) -> None:
        """Open one level more or less."""
        most = int(self.subject.forest.depth.max(initial=0))
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
        self._depth = int(self.subject.forest.depth.max(initial=0)) if is_open else 0
        self.arrangement.open_to(self._depth if is_open else 1)
        self.tree_view.rearrange()

    @work(exclusive=True, group="fold", thread=True)
    def action_fold(self) -> None:
        """Fold repeated neighbours, or unfold them; comparing all modules is done beside the screen's own work."""
        self.arrangement.find_repeats()
        self.call_from_thread(self._toggle_folding)

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
        self.arrangement.sort = column
        self.arrangement.descending = column in self.subject.forest.numbers
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
        found: Any = await self.push_screen_wait(ChooseColumns(available(self.subject.forest), tree.columns))
        if found is not None:
            tree.set_columns(found)

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

    @on(Input.Changed, "#filter")
    def _typed(self, event: Input.Changed) -> None:
        self._search(event.value)

    @on(Input.Submitted, "#filter")
    def _submitted(self) -> None:
        self.tree_view.focus()

    @work(exclusive=True, group="filter")
    async def _search(self, pattern: str) -> None:
        """Look through the rows a stretch at a time; the next letter ends this search."""
        shown = self.arrangement
        if not pattern:
            shown.matching = None
        else:
            found = np.zeros(len(shown.forest), dtype=bool)
            for part in shown.searching(pattern):
                found |= part
                await asyncio.sleep(0)
            shown.matching = found
        self._show_matches()

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

    # files, clipboard, looks

    @work
    async def action_save(self) -> None:
        """Ask for a name and write what is shown."""
        found = await self.push_screen_wait(AskPath(f"{self.subject.title}.txt"))
        if isinstance(found, str):
            self.save(found)

    def save(self, path: str) -> None:
        """Write what is shown to a file; the ending chooses the form."""
        try:
            picture = (
                self.export_screenshot(title=self.subject.title) if path.lower().endswith(".svg") else ""
            )
            save_view(path, self.tree_view, self.subject.title, self.subject.facts, picture)
        except TorchVisError as error:
            self.notify(str(error), severity="error", title="Not saved")
        else:
            self.notify(path, title="Saved")

    def action_copy_path(self) -> None:
        """The row's path to the clipboard."""
        if self.row >= 0:
            path = self.subject.forest.paths[self.row]
            self.copy_to_clipboard(path)
            self.notify(path or "(the model itself has no path)", title="Copied", timeout=2)

    def action_copy_panel(self) -> None:
        """The panel's text to the clipboard."""
        if self._sheet is not None:
            self.copy_to_clipboard(self._sheet.text().plain)
            self.notify(f"the panel {PANELS[self.panel].title}", title="Copied", timeout=2)

    def action_theme(self) -> None:
        """Dark or light."""
        self.theme = THEMES["light" if self.current_theme.dark else "dark"]

    def action_help(self) -> None:
        """All keys."""
        self.push_screen(Help(self.subject.notes))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the palette offers beside Textual's own."""
        yield from super().get_system_commands(screen)
        for name, one in PANELS.items():
            yield SystemCommand(
                f"Panel: {one.title}", f"Show {one.title.lower()}", partial(self.show_panel, name)
            )
        for column in available(self.subject.forest):
            yield SystemCommand(
                f"Sort by {column}", "Sort neighbours by this column", partial(self.sort_by, column)
            )
        yield SystemCommand("Choose columns", "Which columns the tree shows", self.action_columns)
        yield SystemCommand("Save the view", "As text, JSON, a page or a picture", self.action_save)
        yield SystemCommand("Fold repeats", "Repeated neighbours as one line", self.action_fold)
        yield SystemCommand("Flat list", "A list in the place of the tree", self.action_flat)


def _opening_depth(shown: Arrangement) -> int:
    """The deepest level at which everything still fits on about one screen; at least one."""
    forest = shown.forest
    counts = np.cumsum(np.bincount(forest.depth)) if len(forest) else np.zeros(1)
    fitting = np.flatnonzero(counts <= FIRST_SCREEN)
    return max(1, int(fitting[-1]) if len(fitting) else 1)
