"""Numbers and names as a person reads them: plurals, shortened lists, three digits and a unit."""

from __future__ import annotations

import ast
import linecache
import os
import stat
from collections.abc import Sequence

# texts of models and files are made harmless where the errors are, since errors show them too
from torch_vis.errors import inert, inert_lines, shortened

__all__ = [
    "and_more",
    "count",
    "duration",
    "inert",
    "inert_lines",
    "many",
    "shortened",
    "size",
    "source_text",
    "split_number",
    "syntax_of",
    "with_unit",
]

LARGEST_SOURCE = 10_000_000  # bytes
DIGITS = "0123456789"
MOST_DIGITS = 18  # of a number that something counted up to
EXACT_STEPS = {
    "ns": (1000, ("ns", "µs", "ms", "s")),
    "B": (1024, ("B", "KiB", "MiB", "GiB", "TiB")),
    "": (1000, ("", "k", "M", "G", "T", "P")),
}


def many(number: int, noun: str) -> str:
    """A number of things, with the word for one or several.

    >>> many(1, "operation"), many(2_000, "operation"), many(2, "box")
    ('1 operation', '2,000 operations', '2 boxes')
    """
    plural = "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{number:,} {noun}" + ("" if number == 1 else plural)


def source_text(file: str) -> list[str]:
    """The lines of a Python file that a trace names; none where there is no such file.

    A stranger's trace may name any file of this machine: what is not Python's is not shown, and a device is not read.

    >>> source_text("/etc/passwd"), source_text("no\\0file.py")
    ([], [])
    """
    try:
        # what is in the cache was put there by this process: a notebook's cells, say
        if file not in linecache.cache:
            if not file.endswith(".py"):
                return []
            status = os.stat(file) if os.path.isabs(file) else None
            if status is not None and not (stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_SOURCE):
                return []
        return linecache.getlines(file)
    except (OSError, ValueError):  # no file has such a name
        return []


def syntax_of(file: str) -> tuple[str, ast.Module]:
    """The text of a source file and its syntax; both are empty where it is not there or is no Python."""
    source = "".join(source_text(file))
    try:
        return source, ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return "", ast.Module([], [])


def and_more(names: Sequence[object], most: int = 5) -> str:
    """The first of some names, and how many more there are.

    >>> and_more(["a", "b", "c"], 2), and_more(["a", "b", "c"])
    ('a, b and 1 more', 'a, b, c')
    """
    rest = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {rest:,} more" if rest > 0 else "")


def split_number(name: str) -> tuple[str, int | None]:
    """A name without the number at its end, and that number; None where there is none that anyone counts up to.

    >>> split_number("Conv2d 12"), split_number("fc")
    (('Conv2d ', 12), ('fc', None))
    """
    # a pattern would look at each digit of a stranger's name once for each digit before it
    stem = name.rstrip(DIGITS)
    return (stem, int(name[len(stem) :])) if 0 < len(name) - len(stem) <= MOST_DIGITS else (name, None)


def duration(time_ns: int) -> str:
    """A time.

    >>> duration(845), duration(12_345), duration(2_500_000_000), duration(3_723_000_000_000)
    ('845 ns', '12.3 µs', '2.50 s', '1 h 02 min')
    """
    if time_ns < 1000:
        return f"{time_ns} ns"
    for unit, size in (("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        if time_ns / size < (999.5 if unit != "s" else 99.95):
            return f"{_three_digits(time_ns / size)} {unit}"
    minutes = round(time_ns / 6e10)
    return f"{time_ns / 6e10:.1f} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def size(nbytes: int) -> str:
    """A number of bytes.

    >>> size(0), size(1000), size(4 * 1024**2), size(13_000_000_000)
    ('0 B', '1000 B', '4.00 MiB', '12.1 GiB')
    """
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 999.5 or (unit == "B" and abs(amount) < 1024):
            return f"{nbytes} B" if unit == "B" else f"{_three_digits(amount)} {unit}"
        amount /= 1024
    return f"{amount:,.1f} PiB"


def count(number: int) -> str:
    """A number of things: exact while it is short.

    >>> count(0), count(9999), count(25_557_032), count(405_853_388_800)
    ('0', '9,999', '25.6 M', '406 G')
    """
    if abs(number) < 10_000:
        return f"{number:,}"
    amount = float(number)
    for unit in ("", "k", "M", "G", "T"):
        if abs(amount) < 999.5:
            return f"{_three_digits(amount)} {unit}"
        amount /= 1000
    return f"{amount:,.1f} P"


def with_unit(number: float, unit: str, *, exact: bool = True) -> str:
    """A figure as a person reads it and, by default, the exact number.

    >>> with_unit(845, "ns"), with_unit(12_345, "ns"), with_unit(4 * 1024**2, "B"), with_unit(1_234_567, "B")
    ('845 ns', '12.345 µs', '4 MiB', '1.18 MiB (1234567 B)')
    """
    step, units = EXACT_STEPS[unit]
    amount, index = float(number), 0
    while abs(amount) >= (999.5 if index else step) and index < len(units) - 1:
        amount /= step
        index += 1
    if not index:
        return f"{number} {unit}".rstrip()
    if unit == "ns" and exact:
        return f"{amount:.{3 * index}f}".rstrip("0").rstrip(".") + f" {units[index]}"
    text = f"{amount:.3g} {units[index]}"
    return (
        text if not exact or float(f"{amount:.3g}") == amount else f"{text} ({f'{number} {unit}'.rstrip()})"
    )


def _three_digits(amount: float) -> str:
    return f"{amount:.2f}" if amount < 9.995 else f"{amount:.1f}" if amount < 99.95 else f"{amount:.0f}"
