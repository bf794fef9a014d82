"""What a trace shows of itself in a notebook: the picture, and the table below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torch_vis.graph import Graph, Metrics
from torch_vis.views.picture.diagram import Look
from torch_vis.views.picture.scene import scene
from torch_vis.views.svg import svg
from torch_vis.views.text import table

TALLEST = 640  # pixels; a taller picture scrolls


def html(graph: Graph, metrics: Metrics, limits: Sequence[str], meta: Mapping[str, Any]) -> str:
    """The picture and the table as a piece of HTML without scripts."""
    picture = svg(scene(graph, metrics, meta, Look())) if len(graph) else ""
    text = escape(table(graph, metrics, limits, meta, width=120))
    return (
        f'<div style="max-height:{TALLEST}px;overflow:auto;background:#fff">{picture}</div>'
        f'<pre style="line-height:1.25;overflow:auto">{text}</pre>'
    )
