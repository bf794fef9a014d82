"""Methods of torch that no mode sees, wrapped while a recorder is active: waits, resized memory, stages of a pipeline.

``Work.wait`` is where what other ranks sent has arrived. What ``Future.then`` was given runs when it has, on a thread
of the backend's that knows no modes, as hooks of DistributedDataParallel do. ``UntypedStorage.resize_`` is how sharded
training frees and takes back the memory of whole parameters. A stage of a pipeline runs one micro-batch at a time.
Methods of ``ProcessGroup`` are what a thread without modes talks to other ranks by.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from torch_vis.capture.modes import push_mode
from torch_vis.capture.recording.collectives import CallPlace, place_of, wait_ended
from torch_vis.capture.recording.dispatch_mode import RecordMode, recorders_here
from torch_vis.capture.recording.recorder import FORWARD, Recorder, adopting, clock, get_ident
from torch_vis.capture.recording.source_lines import leave_alone
from torch_vis.capture.undo import Patch, Undo, context

STAGES = "torch.distributed.pipelining.stage"
TALKING = (
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "all_gather_single", "_allgather_base",
    "allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "all_to_all_single", "alltoall_base", "alltoall", "send", "recv",
    "recv_anysource", "barrier", "monitored_barrier",
)  # fmt: skip
CHUNKS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


# by thread, the recorders that record what it says to other ranks, and nothing else of it
_talking: dict[int, list[Recorder]] = {}


def _issuing(original: Any) -> Any:
    def issue(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for a method of ``ProcessGroup`` that talks to other ranks, while a recorder is active."""
        # a thread with modes is recorded, or something else is at work on it
        if _len_torch_dispatch_stack() or not _stands(wrapper):
            return original(self, *args, **kwargs)
        recorders = _recorders_of_run(sys._getframe().f_back)
        if not recorders:
            return original(self, *args, **kwargs)
        _talking[get_ident()] = recorders
        place = CallPlace(-1, 0, FORWARD)
        with _adopted(recorders, [place] * len(recorders)):
            return original(self, *args, **kwargs)

    # a group in Python that has no such method of its own is told from the call that asks for it by this name
    issue.__code__ = issue.__code__.replace(co_name=original.__name__)
    wrapper = leave_alone(issue)
    return wrapper


def _recorders_of_run(frame: Any) -> list[Recorder]:
    """The recorders of the run that started this thread; on one that was there before, the line is noted."""
    thread = get_ident()
    recorders = []
    for recorder, _ in adopting:
        if recorder.closed or not recorder.operations:
            continue
        if recorder.has_started(thread):
            recorders.append(recorder)
        elif thread not in recorder.current:
            recorder.talked_elsewhere.append(recorder.site_of(frame))
    return recorders


def _waiting(original: Any) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for ``Work.wait`` while a recorder is active."""
        recorders = recorders_here() or _talked_here() if _stands(wrapper) else []
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


def _talked_here() -> list[Recorder]:
    """The recorders that recorded what this thread said to other ranks."""
    if not _talking:
        return []
    for thread, recorders in list(_talking.items()):
        if all(recorder.closed for recorder in recorders):
            _talking.pop(thread, None)
    return [recorder for recorder in _talking.get(get_ident(), ()) if not recorder.closed]


def _calling_back(original: Any) -> Any:
    def then(self: Any, callback: Any) -> Any:
        """Stands for ``Future.then`` and ``add_done_callback`` while a recorder is active."""
        recorders = recorders_here() if _stands(wrapper) else []
        if not recorders:
            return original(self, callback)
        frame = sys._getframe().f_back
        return original(self, _recorded(callback, [(rec, place_of(rec, frame)) for rec in recorders]))

    wrapper = leave_alone(then)
    return wrapper


def _recorded(callback: Any, recorders: list[tuple[Recorder, CallPlace]]) -> Any:
    """A callback that is recorded on whatever thread it runs, as if where it was given."""
    thread = get_ident()

    @leave_alone
    def run(*args: Any) -> Any:
        # on the thread that gave it, at once or later, what is on there is what records
        others = [] if get_ident() == thread else [(rec, place) for rec, place in recorders if not rec.closed]
        if not others:
            return callback(*args)
        starts = [len(rec.log) for rec, _ in others]
        try:
            with _adopted([rec for rec, _ in others], [place for _, place in others]):
                return callback(*args)
        finally:
            for (rec, place), start in zip(others, starts):
                rec.complete_rows(start, get_ident(), place.site, place.backward)

    return run


@context
def _adopted(undo: Undo, recorders: list[Recorder], places: list[CallPlace]) -> None:
    """Record operations on another thread, in the scopes that they belong to."""
    thread = get_ident()
    for recorder, place in zip(recorders, places):
        recorder.many_threads = True
        undo.add(recorder.current.__setitem__, thread, recorder.current.get(thread, 0))
        recorder.current[thread] = place.scope
        push_mode(undo, RecordMode(recorder))


def _resizing(original: Any) -> Any:
    def resize_(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for ``UntypedStorage.resize_`` while a recorder is active."""
        recorders = recorders_here() if _stands(wrapper) else []
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
        recorders, thread = recorders_here() if _stands(wrapper) else [], get_ident()
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


def _of_c10d(name: str, method: str = "wait") -> Callable[[], Any]:
    @cache
    def owner() -> Any:
        if not torch.distributed.is_available():
            return None
        kind = getattr(torch._C._distributed_c10d, name, None)
        return kind if kind is not None and method in vars(kind) else None

    return owner


def _stage() -> Any:
    module = sys.modules.get(STAGES)
    return None if module is None else module._PipelineStageBase


# each as far as what it belongs to is loaded
PARTS = (
    Patch(lambda: torch.UntypedStorage, "resize_", _resizing),
    *(Patch(_of_c10d(name), "wait", _waiting) for name in ("Work", "FakeWork")),
    *(Patch(lambda: torch._C.Future, name, _calling_back) for name in ("then", "add_done_callback")),
    *(Patch(_stage, name, _running_chunk) for name in CHUNKS),
    *(Patch(_of_c10d("ProcessGroup", name), name, _issuing) for name in TALKING),
)


def _stands(wrapper: Any) -> bool:
    """Whether a wrapper is the one that was put in place last: one that others brought back only passes calls on."""
    # no generator: this runs at every wait
    for part in PARTS:  # noqa: SIM110
        if part.wrapper is wrapper:
            return True
    return False
