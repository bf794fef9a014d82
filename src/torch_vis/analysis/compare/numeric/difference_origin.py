"""Where a difference originates: in an operation, in what it is given to read, or before it.

An operation that differs far more than its inputs do originates a difference. Where operations read different tensors
or are called differently, ``b`` is replayed once more, with the numbers of ``a`` in the place of all that both
compute. What is left to compute is what ``b`` alone does: if that comes out the same but for rounding, the two runs
only write it differently; if not, they part there, even where far larger differences come in from before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.numeric.paired_inputs import InputPair, PairedInputs
from torch_vis.analysis.compare.numeric.rounding_error import MEAN, is_norm
from torch_vis.analysis.compare.numeric.side_by_side import Distances, GraphAndTensors, SideBySide, Suspect
from torch_vis.analysis.compare.numeric.tensor_distance import (
    GROWTH,
    OF_ROUNDING,
    Distance,
    has_numbers,
    integers_as_floats,
    is_comparable,
)
from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.errors import CheckFailed
from torch_vis.graph.schema import RECORDED, Flag, Kind
from torch_vis.ops.names import common_name
from torch_vis.replay.replay import replay_context
from torch_vis.replay.stepper import Stepper

# A relative difference of what these return follows from the absolute difference of their arguments.
EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "softmax", "safe_softmax", "sigmoid"})

INFINITE = float("inf")

Tensors = dict[int, torch.Tensor]
Ulps = Callable[[int, int, torch.Tensor, torch.Tensor], float]


class InputError(NamedTuple):
    """What came into an operation that differs, and what of the difference it explains."""

    largest: float | None
    """The largest relative difference among its inputs; None where that is not known."""
    is_origin: bool
    """Whether the operation differs far more than its inputs do, or is called differently."""
    rewired: bool
    """Whether it would differ for reading other tensors alone."""
    others: list[InputPair]
    """The inputs where its counterpart reads another tensor, or another part of one, the most different first."""


class LocalDifference(NamedTuple):
    """How an operation differs from its counterpart if all that came before is as it was in ``a``.

    Whether the outputs differ by more than rounding, and each pair of inputs; None where that is not known.
    """

    outputs: bool | None
    inputs: list[bool | None]


class DifferenceOrigins:
    """Judges of each operation that differs whether the difference originates there."""

    def __init__(self, paired: PairedInputs, distances: Distances, local: dict[int, LocalDifference]) -> None:
        self.paired, self.distances, self.local = paired, distances, local

    def of(self, node: int) -> InputError:
        """Judge an operation that differs."""
        relative, amplification = self.distances.relative[node], self.distances.amplification[node]
        bound = float(relative) / (GROWTH * float(amplification))
        inputs = self.distances.inputs[node]
        local = self.local.get(node, LocalDifference(None, [None] * len(inputs)))
        others = [
            row for row, differs in zip(inputs, local.inputs, strict=True) if self._is_other(*row, differs)
        ]
        exponential = self._is_exponential(node)
        known = [distance for _, distance in inputs if distance is not None]
        largest = INFINITE if self._is_chosen(node) else _largest(known, exponential)
        is_origin = len(known) == len(inputs) and bound > largest
        rewired = False
        if not is_origin and others:
            rewired = bool(local.outputs)
            if local.outputs is None:
                same = [d for pair, d in inputs if not any(pair is other for other, _ in others)]
                certain = True in local.inputs or any(d is None and not pair.same for pair, d in others)
                rewired = certain or bound > _largest(same, exponential)
        elif not is_origin:
            is_origin = bool(local.outputs) and self.paired.is_called_differently(node)
        others.sort(key=lambda row: -_relative(row[1]))
        is_told = len(known) == len(inputs) or bound <= largest
        most = max((distance.relative for distance in known), default=0.0)
        return InputError(most if is_told else None, is_origin, rewired, [pair for pair, _ in others])

    def _is_chosen(self, node: int) -> bool:
        """Whether integers or truth values that differ are among what is read: these choose, and have no size."""
        graph = self.paired.a
        return any(
            distance is not None
            and distance.relative > 0
            and not graph.types[graph.value_type[pair.a]].dtype.startswith(("float", "bfloat", "complex"))
            for pair, distance in self.distances.inputs[node]
        )

    def _is_exponential(self, node: int) -> bool:
        graph = self.paired.a
        return common_name(graph.calls[graph.node_call[node]].op) in EXPONENTIALS

    def _is_other(self, pair: InputPair, distance: Distance | None, differs: bool | None) -> bool:
        """Whether two inputs are different tensors, and not only because what computed them differs.

        ``differs`` says whether they would differ if all that both runs compute were the same.
        """
        paired = self.paired
        if distance is not None and not distance.relative:
            return False
        if differs is not None:
            return differs and paired.may_differ(pair)
        root_a, root_b = paired.values_a.root[pair.a], paired.values_b.root[pair.b]
        if pair.same:
            is_larger = distance is not None and distance.relative > GROWTH * self._distance(root_a)
            return is_larger and not paired.are_equal_views(pair.a, pair.b)
        if paired.value_to_b[root_a] >= 0 and paired.value_to_a[root_b] >= 0:
            return True
        reach_a, reach_b = self._reach
        return _relative(distance) > GROWTH * max(reach_a[root_a], reach_b[root_b])

    def _distance(self, value: int) -> float:
        """How far a value of ``a`` is from its counterpart; 0 where it has none, or that is not known."""
        producer = self.paired.values_a.producer[value]
        if producer < 0:
            distance = self.distances.outside.get(int(self.paired.wiring.first_in_memory[0][value]))
            return 0.0 if distance is None else distance.relative
        known = self.distances.known[producer]
        return float(self.distances.relative[producer]) if known else 0.0

    @cached_property
    def _reach(self) -> tuple[list[float], list[float]]:
        """By value what difference reaches it: its own if it has a counterpart, else that of its producer's inputs."""
        paired = self.paired
        to_a = [value if other >= 0 else -1 for value, other in enumerate(paired.value_to_b)]
        both = []
        for values, counterparts in ((paired.values_a, to_a), (paired.values_b, paired.value_to_a)):
            reach = [0.0] * len(values.producer)
            for value, producer in enumerate(values.producer):
                if producer < 0 and counterparts[value] >= 0:
                    reach[value] = self._distance(counterparts[value])
            for node in range(len(values.graph)):
                inputs = max((reach[value] for value in values.inputs(node).values()), default=0.0)
                for value in values.outputs(node).values():
                    counterpart = counterparts[value]
                    reach[value] = self._distance(counterpart) if counterpart >= 0 else inputs
            both.append(reach)
        return both[0], both[1]


def _relative(distance: Distance | None) -> float:
    return float("inf") if distance is None else distance.relative


def _largest(distances: Sequence[Distance | None], exponential: bool) -> float:
    """The largest known distance, relative to what differs; of exponents also the absolute one, if larger."""
    known = [distance for distance in distances if distance is not None]
    relative = max((max(distance.relative, distance.among) for distance in known), default=0.0)
    return max([relative, *(distance.largest for distance in known)]) if exponential else relative


def local_differences(a: GraphAndTensors, b: GraphAndTensors, runs: SideBySide) -> dict[int, LocalDifference]:
    """Of the suspects of two runs, how far they differ if all that came before is as it was in ``a``.

    Nothing is said of what follows where a number that Python saw was another.
    """
    paired = runs.paired
    parted = _first_other_python_value(a[1], b[1], paired)
    suspects = {row.other: row for row in runs.suspects() if row.node < parted}
    if not suspects:
        return {}
    second = _SubstitutedRun(Stepper(*b), paired, suspects)
    first = _FirstRun(
        Stepper(*a), paired, list(suspects.values()), {second.to_a[other] for other in second.wanted}
    )
    differences: dict[int, LocalDifference] = {}
    with replay_context({*first.run.plan.generators, *second.run.plan.generators}):
        second.substitute_outside(first.run, runs.distances.outside)
        for other in range(max(suspects) + 1):
            node = second.to_a[other]
            outputs = first.outputs_of(node) if other in second.wanted else {}
            suspect = suspects.get(other)
            if suspect is not None:
                inputs = first.inputs.pop(node)
                differences[node] = _local_difference(second, suspect, inputs, outputs, runs.ulps)
            second.step(other, outputs)
    return differences


def _first_other_python_value(a: KeptTensors | None, b: KeptTensors | None, paired: PairedInputs) -> float:
    """The first operation of ``a`` that handed Python a number that is not ``b``'s: it may decide what follows."""
    values_a, values_b = ({} if kept is None else kept.python_values for kept in (a, b))
    parted = (node for node in sorted(values_a) if values_a[node] != values_b.get(paired.to_b[node]))
    return next(parted, float("inf"))


def _local_difference(
    second: _SubstitutedRun, suspect: Suspect, inputs: Tensors, outputs: Tensors, ulps: Ulps
) -> LocalDifference:
    """Compare what one suspect and its counterpart read and compute."""
    paired = second.paired

    def differs(value_a: int, value_b: int, a: torch.Tensor) -> bool | None:
        b = second.tensor(value_b)
        if b is None:
            return None
        a, b = integers_as_floats(a), integers_as_floats(b)
        if not is_comparable(a, b):
            return None
        return has_numbers(a) and ulps(value_a, value_b, a, b) > OF_ROUNDING

    pairs = [differs(pair.a, pair.b, inputs[pair.a]) for pair in suspect.pairs]
    if not second.try_out(suspect.other):
        return LocalDifference(None, pairs)
    outputs_b = paired.values_b.outputs(suspect.other)
    known = []
    for slot, value in paired.values_a.outputs(suspect.node).items():
        is_mean = slot == MEAN and is_norm(paired.a, suspect.node)
        if slot in outputs_b and value in outputs and not is_mean:
            known.append(differs(value, outputs_b[slot], outputs[value]))
    known = [row for row in known if row is not None]
    return LocalDifference(any(known) if known else None, pairs)


class _FirstRun:
    """The replay of ``a``, as far as it is needed; what it computes too early is kept until it is asked for."""

    def __init__(
        self, run: Stepper, paired: PairedInputs, suspects: Sequence[Suspect], wanted: set[int]
    ) -> None:
        self.run, self.paired, self.wanted = run, paired, wanted
        self.inputs: dict[int, Tensors] = {}
        """What the suspects read, copied before they can write to it."""
        self._steps = self._run({row.node: [pair.a for pair in row.pairs] for row in suspects})
        self._reached = -1
        self._ahead: dict[int, Tensors] = {}

    def outputs_of(self, node: int) -> Tensors:
        """What an operation computed, by value."""
        while self._reached < node:
            self._reached = next(self._steps)
            if self._reached < node and self._reached in self.wanted:
                outputs = self._outputs(self._reached)
                self._ahead[self._reached] = {value: tensor.clone() for value, tensor in outputs.items()}
        return self._outputs(node) if node == self._reached else self._ahead.pop(node)

    def _run(self, inputs: dict[int, list[int]]) -> Iterator[int]:
        self._save(inputs, 0)
        for node in self.run.steps():
            yield node
            self._save(inputs, node + 1)

    def _save(self, inputs: dict[int, list[int]], node: int) -> None:
        if node in inputs:
            self.inputs[node] = {value: self.run.replay.tensor(value).clone() for value in inputs[node]}

    def _outputs(self, node: int) -> Tensors:
        values = self.paired.values_a.outputs(node).values()
        return {
            value: self.run.replay.tensor(value) for value in values if self.paired.value_to_b[value] >= 0
        }


class _SubstitutedRun:
    """The replay of ``b`` on the numbers of ``a``.

    ``wanted`` are the operations of which the first run has to give the outputs; ``unknown`` the storages of which it
    is not known what they would hold.
    """

    def __init__(self, run: Stepper, paired: PairedInputs, suspects: Collection[int]) -> None:
        self.run, self.paired, self.graph = run, paired, run.graph
        self.to_a: list[int] = paired.wiring.to_a.tolist()
        self.unknown: set[int] = set()
        self._is_view = paired.values_b.is_view
        self._is_opaque = ((self.graph.node_flags & RECORDED) != 0).tolist()
        self._is_random = ((self.graph.node_flags & Flag.RANDOM) != 0).tolist()
        self._storage: list[int] = self.graph.value_storage.tolist()
        self._outputs = [list(paired.values_b.outputs(node).values()) for node in range(len(self.graph))]
        # whether a has all that an operation computes
        self._is_substituted = [
            node >= 0 and not is_view and all(paired.value_to_a[value] >= 0 for value in outputs)
            for node, is_view, outputs in zip(self.to_a, self._is_view, self._outputs)
        ]
        self._is_needed = self._needed_storages(suspects)
        self.wanted = set(suspects) | {
            node
            for node, is_substituted in enumerate(self._is_substituted)
            if is_substituted and any(self._is_needed[self._storage[value]] for value in self._outputs[node])
        }

    def tensor(self, value: int) -> torch.Tensor | None:
        """A tensor of ``b``, as it would be; None where that is not known."""
        if self._storage[value] in self.unknown:
            return None
        try:
            return self.run.replay.tensor(value)
        # sparse, and not computed
        except CheckFailed:
            return None

    def substitute_outside(self, first: Stepper, distances: dict[int, Distance | None]) -> None:
        """Put what ``a`` had before the run in the place of what ``b`` had, where that is not the same."""
        replay = self.run.replay
        for value_a, value_b in self.paired.outside.items():
            distance = distances.get(value_a)
            if distance is not None and not distance.relative:
                continue
            storage = self._storage[value_b]
            # the memory is the model's own
            if storage in replay.memory and not self.run.plan.written[storage]:
                replay.memory[storage] = copy_of(replay.memory[storage])
            self._put(value_b, first.replay.tensor(value_a))

    def step(self, node: int, outputs: Tensors) -> None:
        """Take what an operation computes from ``a``, or let it run if ``a`` does not have it."""
        if self._is_substituted[node]:
            for value in self._outputs[node]:
                storage = self._storage[value]
                if self._is_needed[storage]:
                    if self.graph.storage_birth[storage] == node:
                        self.unknown.discard(storage)
                    self._put(value, outputs.get(self.paired.value_to_a[value]))
        elif not self._is_view[node] and not self.try_out(node):
            self.unknown.update(self._storage[value] for value in self._outputs[node])
        for storage in self.run.done.get(node, ()):
            self.run.replay.memory.pop(storage, None)
            self.run.replay.objects.pop(storage, None)

    def try_out(self, node: int) -> bool:
        """Run an operation on what is there, if all that it reads is known; says whether it ran."""
        span = slice(*self.graph.input_span(node))
        inputs = self.graph.in_value[span][self.graph.in_kind[span] != Kind.SHAPE].tolist()
        if self._is_opaque[node] or any(self._storage[value] in self.unknown for value in inputs):
            return False
        # it would draw other numbers than it did in a
        if self._is_random[node] and self._is_substituted[node]:
            return False
        try:
            self.run.replay.run_node(node, {} if self._is_random[node] else None)
        # on other numbers it may do something else
        except CheckFailed:
            return False
        return True

    def _needed_storages(self, suspects: Collection[int]) -> list[bool]:
        """Of each storage whether it is read by what ``b`` does alone, or by a suspect."""
        graph = self.graph
        alone = ~(np.array(self._is_substituted, dtype=bool) | np.array(self._is_view, dtype=bool))
        alone[list(suspects)] = True
        needed = np.zeros(len(graph.storage_bytes), dtype=bool)
        needed[graph.value_storage[graph.in_value[alone[graph.in_node]]]] = True
        is_needed: list[bool] = needed.tolist()
        return is_needed

    def _put(self, value: int, tensor: torch.Tensor | None) -> None:
        type_ = self.graph.types[self.graph.value_type[value]]
        target = None
        if tensor is not None and type_.layout == "strided" and tuple(tensor.shape) == tuple(type_.shape):
            target = self.run.replay.tensor(value)
        if target is None or tensor is None or target.is_complex() != tensor.is_complex():
            self.unknown.add(self._storage[value])
            return
        try:
            target.copy_(tensor)
        # quantized, nested, or elements that share memory
        except RuntimeError:
            self.unknown.add(self._storage[value])
