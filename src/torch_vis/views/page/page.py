"""One HTML file: the viewer's bundle, the run's data, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from html import escape
from pathlib import Path
from typing import Any

from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.record import Run
from torch_vis.views.page.payload import payload
from torch_vis.views.text.breaks import Breaks

BUNDLE = Path(__file__).parent


def save(path: PathLike, run: Run) -> None:
    """Write the page of a run, whole or not at all.

    >>> import tempfile
    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.record import Run
    >>> path = tempfile.mkdtemp() + "/run.html"
    >>> save(path, Run(GraphBuilder().build(), Metrics(), meta={"model": "Net"}))
    >>> "<title>Net" in open(path, encoding="utf-8").read()
    True
    """
    text = html(run)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def html(run: Run) -> str:
    """The page as text."""
    breaks = [vars(row) for row in Breaks(run.meta.get("program"))]
    return page(run.name, *payload(run, breaks=breaks))


def page(title: str, tables: Mapping[str, Any], columns: str) -> str:
    """A page around data that has been packed already."""
    script, style = _asset("viewer.js"), _asset("viewer.css")
    policy = (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; style-src 'sha256-{_digest(style)}'; "
        "worker-src blob:; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f"<title>{escape(title)} · torch_vis</title>\n<style>{style}</style>\n</head>\n<body>\n",
            "<noscript>This page draws the model with JavaScript, which is switched off here.</noscript>\n",
            f'<script type="application/json" id="tables">{_as_text(tables)}</script>\n',
            f'<script type="text/plain" id="columns">{columns}</script>\n',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _as_text(tables: Mapping[str, Any]) -> str:
    """JSON in which nothing can end or begin an element: what a program calls its modules stays text."""
    text = json.dumps(tables, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return (BUNDLE / name).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
