"""The page in front of the user: in the notebook that they are in, or in their browser."""

from __future__ import annotations

import re
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch_vis.errors import UsageError
from torch_vis.graph import Graph, Metrics
from torch_vis.views.web.page import html, save

HEIGHT = 640  # pixels in a notebook


def show(graph: Graph, metrics: Metrics, limits: Sequence[str], meta: Mapping[str, Any]) -> str:
    """Write the page to a temporary file and open it; returns the file's path."""
    name = re.sub(r"\W+", "_", str(meta.get("model") or "run"))[:60]
    path = Path(tempfile.mkdtemp(prefix="torch_vis-")) / f"{name}.html"
    save(path, graph, metrics, limits, meta)
    if in_notebook():
        from IPython.display import HTML, display  # it is there: this runs inside of it

        display(HTML(frame(html(graph, metrics, limits, meta))))
    elif not _open(path):
        raise UsageError(f"no browser could be started here; the page is in {path}: open it in one")
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
