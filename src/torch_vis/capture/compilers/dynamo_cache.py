"""Dynamo left as it was: code compiled for a capture is dropped, the user's stays, noted sizes come back."""

from __future__ import annotations

import copy
import inspect
from types import CodeType
from typing import Any

import torch

from torch_vis.capture.undo import HeldSignals, Patch, Undo, context


@context
def forgetting(undo: Undo) -> None:
    """Drop what was compiled inside, in whatever functions, and the sizes that Dynamo noted.

    Inside, it knows of no sizes either: one that differs from an earlier call's would be left open otherwise.
    """
    from torch._dynamo import pgo

    state = pgo.get_code_state()
    before = {id(entry.code) for code in _codes() for entry in _entries(code)}
    undo.add(_restore_sizes, state, copy.deepcopy(dict(state)))
    undo.add(_drop_all, before)
    state.clear()


@context
def whole_compilations(undo: Undo, held: HeldSignals) -> None:
    """Hold what signal handlers raise while Dynamo looks at a function: interrupted there, it leaves torch halfway."""
    from torch._dynamo import convert_frame

    conversion = Patch(lambda: getattr(convert_frame, "CatchErrorsWrapper", None), "__call__", held.around)
    undo.add(conversion.remove)
    conversion.install()


def _restore_sizes(state: dict[Any, Any], sizes: dict[Any, Any]) -> None:
    state.clear()
    state.update(sizes)


def _drop_all(before: set[int]) -> None:
    for code in _codes():
        _drop(code, before)


def isolated() -> dict[str, Any]:
    """The option that counts our compilations apart from the user's, whose number Dynamo limits, if torch has it."""
    known = inspect.signature(torch._dynamo.eval_frame._optimize).parameters
    return {"isolate_recompiles": True} if "isolate_recompiles" in known else {}


def _codes() -> list[CodeType]:
    """The functions that Dynamo has looked at."""
    from torch._dynamo.convert_frame import input_codes

    return [code for code in (seen() for seen in list(input_codes.seen)) if code is not None]


def _entries(code: CodeType) -> list[Any]:
    return list(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code))


def _drop(code: CodeType, before: set[int]) -> None:
    """Drop what was compiled for a function since, and leave what the user had compiled."""
    from torch._dynamo.eval_frame import reset_code
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    entries = _entries(code)
    ours = [entry for entry in entries if id(entry.code) not in before]
    if len(ours) == len(entries):
        if ours:
            reset_code(code)
        return
    for entry in ours:
        deleted = DeletedGuardManagerWrapper("the trace that it was compiled for has ended")
        entry.guard_manager.extra_state.invalidate(entry, deleted)
