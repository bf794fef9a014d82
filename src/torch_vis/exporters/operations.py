"""The operations of a graph as named columns, as a pandas table, and with every connection as a networkx graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.errors import optional
from torch_vis.graph import Column, Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Kind, Phase

if TYPE_CHECKING:
    import networkx
    import pandas


def operations(graph: Graph) -> dict[str, tuple[Any, Any]]:
    """For each column its cells, one for every operation, and which are known (None: all, or the cells say so).

    ``shape`` and ``dtype`` are those of the first tensor that the operation makes.
    """
    modules, sites = graph.scope_module[graph.node_scope], graph.node_site
    first = graph.first_output
    type_of_first = np.where(first >= 0, graph.value_type[first], -1) if len(first) else first
    lines = np.array([*(site.line for site in graph.sites), 0], dtype=np.int64)
    return {
        "op": (_take([call.op.partition(".")[0] for call in graph.calls], graph.node_call), None),
        "name": (_take([short_name(call.op) for call in graph.calls], graph.node_call), None),
        "api": (_take(graph.names, graph.node_api), None),
        "phase": (_take([phase.name.lower() for phase in Phase], graph.node_phase), None),
        "path": (_take([module.path for module in graph.modules], modules), None),
        "module": (_take([module.type for module in graph.modules], modules), None),
        "call": (graph.scope_call[graph.node_scope], None),
        "file": (_take([site.file for site in graph.sites], sites), None),
        "line": (lines[sites], sites >= 0),
        "function": (_take([site.function for site in graph.sites], sites), None),
        "shape": (_take([type_.shape for type_ in graph.types], type_of_first), None),
        "dtype": (_take([type_.dtype for type_ in graph.types], type_of_first), None),
        "input_shapes": (_input_shapes(graph), None),
        "link": (graph.node_link, graph.node_link >= 0),
    }


def _take(records: Sequence[Any], numbers: Any) -> Any:
    """One field for every operation; None where the number is -1."""
    # the None at the end is what -1 picks
    table = np.empty(len(records) + 1, dtype=object)
    for number, record in enumerate(records):
        table[number] = record
    return table[numbers]


def _input_shapes(graph: Graph) -> Any:
    shapes = _take([type_.shape for type_ in graph.types], graph.value_type[graph.in_value])
    slots, start = graph.in_slot.tolist(), graph.in_start.tolist()
    by_node = np.empty(len(graph), dtype=object)
    for node in range(len(graph)):
        rows = sorted((slots[row], row) for row in range(start[node], start[node + 1]) if slots[row] >= 0)
        by_node[node] = tuple(shapes[row] for _, row in rows)
    return by_node


class Link(NamedTuple):
    """A tensor that passes from one thing to another; an operation goes by its number, others by ``"value:3"``."""

    source: int | str
    target: int | str
    value: int
    kind: int


def links(graph: Graph) -> Iterator[Link]:
    """Links between operations, from outside to operations, and from either to the results."""
    for row in zip(*(column.tolist() for column in graph.edges()), strict=True):
        yield Link(*row)
    entry = graph.value_producer[graph.in_value] < 0
    rows = (graph.in_node[entry], graph.in_value[entry], graph.in_kind[entry])
    for node, value, kind in zip(*(column.tolist() for column in rows), strict=True):
        yield Link(f"value:{value}", node, value, kind)
    for value in np.flatnonzero(graph.value_carries >= 0).tolist():
        below = int(graph.value_carries[value])
        # laid over a tensor from outside
        if graph.value_producer[below] < 0 <= graph.value_producer[value]:
            yield Link(f"value:{below}", int(graph.value_producer[value]), below, int(Kind.WHOLE))
    for result in graph.outcomes:
        for value, kind in result.sources():
            producer = int(graph.value_producer[value])
            source = producer if producer >= 0 else f"value:{value}"
            yield Link(source, f"result:{result.index}", value, kind)


def to_pandas(run: Run) -> pandas.DataFrame:
    """A ``pandas.DataFrame`` with one row for each operation and a column for each metric; what is not known is NA.

    ``shape`` and ``dtype`` are those of the first tensor that the operation makes.

    >>> import torch, torch_vis as tv
    >>> frame = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).to_pandas()
    >>> frame[["name", "module", "shape"]].values.tolist()
    [['t', 'Linear', (3, 2)], ['addmm', 'Linear', (1, 2)]]
    """
    graph = run.graph
    with optional("pandas"):
        import pandas as pd

    frame: dict[str, Any] = {}
    for name, (cells, known) in operations(graph).items():
        frame[name] = cells if known is None else _optional(pd, cells, known)
    for name, column in run.metrics.items():
        if column.along == "node":
            frame[name] = _metric(pd, column)
    return pd.DataFrame(frame, index=pd.RangeIndex(len(graph), name="node"))


def _optional(pd: Any, numbers: Any, known: Any) -> Any:
    return pd.arrays.IntegerArray(np.where(known, numbers, 0).astype(np.int64), ~known)


def _metric(pd: Any, column: Column) -> Any:
    if column.known is None:
        return column.values
    arrays = {"f": pd.arrays.FloatingArray, "b": pd.arrays.BooleanArray}
    array = arrays.get(column.values.dtype.kind, pd.arrays.IntegerArray)
    return array(column.values.copy(), ~column.known)


def to_networkx(run: Run) -> networkx.MultiDiGraph:
    """A ``networkx.MultiDiGraph`` with an edge for every tensor that passes from one node to another.

    Operations are keyed by their number and have ``kind="operation"``; a tensor from outside is ``"value:12"`` with its
    role as ``kind``; the results of the run are ``"result:0"`` and so on. A metric that is not known is None.

    >>> import torch, torch_vis as tv
    >>> g = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).to_networkx()
    >>> sorted(g.nodes[source]["name"] for source in g.predecessors(1))
    ['bias', 'input', 't']
    """
    graph = run.graph
    with optional("networkx"):
        import networkx as nx
    digraph = nx.MultiDiGraph()
    digraph.add_nodes_from(_operations(run))
    digraph.add_nodes_from(_outside(graph))
    digraph.add_nodes_from(
        (f"result:{result.index}", {"kind": result.kind, "name": result.name, "shape": result.value.shape})
        for result in graph.outcomes
    )
    digraph.add_edges_from(_edges(graph))
    return digraph


def _operations(run: Run) -> list[tuple[int, dict[str, Any]]]:
    columns = {name: column for name, column in run.metrics.items() if column.along == "node"}
    nodes = []
    for node in run.graph.nodes:
        outputs = [value.type for value in node.outputs]
        site = node.site
        nodes.append(
            (
                node.index,
                {
                    **{name: column[node.index] for name, column in columns.items()},
                    "kind": "operation",
                    "op": node.op,
                    "name": node.name,
                    "phase": node.phase,
                    "path": node.path,
                    "site": None if site is None else str(site),
                    "shapes": tuple(type_.shape for type_ in outputs),
                    "dtypes": tuple(type_.dtype for type_ in outputs),
                    "flags": node.flags,
                },
            )
        )
    return nodes


def _outside(graph: Graph) -> list[tuple[str, dict[str, Any]]]:
    return [
        (
            f"value:{value.index}",
            {"kind": value.role, "name": value.name, "shape": value.shape, "dtype": value.dtype},
        )
        for value in graph.inputs
    ]


def _edges(graph: Graph) -> list[tuple[Any, Any, dict[str, Any]]]:
    kinds = [kind.name.lower() for kind in Kind]
    types = [graph.types[number] for number in graph.value_type]
    return [
        (
            source,
            target,
            {"value": value, "kind": kinds[kind], "shape": types[value].shape, "dtype": types[value].dtype},
        )
        for source, target, value, kind in links(graph)
    ]
