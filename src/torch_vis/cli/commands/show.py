"""Open the page of a trace, or of a model that is traced for it, in the browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch_vis.cli import model_spec, targets
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.targets import trace_of
from torch_vis.errors import FileError

EXAMPLES = (
    ("a trace that was saved", "torch-vis show net.tvz"),
    (
        "a model; the page stays where -o says",
        "torch-vis show net.py:make_model --input 2x8 -o net.html --no-browser",
    ),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser, positional="FILE|MODEL")
    model_spec.add_trace_options(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where the page is written (default: a temporary folder)"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="write the page and say where, but do not open it"
    )


def run(options: Any, out: Output) -> int:
    """Write the page and open it."""
    word = options.target
    if word and word.lower().endswith((".html", ".htm")):
        if not os.path.isfile(word):
            raise FileError(f"there is no file {word!r}")
        path = os.path.abspath(word)
    else:
        path = os.path.abspath(options.output or _temporary(word))
        targets.can_write([path], None)
        (targets.world(word) or trace_of(options, "show")).save(path)
    from torch_vis.views.page.show import open_in_browser

    opened = not options.no_browser and open_in_browser(Path(path))
    out.give(
        {"page": path, "opened": opened},
        path if opened or options.no_browser else f"{path}\nopen it in a browser: there is none here",
    )
    return 0


def _temporary(word: str | None) -> str:
    import tempfile

    stem = os.path.basename(word or "model").replace(":", "-")
    return os.path.join(tempfile.mkdtemp(prefix="torch-vis-"), f"{stem}.html")
