"""What modules and optimizers of a run were set to: their plain attributes, as text, so that runs can be compared.

Only attributes are read. No code of a model runs for it: neither a property nor a ``repr`` of the user's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import torch

PLAIN = frozenset({bool, int, float, complex, str, type(None), torch.dtype, torch.device})
CONTAINERS = frozenset({tuple, list})
CALLABLES = frozenset({FunctionType, BuiltinFunctionType})
# Parts of a tuple, and letters of a text, beyond which an attribute is left out.
MOST_PARTS = 16
MOST_LETTERS = 80
# What an optimizer counts in its groups, which is no setting.
COUNTERS = frozenset({"step", "steps", "k", "t", "n_iter"})

Row = dict[str, dict[str, str]]


def module_settings(modules: Iterable[tuple[str, torch.nn.Module]]) -> dict[str, Any]:
    """The settings of modules by path: ``rows`` has every distinct one once, ``of`` the index of each path's.

    ``made`` are the arguments that the class cannot be made without, ``set`` is everything else.

    >>> settings = module_settings([("fc", torch.nn.Linear(2, 3)), ("out", torch.nn.Linear(2, 3))])
    >>> settings["rows"][0]["made"], settings["of"]
    ({'in_features': '2', 'out_features': '3'}, {'fc': 0, 'out': 0})
    >>> settings["rows"][0]["set"]
    {'training': 'True', 'bias': 'True'}
    """
    required: dict[type, tuple[set[str], set[str]]] = {}
    known: dict[Any, int] = {}
    rows: list[Row] = []
    of: dict[str, int] = {}
    for path, module in modules:
        kind = type(module)
        if kind not in required:
            required[kind] = _constructor(kind)
        row = _row(module, *required[kind])
        key = tuple(row["made"].items()), tuple(row["set"].items())
        if key not in known:
            known[key] = len(rows)
            rows.append(row)
        of[path] = known[key]
    return {"rows": rows, "of": of}


def looks_at_mode(kind: type) -> bool:
    """Whether the code of a class of modules reads ``training``, so that it runs otherwise in evaluation mode.

    >>> looks_at_mode(torch.nn.Dropout), looks_at_mode(torch.nn.Linear)
    (True, False)
    """
    own = kind.__mro__[: kind.__mro__.index(torch.nn.Module)]
    members = [member for base in own for member in vars(base).values() if isinstance(member, FunctionType)]
    # a decorator may lie around what looks
    codes = [getattr(inspect.unwrap(member), "__code__", member.__code__) for member in members]
    while codes:
        code = codes.pop()
        if "training" in code.co_names:
            return True
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return False


def optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """What an optimizer's groups are set to as a step begins, and the steps that it counts in plain numbers.

    >>> model = torch.nn.Linear(2, 3)
    >>> settings = optimizer_settings(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    >>> settings["name"], settings["groups"][0]["lr"], settings["groups"][0]["momentum"], settings["steps"]
    ('SGD', '0.1', '0.9', [])
    """
    groups = []
    steps: set[int] = set()
    for group in optimizer.param_groups:
        plain = {name: text for name, value in group.items() if (text := _text(value)) is not None}
        groups.append({name: text for name, text in plain.items() if name not in COUNTERS})
        steps.update(group[name] for name in COUNTERS if type(group.get(name)) is int)
    state = next(iter(optimizer.state.values()), None)
    if isinstance(state, dict):
        steps.update(state[name] for name in COUNTERS if type(state.get(name)) is int)
    return {"name": type(optimizer).__name__, "groups": groups, "steps": sorted(steps)}


def _constructor(kind: type) -> tuple[set[str], set[str]]:
    """The names of the arguments that a class must be given, and of the others that it takes."""
    try:
        arguments = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    # written in C, or with a signature that cannot be read
    except (TypeError, ValueError):
        return set(), set()
    required = {name for name, argument in arguments.items() if argument.default is argument.empty}
    return required, set(arguments) - required


def _row(module: torch.nn.Module, required: set[str], optional: set[str]) -> Row:
    row: Row = {"made": {}, "set": {}}
    for name, value in vars(module).items():
        text = None if name.startswith("_") else _text(value)
        if text is not None:
            row["made" if name in required else "set"][name] = text
    parameters = vars(module).get("_parameters") or {}
    for name, parameter in parameters.items():
        # bias=False leaves None behind
        if name in optional:
            row["set"][name] = str(parameter is not None)
    frozen = [
        name
        for name, parameter in parameters.items()
        if parameter is not None and not parameter.requires_grad
    ]
    if frozen:
        row["set"]["frozen"] = ", ".join(frozen)
    return row


def _text(value: Any) -> str | None:
    """A plain value as it would be written; None for what is not plain, or long."""
    kind = type(value)
    if kind in PLAIN:
        text = repr(value)
    elif kind in CALLABLES:
        text = value.__qualname__
        # of one without a name, the name says nothing
        if "<" in text:
            return None
    elif issubclass(kind, Enum):
        text = f"{kind.__name__}.{value._name_}"
    elif kind in CONTAINERS and len(value) <= MOST_PARTS and all(type(part) in PLAIN for part in value):
        text = repr(value)
    else:
        return None
    return text if len(text) <= MOST_LETTERS else None
