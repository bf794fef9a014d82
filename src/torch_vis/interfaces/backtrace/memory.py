"""Memory that one run leaves for the next.

A run that keeps every node frees all of it at once, and the C library then returns its heap to the system: the next run
pays for every page again, half the time of a ResNet-50. The library can return only what lies above the last block in
use, so one tensor of the run, the highest, is held on to. The heap stays mapped, and free for anybody, until the
``DLBacktrace`` is gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch

APART = 1 << 40  # bytes between the heap and the region of large mappings, at the least


def highest(values: Iterable[Any], held: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor at the highest address of the heap, of those in a run and the one that is held."""
    found = {held.data_ptr(): held} if held is not None else {}
    for value in values:
        if type(value) is torch.Tensor and value.device.type == "cpu":
            found[value.data_ptr()] = value
    if not found:
        return None
    addresses = sorted(found)
    gaps = [(after - before, before) for before, after in itertools.pairwise(addresses)]
    gap, below = max(gaps, default=(0, addresses[-1]))
    return found[below if gap > APART else addresses[-1]]
