"""What operations of ``b`` would make of what ``a`` had: how far two runs part by what they do, whatever came in.

``b`` runs once more with what ``a`` made in the place of all that both make. What is left to compute is what ``b``
alone does, from the numbers of ``a``: if that is the same but for rounding, the two only write it in another way; if it
is not, they part there, also where far larger differences come in from before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.numeric.paired_inputs import Pair, Readings
from torch_vis.analysis.compare.numeric.rounding_error import MEAN, is_norm
from torch_vis.analysis.compare.numeric.tensor_distance import Gap, counted, has_numbers, is_comparable
from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.errors import CheckFailed
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.replay.replay import quiet
from torch_vis.replay.stepper import Stepper

OF_ROUNDING = 16.0  # times the rounding of one step: what a few steps may well come to

Made = dict[int, torch.Tensor]
Rounds = Callable[[int, int, torch.Tensor, torch.Tensor], float]


class Own(NamedTuple):
    """Of an operation of ``a``, with all that came before as it was in ``a``: what its counterpart makes of it.

    Whether that is something else, by more than rounding, and the same of each pair of tensors that they read; None
    where it is not known.
    """

    differs: bool | None
    pairs: list[bool | None]


class Asked(NamedTuple):
    """An operation of ``a``, its counterpart, and what they read."""

    node: int
    other: int
    pairs: Sequence[Pair]


def by_itself(
    a: tuple[Graph, KeptTensors | None],
    b: tuple[Graph, KeptTensors | None],
    readings: Readings,
    given: dict[int, Gap | None],
    asked: Sequence[Asked],
    rounds: Rounds,
) -> dict[int, Own]:
    """Tell of some operations how far the runs part there by themselves.

    ``given`` says how far apart what both were given is; ``rounds`` by how many times its rounding two tensors differ,
    from their values and what they hold. Nothing is said of what follows where a number that Python saw was another.
    """
    led = _led_from(a[1], b[1], readings)
    asked = [row for row in asked if row.node < led]
    if not asked:
        return {}
    by_other = {row.other: row for row in asked}
    two = _Stand(Stepper(*b), readings, by_other)
    one = _Leader(Stepper(*a), readings, asked, {two.from_a[other] for other in two.wanted})
    found: dict[int, Own] = {}
    with quiet({*one.run.plan.generators, *two.run.plan.generators}):
        two.take_given(one.run, given)
        for other in range(max(by_other) + 1):
            row = by_other.get(other)
            node = two.from_a[other]
            made = one.made_by(node) if other in two.wanted else {}
            if row is not None:
                found[node] = _judged(two, row, one.read.pop(node), made, rounds)
            two.step(other, made)
    return found


def _led_from(a: KeptTensors | None, b: KeptTensors | None, readings: Readings) -> float:
    """The first operation of ``a`` that let a number out to Python that is not ``b``'s: it may lead the rest."""
    here, there = ({} if held is None else held.python_values for held in (a, b))
    parted = (node for node in sorted(here) if here[node] != there.get(readings.to_b[node]))
    return next(parted, float("inf"))


def _judged(two: _Stand, row: Asked, read: Made, made: Made, rounds: Rounds) -> Own:
    """Compare what is read and made in one place."""

    def differs(here: int, there: int, left: torch.Tensor) -> bool | None:
        right = two.tensor(there)
        if right is None:
            return None
        left, right = counted(left), counted(right)
        if not is_comparable(left, right):
            return None
        return has_numbers(left) and rounds(here, there, left, right) > OF_ROUNDING

    pairs = [differs(pair.here, pair.there, read[pair.here]) for pair in row.pairs]
    if not two.try_out(row.other):
        return Own(None, pairs)
    theirs = two.readings.sides[1].made(row.other)
    places = [
        (value, theirs[slot])
        for slot, value in two.readings.sides[0].made(row.node).items()
        if slot in theirs and value in made and not (slot == MEAN and is_norm(two.readings.a, row.node))
    ]
    known = [one for here, there in places if (one := differs(here, there, made[here])) is not None]
    return Own(any(known) if known else None, pairs)


class _Leader:
    """The first run, as far as it is needed; what it made too early is kept until it is asked for."""

    def __init__(self, run: Stepper, readings: Readings, asked: Sequence[Asked], wanted: set[int]) -> None:
        self.run, self.readings, self.wanted = run, readings, wanted
        self.steps = self._steps({row.node: [pair.here for pair in row.pairs] for row in asked})
        self.reached = -1
        self.read: dict[int, Made] = {}
        self.ahead: dict[int, Made] = {}

    def _steps(self, wanted: dict[int, list[int]]) -> Iterator[int]:
        """Run on, with what some operations read copied before they can write to it."""
        self._save(wanted, 0)
        for node in self.run.steps():
            yield node
            self._save(wanted, node + 1)

    def _save(self, wanted: dict[int, list[int]], node: int) -> None:
        if node in wanted:
            self.read[node] = {value: self.run.replay.tensor(value).clone() for value in wanted[node]}

    def made_by(self, node: int) -> Made:
        """What an operation made, by its values."""
        while self.reached < node:
            self.reached = next(self.steps)
            if self.reached < node and self.reached in self.wanted:
                made = self._made(self.reached)
                self.ahead[self.reached] = {value: tensor.clone() for value, tensor in made.items()}
        return self._made(node) if node == self.reached else self.ahead.pop(node)

    def _made(self, node: int) -> Made:
        made = self.readings.sides[0].made(node).values()
        known = self.readings.counterpart
        return {value: self.run.replay.tensor(value) for value in made if value in known}


class _Stand:
    """The second run on the numbers of the first.

    ``wanted`` are the operations of which the first run has to tell what they made; ``unknown`` the blocks of memory of
    which it is not known what they would hold.
    """

    def __init__(self, run: Stepper, readings: Readings, asked: Collection[int]) -> None:
        self.run, self.readings, self.graph = run, readings, run.graph
        self.from_a = [-1] * len(self.graph)
        for node, other in enumerate(readings.to_b):
            if other >= 0:
                self.from_a[other] = node
        self.unknown: set[int] = set()
        self.is_view: list[bool] = readings.sides[1].is_view
        self._barred = ((self.graph.node_flags & Flag.OPAQUE) != 0).tolist()
        self._random = ((self.graph.node_flags & Flag.RANDOM) != 0).tolist()
        self._storage: list[int] = self.graph.value_storage.tolist()
        self._made = [list(readings.sides[1].made(node).values()) for node in range(len(self.graph))]
        self._set = self._is_set()
        self._needed = self._is_needed(asked)
        self.wanted = set(asked) | {
            node
            for node, is_set in enumerate(self._set)
            if is_set and any(self._needed[self._storage[value]] for value in self._made[node])
        }

    def _is_set(self) -> list[bool]:
        """Of each operation whether ``a`` has all that it makes."""
        back = self.readings.back
        return [
            node >= 0 and not is_view and all(value in back for value in made)
            for node, is_view, made in zip(self.from_a, self.is_view, self._made)
        ]

    def _is_needed(self, asked: Collection[int]) -> list[bool]:
        """Of each block whether it is read by what ``b`` does alone, or where it was asked for."""
        graph = self.graph
        alone = ~(np.array(self._set, dtype=bool) | np.array(self.is_view, dtype=bool))
        alone[list(asked)] = True
        found = np.zeros(len(graph.storage_bytes), dtype=bool)
        found[graph.value_storage[graph.in_value[alone[graph.in_node]]]] = True
        needed: list[bool] = found.tolist()
        return needed

    def tensor(self, value: int) -> torch.Tensor | None:
        """A tensor of ``b``, as it would be; None where that is not known."""
        if self._storage[value] in self.unknown:
            return None
        try:
            return self.run.replay.tensor(value)
        except CheckFailed:  # sparse, and not made
            return None

    def take_given(self, one: Stepper, given: dict[int, Gap | None]) -> None:
        """Put what ``a`` was given in the place of what ``b`` was, where that is not the same."""
        replay = self.run.replay
        for here, there in self.readings.given.items():
            gap = given.get(here)
            if gap is not None and not gap.relative:
                continue
            storage = self._storage[there]
            if storage in replay.memory and not self.run.plan.written[storage]:
                replay.memory[storage] = copy_of(replay.memory[storage])  # it is the model's own
            self._put(there, one.replay.tensor(here))

    def step(self, node: int, made: Made) -> None:
        """Take what an operation makes from ``a``, or let it run if it is not there."""
        if self._set[node]:
            for value in self._made[node]:
                storage = self._storage[value]
                if self._needed[storage]:
                    if self.graph.storage_birth[storage] == node:
                        self.unknown.discard(storage)
                    self._put(value, made.get(self.readings.back[value]))
        elif not self.is_view[node] and not self.try_out(node):
            self.unknown.update(self._storage[value] for value in self._made[node])
        for storage in self.run.done.get(node, ()):
            self.run.replay.memory.pop(storage, None)
            self.run.replay.objects.pop(storage, None)

    def try_out(self, node: int) -> bool:
        """Run an operation on what is there, if all that it reads is known; says whether it ran."""
        span = slice(*self.graph.input_span(node))
        reads = self.graph.in_value[span][self.graph.in_kind[span] != Kind.SHAPE].tolist()
        if self._barred[node] or any(self._storage[value] in self.unknown for value in reads):
            return False
        if self._random[node] and self._set[node]:
            return False  # it would draw other numbers than it did in ``a``
        try:
            self.run.replay.run_node(node, {} if self._random[node] else None)
        except CheckFailed:  # on other numbers it may do something else
            return False
        return True

    def _put(self, value: int, tensor: torch.Tensor | None) -> None:
        row = self.graph.types[self.graph.value_type[value]]
        target = None
        if tensor is not None and row.layout == "strided" and tuple(tensor.shape) == tuple(row.shape):
            target = self.run.replay.tensor(value)
        if target is None or tensor is None or target.is_complex() != tensor.is_complex():
            self.unknown.add(self._storage[value])
            return
        try:
            target.copy_(tensor)
        except RuntimeError:  # quantized, nested, or elements that share memory
            self.unknown.add(self._storage[value])
