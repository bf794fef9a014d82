"""What is written along the axes of a figure."""

from __future__ import annotations

from typing import Any


def written(figure: Any, side: str) -> list[str]:
    """The labels along an axis of either library's figure."""
    if hasattr(figure, "layout"):
        return list(figure.layout[f"{side}axis"].ticktext)
    return [label.get_text() for label in getattr(figure.axes[0], f"get_{side}ticklabels")()]
