"""Say in what two traces or models differ: modules, operations, shapes, costs; the exit code is 1 if they do."""

from __future__ import annotations

from typing import Any

from torch_vis.cli import models
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.subjects import trace_of
from torch_vis.errors import UsageError

EXAMPLES = (
    ("two traces", "torch-vis compare net.tvz wide.tvz"),
    ("two models on the same inputs", "torch-vis compare net.py:make_model net.py:make_wide --input 2x8"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    models.add_model_options(parser, positional="FILE|MODEL", many=True)
    models.add_trace_options(parser)


def run(options: Any, out: Output) -> int:
    """Compare, and print what differs."""
    import torch_vis as tv

    if len(options.target) != 2:
        raise UsageError(f"compare takes two traces or models, not {len(options.target)}")
    before, after = (trace_of(options, word=word) for word in options.target)
    found = tv.compare(before, after)
    out.give(found.to_plain(), str(found))
    return int(not found.same)
