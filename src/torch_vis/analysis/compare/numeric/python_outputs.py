"""What two runs gave back that is no tensor: numbers, words and arrays of numpy, which no operation made."""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.numeric.tensor_distance import Gap, counted, gap_of
from torch_vis.analysis.compare.outputs import is_another_container
from torch_vis.api import Recording
from torch_vis.capture.containers import container_items

if TYPE_CHECKING:
    from torch_vis._trace import Trace

APART = "not comparable"
NOT_HELD = "not held"
EXACT = (str, bytes, bool, type(None), torch.dtype, torch.device, Enum, set, frozenset, range)
NUMBERS = (int, float, complex, np.number, np.ndarray, torch.Tensor)
HEAP_TYPE = 1 << 9  # of a class's flags: written in Python
MOST_LETTERS = 40
THE_SAME = Gap(0.0, 0.0)


class Plain(NamedTuple):
    """The outputs of two runs that are no tensors, by their names in the first."""

    gaps: dict[str, Gap]
    """Of those that both have: how far apart."""
    other: dict[str, str]
    """Those that are something else, and have no distance, in words."""
    left_out: dict[str, list[str]]
    """Those that were not compared, by the reason."""
    fractions: set[str]
    """Those that are floating-point numbers, or arrays of these."""
    hidden: set[str]
    """Those that are tensors, but held by an object of which only its attributes are known."""

    @property
    def any_compared(self) -> bool:
        """Whether something was compared; that both gave back nothing does not count."""
        return bool(self.gaps or self.other)


def plain_outputs(a: Trace, b: Trace) -> Plain:
    """Compare what is no tensor in what two runs gave back.

    >>> import torch, torch_vis as tv
    >>> one, two = (tv.trace(lambda x: {"n": x.sum().item(), "s": s}, torch.ones(2)) for s in "ab")
    >>> plain_outputs(one, two).gaps["output.n"].relative, plain_outputs(one, two).other
    (0.0, {'output.s': "'a' → 'b'"})
    """
    found = Plain({}, {}, defaultdict(list), set(), set())
    for where, trace in (("A", a), ("B", b)):
        if not _is_held(trace):
            found.left_out[f"{NOT_HELD} by {where}"].append("output")
    if found.left_out:
        return found
    here, there = leaves(a), leaves(b)
    pairs = {name: name for name in here if name in there}
    only_a, only_b = ([n for n in one if n not in pairs and one[n] is not None] for one in (here, there))
    if len(only_a) == len(only_b) == 1 and is_another_container(only_a[0], only_b[0]):
        pairs[only_a.pop()] = only_b.pop()
    for where, names in (("only in A", only_a), ("only in B", only_b)):
        if names:
            found.left_out[where] += names
    for name, other in pairs.items():
        told = _compared(here[name], there[other])
        if told is None:
            found.left_out[APART].append(name)
        elif isinstance(told, str):
            found.other[name] = told
        elif here[name] is not None:
            found.gaps[name] = told
            if isinstance(here[name], torch.Tensor):
                found.hidden.add(name)
            elif isinstance(here[name], NUMBERS) and np.asarray(here[name]).dtype.kind in "fc":
                found.fractions.add(name)
    return found


def _is_held(trace: Trace) -> bool:
    """Whether a trace has what the run gave back; a block of code gives back nothing."""
    has_outputs = any(row.kind == "output" for row in trace.graph.outcomes)
    return trace.output is not None or not has_outputs or isinstance(trace, Recording)


def leaves(trace: Trace) -> dict[str, Any]:
    """What is no tensor in the output of a run, by name; tensors too where only an object's own attributes hold them.

    >>> import torch, torch_vis as tv
    >>> leaves(tv.trace(lambda x: (x.sum(), [None, 3]), torch.ones(2)))
    {'output.1.0': None, 'output.1.1': 3}
    """
    found: dict[str, Any] = {}
    stack: list[tuple[str, Any, bool]] = [("output", trace.output, False)]
    busy: set[int] = set()
    while stack:
        name, top, is_hidden = stack.pop()
        if isinstance(top, torch.Tensor) and not is_hidden:
            continue
        parts = [] if isinstance(top, (*EXACT, *NUMBERS)) else container_items(top)
        if not parts and _is_open(top):
            parts, is_hidden = list(vars(top).items()), True
            found[f"{name}.class"] = type(top).__qualname__  # the same attributes may mean something else
        if not parts:
            found[name] = top
        elif id(top) not in busy:
            busy.add(id(top))
            stack += [(f"{name}.{key}", part, is_hidden) for key, part in reversed(parts)]
    return found


def _is_open(item: Any) -> bool:
    """Whether all that makes up an object is in its attributes."""
    closed = (*EXACT, *NUMBERS, type, FunctionType, ModuleType, torch.nn.Module)
    if isinstance(item, closed) or not getattr(item, "__dict__", None):
        return False
    return all(
        cls.__flags__ & HEAP_TYPE and not vars(cls).get("__slots__") for cls in type(item).__mro__[:-1]
    )


def _compared(one: Any, two: Any) -> Gap | str | None:
    """How far apart two things are, in words where that is no number; None where they cannot be compared."""
    one, two = (item.item() if isinstance(item, np.generic) else item for item in (one, two))
    if one is two:
        return THE_SAME
    sides = [
        "exact" if isinstance(item, EXACT) else "number" if isinstance(item, NUMBERS) else ""
        for item in (one, two)
    ]
    if "" in sides:
        is_empty = type(one) is type(two) and isinstance(one, (list, tuple, dict)) and not one and not two
        return THE_SAME if is_empty else None
    if sides == ["number", "number"]:
        return _apart(one, two)
    if sides == ["exact", "exact"] and one == two:
        return THE_SAME
    return f"{_short(one)} → {_short(two)}"


def _apart(one: Any, two: Any) -> Gap | str | None:
    """How far apart numbers, arrays or tensors are."""
    if isinstance(one, torch.Tensor) != isinstance(two, torch.Tensor):
        return None
    if not isinstance(one, torch.Tensor):
        one, two = np.asarray(one), np.asarray(two)
        kinds = {one.dtype.kind, two.dtype.kind}
        if one.shape == two.shape and ("O" not in kinds or not one.ndim) and (one == two).all():
            return THE_SAME
        if one.shape == () == two.shape and "O" in kinds:
            return (
                f"{_short(one.item())} → {_short(two.item())}"  # whole numbers too large for a type of numpy
            )
        if not kinds <= set("biufc"):
            return None
        wide = np.complex128 if "c" in kinds else np.float64
        exact = kinds <= set("biu")
        gap = _apart(*(torch.from_numpy(np.array(item, dtype=wide)) for item in (one, two)))
        if (
            exact and isinstance(gap, Gap) and not gap.relative
        ):  # lost where they became floating-point numbers
            return Gap(float(np.finfo(np.float64).eps), 1.0)
        return gap
    if one.shape == two.shape and one.dtype == two.dtype and not one.numel():
        return THE_SAME
    return gap_of([counted(one.detach())], [counted(two.detach())])


def _short(item: Any) -> str:
    text = repr(item)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
