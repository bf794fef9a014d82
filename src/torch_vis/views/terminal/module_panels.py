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
from torch_vis.views.terminal.panel_canvas import PanelCanvas, cut, short
from torch_vis.views.terminal.source import Source, TensorRow, sizes


def draw_details(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    details = source.details(row)
    canvas.heading(source.forest.types[row], details.arguments)
    canvas.facts([*details.facts, *_again(source, row)])
    if details.doc:
        canvas.say(" ".join(details.doc.split()), canvas.colours.dim)
    tensors = source.figures(row)
    if tensors:
        canvas.heading("Tensors", "its own; i shows how their elements are spread")
        _tensors(tensors, canvas)
    if canvas.histograms:
        _histograms(source, row, canvas)
    if details.hyperparameters:
        canvas.heading("Hyperparameters")
        canvas.facts(details.hyperparameters)
    if len(details.inheritance) > 1:
        canvas.heading("Inheritance")
        for depth, name in enumerate(details.inheritance):
            line = "  " * (depth - 1) + "└ " * bool(depth) + name
            canvas.lines.append(Text(line, style=canvas.colours.dim if depth else canvas.colours.name))
    _advice(source, row, canvas)


def _again(source: Source, row: int) -> list[tuple[str, str]]:
    """What backward recomputed of it."""
    numbers = source.forest.numbers
    operations = numbers["recomputed_ops"][row] if "recomputed_ops" in numbers else 0.0
    if not operations > 0:
        return []
    time = f", {cell('recomputed', numbers['recomputed'][row])}" if "recomputed" in numbers else ""
    return [(RECOMPUTED, f"{many(int(operations), 'operation')} run again during backward{time}")]


def _tensors(tensors: Sequence[TensorRow], canvas: PanelCanvas) -> None:
    """Tensors with their types, and below each its contents: side by side there would be no room."""
    rows = []
    for tensor in tensors:
        nbytes = "" if tensor.nbytes is None else size(tensor.nbytes)
        rows.append([tensor.name, sizes(tensor.shape), tensor.dtype, tensor.device, nbytes, _note(tensor)])
    colours = canvas.colours
    heads = ["name", "shape", "dtype", "device", "size", ""]
    canvas.table(heads, rows, right="llllrl", styles=[colours.name, colours.type])
    inside = [[tensor.name, *_figures(tensor)] for tensor in tensors if tensor.figures is not None]
    if inside:
        canvas.blank()
        canvas.table(["contents", "min", "max", "mean", "std"], inside, right="lrrrr", styles=[colours.name])


def _figures(tensor: TensorRow) -> list[str]:
    figures = tensor.figures
    assert figures is not None
    return [short(figures.min), short(figures.max), short(figures.mean), short(figures.std)]


def _note(tensor: TensorRow) -> str:
    words = [tensor.role if tensor.role == "buffer" else "", tensor.note]
    if tensor.figures is not None:
        for number, word in ((tensor.figures.nans, "NaN"), (tensor.figures.infs, "inf")):
            if number:
                words.append(f"{number:,} {word}")
        if tensor.figures.numel and tensor.figures.zeros * 10 > tensor.figures.numel:
            words.append(f"{tensor.figures.zeros / tensor.figures.numel:.0%} zero")
    return ", ".join(filter(None, words))


def _histograms(source: Source, row: int, canvas: PanelCanvas) -> None:
    spread = source.histograms(row)
    for bars in spread or ():
        canvas.heading(bars.name, f"{short(bars.low)} … {short(bars.high)}, {sum(bars.counts):,} elements")
        counts, low, high = bars.counts, bars.low, bars.high
        together = max(1, len(counts) // 20)
        steps = [sum(counts[at : at + together]) for at in range(0, len(counts), together)]
        top = max(steps) or 1
        for at, number in enumerate(steps):
            left = low + (high - low) * at / len(steps)
            canvas.bar(short(left), number / top, f"{number:,}", label_width=9)
    if not spread:
        canvas.missing("there are no elements to look at")


def _advice(source: Source, row: int, canvas: PanelCanvas) -> None:
    advice = source.advice(row)
    if advice:
        canvas.heading("Could be smaller", "estimates from its weights")
        canvas.facts([(suggestion.kind, suggestion.text) for suggestion in advice])


def draw_source_code(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    program = source.source_code(row)
    if program is None:
        canvas.missing(
            "There is no program text for this: it was made at run time, is compiled, or its file is not here."
        )
        return
    canvas.heading(
        program.title or source.forest.types[row],
        f"{_tail(program.file)}:{(program.marks or (program.first,))[0]}",
    )
    theme = "monokai" if canvas.dark else "friendly"
    code = Syntax(program.text, program.language, theme=theme, background_color="default")
    lines = code.highlight(program.text.rstrip("\n")).split("\n", allow_blank=True)
    wide = len(str(program.first + len(lines)))
    for number, line in enumerate(lines, program.first):
        marked = number in program.marks
        if marked and canvas.goal is None:
            canvas.goal = len(canvas.lines)
        style = canvas.colours.sorted if marked else canvas.colours.faint
        edge = Text.assemble((f"{number:>{wide}} ", style), ("▌" if marked else " ", canvas.colours.sorted))
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
    _, separator, inside = file.replace("\\", "/").rpartition("/site-packages/")
    return inside if separator else "/".join(file.replace("\\", "/").split("/")[-3:])


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
    other_row = other.forest.row(path)
    if other_row is None:
        canvas.say(f"{other.title} has no {path}.", canvas.colours.warn)
    else:
        _compared_figures(source, row, other, other_row, canvas)
    all_pairs = pairs(source, row, other, other_row)
    differing = [pair for pair in all_pairs if pair.change != "same"]
    canvas.heading("Modules", f"{len(differing):,} of {len(all_pairs):,} differ")
    for pair in differing[:MOST_PAIRS]:
        _pair_lines(pair, source, other, canvas)
    if len(differing) > MOST_PAIRS:
        canvas.missing(f"… {len(differing) - MOST_PAIRS:,} more")


def pairs(source: Source, row: int, other: Source, other_row: int | None) -> list[RowPair]:
    """Every path below a row, in either tree, in the order of the first."""
    mine, theirs = source.forest, other.forest
    right = (
        {}
        if other_row is None
        else {theirs.paths[at]: at for at in range(other_row, int(theirs.end[other_row]))}
    )
    all_pairs = []
    for at in range(row, int(mine.end[row])):
        match = right.pop(mine.paths[at], -1)
        all_pairs.append(RowPair(mine.paths[at], at, match, _change(source, at, other, match)))
    all_pairs += [RowPair(path, -1, at, "only right") for path, at in right.items()]
    return all_pairs


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


def _compared_figures(source: Source, row: int, other: Source, other_row: int, canvas: PanelCanvas) -> None:
    rows = []
    for name in COMPARED:
        if name not in source.forest.numbers or name not in other.forest.numbers:
            continue
        left, right = float(source.forest.numbers[name][row]), float(other.forest.numbers[name][other_row])
        rows.append(
            [COLUMNS[name].title, cell(name, left) or "–", cell(name, right) or "–", _ratio(left, right)]
        )
    canvas.table(["", cut(source.title, 18), cut(other.title, 18), "right/left"], rows, right="lrrr")


def _ratio(left: float, right: float) -> str:
    if math.isnan(left) or math.isnan(right) or not left:
        return ""
    return "=" if left == right else f"{right / left:.2f} ×"


def _pair_lines(pair: RowPair, source: Source, other: Source, canvas: PanelCanvas) -> None:
    colours = canvas.colours
    sign, style = {"only left": ("−", colours.bad), "only right": ("+", colours.good)}.get(
        pair.change, ("≠", colours.warn)
    )
    half = max(10, (canvas.width - 4) // 2)
    left = _words(source, pair.left) if pair.left >= 0 else ""
    right = _words(other, pair.right) if pair.right >= 0 else ""
    path = cut(pair.path or "(the model)", canvas.width - 16).ljust(max(0, canvas.width - 14))
    canvas.put((f"{sign} ", style), (path, colours.name), (pair.change, style))
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
