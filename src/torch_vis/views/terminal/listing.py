"""Rows of a forest with columns of figures, as text, data or a page: what the screen shows, without a screen."""

from __future__ import annotations

import html
import json
import math
from typing import Any

import numpy as np

from torch_vis.graph.types import Ints
from torch_vis.views.terminal.columns import ADDITIVE, COLUMNS, TEXT, cell
from torch_vis.views.terminal.row_filter import Arrangement

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


class Listing:
    """Some rows of an arrangement and some columns.

    >>> from torch_vis.views.terminal.forest import Forest
    >>> shown = Arrangement(Forest(["net", "a"], ["Net", "Linear"], [-1, 0]))
    >>> print(Listing(shown, np.array([0, 1]), ["type"]).as_text("net", ["2 modules"]))
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
        """A row's figure; of a fold, the sum over its members where that means something."""
        column = self.forest.numbers[name]
        many = self.arrangement.members(row)
        if many == 1 or name not in ADDITIVE:
            return float(column[row])
        members = [row]
        while len(members) < many:
            members.append(int(self.forest.end[members[-1]]))
        sharing = self.forest.sharing
        if name in HELD and sharing is not None:
            return float(sharing.over(row, int(self.forest.end[members[-1]]), sharing.size))
        return float(np.nansum(column[members])) if not np.isnan(column[members]).all() else float("nan")

    def as_data(self, title: str, facts: list[str], panel: tuple[str, str] | None = None) -> dict[str, Any]:
        """The rows, each with the columns; what is not known is null."""
        forest = self.forest
        rows = []
        for row in self.rows.tolist():
            one: dict[str, Any] = {"path": forest.paths[row], "depth": int(forest.depth[row])}
            if row in forest.marks:
                one["mark"] = forest.marks[row]
            if self.arrangement.members(row) > 1:
                one["members"] = self.arrangement.members(row)
            for name in self.columns:
                if COLUMNS[name].kind == TEXT:
                    one[name] = forest.texts[name](row)
                else:
                    figure = self.figure(name, row)
                    whole = figure == int(figure) if math.isfinite(figure) else False
                    one[name] = None if math.isnan(figure) else int(figure) if whole else figure
            rows.append(one)
        found: dict[str, Any] = {"title": title, "facts": facts, "columns": self.columns, "rows": rows}
        if panel is not None:
            found["panel"] = {"title": panel[0], "lines": panel[1].splitlines()}
        return found

    def as_json(self, title: str, facts: list[str], panel: tuple[str, str] | None = None) -> str:
        """The same as the text of a document."""
        return json.dumps(self.as_data(title, facts, panel), indent=1, ensure_ascii=False) + "\n"

    def as_text(self, title: str, facts: list[str], panel: tuple[str, str] | None = None) -> str:
        """The rows as a table of plain text."""
        lines = [["module", *(COLUMNS[name].title for name in self.columns)]]
        for row in self.rows.tolist():
            lines.append([self._label(row), *self._words(row)])
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        left = [True, *(COLUMNS[name].kind == TEXT for name in self.columns)]
        table = [
            "  ".join(
                one.ljust(w) if keep else one.rjust(w) for one, w, keep in zip(line, widths, left)
            ).rstrip()
            for line in lines
        ]
        more = [] if panel is None else [panel[0], "─" * len(panel[0]), *panel[1].splitlines(), ""]
        return "\n".join([" · ".join([title, *facts]), "", *table, "", *more])

    def as_page(self, title: str, facts: list[str], panel: tuple[str, str] | None = None) -> str:
        """The rows as a page that needs nothing beside it."""
        kinds = ["n", *("w" if COLUMNS[name].kind == TEXT else "" for name in self.columns)]
        heads = ["module", *(COLUMNS[name].title for name in self.columns)]
        rows = []
        for row in self.rows.tolist():
            words = [self._label(row), *self._words(row)]
            cells = (
                f'<td class="{kind}" style="text-align:left">{html.escape(one)}</td>'
                if kind
                else f"<td>{one}</td>"
                for one, kind in zip(words, kinds)
            )
            rows.append(f"<tr>{''.join(cells)}</tr>")
        tops = (
            f'<th class="{"w" if kind else ""}">{html.escape(one)}</th>' for one, kind in zip(heads, kinds)
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
        return "  " * depth + self.arrangement.label(row) + (f" {mark}" if mark else "")

    def _words(self, row: int) -> list[str]:
        texts = self.forest.texts
        return [
            texts[name](row) if COLUMNS[name].kind == TEXT else cell(name, self.figure(name, row))
            for name in self.columns
        ]
