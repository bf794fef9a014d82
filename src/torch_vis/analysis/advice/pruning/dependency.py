"""Which rows and columns of which parameters belong together: what must be cut at once for a run to stay possible.

Every index of every dimension of a parameter gets a number. The numbers go along with the tensors through the recorded
operations: an addition ties those of both sides together, a convolution ties what comes in to its weight's second
dimension and gives on its first, a flattening repeats them, a concatenation puts them side by side. What ends up tied
is one *unit*: a channel with all the filters, biases, statistics and columns that it lives in. Where a rule cannot
follow (an operator without a rule, an output) the units are locked, and why is noted.

A view that splits channels leaves open at first which of its parts can be cut (`Grid`). What attention computes apart
from each other are heads: all rows of queries, keys and values, and all columns of the projection after them, that
belong to one head are one unit; where several heads of queries share one of keys, they all are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_vis.analysis.advice.pruning.dependency_rules import PLAIN, rule_of
from torch_vis.analysis.advice.pruning.dependency_step import Dims, Entry, Grid, Ids, Part, Step
from torch_vis.graph import Graph
from torch_vis.graph.graph import Node
from torch_vis.graph.schema import Phase, Role
from torch_vis.graph.types import Bools

ALONE = "nothing was seen to go along with it"
Place = tuple[str, int]


@dataclass(frozen=True)
class Group:
    """Units that live in the same dimensions of the same parameters: ``places`` are names and dimensions.

    ``units`` holds a number for each unit, and ``locked`` why none may be cut, empty where they may. ``mixed`` are
    the operators that take units together, as a normalisation does; without any, cutting is ``exact``.
    ``paths`` are the modules whose views and splits spell out sizes of it. Of attention heads, ``heads`` has how many
    each view made, most first: ``(4, 2)`` where four heads of queries share two of keys and values, ``numbers``
    the place of each unit among them, and ``attentions`` the modules that have them.
    """

    places: tuple[Place, ...]
    units: Ids
    locked: str
    mixed: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    attentions: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether cutting a unit comes to zeroing the columns that read it."""
        return not self.mixed

    @property
    def module(self) -> str:
        """The innermost module that all its parameters belong to."""
        shared = self.places[0][0].split(".")[:-1]
        for name, _ in self.places[1:]:
            parts = name.split(".")[:-1]
            same = [one == two for one, two in zip(shared, parts)]
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


class Coupling:
    """The units of a run's parameters and buffers.

    ``shapes`` are theirs by name, where they are known: other tensors on the memory of one go by its name as well, such
    as the buffer that all weights of a recurrent layer lie in on a GPU.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> [group.places for group in Coupling(tv.trace(model, torch.ones(1, 3)).graph).groups if not group.locked]
    [(('0.bias', 0), ('0.weight', 0), ('2.weight', 1))]
    """

    def __init__(self, graph: Graph, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        self.graph = graph
        self._shapes = shapes or {}
        # of each parameter and buffer, by dimension
        self.ids: dict[str, list[Ids]] = {}
        self._dims: dict[int, list[Entry]] = {}
        # parameters, and what only arranges one
        self._plain: set[int] = set()
        self._edges: list[tuple[Ids, Ids]] = []
        self._locks: list[tuple[Ids, str]] = []
        # columns of parameters that are summed over
        self._fed: list[Ids] = []
        # what depends on others along the same dimension, and where
        self._mixed: list[tuple[Ids, str]] = []
        self._attended: list[tuple[Ids, str]] = []
        self._sizes: list[tuple[Ids, str]] = []
        self._numbered: list[tuple[Ids, str]] = []
        # what was kept of each grid
        self._lines: list[Ids] = []
        # first and last numbers, in turn, of what is no parameter's
        self._loose: list[int] = []
        self._count = 0
        # whether results depend on the operation that is looked at
        self._used = True
        self._number_parameters()
        used, _ = graph.ancestors([source for result in graph.outcomes for source in result.sources()])
        for node in np.flatnonzero(graph.node_phase == Phase.FORWARD).tolist():
            self._used = bool(used[node])
            self._follow(graph.nodes[node])
        for result in graph.outcomes:
            for value, _ in result.sources():
                self.lock(self.dims(value), f"it is the run's {result.kind}")
        self.unit = _components(self._count, self._edges)
        # units that something was seen to use
        self._tied = np.zeros(self._count, dtype=bool)
        for one, _ in self._edges:
            self._tied[self.unit[one]] = True
        self.reasons = self._locked_units()

    def _number_parameters(self) -> None:
        graph = self.graph
        owned = np.isin(graph.value_role, [Role.PARAMETER, Role.BUFFER]) & (graph.value_producer < 0)
        for value in np.flatnonzero(owned).tolist():
            row = graph.values[value]
            if not row.name or row.type.layout != "strided":
                continue
            if tuple(self._shapes.get(row.name, row.shape)) != tuple(row.shape):
                continue
            if row.name not in self.ids:
                self.ids[row.name] = [self._fresh(length) for length in row.shape]
            if [len(ids) for ids in self.ids[row.name]] == list(row.shape):
                self._dims[value] = list(self.ids[row.name])
                self._plain.add(value)

    def _fresh(self, length: int) -> Ids:
        made = np.arange(self._count, self._count + length)
        self._count += length
        return made

    # ---------------------------------------------------------------- what rules use

    def raw(self, value: int) -> list[Entry]:
        """What stands for a value's dimensions: numbers, or axes of what a view has split and nothing decided yet."""
        found = self._dims.get(value)
        if found is None:
            return [None] * len(self.graph.values[value].shape)
        if any(isinstance(entry, Part) and entry.grid.kept is not None for entry in found):
            found = [
                self.settled(entry) if isinstance(entry, Part) and entry.grid.kept is not None else entry
                for entry in found
            ]
            self._dims[value] = found
        return found

    def dims(self, value: int) -> Dims:
        """The numbers along a value's dimensions."""
        return [self.settled(entry) for entry in self.raw(value)]

    def settled(self, entry: Entry) -> Ids | None:
        """The numbers for one dimension; of a grid, one axis is kept and what lies within each of its indices tied."""
        if not isinstance(entry, Part):
            return entry
        grid = entry.grid
        if grid.kept is None:
            grid.kept = min(set(range(grid.ids.ndim)) - grid.rigid, default=0)
            for axis in range(grid.ids.ndim):
                if axis != grid.kept:
                    self.stiffen(grid, axis)
            self.line(grid.along(grid.kept))
        return grid.along(grid.kept) if entry.axis == grid.kept else None

    def stiffen(self, grid: Grid, axis: int) -> None:
        """Tie what stands along an axis: it goes as a whole or not at all."""
        if axis not in grid.rigid:
            grid.rigid.add(axis)
            first = np.broadcast_to(np.take(grid.ids, [0], axis=axis), grid.ids.shape)
            self._edges.append((first.ravel(), grid.ids.ravel()))

    def tie(self, one: Ids | None, two: Ids | None, why: str) -> Ids | None:
        """Two dimensions that go together, index by index; one that is not followed locks the other."""
        if one is None or two is None or len(one) != len(two):
            self.lock([one, two], why)
            return None
        self._edges.append((one, two))
        # a parameter's can be followed further
        return two if self.is_loose(one) else one

    def loose(self, length: int) -> Ids:
        """Numbers for a dimension that one element was spread over: it goes along with what it is joined with."""
        made = self._fresh(length)
        self._loose += [self._count - length, self._count]
        return made

    def is_loose(self, entry: Entry) -> bool:
        """Whether a dimension is one of those."""
        return isinstance(entry, np.ndarray) and bisect_right(self._loose, int(entry[0])) % 2 == 1

    def lock(self, dims: Sequence[Ids | None], why: str) -> None:
        """Nothing of these may be cut."""
        self._locks += [(ids, why) for ids in dims if ids is not None]

    def is_plain(self, value: int) -> bool:
        """Whether a value is a parameter, as it is or in another arrangement."""
        return value in self._plain

    def feed(self, ids: Ids | None) -> None:
        """Columns of a parameter that are summed over: where these are zero, nothing of the unit arrives."""
        if ids is not None:
            self._fed.append(ids)

    def mix(self, dims: Sequence[Ids | None], op: str) -> None:
        """What others along the same dimension depend on: a unit left out need not be the same as one that is zero.

        Nothing of what the run's results do not depend on, as weights of attention that nobody looks at.
        """
        if self._used:
            self._mixed += [(ids, op) for ids in dims if ids is not None]

    def attend(self, dims: Sequence[Ids | None], path: str) -> None:
        """What a module multiplies activations along, each index for itself: heads."""
        self._attended += [(ids, path) for ids in dims if ids is not None]

    def line(self, ids: Ids) -> None:
        """What is left of a dimension that was split: one number for each head, or for whatever else it is."""
        self._lines.append(ids)

    def number(self, ids: Ids, path: str, why: str) -> None:
        """A module's program takes parts of these by number, as those of queries: only whole heads may be cut."""
        self.size(ids, path)
        self._numbered.append((ids, why))

    def size(self, ids: Ids, path: str) -> None:
        """A module's program spells out sizes of these."""
        self._sizes.append((ids, path))

    def _follow(self, node: Node) -> None:
        rule = rule_of(node)
        inputs = [value.index for value in node.inputs]
        if rule is None:
            for number in inputs:
                self.lock(self.dims(number), f"{node.name} has no rule")
            return
        plain = node.name in PLAIN and len(inputs) == 1 and inputs[0] in self._plain
        for value, dims in zip(node.outputs, rule(Step(self, node, inputs))):
            shape = value.shape
            fits = len(dims) == len(shape)
            kept = [ids if ids is None or len(ids) == length else None for ids, length in zip(dims, shape)]
            self._dims[value.index] = kept if fits else [None] * len(shape)
            lost = [one for one, two in zip(dims, kept) if two is None] if fits else dims
            # what is empty is not used
            if 0 not in shape:
                self.lock([self.settled(entry) for entry in lost], f"{node.name} cannot be followed")
            if plain:
                self._plain.add(value.index)

    # ---------------------------------------------------------------- what came of it

    def _locked_units(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for ids, why in self._locks:
            for unit in np.unique(self.unit[ids]).tolist():
                found.setdefault(unit, why)
        heads = self._by_unit(self._attended)
        for ids, why in self._numbered:
            for unit in np.unique(self.unit[ids]).tolist():
                if unit not in heads:
                    found.setdefault(unit, why)
        return found

    @property
    def groups(self) -> list[Group]:
        """The units by where they live, those that may be cut and those that may not."""
        places: dict[int, set[Place]] = {}
        for name, dims in self.ids.items():
            for number, ids in enumerate(dims):
                for unit in np.unique(self.unit[ids]).tolist():
                    places.setdefault(unit, set()).add((name, number))
        gathered: dict[tuple[tuple[Place, ...], str], list[int]] = {}
        for unit, where in places.items():
            why = self.reasons.get(unit, "") or ("" if self._tied[unit] else ALONE)
            gathered.setdefault((tuple(sorted(where)), why), []).append(unit)
        facts = self._facts()
        return [facts.group(where, np.array(units), why) for (where, why), units in gathered.items()]

    def _facts(self) -> _Facts:
        mixed = {op: np.zeros(self._count, dtype=bool) for _, op in self._mixed}
        for ids, op in self._mixed:
            mixed[op][self.unit[ids]] = True
        sizes, heads = self._by_unit(self._sizes), self._by_unit(self._attended)
        lines: dict[int, set[int]] = {}
        numbers: dict[int, int] = {}
        for ids in self._lines:
            made, (units, first) = len(np.unique(ids)), np.unique(self.unit[ids], return_index=True)
            for number, unit in enumerate(units[np.argsort(first)].tolist()):
                lines.setdefault(unit, set()).add(made)
                numbers.setdefault(unit, number)
        return _Facts(mixed, heads, sizes, lines, numbers)

    def _by_unit(self, found: Sequence[tuple[Ids, str]]) -> dict[int, set[str]]:
        paths: dict[int, set[str]] = {}
        for ids, path in found:
            for unit in np.unique(self.unit[ids]).tolist():
                paths.setdefault(unit, set()).add(path)
        return paths

    def kept(self, cut: Ids, names: Collection[str] | None = None) -> dict[str, list[Bools]]:
        """For each parameter and buffer (or those named), along each dimension, what stays when these units go."""
        gone = np.zeros(self._count, dtype=bool)
        gone[cut] = True
        chosen = self.ids if names is None else names
        return {name: [~gone[self.unit[ids]] for ids in self.ids[name]] for name in chosen}

    @cached_property
    def _is_fed(self) -> Bools:
        found = np.zeros(self._count, dtype=bool)
        for ids in self._fed:
            found[ids] = True
        return found

    def reads(self, place: Place) -> bool:
        """Whether a parameter is summed over along a dimension: it reads units there and does not make them."""
        return bool(self._is_fed[self.ids[place[0]][place[1]]].any())

    def everywhere(self, cut: Ids) -> dict[str, list[Bools]]:
        """For each parameter and buffer, along each dimension, all that these units have there."""
        return {name: [~stays for stays in dims] for name, dims in self.kept(cut).items()}

    def fed(self, cut: Ids) -> dict[str, list[Bools]]:
        """For each parameter, along each dimension, the columns through which these units reach others."""
        gone = self._is_fed & np.isin(self.unit, cut)
        return {name: [gone[ids] for ids in dims] for name, dims in self.ids.items()}


@dataclass(frozen=True)
class _Facts:
    """What is known of each unit, by its number."""

    mixed: dict[str, Bools]
    heads: dict[int, set[str]]
    paths: dict[int, set[str]]
    lines: dict[int, set[int]]
    numbers: dict[int, int]

    def group(self, places: tuple[Place, ...], units: Ids, why: str) -> Group:
        """The group of some units."""
        each = units.tolist()
        paths = sorted({path for unit in each for path in self.paths.get(unit, ())})
        made, attentions = set[int](), set[str]()
        if all(unit in self.heads for unit in each):
            made = {number for unit in each for number in self.lines.get(unit, ())}
            attentions = {path for unit in each for path in self.heads[unit]}
        return Group(
            places,
            units,
            why,
            tuple(op for op, hit in self.mixed.items() if hit[units].any()),
            tuple(paths),
            tuple(sorted(made, reverse=True)),
            tuple(self.numbers.get(unit, place) for place, unit in enumerate(each)),
            tuple(sorted(attentions)),
        )


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
