"""What a module is: class and ancestors, arguments, hyperparameters, parameters and buffers with their figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from torch_vis.graph.text import many, size
from torch_vis.views.terminal.columns import cell
from torch_vis.views.terminal.forest import RECOMPUTED
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas, short, sizes
from torch_vis.views.terminal.source import Source, TensorRow


def draw(source: Source, row: int, canvas: PanelCanvas, *, histograms: bool = False) -> None:
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
    if histograms:
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
