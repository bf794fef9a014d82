"""How large the gradients are along the model: where they vanish, where they explode, where there are none."""

from __future__ import annotations

import math

from rich.style import Style

from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas, short
from torch_vis.views.terminal.source import Gradient, Source

MOST = 400
LOW, HIGH = 1e-7, 1e3


def draw(source: Source, row: int, canvas: PanelCanvas) -> None:
    """Fill the panel."""
    found = source.gradients()
    canvas.heading(source.forest.paths[row] or source.title, "norms of the gradients, on a logarithmic scale")
    if found is None:
        canvas.missing(source.no_gradients)
        return
    stop = int(source.forest.end[row])
    here = [one for one in found if row <= one.row < stop]
    if not here:
        canvas.missing("It has no parameters of its own, and none inside.")
        return
    _summary(here, canvas)
    known = [one.norm for one in here if one.norm]
    low, high = (math.log10(min(known)), math.log10(max(known))) if known else (0.0, 0.0)
    wide = min(40, max(len(one.name) for one in here[:MOST]))
    for one in here[:MOST]:
        if one.norm is None:
            canvas.bar(one.name, 0, "none", label_width=wide)
            continue
        share = 0.0 if not one.norm else (math.log10(one.norm) - low + 0.5) / (high - low + 0.5)
        canvas.bar(one.name, share, short(one.norm), label_width=wide, style=_style(one, canvas))
    if len(here) > MOST:
        canvas.missing(f"… {len(here) - MOST:,} more parameters; go to a module inside to see them")


def _summary(here: list[Gradient], canvas: PanelCanvas) -> None:
    known = [one.norm for one in here if one.norm is not None and math.isfinite(one.norm)]
    whole = math.sqrt(sum(norm * norm for norm in known))
    facts = [("norm of all", short(whole)), ("parameters", _tensors(len(here)))]
    for label, number in (
        ("without gradient", sum(one.norm is None for one in here)),
        ("zero", sum(one.norm == 0 for one in here)),
        ("not finite", sum(one.norm is not None and not math.isfinite(one.norm) for one in here)),
        (f"below {LOW:g}", sum(one.norm is not None and 0 < one.norm < LOW for one in here)),
        (f"above {HIGH:g}", sum(one.norm is not None and one.norm > HIGH for one in here)),
    ):
        if number:
            facts.append((label, _tensors(number)))
    canvas.facts(facts)
    canvas.blank()


def _style(one: Gradient, canvas: PanelCanvas) -> Style:
    norm = one.norm
    if norm is None or not math.isfinite(norm) or norm > HIGH:
        return canvas.colours.bad
    return canvas.colours.warn if norm < LOW else canvas.colours.good


def _tensors(number: int) -> str:
    return f"{number:,} tensor{'' if number == 1 else 's'}"
