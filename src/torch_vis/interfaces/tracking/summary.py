"""What a tracked run comes to: the summary, the performance figures, and the operations by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_vis.graph.lifetimes import peak_memory
from torch_vis.graph.schema import Phase
from torch_vis.interfaces.tracking.graph import COSTS, EDGE_TYPES, TYPES, Tracked, is_operation, scope_name
from torch_vis.interfaces.tracking.types import GraphNode, plain

OUTSIDE = "(outside of all layers)"
SLOWEST = 10
OF_OPERATIONS = frozenset({"tensor_op", "gradient_op", "memory_op", "parameter", "shape_flow"})


def summary_of(tracked: Tracked) -> dict[str, Any]:
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


def _costs(tracked: Tracked) -> dict[str, int | None]:
    """What all operations computed and moved, as far as that is known, and of how many it is not."""
    found: dict[str, int | None] = {}
    for name in COSTS:
        column = tracked.record.trace.metrics[name]
        seen = tracked.record.operations
        found[f"total_{name}"] = column.total() if seen else None  # type: ignore[assignment]
        found[f"unknown_{name}"] = column.uncovered if seen else None
    return found


def memory_of(tracked: Tracked) -> dict[str, int | None] | None:
    """Bytes that tensors held along the run; None where memory was not tracked."""
    metrics, record = tracked.record.trace.metrics, tracked.record
    if record.own_bytes is not None:  # calls alone: what they allocate inside is not known, so no peak is
        return {**dict.fromkeys(MEMORY), "layer_results_bytes": record.made_bytes}
    if "alloc_bytes" not in metrics:
        return None
    alloc, free, live = (metrics[name].values for name in ("alloc_bytes", "free_bytes", "live_bytes"))
    start = int(live[0] - alloc[0] + free[0]) if len(live) else 0
    peak = peak_memory(metrics)
    most = 0 if peak is None else peak.size_bytes
    figures = (start, int(alloc.sum()), int(free.sum()), most, int(live[-1]) if len(live) else 0)
    return dict(zip(MEMORY, figures, strict=True))


MEMORY = ("start_bytes", "allocated_bytes", "freed_bytes", "peak_bytes", "end_bytes")


def performance_of(tracked: Tracked, nodes: Sequence[GraphNode]) -> dict[str, Any]:
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


def layers_of(tracked: Tracked, nodes: Sequence[GraphNode]) -> dict[str, list[dict[str, Any]]]:
    """By layer name: its own calls, then every operation that ran in it and in no layer inside, gradients included."""
    found: dict[str, list[dict[str, Any]]] = {}
    outermost = {f"op_{node}": name for node, name in _steps(tracked).items()}
    for node in nodes[tracked.first_scope + 1 :]:
        name = node.module_name or outermost.get(node.id)
        if name is None and not is_operation(node):
            name = node.name
        found.setdefault(name or OUTSIDE, []).append(plain(node))
    return found


def _steps(tracked: Tracked) -> dict[int, str]:
    """The operations that ran in the step of an optimizer, and its name."""
    graph = tracked.graph
    steps: dict[int, str] = {}
    for scope, kind in enumerate(tracked.kinds):
        if kind == "optimizer":
            steps[scope] = scope_name(tracked, scope)
        elif scope and tracked.parents[scope] in steps:
            steps[scope] = steps[tracked.parents[scope]]
    inside = np.flatnonzero(np.isin(graph.node_scope, list(steps)))
    return {node: steps[int(graph.node_scope[node])] for node in inside.tolist()}


def _count(column: Any, names: Sequence[str], tracked: Tracked) -> dict[str, int]:
    """How often each name occurs; those that only operations have are left out where none were tracked."""
    counts = dict(zip(names, np.bincount(column, minlength=len(names)).tolist(), strict=True))
    return {name: n for name, n in counts.items() if tracked.record.operations or name not in OF_OPERATIONS}


def _totals(nodes: Sequence[GraphNode], groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Count, time and memory by group, the one that took longest first."""
    found: dict[str, dict[str, Any]] = {}
    for node, group in zip(nodes, groups, strict=True):
        row = found.setdefault(group, {"count": 0, "execution_time": 0.0, "memory_usage": 0})
        row["count"] += 1
        row["execution_time"] += node.execution_time or 0.0
        row["memory_usage"] += node.memory_usage or 0
    return dict(sorted(found.items(), key=lambda item: -item[1]["execution_time"]))
