"""What a user's code raises inside a command becomes one line that names the user's own source line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch_vis.errors import TorchVisError, UsageError


class UsersCodeFailed(UsageError):
    """The user's model, factory or loss raised; ``__cause__`` is what it raised."""


@contextmanager
def users_code(what: str, *, leave: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Turn an exception from inside into ``what: its class: its first line (file:line)``."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (TorchVisError, *leave)):
            raise
        text = str(error).strip().split("\n", 1)[0]
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise UsersCodeFailed(f"{what}: {said}{_where(error)}; --traceback shows more") from error


def _where(error: BaseException) -> str:
    """The innermost line that belongs neither to an installed package nor to us."""
    found = ""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if (
            not file.startswith((ours, "<"))
            and "site-packages" not in file
            and f"{os.sep}lib{os.sep}python" not in file
        ):
            found = f" ({os.path.relpath(file) if os.path.isabs(file) else file}:{step.tb_lineno})"
        step = step.tb_next
    return found
