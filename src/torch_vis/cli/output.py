"""What a command says: lines on stderr, and on stdout either text for people or one JSON document."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from torch_vis.cli.commands.table import PROGRAM


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
            print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)

    def give(self, document: Any, text: str) -> None:
        """The result: the document with ``--json``, else the text."""
        if self.as_json:
            self._document(document)
        elif text:
            print(text, flush=True)

    def fail(self, message: str, code: int) -> int:
        """One line about what went wrong; gives the exit code."""
        print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)
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
        print(json.dumps(document, indent=1, ensure_ascii=False, default=str), flush=True)
