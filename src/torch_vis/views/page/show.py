"""The page in front of the user: in the notebook that they are in, or in their browser."""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
import webbrowser
from html import escape
from pathlib import Path

from torch_vis.graph.record import Run
from torch_vis.views.page.page import save

HEIGHT = 640  # pixels in a notebook


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
    elif not _open(path):
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


def _open(path: Path) -> bool:
    try:
        return webbrowser.open(path.as_uri())
    except webbrowser.Error:
        return False
