"""Rows of text and figures set in columns that fit a width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch_vis.graph.module_table import Totals
from torch_vis.graph.text import count, duration, size


class Figure(NamedTuple):
    """One column of figures: its title, the name that it has in sums, and how a person reads a cell of it."""

    title: str
    name: str
    show: Callable[[int], str]
    backward: bool = False


# In the order in which they stand; NARROW is the order in which they go when there is no room.
FIGURES = {
    "ops": Figure("ops", "ops", "{:,}".format),
    "time": Figure("time", "time_ns", duration),
    "self": Figure("self", "self_ns", duration),
    "memory": Figure("allocated", "alloc_bytes", size),
    "flops": Figure("FLOPs", "flops", count),
    "moved": Figure("moved", "moved_bytes", size),
    "backward ops": Figure("ops", "backward_ops", "{:,}".format, backward=True),
    "backward time": Figure("time", "backward_ns", duration, backward=True),
    "backward memory": Figure("allocated", "backward_bytes", size, backward=True),
    "backward flops": Figure("FLOPs", "backward_flops", count, backward=True),
    "backward moved": Figure("moved", "backward_moved_bytes", size, backward=True),
}
NARROW = (
    "backward moved",
    "backward memory",
    "backward flops",
    "self",
    "memory",
    "backward ops",
    "moved",
    "flops",
    "backward time",
    "calls",
    "class",
    "time",
    "output",
)
LEAST = {"name": 26, "class": 12, "output": 22}  # text columns are not cut below this before figures go
GAP = "  "


@dataclass
class Row:
    """One row of the table: a module's has a number of calls, one of bare operations has none."""

    label: str
    figures: Totals
    stem: str = ""
    """The lines of the tree before the label."""
    depth: int = 0
    type: str = ""
    output: str = ""
    calls: str = ""
    parameters: str = ""

    @property
    def name(self) -> str:
        """The label with the lines of the tree before it."""
        return self.stem + self.label


def layout(rows: Sequence[Row], width: int) -> tuple[list[str], str]:
    """Header and rows, with columns left out and text cut short until they fit; and which columns are left out."""
    titles = {"name": "module" if any(row.calls for row in rows) else "operation"}
    titles |= {name: name for name in ("class", "output") if any(_cell(row, name) for row in rows)}
    numbers = number_columns(rows)
    every, needed = [*titles, *numbers], _least(rows, titles, numbers)
    for name in NARROW:
        if _least(rows, titles, numbers) <= width:
            break
        numbers.pop(name, None)
        titles.pop(name, None)
    left_out = [
        ("backward " if name.startswith("backward") else "") + _heading(name)
        for name in every
        if name not in titles and name not in numbers
    ]
    wanted = _wanted(rows, titles)
    room = width - _number_widths(numbers)
    widths = _share(wanted, room)
    longest = max((len(row.name) for row in rows if len(_spans(row, titles)) == 1), default=0)
    widths["name"] += max(0, min(room, longest) - _total(widths.values()))
    told = f"no room for {', '.join(left_out)}; t.table(width={needed}) has all columns" if left_out else ""
    return _header(titles, numbers, widths) + _body(rows, numbers, widths), told


def _least(rows: Sequence[Row], titles: Mapping[str, str], numbers: Mapping[str, list[str]]) -> int:
    """How wide the table is with texts as short as they may be."""
    wanted = _wanted(rows, titles)
    return _total(min(wide, LEAST[name]) for name, wide in wanted.items()) + _number_widths(numbers)


def _wanted(rows: Sequence[Row], titles: Mapping[str, str]) -> dict[str, int]:
    """How wide each text column would be if nothing had to be cut."""
    wanted = {name: len(title) for name, title in titles.items()}
    for row in rows:
        for text, names in _spans(row, titles):
            if len(names) == 1:
                wanted[names[0]] = max(wanted[names[0]], len(text))
    return wanted


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + len(GAP) * (len(found) - 1)


def number_columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The columns of figures that have something to say."""
    found: dict[str, list[str]] = {}
    if any(row.calls not in ("", "1") for row in rows):
        found["calls"] = [row.calls for row in rows]
    if any(row.parameters for row in rows):
        found["params"] = [row.parameters for row in rows]
    some_backward = any(row.figures.backward_ops for row in rows)
    for name, figure in FIGURES.items():
        cells = [_figure(figure, row.figures) for row in rows]
        if any(cells) and (some_backward or not figure.backward):
            found[name] = cells
    return found


def _header(
    titles: Mapping[str, str], numbers: Mapping[str, list[str]], widths: Mapping[str, int]
) -> list[str]:
    header = GAP.join(titles[name].ljust(wide) for name, wide in widths.items())
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
        cells = []
        for text, names in _spans(row, widths):
            wide = _total(widths[name] for name in names)
            cells.append(_cut(text, wide).ljust(wide))
        cells += [column[place].rjust(_number_width(name, column)) for name, column in numbers.items()]
        lines.append(GAP.join(cells))
    return lines


def _spans(row: Row, names: Mapping[str, object]) -> list[tuple[str, list[str]]]:
    """A row's texts, each with the columns that it may fill: its own and the empty ones that follow."""
    found: list[tuple[str, list[str]]] = []
    for name in names:
        if not found or _cell(row, name):
            found.append((_cell(row, name), [name]))
        else:
            found[-1][1].append(name)
    return found


def _cell(row: Row, name: str) -> str:
    return row.type if name == "class" else row.output if name == "output" else row.name


def _number_widths(numbers: Mapping[str, list[str]]) -> int:
    return sum(len(GAP) + _number_width(name, cells) for name, cells in numbers.items())


def _number_width(name: str, cells: list[str]) -> int:
    return max(map(len, [_heading(name), *cells]))


def _heading(name: str) -> str:
    return FIGURES[name].title if name in FIGURES else name


def _share(wanted: Mapping[str, int], room: int) -> dict[str, int]:
    """Widths for the text columns: what they want, less what is too much, taken where there is most to spare."""
    widths = dict(wanted)
    while _total(widths.values()) > room and max(widths.values()) > 1:
        spare = {name: widths[name] - min(LEAST[name], wanted[name]) for name in widths}
        name = max(spare, key=lambda column: spare[column])
        if spare[name] <= 0:  # even the least is too much
            name = max(widths, key=lambda column: widths[column])
        widths[name] -= 1
    return widths


def _figure(figure: Figure, sums: Totals) -> str:
    number = getattr(sums, figure.name)
    if number is None:
        return ""
    least = "≥ " if figure.name in sums.incomplete else ""
    return least + (figure.show(number) if number else "0")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
