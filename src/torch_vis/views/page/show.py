"""The page in front of the user: in the notebook that they are in, or in their browser."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import warnings
import webbrowser
from html import escape
from pathlib import Path

from torch_vis.graph.run import Run
from torch_vis.views.figure.options import FigureOptions
from torch_vis.views.figure.scene import scene
from torch_vis.views.figure.svg import svg
from torch_vis.views.page.page import giver, html, save
from torch_vis.views.text.module_tree import table

HEIGHT = 640  # pixels in a notebook
TALLEST = 640  # pixels; a taller picture scrolls
LARGEST = 3_000_000  # characters of a page that goes into a notebook's file
MOST_OPERATIONS = 200_000  # beyond, the page is larger than that, and need not be made to find out


def show(run: Run) -> str:
    """Write the page to a temporary file and open it; returns the file's path."""
    path = temporary(run.name)
    save(path, run)
    return present(path, frames=4)


def temporary(name: str) -> Path:
    """A file for a page, in a new folder."""
    stem = re.sub(r"\W+", "_", name)[:60]
    return Path(tempfile.mkdtemp(prefix="torch_vis-")) / f"{stem}.html"


def present(path: Path, *, frames: int = 3) -> str:
    """Open a page that has been written: in the notebook, or else in a browser.

    Without a browser a warning says where the page is; ``frames`` leads to the line that it points at.
    """
    if in_notebook():
        from IPython.display import HTML, display  # it is there: this runs inside of it

        display(HTML(frame(path.read_text(encoding="utf-8"))))
    elif not open_in_browser(path):
        warnings.warn(f"no browser could be started here; the page is in {path}", stacklevel=frames)
    return str(path)


def frame(page: str) -> str:
    """A page within a page: it runs its own script, and can reach nothing around it."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{HEIGHT}" '
        f'style="border:1px solid #8884;border-radius:8px" srcdoc="{escape(page)}"></iframe>'
    )


def in_notebook() -> bool:
    """Whether the caller is a notebook's cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def open_in_browser(path: Path) -> bool:
    """Open a page in a browser that has a window; False where there is none."""
    if not _has_display():
        return False  # or a browser for text takes the terminal, in which the page is empty
    try:
        return webbrowser.open(path.as_uri())
    except webbrowser.Error:
        return False


def _has_display() -> bool:
    """Whether a window that is opened here is seen by someone."""
    if "BROWSER" in os.environ:
        return True
    if sys.platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


# The cell of the notebook that holds the viewer for all of them.
_giving: dict[str, str] = {}


def _cell() -> str | None:
    """The cell that runs, where all cells of the notebook are shown in one page; None where that is not known."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    parent = getattr(shell, "parent_header", None) or {}
    if "google.colab" in sys.modules:
        return None  # there each cell is a page of its own
    cell = parent.get("metadata", {}).get("cellId") if isinstance(parent, dict) else None
    return cell if isinstance(cell, str) else None


def notebook_html(run: Run) -> str:
    """The page in a frame of its own, and below it the picture and the table, which need no script.

    The viewer is in the first cell that shows a page, and all others ask it.
    """
    picture = svg(scene(run, FigureOptions())) if len(run.graph) else ""
    text = escape(table(run, width=120))
    still = (
        f'<div style="max-height:{TALLEST}px;overflow:auto;background:#fff">{picture}</div>'
        f'<pre style="line-height:1.25;overflow:auto">{text}</pre>'
    )
    cell = _cell()
    inside = html(run, inside=True, shared=cell is not None) if 0 < len(run.graph) <= MOST_OPERATIONS else ""
    if not inside or len(inside) > LARGEST:
        return still
    script = ""
    if cell is not None:
        # The cell that has the viewer has it again when it runs again.
        _giving.setdefault("cell", cell)
        script = f"<script>{giver()}</script>" if _giving["cell"] == cell else ""
    return f"{script}{frame(inside)}<details><summary>As a picture and a table</summary>{still}</details>"
