"""What is on the screen as a file: the rows as text, JSON or a page, the screen itself as a picture."""

from __future__ import annotations

import html
import json
import math
import os
from typing import Any

from torch_vis.errors import no_match
from torch_vis.graph.files import replacing
from torch_vis.views.tui.columns import COLUMNS, TEXT, cell
from torch_vis.views.tui.tree import ModuleTree

ENDINGS = (".txt", ".json", ".html", ".svg")
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
"""


def save_view(path: str, tree: ModuleTree, title: str, facts: list[str], screenshot: str) -> None:
    """Write what is shown; the ending chooses how."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in ENDINGS:
        raise no_match("way to save a view as", ending or path, ENDINGS)
    if ending == ".svg":
        text = screenshot
    elif ending == ".json":
        text = json.dumps(as_data(tree, title, facts), indent=1, ensure_ascii=False) + "\n"
    elif ending == ".html":
        text = as_page(tree, title, facts)
    else:
        text = as_text(tree, title, facts)
    with replacing(path) as file:
        file.write(text.encode())


def as_data(tree: ModuleTree, title: str, facts: list[str]) -> dict[str, Any]:
    """The rows on show, each with the columns on show; what is not known is null."""
    forest = tree.forest
    rows = []
    for row in tree.rows.tolist():
        one: dict[str, Any] = {"path": forest.paths[row], "depth": int(forest.depth[row])}
        if tree.arrangement.members(row) > 1:
            one["members"] = tree.arrangement.members(row)
        for name in tree.columns:
            if COLUMNS[name].kind == TEXT:
                one[name] = forest.texts[name](row)
            else:
                figure = tree.figure(name, row)
                whole = figure == int(figure) if math.isfinite(figure) else False
                one[name] = None if math.isnan(figure) else int(figure) if whole else figure
        rows.append(one)
    return {"title": title, "facts": facts, "columns": tree.columns, "rows": rows}


def as_text(tree: ModuleTree, title: str, facts: list[str]) -> str:
    """The rows on show as a table of plain text."""
    lines = [["module", *(COLUMNS[name].title for name in tree.columns)]]
    for row in tree.rows.tolist():
        depth = 0 if tree.arrangement.flat else int(tree.forest.depth[row])
        lines.append(["  " * depth + tree.arrangement.label(row), *_words(tree, row)])
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    left = [True, *(COLUMNS[name].kind == TEXT for name in tree.columns)]
    table = [
        "  ".join(one.ljust(w) if keep else one.rjust(w) for one, w, keep in zip(line, widths, left)).rstrip()
        for line in lines
    ]
    return "\n".join([" · ".join([title, *facts]), "", *table, ""])


def as_page(tree: ModuleTree, title: str, facts: list[str]) -> str:
    """The rows on show as a page that needs nothing beside it."""
    kinds = ["n", *("w" if COLUMNS[name].kind == TEXT else "" for name in tree.columns)]
    heads = ["module", *(COLUMNS[name].title for name in tree.columns)]
    rows = []
    for row in tree.rows.tolist():
        depth = 0 if tree.arrangement.flat else int(tree.forest.depth[row])
        words = ["  " * depth + tree.arrangement.label(row), *_words(tree, row)]
        cells = (
            f'<td class="{kind}" style="text-align:left">{html.escape(one)}</td>'
            if kind
            else f"<td>{one}</td>"
            for one, kind in zip(words, kinds)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    tops = (f'<th class="{"w" if kind else ""}">{html.escape(one)}</th>' for one, kind in zip(heads, kinds))
    about = " · ".join(facts)
    return PAGE.format(
        title=html.escape(title), facts=html.escape(about), heads="".join(tops), rows="\n".join(rows)
    )


def _words(tree: ModuleTree, row: int) -> list[str]:
    texts = tree.forest.texts
    return [
        texts[name](row) if COLUMNS[name].kind == TEXT else cell(name, tree.figure(name, row))
        for name in tree.columns
    ]
