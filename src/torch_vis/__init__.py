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
    from torch_vis._trace import Trace as Trace
    from torch_vis.analysis.advice.batch_size.report import analyze_batch_size as analyze_batch_size
    from torch_vis.analysis.advice.pruning.report import analyze_pruning as analyze_pruning
    from torch_vis.analysis.advice.quantization.report import analyze_quantization as analyze_quantization
    from torch_vis.analysis.compare.comparison import Comparison as Comparison
    from torch_vis.analysis.compare.comparison import compare as compare
    from torch_vis.analysis.fusion.compiled_kernels import compiled_kernels as compiled_kernels
    from torch_vis.analysis.machine.calibrate import calibrate as calibrate
    from torch_vis.analysis.machine.calibration import load_calibration as load_calibration
    from torch_vis.analysis.machine.hardware import Hardware as Hardware
    from torch_vis.analysis.machine.hardware import known_hardware as known_hardware
    from torch_vis.analysis.machine.hardware import register_hardware as register_hardware
    from torch_vis.analysis.machine.latency import predict_latency as predict_latency
    from torch_vis.analysis.memory.measured import measure_memory as measure_memory
    from torch_vis.api import load as load
    from torch_vis.api import record as record
    from torch_vis.api import trace as trace
    from torch_vis.graph.graph import Graph as Graph
    from torch_vis.graph.metrics import Metrics as Metrics
    from torch_vis.interfaces.backtrace.backtrace import DLBacktrace as DLBacktrace
    from torch_vis.interfaces.captures.captures import compare_captures as compare_captures
    from torch_vis.interfaces.dynamo.extractor import DynamoGraphExtractor as DynamoGraphExtractor
    from torch_vis.interfaces.dynamo.extractor import SubgraphDescriptor as SubgraphDescriptor
    from torch_vis.interfaces.dynamo.extractor import TensorDescriptor as TensorDescriptor
    from torch_vis.interfaces.dynamo.extractor import analyze_memory_timeline as analyze_memory_timeline
    from torch_vis.interfaces.dynamo.extractor import get_tensor_size as get_tensor_size
    from torch_vis.interfaces.dynamo.extractor import is_last_use as is_last_use
    from torch_vis.interfaces.dynamo.extractor import save_graph_to_file as save_graph_to_file
    from torch_vis.interfaces.dynamo.extractor import trace_model_with_dynamo as trace_model_with_dynamo
    from torch_vis.interfaces.explorer.explorer import ModuleInfo as ModuleInfo
    from torch_vis.interfaces.explorer.explorer import analyze_memory_usage as analyze_memory_usage
    from torch_vis.interfaces.explorer.explorer import explore_model as explore_model
    from torch_vis.interfaces.explorer.explorer import explore_torch_module as explore_torch_module
    from torch_vis.interfaces.explorer.explorer import export_model_summary as export_model_summary
    from torch_vis.interfaces.explorer.explorer import format_param_count as format_param_count
    from torch_vis.interfaces.explorer.explorer import format_shape as format_shape
    from torch_vis.interfaces.explorer.explorer import format_time as format_time
    from torch_vis.interfaces.explorer.explorer import get_forward_stats as get_forward_stats
    from torch_vis.interfaces.explorer.explorer import get_parameter_statistics as get_parameter_statistics
    from torch_vis.interfaces.explorer.explorer import (
        record_torch_module_forward_stats as record_torch_module_forward_stats,
    )
    from torch_vis.interfaces.tensor_ids.tracer import TensorTracer as TensorTracer
    from torch_vis.interfaces.tensor_ids.tracer import create_onnx_visualization as create_onnx_visualization
    from torch_vis.interfaces.tensor_ids.tracer import get_operation_sequence as get_operation_sequence
    from torch_vis.interfaces.tensor_ids.tracer import trace_tensor_ids as trace_tensor_ids
    from torch_vis.interfaces.tracking.tracker import ComputationalGraphTracker as ComputationalGraphTracker
    from torch_vis.interfaces.tracking.tracker import GraphEdge as GraphEdge
    from torch_vis.interfaces.tracking.tracker import GraphNode as GraphNode
    from torch_vis.interfaces.tracking.tracker import OperationType as OperationType
    from torch_vis.interfaces.tracking.tracker import (
        analyze_computational_graph_execution as analyze_computational_graph_execution,
    )
    from torch_vis.interfaces.tracking.tracker import export_computational_graph as export_computational_graph
    from torch_vis.interfaces.tracking.tracker import (
        track_computational_graph_execution as track_computational_graph_execution,
    )
    from torch_vis.interfaces.tracking.tracker import (
        visualize_computational_graph as visualize_computational_graph,
    )
    from torch_vis.views.terminal.config import ExplorerConfig as ExplorerConfig

__version__ = "0.1.0"

_PUBLIC = {
    "Comparison": "torch_vis.analysis.compare.comparison",
    "ComputationalGraphTracker": "torch_vis.interfaces.tracking.tracker",
    "DLBacktrace": "torch_vis.interfaces.backtrace.backtrace",
    "DynamoGraphExtractor": "torch_vis.interfaces.dynamo.extractor",
    "ExplorerConfig": "torch_vis.views.terminal.config",
    "Graph": "torch_vis.graph.graph",
    "GraphEdge": "torch_vis.interfaces.tracking.tracker",
    "GraphNode": "torch_vis.interfaces.tracking.tracker",
    "Hardware": "torch_vis.analysis.machine.hardware",
    "Metrics": "torch_vis.graph.metrics",
    "ModuleInfo": "torch_vis.interfaces.explorer.explorer",
    "OperationType": "torch_vis.interfaces.tracking.tracker",
    "SubgraphDescriptor": "torch_vis.interfaces.dynamo.extractor",
    "TensorDescriptor": "torch_vis.interfaces.dynamo.extractor",
    "TensorTracer": "torch_vis.interfaces.tensor_ids.tracer",
    "Trace": "torch_vis._trace",
    "analyze_batch_size": "torch_vis.analysis.advice.batch_size.report",
    "analyze_computational_graph_execution": "torch_vis.interfaces.tracking.tracker",
    "analyze_memory_timeline": "torch_vis.interfaces.dynamo.extractor",
    "analyze_memory_usage": "torch_vis.interfaces.explorer.explorer",
    "analyze_pruning": "torch_vis.analysis.advice.pruning.report",
    "analyze_quantization": "torch_vis.analysis.advice.quantization.report",
    "calibrate": "torch_vis.analysis.machine.calibrate",
    "compare": "torch_vis.analysis.compare.comparison",
    "compare_captures": "torch_vis.interfaces.captures.captures",
    "compiled_kernels": "torch_vis.analysis.fusion.compiled_kernels",
    "create_onnx_visualization": "torch_vis.interfaces.tensor_ids.tracer",
    "errors": "torch_vis",
    "explore_model": "torch_vis.interfaces.explorer.explorer",
    "explore_torch_module": "torch_vis.interfaces.explorer.explorer",
    "export_computational_graph": "torch_vis.interfaces.tracking.tracker",
    "export_model_summary": "torch_vis.interfaces.explorer.explorer",
    "format_param_count": "torch_vis.interfaces.explorer.explorer",
    "format_shape": "torch_vis.interfaces.explorer.explorer",
    "format_time": "torch_vis.interfaces.explorer.explorer",
    "get_forward_stats": "torch_vis.interfaces.explorer.explorer",
    "get_operation_sequence": "torch_vis.interfaces.tensor_ids.tracer",
    "get_parameter_statistics": "torch_vis.interfaces.explorer.explorer",
    "known_hardware": "torch_vis.analysis.machine.hardware",
    "get_tensor_size": "torch_vis.interfaces.dynamo.extractor",
    "is_last_use": "torch_vis.interfaces.dynamo.extractor",
    "load": "torch_vis.api",
    "load_calibration": "torch_vis.analysis.machine.calibration",
    "measure_memory": "torch_vis.analysis.memory.measured",
    "predict_latency": "torch_vis.analysis.machine.latency",
    "record": "torch_vis.api",
    "record_torch_module_forward_stats": "torch_vis.interfaces.explorer.explorer",
    "register_hardware": "torch_vis.analysis.machine.hardware",
    "save_graph_to_file": "torch_vis.interfaces.dynamo.extractor",
    "trace": "torch_vis.api",
    "trace_model_with_dynamo": "torch_vis.interfaces.dynamo.extractor",
    "trace_tensor_ids": "torch_vis.interfaces.tensor_ids.tracer",
    "track_computational_graph_execution": "torch_vis.interfaces.tracking.tracker",
    "visualize_computational_graph": "torch_vis.interfaces.tracking.tracker",
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
