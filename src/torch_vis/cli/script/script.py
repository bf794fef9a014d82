"""A script, run as Python itself would run it: ``__main__``, ``sys.argv``, ``sys.path``, its exceptions its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

from torch_vis.errors import FileError, NoMatch


class Script(NamedTuple):
    """What is to run: a file, or with ``-m`` the name of a module; and its arguments."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]

    @property
    def stem(self) -> str:
        """A name for the files that are written about it."""
        last = self.name.rstrip(os.sep).rpartition("." if self.is_module else os.sep)[2]
        return os.path.splitext(last)[0] or "script"


def prepare(script: Script) -> Callable[[], None]:
    """Set the interpreter up for a script, and give what runs it.

    The script's own exceptions come out of that as they are; a script that is not there raises here.
    """
    if script.is_module:
        return _module(script)
    if not os.path.exists(script.name):
        raise FileError(f"there is no script {script.name!r}")
    if os.path.isdir(script.name) or script.name.endswith((".zip", ".pyz")):
        return _folder(script)
    return _file(script)


def _file(script: Script) -> Callable[[], None]:
    path = os.path.join(os.getcwd(), script.name)  # which is how Python makes it absolute
    with open(path, "rb") as file:
        source = file.read()
    main = _new_main(SourceFileLoader("__main__", path), path)
    _start_path(os.path.dirname(os.path.realpath(path)))
    sys.argv[:] = [script.name, *script.arguments]

    def run() -> None:
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)

    return run


def _folder(script: Script) -> Callable[[], None]:
    """A folder or archive with a ``__main__.py``: it goes on the path, and that module is run."""
    _start_path(os.path.abspath(script.name))
    code, spec = _details("__main__", f"{script.name!r} has no __main__.py")
    sys.argv[:] = [script.name, *script.arguments]
    return _running(code, spec)


def _module(script: Script) -> Callable[[], None]:
    _start_path(os.getcwd())
    sys.argv[:] = ["-m", *script.arguments]
    code, spec = _details(script.name, f"there is no module {script.name!r} to run")
    sys.argv[0] = spec.origin or script.name
    return _running(code, spec)


def _details(name: str, otherwise: str) -> tuple[CodeType, Any]:
    """The code and spec of a module that is to be ``__main__``, found as ``python -m`` finds it."""
    import runpy

    class NotThere(Exception):
        pass

    kept = sys.modules.pop("__main__") if name == "__main__" else None
    try:
        _, spec, code = runpy._get_module_details(name, NotThere)  # type: ignore[attr-defined]
    except NotThere as error:
        raise NoMatch(f"{otherwise}: {error}") from error
    finally:
        if kept is not None:
            sys.modules["__main__"] = kept
    return code, spec


def _running(code: CodeType, spec: Any) -> Callable[[], None]:
    main = _new_main(spec.loader, spec.origin)
    main.__spec__ = spec
    main.__package__ = spec.parent
    main.__dict__["__cached__"] = spec.cached

    def run() -> None:
        exec(code, main.__dict__)

    return run


def _new_main(loader: Any, file: str | None) -> ModuleType:
    """An empty ``__main__`` with what Python puts there."""
    main = ModuleType("__main__")
    main.__dict__.update(
        __builtins__=__builtins__, __file__=file, __loader__=loader, __package__=None, __cached__=None,
        __annotations__={},
    )  # fmt: skip
    sys.modules["__main__"] = main
    return main


def _start_path(folder: str) -> None:
    """Put the script's folder first in the path, in the place of that of our own program."""
    if getattr(sys.flags, "safe_path", False):
        return
    own = os.path.realpath(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    first = sys.path[0] if sys.path else None
    if first is not None and (first == "" or os.path.realpath(first) in (os.path.dirname(own), os.getcwd())):
        sys.path[0] = folder
    else:
        sys.path.insert(0, folder)


def show_as_its_own(error: BaseException) -> None:
    """Let the interpreter report an exception of the script's without the frames of ours that it passed through."""
    hook = sys.excepthook  # the script's, if it has set one

    def report(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        hook(kind, value.with_traceback(script_part(trace)), value.__traceback__)

    sys.excepthook = report


def script_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the script's first frame on; None if it never got to one.

    >>> script_part(None) is None
    True
    """
    last = None
    step = trace
    while step is not None:  # the last frame of ours from which the script was started
        if step.tb_frame.f_code.co_filename == __file__:
            last = step
            break
        step = step.tb_next
    if last is None:
        return trace
    return last.tb_next


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
