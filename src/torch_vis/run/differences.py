"""Two runs repeated side by side: by how much what one operation made differs from what its counterpart made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torch_vis.graph.graph import Graph
from torch_vis.held import Held
from torch_vis.run.contents import makes_numbers
from torch_vis.run.observe import Watched
from torch_vis.run.replay import quiet


class Gap(NamedTuple):
    """How far two tensors are apart: relative to the norm of the first, and the largest single difference."""

    relative: float
    largest: float


class Gaps(NamedTuple):
    """For every operation of ``a`` with a counterpart, and for every result that both runs have by name."""

    relative: NDArray[np.float64]
    largest: NDArray[np.float64]
    known: NDArray[np.bool_]
    results: dict[str, tuple[str, Gap]]  # name → kind ("output", "gradient", "state"), gap


def gaps(a: tuple[Graph, Held | None], b: tuple[Graph, Held | None], to_b: NDArray[np.int64]) -> Gaps:
    """Repeat both runs in step; ``to_b`` names the counterpart of each operation of ``a``, -1 for none.

    What one of the two has made before the other gets there is copied and kept until then, so that runs in the same
    order need no memory beyond their own.
    """
    one, two = Watched(*a), Watched(*b)
    count = len(a[0])
    relative, largest = np.zeros(count), np.zeros(count)
    known = np.zeros(count, dtype=bool)
    numbers = makes_numbers(a[0])
    wanted = np.zeros(len(b[0]), dtype=bool)
    wanted[to_b[(to_b >= 0) & numbers]] = True
    ahead: dict[int, list[torch.Tensor]] = {}
    with quiet({*one.plan.generators, *two.plan.generators}):
        others = two.steps()
        reached = -1
        for node in one.steps():
            other = int(to_b[node])
            if other < 0 or not wanted[other]:
                continue
            while reached < other:
                reached = next(others)
                if wanted[reached] and reached != other:
                    ahead[reached] = [tensor.clone() for tensor in two.made(reached)]
            found = ahead.pop(other, None)
            gap = gap_of(one.made(node), two.made(other) if found is None else found)
            if gap is not None:
                known[node], relative[node], largest[node] = True, gap.relative, gap.largest
        for _ in others:
            pass
        results = _results(one, two)
    return Gaps(relative, largest, known, results)


def gap_of(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> Gap | None:
    """How far apart, None where shapes differ or nothing is a plain floating-point tensor.

    >>> gap_of([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 4.5])])
    Gap(relative=0.1, largest=0.5)
    """
    apart, size, most, seen = 0.0, 0.0, 0.0, False
    if len(a) != len(b):
        return None
    for left, right in zip(a, b, strict=True):
        if left.is_nested or right.is_nested or left.layout != torch.strided or right.layout != torch.strided:
            continue
        if (
            left.shape != right.shape
            or left.is_quantized
            or right.is_quantized
            or left.is_meta
            or right.is_meta
        ):
            return None
        if not (left.is_floating_point() or left.is_complex()) or not left.numel():
            continue
        seen = True
        left, right = _wide(left), _wide(right).to(left.device)
        difference = torch.where(_alike(left, right), 0.0, left - right)
        apart += float(torch.linalg.vector_norm(difference)) ** 2
        size += float(torch.linalg.vector_norm(torch.nan_to_num(left, 0.0, 0.0, 0.0))) ** 2
        if bool(difference.isnan().any()):  # on one side only
            return Gap(float("inf"), float("inf"))
        most = max(most, float(difference.abs().amax()))
    if not seen:
        return None
    return Gap((apart / size) ** 0.5 if size else float("inf") if apart else 0.0, most)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.double() if real.dtype == torch.float64 else real.float()


def _alike(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (left.isnan() & right.isnan())


def _results(one: Watched, two: Watched) -> dict[str, tuple[str, Gap]]:
    """The results that both runs have under the same name."""
    theirs = {(row.kind, row.name): row for row in two.graph.outcomes}
    found = {}
    for row in one.graph.outcomes:
        other = theirs.get((row.kind, row.name))
        if other is not None:
            pair = one.replay.tensor(row.value.index), two.replay.tensor(other.value.index)
            gap = gap_of([pair[0]], [pair[1]])
            if gap is not None:
                found[row.name] = (row.kind, gap)
    return found
