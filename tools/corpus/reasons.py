"""Cases that no tracer can pass, each with the reason; they are shown apart and fail nobody."""

from __future__ import annotations

import re

# (group, pattern of the whole name, reason)
_REASONS: tuple[tuple[str, str, str], ...] = (
    ("ops", r"(new_)?empty(_like|_strided|_permuted)?", "returns memory that nothing wrote"),
)


def reason_for(group: str, name: str) -> str | None:
    """Why the case cannot pass, or None when it should."""
    for other, pattern, reason in _REASONS:
        if other == group and re.fullmatch(pattern, name):
            return reason
    return None
