"""What comes into a module and what goes out of it, from where and to where, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.schema import Kind, Phase, Role
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas, cut, sizes
from torch_vis.views.terminal.source import CallRow, Source

MOST = 14


class Passage(NamedTuple):
    """A tensor that crosses the border of a module: its type, and who is at the other end."""

    what: str
    who: str
    times: int


def draw(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    canvas.heading(source.forest.paths[row] or source.title, source.forest.types[row])
    if source.graph is None:
        calls = source.calls(row)
        if calls:
            _from_call(calls[0], source, row, canvas)
        else:
            canvas.missing(
                "Where tensors come from and go to is known of a traced run: tv.trace(model, x).explore()"
            )
        return
    nodes = source.nodes(row)
    if not len(nodes):
        canvas.missing("No operation of it ran.")
        return
    into, out_of, state = passages(source, source.graph, nodes)
    box(into, out_of, source.forest.names[row], source.forest.types[row], canvas)
    if state:
        canvas.heading("State that it reads", f"{len(state):,} parameters and buffers")
        canvas.table(["", ""], [[one.what, one.who] for one in state[:MOST]], styles=[canvas.colours.type])
        if len(state) > MOST:
            canvas.missing(f"… {len(state) - MOST:,} more")


def passages(source: Source, graph: Graph, nodes: Any) -> tuple[list[Passage], list[Passage], list[Passage]]:
    """What the forward operations of a module take from others, what others take from them, and the state they read."""
    inside = np.zeros(len(graph) + 1, dtype=bool)
    inside[nodes] = True
    inside[-1] = False  # where a value without producer points to
    forward = graph.node_phase == Phase.FORWARD
    reader, value = graph.in_node, graph.in_value
    producer = graph.value_producer[value]
    real = (graph.in_kind != Kind.SHAPE) & forward[reader]
    made_forward = np.append(forward, True)[producer]  # what has no producer came from outside
    entering = np.flatnonzero(real & inside[reader] & ~inside[producer])
    leaving = np.flatnonzero(real & made_forward & ~inside[reader] & inside[producer])
    state = np.isin(graph.value_role[value[entering]], (Role.PARAMETER, Role.BUFFER))
    state &= producer[entering] < 0
    into = _taken(source, graph, value[entering[~state]])
    readers = [(int(value[at]), _place(source, graph, int(reader[at]))) for at in leaving]
    results = [
        (row.value.index, f"result {row.name}")
        for row in graph.outcomes
        if row.kind == "output" and inside[graph.value_producer[row.value.index]]
    ]
    return into, _named(graph, _grouped(readers + results)), _taken(source, graph, value[entering[state]])


def _taken(source: Source, graph: Graph, values: Any) -> list[Passage]:
    found = [(value, _maker(source, graph, value)) for value in dict.fromkeys(values.tolist())]
    return _named(graph, _grouped(found))


def _grouped(pairs: list[tuple[int, str]]) -> dict[tuple[int, str], int]:
    found: dict[tuple[int, str], int] = {}
    for pair in pairs:
        found[pair] = found.get(pair, 0) + 1
    return found


def _named(graph: Graph, found: dict[tuple[int, str], int]) -> list[Passage]:
    """One line for all that look alike."""
    alike: dict[tuple[str, str], int] = {}
    for (value, who), times in found.items():
        line = (str(graph.types[graph.value_type[value]]), who)
        alike[line] = alike.get(line, 0) + times
    return [Passage(what, who, times) for (what, who), times in alike.items()]


def _maker(source: Source, graph: Graph, value: int) -> str:
    producer = int(graph.value_producer[value])
    if producer >= 0:
        return _place(source, graph, producer)
    role = Role(graph.value_role[value]).name.lower().replace("_", " ")
    name = int(graph.value_name[value])
    if name < 0:
        return "outside the run" if role in ("constant", "activation") else f"outside the run ({role})"
    return f"{role} {graph.names[name]}"


def _place(source: Source, graph: Graph, node: int) -> str:
    row = -1 if source.row_of_scope is None else int(source.row_of_scope[graph.node_scope[node]])
    where = source.forest.paths[row] if row >= 0 else ""
    return f"{where or 'the run'} · {graph.nodes[node].name}"


def _from_call(call: CallRow, source: Source, row: int, canvas: PanelCanvas) -> None:
    """Without a graph: what the first recorded call took and gave."""
    into = [Passage(f"{one.dtype}[{sizes(one.shape)}]", f"argument {one.name}", 1) for one in call.inputs]
    out_of = [Passage(f"{one.dtype}[{sizes(one.shape)}]", one.name, 1) for one in call.outputs]
    box(into, out_of, source.forest.names[row], source.forest.types[row], canvas)
    canvas.blank()
    canvas.missing("A trace would also know who made these and who reads them.")


def box(
    into: Sequence[Passage], out_of: Sequence[Passage], name: str, kind: str, canvas: PanelCanvas
) -> None:
    """Arrows into a box from above, and out of it below."""
    colours = canvas.colours
    width = min(canvas.width, max(24, len(name) + 4, len(kind) + 4))
    _arrows(into, canvas)
    top = "┌" + "─" * 3 + ("▼" if into else "─") + "─" * (width - 6) + "┐"
    canvas.put((top, colours.title))
    for words, style in ((name, colours.name), (kind, colours.type)):
        inside = cut(words, width - 4).ljust(width - 4)
        canvas.put(("│ ", colours.title), (inside, style), (" │", colours.title))
    bottom = "└" + "─" * 3 + ("┬" if out_of else "─") + "─" * (width - 6) + "┘"
    canvas.put((bottom, colours.title))
    _arrows(out_of, canvas, last=True)


def _arrows(rows: Sequence[Passage], canvas: PanelCanvas, *, last: bool = False) -> None:
    colours = canvas.colours
    wide = max((len(one.what) for one in rows[:MOST]), default=0)
    for number, one in enumerate(rows[:MOST]):
        if last:
            corner = "└─▶ " if number == min(len(rows), MOST) - 1 and len(rows) <= MOST else "├─▶ "
        else:
            corner = "┌── " if number == 0 else "├── "
        who = f"  {'to' if last else 'from'} {one.who}" + (f" × {one.times}" if one.times > 1 else "")
        who = _cut_left(who, max(8, canvas.width - wide - 8))
        canvas.put(
            ("    " + corner, colours.title), (one.what.ljust(wide), colours.type), (who, colours.number)
        )
    if len(rows) > MOST:
        canvas.put((f"    {'└' if last else '├'}── … {len(rows) - MOST:,} more", colours.dim))


def _cut_left(text: str, width: int) -> str:
    """A text of at most ``width`` cells that keeps its end, where paths differ.

    >>> _cut_left("  to encoder.layer.0.output · add", 20)
    '  to …0.output · add'
    """
    if len(text) <= width:
        return text
    head = text[: len(text) - len(text.lstrip())] + text.split(maxsplit=1)[0] + " …"
    return head + text[len(text) - max(1, width - len(head)) :]
