"""Which module an operation runs in: the calls of modules and optimizers, followed while a recorder is active.

Module hooks would serve, but for compiled modules: hooks that are there while Dynamo compiles are compiled in and
guarded on, so the user's next call without us would compile again. ``Module.__call__`` is wrapped instead, for as
long as a recorder is active; Dynamo looks through the wrapper and guards on nothing of it.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import CodeType, FrameType
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torch_vis.capture.recording import inductor_calls as compiled
from torch_vis.capture.recording.dispatch_mode import RecordMode
from torch_vis.capture.recording.recorder import Recorder, clock, get_ident
from torch_vis.capture.recording.source_lines import kind_of, leave_alone
from torch_vis.capture.recording.user_functions import UserFunctions

_lock = threading.Lock()
_active: dict[int, list[Recorder]] = {}
_adopting: list[tuple[Recorder, frozenset[int]]] = []
_module_call = torch.nn.Module.__call__
_hooks: list[Any] = []
_thresholds = (gc.get_threshold(), gc.get_threshold())
AROUND = ("run", "optimizer")  # scopes in which a call of a module is an outermost one
OBJECTS = (
    4  # what the collector has to visit for each tensor: the tensor itself, its storage, a reference to each
)


class ModuleCalls:
    """Follows module calls, optimizer steps and escapes for one recorder on the thread that enters it."""

    def __init__(self, recorder: Recorder, modules: frozenset[int] | None = None) -> None:
        self.recorder = recorder
        self.modules = modules  # calls of these on other threads are recorded too; None: this thread only

    def __enter__(self) -> ModuleCalls:
        with _lock:
            if not _active:
                _install()
            self.thread = get_ident()
            _active[self.thread] = [*_active.get(self.thread, []), self.recorder]
            if self.modules is not None:
                _adopting.append((self.recorder, self.modules))
        return self

    def __exit__(self, *exception: object) -> None:
        with _lock:
            rest = [recorder for recorder in _active[self.thread] if recorder is not self.recorder]
            if rest:
                _active[self.thread] = rest
            else:
                del _active[self.thread]
            if self.modules is not None:
                _adopting[:] = [entry for entry in _adopting if entry[0] is not self.recorder]
            if not _active:
                _uninstall()


def _install() -> None:
    global _module_call
    _module_call = torch.nn.Module.__call__
    torch.nn.Module.__call__ = _call  # type: ignore[method-assign]
    _hooks.append(register_optimizer_step_pre_hook(_step_begins))
    _hooks.append(register_optimizer_step_post_hook(_step_ends))
    _wrap_escapes()
    compiled.install()
    _slow_collector()


def _uninstall() -> None:
    if torch.nn.Module.__call__ is _call:
        torch.nn.Module.__call__ = _module_call  # type: ignore[method-assign]
    while _hooks:
        _hooks.pop().remove()
    _unwrap_escapes()
    compiled.uninstall()
    _restore_collector()


@contextmanager
def aside_while_compiling() -> Iterator[None]:
    """Let Dynamo see ``Module.__call__`` as it is: it knows that one, and takes the way through ours step by step."""
    from torch._dynamo.callback import callback_handler

    @leave_alone  # they are called under Dynamo's lock, which it would wait for itself
    def begins(_: Any) -> None:
        if torch.nn.Module.__call__ is _call:
            torch.nn.Module.__call__ = _module_call  # type: ignore[method-assign]

    @leave_alone
    def ends(_: Any) -> None:
        if _active and torch.nn.Module.__call__ is _module_call:
            torch.nn.Module.__call__ = _call  # type: ignore[method-assign]

    callback_handler.register_start_callback(begins)
    callback_handler.register_end_callback(ends)
    try:
        yield
    finally:
        with suppress(ValueError):  # a reset of Dynamo inside has dropped them
            callback_handler.remove_start_callback(begins)
            callback_handler.remove_end_callback(ends)
        ends(None)


def _slow_collector() -> None:
    """Let the garbage collector run about as often as without us, who make some objects for each tensor."""
    global _thresholds
    before = gc.get_threshold()
    after = (before[0] * OBJECTS, *before[1:])
    gc.set_threshold(*after)
    _thresholds = (before, after)


def _restore_collector() -> None:
    if gc.get_threshold() == _thresholds[1]:  # else the program has set its own meanwhile
        gc.set_threshold(*_thresholds[0])


def _call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Stands for ``Module.__call__`` while a recorder is active."""
    if is_compiling():
        return _module_call(self, *args, **kwargs)
    thread = get_ident()
    recorders = _active.get(thread)
    if recorders is None:
        return _call_elsewhere(self, args, kwargs)
    if len(recorders) > 1:
        return _call_nested(self, args, kwargs, recorders, thread)
    recorder = recorders[0]
    _look_around(recorder, self, thread)
    module = recorder.module_numbers.get(id(self))
    scope = recorder.enter(_number(recorder, self) if module is None else module, thread)
    try:
        if recorder.borders is None:
            return _module_call(self, *args, **kwargs)
        recorder.borders.take(scope, args, kwargs)
        result = _module_call(self, *args, **kwargs)
        recorder.borders.give(scope, result)
        return result
    finally:
        recorder.leave(scope, thread)


@leave_alone
def _look_around(recorder: Recorder, module: torch.nn.Module, thread: int) -> None:
    """Bring the scopes of functions and methods in line with what runs, before a call of a module."""
    if recorder.declared is not None:
        recorder.declared.follow(thread)
    if not recorder.operations:
        return
    scope = recorder.current.get(thread, 0)
    if recorder.modules[recorder.scopes[scope][0]][3] in AROUND:
        look_above(recorder, module, thread)
        if recorder.declared is not None:
            recorder.declared.follow(thread)


def _call_nested(
    module: torch.nn.Module, args: Any, kwargs: Any, recorders: list[Recorder], thread: int
) -> Any:
    """A call that several recorders follow: a trace inside a trace."""
    for recorder in recorders:
        _look_around(recorder, module, thread)
    entered = [(recorder, recorder.enter(_number(recorder, module), thread)) for recorder in recorders]
    watching = [(recorder.borders, scope) for recorder, scope in entered if recorder.borders is not None]
    try:
        for borders, scope in watching:
            borders.take(scope, args, kwargs)
        result = _module_call(module, *args, **kwargs)
        for borders, scope in watching:
            borders.give(scope, result)
        return result
    finally:
        for recorder, scope in reversed(entered):
            recorder.leave(scope, thread)


def _call_elsewhere(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """A call on a thread without a recorder: recorded too if the run started the thread and traces the module."""
    for recorder, modules in _adopting:
        ours = id(module) in modules or id(module) in recorder.module_numbers
        if ours and get_ident() not in recorder.older_threads and not recorder.closed:
            recorder.shared = True
            mode = RecordMode(recorder) if recorder.operations else nullcontext()
            with ModuleCalls(recorder), mode, recorder.naming or nullcontext():
                return _call(module, *args, **kwargs)
    for recorder, _ in _adopting:
        if get_ident() not in recorder.older_threads:
            recorder.unseen["threads"] = recorder.unseen.get("threads", 0) + 1
    return _module_call(module, *args, **kwargs)


@leave_alone
def _number(recorder: Recorder, module: torch.nn.Module) -> int:
    number = recorder.module_numbers.get(id(module))
    if number is None:
        name = type(module).__name__
        kind = "compiled" if name == "OptimizedModule" else "module"
        if isinstance(module, torch.fx.GraphModule) and not _is_traced(recorder, module):
            kind = "function"  # the body of a higher-order operator, say: no module of the user's
        path = f"{name}.forward" if kind == "function" else ""
        number = recorder.module_number(module, path, name, kind)
    return number


def _is_traced(recorder: Recorder, module: torch.nn.Module) -> bool:
    return any(id(module) in modules for other, modules in _adopting if other is recorder)


def _step_begins(optimizer: Any, *_: Any) -> None:
    if is_compiling():
        return
    thread = get_ident()
    for recorder in _active.get(thread, ()):
        if recorder.declared is not None:
            recorder.declared.follow(thread)  # a method that has returned is not around the step
        if recorder.operations:
            recorder.gradients.read_by(recorder, optimizer)
        name = type(optimizer).__name__
        scope = recorder.enter(recorder.module_number(optimizer, name, name, "optimizer"), thread)
        recorder.steps[thread] = (scope, sys._getframe().f_back)


def _step_ends(optimizer: Any, *_: Any) -> None:
    if is_compiling():
        return
    thread = get_ident()
    for recorder in _active.get(thread, ()):
        step = recorder.steps.pop(thread, None)
        if step is not None:
            recorder.leave(step[0], thread)


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
                recorder.declared = UserFunctions(recorder, ())
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


METHODS = ("numpy", "tolist", "__array__", "__dlpack__")
_MISSING = object()
_saved: dict[str, Any] = {}


def _wrap_escapes() -> None:
    """Wrap the methods through which values leave for Python."""
    for name in METHODS:
        _saved[name] = torch.Tensor.__dict__.get(name, _MISSING)
        setattr(torch.Tensor, name, _wrapper(name, getattr(torch.Tensor, name)))


def _unwrap_escapes() -> None:
    """Put the methods back as they were."""
    while _saved:
        name, original = _saved.popitem()
        if original is _MISSING:
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, original)


def _wrapper(name: str, original: Any) -> Any:
    @leave_alone  # compiled code calls it for arrays; compiled itself, it would call itself for ever
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            for recorder in _active.get(get_ident(), ()):
                _note_escape(recorder, name, self)
        return original(self, *args, **kwargs)

    method.__name__ = name
    method.unwrapped = original
    method.__doc__ = getattr(original, "__doc__", None)
    return method


def _note_escape(recorder: Recorder, name: str, tensor: torch.Tensor) -> None:
    entry = recorder.seen.get(id(tensor))
    value = entry.number if entry is not None and entry() is tensor else -1
    recorder.escapes.append((name, value, recorder.site_of(sys._getframe(2)), -1))
