"""The nesting of a program's inputs and outputs as plain literals that a saved file can hold."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import Any

from torch_vis.errors import UsageError

LITERALS = (type(None), bool, int, float, str)
Plan = tuple[Any, ...]


def plan_of(spec: Any, renamed: set[str] | None = None) -> Plan:
    """A treespec as nested literals: ``("leaf",)``, ``("tuple", plans)``, ``("dict", keys, plans)``…

    A container that plain Python does not have becomes a dictionary, and its class is added to ``renamed``.

    >>> from torch.utils import _pytree as pytree
    >>> plan_of(pytree.tree_structure({"a": [1, 2]}))
    ('dict', ('a',), (('list', (('leaf',), ('leaf',))),))
    """
    if spec.is_leaf():
        return ("leaf",)
    parts = tuple(plan_of(child, renamed) for child in spec.children())
    if spec.type is tuple or spec.type in (list, deque):
        return ("tuple" if spec.type is tuple else "list", parts)
    if spec.type in (dict, OrderedDict, defaultdict):
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        return ("dict", _literal_keys(keys), parts)
    if _is_tuple(spec.type):
        return ("tuple", parts)
    if renamed is not None:
        renamed.add(spec.type.__name__)
    return ("dict", _names(spec.context, len(parts)), parts)


def _is_tuple(kind: Any) -> bool:
    """Named tuples (which pytree has under one name) and torch's own return types."""
    return getattr(kind, "__name__", "") == "namedtuple" or (
        isinstance(kind, type) and issubclass(kind, tuple)
    )


def _literal_keys(keys: Any) -> tuple[Any, ...]:
    for key in keys:
        if not isinstance(key, LITERALS):
            raise UsageError(
                f"a dictionary with the key {key!r} cannot be written as Python; use text or numbers"
            )
    return tuple(keys)


def _names(context: Any, number: int) -> tuple[Any, ...]:
    """The names of a custom container's parts, as far as what it remembers of itself tells them."""
    for names in (context, *(context if isinstance(context, (tuple, list)) else ())):
        if (
            isinstance(names, (tuple, list))
            and len(names) == number
            and all(isinstance(n, str) for n in names)
        ):
            return tuple(names)
    return tuple(str(place) for place in range(number))
