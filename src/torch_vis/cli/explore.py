"""Walk through a trace or a model in the terminal: the module tree, its figures, source, operations."""

from __future__ import annotations

import sys
from typing import Any

from torch_vis.cli import models
from torch_vis.cli.landing import part
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.subjects import trace_of
from torch_vis.errors import UsageError

EXAMPLES = (
    ("a trace that was saved", "torch-vis explore net.tvz"),
    ("a model, traced forward and backward", "torch-vis explore net.py:make_model --input 2x8 --backward"),
)
TRUST = "load a pickle as it is: it can run any code on this machine, so only for files from people you trust"


def add_options(parser: Parser) -> None:
    """Its options."""
    models.add_model_options(parser, positional="FILE|MODEL")
    models.add_trace_options(parser)
    parser.add_argument("--trust", action="store_true", help=TRUST)


def run(options: Any, out: Output) -> int:
    """Open the explorer."""
    if options.json:
        raise UsageError("the explorer is for people; torch-vis summary --json gives the same as data")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the explorer needs a terminal; torch-vis summary prints the same tree anywhere")
    trace = trace_of(options)
    part(trace, "explore", "explorer")()
    return 0
