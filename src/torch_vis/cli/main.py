"""The program itself: find the command, read its options, run it, and turn what goes wrong into a line and a code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from torch_vis.cli.command_table import COMMANDS, PROGRAM, load
from torch_vis.cli.import_path import UsersCodeFailed
from torch_vis.cli.output import Output, in_flags, write
from torch_vis.cli.parser import overview, parser_of
from torch_vis.cli.task_table import tasks
from torch_vis.errors import CheckFailed, GraphError, TorchVisError, UsageError, needs_torch, no_match

FOUND, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


class ScriptRaised(BaseException):
    """Carries an exception of the user's script past our own handlers, to be re-raised unchanged."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``torch-vis`` with these arguments (or the process's own) and give its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"] and len(words) > 1:
        if words[1] not in COMMANDS:
            return _help(words[1:])
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        write(overview(), sys.stdout)
        return 0
    if words[0] in ("-V", "--version") or (words[:1] == ["--json"] and words[1:2] in (["-V"], ["--version"])):
        from torch_vis import __version__

        Output(as_json="--json" in words).give({"version": __version__}, f"{PROGRAM} {__version__}")
        return 0
    try:
        return _answer(words)
    except ScriptRaised as carried:
        error = carried.error
    raise error  # outside of the handler, so that no context is added to it


def _help(words: list[str]) -> int:
    """What to call for something that one wants to do; ``tasks`` asks for all of them."""
    about = [word for word in words if word != "--json"]
    out = Output(as_json="--json" in words)
    try:
        result = tasks(None if about in ([], ["tasks"]) else " ".join(about))
        out.give({"tasks": [task._asdict() for task in result]}, str(result), in_python=True)
    except UsageError as error:
        return out.fail(f"{one_line(error)} ({PROGRAM} help tasks lists all)", USAGE)
    finally:
        out.close()
    return 0


def _answer(words: list[str]) -> int:
    """The exit code of one command, whatever happens in it."""
    out, options = Output(), None
    try:
        command, options = _read(words)
        out = Output(as_json=options.json, quiet=options.quiet)
        return int(command.run(options, out))
    except TorchVisError as error:
        if options is None:  # the options could not be read, so --json may be among them unread
            out = Output(as_json="--json" in words)
        elif options.traceback:
            _print_traceback(error)
        text = one_line(error)
        return out.fail(
            text if isinstance(error, UsersCodeFailed) else in_flags(text),
            FOUND if isinstance(error, (CheckFailed, GraphError)) else USAGE,
        )
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return out.fail(str(needs_torch(f"{PROGRAM} {words[0]}")), USAGE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains when it flushes
        return PIPE_CLOSED
    except OSError as error:
        return out.fail(one_line(error), USAGE)
    except KeyboardInterrupt:
        return out.fail("interrupted", INTERRUPTED)
    finally:
        out.close()


def _read(words: list[str]) -> tuple[Any, Any]:
    """The command's module and its options."""
    name = words[0]
    if name.startswith("-"):
        raise UsageError(f"no option {name!r} before the command ({PROGRAM} --help lists the commands)")
    if name not in COMMANDS:
        raise no_match("command", name, COMMANDS)
    command, parser = load(name), parser_of(name)
    read = getattr(command, "read", None)
    return command, read(parser, words[1:]) if read is not None else parser.parse_args(words[1:])


def one_line(error: BaseException) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _print_traceback(error: BaseException) -> None:
    import traceback

    traceback.print_exception(error)


if __name__ == "__main__":
    sys.exit(main())
