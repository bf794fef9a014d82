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

from torch_vis.capture.recording import opaque_nodes as unseen
from torch_vis.capture.recording.dispatch_mode import RecordMode
from torch_vis.capture.recording.recorder import Recorder, flat_tensors
from torch_vis.capture.recording.source_lines import leave_alone

_original: Any = None
_spent = 0
_begun: list[int] = []


def install() -> None:
    """Wrap the boundary now if Inductor is loaded, and otherwise as soon as something has been compiled."""
    _wrap()
    callbacks = sys.modules.get("torch._dynamo.callback")
    if callbacks is not None:
        callbacks.callback_handler.register_start_callback(_begins)
        callbacks.callback_handler.register_end_callback(_ends)


def uninstall() -> None:
    """Undo ``install``."""
    global _original
    callbacks = sys.modules.get("torch._dynamo.callback")
    if callbacks is not None and _ends in callbacks.callback_handler.end_callbacks:
        callbacks.callback_handler.remove_start_callback(_begins)
        callbacks.callback_handler.remove_end_callback(_ends)
    _begun.clear()
    if _original is not None:
        sys.modules["torch._inductor.output_code"].CompiledFxGraph.__call__ = _original
        _original = None


def compile_ns() -> int:
    """How long Dynamo and what comes after it have compiled while a recorder was active; it only grows."""
    return _spent


@leave_alone  # called under Dynamo's lock, which it would wait for itself
def _begins(*_: Any) -> None:
    _begun.append(time.perf_counter_ns())


@leave_alone
def _ends(*_: Any) -> None:
    global _spent
    if _begun:
        _spent += time.perf_counter_ns() - _begun.pop()
    _wrap()


@leave_alone
def _wrap(*_: Any) -> None:
    global _original
    module = sys.modules.get("torch._inductor.output_code")
    if module is not None and _original is None:
        _original = module.CompiledFxGraph.__call__
        module.CompiledFxGraph.__call__ = _call


def _call(self: Any, inputs: Any) -> Any:
    """Stands for ``CompiledFxGraph.__call__`` while a recorder is active."""
    recorders = list(_recorders())
    if not recorders:
        return _original(self, inputs)
    changed = {position for position in self.mutated_input_idxs if isinstance(inputs[position], torch.Tensor)}
    tensors = [item for item in inputs if isinstance(item, torch.Tensor)]
    writes = [t for position, t in enumerate(inputs) if position in changed]
    slots = tuple(next(i for i, other in enumerate(tensors) if other is t) for t in writes)
    begun = [unseen.begins(recorder, tensors, slots) for recorder in recorders]
    result = _original(self, inputs)
    for recorder, start in zip(recorders, begun, strict=True):
        site = recorder.site_of(sys._getframe().f_back)
        unseen.ends(
            recorder, "torch_vis::compiled", start, tensors, slots, list(flat_tensors((result,))), site
        )
    return result


def _recorders() -> list[Recorder]:
    modes = [_get_dispatch_stack_at(place) for place in range(_len_torch_dispatch_stack())]
    return [mode.recorder for mode in modes if isinstance(mode, RecordMode)]
