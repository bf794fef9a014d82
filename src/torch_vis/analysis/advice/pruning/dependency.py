"""Which rows and columns of which parameters belong together: what must be cut at once for a run to stay possible.

Every index of every dimension of a parameter gets an id. The ids go along with the tensors through the recorded
operations: an addition ties those of both sides together, a convolution ties its input channels to its weight's second
dimension and gives on its first, a flattening repeats them, a concatenation puts them side by side. What ends up tied
is one *unit*: a channel with all the filters, biases, statistics and columns that it lives in. Where a rule cannot
follow (an operator without a rule, an output) the units are locked, and why is noted.

A view that splits channels leaves open at first which of its parts can be cut (`Grid`). What attention computes apart
from each other are heads: all rows of queries, keys and values, and all columns of the projection after them, that
belong to one head are one unit; where several heads of queries share one of keys, they all are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_vis.analysis.advice.pruning.dependency_rules import ARRANGES, rule_of
from torch_vis.analysis.advice.pruning.dimensions import Dimensions, Ids, RuleContext
from torch_vis.graph import Graph
from torch_vis.graph.graph import Node
from torch_vis.graph.schema import Phase
from torch_vis.graph.types import Bools

ALONE = "nothing was seen to go along with it"
# a parameter's name and one of its dimensions
ParameterDim = tuple[str, int]


@dataclass(frozen=True)
class DependencyGroup:
    """Units that live in the same dimensions of the same parameters: ``places`` are names and dimensions.

    ``units`` holds a number for each unit, and ``locked`` why none may be cut, empty where they may. ``mixed`` are
    the operators that take units together, as a normalisation does; without any, cutting is ``exact``.
    ``paths`` are the modules whose views and splits spell out sizes of it. Of attention heads, ``heads`` has how many
    each view made, most first: ``(4, 2)`` where four heads of queries share two of keys and values, ``numbers``
    the position of each unit among them, and ``attentions`` the modules that have them.
    """

    places: tuple[ParameterDim, ...]
    units: Ids
    locked: str
    mixed: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    attentions: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether removing a unit equals zeroing the columns that read it."""
        return not self.mixed

    @property
    def module(self) -> str:
        """The innermost module that all its parameters belong to."""
        shared = self.places[0][0].split(".")[:-1]
        for name, _ in self.places[1:]:
            same = [a == b for a, b in zip(shared, name.split(".")[:-1])]
            shared = shared[: same.index(False) if False in same else len(same)]
        return ".".join(shared)

    def named(self, units: Sequence[int]) -> str:
        """What to call some of its heads: ``encoder.layer.0.attention, heads 1, 3``."""
        wanted = {int(unit) for unit in units}
        chosen = sorted(number for number, unit in zip(self.numbers, self.units.tolist()) if unit in wanted)
        word = "head" if self.heads[0] == self.heads[-1] else "key/value head"
        text = f"{word}{'s' if len(chosen) > 1 else ''} {', '.join(map(str, chosen))}"
        more = len(self.attentions) - 1
        where = f"{self.attentions[0]} and {more} more" if more > 0 else self.module
        return f"{where}, {text}" if where else text


class Dependencies:
    """The units of a run's parameters and buffers, in groups that can be cut at once.

    ``shapes`` are those of parameters by name, where they are known.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> [group.places for group in Dependencies(tv.trace(model, torch.ones(1, 3)).graph).groups if not group.locked]
    [(('0.bias', 0), ('0.weight', 0), ('2.weight', 1))]
    """

    def __init__(self, graph: Graph, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        dimensions = self._dimensions = Dimensions(graph, shapes or {})
        used, _ = graph.ancestors([source for result in graph.outcomes for source in result.sources()])
        for node in np.flatnonzero(graph.node_phase == Phase.FORWARD).tolist():
            dimensions.is_used = bool(used[node])
            _follow(dimensions, graph.nodes[node])
        for result in graph.outcomes:
            for value, _ in result.sources():
                dimensions.lock(dimensions.dims(value), f"it is the run's {result.kind}")
        self.ids = dimensions.ids
        self.unit = _components(dimensions.count, dimensions.edges)
        """The unit that each id belongs to."""

    def _by_unit(self, labelled: Sequence[tuple[Ids, str]]) -> dict[int, set[str]]:
        labels: dict[int, set[str]] = {}
        for ids, label in labelled:
            for unit in np.unique(self.unit[ids]).tolist():
                labels.setdefault(unit, set()).add(label)
        return labels

    def _mask(self, chosen: Sequence[Ids]) -> Bools:
        mask = np.zeros(len(self.unit), dtype=bool)
        for ids in chosen:
            mask[ids] = True
        return mask

    def _locked_units(self, heads: Collection[int]) -> dict[int, str]:
        """The units that may not be cut, and the first reason for each."""
        reasons: dict[int, str] = {}
        for ids, why in self._dimensions.locks:
            for unit in np.unique(self.unit[ids]).tolist():
                reasons.setdefault(unit, why)
        for ids, why in self._dimensions.numbered:
            for unit in np.unique(self.unit[ids]).tolist():
                if unit not in heads:
                    reasons.setdefault(unit, why)
        return reasons

    @property
    def groups(self) -> list[DependencyGroup]:
        """The units by the parameters that hold them, and whether they may be cut."""
        facts = self._facts()
        reasons = self._locked_units(facts.heads)
        is_tied = self._mask([self.unit[ids] for ids, _ in self._dimensions.edges])
        places: dict[int, set[ParameterDim]] = {}
        for name, dims in self.ids.items():
            for number, ids in enumerate(dims):
                for unit in np.unique(self.unit[ids]).tolist():
                    places.setdefault(unit, set()).add((name, number))
        gathered: dict[tuple[tuple[ParameterDim, ...], str], list[int]] = {}
        for unit, where in places.items():
            why = reasons.get(unit, "") or ("" if is_tied[unit] else ALONE)
            gathered.setdefault((tuple(sorted(where)), why), []).append(unit)
        return [facts.group(where, np.array(units), why) for (where, why), units in gathered.items()]

    def _facts(self) -> _UnitFacts:
        dimensions = self._dimensions
        mixed = {op: np.zeros(len(self.unit), dtype=bool) for _, op in dimensions.mixed}
        for ids, op in dimensions.mixed:
            mixed[op][self.unit[ids]] = True
        head_counts: dict[int, set[int]] = {}
        numbers: dict[int, int] = {}
        for ids in dimensions.lines:
            count, (units, first) = len(np.unique(ids)), np.unique(self.unit[ids], return_index=True)
            for number, unit in enumerate(units[np.argsort(first)].tolist()):
                head_counts.setdefault(unit, set()).add(count)
                numbers.setdefault(unit, number)
        heads, paths = self._by_unit(dimensions.attended), self._by_unit(dimensions.sizes)
        return _UnitFacts(mixed, heads, paths, head_counts, numbers)

    def kept(self, cut: Ids, names: Collection[str] | None = None) -> dict[str, list[Bools]]:
        """For each parameter and buffer (or those named), along each dimension, what stays when these units go."""
        gone = self._mask([cut])
        chosen = self.ids if names is None else names
        return {name: [~gone[self.unit[ids]] for ids in self.ids[name]] for name in chosen}

    @cached_property
    def _is_fed(self) -> Bools:
        return self._mask(self._dimensions.fed)

    def reads(self, dimension: ParameterDim) -> bool:
        """Whether a parameter is summed over along a dimension: it reads units there and does not make them."""
        return bool(self._is_fed[self.ids[dimension[0]][dimension[1]]].any())

    def everywhere(self, cut: Ids) -> dict[str, list[Bools]]:
        """For each parameter and buffer, along each dimension, all that these units have there."""
        return {name: [~stays for stays in dims] for name, dims in self.kept(cut).items()}

    def fed(self, cut: Ids) -> dict[str, list[Bools]]:
        """For each parameter, along each dimension, the columns through which these units reach others."""
        gone = self._is_fed & np.isin(self.unit, cut)
        return {name: [gone[ids] for ids in dims] for name, dims in self.ids.items()}


def _follow(dimensions: Dimensions, node: Node) -> None:
    """Pass the ids of an operation's inputs on to its outputs, by its rule; without one, all of them are locked."""
    rule = rule_of(node)
    inputs = [value.index for value in node.inputs]
    if rule is None:
        for value in inputs:
            dimensions.lock(dimensions.dims(value), f"{node.name} has no rule")
        return
    plain = node.name in ARRANGES and len(inputs) == 1 and dimensions.is_plain(inputs[0])
    for output, entries in zip(node.outputs, rule(RuleContext(dimensions, node, inputs))):
        shape = output.shape
        fits = len(entries) == len(shape)
        kept = [
            entry if entry is None or len(entry) == length else None for entry, length in zip(entries, shape)
        ]
        dimensions.set_entries(output.index, kept if fits else [None] * len(shape), plain=plain)
        lost = [entry for entry, new in zip(entries, kept) if new is None] if fits else entries
        # what is empty is not used
        if 0 not in shape:
            dimensions.lock([dimensions.settled(entry) for entry in lost], f"{node.name} cannot be followed")


@dataclass(frozen=True)
class _UnitFacts:
    """What is known of each unit, by its number."""

    mixed: dict[str, Bools]
    heads: dict[int, set[str]]
    paths: dict[int, set[str]]
    head_counts: dict[int, set[int]]
    numbers: dict[int, int]

    def group(self, places: tuple[ParameterDim, ...], units: Ids, why: str) -> DependencyGroup:
        """The group of some units."""
        each = units.tolist()
        counts, attentions = set[int](), set[str]()
        if all(unit in self.heads for unit in each):
            counts = {count for unit in each for count in self.head_counts.get(unit, ())}
            attentions = {path for unit in each for path in self.heads[unit]}
        return DependencyGroup(
            places,
            units,
            why,
            mixed=tuple(op for op, hit in self.mixed.items() if hit[units].any()),
            paths=tuple(sorted({path for unit in each for path in self.paths.get(unit, ())})),
            heads=tuple(sorted(counts, reverse=True)),
            numbers=tuple(self.numbers.get(unit, position) for position, unit in enumerate(each)),
            attentions=tuple(sorted(attentions)),
        )


def _components(count: int, edges: Sequence[tuple[Ids, Ids]]) -> Ids:
    """The smallest id tied to each, directly or through others."""
    label = np.arange(count)
    if not edges:
        return label
    a, b = np.concatenate([a for a, _ in edges]), np.concatenate([b for _, b in edges])
    while True:
        lowest = np.minimum(label[a], label[b])
        if (label[a] == lowest).all() and (label[b] == lowest).all():
            return label
        np.minimum.at(label, a, lowest)
        np.minimum.at(label, b, lowest)
        while (label[label] != label).any():
            label = label[label]
