"""Which module an operation runs in: the calls of modules and optimizers, followed while a recorder is active.

Module hooks would serve, but for compiled modules: hooks that are there while Dynamo compiles are compiled in and
guarded on, so the user's next call without us would compile again. ``Module.__call__`` is wrapped instead, for as
long as a recorder is active; Dynamo looks through the wrapper and guards on nothing of it.

Methods that run parts of a module without a call of it (a ``training_step``, an ``encode``) are scopes like a call,
recognised by their frame, which is on the stack when a part of the module is called outside of any other module.

Values that leave for Python without an operation (``numpy()``, ``tolist()`` and the array protocols) are seen by no
mode, so these four methods are wrapped as well.
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

from torch_vis.capture.recording import inductor_calls
from torch_vis.capture.recording.dispatch_mode import RecordMode
from torch_vis.capture.recording.recorder import Recorder, clock, get_ident
from torch_vis.capture.recording.source_lines import kind_of, leave_alone
from torch_vis.capture.recording.user_functions import UserFunctions

# kinds of scopes in which a call of a module is an outermost one
OUTERMOST = ("run", "optimizer")
# objects that the collector has to visit for each tensor: the tensor, its storage, a weak reference to each
OBJECTS_PER_TENSOR = 4
# f_locals is a dictionary that the frame keeps, and not a view of it
LOCALS_ARE_COPIES = sys.version_info < (3, 13)
ESCAPES = ("numpy", "tolist", "__array__", "__dlpack__")
MISSING = object()

_lock = threading.Lock()
# the recorders that are active, by thread, outermost first
_active: dict[int, list[Recorder]] = {}
# recorders of threads that may start others, and the modules whose calls there they record too
_adopting: list[tuple[Recorder, frozenset[int]]] = []
_module_call = torch.nn.Module.__call__
_hooks: list[Any] = []
# the collector's thresholds before a recording and during it
_thresholds = (gc.get_threshold(), gc.get_threshold())
# the methods of ``ESCAPES`` as torch has them, by name
_unwrapped: dict[str, Any] = {}
# whether code is that of a module's method, by its id; with the code, so that its id stays its own
_methods: dict[int, tuple[CodeType, bool]] = {}


class ModuleCalls:
    """Follows module calls, optimizer steps and escapes for one recorder on the thread that enters it."""

    def __init__(self, recorder: Recorder, modules: frozenset[int] | None = None) -> None:
        self.recorder = recorder
        # calls of these on other threads are recorded too; None: this thread only
        self.modules = modules

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
            others = [recorder for recorder in _active[self.thread] if recorder is not self.recorder]
            if others:
                _active[self.thread] = others
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
    inductor_calls.install()
    _slow_collector()


def _uninstall() -> None:
    if torch.nn.Module.__call__ is _call:
        torch.nn.Module.__call__ = _module_call  # type: ignore[method-assign]
    while _hooks:
        _hooks.pop().remove()
    _unwrap_escapes()
    inductor_calls.uninstall()
    _restore_collector()


@contextmanager
def aside_while_compiling() -> Iterator[None]:
    """Let Dynamo see ``Module.__call__`` as it is: it knows that one, and takes the way through ours step by step."""
    from torch._dynamo.callback import callback_handler

    # both are called under Dynamo's lock, which it would wait for itself
    @leave_alone
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
        # a reset of Dynamo inside has dropped them
        with suppress(ValueError):
            callback_handler.remove_start_callback(begins)
            callback_handler.remove_end_callback(ends)
        ends(None)


def _slow_collector() -> None:
    """Let the garbage collector run about as often as without us, who make some objects for each tensor."""
    global _thresholds
    before = gc.get_threshold()
    after = (before[0] * OBJECTS_PER_TENSOR, *before[1:])
    gc.set_threshold(*after)
    _thresholds = (before, after)


def _restore_collector() -> None:
    # where they are others, the program has set its own meanwhile
    if gc.get_threshold() == _thresholds[1]:
        gc.set_threshold(*_thresholds[0])


# ---------------------------------------------------------------- calls of modules


def _call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Stands for ``Module.__call__`` while a recorder is active."""
    if is_compiling():
        return _module_call(self, *args, **kwargs)
    thread = get_ident()
    recorders = _active.get(thread)
    if recorders is None:
        return _call_on_other_thread(self, args, kwargs)
    if len(recorders) > 1:
        return _call_nested(self, args, kwargs, recorders, thread)
    recorder = recorders[0]
    _follow_functions(recorder, self, thread)
    module = recorder.module_numbers.get(id(self))
    scope = recorder.enter(_number(recorder, self) if module is None else module, thread)
    try:
        observer = recorder.call_observer
        if observer is None:
            return _module_call(self, *args, **kwargs)
        observer.take(scope, args, kwargs)
        result = _module_call(self, *args, **kwargs)
        observer.give(scope, result)
        return result
    finally:
        recorder.leave(scope, thread)


@leave_alone
def _follow_functions(recorder: Recorder, module: torch.nn.Module, thread: int) -> None:
    """Bring the scopes of functions and methods in line with what runs, before a call of a module."""
    if recorder.user_functions is not None:
        recorder.user_functions.follow(thread)
    if not recorder.operations:
        return
    scope = recorder.current.get(thread, 0)
    if recorder.modules[recorder.scopes[scope][0]].kind in OUTERMOST:
        _find_methods(recorder, module, thread)
        if recorder.user_functions is not None:
            recorder.user_functions.follow(thread)


def _call_nested(
    module: torch.nn.Module, args: Any, kwargs: Any, recorders: list[Recorder], thread: int
) -> Any:
    """A call that several recorders follow: a trace inside a trace."""
    for recorder in recorders:
        _follow_functions(recorder, module, thread)
    entered = [(recorder, recorder.enter(_number(recorder, module), thread)) for recorder in recorders]
    observers = [(rec.call_observer, scope) for rec, scope in entered if rec.call_observer is not None]
    try:
        for observer, scope in observers:
            observer.take(scope, args, kwargs)
        result = _module_call(module, *args, **kwargs)
        for observer, scope in observers:
            observer.give(scope, result)
        return result
    finally:
        for recorder, scope in reversed(entered):
            recorder.leave(scope, thread)


def _call_on_other_thread(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """A call on a thread without a recorder: recorded too if the run started the thread and traces the module."""
    for recorder, modules in _adopting:
        ours = id(module) in modules or id(module) in recorder.module_numbers
        if ours and get_ident() not in recorder.threads_at_start and not recorder.closed:
            recorder.many_threads = True
            mode = RecordMode(recorder) if recorder.operations else nullcontext()
            with ModuleCalls(recorder), mode, recorder.function_mode or nullcontext():
                return _call(module, *args, **kwargs)
    for recorder, _ in _adopting:
        if get_ident() not in recorder.threads_at_start:
            recorder.uncaptured["threads"] += 1
    return _module_call(module, *args, **kwargs)


@leave_alone
def _number(recorder: Recorder, module: torch.nn.Module) -> int:
    """The number of a module in a recording; one that was not called before gets one."""
    number = recorder.module_numbers.get(id(module))
    if number is None:
        name = type(module).__name__
        kind = "compiled" if name == "OptimizedModule" else "module"
        # the body of a higher-order operator, say, is no module of the user's
        if isinstance(module, torch.fx.GraphModule) and not _is_traced(recorder, module):
            kind = "function"
        path = f"{name}.forward" if kind == "function" else ""
        number = recorder.module_number(module, path, name, kind)
    return number


def _is_traced(recorder: Recorder, module: torch.nn.Module) -> bool:
    return any(id(module) in modules for other, modules in _adopting if other is recorder)


# ---------------------------------------------------------------- steps of optimizers


def _step_begins(optimizer: Any, *_: Any) -> None:
    if is_compiling():
        return
    thread = get_ident()
    for recorder in _active.get(thread, ()):
        # a method that has returned is not around the step
        if recorder.user_functions is not None:
            recorder.user_functions.follow(thread)
        if recorder.operations:
            recorder.grad_writes.note_step(recorder, optimizer)
        name = type(optimizer).__name__
        scope = recorder.enter(recorder.module_number(optimizer, name, name, "optimizer"), thread)
        recorder.open_steps[thread] = (scope, sys._getframe().f_back)


def _step_ends(optimizer: Any, *_: Any) -> None:
    if is_compiling():
        return
    thread = get_ident()
    for recorder in _active.get(thread, ()):
        step = recorder.open_steps.pop(thread, None)
        if step is not None:
            recorder.leave(step[0], thread)


# ---------------------------------------------------------------- methods of modules


def running_codes() -> frozenset[int]:
    """The ids of the code that is running now: a call that began before a recording is no scope in it."""
    codes, frame = set(), sys._getframe(1).f_back
    while frame is not None:
        codes.add(id(frame.f_code))
        frame = frame.f_back
    return frozenset(codes)


@leave_alone
def _find_methods(recorder: Recorder, module: torch.nn.Module, thread: int) -> None:
    """Before an outermost call of a module: note the modules of whose methods the call is a part."""
    start = clock()
    step = recorder.open_steps.get(thread)
    owners: dict[int, tuple[torch.nn.Module, FrameType | None]] = {}
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (step is None or frame is not step[1]):
        owner = _owner(frame) if _is_method(frame.f_code) else None
        if owner is not None and owner is not module and any(part is module for part in owner.modules()):
            ran_before = id(frame.f_code) in recorder.codes_at_start
            inner = owners.get(id(owner), (owner, None))[1]
            owners[id(owner)] = (owner, inner if ran_before else frame)
        frame = frame.f_back
    for owner, method in owners.values():
        number = recorder.module_number(owner, "", type(owner).__name__, "module")
        if method is not None:
            if recorder.user_functions is None:
                recorder.user_functions = UserFunctions(recorder, ())
            recorder.user_functions.methods[id(method.f_code)] = (method.f_code, number, _owner)
    recorder.overhead += clock() - start


def _owner(frame: FrameType) -> torch.nn.Module | None:
    """The module whose method a frame runs: its first argument."""
    variables: dict[str, Any] = frame.f_locals
    owner = variables.get(frame.f_code.co_varnames[0])
    # three references, the frame's, ours and the argument: nobody else looks at it, and it would keep alive what the
    # method lets go of
    if LOCALS_ARE_COPIES and sys.getrefcount(variables) == 3:
        variables.clear()
    return owner if isinstance(owner, torch.nn.Module) else None


def _is_method(code: CodeType) -> bool:
    """Whether code of the user's is that of a method of a module."""
    known = _methods.get(id(code))
    if known is None:
        is_method = bool(code.co_argcount) and kind_of(code).user and _is_of_module(code)
        known = _methods[id(code)] = (code, is_method)
    return known[1]


def _is_of_module(code: CodeType) -> bool:
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


# ---------------------------------------------------------------- values that leave for Python


def _wrap_escapes() -> None:
    for name in ESCAPES:
        _unwrapped[name] = torch.Tensor.__dict__.get(name, MISSING)
        setattr(torch.Tensor, name, _wrapper(name, getattr(torch.Tensor, name)))


def _unwrap_escapes() -> None:
    while _unwrapped:
        name, original = _unwrapped.popitem()
        if original is MISSING:
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, original)


def _wrapper(name: str, original: Any) -> Any:
    # compiled code calls it for arrays; compiled itself, it would call itself for ever
    @leave_alone
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
    recorder.python_escapes.append((name, value, recorder.site_of(sys._getframe(2)), -1))
