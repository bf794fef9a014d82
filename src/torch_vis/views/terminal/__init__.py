"""The explorer's screen, and how it is opened on a source.

Nothing is imported here that needs torch or Textual, so a saved trace opens fast.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch_vis.errors import UsageError, missing_extra
from torch_vis.views.terminal.source import ExplorerConfig

if TYPE_CHECKING:
    from torch_vis.views.terminal.app import Explorer
    from torch_vis.views.terminal.source import Source


def needs_textual() -> None:
    """Raise, with the line that installs it, where the explorer's library is absent."""
    if find_spec("textual") is None or find_spec("rich") is None:
        raise missing_extra("textual", "tui")


def program(source: Source, *, against: Source | None = None, config: Any = None) -> Explorer:
    """The explorer as a Textual application that is not running yet."""
    needs_textual()
    from torch_vis.views.terminal.app import Explorer

    if config is not None and not isinstance(config, ExplorerConfig):
        raise UsageError(f"config is an ExplorerConfig, not {type(config).__name__}")
    if against is not None:
        # or the two could not be told apart
        if against.title == source.title:
            source.title, against.title = f"{source.title} (first)", f"{against.title} (second)"
        source.other = against
        if source.panels is not None:
            source.panels = [*source.panels, "compare"]
    return Explorer(source, config)


def run(shown: Explorer) -> None:
    """Take the terminal until the user quits."""
    if not (sys.__stdin__ and sys.__stdin__.isatty() and sys.__stdout__ and sys.__stdout__.isatty()):
        raise UsageError(
            "the explorer needs a terminal; without one, export_model_summary(model) gives the tree as text"
        )
    shown.run()
