"""What a trace shows of itself in a notebook: the web page, and for where that cannot run the picture and the table."""

from __future__ import annotations

from html import escape

from torch_vis.graph.record import Run
from torch_vis.views.figure.diagram import FigureOptions
from torch_vis.views.figure.scene import scene
from torch_vis.views.figure.svg import svg
from torch_vis.views.page.page import html as page
from torch_vis.views.page.show import frame
from torch_vis.views.text.module_tree import table

TALLEST = 640  # pixels; a taller picture scrolls
LARGEST = 3_000_000  # characters of a page that goes into a notebook's file
MOST_OPERATIONS = 200_000  # beyond, the page is larger than that, and need not be made to find out


def html(run: Run) -> str:
    """The page in a frame of its own, and below it the picture and the table, which need no script."""
    picture = svg(scene(run, FigureOptions())) if len(run.graph) else ""
    text = escape(table(run, width=120))
    still = (
        f'<div style="max-height:{TALLEST}px;overflow:auto;background:#fff">{picture}</div>'
        f'<pre style="line-height:1.25;overflow:auto">{text}</pre>'
    )
    inside = page(run) if 0 < len(run.graph) <= MOST_OPERATIONS else ""
    if not inside or len(inside) > LARGEST:
        return still
    return f"{frame(inside)}<details><summary>As a picture and a table</summary>{still}</details>"
