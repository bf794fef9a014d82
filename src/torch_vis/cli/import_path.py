"""What ``package.module:thing`` or ``path/to/file.py:thing`` names: imported as Python itself would import it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, util
from typing import Any

from torch_vis.errors import NoMatch, TorchVisError, UsageError, no_match

MOST = 24  # names that a line lists


def find(target: str, kind: str) -> Any:
    """The thing that a target names."""
    index, separator, attribute = target.rpartition(":")
    if not separator or not index or not attribute:
        index, attribute = (target, "") if not separator else (index, attribute)
    module = _file(index) if index.endswith(".py") else _module(index, target)
    if not attribute:
        names = candidates(module)
        from torch_vis.graph.text import and_more

        known = f"; there are {and_more(names, MOST)}" if names else ""
        raise UsageError(f"{target!r} names no {kind}: write {index}:NAME{known}")
    result: Any = module
    for part in attribute.split("."):
        if not hasattr(result, part):
            raise no_match(f"{kind} in {index}", attribute, candidates(module))
        result = getattr(result, part)
    return result


def candidates(module: Any) -> list[str]:
    """What a module has that could make a model or be one: functions and classes of its own, and models."""
    return [name for name, item in vars(module).items() if not name.startswith("_") and _is_own(item, module)]


def _is_own(item: Any, module: Any) -> bool:
    if not callable(item):
        return False
    if isinstance(item, type) or hasattr(item, "__code__"):
        return getattr(item, "__module__", None) == module.__name__
    return hasattr(item, "forward")  # a model that is made already


def _file(path: str) -> Any:
    if not os.path.isfile(path):
        raise NoMatch(f"there is no file {path!r}")
    path = os.path.abspath(path)
    name = os.path.splitext(os.path.basename(path))[0]
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    sys.path.insert(0, os.path.dirname(path))  # so that it finds its neighbours
    spec = util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    with users_code(f"{path} cannot be imported"):
        spec.loader.exec_module(module)
    return module


def _module(name: str, target: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise NoMatch(f"{target!r} is neither a file nor package.module:factory")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with users_code(f"{name} cannot be imported", leave=(ModuleNotFoundError,)):
            return import_module(name)
    except ModuleNotFoundError as error:
        if name == error.name or name.startswith(f"{error.name}."):
            raise NoMatch(f"there is no module {error.name!r} (looked for {target!r})") from error
        raise UsageError(f"{name} cannot be imported: {error}") from error


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
        summary = f"{type(error).__name__}: {text}" if text else type(error).__name__
        raise UsersCodeFailed(f"{what}: {summary}{_where(error)}; --traceback shows more") from error


def _where(error: BaseException) -> str:
    """The innermost line that belongs neither to an installed package nor to us."""
    result = ""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        if (
            not file.startswith((ours, "<"))
            and "site-packages" not in file
            and f"{os.sep}lib{os.sep}python" not in file
        ):
            result = f" ({os.path.relpath(file) if os.path.isabs(file) else file}:{step.tb_lineno})"
        step = step.tb_next
    return result
