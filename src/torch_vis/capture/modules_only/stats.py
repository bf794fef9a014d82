"""The calls of a model's modules, each with its time and with the tensors that went in and came out.

No operation is looked at and no hook is set: calls are followed by ``ModuleCalls``. What is noted is
numbers and words; no tensor is kept alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torch_vis.capture.containers import named_tensors
from torch_vis.capture.modules_only.recorder import ModuleBoundary, Shape, shape_of
from torch_vis.capture.modules_only.tensor_stats import ElementStats, contents_of, maps_of
from torch_vis.capture.recording.module_calls import ModuleCalls
from torch_vis.capture.recording.recorder import Recorder, clock

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

    def take(self, scope: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""
        begun = clock()
        try:
            named = list(_arguments(args, kwargs))
            self.ins[scope] = tuple(self._fact(name, tensor) for name, tensor in named)
            self._mark(scope, named)
        except Exception as error:  # the user's forward goes on, whatever an argument of theirs does
            self.note_failure(error)
        self.recorder.overhead += clock() - begun

    def give(self, scope: int, result: Any) -> None:
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


class CallRecorder:
    """Follows the calls of a model's modules for as long as it is entered."""

    def __init__(self, model: torch.nn.Module, *, contents: bool = False, maps: bool = False) -> None:
        self.model = model
        self.recorder = Recorder(keep=False, memory=False)
        self.recorder.operations = False
        self.facts = TensorFacts(self.recorder, contents=contents, maps=maps)
        self.recorder.call_observer = self.facts
        self._module_calls = ModuleCalls(self.recorder, frozenset(id(part) for part in model.modules()))

    def __enter__(self) -> CallRecorder:
        self._module_calls.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.recorder.closed = True
        self._module_calls.__exit__()

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
