"""Trace a model: run it once on random inputs, print its module tree, and save the trace."""

from __future__ import annotations

from typing import Any

from torch_vis.cli import model_spec, targets
from torch_vis.cli.commands.summary import add_table_options
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
    model_spec.add_model_options(parser)
    model_spec.add_trace_options(parser)
    add_table_options(parser)
    targets.add_output_option(parser)


def run(options: Any, out: Output) -> int:
    """Trace, print and save."""
    targets.can_write(options.output, options.format)
    subject = model_spec.subject(options)
    trace = model_spec.traced(subject, options, keep=False)
    written = targets.write(trace, options.output, options.format, out)
    document = {**targets.facts(trace), "files": written}
    out.give(document, "" if options.quiet else trace.table(depth=options.depth, width=options.width))
    return 0
