"""The front door: ``trace``, ``record``, ``load`` and the ``Trace`` they give."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch_vis._reading import Reading
from torch_vis._showing import Showing
from torch_vis.errors import NotOurFile, NotTraceable, TensorsMissing, UsageError, no_match
from torch_vis.formats import FORMATS, READABLE
from torch_vis.graph.graph import Graph
from torch_vis.graph.io.atomic import PathLike
from torch_vis.graph.memory_use import MemoryByUse
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.text import many

if TYPE_CHECKING:
    import torch

    from torch_vis.capture.compilers.frontends import Captured
    from torch_vis.capture.compilers.program import Program
    from torch_vis.capture.kept_tensors import KeptTensors
    from torch_vis.capture.session import Capture
    from torch_vis.capture.timing.repeat import Repeats
    from torch_vis.replay.check import Report
    from torch_vis.replay.inputs import Entry
    from torch_vis.replay.intervene import Rerun
    from torch_vis.views.text.breaks import Breaks

COSTS = ("flops", "macs", "moved_bytes")
MEMORY = ("alloc_bytes", "free_bytes", "live_bytes")
VIAS = ("eager", "fx", "export", "dynamo", "aot")


class Trace(Reading, Showing):
    """One recorded run: its graph, its measurements, what was not captured, and what the model returned.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> t.graph
    <Graph: 13 operations, 16 values, 2 scopes>
    >>> t.output.shape, t.limits
    (torch.Size([1, 2]), ())
    """

    graph: Graph
    metrics: Metrics
    limits: tuple[str, ...]
    """What could not be captured, in sentences."""
    meta: dict[str, Any]
    """The circumstances: versions, devices, wall time."""
    output: Any
    """What the traced callable returned."""
    error: BaseException | None
    """The exception that ended the run, if one did."""
    program: Program | None = None
    """What a compiler's front-end captured, where the trace went through one."""

    def __init__(
        self,
        graph: Graph,
        metrics: Metrics,
        limits: tuple[str, ...] = (),
        meta: Mapping[str, Any] | None = None,
        *,
        output: Any = None,
        held: KeptTensors | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.graph = graph
        self.metrics = _with_analyses(graph, metrics)
        self.limits = tuple(limits)
        self.meta = dict(meta or {})
        self.output = output
        self.error = error
        self._held = held
        self._entry: Entry | None = None  # how the run was called

    def check(self, *, inputs: bool = False, shuffles: int = 2, seed: int = 0) -> Report:
        """Prove the graph: run it again and compare every output, gradient and changed state bit for bit.

        The recording is replayed in order, pruned to the operations that the edges say lead to the results, and in
        ``shuffles`` random orders that respect only the graph's own dependences. With ``inputs=True``, every input is
        perturbed as well: the outputs it is connected to must be able to change, the others must not.
        Raises ``CheckFailed`` with the first operation that differs, its line and its module.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
        >>> print(t.check(inputs=True))
        3 results equal bit for bit: 13 operations in order, 12 pruned, 2 random orders; 1 input-output pair proved
        """
        if isinstance(self, Recording) and self.is_open:
            raise UsageError("the block is still recording; check after it has ended")
        if self._held is None and self.meta.get("fake"):
            raise TensorsMissing(
                "this was worked out on shapes: no numbers were computed that could be checked"
            )
        if self._held is None:
            raise TensorsMissing(
                "this trace holds no tensors (loaded from a file, released, or traced with keep=False); "
                "trace again to check it"
            )
        from torch_vis.replay.check import check

        return check(self.graph, self._held, inputs=inputs, shuffles=shuffles, seed=seed)

    @property
    def breaks(self) -> Breaks:
        """The graph breaks that Dynamo met: why, where, and what torch advises; ``print`` shows them as a table.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(lambda x: x + 1 if x.sum() > 0 else x, torch.ones(2), via="dynamo")
        >>> [(found.reason, found.id) for found in t.breaks]
        [('Data-dependent branching', 'GB0170')]
        """
        from torch_vis.views.text.breaks import Breaks

        return Breaks(self.meta.get("program"))

    def run(
        self,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        replace: Mapping[Any, Any] | None = None,
        keep: Any = None,
        to: PathLike | None = None,
    ) -> Rerun:
        """Run the recorded operations again, on new inputs or with something replaced on the way.

        ``args`` and ``kwargs`` are the inputs, as ``trace`` took them; without any, those of the recorded run. They
        have the recorded sizes, unless the trace went via export with sizes left open. ``replace`` names modules (by
        path or pattern), nodes or their numbers, and gives for each a tensor or a function of what it made; only what
        depends on it is computed anew, and gradients pass through a replacement as through an identity.
        ``keep="all"`` keeps what every operation made, ``keep=[...]`` what these modules, operators and nodes made,
        with the gradients that came to the modules; ``to="acts.safetensors"`` writes it to that file as it comes.
        Parameters are as they are now, random operations draw what they drew, and nothing of the model is changed.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
        >>> t.run(replace={"0": lambda y: torch.full_like(y, 5.0)}).output
        tensor([[5., 5.]])
        >>> list(t.run(torch.zeros(1, 3), keep=["0", "relu"]).kept)
        ['0', '1/relu#2']
        """
        from torch_vis.replay.rerun import rerun

        return rerun(self, self._held, self._entry, args, dict(kwargs or {}), replace or {}, keep, to)

    def release(self) -> None:
        """Let go of the output and of the tensors held for ``check``; the graph and the metrics stay.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.ReLU(), torch.ones(2))
        >>> t.release()
        >>> t.output is None
        True
        """
        self._held = None
        self.output = None

    def __repr__(self) -> str:
        name = self.meta.get("model") or "run"
        return f"<Trace of {name}: {many(len(self.graph), 'operation')}>"


class Recording(Trace):
    """A trace of a block of code; it is empty until the block ends, and holds the part that ran if the block raises."""

    def __init__(self, capture: Capture) -> None:
        from torch_vis.graph.graph import GraphBuilder

        super().__init__(GraphBuilder().build(), Metrics())
        self._capture = capture
        self.is_open = False

    def __enter__(self) -> Recording:
        self._capture.__enter__()
        self.is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._capture.__exit__()
        self.is_open = False
        self.error = error
        self._fill(self._capture)
        if error is not None:
            self.meta["error"] = _told(error)

    def _fill(self, capture: Capture) -> None:
        self.graph, metrics, held, self.limits, self.meta = capture.finish()
        self.metrics = _with_analyses(self.graph, metrics)
        self._held = held if capture.recorder.keep else None


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
    the trace of what ran until then, with the exception in ``error``, in the place of raising. With
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
    is_compiled = via != "eager" or dynamic or dynamic_shapes is not None or fullgraph
    if repeat and (fake or via != "eager"):
        raise UsageError("repeat= times the model as it runs; leave out fake and via")
    if fake:
        from torch_vis.capture.fake.run import fake_run

        if is_compiled:
            raise UsageError(
                "fake=True runs the model as it is; leave out via, dynamic, dynamic_shapes and fullgraph"
            )
        made = fake_run(model, args, named, backward, loss, functions=functions, partial=partial)
        return Trace(*made[:4], output=made[4], error=made[5])
    modules = [model] if isinstance(model, torch.nn.Module) else []
    capture = Capture(*modules, keep=keep or bool(repeat), functions=functions)
    capture.inputs = name_inputs(model, args, named)
    captured: Captured | None = None
    if is_compiled:
        from torch_vis.capture.compilers.frontends import Options, prepare

        options = Options(dynamic, dynamic_shapes, fullgraph)
        captured = prepare(via, model, args, named, capture, options, partial=partial)
    repeats: Repeats | None = None
    if repeat:
        from torch_vis.capture.timing.repeat import Call, Repeats

        repeats = Repeats(Call(model, args, named, backward, loss), repeat, capture, functions=functions)
    try:
        error = capture.run(
            captured.run if captured is not None else lambda: model(*args, **named),
            backward=backward,
            loss=loss,
            partial=partial,
        )
    finally:
        if captured is not None:
            captured.forget()
    graph, metrics, held, limits, meta = capture.finish()
    if error is not None:
        meta["error"] = _told(error)
    if repeats is not None:
        metrics, said, timed = repeats.measure(graph, metrics, held, error)
        limits, meta = limits + said, meta | timed
    if captured is not None:
        graph = captured.named(graph)
        limits += captured.limits
        meta["program"] = captured.program.to_plain()
    if inspect.isgenerator(capture.output) or inspect.iscoroutine(capture.output):
        limits += (
            "the callable returned a generator or coroutine, and nothing in it has run; use record around it",
        )
    found = Trace(
        graph, metrics, limits, meta, output=capture.output, held=held if keep else None, error=error
    )
    found.program = None if captured is None else captured.program
    if keep:
        from torch_vis.replay.inputs import Entry

        found._entry = Entry(model, args, named, name_inputs)
    return found


def load(path: PathLike) -> Trace:
    """Read a trace that ``save`` wrote.

    >>> import os, tempfile, torch, torch_vis as tv
    >>> path = os.path.join(tempfile.mkdtemp(), "run.json")
    >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).save(path)
    >>> tv.load(path)
    <Trace of ReLU: 1 operation>
    """
    return Trace(*_reader(path).load(path))


def _refuse_misuse(model: Any, kwargs: Any, loss: Any, via: Any) -> None:
    """Raise for what ``trace`` cannot mean to be given."""
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


def _with_analyses(graph: Graph, metrics: Metrics) -> Metrics:
    """The metrics, and what follows from shapes and lifetimes: worked out when it is first asked for."""

    def compute() -> Mapping[str, Column]:
        from torch_vis.ops.cost import costs

        found = costs(graph, metrics.get("stored"))
        return {name: metrics[name].filled(one) if name in metrics else one for name, one in found.items()}

    def formulas() -> int:
        from torch_vis.ops.cost.registry import version

        return version()

    def memory() -> MemoryByUse:
        from torch_vis.analysis.memory import Blocks, Use

        found, words = Blocks(graph, metrics), tuple(use.words for use in Use)
        columns = found.use, found.told_value, found.birth, found.death, found.bytes, found.during
        return MemoryByUse(words, *columns)

    found = metrics.with_later(COSTS, compute, version=formulas)
    return found.with_memory(memory) if all(name in metrics for name in MEMORY) else found


def _reader(path: PathLike) -> Any:
    """The format that a file's ending or else its first byte says."""
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


def _told(error: BaseException) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _describe(item: object) -> str:
    text = repr(item)
    return f"{type(item).__name__} {text if len(text) <= 60 else text[:57] + '…'}"
