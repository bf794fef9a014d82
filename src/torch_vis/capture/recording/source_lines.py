"""The source line of an operation: that of the first Python frame that is not torch's or ours; whose code is whose."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
import weakref
from functools import partial
from types import CodeType
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from torch_vis.graph.schema import Site
from torch_vis.ops.higher_order import AUTOGRAD_MODULES

TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
INDUCTOR = f"{os.sep}torchinductor_"
PROMPTS = ("<stdin>", "<ipython", "<doctest", "<string>")
RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+$")
# wrap functions of torch that are deprecated, and the ends of its blocks; what an installer writes to start our command
WRAPPERS = (
    f"{os.sep}typing_extensions.py",
    os.path.abspath(contextlib.__file__),
    f"{os.sep}torch-vis",
    os.path.join(f"{os.sep}torch-vis.exe", "__main__.py"),
)
PROPAGATION = os.path.join(TORCH, "distributed", "tensor", "_sharding_prop.py")
AUTOGRAD = os.path.join(TORCH, "autograd", "__init__.py")
# where the public functions are that are written in Python
PUBLIC = tuple(
    os.path.join(TORCH, *parts) for parts in (("nn", "functional.py"), ("functional.py",), ("_tensor.py",))
)
# code between a call and its operations that says nothing of either
BETWEEN = (
    *(
        os.path.join(TORCH, *parts)
        for parts in (
            ("_ops.py",),
            ("_subclasses",),
            ("overrides.py",),
            ("_jit_internal.py",),
            ("_library",),
            ("utils",),
        )
    ),
    os.path.join(OURS, "capture", "fake.py"),
    os.path.join(OURS, "capture", "recording"),
)
# a whole layer, of which the calls inside say more, and what runs other work
OPENED = frozenset({"multi_head_attention_forward", "backward"})
T = TypeVar("T")


class CodeTable(Generic[T]):
    """What is known of code objects, each for as long as it lives."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, code: CodeType) -> T | None:
        """What is known of it, None if nothing is."""
        row = self._rows.get(id(code))
        return None if row is None else row[1]

    def set(self, code: CodeType, known: T) -> T:
        """Note it; equal code has a note of its own."""
        # forgotten by a function in C: an interrupt inside one in Python would be lost
        forget: Any = partial(self._rows.pop, id(code))
        self._rows[id(code)] = weakref.ref(code, forget), known
        return known


class CodeKind(NamedTuple):
    """Whose code a code object is: worked out once, whoever records."""

    user: bool
    # Inductor's output
    compiled: bool
    # DTensor's own, which finds out shapes by running operations on fake tensors
    propagating: bool
    # makes the first gradients of a backward pass
    seeding: bool
    # the autograd.Function whose forward it is
    function: weakref.ref[type] | None
    # a public function of torch's that is written in Python
    public: bool
    # its instructions say which function of torch's is called
    names_calls: bool


_kinds: CodeTable[CodeKind] = CodeTable()


def kind_of(code: CodeType) -> CodeKind:
    """Whose code it is: the user's, torch's, a compiler's output, or the forward of an autograd.Function."""
    kind = _kinds.get(code)
    if kind is None:
        file = code.co_filename
        compiled = INDUCTOR in file
        user = not (file.startswith((TORCH, OURS, "<")) or file.endswith(WRAPPERS) or compiled)
        user = user or file.startswith(PROMPTS)
        propagating = file == PROPAGATION and code.co_name.startswith("_propagate_tensor_meta")
        seeding = file == AUTOGRAD and code.co_name in ("_make_grads", "backward", "grad")
        function = function_of(code) if code.co_name == "forward" else None
        inner = "<locals>" in getattr(code, "co_qualname", "")
        public = file in PUBLIC and not inner and code.co_name not in OPENED and code.co_name[0] not in "_<"
        names_calls = not (compiled or file.startswith(("<", *BETWEEN)) or (file in PUBLIC and inner))
        whose = None if function is None else weakref.ref(function)
        kind = _kinds.set(code, CodeKind(user, compiled, propagating, seeding, whose, public, names_calls))
    elif kind.function is not None and kind.function() is None:
        # the class is gone, and a function that makes one has made it anew of the same code
        function = function_of(code)
        whose = None if function is None else weakref.ref(function)
        kind = _kinds.set(code, kind._replace(function=whose))
    return kind


class CodeInfo:
    """A code object in one recording: its kind, and the numbers of the sites seen in it."""

    __slots__ = ("caller", "code", "compiled", "function", "left_out", "notable", "seeding", "sites", "user")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.user, self.compiled, propagating, self.seeding, function, public, _ = kind_of(code)
        self.function = None if function is None else function()
        # operations that it runs are not recorded
        self.left_out = self.compiled or propagating
        self.sites: dict[int, int] = {}
        # of a public function, its number among the callers
        self.caller = -1
        self.notable = self.user or self.left_out or self.seeding or self.function is not None or public


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
    return Site(shown_file(code.co_filename), line_of(code, instruction), name)


def shown_file(file: str) -> str:
    """A file as a person knows it: the cell of a notebook by its number, ``In[3]``, any other as it is.

    >>> shown_file("net.py")
    'net.py'
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cells = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if file not in cells:
        return file
    cell = f"In[{cells[file]}]"
    # a page shows the lines around a site, by this name too
    if file in linecache.cache:
        linecache.cache[cell] = linecache.cache[file]
    return cell


def resumed(name: str) -> str:
    """The user's name of a function that Dynamo resumed in the middle.

    >>> resumed("torch_dynamo_resume_in_forward_at_8"), resumed("forward")
    ('forward', 'forward')
    """
    match = RESUMED.search(name)
    return name[: match.start()] + match[1] if match else name
