"""What came in where two runs differ: how far apart what both really read is, and whether that is the same tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from torch_vis.analysis.compare.numeric.isolated_replay import Own
from torch_vis.analysis.compare.numeric.paired_inputs import Pair, Readings
from torch_vis.analysis.compare.numeric.side_by_side import Gaps
from torch_vis.analysis.compare.numeric.tensor_distance import Gap
from torch_vis.ops.names import common_name

GROWTH = 10.0  # times what came in: an operation of which the difference is news
# What a relative difference of these follows from is a difference of their arguments as it is.
EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "softmax", "safe_softmax", "sigmoid"})


class CameIn(NamedTuple):
    """Of an operation that differs: the largest relative difference among what it read, None where that is not known.

    ``news`` says that it is far more off than that, or called otherwise. ``others`` are the pairs in which its
    counterpart reads another tensor, or another part of one, the most different first; ``rewired`` says that it would
    differ for these alone. Both are told from what the counterpart makes of the numbers of ``a``; where that cannot be
    known, by how much larger a difference is than the others that came in.
    """

    largest: float | None
    news: bool
    rewired: bool
    others: list[Pair]


class Judge:
    """Tells of each operation what came in."""

    def __init__(self, readings: Readings, gaps: Gaps) -> None:
        self.readings, self.gaps = readings, gaps

    def of(self, node: int) -> CameIn:
        """Judge an operation that differs."""
        relative = float(self.gaps.relative[node])
        enough = relative / (GROWTH * float(self.gaps.grows[node]))
        read = self.gaps.read[node]
        own = self.gaps.own.get(node, Own(None, [None] * len(read)))
        others = [row for row, known in zip(read, own.pairs, strict=True) if self._is_another(*row, known)]
        exponential = self._is_exponential(node)
        known = [gap for _, gap in read if gap is not None]
        most = _most(known, exponential)
        news = len(known) == len(read) and enough > most
        rewired = False
        if not news and others:
            kept = [gap for pair, gap in read if not any(pair is other for other, _ in others)]
            certain = True in own.pairs or any(gap is None and not pair.same for pair, gap in others)
            rewired = certain or enough > _most(kept, exponential) if own.differs is None else own.differs
        elif not news:
            news = bool(own.differs) and self.readings.is_called_otherwise(node)
        others.sort(key=lambda row: -_relative(row[1]))
        told = len(known) == len(read) or enough <= most
        largest = max((gap.relative for gap in known), default=0.0)
        return CameIn(largest if told else None, news, rewired, [pair for pair, _ in others])

    def _is_exponential(self, node: int) -> bool:
        graph = self.readings.a
        return common_name(graph.calls[graph.node_call[node]].op) in EXPONENTIALS

    def _is_another(self, pair: Pair, gap: Gap | None, own: bool | None) -> bool:
        """Whether two tensors read in one place are not the same, and not only because what made them differs.

        ``own`` says whether they would be something else if all that both runs make were the same.
        """
        if gap is not None and not gap.relative:
            return False
        if own is not None:
            return own and self.readings.may_be_another(pair)
        one, two = self.readings.sides
        here, there = one.root[pair.here], two.root[pair.there]
        if pair.same:
            bound = self._own(here)
            alike = self.readings.is_seen_alike(pair.here, pair.there)
            return not alike and gap is not None and gap.relative > GROWTH * bound
        if here in self.readings.counterpart and there in self.readings.back:
            return True
        through_a, through_b = self._through
        return _relative(gap) > GROWTH * max(through_a[here], through_b[there])

    def _own(self, here: int) -> float:
        """How far a value of ``a`` is from its counterpart; 0 where it has none, or that is not known."""
        given = self.gaps.given.get(here)
        if given is not None:
            return given.relative
        maker = self.readings.sides[0].maker[here]
        return float(self.gaps.relative[maker]) if maker >= 0 and self.gaps.known[maker] else 0.0

    @cached_property
    def _through(self) -> tuple[list[float], list[float]]:
        """By value, what differences reach it: its own where it has a counterpart, else those that its maker read."""
        found: list[list[float]] = []
        for side, mine in zip(self.readings.sides, (None, self.readings.back)):
            reach = [0.0] * len(side.maker)
            for value, maker in enumerate(side.maker):
                here = value if mine is None else mine.get(value, -1)
                if maker < 0 and here >= 0:
                    reach[value] = self._own(here)
            for node in range(len(side.graph)):
                read = max((reach[value] for value in side.read(node).values()), default=0.0)
                for value in side.made(node).values():
                    here = value if mine is None else mine.get(value, -1)
                    has = here >= 0 and here in self.readings.counterpart
                    reach[value] = self._own(here) if has else read
            found.append(reach)
        return found[0], found[1]


def _relative(gap: Gap | None) -> float:
    return float("inf") if gap is None else gap.relative


def _most(gaps: Sequence[Gap | None], exponential: bool) -> float:
    """The largest difference that is known, relative to what differs; of exponents, if it is larger, as it is."""
    known = [gap for gap in gaps if gap is not None]
    found = max((max(gap.relative, gap.among) for gap in known), default=0.0)
    return max([found, *(gap.largest for gap in known)]) if exponential else found
