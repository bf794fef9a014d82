"""The record of one zoo case and the table that holds them all."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Case(NamedTuple):
    """One model or callable with the arguments to call it with.

    `make(**options)` seeds every generator and builds afresh; `make.__doc__` says what the case is about.
    `backward` says whether the sum of the floating outputs can be differentiated; real models take `full`.
    """

    name: str
    make: Callable[..., Built]
    backward: bool
    tags: frozenset[str]


ZOO: dict[str, Case] = {}


def case(*tags: str, backward: bool = True) -> Callable[[Callable[..., Built]], Callable[..., Built]]:
    """Register the decorated builder under its own name."""

    def register(build: Callable[..., Built]) -> Callable[..., Built]:
        name = build.__name__
        if name in ZOO:
            raise ValueError(f"zoo case {name!r} is already registered")
        if not build.__doc__:
            raise ValueError(f"zoo case {name!r} needs a docstring that says what it breaks")

        @functools.wraps(build)
        def make(**options: Any) -> Built:
            seed_everything()
            return build(**options)

        ZOO[name] = Case(name=name, make=make, backward=backward, tags=frozenset(tags))
        return make

    return register


def seed_everything(seed: int = 0) -> None:
    """Seed the generators that torch, Python and numpy models draw from."""
    import numpy as np

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
