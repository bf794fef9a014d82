"""Every error torch_vis raises on its own account.

::

    TorchVisError
    ├── UsageError (ValueError)        the call itself cannot work
    │   ├── NotTraceable               not a module, not a callable
    │   ├── CaptureFailed              a compiler cannot take the program; names the line and what would work
    │   ├── NothingToDifferentiate     backward asked for, no differentiable output, or a loss that is no scalar
    │   ├── NoMatch                    a name that matches no module, operation, phase, exporter or view
    │   └── MissingExtra (ImportError) an optional package is absent; the message holds the pip line
    ├── GraphError                     a graph that breaks its own rules; names the node
    ├── CheckFailed                    a replay that differs from the run; names the operation, line and module
    ├── TensorsMissing                 replay asked of a trace that holds no tensors, or whose tensors were changed
    └── FileError (OSError)            a file that cannot be read or written
        ├── NotOurFile                 not a torch_vis file
        ├── CorruptFile                truncated or damaged
        └── NewerFile                  written by a later version

A model's own exceptions are never wrapped: they reach the caller as they were raised.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TorchVisError(Exception):
    """The base of every error that torch_vis raises.

    >>> import torch_vis as tv
    >>> try:
    ...     tv.trace(3)
    ... except tv.errors.TorchVisError as error:
    ...     print(type(error).__name__)
    NotTraceable
    """


class UsageError(TorchVisError, ValueError):
    """A call that cannot work as written."""


class NotTraceable(UsageError, TypeError):
    """What was given is neither a module nor a callable."""


class CaptureFailed(UsageError):
    """A compiler's front-end could not capture the program; ``__cause__`` is what it said.

    The reason, torch's explanation, hints and the id of its page on it, and the user's line are attributes as well.
    """

    reason: str = ""
    explanation: str = ""
    hints: tuple[str, ...] = ()
    id: str = ""
    file: str | None = None
    line: int | None = None
    function: str | None = None


class NothingToDifferentiate(UsageError):
    """Backward was asked for, and there is no differentiable output or the loss is not a scalar."""


class NoMatch(UsageError, LookupError):
    """A name that matches nothing; the message offers the nearest ones."""


class MissingExtra(UsageError, ImportError):
    """An optional package is not installed; the message holds the line that installs it."""


class GraphError(TorchVisError):
    """A graph that breaks its own rules."""


class CheckFailed(TorchVisError):
    """A replay that does not give what the run gave."""


class TensorsMissing(TorchVisError):
    """The trace does not hold the tensors (any more) that a replay starts from."""


class FileError(TorchVisError, OSError):
    """A file that cannot be read or written."""


class NotOurFile(FileError):
    """The file was not written by torch_vis."""


class CorruptFile(FileError):
    """The file is truncated or damaged."""


class NewerFile(FileError):
    """The file was written by a later version of torch_vis."""


FEW = 24  # choices that a message lists in full
ROOM = 300  # letters that a message has for them


def no_match(kind: str, name: str, choices: Iterable[str]) -> NoMatch:
    """The error for an unknown name, with the nearest choices.

    >>> str(no_match("view", "plotli", ["plotly", "text"]))
    "no view 'plotli'; did you mean 'plotly'? There are: 'plotly', 'text'"
    """
    known = sorted(set(choices))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or _near_ends(name, known)
    shown = known[:FEW]
    while len(shown) > 3 and sum(map(len, shown)) > ROOM:
        shown.pop()
    listed = ", ".join(map(repr, shown)) or "none"
    if near:
        rest = f" There are: {listed}" if len(shown) == len(known) else ""
        return NoMatch(f"no {kind} {name!r}; did you mean {' or '.join(map(repr, near))}?{rest}")
    more = f", … ({len(known):,} in all)" if len(shown) < len(known) else ""
    return NoMatch(f"no {kind} {name!r}; there are: {listed}{more}")


def _near_ends(name: str, known: Iterable[str]) -> list[str]:
    """Of names in parts, those whose last parts are nearest: where a name begins is what people leave out."""
    dots = name.count(".")
    ends: dict[str, str] = {}
    for choice in known:
        ends.setdefault(".".join(choice.split(".")[-dots - 1 :]), choice)
    return [ends[end] for end in difflib.get_close_matches(name, ends, n=3, cutoff=0.6)]


def missing_extra(package: str, extra: str | None = None) -> MissingExtra:
    """The error for an optional package that is absent.

    >>> str(missing_extra("plotly"))
    "plotly is not installed; run: pip install 'torch-vis[plotly]'"
    """
    return MissingExtra(f"{package} is not installed; run: pip install 'torch-vis[{extra or package}]'")
