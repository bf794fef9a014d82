"""Weights that a quantized module has packed into an object of a C++ class: tensors that no operation shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch


class Packed(NamedTuple):
    """How many such objects a run was given, what the tensors inside hold, and how many do not tell."""

    objects: int
    size_bytes: int
    elements: int
    unknown: int


def packed_weights(objects: Iterable[Any]) -> Packed:
    """What objects that operations were given hold; one that is given twice counts once.

    The tensors are those that ``torch.save`` would write, which are copies of what was packed: about as large.

    >>> layer = torch.ao.nn.quantized.dynamic.Linear(8, 4)
    >>> packed_weights([layer._packed_params._packed_params])
    Packed(objects=1, size_bytes=48, elements=36, unknown=0)
    """
    given = {hash(item): item for item in objects if isinstance(item, torch.ScriptObject)}
    count = total = elements = unknown = 0
    for item in given.values():
        tensors = _tensors(item)
        if tensors is None:
            unknown += "Params" in str(item._type())  # others, a process group say, are no weights
        elif tensors:
            count += 1
            total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            elements += sum(tensor.numel() for tensor in tensors)
    return Packed(count, total, elements, unknown)


def _tensors(item: Any) -> list[torch.Tensor] | None:
    """The tensors inside an object and the objects inside it, each once; None where it cannot tell."""
    found: dict[int, torch.Tensor] = {}
    left = [item]
    try:
        while left:
            part = left.pop()
            if isinstance(part, torch.Tensor):
                if part.is_quantized or part.is_floating_point():  # else it is sizes and strides
                    found[part.data_ptr()] = part
            elif isinstance(part, torch.ScriptObject):
                left.append(part.__getstate__())
            elif isinstance(part, (list, tuple)):
                left += part
    except (RuntimeError, AttributeError):  # a class without a state; NotImplementedError is a RuntimeError
        return None
    return list(found.values())
