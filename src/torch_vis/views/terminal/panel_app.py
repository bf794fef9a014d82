"""The side of the explorer: the panel beside the tree, filled in the background, copied and saved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.text import Text
from textual import on, work
from textual.app import App
from textual.containers import VerticalScroll
from textual.widgets import Static, Tabs
from textual.widgets._toast import ToastRack
from textual.worker import get_current_worker

from torch_vis.errors import TorchVisError
from torch_vis.views.terminal.palette import palette
from torch_vis.views.terminal.panels import details, performance, source
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas
from torch_vis.views.terminal.panels.table import PANELS
from torch_vis.views.terminal.saving import ending_of, save_view, write_text
from torch_vis.views.terminal.screens import AskPath
from torch_vis.views.terminal.source import Advice, Source
from torch_vis.views.terminal.tree import ModuleTree

NO_BATCH = "needs the model and a batch: tv.trace(model, x).explore(model=model), or torch-vis explore MODEL --input …"
PATIENCE_S = 0.15  # how long a panel may keep the look of the one before it


class SideApp(App[None]):
    """What an application with a tree, tabs and a panel does with the panel; it lays none of them out."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.panel = "details"
        self.histograms = False
        self._canvas: PanelCanvas | None = None
        self._filled: tuple[str, int] | None = None  # the panel and the row that the canvas is about
        self._batch: Sequence[Advice] | None = None

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
        """The row that the panel is about: the one that is held, or else the one under the cursor."""
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
        canvas = PanelCanvas(width, palette(dark))
        if row >= 0:
            draw: Any = PANELS[name].draw
            if name == "details":
                draw = partial(details.draw, histograms=self.histograms)
            elif name == "source":
                draw = partial(source.draw, dark=dark)
            elif name == "performance":
                draw = partial(performance.draw, batch=self._batch)
            try:
                draw(self.source, row, canvas)
            except (
                Exception
            ) as error:  # a model's own property may raise; it is shown, and the explorer goes on
                canvas.heading("This panel could not be filled")
                canvas.say(f"{type(error).__name__}: {error}", canvas.colours.bad)
        self.from_worker(self._show_canvas, name, row, canvas)

    def _show_canvas(self, name: str, row: int, canvas: PanelCanvas) -> None:
        if (name, row) != (self.panel, self.row):
            return
        self._canvas, self._filled = canvas, (name, row)
        self.query_one("#panel", Static).update(canvas.text())
        scroll = self.query_one("#scroll", VerticalScroll)
        goal = 0 if canvas.goal is None else max(0, canvas.goal - 3)
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
        found = await self.push_screen_wait(AskPath(f"{self.source.title}.txt"))
        if isinstance(found, str):
            self.save(found)

    def save(self, path: str) -> None:
        """Write what is shown to a file; the ending chooses the form."""
        try:
            if ending_of(path) == ".svg":
                self._save_picture(path)
                return
            side = None if self.query_one("#side").has_class("-off") else self._canvas
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

    def action_copy_path(self) -> None:
        """The row's path to the clipboard."""
        if self.row >= 0:
            path = self.source.forest.paths[self.row]
            self.copy_to_clipboard(path)
            self.notify(path or "(the model itself has no path)", title="Copied", timeout=2)

    def action_copy_panel(self) -> None:
        """The panel's text to the clipboard."""
        if self._canvas is not None:
            self.copy_to_clipboard(self._canvas.text().plain)
            self.notify(f"the panel {PANELS[self.panel].title}", title="Copied", timeout=2)
