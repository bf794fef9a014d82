"""Operators by their stored names: the operator itself, and what its schema calls the arguments.

Files can be read where torch is not installed: there no schema is known, and arguments go by their position.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch_vis.errors import UsageError
from torch_vis.graph import Call, Slot
from torch_vis.graph.call import short_name

QUALIFIED = re.compile(r"\w+::\w+", re.ASCII)
# The types of Python's numbers, and the element types that torch has for them.
NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_names: dict[str, tuple[str, ...]] = {}  # only of operators that are known: another may be registered later
_defaults: dict[str, dict[str, Any]] = {}
# by the number of an operator, which is held with it: torch computes its hash in Python
_tensor_positions: dict[int, tuple[Any, tuple[int, ...]]] = {}


def resolve(op: str) -> Callable[..., Any]:
    """The operator that a stored name stands for.

    >>> resolve("aten::add.Tensor")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    import torch

    namespace, _, rest = op.partition("::")
    base, _, overload = rest.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), base)
        return packet if namespace == "higher_order" else getattr(packet, overload or "default")
    except AttributeError:
        raise UsageError(
            f"torch has no operator {op!r} here; import the package that registers it first"
        ) from None


def argument_names(op: str) -> tuple[str, ...] | None:
    """What an operator calls its arguments; None where torch is absent or does not know it.

    >>> argument_names("aten::mm"), argument_names("mylib::unknown")
    (('self', 'mat2'), None)
    """
    if op not in _names:
        names = _schema_names(op)
        if names is None:
            return None
        _names[op] = names
    return _names[op]


def named_arguments(call: Call) -> list[tuple[str, Any]]:
    """Every argument of a call with its name, positional ones first; ``arg0``, … where no schema is known.

    >>> call = Call("aten::addmm", (Slot(0), Slot(1), Slot(2)), (("alpha", 2),))
    >>> named_arguments(call)
    [('self', Slot(number=0)), ('mat1', Slot(number=1)), ('mat2', Slot(number=2)), ('alpha', 2)]
    """
    names = argument_names(call.op) or ()
    named = [
        (names[position] if position < len(names) else f"arg{position}", argument)
        for position, argument in enumerate(call.args)
    ]
    return [*named, *call.kwargs]


def numbers_as_tensors(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with a tensor for each number that the operator itself would not take; the same tuple if there is none.

    Torch gives a dispatch mode the number of a constant that `torch.jit` traced, whatever the operator takes.

    >>> import torch
    >>> numbers_as_tensors(torch.ops.aten.view.default, (2, []))
    (tensor(2), [])
    """
    known = _tensor_positions.get(id(func))
    if known is None:
        known = _tensor_positions[id(func)] = func, _positions_of_tensors(func)
    numbers = [position for position in known[1] if position < len(args) and type(args[position]) in NUMBERS]
    if not numbers:
        return args
    import torch

    replaced = list(args)
    for position in numbers:
        dtype = getattr(torch, NUMBERS[type(args[position])])
        replaced[position] = torch.scalar_tensor(args[position], dtype=dtype)
    return tuple(replaced)


def _positions_of_tensors(func: Any) -> tuple[int, ...]:
    """Where an operator takes a tensor and nothing but one; nowhere, where torch itself makes tensors of numbers."""
    import torch

    schema = getattr(func, "_schema", None)
    if schema is None or torch._C._should_allow_numbers_as_tensors(schema.name.rpartition("::")[2]):
        return ()
    rows = enumerate(schema.arguments)
    return tuple(position for position, row in rows if str(row.type) in ("Tensor", "Optional[Tensor]"))


def argument_defaults(op: str) -> dict[str, Any]:
    """What an operator takes for arguments that a call leaves out, by name; {} where its schema is not known.

    >>> argument_defaults("aten::leaky_relu")
    {'negative_slope': 0.01}
    """
    if op not in _defaults:
        schema = _schema_of(op)
        if schema is None:
            return {}
        _defaults[op] = {row.name: row.default_value for row in schema.arguments if row.has_default_value()}
    return _defaults[op]


def schema_arguments(operator: Any) -> tuple[Any, ...]:
    """The arguments in the schema of an operator that a program calls; () for a function, which has none."""
    schema = getattr(operator, "_schema", None)
    return () if schema is None else tuple(schema.arguments)


def operator_name(operator: Any) -> str:
    """The short name of what a program calls: an operator, a function or a method's name.

    >>> import torch
    >>> operator_name(torch.ops.aten.add.Tensor), operator_name(torch.relu), operator_name("view")
    ('add', 'relu', 'view')
    """
    schema = getattr(operator, "_schema", None)
    if schema is not None:
        return short_name(str(schema.name))
    return str(getattr(operator, "__name__", operator))


def slot_names(arguments: list[tuple[str, Any]]) -> dict[int, str]:
    """What to call the tensor in each slot: its argument's name, in a list with its position there.

    >>> from torch_vis.graph import Slot
    >>> slot_names([("tensors", (Slot(0), Slot(1))), ("dim", 1)])
    {0: 'tensors[0]', 1: 'tensors[1]'}
    """
    names: dict[int, str] = {}
    stack = list(reversed(arguments))
    while stack:
        name, argument = stack.pop()
        if isinstance(argument, Slot):
            names[argument.number] = name
        elif type(argument) is tuple:
            stack.extend(
                (f"{name}[{position}]", part) for position, part in reversed(list(enumerate(argument)))
            )
    return names


def literal(argument: Any, slots: dict[int, str]) -> str:
    """An argument as a person would write it, its tensors by name.

    >>> from torch_vis.graph import Slot
    >>> literal((None, Slot(0)), {0: "index"})
    '[None, index]'
    """
    return Call("", (argument,), ()).format(lambda slot: slots.get(slot, "?"))[1:-1]


def _schema_names(op: str) -> tuple[str, ...] | None:
    schema = _schema_of(op)
    return None if schema is None else tuple(argument.name for argument in schema.arguments)


def _schema_of(op: str) -> Any:
    """The schema of an operator; None where torch is absent or does not know it."""
    name, _, overload = op.partition(".")
    try:
        import torch
    except ImportError:
        return None
    # torch raises for what cannot be an operator's name
    if not QUALIFIED.fullmatch(name):
        return None
    schemas = torch._C._jit_get_schemas_for_operator(name)
    return next((schema for schema in schemas if schema.overload_name == overload), None)
