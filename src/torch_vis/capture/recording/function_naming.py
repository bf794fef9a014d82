"""What gives operations the names a program is written in, switched on and off together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from torch_vis.capture.recording.function_calls import FunctionMode, unwatch_compiled, watch_compiled
from torch_vis.capture.recording.recorder import Recorder
from torch_vis.capture.recording.user_functions import Declared, code_of, name_of


class Naming:
    """Scopes for calls of public torch functions and, recognised by their frames, for functions of the user's."""

    def __init__(self, recorder: Recorder, functions: Iterable[Callable[..., Any]] = ()) -> None:
        functions = list(functions)
        whole = frozenset(name_of(function) for function in functions if code_of(function) is None)
        self.recorder = recorder
        recorder.naming = FunctionMode(recorder, whole)
        recorder.declared = Declared(recorder, functions) if functions else None

    def __enter__(self) -> Naming:
        self._watching = watch_compiled()
        try:
            self.recorder.naming.__enter__()
        except BaseException:
            unwatch_compiled()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        rec = self.recorder
        try:
            rec.naming.__exit__(None, None, None)
        finally:
            unwatch_compiled()
            if rec.declared is not None:
                rec.declared.end()
        if not self._watching and "torch._dynamo.eval_frame" in sys.modules:
            frames = sys.modules["torch._dynamo.utils"].counters["frames"]
            rec.unseen["compiled under names"] = frames["total"]
