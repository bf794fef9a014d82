"""The program text behind a module, coloured, with the lines that matter in sight."""

from __future__ import annotations

from rich.style import Style
from rich.syntax import Syntax
from rich.text import Span, Text

from torch_vis.views.terminal.panels.panel_canvas import PanelCanvas
from torch_vis.views.terminal.source import Source


def draw(source: Source, row: int, canvas: PanelCanvas, *, dark: bool = True) -> None:
    """Fill the panel."""
    found = source.source_code(row)
    if found is None:
        canvas.missing(
            "There is no program text for this: it was made at run time, is compiled, or its file is not here."
        )
        return
    canvas.heading(
        found.title or source.forest.types[row], f"{_tail(found.file)}:{(found.marks or (found.first,))[0]}"
    )
    theme = "monokai" if dark else "friendly"
    code = Syntax(found.text, found.language, theme=theme, background_color="default")
    lines = code.highlight(found.text.rstrip("\n")).split("\n", allow_blank=True)
    wide = len(str(found.first + len(lines)))
    for number, line in enumerate(lines, found.first):
        marked = number in found.marks
        if marked and canvas.goal is None:
            canvas.goal = len(canvas.lines)
        place = canvas.colours.sorted if marked else canvas.colours.faint
        edge = Text.assemble((f"{number:>{wide}} ", place), ("▌" if marked else " ", canvas.colours.sorted))
        canvas.lines.append(edge + _groundless(line))


def _groundless(line: Text) -> Text:
    """A coloured line without the ground that its colours were made for: the panel has its own."""
    spans = []
    for start, end, style in line.spans:
        tint = style if isinstance(style, Style) else Style.parse(style)
        spans.append(Span(start, end, Style(color=tint.color, bold=tint.bold, italic=tint.italic)))
    return Text(line.plain, spans=spans)


def _tail(file: str) -> str:
    """A file by its path in its package, or by its last parts."""
    _, found, inside = file.replace("\\", "/").rpartition("/site-packages/")
    return inside if found else "/".join(file.replace("\\", "/").split("/")[-3:])
