"""The graph of one recorded run: columns, tables and nothing of torch."""

from torch_vis.graph.builder import GraphBuilder
from torch_vis.graph.call import Call, Slot, Special
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.rows import Node, Result, Scope, Site, TensorType, Value

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
