"""Calls of modules, seen from outside: ``Module.__call__`` wrapped while someone watches.

Hooks would be there while Dynamo compiles, and guarded on; like the recorder's own wrapper
(``capture/recording/module_calls.py``), this one says nothing to Dynamo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.compiler import is_compiling

from torch_vis.capture.undo import Patch

Watcher = Callable[[torch.nn.Module, Any, Any, int], Any]

_watcher: Watcher | None = None
_depth = 0
_targets: WeakKeyDictionary[torch.nn.Module, torch.nn.Module | None] = WeakKeyDictionary()
_inside: list[torch.nn.Module] = []
names: set[str] = set()
"""The paths and classes of the modules that were looked through for a name."""


def wrap(watcher: Watcher) -> None:
    """From now on the watcher is asked for every call of a module."""
    global _watcher
    _watcher = watcher
    _patch.install()


def unwrap() -> None:
    """Take the wrapper away; a call that is under way in it goes on."""
    global _watcher
    _watcher = None
    _patch.remove()


def go_on(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """The call itself, recorded if a recorder has come in between."""
    global _depth
    called = torch.nn.Module.__call__
    _depth += 1
    _inside.append(module)
    try:
        return (_patch.original if called is _patch.wrapper else called)(module, *args, **kwargs)
    finally:
        _inside.pop()
        _depth -= 1


def is_named(module: torch.nn.Module, name: str, depth: int) -> bool:
    """Whether a module has this class name, or this path inside the outermost module that is being called."""
    if type(module).__name__ == name:
        return True
    root = _inside[0] if depth else module
    if root not in _targets:
        inside = dict(root.named_modules())
        names.update(filter(None, inside), (type(part).__name__ for part in inside.values()))
        _targets[root] = inside.get(name)
    return _targets[root] is module


def _wrap_call(original: Any) -> Any:
    """What stands for ``Module.__call__``."""

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            # by its global name: code that is compiled now must not depend on what is gone when it runs again
            return _patch.plain(self, *args, **kwargs)
        if _watcher is None or _patch.wrapper is not call:
            return original(self, *args, **kwargs)
        return _watcher(self, args, kwargs, _depth)

    return call


_patch = Patch(lambda: torch.nn.Module, "__call__", _wrap_call)
