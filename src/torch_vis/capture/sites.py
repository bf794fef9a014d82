"""Which source line an operation came from: the first Python frame that is not torch's or ours."""

from __future__ import annotations

import os
from types import CodeType

import torch

from torch_vis.graph.rows import Site

TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
INDUCTOR = f"{os.sep}torchinductor_"
AUTOGRAD = os.path.join(TORCH, "autograd", "__init__.py")


class Code:
    """What the recorder remembers of a code object: whether it is the user's, and the sites seen in it."""

    __slots__ = ("code", "compiled", "function", "seeding", "sites", "special", "user")

    def __init__(self, code: CodeType) -> None:
        self.code = code  # held, so that its id stays its own
        self.sites: dict[int, int] = {}
        file = code.co_filename
        self.compiled = INDUCTOR in file
        self.user = not (file.startswith((TORCH, OURS, "<")) or self.compiled) or file.startswith(
            ("<stdin>", "<ipython", "<doctest", "<string>")
        )
        self.function: type | None = None
        if code.co_argcount and code.co_name == "forward":
            self.function = function_of(code)
        self.seeding = file == AUTOGRAD and code.co_name in ("_make_grads", "backward", "grad")
        self.special = self.compiled or self.seeding or self.function is not None


def function_of(code: CodeType) -> type | None:
    """The autograd.Function whose ``forward`` this code is, if it is one."""
    stack = list(torch.autograd.Function.__subclasses__())
    while stack:
        kind = stack.pop()
        stack.extend(kind.__subclasses__())
        forward = kind.__dict__.get("forward")
        forward = getattr(forward, "__func__", forward)
        while hasattr(forward, "__wrapped__"):
            forward = forward.__wrapped__
        if getattr(forward, "__code__", None) is code:
            return kind if kind.__module__ not in TRANSPARENT else None
    return None


# Functions of torch's own that only wrap the user's modules: their modules are the scopes worth showing.
TRANSPARENT = frozenset({"torch.utils.checkpoint"})


def line_of(code: CodeType, instruction: int) -> int:
    """The line of the instruction at byte offset ``instruction``."""
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= instruction < stop:
            return number if number is not None else line
    return line


def resolve(code: CodeType, instruction: int) -> Site:
    """The site of an instruction, for the table of sites."""
    name = getattr(code, "co_qualname", code.co_name)
    return Site(code.co_filename, line_of(code, instruction), name)
