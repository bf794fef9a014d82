"""Modules inside modules, thousands of them."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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


class Checkpointed(nn.Module):
    """Layers of which each is computed again in backward, as a whole or from inside."""

    def __init__(self, reentrant: bool, inside: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.GELU(), nn.Linear(8, 4)) for _ in range(3)
        )
        self.reentrant, self.inside = reentrant, inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:

            def run(x: torch.Tensor, layer: nn.Sequential = layer) -> torch.Tensor:  # type: ignore[assignment]
                for part in layer:
                    x = part(x)
                return x

            x = checkpoint(run if self.inside else layer, x, use_reentrant=self.reentrant)
        return x
