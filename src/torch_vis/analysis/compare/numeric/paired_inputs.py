"""What an operation and its counterpart read, tensor by tensor, and which of these are the same tensor.

Two tensors are the same where the operations that made them are counterparts, or where both runs were given them;
looked at through views. What is not the same is another tensor, though it may hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.gradients.tensor_stats import makes_numbers
from torch_vis.graph.call import Call, Slot
from torch_vis.graph.flow import roots
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind, Role
from torch_vis.graph.types import Ints


class Pair(NamedTuple):
    """A value that an operation of ``a`` reads, and the one that its counterpart reads in its place."""

    here: int
    there: int
    same: bool  # of one tensor, and seen through views that may differ
    compared: bool  # by what made them, and not written to since


class Readings:
    """The pairs of what is read by all operations of ``a`` that have a counterpart."""

    def __init__(self, a: Graph, b: Graph, to_b: Ints) -> None:
        self.a, self.b, self.to_b = a, b, to_b.tolist()
        self.sides = _Side(a), _Side(b)
        self._places: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.counterpart = self._made()
        self.given = self._given()
        self.counterpart.update(self.given)
        self.back = {there: here for here, there in self.counterpart.items()}

    def of(self, node: int) -> list[Pair]:
        """What an operation and its counterpart read: those that are the same tensor together, the rest by place."""
        other = self.to_b[node]
        found = self._slots(node)
        one, two = self.sides
        if not all(self._is_same(*pair) for pair in found):
            found = self._in_any_order(found)
        clean = one.clean[node] and two.clean[other]
        return [
            Pair(here, there, self._is_same(here, there), clean and self._is_compared(here, there))
            for here, there in found
        ]

    def alone(self, node: int) -> tuple[list[int], list[int]]:
        """What an operation reads where its counterpart reads nothing, and what that reads where it does not."""
        other = self.to_b[node]
        pairs = self._slots(node)
        here, there = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
        return (
            [value for value in self.sides[0].read(node).values() if value not in here],
            [value for value in self.sides[1].read(other).values() if value not in there],
        )

    def may_be_another(self, pair: Pair) -> bool:
        """Whether two values are not of the same tensor, or not the same views of it."""
        return not pair.same or not self.is_seen_alike(pair.here, pair.there)

    def is_called_otherwise(self, node: int) -> bool:
        """Whether an operation has other arguments than its counterpart, but for which tensors they are."""
        return self.a.calls[self.a.node_call[node]] != self.b.calls[self.b.node_call[self.to_b[node]]]

    def is_seen_alike(self, here: int, there: int) -> bool:
        """Whether two values of one tensor are the same views of it."""
        one, two = self._seen
        return one[here] == two[there]

    @cached_property
    def _seen(self) -> tuple[list[int], list[int]]:
        known: dict[Any, int] = {}
        return self.sides[0].seen(known), self.sides[1].seen(known)

    def _slots(self, node: int) -> list[tuple[int, int]]:
        """The values that stand in the same places of two calls, where both are read."""
        other = self.to_b[node]
        here, there = self.sides[0].read(node), self.sides[1].read(other)
        call = int(self.a.node_call[node]), int(self.b.node_call[other])
        places = self._places.get(call)
        if places is None:
            places = self._places[call] = _places(self.a.calls[call[0]], self.b.calls[call[1]])
        return [(here[one], there[two]) for one, two in places if one in here and two in there]

    def _in_any_order(self, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The same with tensors that are the same together, if they only stand in other places."""
        one, two = self.sides
        left = [place for place, pair in enumerate(pairs) if not self._is_same(*pair)]
        free: dict[int, list[int]] = {}
        for place in left:
            free.setdefault(two.root[pairs[place][1]], []).append(pairs[place][1])
        found: dict[int, int] = {}
        for place in left:
            wanted = free.get(self.counterpart.get(one.root[pairs[place][0]], -1))
            if wanted:
                found[place] = wanted.pop(0)
        if not found:
            return pairs
        rest = [value for values in free.values() for value in values]
        for place in left:
            pairs[place] = pairs[place][0], found[place] if place in found else rest.pop(0)
        return pairs

    def _is_same(self, here: int, there: int) -> bool:
        one, two = self.sides
        return self.counterpart.get(one.root[here], -1) == two.root[there]

    def _is_compared(self, here: int, there: int) -> bool:
        if self.counterpart.get(here, -1) != there or here in self.given:
            return False
        if not self.sides[0].numbers[self.sides[0].maker[here]]:
            return False
        types = self.a.types[self.a.value_type[here]], self.b.types[self.b.value_type[there]]
        if types[0].shape != types[1].shape or not all(row.layout == "strided" for row in types):
            return False
        return not (self.a.value_carries[here] >= 0 or self.b.value_carries[there] >= 0) and all(
            row.dtype.startswith(("float", "bfloat", "complex")) for row in types
        )

    def _made(self) -> dict[int, int]:
        """For what operations of ``a`` make, what their counterparts make in its place."""
        found: dict[int, int] = {}
        one, two = self.sides
        for node, other in enumerate(self.to_b):
            if other >= 0 and not (one.is_view[node] or two.is_view[other]):
                theirs = two.made(other)
                for slot, value in one.made(node).items():
                    if slot in theirs:
                        found[value] = theirs[slot]
        return found

    def _given(self) -> dict[int, int]:
        """Pairs of values from outside: what an operation and its counterpart read in the same place, then by name.

        Inputs go by their names where both runs have them.
        """
        found: dict[int, int] = {}
        taken: set[int] = set()
        one, two = self.sides
        for here, there in (*self._read_in_both(), *self._named_alike()):
            is_free = here not in found and there not in taken
            if (
                is_free
                and one.maker[here] < 0
                and two.maker[there] < 0
                and self._may_be_one_input(here, there)
            ):
                found[here] = there
                taken.add(there)
        return found

    def _may_be_one_input(self, here: int, there: int) -> bool:
        one, two = self.sides
        names = one.inputs.get(here), two.inputs.get(there)
        if names[0] == names[1]:
            return True
        return names[0] not in two.inputs.values() and names[1] not in one.inputs.values()

    def _named_alike(self) -> Iterator[tuple[int, int]]:
        theirs = {name: value for value, name in self.sides[1].named.items()}
        for value, name in self.sides[0].named.items():
            if name in theirs:
                yield value, theirs[name]

    def _read_in_both(self) -> Iterator[tuple[int, int]]:
        one, two = self.sides
        for node, other in enumerate(self.to_b):
            if other >= 0:
                for here, there in self._slots(node):
                    yield one.root[here], two.root[there]


class _Side:
    """One of the two graphs: what is read and made in which place, and what values are views of."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.numbers = makes_numbers(graph).tolist()
        self.is_view: list[bool] = ((graph.node_flags & Flag.VIEW) != 0).tolist()
        self.maker: list[int] = graph.value_producer.tolist()
        self._in = graph.in_start.tolist(), graph.in_slot.tolist(), graph.in_value.tolist()
        self._shape_only = shape_only(graph)
        self._out = graph.out_start.tolist(), graph.out_slot.tolist(), graph.out_value.tolist()
        aliased = np.zeros(len(graph), dtype=bool)
        aliased[graph.in_node[graph.in_slot < 0]] = True
        self.clean: list[bool] = (~aliased).tolist()

    @cached_property
    def inputs(self) -> dict[int, str]:
        """The names of the tensors that the run was called with."""
        return {value: name for value, name in self._names() if self.graph.value_role[value] == Role.INPUT}

    @cached_property
    def named(self) -> dict[int, str]:
        """The names of what was there before, without what ``torch.compile`` puts before them."""
        return {value: name.replace("_orig_mod.", "") for value, name in self._names()}

    def _names(self) -> Iterator[tuple[int, str]]:
        for value in np.flatnonzero((self.graph.value_producer < 0) & (self.graph.value_name >= 0)).tolist():
            yield value, self.graph.names[int(self.graph.value_name[value])]

    def read(self, node: int) -> dict[int, int]:
        """The values whose contents an operation reads, by their slots."""
        start, slot, value = self._in
        rows = range(start[node], start[node + 1])
        return {
            slot[row]: value[row]
            for row in reversed(rows)
            if slot[row] >= 0 and (node, value[row]) not in self._shape_only
        }

    def made(self, node: int) -> dict[int, int]:
        """The values that an operation makes, by their places: below zero what it writes to."""
        start, slot, value = self._out
        return {slot[row]: value[row] for row in range(start[node], start[node + 1])}

    @cached_property
    def root(self) -> list[int]:
        """For each value the one that it is a view of, or itself."""
        is_view = (self.graph.node_flags & Flag.VIEW) != 0
        found: list[int] = roots(self.graph, is_view, by_argument=True).tolist()
        return found

    def seen(self, known: dict[Any, int]) -> list[int]:
        """For each value the number of the views through which it is seen, 0 for none; ``known`` numbers them."""
        calls = [known.setdefault(call, len(known) + 1) for call in self.graph.calls]
        found = [0] * len(self.maker)
        for node, first in self.views():
            call = calls[self.graph.node_call[node]]
            for slot, value in self.made(node).items():
                found[value] = known.setdefault((found[first], call, slot), len(known) + 1)
        return found

    def views(self) -> Iterator[tuple[int, int]]:
        """The views in order, each with the value that it is a view of."""
        for node in np.flatnonzero(self.is_view).tolist():
            start, slot, value = self._in
            rows = [row for row in range(start[node], start[node + 1]) if slot[row] >= 0]
            if rows:
                yield node, value[min(rows, key=slot.__getitem__)]


def shape_only(graph: Graph) -> set[tuple[int, int]]:
    """Operations and values of which they take nothing but the shape, neither themselves nor through an alias."""
    storage = graph.value_storage[graph.in_value]
    aliases = graph.in_slot < 0
    seen = {*zip(graph.in_node[aliases].tolist(), storage[aliases].tolist())}
    rows = np.flatnonzero(graph.in_kind == Kind.SHAPE)
    shapes = zip(graph.in_node[rows].tolist(), graph.in_value[rows].tolist(), storage[rows].tolist())
    return {(node, value) for node, value, block in shapes if (node, block) not in seen}


def _places(one: Call, two: Call) -> list[tuple[int, int]]:
    """Pairs of slots in the same place of two calls."""
    if one == two:
        return [(slot, slot) for slot in sorted(set(one.slots()))]
    here, there = _paths(one), _paths(two)
    return [(slot, there[path]) for path, slot in here.items() if path in there]


def _paths(call: Call) -> dict[Any, int]:
    """The slots of a call by where they stand in its arguments."""
    found: dict[Any, int] = {}
    stack: list[tuple[Any, Any]] = [*enumerate(call.args), *call.kwargs]
    while stack:
        path, item = stack.pop()
        if isinstance(item, Slot):
            found[path] = item.number
        elif type(item) is tuple:
            stack += [((path, place), part) for place, part in enumerate(item)]
    return dict(sorted(found.items(), key=lambda row: row[1]))
