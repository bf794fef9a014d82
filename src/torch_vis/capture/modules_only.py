"""The calls of modules alone: what goes into each and comes out of it, and whose result the next one takes.

No operation is looked at. Beside a mode, ``ModuleBoundary`` adds the shapes at the boundary of each call to what the
mode records; ``LayerCapture`` is the capture that has nothing but these calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torch_vis.capture.assembling.assemble import NamedTensor, ResultTensor, RunFacts
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.recording.module_calls import ModuleCalls
from torch_vis.capture.recording.recorder import Recorder, clock
from torch_vis.capture.session import Capture, CapturedRun
from torch_vis.capture.tensor_contents import contents_of, maps_of
from torch_vis.capture.undo import Context, Undo
from torch_vis.graph.metrics import ElementStats
from torch_vis.graph.run import Limit

Shape = tuple[int, ...] | None  # None: a tensor without one shape, such as a nested one
PLAIN = (torch.Tensor, torch.nn.Parameter)


class Passing(NamedTuple):
    """A tensor that one call returned and another took, as the very same object."""

    producer: int
    taker: int
    shape: Shape


class _Result(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a tensor that knows which call returned it."""

    __slots__ = ("scope",)
    scope: int


class ModuleBoundary:
    """Notes the tensors that go into and come out of module calls.

    ``follow`` matches what a call takes with what another returned, by weak references and never by ``id`` alone.
    ``memory`` adds up the memory that the results of a call have for themselves.
    """

    def __init__(self, recorder: Recorder, *, follow: bool = False, memory: bool = False) -> None:
        self.recorder = recorder
        self.follow = follow
        self.memory = memory
        self.input_shapes: dict[int, list[Shape]] = {}
        self.output_shapes: dict[int, list[Shape]] = {}
        self.own_bytes: dict[int, int | None] = {}
        self.result_bytes = 0
        """The same over all calls, without what a call only passes on."""
        self.passed: list[Passing] = []
        self.unknown_inputs: dict[int, int] = {}
        """By call: how many of the tensors it took came from no other call, and were not handed down to it."""
        self.backwards: list[list[int]] = []
        """When backward reached the results of the outermost calls, and when it was done."""
        self.fixed: set[int] = set()
        """Addresses of memory that no call allocates: parameters and buffers."""
        self._results: dict[int, _Result] = {}
        self._handed: dict[int, dict[int, Any]] = {}  # by open call: its inputs
        self._addresses: dict[int, set[int]] = {}
        self._hooks: list[Any] = []
        self._pass = -1  # the number that the engine gave to the backward pass that was noticed last

    def before_call(self, scope: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""
        begun = self.recorder.clock()
        tensors = list(_tensors((*args, *kwargs.values())))
        self.input_shapes[scope] = [shape_of(tensor) for tensor in tensors]
        if self.follow:
            self._follow(scope, tensors)
        if self.memory:
            self._addresses[scope] = {address for address, _ in _blocks(tensors)}
        self.recorder.overhead += self.recorder.clock() - begun

    def after_call(self, scope: int, result: Any) -> None:
        """A call has returned."""
        begun = self.recorder.clock()
        tensors = list(_tensors((result,)))
        passed_on: list[torch.Tensor] = []
        self.output_shapes[scope] = [shape_of(tensor) for tensor in tensors]
        if self.follow:
            self._handed.pop(scope, None)
            passed_on = [tensor for tensor in tensors if not self._is_new(tensor, scope)]
            _, above, _, _, _, again = self.recorder.scopes[scope]
            if not above and not again:
                self._await_backward(tensors)
        if self.memory:
            others = self._addresses.pop(scope, set()) | self.fixed
            blocks = dict(_blocks(tensors))
            own = {at: size for at, size in blocks.items() if at not in others}
            self.own_bytes[scope] = sum(own.values()) if 0 not in blocks else None
            for at, _ in _blocks(passed_on):
                own.pop(at, None)
            self.result_bytes += sum(own.values())
        self.recorder.overhead += self.recorder.clock() - begun

    def hand(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make known what the run itself was given."""
        self._handed[0] = {id(tensor): weakref.ref(tensor) for tensor in tensors}

    def close(self) -> None:
        """Let go of every hook and reference."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._results.clear()
        self._handed.clear()
        self._addresses.clear()

    def _follow(self, scope: int, tensors: list[torch.Tensor]) -> None:
        above = self._handed.get(self.recorder.scopes[scope][1], {})
        unknown = 0
        for tensor in tensors:
            result = self._results.get(id(tensor))
            if result is not None and result() is tensor:
                self.passed.append(Passing(result.scope, scope, shape_of(tensor)))
                continue
            handed = above.get(id(tensor))
            if handed is None or handed() is not tensor:
                unknown += 1
        self.unknown_inputs[scope] = unknown
        self._handed[scope] = {id(tensor): weakref.ref(tensor) for tensor in tensors}

    def _is_new(self, tensor: torch.Tensor, scope: int) -> bool:
        """Note who returned a tensor; False if a call inside this one did."""
        known = self._results.get(id(tensor))
        if known is not None and known() is tensor and known.scope > scope:
            return False
        result = self._results[id(tensor)] = _Result(tensor)
        result.scope = scope
        return True

    def _await_backward(self, tensors: list[torch.Tensor]) -> None:
        """Notice when a backward pass reaches the results of an outermost call; nothing in it is changed by that."""
        for tensor in tensors:
            if tensor.grad_fn is not None:
                self._hooks.append(tensor.grad_fn.register_prehook(self._backward_begins))

    def _backward_begins(self, _: Any) -> None:
        if self.recorder.closed or self._pass == torch._C._current_graph_task_id():
            return
        self._pass = torch._C._current_graph_task_id()
        self.backwards.append([clock(), 0])
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        self.backwards[-1][1] = clock()


class LayerCapture(Capture):
    """A capture of the calls of modules and optimizers alone: no mode is there, and no operation is seen."""

    def __init__(self, *modules: torch.nn.Module, timing: bool = True, memory: bool = True) -> None:
        super().__init__(*modules, keep=False, timing=timing, memory=False)
        self.recorder.operations = False
        self.has_output = True  # or what is alive at the end would be taken for it
        self.boundary = self.recorder.call_observer = ModuleBoundary(
            self.recorder, follow=True, memory=memory
        )
        if memory:
            held = (t for m in modules for t in (*m.parameters(), *m.buffers()))
            known = [tensor for tensor in held if not isinstance(tensor, UninitializedTensorMixin)]
            self.boundary.fixed = {address for address, _ in _blocks(known)}

    def _begin(self, undo: Undo) -> LayerCapture:
        self.recorder.bind_to_task(undo)
        undo.add(self.boundary.close)
        undo.enter(self.module_calls)
        undo.add(self._close, 0)
        self.recorder.scopes[0][2] = clock()
        return self

    def _close(self, compiled_before: int) -> None:
        self.ended = clock()
        self.recorder.close()

    def _named(self) -> list[NamedTensor]:
        return []  # there is no value that could have a name

    def _results(self, facts: RunFacts) -> list[ResultTensor]:
        return []

    def finish(self) -> CapturedRun:
        """A graph of calls without operations, and in ``boundary`` what passed between them."""
        rec = self.recorder
        rec.python_escapes.clear()  # they are about operations
        captured = super().finish()
        text = "operations were not followed: only calls of modules and optimizers are in the graph"
        limits = [Limit(text, kind="missing")]
        unknown = sum(self.boundary.unknown_inputs.values())
        if unknown:
            text = f"{unknown:,} × tensors that a layer took and that no other layer had returned"
            limits.append(Limit(text, kind="dataflow"))
        if self.boundary.memory:
            text = "the memory of a layer is that of its results; what it frees again inside is not seen"
            limits.append(Limit(text, kind="memory"))
        captured.run.limits += tuple(limits)
        return captured


def shape_of(tensor: torch.Tensor) -> Shape:
    """A tensor's shape; None where it has no one shape."""
    if type(tensor) in PLAIN and not tensor.is_nested:
        return tuple(tensor.shape)
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return tuple(int(size) for size in tensor.shape)
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _tensors(items: Iterable[Any]) -> Iterable[torch.Tensor]:
    for item in items:
        if type(item) in PLAIN:
            yield item
        elif item is not None:
            yield from (tensor for _, tensor in named_tensors(item))


def _blocks(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Address and size of the memory of each tensor; address 0 where it has no plain memory."""
    blocks = []
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            blocks.append((storage._cdata, storage.nbytes()))
        except (RuntimeError, NotImplementedError):
            blocks.append((0, 0))
    return blocks


CANNOT = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError)


class TensorFact(NamedTuple):
    """A tensor that crossed the border of a call: where it stood among the arguments, and what it was like."""

    name: str
    shape: Shape
    dtype: str
    device: str
    nbytes: int | None
    contents: ElementStats | None = None


class CallStats(NamedTuple):
    """One call of a module. ``device_ns`` is the time on the GPU, where the tensors were on one."""

    path: str
    number: int
    start_ns: int
    time_ns: int
    self_ns: int
    inputs: tuple[TensorFact, ...]
    outputs: tuple[TensorFact, ...]
    raised: bool
    outermost: bool
    """Whether no other call of the same module was going on around it."""
    device_ns: int | None = None
    device_self_ns: int | None = None
    maps: tuple[NDArray[np.float32], ...] = ()


class TensorFacts(ModuleBoundary):
    """Notes what every tensor at the border of a call is like; what cannot be noted is counted."""

    def __init__(self, recorder: Recorder, *, contents: bool, maps: bool) -> None:
        super().__init__(recorder)
        self.contents = contents
        self.maps = maps
        self.ins: dict[int, tuple[TensorFact, ...]] = {}
        self.outs: dict[int, tuple[TensorFact, ...]] = {}
        self.pictures: dict[int, tuple[NDArray[np.float32], ...]] = {}
        self.events: dict[int, list[Any]] = {}
        self.failures: dict[str, int] = {}

    def before_call(self, scope: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""
        begun = clock()
        try:
            named = list(_arguments(args, kwargs))
            self.ins[scope] = tuple(self._fact(name, tensor) for name, tensor in named)
            self._mark(scope, named)
        except Exception as error:  # the user's forward goes on, whatever an argument of theirs does
            self.note_failure(error)
        self.recorder.overhead += clock() - begun

    def after_call(self, scope: int, result: Any) -> None:
        """A call has returned."""
        begun = clock()
        try:
            named = list(named_tensors(result))
            if scope in self.events:
                self.events[scope].append(_event(self.events[scope][0].device))
            self.outs[scope] = tuple(self._fact(name or "output", tensor) for name, tensor in named)
            if self.maps and named and not torch.jit.is_tracing():
                self.pictures[scope] = tuple(maps_of(named[0][1]))
        except Exception as error:
            self.note_failure(error)
        self.outs.setdefault(scope, ())
        self.recorder.overhead += clock() - begun

    def _fact(self, name: str, tensor: torch.Tensor) -> TensorFact:
        shape = shape_of(tensor)
        nbytes: int | None = None
        try:
            dtype, device = str(tensor.dtype).removeprefix("torch."), str(tensor.device)
            if tensor.layout == torch.strided and shape is not None:
                nbytes = int(tensor.numel()) * tensor.element_size()
        except CANNOT as error:
            self.note_failure(error)
            dtype, device = "unknown", "unknown"
        return TensorFact(name, shape, dtype, device, nbytes, self._contents(tensor))

    def _contents(self, tensor: torch.Tensor) -> ElementStats | None:
        if not self.contents or torch.jit.is_tracing() or _capturing(tensor):
            return None
        try:
            return contents_of(tensor)
        except CANNOT as error:  # a batched tensor inside vmap, say, has no elements to look at
            self.note_failure(error)
            return None

    def _mark(self, scope: int, named: list[tuple[str, torch.Tensor]]) -> None:
        """Put an event on the GPU's queue where the tensors are on one; it does not wait for anything."""
        for _, tensor in named:
            if tensor.is_cuda and type(tensor).__name__ != "FakeTensor" and not _capturing(tensor):
                self.events[scope] = [_event(tensor.device)]
                return

    def note_failure(self, error: Exception) -> None:
        """Count what could not be noted, by its error."""
        text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self.failures[text] = self.failures.get(text, 0) + 1


class CallRecorder(Context["CallRecorder"]):
    """Follows the calls of a model's modules for as long as it is entered."""

    def __init__(self, model: torch.nn.Module, *, contents: bool = False, maps: bool = False) -> None:
        self.model = model
        self.recorder = Recorder(keep=False, memory=False)
        self.recorder.operations = False
        self.facts = TensorFacts(self.recorder, contents=contents, maps=maps)
        self.recorder.call_observer = self.facts
        self._module_calls = ModuleCalls(self.recorder, frozenset(id(part) for part in model.modules()))

    def _begin(self, undo: Undo) -> CallRecorder:
        self.recorder.bind_to_task(undo)
        undo.enter(self._module_calls)
        undo.add(self.recorder.close)
        return self

    def calls(self) -> list[CallStats]:
        """Every call of a module of the model, in the order in which they began."""
        rec, facts = self.recorder, self.facts
        paths = {id(module): path for path, module in self.model.named_modules()}
        names = [None, *(paths.get(id(owner)) for owner, *_ in rec.modules[1:])]
        rows = list(rec.scopes)
        times = [max(0, ended - began - own) if ended else 0 for _, _, began, ended, own, _ in rows]
        on_device = {scope: took for scope in facts.events if (took := self._elapsed(scope)) is not None}
        inside, device_inside = [0] * len(rows), [0] * len(rows)
        for scope, row in enumerate(rows):
            if scope:
                inside[row[1]] += times[scope]
                device_inside[row[1]] += on_device.get(scope, 0)
        counts: dict[int, int] = {}
        calls = []
        for scope, (module, _, began, *_) in enumerate(rows):
            path = names[module]
            if path is None:
                continue
            number = counts[module] = counts.get(module, -1) + 1
            device = on_device.get(scope)
            calls.append(
                CallStats(
                    path,
                    number,
                    began - rows[0][2],
                    times[scope],
                    max(0, times[scope] - inside[scope]),
                    facts.ins.get(scope, ()),
                    facts.outs.get(scope, ()),
                    scope not in facts.outs,
                    number == 0 or not self._within_itself(scope),
                    device,
                    None if device is None else max(0, device - device_inside[scope]),
                    facts.pictures.get(scope, ()),
                )
            )
        return calls

    def _within_itself(self, scope: int) -> bool:
        rows = self.recorder.scopes
        module, above = rows[scope][0], rows[scope][1]
        while above > 0:
            if rows[above][0] == module:
                return True
            above = rows[above][1]
        return False

    def _elapsed(self, scope: int) -> int | None:
        events = self.facts.events[scope]
        if len(events) != 2:
            return None
        try:
            events[1].synchronize()
            return int(events[0].elapsed_time(events[1]) * 1e6)
        except RuntimeError as error:  # the queue was being captured into a graph
            self.facts.note_failure(error)
            return None


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[str, torch.Tensor]]:
    for position, item in enumerate(args):
        yield from named_tensors(item, str(position))
    for name, item in kwargs.items():
        yield from named_tensors(item, name)


def _event(device: torch.device) -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
