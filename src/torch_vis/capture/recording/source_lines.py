"""The source line of an operation: that of the first Python frame that is not torch's or ours."""

from __future__ import annotations

import os
import re
from types import CodeType
from typing import Any, NamedTuple

import torch

from torch_vis.graph.schema import Site
from torch_vis.ops.higher_order import AUTOGRAD_MODULES

TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
INDUCTOR = f"{os.sep}torchinductor_"
PROMPTS = ("<stdin>", "<ipython", "<doctest", "<string>")
RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+$")
AUTOGRAD = os.path.join(TORCH, "autograd", "__init__.py")


class CodeKind(NamedTuple):
    """Whose code a code object is: worked out once, whoever records."""

    # kept alive, so that its id stays its own
    code: CodeType
    user: bool
    # Inductor's output
    compiled: bool
    # makes the first gradients of a backward pass
    seeding: bool
    # the autograd.Function whose forward it is
    function: type | None


_kinds: dict[int, CodeKind] = {}


def kind_of(code: CodeType) -> CodeKind:
    """Whose code it is: the user's, torch's, a compiler's output, or the forward of an autograd.Function."""
    kind = _kinds.get(id(code))
    if kind is None:
        file = code.co_filename
        compiled = INDUCTOR in file
        user = not (file.startswith((TORCH, OURS, "<")) or compiled) or file.startswith(PROMPTS)
        seeding = file == AUTOGRAD and code.co_name in ("_make_grads", "backward", "grad")
        function = function_of(code) if code.co_name == "forward" else None
        kind = _kinds[id(code)] = CodeKind(code, user, compiled, seeding, function)
    return kind


class CodeInfo:
    """A code object in one recording: its kind, and the numbers of the sites seen in it."""

    __slots__ = ("code", "compiled", "function", "notable", "seeding", "sites", "user")

    def __init__(self, code: CodeType) -> None:
        self.code, self.user, self.compiled, self.seeding, self.function = kind_of(code)
        self.sites: dict[int, int] = {}
        self.notable = self.user or self.compiled or self.seeding or self.function is not None


def function_of(code: CodeType) -> type | None:
    """The autograd.Function whose ``forward`` this code is, if it is one."""
    owner = getattr(code, "co_qualname", "").rpartition(".")[0].rpartition(".")[2]
    stack = list(torch.autograd.Function.__subclasses__())
    while stack:
        kind = stack.pop()
        stack.extend(kind.__subclasses__())
        if owner and kind.__name__ != owner:
            continue
        forward: Any = kind.__dict__.get("forward")
        forward = getattr(forward, "__func__", forward)
        while hasattr(forward, "__wrapped__"):
            forward = forward.__wrapped__
        if getattr(forward, "__code__", None) is code:
            return kind if kind.__module__ not in TRANSPARENT else None
    return None


# Functions of torch's own that only wrap the user's modules or programs: what is inside is what is worth showing.
TRANSPARENT = frozenset(
    {
        "torch.utils.checkpoint",
        "torch._functorch._aot_autograd.runtime_wrappers",
        *AUTOGRAD_MODULES,
    }
)


def leave_alone(function: Any) -> Any:
    """Keep Dynamo from compiling a function of ours, and what it calls, where it runs between compiled code.

    A graph break leaves Dynamo looking at every frame that follows, the recorder's own among them.
    """
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    strategy = getattr(frames, "_FrameExecStrategy", None)
    if strategy is not None:
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, strategy(skip, skip))
    return function


def line_of(code: CodeType, instruction: int) -> int:
    """The line of the instruction at byte offset ``instruction``."""
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= instruction < stop:
            return number if number is not None else line
    return line


def resolve(code: CodeType | Site, instruction: int) -> Site:
    """The source line of an instruction; a program that was captured has its lines already."""
    if isinstance(code, Site):
        return code
    name = resumed(getattr(code, "co_qualname", code.co_name))
    return Site(code.co_filename, line_of(code, instruction), name)


def resumed(name: str) -> str:
    """The user's name of a function that Dynamo resumed in the middle.

    >>> resumed("torch_dynamo_resume_in_forward_at_8"), resumed("forward")
    ('forward', 'forward')
    """
    match = RESUMED.search(name)
    return name[: match.start()] + match[1] if match else name
