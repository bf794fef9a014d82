"""The bytes that were alive along the run, and the stretches of it in which the module ran."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.text import Text

from torch_vis.graph import Graph
from torch_vis.graph.births import block_births
from torch_vis.views.tui.panels.sheet import Sheet, chart, squeeze
from torch_vis.views.tui.subject import Subject
from torch_vis.views.units import size

HEIGHT = 10
MOST = 12
NEEDS = "Memory along the run is known of a trace: tv.trace(model, x, backward=True).explore()"


def draw(subject: Subject, row: int, sheet: Sheet) -> None:
    """Fill the panel."""
    sheet.heading(subject.forest.paths[row] or subject.title, "live bytes, operation by operation")
    graph, metrics = subject.graph, subject.metrics
    if graph is None or metrics is None or "live_bytes" not in metrics or not len(graph):
        sheet.missing(NEEDS)
        return
    live = metrics["live_bytes"].values.astype(np.float64)
    nodes = subject.nodes(row)
    _curve(live, nodes, sheet)
    peak = int(live.argmax())
    node = graph.nodes[peak]
    facts = [
        (
            "peak of the run",
            f"{size(int(live[peak]))} at operation {peak}, {node.name} in {node.path or 'the run'}",
        )
    ]
    if len(nodes):
        here = nodes[int(live[nodes].argmax())]
        facts.append(
            ("highest in it", f"{size(int(live[here]))} at operation {here}, {graph.nodes[int(here)].name}")
        )
        made = metrics["alloc_bytes"].values[nodes] if "alloc_bytes" in metrics else np.zeros(0)
        facts.append(("it allocated", size(int(made.sum()))))
    sheet.blank()
    sheet.facts(facts)
    _alive_at(graph, peak, sheet)


def _curve(live: Any, nodes: Any, sheet: Sheet) -> None:
    """The curve, with the operations of the module in another colour."""
    width = min(sheet.width - 10, len(live)) if len(live) < sheet.width - 10 else sheet.width - 10
    width = max(8, width)
    mine = np.zeros(len(live))
    mine[nodes] = 1
    lit = squeeze(mine, width) > 0
    top = float(live.max())
    for number, line in enumerate(chart(live, width, HEIGHT)):
        label = size(int(top)) if number == 0 else "0 B" if number == HEIGHT - 1 else ""
        text = Text.assemble((f"{label:>8} ", sheet.colours.dim))
        for letter, on in zip(line, lit):
            text.append(letter, style=sheet.colours.warn if on else sheet.colours.type)
        sheet.lines.append(text)
    edge = Text(" " * 9)
    edge.append(
        f"0{' ' * max(1, min(width, len(lit)) - 1 - len(str(len(live))))}{len(live)}", style=sheet.colours.dim
    )
    sheet.lines.append(edge)


def _alive_at(graph: Graph, node: int, sheet: Sheet) -> None:
    """The largest blocks that were alive when most was."""
    alive = np.flatnonzero((block_births(graph) <= node) & (graph.storage_death > node))
    order = alive[np.argsort(-graph.storage_bytes[alive], kind="stable")][:MOST]
    first: dict[int, int] = {}
    wanted = set(order.tolist())
    for value, storage in enumerate(graph.value_storage.tolist()):
        if storage in wanted and storage not in first:
            first[storage] = value
    rows = []
    for storage in order.tolist():
        if storage not in first:
            continue
        value = graph.values[first[storage]]
        maker = value.producer
        who = value.name or (f"{maker.path or 'the run'} · {maker.name}" if maker is not None else "")
        rows.append(
            [size(int(graph.storage_bytes[storage])), value.role.replace("_", " "), str(value.type), who]
        )
    if rows:
        sheet.heading("Alive at the peak", "the largest")
        sheet.table(["size", "role", "type", "made by"], rows, right="r")
