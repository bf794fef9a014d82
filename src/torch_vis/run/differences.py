"""Two runs repeated side by side: by how much what one operation made differs from what its counterpart made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torch_vis.graph.graph import Graph
from torch_vis.held import Held
from torch_vis.run.contents import made_where, makes_numbers
from torch_vis.run.noise import Noise
from torch_vis.run.observe import Watched
from torch_vis.run.replay import quiet


class Gap(NamedTuple):
    """How far two tensors are apart: relative to the norm of the first, and the largest single difference.

    Where ``rounding`` is true, both are zero but for rounding, and ``relative`` says nothing.
    """

    relative: float
    largest: float
    rounding: bool = False


class Gaps(NamedTuple):
    """For every operation of ``a`` with a counterpart, and for every result that both runs have."""

    relative: NDArray[np.float64]
    largest: NDArray[np.float64]
    known: NDArray[np.bool_]
    rounding: NDArray[np.bool_]  # both made what is zero but for rounding
    results: list[
        Gap | None
    ]  # of each pair of results that was asked for; None where nothing can be compared


def gaps(
    a: tuple[Graph, Held | None],
    b: tuple[Graph, Held | None],
    to_b: NDArray[np.int64],
    results: Sequence[tuple[int, int]],
) -> Gaps:
    """Repeat both runs in step; ``to_b`` names the counterpart of each operation of ``a``, -1 for none.

    ``results`` are pairs of a value of ``a`` and one of ``b``: what is left of the runs, or was let go on the way. What
    one of the two has made before the other gets there is copied and kept until then, so that runs in the same order
    need no memory beyond their own.
    """
    one, two = _Side(*a, [pair[0] for pair in results]), _Side(*b, [pair[1] for pair in results])
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
    rounding = one.noise.nodes.copy()
    rounding[rounding] = two.noise.nodes[to_b[rounding]] & (to_b[rounding] >= 0)
    return Gaps(relative, largest, known, rounding, [_result(one, two, *pair) for pair in results])


class _Side:
    """One of two runs: what of it is rounding, and copies of what is wanted but gone by the end."""

    def __init__(self, graph: Graph, held: Held | None, wanted: Sequence[int]) -> None:
        self.run = Watched(graph, held)
        self.plan, self.made = self.run.plan, self.run.made
        self.noise = Noise(self.run)
        kept = {row.value.index for row in graph.outcomes}
        values = np.array(sorted(set(wanted) - kept), dtype=np.int64)
        self.places = made_where(graph, values)
        outside = values[graph.value_producer[values] < 0].tolist()
        self.copies = {value: self.run.replay.tensor(value).clone() for value in outside}

    def steps(self) -> Iterator[int]:
        """Run on, one operation at a time."""
        for node in self.run.steps():
            self.noise.after(node)
            for value, place in self.places.get(node, ()):
                self.copies[value] = self.made(node)[place].clone()
            yield node

    def given(self, value: int) -> torch.Tensor:
        """What was wanted, when the run is over."""
        found = self.copies.get(value)
        return _counted(self.run.replay.tensor(value) if found is None else found)


def _result(one: _Side, two: _Side, here: int, there: int) -> Gap | None:
    gap = gap_of([one.given(here)], [two.given(there)])
    rounding = here in one.noise.values and there in two.noise.values
    return None if gap is None else gap._replace(rounding=rounding)


def gap_of(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> Gap | None:
    """How far apart, None where shapes differ or nothing is a plain floating-point tensor.

    >>> gap_of([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 4.5])])
    Gap(relative=0.1, largest=0.5, rounding=False)
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


def _counted(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers as such that have a difference: a count of batches, say."""
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized)
    return tensor.double() if whole and tensor.layout == torch.strided and not tensor.is_nested else tensor


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.double() if real.dtype == torch.float64 else real.float()


def _alike(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (left.isnan() & right.isnan())
