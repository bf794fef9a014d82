"""Values that leave for Python without an operation: ``numpy()``, ``tolist()`` and the array protocols.

No mode sees these calls, so the four methods are wrapped while a recorder is active.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from torch_vis.capture.recording.recorder import Recorder
from torch_vis.capture.recording.source_lines import leave_alone

METHODS = ("numpy", "tolist", "__array__", "__dlpack__")
_MISSING = object()
_saved: dict[str, Any] = {}
_recorders: Callable[[], list[Recorder] | None] = list


def install(recorders: Callable[[], list[Recorder] | None]) -> None:
    """Wrap the methods; ``recorders`` tells which recorders are active on the calling thread."""
    global _recorders
    _recorders = recorders
    for name in METHODS:
        _saved[name] = torch.Tensor.__dict__.get(name, _MISSING)
        setattr(torch.Tensor, name, _wrapper(name, getattr(torch.Tensor, name)))


def uninstall() -> None:
    """Put the methods back as they were."""
    while _saved:
        name, original = _saved.popitem()
        if original is _MISSING:
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, original)


def _wrapper(name: str, original: Any) -> Any:
    @leave_alone  # compiled code calls it for arrays; compiled itself, it would call itself for ever
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            for recorder in _recorders() or ():
                _note(recorder, name, self)
        return original(self, *args, **kwargs)

    method.__name__ = name
    method.unwrapped = original
    method.__doc__ = getattr(original, "__doc__", None)
    return method


def _note(recorder: Recorder, name: str, tensor: torch.Tensor) -> None:
    entry = recorder.seen.get(id(tensor))
    value = entry.number if entry is not None and entry() is tensor else -1
    recorder.escapes.append((name, value, recorder.site_of(sys._getframe(2)), -1))
