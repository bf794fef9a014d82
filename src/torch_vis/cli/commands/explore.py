"""Walk through a trace or a model in the terminal: the module tree, its figures, source, operations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch_vis.cli import model_spec, targets
from torch_vis.cli.command_table import PROGRAM
from torch_vis.cli.commands import summary
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.errors import UsageError

if TYPE_CHECKING:
    from torch_vis.views.terminal.source import Source

EXAMPLES = (
    ("a trace that was saved", "torch-vis explore net.tvz"),
    ("a model, traced forward and backward", "torch-vis explore net.py:make_model --input 2x8 --backward"),
    ("the weights of a model, of which nothing has to run", "torch-vis explore net.pth"),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser, positional="FILE|MODEL")
    model_spec.add_trace_options(parser)
    parser.add_argument("--against", metavar="FILE|MODEL", help="a second one, to compare with")
    targets.add_trust_option(parser)


def run(options: Any, out: Output) -> int:
    """Open the explorer; as data, or where there is no terminal, the summary says the same."""
    if options.json:
        options.depth, options.width = "auto", None
        return summary.run(options, out)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            f"the explorer needs a terminal; {PROGRAM} summary {options.target or '…'} prints the tree anywhere"
        )
    from torch_vis.views.terminal import needs_textual, program
    from torch_vis.views.terminal import run as show

    needs_textual()  # before a model runs for it
    out.say(f"opening {options.target or 'the model'} …")  # torch alone may take seconds
    against = _opened(options.against, options) if options.against else None
    show(program(_opened(options.target, options), against=against))
    return 0


def _opened(word: str | None, options: Any) -> Source:
    """What the explorer shows: what is in a file, or a model, with its run if one was asked for."""
    if targets.is_weights(word):
        return targets.opened(str(word), trust=options.trust)
    if targets.is_trace(word):
        ranks = targets.world(word)
        if ranks is not None:
            from torch_vis.interfaces.explorer.world_source import WorldSource

            return WorldSource(ranks)
        from torch_vis.interfaces.explorer.trace_source import TraceSource

        return TraceSource(targets.load(str(word)))
    subject = model_spec.subject(options, word, needs_inputs=False)
    asked = options.input or options.backward or options.loss or options.via
    trace = model_spec.traced(subject, options) if asked else None
    from torch_vis.interfaces.explorer.explorer import source_of

    source = source_of(subject.model, trace=trace)
    if options.against:
        source.title = subject.label
    return source
