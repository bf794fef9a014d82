"""The explorer as a program for the terminal: the tree on one side, a panel on the other, keys for everything."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.style import Style
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Label, SelectionList, Static, Tab, Tabs
from textual.widgets._toast import ToastRack
from textual.widgets.selection_list import Selection
from textual.worker import get_current_worker

from torch_vis.errors import TorchVisError, no_match
from torch_vis.graph.io.atomic import write_text
from torch_vis.graph.text import inert
from torch_vis.views.terminal.columns import (
    COLUMNS,
    Arrangement,
    RowListing,
    available,
    chosen,
    is_expression,
)
from torch_vis.views.terminal.module_panels import draw_comparison, draw_details, draw_source_code
from torch_vis.views.terminal.panel_canvas import DARK, LIGHT, THEMES, PanelCanvas, palette
from torch_vis.views.terminal.run_panels import draw_flow, draw_operations, draw_time
from torch_vis.views.terminal.source import Advice, ExplorerConfig, Source
from torch_vis.views.terminal.tensor_panels import draw_activations, draw_gradients, draw_memory
from torch_vis.views.terminal.tree import ModuleTree

ENDINGS = (".txt", ".json", ".html", ".svg")
NO_BATCH = "needs the model and a batch: tv.trace(model, x).explore(model=model), or torch-vis explore MODEL --input …"
PATIENCE_S = 0.15  # how long a panel may keep the look of the one before it
FIRST_SCREEN = 40  # rows to open with, about
NUMBERS = "¹²³⁴⁵⁶⁷⁸⁹"
FOLDED_AT_ONCE = 3_000  # rows of which repeats are found before the first screen is drawn
IDLE_S = 0.4  # after the first screen, when what a filter needs can be prepared


def ending_of(path: str) -> str:
    """The ending that chooses how a view is saved."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in ENDINGS:
        raise no_match("way to save a view as", ending or path, ENDINGS)
    return ending


def save_view(
    path: str, shown: RowListing, title: str, facts: list[str], panel: tuple[str, str] | None
) -> None:
    """Write the rows on show, and the panel beside them as its title and its text."""
    write = {".json": shown.as_json, ".html": shown.as_page, ".txt": shown.as_text}[ending_of(path)]
    write_text(path, write(title, facts, panel))


class Panel(NamedTuple):
    """A panel: its title, what fills a canvas for a row, and a shorter title where all have to stand in one line."""

    title: str
    draw: Callable[[Source, int, PanelCanvas], None]
    short: str = ""


PANELS: dict[str, Panel] = {
    "details": Panel("Details", draw_details),
    "performance": Panel("Time", draw_time),
    "source": Panel("Source", draw_source_code, "Code"),
    "flow": Panel("Flow", draw_flow),
    "operations": Panel("Ops", draw_operations),
    "memory": Panel("Memory", draw_memory, "Mem"),
    "gradients": Panel("Grads", draw_gradients),
    "activations": Panel("Maps", draw_activations),
    "compare": Panel("Compare", draw_comparison, "Diff"),
}


class Explorer(App[None]):
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
        # What a newcomer needs comes first: the line of keys at the bottom is cut at its end.
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit", key_display="q"),
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
        super().__init__()
        self.source = source
        self.config = config or ExplorerConfig()
        self.panel = "details"
        self.histograms = False
        # What the panel shows, and the panel and the row that it is about.
        self.panel_canvas: PanelCanvas | None = None
        self._filled: tuple[str, int] | None = None
        self._batch: Sequence[Advice] | None = None
        self.arrangement = Arrangement(source.forest, max_depth=self.config.max_depth)
        self.panels = (
            list(PANELS) if source.panels is None else [name for name in PANELS if name in source.panels]
        )
        """The panels of this source, in the order of their numbers."""
        # Of a large model they are looked for once it is on the screen.
        self.arrangement.folding = len(source.forest) <= FOLDED_AT_ONCE
        self.arrangement.open_to(_opening_depth(self.arrangement))
        self._froze = False
        self.filtered = ""
        """The filter that the rows on show answer."""
        # it is no regular expression
        self._as_text = False
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
                # The key that leads to it stands before its title.
                yield Tabs(
                    *(
                        Tab(NUMBERS[number] + (PANELS[name].short or PANELS[name].title), id=name)
                        for number, name in enumerate(self.panels)
                    ),
                    id="tabs",
                )
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
        if not self.arrangement.folding:
            self.action_fold()
        self._froze = not gc.get_freeze_count()
        # The collector would go through all of a large model, for a second, while someone types.
        if self._froze:
            gc.freeze()

    def on_unmount(self) -> None:
        """The garbage collector has all objects back."""
        if self._froze:
            gc.unfreeze()

    def _top(self) -> Text:
        colours = palette(self.current_theme.dark)
        text = Text.assemble((inert(self.source.title), colours.title), no_wrap=True, overflow="ellipsis")
        for fact in self.source.facts:
            text.append("  ·  ", style=colours.faint)
            text.append(inert(fact), style=colours.number)
        if self.source.other is not None:
            text.append(inert(f"  against {self.source.other.title}"), style=colours.warn)
        matching = self.arrangement.matching
        if matching is not None:
            text.append(f"  ·  {int(matching.sum()):,} match", style=colours.match)
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
        names: Any = await self.push_screen_wait(ChooseColumns(available(self.source.forest), tree.columns))
        if names is not None:
            self._with_columns(names, partial(tree.set_columns, names))

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
        # at once: the next letter is typed before the screen is drawn again
        self.screen.set_focus(line)

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
            matching = np.zeros(len(shown.forest), dtype=bool)
            for part in shown.searching(pattern):
                matching |= part
                await asyncio.sleep(0)
            shown.matching = matching
        self._show_matches()
        self.filtered = pattern

    def _show_matches(self) -> None:
        tree, matching = self.tree_view, self.arrangement.matching
        keep = None
        if matching is not None and matching.any() and not (tree.row >= 0 and matching[tree.row]):
            keep = int(np.argmax(matching))
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
        tree, matching = self.tree_view, self.arrangement.matching
        if matching is None or not matching.any():
            return
        positions = np.flatnonzero(matching[tree.rows])
        if not len(positions):
            return
        after = positions[positions > tree.cursor] if step > 0 else positions[positions < tree.cursor][::-1]
        tree.go_to(int(after[0] if len(after) else positions[0 if step > 0 else -1]))

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
        for name in self.panels:
            title = PANELS[name].title
            yield SystemCommand(f"Panel: {title}", f"Show {title.lower()}", partial(self.show_panel, name))
        for column in available(self.source.forest):
            yield SystemCommand(
                f"Sort by {column}", "Sort neighbours by this column", partial(self.sort_by, column)
            )
        yield SystemCommand("Choose columns", "Which columns the tree shows", self.action_columns)
        yield SystemCommand("Save the view", "As text, JSON, a page or a picture", self.action_save)
        yield SystemCommand("Batch size", "How large a batch could be", self.action_batch)
        yield SystemCommand("Fold repeats", "Repeated neighbours as one line", self.action_fold)
        yield SystemCommand("Flat list", "A list in the place of the tree", self.action_flat)

    # the panel

    def from_worker(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Call something of the screen's from a thread, unless the user has quit or asked for something else since.

        A thread cannot be stopped: one whose worker a newer one of its group replaced goes on to its end, and what it
        then says is the answer to an older question.
        """
        worker = get_current_worker()

        def call() -> None:
            if self.is_running and not worker.is_cancelled and self.query(ModuleTree):
                function(*args, **options)

        if self.is_running:
            self.call_from_thread(call)

    @property
    def tree_view(self) -> ModuleTree:
        """The tree on the screen."""
        return self.query_one(ModuleTree)

    @property
    def row(self) -> int:
        """The row that the panel shows: the pinned one, or else the one under the cursor."""
        tree = self.tree_view
        return tree.row if tree.pinned is None else tree.pinned

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
            self.set_timer(PATIENCE_S, partial(self._still_working, self.panel, self.row))
            self._fill_panel(self.panel, self.row, self.query_one("#scroll").size.width - 3)

    def _still_working(self, name: str, row: int) -> None:
        """A panel that takes longer says so, and not what the last one said."""
        if self.query(ModuleTree) and self._filled != (name, row) == (self.panel, self.row):
            style = palette(self.current_theme.dark).dim
            self.query_one("#panel", Static).update(Text("working …", style=style))

    def on_resize(self) -> None:
        """Panels are laid out for their width."""
        self.call_after_refresh(self.redraw_panel)

    @work(exclusive=True, group="panel", thread=True)
    def _fill_panel(self, name: str, row: int, width: int) -> None:
        dark = self.current_theme.dark
        canvas = PanelCanvas(
            width, palette(dark), dark=dark, histograms=self.histograms, batch_sizes=self._batch or ()
        )
        if row >= 0:
            alike = len(self.arrangement.stands_for(row))
            if alike > 1:
                canvas.say(f"the first of {alike} alike; the tree has the sum of all", canvas.colours.dim)
            try:
                # what a row is, all ranks say; the rest is asked of the one that it belongs to
                part, own = (self.source, row) if name == "details" else self.source.part(row)
                PANELS[name].draw(part, own, canvas)
            # A model's own property may raise anything; that is shown, and the explorer goes on.
            except Exception as error:
                canvas.heading("This panel could not be filled")
                canvas.say(f"{type(error).__name__}: {error}", canvas.colours.bad)
        self.from_worker(self._show_canvas, name, row, canvas)

    def _show_canvas(self, name: str, row: int, canvas: PanelCanvas) -> None:
        if (name, row) != (self.panel, self.row):
            return
        self.panel_canvas, self._filled = canvas, (name, row)
        self.query_one("#panel", Static).update(canvas.text())
        scroll = self.query_one("#scroll", VerticalScroll)
        goal = 0 if canvas.goal is None else max(0, canvas.goal - 3)
        self.call_after_refresh(scroll.scroll_to, y=goal, animate=False)

    def action_panel(self, step: int) -> None:
        """Go to the next or the previous panel."""
        if len(self.screen_stack) > 1:
            (self.screen.focus_next if step > 0 else self.screen.focus_previous)()
            return
        names = self.panels
        self.show_panel(names[(names.index(self.panel) + step) % len(names)])

    def action_panel_number(self, number: int) -> None:
        """Go to a panel."""
        if number <= len(self.panels):
            self.show_panel(self.panels[number - 1])

    def action_scroll_panel(self, step: int) -> None:
        """Scroll the panel by half of it."""
        scroll = self.query_one("#scroll", VerticalScroll)
        scroll.scroll_relative(y=step * max(1, scroll.size.height // 2), animate=False)

    def action_side(self) -> None:
        """Show or hide the panel."""
        self.query_one("#side").toggle_class("-off")
        self.call_after_refresh(self.redraw_panel)

    def action_pin(self) -> None:
        """Pin the row in the panel, or unpin it."""
        tree = self.tree_view
        tree.pinned = None if tree.pinned == tree.row else tree.row
        tree.refresh()
        self.redraw_panel()

    def action_histograms(self) -> None:
        """Show or hide how the tensors' elements are spread."""
        self.histograms = not self.histograms
        self.show_panel("details")

    @work(exclusive=True, group="batch", thread=True)
    def action_batch(self) -> None:
        """Work out how large a batch could be, and show it with the times."""
        self.from_worker(self.notify, "trying batch sizes …", timeout=3)
        try:
            self._batch = self.source.batch_sizes() or (Advice("batch size", NO_BATCH),)
        except Exception as error:  # a model may refuse other batches in any way
            self._batch = (Advice("batch size", f"cannot be worked out: {type(error).__name__}: {error}"),)
        self.from_worker(self.show_panel, "performance")

    # files and clipboard

    @work
    async def action_save(self) -> None:
        """Ask for a name and write what is shown."""
        path = await self.push_screen_wait(AskPath(f"{self.source.title}.txt"))
        if isinstance(path, str):
            self.save(path)

    def save(self, path: str) -> None:
        """Write what is shown to a file; the ending chooses the form."""
        try:
            if ending_of(path) == ".svg":
                self._save_picture(path)
                return
            side = None if self.query_one("#side").has_class("-off") else self.panel_canvas
            panel = None if side is None else (PANELS[self.panel].title, side.text().plain)
            save_view(path, self.tree_view.listing, self.source.title, self.source.facts, panel)
        except (TorchVisError, OSError) as error:
            self.notify(str(error), severity="error", title="Not saved")
        else:
            self.notify(path, title="Saved")

    @work(group="save")
    async def _save_picture(self, path: str) -> None:
        """The screen as it is, but for the messages that lie over it."""
        racks = list(self.screen.query(ToastRack))
        for rack in racks:
            rack.display = False
        try:
            drawn = asyncio.Event()
            self.call_after_refresh(drawn.set)
            await drawn.wait()
            write_text(path, self.export_screenshot(title=self.source.title))
        except (TorchVisError, OSError) as error:
            self.notify(str(error), severity="error", title="Not saved")
        else:
            self.notify(path, title="Saved")
        finally:
            for rack in racks:
                rack.display = True

    def notify(self, message: str, *, title: str = "", **options: Any) -> None:
        """A message in a corner; names in it are text, not markup."""
        super().notify(inert(message), title=inert(title), **{"markup": False, **options})

    def action_copy_path(self) -> None:
        """The row's path to the clipboard."""
        if self.row >= 0:
            path = self.source.forest.paths[self.row]
            self.copy_to_clipboard(path)
            self.notify(path or "(the model itself has no path)", title="Copied", timeout=2)

    def action_copy_panel(self) -> None:
        """The panel's text to the clipboard."""
        if self.panel_canvas is not None:
            self.copy_to_clipboard(self.panel_canvas.text().plain)
            self.notify(f"the panel {PANELS[self.panel].title}", title="Copied", timeout=2)


def _opening_depth(shown: Arrangement) -> int:
    """The deepest level at which everything still fits on about one screen; at least one."""
    forest = shown.forest
    rows = forest.depth[~shown.find_repeats()[1]] if shown.folding else forest.depth
    counts = np.cumsum(np.bincount(rows)) if len(forest) else np.zeros(1)
    fitting = np.flatnonzero(counts <= FIRST_SCREEN)
    return max(1, int(fitting[-1]) if len(fitting) else 1)


KEYS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Move",
        (
            ("↑ ↓  k j", "up and down"),
            ("← →  h l", "close or go out; open or go in"),
            ("Enter", "open or close the module"),
            ("PgUp PgDn  g G", "a screen; the first, the last row"),
            ("Shift+← →  H L", "columns to the left and right"),
        ),
    ),
    (
        "Tree",
        (
            ("+ −", "open one level more or less, everywhere"),
            ("e c", "open, close all below the row"),
            ("E C", "open, close everything"),
            ("z", "unfold repeated neighbours, or fold them into one line again"),
            ("f", "a flat list in the place of the tree"),
        ),
    ),
    (
        "Find",
        (
            ("/", "filter as you type: text or a regular expression"),
            ("n N", "next, previous match"),
            ("Esc", "clear the filter"),
        ),
    ),
    (
        "Columns",
        (
            ("v", "choose columns"),
            ("o O", "sort by the next column; turn the order"),
            ("b", "bars on or off"),
        ),
    ),
    (
        "Panels",
        (
            ("Tab Shift+Tab", "next, previous panel"),
            ("1 … 9", "a panel by its number"),
            ("Space", "hold the row in the panel while you move on"),
            ("[ ]", "scroll the panel"),
            ("i", "histograms of the tensors, in Details"),
            ("a", "how large a batch could be, in Time"),
            ("p", "panel on or off"),
        ),
    ),
    (
        "Else",
        (
            ("y Y", "copy the path; copy the panel"),
            ("s", "save what is shown: .txt .json .html .svg"),
            ("t", "dark or light"),
            ("Ctrl+P", "the palette of all commands"),
            ("? q Ctrl+C", "this help; quit"),
        ),
    ),
)


class Window(ModalScreen[object]):
    """A box in the middle; Escape closes it."""

    DEFAULT_CSS = """
    Window { align: center middle; background: $background 60%; }
    Window > Vertical, Window > VerticalScroll {
        width: 72; max-width: 90%; height: auto; max-height: 90%;
        background: $panel; border: round $primary; padding: 1 2;
    }
    Window Input { border: none; background: $background; height: 1; padding: 0 1; margin-top: 1; }
    Window SelectionList { background: $panel; border: none; height: auto; max-height: 24; padding: 0; }
    Window Label { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "close", show=False)]


class Help(Window):
    """All keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,q,enter", "dismiss", "close", show=False)]

    def __init__(self, notes: Sequence[str] = ()) -> None:
        super().__init__()
        self.notes = notes

    def compose(self) -> ComposeResult:
        """The keys by what they are for, then what could not be seen of the run."""
        colours = palette(self.app.current_theme.dark)
        text = Text()
        for part, keys in KEYS:
            text.append(f"{part}\n", style=colours.title)
            for key, words in keys:
                text.append(f"  {key:<17}", style=colours.type)
                text.append(f"{words}\n", style=colours.number)
        if self.notes:
            text.append("What this does not show\n", style=colours.title)
            for note in self.notes:
                text.append(f"  {inert(note)}\n", style=colours.dim)
        text.rstrip()
        yield VerticalScroll(Static(text))


class ChooseColumns(Window):
    """Which columns to show."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "done", "show these", show=False, priority=True)
    ]

    def __init__(self, available: Sequence[str], shown: Sequence[str]) -> None:
        super().__init__()
        self.available, self.shown = available, shown

    def compose(self) -> ComposeResult:
        """A list of every column there is something for."""
        choices = [
            Selection(f"{COLUMNS[name].title:<11} {COLUMNS[name].help}", name, name in self.shown)
            for name in self.available
        ]
        yield Vertical(
            SelectionList[str](*choices), Label("Space chooses, Enter shows, Escape leaves it as it was")
        )

    def action_done(self) -> None:
        """Close with the choice, in the usual order."""
        chosen = set(self.query_one(SelectionList).selected)
        self.dismiss([name for name in self.available if name in chosen])


class AskPath(Window):
    """The name of a file to write."""

    def __init__(self, suggestion: str) -> None:
        super().__init__()
        self.suggestion = suggestion

    def compose(self) -> ComposeResult:
        """One line to type in."""
        yield Vertical(
            Label("Save what is shown; the ending chooses: .txt .json .html .svg"), Input(self.suggestion)
        )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the name."""
        self.dismiss(event.value.strip() or None)
