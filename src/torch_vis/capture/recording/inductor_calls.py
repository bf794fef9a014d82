"""Calls of code that Inductor generated: each becomes one node, with the tensors that go in and come out.

What such code does inside is invisible to a dispatch mode. Its boundary is one Python method, which is wrapped while a
recorder is active; it is called at run time only, so nothing that Dynamo compiles or guards on sees the wrapper.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from torch_vis.capture.recording.dispatch_mode import recorders_here
from torch_vis.capture.recording.opaque_nodes import OpaqueCall
from torch_vis.capture.recording.recorder import flat_tensors
from torch_vis.capture.recording.source_lines import leave_alone
from torch_vis.capture.undo import Hooks, Patch

COMPILED = "torch_vis::compiled"
_compile_ns = 0
# when the compilations began that are under way
_started: list[int] = []


def compile_ns() -> int:
    """How long Dynamo and its backends have compiled while a recorder was active; it only grows."""
    return _compile_ns


# both are called under Dynamo's lock, which it would wait for itself
@leave_alone
def _compilation_begins(*_: Any) -> None:
    # one that an interrupt ended has no end
    _started[:] = [time.perf_counter_ns()]


@leave_alone
def _compilation_ends(*_: Any) -> None:
    global _compile_ns
    if _started:
        _compile_ns += time.perf_counter_ns() - _started.pop()
    # compiling has loaded Inductor
    _boundary.install()


def _wrap_call(original: Any) -> Any:
    """What stands for ``CompiledFxGraph.__call__`` while a recorder is active."""

    def call(self: Any, inputs: Any) -> Any:
        recorders = recorders_here() if _boundary.wrapper is call else []
        if not recorders:
            return original(self, inputs)
        tensors = [item for item in inputs if isinstance(item, torch.Tensor)]
        mutated = set(self.mutated_input_idxs)
        written = [t for at, t in enumerate(inputs) if at in mutated and isinstance(t, torch.Tensor)]
        slots = tuple(next(i for i, other in enumerate(tensors) if other is t) for t in written)
        calls = [OpaqueCall(recorder, tensors, slots) for recorder in recorders]
        result = original(self, inputs)
        for opaque in calls:
            site = opaque.rec.site_of(sys._getframe().f_back)
            opaque.finish(COMPILED, list(flat_tensors((result,))), site)
        return result

    return call


def _output_code() -> Any:
    module = sys.modules.get("torch._inductor.output_code")
    return None if module is None else module.CompiledFxGraph


def _callbacks() -> Any:
    module = sys.modules.get("torch._dynamo.callback")
    if module is None:
        return []
    handler = module.callback_handler
    return [
        (handler.start_callbacks, _compilation_begins, handler.register_start_callback),
        (handler.end_callbacks, _compilation_ends, handler.register_end_callback),
    ]


_boundary = Patch(_output_code, "__call__", _wrap_call)
# the boundary is wrapped now if Inductor is loaded, and otherwise as soon as something has been compiled
PARTS = (Hooks(_callbacks), _boundary)
