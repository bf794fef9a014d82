"""The tensors inside nested containers, each with the name a reader would give it.

``torch.utils._pytree`` has key paths too, but looks into neither mappings nor dataclasses that nobody registered, nor
into wrapper tensors, and it recurses, also for ever into what holds itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree


def named_tensors(item: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in lists, tuples, named tuples, mappings, dataclasses and registered containers, in order.

    >>> [name for name, _ in named_tensors({"a": torch.ones(1), "b": [torch.ones(1)]}, "output")]
    ['output.a', 'output.b.0']
    """
    stack: list[tuple[str, Any]] = [(name, item)]
    visited: set[int] = set()
    while stack:
        path, top = stack.pop()
        if isinstance(top, torch.Tensor):
            parts = inner_tensors(top)
            if parts is None:
                yield path, top
                continue
        else:
            parts = container_items(top)
            if not parts or id(top) in visited:
                continue
            visited.add(id(top))
        stack.extend((f"{path}.{key}" if path else key, part) for key, part in reversed(parts))


def inner_tensors(tensor: torch.Tensor) -> list[tuple[str, Any]] | None:
    """The plain tensors inside a wrapper such as a DTensor or a jagged nested tensor; None for a plain tensor."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None or type(tensor).__name__ == "FakeTensor":
        return None
    names, _ = flatten(tensor)
    return [(name, getattr(tensor, name)) for name in names]


def container_items(item: Any) -> list[tuple[str, Any]]:
    """The items of a container with their names; nothing for what is no container.

    >>> container_items({"a": 1}), container_items([2, 3]), container_items(4)
    ([('a', 1)], [('0', 2), ('1', 3)], [])
    """
    if isinstance(item, Mapping):
        return [(str(key), part) for key, part in item.items()]
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return [(str(key), part) for key, part in zip(item._fields, item, strict=False)]
    # torch.return_types
    if isinstance(item, tuple) and hasattr(item, "n_sequence_fields"):
        return list(zip(type(item).__match_args__, item, strict=False))  # type: ignore[attr-defined]
    if isinstance(item, (list, tuple)):
        return [(str(index), part) for index, part in enumerate(item)]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [(field.name, getattr(item, field.name, None)) for field in dataclasses.fields(item)]
    node = _pytree.SUPPORTED_NODES.get(type(item))
    if node is not None:
        children, _ = node.flatten_fn(item)
        return [(str(index), part) for index, part in enumerate(children)]
    return []
