"""Every error torch_vis raises on its own account.

::

    TorchVisError
    ├── UsageError (ValueError)        the call itself cannot work
    │   ├── NotTraceable               not a module, not a callable
    │   ├── CaptureFailed              a compiler cannot take the program; names the line and what would work
    │   ├── NothingToDifferentiate     backward asked for, no differentiable output, or a loss that is no scalar
    │   ├── NoMatch                    a name that matches no module, operation, phase, exporter or view
    │   ├── NoOption (TypeError)       a keyword argument that a call does not have; the model's go into kwargs=
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
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from torch_vis._deprecated import OPTIONS, option_now

LONGEST = 4000  # letters of a message
LONGEST_NAME = 120  # letters of a name or a reason in one


def inert(text: str, instead: str = "�") -> str:
    r"""Text of a model or a file as it may be shown: control codes and marks that turn text around are replaced.

    >>> inert("a\x1b[2Jb\u202e"), inert("two\nlines", " ")
    ('a�[2Jb�', 'two lines')
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else instead for letter in text)


def inert_lines(text: str) -> str:
    r"""Text of several lines as it may be shown.

    >>> inert_lines("a\x1b[2J\nb")
    'a�[2J\nb'
    """
    return text if text.isprintable() else "\n".join(map(inert, text.split("\n")))


def shortened(text: str, most: int = LONGEST_NAME, *, head: int | None = None) -> str:
    """A text of at most ``most`` letters: a longer one loses its middle; ``head`` letters stay before it.

    >>> shortened("a" * 1000, 9), shortened("abcdefgh", 6, head=1)
    ('aaaa…aaaa', 'a…efgh')
    """
    if len(text) <= most:
        return text
    head = most // 2 if head is None else head
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


class TorchVisError(Exception):
    """The base of every error that torch_vis raises.

    What a message says of a model or a file can do nothing to a terminal: it is on one line and has no control codes.

    >>> import torch_vis as tv
    >>> try:
    ...     tv.trace(3)
    ... except tv.errors.TorchVisError as error:
    ...     print(type(error).__name__)
    NotTraceable
    """

    page: str = ""
    """The page of the documentation that says more, without its ending; a traceback ends with it."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(self._harmless(part) if isinstance(part, str) else part for part in parts))
        if self.page:
            # Python 3.11 and later show it below the message, which stays as it is
            self.__notes__ = [f"docs/{self.page} explains it"]

    @staticmethod
    def _harmless(text: str) -> str:
        return inert(" ".join(shortened(text, LONGEST).splitlines()))


class UsageError(TorchVisError, ValueError):
    """A call that cannot work as written."""


class NotTraceable(UsageError, TypeError):
    """What was given is neither a module nor a callable."""

    page = "start/index"


class CaptureFailed(UsageError):
    """A compiler's front-end could not capture the program; ``__cause__`` is what it said.

    The reason, torch's explanation, hints and the id of its page on it, and the user's line are attributes as well.
    """

    page = "guides/torch_compile"

    reason: str = ""
    explanation: str = ""
    hints: tuple[str, ...] = ()
    id: str = ""
    file: str | None = None
    line: int | None = None
    function: str | None = None

    @staticmethod
    def _harmless(text: str) -> str:
        # a paragraph for each of its parts
        return inert_lines(shortened(text, LONGEST))


class NothingToDifferentiate(UsageError):
    """Backward was asked for, and there is no differentiable output or the loss is not a scalar."""

    page = "everything"


class NoMatch(UsageError, LookupError):
    """A name that matches nothing; the message offers the nearest ones."""


class NoOption(UsageError, TypeError):
    """A keyword argument that a call does not have, often one of the model's."""


class MissingExtra(UsageError, ImportError):
    """An optional package is not installed; the message holds the line that installs it."""

    page = "start/index"


class GraphError(TorchVisError):
    """A graph that breaks its own rules."""

    page = "how/graph"


class CheckFailed(TorchVisError):
    """A replay that does not give what the run gave."""

    page = "how/proof"


class TensorsMissing(TorchVisError):
    """The trace does not hold the tensors (any more) that a replay starts from."""

    page = "how/proof"


class FileError(TorchVisError, OSError):
    """A file that cannot be read or written."""


class NotOurFile(FileError):
    """The file was not written by torch_vis."""

    page = "guides/someone_elses_checkpoint"


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
    name = shortened(name)
    known = sorted({shortened(choice) for choice in choices})
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


@contextmanager
def optional(package: str, extra: str | None = None) -> Iterator[None]:
    """Around the import of an optional package: where it is absent, the error says what installs it.

    >>> try:
    ...     with optional("plotly"):
    ...         import no_such_package
    ... except MissingExtra as error:
    ...     print(error)
    plotly is not installed; run: pip install 'torch-vis[plotly]'
    """
    try:
        yield
    except ImportError as error:
        raise missing_extra(package, extra) from error


def needs_torch(what: str) -> MissingExtra:
    """The error for something that only works where torch is: a file of a trace opens without it.

    >>> str(needs_torch("gradients()"))
    'gradients() needs torch, which is not installed; run: pip install torch'
    """
    return MissingExtra(f"{what} needs torch, which is not installed; run: pip install torch")


Given = ParamSpec("Given")
Result = TypeVar("Result")


def takes_kwargs(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Of a function that calls a model with ``kwargs``, tell someone who wrote the model's arguments beside its own.

    >>> import torch, torch_vis as tv
    >>> try:
    ...     tv.trace(torch.nn.Linear(3, 2), input=torch.ones(1, 3))
    ... except tv.errors.NoOption as error:
    ...     print(error)
    trace() has no option 'input'; what the model takes by name goes into kwargs: kwargs={'input': …}
    """
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Given.args, **options: Given.kwargs) -> Result:
        for name in OPTIONS.get(function.__name__, {}).keys() & options.keys() - known.keys():
            options[option_now(function.__name__, name, stacklevel=2)] = options.pop(name)
        unknown = [name for name in options if name not in known]
        if unknown:
            raise _no_option(function.__name__, unknown, known, args[0] if args else options.get("model"))
        return function(*args, **options)

    return call


def _no_option(call: str, unknown: list[str], known: Iterable[str], model: Any) -> NoOption:
    try:
        own = inspect.signature(getattr(model, "forward", model)).parameters
    except (TypeError, ValueError):
        own = {}  # type: ignore[assignment]
    name = next((name for name in unknown if name not in own), unknown[0])
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if near and name not in own:
        return NoOption(f"{call}() has no option {name!r}; did you mean {near[0]!r}?")
    listed = ", ".join(f"{name!r}: …" for name in unknown)
    quoted = " and ".join(map(repr, unknown))
    return NoOption(
        f"{call}() has no option {quoted}; what the model takes by name goes into kwargs: kwargs={{{listed}}}"
    )
