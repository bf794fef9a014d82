"""Other numbers for a tensor, to find out whether anything depends on it."""

from __future__ import annotations

from collections.abc import Callable

import torch

Change = Callable[[torch.Tensor], torch.Tensor]

SMALL = 1e-3  # typical numbers of a parameter below which it lets next to nothing through


def perturbed(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A parameter with random numbers mixed in, as large as its own; where these are next to zero, as is usual.

    >>> perturbed(torch.zeros(4, 100), torch.Generator().manual_seed(0)).std().round(decimals=1)
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


def _nudge(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype == torch.bool:
        return ~tensor
    if not tensor.is_floating_point() and not tensor.is_complex():
        return tensor.flip(list(range(tensor.dim()))) if tensor.numel() > 1 else tensor + 1
    return tensor * 1.25 + 0.125


def _shrink(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor)


def _negate(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        return -3.0 * tensor - 1.0
    return tensor ^ 1


def _scatter(tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if tensor.is_floating_point() or tensor.is_complex():
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor.device)
        return (noise * 8.0).to(tensor.dtype)
    high = int(tensor.max()) + 1
    return (
        torch.randint(0, max(high, 2), tensor.shape, generator=generator).to(tensor.dtype).to(tensor.device)
    )


PERTURBATIONS: tuple[Change, ...] = (_nudge, _scatter, _negate, _shrink)
"""Changes of an input, of which one should show in every output that depends on it."""


def _filled(number: float) -> Change:
    def fill(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, number) if tensor.is_floating_point() else tensor

    return fill


EXTREMES = (_filled(float("nan")), _filled(1e30), _filled(-1e30))
"""Changes that get past what cancels, and past any threshold."""


def scramble(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Fill a tensor with random numbers, or random yes and no, in place; integers, which may be indices, stay."""
    if tensor.is_floating_point():
        tensor.copy_(torch.randn(tensor.shape, generator=generator).to(tensor))
    elif tensor.dtype == torch.bool:
        tensor.copy_(torch.rand(tensor.shape, generator=generator).to(tensor.device) < 0.5)
