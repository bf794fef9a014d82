"""Panels on what a module did in a run: how long it took, its operations, and the tensors that pass through it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text

from torch_vis.graph import Graph, Metrics
from torch_vis.graph.schema import Flag, Kind, Phase, Role
from torch_vis.graph.text import count, duration, many, size
from torch_vis.ops.display_names import op_label, place_label
from torch_vis.views.terminal.columns import cell
from torch_vis.views.terminal.forest import RECOMPUTED
from torch_vis.views.terminal.panel_canvas import PanelCanvas, cut, short, sparkline
from torch_vis.views.terminal.source import CallRow, Source, TensorRow, sizes
from torch_vis.views.text.module_tree import AGAIN

NEEDS_RUN = (
    "Nothing of this has run yet. Record a run and open the explorer again: "
    "with tv.record_torch_module_forward_stats(model): model(x) — or tv.trace(model, x, backward=True).explore()"
)
BETWEEN = "Python and autograd, between the operations of backward and around the modules' calls"
MOST_CALLS = 12


def draw_time(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel on times; above them what was found out about batch sizes, if anything was."""
    if canvas.batch_sizes:
        canvas.heading("Batch size")
        canvas.facts([(advice.kind, advice.text) for advice in canvas.batch_sizes])
    numbers = source.forest.numbers
    canvas.heading(source.forest.paths[row] or source.title)
    calls = source.calls(row)
    if calls is None and "time" not in numbers and "ops" not in numbers:
        canvas.missing(NEEDS_RUN)
        return
    called = numbers["calls"][row] if "calls" in numbers else float(len(calls or ()))
    if not called and not calls:
        canvas.missing("It was not called in this run.")
        return
    _totals(source, row, canvas)
    if calls and source.forest.kind(row) == "run":
        _whole(source, row, calls, canvas)
    elif calls:
        _spread(calls, canvas)
        _borders(calls, canvas)


def _totals(source: Source, row: int, canvas: PanelCanvas) -> None:
    numbers = source.forest.numbers
    rows = []
    first = _phases(source, row)
    for label, whole, own in ((first, "time", "self"), ("backward", "backward", "backward_self")):
        if whole in numbers and not math.isnan(numbers[whole][row]):
            top = float(np.nanmax(numbers[whole], initial=0.0))
            part = numbers[whole][row] / top if top else math.nan
            rows.append(
                [label, cell(whole, numbers[whole][row]), cell(own, numbers[own][row]), f"{part:.1%}"]
            )
    if rows:
        canvas.table(["", "with what it calls", "self", "of all"], rows, right="lrrr")
    facts = []
    for name, label in (("memory", f"allocated in {first}"), ("ops", "operations")):
        if name in numbers and not math.isnan(numbers[name][row]):
            facts.append((label, cell(name, numbers[name][row])))
    if "flops" in numbers and not math.isnan(numbers["flops"][row]):
        flops = numbers["flops"][row]
        rate = flops / numbers["time"][row] if "time" in numbers and numbers["time"][row] > 0 else 0.0
        speed = f", {count(int(rate * 1e9))}FLOP/s" if rate else ""
        facts.append(("FLOPs in forward", count(int(flops)) + speed))
    if facts:
        canvas.blank()
        canvas.facts(facts)


def _phases(source: Source, row: int) -> str:
    """What ran in a row besides backward: forward, or what an optimizer did."""
    if source.graph is None:
        return "forward"
    phases = np.unique(source.graph.node_phase[source.nodes(row)]).tolist()
    words = [Phase(phase).name.lower() for phase in phases if phase != Phase.BACKWARD]
    return ", ".join(words) or "forward"


def _whole(source: Source, row: int, calls: Sequence[CallRow], canvas: PanelCanvas) -> None:
    """The run from its beginning to its end, and what of it is in none of the figures above."""
    whole, numbers = sum(call.time_ns for call in calls), source.forest.numbers
    in_columns = sum(float(numbers[name][row]) for name in ("time", "backward") if name in numbers)
    facts = [("whole run", f"{duration(whole)} from its beginning to its end")]
    if not math.isnan(in_columns) and whole > in_columns:
        facts.append(("the rest", f"{duration(int(whole - in_columns))}: {BETWEEN}"))
    canvas.blank()
    canvas.facts(facts)


def _spread(calls: Sequence[CallRow], canvas: PanelCanvas) -> None:
    first = [number for number, call in enumerate(calls) if call.note != RECOMPUTED]
    again = len(calls) - len(first)
    times = np.array([calls[number].time_ns for number in first], dtype=np.float64)
    canvas.heading("Calls", f"{len(first):,}" + (f", and {again:,} {RECOMPUTED}" if again else ""))
    if len(first) > 1:
        canvas.lines.append(Text(sparkline(times.tolist(), canvas.width), style=canvas.colours.warn))
        middle, low, high = np.median(times), times.min(), times.max()
        canvas.facts(
            [
                ("mean", f"{duration(int(times.mean()))} ± {duration(int(times.std()))}"),
                ("median", duration(int(middle))),
                ("fastest", duration(int(low))),
                ("slowest", f"{duration(int(high))} at call {first[int(times.argmax())]}"),
            ]
        )


def _borders(calls: Sequence[CallRow], canvas: PanelCanvas) -> None:
    canvas.blank()
    rows = []
    for number, call in enumerate(calls[:MOST_CALLS]):
        own = "" if call.self_ns is None else duration(call.self_ns)
        rows.append(
            [str(number), duration(call.time_ns), own, _shapes(call.inputs), _shapes(call.outputs), call.note]
        )
    canvas.table(["call", "time", "self", "in", "out", ""], rows, right="rrr")
    if len(calls) > MOST_CALLS:
        canvas.missing(f"… {len(calls) - MOST_CALLS:,} more calls")
    tensors = [(tensor, "in") for tensor in calls[0].inputs] + [
        (tensor, "out") for tensor in calls[0].outputs
    ]
    if tensors:
        canvas.heading("Tensors of the first call")
        table = [
            [
                way,
                tensor.name,
                sizes(tensor.shape),
                tensor.dtype,
                tensor.device,
                "" if tensor.nbytes is None else size(tensor.nbytes),
            ]
            for tensor, way in tensors
        ]
        canvas.table(["", "name", "shape", "dtype", "device", "size"], table, right="lllllr")
        _contents([tensor for tensor, _ in tensors], canvas)


def _contents(tensors: Sequence[TensorRow], canvas: PanelCanvas) -> None:
    rows = [
        [
            tensor.name,
            short(f.min),
            short(f.max),
            short(f.mean),
            short(f.std),
            f"{f.nans:,}" if f.nans else "",
        ]
        for tensor in tensors
        if (f := tensor.figures) is not None
    ]
    if rows:
        canvas.blank()
        canvas.table(["contents", "min", "max", "mean", "std", "NaN"], rows, right="lrrrrr")


def _shapes(tensors: Sequence[TensorRow]) -> str:
    return " ".join(sizes(tensor.shape) for tensor in tensors)


MOST_OPERATIONS = 200
MOST_KINDS = 12
SIGNS = {Phase.FORWARD: "→", Phase.BACKWARD: "←", Phase.OPTIMIZER: "↓"}
NEEDS_TRACE = "Operations are those of a traced run: tv.trace(model, x, backward=True).explore()"


def draw_operations(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    canvas.heading(source.forest.paths[row] or source.title, source.forest.types[row])
    graph, metrics = source.graph, source.metrics
    if graph is None or metrics is None:
        canvas.missing(NEEDS_TRACE)
        return
    nodes = source.nodes(row)
    if not len(nodes):
        canvas.missing("No operation of it ran.")
        return
    _kinds(graph, metrics, nodes, canvas)
    canvas.heading("In order", f"{many(len(nodes), 'operation')}; {_signs(graph, nodes[:MOST_OPERATIONS])}")
    rows = [_operation_row(graph, metrics, int(node)) for node in nodes[:MOST_OPERATIONS]]
    heads = ["#", "", "operation", "output", "time", "FLOPs"]
    styles = [canvas.colours.faint, canvas.colours.dim, canvas.colours.name, canvas.colours.type]
    canvas.table(heads, rows, right="rlllrr", styles=styles)
    if len(nodes) > MOST_OPERATIONS:
        canvas.missing(
            f"… {len(nodes) - MOST_OPERATIONS:,} more operations; open a module inside to see them"
        )


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
        [names.setdefault(op_label(call.op), len(names)) for call in graph.calls], dtype=np.int64
    )
    kind = of_call[graph.node_call[nodes]]
    counts = np.bincount(kind, minlength=len(names))
    timed = "time_ns" in metrics
    weight = metrics["time_ns"].values[nodes] if timed else np.ones(len(nodes))
    totals = np.bincount(kind, weights=weight, minlength=len(names))
    order = [at for at in np.argsort(-totals, kind="stable").tolist() if counts[at]][:MOST_KINDS]
    words = list(names)
    wide = min(30, max(len(words[at]) for at in order) + 6)
    for at in order:
        label = words[at] + (f" × {counts[at]}" if counts[at] > 1 else "")
        text = duration(int(totals[at])) if timed else f"{int(totals[at]):,}"
        canvas.bar(label, totals[at] / (totals.sum() or 1), text, label_width=wide)


def _operation_row(graph: Graph, metrics: Metrics, number: int) -> list[str]:
    node = graph.nodes[number]
    outputs = " ".join(str(value.type) for value in node.outputs[:2]) + (
        " …" if len(node.outputs) > 2 else ""
    )
    took = metrics["time_ns"][number] if "time_ns" in metrics else None
    flops = metrics["flops"][number] if "flops" in metrics else None
    again = graph.node_flags[number] & Flag.RECOMPUTE != 0
    return [
        str(number),
        AGAIN if again else SIGNS[Phase(graph.node_phase[number])],
        op_label(node.call.op),
        outputs,
        "" if took is None else duration(took),
        "?" if flops is None else count(flops) if flops else "",
    ]


MOST_PASSAGES = 14


class BorderTensor(NamedTuple):
    """A tensor that crosses the border of a module: its type, and who is at the other end."""

    what: str
    who: str
    times: int


def draw_flow(source: Source, row: int, canvas: PanelCanvas) -> None:
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
    into, out_of, state = border_tensors(source, source.graph, nodes)
    box(into, out_of, source.forest.names[row], source.forest.types[row], canvas)
    if state:
        canvas.heading("State that it reads", f"{len(state):,} parameters and buffers")
        canvas.table(
            ["", ""],
            [[tensor.what, tensor.who] for tensor in state[:MOST_PASSAGES]],
            styles=[canvas.colours.type],
        )
        if len(state) > MOST_PASSAGES:
            canvas.missing(f"… {len(state) - MOST_PASSAGES:,} more")


def border_tensors(
    source: Source, graph: Graph, nodes: Any
) -> tuple[list[BorderTensor], list[BorderTensor], list[BorderTensor]]:
    """The tensors that a module's forward takes from others, those that others take from it, and the state it reads."""
    inside = np.zeros(len(graph) + 1, dtype=bool)
    inside[nodes] = True
    # where a value without producer points to
    inside[-1] = False
    forward = graph.node_phase == Phase.FORWARD
    reader, value = graph.in_node, graph.in_value
    producer = graph.value_producer[value]
    real = (graph.in_kind != Kind.SHAPE) & forward[reader]
    # what has no producer came from outside
    made_forward = np.append(forward, True)[producer]
    entering = np.flatnonzero(real & inside[reader] & ~inside[producer])
    leaving = np.flatnonzero(real & made_forward & ~inside[reader] & inside[producer])
    state = np.isin(graph.value_role[value[entering]], (Role.PARAMETER, Role.BUFFER))
    state &= producer[entering] < 0
    into = _made_outside(source, graph, value[entering[~state]])
    readers = [(int(value[at]), _location(source, graph, int(reader[at]))) for at in leaving]
    results = [
        (row.value.index, f"result {row.name}")
        for row in graph.outcomes
        if row.kind == "output" and inside[graph.value_producer[row.value.index]]
    ]
    return (
        into,
        _merged(graph, _grouped(readers + results)),
        _made_outside(source, graph, value[entering[state]]),
    )


def _made_outside(source: Source, graph: Graph, values: Any) -> list[BorderTensor]:
    producers = [(value, _producer_line(source, graph, value)) for value in dict.fromkeys(values.tolist())]
    return _merged(graph, _grouped(producers))


def _grouped(pairs: list[tuple[int, str]]) -> dict[tuple[int, str], int]:
    counts: dict[tuple[int, str], int] = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    return counts


def _merged(graph: Graph, counts: dict[tuple[int, str], int]) -> list[BorderTensor]:
    """One line for all that look alike."""
    alike: dict[tuple[str, str], int] = {}
    for (value, who), times in counts.items():
        line = (str(graph.types[graph.value_type[value]]), who)
        alike[line] = alike.get(line, 0) + times
    return [BorderTensor(what, who, times) for (what, who), times in alike.items()]


def _producer_line(source: Source, graph: Graph, value: int) -> str:
    producer = int(graph.value_producer[value])
    if producer >= 0:
        return _location(source, graph, producer)
    role = Role(graph.value_role[value]).name.lower().replace("_", " ")
    name = int(graph.value_name[value])
    if name < 0:
        return "outside the run" if role in ("constant", "activation") else f"outside the run ({role})"
    return f"{role} {graph.names[name]}"


def _location(source: Source, graph: Graph, node: int) -> str:
    row = -1 if source.row_of_scope is None else int(source.row_of_scope[graph.node_scope[node]])
    where = source.forest.paths[row] if row >= 0 else ""
    return (
        f"{where or place_label(graph, int(graph.node_scope[node]))} · {op_label(graph.nodes[node].call.op)}"
    )


def _from_call(call: CallRow, source: Source, row: int, canvas: PanelCanvas) -> None:
    """Without a graph: what the first recorded call took and gave."""
    into = [
        BorderTensor(f"{tensor.dtype}[{sizes(tensor.shape)}]", f"argument {tensor.name}", 1)
        for tensor in call.inputs
    ]
    out_of = [
        BorderTensor(f"{tensor.dtype}[{sizes(tensor.shape)}]", tensor.name, 1) for tensor in call.outputs
    ]
    box(into, out_of, source.forest.names[row], source.forest.types[row], canvas)
    canvas.blank()
    canvas.missing("A trace would also know who made these and who reads them.")


def box(
    into: Sequence[BorderTensor], out_of: Sequence[BorderTensor], name: str, kind: str, canvas: PanelCanvas
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


def _arrows(rows: Sequence[BorderTensor], canvas: PanelCanvas, *, last: bool = False) -> None:
    colours = canvas.colours
    wide = max((len(tensor.what) for tensor in rows[:MOST_PASSAGES]), default=0)
    for number, tensor in enumerate(rows[:MOST_PASSAGES]):
        if last:
            corner = (
                "└─▶ "
                if number == min(len(rows), MOST_PASSAGES) - 1 and len(rows) <= MOST_PASSAGES
                else "├─▶ "
            )
        else:
            corner = "┌── " if number == 0 else "├── "
        who = f"  {'to' if last else 'from'} {tensor.who}" + (
            f" × {tensor.times}" if tensor.times > 1 else ""
        )
        who = _cut_left(who, max(8, canvas.width - wide - 8))
        canvas.put(
            ("    " + corner, colours.title), (tensor.what.ljust(wide), colours.type), (who, colours.number)
        )
    if len(rows) > MOST_PASSAGES:
        canvas.put((f"    {'└' if last else '├'}── … {len(rows) - MOST_PASSAGES:,} more", colours.dim))


def _cut_left(text: str, width: int) -> str:
    """A text of at most ``width`` cells that keeps its end, where paths differ.

    >>> _cut_left("  to encoder.layer.0.output · add", 20)
    '  to …0.output · add'
    """
    if len(text) <= width:
        return text
    head = text[: len(text) - len(text.lstrip())] + text.split(maxsplit=1)[0] + " …"
    return head + text[len(text) - max(1, width - len(head)) :]
