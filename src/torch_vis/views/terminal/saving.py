"""What is on the screen as a file: the rows and the panel as text, JSON or a page, the screen itself as a picture."""

from __future__ import annotations

import os

from torch_vis.errors import no_match
from torch_vis.graph.io.atomic import replacing
from torch_vis.views.terminal.listing import Listing

ENDINGS = (".txt", ".json", ".html", ".svg")


def ending_of(path: str) -> str:
    """The ending that chooses how a view is saved."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in ENDINGS:
        raise no_match("way to save a view as", ending or path, ENDINGS)
    return ending


def save_view(path: str, shown: Listing, title: str, facts: list[str], panel: tuple[str, str] | None) -> None:
    """Write the rows on show, and the panel beside them as its title and its text."""
    write = {".json": shown.as_json, ".html": shown.as_page, ".txt": shown.as_text}[ending_of(path)]
    write_text(path, write(title, facts, panel))


def write_text(path: str, text: str) -> None:
    """Write a whole file, or none."""
    with replacing(path) as file:
        file.write(text.encode())
