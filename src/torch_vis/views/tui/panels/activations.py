"""What came out of a module, as pictures: two pixels to a character, the upper and the lower half of a block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from torch_vis.views.tui.palette import blend
from torch_vis.views.tui.panels.sheet import Sheet
from torch_vis.views.tui.subject import Subject

NEEDS = (
    "No activations were kept. Record a run with pictures and open the explorer again: "
    "with tv.record_torch_module_forward_stats(model, maps=True): model(x)"
)
RAMP = ("#0b0b2a", "#3b1f7a", "#8f2a7f", "#d8576b", "#f9a242", "#fcf6a5")
PICTURES = 3


def draw(subject: Subject, row: int, sheet: Sheet) -> None:
    """Fill the panel."""
    found = subject.pictures(row)
    sheet.heading(subject.forest.paths[row] or subject.title, subject.forest.types[row])
    if not found:
        sheet.missing(NEEDS if found is None else "Nothing came out of it that could be drawn.")
        return
    for picture in found[:PICTURES]:
        low = min(float(image.min()) for image in picture.images)
        high = max(float(image.max()) for image in picture.images)
        sheet.heading(picture.title, f"{low:.3g} (dark) … {high:.3g} (bright)")
        _gallery([_scaled(image, low, high) for image in picture.images], sheet)


def _gallery(images: list[NDArray[np.float64]], sheet: Sheet) -> None:
    """The images side by side, as many as fit, then below each other."""
    wide = max(image.shape[1] for image in images)
    in_row = max(1, (sheet.width + 1) // (min(wide, sheet.width) + 1))
    for first in range(0, len(images), in_row):
        drawn = [half_blocks(image[:, : sheet.width]) for image in images[first : first + in_row]]
        for lines in zip(*drawn):
            sheet.lines.append(Text(" ").join(lines))
        sheet.lines.append(Text())


def half_blocks(image: NDArray[np.float64]) -> list[Text]:
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


def _scaled(image: NDArray[np.float32], low: float, high: float) -> NDArray[np.float64]:
    return (image.astype(np.float64) - low) / (high - low or 1.0)
