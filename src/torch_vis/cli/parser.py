"""Options as argparse reads them, with one-line errors that say what was meant, and help that ends in examples."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from torch_vis.cli.command_table import COMMANDS, PROGRAM, load
from torch_vis.cli.output import write
from torch_vis.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ``UsageError`` with one line in the place of printing usage and ending."""

    def error(self, message: str) -> NoReturn:
        """Say what was wrong with an option."""
        for dull in ("argument ", "the following arguments are "):
            message = message.removeprefix(dull)
        required = re.fullmatch(r"required: (.+)", message)
        if required:
            message = f"{required[1]} is missing"
        raise UsageError(f"{message} ({self.prog} --help says more)")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help, in whatever encoding the terminal has."""
        write(message, file or sys.stderr)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and for an option that does not exist name the nearest that does."""
        result, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._no_such(unknown))
        return result

    def _no_such(self, unknown: Sequence[str]) -> str:
        option = next((word for word in unknown if word.startswith("-")), None)
        if option is None:
            return f"unexpected argument {unknown[0]!r}"
        bare = option.partition("=")[0]
        near = difflib.get_close_matches(bare, self._option_string_actions, n=2, cutoff=0.6)
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"no option {bare!r}{meant}"


def parser_of(name: str) -> Parser:
    """The parser of one command."""
    command = load(name)
    parser = Parser(
        prog=f"{PROGRAM} {name}",
        usage=getattr(command, "USAGE", None),
        description=command.__doc__,
        epilog=_examples(command.EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_options(parser)
    group = parser.add_argument_group("any command")
    group.add_argument(
        "--json", action="store_true", help="print one JSON document, and nothing else, on stdout"
    )
    group.add_argument(
        "-q", "--quiet", action="store_true", help="no lines about what is going on, on stderr"
    )
    group.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return parser


def _examples(examples: Sequence[tuple[str, str]]) -> str:
    lines = ["examples:"]
    for what, line in examples:
        lines += [f"  # {what}", f"  {line}"]
    return "\n".join(lines)


def overview() -> str:
    """What ``torch-vis --help`` prints."""
    wide = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name.ljust(wide)}  {command.summary}" for name, command in COMMANDS.items())
    return f"""usage: {PROGRAM} COMMAND ...

See exactly what a PyTorch model does: every operation of a real run, its module and source line, its time and memory.

commands:
{rows}

A model is named by package.module:factory or path/to/file.py:factory (a module, or a function or class that makes
one), or by --torchvision, --timm or --hf. A trace is a .tvz or .json file that this program saved.

examples:
  # the second training step of a script, as it is
  {PROGRAM} run train.py --lr 0.1
  # one forward and backward pass of a model of yours
  {PROGRAM} trace net.py:make_model --input 2x8 --backward -o net.tvz
  # and then look at it
  {PROGRAM} summary net.tvz

options:
  -h, --help     this text; {PROGRAM} COMMAND --help is about one command
  help WORD      the call for what you want to do: {PROGRAM} help slow, {PROGRAM} help tasks
  --version      the version

exit codes: 0 well, 1 a finding or a check that failed, 2 a call that cannot work; run ends with the script's own
"""
