"""Prove a trace: run the recorded graph again in order, pruned and shuffled, and compare every result bit for bit.

A model is traced and proved. A file holds no tensors, so of a file only the rules of the graph can be checked.
"""

from __future__ import annotations

from typing import Any

from torch_vis.cli import model_spec, targets
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.targets import trace_of
from torch_vis.errors import CheckFailed, GraphError, UsageError

EXAMPLES = (
    ("the forward and backward pass of a model", "torch-vis check net.py:make_model --input 2x8 --backward"),
    ("and which inputs each output depends on", "torch-vis check net.py:make_model --input 2x8 --inputs"),
    ("the rules of a saved graph", "torch-vis check net.tvz"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser, positional="FILE|MODEL")
    model_spec.add_trace_options(parser)
    parser.add_argument("--inputs", action="store_true", help="perturb each input as well")
    parser.add_argument("--shuffles", type=int, default=2, help="how many random orders (default: 2)")


def run(options: Any, out: Output) -> int:
    """Check, and say what was proved."""
    if options.fake:
        raise UsageError("a model of shapes only (--fake) has no results to compare")
    is_file = targets.is_trace(options.target)
    trace = trace_of(options, "check", keep=True)
    try:
        if is_file:
            trace.graph.check()
            proved = f"{len(trace.graph):,} operations keep the rules of a graph; a replay needs the model, not a file"
        else:
            proved = str(trace.check(inputs=options.inputs, shuffles=options.shuffles))
    except (CheckFailed, GraphError) as error:
        out.give({"ok": False, "said": str(error)}, str(error))
        return 1
    out.give({"ok": True, "said": proved, "operations": len(trace.graph)}, proved)
    return 0
