"""Two runs repeated side by side: by how much what one operation made differs from what its counterpart made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torch_vis.graph.graph import Graph
from torch_vis.graph.template import short_name
from torch_vis.held import Held
from torch_vis.run.contents import made_where, makes_numbers
from torch_vis.run.noise import Noise
from torch_vis.run.observe import Watched
from torch_vis.run.replay import quiet

# What gives the mean and the spread of what it read after what it made of it.
NORMS = frozenset({
    "layer_norm", "group_norm", "batch_norm", "batch_norm_legit", "batch_norm_with_update", "fused_layer_norm",
    "cudnn_batch_norm", "miopen_batch_norm",
})  # fmt: skip


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
    results: list[Gap | None]  # of each pair that was asked for; None where nothing can be compared
    given: list[Gap | None]


def gaps(
    a: tuple[Graph, Held | None],
    b: tuple[Graph, Held | None],
    to_b: NDArray[np.int64],
    results: Sequence[tuple[int, int]],
    given: Sequence[tuple[int, int]] = (),
) -> Gaps:
    """Repeat both runs in step; ``to_b`` names the counterpart of each operation of ``a``, -1 for none.

    ``results`` are pairs of a value of ``a`` and one of ``b``: what is left of the runs, or was let go on the way;
    ``given`` are pairs of what was there before. What
    one of the two has made before the other gets there is copied and kept until then, so that runs in the same order
    need no memory beyond their own.
    """
    one, two = _Side(*a, [pair[0] for pair in results]), _Side(*b, [pair[1] for pair in results])
    before = [
        gap_of([_counted(one.run.replay.tensor(here))], [_counted(two.run.replay.tensor(there))])
        for here, there in given
    ]
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
            made = one.made(node), two.made(other) if found is None else found
            gap = worst_gap(*made, _counting(one, two, node, other))
            if gap is not None:
                known[node], relative[node], largest[node] = True, gap.relative, gap.largest
        for _ in others:
            pass
    rounding = one.noise.nodes.copy()
    rounding[rounding] = two.noise.nodes[to_b[rounding]] & (to_b[rounding] >= 0)
    after = [_result(one, two, *pair) for pair in results]
    return Gaps(relative, largest, known, rounding, after, before)


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

    def outputs(self, node: int) -> list[int]:
        """The values that an operation made."""
        return self.run.graph.out_value[slice(*self.run.graph.output_span(node))].tolist()

    def mean(self, node: int) -> int:
        """The place of the mean among what a normalisation made; -1 for other operations."""
        graph, made = self.run.graph, self.outputs(node)
        name = short_name(graph.calls[graph.node_call[node]].op).strip("_").removeprefix("native_")
        if name not in NORMS or not made:
            return -1
        sizes = [graph.types[graph.value_type[value]].numel for value in made]
        return sizes.index(max(sizes)) + 1  # state that it changes comes before what it made

    def given(self, value: int) -> torch.Tensor:
        """What was wanted, when the run is over."""
        found = self.copies.get(value)
        return _counted(self.run.replay.tensor(value) if found is None else found)


def _counting(one: _Side, two: _Side, node: int, other: int) -> list[bool]:
    """Of each output, whether it counts: the mean that a normalisation keeps says nothing that its input does not.

    Means are often next to zero, and what is zero but for rounding in both runs counts only where all of them are.
    """
    here, there = one.outputs(node), two.outputs(other)
    mean = one.mean(node)
    counted = [place != mean for place in range(len(here))]
    sound = [
        counts and not (a in one.noise.values and b in two.noise.values)
        for counts, a, b in zip(counted, here, there)
    ]
    return sound if any(sound) else counted


def _result(one: _Side, two: _Side, here: int, there: int) -> Gap | None:
    gap = gap_of([one.given(here)], [two.given(there)])
    rounding = here in one.noise.values and there in two.noise.values
    return None if gap is None else gap._replace(rounding=rounding)


def gap_of(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> Gap | None:
    """How far apart all of them together are, None where shapes differ or nothing is a plain floating-point tensor.

    >>> gap_of([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 4.5])])
    Gap(relative=0.1, largest=0.5, rounding=False)
    """
    found = _measured(a, b)
    if not found:
        return None
    apart, size = (sum(part**2 for part in parts) ** 0.5 for parts in list(zip(*found))[:2])
    return _gap(apart, size, max(one[2] for one in found))


def worst_gap(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], counts: Sequence[bool]) -> Gap | None:
    """How far apart the worst pair is of those that count; in one norm, a large one would hide a small one.

    >>> large, small = torch.tensor([1e6]), torch.tensor([1.0])
    >>> worst_gap([large, small], [large, 1.5 * small], [True, True])
    Gap(relative=0.5, largest=0.5, rounding=False)
    """
    found = [_gap(*one) for one in _measured(a, b, counts) or ()]
    return max(found, key=lambda gap: (gap.relative, gap.largest), default=None)


def _gap(apart: float, size: float, most: float) -> Gap:
    return Gap(apart / size if size else float("inf") if apart else 0.0, most)


def _measured(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], counts: Sequence[bool] | None = None
) -> list[tuple[float, float, float]] | None:
    """Of each pair the norm of the difference, that of the first, the largest difference; None for another shape."""
    if len(a) != len(b) or not all(map(_comparable, a, b)):
        return None
    return [
        _measure(left, right)
        for place, (left, right) in enumerate(zip(a, b))
        if _is_plain(left, right)
        and (left.is_floating_point() or left.is_complex())
        and left.numel()
        and (counts is None or counts[place])
    ]


def _measure(left: torch.Tensor, right: torch.Tensor) -> tuple[float, float, float]:
    left, right = _wide(left), _wide(right).to(left.device)
    difference = torch.where(_alike(left, right), 0.0, left - right)
    if bool(difference.isnan().any()):  # on one side only
        return float("inf"), 1.0, float("inf")
    size = float(torch.linalg.vector_norm(torch.nan_to_num(left, 0.0, 0.0, 0.0)))
    return float(torch.linalg.vector_norm(difference)), size, float(difference.abs().amax())


def _is_plain(left: torch.Tensor, right: torch.Tensor) -> bool:
    return all(not one.is_nested and one.layout == torch.strided for one in (left, right))


def _comparable(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Of the same shape and with numbers to look at; what is not plain is left out, and is no reason to give up."""
    if not _is_plain(left, right):
        return True
    return left.shape == right.shape and not any(one.is_quantized or one.is_meta for one in (left, right))


def _counted(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers as such that have a difference: a count of batches, say."""
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized)
    return tensor.double() if whole and tensor.layout == torch.strided and not tensor.is_nested else tensor


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.double() if real.dtype == torch.float64 else real.float()


def _alike(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (left.isnan() & right.isnan())
