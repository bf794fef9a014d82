"""Python functions of the user's as scopes, recognised by their frames; what functions and modules are called.

Nothing of theirs is wrapped or replaced: before a scope is opened and at each operation, the frames on the stack show
which of the functions are running. A frame is kept alive until the next look, so that it cannot be mistaken for
another; that is before the next operation allocates anything.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.overrides import resolve_name

from torch_vis.capture.recording.recorder import Recorder, current_autograd_node
from torch_vis.errors import UsageError
from torch_vis.graph.text import source_text

CUSTOM_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.library.CustomOpDef)


class UserFunctions:
    """Keeps the scopes of the user's functions in step with the frames on the stack."""

    def __init__(self, recorder: Recorder, functions: Iterable[Callable[..., Any]]) -> None:
        self.recorder = recorder
        # by id of the code, which the recorder's table of modules keeps alive
        self.modules: dict[int, int] = {}
        self.methods: dict[int, tuple[CodeType, int, Callable[[FrameType], Any]]] = {}
        """Methods of modules, by id of their code: the usual module's number, and what finds that of a frame."""
        self.open: dict[int, list[tuple[FrameType, int]]] = {}
        """By thread: the frames whose scopes are open, outermost first, and those scopes."""
        self.in_backward: dict[int, int] = {}
        """By thread, how many scopes were open when one was opened inside a backward; that one ends there as well."""
        for function in functions:
            code = code_of(function)
            if code is not None:
                name = name_of(function)
                self.modules[id(code)] = recorder.module_number(code, name, last_part(name), "function")

    def follow(self, thread: int) -> None:
        """Close the scopes of functions that have returned, and open those of functions that run now."""
        running = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if id(frame.f_code) in self.modules or id(frame.f_code) in self.methods:
                running.append(frame)
            frame = frame.f_back
        if not running and not self.open.get(thread):
            return
        running.reverse()
        scopes = self.open.setdefault(thread, [])
        same = 0
        while same < min(len(scopes), len(running)) and scopes[same][0] is running[same]:
            same += 1
        for _, scope in reversed(scopes[same:]):
            self._close(scope, thread)
        del scopes[same:]
        if self.in_backward.get(thread, -1) >= same:
            del self.in_backward[thread]
        if running[same:] and thread not in self.in_backward and current_autograd_node() is not None:
            self.in_backward[thread] = same
        for frame in running[same:]:
            scopes.append((frame, self.recorder.enter(self._number(frame), thread)))

    def _number(self, frame: FrameType) -> int:
        number = self.modules.get(id(frame.f_code))
        if number is not None:
            return number
        _, number, owner_of = self.methods[id(frame.f_code)]
        owner = owner_of(frame)
        if owner is None or owner is self.recorder.modules[number].owner:
            return number
        return self.recorder.module_number(owner, "", type(owner).__name__, "module")

    def end(self) -> None:
        """Close every scope and drop every frame."""
        for thread, scopes in self.open.items():
            for _, scope in reversed(scopes):
                self._close(scope, thread)
        self.open.clear()

    def _close(self, scope: int, thread: int) -> None:
        rec = self.recorder
        if rec.current.get(thread) == scope:
            rec.leave(scope, thread)
        # the call around it has ended already
        elif not rec.scopes[scope][3]:
            rec.scopes[scope][3] = rec.clock()
            rec.scopes[scope][4] = rec.overhead - rec.scopes[scope][4]


def code_of(function: Any) -> CodeType | None:
    """The code by which a function is recognised; None for a function that is an operation anyway.

    >>> def double(x): return x * 2
    >>> code_of(torch.no_grad()(double)) is double.__code__, code_of(torch.matmul)
    (True, None)
    """
    if isinstance(function, torch.nn.Module) or not callable(function):
        raise UsageError(
            f"functions= takes Python functions, not {type(function).__name__} {function!r:.60}; "
            "modules have scopes of their own"
        )
    if isinstance(function, CUSTOM_OPERATORS):
        return None
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        return None
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    plain = inspect.unwrap(plain)
    plain = getattr(plain, "__func__", plain)
    code = getattr(plain, "__code__", None) or getattr(type(plain).__call__, "__code__", None)
    if resolve_name(plain) is not None:
        return None
    if not isinstance(code, CodeType):
        raise UsageError(
            f"functions= cannot recognise {function!r:.80}: it is not written in Python; "
            "call it in a function of yours and give that"
        )
    return code


def name_of(function: Any) -> str:
    """The name that a function is shown by: its module and qualified name."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return api_name(getattr(function, "__func__", function)).removeprefix("__main__.")


def api_name(func: Any) -> str:
    """The public name of a torch function, as a program would write it.

    >>> api_name(torch.nn.functional.conv2d), api_name(torch.Tensor.add), api_name(torch.functional.einsum)
    ('torch.nn.functional.conv2d', 'Tensor.add', 'torch.einsum')
    >>> api_name(torch.ops.aten.sin.default), api_name(torch._foreach_add)
    ('torch.ops.aten.sin', 'torch._foreach_add')
    """
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{str(func).removesuffix('.default')}"
    if isinstance(func, torch._ops.HigherOrderOperator):
        return f"torch.ops.higher_order.{func.name()}"
    try:
        name = resolve_name(func)
    except TypeError:
        name = None
    own = getattr(func, "__name__", type(func).__name__)
    if name is None:
        if getattr(torch, own, None) is func:
            return f"torch.{own}"
        if getattr(func, "__objclass__", None) in torch.Tensor.__mro__:
            return f"Tensor.{own}"
        module = getattr(func, "__module__", None) or "torch"
        return f"{module}.{getattr(func, '__qualname__', own)}".replace("<locals>.", "")
    name = str(name)
    for long, short in (("torch.Tensor.", "Tensor."), ("torch.functional.", "torch.")):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def last_part(name: str) -> str:
    """The part of a name after its last dot."""
    return name.rpartition(".")[2]


# Names are read from the text of a call and from the cells of a closure. The locals of a running frame are not asked
# for: up to Python 3.12 that would keep everything they hold alive.
def argument_variables(frame: FrameType) -> list[str]:
    """What the positional arguments of the call that a frame is in are called there; "" for what is no variable.

    ``self.G`` is called G. Empty where the text of the program is not there.
    """
    call = _call(frame)
    if call is None:
        return []
    return [_name(argument) for argument in call.args]


def _call(frame: FrameType) -> ast.Call | None:
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:  # before Python 3.11 nothing says which call of a line is running
        return None
    first, last, begin, end = next(_skip(positions(), frame.f_lasti // 2), (None,) * 4)
    lines = source_text(frame.f_code.co_filename)
    if first is None or last is None or begin is None or end is None or last > len(lines):
        return None
    text = [line.encode() for line in lines[first - 1 : last]]
    text[-1] = text[-1][:end]
    text[0] = text[0][begin:]
    try:
        tree = ast.parse(b"".join(text).decode(errors="replace"), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, ast.Call) else None


def _skip(rows: Any, count: int) -> Any:
    for _ in range(count):
        next(rows, None)
    return rows


def _name(argument: ast.expr) -> str:
    if isinstance(argument, ast.Name):
        return argument.id
    return argument.attr if isinstance(argument, ast.Attribute) else ""


def held_modules(function: Callable[..., Any]) -> dict[int, str]:
    """By ``id``, the names of the modules that a function has as variables of its closure or of its file.

    >>> G, D = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    >>> def step(x): return D(G(x))
    >>> names = held_modules(step)
    >>> names[id(G)], names[id(D)]
    ('G', 'D')
    """
    names: dict[int, str] = {}
    for name, value in held_variables(function):
        if isinstance(value, torch.nn.Module):
            names.setdefault(id(value), name)
    return names


def held_variables(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """What a function has as variables of its closure or of its file, and a method as attributes of its object."""
    while isinstance(function, functools.partial):
        function = function.func
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        return []
    owner = getattr(function, "__self__", None)
    attributes = getattr(owner, "__dict__", {}) if not isinstance(owner, torch.nn.Module) else {}
    held = [*zip(plain.__code__.co_freevars, plain.__closure__ or ())]
    variables = [(name, cell.cell_contents) for name, cell in held if _is_filled(cell)]
    used = ((name, plain.__globals__[name]) for name in plain.__code__.co_names if name in plain.__globals__)
    return [*variables, *used, *attributes.items()]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def distinct(names: Sequence[str], count: int) -> bool:
    """Whether there is a name for each of so many, and no two are alike."""
    return len(names) == count and all(names) and len(set(names)) == count
