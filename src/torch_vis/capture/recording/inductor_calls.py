"""Calls of code that Inductor generated: each becomes one node, with the tensors that go in and come out.

What such code does inside is invisible to a dispatch mode. Its boundary is one Python method, which is wrapped while a
recorder is active; it is called at run time only, so nothing that Dynamo compiles or guards on sees the wrapper.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.utils._python_dispatch import _get_dispatch_stack_at, _len_torch_dispatch_stack

from torch_vis.capture.recording.dispatch_mode import RecordMode
from torch_vis.capture.recording.opaque_nodes import OpaqueCall
from torch_vis.capture.recording.recorder import Recorder, flat_tensors
from torch_vis.capture.recording.source_lines import leave_alone

COMPILED = "torch_vis::compiled"
_original: Any = None
_compile_ns = 0
# when the compilations began that are under way
_started: list[int] = []


def install() -> None:
    """Wrap the boundary now if Inductor is loaded, and otherwise as soon as something has been compiled."""
    _wrap()
    callbacks = sys.modules.get("torch._dynamo.callback")
    if callbacks is not None:
        callbacks.callback_handler.register_start_callback(_compilation_begins)
        callbacks.callback_handler.register_end_callback(_compilation_ends)


def uninstall() -> None:
    """Undo ``install``."""
    global _original
    callbacks = sys.modules.get("torch._dynamo.callback")
    if callbacks is not None and _compilation_ends in callbacks.callback_handler.end_callbacks:
        callbacks.callback_handler.remove_start_callback(_compilation_begins)
        callbacks.callback_handler.remove_end_callback(_compilation_ends)
    _started.clear()
    if _original is not None:
        sys.modules["torch._inductor.output_code"].CompiledFxGraph.__call__ = _original
        _original = None


def compile_ns() -> int:
    """How long Dynamo and its backends have compiled while a recorder was active; it only grows."""
    return _compile_ns


# both are called under Dynamo's lock, which it would wait for itself
@leave_alone
def _compilation_begins(*_: Any) -> None:
    _started.append(time.perf_counter_ns())


@leave_alone
def _compilation_ends(*_: Any) -> None:
    global _compile_ns
    if _started:
        _compile_ns += time.perf_counter_ns() - _started.pop()
    _wrap()


@leave_alone
def _wrap() -> None:
    global _original
    module = sys.modules.get("torch._inductor.output_code")
    if module is not None and _original is None:
        _original = module.CompiledFxGraph.__call__
        module.CompiledFxGraph.__call__ = _call


def _call(self: Any, inputs: Any) -> Any:
    """Stands for ``CompiledFxGraph.__call__`` while a recorder is active."""
    recorders = _recorders()
    if not recorders:
        return _original(self, inputs)
    tensors = [item for item in inputs if isinstance(item, torch.Tensor)]
    mutated = set(self.mutated_input_idxs)
    written = [t for position, t in enumerate(inputs) if position in mutated and isinstance(t, torch.Tensor)]
    slots = tuple(next(i for i, other in enumerate(tensors) if other is t) for t in written)
    calls = [OpaqueCall(recorder, tensors, slots) for recorder in recorders]
    result = _original(self, inputs)
    for call in calls:
        site = call.rec.site_of(sys._getframe().f_back)
        call.finish(COMPILED, list(flat_tensors((result,))), site)
    return result


def _recorders() -> list[Recorder]:
    modes = [_get_dispatch_stack_at(index) for index in range(_len_torch_dispatch_stack())]
    return [mode.recorder for mode in modes if isinstance(mode, RecordMode)]
