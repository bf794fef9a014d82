"""Why a front-end could not capture a model: whose fault it was, at which line, and what to do instead."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_vis.capture.compilers.graph_breaks import parsed
from torch_vis.capture.fake import FakeTensors
from torch_vis.capture.modes import kept_after_interrupt
from torch_vis.capture.recording.recorder import Recorder
from torch_vis.capture.recording.source_lines import OURS, TORCH, kind_of, resolve, resumed, shown_file
from torch_vis.capture.state import StateSnapshot
from torch_vis.capture.undo import Undo, context
from torch_vis.errors import CaptureFailed, TorchVisError
from torch_vis.graph.schema import Site

ANY = "trace() without via takes any program"
ADVICE = {  # by what torch says, where that tells more than the kind of front-end
    "DynamicCache": "the model returns a cache that export cannot take: give kwargs={'use_cache': False}",
    "fake tensor in the exported program constant": "it differentiates or assigns .data while it runs, which export "
    "cannot record; via='dynamo' takes such programs",
}
CHATTY = (
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch._dynamo",
    "torch._guards",
    "torch.export",
)
VIOLATED = "Constraints violated"
FILE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def failed(via: str, error: BaseException, advice: str) -> CaptureFailed:
    """The error for a program that a front-end cannot take; its parts are attributes as well."""
    text = str(error).strip()
    site = site_of(error)
    report = parsed(text, None)
    advice = next((better for words, better in ADVICE.items() if words in text), advice)
    first = report.reason if report.id else text.split("\n", 1)[0]
    if first.startswith(VIOLATED):  # which, and by what, is in the lines below
        below = [row.removeprefix("  - ").rstrip(" .") for row in text.split("\n") if row.startswith("  - ")]
        first = f"{VIOLATED}: {'; '.join(below)}" if below else first
    inner = getattr(error, "inner_exception", None)  # what a backend raised
    if isinstance(inner, BaseException):
        first = " ".join(f"{type(inner).__name__}: {inner}".strip().split("\n", 1)[0].split())
    where = "" if site is None else f" at {site}"
    page = f" [{report.id}]" if report.id else ""
    lines = [f"{via} cannot capture this model{where}: {type(error).__name__}: {first}{page}; {advice}"]
    lines += [f"  {report.explanation}"] if report.explanation else []
    lines += [f"  → {hint}" for hint in report.hints]
    failure = CaptureFailed("\n".join(lines))
    failure.reason, failure.explanation = first, report.explanation
    failure.hints, failure.id = report.hints, report.id
    if site is not None:
        failure.file, failure.line, failure.function = site
    return failure


def site_of(error: BaseException) -> Site | None:
    """The user's line that an error is about: what torch says in words, or else the innermost of the traceback."""
    named = [
        Site(shown_file(file), int(line), resumed(name)) for file, line, name in FILE.findall(str(error))
    ]
    stack = [
        Site(shown_file(row.filename), int(row.lineno or 0), resumed(row.name))
        for row in getattr(error, "real_stack", None) or ()
    ]
    passed = []
    step = error.__traceback__
    while step is not None:
        if kind_of(step.tb_frame.f_code).user:
            passed.append(resolve(step.tb_frame.f_code, step.tb_lasti))
        step = step.tb_next
    for rows in (named, stack, passed):
        of_user = [row for row in rows if _is_user_line(row)]
        if of_user:
            return of_user[-1]
    return None


def _is_user_line(site: Site) -> bool:
    if site.file.startswith((TORCH, OURS, "<eval_with_key>")) or site.file.endswith("/inspect.py"):
        return False
    return not (site.file == "<string>" and site.function in ("<lambda>", "__init__"))


# ---------------------------------------------------------------- the model's own


def own_error(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Exception | None:
    """The exception that the model raises without a compiler; None if it runs: the compiler is to blame.

    A module is run again on copies of its inputs, and is left as it was. What another callable would change is not
    known, so it is run on shapes only.
    """
    if not isinstance(model, torch.nn.Module):
        return _error_on_shapes(model, args, dict(kwargs))
    copied_args, copied_kwargs = pytree.tree_map(_copied, (args, dict(kwargs)))
    try:
        with StateSnapshot.of_model(model, contents="buffers"):
            model(*copied_args, **copied_kwargs)
    except Exception as error:
        return error
    return None


def as_far_as_it_goes(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], own: Exception
) -> Callable[[], Any]:
    """What runs a model that raises, without any compiler."""

    def run() -> Any:
        model(*args, **kwargs)
        raise own  # should it not raise again

    return run


def blaming(
    target: Callable[[], Any],
    via: str,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    rec: Recorder,
) -> Callable[[], Any]:
    """The run of a whole program; what only the program raises, and the model does not, is the front-end's fault."""

    def run() -> Any:
        try:
            return target()
        except TorchVisError:
            raise
        except Exception as error:
            raised = blamed(via, error, model, args, kwargs, rec)
            if raised is error:
                raise
            raise raised from error

    return run


def blamed(
    via: str,
    error: Exception,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    rec: Recorder,
) -> Exception:
    """What to raise for an error of a captured run: the model's own, or else that the capture failed."""
    by_compiler = isinstance(error, torch._dynamo.exc.TorchDynamoException)
    broken = isinstance(error, torch._dynamo.exc.Unsupported)
    if not by_compiler and not isinstance(model, torch.nn.Module):
        return error  # most likely the program's own, and another callable is not run again to see
    # A run to find out whose fault it is is not the traced one.
    before, rec.closed = rec.closed, True
    try:
        own = None if broken and not is_raised(error) else own_error(model, args, kwargs)
    finally:
        rec.closed = before
    if own is not None:
        return own if by_compiler else error
    return failed(via, error, "without fullgraph=True the breaks are listed in t.breaks" if broken else ANY)


def is_raised(error: BaseException) -> bool:
    """Whether Dynamo gave up because the program raises something."""
    return "exception" in str(error).split("\n", 1)[0].lower()


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _error_on_shapes(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception | None:
    try:
        with FakeTensors() as fake, fake.above:
            model(*args, **kwargs)
    except TorchVisError:
        return None  # it needs numbers, which says nothing
    except Exception as error:
        return error
    return None


# ---------------------------------------------------------------- less noise


class _FilteredStream:
    """Standard error without the graphs that export prints before it raises."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what does not come from export itself."""
        file = sys._getframe(1).f_code.co_filename
        if file.endswith(("/torch/export/_trace.py", "\\torch\\export\\_trace.py")):
            return len(text)
        return int(self._stream.write(text) or 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@context
def quiet(undo: Undo) -> None:
    """What torch logs of a failure before it raises is left out, unless the user has asked torch for logs."""
    undo.enter(kept_after_interrupt())
    asked = any(logging.getLogger(name).getEffectiveLevel() < logging.WARNING for name in CHATTY)
    loggers = [
        logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("torch")
    ]
    handlers = [] if asked else [handler for logger in loggers for handler in logger.handlers]

    def passes(record: logging.LogRecord) -> bool:
        return not record.name.startswith(CHATTY)

    for handler in handlers:
        undo.add(handler.removeFilter, passes)
        handler.addFilter(passes)
    undo.set(sys, "stderr", _FilteredStream(sys.stderr))
