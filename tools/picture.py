"""Draw the picture in the README: the table of a real trace, as SVG.

python tools/picture.py docs/table.svg
"""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

import torch_vis as tv

CHARACTER, LINE, MARGIN = 7.23, 16, 18
STYLE = "font: 12px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre"


def svg(text: str) -> str:
    """A text as lines of monospaced SVG on a dark ground; each line is held to its width whatever the font."""
    lines = text.splitlines()
    width = max(map(len, lines)) * CHARACTER + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN
    rows = []
    for number, line in enumerate(lines):
        if line.strip():
            body = line.lstrip(" ")
            x = MARGIN + (len(line) - len(body)) * CHARACTER
            y = MARGIN + LINE * (number + 0.75)
            colour = "#7ee787" if line.startswith("check:") else "#e6edf3"
            rows.append(
                f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" textLength="{len(body) * CHARACTER:.1f}" '
                f'xml:space="preserve">{escape(body)}</text>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" style="{STYLE}">'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>{"".join(rows)}</svg>\n'
    )


def main() -> None:
    """Trace BERT-base in training mode and draw what ``print`` and ``check`` say."""
    parser = argparse.ArgumentParser(description="Draw the README's picture.")
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    torch.manual_seed(0)
    trace = tv.trace(BertModel(BertConfig()).train(), torch.randint(0, 30522, (1, 64)), backward=True)
    path.write_text(svg(f"{trace}\n\ncheck: {trace.check()}"), encoding="utf-8")


if __name__ == "__main__":
    main()
