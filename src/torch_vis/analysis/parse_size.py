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


def amount_bytes(given: Any, what: str, *, hardware: bool = True) -> int:
    """A number of bytes from what was passed as the argument ``what``; ``hardware`` lets it be the name of a device.

    >>> amount_bytes("1.5 GiB", "memory"), amount_bytes("80GB", "memory"), amount_bytes(1024, "memory")
    (1610612736, 80000000000, 1024)
    >>> amount_bytes("T4", "memory")
    16000000000
    """
    if isinstance(given, str):
        found = NUMBER.fullmatch(given)
        if not found:
            return _of_hardware(given, what) if hardware else _refuse(given, what, hardware)
        amount = float(found[1]) * UNITS[found[2].lower()]
    elif isinstance(given, Real) and not isinstance(given, bool):
        amount = float(given) if not isinstance(given, int) else given
    else:
        return _refuse(given, what, hardware)
    if not math.isfinite(amount) or amount < 1:
        raise UsageError(f"{what}={given!r}: a number of bytes is finite and at least 1")
    return int(amount)


def _of_hardware(name: str, what: str) -> int:
    try:
        return find_hardware(name).memory_bytes
    except NoMatch as error:
        raise UsageError(f"{_wanted(what, True)}, not {name!r} ({error})") from error


def _refuse(given: Any, what: str, hardware: bool) -> int:
    raise UsageError(f"{_wanted(what, hardware)}, not {given!r}")


def _wanted(what: str, hardware: bool) -> str:
    if hardware:
        return f"{what} is a number of bytes, a text like '16 GiB' or the name of hardware"
    return f"{what} is a number of bytes or a text like '16 GiB'"
