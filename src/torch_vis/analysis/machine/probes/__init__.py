"""What a calibration runs: single operations over a range of sizes, small programs, and the clocks that time them.

Sizes are drawn at random over the range that models have, the same in every run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

Work = Callable[[], Any]


class Probe(NamedTuple):
    """One operation to time: ``make`` sets up its tensors and returns the call.

    ``many`` is whether it launches kernels step by step, so that what it takes the host is timed as well.
    """

    family: str
    make: Callable[[], Work]
    many: bool = False


class ProbeSampler:
    """Where probes run and how large they may be.

    ``flops`` is the most arithmetic of one operation by element type, ``elements`` the most that its tensors hold.
    """

    def __init__(self, device: str, flops: dict[str, float], elements: float, seed: int = 0) -> None:
        self.device = device
        self.flops = flops
        self.elements = elements
        self.random = random.Random(seed)
        self._pool = torch.randn(0, device=device)

    def tensor(self, *shape: int, dtype: str, grad: bool = False) -> torch.Tensor:
        """A tensor of random numbers; zeros would draw less power and run faster than data does."""
        count = math.prod(shape)
        # drawing takes longer than most operations do: numbers are drawn once and copied
        if count > len(self._pool):
            self._pool = torch.randn(count, device=self.device)
        tensor = torch.empty(shape, device=self.device, dtype=getattr(torch, dtype))
        tensor.view(-1).copy_(self._pool[:count])
        return tensor.requires_grad_(grad)

    def numbers(self, below: int, *shape: int) -> torch.Tensor:
        """Whole numbers, to look things up with."""
        return torch.randint(0, max(below, 1), shape, device=self.device)

    def between(self, least: int, most: int, multiple: int = 1) -> int:
        """A number whose logarithm is evenly spread."""
        drawn = math.exp(self.random.uniform(math.log(least), math.log(most)))
        return max(multiple, round(drawn / multiple) * multiple)

    def some(self, choices: list[int]) -> int:
        """One of several."""
        return self.random.choice(choices)

    def draw(self, count: int, sample: Callable[[], Any], fits: Callable[[Any], bool]) -> Iterator[Any]:
        """So many samples that fit; fewer if hardly any does."""
        number = 0
        for _ in range(count * 50):
            drawn = sample()
            if fits(drawn):
                yield drawn
                number += 1
                if number == count:
                    return


def backward(output: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> Work:
    """The backward pass alone of something that has been computed."""
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)


def without_gradients(call: Work) -> Work:
    """The same call with no record for backward."""

    def run() -> Any:
        with torch.no_grad():
            return call()

    return run
