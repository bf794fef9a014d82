"""How far apart two tensors are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch


class Gap(NamedTuple):
    """How far two tensors are apart: relative to the norm of the first, and the largest single difference.

    Where ``rounding`` is true, the difference is no more than what rounding left of sums that cancel. ``zero_in``
    names those of the two that are nothing else ("A", "B" or "AB"); of "AB" ``relative`` says nothing, and of
    "A" or "B" it is measured by what that one is the sum of, or by the other where that is larger.
    """

    relative: float
    largest: float
    rounding: bool = False
    zero_in: str = ""
    among: float = 0.0
    """The relative difference of those elements alone that differ."""


class Apart(NamedTuple):
    """The norm of a difference, those of the two tensors, and the largest difference of two elements.

    ``differing`` is the norm of those elements of the first that differ.
    """

    norm: float
    here: float
    there: float
    largest: float
    differing: float = 0.0

    def gap(self, by: float | None = None) -> Gap:
        """Relative to the norm of the first, or to another norm."""
        size = self.here if by is None else by
        return Gap(_ratio(self.norm, size), self.largest, among=_ratio(self.norm, self.differing))


def gap_of(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> Gap | None:
    """How far apart all of them together are, None where shapes differ or nothing is a plain floating-point tensor.

    >>> gap_of([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 4.5])])
    Gap(relative=0.1, largest=0.5, rounding=False, zero_in='', among=0.125)
    """
    plain = [pair for pair in zip(a, b) if all(map(_is_plain, pair))]
    if len(a) != len(b) or not all(is_comparable(*pair) for pair in plain):
        return None
    found = [apart(*pair) for pair in plain if has_numbers(pair[0])]
    if not found:
        return None
    norm, here, differing = (
        sum(part**2 for part in parts) ** 0.5
        for parts in zip(*((one.norm, one.here, one.differing) for one in found))
    )
    return Apart(norm, here, 0.0, max(one.largest for one in found), differing).gap()


def _ratio(norm: float, size: float) -> float:
    return norm / size if size else float("inf") if norm else 0.0


def worst(gaps: Iterable[Gap]) -> Gap | None:
    """The largest of some gaps; in one norm, a large tensor would hide a small one.

    >>> worst([Gap(0.1, 3.0), Gap(0.5, 0.5)]).relative
    0.5
    """
    return max(gaps, key=lambda gap: (gap.relative, gap.largest), default=None)


def apart(left: torch.Tensor, right: torch.Tensor) -> Apart:
    """Measure two tensors that are comparable; where one alone is not a number, they are infinitely far apart."""
    left, right = _wide(left), _wide(right).to(left.device)
    difference = left - right
    if not torch.isfinite(torch.linalg.vector_norm(difference)):
        alike = (left == right) | (left.isnan() & right.isnan())  # infinities of one sign as well
        difference = torch.where(alike, 0.0, difference)
        left, right = (torch.nan_to_num(one, 0.0, 0.0, 0.0) for one in (left, right))
        if bool(difference.isnan().any()):  # on one side only
            return Apart(float("inf"), 1.0, 1.0, float("inf"), 1.0)
    norm, here = _norm(difference), _norm(left)
    if not norm:
        return Apart(0.0, here, here, 0.0)
    differing = _norm(torch.where(difference == 0, 0.0, left))
    return Apart(norm, here, _norm(right), float(difference.abs().amax()), differing)


def _norm(tensor: torch.Tensor) -> float:
    found = float(torch.linalg.vector_norm(tensor))
    return found if found < float("inf") else float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def is_comparable(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether both are plain, of the same shape, and hold numbers that can be looked at."""
    if not (_is_plain(left) and _is_plain(right)):
        return False
    return left.shape == right.shape and not any(one.is_quantized or one.is_meta for one in (left, right))


def has_numbers(tensor: torch.Tensor) -> bool:
    """Whether it has elements, and these are floating-point or complex."""
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 0


def counted(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers as such that have a difference: a count of batches, say."""
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized)
    return tensor.double() if whole and _is_plain(tensor) else tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    return not tensor.is_nested and tensor.layout == torch.strided


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.double() if real.dtype == torch.float64 else real.float()
