"""A thread's stacks of dispatch and function modes: push a mode, remove it wherever it lies by then, restore all."""

from __future__ import annotations

import operator
import sys
import threading
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatch

from torch_vis.capture.undo import Undo, context, in_child, is_interrupted, once

# modes of ours that are on, and those that were to be taken off on another thread than their own
_on: dict[int, ModeStep] = {}
_left_on: dict[int, list[ModeStep]] = {}
# those that are being taken off, until torch's flags are those from before
_leaving: dict[int, ModeStep] = {}
# what torch remembers of dispatch modes: of the process, not of a thread
FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)


# what torch excludes so that no mode hears of anything
OF_MODES = ("Python", "PythonTLSSnapshot")


class DispatchModes:
    """The dispatch modes of this thread."""

    @staticmethod
    def read() -> list[Any]:
        """All modes, the outermost first."""
        return dispatch._get_current_dispatch_mode_stack()

    @staticmethod
    def push(mode: Any) -> None:
        """Put a mode on top."""
        dispatch._push_mode(mode)

    @staticmethod
    def pop(mode: Any) -> None:
        """Remove the topmost mode; torch keeps some kinds on stacks of their own."""
        dispatch._pop_mode(getattr(mode, "_mode_key", None))

    @staticmethod
    def flags() -> dict[str, bool]:
        """What torch remembers of the modes."""
        return {name: getattr(dispatch, name) for name in FLAGS if hasattr(dispatch, name)}

    @staticmethod
    def set_flags(values: dict[str, bool]) -> None:
        """Have torch remember this."""
        for name, value in values.items():
            setattr(dispatch, name, value)
        if FLAGS[2] in values:
            dispatch.set_is_in_mode_without_ignore_compile_internals(values[FLAGS[2]])


class FunctionModes:
    """The function modes of this thread."""

    @staticmethod
    def read() -> list[Any]:
        """All modes, the outermost first."""
        return list(torch.overrides._get_current_function_mode_stack())

    @staticmethod
    def push(mode: Any) -> None:
        """Put a mode on top."""
        torch.overrides._push_mode(mode)

    @staticmethod
    def pop(mode: Any) -> None:
        """Take the topmost mode off."""
        torch.overrides._pop_mode()

    @staticmethod
    def flags() -> dict[str, bool]:
        """Torch remembers nothing of these."""
        return {}

    @staticmethod
    def set_flags(values: dict[str, bool]) -> None:
        """Nothing to remember."""


Stack = type[DispatchModes] | type[FunctionModes]


def restack(stack: Stack, modes: list[Any]) -> None:
    """Make these the modes of this thread; after an interrupt it can be called a second time."""
    now = stack.read()
    same = 0
    while same < min(len(now), len(modes)) and now[same] is modes[same]:
        same += 1
    for mode in reversed(now[same:]):
        stack.pop(mode)
    for mode in modes[same:]:
        stack.push(mode)


class ModeStep:
    """Takes a mode off the thread that it is put on, wherever it lies by then."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.thread = threading.get_ident()
        self.stack: Stack = FunctionModes if isinstance(mode, TorchFunctionMode) else DispatchModes
        _forget_ended()
        for other in _left_on.pop(self.thread, ()):
            other()
        self._below = self.stack.read()
        # read before the flags: what another thread takes off meanwhile has them as they are now, not as they were
        others = [step for step in [*_steps(), *_leaving.copy().values()] if step._flags]
        self._flags: dict[str, bool] = self.stack.flags()
        # another of ours has changed them: its own are those from before
        if self._flags and others:
            self._flags = others[0]._flags
        self._kept: list[Any] | None = None
        _on[id(self)] = self

    def __call__(self) -> None:
        _forget_ended()
        if id(self) not in _on and self._kept is None:
            return
        if threading.get_ident() != self.thread:
            # nobody else can do it; until that thread puts a mode on again, this one passes everything on
            _left_on.setdefault(self.thread, []).append(self)
            return
        # worked out once: an interrupt may leave others off for the moment
        if self._kept is None:
            self._kept = [mode for mode in self.stack.read() if mode is not self.mode]
        restack(self.stack, self._kept)
        _leaving[id(self)] = self
        _on.pop(id(self), None)
        if self._flags:
            self._set_flags(self._kept)
        _leaving.pop(id(self), None)

    def _set_flags(self, modes: list[Any]) -> None:
        """Have torch remember what is left."""
        threads = [step.thread for step in _steps() if step._flags]
        nested = len(modes) == len(self._below) and all(map(operator.is_, modes, self._below))
        if nested and not threads:
            self.stack.set_flags(self._flags)
        # taken off in another order than they were put on, torch remembers one that is gone
        elif not threads or self.thread in threads:
            now = _flags_of(modes)
            self.stack.set_flags({name: now[name] for name in self._flags})


def _forget_ended() -> None:
    """Drop the entries of threads that have ended, whose stacks are gone."""
    here = threading.get_ident()
    of_others = [(number, step) for number, step in list(_on.items()) if step.thread != here]
    if not of_others:
        return
    alive = _threads_of_python()
    ended = [(number, step) for number, step in of_others if step.thread not in alive]
    for number, step in ended:
        _left_on.pop(step.thread, None)
        _on.pop(number, None)
    if any(step._flags for _, step in ended) and not any(step._flags for step in _steps()):
        now = _flags_of(DispatchModes.read())
        DispatchModes.set_flags({name: now[name] for name in DispatchModes.flags()})


def _threads_of_python() -> frozenset[int]:
    """The threads that run Python, or did and may do so again.

    In one call from C: a frame that is held while its thread goes on holds all that it has to do with, and autograd
    copies a gradient that somebody else holds.
    """
    return next(map(frozenset, iter(sys._current_frames, None)))


def _steps() -> list[ModeStep]:
    """What is on, as it is now: other threads may put modes on and take them off meanwhile."""
    return list(_on.values())


def _flags_of(modes: list[Any]) -> dict[str, bool]:
    """What torch would remember of these modes."""
    values = (
        bool(modes),
        any(not mode.is_infra_mode() for mode in modes),
        any(not getattr(mode, "ignore_compile_internals", bool)() for mode in modes),
    )
    return dict(zip(FLAGS, values))


def push_mode(undo: Undo, mode: Any) -> None:
    """Push a mode on this thread's stack, to be removed wherever it lies by then."""
    # a signal handler may come where others have turned all modes off for a moment
    for key in OF_MODES:
        if torch._C._dispatch_tls_is_dispatch_key_excluded(key):
            undo.add(torch._C._dispatch_tls_set_dispatch_key_excluded, key, True)
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    undo.add(ModeStep(mode))
    mode.__enter__()


@in_child
def _take_all_off() -> None:
    """In a forked child, on the only thread that there is."""
    _left_on.clear()
    _leaving.clear()
    for step in [step for step in _steps() if step.thread == threading.get_ident()]:
        step()
    if _on:
        DispatchModes.set_flags(
            {name: _flags_of(DispatchModes.read())[name] for name in DispatchModes.flags()}
        )
    _on.clear()


@context
def modes_aside(undo: Undo) -> None:
    """No dispatch mode on this thread."""
    undo.add(restack, DispatchModes, DispatchModes.read())
    # export has a stack of its own
    if torch._ops._len_torch_dispatch_stack_pre_dispatch():
        theirs = dispatch._disable_current_modes()
        theirs.__enter__()
        undo.add(once(theirs.__exit__), None, None, None)
    restack(DispatchModes, [])


@context
def functions_aside(undo: Undo) -> None:
    """No function mode on this thread, and no ``__torch_function__`` of a tensor's."""
    bindings: Any = torch._C
    undo.add(bindings._set_torch_function_state, bindings._get_torch_function_state())
    bindings._set_torch_function_state(bindings._TorchFunctionState.ALL_DISABLED)


@context
def gradients(undo: Undo, enabled: bool) -> None:
    """As ``torch.set_grad_enabled``, which an interrupt can leave without its end."""
    undo.add(torch._C._set_grad_enabled, torch.is_grad_enabled())
    torch._C._set_grad_enabled(enabled)


without_gradients = partial(gradients, False)
with_gradients = partial(gradients, True)


def keep_gradients(undo: Undo) -> None:
    """After an interrupt, gradients on or off as they were: torch's own ``no_grad`` can be left without its end."""
    undo.add(_switch_gradients, torch.is_grad_enabled())


def _switch_gradients(enabled: bool) -> None:
    if is_interrupted():
        torch._C._set_grad_enabled(enabled)


@context
def kept_after_interrupt(undo: Undo) -> None:
    """After an interrupt, modes, gradients and modules as they were: it can leave contexts of torch's own half done."""
    modes = DispatchModes.read(), FunctionModes.read()
    module = torch.nn.Module
    # what fx replaces while it traces
    methods = {name: module.__dict__[name] for name in ("__call__", "__getattr__")}
    undo.add(_restore, *modes, torch.is_grad_enabled(), DispatchModes.flags(), methods)


def _restore(
    dispatched: list[Any],
    functions: list[Any],
    gradients: bool,
    flags: dict[str, bool],
    methods: dict[str, Any],
) -> None:
    if is_interrupted():
        restack(DispatchModes, dispatched)
        restack(FunctionModes, functions)
        torch._C._set_grad_enabled(gradients)
        DispatchModes.set_flags(flags)
        for name, method in methods.items():
            if torch.nn.Module.__dict__[name] is not method:
                setattr(torch.nn.Module, name, method)
