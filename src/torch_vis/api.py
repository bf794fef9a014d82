"""The front door: ``trace``, ``record``, ``load`` and the ``Trace`` they give."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch_vis._trace import Trace, with_analyses
from torch_vis.errors import NotOurFile, NotTraceable, UsageError, no_match
from torch_vis.formats import FORMATS, READABLE
from torch_vis.graph.io.atomic import PathLike
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.record import Limit

if TYPE_CHECKING:
    import torch

    from torch_vis.capture.compilers.frontends import Captured
    from torch_vis.capture.session import Capture
    from torch_vis.capture.timing.repeat import Repeats

VIAS = ("eager", "fx", "export", "dynamo", "aot")


class Recording(Trace):
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

    def __enter__(self) -> Recording:
        self.capture.__enter__()
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.capture.__exit__()
        self._is_open = False
        self.error = error
        self._fill(self.capture)
        if error is not None:
            self.meta["error"] = _in_one_line(error)

    def _fill(self, capture: Capture) -> None:
        run, self.kept, _, _ = capture.finish()
        self.graph, self.limits, self.meta = run.graph, run.limits, run.meta
        self.metrics = with_analyses(run.graph, run.metrics)


def record(*modules: torch.nn.Module, keep: bool = True, functions: bool = False) -> Recording:
    """Record whatever a block of code does.

    The modules are optional: given, they name the scopes, and their calls on other threads are recorded as well.
    If the block raises, the exception goes on and the trace holds what ran until then. ``keep`` and ``functions`` are
    those of ``trace``.

    >>> import torch, torch_vis as tv
    >>> with tv.record() as t:
    ...     y = torch.ones(2) * 3
    >>> [node.name for node in t.graph.nodes]
    ['ones', 'mul']
    """
    import torch

    from torch_vis.capture.session import Capture

    for module in modules:
        if not isinstance(module, torch.nn.Module):
            raise NotTraceable(f"record() takes modules, not {_describe(module)}")
    return Recording(Capture(*modules, keep=keep, functions=functions))


def trace(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = False,
    loss: Callable[[Any], Any] | None = None,
    keep: bool = True,
    partial: bool = False,
    functions: bool = False,
    via: str = "eager",
    dynamic: bool | None = None,
    dynamic_shapes: Any = None,
    fullgraph: bool = False,
    fake: bool = False,
    repeat: int = 0,
) -> Trace:
    """Run a model (or any callable) once and return the graph of everything that it did.

    ``args`` and ``kwargs`` are the model's. ``backward=True`` goes on with a backward pass from the sum of the floating
    outputs, ``loss=callable`` from ``loss(output)``; gradients are left in ``.grad`` as a backward pass leaves them.
    ``keep=False`` holds no tensors, so that ``check`` is not possible. With ``partial=True``, a model that raises gives
    the trace of what ran until then, with the exception in ``error``, instead of raising. With
    ``functions=True``, each call of a public torch function (``torch.nn.functional.conv2d``, ``Tensor.view``) is a
    scope around the operations that it ran; the fused fast path of ``MultiheadAttention`` is then not taken, and
    ``limits`` says so.

    ``via`` takes the program through a compiler's front-end first and runs what that gives: ``"fx"``, ``"export"``,
    ``"dynamo"`` (partitions at graph breaks, see ``breaks``) or ``"aot"`` (Dynamo, then forward and backward as
    graphs of their own). ``dynamic=True`` leaves sizes open where the program allows it, ``dynamic_shapes`` is that of
    ``torch.export``, and ``fullgraph=True`` raises at the first graph break.

    ``fake=True`` computes nothing: every tensor is followed by its shape, so a model that does not fit in memory can be
    traced, and ``memory()`` of the trace is a prediction. A training step with its optimizer can be traced like this;
    the model, its gradients and the optimizer's state are afterwards as they were.

    ``repeat=10`` runs it ten times more to time it, from the same state and random numbers, and puts everything back to
    where one run leaves it: times become medians with quartiles (see ``time``), ``meta["plain_wall_ns"]`` is the run's
    without us and, on CUDA, ``kernel_ns`` the kernels' own. What the program does outside torch (files, prints) it does
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
    _refuse_misuse(model, kwargs, loss, via)
    import torch

    from torch_vis.capture.session import Capture, name_inputs

    named = dict(kwargs or {})
    has_frontend = via != "eager" or dynamic or dynamic_shapes is not None or fullgraph
    if repeat and (fake or via != "eager"):
        raise UsageError("repeat= times the model as it runs; leave out fake and via")
    if fake:
        from torch_vis.capture.fake.run import fake_run

        if has_frontend:
            raise UsageError(
                "fake=True runs the model as it is; leave out via, dynamic, dynamic_shapes and fullgraph"
            )
        faked = fake_run(model, args, named, backward, loss, functions=functions, partial=partial)
        return Trace.of(faked.run, output=faked.output, error=faked.error)
    modules = [model] if isinstance(model, torch.nn.Module) else []
    capture = Capture(*modules, keep=keep or bool(repeat), functions=functions)
    capture.inputs = name_inputs(model, args, named)
    captured: Captured | None = None
    if has_frontend:
        from torch_vis.capture.compilers.frontends import Options, prepare

        options = Options(dynamic, dynamic_shapes, fullgraph)
        captured = prepare(via, model, args, named, capture, options, partial=partial)
    repeats: Repeats | None = None
    if repeat:
        from torch_vis.capture.timing.repeat import Repeats, RepeatTarget

        repeats = Repeats(
            RepeatTarget(model, args, named, backward, loss), repeat, capture, functions=functions
        )
    try:
        capture.run(
            captured.run if captured is not None else lambda: model(*args, **named),
            backward=backward,
            loss=loss,
            partial=partial,
        )
    finally:
        if captured is not None:
            captured.forget()
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
    from torch_vis.replay.live_run import CallSignature

    return Trace(
        run.graph,
        run.metrics,
        run.limits,
        run.meta,
        output=output,
        kept=kept if keep else None,
        error=error,
        program=None if captured is None else captured.program,
        entry=CallSignature(model, args, named, name_inputs) if keep else None,
    )


def load(path: PathLike) -> Trace:
    """Read a trace that ``save`` wrote.

    >>> import os, tempfile, torch, torch_vis as tv
    >>> path = os.path.join(tempfile.mkdtemp(), "run.json")
    >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).save(path)
    >>> tv.load(path)
    <Trace of ReLU: 1 operation>
    """
    return Trace.of(_reader(path).load(path))


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


def _reader(path: PathLike) -> Any:
    """The module that reads a file, chosen by its ending or else by its first byte."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"load() takes a path, not {_describe(path)}")
    readable = {ending: name for name in READABLE for ending in FORMATS[name].endings}
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending not in readable and os.path.isfile(path):
        with open(path, "rb") as file:
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
