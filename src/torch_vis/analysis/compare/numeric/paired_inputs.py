"""The inputs of matched operations in pairs, and which of these are the same tensor.

Which value is which is known from ``compare.wiring``. Inputs that are not the same tensor may still hold the same
numbers.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.wiring import Wiring, view_chains
from torch_vis.analysis.gradients.tensor_stats import makes_numbers
from torch_vis.graph.call import Call, Slot
from torch_vis.graph.flow import declared_slots, roots
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.graph.types import Ints


class InputPair(NamedTuple):
    """A value that an operation of ``a`` reads, and the one that its counterpart reads in its place."""

    a: int
    b: int
    same: bool
    """Whether they are the same tensor, perhaps through different views."""
    compared: bool
    """Whether they were compared when they were computed, and not written to since."""


class PairedInputs:
    """The pairs of inputs of all operations of ``a`` that have a counterpart."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.a, self.b = wiring.a, wiring.b
        self.to_b: list[int] = wiring.to_b.tolist()
        self.values_a, self.values_b = GraphValues(self.a), GraphValues(self.b)
        # views are looked through, so that they have no counterparts of their own
        self.value_to_b = self._without_views(wiring.value_to_b, self.values_a, self.values_b)
        self.value_to_a = self._without_views(wiring.value_to_a, self.values_b, self.values_a)
        self._root_a: list[int] = wiring.identities_a.root.tolist()
        self._root_b: list[int] = wiring.identities_b.root.tolist()
        self._slots: dict[tuple[int, int], list[tuple[int, int]]] = {}

    @cached_property
    def outside(self) -> dict[int, int]:
        """The values of ``a`` from before the run that have a counterpart, one for each tensor, and that."""
        first, to_b = self.wiring.first_in_memory[0], self.wiring.value_to_b
        # values that an operation made have no first one in memory
        chosen = np.flatnonzero((to_b >= 0) & (first == np.arange(len(first))))
        return dict(zip(chosen.tolist(), to_b[chosen].tolist()))

    def of(self, node: int) -> list[InputPair]:
        """What an operation and its counterpart read: those that are the same tensor together, the rest by slot."""
        pairs = self._in_the_same_slots(node)
        if not all(self.are_same(*pair) for pair in pairs):
            pairs = self._in_any_order(pairs)
        clean = self.values_a.is_clean[node] and self.values_b.is_clean[self.to_b[node]]
        return [InputPair(a, b, self.are_same(a, b), clean and self._are_compared(a, b)) for a, b in pairs]

    def is_reordered(self, node: int) -> bool:
        """Whether an operation and its counterpart read the same tensors in other positions."""
        pairs = self._in_the_same_slots(node)
        if all(self.are_same(*pair) for pair in pairs):
            return False
        return all(self.are_same(*pair) for pair in self._in_any_order(list(pairs)))

    def unpaired(self, node: int) -> tuple[list[int], list[int]]:
        """What an operation reads where its counterpart reads nothing, and the other way round."""
        pairs = self._in_the_same_slots(node)
        paired_a, paired_b = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
        return (
            [value for value in self.values_a.inputs(node).values() if value not in paired_a],
            [value for value in self.values_b.inputs(self.to_b[node]).values() if value not in paired_b],
        )

    def are_same(self, a: int, b: int) -> bool:
        """Whether two values are the same tensor, perhaps through different views."""
        return self._root_a[a] == self._root_b[b] >= 0

    def may_differ(self, pair: InputPair) -> bool:
        """Whether two values are not of the same tensor, or not the same views of it."""
        return not pair.same or not self.are_equal_views(pair.a, pair.b)

    def are_equal_views(self, a: int, b: int) -> bool:
        """Whether two values of one tensor are the same views of it."""
        views_a, views_b = self._views
        return views_a[a] == views_b[b]

    def is_called_differently(self, node: int) -> bool:
        """Whether an operation has other arguments than its counterpart, tensors left aside."""
        return self.a.calls[self.a.node_call[node]] != self.b.calls[self.b.node_call[self.to_b[node]]]

    @cached_property
    def _views(self) -> tuple[list[int], list[int]]:
        views_a, views_b = view_chains(self.a, self.b, through_writes=True)
        return views_a.tolist(), views_b.tolist()

    def _without_views(self, to_other: Ints, values: GraphValues, others: GraphValues) -> list[int]:
        is_view = np.array([*values.is_view, False], dtype=bool)[values.graph.value_producer]
        # the last entry is for what has no counterpart
        producer = np.append(others.graph.value_producer, -1)[to_other]
        is_view |= np.array([*others.is_view, False], dtype=bool)[producer]
        counterparts: list[int] = np.where(is_view | (to_other < 0), -1, to_other).tolist()
        return counterparts

    def _in_the_same_slots(self, node: int) -> list[tuple[int, int]]:
        """The values in the same argument positions of two calls, where both are read."""
        other = self.to_b[node]
        inputs_a, inputs_b = self.values_a.inputs(node), self.values_b.inputs(other)
        calls = int(self.a.node_call[node]), int(self.b.node_call[other])
        slots = self._slots.get(calls)
        if slots is None:
            slots = self._slots[calls] = _common_slots(self.a.calls[calls[0]], self.b.calls[calls[1]])
        return [(inputs_a[a], inputs_b[b]) for a, b in slots if a in inputs_a and b in inputs_b]

    def _in_any_order(self, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The same with equal tensors together, if they only stand in other positions."""
        left = [index for index, pair in enumerate(pairs) if not self.are_same(*pair)]
        free: dict[int, list[int]] = {}
        for index in left:
            value = pairs[index][1]
            root = self._root_b[value]
            free.setdefault(root if root >= 0 else ~self.values_b.root[value], []).append(value)
        chosen: dict[int, int] = {}
        for index in left:
            root = self._root_a[pairs[index][0]]
            if root >= 0 and free.get(root):
                chosen[index] = free[root].pop(0)
        if not chosen:
            return pairs
        rest = [value for values in free.values() for value in values]
        for index in left:
            pairs[index] = pairs[index][0], chosen[index] if index in chosen else rest.pop(0)
        return pairs

    def _are_compared(self, a: int, b: int) -> bool:
        """Whether two values are outputs of matched operations, and have numbers that can be compared."""
        producer = self.values_a.producer[a]
        if self.value_to_b[a] != b or producer < 0 or not self.values_a.makes_numbers[producer]:
            return False
        types = self.a.types[self.a.value_type[a]], self.b.types[self.b.value_type[b]]
        if types[0].shape != types[1].shape or not all(row.layout == "strided" for row in types):
            return False
        if self.a.value_carries[a] >= 0 or self.b.value_carries[b] >= 0:
            return False
        return all(row.dtype.startswith(("float", "bfloat", "complex")) for row in types)


class GraphValues:
    """The values of one graph, as plain lists: what is read and written in which slot, and what is a view of what."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makes_numbers: list[bool] = makes_numbers(graph).tolist()
        is_view = (graph.node_flags & Flag.VIEW) != 0
        self.is_view: list[bool] = is_view.tolist()
        self.producer: list[int] = graph.value_producer.tolist()
        self.root: list[int] = roots(graph, is_view, by_argument=True).tolist()
        """For each value the one that it is a view of, or itself."""
        aliased = np.zeros(len(graph), dtype=bool)
        aliased[graph.in_node[graph.in_slot < 0]] = True
        self.is_clean: list[bool] = (~aliased).tolist()
        """Whether no input of an operation was written to through another view."""
        self._in = graph.in_start.tolist(), graph.in_slot.tolist(), graph.in_value.tolist()
        self._out = graph.out_start.tolist(), declared_slots(graph).tolist(), graph.out_value.tolist()
        self._shape_only = shape_only(graph)

    def inputs(self, node: int) -> dict[int, int]:
        """By slot the values whose contents an operation reads."""
        start, slot, value = self._in
        rows = range(start[node], start[node + 1])
        return {
            slot[row]: value[row]
            for row in reversed(rows)
            if slot[row] >= 0 and (node, value[row]) not in self._shape_only
        }

    def outputs(self, node: int) -> dict[int, int]:
        """By slot the values that an operation computes; slots below zero are what it writes to."""
        start, slot, value = self._out
        return {slot[row]: value[row] for row in range(start[node], start[node + 1])}


def shape_only(graph: Graph) -> set[tuple[int, int]]:
    """Operations and values of which they take nothing but the shape, neither themselves nor through an alias."""
    storage = graph.value_storage[graph.in_value]
    aliases = graph.in_slot < 0
    aliased = {*zip(graph.in_node[aliases].tolist(), storage[aliases].tolist())}
    rows = np.flatnonzero(graph.in_kind == Kind.SHAPE)
    shapes = zip(graph.in_node[rows].tolist(), graph.in_value[rows].tolist(), storage[rows].tolist())
    return {(node, value) for node, value, block in shapes if (node, block) not in aliased}


def _common_slots(call_a: Call, call_b: Call) -> list[tuple[int, int]]:
    """Pairs of slots in the same argument position of two calls."""
    if call_a == call_b:
        return [(slot, slot) for slot in sorted(set(call_a.slots()))]
    slots_a, slots_b = _slots_by_position(call_a), _slots_by_position(call_b)
    return [(slot, slots_b[position]) for position, slot in slots_a.items() if position in slots_b]


def _slots_by_position(call: Call) -> dict[Any, int]:
    slots: dict[Any, int] = {}
    stack: list[tuple[Any, Any]] = [*enumerate(call.args), *call.kwargs]
    while stack:
        position, item = stack.pop()
        if isinstance(item, Slot):
            slots[position] = item.number
        elif type(item) is tuple:
            stack += [((position, index), part) for index, part in enumerate(item)]
    return dict(sorted(slots.items(), key=lambda row: row[1]))
