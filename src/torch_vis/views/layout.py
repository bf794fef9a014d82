"""Rows of text and figures set in columns that fit a width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch_vis.views.outline import Sums
from torch_vis.views.units import duration, size


class Figure(NamedTuple):
    """One column of numbers."""

    title: str
    cell: Callable[[Sums], int | None]
    show: Callable[[int], str]
    backward: bool = False


# In the order in which they stand; NARROW is the order in which they go when there is no room.
FIGURES = {
    "ops": Figure("ops", lambda sums: sums.ops, "{:,}".format),
    "time": Figure("time", lambda sums: sums.time_ns, duration),
    "self": Figure("self", lambda sums: sums.self_ns, duration),
    "memory": Figure("allocated", lambda sums: sums.alloc_bytes, size),
    "backward ops": Figure("ops", lambda sums: sums.backward_ops, "{:,}".format, backward=True),
    "backward time": Figure("time", lambda sums: sums.backward_ns, duration, backward=True),
    "backward memory": Figure("allocated", lambda sums: sums.backward_bytes, size, backward=True),
}
NARROW = ("backward memory", "self", "memory", "backward ops", "calls", "backward time", "time")
LEAST = {"module": 26, "operation": 20, "class": 12, "output": 22}  # text columns are not cut below this
GAP = "  "


@dataclass
class Row:
    """One row of the table."""

    name: str
    figures: Sums
    type: str = ""
    output: str = ""
    calls: str = ""
    parameters: str = ""


def layout(rows: Sequence[Row], total: Sums, width: int) -> list[str]:
    """Header and rows, with columns left out and text cut short until they fit."""
    modules = any(row.type for row in rows)
    texts = {
        "module" if modules else "operation": [row.name for row in rows if row.type or not modules],
        "class": [row.type for row in rows],
        "output": [row.output for row in rows],
    }
    texts = {name: cells for name, cells in texts.items() if name in ("module", "operation") or any(cells)}
    numbers: dict[str, list[str]] = {}
    if any(row.calls not in ("", "1") for row in rows):
        numbers["calls"] = [row.calls for row in rows]
    if any(row.parameters for row in rows):
        numbers["params"] = [row.parameters for row in rows]
    for name, figure in FIGURES.items():
        cells = [_figure(figure, row.figures) for row in rows]
        if any(cells) and (total.backward_ops or not figure.backward):
            numbers[name] = cells
    wanted = {name: max(map(len, [name, *cells])) for name, cells in texts.items()}
    least = sum(min(wanted[name], LEAST[name]) for name in wanted) + len(GAP) * (len(wanted) - 1)
    for name in NARROW:
        if least + _wide(numbers) <= width:
            break
        numbers.pop(name, None)
    widths = _share(wanted, width - _wide(numbers) - len(GAP) * (len(wanted) - 1))
    return _header(numbers, widths) + _body(rows, numbers, widths)


def _header(numbers: Mapping[str, list[str]], widths: Mapping[str, int]) -> list[str]:
    header = GAP.join(name.ljust(wide) for name, wide in widths.items())
    backward = 0
    for name, cells in numbers.items():
        wide = _number_width(name, cells)
        header += GAP + _heading(name).rjust(wide)
        backward += wide + len(GAP) if name in FIGURES and FIGURES[name].backward else 0
    above = []
    if backward:
        bracket = " backward ".center(backward - len(GAP), "─")
        above = [" " * (len(header) - len(bracket)) + bracket]
    return [*above, header, "─" * len(header)]


def _body(rows: Sequence[Row], numbers: Mapping[str, list[str]], widths: Mapping[str, int]) -> list[str]:
    lines = []
    for place, row in enumerate(rows):
        right = (GAP + column[place].rjust(_number_width(name, column)) for name, column in numbers.items())
        lines.append(_text(row, widths) + "".join(right))
    return lines


def _text(row: Row, widths: Mapping[str, int]) -> str:
    """A row's left part; a cell runs on over the empty ones that follow it."""
    cells = dict.fromkeys(widths, "") | {next(iter(widths)): row.name}
    cells |= {name: cell for name, cell in (("class", row.type), ("output", row.output)) if name in widths}
    text = ""
    filled = end = 0
    for name, wide in widths.items():
        if cells[name]:
            text = text.ljust(end)
            filled = end
            content = cells[name]
        text = text[:filled] + _cut(content, end + wide - filled)
        end += wide + len(GAP)
    return text.ljust(end - len(GAP))


def _wide(numbers: Mapping[str, list[str]]) -> int:
    return sum(len(GAP) + _number_width(name, cells) for name, cells in numbers.items())


def _number_width(name: str, cells: list[str]) -> int:
    return max(map(len, [_heading(name), *cells]))


def _heading(name: str) -> str:
    return FIGURES[name].title if name in FIGURES else name


def _share(wanted: Mapping[str, int], room: int) -> dict[str, int]:
    """Widths for the text columns: what they want, less what is too much, taken where there is most to spare."""
    widths = dict(wanted)
    while (excess := sum(widths.values()) - room) > 0:
        spare = {name: widths[name] - min(LEAST[name], wanted[name]) for name in widths}
        name = max(spare, key=lambda column: spare[column])
        if spare[name] <= 0:
            break
        widths[name] -= min(excess, max(1, spare[name] // 2))
    return widths


def _figure(figure: Figure, sums: Sums) -> str:
    number = figure.cell(sums)
    return "" if number is None else figure.show(number) if number else "0"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
