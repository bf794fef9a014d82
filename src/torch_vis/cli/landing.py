"""Parts that a version may not have: asked for by name, and answered in one line where they are not there."""

from __future__ import annotations

import inspect
from typing import Any

from torch_vis.errors import UsageError


class NotInThisVersion(UsageError):
    """A command needs a part of torch_vis that this version does not have."""


def part(owner: Any, name: str, what: str) -> Any:
    """An attribute of a module or class of ours, or the error that this version has no such thing."""
    try:
        return getattr(owner, name)
    except AttributeError:
        from torch_vis import __version__

        raise NotInThisVersion(f"this version of torch-vis ({__version__}) has no {what}") from None


def takes(function: Any, option: str, what: str) -> None:
    """Make sure that a function of ours has an option."""
    if option not in inspect.signature(function).parameters:
        from torch_vis import __version__

        raise NotInThisVersion(f"this version of torch-vis ({__version__}) has no {what}")
