"""Run a script as it is, and trace one step of it.

The script (or with -m, a module) runs as Python would run it, with the arguments that follow it; options of
torch-vis stand before it. A training step goes from the end of one optimizer.step() to the end of the next. Traced is
the second one, or the first call of the model where nothing is trained. The report is written at once and the script
goes on, at its usual speed; its exceptions and its exit code are its own. Under torchrun every rank is traced (of more
than 16, some), and rank 0 writes one file with all of them.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

from torch_vis.cli import targets
from torch_vis.cli.command_table import PROGRAM
from torch_vis.cli.main import ScriptRaised
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.script.job import (
    Job,
    axes_of,
    collect,
    is_written,
    leave,
    note_written,
    rank_number,
    set_surroundings,
    store,
    usual_surroundings,
)
from torch_vis.cli.script.script import Script, prepare, show_as_its_own, when_torch_is_loaded
from torch_vis.errors import TorchVisError, UsageError, no_match

if TYPE_CHECKING:
    from torch_vis._trace import Trace
    from torch_vis.cli.script.simulated import ScriptRank
    from torch_vis.cli.script.steps import LabelledTrace, Wanted, Watch

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
# how long rank 0 waits for the trace of another rank, once it has its own
PATIENCE_SECONDS = 120.0
# how long a rank that is told to end has for it, before it is taken to hang; torchrun kills after 30 seconds
STUCK_SECONDS = 3.0
# the exit code of a rank that is not there and waits for the shapes of another, and the file that says of which
WAITS, NEEDED = 75, "needed"


class Stop(SystemExit):
    """Ends the script where ``--stop`` says so."""


class Terminated(BaseException):
    """Another rank failed, and this one is told to end: it leaves what it has recorded first."""


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
    ranks = parser.add_argument_group("ranks, under torchrun")
    ranks.add_argument(
        "--ranks", metavar="0,3", help="which ranks are traced: numbers, or all (default: up to 16)"
    )
    ranks.add_argument(
        "--each",
        action="store_true",
        help="each rank writes files of its own, FILE.rN.…, and nothing is sent; torch-vis join brings them together",
    )
    ranks.add_argument(
        "--world",
        type=_axes,
        metavar="dp=4,tp=2",
        help="without torchrun: run the script by shapes as a rank of a job of so many, of which no other is there; "
        "--ranks says which (default: 0)",
    )
    # where ranks of a job that is not there, each a process, leave shapes for each other
    ranks.add_argument("--shapes", help=argparse.SUPPRESS)
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


def _axes(text: str) -> dict[str, int]:
    from torch_vis.analysis.ranks.places import Mesh

    try:
        return dict(Mesh.of(axes_of("--world", text, int)).axes)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


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
    ranks: list[int] = []
    if options.world is not None:
        ranks = _simulated_ranks(options)
        if len(ranks) > 1:
            return _run_each(options, ranks, out)
        set_surroundings(ranks[0], math.prod(options.world.values()))
        options.ranks = str(ranks[0])
    session = Session(options, out)
    targets.can_write(session.paths, options.format)
    go = prepare(script)
    job = session.job
    if job.is_first:
        on = f", on {len(job.traced)} ranks" if len(job.traced) > 1 else ""
        out.say(f"{script.name}: waiting for {session.words}{on}")
    # a rank that is not traced ends with the others
    if job.is_traced or options.stop:
        when_torch_is_loaded(session.torch_is_there)
    error: BaseException | None = None
    session.listen()
    try:
        go()
    except BaseException as raised:
        error = raised
    session.claim_the_end()
    needed = _needed(error) if options.world is not None else None
    session.begins_anew = needed is not None
    try:
        session.end(error)
    finally:
        if session.simulated is not None:
            session.simulated.__exit__(None, None, None)
    if session.told_to_end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    if error is None or isinstance(error, Stop):
        return session.result()
    if needed is not None:
        if options.shapes is None:
            return _run_each(options, ranks, out)
        with open(os.path.join(options.shapes, NEEDED), "w", encoding="utf-8") as file:
            file.write(str(needed))
        return WAITS
    if not isinstance(error, SystemExit):
        show_as_its_own(error)
    elif error.code in (None, 0):
        return session.result()
    out.give(session.document, "")
    raise ScriptRaised(error)


def _simulated_ranks(options: Any) -> list[int]:
    """The ranks of a job that is not there which the script is to run as."""
    if "WORLD_SIZE" in os.environ and os.environ["WORLD_SIZE"] != "1":
        raise UsageError("--world simulates a job, and torchrun started this one; leave one of the two out")
    count = math.prod(options.world.values())
    if options.ranks == "all":
        return list(range(count))
    words = (options.ranks or "0").split(",")
    return sorted({rank_number(word, count) for word in words})


def _needed(error: BaseException | None) -> int | None:
    """The rank that has to say its shapes first, if that is what ended a script."""
    if not isinstance(error, UsageError):
        return None
    from torch_vis.capture.fake_ranks import ShapesMissing

    return error.rank if isinstance(error, ShapesMissing) else None


def _run_each(options: Any, ranks: list[int], out: Output) -> int:
    """Run the script once for each rank, in a process of its own, and join what they leave."""
    from torch_vis.analysis.ranks.gathering import join

    script: Script = options.script
    paths = list(options.output) or [f"{script.stem}.tvz"]
    targets.can_write(paths, options.format)
    with tempfile.TemporaryDirectory() as folder:
        done: dict[int, str] = {}
        for rank in ranks:
            _run_rank(options, rank, folder, done, out)
        joined = join([done[rank] for rank in ranks], partial=True)
        assert joined is not None
        for path in paths:
            if len(ranks) > 1:
                joined.save(path, format=options.format)
            else:
                joined[ranks[0]].save(path, format=options.format)
            out.say(f"wrote {path}, {len(joined)} rank{'s' if len(joined) > 1 else ''}")
    out.give(
        {
            "script": script.name,
            "ranks": joined.ranks,
            "files": paths,
            "problems": [str(p) for p in joined.problems],
        },
        joined.table(),
    )
    return 1 if joined.problems else 0


def _run_rank(options: Any, rank: int, folder: str, done: dict[int, str], out: Output) -> None:
    """Run the script as a rank, after those that have to say their shapes first; ``done`` has the file of each."""
    waiting = [rank]
    while waiting:
        rank = waiting[-1]
        if rank in done:
            waiting.pop()
            continue
        file = os.path.join(folder, f"rank.r{rank}.tvz")
        said = len(os.listdir(folder))
        out.say(f"{options.script.name}: as rank {rank} of {math.prod(options.world.values())}")
        words = _words(options, rank, file, folder)
        code = subprocess.run(words, env=usual_surroundings(), check=False).returncode
        needed = os.path.join(folder, NEEDED)
        if code == WAITS and os.path.exists(needed):
            with open(needed, encoding="utf-8") as text:
                first = int(text.read())
            os.remove(needed)
            if first in waiting and len(os.listdir(folder)) == said:
                raise UsageError(f"ranks {rank} and {first} wait for shapes of each other")
            waiting.append(first)
        elif code or not os.path.exists(file):
            raise UsageError(f"the script ended with code {code} on rank {rank}")
        else:
            done[rank] = file


def _words(options: Any, rank: int, file: str, folder: str) -> list[str]:
    """The command that runs the script as one rank."""
    script: Script = options.script
    world = ",".join(f"{axis}={count}" for axis, count in options.world.items())
    words = ["run", "-q", "--world", world, "--ranks", str(rank), "--shapes", folder, "-o", file]
    words += ["--stop"] if options.stop else []
    words += ["--module", options.module] if options.module else []
    words += ["--step", str(options.step)] if options.step else []
    words += ["--steps", "{}:{}".format(*options.steps)] if options.steps else []
    words += [*(["-m"] if script.is_module else []), script.name, *script.arguments]
    return [sys.executable, "-m", "torch_vis", *words]


def _many(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


class Session:
    """One run of a script: what is to be recorded, and what was."""

    def __init__(self, options: Any, out: Output) -> None:
        self.options = options
        self.out = out
        self.job = Job.here(options.ranks)
        self.paths: list[str] = list(options.output) or [
            f"{options.script.stem}{ending}" for ending in (".tvz", ".html")
        ]
        if options.each and self.job.world_size > 1:
            self.paths = [self.job.own_path(path) for path in self.paths]
        self.watch: Watch | None = None
        self.rank: ScriptRank | None = None
        self.simulated: Any = None
        # another rank may be gone then, so that each writes for itself
        self.ended_badly = False
        self.begins_anew = False
        """Whether the script is run again, once it can be told the shapes that it lacks."""
        self.unwritten: Trace | None = None
        """A trace that waits for those of the other ranks."""
        self.is_over, self.told_to_end = False, False
        self._guards: threading.Thread | None = None
        self._ending = threading.Lock()
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

        say = self.out.say if self.job.is_first else lambda line: None
        self.watch = Watch(self._wanted(), say, self._report)
        if self.options.world is not None:
            from torch_vis.capture.undo import passage_of
            from torch_vis.cli.script.simulated import ScriptRank

            rank = ScriptRank(self.options.world, self.job.rank, self.job.world_size, self.options.shapes)
            self.simulated = passage_of(rank)
            self.simulated.enter()
            self.rank = rank
            self.watch.substitutes = rank.fake.above
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

    def _report(self, step: LabelledTrace) -> None:
        """Write what was recorded; whatever fails at it is none of the script's business."""
        from torch_vis.graph.text import duration, many

        if self.begins_anew:
            return
        trace = step.trace
        trace.meta.update(script=self.options.script.name, traced=step.label)
        took = duration(trace.meta["wall_ns"])
        job, each = self.job, self.options.each or self.ended_badly
        if job.is_first or each:
            of = f"rank {job.rank}, " if job.world_size > 1 else ""
            self.out.say(f"{of}{step.label}: {many(len(trace.graph), 'operation')} in {took}")
        try:
            if self.rank is not None:
                from torch_vis.analysis.ranks.places import Mesh

                self.rank.describe(trace, Mesh.of(self.options.world).place(self.job.rank))
            written = self._write_own(trace) if each or len(job.traced) == 1 else self._write_all(trace)
        except (TorchVisError, OSError) as error:
            self.failed = f"the trace could not be written: {error}"
            self.out.say(self.failed)
            return
        self.document = {
            "script": self.options.script.name,
            "traced": step.label,
            **targets.facts(trace),
            "files": written,
        }
        if self.options.stop and sys.exc_info()[0] is None:
            raise Stop(0)

    def _write_own(self, trace: Trace) -> list[str]:
        """The files of this rank alone."""
        if not self.job.is_traced:
            return []
        paths = self.paths
        if self.ended_badly and self.job.world_size > 1 and not self.options.each:
            paths = [self.job.own_path(path) for path in paths]
        return targets.write(trace, paths, self.options.format, self.out)

    def _write_all(self, trace: Trace) -> list[str]:
        """On the first rank the files of all; the others send theirs."""
        where = store()
        job, label = self.job, trace.meta["traced"]
        if where is None:
            return self._write_own(trace) if job.is_first else []
        if not job.is_first:
            if job.is_traced:
                leave(where, label, job, trace)
                self.unwritten = trace
            return []
        from torch_vis.analysis.ranks.gathering import world_of
        from torch_vis.graph.text import many

        self.unwritten = trace
        traces = {job.rank: trace, **collect(where, label, job, PATIENCE_SECONDS)}
        self.unwritten = None
        missing = sorted(set(job.traced) - set(traces))
        if missing:
            self.out.say(f"ranks that sent no trace: {', '.join(map(str, missing))}")
        world = world_of(traces, partial=len(traces) < job.world_size)
        for problem in world.problems[:10]:
            self.out.say(str(problem))
        together = [path for path in self.paths if targets.takes_ranks(path, self.options.format)]
        for path in together:
            world.save(path, format=self.options.format)
            self.out.say(f"wrote {path}, {many(len(world), 'rank')}")
        rest = [path for path in self.paths if path not in together]
        written = together + targets.write(trace, rest, self.options.format, self.out)
        note_written(where, label, job)
        return written

    def listen(self) -> None:
        """From here on, a rank that is told to end because another failed leaves what it has first."""
        is_main = threading.current_thread() is threading.main_thread()
        if self.job.world_size > 1 and is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._told_to_end)
            # a rank that hangs stands in C++ code, and Python's handler waits for that to return: a thread does not
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            if signal.set_wakeup_fd(writer, warn_on_full_buffer=False) == -1:
                self._guards = threading.Thread(target=self._guard, args=(reader,), daemon=True)
                self._guards.start()

    def claim_the_end(self) -> None:
        """On the main thread: the script is over; if the guard is writing already, it is let end the process."""
        with self._ending:
            guarded, self.is_over = self.is_over, True
        if guarded and self._guards is not None:
            # the other ranks ended first, and what this one waited for has failed
            self._guards.join()

    def _guard(self, signals: int) -> None:
        """On a thread: leave what a rank has recorded that is told to end while it waits for another."""
        while signal.SIGTERM not in os.read(signals, 64):
            pass
        time.sleep(STUCK_SECONDS)
        with self._ending:
            if self.told_to_end or self.is_over:
                return
            self.is_over = True
        self.out.say(f"rank {self.job.rank} hangs; this is what it did so far")
        try:
            self.end(Terminated())
        finally:
            os._exit(128 + signal.SIGTERM)

    def _told_to_end(self, *_: Any) -> None:
        self.told_to_end = True
        if not self.is_over:
            raise Terminated

    def end(self, error: BaseException | None) -> None:
        """The script has ended, in one way or another."""
        if self.watch is None:
            return
        steps = self.watch.steps
        # the other ranks of a job wait for one that gives up
        gave_up = self.job.world_size > 1 and isinstance(error, SystemExit) and error.code not in (None, 0)
        self.ended_badly = error is not None and (gave_up or not isinstance(error, SystemExit))
        unwritten, self.unwritten = self.unwritten, None
        if unwritten is not None and self.ended_badly:
            # the others did not come in time, or the first one did not
            where = None if self.job.is_first else store()
            if where is None or not is_written(where, unwritten.meta["traced"], self.job):
                self.document["files"] = self._write_own(unwritten)
        try:
            self.watch.end(error if self.ended_badly else None)
        except Stop:
            pass  # it has ended anyway
        if self.document["traced"] is None:
            self.document["steps"] = steps
        elif steps and self.document["traced"].startswith("call") and not self.options.module:
            self.out.say(f"it made {_many(steps, 'training step')}; --step N traces one of them")

    def result(self) -> int:
        """The exit code of a script that ended well."""
        if self.failed is not None and self.out.quiet and not self.out.as_json:
            return self.out.fail(self.failed, 2)
        if self.failed is not None or self.document["traced"] is not None:
            self.out.give(self.document, "")
            return 2 if self.failed is not None else 0
        if not self.job.is_first:
            return 0
        if self.watch is None:
            return self.out.fail("nothing was traced: the script did not import torch", 2)
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
