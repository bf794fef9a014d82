"""Numbers that count what is done with them.

A reference is a plain loop over arrays of ``Number``. It proves a formula in two steps: its values are those that torch
computes, so it is that operator, and its count is what the formula says (``proving.assert_counts``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

TALLY: Counter[str] = Counter()
Array = Any  # a numpy array of Number


class Number:
    """A float that tallies additions, products, quotients and functions; signs and comparisons are free."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = float(value)

    def _with(self, other: Any, kind: str, result: Callable[[float, float], float]) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented  # numpy then takes it element by element
        TALLY[kind] += 1
        return Number(result(self.value, float(other)))

    def __add__(self, other: Any) -> Any:
        return self._with(other, "add", lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, "add", lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, "add", lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, "mul", lambda a, b: a * b)

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, "div", lambda a, b: a / b)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, "div", lambda a, b: b / a)

    __radd__ = __add__
    __rmul__ = __mul__

    def __pow__(self, power: Any) -> Number:
        return self.function(lambda x: x ** float(power))

    def function(self, call: Callable[[float], float]) -> Number:
        """A mathematical function of it: one."""
        TALLY["call"] += 1
        return Number(call(self.value))

    def __neg__(self) -> Number:
        return Number(-self.value)

    def __abs__(self) -> Number:
        return Number(abs(self.value))

    def __float__(self) -> float:
        return self.value

    def __lt__(self, other: Any) -> bool:
        return self.value < float(other)

    def __le__(self, other: Any) -> bool:
        return self.value <= float(other)

    def __gt__(self, other: Any) -> bool:
        return self.value > float(other)

    def __ge__(self, other: Any) -> bool:
        return self.value >= float(other)

    def __repr__(self) -> str:
        return f"Number({self.value})"


def _elementwise(call: Callable[[float], float]) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return array((apply(each) for each in x.reshape(-1)), x.shape)
        return x.function(call)

    return apply


exp, sqrt, tanh, erf = (_elementwise(each) for each in (math.exp, math.sqrt, math.tanh, math.erf))
log = _elementwise(lambda x: math.log(x) if x else -math.inf)
log1p, expm1, sin = (_elementwise(each) for each in (math.log1p, math.expm1, math.sin))


def array(items: Iterable[Any], shape: tuple[int, ...]) -> Array:
    """Objects as an array of that shape."""
    made = np.empty(math.prod(shape), dtype=object)
    for place, item in enumerate(items):
        made[place] = item
    return made.reshape(shape)


def numbers(tensor: Any) -> Array:
    """A tensor as an array of counting numbers."""
    found = np.asarray(tensor.detach(), dtype=np.float64)
    return array(map(Number, found.reshape(-1)), found.shape)


def zeros(*shape: int) -> Array:
    """An array of plain zeros to add to."""
    return array((0 for _ in range(math.prod(shape))), shape)


def dot(a: Iterable[Any], b: Iterable[Any]) -> Any:
    """A sum of products: as many of each."""
    return sum(x * y for x, y in zip(a, b))


def matmul(a: Array, b: Array) -> Array:
    """The product of two matrices."""
    return array((dot(row, column) for row in a for column in b.T), (a.shape[0], b.shape[1]))


def choose(condition: Array, yes: Array, no: Array) -> Array:
    """One of two, both worked out."""
    return np.where(condition.astype(bool), yes, no)


def smaller(x: Array, limit: float) -> Array:
    """The lesser of each and a limit."""
    return array((min(each, Number(limit)) for each in x.reshape(-1)), x.shape)


def larger(x: Array, limit: float) -> Array:
    """The greater of each and a limit."""
    return array((max(each, Number(limit)) for each in x.reshape(-1)), x.shape)


def sigmoid(x: Array) -> Array:
    """By its definition."""
    return 1 / (1 + exp(-x))


def truncated(x: Array) -> Array:
    """Rounded towards zero, which is free."""
    return array((Number(math.trunc(float(each))) for each in x.reshape(-1)), x.shape)


def zeros_like(x: Array) -> Array:
    """Numbers that are zero."""
    return array((Number(0) for _ in x.reshape(-1)), x.shape)


def ones_like(x: Array) -> Array:
    """Numbers that are one."""
    return array((Number(1) for _ in x.reshape(-1)), x.shape)


def unit(x: Any) -> Any:
    """Into (0, 1), without counting."""
    if isinstance(x, torch.Tensor):
        return (x + 3) / 6
    return array((Number((float(each) + 3) / 6) for each in x.reshape(-1)), x.shape)


def floats(made: Any) -> Any:
    """Counting numbers back as plain ones."""
    return np.vectorize(float, otypes=[np.float64])(made) if np.size(made) else np.zeros(np.shape(made))


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count from zero; the tally stays as it is at the end."""
    TALLY.clear()
    tally: Counter[str] = Counter()
    yield tally
    tally.update(TALLY)


def flops(tally: Counter[str]) -> int:
    """All that was counted."""
    return sum(tally.values())
