"""Print the module tree of a saved trace, or of a model that is traced for it: shapes, parameters, time, memory.

Of a file of weights (.pt, .pth, .safetensors, .pt2, .onnx …) it is the tree of the tensors.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from torch_vis.cli import model_spec, targets
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.targets import trace_of

EXAMPLES = (
    ("a trace that was saved", "torch-vis summary net.tvz"),
    ("what is in a file of weights", "torch-vis summary net.pth"),
    ("a model, as data for another program", "torch-vis summary net.py:make_model --input 2x8 --json"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser, positional="FILE|MODEL")
    model_spec.add_trace_options(parser)
    add_table_options(parser)
    targets.add_trust_option(parser)


def add_table_options(parser: Parser) -> None:
    """The options of the table."""
    parser.add_argument(
        "--depth", type=_depth, default="auto", help="levels of modules, or all (default: what fits)"
    )
    parser.add_argument("--width", type=int, help="of the lines (default: the terminal's)")


def _depth(text: str) -> int | str | None:
    if text in ("auto", "all"):
        return None if text == "all" else text
    if not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"levels are a number from 1 up, or all, not {text!r}")
    return int(text)


def run(options: Any, out: Output) -> int:
    """Print the tree."""
    if targets.is_weights(options.target):
        return targets.give(targets.opened(options.target, trust=options.trust), options, out)
    if not targets.is_trace(options.target):
        subject = model_spec.subject(options, needs_inputs=False)
        if not subject.can_run:
            return _without_run(subject, out)
        trace = model_spec.traced(subject, options, keep=False)
    else:
        trace = trace_of(options, "summary")
    document = {**targets.facts(trace), "modules": _modules(trace)} if options.json else None
    out.give(document, "" if options.json else trace.table(depth=options.depth, width=options.width))
    return 0


def _without_run(subject: model_spec.Subject, out: Output) -> int:
    """The tree of a model that cannot run for want of inputs."""
    import json

    import torch_vis as tv

    if out.as_json:
        out.give(json.loads(tv.export_model_summary(subject.model, format="json")), "")
    else:
        out.give(None, tv.export_model_summary(subject.model, format="text"))
    return 0


def _modules(trace: Any) -> list[dict[str, Any]]:
    """The module tree as flat records, in reading order."""
    from torch_vis.analysis.summary import module_summaries
    from torch_vis.graph.module_table import ModuleTable

    return [row._asdict() for row in module_summaries(ModuleTable(trace.graph, trace.metrics))]
