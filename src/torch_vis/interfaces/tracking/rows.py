"""The tracked graph as objects: one ``GraphNode`` for each number of ``Tracked``, one ``GraphEdge`` for each edge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Flag, Kind, Phase, Role
from torch_vis.interfaces.tracking.collector import collector_paused
from torch_vis.interfaces.tracking.graph import (
    CONTAINMENT,
    EDGE_TYPES,
    LAYER,
    LAYERS,
    LINK,
    PARAMETER,
    TYPES,
    Tracked,
)
from torch_vis.interfaces.tracking.types import GraphEdge, GraphNode, plain

PHASES = [phase.name.lower() for phase in Phase]
ROLES = [role.name.lower() for role in Role]
READS = [kind.name.lower() for kind in Kind]
COSTS = ("flops", "macs", "moved_bytes")


@collector_paused()
def nodes_of(tracked: Tracked) -> list[GraphNode]:
    """Every node with its figures."""
    return _Nodes(tracked).all()


@collector_paused()
def edges_of(tracked: Tracked) -> list[GraphEdge]:
    """Every edge with what passes along it."""
    graph, ids = tracked.graph, ids_of(tracked)
    passed = tracked.record.passed
    made = []
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
        made.append(GraphEdge(ids[source], ids[target], EDGE_TYPES[type_], shape, facts))
    return made


@collector_paused()
def plain_rows(rows: Iterable[GraphNode | GraphEdge]) -> list[dict[str, Any]]:
    """Nodes or edges as JSON data."""
    return [plain(row) for row in rows]


def ids_of(tracked: Tracked) -> list[str]:
    """The identifiers of all nodes."""
    return [
        *tracked.passes,
        *(f"tensor_{value}" for value in tracked.outside.tolist()),
        *(scope_id(tracked, scope) for scope in range(1, tracked.scopes)),
        *(f"op_{node}" for node in range(tracked.ops)),
    ]


def scope_id(tracked: Tracked, scope: int) -> str:
    """The identifier of a call: of a module, or of something else."""
    return f"{'layer' if tracked.kinds[scope] in LAYERS else 'call'}_{scope}"


def scope_name(tracked: Tracked, scope: int) -> str:
    """What a person would call what a scope is a call of: its path, or its class where it has none."""
    module = tracked.graph.modules[int(tracked.graph.scope_module[scope])]
    return f"{module.type}.step" if module.kind == "optimizer" else module.path or module.type


class _Nodes:
    def __init__(self, tracked: Tracked) -> None:
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

    def _make(self, number: int, name: str, **fields: Any) -> GraphNode:
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
        made = []
        for number, name in enumerate(self.tracked.passes):
            taken, given = self._pass_shapes(name)
            start, time = self._pass_times(number, name)
            made.append(
                self._make(
                    number,
                    name,
                    input_shapes=taken,
                    output_shapes=given,
                    execution_time=time,
                    memory_usage=self._pass_memory(number),
                    metadata={"phase": name},
                    timestamp=start,
                )
            )
        return made

    def _pass_shapes(self, name: str) -> tuple[list[Any] | None, list[Any] | None]:
        graph, tracked = self.graph, self.tracked
        if not self.record.operations:
            outermost = [s for s in range(1, tracked.scopes) if not tracked.parents[s]]
            first, last = outermost[:1], outermost[-1:]
            taken = [shape for s in first for shape in self.record.taken.get(s, [])]
            given = [shape for s in last for shape in self.record.given.get(s, [])]
            return (taken, given) if name == "forward" else (given, None)
        if name == "forward":
            inputs = [v for v in tracked.outside.tolist() if graph.value_role[v] == Role.INPUT]
            return [graph.values[v].shape for v in inputs], self._result_shapes("output")
        first_op = np.flatnonzero(tracked.is_gradient)[:1].tolist()
        taken = [value.shape for node in first_op for value in graph.nodes[node].inputs]
        return taken, self._result_shapes("gradient")

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
        graph, made = self.graph, []
        for place, value in enumerate(self.tracked.outside.tolist()):
            row = graph.values[value]
            size = row.type.nbytes
            made.append(
                self._make(
                    self.tracked.first_tensor + place,
                    row.name or f"{row.role} {value}",
                    input_shapes=[],
                    output_shapes=[row.shape],
                    memory_usage=size if self.metered else None,
                    metadata={"role": row.role, "dtype": row.dtype, "device": row.device, "layer": None},
                )
            )
        return made

    # ---------------------------------------------------------------- calls of modules

    @property
    def _inner_alloc(self) -> Any:
        forward = np.flatnonzero(~self.tracked.is_gradient)
        return self.tracked.sum_inside(self.metrics["alloc_bytes"].values, forward)

    def _scopes(self) -> list[GraphNode]:
        tracked, graph, record, made = self.tracked, self.graph, self.record, []
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
            if record.again[scope]:
                facts["recompute"] = True
            if not record.operations:
                facts["unknown_inputs"] = record.unknown.get(scope)
            taken, given = self._border(scope)
            name = scope_name(tracked, scope)
            made.append(
                self._make(
                    tracked.first_scope + scope,
                    f"{module.path} ({module.type})" if module.kind in LAYERS and module.path else name,
                    module_name=self.layer_names[scope],
                    input_shapes=taken,
                    output_shapes=given,
                    parameters=dict(found) if (found := record.facts[scope]) is not None else None,
                    execution_time=time[scope],
                    memory_usage=memory[scope],
                    metadata=facts,
                    timestamp=start[scope],
                )
            )
        return made

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

    def _border(self, scope: int) -> tuple[list[Any] | None, list[Any] | None]:
        """What a call took and gave; a call that raised, and one that is no module's, has given nothing known."""
        taken, given = self.record.taken.get(scope), self.record.given.get(scope)
        return (None if taken is None else list(taken)), (None if given is None else list(given))

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
        in_type, out_type = (
            graph.value_type[graph.in_value].tolist(),
            graph.value_type[graph.out_value].tolist(),
        )
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
        made = []
        for node, row in enumerate(zip(*columns)):
            call, scope, site, link, phase, bits, start, time, alloc, free, live, flops, macs, moved = row
            taken = [in_type[i] for i in range(ins[node], ins[node + 1]) if in_slot[i] >= 0]
            given = out_type[outs[node] : outs[node + 1]]
            layer = tracked.layer_of[scope]
            facts = {
                **calls[call],
                "phase": PHASES[phase],
                "layer": scope_id(tracked, layer) if layer else None,
                "source": sites[site],
                "dtypes": [dtypes[number] for number in given],
                "flags": list(flags[bits]),
                "freed_bytes": free,
                "live_bytes": live,
                "flops": flops,
                "macs": macs,
                "moved_bytes": moved,
            }
            if link >= 0:
                facts["forward_id"] = f"op_{link}"
            made.append(
                self._make(
                    tracked.first_op + node,
                    names[call],
                    module_name=self.layer_names[scope],
                    input_shapes=[shapes[number] for number in taken],
                    output_shapes=[shapes[number] for number in given],
                    execution_time=time,
                    memory_usage=alloc,
                    metadata=facts,
                    timestamp=start,
                )
            )
        return made


def is_operation(node: GraphNode) -> bool:
    """Whether a node is one operation, and not a pass, a call that contains operations, or a tensor."""
    return node.id.startswith("op_")


def known_costs(tracked: Tracked, name: str) -> tuple[Any, Any]:
    """A cost of every operation, and whether it is known."""
    column = tracked.record.trace.metrics[name]
    return column.values, np.ones(tracked.ops, dtype=bool) if column.known is None else column.known


def _seconds(metrics: Any, name: str, count: int) -> list[float | None]:
    if name not in metrics:
        return [None] * count
    found: list[float | None] = (metrics[name].values / 1e9).tolist()
    return found


def _plain(metrics: Any, name: str, count: int) -> list[int | None]:
    found: list[int | None] = metrics[name].values.tolist() if name in metrics else [None] * count
    return found
