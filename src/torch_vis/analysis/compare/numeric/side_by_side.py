"""Two runs repeated side by side: by how much what one operation made differs from what its counterpart made.

Where it does, what the two read is compared as well, tensor by tensor as they really read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.numeric.isolated_replay import Asked, Own, by_itself
from torch_vis.analysis.compare.numeric.paired_inputs import Pair, Readings
from torch_vis.analysis.compare.numeric.rounding_error import MEAN, SLACK, Noise, is_norm
from torch_vis.analysis.compare.numeric.tensor_distance import (
    Apart,
    Gap,
    apart,
    counted,
    gap_of,
    has_numbers,
    is_comparable,
    worst,
)
from torch_vis.analysis.gradients.tensor_stats import made_where, makes_numbers
from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.graph.graph import Graph
from torch_vis.graph.types import Bools, Floats
from torch_vis.replay.replay import quiet
from torch_vis.replay.stepper import Stepper

__all__ = ["Gap", "Gaps", "gap_of", "gaps"]

AGREES = 0.5  # of the larger norm: two tensors that are less apart hold something in common
NOTHING = Apart(0.0, 0.0, 0.0, 0.0)


class Gaps(NamedTuple):
    """For every operation of ``a`` with a counterpart, and for every result that both runs have."""

    relative: Floats
    largest: Floats
    known: Bools
    rounding: Bools  # both made what is zero but for rounding
    grows: Floats  # by how much cancelling enlarges a difference of what an operation sums up
    read: dict[
        int, list[tuple[Pair, Gap | None]]
    ]  # by operations that differ; None where it cannot be compared
    results: list[Gap | None]  # of each pair that was asked for; None where nothing can be compared
    off_by: list[float]  # the relative difference of each that rounding may well come to
    given: dict[int, Gap | None]  # of what was there before, by the value of ``a``
    own: dict[
        int, Own
    ]  # of operations that differ, and read or are called otherwise: what of it is their own


def gaps(
    a: tuple[Graph, KeptTensors | None],
    b: tuple[Graph, KeptTensors | None],
    readings: Readings,
    results: Sequence[tuple[int, int]],
) -> Gaps:
    """Repeat both runs in step; ``readings`` knows which operations are counterparts, and what they read.

    ``results`` are pairs of a value of ``a`` and one of ``b``: what is left of the runs, or was let go on the way. What
    one of the two has made before the other gets there is copied and kept until then, so that runs in the same order
    need no memory beyond their own.
    """
    one, two = _Side(*a, [pair[0] for pair in results]), _Side(*b, [pair[1] for pair in results])
    both = _Both(one, two, readings)
    given = {here: both.before(here, there) for here, there in readings.given.items()}
    with quiet({*one.plan.generators, *two.plan.generators}):
        both.run()
    after = [both.result(*pair) for pair in results]
    off_by = [both.off_by(*pair) for pair in results]
    own = by_itself(a, b, readings, given, both.asked(), both.rounds)
    return Gaps(
        both.relative,
        both.largest,
        both.known,
        both.rounding,
        one.noise.grows,
        both.read,
        after,
        off_by,
        given,
        own,
    )


class _Side:
    """One of two runs: what of it is rounding, and copies of what is wanted but gone by the end."""

    def __init__(self, graph: Graph, held: KeptTensors | None, wanted: Sequence[int]) -> None:
        self.run = Stepper(graph, held)
        self.plan, self.graph = self.run.plan, graph
        self.noise = Noise(self.run)
        kept = {row.value.index for row in graph.outcomes}
        values = np.array(sorted(set(wanted) - kept), dtype=np.int64)
        self.places = made_where(graph, values)
        outside = values[graph.value_producer[values] < 0].tolist()
        self.copies = {value: self.run.replay.tensor(value).clone() for value in outside}
        self.overwritten: dict[
            int, dict[int, torch.Tensor]
        ] = {}  # what an operation read where it then wrote
        self.to_save: dict[int, list[int]] = {}

    def steps(self) -> Iterator[int]:
        """Run on, one operation at a time."""
        self._save(0)
        for node in self.run.steps():
            self.noise.after(node)
            for value, place in self.places.get(node, ()):
                self.copies[value] = self.run.outputs(node)[place].clone()
            yield node
            self.overwritten.pop(node, None)
            self._save(node + 1)

    def _save(self, node: int) -> None:
        """Copy what the next operation is about to write over."""
        wanted = self.to_save.get(node)
        if wanted:
            self.overwritten[node] = {value: self.run.replay.tensor(value).clone() for value in wanted}

    def overwrites(self, node: int, values: Sequence[int]) -> list[int]:
        """Those of some values that an operation reads and writes to."""
        graph = self.graph
        begin, end = graph.output_span(node)
        made = graph.out_value[begin:end][graph.out_slot[begin:end] < 0]
        written = set(graph.value_storage[made].tolist())
        return [value for value in values if int(graph.value_storage[value]) in written] if written else []

    def read(self, node: int, value: int) -> torch.Tensor:
        """What an operation that has just run had read."""
        found = self.overwritten.get(node, {}).get(value)
        return self.run.replay.tensor(value) if found is None else found

    def made(self, node: int) -> dict[int, tuple[int, torch.Tensor]]:
        """What an operation that has just run made, by the place: the value, and the tensor."""
        begin, end = self.graph.output_span(node)
        values, slots = self.graph.out_value[begin:end].tolist(), self.graph.out_slot[begin:end].tolist()
        return {slot: (value, self.run.replay.tensor(value)) for slot, value in zip(slots, values)}

    def given(self, value: int) -> torch.Tensor:
        """What was wanted, when the run is over."""
        found = self.copies.get(value)
        return counted(self.run.replay.tensor(value) if found is None else found)


class _Ahead(NamedTuple):
    """What ``b`` made and read in an operation that ``a`` has yet to come to."""

    made: dict[int, tuple[int, torch.Tensor]]
    read: dict[int, torch.Tensor]


class _Both:
    """Two runs side by side, and what has been found so far."""

    def __init__(self, one: _Side, two: _Side, readings: Readings) -> None:
        self.one, self.two, self.readings = one, two, readings
        count = len(one.graph)
        self.relative, self.largest = np.zeros(count), np.zeros(count)
        self.known, self.rounding = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        self.read: dict[int, list[tuple[Pair, Gap | None]]] = {}
        self.compared: dict[
            int, tuple[Gap, float]
        ] = {}  # with its norm, by what counterparts of its maker made too
        self.wanted = self._wanted()

    def _wanted(self) -> dict[int, list[int]]:
        """The operations of ``b`` to be looked at, each with what it reads that is still to be compared."""
        found: dict[int, list[int]] = {}
        for node in np.flatnonzero(makes_numbers(self.one.graph)).tolist():
            other = self.readings.to_b[node]
            if other < 0:
                continue
            pairs = [pair for pair in self.readings.of(node) if not pair.compared]
            found[other] = [pair.there for pair in pairs]
            for side, place, values in (
                (self.one, node, [pair.here for pair in pairs]),
                (self.two, other, found[other]),
            ):
                saved = side.overwrites(place, values)
                if saved:
                    side.to_save[place] = saved
        return found

    def before(self, here: int, there: int) -> Gap | None:
        """How far apart two tensors are that the runs were given."""
        return _gap(counted(self.one.run.replay.tensor(here)), counted(self.two.run.replay.tensor(there)))

    def run(self) -> None:
        """Run both to their ends."""
        ahead: dict[int, _Ahead] = {}
        others = self.two.steps()
        reached = -1
        for node in self.one.steps():
            other = self.readings.to_b[node]
            if other < 0 or other not in self.wanted:
                continue
            while reached < other:
                reached = next(others)
                if reached in self.wanted and reached != other:
                    ahead[reached] = self._copied(reached)
            self._compare(node, other, ahead.pop(other, None))
        for _ in others:
            pass

    def _copied(self, other: int) -> _Ahead:
        made = {slot: (value, tensor.clone()) for slot, (value, tensor) in self.two.made(other).items()}
        return _Ahead(made, {value: self.two.read(other, value).clone() for value in self.wanted[other]})

    def _compare(self, node: int, other: int, ahead: _Ahead | None) -> None:
        theirs = self.two.made(other) if ahead is None else ahead.made
        found: dict[int, Gap] = {}
        size = 0.0
        for slot, (here, left) in self.one.made(node).items():
            there, right = theirs.get(slot, (-1, None))
            if right is not None and is_comparable(left, right) and has_numbers(left):
                both = apart(left, right)
                found[slot] = self._judged(here, there, both)
                self.compared[here] = found[slot], both.norm
                size = max(size, both.here)
        if len(found) > 1 and is_norm(self.one.graph, node):
            # the mean says nothing that what it is the mean of does not, and is often next to zero
            found.pop(MEAN, None)
        gap = worst([gap for gap in found.values() if not gap.rounding] or found.values())
        if gap is None:
            return
        self.known[node], self.rounding[node] = True, gap.rounding
        self.relative[node], self.largest[node] = gap.relative, gap.largest
        if gap.relative and not gap.rounding:
            self.read[node] = [
                (pair, self._read_gap(node, other, pair, ahead, size)) for pair in self.readings.of(node)
            ]

    def _read_gap(self, node: int, other: int, pair: Pair, ahead: _Ahead | None, size: float) -> Gap | None:
        """How far apart what two operations read is; a remainder that is added to something, by what came of it."""
        if pair.compared:
            gap, norm = self.compared.get(pair.here, (None, 0.0))
        else:
            left = counted(self.one.read(node, pair.here))
            right = self.two.read(other, pair.there) if ahead is None else ahead.read[pair.there]
            right = counted(right)
            if not is_comparable(left, right):
                return None
            found = apart(left, right) if has_numbers(left) else NOTHING
            gap, norm = self._judged(pair.here, pair.there, found), found.norm
        if gap is not None and gap.rounding and self.one.noise.adds(node):
            share = norm / size if size else 0.0
            return gap._replace(relative=share, among=share)
        return gap

    def _judged(self, here: int, there: int, found: Apart) -> Gap:
        """A gap, by what rounding can explain: also where only one of the runs tells what it was computed from."""
        one, two = self.one.noise, self.two.noise
        mine, theirs = one.values.get(here), two.values.get(there)
        if mine is not None and theirs is None and there not in two.sound and found.there <= mine.floor:
            theirs = mine
        if theirs is not None and mine is None and here not in one.sound and found.here <= theirs.floor:
            mine = theirs
        if (mine is None) != (theirs is None) and found.norm < AGREES * max(found.here, found.there):
            mine = theirs = None  # what the other run confirms is no remainder
        if mine is not None and theirs is not None:
            return found.gap()._replace(rounding=True, zero_in="AB")
        if mine is not None:
            return found.gap(by=max(found.there, mine.summands))._replace(zero_in="A")
        if theirs is not None:
            return found.gap(by=max(found.here, theirs.summands))._replace(zero_in="B")
        gap = found.gap()
        blurred = one.is_blurred(here) or two.is_blurred(there)
        return gap._replace(rounding=blurred and gap.relative <= SLACK * self.off_by(here, there))

    def off_by(self, here: int, there: int) -> float:
        """By how much of its norm rounding may have put one of two tensors off."""
        return max(self.one.noise.off_by(here), self.two.noise.off_by(there))

    def rounds(self, here: int, there: int, left: torch.Tensor, right: torch.Tensor) -> float:
        """By how many times their rounding two tensors differ that stand for two values."""
        gap, off = self._judged(here, there, apart(left, right)), self.off_by(here, there)
        if gap.rounding or not gap.relative:
            return 0.0
        return gap.relative / off if off else float("inf")

    def asked(self) -> list[Asked]:
        """The operations that differ, and whose counterparts read other tensors or are called otherwise."""
        return [
            Asked(node, self.readings.to_b[node], [pair for pair, _ in read])
            for node, read in self.read.items()
            if self.readings.is_called_otherwise(node)
            or any(self.readings.may_be_another(pair) for pair, gap in read if gap is None or gap.relative)
        ]

    def result(self, here: int, there: int) -> Gap | None:
        """How far apart two results are, once both runs are over."""
        left, right = self.one.given(here), self.two.given(there)
        if not is_comparable(left, right) or not has_numbers(left):
            return None
        return self._judged(here, there, apart(left, right))


def _gap(left: torch.Tensor, right: torch.Tensor) -> Gap | None:
    return gap_of([left], [right])
