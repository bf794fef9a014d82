"""Say in what two traces or models differ: modules, operations, shapes, costs; the exit code is 1 if they do.

Of two files of weights (.pt, .pth, .safetensors, .pt2, .onnx …): names, shapes, types and elements.
"""

from __future__ import annotations

from typing import Any

from torch_vis.cli import models, weights
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.subjects import trace_of
from torch_vis.errors import UsageError

EXAMPLES = (
    ("two traces", "torch-vis compare net.tvz wide.tvz"),
    ("two files of weights", "torch-vis compare net.pth wide.pth"),
    ("two models on the same inputs", "torch-vis compare net.py:make_model net.py:make_wide --input 2x8"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    models.add_model_options(parser, positional="FILE|MODEL", many=True)
    models.add_trace_options(parser)
    weights.add_trust_option(parser)


def run(options: Any, out: Output) -> int:
    """Compare, and print what differs."""
    import torch_vis as tv

    if len(options.target) != 2:
        raise UsageError(f"compare takes two traces or models, not {len(options.target)}")
    if all(map(weights.is_weights, options.target)):
        return _weights(options, out)
    before, after = (trace_of(options, "compare", word=word) for word in options.target)
    found = tv.compare(before, after)
    out.give(found.to_plain(), str(found))
    return int(not found.same)


def _weights(options: Any, out: Output) -> int:
    """Compare two files of weights."""
    before, after = (weights.opened(word, trust=options.trust) for word in options.target)
    before.title, after.title = options.target
    from torch_vis.frontends.explorer_compare import compare_weights

    found = compare_weights(before, after)
    out.give(found.to_plain(), str(found))
    return int(not found.same)
