"""How far two tensors differ, and from which distance on that means something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

# The thresholds of the whole numerical comparison, tuned so that the cases of tests/analysis/compare/numeric come out
# right: training and inference in float32, bfloat16 and float64, eager and captured.

# A sum is zero but for rounding if it is no larger than this many times the rounding error expected of it. Larger:
# small gradients that are real pass for rounding. Smaller: the gradient of a bias before a batch norm is reported.
SLACK = 4.0
# A sum cancels if its summands are this many times larger than it is; its relative rounding error grows by that much.
# Larger: a loss of digits goes unnoticed, and rounding is reported as a difference. Smaller: ordinary sums count.
CANCELS = 8.0
# A value has lost its digits if earlier cancellation put it off by this many times the rounding of its dtype. Larger:
# noise is compared as if it were exact. Smaller: differences of single operations are excused as rounding.
BLURS = 256.0
# The rounding of what sums are accumulated in: float32 or better. Larger: small sums of many terms pass for rounding.
# Smaller: the order of summation, which differs between kernels, is reported.
ACCUMULATES = 2.0**-23
# Two tensors confirm one another if they are less apart than this share of the larger norm: neither is rounding alone.
# Larger: noise of equal size counts as agreement. Smaller: a gradient that both runs computed counts as noise.
AGREES = 0.5
# Distances up to this many roundings of a single step are rounding: what a few steps may well come to. Larger: a
# changed eps or an approximated activation passes. Smaller: another order of summation counts as a change.
OF_ROUNDING = 16.0
# An operation originates a difference if it is this many times larger than what came in. Larger: origins are missed.
# Smaller: operations that only amplify an error are blamed for it.
GROWTH = 10.0


class Distance(NamedTuple):
    """How far two tensors differ: relative to the norm of the first, and the largest single difference.

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


NO_DISTANCE = Distance(0.0, 0.0)


class Norms(NamedTuple):
    """The norms of a difference and of the two tensors, and the largest difference of two elements."""

    difference: float
    a: float
    b: float
    largest: float
    differing: float = 0.0
    """The norm of those elements of the first that differ."""

    def distance(self, by: float | None = None) -> Distance:
        """Relative to the norm of the first, or to another norm."""
        size = self.a if by is None else by
        return Distance(
            _ratio(self.difference, size), self.largest, among=_ratio(self.difference, self.differing)
        )


def distance_of(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> Distance | None:
    """How far all of them together differ, None where shapes differ or nothing is a plain floating-point tensor.

    >>> distance_of([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 4.5])])
    Distance(relative=0.1, largest=0.5, rounding=False, zero_in='', among=0.125)
    """
    plain = [pair for pair in zip(a, b) if all(map(_is_plain, pair))]
    if len(a) != len(b) or not all(is_comparable(*pair) for pair in plain):
        return None
    norms = [norms_of(*pair) for pair in plain if has_numbers(pair[0])]
    if not norms:
        return None
    difference, size, differing = (
        sum(part**2 for part in parts) ** 0.5
        for parts in zip(*((row.difference, row.a, row.differing) for row in norms))
    )
    return Norms(difference, size, 0.0, max(row.largest for row in norms), differing).distance()


def _ratio(norm: float, size: float) -> float:
    return norm / size if size else float("inf") if norm else 0.0


def largest_of(distances: Iterable[Distance]) -> Distance | None:
    """The largest of some distances; in one norm, a large tensor would hide a small one.

    >>> largest_of([Distance(0.1, 3.0), Distance(0.5, 0.5)]).relative
    0.5
    """
    return max(distances, key=lambda row: (row.relative, row.largest), default=None)


def norms_of(a: torch.Tensor, b: torch.Tensor) -> Norms:
    """Measure two tensors that are comparable; where only one is NaN, the distance is infinite."""
    a, b = _wide(a), _wide(b).to(a.device)
    difference = a - b
    if not torch.isfinite(torch.linalg.vector_norm(difference)):
        # infinities of one sign are alike as well
        alike = (a == b) | (a.isnan() & b.isnan())
        difference = torch.where(alike, 0.0, difference)
        a, b = (torch.nan_to_num(tensor, 0.0, 0.0, 0.0) for tensor in (a, b))
        # NaN on one side only
        if bool(difference.isnan().any()):
            return Norms(float("inf"), 1.0, 1.0, float("inf"), 1.0)
    norm, norm_a = _norm(difference), _norm(a)
    if not norm:
        return Norms(0.0, norm_a, norm_a, 0.0)
    differing = _norm(torch.where(difference == 0, 0.0, a))
    return Norms(norm, norm_a, _norm(b), float(difference.abs().amax()), differing)


def _norm(tensor: torch.Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor))
    return norm if norm < float("inf") else float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def is_comparable(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both are plain, of the same shape, and hold numbers that can be read."""
    if not (_is_plain(a) and _is_plain(b)):
        return False
    return a.shape == b.shape and not any(tensor.is_quantized or tensor.is_meta for tensor in (a, b))


def has_numbers(tensor: torch.Tensor) -> bool:
    """Whether it has elements, and these are floating-point or complex."""
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() > 0


def integers_as_floats(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, integers as floating-point numbers, which have a distance: a count of batches, say."""
    integers = not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized)
    return tensor.double() if integers and _is_plain(tensor) else tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    return not tensor.is_nested and tensor.layout == torch.strided


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.double() if real.dtype == torch.float64 else real.float()
