"""The front door: ``trace``, ``record``, ``load`` and the ``Trace`` they give."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch_vis._reports import WORLD, resolved
from torch_vis._trace import Trace
from torch_vis.capture.undo import Context, Undo, hears_interrupts
from torch_vis.errors import NotOurFile, NotTraceable, UsageError, no_match, takes_kwargs
from torch_vis.formats import FORMATS, READABLE
from torch_vis.graph.io import tvz
from torch_vis.graph.io.atomic import PathLike, reading
from torch_vis.graph.io.world import is_world
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.run import Limit
from torch_vis.replay.held_run import CallSignature, with_costs

if TYPE_CHECKING:
    import torch

    from torch_vis.capture.compilers.frontends import CapturedProgram
    from torch_vis.capture.live import Live
    from torch_vis.capture.session import Capture
    from torch_vis.capture.timing.repeat import Repeats

VIAS = ("eager", "fx", "export", "dynamo", "aot")


class Recording(Context["Recording"], Trace):
    """A trace of a block of code; it is empty until the block ends, and holds the part that ran if the block raises."""

    def __init__(self, capture: Capture) -> None:
        from torch_vis.graph.graph import GraphBuilder

        super().__init__(GraphBuilder().build(), Metrics())
        self.capture = capture
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether the block is still running."""
        return self._is_open

    def _begin(self, undo: Undo) -> Recording:
        undo.set(self, "_is_open", True)
        undo.enter(self.capture)
        return self

    def _ended(self, error: BaseException | None) -> None:
        self.error = error
        try:
            self._fill(self.capture)
        except Exception:
            # an interrupt in the middle of noting something is what the program has to hear of
            if error is None or isinstance(error, Exception):
                raise
            text = "an interrupt came while an operation was being recorded, and the record is not whole"
            self.limits = (Limit(text, kind="missing"),)
        if error is not None:
            self.meta["error"] = _in_one_line(error)

    def _fill(self, capture: Capture) -> None:
        run, self.kept, _, _ = capture.finish()
        self.graph, self.limits, self.meta = run.graph, run.limits, run.meta
        self.metrics = with_costs(run.graph, run.metrics)


def record(
    *modules: torch.nn.Module,
    hold: bool = True,
    functions: bool = False,
    keep: bool | None = None,
    **named: torch.nn.Module,
) -> Recording:
    """Record whatever a block of code does.

    The modules are optional: given, they name the scopes, and their calls on other threads are recorded as well.
    Several are called by their variables, ``tv.record(G, D)``, or as you say: ``tv.record(G=generator, D=critic)``.
    If the block raises, the exception goes on and the trace holds what ran until then. ``hold`` and ``functions`` are
    those of ``trace``; ``keep`` is the old name of ``hold``.

    >>> import torch, torch_vis as tv
    >>> with tv.record() as t:
    ...     y = torch.ones(2) * 3
    >>> [node.name for node in t.graph.nodes]
    ['ones', 'mul']
    """
    import torch

    from torch_vis.capture.recording.user_functions import argument_variables, distinct
    from torch_vis.capture.session import Capture

    for module in (*modules, *named.values()):
        if not isinstance(module, torch.nn.Module):
            raise NotTraceable(f"record() takes modules, not {_describe(module)}")
    if keep is not None:
        hold = _old_keep(keep, "record")
    names: list[str] = []
    if len(modules) > 1 or named:
        names = [*argument_variables(sys._getframe(1))[: len(modules)], *named]
        if not distinct(names, len(modules) + len(named)):
            names = [f"{type(module).__name__.lower()}{index}" for index, module in enumerate(modules)]
            names += named
    return Recording(Capture(*modules, *named.values(), keep=hold, functions=functions, names=names))


@takes_kwargs
@hears_interrupts
def trace(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = False,
    loss: Callable[[Any], Any] | None = None,
    keep: Any = None,
    replace: Mapping[Any, Any] | None = None,
    until: Any = None,
    hold: bool = True,
    partial: bool = False,
    functions: bool = False,
    via: str = "eager",
    dynamic: bool | None = None,
    dynamic_shapes: Any = None,
    fullgraph: bool = False,
    fake: bool = False,
    assume: Mapping[str, str] | None = None,
    repeat: int = 0,
) -> Trace:
    """Run a model (or any callable) once and return the graph of everything that it did.

    ``args`` and ``kwargs`` are the model's. ``backward=True`` goes on with a backward pass from the sum of the floating
    outputs, ``loss=callable`` from ``loss(output)``; gradients are left in ``.grad`` as a backward pass leaves them.
    ``hold=False`` holds no tensor but the output, so that ``check`` is not possible. ``keep`` selects activations to
    keep during the run (``t.activations``), ``replace`` what to change, and ``until`` where to stop, as in ``tv.live``;
    the graph is that of the run as it then was. With ``partial=True``, a model that raises gives the trace of what ran
    until then, with the exception in ``error``, instead of raising. With ``functions=True``, each call of a public
    torch function (``torch.nn.functional.conv2d``, ``Tensor.view``) is a scope around the operations that it ran; the
    fused fast path of ``MultiheadAttention`` is then not taken, and ``limits`` says so.

    ``via`` takes the program through a compiler's front-end first and runs what that gives: ``"fx"``, ``"export"``,
    ``"dynamo"`` (partitions at graph breaks, see ``breaks``) or ``"aot"`` (Dynamo, then forward and backward as
    graphs of their own). ``dynamic=True`` leaves sizes open where the program allows it, ``dynamic_shapes`` is that of
    ``torch.export``, and ``fullgraph=True`` raises at the first graph break.

    ``fake=True`` computes nothing: every tensor is followed by its shape, so a model that does not fit in memory can be
    traced, and ``memory()`` of the trace is a prediction. A training step with its optimizer can be traced like this;
    the model, its gradients and the optimizer's state are afterwards as they were. Masks, positions and counts that
    follow from the inputs are known, so that the run goes the way of the real one. What a router of experts chooses
    does not follow from shapes: ``assume={"tokens": "balanced"}`` gives every expert as many tokens, ``"worst"`` all to
    the same ones, and ``limits`` says what was assumed.

    ``repeat=10`` times it, from the same state and random numbers, and puts everything back to where one run leaves it:
    times become medians with quartiles (see ``time``), ``meta["plain_wall_ns"]`` is the run's without us and, on CUDA,
    ``kernel_ns`` the kernels' own. Each kind of time is the median of ten runs: ten plain ones, ten in which calls of
    modules are timed, ten in which operations are; up to three more are recorded again (on CUDA, seven).
    ``meta["executions"]`` says how often the program ran, by kind. What it does outside torch (files, prints) it does
    each time.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> t = tv.trace(model, torch.ones(1, 3))
    >>> [(node.path, node.name) for node in t.graph.nodes]
    [('0', 't'), ('0', 'addmm'), ('1', 'relu')]
    >>> scopes = tv.trace(model, torch.ones(1, 3), via="export").graph.scopes
    >>> [scope.type for scope in scopes if scope.kind == "function"]
    ['aten.linear.default', 'aten.relu.default']
    """
    if isinstance(keep, bool):
        keep, hold = None, _old_keep(keep, "trace")
    _refuse_misuse(model, kwargs, loss, via)
    from torch_vis.capture.session import name_inputs

    named = dict(kwargs or {})
    has_frontend = via != "eager" or dynamic or dynamic_shapes is not None or fullgraph
    if repeat and (fake or via != "eager"):
        raise UsageError("repeat= times the model as it runs; leave out fake and via")
    if assume is not None and not fake:
        raise UsageError("assume= stands for numbers that a run by shapes does not have; add fake=True")
    is_other_run = fake or has_frontend or bool(repeat)
    live = _live(model, keep, replace, until, is_other_run, backward or loss is not None)
    if fake:
        from torch_vis.capture.fake import fake_run

        if has_frontend:
            raise UsageError(
                "fake=True runs the model as it is; leave out via, dynamic, dynamic_shapes and fullgraph"
            )
        faked = fake_run(
            model, args, named, backward, loss, functions=functions, partial=partial, assume=assume
        )
        return Trace.of(faked.run, output=faked.output, error=faked.error)
    capture = _capture_of(model, args, named, keep=hold or bool(repeat), functions=functions)
    # before the run, which may take its arguments apart
    entry = CallSignature(model, args, named, name_inputs) if hold else None
    captured: CapturedProgram | None = None
    if has_frontend:
        from torch_vis.capture.compilers.frontends import Options, prepare

        options = Options(dynamic, dynamic_shapes, fullgraph)
        captured = prepare(via, model, args, named, capture, options, partial=partial)
    repeats: Repeats | None = None
    if repeat:
        from torch_vis.capture.timing.repeat import Repeats, RepeatTarget

        target = RepeatTarget(model, args, named, backward, loss)
        repeats = Repeats(target, repeat, capture, functions=functions)
    program = captured.run if captured is not None else lambda: model(*args, **named)
    try:
        with live or nullcontext():
            capture.run(program, backward=backward, loss=loss, partial=partial)
    finally:
        if captured is not None:
            captured.forget()
    return _finished(capture, captured, repeats, live, entry)


def _capture_of(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, keep: bool, functions: bool
) -> Capture:
    """A recording of a model or another callable that is about to be called with these arguments."""
    import torch

    from torch_vis.capture.recording.user_functions import held_modules
    from torch_vis.capture.session import Capture, name_inputs

    modules = [model] if isinstance(model, torch.nn.Module) else []
    known = held_modules(model) if not modules else {}
    capture = Capture(*modules, keep=keep, functions=functions, known=known)
    capture.inputs = name_inputs(model, args, kwargs)
    return capture


def _finished(
    capture: Capture,
    captured: CapturedProgram | None,
    repeats: Repeats | None,
    live: Live | None,
    entry: CallSignature | None,
) -> Trace:
    """The trace of a recording that has ended, with what its front-end, its repetitions and its edits add to it.

    Without ``entry`` it holds no tensors.
    """
    run, kept, output, error = capture.finish()
    if error is not None:
        run.meta["error"] = _in_one_line(error)
    if repeats is not None:
        assert kept is not None
        run.metrics, timing_limits, timing_meta = repeats.measure(run.graph, run.metrics, kept, error)
        run.limits += timing_limits
        run.meta |= timing_meta
    if captured is not None:
        run.graph = captured.named(run.graph)
        run.limits += captured.limits
        run.meta["program"] = captured.program.to_plain()
    if inspect.isgenerator(output) or inspect.iscoroutine(output):
        text = (
            "the callable returned a generator or coroutine, and nothing in it has run; use record around it"
        )
        run.limits += (Limit(text, kind="missing"),)
    if live is not None:
        run.limits += tuple(Limit(text, kind="altered") for text in live.limits)
    trace = Trace(
        run.graph,
        run.metrics,
        run.limits,
        run.meta,
        output=output,
        kept=None if entry is None else kept,
        error=error,
        program=None if captured is None else captured.program,
        entry=entry,
    )
    trace.activations = {} if live is None else live.kept
    return trace


def _live(model: Any, keep: Any, replace: Any, until: Any, is_other_run: bool, backward: bool) -> Live | None:
    """What keeps and changes activations during a traced run; None where nothing was asked for.

    That works on the model as it runs, and ``is_other_run`` says that another program or several runs were asked for.
    """
    import torch

    if keep is None and replace is None and until is None:
        return None
    if not isinstance(model, torch.nn.Module):
        raise UsageError("keep=, replace= and until= select modules of a model; trace() was given a function")
    if is_other_run:
        raise UsageError(
            "keep=, replace= and until= act on the model as it runs; leave out via, dynamic, fake and repeat"
        )
    if until is not None and backward:
        raise UsageError("until= stops the call of the model, so that there is nothing to go backward from")
    from torch_vis.capture.live import Live

    return Live(model, keep=keep, replace=replace, until=until)


def _old_keep(keep: bool, call: str) -> bool:
    """The value of ``hold``, given by the name that it had."""
    from torch_vis._deprecated import option_now

    option_now(call, "keep", stacklevel=5 if call == "trace" else 3)
    return keep


def load(path: PathLike) -> Any:
    """Read a trace that ``save`` wrote. That runs no code, and takes at most 20 times the file of memory, or 16 MiB.

    A file of several ranks gives a ``World``, of which each rank is read when it is asked for.

    >>> import os, tempfile, torch, torch_vis as tv
    >>> path = os.path.join(tempfile.mkdtemp(), "run.json")
    >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).save(path)
    >>> tv.load(path)
    <Trace of ReLU: 1 operation>
    """
    reader = reader_of(path)
    if reader is tvz and is_world(path):
        return resolved(WORLD).load(path)
    return Trace.of(reader.load(path))


def _refuse_misuse(model: Any, kwargs: Any, loss: Any, via: Any) -> None:
    """Raise for arguments that ``trace`` cannot take."""
    if not callable(model):
        raise NotTraceable(f"trace() takes a module or a callable, not {_describe(model)}")
    if loss is not None and not callable(loss):
        raise UsageError(f"loss must be a callable of the output, not {_describe(loss)}")
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)
    ):
        raise UsageError(f"kwargs is a dictionary of the model's keyword arguments, not {_describe(kwargs)}")
    if via not in VIAS:
        raise no_match("capture", str(via), VIAS)


def reader_of(path: PathLike) -> Any:
    """The module that reads a file, chosen by its ending or else by its first byte."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"load() takes a path, not {_describe(path)}")
    readable = {ending: name for name in READABLE for ending in FORMATS[name].endings}
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending not in readable and os.path.isfile(path):
        with reading(path) as file:
            start = file.read(1)
        ending = {b"P": ".tvz", b"{": ".json"}.get(start, "")
    if ending not in readable:
        raise NotOurFile(
            f"{os.fspath(path)} is not a trace: torch_vis reads {' and '.join(readable)} files that it wrote"
        )
    return import_module(FORMATS[readable[ending]].target)


def _in_one_line(error: BaseException) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _describe(item: object) -> str:
    text = repr(item)
    return f"{type(item).__name__} {text if len(text) <= 60 else text[:57] + '…'}"
