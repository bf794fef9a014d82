"""The windows that open over the explorer: help, the choice of columns, the name of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, SelectionList, Static
from textual.widgets.selection_list import Selection

from torch_vis.views.terminal.columns import COLUMNS
from torch_vis.views.terminal.palette import palette

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
            ("z", "fold repeated neighbours into one line"),
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
                text.append(f"  {note}\n", style=colours.dim)
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
