"""The graph as a networkx graph: operations, the tensors that came from outside, and what the run gave back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_vis.errors import missing_extra
from torch_vis.exporters.operations import links
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.schema import Kind

if TYPE_CHECKING:
    import networkx


def to_networkx(graph: Graph, metrics: Metrics) -> networkx.MultiDiGraph:
    """A ``networkx.MultiDiGraph`` with an edge for every tensor that passes from one node to another.

    Operations are keyed by their number and have ``kind="operation"``; a tensor from outside is ``"value:12"`` with its
    role as ``kind``; what the run gave back is ``"result:0"``. A metric that is not known is None.

    >>> import torch, torch_vis as tv
    >>> g = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).to_networkx()
    >>> sorted(g.nodes[source]["name"] for source in g.predecessors(1))
    ['bias', 'input', 't']
    """
    try:
        import networkx as nx
    except ImportError as error:
        raise missing_extra("networkx") from error
    digraph = nx.MultiDiGraph()
    digraph.add_nodes_from(_operations(graph, metrics))
    digraph.add_nodes_from(_outside(graph))
    digraph.add_nodes_from(
        (f"result:{result.index}", {"kind": result.kind, "name": result.name, "shape": result.value.shape})
        for result in graph.outcomes
    )
    digraph.add_edges_from(_edges(graph))
    return digraph


def _operations(graph: Graph, metrics: Metrics) -> list[tuple[int, dict[str, Any]]]:
    columns = {name: column for name, column in metrics.items() if column.along == "node"}
    nodes = []
    for node in graph.nodes:
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
