"""A model whose names try to be markup of whatever they are shown in."""

from __future__ import annotations

from torch import nn

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    'a"b]; x -> y [',
    "$\\frac{1}{2}$",
    "line\nbreak\x00",
    "| `code` *b* |",
    "層",
]


def hostile_model() -> nn.Module:
    """A model whose modules' names and classes try to be markup."""
    model = nn.Module()
    parts = []
    for place, name in enumerate(HOSTILE):
        part = type(name.replace("\x00", ""), (nn.Linear,), {})(4, 4)
        parts.append(part)
        model._modules[f"{name} {place}".replace(".", "")] = part
    model.forward = lambda x: [x := part(x) for part in parts][-1]  # type: ignore[method-assign]
    return model
