"""Undoing: what is done to torch, or to the process, for the length of a block is put back whatever happens.

An interrupt (Ctrl-C, or whatever else a signal handler raises) can come at any instruction, in the middle of entering
or of leaving a block too. Three habits make that harmless, and every block of ours that changes something has them:

- how a thing is undone is said **before** it is done, and undoing what was not done does nothing;
- an undo step can run **twice**: it looks at what is there and puts that right; after an interrupt all run again;
- no code of ours runs between the end of the user's block and the ``try`` that is sure to undo. An ``__exit__``
  written in Python can be interrupted before its first line; here ``with`` calls a method written in C, which resumes
  a generator that stands inside its ``try`` already.

A forked child inherits neither recordings nor what they do to torch (``in_child``).
"""

from __future__ import annotations

import _thread
import gc
import inspect
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from torch_vis.errors import UsageError

T = TypeVar("T")
P = ParamSpec("P")
MISSING = object()
# the attribute of a wrapper that says whose it is, and what it stands for
MARK = "torch_vis_patch"
NO_MARK: tuple[Any, Any, Any] = (None, MISSING, None)


class Undo:
    """Steps that put things back, taken from the last to the first; each can run twice."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], Any]] = []

    def add(self, step: Callable[..., Any], *args: Any) -> None:
        """Say how a thing that is about to be done is undone."""
        self._steps.append(partial(step, *args))

    def enter(self, context: Passage[T] | Context[T]) -> T:
        """Enter another context, to be left with this one."""
        passage: Passage[T] = passage_of(context)
        # with the passage itself, which closes when nobody holds it
        self.add(passage.__exit__, None, None, None)
        return passage.enter()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Give an attribute another value, and its own back."""
        self.add(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def run(self) -> None:
        """Take all steps that are left; one that fails is tried twice, and keeps none of the others from its turn."""
        failure: BaseException | None = None
        while self._steps:
            try:
                self._steps[-1]()
            except Exception as error:
                failure = failure or error
                # what a signal handler raised is over by now
                with suppress(Exception):
                    self._steps[-1]()
            self._steps.pop()
        if failure is not None:
            raise failure


def once(step: Callable[..., Any]) -> Callable[..., None]:
    """A step that must not run twice, such as leaving a context of torch's."""
    left = [step]

    def taken(*args: Any) -> None:
        if left:
            left.pop()(*args)

    return taken


# ---------------------------------------------------------------- blocks


class _Method:
    """A method that ``with`` finds on the class, and calls as a function in C that belongs to one passage."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        if self._name == "leave" and ENTER_FIRST and _is_left(instance):
            # leaving goes on with the generator, and would begin a new one
            return _leave_nothing
        return getattr(passage_of(instance), self._name)

    def __call__(self, instance: Any, *args: Any) -> Any:
        return self.__get__(instance)(*args)


class Passage(io.IOBase, Generic[T]):
    """One way through a block, in and out.

    A file's ``__exit__`` is written in C and does one thing, which is to call ``close``.
    """

    close: Callable[[], None]
    __enter__: Any = _Method("enter")

    def __init__(
        self,
        begin: Callable[[Undo], T],
        ended: Callable[[BaseException | None], bool | None] | None = None,
    ) -> None:
        # not empty once the block is left and its exception is to go no further
        self._outcome: list[bool] = []
        self._around = around = _around(begin, ended, self._outcome)
        self._next: Callable[[], T] = partial(next, around)
        self.close = around.close

    @property
    def enter(self) -> Callable[[], T]:
        """What enters the block, a function in C."""
        return _refuse if self.is_open else self._next

    @property
    def leave(self) -> Callable[..., Any]:
        """What leaves the block and says whether its exception goes no further, a function in C."""
        return _Exit(self, partial(next, self._around, self._outcome)).__exit__

    @property
    def is_open(self) -> bool:
        """Whether the block has been entered and not been left."""
        return inspect.getgeneratorstate(self._around) in (inspect.GEN_SUSPENDED, inspect.GEN_RUNNING)

    @property
    def is_over(self) -> bool:
        """Whether the block has been left."""
        return inspect.getgeneratorstate(self._around) == inspect.GEN_CLOSED


class _Exit(io.IOBase):
    """Calls a function at the end of a block, and tells ``with`` what it returned: a file's ``__exit__`` does."""

    # so that nothing is called when it is dropped
    closed = True

    def __init__(self, passage: Passage[Any], function: Callable[[], Any]) -> None:
        # held, for it leaves the block when nobody holds it
        self._passage = passage
        self.close = function  # type: ignore[method-assign]


# ``with`` looks for ``__enter__`` before ``__exit__``, so that a block that begins is known when its end is asked for
ENTER_FIRST = sys.version_info < (3, 14)


def _is_left(context: Any) -> bool:
    """Whether a context has been left already, or never was entered."""
    passage: Passage[Any] | None = context.__dict__.get("_passage")
    return passage is None or passage.is_over


def _leave_nothing(*error: Any) -> None:
    """The end of a block that is over."""


def _refuse() -> Any:
    raise UsageError("the block is entered already: one recording is one block")


class Context(Generic[T]):
    """Something that ``with`` takes: a subclass says in ``_begin`` what is done, and how it is undone."""

    def _begin(self, undo: Undo) -> T:
        """Do it; what comes back is what ``as`` names."""
        raise NotImplementedError

    def _ended(self, error: BaseException | None) -> bool | None:
        """Everything is undone, after the exception that ended the block, if one did.

        Where ``__exit__`` is ``LEAVE``, True keeps that exception from going on.
        """
        return None

    def _new_passage(self) -> Passage[T]:
        """One way through the block."""
        return Passage(self._begin, self._ended)

    if TYPE_CHECKING:
        # what a type checker is to know of the two below
        def __enter__(self) -> T: ...
        def __exit__(self, *error: object) -> None: ...

    else:
        __enter__ = _Method("enter")
        __exit__ = _Method("__exit__")


# the ``__exit__`` of a context that can keep an exception of its own from going on
LEAVE: Any = _Method("leave")


def passage_of(context: Any) -> Passage[Any]:
    """The passage through a context that is under way, or else a new one."""
    if isinstance(context, Passage):
        return context
    passage: Passage[Any] | None = context.__dict__.get("_passage")
    if passage is None or passage.is_over:
        passage = context.__dict__["_passage"] = context._new_passage()
    return passage


def is_open(context: Context[Any]) -> bool:
    """Whether a context has been entered and not been left."""
    passage: Passage[Any] | None = context.__dict__.get("_passage")
    return passage is not None and passage.is_open


def _around(
    begin: Callable[[Undo], T],
    ended: Callable[[BaseException | None], bool | None] | None,
    outcome: list[bool],
) -> Generator[T, None, None]:
    undo = Undo()
    handled = sys.exc_info()[1]
    try:
        try:
            try:
                yield begin(undo)
            finally:
                undo.run()
        finally:
            undo.run()
    # ``close`` raises it at the ``yield``
    except GeneratorExit as closing:
        _end(ended, _cause(closing), handled)
    # ``leave`` goes on after it, with the exception that ended the block at hand
    else:
        if _end(ended, sys.exc_info()[1], handled):
            outcome.append(True)


def _end(
    ended: Callable[[BaseException | None], bool | None] | None,
    error: BaseException | None,
    handled: BaseException | None,
) -> bool | None:
    """Call ``ended`` at the end of a block, with the exception that ended it, unless it was being handled before."""
    error = None if error is handled else error
    try:
        return None if ended is None else ended(error)
    except Exception:
        # what came of an interrupted block may not be whole, and the interrupt is what has to be heard of
        if error is None or isinstance(error, Exception):
            raise
        return None


def _cause(error: BaseException | None) -> BaseException | None:
    """What a block was closed for, itself in a block perhaps."""
    while isinstance(error, GeneratorExit):
        error = error.__context__
    return error


def is_interrupted() -> bool:
    """Inside an undo step: whether it was an interrupt that ended the block, which can leave others half done."""
    error = _cause(sys.exc_info()[1])
    return error is not None and not isinstance(error, Exception)


def context(begin: Callable[Concatenate[Undo, P], T]) -> Callable[P, Passage[T]]:
    """Make a context of a function that does something and says before, in an ``Undo``, how it is undone.

    >>> import torch
    >>> @context
    ... def without_gradients(undo):
    ...     undo.add(torch.set_grad_enabled, torch.is_grad_enabled())
    ...     torch.set_grad_enabled(False)
    >>> with without_gradients():
    ...     print(torch.is_grad_enabled())
    False
    >>> torch.is_grad_enabled()
    True
    """

    @wraps(begin)
    def made(*args: P.args, **kwargs: P.kwargs) -> Passage[T]:
        return Passage(lambda undo: begin(undo, *args, **kwargs))

    return made


# ---------------------------------------------------------------- what several blocks share


class Part(Protocol):
    """Something done to torch: there or not, and asking twice changes nothing."""

    def install(self) -> None:
        """Do it, where it is not done."""

    def remove(self) -> None:
        """Undo it, where it is done."""


# Re-entrant: a signal handler that traces meets it in the hands of the code that it has interrupted.
_lock = threading.RLock()
_shared: list[Shared] = []
_in_child: list[Callable[[], None]] = []
_in_parent: list[Callable[[], None]] = []
_undone_in_child: dict[int, Undo] = {}


class Shared:
    """Parts that are there for as long as anybody, on whichever thread, has need of them."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        # by id, so that nothing of theirs is called
        self.users: dict[int, Any] = {}
        _shared.append(self)

    def take(self, undo: Undo, user: Any) -> None:
        """Have the parts there until ``undo``."""
        undo.add(self.release, user)
        with _lock:
            self.users[id(user)] = user
            self.install()

    def release(self, user: Any) -> None:
        """One needs them no longer."""
        with _lock:
            self.users.pop(id(user), None)
            if not self.users:
                self.remove()

    def install(self) -> None:
        """Have all parts there: at the first need, and when torch has loaded more."""
        for part in self.parts:
            part.install()

    def remove(self) -> None:
        """Take all parts away."""
        for part in reversed(self.parts):
            part.remove()


class Patch:
    """An attribute of torch's that stands wrapped.

    Others wrap the same attribute, and unwrap it in any order. So each wrapper keeps for good what it was put around;
    one that somebody brings back is never taken for an original. ``wrap`` makes a wrapper of what is to be wrapped; it
    passes calls on without a look if ``wrapper`` is not itself, for then another of ours stands around it.
    """

    def __init__(self, owner: Callable[[], Any], name: str, wrap: Callable[[Any], Any]) -> None:
        # gives None while torch has not loaded it
        self.owner = owner
        self.name = name
        self.wrap = wrap
        self.wrapper: Any = None
        # what that wrapper was put around, and what is there without any wrapper of ours
        self.original: Any = None
        self.plain: Any = None

    def install(self) -> None:
        """Wrap the attribute as it is now."""
        owner = self.owner()
        if owner is None:
            return
        # a second time where a signal handler came in between
        while self.wrapper is None or vars(owner).get(self.name) is not self.wrapper:
            self.remove()
            own = vars(owner).get(self.name, MISSING)
            wrapper = self.wrapper
            # the same as the last time, if it would stand for the same
            if wrapper is None or getattr(wrapper, MARK)[2] is not own:
                self.original = getattr(owner, self.name)
                self.plain = _plain(self.original)
                wrapper = self.wrap(self.original)
                setattr(wrapper, MARK, (self, wrapper, own))
                self.wrapper = wrapper
            setattr(owner, self.name, wrapper)

    def remove(self) -> None:
        """Put back what a wrapper of ours stands for, unless somebody has put another around it."""
        owner = self.owner()
        if owner is None:
            return
        while True:
            wrapper = vars(owner).get(self.name)
            patch, itself, own = getattr(wrapper, MARK, NO_MARK)
            # a wrapper that was made like ours has its attributes, too
            if patch is not self or itself is not wrapper:
                return
            if own is not MISSING:
                setattr(owner, self.name, own)
            else:
                with suppress(AttributeError):
                    delattr(owner, self.name)


def _plain(attribute: Any) -> Any:
    """What an attribute is below all wrappers of ours that stand around it."""
    while True:
        patch, itself, _ = getattr(attribute, MARK, NO_MARK)
        if itself is not attribute:
            return attribute
        attribute = patch.plain


class Setting:
    """A setting of the process that is another; one that the program sets meanwhile stays."""

    def __init__(self, read: Callable[[], T], write: Callable[[T], None], other: Callable[[T], T]) -> None:
        self._read: Callable[[], Any] = read
        self._write: Callable[[Any], None] = write
        self._other: Callable[[Any], Any] = other
        self._values: tuple[Any, Any] | None = None

    def install(self) -> None:
        """Change it, where that is not done."""
        if self._values is None:
            before = self._read()
            values = before, self._other(before)
            # not where a signal handler has done it in between, before which it was another
            if self._values is None:
                self._values = values
                self._write(values[1])

    def remove(self) -> None:
        """Set it back."""
        values = self._values
        if values is not None:
            if self._read() == values[1]:
                self._write(values[0])
            self._values = None


# calls that may be on the stack while an operation is recorded or its shapes are worked out
FRAMES = 100
# of a deep stack, so that one without an end does not run out of memory of the thread's before it is refused
MOST_FRAMES = 1000


def _set_recursion_limit(limit: int) -> None:
    # refused on a stack that is deeper than that already
    with suppress(RecursionError):
        sys.setrecursionlimit(limit)


# what runs inside an operation has calls of its own, and a module with a hook is one call more in four or five: the
# program has all of the stack that it has without us
MORE_STACK = Shared(
    Setting(
        sys.getrecursionlimit,
        _set_recursion_limit,
        lambda limit: limit + max(FRAMES, min(limit // 3, MOST_FRAMES)),
    )
)


class Hooks:
    """Functions in lists or tables of torch's, each there once."""

    def __init__(
        self, tables: Callable[[], list[tuple[Any, Callable[..., Any], Callable[..., Any]]]]
    ) -> None:
        # a list or dictionary, the function, and what registers it; nothing while torch has not loaded it
        self._tables = tables

    def install(self) -> None:
        """Register those that are not registered."""
        for table, function, register in self._tables():
            if function not in _values(table):
                register(function)

    def remove(self) -> None:
        """Take them out."""
        for table, function, _ in self._tables():
            take_out(table, function)


def _values(table: Any) -> list[Any]:
    return list(table.values() if isinstance(table, dict) else table)


def take_out(table: Any, function: Any) -> None:
    """Take a function out of a list or dictionary, however often it is in it."""
    if isinstance(table, dict):
        for key in [key for key, value in list(table.items()) if value is function]:
            table.pop(key, None)
    else:
        with suppress(ValueError):
            while True:
                table.remove(function)


class Turn:
    """What one thread does at a time; of the same thread, blocks may lie inside each other."""

    def __init__(self) -> None:
        self._holders: list[tuple[int, Undo]] = []
        in_child(self._holders.clear)

    def take(self, undo: Undo) -> None:
        """Wait until no other thread is at it, and keep the others waiting until ``undo``."""
        thread = threading.get_ident()
        undo.add(self._release, undo)
        while True:
            with _lock:
                if all(other == thread for other, _ in self._holders):
                    self._holders.append((thread, undo))
                    return
            time.sleep(0.005)

    def _release(self, undo: Undo) -> None:
        with _lock:
            self._holders[:] = [holder for holder in self._holders if holder[1] is not undo]


@context
def without_warnings(undo: Undo) -> None:
    """Nobody warns; as ``warnings.catch_warnings``, which an interrupt can leave without its end."""
    # from the last to the first: the filters, then the note that they are others
    undo.add(_note_filters)
    undo.add(setattr, warnings, "filters", warnings.filters)
    warnings.filters = list(warnings.filters)
    warnings.simplefilter("ignore")


def _note_filters() -> None:
    getattr(warnings, "_filters_mutated", getattr(warnings, "_filters_mutated_lock_held", bool))()


class ModuleHook:
    """A hook of a block on a module; on a copy of that module, of which the block knows nothing, it does nothing."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> ModuleHook:
        return ModuleHook(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModuleHook, (_nothing,)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def hook_calls(
    undo: Undo, module: Any, function: Callable[..., Any], *, before: bool = False, **options: Any
) -> None:
    """Have a function called before or after each call of a module; options are those of torch's own hooks."""
    undo.add(_unhook, module, function)
    hook = ModuleHook(function)
    (module.register_forward_pre_hook if before else module.register_forward_hook)(hook, **options)


def _unhook(module: Any, function: Any) -> None:
    for hooks, *others in (
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
    ):
        ours = [(key, hook) for key, hook in list(hooks.items()) if isinstance(hook, ModuleHook)]
        for key in [key for key, hook in ours if hook.function is function]:
            # the hook itself last, by which the others are found if this runs again
            for table in (*others, hooks):
                table.pop(key, None)


# ---------------------------------------------------------------- signals


def _hear(original: Any) -> Any:
    def hear(unraisable: Any, /) -> Any:
        is_interrupt = isinstance(unraisable.exc_value, KeyboardInterrupt)
        if is_interrupt and _ignored.wrapper is hear and callable(signal.getsignal(signal.SIGINT)):
            # by another thread, when this function has been left
            _thread.start_new_thread(_interrupt_again, ())
            return None
        return original(unraisable)

    return hear


def _interrupt_again() -> None:
    time.sleep(0.001)
    _thread.interrupt_main()


_ignored = Patch(lambda: sys, "unraisablehook", _hear)
# An interrupt that hits a callback of the collector or of a weak reference, where Python prints it and goes on, comes
# again as soon as the callback is over.
HEARING = Shared(_ignored)


def hears_interrupts(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: no ``KeyboardInterrupt`` is lost while the function runs.

    One that hits a callback of the garbage collector, where Python prints it and goes on, is raised again afterwards.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with context(HEARING.take)(object()):
            return function(*args, **kwargs)

    return call


class HeldSignals(Context["HeldSignals"]):
    """What a signal handler raises waits until a part of torch's is over that must not be left half done.

    Handlers run at once; what the first one raises is raised by ``deliver``, at the latest when the block ends, and
    that of a second one at once. Python runs handlers on the main thread alone, so on others there is nothing to do.
    """

    def __init__(self, *, holding: bool = True) -> None:
        # how many parts of torch's are under way
        self.depth = int(holding)
        self._waiting: list[BaseException] = []
        self._handlers: dict[int, tuple[Any, Any]] = {}
        self._process = os.getpid()

    def _begin(self, undo: Undo) -> HeldSignals:
        if threading.current_thread() is threading.main_thread():
            undo.add(self.deliver)
            undo.add(self._put_back)
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    held = partial(self._hold, handler)
                    self._handlers[number] = handler, held
                    signal.signal(number, held)
        return self

    def _hold(self, handler: Callable[..., Any], number: int, frame: Any) -> Any:
        try:
            return handler(number, frame)
        except BaseException as error:
            if not self.depth or self._waiting or os.getpid() != self._process:
                raise
            self._waiting.append(error)
            return None

    def _put_back(self) -> None:
        for number, (handler, held) in self._handlers.items():
            if signal.getsignal(number) is held:
                signal.signal(number, handler)

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """A function while which this holds."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            self.depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1

        return call

    def deliver(self) -> None:
        """Raise what waits, if anything does."""
        if self._waiting:
            raise self._waiting.pop().with_traceback(None)


# ---------------------------------------------------------------- forks


def in_child(function: Callable[[], None]) -> None:
    """Call a function in every forked child: the threads that record, and what they were at, are not in it."""
    _in_child.append(function)


def in_parent(function: Callable[[], None]) -> None:
    """Call a function wherever a process has been forked, in the one that goes on."""
    _in_parent.append(function)


def undo_in_child(undo: Undo) -> None:
    """Have a block undone in every child that is forked while it runs."""
    undo.add(_undone_in_child.pop, id(undo), None)
    _undone_in_child[id(undo)] = undo


def _forked() -> None:
    global _lock
    # another thread may have held it
    _lock = threading.RLock()
    for undo in list(_undone_in_child.values()):
        with suppress(Exception):
            undo.run()
    # what they take away may stand around what is shared
    for function in _in_child:
        function()
    for shared in _shared:
        shared.users.clear()
        shared.remove()


@in_child
def _free_properties() -> None:
    """Give cached properties new locks: until Python 3.12 one is for all objects, and a thread may have held it."""
    if sys.version_info >= (3, 12):
        return
    ours = [module for name, module in list(sys.modules.items()) if name.startswith("torch_vis.")]
    for kind in [kind for module in ours for kind in vars(module).values() if isinstance(kind, type)]:
        for attribute in list(vars(kind).values()):
            if isinstance(attribute, cached_property):
                vars(attribute)["lock"] = threading.RLock()


def _has_forked() -> None:
    for function in _in_parent:
        function()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked, after_in_parent=_has_forked)


def without_collector(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function with the garbage collector paused."""

    @wraps(function)
    def paused(*args: P.args, **kwargs: P.kwargs) -> T:
        with collector_paused():
            return function(*args, **kwargs)

    return paused


@context
def collector_paused(undo: Undo) -> None:
    """No garbage collection inside: it would look through everything that was made, many times."""
    if gc.isenabled():
        undo.add(gc.enable)
        gc.disable()
