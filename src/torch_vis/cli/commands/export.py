"""Write a trace, or a model that is traced for it, as a file for another tool; the ending says which."""

from __future__ import annotations

from typing import Any

from torch_vis.cli import model_spec, targets
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.targets import trace_of
from torch_vis.errors import UsageError

EXAMPLES = (
    ("for Netron and for Perfetto", "torch-vis export net.tvz -o net.onnx -o net.perfetto.json"),
    ("a report of a model in one file of text", "torch-vis export net.py:make_model --input 2x8 -o net.md"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser, positional="FILE|MODEL")
    model_spec.add_trace_options(parser)
    targets.add_output_option(parser)


def run(options: Any, out: Output) -> int:
    """Load or trace, then write."""
    if not options.output:
        raise UsageError("where to? name a file: -o model.onnx")
    targets.can_write(options.output, options.format)
    ranks = targets.world(options.target)
    written = targets.write(ranks or trace_of(options, "export"), options.output, options.format, out)
    out.give({"files": written}, "")
    return 0
