"""The steps of a script that knows nothing of us: counted as they pass, and the ones that are wanted recorded.

A training step is what happens from the end of one ``optimizer.step()`` to the end of the next; with several
optimizers, of the one that stepped first. The first step begins with the first call of a model: of a module that has
parameters or buffers. Where no optimizer steps, a step is one outermost call of a model. Which of the two a script does
shows only later, so a call is recorded as well and kept until a training step takes its place.

While nothing is recorded, there is one hook that runs once for each ``optimizer.step()``, and until the wanted call has
passed a wrapper around ``Module.__call__``. Afterwards there is nothing at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torch_vis.capture.eager import name_inputs
from torch_vis.cli import calls
from torch_vis.cli.last_hook import hook_last
from torch_vis.cli.stretch import Stretch
from torch_vis.tracing import Trace


class Span(NamedTuple):
    """Steps or calls from one number to another, both included; the first is 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


class Wanted(NamedTuple):
    """The training steps to record, the calls of a model to record where there are none, or those of one module."""

    steps: Span
    calls: Span
    module: str | None = None


class Found(NamedTuple):
    """A recording, and what it is of."""

    label: str
    trace: Trace


class Watch:
    """Waits for what is wanted and records it; ``report`` gets it as soon as it is there."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None], report: Callable[[Found], None]) -> None:
        self.wanted = wanted
        self.say = say
        self.report = report
        self.thread = threading.get_ident()
        self.steps = 0
        self.calls = 0
        self.spare: Found | None = None  # a recorded call, in case no training step follows
        self.done = False
        self._optimizer: Any = None
        self._stretch: Stretch | None = None
        self._label = ""
        self._hook: Any = None

    # ---------------------------------------------------------------- there, and gone

    def install(self) -> None:
        """Begin to watch."""
        if self.wanted.module is None:
            self._hook = hook_last(self._stepped)
        calls.wrap(self._called)
        os.register_at_fork(after_in_child=self._in_child)

    def remove(self) -> None:
        """Leave nothing behind."""
        self.done = True
        self._stop()
        calls.unwrap()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def end(self, error: BaseException | None) -> None:
        """The script has ended: what is being recorded, or was kept in case, is all there will be."""
        if self.done:
            return
        stretch, label = self._stretch, self._label
        self._stop()
        self.remove()
        if stretch is not None and (error is not None or not self.steps):
            how = "as far as it went" if error is not None else "and what followed"
            self.report(Found(f"{label}, {how}", stretch.finish(error=error)))
        elif self.spare is not None:
            self.report(self.spare)

    def _in_child(self) -> None:
        """In a forked worker (a data loader's, say), whose work is no part of the step."""
        self.done = True
        if self._stretch is not None:
            self._stretch.abandon()

    # ---------------------------------------------------------------- recording

    def _start(self, label: str) -> None:
        if self.steps or self.wanted.module is not None or self.wanted.steps.first == 1:
            self.say(f"recording {label} …")  # and not of a call that is recorded in case nothing else comes
        self._label = label
        calls.unwrap()
        self._stretch = Stretch()
        self._stretch.begin()
        if self.wanted.module is not None or not self.steps:
            calls.wrap(self._called)  # around the recorder's own, so that ours is the last to be left

    def _stop(self) -> Stretch | None:
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            calls.unwrap()
            stretch.end()
        return stretch

    def _report(self, found: Found) -> None:
        self.spare = None
        self.remove()
        self.report(found)

    # ---------------------------------------------------------------- optimizer steps

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self.done or threading.get_ident() != self.thread:
            return
        steps = self.wanted.steps
        if self._optimizer is None:
            self._optimizer = optimizer
            calls.unwrap()
            if self._stretch is not None and steps.first > 1:
                self._stop()  # a call that was half-way: this is a training
        if optimizer is not self._optimizer:
            return
        self.steps += 1
        if self._stretch is not None and self.steps >= steps.last:
            stretch = self._stop()
            assert stretch is not None
            self._report(Found(f"step {steps}", stretch.finish()))
        elif self._stretch is None and self.steps == steps.first - 1:
            self._start(f"step {steps}")

    # ---------------------------------------------------------------- calls of modules

    def _called(self, module: torch.nn.Module, args: Any, kwargs: Any, depth: int) -> Any:
        """One call of a module, in the place of ``Module.__call__``."""
        if self.done or threading.get_ident() != self.thread or not self._counts(module, depth):
            return calls.go_on(module, args, kwargs)
        self.calls += 1
        span = self.wanted.calls
        if self.calls == span.first and self._stretch is None:
            of = f"of {self.wanted.module}" if self.wanted.module else "of the model"
            self._start(f"call {span} {of}")
        ending = self.calls == span.last and self._stretch is not None
        try:
            made = calls.go_on(module, args, kwargs)
        except Exception as error:
            if ending and self._stretch is not None:
                self._after(module, args, kwargs, None, error)
            raise
        if ending and self._stretch is not None:
            self._after(module, args, kwargs, made, None)
        return made

    def _counts(self, module: torch.nn.Module, depth: int) -> bool:
        """Whether a call is one of those that are counted."""
        if self.wanted.module is not None:
            return calls.is_named(module, self.wanted.module, depth)
        return depth == 0 and not self.steps and has_state(module)

    def _after(
        self, module: torch.nn.Module, args: Any, kwargs: Any, made: Any, error: Exception | None
    ) -> None:
        """The last wanted call has ended; if its step is wanted too and may follow, the recording goes on."""
        may_train = self.wanted.module is None and module.training and torch.is_grad_enabled()
        if self.wanted.steps.first == 1 and may_train and error is None:
            self._label = f"step {self.wanted.steps}"
            return
        stretch = self._stop()
        assert stretch is not None
        if self.wanted.calls.first == self.wanted.calls.last:
            stretch.of_call(name_inputs(module, args, kwargs), made)
        found = Found(self._label, stretch.finish(error=error))
        if self.wanted.module is not None:
            self._report(found)
        else:
            self.spare = found


def has_state(module: torch.nn.Module) -> bool:
    """Whether a module has parameters or buffers; a transform of images has neither."""
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None
