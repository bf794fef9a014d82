"""What a command says: lines on stderr, and on stdout either text for people or one JSON document."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, TextIO

from torch_vis.cli.command_table import PROGRAM
from torch_vis.errors import inert, inert_lines

CALIBRATE = "python -c 'import torch_vis as tv; tv.measure.calibrate()'"
# What the library says to someone who calls it, and what that is on the command line: the first that fits is taken.
# A space stands for any, since lines are wrapped.
IN_FLAGS: tuple[tuple[str, str], ...] = (
    (r"trace with backward=True or loss=…", "add --backward or --loss"),
    (r"trace with backward=True", "add --backward"),
    (r"run tv\.measure\.calibrate\(\) once", f"run {CALIBRATE} once"),
    (r"(?:tv\.measure\.)?calibrate\((?:again=True)?\)", f"{CALIBRATE.replace('calibrate()', 'calibrate(again=True)')}"),
    (r"tv\.(measure\.memory|advise\.batch_size)(\(\))?", r"in Python, tv.\1\2"),
    (r"tv\.trace\(model, …, via=['\"](\w+)['\"]\)", r"--via \1"),
    (r"trace\(\) without via", "a plain run, without --via,"),
    (r"trace\(\.\.\., repeat=(\d+)\)", r"--repeat \1"),
    (r"record it again with tv\.trace\(model, x\) or tv\.record\(\)", f"trace the model again with {PROGRAM} trace"),
    (r"tv\.load reads the (\.tvz and \.json files) of Trace\.save", rf"{PROGRAM} reads \1 that it saved"),
    (r"t\.table\(width=(\d+)\)", r"--width \1"),
    (r"t\.table\(depth=None\)", "--depth all"),
    (r"t\.summary\(\)\.why_uncovered", f"{PROGRAM} report summary"),
    (r"(?:t\.)?latency\(hardware=…\)", f"{PROGRAM} report latency --hardware …"),
    (r"is called without a batch", "is called without arguments, as no --input is given"),
    (r"\bmore in t\.limits", "more with --json"),
    (r"\bt\.breaks\b", f"{PROGRAM} breaks"),
    (
        r"(?:\bt\.)?\b(summary|memory|time|gradients|health|fusion|partition|roofline|latency|communication|"
        r"attribute|attention|logit_lens|relevance)\(\)",
        rf"{PROGRAM} report \1",
    ),
    (
        r"\(loaded from a file, (?:released, )?or traced with hold=False\); trace again(?: to (\w+) it)?",
        "(it was loaded from a file)",
    ),
    (r"; trace with hold=True", ""),
    (
        r"trace again, and save t\.with_metrics\(t\.health\(\)\) to ask the file later",
        f"ask with the model instead of its file: {PROGRAM} report health MODEL",
    ),
    (r"\bassume=\{'(\w+)': '(\w+)'\}", r"--assume \1=\2"),
    (r"\bassume=(?= )", "--assume"),
    (r"kwargs=\{'(\w+)': (\w+)\}", r"--input \1:=\2"),
    (r"\b(backward|fake|partial)=True", r"--\1"),
    (r"leave out via, dynamic, dynamic_shapes and fullgraph", "leave out --via"),
    (r"leave out fake and via", "leave out --fake and --via"),
    (r"\bvia=['\"](\w+)['\"]", r"--via \1"),
    (r",? or with measure=", ""),
    (r"\btarget=\(…\)", "--target …"),
    (r"\b(hardware|by|at)=['\"]([^'\"]*)['\"]", r"--\1 '\2'"),
    (r"\bat=(?=$| )", "--at "),
    (r"fit\(…, layers=(\d+)\)", r"--layers \1"),
    (r"\b(checkpoint|layers|links)=(?=\S)", r"--\1 "),
    (r"\b(layers|links)=(?= )", r"--\1"),
    (r"\b(loss|via|repeat|hardware)=(?=[ ;,.…]|$)", r"--\1"),
    (r"^(loss|repeat) (?=must )", r"--\1 "),
    (r"\bmax_(operations|flops|bytes)(?:=| )", r"--max-\1 "),
    (r"^(depth|hardware|calibration) (?=is )", r"--\1 "),
)  # fmt: skip
_PATTERNS = tuple(re.compile(pattern.replace(" ", r"\s+"), re.MULTILINE) for pattern, _ in IN_FLAGS)
_ANY = re.compile("|".join(f"(?:{pattern.pattern})" for pattern in _PATTERNS), re.MULTILINE)


def in_flags(text: str) -> str:
    """What the library says, in the words of the command line.

    >>> in_flags("this trace has no backward pass: trace with backward=True or loss=…")
    'this trace has no backward pass: add --backward or --loss'
    """
    return _ANY.sub(_in_flags, text)


def _in_flags(match: re.Match[str]) -> str:
    for pattern, (_, words) in zip(_PATTERNS, IN_FLAGS):
        row = pattern.match(match.string, match.start())
        if row is not None:
            return row.expand(words)
    raise AssertionError(match)


class Output:
    """Where a command prints.

    With ``--json``, stdout is set aside for the document: whatever else is printed meanwhile, by a model or a script
    or a library in C, goes to stderr.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._aside: int | None = None
        if as_json:
            sys.stdout.flush()
            self._aside = os.dup(1)
            os.dup2(2, 1)

    def say(self, line: str) -> None:
        """One line about what is going on."""
        if not self.quiet:
            write(f"{PROGRAM}: {inert(line)}\n", sys.stderr)

    def give(self, document: Any, text: str, *, in_python: bool = False) -> None:
        """The result: the document with ``--json``, else the text; ``in_python`` says that it shows calls of Python."""
        if self.as_json:
            self._document(document)
        elif text:
            write(inert_lines(text if in_python else in_flags(text)) + "\n", sys.stdout)

    def fail(self, message: str, code: int) -> int:
        """One line about what went wrong; gives the exit code."""
        write(f"{PROGRAM}: {inert(message)}\n", sys.stderr)
        if self.as_json:
            self._document({"error": message, "exit_code": code})
        return code

    def close(self) -> None:
        """Give stdout back."""
        if self._aside is not None:
            sys.stdout.flush()
            os.dup2(self._aside, 1)
            os.close(self._aside)
            self._aside = None

    def _document(self, document: Any) -> None:
        self.close()
        text = json.dumps(document, indent=1, ensure_ascii=False, default=str)
        write(INVISIBLE.sub(_escaped, text) + "\n", sys.stdout)


# what JSON leaves as it is though a terminal may act on it; what is below U+0080 it escapes by itself
INVISIBLE = re.compile(r"[^\x00-\x7e]")


def _escaped(match: re.Match[str]) -> str:
    """A letter of a JSON text, as JSON can also write it where it cannot be seen."""
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def write(text: str, stream: TextIO) -> None:
    """Print a text; what the terminal's or the pipe's encoding does not have becomes a question mark."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
