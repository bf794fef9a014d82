"""What a module is: class and ancestors, arguments, hyperparameters, parameters and buffers with their figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from torch_vis.graph.text import many, size
from torch_vis.views.terminal.columns import cell
from torch_vis.views.terminal.forest import RECOMPUTED
from torch_vis.views.terminal.panels.panel_canvas import Sheet, short, sizes
from torch_vis.views.terminal.source import Subject, TensorRow


def draw(subject: Subject, row: int, sheet: Sheet, *, histograms: bool = False) -> None:
    """Fill the panel."""
    found = subject.details(row)
    sheet.heading(subject.forest.types[row], found.arguments)
    sheet.facts([*found.facts, *_again(subject, row)])
    if found.doc:
        sheet.say(" ".join(found.doc.split()), sheet.colours.dim)
    tensors = subject.figures(row)
    if tensors:
        sheet.heading("Tensors", "its own; i shows how their elements are spread")
        _tensors(tensors, sheet)
    if histograms:
        _histograms(subject, row, sheet)
    if found.hyperparameters:
        sheet.heading("Hyperparameters")
        sheet.facts(found.hyperparameters)
    if len(found.inheritance) > 1:
        sheet.heading("Inheritance")
        for depth, name in enumerate(found.inheritance):
            line = "  " * (depth - 1) + "└ " * bool(depth) + name
            sheet.lines.append(Text(line, style=sheet.colours.dim if depth else sheet.colours.name))
    _advice(subject, row, sheet)


def _again(subject: Subject, row: int) -> list[tuple[str, str]]:
    """What backward computed again of it."""
    numbers = subject.forest.numbers
    operations = numbers["recomputed_ops"][row] if "recomputed_ops" in numbers else 0.0
    if not operations > 0:
        return []
    time = f", {cell('recomputed', numbers['recomputed'][row])}" if "recomputed" in numbers else ""
    return [(RECOMPUTED, f"{many(int(operations), 'operation')} run again during backward{time}")]


def _tensors(tensors: Sequence[TensorRow], sheet: Sheet) -> None:
    """What they are, and below that what is in them: side by side there would be no room for either."""
    rows = []
    for one in tensors:
        nbytes = "" if one.nbytes is None else size(one.nbytes)
        rows.append([one.name, sizes(one.shape), one.dtype, one.device, nbytes, _note(one)])
    colours = sheet.colours
    heads = ["name", "shape", "dtype", "device", "size", ""]
    sheet.table(heads, rows, right="llllrl", styles=[colours.name, colours.type])
    inside = [[one.name, *_figures(one)] for one in tensors if one.figures is not None]
    if inside:
        sheet.blank()
        sheet.table(["contents", "min", "max", "mean", "std"], inside, right="lrrrr", styles=[colours.name])


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


def _histograms(subject: Subject, row: int, sheet: Sheet) -> None:
    found = subject.histograms(row)
    for bars in found or ():
        sheet.heading(bars.name, f"{short(bars.low)} … {short(bars.high)}, {sum(bars.counts):,} elements")
        counts, low, high = bars.counts, bars.low, bars.high
        together = max(1, len(counts) // 20)
        steps = [sum(counts[at : at + together]) for at in range(0, len(counts), together)]
        top = max(steps) or 1
        for at, number in enumerate(steps):
            left = low + (high - low) * at / len(steps)
            sheet.bar(short(left), number / top, f"{number:,}", label_width=9)
    if not found:
        sheet.missing("there are no elements to look at")


def _advice(subject: Subject, row: int, sheet: Sheet) -> None:
    found = subject.advice(row)
    if found:
        sheet.heading("Could be smaller", "estimates from its weights")
        sheet.facts([(one.kind, one.text) for one in found])
