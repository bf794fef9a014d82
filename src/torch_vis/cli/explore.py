"""Walk through a trace or a model in the terminal: the module tree, its figures, source, operations."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch_vis.cli import files, models
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.errors import FileError, UsageError

EXAMPLES = (
    ("a trace that was saved", "torch-vis explore net.tvz"),
    ("a model, traced forward and backward", "torch-vis explore net.py:make_model --input 2x8 --backward"),
    ("a model that has not run, or the weights of one", "torch-vis explore net.py:make_model"),
)
TRUST = "load a pickle as it is: it can run any code on this machine, so only for files from people you trust"


def add_options(parser: Parser) -> None:
    """Its options."""
    models.add_model_options(parser, positional="FILE|MODEL")
    models.add_trace_options(parser)
    parser.add_argument("--against", metavar="FILE|MODEL", help="a second one, to compare with")
    parser.add_argument("--trust", action="store_true", help=TRUST)


def run(options: Any, out: Output) -> int:
    """Open the explorer."""
    if options.json:
        raise UsageError("the explorer is for people; torch-vis summary --json gives the same as data")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the explorer needs a terminal; torch-vis summary prints the same tree anywhere")
    import torch_vis as tv

    against = _opened(options.against, options)[0] if options.against else None
    shown, trace = _opened(options.target, options)
    tv.explore_model(shown, trace=trace, against=against, trust=options.trust)
    return 0


def _opened(word: str | None, options: Any) -> tuple[Any, Any]:
    """What the explorer is given: the path of a file, or a model with its trace if a run was asked for."""
    if files.is_trace(word):
        if not os.path.exists(str(word)):
            raise FileError(f"there is no file {word!r}")
        return word, None
    found = models.subject(options, word, needs_inputs=False)
    asked = options.input or options.backward or options.loss or options.via
    return found.model, models.traced(found, options, keep=False) if asked else None
