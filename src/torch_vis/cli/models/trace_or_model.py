"""A word that is either the file of a trace or the name of a model: one trace, whichever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_vis.cli.models import files, weights
from torch_vis.cli.models import model_spec as models
from torch_vis.errors import UsageError

if TYPE_CHECKING:
    from torch_vis._trace import Trace


def trace_of(options: Any, command: str, *, keep: bool = False, word: str | None = None) -> Trace:
    """The trace that the options name, for a command: loaded, or made now."""
    word = word if word is not None else options.target
    weights.refuse(command, word)
    if not files.is_trace(word):
        return models.traced(models.subject(options, word), options, keep=keep)
    if models.has_model(options):
        raise UsageError(f"one thing at a time, not the file {word!r} and a model of a library")
    if options.input or getattr(options, "backward", False) or getattr(options, "via", None):
        raise UsageError(
            f"{word} is a trace that was made already; --input, --backward and --via are for models"
        )
    return files.load(str(word))
