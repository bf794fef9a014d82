"""torch_vis shows what a PyTorch model does: one call records a real run, and everything else reads that record.

>>> import torch, torch_vis as tv
>>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
>>> [node.op for node in t.graph.nodes]
['aten::t', 'aten::addmm']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_vis import errors as errors
    from torch_vis.frontends.dynamo import DynamoGraphExtractor as DynamoGraphExtractor
    from torch_vis.frontends.dynamo import SubgraphDescriptor as SubgraphDescriptor
    from torch_vis.frontends.dynamo import TensorDescriptor as TensorDescriptor
    from torch_vis.frontends.dynamo import analyze_memory_timeline as analyze_memory_timeline
    from torch_vis.frontends.dynamo import save_graph_to_file as save_graph_to_file
    from torch_vis.frontends.dynamo import trace_model_with_dynamo as trace_model_with_dynamo
    from torch_vis.frontends.backtrace import DLBacktrace as DLBacktrace
    from torch_vis.frontends.tensor_ids import TensorTracer as TensorTracer
    from torch_vis.frontends.tensor_ids import create_onnx_visualization as create_onnx_visualization
    from torch_vis.frontends.tensor_ids import get_operation_sequence as get_operation_sequence
    from torch_vis.frontends.tensor_ids import trace_tensor_ids as trace_tensor_ids
    from torch_vis.frontends.tracking import ComputationalGraphTracker as ComputationalGraphTracker
    from torch_vis.frontends.tracking import GraphEdge as GraphEdge
    from torch_vis.frontends.tracking import GraphNode as GraphNode
    from torch_vis.frontends.tracking import OperationType as OperationType
    from torch_vis.frontends.tracking import (
        analyze_computational_graph_execution as analyze_computational_graph_execution,
    )
    from torch_vis.frontends.tracking import export_computational_graph as export_computational_graph
    from torch_vis.frontends.tracking import (
        track_computational_graph_execution as track_computational_graph_execution,
    )
    from torch_vis.frontends.tracking import visualize_computational_graph as visualize_computational_graph
    from torch_vis.graph.graph import Graph as Graph
    from torch_vis.graph.metrics import Metrics as Metrics
    from torch_vis.tracing import Trace as Trace
    from torch_vis.tracing import load as load
    from torch_vis.tracing import record as record
    from torch_vis.tracing import trace as trace

__version__ = "0.1.0"

_PUBLIC = {
    "ComputationalGraphTracker": "torch_vis.frontends.tracking",
    "DynamoGraphExtractor": "torch_vis.frontends.dynamo",
    "DLBacktrace": "torch_vis.frontends.backtrace",
    "Graph": "torch_vis.graph.graph",
    "GraphEdge": "torch_vis.frontends.tracking",
    "GraphNode": "torch_vis.frontends.tracking",
    "Metrics": "torch_vis.graph.metrics",
    "OperationType": "torch_vis.frontends.tracking",
    "SubgraphDescriptor": "torch_vis.frontends.dynamo",
    "TensorDescriptor": "torch_vis.frontends.dynamo",
    "TensorTracer": "torch_vis.frontends.tensor_ids",
    "Trace": "torch_vis.tracing",
    "analyze_computational_graph_execution": "torch_vis.frontends.tracking",
    "analyze_memory_timeline": "torch_vis.frontends.dynamo",
    "create_onnx_visualization": "torch_vis.frontends.tensor_ids",
    "errors": "torch_vis",
    "export_computational_graph": "torch_vis.frontends.tracking",
    "get_operation_sequence": "torch_vis.frontends.tensor_ids",
    "load": "torch_vis.tracing",
    "record": "torch_vis.tracing",
    "save_graph_to_file": "torch_vis.frontends.dynamo",
    "trace": "torch_vis.tracing",
    "trace_model_with_dynamo": "torch_vis.frontends.dynamo",
    "trace_tensor_ids": "torch_vis.frontends.tensor_ids",
    "track_computational_graph_execution": "torch_vis.frontends.tracking",
    "visualize_computational_graph": "torch_vis.frontends.tracking",
}
__all__ = [
    "ComputationalGraphTracker",
    "DynamoGraphExtractor",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "Metrics",
    "OperationType",
    "SubgraphDescriptor",
    "TensorDescriptor",
    "TensorTracer",
    "Trace",
    "analyze_computational_graph_execution",
    "analyze_memory_timeline",
    "create_onnx_visualization",
    "errors",
    "export_computational_graph",
    "get_operation_sequence",
    "load",
    "record",
    "save_graph_to_file",
    "trace",
    "trace_model_with_dynamo",
    "trace_tensor_ids",
    "track_computational_graph_execution",
    "visualize_computational_graph",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("torch_vis.errors")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'torch_vis' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
