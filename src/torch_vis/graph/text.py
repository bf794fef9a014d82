"""Words that go with numbers, for every stage."""

from __future__ import annotations


def many(number: int, thing: str) -> str:
    """A number of things, with the word for one or several.

    >>> many(1, "operation"), many(2_000, "operation"), many(0, "result")
    ('1 operation', '2,000 operations', '0 results')
    """
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
