"""The calls of modules alone: what goes into each and comes out of it, and whose result the next one takes.

No operation is looked at. Beside a mode, ``ModuleBoundary`` adds the shapes at the boundary of each call to what the
mode records; ``LayerCapture`` is the capture that has nothing but these calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torch_vis.capture.assembling.assemble import NamedTensor, ResultTensor, RunFacts
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.recording.recorder import Recorder, clock
from torch_vis.capture.session import Capture, CapturedRun
from torch_vis.graph.record import Limit

Shape = tuple[int, ...] | None  # None: a tensor without one shape, such as a nested one
PLAIN = (torch.Tensor, torch.nn.Parameter)


class Passing(NamedTuple):
    """A tensor that one call returned and another took, as the very same object."""

    maker: int
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

    def take(self, scope: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""
        begun = self.recorder.clock()
        tensors = list(_tensors((*args, *kwargs.values())))
        self.input_shapes[scope] = [shape_of(tensor) for tensor in tensors]
        if self.follow:
            self._follow(scope, tensors)
        if self.memory:
            self._addresses[scope] = {address for address, _ in _blocks(tensors)}
        self.recorder.overhead += self.recorder.clock() - begun

    def give(self, scope: int, result: Any) -> None:
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

    def __enter__(self) -> LayerCapture:
        self.module_calls.__enter__()
        self.recorder.scopes[0][2] = clock()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended = clock()
        self.recorder.closed = True
        self.module_calls.__exit__()
        self.boundary.close()

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
