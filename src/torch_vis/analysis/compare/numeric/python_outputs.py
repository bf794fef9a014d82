"""Compares the outputs of two runs that are no tensors: numbers, strings and arrays of numpy."""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.numeric.tensor_distance import (
    NO_DISTANCE,
    Distance,
    distance_of,
    integers_as_floats,
)
from torch_vis.analysis.compare.outputs import is_another_container
from torch_vis.api import Recording
from torch_vis.capture.containers import container_items

if TYPE_CHECKING:
    from torch_vis._trace import Trace

NOT_COMPARABLE = "not comparable"
NOT_HELD = "not held"
EXACT = (str, bytes, bool, type(None), torch.dtype, torch.device, Enum, set, frozenset, range)
NUMBERS = (int, float, complex, np.number, np.ndarray, torch.Tensor)
# The flag of classes that are written in Python.
HEAP_TYPE = 1 << 9
MOST_LETTERS = 40


class PythonOutputs(NamedTuple):
    """The outputs of two runs that are no tensors, by their names in the first."""

    distances: dict[str, Distance]
    """Of those that both have: how far apart."""
    other: dict[str, str]
    """Those that are something else, and have no distance, in words."""
    uncompared: dict[str, list[str]]
    """Those that were not compared, by the reason."""
    floats: set[str]
    """Those that are floating-point numbers, or arrays or tensors of these."""
    hidden: set[str]
    """Those that are tensors, but held by an object of which only its attributes are known."""

    @property
    def any_compared(self) -> bool:
        """Whether something was compared; that both returned nothing does not count."""
        return bool(self.distances or self.other)


def compare_python_outputs(a: Trace, b: Trace) -> PythonOutputs:
    """Compare what is no tensor in the outputs of two runs.

    >>> import torch, torch_vis as tv
    >>> one, two = (tv.trace(lambda x: {"n": x.sum().item(), "s": s}, torch.ones(2)) for s in "ab")
    >>> outputs = compare_python_outputs(one, two)
    >>> outputs.distances["output.n"].relative, outputs.other
    (0.0, {'output.s': "'a' → 'b'"})
    """
    compared = PythonOutputs({}, {}, defaultdict(list), set(), set())
    for run, trace in (("A", a), ("B", b)):
        if not _has_output(trace):
            compared.uncompared[f"{NOT_HELD} by {run}"].append("output")
    if compared.uncompared:
        return compared
    leaves_a, leaves_b = leaves(a), leaves(b)
    pairs = {name: name for name in leaves_a if name in leaves_b}
    only_a, only_b = (
        [name for name, item in items.items() if name not in pairs and item is not None]
        for items in (leaves_a, leaves_b)
    )
    if len(only_a) == len(only_b) == 1 and is_another_container(only_a[0], only_b[0]):
        pairs[only_a.pop()] = only_b.pop()
    for reason, names in (("only in A", only_a), ("only in B", only_b)):
        if names:
            compared.uncompared[reason] += names
    for name, other in pairs.items():
        item = leaves_a[name]
        distance = _distance(item, leaves_b[other])
        if distance is None:
            compared.uncompared[NOT_COMPARABLE].append(name)
        elif isinstance(distance, str):
            compared.other[name] = distance
        elif item is not None:
            compared.distances[name] = distance
            if isinstance(item, torch.Tensor):
                compared.hidden.add(name)
                if item.is_floating_point() or item.is_complex():
                    compared.floats.add(name)
            elif isinstance(item, NUMBERS) and np.asarray(item).dtype.kind in "fc":
                compared.floats.add(name)
    return compared


def _has_output(trace: Trace) -> bool:
    """Whether a trace has what the run returned; a block of code returns nothing."""
    has_outputs = any(row.kind == "output" for row in trace.graph.outcomes)
    return trace.output is not None or not has_outputs or isinstance(trace, Recording)


def leaves(trace: Trace) -> dict[str, Any]:
    """What is no tensor in the output of a run, by name; tensors too where only an object's own attributes hold them.

    >>> import torch, torch_vis as tv
    >>> leaves(tv.trace(lambda x: (x.sum(), [None, 3]), torch.ones(2)))
    {'output.1.0': None, 'output.1.1': 3}
    """
    items: dict[str, Any] = {}
    stack: list[tuple[str, Any, bool]] = [("output", trace.output, False)]
    seen: set[int] = set()
    while stack:
        name, top, is_hidden = stack.pop()
        if isinstance(top, torch.Tensor) and not is_hidden:
            continue
        parts = [] if isinstance(top, (*EXACT, *NUMBERS)) else container_items(top)
        if not parts and _is_open(top):
            parts, is_hidden = list(vars(top).items()), True
            # the same attributes may mean something else in another class
            items[f"{name}.class"] = type(top).__qualname__
        if not parts:
            items[name] = top
        elif id(top) not in seen:
            seen.add(id(top))
            stack += [(f"{name}.{key}", part, is_hidden) for key, part in reversed(parts)]
    return items


def _is_open(item: Any) -> bool:
    """Whether all that makes up an object is in its attributes."""
    closed = (*EXACT, *NUMBERS, type, FunctionType, ModuleType, torch.nn.Module)
    if isinstance(item, closed) or not getattr(item, "__dict__", None):
        return False
    return all(
        cls.__flags__ & HEAP_TYPE and not vars(cls).get("__slots__") for cls in type(item).__mro__[:-1]
    )


def _distance(a: Any, b: Any) -> Distance | str | None:
    """The distance of two Python values, in words where that is no number; None where they cannot be compared."""
    a, b = (item.item() if isinstance(item, np.generic) else item for item in (a, b))
    if a is b:
        return NO_DISTANCE
    kinds = [
        "exact" if isinstance(item, EXACT) else "number" if isinstance(item, NUMBERS) else ""
        for item in (a, b)
    ]
    if "" in kinds:
        are_empty = type(a) is type(b) and isinstance(a, (list, tuple, dict)) and not a and not b
        return NO_DISTANCE if are_empty else None
    if kinds == ["number", "number"]:
        return _distance_of_tensors(a, b) if isinstance(a, torch.Tensor) else _distance_of_numbers(a, b)
    if kinds == ["exact", "exact"] and a == b:
        return NO_DISTANCE
    return _change(a, b)


def _distance_of_tensors(a: torch.Tensor, b: Any) -> Distance | None:
    if not isinstance(b, torch.Tensor):
        return None
    if a.shape == b.shape and a.dtype == b.dtype and not a.numel():
        return NO_DISTANCE
    return distance_of([integers_as_floats(a.detach())], [integers_as_floats(b.detach())])


def _distance_of_numbers(a: Any, b: Any) -> Distance | str | None:
    if isinstance(b, torch.Tensor):
        return None
    a, b = np.asarray(a), np.asarray(b)
    kinds = {a.dtype.kind, b.dtype.kind}
    if a.shape == b.shape and ("O" not in kinds or not a.ndim) and (a == b).all():
        return NO_DISTANCE
    # integers too large for a type of numpy
    if a.shape == () == b.shape and "O" in kinds:
        return _change(a.item(), b.item())
    if not kinds <= set("biufc"):
        return None
    wide = np.complex128 if "c" in kinds else np.float64
    tensors = (torch.from_numpy(np.array(item, dtype=wide)) for item in (a, b))
    distance = _distance_of_tensors(*tensors)
    are_integers = kinds <= set("biu")
    # integers whose difference was lost where they became floating-point numbers
    if are_integers and distance is not None and not distance.relative:
        return Distance(float(np.finfo(np.float64).eps), 1.0)
    return distance


def _change(a: Any, b: Any) -> str:
    texts = [repr(item) for item in (a, b)]
    texts = [text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…" for text in texts]
    return f"{texts[0]} → {texts[1]}"
