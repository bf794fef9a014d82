"""What differs between two matched operations, in words, and lists of operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from torch_vis.analysis.compare.align import module_of
from torch_vis.analysis.compare.sides import steps
from torch_vis.analysis.compare.wiring import Read
from torch_vis.graph.graph import Graph, Node, Rows, Value
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import many

MOST_ROWS = 20
MOST_LOOKED_AT = 2000  # operations, for lines that are equal


def differences_in(before: Node, after: Node, reads: Sequence[Read] = ()) -> list[str]:
    """What two operations make, how they are called and what they read, where that is not the same."""
    found = []
    made = [(", ".join(str(value.type) for value in node.outputs)) for node in (before, after)]
    if made[0] != made[1]:
        found.append(f"{made[0]} → {made[1]}")
    elif any(steps(one.type) != steps(two.type) for one, two in zip(before.outputs, after.outputs)):
        strides = [", ".join(str(value.type.stride) for value in node.outputs) for node in (before, after)]
        found.append(f"strides {strides[0]} → {strides[1]}")
    calls = before.call.format(), after.call.format()
    if calls[0] != calls[1]:
        found.append(f"{calls[0]} → {calls[1]}")
    elif before.call != after.call:
        found.append(f"{before.call.op} → {after.call.op}")
    return found + _rewired(before.graph, after.graph, reads)


def _rewired(a: Graph, b: Graph, reads: Sequence[Read]) -> list[str]:
    if len(reads) > 1 and sorted(read.code_a for read in reads) == sorted(read.code_b for read in reads):
        return ["its operands are swapped" if len(reads) == 2 else "its operands are in another order"]
    told = []
    for read in reads:
        if read.a < 0 or read.b < 0:
            written = _maker(a.values[read.a] if read.b < 0 else b.values[read.b])
            told.append(f"reads what {written} writes" + (" in A alone" if read.b < 0 else " in B alone"))
        else:
            told.append(f"reads {instead(a.values[read.a], b.values[read.b])}")
    return list(dict.fromkeys(told))


def instead(before: Value, after: Value) -> str:
    """What a value is in the place of another: ``x (input) instead of addmm in a``."""
    for tell in (_source, _maker, _exactly):
        one, two = tell(before), tell(after)
        if one != two:
            break
    return f"{two} instead of {one}"


def _source(value: Value) -> str:
    """What a value comes from, with views looked through."""
    maker = value.producer
    while maker is not None and "view" in maker.flags and maker.inputs:
        value = maker.inputs[0]
        maker = value.producer
    return _maker(value)


def _maker(value: Value) -> str:
    """What made a value, or what it is if nothing did."""
    if value.producer is None:
        return f"{value.name} ({value.role})" if value.name else f"a {value.role} {value.type}"
    return line(value.producer)


def _exactly(value: Value) -> str:
    """The same, with which of several operations or results it is."""
    maker = value.producer
    if maker is None:
        return f"{_maker(value)}, value {value.index}"
    made = [output.index for output in maker.outputs]
    which = f", result {made.index(value.index)}" if len(made) > 1 else ""
    return f"{maker.call.format()} in {module_of(maker) or 'the run'}, operation {maker.index}{which}"


def line(node: Node) -> str:
    """An operation and where it runs."""
    return f"{node.name} in {module_of(node) or 'the run'}" + (
        f" ({node.phase})" if node.phase != "forward" else ""
    )


def listed(title: str, lines: list[str], total: int, more: str = "") -> list[str]:
    """Lines under a title, equal ones as one, those beyond the most that are shown as a number."""
    if not total:
        return []
    shown = list(Counter(lines).items())[:MOST_ROWS]
    rest = total - sum(times for _, times in shown)
    told = [f"  {text} × {times:,}" if times > 1 else f"  {text}" for text, times in shown]
    return ["", f"{title} ({total:,})", *told, *([f"  … and {rest:,} more{more}"] if rest else [])]


def listed_nodes(title: str, nodes: Rows[Node], graph: Graph) -> list[str]:
    """Operations under a title: those that compute, in their order, and how many views there are besides."""
    numbers = np.asarray(nodes.numbers, dtype=np.int64)
    is_view = graph.node_flags[numbers] & Flag.VIEW != 0
    kept = numbers[~is_view]
    lines = [line(graph.nodes[int(node)]) for node in kept[:MOST_LOOKED_AT]]
    found = listed(title, lines, len(kept)) if len(kept) else ["", f"{title} ({len(numbers):,})"]
    if len(numbers) and is_view.any():
        found[1] = f"{title} ({len(numbers):,})"
        names = Counter(graph.nodes[int(node)].name for node in numbers[is_view][:MOST_LOOKED_AT])
        told = ", ".join(name for name, _ in names.most_common(4)) + (" …" if len(names) > 4 else "")
        found.append(f"  {'and ' if len(kept) else ''}{many(int(is_view.sum()), 'view')}: {told}")
    return found if len(numbers) else []
