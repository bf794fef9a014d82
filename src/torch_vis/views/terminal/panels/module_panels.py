"""Panels on what a module is: its details, its program text, and a second model beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.style import Style
from rich.syntax import Syntax
from rich.text import Span, Text

from torch_vis.graph.text import many, size
from torch_vis.views.terminal.columns import COLUMNS, cell
from torch_vis.views.terminal.forest import RECOMPUTED
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas, cut, short, sizes
from torch_vis.views.terminal.source import Source, TensorRow


def draw_details(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    found = source.details(row)
    canvas.heading(source.forest.types[row], found.arguments)
    canvas.facts([*found.facts, *_again(source, row)])
    if found.doc:
        canvas.say(" ".join(found.doc.split()), canvas.colours.dim)
    tensors = source.figures(row)
    if tensors:
        canvas.heading("Tensors", "its own; i shows how their elements are spread")
        _tensors(tensors, canvas)
    if canvas.histograms:
        _histograms(source, row, canvas)
    if found.hyperparameters:
        canvas.heading("Hyperparameters")
        canvas.facts(found.hyperparameters)
    if len(found.inheritance) > 1:
        canvas.heading("Inheritance")
        for depth, name in enumerate(found.inheritance):
            line = "  " * (depth - 1) + "└ " * bool(depth) + name
            canvas.lines.append(Text(line, style=canvas.colours.dim if depth else canvas.colours.name))
    _advice(source, row, canvas)


def _again(source: Source, row: int) -> list[tuple[str, str]]:
    """What backward computed again of it."""
    numbers = source.forest.numbers
    operations = numbers["recomputed_ops"][row] if "recomputed_ops" in numbers else 0.0
    if not operations > 0:
        return []
    time = f", {cell('recomputed', numbers['recomputed'][row])}" if "recomputed" in numbers else ""
    return [(RECOMPUTED, f"{many(int(operations), 'operation')} run again during backward{time}")]


def _tensors(tensors: Sequence[TensorRow], canvas: PanelCanvas) -> None:
    """What they are, and below that what is in them: side by side there would be no room for either."""
    rows = []
    for one in tensors:
        nbytes = "" if one.nbytes is None else size(one.nbytes)
        rows.append([one.name, sizes(one.shape), one.dtype, one.device, nbytes, _note(one)])
    colours = canvas.colours
    heads = ["name", "shape", "dtype", "device", "size", ""]
    canvas.table(heads, rows, right="llllrl", styles=[colours.name, colours.type])
    inside = [[one.name, *_figures(one)] for one in tensors if one.figures is not None]
    if inside:
        canvas.blank()
        canvas.table(["contents", "min", "max", "mean", "std"], inside, right="lrrrr", styles=[colours.name])


def _figures(one: TensorRow) -> list[str]:
    found = one.figures
    assert found is not None
    return [short(found.min), short(found.max), short(found.mean), short(found.std)]


def _note(one: TensorRow) -> str:
    words = [one.role if one.role == "buffer" else "", one.note]
    if one.figures is not None:
        for number, word in ((one.figures.nans, "NaN"), (one.figures.infs, "inf")):
            if number:
                words.append(f"{number:,} {word}")
        if one.figures.numel and one.figures.zeros * 10 > one.figures.numel:
            words.append(f"{one.figures.zeros / one.figures.numel:.0%} zero")
    return ", ".join(filter(None, words))


def _histograms(source: Source, row: int, canvas: PanelCanvas) -> None:
    found = source.histograms(row)
    for bars in found or ():
        canvas.heading(bars.name, f"{short(bars.low)} … {short(bars.high)}, {sum(bars.counts):,} elements")
        counts, low, high = bars.counts, bars.low, bars.high
        together = max(1, len(counts) // 20)
        steps = [sum(counts[at : at + together]) for at in range(0, len(counts), together)]
        top = max(steps) or 1
        for at, number in enumerate(steps):
            left = low + (high - low) * at / len(steps)
            canvas.bar(short(left), number / top, f"{number:,}", label_width=9)
    if not found:
        canvas.missing("there are no elements to look at")


def _advice(source: Source, row: int, canvas: PanelCanvas) -> None:
    found = source.advice(row)
    if found:
        canvas.heading("Could be smaller", "estimates from its weights")
        canvas.facts([(one.kind, one.text) for one in found])


def draw_source_code(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    found = source.source_code(row)
    if found is None:
        canvas.missing(
            "There is no program text for this: it was made at run time, is compiled, or its file is not here."
        )
        return
    canvas.heading(
        found.title or source.forest.types[row], f"{_tail(found.file)}:{(found.marks or (found.first,))[0]}"
    )
    theme = "monokai" if canvas.dark else "friendly"
    code = Syntax(found.text, found.language, theme=theme, background_color="default")
    lines = code.highlight(found.text.rstrip("\n")).split("\n", allow_blank=True)
    wide = len(str(found.first + len(lines)))
    for number, line in enumerate(lines, found.first):
        marked = number in found.marks
        if marked and canvas.goal is None:
            canvas.goal = len(canvas.lines)
        place = canvas.colours.sorted if marked else canvas.colours.faint
        edge = Text.assemble((f"{number:>{wide}} ", place), ("▌" if marked else " ", canvas.colours.sorted))
        canvas.lines.append(edge + _groundless(line))


def _groundless(line: Text) -> Text:
    """A coloured line without the ground that its colours were made for: the panel has its own."""
    spans = []
    for start, end, style in line.spans:
        tint = style if isinstance(style, Style) else Style.parse(style)
        spans.append(Span(start, end, Style(color=tint.color, bold=tint.bold, italic=tint.italic)))
    return Text(line.plain, spans=spans)


def _tail(file: str) -> str:
    """A file by its path in its package, or by its last parts."""
    _, found, inside = file.replace("\\", "/").rpartition("/site-packages/")
    return inside if found else "/".join(file.replace("\\", "/").split("/")[-3:])


MOST_PAIRS = 300
NEEDS_OTHER = (
    "There is no second model. Open two: tv.explore_model(model, against=other), "
    "or torch-vis explore A --against B"
)
COMPARED = ("params", "bytes", "time", "self", "backward", "memory", "flops", "ops")


class RowPair(NamedTuple):
    """A place in one or both of two trees; -1 where one of them has none."""

    path: str
    left: int
    right: int
    change: str


def draw_comparison(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    other = source.other
    if other is None:
        canvas.heading("Comparison")
        canvas.missing(NEEDS_OTHER)
        return
    path = source.forest.paths[row]
    canvas.heading(path or source.title, f"{source.title} against {other.title}")
    there = other.forest.row(path)
    if there is None:
        canvas.say(f"{other.title} has no {path}.", canvas.colours.warn)
    else:
        _compared_figures(source, row, other, there, canvas)
    found = pairs(source, row, other, there)
    differing = [one for one in found if one.change != "same"]
    canvas.heading("Modules", f"{len(differing):,} of {len(found):,} differ")
    for one in differing[:MOST_PAIRS]:
        _pair_lines(one, source, other, canvas)
    if len(differing) > MOST_PAIRS:
        canvas.missing(f"… {len(differing) - MOST_PAIRS:,} more")


def pairs(source: Source, row: int, other: Source, there: int | None) -> list[RowPair]:
    """Every path below a row, in either tree, in the order of the first."""
    mine, theirs = source.forest, other.forest
    right = {} if there is None else {theirs.paths[at]: at for at in range(there, int(theirs.end[there]))}
    found = []
    for at in range(row, int(mine.end[row])):
        match = right.pop(mine.paths[at], -1)
        found.append(RowPair(mine.paths[at], at, match, _change(source, at, other, match)))
    found += [RowPair(path, -1, at, "only right") for path, at in right.items()]
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


def _compared_figures(source: Source, row: int, other: Source, there: int, canvas: PanelCanvas) -> None:
    rows = []
    for name in COMPARED:
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


def _pair_lines(one: RowPair, source: Source, other: Source, canvas: PanelCanvas) -> None:
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
