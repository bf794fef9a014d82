"""The steps of a script that knows nothing of us: counted as they pass, and the ones that are wanted recorded.

A training step is what happens from the end of one ``optimizer.step()`` to the end of the next; with several
optimizers, of the one that stepped first. The first step begins with the first call of a model: of a module that has
parameters or buffers. Where no optimizer steps, a step is one outermost call of a model. Which of the two a script does
shows only later, so a call is recorded as well and kept until a training step takes its place.

Calls of one module by name are followed by their backward: the recording goes on to the end of the step, and
is then cut to what ran in them.

While nothing is recorded, there is one hook that runs once for each ``optimizer.step()``, and until the wanted call has
passed a wrapper around ``Module.__call__``. Afterwards there is nothing at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import torch

from torch_vis._trace import Trace
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.session import name_inputs
from torch_vis.cli.script import module_calls as calls
from torch_vis.cli.script.optimizer_hook import hook_last
from torch_vis.cli.script.recording import Stretch
from torch_vis.graph.subset import calls_alone

PATIENCE = (
    8  # calls of models that may come between a module and its backward, as those of a discriminator do
)


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
        self._calls: list[int] = []  # the recorded calls of the module that is wanted
        self._owed: Owed | None = None  # they are over, and their backward may follow

    # ---------------------------------------------------------------- there, and gone

    def install(self) -> None:
        """Begin to watch."""
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
        if self._owed is not None:
            self._settle(error)
            return
        stretch, label = self._stretch, self._label
        self._stop()
        self.remove()
        if stretch is not None and (error is not None or not self.steps or self.wanted.module is not None):
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
        if self.wanted.module is not None:
            self.steps += self._optimizer in (None, optimizer)
            self._optimizer = self._optimizer or optimizer
            if self._owed is not None:
                self._settle(None)
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
            if self._owed is not None and depth == 0 and has_state(module):
                self._model_called_again()
            return calls.go_on(module, args, kwargs)
        self.calls += 1
        span = self.wanted.calls
        if self.calls == span.first and self._stretch is None:
            self._start(self._call_label(module))
        ending = self.calls == span.last and self._stretch is not None
        before = self._stretch.scopes if self._stretch is not None else 0
        try:
            made = calls.go_on(module, args, kwargs)
        except Exception as error:
            if ending and self._stretch is not None:
                self._after(module, args, kwargs, None, error)
            raise
        if self._stretch is not None and self.wanted.module is not None:
            found = self._stretch.call_of(module, before)
            self._calls += [] if found is None or self._owed is not None else [found]
        if ending and self._stretch is not None:
            self._after(module, args, kwargs, made, None)
        return made

    def _call_label(self, module: torch.nn.Module) -> str:
        if self.wanted.module is not None:
            return f"call {self.wanted.calls} of {self.wanted.module}"
        if self.wanted.steps.first == 1 and _may_train(module):
            return f"step {self.wanted.steps}"
        return f"call {self.wanted.calls} of the model"

    def _counts(self, module: torch.nn.Module, depth: int) -> bool:
        """Whether a call is one of those that are counted."""
        if self.wanted.module is not None:
            return calls.is_named(module, self.wanted.module, depth)
        return depth == 0 and not self.steps and has_state(module)

    def _after(
        self, module: torch.nn.Module, args: Any, kwargs: Any, made: Any, error: Exception | None
    ) -> None:
        """The last wanted call has ended; if its step is wanted too and may follow, the recording goes on."""
        if self.wanted.module is not None:
            self._owed = Owed(module, args, kwargs, made, one=len(self._calls) == 1)
            if error is not None or not torch.is_grad_enabled() or not self._owed.has_gradient:
                self._settle(error)
            return
        if self.wanted.steps.first == 1 and _may_train(module) and error is None:
            self._label = f"step {self.wanted.steps}"
            return
        stretch = self._stop()
        assert stretch is not None
        if self.wanted.calls.first == self.wanted.calls.last:
            stretch.of_call(name_inputs(module, args, kwargs), made)
        self.spare = Found(self._label, stretch.finish(error=error))

    # ---------------------------------------------------------------- the backward of a module

    def _model_called_again(self) -> None:
        """The script has gone on to its next batch: no more of this step will come, or not for long."""
        assert self._owed is not None and self._stretch is not None
        self._owed.patience -= 1
        if not self._owed.patience or self._stretch.has_backward():
            self._settle(None)

    def _settle(self, error: BaseException | None) -> None:
        """The calls of the module are over, and so is their backward, where there was one."""
        owed, self._owed = self._owed, None
        stretch = self._stop()
        assert owed is not None and stretch is not None
        if owed.one:
            stretch.of_call(*owed.alive())
        found = stretch.finish(error=error, root=owed.module if owed.one else None)
        self._report(
            Found(
                self._label,
                Trace.of(calls_alone(found, self._calls), error=found.error) if self._calls else found,
            )
        )


class Owed:
    """A call of the wanted module that has ended; its tensors are not kept for us."""

    def __init__(self, module: torch.nn.Module, args: Any, kwargs: Any, made: Any, *, one: bool) -> None:
        self.module = module
        self.one = one
        self.patience = PATIENCE
        self._inputs = [(name, ref(tensor)) for name, tensor in name_inputs(module, args, kwargs)]
        self._outputs = [(name, ref(tensor)) for name, tensor in named_tensors(made, "output")]
        self.has_gradient = any(tensor.requires_grad for _, tensor in named_tensors(made, "output"))

    def alive(self) -> tuple[list[tuple[str, torch.Tensor]], dict[str, torch.Tensor] | torch.Tensor]:
        """Its inputs, and what of its output is still there."""
        inputs = [(name, tensor) for name, one in self._inputs if (tensor := one()) is not None]
        outputs = [(name, tensor) for name, one in self._outputs if (tensor := one()) is not None]
        if [name for name, _ in outputs] == ["output"]:
            return inputs, outputs[0][1]
        return inputs, {name.removeprefix("output."): tensor for name, tensor in outputs}


def _may_train(module: torch.nn.Module) -> bool:
    return module.training and torch.is_grad_enabled()


def has_state(module: torch.nn.Module) -> bool:
    """Whether a module has parameters or buffers; a transform of images has neither."""
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None
