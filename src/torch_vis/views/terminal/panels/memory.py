"""The bytes that were alive along the run, and the stretches of it in which the module ran."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.text import Text

from torch_vis.graph import Graph
from torch_vis.graph.lifetimes import MemoryByUse
from torch_vis.graph.text import size
from torch_vis.views.terminal.panels.panel_canvas import Sheet, chart, squeeze
from torch_vis.views.terminal.source import Subject

HEIGHT = 10
MOST = 12
ROOMY = 72  # cells from which on there is room for the types of tensors
NEEDS = "Memory along the run is known of a trace: tv.trace(model, x, backward=True).explore()"


def draw(subject: Subject, row: int, sheet: Sheet) -> None:
    """Fill the panel."""
    sheet.heading(subject.forest.paths[row] or subject.title, "live bytes, operation by operation")
    graph, metrics = subject.graph, subject.metrics
    memory = None if subject.lifetimes is None else subject.lifetimes.by_use
    if graph is None or metrics is None or memory is None or not len(graph):
        sheet.missing(NEEDS)
        return
    live, nodes = memory.live, subject.nodes(row)
    _curve(live.astype(np.float64), nodes, sheet)
    peak = int(live.argmax())
    facts = [("peak of the run", _where(graph, live, peak))]
    if len(nodes):
        facts.append(("highest in it", _where(graph, live, int(nodes[int(live[nodes].argmax())]))))
        facts.append(("it allocated", size(int(metrics["alloc_bytes"].values[nodes].sum()))))
    sheet.blank()
    sheet.facts(facts)
    sheet.heading("At the peak", "by use")
    amounts = sorted(zip(memory.during[:, peak].tolist(), memory.words), reverse=True)
    sheet.table(["size", "use"], [[size(amount), word] for amount, word in amounts if amount], right="r")
    _alive_at(graph, memory, peak, sheet)


def _where(graph: Graph, live: Any, number: int) -> str:
    """How much is alive at an operation, and which that is."""
    node = graph.nodes[number]
    return f"{size(int(live[number]))} at operation {number:,}, {node.name} in {node.path or 'the run'}"


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


def _alive_at(graph: Graph, memory: MemoryByUse, node: int, sheet: Sheet) -> None:
    """The largest blocks that were alive when most was."""
    heads, rows = ["size", "use", "name, or made by", "type"], []
    for block in memory.alive(node)[:MOST].tolist():
        number, birth = int(memory.value[block]), int(memory.birth[block])
        value = graph.values[number] if number >= 0 else None
        maker = graph.nodes[birth] if birth >= 0 else None
        made = "" if maker is None else f"{maker.name} in {maker.path or 'the run'}"
        name, what = ("", "") if value is None else (value.name, str(value.type))
        rows.append(
            [size(int(memory.size_bytes[block])), memory.words[memory.use[block]], name or made, what]
        )
    if sheet.width < ROOMY:  # what it is for, and whose, comes before its shape
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    sheet.heading("Alive at the peak", "the largest")
    sheet.table(heads, rows, right="r")
