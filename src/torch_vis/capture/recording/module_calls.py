"""Which module an operation runs in: the calls of modules and optimizers, followed while a recorder is active.

Module hooks would serve, but for compiled modules: hooks that are there while Dynamo compiles are compiled in and
guarded on, so the user's next call without us would compile again. ``Module.__call__`` is wrapped instead, for as
long as a recorder is active; Dynamo looks through the wrapper and guards on nothing of it.

Methods that run parts of a module without a call of it (a ``training_step``, an ``encode``) are scopes like a call,
recognised by their frame, which is on the stack when a part of the module is called outside of any other module.

Values leave for Python by calls that no mode sees: ``tolist()``, arrays, capsules, addresses, pickles and printed text
read a tensor's memory without an operation, and ``apply_()`` writes to it. These are wrapped as well.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling
from torch.optim import optimizer as optimizers
from torch.utils import dlpack

from torch_vis.capture.containers import storages_in
from torch_vis.capture.modes import push_mode
from torch_vis.capture.recording import inductor_calls, rank_calls
from torch_vis.capture.recording.dispatch_mode import RecordMode, recorders_here
from torch_vis.capture.recording.recorder import Recorder, adopting, clock, get_ident
from torch_vis.capture.recording.source_lines import OURS, TORCH, CodeTable, kind_of, leave_alone
from torch_vis.capture.recording.tensors import note_escape, note_storage_escape
from torch_vis.capture.recording.user_functions import UserFunctions
from torch_vis.capture.settings import optimizer_settings
from torch_vis.capture.undo import (
    HEARING,
    MORE_STACK,
    Context,
    Hooks,
    Patch,
    Setting,
    Shared,
    Undo,
    context,
    in_child,
    in_parent,
    take_out,
)

# kinds of scopes in which a call of a module is an outermost one
OUTERMOST = ("run", "optimizer")
# objects that the collector has to visit for each tensor: the tensor, its storage, a weak reference to each
OBJECTS_PER_TENSOR = 4
# f_locals is a dictionary that the frame keeps, and not a view of it
LOCALS_ARE_COPIES = sys.version_info < (3, 13)

# the recorders that are active, by thread, outermost first
_active: dict[int, list[Recorder]] = {}
# whether code is that of a module's method
_methods: CodeTable[bool] = CodeTable()


class ModuleCalls(Context["ModuleCalls"]):
    """Follows module calls, optimizer steps and values that leave for one recorder on the thread that enters it."""

    def __init__(self, recorder: Recorder, modules: frozenset[int] | None = None) -> None:
        self.recorder = recorder
        # calls of these on other threads are recorded too; None: this thread only
        self.modules = modules

    def _begin(self, undo: Undo) -> ModuleCalls:
        thread = get_ident()
        undo.add(self._forget, thread)
        _active[thread] = [*_active.get(thread, []), self.recorder]
        if self.modules is not None:
            adopting.append((self.recorder, self.modules))
        MORE_STACK.take(undo, self)
        _followed.take(undo, self)
        HEARING.take(undo, self)
        return self

    def _forget(self, thread: int) -> None:
        others = [recorder for recorder in _active.get(thread, ()) if recorder is not self.recorder]
        if others:
            _active[thread] = others
        else:
            _active.pop(thread, None)
        if self.modules is not None:
            adopting[:] = [entry for entry in adopting if entry[0] is not self.recorder]


@in_child
def _end_all() -> None:
    """In a forked child: what was recorded until then is all there is."""
    for recorders in _active.values():
        for recorder in recorders:
            recorder.closed = True
    _active.clear()
    adopting.clear()


@in_parent
def _note_child() -> None:
    """A process was forked: what it computes is its own."""
    for recorder in active_recorders(get_ident()):
        recorder.started.append(("a process", recorder.site_of(sys._getframe(1))))


@context
def aside_while_compiling(undo: Undo) -> None:
    """Let Dynamo see ``Module.__call__`` as it is: it knows that one, and takes the way through ours step by step."""
    from torch._dynamo.callback import callback_handler

    # both are called under Dynamo's lock, which it would wait for itself
    @leave_alone
    def begins(_: Any) -> None:
        _module_call.remove()

    @leave_alone
    def ends(_: Any) -> None:
        if _followed.users:
            _module_call.install()

    for table, function in (
        (callback_handler.start_callbacks, begins),
        (callback_handler.end_callbacks, ends),
    ):
        undo.add(take_out, table, function)
        table.append(function)
    undo.add(ends, None)


# ---------------------------------------------------------------- calls of modules


def _wrap_call(original: Any) -> Any:
    """What stands for ``Module.__call__`` while a recorder is active."""

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            # by its global name, and without other wrappers of ours: code that is compiled now must not depend on what
            # is gone when it runs again
            return _module_call.plain(self, *args, **kwargs)
        if _module_call.wrapper is not call:
            return original(self, *args, **kwargs)
        thread = get_ident()
        recorders = _active.get(thread)
        if recorders is None:
            return _call_on_other_thread(original, self, args, kwargs)
        if len(recorders) > 1 or recorders[0].task is not None:
            return _call_nested(original, self, args, kwargs, thread)
        recorder = recorders[0]
        begun, before = recorder.clock(), recorder.overhead
        _follow_functions(recorder, self, thread)
        module = recorder.module_numbers.get(id(self))
        if module is None:
            module = _number(recorder, self)
        recorder.overhead = before + recorder.clock() - begun
        scope = recorder.enter(module, thread)
        try:
            observer = recorder.call_observer
            if observer is None:
                return _inside(original, self)(*args, **kwargs)
            # an observer may count what it takes itself: it is counted once
            begun, before = recorder.clock(), recorder.overhead
            observer.before_call(scope, args, kwargs)
            recorder.overhead = before + recorder.clock() - begun
            result = _inside(original, self)(*args, **kwargs)
            begun, before = recorder.clock(), recorder.overhead
            observer.after_call(scope, result)
            recorder.overhead = before + recorder.clock() - begun
            return result
        finally:
            recorder.leave(scope, thread)

    return call


_module_call = Patch(lambda: torch.nn.Module, "__call__", _wrap_call)


def active_recorders(thread: int) -> list[Recorder]:
    """The recorders that follow what runs on this thread now, in the task that runs."""
    return [recorder for recorder in _active.get(thread, ()) if recorder.is_here()]


@leave_alone
def _inside(original: Any, module: torch.nn.Module) -> Any:
    """What torch's ``Module.__call__`` would call, so that our frame on the stack stands for its own.

    Modules then nest as deep as without us, by Python's limit of recursion.
    """
    if original is not torch.nn.Module._wrapped_call_impl:
        return partial(original, module)
    compiled = module._compiled_call_impl
    return module._call_impl if compiled is None else compiled


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


def _call_nested(original: Any, module: torch.nn.Module, args: Any, kwargs: Any, thread: int) -> Any:
    """A call that several recorders follow, or none: a trace inside a trace, or tasks that take turns."""
    recorders = active_recorders(thread)
    for recorder in recorders:
        _follow_functions(recorder, module, thread)
    entered = [(recorder, recorder.enter(_number(recorder, module), thread)) for recorder in recorders]
    observers = [(rec.call_observer, scope) for rec, scope in entered if rec.call_observer is not None]
    try:
        for observer, scope in observers:
            observer.before_call(scope, args, kwargs)
        result = original(module, *args, **kwargs)
        for observer, scope in observers:
            observer.after_call(scope, result)
        return result
    finally:
        for recorder, scope in reversed(entered):
            recorder.leave(scope, thread)


def _call_on_other_thread(original: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """A call on a thread without a recorder: recorded too if the run started the thread and traces the module."""
    started = [(recorder, modules) for recorder, modules in adopting if recorder.has_started(get_ident())]
    for recorder, modules in started:
        ours = id(module) in modules or id(module) in recorder.module_numbers
        if ours and not recorder.closed:
            recorder.many_threads = True
            with _adopted(recorder):
                return torch.nn.Module.__call__(module, *args, **kwargs)
    for recorder, _ in started:
        recorder.uncaptured["threads"] += 1
    return original(module, *args, **kwargs)


@context
def _adopted(undo: Undo, recorder: Recorder) -> None:
    """Record on another thread than the one that began to."""
    undo.enter(ModuleCalls(recorder))
    if recorder.operations:
        push_mode(undo, RecordMode(recorder))
    if recorder.function_mode is not None:
        push_mode(undo, recorder.function_mode)


# ---------------------------------------------------------------- threads

# what runs on threads to which a program hands work: those of other libraries have work of their own
POOLS = ("concurrent.futures.thread", "multiprocessing.pool", "multiprocessing.queues")
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


def thread_clocks() -> dict[threading.Thread, float]:
    """The time that each thread which may do work of the program has computed so far, but for this one."""
    clocks: dict[threading.Thread, float] = {}
    if not hasattr(time, "pthread_getcpuclockid"):
        return clocks
    for thread in threading.enumerate():
        work = getattr(thread, "_target", None) or type(thread).run
        code = getattr(work, "__code__", None)
        is_ours = code is not None and not code.co_filename.startswith((*LIBRARIES, TORCH, OURS))
        if thread.ident in (None, get_ident()) or not (is_ours or getattr(work, "__module__", "") in POOLS):
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile
            clocks[thread] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return clocks


def worked_meanwhile(clocks: dict[threading.Thread, float]) -> list[str]:
    """The threads that have computed since their clocks read this, those of a pool say, in words."""
    now = thread_clocks()
    return [
        f"the thread {thread.name!r}, which was there before,"
        for thread, before in clocks.items()
        if now.get(thread, before) > before
    ]


def _wrap_start(original: Any) -> Any:
    """What stands for ``Thread.start``: a thread belongs to a run if one of the run's threads starts it."""

    @leave_alone
    def start(self: threading.Thread) -> None:
        if _thread_start.wrapper is start:
            thread = get_ident()
            for recorder, _ in adopting:
                if recorder in active_recorders(thread) or recorder.has_started(thread):
                    recorder.threads.append(self)
                    # a library's own that watches over something, as tqdm's does, reads no tensors of the run
                    if not self.daemon or type(self).run is threading.Thread.run:
                        recorder.started.append(("a thread", recorder.site_of(sys._getframe(1))))
        original(self)

    return start


_thread_start = Patch(lambda: threading.Thread, "start", _wrap_start)


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
    return any(id(module) in modules for other, modules in adopting if other is recorder)


# ---------------------------------------------------------------- steps of optimizers


def _step_begins(optimizer: Any, *_: Any) -> None:
    if is_compiling():
        return
    thread = get_ident()
    for recorder in active_recorders(thread):
        # a method that has returned is not around the step
        if recorder.user_functions is not None:
            recorder.user_functions.follow(thread)
        if recorder.operations:
            recorder.grad_writes.note_step(recorder, optimizer)
        name = type(optimizer).__name__
        number = recorder.module_number(optimizer, name, name, "optimizer")
        if number not in recorder.steps:
            recorder.steps[number] = optimizer_settings(optimizer)
        scope = recorder.enter(number, thread)
        # a step may make another optimizer's
        recorder.open_steps.setdefault(thread, []).append((scope, sys._getframe().f_back))


def _step_ends(optimizer: Any, *_: Any) -> None:
    if is_compiling():
        return
    thread = get_ident()
    for recorder in active_recorders(thread):
        steps = recorder.open_steps.get(thread)
        if steps:
            recorder.leave(steps.pop()[0], thread)
        if not steps:
            recorder.open_steps.pop(thread, None)


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
    step = recorder.open_steps[thread][-1] if thread in recorder.open_steps else None
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
    known = _methods.get(code)
    if known is None:
        known = _methods.set(code, bool(code.co_argcount) and kind_of(code).user and _is_of_module(code))
    return known


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


class LeavingCall(NamedTuple):
    """What leaves by a call."""

    shares: bool = False
    """Whether what it gives lies on the tensor's own memory."""
    whole: bool = False
    """Whether it is all of the memory that leaves, and not what the tensor shows of it alone."""
    told: bool = True
    """Whether the limits of the run tell of it, and not those of reruns alone."""
    by_user: bool = False
    """Whether torch's own calls of it are about memory and not about numbers, and mean nothing."""
    sizes: bool = False
    """Whether numbers become sizes of what is run: with others, other operations would run."""


ARRAY = LeavingCall(shares=True)
ADDRESS = LeavingCall(shares=True, whole=True, told=False, by_user=True)
SIZES = LeavingCall(told=False, sizes=True)
IN_PLACE = LeavingCall(shares=True)
METHODS = {
    "tolist": LeavingCall(),
    "numpy": ARRAY,
    "__array__": ARRAY,
    "__dlpack__": ARRAY,
    "__reduce_ex__": LeavingCall(whole=True),
    "__repr__": LeavingCall(told=False),
    "data_ptr": ADDRESS,
    "const_data_ptr": ADDRESS,
    "apply_": IN_PLACE,
    "map_": IN_PLACE,
    "map2_": IN_PLACE,
}
"""The methods of tensors by which numbers leave."""
# what people call those that Python calls for them
SPOKEN = {"__reduce_ex__": "pickle", "__repr__": "repr"}


def _of_tensor(name: str, call: LeavingCall, original: Any) -> Any:
    # compiled code calls it for arrays; compiled itself, it would call itself for ever
    @leave_alone
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and isinstance(self, torch.Tensor) and _stands(method):
            _note(name, call, self, sys._getframe(1))
        return original(self, *args, **kwargs)

    method.__name__ = name
    method.unwrapped = original
    method.__doc__ = getattr(original, "__doc__", None)
    return method


def _sections(args: tuple[Any, ...], named: dict[str, Any]) -> Iterable[Any]:
    """Of ``tensor_split``, where to split."""
    return (*args[1:], *(item for name, item in named.items() if name != "input"))


def _batch_sizes(args: tuple[Any, ...], named: dict[str, Any]) -> Iterable[Any]:
    """Of a recurrent layer, how many sequences of a packed batch go on at each step."""
    return (named.get("batch_sizes", args[1] if len(args) > 1 else None),)


def _positions(first: int) -> Callable[[tuple[Any, ...], dict[str, Any]], Iterable[Any]]:
    """Of what makes a sparse tensor, its positions, where it has no size but theirs; they come before the values."""

    def positions(args: tuple[Any, ...], named: dict[str, Any]) -> Iterable[Any]:
        size = named.get("size", args[first + 1] if len(args) > first + 1 else None)
        if isinstance(size, (list, tuple)):
            return ()
        return (*args[:first], *(item for name, item in named.items() if name.endswith("indices")))

    return positions


NUMBERS_READ: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], Iterable[Any]]] = {
    "tensor_split": _sections,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _batch_sizes),
    "sparse_coo_tensor": _positions(1),
    **{f"sparse_{form}_tensor": _positions(2) for form in ("csr", "csc", "bsr", "bsc", "compressed")},
}
"""Functions of torch that read numbers out of the memory of tensors by themselves, to make sizes of them."""


def _of_function(name: str, original: Any) -> Any:
    @leave_alone
    def function(*args: Any, **kwargs: Any) -> Any:
        """Stands for a function of torch while a recorder is active."""
        if not is_compiling() and _stands(function):
            for item in NUMBERS_READ[name](args, kwargs):
                if isinstance(item, torch.Tensor):
                    _note(name, SIZES, item, sys._getframe(1))
        return original(*args, **kwargs)

    function.__name__ = name
    function.unwrapped = original
    return function


def _of_storage(original: Any) -> Any:
    @leave_alone
    def data_ptr(self: Any) -> Any:
        """Stands for ``data_ptr`` of a storage while a recorder is active."""
        frame = sys._getframe(1)
        if _stands(data_ptr) and not frame.f_code.co_filename.startswith((TORCH, OURS)):
            _note_storage("data_ptr", self, frame, shares=True)
        return original(self)

    data_ptr.unwrapped = original
    return data_ptr


def _writing(original: Any) -> Any:
    @leave_alone
    def _write_file(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for ``_write_file`` of a storage while a recorder is active."""
        if _stands(_write_file):
            _note_storage("_write_file", self, sys._getframe(1), shares=False)
        return original(self, *args, **kwargs)

    _write_file.unwrapped = original
    return _write_file


def _saving(original: Any) -> Any:
    @leave_alone
    def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for ``torch.save`` while a recorder is active; a storage is pickled by it as well."""
        if _stands(save):
            for storage in storages_in(obj):
                _note_storage("save", storage, sys._getframe(1), shares=False)
        return original(obj, *args, **kwargs)

    save.unwrapped = original
    save.__doc__ = original.__doc__
    return save


def _note_storage(method: str, storage: Any, frame: Any, *, shares: bool) -> None:
    storage = getattr(storage, "_untyped_storage", storage)
    for recorder in recorders_here():
        note_storage_escape(recorder, method, storage, recorder.site_of(frame), shares=shares)


def _note(name: str, call: LeavingCall, tensor: torch.Tensor, frame: Any) -> None:
    if call.by_user and frame.f_code.co_filename.startswith((TORCH, OURS)):
        return
    name = SPOKEN.get(name, name)
    for recorder in recorders_here():
        site = recorder.site_of(frame)
        if call.told:
            entry = recorder.seen.get(id(tensor))
            value = entry.number if entry is not None and entry() is tensor else -1
            recorder.python_escapes.append((name, value, site, -1))
        escape = note_escape(recorder, name, tensor, site, shares=call.shares, whole=call.whole)
        if escape is not None:
            escape.sizes = call.sizes


def _stands(wrapper: Any) -> bool:
    """Whether a wrapper is the one that was put in place last: one that others brought back only passes calls on."""
    return any(part.wrapper is wrapper for part in _leaving)


_leaving = (
    *(
        Patch(lambda: torch.Tensor, name, partial(_of_tensor, name, call))
        for name, call in METHODS.items()
        # older ones of torch do not have them all
        if hasattr(torch.Tensor, name)
    ),
    # the one function by the names that it has
    Patch(lambda: torch, "to_dlpack", partial(_of_tensor, "to_dlpack", ARRAY)),
    Patch(lambda: dlpack, "to_dlpack", partial(_of_tensor, "to_dlpack", ARRAY)),
    Patch(lambda: torch._C, "_to_dlpack", partial(_of_tensor, "to_dlpack", ARRAY)),
    Patch(lambda: torch.Tensor, "tensor_split", partial(_of_function, "tensor_split")),
    *(Patch(lambda: torch, name, partial(_of_function, name)) for name in NUMBERS_READ),
    # recurrent layers have them from here
    *(
        Patch(lambda: torch._VF, name, partial(_of_function, name))
        for name, numbers in NUMBERS_READ.items()
        if numbers is _batch_sizes
    ),
    Patch(lambda: torch.UntypedStorage, "data_ptr", _of_storage),
    Patch(lambda: torch.TypedStorage, "data_ptr", _of_storage),
    Patch(lambda: torch.UntypedStorage, "_write_file", _writing),
    Patch(lambda: torch, "save", _saving),
    Patch(lambda: torch.serialization, "save", _saving),
)


# ---------------------------------------------------------------- all that is there while a recorder is active


def _step_hooks() -> Any:
    return [
        (
            optimizers._global_optimizer_pre_hooks,
            _step_begins,
            optimizers.register_optimizer_step_pre_hook,
        ),
        (
            optimizers._global_optimizer_post_hooks,
            _step_ends,
            optimizers.register_optimizer_step_post_hook,
        ),
    ]


_followed = Shared(
    _module_call,
    _thread_start,
    Hooks(_step_hooks),
    *_leaving,
    *inductor_calls.PARTS,
    *rank_calls.PARTS,
    # the garbage collector runs about as often as without us, who make some objects for each tensor
    Setting(
        gc.get_threshold,
        lambda thresholds: gc.set_threshold(*thresholds),
        lambda thresholds: (thresholds[0] * OBJECTS_PER_TENSOR, *thresholds[1:]),
    ),
)
