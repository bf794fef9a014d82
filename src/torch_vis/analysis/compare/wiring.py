"""Which value of one run corresponds to which of the other, and which matched operations read another one.

This is the one answer to that question: matching, the report of numerical differences and the page all ask it here. A
value is identified by its origin: a matched operation and which of its outputs, or a tensor from before the run with a
counterpart (by name, else by its first reader). A value of an unmatched operation is identified by what it is a view
of, if anything; else it is unknown, and no difference is reported: that the operation is unmatched is reported already.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.flow import bases, declared_slots, follow
from torch_vis.graph.schema import Flag, Kind, Phase
from torch_vis.graph.types import Array, Bools, Ints

# Operators whose two operands may be swapped.
COMMUTATIVE = frozenset(
    f"aten::{name}"
    for name in (
        "add", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "logical_and", "logical_or", "logical_xor",
        "bitwise_and", "bitwise_or", "bitwise_xor", "logaddexp", "logaddexp2", "hypot", "dot",
    )
)  # fmt: skip
# Operators that return the same data once more.
IDENTITIES = frozenset({"aten::detach", "aten::detach_", "aten::alias", "aten::lift_fresh", "aten::lift"})
# How autograd adds up gradients, in the order in which they arrive.
SUMS = frozenset({"aten::add", "aten::add_"})
NONE = -1
# The slot of a value that is read because a view of it was written to, not because an argument names it.
ALIAS = -1
# More tensors than one argument can have.
MOST_PARTS = 1 << 20


class InputChange(NamedTuple):
    """An input that differs between two matched operations: the values of ``a`` and ``b``, and their identities.

    One value is -1 where only the other operation reads what was written to its argument through another view.
    """

    a: int
    b: int
    identity_a: int
    identity_b: int


class Identities(NamedTuple):
    """For each value a number that both graphs share, equal where two values are the same; -1 for unknown."""

    direct: Ints
    root: Ints
    """The identity of what the value is a view of."""


class Wiring:
    """The values of two graphs whose operations are matched by ``to_b``.

    ``paths`` are those of modules that have another path in ``b``; ``views`` may be given if they are known already.

    >>> import torch, torch_vis as tv
    >>> def swapped(x): return x.exp() - x.sin()
    >>> def plain(x): e, s = x.exp(), x.sin(); return s - e
    >>> a, b = (tv.trace(run, torch.ones(2)).graph for run in (swapped, plain))
    >>> wiring = Wiring(a, b, np.arange(3), {})
    >>> [(a.nodes[node].name, len(changes)) for node, changes in wiring.changed_inputs.items()]
    [('sub', 2)]
    """

    def __init__(
        self, a: Graph, b: Graph, to_b: Ints, paths: dict[str, str], views: tuple[Ints, Ints] | None = None
    ) -> None:
        self.a, self.b, self.to_b = a, b, to_b
        self.to_a = np.full(len(b), NONE, dtype=np.int64)
        matched = np.flatnonzero(to_b >= 0)
        self.to_a[to_b[matched]] = matched
        self._views = view_chains(a, b) if views is None else views
        self.first_in_memory = _first_of_memory(a), _first_of_memory(b)
        inputs = self._inputs_in_the_same_slots()
        self.outside_to_b = self._match_outside(inputs, paths)
        """For each value of ``a`` from before the run its counterpart in ``b``; -1 for none, and for all others."""
        self.identities_a, self.identities_b = self._identities()
        self.changed_inputs = self._changed_inputs(inputs)
        """By operation of ``b`` the inputs in which it differs from its counterpart; no entry where none does."""

    def are_different(self, value_a: int, value_b: int) -> bool:
        """Whether two values are known to be different things."""
        a, b = self._compared(np.array([value_a]), np.array([value_b]))
        return bool(a[0] >= 0 and b[0] >= 0 and a[0] != b[0])

    @cached_property
    def value_to_b(self) -> Ints:
        """For each value of ``a`` its counterpart in ``b``, -1 for none.

        Outputs of matched operations go by their place; by their order where the two are different overloads.
        """
        values_a, keys_a = self._outputs(self.a, self.to_b)
        values_b, keys_b = self._outputs(self.b, self._matched_b)
        index = np.searchsorted(keys_b, keys_a)
        both = index < len(keys_b)
        both[both] = keys_b[index[both]] == keys_a[both]
        counterparts = self._outside_in_compiled()
        counterparts[values_a[both]] = values_b[index[both]]
        return counterparts

    def _outside_in_compiled(self) -> Ints:
        """``outside_to_b`` with what only compiled code reads, whose names have a prefix.

        That is left out of the matching: of a captured backward, it would match the ends and nothing between.
        """
        first_a, first_b = self.first_in_memory
        by_first = self.outside_to_b.copy()
        taken = set(by_first.tolist())
        named_b = {without_compile_prefix(name): value for name, value in _named(self.b, first_b).items()}
        for name, value in _named(self.a, first_a).items():
            other = named_b.get(without_compile_prefix(name), NONE)
            if by_first[value] < 0 and other >= 0 and other not in taken:
                by_first[value] = other
                taken.add(other)
        return np.where(first_a >= 0, by_first[first_a], NONE)

    @cached_property
    def value_to_a(self) -> Ints:
        """For each value of ``b`` its counterpart in ``a``, -1 for none."""
        counterparts = np.full(len(self.b.value_type), NONE, dtype=np.int64)
        # in reverse, so that the first of several values in the same memory counts
        matched = np.flatnonzero(self.value_to_b >= 0)[::-1]
        counterparts[self.value_to_b[matched]] = matched
        first = self.first_in_memory[1]
        return np.where(first >= 0, counterparts[first], counterparts)

    @cached_property
    def _matched_b(self) -> Ints:
        """For each operation of ``b`` itself if it is matched, else -1."""
        return np.where(self.to_a >= 0, np.arange(len(self.b)), NONE)

    @cached_property
    def _is_other_overload(self) -> Bools:
        """Whether each operation of ``b`` is another overload than its counterpart, which may return otherwise.

        One more entry, for no operation, is false.
        """
        numbers: dict[str, int] = {}
        op_a, op_b = (
            np.array([numbers.setdefault(call.op, len(numbers)) for call in graph.calls], dtype=np.int64)
            for graph in (self.a, self.b)
        )
        differs = np.zeros(len(self.b) + 1, dtype=bool)
        matched = np.flatnonzero(self.to_a >= 0)
        if len(matched):
            differs[matched] = op_a[self.a.node_call[self.to_a[matched]]] != op_b[self.b.node_call[matched]]
        return differs

    def _outputs(self, graph: Graph, node: Ints) -> tuple[Ints, Ints]:
        """The outputs of matched operations, sorted by a key that is equal for counterparts."""
        order = np.zeros(len(graph.value_type), dtype=np.int64)
        order[graph.out_value] = np.arange(len(graph.out_value)) - np.repeat(
            graph.out_start[:-1], np.diff(graph.out_start)
        )
        values = np.flatnonzero(graph.value_producer >= 0)
        node = node[graph.value_producer[values]]
        values, node = values[node >= 0], node[node >= 0]
        index = np.where(self._is_other_overload[node], order[values], output_places(graph)[values])
        keys = node * MOST_PARTS + index
        sort = np.argsort(keys, kind="stable")
        return values[sort], keys[sort]

    def _inputs_in_the_same_slots(self) -> tuple[Ints, Ints, Ints]:
        """The inputs of matched operations: the operation of ``b``, and the values of ``a`` and ``b``."""
        slots = int(max(self.a.in_slot.max(initial=0), self.b.in_slot.max(initial=0))) + 1
        a, b = _inputs(self.a, self.to_b, slots), _inputs(self.b, self._matched_b, slots)
        index = np.searchsorted(b.key, a.key)
        both = index < len(b.key)
        both[both] = b.key[index[both]] == a.key[both]
        return a.node[both], a.value[both], b.value[index[both]]

    def _match_outside(self, inputs: tuple[Ints, Ints, Ints], paths: dict[str, str]) -> Ints:
        """Match the values from before the run: by name where the module went, by name, then by their first readers."""
        a, b = self.a, self.b
        first_a, first_b = self.first_in_memory
        named_a, named_b = _named(a, first_a), _named(b, first_b)
        counterparts: dict[int, int] = {}
        taken: set[int] = set()

        def match(value: int, other: int) -> None:
            if value not in counterparts and other >= 0 and other not in taken:
                counterparts[value] = other
                taken.add(other)

        # those of a module that is matched first: of one that is gone, another may have the path by now
        by_module = sorted(named_a.items(), key=lambda row: _unmatched_parts(row[0], paths))
        for new_name in (renamed, renamed_with_root, _unchanged):
            for name, value in by_module:
                match(value, named_b.get(new_name(name, paths) or "", NONE))
        _, value_a, value_b = inputs
        outside = np.flatnonzero((a.value_producer[value_a] < 0) & (b.value_producer[value_b] < 0))
        for value, other in zip(first_a[value_a[outside]].tolist(), first_b[value_b[outside]].tolist()):
            match(value, other)
        by_first = np.full(len(a.value_type), NONE, dtype=np.int64)
        by_first[list(counterparts)] = list(counterparts.values())
        return np.where(first_a >= 0, by_first[first_a], NONE)

    def _identities(self) -> tuple[Identities, Identities]:
        """Outputs are numbered by operation of ``b`` and place, what was there before comes after them.

        What only ``a`` has of that comes last: it is none of what ``b`` has. A weight that is tied in ``b`` is such.
        """
        places_a, places_b = output_places(self.a), output_places(self.b)
        most = int(max(places_a.max(initial=0), places_b.max(initial=0))) + 1
        before = len(self.b) * most
        first_a, first_b = self.first_in_memory
        only_a = np.where(first_a >= 0, first_a + len(self.b.value_type), NONE)
        both = []
        for graph, node, places, outside in (
            (self.a, self.to_b, places_a, np.where(self.outside_to_b >= 0, self.outside_to_b, only_a)),
            (self.b, self._matched_b, places_b, first_b),
        ):
            direct = np.where(outside >= 0, outside + before, NONE)
            values = np.flatnonzero(graph.value_producer >= 0)
            producer = node[graph.value_producer[values]]
            index = np.where(self._is_other_overload[producer], 0, places[values])
            direct[values] = np.where(producer >= 0, producer * most + index, NONE)
            direct = direct[roots(graph, is_identity(graph))]
            both.append(Identities(direct, direct[roots(graph, graph.node_flags & Flag.VIEW != 0)]))
        return both[0], both[1]

    def _changed_inputs(self, inputs: tuple[Ints, Ints, Ints]) -> dict[int, list[InputChange]]:
        node, value_a, value_b = inputs
        identities_a, identities_b = self.identities_a, self.identities_b
        # backward reads what was saved, by any of its equal views
        backward = self.b.node_phase[node] == Phase.BACKWARD
        a, b = self._compared(value_a, value_b, backward)
        views_a, views_b = self._views
        same_view = (identities_a.root[value_a] == identities_b.root[value_b]) & (
            views_a[value_a] == views_b[value_b]
        )
        differs = (a >= 0) & (b >= 0) & (a != b) & ~same_view & ~is_identity(self.b)[node]
        changes: dict[int, list[InputChange]] = {}
        for row in np.flatnonzero(differs).tolist():
            change = InputChange(*(int(column[row]) for column in (value_a, value_b, a, b)))
            changes.setdefault(int(node[row]), []).append(change)
        for number, change in self._written_in_one_alone():
            changes.setdefault(number, []).append(change)
        return {number: rows for number, rows in changes.items() if not self._are_swapped(number, rows)}

    def _written_in_one_alone(self) -> list[tuple[int, InputChange]]:
        """What only one of two matched operations reads, because it was written to an argument through a view."""
        a, b = self.a, self.b
        if not (a.in_slot == ALIAS).any() and not (b.in_slot == ALIAS).any():
            return []
        reads = (b.node_phase != Phase.BACKWARD) & (b.node_flags & Flag.VIEW == 0)
        node = np.append(np.where((self.to_a >= 0) & reads, np.arange(len(b)), NONE), NONE)
        inputs_a = _all_inputs(a, node[self.to_b], self.identities_a)
        inputs_b = _all_inputs(b, node[:-1], self.identities_b)
        changes = []
        for row in np.flatnonzero(_missing_in(inputs_b, inputs_a, len(b))).tolist():
            change = InputChange(int(inputs_a.value[row]), NONE, int(inputs_a.identity[row]), NONE)
            changes.append((int(inputs_a.node[row]), change))
        for row in np.flatnonzero(_missing_in(inputs_a, inputs_b, len(b))).tolist():
            change = InputChange(NONE, int(inputs_b.value[row]), NONE, int(inputs_b.identity[row]))
            changes.append((int(inputs_b.node[row]), change))
        return changes

    def _compared(self, value_a: Array, value_b: Array, by_root: Any = False) -> tuple[Array, Array]:
        """The identities to compare: direct ones, or those of the roots where one is unknown or if wanted."""
        a, b = self.identities_a.direct[value_a], self.identities_b.direct[value_b]
        look_through = (a < 0) | (b < 0) | by_root
        return (
            np.where(look_through, self.identities_a.root[value_a], a),
            np.where(look_through, self.identities_b.root[value_b], b),
        )

    def _are_swapped(self, node: int, changes: list[InputChange]) -> bool:
        """Whether nothing changed but the order of the two operands of a commutative operator."""
        call = self.b.calls[int(self.b.node_call[node])]
        if (
            base_operator(call.op) not in COMMUTATIVE
            or call.kwargs
            or len(call.args) != 2
            or len(changes) != 2
        ):
            return False
        left, right = changes
        a, b = self._compared(np.array([left.a, right.a]), np.array([right.b, left.b]))
        return bool((a == b).all())


class _Inputs(NamedTuple):
    """Inputs of matched operations, by a key of the operation's index in ``b``, the slot and the part of a list."""

    key: Ints
    node: Ints
    value: Ints


def _inputs(graph: Graph, number: Ints, slots: int) -> _Inputs:
    """The inputs whose contents are read, of operations that have a number."""
    sums = _is_one_of(graph, SUMS) & (graph.node_phase == Phase.BACKWARD)
    node = np.where(sums, NONE, number)[graph.in_node]
    rows = np.flatnonzero((node >= 0) & (graph.in_slot != ALIAS) & (graph.in_kind != Kind.SHAPE))
    key = node[rows] * slots + graph.in_slot[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    part = np.arange(len(key)) - np.repeat(first, np.diff(first, append=len(key)))
    return _Inputs(key * MOST_PARTS + part, node[rows], graph.in_value[rows])


class _AllInputs(NamedTuple):
    """Inputs of matched operations, those that no argument names included."""

    node: Ints
    value: Ints
    unnamed: Bools
    identity: Ints
    known: Bools


def _all_inputs(graph: Graph, number: Ints, identities: Identities) -> _AllInputs:
    rows = np.flatnonzero((number[graph.in_node] >= 0) & (graph.in_kind != Kind.SHAPE))
    value = graph.in_value[rows]
    identity = identities.direct[value]
    known = (identity >= 0) & (identities.root[value] >= 0)
    return _AllInputs(number[graph.in_node[rows]], value, graph.in_slot[rows] == ALIAS, identity, known)


def _missing_in(other: _AllInputs, inputs: _AllInputs, count: int) -> Bools:
    """For each input that no argument names, whether the counterpart is known not to read it."""
    unsure = np.zeros(count, dtype=bool)
    unsure[other.node[~other.known]] = True
    most = int(max(inputs.identity.max(initial=0), other.identity.max(initial=0))) + 1
    missing = ~np.isin(inputs.node * most + inputs.identity, other.node * most + other.identity)
    result: Bools = missing & inputs.unnamed & (inputs.identity >= 0) & ~unsure[inputs.node]
    return result


def output_places(graph: Graph) -> Ints:
    """For each value which of its producer's outputs it is: even for what is returned, odd for what is written to."""
    numbers = np.zeros(len(graph.value_type), dtype=np.int64)
    slots = declared_slots(graph)
    numbers[graph.out_value] = np.where(slots >= 0, 2 * slots, -2 * slots - 1)
    return numbers


def roots(graph: Graph, through: Bools) -> Ints:
    """For each value what it is a view of in the same memory, as far as the chosen operations (``through``) lead."""
    base = bases(graph, through, by_argument=True)
    same_memory = graph.value_storage[base] == graph.value_storage
    return follow(np.where(same_memory, base, np.arange(len(base))))


def view_chains(a: Graph, b: Graph, *, through_writes: bool = False) -> tuple[Ints, Ints]:
    """For each value of both graphs the views that lead to it from its root, as a number that both share.

    Equal views of one tensor are the same, however often they are made; 0 is the tensor itself. A view of what was
    written to through another one is like no other, unless writes are not to count.
    """
    known: dict[Any, int] = {}
    return _view_chains(a, known, 1, through_writes), _view_chains(b, known, -1, through_writes)


def _view_chains(graph: Graph, known: dict[Any, int], sign: int, through_writes: bool) -> Ints:
    not_simple = (graph.in_slot != 0) | (graph.in_kind == Kind.SHAPE)
    if through_writes:
        not_simple &= graph.in_slot != ALIAS
    simple = np.ones(len(graph), dtype=bool)
    simple[graph.in_node[not_simple]] = False
    same, views = is_identity(graph), np.flatnonzero(graph.node_flags & Flag.VIEW != 0)
    chains, places = [0] * len(graph.value_type), output_places(graph).tolist()
    out_start, outputs, in_start, slots, inputs = (
        column.tolist()
        for column in (graph.out_start, graph.out_value, graph.in_start, graph.in_slot, graph.in_value)
    )
    calls = graph.node_call.tolist()
    for node in views.tolist():
        rows = [row for row in range(in_start[node], in_start[node + 1]) if slots[row] == 0]
        base = inputs[rows[0]] if simple[node] and rows else NONE
        for value in outputs[out_start[node] : out_start[node + 1]]:
            if base < 0:
                chains[value] = sign * (value + 1) * 2 + 1 - (1 << 62)
            elif same[node]:
                chains[value] = chains[base]
            else:
                key = graph.calls[calls[node]], places[value], chains[base]
                chains[value] = known.setdefault(key, len(known) + 1)
    return np.array(chains, dtype=np.int64)


def _first_of_memory(graph: Graph) -> Ints:
    """For each value from before the run the first one in the same memory, of those with a name if there is one."""
    first = np.full(len(graph.value_type), NONE, dtype=np.int64)
    outside = np.flatnonzero(graph.value_producer < 0)
    order = outside[np.argsort(graph.value_name[outside] < 0, kind="stable")]
    known: dict[Any, int] = {}
    storage, offset, type_ = (
        column[order].tolist() for column in (graph.value_storage, graph.value_offset, graph.value_type)
    )
    shapes = (graph.types[number].shape for number in type_)
    for value, key in zip(order.tolist(), zip(storage, offset, shapes)):
        first[value] = known.setdefault(key, value)
    return first


def _named(graph: Graph, first: Ints) -> dict[str, int]:
    outside = np.flatnonzero((graph.value_producer < 0) & (graph.value_name >= 0))
    return {graph.names[int(graph.value_name[value])]: int(first[value]) for value in outside.tolist()}


def renamed(name: str, paths: dict[str, str]) -> str | None:
    """The name of a tensor once its module is called by its other path; None where that is not known.

    >>> renamed("body.0.weight", {"body": "trunk", "body.0": "trunk.1"}), renamed("scale", {"body": "trunk"})
    ('trunk.1.weight', None)
    >>> renamed("Adam.body.weight.exp_avg", {"body": "trunk"})
    'Adam.trunk.weight.exp_avg'
    """
    row = _renamed_module(name, paths)
    if row is None:
        return None
    prefix, path, rest = row
    return prefix + ".".join([*([path] if path else []), *rest])


def _renamed_module(name: str, paths: dict[str, str]) -> tuple[str, str, list[str]] | None:
    """What stands before the path in a name, the other path of the innermost module that has one, and the rest."""
    optimizer, _, rest = name.partition(".")
    for prefix, text in (("", name), (f"{optimizer}.", rest)):
        parts = text.split(".")
        for end in range(len(parts) - 1, 0, -1):
            path = paths.get(".".join(parts[:end]))
            if path is not None:
                return prefix, path, parts[end:]
    return None


def _unmatched_parts(name: str, paths: dict[str, str]) -> int:
    """How many parts of a name come after the innermost module that is matched."""
    row = _renamed_module(name, paths)
    return name.count(".") + 1 if row is None else len(row[2])


def renamed_with_root(name: str, paths: dict[str, str]) -> str | None:
    """The name of a tensor if nothing but the whole model has another path, as inside a wrapper; None if it has not.

    >>> renamed_with_root("scale", {"": "model"}), renamed_with_root("scale", {"": ""})
    ('model.scale', None)
    """
    return f"{paths['']}.{name}" if paths.get("") else None


def _unchanged(name: str, paths: dict[str, str]) -> str:
    return name


def without_compile_prefix(name: str) -> str:
    """A name without what ``torch.compile`` puts before those of the model that it wraps."""
    return name.replace("_orig_mod.", "")


def is_identity(graph: Graph) -> Bools:
    """Whether each operation returns its input's data unchanged."""
    return _is_one_of(graph, IDENTITIES)


def _is_one_of(graph: Graph, operators: Collection[str]) -> Bools:
    chosen: Bools = np.array([base_operator(call.op) in operators for call in graph.calls], dtype=bool)
    return chosen[graph.node_call]


def module_paths(a: Graph, b: Graph, scope_to_b: Ints) -> dict[str, str]:
    """For the path of each matched module of ``a`` the path of its counterpart."""
    paths: dict[str, str] = {}
    for scope, other in enumerate(scope_to_b.tolist()):
        if other >= 0 and a.modules[int(a.scope_module[scope])].kind == "module":
            paths.setdefault(a.scope_paths[scope], b.scope_paths[other])
    return paths


def base_operator(op: str) -> str:
    """An operator without its overload."""
    return op.partition(".")[0]
