"""What a callable can reach from outside itself: the places where a program keeps what a run of it changes."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch

MOST = 20_000  # objects looked at; a data set in a list is not what a run changes
CONTAINERS = (dict, list, set, deque)
CLOSED = (torch.Tensor, torch.nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, str, bytes)


class Reach(NamedTuple):
    """Places found: variables of enclosing functions, global names, containers, and objects with attributes."""

    cells: list[CellType]
    names: list[tuple[dict[str, Any], str]]
    containers: list[Any]
    objects: list[Any]


def reach(target: Callable[..., Any], given: Any = ()) -> Reach:
    """Whatever a callable holds on to and what it is given, followed through containers and attributes.

    >>> history = []
    >>> def step(x):
    ...     history.append(x)
    >>> reach(step).containers == [history]
    True
    """
    found = Reach([], [], [], [])
    todo: deque[Any] = deque([target, given])
    seen: dict[int, Any] = {}
    while todo and len(seen) < MOST:
        item = todo.popleft()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        todo.extend(_next(item, found, is_target=item is target))
    return found


def _next(item: Any, found: Reach, *, is_target: bool) -> Iterator[Any]:
    """What one thing leads to; the places in it are noted."""
    if isinstance(item, functools.partial):
        yield from (item.func, item.args, item.keywords)
    elif isinstance(item, MethodType):
        yield from (item.__func__, item.__self__)
    elif isinstance(item, FunctionType):
        yield from _held_by(item, found)
    elif isinstance(item, CONTAINERS):
        found.containers.append(item)
        yield from list(item.values() if isinstance(item, dict) else item)
    elif isinstance(item, tuple):
        yield from item
    elif not isinstance(item, CLOSED) and isinstance(getattr(item, "__dict__", None), dict):
        found.objects.append(item)
        yield from list(vars(item).values())


def _held_by(function: FunctionType, found: Reach) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        found.cells.append(cell)
        yield inside(cell)
    known = function.__globals__
    for name in function.__code__.co_names:
        item = known.get(name)
        if name in known and not isinstance(item, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            found.names.append((known, name))
            yield item


def inside(cell: CellType) -> Any:
    """What a variable of an enclosing function holds; the cell itself where it holds nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell
