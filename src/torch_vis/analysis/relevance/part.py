"""An amount of relevance, element by element: the total, and the net where evidence for and against is told apart."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Part(NamedTuple):
    """Relevance of one tensor."""

    total: torch.Tensor
    net: torch.Tensor | None = None

    def __add__(self, other: Part) -> Part:  # type: ignore[override]  # amounts add up, rows do not
        net = None if self.net is None or other.net is None else self.net + other.net
        return Part(self.total + other.total, net)

    def times(self, factor: float | torch.Tensor) -> Part:
        """A share of it."""
        return Part(self.total * factor, None if self.net is None else self.net * factor)

    def like(self, shape: torch.Size) -> Part:
        """Summed over the dimensions in which a tensor of this shape was repeated."""
        return Part(_fit(self.total, shape), None if self.net is None else _fit(self.net, shape))

    def sum(self) -> float:
        """All of it in one number."""
        return float(self.total.sum(dtype=torch.float64))

    def net_sum(self) -> float:
        """What speaks for the start, less what speaks against it."""
        return self.sum() if self.net is None else float(self.net.sum(dtype=torch.float64))


def _fit(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if tensor.shape == shape:
        return tensor
    return tensor.sum_to_size(shape) if tensor.dim() >= len(shape) else tensor.expand(shape)


def magnitude(tensor: torch.Tensor) -> torch.Tensor:
    """Absolute values in a type wide enough to share by; infinities (masks) become large numbers."""
    real = tensor.detach().abs().to(wide(tensor))
    return real if bool(torch.isfinite(real).all()) else torch.nan_to_num(real, nan=0.0, posinf=1e30)


def signed(tensor: torch.Tensor) -> torch.Tensor:
    """The values themselves, likewise."""
    return torch.nan_to_num(tensor.detach().to(wide(tensor)), nan=0.0, posinf=1e30, neginf=-1e30)


def wide(tensor: torch.Tensor) -> torch.dtype:
    """The type in which relevance of a tensor is worked out."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def lifted(amount: torch.Tensor) -> torch.Tensor:
    """Magnitudes, none of them zero: where every contribution is nothing, all have the same share."""
    if not amount.numel():
        return amount
    mean = amount.mean()
    return amount + torch.where((mean > 0) & torch.isfinite(mean), mean * 1e-6, torch.ones_like(mean))


def ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """``part / whole``, and nothing where there is nothing to share by."""
    return torch.where(whole > 0, part / whole.clamp_min(torch.finfo(whole.dtype).tiny), 0.0)


def sign(tensor: torch.Tensor) -> torch.Tensor:
    """+1 or -1, zero counted as positive."""
    return torch.where(tensor.detach() < 0, -1.0, 1.0).to(wide(tensor))
