"""The graph's rules, checked a column at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torch_vis.errors import GraphError, shortened
from torch_vis.graph.columns import Columns
from torch_vis.graph.schema import COLUMNS, Kind, Phase, Role, TensorType
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
        "group": len(graph.groups),
        "placement": len(graph.placements),
        "comm": len(graph.comm_node),
        "wait": len(graph.wait_node),
        "resize": len(graph.resize_node),
        "placed": len(graph.placed_value),
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
    op = shortened(graph.calls[call].op) if 0 <= call < len(graph.calls) else "?"
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
    numbers = [[*call.slots()] for call in graph.calls]
    for call, of_call in enumerate(numbers):
        if set(of_call) != set(range(len(of_call))):
            raise GraphError(
                f"call {call} ({shortened(graph.calls[call].op)}) leaves out a slot or has one twice"
            )
    slots = np.array([len(of_call) for of_call in numbers], dtype=np.int64)
    named = np.bincount(graph.in_node[graph.in_slot >= 0], minlength=len(graph))
    if len(graph):
        _fail(graph, named != slots[graph.node_call], "has more or fewer tensors than its call has slots")
        top = np.zeros(len(graph), dtype=np.int64)
        np.maximum.at(top, graph.in_node, graph.in_slot.astype(np.int64) + 1)
        _fail(graph, top != named, "has a slot that is filled twice or left empty")
    _fail(graph, graph.in_slot < -1, "has an input slot below -1", "input")


def _outputs_have_slots(graph: Columns) -> None:
    returned = graph.out_slot >= 0
    counts = np.bincount(graph.out_node[returned], minlength=len(graph))
    top = np.zeros(len(graph), dtype=np.int64)
    np.maximum.at(top, graph.out_node[returned], graph.out_slot[returned].astype(np.int64) + 1)
    _fail(graph, top != counts, "returns a tensor twice or leaves one out")
    named = np.bincount(graph.in_node[graph.in_slot >= 0], minlength=len(graph))
    beyond = -graph.out_slot.astype(np.int64) > named[graph.out_node]
    _fail(graph, beyond, "writes to a tensor that it does not have", "output")


def _links_point_back(graph: Columns) -> None:
    _fail(graph, graph.node_link >= np.arange(len(graph)), "is linked to an operation that comes after it")
    unlinked_phase = (graph.node_link >= 0) & (graph.node_phase != Phase.BACKWARD)
    _fail(graph, unlinked_phase, "is linked to a forward operation but did not run in backward")


def _calls_point_back(graph: Columns) -> None:
    first = graph.node_api_first
    _fail(graph, first > np.arange(len(graph)), "is in a call of a function that begins after it")
    _fail(graph, (first >= 0) != (graph.node_api >= 0), "is in a call of no function, or in no call of one")
    begins = np.where(first >= 0, first, np.arange(len(graph)))
    inner = (first >= 0) & ((first[begins] != first) | (graph.node_api[begins] != graph.node_api))
    _fail(graph, inner, "is in a call of a function that begins in another")


def _scopes_nest(graph: Columns) -> None:
    if not len(graph.scope_call):
        raise GraphError("a graph needs scope 0, the whole run")
    _fail(
        graph, graph.scope_parent >= np.arange(len(graph.scope_parent)), "is nested in a later scope", "scope"
    )
    _fail(graph, graph.scope_call < 0, "has a negative number", "scope")
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
    total = float(graph.storage_bytes.sum(dtype=np.float64))
    if total >= 2.0**63:
        raise GraphError(f"the storages have {total:.3g} bytes together, which no machine has")


def _values_lie_in_their_storage(graph: Columns) -> None:
    sizes = [_reach(row) for row in graph.types]
    reach = np.array([elements for elements, _ in sizes], dtype=np.float64)[graph.value_type]
    itemsize = np.array([size for _, size in sizes], dtype=np.float64)[graph.value_type]
    _fail(graph, graph.value_offset < 0, "begins before its storage", "value")
    has_offset = np.array([row.layout == "strided" for row in graph.types], dtype=bool)[graph.value_type]
    _fail(
        graph,
        ~has_offset & (graph.value_offset != 0),
        "has an offset, but no plain memory to lie in",
        "value",
    )
    # floats, since a file may say anything: what is too large for an integer must not wrap around
    end = np.where(reach > 0, (graph.value_offset + reach) * itemsize, 0)
    size = graph.storage_bytes[graph.value_storage]
    # without a size: tensors that have no plain memory, and in a union what only the earlier run had
    _fail(graph, (end > size) & (size > 0), "reaches beyond its storage", "value")


def _waits_come_after(graph: Columns) -> None:
    late = graph.wait_node <= graph.comm_node[graph.wait_comm]
    _fail(graph, late, "waits for an operation that comes after it", "wait")
    _fail(graph, np.diff(graph.comm_node) <= 0, "is not in the order of operations", "comm")


def _sizes_change_in_order(graph: Columns) -> None:
    _fail(graph, graph.resize_bytes < 0, "gives a block a negative size", "resize")
    _fail(graph, (graph.resize_node < 0) | (graph.resize_node > len(graph)), "is at no operation", "resize")
    _fail(graph, np.diff(graph.resize_node) < 0, "is not in the order of operations", "resize")


def _results_are_values(graph: Columns) -> None:
    _fail(graph, np.diff(graph.result_start) == 0, "rests on no value", "result")


def _reach(row: TensorType) -> tuple[float, int]:
    """How many elements a tensor reaches from its offset on, and their size; nothing where it has no plain memory."""
    if row.layout != "strided" or row.itemsize is None or 0 in row.shape:
        return 0.0, 1
    return 1.0 + sum((size - 1) * float(step) for size, step in zip(row.shape, row.stride)), row.itemsize


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
    _outputs_have_slots,
    _links_point_back,
    _calls_point_back,
    _scopes_nest,
    _storages_live,
    _values_lie_in_their_storage,
    _results_are_values,
    _waits_come_after,
    _sizes_change_in_order,
)
