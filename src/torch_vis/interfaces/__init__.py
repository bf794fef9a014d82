"""The interfaces of the source documents: each translates its arguments, calls the core and reshapes the answer.

Every name below can be used as ``torch_vis.name`` or imported from here.

>>> from torch_vis.interfaces import explore_model, trace_tensor_ids
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

DOCUMENTED: dict[str, str] = {
    # the name: the module that has it
    "ComputationalGraphTracker": "torch_vis.interfaces.tracking.tracker",
    "DLBacktrace": "torch_vis.interfaces.backtrace",
    "DynamoGraphExtractor": "torch_vis.interfaces.dynamo",
    "ExplorerConfig": "torch_vis.views.terminal.source",
    "GraphEdge": "torch_vis.interfaces.tracking.tracker",
    "GraphNode": "torch_vis.interfaces.tracking.tracker",
    "ModuleInfo": "torch_vis.interfaces.explorer.explorer",
    "OperationType": "torch_vis.interfaces.tracking.tracker",
    "SubgraphDescriptor": "torch_vis.interfaces.dynamo",
    "TensorDescriptor": "torch_vis.interfaces.dynamo",
    "TensorTracer": "torch_vis.interfaces.tensor_ids",
    "analyze_computational_graph_execution": "torch_vis.interfaces.tracking.tracker",
    "analyze_memory_timeline": "torch_vis.interfaces.dynamo",
    "analyze_memory_usage": "torch_vis.interfaces.explorer.explorer",
    "compare_captures": "torch_vis.interfaces.captures",
    "create_onnx_visualization": "torch_vis.interfaces.tensor_ids",
    "explore_model": "torch_vis.interfaces.explorer.explorer",
    "explore_torch_module": "torch_vis.interfaces.explorer.explorer",
    "export_computational_graph": "torch_vis.interfaces.tracking.tracker",
    "export_model_summary": "torch_vis.interfaces.explorer.explorer",
    "format_param_count": "torch_vis.interfaces.explorer.explorer",
    "format_shape": "torch_vis.interfaces.explorer.explorer",
    "format_time": "torch_vis.interfaces.explorer.explorer",
    "get_forward_stats": "torch_vis.interfaces.explorer.explorer",
    "get_operation_sequence": "torch_vis.interfaces.tensor_ids",
    "get_parameter_statistics": "torch_vis.interfaces.explorer.explorer",
    "get_tensor_size": "torch_vis.interfaces.dynamo",
    "is_last_use": "torch_vis.interfaces.dynamo",
    "record_torch_module_forward_stats": "torch_vis.interfaces.explorer.explorer",
    "save_graph_to_file": "torch_vis.interfaces.dynamo",
    "trace_model_with_dynamo": "torch_vis.interfaces.dynamo",
    "trace_tensor_ids": "torch_vis.interfaces.tensor_ids",
    "track_computational_graph_execution": "torch_vis.interfaces.tracking.tracker",
    "visualize_computational_graph": "torch_vis.interfaces.tracking.tracker",
}
__all__ = sorted(DOCUMENTED)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in DOCUMENTED:
        raise AttributeError(f"module 'torch_vis.interfaces' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(DOCUMENTED[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__]
