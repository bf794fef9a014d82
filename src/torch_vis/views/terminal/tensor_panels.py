"""Panels on tensors: the memory that they take, the gradients, and a module's outputs as pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from torch_vis.errors import TorchVisError
from torch_vis.graph import Graph
from torch_vis.graph.lifetimes import MemoryByUse
from torch_vis.graph.text import many, size
from torch_vis.graph.types import Floats
from torch_vis.views.figure.palette import mixed
from torch_vis.views.terminal.panel_canvas import PanelCanvas, chart, cut, short, squeeze
from torch_vis.views.terminal.source import Gradient, Source

HEIGHT = 10
MOST_BLOCKS = 12
ROOMY = 72  # cells from which on there is room for the types of tensors
NEEDS_MEMORY = "Memory along the run is known of a trace: tv.trace(model, x, backward=True).explore()"


def draw_memory(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    canvas.heading(source.forest.paths[row] or source.title, "live bytes, operation by operation")
    graph, metrics = source.graph, source.metrics
    memory = None if source.lifetimes is None else source.lifetimes.by_use
    if graph is None or metrics is None or memory is None or not len(graph):
        canvas.missing(NEEDS_MEMORY)
        return
    live, nodes = memory.live, source.nodes(row)
    _curve(live.astype(np.float64), nodes, canvas)
    peak = int(live.argmax())
    facts = [("peak of the run", _where(graph, live, peak))]
    if len(nodes):
        facts.append(("highest in it", _where(graph, live, int(nodes[int(live[nodes].argmax())]))))
        facts.append(("it allocated", size(int(metrics["alloc_bytes"].values[nodes].sum()))))
    canvas.blank()
    canvas.facts(facts)
    canvas.heading("At the peak", "by use")
    amounts = sorted(zip(memory.during[:, peak].tolist(), memory.words), reverse=True)
    canvas.table(["size", "use"], [[size(amount), word] for amount, word in amounts if amount], right="r")
    _alive_at(graph, memory, peak, canvas)


def _where(graph: Graph, live: Any, number: int) -> str:
    """How much is alive at an operation, and which that is."""
    node = graph.nodes[number]
    return f"{size(int(live[number]))} at operation {number:,}, {node.name} in {node.path or 'the run'}"


def _curve(live: Any, nodes: Any, canvas: PanelCanvas) -> None:
    """The curve, with the operations of the module in another colour."""
    width = min(canvas.width - 10, len(live)) if len(live) < canvas.width - 10 else canvas.width - 10
    width = max(8, width)
    mine = np.zeros(len(live))
    mine[nodes] = 1
    lit = squeeze(mine, width) > 0
    top = float(live.max())
    for number, line in enumerate(chart(live, width, HEIGHT)):
        label = size(int(top)) if number == 0 else "0 B" if number == HEIGHT - 1 else ""
        text = Text.assemble((f"{label:>8} ", canvas.colours.dim))
        for letter, on in zip(line, lit):
            text.append(letter, style=canvas.colours.warn if on else canvas.colours.type)
        canvas.lines.append(text)
    edge = Text(" " * 9)
    edge.append(
        f"0{' ' * max(1, min(width, len(lit)) - 1 - len(str(len(live))))}{len(live)}",
        style=canvas.colours.dim,
    )
    canvas.lines.append(edge)


def _alive_at(graph: Graph, memory: MemoryByUse, node: int, canvas: PanelCanvas) -> None:
    """The largest blocks that were alive when most was."""
    heads, rows = ["size", "use", "name, or made by", "type"], []
    for block in memory.alive(node)[:MOST_BLOCKS].tolist():
        number, birth = int(memory.value[block]), int(memory.birth[block])
        value = graph.values[number] if number >= 0 else None
        producer = graph.nodes[birth] if birth >= 0 else None
        producer_text = "" if producer is None else f"{producer.name} in {producer.path or 'the run'}"
        name, what = ("", "") if value is None else (value.name, str(value.type))
        rows.append(
            [
                size(int(memory.size_bytes[block])),
                memory.words[memory.use[block]],
                name or producer_text,
                what,
            ]
        )
    # what it is for, and whose, comes before its shape
    if canvas.width < ROOMY:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    canvas.heading("Alive at the peak", "the largest")
    canvas.table(heads, rows, right="r")


MOST_GRADIENTS = 400
LOW, HIGH = 1e-7, 1e3


def draw_gradients(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    gradients = source.gradients()
    canvas.heading(source.forest.paths[row] or source.title, "norms of the gradients, on a logarithmic scale")
    if gradients is None:
        canvas.missing(source.no_gradients)
        return
    stop = int(source.forest.end[row])
    inside = [gradient for gradient in gradients if row <= gradient.row < stop]
    if not inside:
        canvas.missing("It has no parameters of its own, and none inside.")
        return
    _summary(inside, canvas)
    known = [gradient.norm for gradient in inside if gradient.norm]
    low, high = (math.log10(min(known)), math.log10(max(known))) if known else (0.0, 0.0)
    wide = min(40, max(len(gradient.name) for gradient in inside[:MOST_GRADIENTS]))
    for gradient in inside[:MOST_GRADIENTS]:
        if gradient.norm is None:
            canvas.bar(gradient.name, 0, "none", label_width=wide)
            continue
        share = 0.0 if not gradient.norm else (math.log10(gradient.norm) - low + 0.5) / (high - low + 0.5)
        canvas.bar(
            gradient.name, share, short(gradient.norm), label_width=wide, style=_style(gradient, canvas)
        )
    if len(inside) > MOST_GRADIENTS:
        canvas.missing(
            f"… {len(inside) - MOST_GRADIENTS:,} more parameters; go to a module inside to see them"
        )


def _summary(gradients: list[Gradient], canvas: PanelCanvas) -> None:
    known = [
        gradient.norm for gradient in gradients if gradient.norm is not None and math.isfinite(gradient.norm)
    ]
    whole = math.sqrt(sum(norm * norm for norm in known))
    facts = [("norm of all", short(whole)), ("parameters", many(len(gradients), "tensor"))]
    for label, number in (
        ("without gradient", sum(gradient.norm is None for gradient in gradients)),
        ("zero", sum(gradient.norm == 0 for gradient in gradients)),
        (
            "not finite",
            sum(gradient.norm is not None and not math.isfinite(gradient.norm) for gradient in gradients),
        ),
        (
            f"below {LOW:g}",
            sum(gradient.norm is not None and 0 < gradient.norm < LOW for gradient in gradients),
        ),
        (
            f"above {HIGH:g}",
            sum(gradient.norm is not None and gradient.norm > HIGH for gradient in gradients),
        ),
    ):
        if number:
            facts.append((label, many(number, "tensor")))
    canvas.facts(facts)
    canvas.blank()


def _style(gradient: Gradient, canvas: PanelCanvas) -> Style:
    norm = gradient.norm
    if norm is None or not math.isfinite(norm) or norm > HIGH:
        return canvas.colours.bad
    return canvas.colours.warn if norm < LOW else canvas.colours.good


RAMP = ("#0b0b2a", "#3b1f7a", "#8f2a7f", "#d8576b", "#f9a242", "#fcf6a5")
PICTURES = 3


def draw_activations(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    canvas.heading(source.forest.paths[row] or source.title, source.forest.types[row])
    try:
        pictures = source.pictures(row)
    except TorchVisError as error:  # the run cannot be repeated any more, and says why
        canvas.missing(str(error))
        return
    if not pictures:
        canvas.missing(
            source.no_pictures if pictures is None else "Nothing came out of it that could be drawn."
        )
        return
    for picture in pictures[:PICTURES]:
        low = min(float(image.min()) for image in picture.images)
        high = max(float(image.max()) for image in picture.images)
        canvas.heading(picture.title, f"{low:.3g} (dark) … {high:.3g} (bright)")
        _gallery([_scaled(image, low, high) for image in picture.images], canvas)


def _gallery(images: list[Floats], canvas: PanelCanvas) -> None:
    """The images with their channels' numbers, at least two side by side where there are several."""
    most = canvas.width if len(images) == 1 else max(8, (canvas.width - 1) // 2)
    images = [narrowed(image, most) for image in images]
    wide = max(image.shape[1] for image in images)
    in_row = max(1, (canvas.width + 1) // (wide + 1))
    for first in range(0, len(images), in_row):
        row = images[first : first + in_row]
        if len(images) > 1:
            labels = (cut(f"ch {first + at}", wide).ljust(wide) for at in range(len(row)))
            canvas.put((" ".join(labels), canvas.colours.dim))
        for lines in zip(*(half_blocks(image) for image in row)):
            canvas.lines.append(Text(" ").join(lines))
        canvas.lines.append(Text())


def narrowed(image: Floats, width: int) -> Floats:
    """An image no wider than ``width``, each pixel the mean of those it stands for.

    >>> narrowed(np.array([[0.0, 1.0, 0.0, 1.0]] * 4), 2).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    height, wide = image.shape
    if wide <= width:
        return image
    columns = np.linspace(0, wide, width + 1).astype(int)[:-1]
    rows = np.linspace(0, height, max(1, round(height * width / wide)) + 1).astype(int)[:-1]
    sums = np.add.reduceat(np.add.reduceat(image, rows, axis=0), columns, axis=1)
    counts = np.outer(np.diff(np.append(rows, height)), np.diff(np.append(columns, wide)))
    means: Floats = sums / counts
    return means


def half_blocks(image: Floats) -> list[Text]:
    """An image with values from 0 to 1 as lines of half blocks, each pixel its own colour.

    >>> [line.plain for line in half_blocks(np.zeros((3, 2)))]
    ['▀▀', '▀▀']
    """
    lines = []
    for top in range(0, len(image), 2):
        line = Text()
        below = image[top + 1] if top + 1 < len(image) else None
        for column, value in enumerate(image[top]):
            under = None if below is None else colour(float(below[column]))
            line.append("▀", style=Style(color=colour(float(value)), bgcolor=under))
        lines.append(line)
    return lines


def colour(value: float) -> str:
    """A colour for a value from 0 (dark) to 1 (bright)."""
    position = min(max(value, 0.0), 1.0) * (len(RAMP) - 1)
    lower = min(int(position), len(RAMP) - 2)
    return mixed(RAMP[lower : lower + 2], round((position - lower) * 8) / 8)


def _scaled(image: NDArray[np.float32], low: float, high: float) -> Floats:
    return (image.astype(np.float64) - low) / (high - low or 1.0)
