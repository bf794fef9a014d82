"""A report in Markdown: figures, modules, the costliest operations and a picture, all in one file of text.

The picture is a Mermaid flowchart, which the usual readers of Markdown draw; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from torch_vis.graph import Graph, Metrics, Node
from torch_vis.graph.module_table import ModuleTable
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import count, duration, inert, size
from torch_vis.ops.display_names import op_label
from torch_vis.views.figure.diagram import Diagram, diagram, walk
from torch_vis.views.figure.options import FigureOptions
from torch_vis.views.figure.palette import STROKE, colors
from torch_vis.views.figure.scene import box_of, named
from torch_vis.views.text.breaks import Breaks, names_of
from torch_vis.views.text.module_tree import AGAIN, module_listing, remarks, title_of, totals, tree_rows
from torch_vis.views.text.table_layout import cell

COSTLIEST = 12
NESTED = "Each dot is a level deeper. A row without a class has the operations that the module above it runs itself."


def report(run: Run) -> str:
    """The report as text."""
    graph, metrics, limits, meta = run.graph, run.metrics, run.limits, run.meta
    outline = ModuleTable(graph, metrics)
    lines = [f"# {escaped(str(meta.get('model') or 'Run'))}", "", escaped(title_of(graph, meta)), ""]
    lines += [
        f"- **{name}**: {escaped(fact)}" for name, fact in totals(graph, metrics, meta, outline).items()
    ]
    lines += ["", "## Modules", "", NESTED, "", *_modules(outline)]
    lines += ["", *(f"- {escaped(note)}" for note in remarks(graph, meta))] if remarks(graph, meta) else []
    lines += ["", "## Costliest operations", "", *_costliest(graph, metrics)]
    lines += _breaks(meta)
    if len(graph):
        lines += ["", "## Picture", "", "```mermaid", *mermaid(graph, metrics, FigureOptions()), "```"]
    if limits:
        lines += ["", "## Not captured", "", *(f"- {escaped(limit)}" for limit in limits)]
    return "\n".join([*lines, ""])


def _breaks(meta: Mapping[str, Any]) -> list[str]:
    """The graph breaks, where Dynamo met some, with what torch advises."""
    breaks = Breaks(meta.get("program"))
    if not len(breaks):
        return []
    listing = breaks.listing
    cells = ([escaped(cell(field, item)) for field, item in zip(listing.fields, row)] for row in listing.rows)
    lines = ["", "## Graph breaks", "", escaped(breaks.title), ""]
    lines += table([field.title for field in listing.fields], cells, left=4)
    for number, row in enumerate(breaks, 1):
        lines += ["", f"**{number}.** `{row.code}` {escaped(row.explanation)}", ""]
        lines += [f"- {escaped(hint)}" for hint in row.hints]
        lines += [f"- ran eager: {escaped(names_of(row.lost))}"] if row.lost else []
    return lines


def _modules(outline: ModuleTable) -> list[str]:
    _, rows, hidden = tree_rows(outline, "auto")
    fields, cells = module_listing(rows).shown()
    left = sum(field.show is None for field in fields)
    table_rows = (
        ["· " * row.depth + escaped(row.name), *map(escaped, texts[1:left]), *texts[left:]]
        for row, texts in zip(rows, cells, strict=True)
    )
    lines = table([field.full_title for field in fields], table_rows, left=left)
    return [*lines, "", f"{hidden:,} more rows lie deeper."] if hidden else lines


def _costliest(graph: Graph, metrics: Metrics) -> list[str]:
    """Operators by the time they took, those of one source line and phase together."""
    if "time_ns" not in metrics or not len(graph):
        return ["No times were measured."]
    names: dict[str, int] = {}
    of_call = np.array([names.setdefault(op_label(call.op), len(names)) for call in graph.calls])
    recomputed = graph.node_flags & Flag.RECOMPUTE != 0
    # A gradient counts for the line of what it is the gradient of.
    backward = (graph.node_phase == Phase.BACKWARD) & (graph.node_link >= 0)
    site = np.where(backward, graph.node_site[graph.node_link], graph.node_site)
    keys = np.stack([of_call[graph.node_call], graph.node_phase, site, recomputed], axis=1)
    groups, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    sums = {
        name: _sums(metrics, name, inverse.ravel(), len(groups))
        for name in ("time_ns", "alloc_bytes", "flops")
    }
    calls = np.bincount(inverse.ravel(), minlength=len(groups))
    times = [time or 0 for time in sums["time_ns"]]
    rows = []
    for group in sorted(range(len(groups)), key=lambda group: -times[group])[:COSTLIEST]:
        node = graph.nodes[int(first[group])]
        rows.append(
            [
                escaped(op_label(node.call.op)),
                node.phase + (f", computed again {AGAIN}" if recomputed[node.index] else ""),
                escaped(_line(node)),
                f"{calls[group]:,}",
                _cell(sums["time_ns"][group], duration),
                f"{100 * times[group] / max(1, sum(times)):.1f} %",
                _cell(sums["alloc_bytes"][group], size),
                _cell(sums["flops"][group], count),
            ]
        )
    titles = ["operation", "phase", "source", "calls", "time", "share", "allocated", "FLOPs"]
    return table(titles, rows, left=3)


def _line(node: Node) -> str:
    """The line that an operation is due to; of a gradient, that of what it is the gradient of."""
    line = node.user_line
    if line is None:
        return ""
    return line.short if line == node.site else f"gradient of {PurePath(line.file).name}:{line.line}"


def _sums(metrics: Metrics, name: str, group: Any, groups: int) -> list[int | None]:
    """A metric summed over each group; None for one of which nothing is known."""
    if name not in metrics:
        return [None] * groups
    sums, _ = metrics[name].sums(group, groups)
    return sums


def _cell(amount: int | None, show: Any) -> str:
    return "" if amount is None else show(amount)


def table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 0, figures: Sequence[bool] = ()
) -> list[str]:
    """A Markdown table; the first ``left`` columns are text and the others figures, or as ``figures`` says.

    >>> table(["a", "b"], [["x", "1"]], left=1)
    ['| a | b |', '|---|--:|', '| x | 1 |']
    """
    right = figures or [column >= left for column in range(len(titles))]
    rule = "|" + "|".join("--:" if figure else "---" for figure in right) + "|"
    return [f"| {' | '.join(titles)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def escaped(text: str) -> str:
    r"""A text that Markdown shows as it is: nothing in a module's name is markup.

    >>> print(escaped("a_b|<img>*"))
    a\_b\|&lt;img&gt;\*
    """
    text = inert(text, " ").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", text)


def mermaid(graph: Graph, metrics: Metrics, options: FigureOptions) -> list[str]:
    """The picture as the lines of a Mermaid flowchart."""
    drawn = diagram(graph, options)
    palette = colors(drawn, metrics, options.color)
    lines = [f"flowchart {options.direction}"]
    for number in range(len(drawn.columns)):
        lines += _column(drawn, number, palette)
    return lines


def _column(drawn: Diagram, number: int, palette: Any) -> list[str]:
    column = drawn.columns[number]
    lines = [f'subgraph p{number}["{Phase(column.phase).name.lower()}"]']
    styles: dict[str, list[str]] = {}
    for step, item in walk(column):
        if step == "close":
            lines.append("end")
            continue
        if step == "open":
            title = _label(" · ".join(filter(None, named(item))))
            lines.append(f'subgraph g{number}_{item.number}["{title}"]')
            continue
        box = box_of(drawn, number, item, palette)
        text = "<br/>".join(_label(word) for word in [box.title, *box.words])
        shape = ('(["', '"])') if item.kind in ("input", "output") else ('["', '"]')
        lines.append(f"n{number}_{item.number}{shape[0]}{text}{shape[1]}")
        styles.setdefault(box.fill, []).append(f"n{number}_{item.number}")
    lines.append("end")
    lines += [f"n{number}_{edge.source} --> n{number}_{edge.target}" for edge in column.edges]
    for index, (fill, names) in enumerate(styles.items()):
        lines.append(f"classDef c{number}_{index} fill:{fill},stroke:{STROKE},color:#1c2430")
        lines.append(f"class {','.join(names)} c{number}_{index}")
    return lines


def _label(text: str) -> str:
    """A text inside quotes, with everything that Mermaid could take for syntax as a code."""
    return "".join(
        letter if letter.isalnum() or letter in " ._-·×–,/←…" else f"#{ord(letter)};" for letter in text
    )
