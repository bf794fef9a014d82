"""The picture for Graphviz: frames as clusters, boxes as nodes; Graphviz itself does the layout."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from torch_vis.errors import optional, shortened
from torch_vis.graph.io.atomic import PathLike, write_text
from torch_vis.graph.run import Run, added_by_recording
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import inert
from torch_vis.views.figure.diagram import Diagram, PhaseColumn, diagram, walk
from torch_vis.views.figure.options import FigureOptions
from torch_vis.views.figure.palette import FAINT, FRAME, HIGHLIGHT, STROKE, WIRE, Colors, colors, ink
from torch_vis.views.figure.scene import HEADINGS, THICK_RIM, box_of, frame_fill, named

if TYPE_CHECKING:
    import graphviz

LONGEST = 3000  # letters of one string: Graphviz reads 16,384 bytes, and a letter takes up to five


def save(path: PathLike, run: Run) -> None:
    """Write the picture as DOT, with the usual options."""
    write_text(path, dot(run, FigureOptions()))


def draw(run: Run, options: FigureOptions) -> graphviz.Digraph:
    """A ``graphviz.Digraph``: it shows itself in a notebook, ``render`` writes any format, and all can be set.

    ``figure.graph_attr["ranksep"] = "1"``, ``node_attr`` and ``edge_attr`` hold what is common to all; more nodes and
    edges may be added.
    """
    with optional("graphviz"):
        import graphviz
    body = [f"{line}\n" for line in _body(run, options)]
    attributes = {f"{kind}_attr": rows for kind, rows in _attributes(run, options).items()}
    return graphviz.Digraph(inert(run.name), body=body, **attributes)


def dot(run: Run, options: FigureOptions) -> str:
    """The picture in the DOT language."""
    lines = [f"digraph {quoted(run.name)} {{"]
    for kind, rows in _attributes(run, options).items():
        lines.append(f"  {kind} [{', '.join(f'{name}={quoted(text)}' for name, text in rows.items())}];")
    return "\n".join([*lines, *_body(run, options), "}", ""])


def _attributes(run: Run, options: FigureOptions) -> dict[str, dict[str, str]]:
    """What is common to the whole graph, to its nodes and to its edges."""
    title = run.name if options.title is None else options.title
    graph = {"label": inert(title), "labelloc": "t", "fontname": "Helvetica", "compound": "true"}
    return {
        "graph": graph | {"ranksep": "0.35", "nodesep": "0.25", "rankdir": options.direction},
        "node": {
            "shape": "box",
            "style": "rounded,filled",
            "fontname": "Helvetica",
            "fontsize": "11",
            "color": STROKE,
            "height": "0.3",
        },
        "edge": {
            "color": WIRE,
            "arrowsize": "0.6",
            "fontname": "Helvetica",
            "fontsize": "8",
            "fontcolor": FAINT,
        },
    }


def _body(run: Run, options: FigureOptions) -> list[str]:
    drawn = diagram(run.graph, options, added_by_recording(run))
    palette = colors(drawn, run.metrics, options.color)
    lines = [line for number in range(len(drawn.columns)) for line in _column(drawn, number, palette)]
    return [*lines, *_legend(palette)] if options.legend else lines


def _legend(palette: Colors) -> list[str]:
    """What the colours mean, as a row below the picture."""
    if palette.measure is not None:
        ticks = palette.ticks() if palette.most else []
        span = palette.most - palette.least
        rows = [(text, palette.heat(palette.least + span * share)) for share, text in ticks]
        note = palette.note
    else:
        rows, note = palette.legend(), ""
    if not rows:
        return []
    cells = [
        f'<TD BGCOLOR="{fill}" BORDER="1" COLOR="{STROKE}" WIDTH="12"> </TD><TD>{html.escape(inert(text))}</TD>'
        for text, fill in rows
    ]
    cells += [f"<TD>{html.escape(note)}</TD>"] if note else []
    table = f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="3"><TR>{"".join(cells)}</TR></TABLE>'
    return [
        f'  {{ rank=sink; legend [shape=plaintext, style="", fontsize=9, fontcolor="{FAINT}", label=<{table}>]; }}'
    ]


def _column(drawn: Diagram, number: int, palette: Any) -> list[str]:
    column = drawn.columns[number]
    lines: list[str] = []
    many = len(drawn.columns) > 1
    if many:
        heading = quoted(HEADINGS[Phase(column.phase)].split()[0])
        lines += [f"  subgraph cluster_{number} {{", f"  label={heading}; style=invis;"]
    for step, item in walk(column):
        if step == "close":
            lines.append("  }")
            continue
        if step == "box":
            lines.append(_node(drawn, number, item.number, palette))
            continue
        title, class_ = named(item)
        label = quoted(f"{title} · {class_}" if class_ else title)
        tip = quoted("\n".join(f"{key}: {text}" for key, text in palette.facts(number, item)))
        lines.append(f"  subgraph cluster_{number}_{item.number} {{")
        rim = f'color="{HIGHLIGHT}"; penwidth={THICK_RIM}' if item.is_highlighted else f'color="{FRAME}"'
        lines.append(
            f'  label={label}; labeljust=l; style="rounded,filled"; {rim}; fontcolor="{FAINT}"; '
            f'fontsize=10; fillcolor="{frame_fill(item)}"; tooltip={tip};'
        )
    lines += _edges(drawn, column, number)
    return [*lines, "  }"] if many else lines


def _node(drawn: Diagram, number: int, step: int, palette: Any) -> str:
    box = box_of(drawn, number, drawn.columns[number].items[step], palette)
    label = quoted("\n".join([box.title, *box.words]))
    tip = quoted("\n".join(f"{name}: {text}" for name, text in box.facts) or box.title)
    round_ = ", shape=box, peripheries=2" if box.item.count > 1 else ""
    if box.item.is_highlighted:
        round_ += f', color="{HIGHLIGHT}", penwidth={THICK_RIM}'
    return (
        f'  n{number}_{step} [label={label}, fillcolor="{box.fill}", fontcolor="{ink(box.fill)}", '
        f"tooltip={tip}{round_}];"
    )


def _edges(drawn: Diagram, column: PhaseColumn, number: int) -> list[str]:
    graph, lines = drawn.graph, []
    backward = column.phase == Phase.BACKWARD
    for edge in column.edges:
        tip = quoted(str(graph.types[graph.value_type[edge.value]]))
        # Backward points upwards.
        start, end = (edge.target, edge.source) if backward else (edge.source, edge.target)
        back = ", dir=back" if backward else ""
        lines.append(f"  n{number}_{start} -> n{number}_{end} [edgetooltip={tip}{back}];")
    return lines


def quoted(text: str) -> str:
    r"""A text as a DOT string.

    >>> print(quoted('a "b"'))
    "a \"b\""
    """
    # Graphviz reads no longer ones, and entities in them
    plain = shortened("\n".join(map(inert, text.split("\n"))), LONGEST).replace("&", "&amp;")
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
