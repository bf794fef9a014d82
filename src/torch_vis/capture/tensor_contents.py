"""What is in a tensor, as a few numbers or a small picture, whatever kind of tensor it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torch_vis.capture.modes import functions_aside, modes_aside, without_gradients
from torch_vis.capture.undo import Undo, context
from torch_vis.graph.metrics import ElementStats

MAPS = 16  # pictures of one tensor, at most
MAP_SIZE = 32  # rows and columns of one picture, at most


class ElementCounts(NamedTuple):
    """How many elements lie in each of equal steps from ``low`` to ``high``."""

    low: float
    high: float
    counts: tuple[int, ...]


def contents_of(tensor: torch.Tensor) -> ElementStats | None:
    """The figures of a tensor; None for one without elements to look at (meta, fake, a layout that cannot be read).

    Nothing of the run is disturbed: no gradient is recorded, no mode sees the operations, no random number is drawn.

    >>> contents_of(torch.tensor([1.0, float("nan"), 3.0]))[:3], contents_of(torch.empty(0)).min
    ((1.0, 3.0, 2.0), None)
    >>> contents_of(torch.tensor([True, False])).mean, contents_of(torch.empty(2, device="meta"))
    (0.5, None)
    """
    with unseen():
        flat = elements(tensor)
        if flat is None:
            return None
        total = flat.numel()
        if not total:
            return ElementStats(None, None, None, None, 0, 0, 0, 0)
        zeros, nans, infs = total - int(torch.count_nonzero(flat)), 0, 0
        if not bool(torch.isfinite(flat.sum())):
            nans, infs = int(flat.isnan().sum()), int(flat.isinf().sum())
            flat = flat[flat.isfinite()]
            if not flat.numel():
                return ElementStats(None, None, None, None, zeros, nans, infs, total)
        low, high = torch.aminmax(flat)
        std, mean = torch.std_mean(flat, correction=0)
        figures = (float(low), float(high), float(mean), float(std))
        return ElementStats(*figures, zeros, nans, infs, total)


def norm_of(tensor: torch.Tensor) -> float | None:
    """The Euclidean norm of all elements; None for a tensor without elements to look at.

    >>> norm_of(torch.tensor([3.0, 4.0])), norm_of(torch.empty(2, device="meta"))
    (5.0, None)
    """
    with unseen():
        flat = elements(tensor)
        return None if flat is None else float(torch.linalg.vector_norm(flat))


def histogram_of(tensor: torch.Tensor, bins: int = 40) -> ElementCounts | None:
    """How the finite elements are distributed; None without any.

    >>> histogram_of(torch.tensor([0.0, 0.0, 1.0]), bins=2)
    ElementCounts(low=0.0, high=1.0, counts=(2, 1))
    """
    with unseen():
        flat = elements(tensor)
        if flat is None:
            return None
        flat = flat[flat.isfinite()]
        if not flat.numel():
            return None
        low, high = (float(end) for end in torch.aminmax(flat))
        if low == high:
            return ElementCounts(low, high, (flat.numel(),))
        counts = torch.histc(flat.float().cpu(), bins, low, high)
        return ElementCounts(low, high, tuple(int(number) for number in counts))


def maps_of(tensor: torch.Tensor) -> list[NDArray[np.float32]]:
    """A tensor as small pictures: the channels of the first image, or the first sequence as one.

    >>> [picture.shape for picture in maps_of(torch.ones(2, 3, 64, 64))]
    [(32, 32), (32, 32), (32, 32)]
    """
    with unseen():
        plain = None if tensor.is_nested else readable(tensor)
        if plain is None or not plain.numel() or plain.shape != tensor.shape:
            return []
        while plain.dim() > 3:
            plain = plain[0]
        if plain.dim() == 3 and tensor.dim() == 3:
            plain = plain[0][None]
        plain = plain.reshape(1, *plain.shape) if plain.dim() == 2 else plain
        plain = plain.reshape(1, 1, -1) if plain.dim() < 2 else plain
        height, width = plain.shape[1:]
        scale = min(1.0, MAP_SIZE / height, 2 * MAP_SIZE / width)
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        small = plain[:MAPS].float()
        small = torch.nan_to_num(torch.nn.functional.adaptive_avg_pool2d(small, size))
        return list(small.cpu().numpy())


def elements(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements in a row, as real floating-point numbers wide enough for their sums."""
    plain = readable(tensor)
    if plain is None:
        return None
    return plain.reshape(-1)


def readable(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor of real floating-point numbers with the same elements; None where they cannot be read."""
    if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        return None
    plain = tensor.detach()
    if plain.is_nested:
        plain = torch.cat([part.reshape(-1) for part in plain.unbind()])
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout == torch.sparse_coo:
        # an element that is stored in parts is their sum
        plain = plain.coalesce().values()
    elif plain.layout != torch.strided:
        plain = plain.values()
    if plain.is_complex():
        plain = plain.abs()
    if plain.dtype in (torch.float32, torch.float64):
        return plain
    try:
        return plain.double() if not plain.is_floating_point() else plain.float()
    # elements that torch stores and computes nothing with
    except NotImplementedError:
        return None


@context
def unseen(undo: Undo) -> None:
    """A stretch in which operations are no part of the user's run, and gradients are off."""
    undo.enter(without_gradients())
    undo.enter(modes_aside())
    undo.enter(functions_aside())
