"""A stretch without the garbage collector, for work that makes very many objects and none of them garbage."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from torch_vis.capture.undo import Undo, context

P = ParamSpec("P")
T = TypeVar("T")


def without_collector(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function with the garbage collector paused."""

    @wraps(function)
    def paused(*args: P.args, **kwargs: P.kwargs) -> T:
        with collector_paused():
            return function(*args, **kwargs)

    return paused


@context
def collector_paused(undo: Undo) -> None:
    """No garbage collection inside: it would look through everything that was made again and again."""
    if gc.isenabled():
        undo.add(gc.enable)
        gc.disable()
