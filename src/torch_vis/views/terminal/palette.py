"""The colours of the explorer: two themes for Textual, and for each the styles of the tree and of the panels."""

from __future__ import annotations

from typing import NamedTuple

from rich.style import Style
from textual.theme import Theme

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
