"""The panels by name, in the order of their tabs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch_vis.views.terminal.panels import (
    activations,
    compare,
    details,
    flow,
    gradients,
    memory,
    operations,
    performance,
    source,
)
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas
from torch_vis.views.terminal.source import Source


class Panel(NamedTuple):
    """A panel: its title, and what fills a canvas for a row."""

    title: str
    draw: Callable[[Source, int, PanelCanvas], None]


PANELS: dict[str, Panel] = {
    "details": Panel("Details", details.draw),
    "performance": Panel("Time", performance.draw),
    "source": Panel("Source", source.draw),
    "flow": Panel("Flow", flow.draw),
    "operations": Panel("Ops", operations.draw),
    "memory": Panel("Memory", memory.draw),
    "gradients": Panel("Grads", gradients.draw),
    "activations": Panel("Maps", activations.draw),
    "compare": Panel("Compare", compare.draw),
}
