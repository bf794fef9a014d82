"""Methods of modules that run parts of them without a call of the module: a ``training_step``, an ``encode``.

Such a module is the root of all names, and its method is a scope like a call. It is recognised by the frame of the
method, on the stack when a part of the module is called and no module is around that call.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch

from torch_vis.capture.recording.recorder import Recorder, clock
from torch_vis.capture.recording.source_lines import kind_of, leave_alone
from torch_vis.capture.recording.user_functions import Declared

SNAPSHOTS = sys.version_info < (3, 13)  # f_locals is a dictionary that the frame keeps, and not a view of it
_known: dict[int, tuple[CodeType, bool]] = {}  # with the code, so that its id stays its own


def codes_here() -> frozenset[int]:
    """The code that is running now: what began before a recording is no scope in it."""
    found, frame = set(), sys._getframe(1).f_back
    while frame is not None:
        found.add(id(frame.f_code))
        frame = frame.f_back
    return frozenset(found)


@leave_alone
def look_above(recorder: Recorder, module: torch.nn.Module, thread: int) -> None:
    """Before a call that no other module is around: note the modules of whose methods it is a part."""
    begun = clock()
    step = recorder.steps.get(thread)
    owners: dict[int, tuple[torch.nn.Module, FrameType | None]] = {}
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (step is None or frame is not step[1]):
        owner = _owner(frame) if _is_method(frame.f_code) else None
        if owner is not None and owner is not module and _holds(owner, module):
            running = id(frame.f_code) in recorder.codes_before
            before = owners.get(id(owner), (owner, None))[1]
            owners[id(owner)] = (owner, before if running else frame)
        frame = frame.f_back
    for owner, method in owners.values():
        name = type(owner).__name__
        number = recorder.module_number(owner, "", name, "module")
        if method is not None:
            if recorder.declared is None:
                recorder.declared = Declared(recorder, ())
            recorder.declared.methods[id(method.f_code)] = (method.f_code, number, _owner)
    recorder.overhead += clock() - begun


def _holds(owner: torch.nn.Module, part: torch.nn.Module) -> bool:
    return any(one is part for one in owner.modules())


def _owner(frame: FrameType) -> torch.nn.Module | None:
    """The module whose method a frame runs: its first argument."""
    seen: dict[str, Any] = frame.f_locals
    found = seen.get(frame.f_code.co_varnames[0])
    if (
        SNAPSHOTS and sys.getrefcount(seen) == 3
    ):  # the frame's, ours and the argument: nobody else looks at it
        seen.clear()  # or it would keep what the method lets go of
    return found if isinstance(found, torch.nn.Module) else None


def _is_method(code: CodeType) -> bool:
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = (code, bool(code.co_argcount) and kind_of(code).user and _of_module(code))
    return known[1]


def _of_module(code: CodeType) -> bool:
    """Whether code is that of a method which some class of modules has."""
    stack = [torch.nn.Module]
    while stack:
        kind = stack.pop()
        stack.extend(kind.__subclasses__())
        method: Any = kind.__dict__.get(code.co_name)
        while hasattr(method, "__wrapped__"):
            method = method.__wrapped__
        if getattr(method, "__code__", None) is code:
            return True
    return False
