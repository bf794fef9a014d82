"""Which part of a run is meant, and which operations it takes.

``targets`` finds what a module, an operation or a pattern stands for; ``needed_nodes`` and ``only_touched`` which
operations have to run for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import UsageError, no_match
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.schema import Flag, Kind, Phase
from torch_vis.replay.replay import ReplayPlan


class ReplayTarget(NamedTuple):
    """Values under a name, the node after which they are all there, and the nodes that they come from."""

    name: str
    values: tuple[int, ...]
    after: int
    inside: frozenset[int]
    is_module: bool = False


def targets(graph: Graph, wanted: Any) -> list[ReplayTarget]:
    """What a path, a pattern, an operator's name, a node or its number stands for.

    A module stands for the tensors that the rest of the run takes from it, one target for each call.
    """
    if isinstance(wanted, Node):
        wanted = wanted.index
    if isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool):
        if not 0 <= wanted < len(graph):
            raise UsageError(f"no node {wanted}; there are {len(graph):,}, counted from 0")
        return [node_target(graph, int(wanted))]
    if not isinstance(wanted, str):
        raise UsageError(
            f"a module's path, a node or its number is wanted, not {type(wanted).__name__} {wanted!r}"
        )
    modules = [n for n, module in enumerate(graph.modules) if module.kind == "module"]
    hit = [n for n in modules if graph.modules[n].path and fnmatchcase(graph.modules[n].path, wanted)]
    if hit:
        scopes = _outermost(graph, np.flatnonzero(np.isin(graph.scope_module, hit)).tolist())
        ran = [scope for scope in scopes if _runs_forward(graph, scope)]
        # A pattern passes over modules that ran nothing (an eval Dropout); one that is named must have run.
        return [module_target(graph, scope) for scope in (ran or scopes)]
    nodes = [
        node.index for node in graph.nodes if fnmatchcase(node.name, wanted) or fnmatchcase(node.op, wanted)
    ]
    if nodes:
        return [node_target(graph, node) for node in nodes]
    paths = [graph.modules[n].path for n in modules if graph.modules[n].path]
    raise no_match("module or operation", wanted, [*paths, *{node.name for node in graph.nodes}])


def _runs_forward(graph: Graph, scope: int) -> bool:
    inside = within(graph, scope)[graph.node_scope]
    return bool((inside & (graph.node_phase == Phase.FORWARD)).any())


def _outermost(graph: Graph, scopes: list[int]) -> list[int]:
    """One scope for each call: a front-end may open a module anew inside itself."""
    chosen = set(scopes)
    return [s for s in scopes if not _has_above(graph, s, chosen)]


def _has_above(graph: Graph, scope: int, chosen: set[int]) -> bool:
    module = graph.scope_module[scope]
    above = int(graph.scope_parent[scope])
    while above >= 0:
        if above in chosen and graph.scope_module[above] == module:
            return True
        above = int(graph.scope_parent[above])
    return False


def node_target(graph: Graph, node: int, *, backward: bool = True) -> ReplayTarget:
    """What one operation makes; with its backward operations among those that it comes from."""
    row = graph.nodes[node]
    values = tuple(value.index for value in row.outputs)
    linked = np.flatnonzero(graph.node_link == node).tolist() if backward else ()
    return ReplayTarget(f"{row.path}/{row.name}#{node}", values, node, frozenset([node, *linked]))


def module_target(graph: Graph, scope: int) -> ReplayTarget:
    """What the rest of the run takes from one call of a module."""
    row = graph.scopes[scope]
    name = row.path + (f"#{row.call}" if row.call else "")
    inside = within(graph, scope)
    nodes = np.flatnonzero(inside[graph.node_scope])
    forward = nodes[graph.node_phase[nodes] == Phase.FORWARD]
    if not len(forward):
        raise UsageError(
            f"module {row.path!r} ran no operation of its own: what it gives on is what it was given"
        )
    mine = np.zeros(len(graph), dtype=bool)
    mine[forward] = True
    producer = graph.value_producer
    crosses = mine[producer[graph.in_value]] & (producer[graph.in_value] >= 0)
    crosses &= ~inside[graph.node_scope[graph.in_node]] & (graph.in_slot >= 0)
    crosses &= graph.node_phase[graph.in_node] == Phase.FORWARD
    values = set(graph.in_value[crosses].tolist())
    returned = {result.value.index for result in graph.outcomes if result.kind == "output"}
    values |= {v for v in returned if producer[v] >= 0 and mine[producer[v]]}
    if not values:  # nobody takes it: the last thing that it made
        values = set(graph.out_value[slice(*graph.output_span(int(forward[-1])))].tolist())
    return ReplayTarget(
        name, tuple(sorted(values)), int(forward[-1]), frozenset(nodes.tolist()), is_module=True
    )


def gradients(graph: Graph, target: ReplayTarget) -> tuple[int, ...]:
    """The gradients that come into a module's backward from outside."""
    inside = np.zeros(len(graph), dtype=bool)
    inside[list(target.inside)] = True
    producer = graph.value_producer[graph.in_value]
    came = (producer >= 0) & ~inside[producer] & inside[graph.in_node]
    came &= (graph.node_phase[producer] == Phase.BACKWARD) & (
        graph.node_phase[graph.in_node] == Phase.BACKWARD
    )
    return tuple(sorted(set(graph.in_value[came & (graph.in_slot >= 0)].tolist())))


def within(graph: Graph, scope: int) -> Any:
    """A mask of the scopes inside one, itself included."""
    enter, leave = graph.tree.enter, graph.tree.leave
    return (enter[scope] <= enter) & (enter < leave[scope])


def all_nodes(graph: Graph) -> list[ReplayTarget]:
    """Every operation that makes something."""
    makes = np.flatnonzero(np.diff(graph.out_start) > 0).tolist()
    return [node_target(graph, node, backward=False) for node in makes]


def forward_names(target: ReplayTarget) -> list[tuple[str, int]]:
    """The values of a target under the names that they are kept by."""
    return [
        (target.name if number == 0 else f"{target.name}.{number}", value)
        for number, value in enumerate(target.values)
    ]


def gradient_names(graph: Graph, target: ReplayTarget) -> list[tuple[str, int]]:
    """The gradients that come to a module, under the names that they are kept by."""
    values = gradients(graph, target) if target.is_module else ()
    return [
        (f"{target.name}.grad" + (f".{number}" if number else ""), value)
        for number, value in enumerate(values)
    ]


def value_names(graph: Graph, target: ReplayTarget) -> list[tuple[str, int]]:
    """Everything that is kept of a target."""
    return forward_names(target) + gradient_names(graph, target)


def descendants(graph: Graph, values: set[int]) -> Any:
    """A mask of the values that depend on the bytes of the given ones, themselves included."""
    touched = np.zeros(len(graph.value_type), dtype=bool)
    touched[list(values)] = True
    for value in values:  # other tensors from outside on the same memory
        if graph.value_producer[value] < 0:
            touched |= (graph.value_storage == graph.value_storage[value]) & (graph.value_producer < 0)
    reads = graph.in_kind != Kind.SHAPE
    for node in range(len(graph)):
        start, stop = graph.input_span(node)
        outputs = graph.out_value[slice(*graph.output_span(node))]
        if (touched[graph.in_value[start:stop]] & reads[start:stop]).any():
            touched[outputs] = True
            continue
        carried = graph.value_carries[outputs]
        touched[outputs[(carried >= 0) & touched[carried]]] = True
    return touched


def needed_nodes(
    graph: Graph,
    goals: list[int],
    kept: list[ReplayTarget],
    patched: list[ReplayTarget],
    deciding: Sequence[int] = (),
) -> list[int]:
    """The operations that lead to the results that change, to what is kept, replaced or decided by, in order."""
    wanted = [pair for goal in goals for pair in graph.outcomes[goal].sources()]
    wanted += [(value, int(Kind.WHOLE)) for target in patched for value in target.values]
    wanted += [(value, int(Kind.WHOLE)) for target in kept for _, value in value_names(graph, target)]
    for node in deciding:
        span = slice(*graph.input_span(node))
        wanted += [(int(v), int(k)) for v, k in zip(graph.in_value[span], graph.in_kind[span])]
    nodes, _ = graph.ancestors(wanted)
    random = np.flatnonzero(graph.node_flags & Flag.RANDOM)
    if len(random) and nodes[random].any():
        # Each takes the generator as the one before it left it, so those before have to draw as well.
        before = random[: int(np.flatnonzero(nodes[random])[-1]) + 1]
        for node in before[~nodes[before]].tolist():
            outputs = graph.out_value[slice(*graph.output_span(node))].tolist()
            wanted += [(value, int(Kind.WHOLE)) for value in outputs]
        nodes, _ = graph.ancestors(wanted)
    nodes[list(deciding)] = True
    return np.flatnonzero(nodes).tolist()


def only_touched(
    graph: Graph,
    plan: ReplayPlan,
    needed: Sequence[int],
    touched: Any,
    kept: list[ReplayTarget],
    patched: list[ReplayTarget],
    deciding: Sequence[int] = (),
) -> list[int]:
    """Of the needed operations, those that depend on a change, where the memory of a whole run is at hand.

    Memory that is written in place holds only its last version, so whoever touches it brings along all who write it.
    """
    made_by = graph.out_node
    run = np.zeros(len(graph), dtype=bool)
    run[made_by[touched[graph.out_value]]] = True
    asked = [value for target in patched for value in target.values]
    asked += [value for target in kept for _, value in value_names(graph, target)]
    producers = graph.value_producer[asked]
    run[producers[producers >= 0]] = True
    run[[target.after for target in (*patched, *kept)]] = True
    run[list(deciding)] = True
    may = np.zeros(len(graph), dtype=bool)
    may[list(needed)] = True
    run &= may
    written_out = plan.written[graph.value_storage[graph.out_value]]
    written_in = plan.written[graph.value_storage[graph.in_value]]
    while True:
        blocks = np.zeros(len(graph.storage_bytes), dtype=bool)
        blocks[graph.value_storage[graph.out_value[written_out & run[made_by]]]] = True
        blocks[graph.value_storage[graph.in_value[written_in & run[graph.in_node]]]] = True
        more = run.copy()
        more[made_by[blocks[graph.value_storage[graph.out_value]]]] = True
        if (more == run).all():
            return np.flatnonzero(run).tolist()
        run = more
