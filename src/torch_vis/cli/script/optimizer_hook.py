"""A hook after every ``optimizer.step()`` that comes last and may add and remove hooks while it runs.

Torch walks through its table of hooks as it calls them, so a hook that starts or ends a recording, which has hooks
of its own, would break the walk of the script's step. The table is therefore one that is walked as a copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.optim import optimizer


class Table(OrderedDict[int, Callable[..., Any]]):
    """Hooks by number; one of them is always the last to be called."""

    last: int | None = None

    def values(self) -> Any:
        """The hooks as they are now, in a list of its own."""
        found = [hook for number, hook in self.items() if number != self.last]
        return found if self.last is None or self.last not in self else [*found, self[self.last]]


def hook_last(hook: Callable[..., Any]) -> Any:
    """Register a hook for all optimizers; what comes back has a ``remove``."""
    table = optimizer._global_optimizer_post_hooks
    if not isinstance(table, Table):
        if table:  # someone holds on to it: put ours beside theirs, in the order in which they came
            return optimizer.register_optimizer_step_post_hook(hook)
        table = optimizer._global_optimizer_post_hooks = Table()
    handle = optimizer.register_optimizer_step_post_hook(hook)
    table.last = handle.id
    return handle
