"""Modules inside modules, thousands of them."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import torch_vis as tv


class Nest(nn.Module):
    """A module that holds one more of its kind, and runs an operation before it."""

    def __init__(self, child: nn.Module | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight if self.child is None else self.child(x * self.weight)


def nested_trace(levels: int) -> tv.Trace:
    """A trace of so many modules in each other, on a stack that has room for them."""
    model: nn.Module | None = None
    for _ in range(levels):
        model = Nest(model)
    limit, stack = sys.getrecursionlimit(), threading.stack_size(512 << 20)
    sys.setrecursionlimit(max(limit, 6 * levels))
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: tv.trace(model, torch.ones(2), hold=False)).result()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(stack)
