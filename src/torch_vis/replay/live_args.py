"""From stored call templates back to an operator and live arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_vis.graph.call import Call, Slot, Special

BUILDERS: dict[str, Callable[[str], Any]] = {
    "dtype": lambda text: getattr(torch, text),
    "layout": lambda text: getattr(torch, text),
    "memory_format": lambda text: getattr(torch, text),
    "device": torch.device,
}


def operator(name: str) -> Callable[..., Any]:
    """The operator that a stored name stands for.

    >>> operator("aten::add.Tensor")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base)
    if namespace == "higher_order":
        return packet
    return getattr(packet, overload or "default")


class Prepared:
    """A call template made ready to be filled with tensors, many times."""

    def __init__(self, call: Call, objects: Mapping[str, Any]) -> None:
        self.run = operator(call.op)
        self.objects = objects
        self.args = tuple(self._literal(arg) for arg in call.args)
        self.kwargs = {name: self._literal(arg) for name, arg in call.kwargs}

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with the tensors in their slots."""
        args = [_fill(arg, tensors) for arg in self.args]
        return args, {name: _fill(arg, tensors) for name, arg in self.kwargs.items()}

    def _literal(self, item: Any) -> Any:
        if isinstance(item, Special):
            return self.objects[item.text] if item.kind == "object" else BUILDERS[item.kind](item.text)
        if type(item) is tuple:
            if len(item) == 2 and isinstance(item[0], Special) and item[0].kind == "dict":
                return dict(zip(ast.literal_eval(item[0].text), map(self._literal, item[1]), strict=True))
            return [self._literal(part) for part in item]
        return item


def _fill(item: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(item, Slot):
        return tensors[item.number]
    if isinstance(item, list):
        return [_fill(part, tensors) for part in item]
    if isinstance(item, dict):
        return {key: _fill(part, tensors) for key, part in item.items()}
    return item
