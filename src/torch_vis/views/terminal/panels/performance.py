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
from torch_vis.views.terminal.panels.panel_canvas import Sheet, short, sizes, sparkline
from torch_vis.views.terminal.source import Advice, CallRow, Subject, TensorRow

NEEDS = (
    "Nothing of this has run yet. Record a run and open the explorer again: "
    "with tv.record_torch_module_forward_stats(model): model(x) — or tv.trace(model, x, backward=True).explore()"
)
BETWEEN = "Python and autograd, between the operations of backward and around the modules' calls"
MOST = 12


def draw(subject: Subject, row: int, sheet: Sheet, *, batch: Sequence[Advice] | None = None) -> None:
    """Fill the panel; ``batch`` is what was found out about batch sizes, if anything was."""
    if batch:
        sheet.heading("Batch size")
        sheet.facts([(one.kind, one.text) for one in batch])
    numbers = subject.forest.numbers
    sheet.heading(subject.forest.paths[row] or subject.title)
    calls = subject.calls(row)
    if calls is None and "time" not in numbers and "ops" not in numbers:
        sheet.missing(NEEDS)
        return
    called = numbers["calls"][row] if "calls" in numbers else float(len(calls or ()))
    if not called and not calls:
        sheet.missing("It was not called in this run.")
        return
    _totals(subject, row, sheet)
    if calls and subject.forest.kind(row) == "run":
        _whole(subject, row, calls, sheet)
    elif calls:
        _spread(calls, sheet)
        _borders(calls, sheet)


def _totals(subject: Subject, row: int, sheet: Sheet) -> None:
    numbers = subject.forest.numbers
    rows = []
    first = _phases(subject, row)
    for label, whole, own in ((first, "time", "self"), ("backward", "backward", "backward_self")):
        if whole in numbers and not math.isnan(numbers[whole][row]):
            top = float(np.nanmax(numbers[whole], initial=0.0))
            part = numbers[whole][row] / top if top else math.nan
            rows.append(
                [label, cell(whole, numbers[whole][row]), cell(own, numbers[own][row]), f"{part:.1%}"]
            )
    if rows:
        sheet.table(["", "with what it calls", "self", "of all"], rows, right="lrrr")
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
        sheet.blank()
        sheet.facts(facts)


def _phases(subject: Subject, row: int) -> str:
    """What ran in a row besides backward: forward, or what an optimizer did."""
    if subject.graph is None:
        return "forward"
    found = np.unique(subject.graph.node_phase[subject.nodes(row)]).tolist()
    words = [Phase(phase).name.lower() for phase in found if phase != Phase.BACKWARD]
    return ", ".join(words) or "forward"


def _whole(subject: Subject, row: int, calls: Sequence[CallRow], sheet: Sheet) -> None:
    """The run from its beginning to its end, and what of it is in none of the figures above."""
    whole, numbers = sum(call.time_ns for call in calls), subject.forest.numbers
    told = sum(float(numbers[name][row]) for name in ("time", "backward") if name in numbers)
    facts = [("whole run", f"{duration(whole)} from its beginning to its end")]
    if not math.isnan(told) and whole > told:
        facts.append(("the rest", f"{duration(int(whole - told))}: {BETWEEN}"))
    sheet.blank()
    sheet.facts(facts)


def _spread(calls: Sequence[CallRow], sheet: Sheet) -> None:
    first = [number for number, call in enumerate(calls) if call.note != RECOMPUTED]
    again = len(calls) - len(first)
    times = np.array([calls[number].time_ns for number in first], dtype=np.float64)
    sheet.heading("Calls", f"{len(first):,}" + (f", and {again:,} {RECOMPUTED}" if again else ""))
    if len(first) > 1:
        sheet.lines.append(Text(sparkline(times.tolist(), sheet.width), style=sheet.colours.warn))
        middle, low, high = np.median(times), times.min(), times.max()
        sheet.facts(
            [
                ("mean", f"{duration(int(times.mean()))} ± {duration(int(times.std()))}"),
                ("median", duration(int(middle))),
                ("fastest", duration(int(low))),
                ("slowest", f"{duration(int(high))} at call {first[int(times.argmax())]}"),
            ]
        )


def _borders(calls: Sequence[CallRow], sheet: Sheet) -> None:
    sheet.blank()
    rows = []
    for number, call in enumerate(calls[:MOST]):
        own = "" if call.self_ns is None else duration(call.self_ns)
        rows.append(
            [str(number), duration(call.time_ns), own, _shapes(call.inputs), _shapes(call.outputs), call.note]
        )
    sheet.table(["call", "time", "self", "in", "out", ""], rows, right="rrr")
    if len(calls) > MOST:
        sheet.missing(f"… {len(calls) - MOST:,} more calls")
    tensors = [(one, "in") for one in calls[0].inputs] + [(one, "out") for one in calls[0].outputs]
    if tensors:
        sheet.heading("Tensors of the first call")
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
        sheet.table(["", "name", "shape", "dtype", "device", "size"], table, right="lllllr")
        _contents([one for one, _ in tensors], sheet)


def _contents(tensors: Sequence[TensorRow], sheet: Sheet) -> None:
    rows = [
        [one.name, short(f.min), short(f.max), short(f.mean), short(f.std), f"{f.nans:,}" if f.nans else ""]
        for one in tensors
        if (f := one.figures) is not None
    ]
    if rows:
        sheet.blank()
        sheet.table(["contents", "min", "max", "mean", "std", "NaN"], rows, right="lrrrrr")


def _shapes(tensors: Sequence[TensorRow]) -> str:
    return " ".join(sizes(one.shape) for one in tensors)
