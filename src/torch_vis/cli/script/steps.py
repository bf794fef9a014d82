"""The steps of a training in a script: where each begins and ends, and the recording of the one that is asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch.optim import optimizer

from torch_vis._trace import Trace
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.modes import DispatchModes, restack
from torch_vis.capture.recording.recorder import FORWARD
from torch_vis.capture.session import Capture, name_inputs
from torch_vis.capture.undo import in_child
from torch_vis.cli.script import module_calls
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


class LabelledTrace(NamedTuple):
    """A recording, and what it is of."""

    label: str
    trace: Trace


class Watch:
    """Waits for what is wanted and records it; ``report`` gets it as soon as it is there."""

    def __init__(
        self, wanted: Wanted, say: Callable[[str], None], report: Callable[[LabelledTrace], None]
    ) -> None:
        self.wanted = wanted
        self.say = say
        self.report = report
        self.thread = threading.get_ident()
        self.steps = 0
        self.calls = 0
        self.spare: LabelledTrace | None = None  # a recorded call, in case no training step follows
        self.done = False
        self.substitutes: Any = None
        """What hands operations other tensors, in a script that runs by shapes."""
        self._optimizer: Any = None
        self._stretch: StepRecording | None = None
        self._label = ""
        self._hook: Any = None
        self._calls: list[int] = []  # the recorded calls of the module that is wanted
        self._ended_call: EndedCall | None = None  # they are over, and their backward may follow

    # ---------------------------------------------------------------- there, and gone

    def install(self) -> None:
        """Begin to watch."""
        self._hook = hook_last(self._stepped)
        module_calls.wrap(self._called)
        in_child(self._in_child)

    def remove(self) -> None:
        """Leave nothing behind."""
        self.done = True
        self._stop()
        module_calls.unwrap()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def end(self, error: BaseException | None) -> None:
        """The script has ended: what is being recorded, or was kept in case, is all there will be."""
        if self.done:
            return
        if self._ended_call is not None:
            self._settle(error)
            return
        stretch, label = self._stretch, self._label
        self._stop()
        self.remove()
        if stretch is not None and (error is not None or not self.steps or self.wanted.module is not None):
            how = "as far as it went" if error is not None else "and what followed"
            self.report(LabelledTrace(f"{label}, {how}", stretch.finish(error=error)))
        elif self.spare is not None:
            self.report(self.spare)

    def _in_child(self) -> None:
        """In a forked worker (a data loader's, say), whose work is no part of the step: nothing is watched there."""
        self.done = True
        module_calls.unwrap()
        if self._hook is not None:
            self._hook.remove()
        if self._stretch is not None:
            self._stretch.abandon()

    # ---------------------------------------------------------------- recording

    def _start(self, label: str) -> None:
        if self.steps or self.wanted.module is not None or self.wanted.steps.first == 1:
            self.say(f"recording {label} …")  # and not of a call that is recorded in case nothing else comes
        self._label = label
        module_calls.unwrap()
        self._stretch = StepRecording(self.substitutes)
        self._stretch.begin()
        if self.wanted.module is not None or not self.steps:
            module_calls.wrap(self._called)  # around the recorder's own, so that ours is the last to be left

    def _stop(self) -> StepRecording | None:
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            module_calls.unwrap()
            stretch.end()
        return stretch

    def _report(self, trace: LabelledTrace) -> None:
        self.spare = None
        self.remove()
        self.report(trace)

    # ---------------------------------------------------------------- optimizer steps

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self.done or threading.get_ident() != self.thread:
            return
        if self.wanted.module is not None:
            self.steps += self._optimizer in (None, optimizer)
            self._optimizer = self._optimizer or optimizer
            if self._ended_call is not None:
                self._settle(None)
            return
        steps = self.wanted.steps
        if self._optimizer is None:
            self._optimizer = optimizer
            module_calls.unwrap()
            if self._stretch is not None and steps.first > 1:
                self._stop()  # a call that was half-way: this is a training
        if optimizer is not self._optimizer:
            return
        self.steps += 1
        if self._stretch is not None and self.steps >= steps.last:
            stretch = self._stop()
            assert stretch is not None
            self._report(LabelledTrace(f"step {steps}", stretch.finish()))
        elif self._stretch is None and self.steps == steps.first - 1:
            self._start(f"step {steps}")

    # ---------------------------------------------------------------- calls of modules

    def _called(self, module: torch.nn.Module, args: Any, kwargs: Any, depth: int) -> Any:
        """One call of a module, in the place of ``Module.__call__``."""
        if self.done or threading.get_ident() != self.thread or not self._counts(module, depth):
            if self._ended_call is not None and depth == 0 and has_state(module):
                self._model_called_again()
            return module_calls.go_on(module, args, kwargs)
        self.calls += 1
        span = self.wanted.calls
        if self.calls == span.first and self._stretch is None:
            self._start(self._call_label(module))
        ending = self.calls == span.last and self._stretch is not None
        before = self._stretch.scopes if self._stretch is not None else 0
        try:
            outcome = module_calls.go_on(module, args, kwargs)
        except Exception as error:
            if ending and self._stretch is not None:
                self._after(module, args, kwargs, None, error)
            raise
        if self._stretch is not None and self.wanted.module is not None:
            result = self._stretch.call_of(module, before)
            self._calls += [] if result is None or self._ended_call is not None else [result]
        if ending and self._stretch is not None:
            self._after(module, args, kwargs, outcome, None)
        return outcome

    def _call_label(self, module: torch.nn.Module) -> str:
        if self.wanted.module is not None:
            return f"call {self.wanted.calls} of {self.wanted.module}"
        if self.wanted.steps.first == 1 and _may_train(module):
            return f"step {self.wanted.steps}"
        return f"call {self.wanted.calls} of the model"

    def _counts(self, module: torch.nn.Module, depth: int) -> bool:
        """Whether a call is one of those that are counted."""
        if self.wanted.module is not None:
            return module_calls.is_named(module, self.wanted.module, depth)
        return depth == 0 and not self.steps and has_state(module)

    def _after(
        self, module: torch.nn.Module, args: Any, kwargs: Any, outputs: Any, error: Exception | None
    ) -> None:
        """The last wanted call has ended; if its step is wanted too and may follow, the recording goes on."""
        if self.wanted.module is not None:
            self._ended_call = EndedCall(module, args, kwargs, outputs, is_only=len(self._calls) == 1)
            if error is not None or not torch.is_grad_enabled() or not self._ended_call.has_gradient:
                self._settle(error)
            return
        if self.wanted.steps.first == 1 and _may_train(module) and error is None:
            self._label = f"step {self.wanted.steps}"
            return
        stretch = self._stop()
        assert stretch is not None
        if self.wanted.calls.first == self.wanted.calls.last:
            stretch.of_call(name_inputs(module, args, kwargs), outputs)
        self.spare = LabelledTrace(self._label, stretch.finish(error=error))

    # ---------------------------------------------------------------- the backward of a module

    def _model_called_again(self) -> None:
        """The script has gone on to its next batch: no more of this step will come, or not for long."""
        assert self._ended_call is not None and self._stretch is not None
        self._ended_call.patience -= 1
        if not self._ended_call.patience or self._stretch.has_backward():
            self._settle(None)

    def _settle(self, error: BaseException | None) -> None:
        """The calls of the module are over, and so is their backward, where there was one."""
        ended, self._ended_call = self._ended_call, None
        stretch = self._stop()
        assert ended is not None and stretch is not None
        if ended.is_only:
            stretch.of_call(*ended.alive())
        result = stretch.finish(error=error, root=ended.module if ended.is_only else None)
        self._report(
            LabelledTrace(
                self._label,
                Trace.of(calls_alone(result, self._calls), error=result.error) if self._calls else result,
            )
        )


class EndedCall:
    """A call of the wanted module that has ended; its tensors are not kept for us."""

    def __init__(
        self, module: torch.nn.Module, args: Any, kwargs: Any, outputs: Any, *, is_only: bool
    ) -> None:
        self.module = module
        self.is_only = is_only
        self.patience = PATIENCE
        self._inputs = [(name, ref(tensor)) for name, tensor in name_inputs(module, args, kwargs)]
        self._outputs = [(name, ref(tensor)) for name, tensor in named_tensors(outputs, "output")]
        self.has_gradient = any(tensor.requires_grad for _, tensor in named_tensors(outputs, "output"))

    def alive(self) -> tuple[list[tuple[str, torch.Tensor]], dict[str, torch.Tensor] | torch.Tensor]:
        """Its inputs, and what of its output is still there."""
        inputs = [(name, tensor) for name, reference in self._inputs if (tensor := reference()) is not None]
        outputs = [(name, tensor) for name, reference in self._outputs if (tensor := reference()) is not None]
        if [name for name, _ in outputs] == ["output"]:
            return inputs, outputs[0][1]
        return inputs, {name.removeprefix("output."): tensor for name, tensor in outputs}


def _may_train(module: torch.nn.Module) -> bool:
    return module.training and torch.is_grad_enabled()


def has_state(module: torch.nn.Module) -> bool:
    """Whether a module has parameters or buffers; a transform of images has neither."""
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


class HookTable(OrderedDict[int, Callable[..., Any]]):
    """Hooks by number; one of them is always the last to be called."""

    last: int | None = None

    def values(self) -> Any:
        """The hooks as they are now, in a list of its own."""
        result = [hook for number, hook in self.items() if number != self.last]
        return result if self.last is None or self.last not in self else [*result, self[self.last]]


def hook_last(hook: Callable[..., Any]) -> Any:
    """Register a hook for all optimizers; what comes back has a ``remove``."""
    table = optimizer._global_optimizer_post_hooks
    if not isinstance(table, HookTable):
        if table:  # someone holds on to it: put ours beside theirs, in the order in which they came
            return optimizer.register_optimizer_step_post_hook(hook)
        table = optimizer._global_optimizer_post_hooks = HookTable()
    handle = optimizer.register_optimizer_step_post_hook(hook)
    table.last = handle.id
    return handle


BACKWARD = 6  # the place in a row of the log that says whether it was one of backward


class StepRecording:
    """One recording that begins and ends inside calls of the script's, not nested with its ``with`` blocks."""

    def __init__(self, substitutes: Any = None) -> None:
        self.capture = Capture(keep=False, substitutes=substitutes)
        self._substitutes = substitutes
        self._has_outcome = False

    def begin(self) -> None:
        """Record from here on.

        Modes are a stack, and a mode of the script's that is there now may end before we do: it has to find itself on
        top. So ours goes below it.
        """
        modes = DispatchModes.read()
        # a mode that torch keeps apart (a fake mode) lies below all others anyway
        below = [mode for mode in modes if getattr(mode, "_mode_key", None) is not None]
        above = modes[len(below) :]
        try:
            restack(DispatchModes, below)
            # a mode of ours that is there all the time is not put on again
            self.capture.substitutes = None
            self.capture.__enter__()
            self.capture.substitutes = self._substitutes
            restack(DispatchModes, [*below, self.capture.mode, *above])
        except BaseException:
            self.capture.__exit__()
            restack(DispatchModes, modes)
            raise

    def end(self) -> None:
        """Up to here."""
        self.capture.__exit__()
        # where modes ended out of order, torch remembers one that is gone
        if not DispatchModes.read():
            DispatchModes.set_flags(dict.fromkeys(DispatchModes.flags(), False))

    def abandon(self) -> None:
        """Note nothing more, in a process that has only inherited this."""
        self.capture.recorder.closed = True

    def of_call(self, inputs: list[tuple[str, torch.Tensor]], output: Any) -> None:
        """It was one call of a model, with these inputs and this output."""
        self.capture.inputs = inputs
        self.capture.output = output
        self.capture.has_output = True

    def finish(self, error: BaseException | None = None, *, root: torch.nn.Module | None = None) -> Trace:
        """What was recorded, named from ``root``; or from the one model among modules without state (a loss)."""
        if root is not None:
            self.capture.roots = [("", root)]
        else:
            result = self.capture.outermost_modules()
            models = [module for _, module in result if next(module.parameters(), None) is not None]
            if len(models) == 1:
                self.capture.roots = [("", models[0])]
        return Trace.of(self.capture.finish().run, error=error)

    # ---------------------------------------------------------------- where it stands

    @property
    def scopes(self) -> int:
        """How many calls have been recorded so far."""
        return len(self.capture.recorder.scopes)

    def call_of(self, module: torch.nn.Module, since: int) -> int | None:
        """The first call of a module among those from a number on."""
        rec = self.capture.recorder
        number = rec.module_numbers.get(id(module))
        return next((at for at in range(since, len(rec.scopes)) if rec.scopes[at][0] == number), None)

    def has_backward(self) -> bool:
        """Whether an operation of a backward pass has been recorded."""
        rec = self.capture.recorder
        return any(rec.log[index + BACKWARD] != FORWARD for index in rec.row_starts())
