"""The graph of one recorded run: columns, tables and nothing of torch."""

from torch_vis.graph.call import Call, Slot, Special
from torch_vis.graph.graph import Graph, GraphBuilder, Node, Result, Scope, Value
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.schema import Site, TensorType

__all__ = [
    "Call",
    "Column",
    "Graph",
    "GraphBuilder",
    "Metrics",
    "Node",
    "Result",
    "Scope",
    "Site",
    "Slot",
    "Special",
    "TensorType",
    "Value",
]
