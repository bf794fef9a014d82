"""Sums that leave out what is not known: plain numbers as data, with ``≥`` before them in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LowerBound(int):
    """A number of which the truth may be more."""


class LowerBoundShare(float):
    """A share of which the truth may be more."""


def summed(amount: float | None, unknown: int) -> int | None:
    """A sum for a table, where so many of its parts are not known; None where all are.

    >>> type(summed(3.0, 0)).__name__, type(summed(3.0, 1)).__name__, summed(None, 1)
    ('int', 'LowerBound', None)
    """
    return None if amount is None else LowerBound(amount) if unknown else int(amount)


def least(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """How a person reads such a number.

    >>> least("{:,}".format)(LowerBound(3000)), least("{:,}".format)(3000)
    ('≥ 3,000', '3,000')
    """
    return lambda item: f"≥ {show(item)}" if isinstance(item, (LowerBound, LowerBoundShare)) else show(item)
