"""Run a script as it is, and trace one step of it.

The script (or with -m, a module) runs as Python would run it, with the arguments that follow it; options of
torch-vis stand before it. A training step goes from the end of one optimizer.step() to the end of the next. Traced is
the second one, or the first call of the model where nothing is trained. The report is written at once and the script
goes on, at its usual speed; its exceptions and its exit code are its own. Under torchrun, rank 0 is traced.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from torch_vis.cli.commands.table import PROGRAM
from torch_vis.cli.main import ScriptRaised
from torch_vis.cli.models import targets
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.script.script import Script, prepare, show_as_its_own, when_torch_is_loaded
from torch_vis.errors import TorchVisError, UsageError, no_match

if TYPE_CHECKING:
    from torch_vis.cli.script.steps import Found, Wanted, Watch

USAGE = f"{PROGRAM} run [options] (SCRIPT | -m MODULE) [arguments of the script ...]"
EXAMPLES = (
    ("the second training step, into train.tvz and a report beside it", "torch-vis run train.py --lr 0.1"),
    (
        "the third one into files of your choice, and no more of the script",
        "torch-vis run --step 3 --stop -o step.tvz -o step.md train.py",
    ),
    (
        "the first call of one module, in a script that is a module",
        "torch-vis run --module a -o a.svg -m train --lr 0.1",
    ),
)


class Stop(SystemExit):
    """Ends the script where ``--stop`` says so."""


def add_options(parser: Parser) -> None:
    """Its options."""
    which = parser.add_argument_group("what is traced")
    choice = which.add_mutually_exclusive_group()
    choice.add_argument(
        "--step",
        type=_count,
        metavar="N",
        help="this training step, or call of the model (default: 2, or call 1)",
    )
    choice.add_argument(
        "--steps", type=_span, metavar="A:B", help="the steps from A up to B, both included, in one trace"
    )
    which.add_argument(
        "--module",
        metavar="NAME",
        help="calls of this module (its path or its class), with their backward, and nothing else; "
        "with --step, the N-th",
    )
    which.add_argument("--stop", action="store_true", help="end the script when the trace is written")
    targets.add_output_option(parser)
    parser.add_argument(
        "-m",
        dest="module_name",
        metavar="MODULE",
        help="run a module, as python -m does; the script's arguments follow",
    )


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"steps are counted from 1 up, {text!r} is none")
    return int(text)


def _span(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not colon or not (first.isdigit() and last.isdigit()) or not 1 <= int(first) <= int(last):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with 1 ≤ A ≤ B, as in 1:3")
    return int(first), int(last)


def read(parser: Parser, words: list[str]) -> Any:
    """The options up to the script; all that follows is the script's."""
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-", "--"):
        action = parser._option_string_actions.get(words[index])
        takes = action is not None and action.nargs is None
        index += 2 if takes else 1
        if action is not None and action.dest == "module_name":
            break
        if words[index - 1].startswith("-m") and words[index - 1] not in ("-m",) and action is None:
            break  # -mpackage.module
    options = parser.parse_args(words[:index])
    rest = words[index:]
    if rest[:1] == ["--"] and options.module_name is None:
        rest = rest[1:]
    if options.module_name is None and not rest:
        raise UsageError(f"which script? {USAGE}")
    name = options.module_name if options.module_name is not None else rest.pop(0)
    options.script = Script(name, options.module_name is not None, tuple(rest))
    return options


def run(options: Any, out: Output) -> int:
    """Run the script to its end; what it raises is carried out as it was."""
    script: Script = options.script
    session = Session(options, out)
    targets.can_write(session.paths, options.format)
    go = prepare(script)
    if os.environ.get("RANK", "0") in ("", "0"):
        out.say(f"{script.name}: waiting for {session.words}")
        when_torch_is_loaded(session.torch_is_there)
    error: BaseException | None = None
    try:
        go()
    except BaseException as raised:
        error = raised
    session.end(error)
    if error is None or isinstance(error, Stop):
        return session.result()
    if not isinstance(error, SystemExit):
        show_as_its_own(error)
    elif error.code in (None, 0):
        return session.result()
    out.give(session.document, "")
    raise ScriptRaised(error)


def _many(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


class Session:
    """One run of a script: what is wanted of it, and what came of that."""

    def __init__(self, options: Any, out: Output) -> None:
        self.options = options
        self.out = out
        self.paths: list[str] = list(options.output) or [
            f"{options.script.stem}{ending}" for ending in (".tvz", ".html")
        ]
        self.watch: Watch | None = None
        self.failed: str | None = None
        self.document: dict[str, Any] = {"script": options.script.name, "traced": None, "files": []}

    @property
    def words(self) -> str:
        """What is waited for."""
        options = self.options
        span = f"{options.steps[0]} to {options.steps[1]}" if options.steps else options.step
        if options.module:
            return f"call {span or 1} of {options.module}"
        return f"step {span}" if span else "training step 2, or the first call of a model"

    def torch_is_there(self) -> None:
        """Torch has been imported: begin to watch."""
        from torch_vis.cli.script.steps import Watch

        self.watch = Watch(self._wanted(), self.out.say, self._report)
        self.watch.install()

    def _wanted(self) -> Wanted:
        from torch_vis.cli.script.steps import Span, Wanted

        options = self.options
        span = (
            Span(*options.steps)
            if options.steps
            else Span(options.step, options.step)
            if options.step
            else None
        )
        return Wanted(span or Span(2, 2), span or Span(1, 1), options.module)

    def _report(self, found: Found) -> None:
        """Write what was recorded; whatever fails at it is none of the script's business."""
        from torch_vis.graph.text import duration, many

        trace = found.trace
        trace.meta.update(script=self.options.script.name, traced=found.label)
        took = duration(trace.meta["wall_ns"])
        self.out.say(f"{found.label}: {many(len(trace.graph), 'operation')} in {took}")
        try:
            written = targets.write(trace, self.paths, self.options.format, self.out)
        except (TorchVisError, OSError) as error:
            self.failed = f"the trace could not be written: {error}"
            self.out.say(self.failed)
            return
        self.document = {
            "script": self.options.script.name,
            "traced": found.label,
            **targets.facts(trace),
            "files": written,
        }
        if self.options.stop and sys.exc_info()[0] is None:
            raise Stop(0)

    def end(self, error: BaseException | None) -> None:
        """The script has ended, in one way or another."""
        if self.watch is None:
            return
        steps = self.watch.steps
        try:
            self.watch.end(error if not isinstance(error, SystemExit) else None)
        except Stop:
            pass  # it has ended anyway
        if self.document["traced"] is None:
            self.document["steps"] = steps
        elif steps and self.document["traced"].startswith("call") and not self.options.module:
            self.out.say(f"it made {_many(steps, 'training step')}; --step N traces one of them")

    def result(self) -> int:
        """The exit code of a script that ended well."""
        if self.failed is not None or self.document["traced"] is not None:
            self.out.give(self.document, "")
            return 2 if self.failed is not None else 0
        if self.watch is None:
            what = "" if os.environ.get("RANK", "0") in ("", "0") else None
            return (
                0 if what is None else self.out.fail("nothing was traced: the script did not import torch", 2)
            )
        return self.out.fail(f"nothing was traced: {self.words} never came{self._instead()}", 2)

    def _instead(self) -> str:
        """What the script did in the place of what was waited for."""
        from torch_vis.cli.script import module_calls

        assert self.watch is not None
        name, seen = self.options.module, sorted(module_calls.names)
        if name and seen and not self.watch.calls:
            return f": {no_match('module', name, seen)}"
        if self.watch.steps and not name:
            return f"; the script made {_many(self.watch.steps, 'training step')}"
        of = name or "a model"
        return f"; the script made {_many(self.watch.calls, 'call')} of {of}"
