"""Call templates: from an operator's live arguments to stored literals, and the reverse for a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_vis.graph.call import Call, Slot, Special

PLAIN = (int, float, complex, str, bool, type(None))


def encode(
    op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], objects: dict[str, Any]
) -> tuple[Call, dict[int | str, tuple[int, ...]]]:
    """The template of a call, and which slots each argument (by position or name) holds.

    What has no literal form is put into ``objects`` under the text that stands for it.
    """
    encoder = _Encoder(objects)
    slots_of: dict[int | str, tuple[int, ...]] = {}
    positional: list[Any] = []
    for position, arg in enumerate(args):
        first = encoder.slots
        positional.append(encoder.item(arg))
        slots_of[position] = tuple(range(first, encoder.slots))
    named: list[tuple[str, Any]] = []
    for name, arg in kwargs.items():
        first = encoder.slots
        named.append((name, encoder.item(arg)))
        slots_of[name] = tuple(range(first, encoder.slots))
    return Call(op, tuple(positional), tuple(named)), slots_of


class _Encoder:
    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects
        self.slots = 0

    def item(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            self.slots += 1
            return Slot(self.slots - 1)
        if type(arg) in PLAIN:
            return arg
        if isinstance(arg, (list, tuple)):
            return tuple([self.item(part) for part in arg])
        if isinstance(arg, dict):
            return (Special("dict", repr(tuple(arg))), tuple([self.item(part) for part in arg.values()]))
        if isinstance(arg, torch.dtype):
            return Special("dtype", str(arg).removeprefix("torch."))
        if isinstance(arg, torch.device):
            return Special("device", str(arg))
        if isinstance(arg, torch.layout):
            return Special("layout", str(arg).removeprefix("torch."))
        if isinstance(arg, torch.memory_format):
            return Special("memory_format", str(arg).removeprefix("torch."))
        text = f"{type(arg).__name__} #{len(self.objects)}"
        self.objects[text] = arg
        return Special("object", text)
