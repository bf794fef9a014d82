"""A stretch of a running script, recorded from somewhere in the middle of it to somewhere else."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

from torch_vis._trace import Trace
from torch_vis.capture.recording.recorder import FORWARD
from torch_vis.capture.session import Capture

BACKWARD = 6  # the place in a row of the log that says whether it was one of backward
FLAGS = ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode")


class Stretch:
    """One recording that begins and ends inside calls of the script's, not nested with its ``with`` blocks."""

    def __init__(self) -> None:
        self.capture = Capture(keep=False)
        self._has_outcome = False

    def begin(self) -> None:
        """Record from here on.

        Modes are a stack, and a mode of the script's that is there now may end before we do: it has to find itself on
        top. So ours goes below it.
        """
        above = _take_off(None)
        self.capture.__enter__()
        _put_on(above)

    def end(self) -> None:
        """Up to here."""
        above = _take_off(self.capture.mode)
        self.capture.__exit__()
        _put_on(above)
        if above:
            return
        for flag in FLAGS:  # where modes ended out of order, torch remembers one that is gone
            if getattr(dispatch, flag, False) and not dispatch._get_current_dispatch_mode_stack():
                setattr(dispatch, flag, False)

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
            found = self.capture.outermost_modules()
            models = [module for _, module in found if next(module.parameters(), None) is not None]
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
        return any(rec.log[place + BACKWARD] != FORWARD for place in rec.row_starts())


def _take_off(down_to: Any) -> list[Any]:
    """Pop the plain modes of the stack, all or those above one; a mode that torch keeps apart (a fake mode) stays."""
    taken = []
    while torch._C._len_torch_dispatch_stack():
        top = dispatch._get_current_dispatch_mode()
        if top is None or top is down_to or getattr(top, "_mode_key", None) is not None:
            break
        taken.append(dispatch._pop_mode())
    return taken[::-1]


def _put_on(modes: list[Any]) -> None:
    for mode in modes:
        dispatch._push_mode(mode)
