"""Replays two runs side by side and measures how far matched operations differ.

Where the outputs of two operations differ, their inputs are compared as well, tensor by tensor as they really read
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.numeric.paired_inputs import InputPair, PairedInputs
from torch_vis.analysis.compare.numeric.rounding_error import MEAN, RoundingError, is_norm
from torch_vis.analysis.compare.numeric.tensor_distance import (
    AGREES,
    SLACK,
    Distance,
    Norms,
    distance_of,
    has_numbers,
    integers_as_floats,
    is_comparable,
    largest_of,
    norms_of,
)
from torch_vis.analysis.gradients.tensor_stats import made_where, makes_numbers
from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.graph.flow import declared_slots
from torch_vis.graph.graph import Graph
from torch_vis.graph.types import Bools, Floats
from torch_vis.replay.replay import replay_context
from torch_vis.replay.stepper import Stepper

GraphAndTensors = tuple[Graph, KeptTensors | None]


class Suspect(NamedTuple):
    """An operation of ``a`` that differs from its counterpart and reads or is called differently; and its inputs."""

    node: int
    other: int
    pairs: Sequence[InputPair]


class Distances(NamedTuple):
    """How far two runs differ: for every operation of ``a``, for tensors from before the runs, and for results."""

    relative: Floats
    largest: Floats
    known: Bools
    rounding: Bools
    """Whether an operation and its counterpart both computed what is zero but for rounding."""
    ulps: Floats
    """By how many times the rounding of what it was computed from an operation differs."""
    amplification: Floats
    """By how much cancellation enlarges a difference of what an operation adds up."""
    inputs: dict[int, list[tuple[InputPair, Distance | None]]]
    """By operation that differs its inputs, with None where they cannot be compared."""
    outside: dict[int, Distance | None]
    """By value of ``a`` from before the run."""
    results: list[Distance | None]
    """Of each pair of results; None where they cannot be compared."""
    rounding_errors: list[float]
    """The relative difference that rounding may well come to, for each pair of results."""


class SideBySide:
    """Two runs replayed in step; ``distances`` says how far they differ.

    ``results`` are pairs of a value of ``a`` and one of ``b``: what is left of the runs, or was freed on the way. What
    one run computes before the other gets there is copied and kept until then, so that runs in the same order need
    no memory beyond their own.
    """

    def __init__(
        self,
        a: GraphAndTensors,
        b: GraphAndTensors,
        paired: PairedInputs,
        results: Sequence[tuple[int, int]],
    ) -> None:
        self.paired = paired
        self._a = _ReplayedRun(*a, [pair[0] for pair in results])
        self._b = _ReplayedRun(*b, [pair[1] for pair in results])
        self._inputs_to_read = self._plan()
        # the distance and the norm of the difference, by the value of a
        self._compared: dict[int, tuple[Distance, float]] = {}
        count = len(self._a.graph)
        self.distances = Distances(
            relative=np.zeros(count),
            largest=np.zeros(count),
            known=np.zeros(count, dtype=bool),
            rounding=np.zeros(count, dtype=bool),
            ulps=np.zeros(count),
            amplification=self._a.rounding.amplification,
            inputs={},
            outside={value: self._outside_distance(value, other) for value, other in paired.outside.items()},
            results=[],
            rounding_errors=[],
        )
        with replay_context({*self._a.run.plan.generators, *self._b.run.plan.generators}):
            self._run()
        self.distances.results.extend(self._result(*pair) for pair in results)
        self.distances.rounding_errors.extend(self._rounding_error(*pair) for pair in results)

    def ulps(self, value_a: int, value_b: int, a: torch.Tensor, b: torch.Tensor) -> float:
        """By how many times their rounding two tensors differ that stand for two values."""
        distance = self._judged(value_a, value_b, norms_of(a, b))
        error = self._rounding_error(value_a, value_b)
        if distance.rounding or not distance.relative:
            return 0.0
        return distance.relative / error if error else float("inf")

    def suspects(self) -> list[Suspect]:
        """The operations that differ, and whose counterparts read other tensors or are called differently."""
        paired = self.paired
        return [
            Suspect(node, paired.to_b[node], [pair for pair, _ in inputs])
            for node, inputs in self.distances.inputs.items()
            if paired.is_called_differently(node)
            or any(paired.may_differ(pair) for pair, row in inputs if row is None or row.relative)
        ]

    def _plan(self) -> dict[int, list[int]]:
        """The operations of ``b`` to look at, each with the inputs that are still to be compared."""
        plan: dict[int, list[int]] = {}
        for node in np.flatnonzero(makes_numbers(self._a.graph)).tolist():
            other = self.paired.to_b[node]
            if other < 0:
                continue
            pairs = [pair for pair in self.paired.of(node) if not pair.compared]
            plan[other] = [pair.b for pair in pairs]
            self._a.save_overwritten(node, [pair.a for pair in pairs])
            self._b.save_overwritten(other, plan[other])
        return plan

    def _run(self) -> None:
        ahead: dict[int, _Ahead] = {}
        steps_b = self._b.steps()
        reached = -1
        for node in self._a.steps():
            other = self.paired.to_b[node]
            if other < 0 or other not in self._inputs_to_read:
                continue
            while reached < other:
                reached = next(steps_b)
                if reached in self._inputs_to_read and reached != other:
                    ahead[reached] = self._copied(reached)
            self._compare(node, other, ahead.pop(other, None))
        for _ in steps_b:
            pass

    def _copied(self, other: int) -> _Ahead:
        outputs = {slot: (value, tensor.clone()) for slot, (value, tensor) in self._b.outputs(other).items()}
        inputs = {value: self._b.input(other, value).clone() for value in self._inputs_to_read[other]}
        return _Ahead(outputs, inputs)

    def _compare(self, node: int, other: int, ahead: _Ahead | None) -> None:
        outputs_b = self._b.outputs(other) if ahead is None else ahead.outputs
        distances: dict[int, Distance] = {}
        ulps = size = 0.0
        for slot, (value_a, tensor_a) in self._a.outputs(node).items():
            value_b, tensor_b = outputs_b.get(slot, (-1, None))
            if tensor_b is not None and is_comparable(tensor_a, tensor_b) and has_numbers(tensor_a):
                norms = norms_of(tensor_a, tensor_b)
                distances[slot] = self._judged(value_a, value_b, norms)
                error = self._rounding_error(value_a, value_b)
                ulps = max(ulps, distances[slot].relative / error if error else np.inf)
                self._compared[value_a] = distances[slot], norms.difference
                size = max(size, norms.a)
        if len(distances) > 1 and is_norm(self._a.graph, node):
            distances.pop(MEAN, None)
        worst = largest_of([row for row in distances.values() if not row.rounding] or distances.values())
        if worst is None:
            return
        all_distances = self.distances
        all_distances.known[node], all_distances.rounding[node] = True, worst.rounding
        all_distances.relative[node], all_distances.largest[node] = worst.relative, worst.largest
        all_distances.ulps[node] = ulps
        if worst.relative and not worst.rounding:
            all_distances.inputs[node] = [
                (pair, self._input_distance(node, other, pair, ahead, size)) for pair in self.paired.of(node)
            ]

    def _input_distance(
        self, node: int, other: int, pair: InputPair, ahead: _Ahead | None, size: float
    ) -> Distance | None:
        """How far two inputs differ; a small term that is added to something, relative to the sum."""
        if pair.compared:
            distance, norm = self._compared.get(pair.a, (None, 0.0))
        else:
            a = integers_as_floats(self._a.input(node, pair.a))
            b = integers_as_floats(self._b.input(other, pair.b) if ahead is None else ahead.inputs[pair.b])
            if not is_comparable(a, b):
                return None
            norms = norms_of(a, b) if has_numbers(a) else Norms(0.0, 0.0, 0.0, 0.0)
            distance, norm = self._judged(pair.a, pair.b, norms), norms.difference
        if distance is not None and distance.rounding and self._a.rounding.adds(node):
            share = norm / size if size else 0.0
            return distance._replace(relative=share, among=share)
        return distance

    def _judged(self, value_a: int, value_b: int, norms: Norms) -> Distance:
        """A distance, with what rounding explains of it: also where only one of the runs knows the summands."""
        rounding_a, rounding_b = self._a.rounding, self._b.rounding
        a, b = rounding_a.remainders.get(value_a), rounding_b.remainders.get(value_b)
        if a is not None and b is None and value_b not in rounding_b.sound and norms.b <= a.floor:
            b = a
        if b is not None and a is None and value_a not in rounding_a.sound and norms.a <= b.floor:
            a = b
        # what the other run confirms is no remainder
        if (a is None) != (b is None) and norms.difference < AGREES * max(norms.a, norms.b):
            a = b = None
        if a is not None and b is not None:
            return norms.distance()._replace(rounding=True, zero_in="AB")
        if a is not None:
            return norms.distance(by=max(norms.b, a.summands))._replace(zero_in="A")
        if b is not None:
            return norms.distance(by=max(norms.a, b.summands))._replace(zero_in="B")
        distance = norms.distance()
        lost_digits = rounding_a.has_lost_digits(value_a) or rounding_b.has_lost_digits(value_b)
        explained = distance.relative <= SLACK * self._rounding_error(value_a, value_b)
        return distance._replace(rounding=lost_digits and explained)

    def _rounding_error(self, value_a: int, value_b: int) -> float:
        """By how much of its norm rounding may have put one of two tensors off."""
        return max(self._a.rounding.relative_error(value_a), self._b.rounding.relative_error(value_b))

    def _outside_distance(self, value_a: int, value_b: int) -> Distance | None:
        a, b = self._a.run.replay.tensor(value_a), self._b.run.replay.tensor(value_b)
        return distance_of([integers_as_floats(a)], [integers_as_floats(b)])

    def _result(self, value_a: int, value_b: int) -> Distance | None:
        """How far two results differ, once both runs are over."""
        a, b = self._a.result(value_a), self._b.result(value_b)
        if not is_comparable(a, b) or not has_numbers(a):
            return None
        return self._judged(value_a, value_b, norms_of(a, b))


class _Ahead(NamedTuple):
    """What ``b`` computed and read in an operation that ``a`` has yet to come to."""

    outputs: dict[int, tuple[int, torch.Tensor]]
    inputs: dict[int, torch.Tensor]


class _ReplayedRun:
    """One of two runs: its rounding errors, and copies of what is wanted but gone by the end."""

    def __init__(self, graph: Graph, kept: KeptTensors | None, results: Sequence[int]) -> None:
        self.run = Stepper(graph, kept)
        self.graph = graph
        self._slots = declared_slots(graph)
        self.rounding = RoundingError(self.run, self._slots)
        left_at_the_end = {row.value.index for row in graph.outcomes}
        values = np.array(sorted(set(results) - left_at_the_end), dtype=np.int64)
        self._positions = made_where(graph, values)
        outside = values[graph.value_producer[values] < 0].tolist()
        self._copies = {value: self.run.replay.tensor(value).clone() for value in outside}
        # what an operation read where it then wrote
        self._overwritten: dict[int, dict[int, torch.Tensor]] = {}
        self._to_save: dict[int, list[int]] = {}

    def steps(self) -> Iterator[int]:
        """Run on, one operation at a time."""
        self._save(0)
        for node in self.run.steps():
            self.rounding.after(node)
            for value, position in self._positions.get(node, ()):
                self._copies[value] = self.run.outputs(node)[position].clone()
            yield node
            self._overwritten.pop(node, None)
            self._save(node + 1)

    def save_overwritten(self, node: int, values: Sequence[int]) -> None:
        """Keep those of some inputs that an operation writes to, for when it has run."""
        graph = self.graph
        span = slice(*graph.output_span(node))
        written = set(graph.value_storage[graph.out_value[span][graph.out_slot[span] < 0]].tolist())
        saved = [value for value in values if int(graph.value_storage[value]) in written] if written else []
        if saved:
            self._to_save[node] = saved

    def _save(self, node: int) -> None:
        """Copy what the next operation is about to write over."""
        values = self._to_save.get(node)
        if values:
            self._overwritten[node] = {value: self.run.replay.tensor(value).clone() for value in values}

    def input(self, node: int, value: int) -> torch.Tensor:
        """What an operation that has just run had read."""
        saved = self._overwritten.get(node, {}).get(value)
        return self.run.replay.tensor(value) if saved is None else saved

    def outputs(self, node: int) -> dict[int, tuple[int, torch.Tensor]]:
        """By slot what an operation that has just run computed: the value, and the tensor."""
        span = slice(*self.graph.output_span(node))
        values, slots = self.graph.out_value[span].tolist(), self._slots[span].tolist()
        return {slot: (value, self.run.replay.tensor(value)) for slot, value in zip(slots, values)}

    def result(self, value: int) -> torch.Tensor:
        """A result, when the run is over."""
        copy = self._copies.get(value)
        return integers_as_floats(self.run.replay.tensor(value) if copy is None else copy)
