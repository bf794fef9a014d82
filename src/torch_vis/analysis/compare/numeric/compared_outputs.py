"""Which results of two runs were compared, which were not and why, and by how many roundings they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_vis.analysis.compare.numeric.python_outputs import APART, THE_SAME
from torch_vis.analysis.compare.numeric.tensor_distance import Gap
from torch_vis.analysis.compare.outputs import Given

if TYPE_CHECKING:
    from torch_vis.analysis.compare.numeric.report import Differences


def all_results(found: Differences) -> dict[str, tuple[str, Gap]]:
    """The results that were compared, by the name in A: the kind, and the gap."""
    compared = zip(found.matched.pairs, found.gaps.results, strict=True)
    tensors = {one.name: (one.kind, gap) for (one, _), gap in compared if gap is not None}
    empty = {one.name: (one.kind, THE_SAME) for one, two in found.matched.pairs if _is_empty(found, one, two)}
    return tensors | empty | {name: ("output", gap) for name, gap in found.plain.gaps.items()}


def _is_empty(found: Differences, one: Given, two: Given) -> bool:
    """Whether two results are of one type and have no elements; where nothing else is there, that is not the same."""
    here, there = found.a.graph.values[one.value].type, found.b.graph.values[two.value].type
    return found.any_compared and 0 in here.shape and (here.shape, here.dtype) == (there.shape, there.dtype)


def not_compared(found: Differences, *kinds: str) -> dict[str, list[str]]:
    """The results of some kinds that were not compared, by the reason."""
    compared = zip(found.matched.pairs, found.gaps.results, strict=True)
    rows = {
        "only in A": found.matched.only_a,
        "only in B": found.matched.only_b,
        APART: [one for (one, two), gap in compared if gap is None and not _is_empty(found, one, two)],
    }
    names = {reason: [one.name for one in left if one.kind in kinds] for reason, left in rows.items()}
    for reason, more in found.plain.left_out.items():
        names[reason] = [*names.get(reason, []), *more]
    return {reason: left for reason, left in names.items() if left}


def all_rounds(found: Differences) -> dict[str, float]:
    """By how many times the rounding of what it was computed from each result differs."""
    off_by = {one.name: off for (one, _), off in zip(found.matched.pairs, found.gaps.off_by, strict=True)}
    # of a number that is no tensor it is not known: that of the others at most
    off_by |= dict.fromkeys(found.plain.fractions, max(off_by.values(), default=0.0))
    return {name: _times(gap, off_by.get(name, 0.0)) for name, (_, gap) in found.results.items()}


def _times(gap: Gap, off: float) -> float:
    return gap.relative / off if off else float("inf") if gap.relative else 0.0
