"""A pickle as a description: what it would call and with what, read without calling anything.

Python's own unpickler calls whatever a file names. Here every instruction that would call, construct or import gives a
record instead, and an instruction that TorchScript does not write is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple


class Global(NamedTuple):
    """The name of a class or a function; it is never looked up."""

    module: str
    name: str


class Persistent(NamedTuple):
    """A reference to something outside the pickle, such as the bytes of a storage."""

    key: Any


class Call:
    """What a pickle would have called or constructed, its arguments, and the state that it would have been given."""

    __slots__ = ("args", "function", "state")

    def __init__(self, function: Any, args: Any) -> None:
        self.function, self.args = function, args
        self.state: Any = None


KEYS = (str, int, float, bool, Call)


def read_pickle(data: bytes) -> Any:
    """The value that a pickle describes: plain containers and numbers, and records for all that would run code."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in LITERALS:
            stack.append(LITERALS[name](argument))
        elif name == "MARK":
            marks.append(len(stack))
        elif name in AFTER_MARK:
            start = marks.pop()
            items = stack[start:]
            del stack[start:]
            AFTER_MARK[name](stack, items)
        elif name in ON_STACK:
            ON_STACK[name](stack)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "STOP":
            return stack.pop()
        elif name != "PROTO":
            raise ValueError(f"the instruction {name} is none that TorchScript writes")
    raise ValueError("the pickle has no end")


def _global(argument: str) -> Global:
    module, _, name = argument.partition(" ")
    return Global(module, name)


def _call(stack: list[Any]) -> None:
    args, function = stack.pop(), stack.pop()
    stack.append(Call(function, args))


def _build(stack: list[Any]) -> None:
    state = stack.pop()
    if not isinstance(stack[-1], Call) or stack[-1].state is not None:
        raise ValueError("a state for what is no object")
    stack[-1].state = state


def _append(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not list:
        raise ValueError("an element for what is no list")
    stack[-1].extend(items)


def _set_items(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not dict:
        raise ValueError("a key for what is no dictionary")
    # a key is hashed, which for a deeply nested tuple overflows the interpreter's stack
    if not all(isinstance(key, KEYS) for key in items[::2]):
        raise ValueError("a key that TorchScript does not write")
    stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _last(stack: list[Any], number: int) -> list[Any]:
    """Take some values off the stack."""
    if len(stack) < number:
        raise ValueError("the pickle takes more than it has put down")
    items = stack[-number:]
    del stack[-number:]
    return items


LITERALS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "GLOBAL": _global,
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), lambda argument: argument
    ),
}
AFTER_MARK: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "TUPLE": lambda stack, items: stack.append(tuple(items)),
    "APPENDS": _append,
    "SETITEMS": _set_items,
}
ON_STACK: dict[str, Callable[[list[Any]], None]] = {
    "TUPLE1": lambda stack: stack.append(tuple(_last(stack, 1))),
    "TUPLE2": lambda stack: stack.append(tuple(_last(stack, 2))),
    "TUPLE3": lambda stack: stack.append(tuple(_last(stack, 3))),
    "APPEND": lambda stack: _append(stack, _last(stack, 1)),
    "SETITEM": lambda stack: _set_items(stack, _last(stack, 2)),
    "BINPERSID": lambda stack: stack.append(Persistent(stack.pop())),
    "REDUCE": _call,
    "NEWOBJ": _call,
    "BUILD": _build,
}
