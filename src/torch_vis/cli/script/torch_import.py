"""Called when the script imports torch, and not before: what it sets up first (environment variables) must hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any


def when_torch_is_loaded(action: Callable[[], None]) -> None:
    """Do something as soon as torch is there: at once, or when it is imported."""
    if "torch" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Waiting(action))


class _Waiting:
    """A finder that finds torch as usual, and notes when its module has been run."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Torch as the path has it, with an end to its loading."""
        if name != "torch":
            return None
        self.forget()
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # what remains is the loader as it was
            load(module)
            self.action()

        loader.exec_module = exec_module
        return spec

    def forget(self) -> None:
        """Look for nothing any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
