"""How large the gradients are along the model: where they vanish, where they explode, where there are none."""

from __future__ import annotations

import math

from rich.style import Style

from torch_vis.views.terminal.panels.panel_canvas import Sheet, short
from torch_vis.views.terminal.source import Gradient, Subject

MOST = 400
LOW, HIGH = 1e-7, 1e3


def draw(subject: Subject, row: int, sheet: Sheet) -> None:
    """Fill the panel."""
    found = subject.gradients()
    sheet.heading(
        subject.forest.paths[row] or subject.title, "norms of the gradients, on a logarithmic scale"
    )
    if found is None:
        sheet.missing(subject.no_gradients)
        return
    stop = int(subject.forest.end[row])
    here = [one for one in found if row <= one.row < stop]
    if not here:
        sheet.missing("It has no parameters of its own, and none inside.")
        return
    _summary(here, sheet)
    known = [one.norm for one in here if one.norm]
    low, high = (math.log10(min(known)), math.log10(max(known))) if known else (0.0, 0.0)
    wide = min(40, max(len(one.name) for one in here[:MOST]))
    for one in here[:MOST]:
        if one.norm is None:
            sheet.bar(one.name, 0, "none", label_width=wide)
            continue
        share = 0.0 if not one.norm else (math.log10(one.norm) - low + 0.5) / (high - low + 0.5)
        sheet.bar(one.name, share, short(one.norm), label_width=wide, style=_style(one, sheet))
    if len(here) > MOST:
        sheet.missing(f"… {len(here) - MOST:,} more parameters; go to a module inside to see them")


def _summary(here: list[Gradient], sheet: Sheet) -> None:
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
    sheet.facts(facts)
    sheet.blank()


def _style(one: Gradient, sheet: Sheet) -> Style:
    norm = one.norm
    if norm is None or not math.isfinite(norm) or norm > HIGH:
        return sheet.colours.bad
    return sheet.colours.warn if norm < LOW else sheet.colours.good


def _tensors(number: int) -> str:
    return f"{number:,} tensor{'' if number == 1 else 's'}"
