"""How much room a text takes, without asking a font: widths of a common sans-serif, on the wide side."""

from __future__ import annotations

import math

_WIDTHS = {
    **dict.fromkeys("iljI|!'.,:;", 0.32),
    **dict.fromkeys("ftr()[]{}-/\\ ·", 0.42),
    **dict.fromkeys("mwMW@%…–×—", 0.92),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ&", 0.71),
    **dict.fromkeys("_0123456789", 0.64),
}
_USUAL = 0.62


def text_width(text: str, size: float) -> float:
    """The width of a text in a font of a size, in the same unit."""
    return size * sum(_WIDTHS.get(letter, 1.0 if ord(letter) > 0x2E80 else _USUAL) for letter in text)


def shortened(text: str, most: int) -> str:
    """A text of at most so many letters, its middle left out where it is longer.

    >>> shortened("_scaled_dot_product_flash_attention_for_cpu", 24)
    '_scaled_dot_…ion_for_cpu'
    """
    text = "".join(letter if letter.isprintable() else "�" for letter in text)
    if len(text) <= most:
        return text
    keep = most - 1
    return text[: math.ceil(keep / 2)] + "…" + text[len(text) - keep // 2 :]
