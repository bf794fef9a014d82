"""Methods of torch that no mode sees, wrapped while a recorder is active: waits, resized memory, stages of a pipeline.

``Work.wait`` is where what other ranks sent has arrived. ``UntypedStorage.resize_`` is how sharded training frees and
takes back the memory of whole parameters. A stage of a pipeline runs one micro-batch at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_dispatch_stack_at, _len_torch_dispatch_stack

from torch_vis.capture.recording.collectives import wait_ended
from torch_vis.capture.recording.dispatch_mode import RecordMode
from torch_vis.capture.recording.recorder import Recorder, clock, get_ident
from torch_vis.capture.recording.source_lines import leave_alone
from torch_vis.capture.undo import Patch

STAGES = "torch.distributed.pipelining.stage"
CHUNKS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


def _recorders() -> list[Recorder]:
    """The recorders of this thread, outermost first."""
    modes = [_get_dispatch_stack_at(index) for index in range(_len_torch_dispatch_stack())]
    return [mode.recorder for mode in modes if isinstance(mode, RecordMode) and mode.recorder.is_here()]


def _waiting(original: Any) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for ``Work.wait`` while a recorder is active."""
        recorders = _recorders() if _stands(wrapper) else []
        if not recorders:
            return original(self, *args, **kwargs)
        started = clock()
        # a backend may copy what arrived to where it belongs, which is no operation of the program
        with torch._C._DisableTorchDispatch():
            result = original(self, *args, **kwargs)
        ended = clock()
        for recorder in recorders:
            if recorder.pending:
                wait_ended(recorder, self, (started, ended), sys._getframe().f_back)
        return result

    wrapper = leave_alone(wait)
    return wrapper


def _resizing(original: Any) -> Any:
    def resize_(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for ``UntypedStorage.resize_`` while a recorder is active."""
        recorders = _recorders() if _stands(wrapper) else []
        for recorder in recorders:
            recorder.before_resize(self, *args, **kwargs)
        result = original(self, *args, **kwargs)
        for recorder in recorders:
            recorder.after_resize(self)
        return result

    wrapper = leave_alone(resize_)
    return wrapper


def _running_chunk(original: Any) -> Any:
    def run(self: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
        """Stands for a method of a pipeline stage that runs one micro-batch, while a recorder is active."""
        recorders, thread = _recorders() if _stands(wrapper) else [], get_ident()
        scopes = []
        for recorder in recorders:
            stage = f"stage {self.stage_index}"
            batch = f"{stage}.micro-batch {chunk}"
            key = recorder.chunk_key(self, chunk)
            outer = recorder.enter(recorder.module_number(self, stage, type(self).__name__, "stage"), thread)
            inner = recorder.enter(
                recorder.module_number(key, batch, original.__name__, "microbatch"), thread
            )
            scopes.append((recorder, outer, inner))
        try:
            return original(self, chunk, *args, **kwargs)
        finally:
            for recorder, outer, inner in reversed(scopes):
                recorder.leave(inner, thread)
                recorder.leave(outer, thread)

    wrapper = leave_alone(run)
    return wrapper


def _of_c10d(name: str) -> Callable[[], Any]:
    def owner() -> Any:
        if not torch.distributed.is_available():
            return None
        kind = getattr(torch._C._distributed_c10d, name, None)
        return kind if kind is not None and "wait" in vars(kind) else None

    return owner


def _stage() -> Any:
    module = sys.modules.get(STAGES)
    return None if module is None else module._PipelineStageBase


# each as far as what it belongs to is loaded
PARTS = (
    Patch(lambda: torch.UntypedStorage, "resize_", _resizing),
    *(Patch(_of_c10d(name), "wait", _waiting) for name in ("Work", "FakeWork")),
    *(Patch(_stage, name, _running_chunk) for name in CHUNKS),
)


def _stands(wrapper: Any) -> bool:
    """Whether a wrapper is the one that was put in place last: one that others brought back only passes calls on."""
    return any(part.wrapper is wrapper for part in PARTS)
