"""The models that every stage is tested on: small ones that break tracers, and real ones of random weights.

`ZOO` maps a name to its `Case`; `cases("real")` lists those that carry a tag. `case.make()` gives a fresh
callable, its positional and its keyword arguments, the same every time; real models take `full=True`.
"""

from __future__ import annotations

from tests.zoo_models import (  # noqa: F401  (importing a file registers its cases)
    aliasing,
    autograd,
    compiled,
    exotic,
    language,
    structure,
    training,
    values,
    vision,
)
from tests.zoo_models.compare import first_difference, floating_sum, leaves, same_bits, tensors
from tests.zoo_models.exotic import close_process_group
from tests.zoo_models.registry import ZOO, Built, Case, seed_everything
from tests.zoo_models.torchvision_ops import declare_torchvision_ops

__all__ = [
    "ZOO",
    "Built",
    "Case",
    "cases",
    "close_process_group",
    "declare_torchvision_ops",
    "first_difference",
    "floating_sum",
    "leaves",
    "same_bits",
    "seed_everything",
    "tensors",
]


def cases(tag: str | None = None) -> list[Case]:
    """The cases that carry a tag, or all of them, in the order of registration."""
    chosen = [case for case in ZOO.values() if tag is None or tag in case.tags]
    if not chosen:
        tags = sorted({one for case in ZOO.values() for one in case.tags})
        raise KeyError(f"no zoo case is tagged {tag!r}; the tags are {', '.join(tags)}")
    return chosen
