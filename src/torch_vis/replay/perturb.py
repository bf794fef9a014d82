"""Other numbers for a parameter, to find out whether anything depends on it."""

from __future__ import annotations

import torch

SMALL = 1e-3  # typical numbers of a parameter below which it lets next to nothing through


def stirred(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A parameter with random numbers mixed in, as large as its own; where these are next to zero, as is usual.

    >>> stirred(torch.zeros(4, 100), torch.Generator().manual_seed(0)).std().round(decimals=1)
    tensor(0.1000)
    """
    noise = torch.randn(parameter.shape, generator=generator, device="cpu") * _scale(parameter)
    return (parameter + noise.to(parameter)) / 2**0.5


def _scale(parameter: torch.Tensor) -> float:
    """How large numbers of a parameter are; of one that is next to zero, how large they usually are."""
    known = parameter.float().nan_to_num(0.0, 0.0, 0.0)
    size = float(known.square().mean().sqrt())
    if size >= SMALL:
        return size
    return (parameter.shape[0] / parameter.numel()) ** 0.5 if parameter.dim() > 1 else 0.5
