"""Amounts of memory as people give them: a number, a text with a unit, the name of hardware."""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any

from torch_vis.analysis.machine.hardware import find_hardware
from torch_vis.errors import NoMatch, UsageError

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
         "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip
NUMBER = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?inf|nan)\s*([kmgt]i?|)b?\s*", re.IGNORECASE
)


def amount_bytes(amount: Any, what: str, *, hardware: bool = True) -> int:
    """A number of bytes from what was passed as the argument ``what``; ``hardware`` lets it be the name of a device.

    >>> amount_bytes("1.5 GiB", "memory"), amount_bytes("80GB", "memory"), amount_bytes(1024, "memory")
    (1610612736, 80000000000, 1024)
    >>> amount_bytes("T4", "memory")
    16000000000
    """
    if isinstance(amount, str):
        match = NUMBER.fullmatch(amount)
        if not match:
            return _of_hardware(amount, what) if hardware else _refuse(amount, what, hardware)
        size_bytes = float(match[1]) * UNITS[match[2].lower()]
    elif isinstance(amount, Real) and not isinstance(amount, bool):
        size_bytes = float(amount) if not isinstance(amount, int) else amount
    else:
        return _refuse(amount, what, hardware)
    if not math.isfinite(size_bytes) or size_bytes < 1:
        raise UsageError(f"{what}={amount!r}: a number of bytes is finite and at least 1")
    return int(size_bytes)


def _of_hardware(name: str, what: str) -> int:
    try:
        return find_hardware(name).memory_bytes
    except NoMatch as error:
        raise UsageError(f"{_wanted(what, True)}, not {name!r} ({error})") from error


def _refuse(amount: Any, what: str, hardware: bool) -> int:
    raise UsageError(f"{_wanted(what, hardware)}, not {amount!r}")


def _wanted(what: str, hardware: bool) -> str:
    if hardware:
        return f"{what} is a number of bytes, a text like '16 GiB' or the name of hardware"
    return f"{what} is a number of bytes or a text like '16 GiB'"
