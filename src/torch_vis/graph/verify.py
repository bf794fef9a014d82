"""The graph's rules, checked a column at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torch_vis.errors import GraphError
from torch_vis.graph.columns import Columns
from torch_vis.graph.schema import COLUMNS, Kind, Phase, Role
from torch_vis.graph.types import Bools


def check(graph: Columns) -> None:
    """Raise ``GraphError`` at the first rule that the graph breaks, naming the node, value or scope."""
    _check_lengths(graph)
    _spans_are_ordered(graph)
    _check_references(graph)
    for rule in RULES:
        rule(graph)


def _sizes(graph: Columns) -> dict[str, int]:
    return {
        "node": len(graph.node_call),
        "input": len(graph.in_value),
        "output": len(graph.out_value),
        "value": len(graph.value_type),
        "storage": len(graph.storage_bytes),
        "scope": len(graph.scope_call),
        "result": len(graph.results),
        "result_input": len(graph.result_value),
        "call": len(graph.calls),
        "type": len(graph.types),
        "site": len(graph.sites),
        "module": len(graph.modules),
        "name": len(graph.names),
        "device": len(graph.devices),
    }


def _check_lengths(graph: Columns) -> None:
    sizes = _sizes(graph)
    for name, spec in COLUMNS.items():
        along, _, extra = spec.along.partition("+")
        expected = sizes[along] + (1 if extra else 0)
        if len(getattr(graph, name)) != expected:
            raise GraphError(f"column {name} has {len(getattr(graph, name))} rows where {expected} belong")


def _check_references(graph: Columns) -> None:
    sizes = _sizes(graph)
    for name, spec in COLUMNS.items():
        if spec.refers is None:
            continue
        column = getattr(graph, name)
        if not len(column):
            continue
        low = -1 if spec.optional else 0
        if column.min() < low or column.max() >= sizes[spec.refers]:
            row = int(np.flatnonzero((column < low) | (column >= sizes[spec.refers]))[0])
            raise GraphError(
                f"{_row_name(graph, spec.along, row)}: {name} is {column[row]}, and there is no such {spec.refers}"
            )


def _row_name(graph: Columns, along: str, row: int) -> str:
    if along == "input":
        return _node(graph, int(graph.in_node[row]))
    if along == "output":
        return _node(graph, int(np.searchsorted(graph.out_start, row, side="right")) - 1)
    if along == "node":
        return _node(graph, row)
    return f"{along} {row}"


def _node(graph: Columns, node: int) -> str:
    call = graph.node_call[node]
    op = graph.calls[call].op if 0 <= call < len(graph.calls) else "?"
    return f"node {node} ({op})"


def _fail(graph: Columns, bad: Bools, what: str, along: str = "node") -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        more = f" (and {len(rows) - 1:,} more)" if len(rows) > 1 else ""
        raise GraphError(f"{_row_name(graph, along, int(rows[0]))} {what}{more}")


def _spans_are_ordered(graph: Columns) -> None:
    for name, total in (
        ("in_start", len(graph.in_value)),
        ("out_start", len(graph.out_value)),
        ("result_start", len(graph.result_value)),
    ):
        start = getattr(graph, name)
        if start[0] != 0 or start[-1] != total or bool((np.diff(start) < 0).any()):
            raise GraphError(f"{name} does not run from 0 to {total} in order")


def _every_value_is_made_once(graph: Columns) -> None:
    made_by = graph.out_node
    _fail(
        graph,
        graph.value_producer[graph.out_value] != made_by,
        "makes a value that names another producer",
        "output",
    )
    counts = np.bincount(graph.out_value, minlength=len(graph.value_type))
    _fail(graph, counts > 1, "is made more than once", "value")
    _fail(
        graph, (counts == 0) & (graph.value_producer >= 0), "names a producer that does not make it", "value"
    )


def _inputs_come_before(graph: Columns) -> None:
    late = graph.value_producer[graph.in_value] >= graph.in_node
    _fail(graph, late, "reads a value that is made by itself or later", "input")
    over = np.flatnonzero(graph.value_carries >= 0)
    if len(over):
        below = graph.value_carries[over]
        bad = np.zeros(len(graph.value_type), dtype=bool)
        bad[over] = (below >= over) | (graph.value_storage[below] != graph.value_storage[over])
        _fail(graph, bad, "carries a later version or one of another storage", "value")


def _slots_match_templates(graph: Columns) -> None:
    slots = np.array([sum(1 for _ in call.slots()) for call in graph.calls], dtype=np.int64)
    named = np.bincount(graph.in_node[graph.in_slot >= 0], minlength=len(graph))
    if len(graph):
        _fail(graph, named != slots[graph.node_call], "has more or fewer tensors than its call has slots")
        top = np.zeros(len(graph), dtype=np.int64)
        np.maximum.at(top, graph.in_node, graph.in_slot.astype(np.int64) + 1)
        _fail(graph, top != named, "has a slot that is filled twice or left empty")
    _fail(graph, graph.in_slot < -1, "has an input slot below -1", "input")


def _links_point_back(graph: Columns) -> None:
    _fail(graph, graph.node_link >= np.arange(len(graph)), "is linked to an operation that comes after it")
    unlinked_phase = (graph.node_link >= 0) & (graph.node_phase != Phase.BACKWARD)
    _fail(graph, unlinked_phase, "is linked to a forward operation but did not run in backward")


def _scopes_nest(graph: Columns) -> None:
    if not len(graph.scope_call):
        raise GraphError("a graph needs scope 0, the whole run")
    _fail(
        graph, graph.scope_parent >= np.arange(len(graph.scope_parent)), "is nested in a later scope", "scope"
    )
    roots = graph.scope_parent < 0
    roots = roots.copy()
    roots[0] = not roots[0]
    _fail(graph, roots, "has no parent", "scope")


def _storages_live(graph: Columns) -> None:
    _fail(graph, graph.storage_bytes < 0, "has a negative size", "storage")
    _fail(graph, graph.storage_death < graph.storage_birth, "dies before it is made", "storage")
    _fail(graph, graph.storage_death > len(graph) + 1, "dies after the end", "storage")
    birth = graph.storage_birth[graph.value_storage]
    born_late = (graph.value_producer >= 0) & (birth > graph.value_producer)
    _fail(graph, born_late, "lies in a storage that is made later", "value")


def _codes_are_known(graph: Columns) -> None:
    for column, codes, along in (
        (graph.node_phase, Phase, "node"),
        (graph.value_role, Role, "value"),
        (graph.in_kind, Kind, "input"),
        (graph.result_kind, Kind, "result input"),
    ):
        if len(column) and (column.min() < 0 or column.max() >= len(codes)):
            _fail(
                graph,
                (column < 0) | (column >= len(codes)),
                f"has an unknown {codes.__name__.lower()}",
                along,
            )


RULES: tuple[Callable[[Columns], None], ...] = (
    _codes_are_known,
    _every_value_is_made_once,
    _inputs_come_before,
    _slots_match_templates,
    _links_point_back,
    _scopes_nest,
    _storages_live,
)
