"""What of torch must be as it was after any tracking."""

from __future__ import annotations

from typing import Any

from tests.kit.observed import torch_globals


def lasting() -> dict[str, Any]:
    """Settings, hooks and modes; torch itself adds filters of warnings when it first loads parts of its own."""
    return {name: item for name, item in torch_globals().items() if name != "warning filters"}
