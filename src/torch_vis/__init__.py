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
    from torch_vis.analysis.calibration import load_calibration as load_calibration
    from torch_vis.analysis.hardware import Hardware as Hardware
    from torch_vis.analysis.hardware import known_hardware as known_hardware
    from torch_vis.analysis.hardware import register_hardware as register_hardware
    from torch_vis.calibrating import calibrate as calibrate
    from torch_vis.comparing import Comparison as Comparison
    from torch_vis.comparing import compare as compare
    from torch_vis.frontends.backtrace import DLBacktrace as DLBacktrace
    from torch_vis.frontends.captures import compare_captures as compare_captures
    from torch_vis.frontends.dynamo import DynamoGraphExtractor as DynamoGraphExtractor
    from torch_vis.frontends.dynamo import SubgraphDescriptor as SubgraphDescriptor
    from torch_vis.frontends.dynamo import TensorDescriptor as TensorDescriptor
    from torch_vis.frontends.dynamo import analyze_memory_timeline as analyze_memory_timeline
    from torch_vis.frontends.dynamo import get_tensor_size as get_tensor_size
    from torch_vis.frontends.dynamo import is_last_use as is_last_use
    from torch_vis.frontends.dynamo import save_graph_to_file as save_graph_to_file
    from torch_vis.frontends.dynamo import trace_model_with_dynamo as trace_model_with_dynamo
    from torch_vis.frontends.explorer import ModuleInfo as ModuleInfo
    from torch_vis.frontends.explorer import analyze_memory_usage as analyze_memory_usage
    from torch_vis.frontends.explorer import explore_model as explore_model
    from torch_vis.frontends.explorer import explore_torch_module as explore_torch_module
    from torch_vis.frontends.explorer import export_model_summary as export_model_summary
    from torch_vis.frontends.explorer import format_param_count as format_param_count
    from torch_vis.frontends.explorer import format_shape as format_shape
    from torch_vis.frontends.explorer import format_time as format_time
    from torch_vis.frontends.explorer import get_forward_stats as get_forward_stats
    from torch_vis.frontends.explorer import get_parameter_statistics as get_parameter_statistics
    from torch_vis.frontends.explorer import (
        record_torch_module_forward_stats as record_torch_module_forward_stats,
    )
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
    from torch_vis.reports.allocator import measure_memory as measure_memory
    from torch_vis.reports.batch import analyze_batch_size as analyze_batch_size
    from torch_vis.reports.compiled import compiled_kernels as compiled_kernels
    from torch_vis.reports.latency import predict_latency as predict_latency
    from torch_vis.reports.pruning import analyze_pruning as analyze_pruning
    from torch_vis.reports.quantization import analyze_quantization as analyze_quantization
    from torch_vis.tracing import Trace as Trace
    from torch_vis.tracing import load as load
    from torch_vis.tracing import record as record
    from torch_vis.tracing import trace as trace
    from torch_vis.views.tui.config import ExplorerConfig as ExplorerConfig

__version__ = "0.1.0"

_PUBLIC = {
    "Comparison": "torch_vis.comparing",
    "ComputationalGraphTracker": "torch_vis.frontends.tracking",
    "DLBacktrace": "torch_vis.frontends.backtrace",
    "DynamoGraphExtractor": "torch_vis.frontends.dynamo",
    "ExplorerConfig": "torch_vis.views.tui.config",
    "Graph": "torch_vis.graph.graph",
    "GraphEdge": "torch_vis.frontends.tracking",
    "GraphNode": "torch_vis.frontends.tracking",
    "Hardware": "torch_vis.analysis.hardware",
    "Metrics": "torch_vis.graph.metrics",
    "ModuleInfo": "torch_vis.frontends.explorer",
    "OperationType": "torch_vis.frontends.tracking",
    "SubgraphDescriptor": "torch_vis.frontends.dynamo",
    "TensorDescriptor": "torch_vis.frontends.dynamo",
    "TensorTracer": "torch_vis.frontends.tensor_ids",
    "Trace": "torch_vis.tracing",
    "analyze_batch_size": "torch_vis.reports.batch",
    "analyze_computational_graph_execution": "torch_vis.frontends.tracking",
    "analyze_memory_timeline": "torch_vis.frontends.dynamo",
    "analyze_memory_usage": "torch_vis.frontends.explorer",
    "analyze_pruning": "torch_vis.reports.pruning",
    "analyze_quantization": "torch_vis.reports.quantization",
    "calibrate": "torch_vis.calibrating",
    "compare": "torch_vis.comparing",
    "compare_captures": "torch_vis.frontends.captures",
    "compiled_kernels": "torch_vis.reports.compiled",
    "create_onnx_visualization": "torch_vis.frontends.tensor_ids",
    "errors": "torch_vis",
    "explore_model": "torch_vis.frontends.explorer",
    "explore_torch_module": "torch_vis.frontends.explorer",
    "export_computational_graph": "torch_vis.frontends.tracking",
    "export_model_summary": "torch_vis.frontends.explorer",
    "format_param_count": "torch_vis.frontends.explorer",
    "format_shape": "torch_vis.frontends.explorer",
    "format_time": "torch_vis.frontends.explorer",
    "get_forward_stats": "torch_vis.frontends.explorer",
    "get_operation_sequence": "torch_vis.frontends.tensor_ids",
    "get_parameter_statistics": "torch_vis.frontends.explorer",
    "known_hardware": "torch_vis.analysis.hardware",
    "get_tensor_size": "torch_vis.frontends.dynamo",
    "is_last_use": "torch_vis.frontends.dynamo",
    "load": "torch_vis.tracing",
    "load_calibration": "torch_vis.analysis.calibration",
    "measure_memory": "torch_vis.reports.allocator",
    "predict_latency": "torch_vis.reports.latency",
    "record": "torch_vis.tracing",
    "record_torch_module_forward_stats": "torch_vis.frontends.explorer",
    "register_hardware": "torch_vis.analysis.hardware",
    "save_graph_to_file": "torch_vis.frontends.dynamo",
    "trace": "torch_vis.tracing",
    "trace_model_with_dynamo": "torch_vis.frontends.dynamo",
    "trace_tensor_ids": "torch_vis.frontends.tensor_ids",
    "track_computational_graph_execution": "torch_vis.frontends.tracking",
    "visualize_computational_graph": "torch_vis.frontends.tracking",
}
__all__ = [
    "Comparison",
    "ComputationalGraphTracker",
    "DLBacktrace",
    "DynamoGraphExtractor",
    "ExplorerConfig",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "Hardware",
    "Metrics",
    "ModuleInfo",
    "OperationType",
    "SubgraphDescriptor",
    "TensorDescriptor",
    "TensorTracer",
    "Trace",
    "analyze_batch_size",
    "analyze_computational_graph_execution",
    "analyze_memory_timeline",
    "analyze_memory_usage",
    "analyze_pruning",
    "analyze_quantization",
    "calibrate",
    "compare",
    "compare_captures",
    "compiled_kernels",
    "create_onnx_visualization",
    "errors",
    "explore_model",
    "explore_torch_module",
    "export_computational_graph",
    "export_model_summary",
    "format_param_count",
    "format_shape",
    "format_time",
    "get_forward_stats",
    "get_operation_sequence",
    "get_parameter_statistics",
    "get_tensor_size",
    "is_last_use",
    "known_hardware",
    "load",
    "load_calibration",
    "measure_memory",
    "predict_latency",
    "record",
    "record_torch_module_forward_stats",
    "register_hardware",
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
