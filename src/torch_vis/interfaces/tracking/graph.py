"""The tracked graph as columns: the nodes there are, what contains what, and every edge, before any object is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis._trace import Trace
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Flag, Kind, Phase, Role
from torch_vis.graph.types import Array, Ints
from torch_vis.interfaces.tracking.types import OperationType

TYPES = list(OperationType)
LAYERS = frozenset({"module", "compiled"})  # kinds of scopes that are calls of modules
OWN_NAMESPACES = ("aten::", "prims::", "prim::")
MEMORY_OPS = frozenset(
    "_foreach_copy_ _foreach_zero_ _pin_memory _reshape_alias _to_copy _unsafe_view alias alias_copy "
    "clone contiguous copy_ detach empty empty_like empty_permuted empty_strided expand_copy fill_ full "
    "full_like lift lift_fresh lift_fresh_copy new_empty new_empty_strided new_full new_ones new_zeros "
    "ones ones_like permute_copy reshape resize_ resize_as_ set_ slice_copy squeeze_copy t_copy to "
    "transpose_copy unsqueeze_copy view view_copy zero_ zeros zeros_like".split()
)
CONTAINMENT, DATA, GRADIENT, PARAMETER, SHAPE = range(5)
EDGE_TYPES = ("containment", "data_flow", "gradient_flow", "parameter", "shape_flow")
NONE, LINK, LAYER = range(3)  # what more there is to say of an edge


@dataclass
class Record:
    """One tracked stretch: its trace, and what only the calls of modules tell."""

    trace: Trace
    operations: bool
    whole: bool
    """Whether it was one run of the model from its inputs, and not a stretch of the program's own."""
    backward: bool
    again: list[bool]
    """By call: whether it ran during backward, to compute something once more."""
    facts: list[dict[str, Any] | None]
    """By call: the parameters and the settings of the module."""
    states: list[dict[str, Any]]
    """By call: what else is known of the module."""
    taken: dict[int, list[Any]] = field(default_factory=dict)
    given: dict[int, list[Any]] = field(default_factory=dict)
    own_bytes: dict[int, int | None] | None = None
    made_bytes: int = 0
    passed: list[Any] = field(default_factory=list)
    unknown: dict[int, int] = field(default_factory=dict)
    backwards: list[tuple[int, int | None]] = field(default_factory=list)
    """Where operations were not followed: beginning and length of each backward pass, in nanoseconds."""
    parameters: tuple[int, int] | None = None
    devices: tuple[str, ...] = ()


class Edges(NamedTuple):
    """Every edge, as columns; the numbers of nodes are those of ``Tracked``."""

    source: Ints
    target: Ints
    type: Ints
    value: Ints  # what passes along it, -1 where that is no one tensor
    reads: Ints  # what the target takes of it, a ``Kind``, or -1
    extra: Ints


class Tracked:
    """Nodes and edges as numbers. Passes come first, then tensors from outside, calls of modules, operations."""

    def __init__(self, record: Record) -> None:
        self.record = record
        graph = self.graph = record.trace.graph
        self.scopes, self.ops = len(graph.scope_call), len(graph)
        self.parents: list[int] = graph.scope_parent.tolist()
        self.kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
        self.outside: Ints = (
            np.flatnonzero(graph.value_producer < 0) if record.operations else np.zeros(0, int)
        )
        recompute = (graph.node_flags & Flag.RECOMPUTE) > 0
        self.is_gradient = (graph.node_phase == Phase.BACKWARD) & ~recompute
        ran_backward = record.backward or bool(record.backwards) or bool(self.is_gradient.any())
        ran = record.whole or self.ops > 0 or self.scopes > 1
        self.passes = ["forward"] * ran + ["backward"] * ran_backward
        self.first_tensor = len(self.passes)
        self.first_scope = self.first_tensor + len(self.outside) - 1  # the whole run, scope 0, is no node
        self.first_op = self.first_scope + self.scopes
        self.count = self.first_op + self.ops

    @cached_property
    def types(self) -> Ints:
        """For each node, the place of its type in ``TYPES``."""
        place = {kind: number for number, kind in enumerate(TYPES)}
        found = [OperationType(name) for name in self.passes]
        found += [OperationType.MEMORY_OP] * len(self.outside)
        found += [OperationType.LAYER_OP if k in LAYERS else OperationType.CUSTOM for k in self.kinds[1:]]
        graph = self.graph
        of_call = np.array([place[_operator_type(call.op)] for call in graph.calls], dtype=np.int64)
        ops = of_call[graph.node_call]
        plain = ops == place[OperationType.TENSOR_OP]
        ops[plain & ((graph.node_flags & Flag.VIEW) > 0)] = place[OperationType.MEMORY_OP]
        ops[self.is_gradient] = place[OperationType.GRADIENT_OP]
        return np.concatenate([np.array([place[kind] for kind in found], dtype=np.int64), ops])

    @cached_property
    def container(self) -> Ints:
        """For each node, the node that it ran inside of; -1 for passes, tensors and steps of optimizers."""
        forward, backward = 0, len(self.passes) - 1
        found = np.full(self.count, -1, dtype=np.int64)
        for scope in range(1, self.scopes):
            if self.parents[scope]:
                found[self.first_scope + scope] = self.first_scope + self.parents[scope]
            elif self.kinds[scope] != "optimizer":
                found[self.first_scope + scope] = backward if self.record.again[scope] else forward
        scopes = self.graph.node_scope.astype(np.int64)
        inside = np.where(scopes > 0, self.first_scope + scopes, forward)
        found[self.first_op :] = np.where(self.is_gradient, backward, inside)
        return found

    @cached_property
    def layer_of(self) -> list[int]:
        """For each scope, the innermost call of a module that it is or lies in; 0 where there is none."""
        found = [0] * self.scopes
        for scope in range(1, self.scopes):
            found[scope] = scope if self.kinds[scope] in LAYERS else found[self.parents[scope]]
        return found

    def sum_inside(self, of_ops: Array, ops: Ints) -> Array:
        """For each scope, the sum over some operations that ran in it or in what it called."""
        return self.graph.tree.inclusive(self.graph.tree.of_nodes(of_ops, ops))

    # ---------------------------------------------------------------- edges

    @cached_property
    def edges(self) -> Edges:
        """Containment first, then what passes between operations, then the same between layers."""
        inside = np.flatnonzero(self.container >= 0)
        parts = [_part(self.container[inside], inside, CONTAINMENT)]
        if len(self.passes) == 2:
            parts.append(_part(np.array([0]), np.array([1]), GRADIENT, extra=LINK))
        if self.record.operations:
            flows = [self._between_operations(), self._from_outside()]
            parts += [*flows, self._links(), *self._between_layers(flows)]
        else:
            parts.append(self._passed())
        return Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    @cached_property
    def neighbours(self) -> tuple[Ints, Ints]:
        """Every pair of nodes with an edge from the first to the second, containment left out."""
        edges = self.edges
        flows = edges.type != CONTAINMENT
        pairs = np.unique(edges.source[flows] * max(1, self.count) + edges.target[flows])
        return pairs // max(1, self.count), pairs % max(1, self.count)

    def _between_operations(self) -> Edges:
        source, target, value, kind = (column.astype(np.int64) for column in self.graph.edges())
        types = np.where(self.is_gradient[source], GRADIENT, DATA)
        types[kind == Kind.SHAPE] = SHAPE
        return _once(_part(self.first_op + source, self.first_op + target, types, value, kind))

    def _from_outside(self) -> Edges:
        graph = self.graph
        reads = graph.value_producer[graph.in_value] < 0
        value, target = graph.in_value[reads].astype(np.int64), graph.in_node[reads].astype(np.int64)
        kind = graph.in_kind[reads].astype(np.int64)
        over = np.flatnonzero((graph.value_carries >= 0) & (graph.value_producer >= 0))
        below = graph.value_carries[over]
        laid = graph.value_producer[below] < 0  # written over a part of what came from outside
        value = np.concatenate([value, below[laid]])
        target = np.concatenate([target, graph.value_producer[over[laid]]])
        kind = np.concatenate([kind, np.full(int(laid.sum()), Kind.WHOLE)])
        place = np.full(len(graph.value_type), -1, dtype=np.int64)
        place[self.outside] = np.arange(len(self.outside))
        held = np.isin(graph.value_role[value], [Role.PARAMETER, Role.BUFFER])
        types = np.where(held, PARAMETER, DATA)
        types[(kind == Kind.SHAPE) & ~held] = SHAPE
        return _once(_part(self.first_tensor + place[value], self.first_op + target, types, value, kind))

    def _links(self) -> Edges:
        linked = np.flatnonzero((self.graph.node_link >= 0) & self.is_gradient)
        forward = self.graph.node_link[linked].astype(np.int64)
        return _part(self.first_op + forward, self.first_op + linked, GRADIENT, extra=LINK)

    def _between_layers(self, flows: list[Edges]) -> list[Edges]:
        """What passes between operations, said of the layers that these lie in: the innermost, and the neighbours."""
        source, target, types, value, reads, _ = (np.concatenate(columns) for columns in zip(*flows))
        passes = (types == DATA) & ~self._is_gradient_node(target)
        source, target, value, reads = source[passes], target[passes], value[passes], reads[passes]
        a, b = self._scope(source), self._scope(target)
        nothing = np.full(len(a), -1, dtype=np.int64)
        above_a, above_b = self._lift(a, b, nothing, nothing)
        parts = []
        for inner_a, inner_b in ((above_a, above_b), (a, b)):
            start = np.where(above_a >= 0, self.first_scope + inner_a, source)
            end = np.where(above_b >= 0, self.first_scope + inner_b, target)
            differs = (above_a >= 0) | (above_b >= 0)
            parts.append(_part(start[differs], end[differs], DATA, value[differs], reads[differs], LAYER))
        both = Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        return [_once(both, by_value=False)]

    def _passed(self) -> Edges:
        """The same where only calls were followed; the number of a passing stands for the tensor."""
        pairs: dict[tuple[int, int], int] = {}
        for number, passing in enumerate(self.record.passed):
            pairs.setdefault((passing.maker, passing.taker), number)
        outer = {(maker, self.parents[taker]) for maker, taker in pairs}
        columns = np.array([(m, t, n) for (m, t), n in pairs.items()], dtype=np.int64).reshape(-1, 3)
        maker, taker, value = columns.T
        above = np.array(self.parents, dtype=np.int64)
        a, b = self._lift(above[maker], above[taker], maker.copy(), taker.copy())
        inner = np.array([pair not in outer for pair in pairs], dtype=bool)
        parts = [
            _part(self.first_scope + s, self.first_scope + t, DATA, v, extra=LAYER)
            for s, t, v in ((a, b, value), (maker[inner], taker[inner], value[inner]))
        ]
        return _once(Edges(*(np.concatenate(columns) for columns in zip(*parts))), by_value=False)

    def _lift(self, a: Ints, b: Ints, child_a: Ints, child_b: Ints) -> tuple[Ints, Ints]:
        """Of two places in the tree of calls, their ancestors (or selves) right below the one they have in common."""
        parents = np.array(self.parents, dtype=np.int64)
        depths = self.graph.tree.depth
        while True:
            up_a, up_b = (a != b) & (depths[a] >= depths[b]), (a != b) & (depths[b] >= depths[a])
            if not (up_a.any() or up_b.any()):
                return child_a, child_b
            child_a, child_b = np.where(up_a, a, child_a), np.where(up_b, b, child_b)
            a, b = np.where(up_a, parents[a], a), np.where(up_b, parents[b], b)

    def _is_gradient_node(self, nodes: Ints) -> Ints:
        ops = nodes - self.first_op
        return (ops >= 0) & self.is_gradient[np.maximum(ops, 0)] if self.ops else np.zeros(len(nodes), bool)

    def _scope(self, nodes: Ints) -> Ints:
        """The scope that an operation ran in; tensors from outside are in none."""
        ops = nodes - self.first_op
        scopes = self.graph.node_scope.astype(np.int64)
        return np.where(ops >= 0, scopes[np.maximum(ops, 0)], 0) if self.ops else np.zeros(len(nodes), int)


def _operator_type(op: str) -> OperationType:
    if not op.startswith(OWN_NAMESPACES):
        return OperationType.CUSTOM
    return OperationType.MEMORY_OP if short_name(op) in MEMORY_OPS else OperationType.TENSOR_OP


def _part(
    source: Ints, target: Ints, types: Ints | int, value: Any = -1, reads: Any = -1, extra: int = NONE
) -> Edges:
    ones = np.ones(len(source), dtype=np.int64)
    return Edges(source * ones, target * ones, types * ones, value * ones, reads * ones, extra * ones)


def _once(edges: Edges, *, by_value: bool = True) -> Edges:
    """The same without repetitions, in the order in which they first appear."""
    columns = [edges.source, edges.target, edges.type]
    if by_value:
        columns += [edges.value, edges.reads]
    order = np.lexsort(columns[::-1])
    ranked = np.stack([column[order] for column in columns])
    new = np.ones(len(order), dtype=bool)
    new[1:] = (ranked[:, 1:] != ranked[:, :-1]).any(axis=0)
    keep = np.sort(order[new])
    return Edges(*(column[keep] for column in edges))
