"""Files of weights and of models from elsewhere, as far as a command can use them: what is in them, without a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch_vis.cli.commands.table import PROGRAM
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.errors import FileError, UsageError

if TYPE_CHECKING:
    from torch_vis.views.terminal.source import Subject

ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".safetensors", ".pt2", ".onnx")
TRUST = "load the file as torch does: it can run any code on this machine, so only for files from people you trust"


def add_trust_option(parser: Parser) -> None:
    """``--trust``."""
    parser.add_argument("--trust", action="store_true", help=TRUST)


def is_weights(word: str | None) -> bool:
    """Whether a word names a file of weights, by its ending."""
    return word is not None and word.lower().endswith(ENDINGS)


def opened(path: str, *, trust: bool) -> Subject:
    """What is in the file."""
    if not os.path.exists(path):
        raise FileError(f"there is no file {path!r}")
    from torch_vis.interfaces.explorer.files import NeedsTrust, open_file

    try:
        return open_file(path, trust=trust)
    except NeedsTrust as error:
        raise NeedsTrust(error.path, "add --trust", error.reason) from error


def refuse(command: str, word: str | None) -> None:
    """For commands that need a run: say of a file of weights what it takes instead."""
    if is_weights(word):
        if not os.path.exists(str(word)):
            raise FileError(f"there is no file {word!r}")
        raise UsageError(
            f"{command} needs a run, and {word} holds weights alone: trace the model that they belong to, as in "
            f"{PROGRAM} trace file.py:make_model --input 1x3x224x224 -o model.tvz ({PROGRAM} summary {word} lists them)"
        )


def give(subject: Subject, options: Any, out: Output) -> int:
    """Print the tree of a file, or all of it as data."""
    from torch_vis.interfaces.explorer.listing import as_data, as_text

    if out.as_json:
        out.give(as_data(subject), "")
    else:
        out.give(None, as_text(subject, depth=getattr(options, "depth", "auto")))
    return 0
