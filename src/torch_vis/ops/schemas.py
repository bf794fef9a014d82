"""An operation's arguments by name, as its operator's schema calls them."""

from __future__ import annotations

import re
from typing import Any

from torch_vis.graph import Call, Slot

QUALIFIED = re.compile(r"\w+::\w+", re.ASCII)


class Signatures:
    """Argument names of operators, looked up once each.

    Where torch is absent or does not know the operator (a custom one, in a file from elsewhere), an argument goes by
    its place: ``arg0``.

    >>> from torch_vis.graph import Call, Slot
    >>> call = Call("aten::addmm", (Slot(0), Slot(1), Slot(2)), (("alpha", 2),))
    >>> Signatures().arguments(call)
    [('self', Slot(number=0)), ('mat1', Slot(number=1)), ('mat2', Slot(number=2)), ('alpha', 2)]
    """

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}

    def arguments(self, call: Call) -> list[tuple[str, Any]]:
        """Every argument with its name, positional ones first."""
        names = self._names.get(call.op)
        if names is None:
            names = self._names[call.op] = _schema_names(call.op)
        named = [
            (names[place] if place < len(names) else f"arg{place}", argument)
            for place, argument in enumerate(call.args)
        ]
        return [*named, *call.kwargs]


def slot_names(arguments: list[tuple[str, Any]]) -> dict[int, str]:
    """What to call the tensor in each slot: its argument's name, in a list with its place there.

    >>> from torch_vis.graph import Slot
    >>> slot_names([("tensors", (Slot(0), Slot(1))), ("dim", 1)])
    {0: 'tensors[0]', 1: 'tensors[1]'}
    """
    found: dict[int, str] = {}
    stack = list(reversed(arguments))
    while stack:
        name, argument = stack.pop()
        if isinstance(argument, Slot):
            found[argument.number] = name
        elif type(argument) is tuple:
            stack.extend((f"{name}[{place}]", part) for place, part in reversed(list(enumerate(argument))))
    return found


def literal(argument: Any, slots: dict[int, str]) -> str:
    """An argument as a person would write it, its tensors by name.

    >>> from torch_vis.graph import Slot
    >>> literal((None, Slot(0)), {0: "index"})
    '[None, index]'
    """
    return Call("", (argument,), ()).format(lambda slot: slots.get(slot, "?"))[1:-1]


def _schema_names(op: str) -> tuple[str, ...]:
    name, _, overload = op.partition(".")
    try:
        import torch
    except ImportError:
        return ()
    if not QUALIFIED.fullmatch(name):  # torch raises for what cannot be an operator's name
        return ()
    for schema in torch._C._jit_get_schemas_for_operator(name):
        if schema.overload_name == overload:
            return tuple(argument.name for argument in schema.arguments)
    return ()
