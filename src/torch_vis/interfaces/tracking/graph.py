"""The tracked graph: nodes and edges of a run as columns, as the records that are handed out, and as figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis._trace import Trace
from torch_vis.capture.undo import without_collector
from torch_vis.graph.call import short_name
from torch_vis.graph.lifetimes import peak_memory
from torch_vis.graph.metrics import COSTS
from torch_vis.graph.schema import Flag, Kind, Phase, Role
from torch_vis.graph.types import Array, Ints
from torch_vis.interfaces.tracking.types import GraphEdge, GraphNode, OperationType, plain
from torch_vis.ops.op_table import names

TYPES = list(OperationType)
LAYERS = frozenset({"module", "compiled"})  # kinds of scopes that are calls of modules
OWN_NAMESPACES = ("aten::", "prims::", "prim::")
# operators that only view, copy or allocate
MEMORY_OPS = frozenset(names("views", "unwritten", "copies", "constants").split()) | {
    "_foreach_copy_",
    "_foreach_zero_",
    "_pin_memory",
}
CONTAINMENT, DATA, GRADIENT, PARAMETER, SHAPE = range(5)
EDGE_TYPES = ("containment", "data_flow", "gradient_flow", "parameter", "shape_flow")
NONE, LINK, LAYER = range(3)  # what more there is to say of an edge


@dataclass
class TrackingRecord:
    """One tracked stretch: its trace, and what only the calls of modules tell."""

    trace: Trace
    operations: bool
    whole: bool
    """Whether it was one run of the model from its inputs, and not a stretch of the program's own."""
    backward: bool
    recomputed: list[bool]
    """By call: whether it ran during backward, to compute something once more."""
    facts: list[dict[str, Any] | None]
    """By call: the parameters and the settings of the module."""
    states: list[dict[str, Any]]
    """By call: what else is known of the module."""
    input_shapes: dict[int, list[Any]] = field(default_factory=dict)
    output_shapes: dict[int, list[Any]] = field(default_factory=dict)
    own_bytes: dict[int, int | None] | None = None
    result_bytes: int = 0
    passed: list[Any] = field(default_factory=list)
    unknown_inputs: dict[int, int] = field(default_factory=dict)
    backwards: list[tuple[int, int | None]] = field(default_factory=list)
    """Where operations were not followed: beginning and length of each backward pass, in nanoseconds."""
    parameters: tuple[int, int] | None = None
    devices: tuple[str, ...] = ()


class TrackedEdges(NamedTuple):
    """Every edge, as columns; the numbers of nodes are those of ``TrackedGraph``."""

    source: Ints
    target: Ints
    type: Ints
    value: Ints
    """What passes along it, -1 where that is no single tensor."""
    reads: Ints
    """What the target reads of it, a ``Kind``, or -1."""
    extra: Ints


class TrackedGraph:
    """Nodes and edges as numbers. Passes come first, then tensors from outside, calls of modules, operations."""

    def __init__(self, record: TrackingRecord) -> None:
        self.record = record
        graph = self.graph = record.trace.graph
        self.scopes, self.ops = len(graph.scope_call), len(graph)
        self.parents: list[int] = graph.scope_parent.tolist()
        self.kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
        outside = np.flatnonzero(graph.value_producer < 0)
        self.outside: Ints = outside if record.operations else outside[:0]
        recompute = (graph.node_flags & Flag.RECOMPUTE) > 0
        self.is_gradient = (graph.node_phase == Phase.BACKWARD) & ~recompute
        ran_backward = record.backward or bool(record.backwards) or bool(self.is_gradient.any())
        ran = record.whole or self.ops > 0 or self.scopes > 1
        self.passes = ["forward"] * ran + ["backward"] * ran_backward
        self.first_tensor = len(self.passes)
        # the whole run, scope 0, is no node
        self.first_scope = self.first_tensor + len(self.outside) - 1
        self.first_op = self.first_scope + self.scopes
        self.count = self.first_op + self.ops

    @cached_property
    def types(self) -> Ints:
        """For each node, the index of its type in ``TYPES``."""
        index = {kind: number for number, kind in enumerate(TYPES)}
        others = [OperationType(name) for name in self.passes]
        others += [OperationType.MEMORY_OP] * len(self.outside)
        others += [OperationType.LAYER_OP if k in LAYERS else OperationType.CUSTOM for k in self.kinds[1:]]
        graph = self.graph
        of_call = np.array([index[_operator_type(call.op)] for call in graph.calls], dtype=np.int64)
        ops = of_call[graph.node_call]
        plain = ops == index[OperationType.TENSOR_OP]
        ops[plain & ((graph.node_flags & Flag.VIEW) > 0)] = index[OperationType.MEMORY_OP]
        ops[self.is_gradient] = index[OperationType.GRADIENT_OP]
        return np.concatenate([np.array([index[kind] for kind in others], dtype=np.int64), ops])

    @cached_property
    def container(self) -> Ints:
        """For each node, the node that it ran inside of; -1 for passes, tensors and steps of optimizers."""
        forward, backward = 0, len(self.passes) - 1
        container = np.full(self.count, -1, dtype=np.int64)
        for scope in range(1, self.scopes):
            if self.parents[scope]:
                container[self.first_scope + scope] = self.first_scope + self.parents[scope]
            elif self.kinds[scope] != "optimizer":
                container[self.first_scope + scope] = backward if self.record.recomputed[scope] else forward
        scopes = self.graph.node_scope.astype(np.int64)
        inside = np.where(scopes > 0, self.first_scope + scopes, forward)
        container[self.first_op :] = np.where(self.is_gradient, backward, inside)
        return container

    @cached_property
    def layer_of(self) -> list[int]:
        """For each scope, the innermost call of a module that it is or lies in; 0 where there is none."""
        nearest = self.graph.tree.nearest(np.array([kind in LAYERS for kind in self.kinds], dtype=bool))
        return np.maximum(nearest, 0).tolist()

    def sum_inside(self, of_ops: Array, ops: Ints) -> Array:
        """For each scope, the sum over some operations that ran in it or in what it called."""
        return self.graph.tree.inclusive(self.graph.tree.of_nodes(of_ops, ops))

    # ---------------------------------------------------------------- edges

    @cached_property
    def edges(self) -> TrackedEdges:
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
        return TrackedEdges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    @cached_property
    def neighbours(self) -> tuple[Ints, Ints]:
        """Every pair of nodes with an edge from the first to the second, containment left out."""
        edges = self.edges
        flows = edges.type != CONTAINMENT
        pairs = np.unique(edges.source[flows] * max(1, self.count) + edges.target[flows])
        return pairs // max(1, self.count), pairs % max(1, self.count)

    def _between_operations(self) -> TrackedEdges:
        source, target, value, kind = (column.astype(np.int64) for column in self.graph.edges())
        types = np.where(self.is_gradient[source], GRADIENT, DATA)
        types[kind == Kind.SHAPE] = SHAPE
        return _once(_part(self.first_op + source, self.first_op + target, types, value, kind))

    def _from_outside(self) -> TrackedEdges:
        graph = self.graph
        reads = graph.value_producer[graph.in_value] < 0
        value, target = graph.in_value[reads].astype(np.int64), graph.in_node[reads].astype(np.int64)
        kind = graph.in_kind[reads].astype(np.int64)
        over = np.flatnonzero((graph.value_carries >= 0) & (graph.value_producer >= 0))
        below = graph.value_carries[over]
        # Writes over a part of a tensor from outside.
        partial = graph.value_producer[below] < 0
        value = np.concatenate([value, below[partial]])
        target = np.concatenate([target, graph.value_producer[over[partial]]])
        kind = np.concatenate([kind, np.full(int(partial.sum()), Kind.WHOLE)])
        index = np.full(len(graph.value_type), -1, dtype=np.int64)
        index[self.outside] = np.arange(len(self.outside))
        is_state = np.isin(graph.value_role[value], [Role.PARAMETER, Role.BUFFER])
        types = np.where(is_state, PARAMETER, DATA)
        types[(kind == Kind.SHAPE) & ~is_state] = SHAPE
        return _once(_part(self.first_tensor + index[value], self.first_op + target, types, value, kind))

    def _links(self) -> TrackedEdges:
        linked = np.flatnonzero((self.graph.node_link >= 0) & self.is_gradient)
        forward = self.graph.node_link[linked].astype(np.int64)
        return _part(self.first_op + forward, self.first_op + linked, GRADIENT, extra=LINK)

    def _between_layers(self, flows: list[TrackedEdges]) -> list[TrackedEdges]:
        """What passes between operations as edges of their layers: of the innermost, and of those beside each other."""
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
        both = TrackedEdges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        return [_once(both, by_value=False)]

    def _passed(self) -> TrackedEdges:
        """The edges where only calls were followed; the number of a passing stands for the tensor."""
        pairs: dict[tuple[int, int], int] = {}
        for number, passing in enumerate(self.record.passed):
            pairs.setdefault((passing.producer, passing.taker), number)
        outer = {(producer, self.parents[taker]) for producer, taker in pairs}
        columns = np.array([(m, t, n) for (m, t), n in pairs.items()], dtype=np.int64).reshape(-1, 3)
        producer, taker, value = columns.T
        above = np.array(self.parents, dtype=np.int64)
        a, b = self._lift(above[producer], above[taker], producer.copy(), taker.copy())
        inner = np.array([pair not in outer for pair in pairs], dtype=bool)
        parts = [
            _part(self.first_scope + s, self.first_scope + t, DATA, v, extra=LAYER)
            for s, t, v in ((a, b, value), (producer[inner], taker[inner], value[inner]))
        ]
        return _once(TrackedEdges(*(np.concatenate(columns) for columns in zip(*parts))), by_value=False)

    def _lift(self, a: Ints, b: Ints, child_a: Ints, child_b: Ints) -> tuple[Ints, Ints]:
        """Of two calls, their ancestors (or selves) right below the one they have in common."""
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
) -> TrackedEdges:
    ones = np.ones(len(source), dtype=np.int64)
    return TrackedEdges(source * ones, target * ones, types * ones, value * ones, reads * ones, extra * ones)


def _once(edges: TrackedEdges, *, by_value: bool = True) -> TrackedEdges:
    """The same without repetitions, in the order in which they first appear."""
    columns = [edges.source, edges.target, edges.type]
    if by_value:
        columns += [edges.value, edges.reads]
    order = np.lexsort(columns[::-1])
    ranked = np.stack([column[order] for column in columns])
    new = np.ones(len(order), dtype=bool)
    new[1:] = (ranked[:, 1:] != ranked[:, :-1]).any(axis=0)
    keep = np.sort(order[new])
    return TrackedEdges(*(column[keep] for column in edges))


# ---------------------------------------------------------------- records


PHASES = [phase.name.lower() for phase in Phase]
ROLES = [role.name.lower() for role in Role]
READS = [kind.name.lower() for kind in Kind]


@without_collector
def nodes_of(tracked: TrackedGraph) -> list[GraphNode]:
    """Every node with its figures."""
    return _NodeRecords(tracked).all()


@without_collector
def edges_of(tracked: TrackedGraph) -> list[GraphEdge]:
    """Every edge with what passes along it."""
    graph, ids = tracked.graph, ids_of(tracked)
    passed = tracked.record.passed
    edges = []
    for source, target, type_, value, reads, extra in zip(*(column.tolist() for column in tracked.edges)):
        shape: tuple[int, ...] | None = None
        facts: dict[str, Any] | None = None
        if type_ == CONTAINMENT:
            pass
        elif extra == LINK:
            facts = {"link": True}
        elif not tracked.record.operations:
            shape, facts = passed[value].shape, {"level": "layer"}
        else:
            tensor = graph.types[graph.value_type[value]]
            shape, facts = tensor.shape, {"dtype": tensor.dtype, "reads": READS[reads]}
            if extra == LAYER:
                facts["level"] = "layer"
            if type_ == PARAMETER and graph.value_name[value] >= 0:
                facts["name"] = graph.names[graph.value_name[value]]
        edges.append(GraphEdge(ids[source], ids[target], EDGE_TYPES[type_], shape, facts))
    return edges


@without_collector
def plain_rows(rows: Iterable[GraphNode | GraphEdge]) -> list[dict[str, Any]]:
    """Nodes or edges as JSON data."""
    return [plain(row) for row in rows]


def ids_of(tracked: TrackedGraph) -> list[str]:
    """The identifiers of all nodes."""
    return [
        *tracked.passes,
        *(f"tensor_{value}" for value in tracked.outside.tolist()),
        *(scope_id(tracked, scope) for scope in range(1, tracked.scopes)),
        *(f"op_{node}" for node in range(tracked.ops)),
    ]


def scope_id(tracked: TrackedGraph, scope: int) -> str:
    """The identifier of a call: of a module, or of something else."""
    return f"{'layer' if tracked.kinds[scope] in LAYERS else 'call'}_{scope}"


def scope_name(tracked: TrackedGraph, scope: int) -> str:
    """The name of what a scope is a call of: its path, or its class where it has none."""
    module = tracked.graph.modules[int(tracked.graph.scope_module[scope])]
    return f"{module.type}.step" if module.kind == "optimizer" else module.path or module.type


class _NodeRecords:
    """Makes the records of all nodes, one kind of node after the other."""

    def __init__(self, tracked: TrackedGraph) -> None:
        self.tracked = tracked
        self.graph = tracked.graph
        self.record = tracked.record
        self.ids = ids_of(tracked)
        metrics = tracked.record.trace.metrics
        self.timed, self.metered = "scope_time_ns" in metrics, "alloc_bytes" in metrics
        self.metrics = metrics
        self.parents, self.children = self._neighbours()
        self.layer_names = [
            scope_name(tracked, layer) if layer else None
            for layer in (tracked.layer_of[scope] for scope in range(tracked.scopes))
        ]

    def all(self) -> list[GraphNode]:
        return [*self._passes(), *self._tensors(), *self._scopes(), *self._operations()]

    def _node(self, number: int, name: str, **fields: Any) -> GraphNode:
        kind = TYPES[self.tracked.types[number]]
        parents, children = self.parents[number], self.children[number]
        return GraphNode(self.ids[number], name, kind, parent_ids=parents, child_ids=children, **fields)

    def _neighbours(self) -> tuple[list[list[str]], list[list[str]]]:
        source, target = self.tracked.neighbours
        parents: list[list[str]] = [[] for _ in self.ids]
        children: list[list[str]] = [[] for _ in self.ids]
        for start, end in zip(source.tolist(), target.tolist()):
            children[start].append(self.ids[end])
            parents[end].append(self.ids[start])
        return parents, children

    # ---------------------------------------------------------------- passes

    def _passes(self) -> list[GraphNode]:
        nodes = []
        for number, name in enumerate(self.tracked.passes):
            inputs, outputs = self._pass_shapes(name)
            start, time = self._pass_times(number, name)
            nodes.append(
                self._node(
                    number,
                    name,
                    input_shapes=inputs,
                    output_shapes=outputs,
                    execution_time=time,
                    memory_usage=self._pass_memory(number),
                    metadata={"phase": name},
                    timestamp=start,
                )
            )
        return nodes

    def _pass_shapes(self, name: str) -> tuple[list[Any] | None, list[Any] | None]:
        graph, tracked = self.graph, self.tracked
        if not self.record.operations:
            outermost = [s for s in range(1, tracked.scopes) if not tracked.parents[s]]
            first, last = outermost[:1], outermost[-1:]
            inputs = [shape for s in first for shape in self.record.input_shapes.get(s, [])]
            outputs = [shape for s in last for shape in self.record.output_shapes.get(s, [])]
            return (inputs, outputs) if name == "forward" else (outputs, None)
        if name == "forward":
            values = [v for v in tracked.outside.tolist() if graph.value_role[v] == Role.INPUT]
            return [graph.values[v].shape for v in values], self._result_shapes("output")
        first_op = np.flatnonzero(tracked.is_gradient)[:1].tolist()
        inputs = [value.shape for node in first_op for value in graph.nodes[node].inputs]
        return inputs, self._result_shapes("gradient")

    def _result_shapes(self, kind: str) -> list[tuple[int, ...]]:
        return [row.value.shape for row in self.graph.outcomes if row.kind == kind]

    def _pass_times(self, number: int, name: str) -> tuple[float | None, float | None]:
        """A pass begins with the first thing in it, and lasts as long as all that it directly contains."""
        if not self.timed:
            return None, None
        if not self.record.operations and name == "backward":
            begun = [start for start, _ in self.record.backwards]
            lasted = [time for _, time in self.record.backwards]
            whole = sum(time for time in lasted if time is not None) if None not in lasted else None
            return (min(begun) / 1e9 if begun else None, whole / 1e9 if whole and begun else None)
        scopes, ops = self._contents(number)
        metrics = self.metrics
        starts = [*metrics["scope_start_ns"].values[scopes], *metrics["start_ns"].values[ops]]
        total = metrics["scope_time_ns"].values[scopes].sum() + metrics["time_ns"].values[ops].sum()
        return (float(min(starts)) / 1e9, float(total) / 1e9) if starts else (None, None)

    def _pass_memory(self, number: int) -> int | None:
        if not self.metered:
            return None
        scopes, ops = self._contents(number)
        alloc = self.metrics["alloc_bytes"].values
        return int(alloc[ops].sum() + self._inner_alloc[scopes].sum())

    def _contents(self, number: int) -> tuple[Any, Any]:
        inside = np.flatnonzero(self.tracked.container == number)
        is_op = inside >= self.tracked.first_op
        return inside[~is_op] - self.tracked.first_scope, inside[is_op] - self.tracked.first_op

    # ---------------------------------------------------------------- tensors from outside

    def _tensors(self) -> list[GraphNode]:
        graph, nodes = self.graph, []
        for number, value in enumerate(self.tracked.outside.tolist(), self.tracked.first_tensor):
            row = graph.values[value]
            size = row.type.nbytes
            nodes.append(
                self._node(
                    number,
                    row.name or f"{row.role} {value}",
                    input_shapes=[],
                    output_shapes=[row.shape],
                    memory_usage=size if self.metered else None,
                    metadata={"role": row.role, "dtype": row.dtype, "device": row.device, "layer": None},
                )
            )
        return nodes

    # ---------------------------------------------------------------- calls of modules

    @property
    def _inner_alloc(self) -> Any:
        forward = np.flatnonzero(~self.tracked.is_gradient)
        return self.tracked.sum_inside(self.metrics["alloc_bytes"].values, forward)

    def _scopes(self) -> list[GraphNode]:
        tracked, graph, record, nodes = self.tracked, self.graph, self.record, []
        start = _seconds(self.metrics, "scope_start_ns", tracked.scopes)
        time = _seconds(self.metrics, "scope_time_ns", tracked.scopes)
        memory = self._inner_alloc.astype(np.int64).tolist() if self.metered else [None] * tracked.scopes
        if record.own_bytes is not None:
            memory = [record.own_bytes.get(scope) for scope in range(tracked.scopes)]
        backward = [None] * tracked.scopes
        if self.timed and record.operations:
            behind = np.flatnonzero(tracked.is_gradient)
            backward = (tracked.sum_inside(self.metrics["time_ns"].values, behind) / 1e9).tolist()
        costs = self._inner_costs()
        for scope in range(1, tracked.scopes):
            module = graph.modules[int(graph.scope_module[scope])]
            above = tracked.layer_of[tracked.parents[scope]]
            facts = {
                "class": module.type,
                "kind": module.kind,
                "call": int(graph.scope_call[scope]),
                "layer": scope_id(tracked, above) if above else None,
                "backward_time": backward[scope] if module.kind in LAYERS else None,
                **record.states[scope],
                **costs[scope],
            }
            if record.recomputed[scope]:
                facts["recompute"] = True
            if not record.operations:
                facts["unknown_inputs"] = record.unknown_inputs.get(scope)
            inputs, outputs = record.input_shapes.get(scope), record.output_shapes.get(scope)
            settings = record.facts[scope]
            name = scope_name(tracked, scope)
            nodes.append(
                self._node(
                    tracked.first_scope + scope,
                    f"{module.path} ({module.type})" if module.kind in LAYERS and module.path else name,
                    module_name=self.layer_names[scope],
                    input_shapes=None if inputs is None else list(inputs),
                    output_shapes=None if outputs is None else list(outputs),
                    parameters=None if settings is None else dict(settings),
                    execution_time=time[scope],
                    memory_usage=memory[scope],
                    metadata=facts,
                    timestamp=start[scope],
                )
            )
        return nodes

    def _inner_costs(self) -> list[dict[str, int | None]]:
        """For each call, the known costs of the forward operations in it, and of how many each is not known."""
        tracked = self.tracked
        if not self.record.operations:
            return [{key: None for name in COSTS for key in (name, f"unknown_{name}")}] * tracked.scopes
        forward = np.flatnonzero(~tracked.is_gradient)
        count = tracked.sum_inside(np.ones(tracked.ops), forward).astype(np.int64)
        columns: dict[str, list[Any]] = {}
        for name in COSTS:
            values, known = known_costs(tracked, name)
            unknown = tracked.sum_inside(~known, forward).astype(np.int64)
            sums = tracked.sum_inside(np.where(known, values, 0), forward).astype(np.int64).tolist()
            none = ((unknown == count) & (count > 0)).tolist()
            columns[name] = [None if nothing else total for nothing, total in zip(none, sums, strict=True)]
            columns[f"unknown_{name}"] = unknown.tolist()
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    # ---------------------------------------------------------------- operations

    def _operations(self) -> list[GraphNode]:
        tracked, graph, metrics = self.tracked, self.graph, self.metrics
        shapes = [type_.shape for type_ in graph.types]
        dtypes = [type_.dtype for type_ in graph.types]
        calls = [
            {"op": call.op.partition(".")[0], "overload": call.op, "code": call.format()}
            for call in graph.calls
        ]
        names = [short_name(call.op) for call in graph.calls]
        flags = [[flag.name.lower() for flag in Flag if bits & flag] for bits in range(256)]
        sites = [str(site) for site in graph.sites] + [None]
        in_type = graph.value_type[graph.in_value].tolist()
        out_type = graph.value_type[graph.out_value].tolist()
        in_slot, ins, outs = graph.in_slot.tolist(), graph.in_start.tolist(), graph.out_start.tolist()
        columns = (
            graph.node_call.tolist(),
            graph.node_scope.tolist(),
            graph.node_site.tolist(),
            graph.node_link.tolist(),
            graph.node_phase.tolist(),
            graph.node_flags.tolist(),
            _seconds(metrics, "start_ns", tracked.ops),
            _seconds(metrics, "time_ns", tracked.ops),
            _plain(metrics, "alloc_bytes", tracked.ops),
            _plain(metrics, "free_bytes", tracked.ops),
            _plain(metrics, "live_bytes", tracked.ops),
            *(metrics[name][:] for name in COSTS),
        )
        nodes = []
        for node, row in enumerate(zip(*columns)):
            call, scope, site, link, phase, bits, start, time, alloc, free, live, flops, macs, moved = row
            inputs = [in_type[i] for i in range(ins[node], ins[node + 1]) if in_slot[i] >= 0]
            outputs = out_type[outs[node] : outs[node + 1]]
            layer = tracked.layer_of[scope]
            facts = {
                **calls[call],
                "phase": PHASES[phase],
                "layer": scope_id(tracked, layer) if layer else None,
                "source": sites[site],
                "dtypes": [dtypes[number] for number in outputs],
                "flags": list(flags[bits]),
                "freed_bytes": free,
                "live_bytes": live,
                "flops": flops,
                "macs": macs,
                "moved_bytes": moved,
            }
            if link >= 0:
                facts["forward_id"] = f"op_{link}"
            nodes.append(
                self._node(
                    tracked.first_op + node,
                    names[call],
                    module_name=self.layer_names[scope],
                    input_shapes=[shapes[number] for number in inputs],
                    output_shapes=[shapes[number] for number in outputs],
                    execution_time=time,
                    memory_usage=alloc,
                    metadata=facts,
                    timestamp=start,
                )
            )
        return nodes


def is_operation(node: GraphNode) -> bool:
    """Whether a node is one operation, and not a pass, a call that contains operations, or a tensor."""
    return node.id.startswith("op_")


def known_costs(tracked: TrackedGraph, name: str) -> tuple[Any, Any]:
    """A cost of every operation, and whether it is known."""
    column = tracked.record.trace.metrics[name]
    return column.values, column.known_rows


def _seconds(metrics: Any, name: str, count: int) -> list[float | None]:
    seconds: list[float | None] = (metrics[name].values / 1e9).tolist() if name in metrics else [None] * count
    return seconds


def _plain(metrics: Any, name: str, count: int) -> list[int | None]:
    column: list[int | None] = metrics[name].values.tolist() if name in metrics else [None] * count
    return column


# ---------------------------------------------------------------- figures


OUTSIDE = "(outside of all layers)"
SLOWEST = 10
OF_OPERATIONS = frozenset({"tensor_op", "gradient_op", "memory_op", "parameter", "shape_flow"})


def summary_of(tracked: TrackedGraph) -> dict[str, Any]:
    """The figures of a whole run; what was not tracked is None."""
    record, trace = tracked.record, tracked.record.trace
    metrics, graph = trace.metrics, trace.graph
    timed = "scope_time_ns" in metrics
    phases = np.bincount(graph.node_phase, minlength=len(Phase)).tolist()
    return {
        "model": trace.meta.get("model"),
        "total_nodes": tracked.count,
        "total_edges": len(tracked.edges.source),
        "total_operations": tracked.ops if record.operations else None,
        "total_layers": sum(kind in ("module", "compiled") for kind in tracked.kinds),
        "operation_types": _count(tracked.types, [kind.value for kind in TYPES], tracked),
        "edge_types": _count(tracked.edges.type, EDGE_TYPES, tracked),
        "operations_by_phase": {phase.name.lower(): phases[phase] for phase in Phase}
        if record.operations
        else None,
        "execution_time": int(metrics["scope_time_ns"][0]) / 1e9 if timed else None,
        "backward": "backward" in tracked.passes,
        "memory_usage": None if (memory := memory_of(tracked)) is None else memory["peak_bytes"],
        "memory": memory,
        **_costs(tracked),
        "total_parameters": record.parameters[0] if record.parameters else None,
        "trainable_parameters": record.parameters[1] if record.parameters else None,
        "devices": list(record.devices),
        "limits": list(trace.limits),
    }


def _costs(tracked: TrackedGraph) -> dict[str, int | None]:
    """What all operations computed and moved, as far as that is known, and of how many it is not."""
    costs: dict[str, int | None] = {}
    for name in COSTS:
        column = tracked.record.trace.metrics[name]
        seen = tracked.record.operations
        costs[f"total_{name}"] = column.total() if seen else None  # type: ignore[assignment]
        costs[f"unknown_{name}"] = column.uncovered if seen else None
    return costs


def memory_of(tracked: TrackedGraph) -> dict[str, int | None] | None:
    """Bytes that tensors held along the run; None where memory was not tracked."""
    metrics, record = tracked.record.trace.metrics, tracked.record
    # Calls alone: what they allocate inside is not known, so no peak is.
    if record.own_bytes is not None:
        return {**dict.fromkeys(MEMORY), "layer_results_bytes": record.result_bytes}
    if "alloc_bytes" not in metrics:
        return None
    alloc, free, live = (metrics[name].values for name in ("alloc_bytes", "free_bytes", "live_bytes"))
    start = int(live[0] - alloc[0] + free[0]) if len(live) else 0
    peak = peak_memory(metrics)
    most = 0 if peak is None else peak.size_bytes
    figures = (start, int(alloc.sum()), int(free.sum()), most, int(live[-1]) if len(live) else 0)
    return dict(zip(MEMORY, figures, strict=True))


MEMORY = ("start_bytes", "allocated_bytes", "freed_bytes", "peak_bytes", "end_bytes")


def performance_of(tracked: TrackedGraph, nodes: Sequence[GraphNode]) -> dict[str, Any]:
    """Speed and memory: per second, by type of operation, by operator, and the slowest ones."""
    figures = summary_of(tracked)
    operations = [node for node in nodes if is_operation(node)]
    time = figures["execution_time"]
    slowest = sorted(operations, key=lambda node: node.execution_time or 0.0, reverse=True)[:SLOWEST]
    shown = ("id", "name", "operation_type", "module_name", "input_shapes", "output_shapes", "execution_time")
    by_type = _totals(operations, [node.operation_type.value for node in operations])
    return {
        "operations_per_second": len(operations) / time if time else None,
        "execution_time": time,
        "operation_time": sum(node.execution_time or 0.0 for node in operations),
        "memory_usage": figures["memory_usage"],
        "memory": figures["memory"],
        "by_operation_type": by_type,
        "by_operator": _totals(operations, [node.name for node in operations]),
        "slowest_operations": [{key: plain(node)[key] for key in shown} for node in slowest],
    }


def layers_of(tracked: TrackedGraph, nodes: Sequence[GraphNode]) -> dict[str, list[dict[str, Any]]]:
    """By layer name: its own calls, then every operation that ran in it and in no layer inside, gradients included."""
    layers: dict[str, list[dict[str, Any]]] = {}
    outermost = {f"op_{node}": name for node, name in _steps(tracked).items()}
    for node in nodes[tracked.first_scope + 1 :]:
        name = node.module_name or outermost.get(node.id)
        if name is None and not is_operation(node):
            name = node.name
        layers.setdefault(name or OUTSIDE, []).append(plain(node))
    return layers


def _steps(tracked: TrackedGraph) -> dict[int, str]:
    """The operations that ran in the step of an optimizer, and its name."""
    graph = tracked.graph
    step = graph.tree.nearest(np.array([kind == "optimizer" for kind in tracked.kinds], dtype=bool))
    steps = step[graph.node_scope].tolist()
    return {node: scope_name(tracked, scope) for node, scope in enumerate(steps) if scope >= 0}


def _count(column: Any, names: Sequence[str], tracked: TrackedGraph) -> dict[str, int]:
    """How often each name occurs; those that only operations have are left out where none were tracked."""
    counts = dict(zip(names, np.bincount(column, minlength=len(names)).tolist(), strict=True))
    return {name: n for name, n in counts.items() if tracked.record.operations or name not in OF_OPERATIONS}


def _totals(nodes: Sequence[GraphNode], groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Count, time and memory by group, the one that took longest first."""
    totals: dict[str, dict[str, Any]] = {}
    for node, group in zip(nodes, groups, strict=True):
        row = totals.setdefault(group, {"count": 0, "execution_time": 0.0, "memory_usage": 0})
        row["count"] += 1
        row["execution_time"] += node.execution_time or 0.0
        row["memory_usage"] += node.memory_usage or 0
    return dict(sorted(totals.items(), key=lambda item: -item[1]["execution_time"]))
