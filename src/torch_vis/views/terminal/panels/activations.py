"""What came out of a module, as pictures: two pixels to a character, the upper and the lower half of a block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from torch_vis.errors import TorchVisError
from torch_vis.graph.types import Floats
from torch_vis.views.terminal.palette import blend
from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas, cut
from torch_vis.views.terminal.source import Source

RAMP = ("#0b0b2a", "#3b1f7a", "#8f2a7f", "#d8576b", "#f9a242", "#fcf6a5")
PICTURES = 3


def draw(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    canvas.heading(source.forest.paths[row] or source.title, source.forest.types[row])
    try:
        found = source.pictures(row)
    except TorchVisError as error:  # the run cannot be repeated any more, and says why
        canvas.missing(str(error))
        return
    if not found:
        canvas.missing(source.no_pictures if found is None else "Nothing came out of it that could be drawn.")
        return
    for picture in found[:PICTURES]:
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
    found: Floats = sums / counts
    return found


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
    place = min(max(value, 0.0), 1.0) * (len(RAMP) - 1)
    at = min(int(place), len(RAMP) - 2)
    return blend(RAMP[at], RAMP[at + 1], round((place - at) * 8) / 8)


def _scaled(image: NDArray[np.float32], low: float, high: float) -> Floats:
    return (image.astype(np.float64) - low) / (high - low or 1.0)
