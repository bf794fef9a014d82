"""How long a module took: forward and backward, itself and with what it called, call by call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.text import Text

from torch_vis.graph.schema import Phase
from torch_vis.graph.text import count, duration, size
from torch_vis.views.terminal.columns import cell
from torch_vis.views.terminal.forest import RECOMPUTED
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas, short, sizes, sparkline
from torch_vis.views.terminal.source import Advice, CallRow, Source, TensorRow

NEEDS = (
    "Nothing of this has run yet. Record a run and open the explorer again: "
    "with tv.record_torch_module_forward_stats(model): model(x) — or tv.trace(model, x, backward=True).explore()"
)
BETWEEN = "Python and autograd, between the operations of backward and around the modules' calls"
MOST = 12


def draw(source: Source, row: int, canvas: PanelCanvas, *, batch: Sequence[Advice] | None = None) -> None:
    """Fill the panel; ``batch`` is what was found out about batch sizes, if anything was."""
    if batch:
        canvas.heading("Batch size")
        canvas.facts([(one.kind, one.text) for one in batch])
    numbers = source.forest.numbers
    canvas.heading(source.forest.paths[row] or source.title)
    calls = source.calls(row)
    if calls is None and "time" not in numbers and "ops" not in numbers:
        canvas.missing(NEEDS)
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
    found = np.unique(source.graph.node_phase[source.nodes(row)]).tolist()
    words = [Phase(phase).name.lower() for phase in found if phase != Phase.BACKWARD]
    return ", ".join(words) or "forward"


def _whole(source: Source, row: int, calls: Sequence[CallRow], canvas: PanelCanvas) -> None:
    """The run from its beginning to its end, and what of it is in none of the figures above."""
    whole, numbers = sum(call.time_ns for call in calls), source.forest.numbers
    told = sum(float(numbers[name][row]) for name in ("time", "backward") if name in numbers)
    facts = [("whole run", f"{duration(whole)} from its beginning to its end")]
    if not math.isnan(told) and whole > told:
        facts.append(("the rest", f"{duration(int(whole - told))}: {BETWEEN}"))
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
    for number, call in enumerate(calls[:MOST]):
        own = "" if call.self_ns is None else duration(call.self_ns)
        rows.append(
            [str(number), duration(call.time_ns), own, _shapes(call.inputs), _shapes(call.outputs), call.note]
        )
    canvas.table(["call", "time", "self", "in", "out", ""], rows, right="rrr")
    if len(calls) > MOST:
        canvas.missing(f"… {len(calls) - MOST:,} more calls")
    tensors = [(one, "in") for one in calls[0].inputs] + [(one, "out") for one in calls[0].outputs]
    if tensors:
        canvas.heading("Tensors of the first call")
        table = [
            [
                way,
                one.name,
                sizes(one.shape),
                one.dtype,
                one.device,
                "" if one.nbytes is None else size(one.nbytes),
            ]
            for one, way in tensors
        ]
        canvas.table(["", "name", "shape", "dtype", "device", "size"], table, right="lllllr")
        _contents([one for one, _ in tensors], canvas)


def _contents(tensors: Sequence[TensorRow], canvas: PanelCanvas) -> None:
    rows = [
        [one.name, short(f.min), short(f.max), short(f.mean), short(f.std), f"{f.nans:,}" if f.nans else ""]
        for one in tensors
        if (f := one.figures) is not None
    ]
    if rows:
        canvas.blank()
        canvas.table(["contents", "min", "max", "mean", "std", "NaN"], rows, right="lrrrrr")


def _shapes(tensors: Sequence[TensorRow]) -> str:
    return " ".join(sizes(one.shape) for one in tensors)
