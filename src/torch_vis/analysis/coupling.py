"""Which rows and columns of which parameters belong together: what must be cut at once for a run to stay possible.

Every index of every dimension of a parameter gets a number. The numbers go along with the tensors through the recorded
operations: an addition ties those of both sides together, a convolution ties what comes in to its weight's second
dimension and gives on its first, a flattening repeats them, a concatenation puts them side by side. What ends up tied
is one *unit*: a channel with all the filters, biases, statistics and columns that it lives in. Where a rule cannot
follow (a view that splits channels into heads, an operator without a rule, an output) the units are locked, and why is
noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torch_vis.analysis.coupling_rules import Dims, Ids, Step, rule_of
from torch_vis.graph import Graph
from torch_vis.graph.rows import Node
from torch_vis.graph.schema import Phase, Role

ALONE = "nothing was seen to go along with it"


@dataclass(frozen=True)
class Group:
    """Units that live in the same dimensions of the same parameters: ``places`` are names and dimensions.

    ``units`` holds a number for each unit, and ``locked`` why none may be cut, empty where they may.
    """

    places: tuple[tuple[str, int], ...]
    units: Ids
    locked: str


class Coupling:
    """The units of a run's parameters and buffers.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> [group.places for group in Coupling(tv.trace(model, torch.ones(1, 3)).graph).groups if not group.locked]
    [(('0.bias', 0), ('0.weight', 0), ('2.weight', 1))]
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ids: dict[str, list[Ids]] = {}  # of each parameter and buffer, by dimension
        self._dims: dict[int, Dims] = {}
        self._edges: list[tuple[Ids, Ids]] = []
        self._locks: list[tuple[Ids, str]] = []
        self._count = 0
        self._number_parameters()
        for node in np.flatnonzero(graph.node_phase == Phase.FORWARD).tolist():
            self._follow(graph.nodes[node])
        for result in graph.outcomes:
            for value, _ in result.sources():
                self.lock(self.dims(value), f"it is the run's {result.kind}")
        self.unit = _components(self._count, self._edges)
        self._tied = np.zeros(self._count, dtype=bool)  # units that something was seen to use
        for one, _ in self._edges:
            self._tied[self.unit[one]] = True
        self.reasons = self._locked_units()

    def _number_parameters(self) -> None:
        graph = self.graph
        owned = np.isin(graph.value_role, [Role.PARAMETER, Role.BUFFER]) & (graph.value_producer < 0)
        for value in np.flatnonzero(owned).tolist():
            row = graph.values[value]
            if row.name and row.type.layout == "strided":
                if row.name not in self.ids:
                    self.ids[row.name] = [self._fresh(length) for length in row.type.shape]
                self._dims[value] = list(self.ids[row.name])

    def _fresh(self, length: int) -> Ids:
        made = np.arange(self._count, self._count + length)
        self._count += length
        return made

    # ---------------------------------------------------------------- what rules use

    def dims(self, value: int) -> Dims:
        """The numbers along a value's dimensions."""
        found = self._dims.get(value)
        return [None] * len(self.graph.values[value].shape) if found is None else found

    def tie(self, one: Ids | None, two: Ids | None, why: str) -> Ids | None:
        """Two dimensions that go together, index by index; one that is not followed locks the other."""
        if one is None or two is None:
            self.lock([one, two], why)
            return None
        if len(one) != len(two):
            self.lock([one, two], why)
            return None
        self._edges.append((one, two))
        return one

    def lock(self, dims: Sequence[Ids | None], why: str) -> None:
        """Nothing of these may be cut."""
        self._locks += [(ids, why) for ids in dims if ids is not None]

    def _follow(self, node: Node) -> None:
        rule = rule_of(node)
        inputs = [value.index for value in node.inputs]
        if rule is None:
            for number in inputs:
                self.lock(self.dims(number), f"{node.name} has no rule")
            return
        for value, dims in zip(node.outputs, rule(Step(self, node, inputs))):
            shape = value.shape
            kept = dims if len(dims) == len(shape) else [None] * len(shape)
            self._dims[value.index] = [
                ids if ids is not None and len(ids) == length else None for ids, length in zip(kept, shape)
            ]

    # ---------------------------------------------------------------- what came of it

    def _locked_units(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for ids, why in self._locks:
            for unit in np.unique(self.unit[ids]).tolist():
                found.setdefault(unit, why)
        return found

    @property
    def groups(self) -> list[Group]:
        """The units by where they live, those that may be cut and those that may not."""
        places: dict[int, set[tuple[str, int]]] = {}
        for name, dims in self.ids.items():
            for number, ids in enumerate(dims):
                for unit in np.unique(self.unit[ids]).tolist():
                    places.setdefault(unit, set()).add((name, number))
        gathered: dict[tuple[tuple[tuple[str, int], ...], str], list[int]] = {}
        for unit, where in places.items():
            why = self.reasons.get(unit, "") or ("" if self._tied[unit] else ALONE)
            gathered.setdefault((tuple(sorted(where)), why), []).append(unit)
        return [Group(where, np.array(units), why) for (where, why), units in gathered.items()]

    def kept(self, cut: Ids) -> dict[str, list[NDArray[np.bool_]]]:
        """For each parameter and buffer, along each dimension, what stays when these units go."""
        gone = np.zeros(self._count, dtype=bool)
        gone[cut] = True
        return {name: [~gone[self.unit[ids]] for ids in dims] for name, dims in self.ids.items()}


def _components(count: int, edges: Sequence[tuple[Ids, Ids]]) -> Ids:
    """The smallest number tied to each, directly or through others."""
    label = np.arange(count)
    if not edges:
        return label
    one, two = np.concatenate([a for a, _ in edges]), np.concatenate([b for _, b in edges])
    while True:
        lowest = np.minimum(label[one], label[two])
        if (label[one] == lowest).all() and (label[two] == lowest).all():
            return label
        np.minimum.at(label, one, lowest)
        np.minimum.at(label, two, lowest)
        while (label[label] != label).any():
            label = label[label]
