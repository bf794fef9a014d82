"""Two models side by side: the rows of both by their paths, and what differs."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch_vis.views.terminal.columns import COLUMNS, cell
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas, cut
from torch_vis.views.terminal.source import Source

MOST = 300
NEEDS = "There is no second model. Open two: tv.explore_model(model, against=other), or torch-vis explore A --against B"
FIGURES = ("params", "bytes", "time", "self", "backward", "memory", "flops", "ops")


class Pair(NamedTuple):
    """A place in one or both of two trees; -1 where one of them has none."""

    path: str
    left: int
    right: int
    change: str


def draw(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    other = source.other
    if other is None:
        canvas.heading("Comparison")
        canvas.missing(NEEDS)
        return
    path = source.forest.paths[row]
    canvas.heading(path or source.title, f"{source.title} against {other.title}")
    there = other.forest.row(path)
    if there is None:
        canvas.say(f"{other.title} has no {path}.", canvas.colours.warn)
    else:
        _figures(source, row, other, there, canvas)
    found = pairs(source, row, other, there)
    differing = [one for one in found if one.change != "same"]
    canvas.heading("Modules", f"{len(differing):,} of {len(found):,} differ")
    for one in differing[:MOST]:
        _line(one, source, other, canvas)
    if len(differing) > MOST:
        canvas.missing(f"… {len(differing) - MOST:,} more")


def pairs(source: Source, row: int, other: Source, there: int | None) -> list[Pair]:
    """Every path below a row, in either tree, in the order of the first."""
    mine, theirs = source.forest, other.forest
    right = {} if there is None else {theirs.paths[at]: at for at in range(there, int(theirs.end[there]))}
    found = []
    for at in range(row, int(mine.end[row])):
        match = right.pop(mine.paths[at], -1)
        found.append(Pair(mine.paths[at], at, match, _change(source, at, other, match)))
    found += [Pair(path, -1, at, "only right") for path, at in right.items()]
    return found


def _change(source: Source, left: int, other: Source, right: int) -> str:
    if right < 0:
        return "only left"
    if source.forest.types[left] != other.forest.types[right]:
        return "class"
    for name in ("params", "args", "shapes"):
        mine, theirs = source.forest.numbers.get(name), other.forest.numbers.get(name)
        if mine is not None and theirs is not None and mine[left] != theirs[right]:
            return "parameters" if name == "params" else name
        words, others = source.forest.texts.get(name), other.forest.texts.get(name)
        if words is not None and others is not None and words(left) != others(right):
            return "arguments" if name == "args" else name
    return "same"


def _figures(source: Source, row: int, other: Source, there: int, canvas: PanelCanvas) -> None:
    rows = []
    for name in FIGURES:
        if name not in source.forest.numbers or name not in other.forest.numbers:
            continue
        left, right = float(source.forest.numbers[name][row]), float(other.forest.numbers[name][there])
        rows.append(
            [COLUMNS[name].title, cell(name, left) or "–", cell(name, right) or "–", _ratio(left, right)]
        )
    canvas.table(["", cut(source.title, 18), cut(other.title, 18), "right/left"], rows, right="lrrr")


def _ratio(left: float, right: float) -> str:
    if math.isnan(left) or math.isnan(right) or not left:
        return ""
    return "=" if left == right else f"{right / left:.2f} ×"


def _line(one: Pair, source: Source, other: Source, canvas: PanelCanvas) -> None:
    colours = canvas.colours
    sign, style = {"only left": ("−", colours.bad), "only right": ("+", colours.good)}.get(
        one.change, ("≠", colours.warn)
    )
    half = max(10, (canvas.width - 4) // 2)
    left = _words(source, one.left) if one.left >= 0 else ""
    right = _words(other, one.right) if one.right >= 0 else ""
    path = cut(one.path or "(the model)", canvas.width - 16).ljust(max(0, canvas.width - 14))
    canvas.put((f"{sign} ", style), (path, colours.name), (one.change, style))
    left = cut(left, half - 1).ljust(half)
    canvas.put(("  ", colours.dim), (left, colours.dim), (cut(right, half - 1), colours.number))


def _words(source: Source, row: int) -> str:
    forest = source.forest
    parts = [forest.types[row]]
    if "args" in forest.texts:
        parts.append(f"({forest.texts['args'](row)})")
    if "params" in forest.numbers:
        parts.append(f" {cell('params', float(forest.numbers['params'][row]))}")
    return "".join(parts)
