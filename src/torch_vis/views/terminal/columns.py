"""The columns that the tree can show, which rows are on show in which order, and those as text, data or a page."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph.text import count, duration, inert, inert_lines, size, split_number
from torch_vis.graph.types import Bools, Floats, Ints
from torch_vis.views.terminal.forest import Forest
from torch_vis.views.terminal.source import ExplorerConfig
from torch_vis.views.text.table_layout import line


class ColumnSpec(NamedTuple):
    """One column: heading, kind of figure, width, the option of the configuration that shows it, a description."""

    title: str
    kind: str
    width: int
    switch: str
    help: str


COUNT, BYTES, TIME, SHARE, PLAIN, TEXT = "count", "bytes", "time", "share", "plain", "text"
NORM = "norm"
PARAMS, SHAPES, TIMING, MEMORY, ALWAYS = "parameter_counts", "shapes", "timing", "memory", ""

COLUMNS: dict[str, ColumnSpec] = {
    "type": ColumnSpec("class", TEXT, 18, ALWAYS, "the module's class"),
    "args": ColumnSpec("arguments", TEXT, 30, ALWAYS, "what it was made with, as its repr says"),
    "value": ColumnSpec(
        "value", TEXT, 20, ALWAYS, "a value that is no tensor, or the one element of a tensor"
    ),
    "params": ColumnSpec("params", COUNT, 9, PARAMS, "parameters in it and below, tied ones once"),
    "params_share": ColumnSpec("params %", SHARE, 8, PARAMS, "its share of the model's parameters"),
    "elements": ColumnSpec("elements", COUNT, 9, PARAMS, "elements of the tensors in it, shared memory once"),
    "elements_share": ColumnSpec("elements %", SHARE, 10, PARAMS, "its share of all elements"),
    "own_params": ColumnSpec("own params", COUNT, 10, PARAMS, "parameters that it holds itself"),
    "trainable": ColumnSpec("trainable", COUNT, 9, PARAMS, "parameters that require gradients"),
    "modules": ColumnSpec("modules", COUNT, 8, ALWAYS, "modules in it, itself included"),
    "shapes": ColumnSpec("own shapes", TEXT, 24, SHAPES, "the shapes of its own parameters"),
    "dtype": ColumnSpec("dtype", TEXT, 9, ALWAYS, "element types of its own tensors"),
    "device": ColumnSpec("device", TEXT, 8, ALWAYS, "where its own tensors are"),
    "bytes": ColumnSpec("size", BYTES, 9, MEMORY, "bytes of the parameters in it and below, tied ones once"),
    "bytes_share": ColumnSpec("size %", SHARE, 8, MEMORY, "its share of the model's parameter bytes"),
    "own_bytes": ColumnSpec("own size", BYTES, 9, MEMORY, "bytes of the parameters that it holds itself"),
    "buffer_bytes": ColumnSpec("buffers", BYTES, 9, MEMORY, "bytes of the buffers in it and below"),
    "calls": ColumnSpec("calls", PLAIN, 7, TIMING, "how often it was called"),
    "time": ColumnSpec("time", TIME, 9, TIMING, "forward, with the modules it called"),
    "time_share": ColumnSpec("time %", SHARE, 8, TIMING, "its share of the forward time"),
    "self": ColumnSpec("self", TIME, 9, TIMING, "forward, without the modules it called"),
    "mean": ColumnSpec("per call", TIME, 9, TIMING, "forward, the mean of its calls"),
    "backward": ColumnSpec("backward", TIME, 9, TIMING, "backward operations of it and below"),
    "backward_self": ColumnSpec("bwd self", TIME, 9, TIMING, "backward operations of its own"),
    "recomputed": ColumnSpec(
        "recomputed", TIME, 10, TIMING, "of backward, forward operations that it ran again (checkpointing)"
    ),
    "recomputed_ops": ColumnSpec("recomp. ops", PLAIN, 11, ALWAYS, "how many operations backward ran again"),
    "in": ColumnSpec("input", TEXT, 20, SHAPES, "the tensors that went in at the first call"),
    "out": ColumnSpec("output", TEXT, 20, SHAPES, "the tensors that came out at the first call"),
    "in_bytes": ColumnSpec("in size", BYTES, 9, MEMORY, "bytes that went in at the first call"),
    "out_bytes": ColumnSpec("out size", BYTES, 9, MEMORY, "bytes that came out at the first call"),
    "memory": ColumnSpec(
        "allocated", BYTES, 9, MEMORY, "bytes that its operations and those below made, forward"
    ),
    "flops": ColumnSpec("FLOPs", COUNT, 9, TIMING, "floating-point operations of it and below, forward"),
    "flops_share": ColumnSpec("FLOPs %", SHARE, 8, TIMING, "its share of the forward FLOPs"),
    "gradient": ColumnSpec("gradient", NORM, 9, ALWAYS, "norm of the gradients of the parameters in it"),
    "ops": ColumnSpec("ops", PLAIN, 7, ALWAYS, "operations of it and below, forward and backward"),
}
ADDITIVE = {
    "params",
    "elements",
    "own_params",
    "trainable",
    "modules",
    "bytes",
    "own_bytes",
    "buffer_bytes",
    "calls",
    "time",
}
ADDITIVE |= {
    "time_share",
    "params_share",
    "elements_share",
    "bytes_share",
    "flops_share",
    "self",
    "backward",
    "backward_self",
    "recomputed",
    "recomputed_ops",
}
ADDITIVE |= {"memory", "flops", "ops"}
DEFAULT = (
    "type", "out", "time", "params", "self", "backward", "recomputed", "flops", "memory", "calls", "bytes", "shapes",
)  # fmt: skip
WITHOUT_RUN = (
    "type", "value", "params", "params_share", "elements", "elements_share", "bytes", "shapes", "dtype", "device",
    "args",
)  # fmt: skip


def available(forest: Forest) -> list[str]:
    """The columns that the forest has something for, in their usual order."""
    return [
        name for name in COLUMNS if name in forest.numbers or name in forest.texts or name in forest.later
    ]


def chosen(forest: Forest, config: ExplorerConfig) -> list[str]:
    """The columns to open with: those of a run where there was one, what the configuration switches off left out."""
    present = available(forest)
    wanted: Sequence[str] = DEFAULT if "time" in present or "ops" in present else WITHOUT_RUN
    off = {name for name in (PARAMS, SHAPES, TIMING, MEMORY) if not getattr(config, f"show_{name}")}
    present = [name for name in present if name not in forest.later]
    names = [name for name in wanted if name in present and COLUMNS[name].switch not in off]
    if config.compact_view:
        names = [name for name in names if COLUMNS[name].kind != TEXT]
    return names


def cell(name: str, figure: float) -> str:
    """A figure as the column writes it; nothing where it is not known.

    >>> cell("params", 25_557_032), cell("time", 1_500_000), cell("params_share", 0.5), cell("calls", float("nan"))
    ('25.6 M', '1.50 ms', '50.0 %', '')
    """
    if math.isnan(figure):
        return ""
    kind = COLUMNS[name].kind
    if kind == COUNT:
        return count(int(figure))
    if kind == BYTES:
        return size(int(figure))
    if kind == TIME:
        return duration(int(figure))
    if kind == NORM:
        return f"{figure:.3g}"
    if kind == SHARE:
        return f"{figure * 100:.1f} %"
    return f"{figure:,.0f}" if figure == int(figure) else f"{figure:.3g}"


CHUNK = 8_000  # rows that one step of a search looks through
SPECIAL = "\\.^$*+?{}[]|()"


class Arrangement:
    """The rows on show.

    >>> forest = Forest(["net", "a", "b", "c"], ["N", "A", "B", "C"], [-1, 0, 1, 0])
    >>> shown = Arrangement(forest)
    >>> shown.open_to(1); shown.rows().tolist()
    [0, 1, 3]
    >>> shown.matching = shown.search("b"); shown.rows().tolist()
    [0, 1, 2]
    """

    def __init__(self, forest: Forest, *, max_depth: int | None = None) -> None:
        self.forest = forest
        self.max_depth = max_depth
        self.is_open: Bools = np.zeros(len(forest), dtype=bool)
        self.has_children: Bools = forest.end > np.arange(len(forest)) + 1
        if max_depth is not None:
            self.has_children &= forest.depth < max_depth
        self.matching: Bools | None = None
        self.sort: str | None = None
        self.descending = True
        self.flat = False
        self.folding = False
        self._folds: tuple[Ints, Bools] | None = None
        self._lines: tuple[list[str], list[str]] | None = None

    # what is open

    def open_to(self, depth: int) -> None:
        """Open the levels above a depth, close the others."""
        self.is_open = self.has_children & (self.forest.depth < depth)

    def open_below(self, row: int, is_open: bool) -> None:
        """Open or close a row and all below it."""
        stop = int(self.forest.end[row])
        self.is_open[row:stop] = self.has_children[row:stop] if is_open else False

    def reveal(self, row: int) -> None:
        """Open everything above a row; repeats are unfolded if it is one of those that another stands for."""
        if self.folding and self.find_repeats()[1][row]:
            self.folding = False
        above = int(self.forest.parent[row])
        while above >= 0:
            self.is_open[above] = True
            above = int(self.forest.parent[above])

    # repeated neighbours

    def members(self, row: int) -> int:
        """For how many neighbours a row stands: 1, or more where repeats are folded."""
        return int(self.find_repeats()[0][row]) if self.is_folded else 1

    def stands_for(self, row: int) -> Ints:
        """The rows that a row shows: itself, and where repeats are folded the same row of every repeat around it."""
        rows = np.array([row], dtype=np.int64)
        above = row if self.is_folded else -1
        while above >= 0:
            many = self.members(above)
            if many > 1:
                size = int(self.forest.end[above]) - above
                rows = (np.arange(many, dtype=np.int64)[:, None] * size + rows).ravel()
            above = int(self.forest.parent[above])
        return rows

    def figure(self, name: str, row: int) -> float:
        """A row's figure; of a fold and of what is in one, the sum over its repeats where that means something."""
        column = self.forest.numbers[name]
        if name not in ADDITIVE:
            return float(column[row])
        rows = self.stands_for(row)
        sharing = self.forest.sharing
        if len(rows) > 1 and name in HELD and sharing is not None:
            return float(sharing.over(rows, sharing.size))
        figures = column[rows]
        return float("nan") if np.isnan(figures).all() else float(np.nansum(figures))

    @property
    def is_folded(self) -> bool:
        """Whether repeats are one row now; a filter shows each of them that matches."""
        return self.folding and self.matching is None

    def find_repeats(self) -> tuple[Ints, Bools]:
        """The number of alike neighbours that a row begins, and the rows inside such stretches after the first."""
        if self._folds is None:
            forest, signatures = self.forest, self.forest.signatures
            number = np.array([_number(name) for name in forest.names], dtype=np.int64)
            counts, hidden = np.ones(len(forest), dtype=np.int64), np.zeros(len(forest), dtype=bool)
            first, parent, end = list(range(len(forest))), forest.parent, forest.end
            for row in np.flatnonzero(number > 0).tolist():
                before = _previous(forest, row)
                if before < 0 or parent[before] != parent[row] or number[before] != number[row] - 1:
                    continue
                if signatures[before] == signatures[row] and _looks(forest, row) == _looks(forest, before):
                    first[row] = first[before]
                    counts[first[row]] += 1
                    hidden[row : end[row]] = True
            self._folds = counts, hidden
        return self._folds

    def label(self, row: int) -> str:
        """A row's name; of a fold, those of its first and last member."""
        name, many = self.forest.names[row], self.members(row)
        if many == 1:
            return self.forest.paths[row] or name if self.flat else name
        stem = name[: len(name) - len(str(_number(name)))]
        return f"{stem}{_number(name)}–{_number(name) + many - 1} × {many}"

    # the filter

    def search(self, pattern: str) -> Bools:
        """The rows whose path, class or mark matches: a regular expression, in any case unless it has capitals."""
        matching = np.zeros(len(self.forest), dtype=bool)
        for part in self.searching(pattern):
            matching |= part
        return matching

    def searching(self, pattern: str) -> Iterator[Bools]:
        """The same step by step, so that a newer search can take its place: a mask per stretch of rows."""
        matches = matcher(pattern)
        cased, lower = self.searchable()
        lines = cased if has_capitals(pattern) else lower
        for first in range(0, len(lines), CHUNK):
            part = lines[first : first + CHUNK]
            matching = np.zeros(len(lines), dtype=bool)
            matching[first : first + len(part)] = matches(part)
            yield matching

    def searchable(self) -> tuple[list[str], list[str]]:
        """For each row its path, its class and its mark on lines of their own: as they are, and in small letters."""
        if self._lines is None:
            forest = self.forest
            lines = [f"{path}\n{type_}" for path, type_ in zip(forest.paths, forest.types)]
            for row, mark in forest.marks.items():
                lines[row] += f"\n{mark}"
            self._lines = lines, [line.lower() for line in lines]
        return self._lines

    # the result

    def rows(self) -> Ints:
        """The rows on show, in order."""
        forest = self.forest
        shown = self._filtered() if self.matching is not None else self._unfolded()
        if self.max_depth is not None:
            shown &= forest.depth <= self.max_depth
        if self.is_folded:
            shown &= ~self.find_repeats()[1]
        rows = np.flatnonzero(shown)
        if self.sort is None:
            return rows
        return self._sorted(rows)

    def _unfolded(self) -> Bools:
        """The rows below nothing that is closed; in a flat list, all of them."""
        forest = self.forest
        if self.flat:
            return np.ones(len(forest), dtype=bool)
        closed = np.flatnonzero(~self.is_open)
        size = len(forest) + 1
        begins = np.bincount(closed + 1, minlength=size)
        ends = np.bincount(forest.end[closed], minlength=size)
        return np.cumsum(begins - ends)[:-1] == 0

    def _filtered(self) -> Bools:
        """What matches, with all that is above it; in a flat list without."""
        assert self.matching is not None
        if self.flat:
            return self.matching.copy()
        running = np.concatenate([[0], np.cumsum(self.matching)])
        return running[self.forest.end] > running[:-1]

    def _sorted(self, rows: Ints) -> Ints:
        assert self.sort is not None
        key = self._key(rows)
        if self.flat:
            return rows[np.argsort(key, kind="stable")]
        forest = self.forest
        position = np.full(len(forest) + 1, -1, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        # an outermost row stays at -1: the last entry is no row
        up = position[forest.parent[rows]]
        size = np.searchsorted(rows, forest.end[rows]) - np.arange(len(rows))
        order = np.lexsort((key, up))
        # Rows of earlier neighbours, and of those under earlier parents.
        before = np.cumsum(size[order]) - size[order]
        first = np.concatenate([[True], up[order][1:] != up[order][:-1]])
        before -= np.maximum.accumulate(np.where(first, before, 0))
        offset = np.empty(len(rows), dtype=np.int64)
        offset[order] = before
        return rows[np.argsort(_positions(up, offset), kind="stable")]

    def _key(self, rows: Ints) -> Floats:
        """What to sort by, ascending; what is not known comes last either way."""
        assert self.sort is not None
        forest = self.forest
        if self.sort in forest.numbers:
            figures = forest.numbers[self.sort][rows]
            if self.is_folded:
                figures = np.array([self.figure(self.sort, row) for row in rows.tolist()])
        else:
            word: Callable[[int], str] = forest.texts.get(self.sort, forest.names.__getitem__)
            words = np.array([word(row) for row in rows.tolist()], dtype=object)
            figures = np.unique(words.astype(str), return_inverse=True)[1].astype(np.float64)
        return np.where(np.isnan(figures), np.inf, -figures if self.descending else figures)


def has_capitals(pattern: str) -> bool:
    """Whether capitals count: they do where there are some."""
    return any(letter.isupper() for letter in pattern)


def matcher(pattern: str) -> Callable[[list[str]], list[bool]]:
    """A function that says which texts match: by a regular expression, or as plain text where it is not a valid one.

    It takes the texts in small letters where the pattern has no capitals. Letters between ``.*`` are looked for first,
    which is many times faster than the expression itself.

    >>> matcher("conv[")(["a conv[3]", "fc"]), matcher("Conv")(["conv", "Conv2d"]), matcher("^b|1$")(["a1", "b2", "c"])
    ([True, False], [False, True], [True, True, False])
    >>> matcher("a.*b")(["cab", "ba"])
    [True, False]
    """
    if not set(pattern) & set(SPECIAL):
        return lambda lines: [pattern in line for line in lines]
    try:
        search = re.compile(pattern, re.MULTILINE).search
    except (re.error, OverflowError):
        return lambda lines: [pattern in line for line in lines]
    parts = re.split(r"\.[*+]", pattern)
    if set("".join(parts)) & set(SPECIAL):
        return lambda lines: [search(line) is not None for line in lines]
    rarest = max(parts, key=len)
    return lambda lines: [rarest in line and search(line) is not None for line in lines]


def is_expression(pattern: str) -> bool:
    """Whether a pattern can be read as a regular expression; plain text can.

    >>> is_expression("conv"), is_expression("(a|b)$"), is_expression("(")
    (True, True, False)
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError):
        return False
    return True


def _positions(up: Ints, offset: Ints) -> Ints:
    """Where each row comes to stand: after its parent, by the rows of the neighbours before it.

    Parents come before their children, so one pass over the rows is enough.
    """
    positions: list[int] = []
    for above, after in zip(up.tolist(), offset.tolist()):
        positions.append(after if above < 0 else positions[above] + 1 + after)
    return np.asarray(positions, dtype=np.int64)


def _number(name: str) -> int:
    """The number that a name ends with, -1 where there is none."""
    number = split_number(name)[1]
    return -1 if number is None else number


def _looks(forest: Forest, row: int) -> tuple[str, str]:
    """What is to be seen of a row beside its name."""
    return forest.kind(row), forest.marks.get(row, "")


def _previous(forest: Forest, row: int) -> int:
    """The neighbour above a row under the same parent, -1 for the first."""
    last, parent = row - 1, forest.parent[row]
    while last >= 0 and forest.parent[last] != parent and last != parent:
        last = int(forest.parent[last])
    return last if last >= 0 and last != parent else -1


PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>
body{{font:14px/1.5 system-ui,sans-serif;margin:2rem;color:#22263a;background:#fbfbfd}}
table{{border-collapse:collapse}} th,td{{padding:.15rem .7rem;text-align:right;white-space:pre}}
th{{border-bottom:1px solid #cdd2e2;color:#5b6280;position:sticky;top:0;background:#fbfbfd}}
td.w,th.w{{text-align:left}} td.w{{color:#2e5cb8}} td.n{{color:#1b1f33;font-family:ui-monospace,monospace}}
tr:hover td{{background:#eceef5}}
@media (prefers-color-scheme:dark){{body,th{{background:#14161f;color:#c8d0e8}} td.n{{color:#d6dcf2}}
td.w{{color:#7aa2f7}} tr:hover td{{background:#1d2030}}}}
</style>
<h1>{title}</h1><p>{facts}</p><table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>
{panel}"""
HELD = ("params", "elements")  # what several rows may hold at once, and a sum counts once


class RowListing:
    """Some rows of an arrangement and some columns.

    >>> shown = Arrangement(Forest(["net", "a"], ["Net", "Linear"], [-1, 0]))
    >>> print(RowListing(shown, np.array([0, 1]), ["type"]).as_text("net", ["2 modules"]))
    net · 2 modules
    <BLANKLINE>
    module  class
    net     Net
      a     Linear
    <BLANKLINE>
    """

    def __init__(self, arrangement: Arrangement, rows: Ints, columns: list[str]) -> None:
        self.arrangement = arrangement
        self.forest = arrangement.forest
        self.rows = rows
        self.columns = columns

    def figure(self, name: str, row: int) -> float:
        """A row's figure as it is shown."""
        return self.arrangement.figure(name, row)

    def as_data(self, title: str, facts: list[str], panel: tuple[str, str] | None = None) -> dict[str, Any]:
        """The rows, each with the columns; what is not known is null."""
        forest = self.forest
        rows = []
        for row in self.rows.tolist():
            row_data: dict[str, Any] = {"path": forest.paths[row], "depth": int(forest.depth[row])}
            if row in forest.marks:
                row_data["mark"] = forest.marks[row]
            if self.arrangement.members(row) > 1:
                row_data["members"] = self.arrangement.members(row)
            for name in self.columns:
                if COLUMNS[name].kind == TEXT:
                    row_data[name] = forest.texts[name](row)
                else:
                    figure = self.figure(name, row)
                    whole = figure == int(figure) if math.isfinite(figure) else False
                    row_data[name] = None if math.isnan(figure) else int(figure) if whole else figure
            rows.append(row_data)
        data: dict[str, Any] = {"title": title, "facts": facts, "columns": self.columns, "rows": rows}
        if panel is not None:
            data["panel"] = {"title": panel[0], "lines": panel[1].splitlines()}
        return data

    def as_json(self, title: str, facts: list[str], panel: tuple[str, str] | None = None) -> str:
        """The same as the text of a document."""
        return inert_lines(json.dumps(self.as_data(title, facts, panel), indent=1, ensure_ascii=False)) + "\n"

    def as_text(self, title: str, facts: list[str], panel: tuple[str, str] | None = None) -> str:
        """The rows as a table of plain text."""
        lines = [["module", *(COLUMNS[name].title for name in self.columns)]]
        for row in self.rows.tolist():
            lines.append([self._label(row), *self._words(row)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        right = [False, *(COLUMNS[name].kind != TEXT for name in self.columns)]
        table = [line(cells, widths, right) for cells in lines]
        more = [] if panel is None else [panel[0], "─" * len(panel[0]), *panel[1].splitlines(), ""]
        return "\n".join([" · ".join(map(inert, [title, *facts])), "", *table, "", *more])

    def as_page(self, title: str, facts: list[str], panel: tuple[str, str] | None = None) -> str:
        """The rows as a page that needs nothing beside it."""
        kinds = ["n", *("w" if COLUMNS[name].kind == TEXT else "" for name in self.columns)]
        heads = ["module", *(COLUMNS[name].title for name in self.columns)]
        rows = []
        for row in self.rows.tolist():
            words = [self._label(row), *self._words(row)]
            cells = (
                f'<td class="{kind}" style="text-align:left">{html.escape(text)}</td>'
                if kind
                else f"<td>{text}</td>"
                for text, kind in zip(words, kinds)
            )
            rows.append(f"<tr>{''.join(cells)}</tr>")
        tops = (
            f'<th class="{"w" if kind else ""}">{html.escape(text)}</th>' for text, kind in zip(heads, kinds)
        )
        more = (
            "" if panel is None else f"<h2>{html.escape(panel[0])}</h2><pre>{html.escape(panel[1])}</pre>\n"
        )
        return PAGE.format(
            title=html.escape(title), facts=html.escape(" · ".join(facts)), heads="".join(tops),
            rows="\n".join(rows), panel=more,
        )  # fmt: skip

    def _label(self, row: int) -> str:
        depth = 0 if self.arrangement.flat else int(self.forest.depth[row])
        mark = self.forest.marks.get(row, "")
        return inert("  " * depth + self.arrangement.label(row) + (f" {mark}" if mark else ""))

    def _words(self, row: int) -> list[str]:
        texts = self.forest.texts
        return [
            inert(texts[name](row)) if COLUMNS[name].kind == TEXT else cell(name, self.figure(name, row))
            for name in self.columns
        ]
