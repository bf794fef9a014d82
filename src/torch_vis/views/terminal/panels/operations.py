"""The operations of a module, in order: what each computed, how long it took, what it made."""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_vis.graph import Graph, Metrics
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import count, duration, many
from torch_vis.views.terminal.forest import RECOMPUTED
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas
from torch_vis.views.terminal.source import Source
from torch_vis.views.text.notes import AGAIN

MOST = 200
KINDS = 12
SIGNS = {Phase.FORWARD: "→", Phase.BACKWARD: "←", Phase.OPTIMIZER: "↓"}
NEEDS = "Operations are those of a traced run: tv.trace(model, x, backward=True).explore()"


def draw(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    canvas.heading(source.forest.paths[row] or source.title, source.forest.types[row])
    graph, metrics = source.graph, source.metrics
    if graph is None or metrics is None:
        canvas.missing(NEEDS)
        return
    nodes = source.nodes(row)
    if not len(nodes):
        canvas.missing("No operation of it ran.")
        return
    _kinds(graph, metrics, nodes, canvas)
    canvas.heading("In order", f"{many(len(nodes), 'operation')}; {_signs(graph, nodes[:MOST])}")
    rows = [_line(graph, metrics, int(node)) for node in nodes[:MOST]]
    heads = ["#", "", "operation", "output", "time", "FLOPs"]
    styles = [canvas.colours.faint, canvas.colours.dim, canvas.colours.name, canvas.colours.type]
    canvas.table(heads, rows, right="rlllrr", styles=styles)
    if len(nodes) > MOST:
        canvas.missing(f"… {len(nodes) - MOST:,} more operations; open a module inside to see them")


def _signs(graph: Graph, nodes: Any) -> str:
    """What the signs beside operations mean: of those that are there."""
    repeated = graph.node_flags[nodes] & Flag.RECOMPUTE != 0
    phases = np.unique(graph.node_phase[nodes[~repeated]]).tolist()
    words = [f"{SIGNS[Phase(phase)]} {Phase(phase).name.lower()}" for phase in phases]
    return ", ".join([*words, *([f"{AGAIN} {RECOMPUTED}"] if repeated.any() else ())])


def _kinds(graph: Graph, metrics: Metrics, nodes: Any, canvas: PanelCanvas) -> None:
    """The kinds of operations by the time that they took together."""
    names: dict[str, int] = {}
    of_call = np.array(
        [names.setdefault(short_name(call.op), len(names)) for call in graph.calls], dtype=np.int64
    )
    kind = of_call[graph.node_call[nodes]]
    counts = np.bincount(kind, minlength=len(names))
    timed = "time_ns" in metrics
    weight = metrics["time_ns"].values[nodes] if timed else np.ones(len(nodes))
    totals = np.bincount(kind, weights=weight, minlength=len(names))
    order = [at for at in np.argsort(-totals, kind="stable").tolist() if counts[at]][:KINDS]
    words = list(names)
    wide = min(30, max(len(words[at]) for at in order) + 6)
    for at in order:
        label = words[at] + (f" × {counts[at]}" if counts[at] > 1 else "")
        text = duration(int(totals[at])) if timed else f"{int(totals[at]):,}"
        canvas.bar(label, totals[at] / (totals.sum() or 1), text, label_width=wide)


def _line(graph: Graph, metrics: Metrics, number: int) -> list[str]:
    node = graph.nodes[number]
    made = " ".join(str(value.type) for value in node.outputs[:2]) + (" …" if len(node.outputs) > 2 else "")
    took = metrics["time_ns"][number] if "time_ns" in metrics else None
    flops = metrics["flops"][number] if "flops" in metrics else None
    again = graph.node_flags[number] & Flag.RECOMPUTE != 0
    return [
        str(number),
        AGAIN if again else SIGNS[Phase(graph.node_phase[number])],
        node.name,
        made,
        "" if took is None else duration(took),
        "?" if flops is None else count(flops) if flops else "",
    ]
