"""Trace a model: run it once on random inputs, print its module tree, and save the trace."""

from __future__ import annotations

from typing import Any

from torch_vis.cli.commands.summary import add_table_options
from torch_vis.cli.models import files
from torch_vis.cli.models import model_spec as models
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser

EXAMPLES = (
    (
        "forward and backward of a model of yours, as two files",
        "torch-vis trace net.py:make_model --input 2x8 --backward -o net.tvz -o net.svg",
    ),
    ("inputs by name, token ids below 100", "torch-vis trace net.py:Embedder --input ids=2x16:int64:0..100"),
    (
        "shapes only, so that the size of the model does not matter",
        "torch-vis trace --hf bert --fake --backward",
    ),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    models.add_model_options(parser)
    models.add_trace_options(parser)
    add_table_options(parser)
    files.add_output_option(parser)


def run(options: Any, out: Output) -> int:
    """Trace, print and save."""
    files.can_write(options.output, options.format)
    found = models.subject(options)
    trace = models.traced(found, options, keep=False)
    written = files.write(trace, options.output, options.format, out)
    document = {**files.facts(trace), "files": written}
    out.give(document, "" if options.quiet else trace.table(depth=options.depth, width=options.width))
    return 0
