"""What the explorer shows when it opens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch_vis.errors import UsageError, no_match

SCHEMES = ("dark", "light")


@dataclass(frozen=True)
class ExplorerConfig:
    """Settings of the explorer and of the summaries.

    The four ``show_`` switches are columns and parts of panels. ``compact_view`` leaves the tree alone on the screen:
    no panel, no bars, no columns of words. ``color_scheme`` is ``"dark"``, ``"light"`` or the name of a Textual
    theme. Modules deeper than ``max_depth`` are not shown at all; they still count in the figures of those above.

    >>> ExplorerConfig(show_timing=False, max_depth=2).max_depth
    2
    """

    show_parameter_counts: bool = True
    show_shapes: bool = True
    show_timing: bool = True
    show_memory: bool = True
    compact_view: bool = False
    color_scheme: str = "dark"
    max_depth: int | None = None

    def __post_init__(self) -> None:
        depth = self.max_depth
        if depth is not None and (type(depth) is not int or depth < 0):
            raise UsageError(f"max_depth is a number of levels from 0 up, or None for all, not {depth!r}")
        if not isinstance(self.color_scheme, str):
            raise UsageError(f"color_scheme is 'dark', 'light' or a theme's name, not {self.color_scheme!r}")
        known = {*SCHEMES, *_themes()} if self.color_scheme not in SCHEMES else SCHEMES
        if self.color_scheme not in known and len(known) > len(SCHEMES):
            raise no_match("color scheme", self.color_scheme, known)


def _themes() -> Collection[str]:
    """The themes that Textual has; none are known where it is not installed."""
    try:
        from textual.theme import BUILTIN_THEMES
    except ImportError:
        return ()
    return BUILTIN_THEMES
