"""The public names, for type checkers: what `__getattr__` in `__init__.py` finds."""

from typing import Any

from torch_vis import advise as advise
from torch_vis import edit as edit
from torch_vis import errors as errors
from torch_vis import hardware as hardware
from torch_vis import interfaces as interfaces
from torch_vis import measure as measure
from torch_vis import stats as stats
from torch_vis import types as types
from torch_vis._trace import Trace as Trace
from torch_vis.analysis.activations.dataset import open_activations as open_activations
from torch_vis.analysis.activations.extract import extract as extract
from torch_vis.analysis.compare.comparison import Comparison as Comparison
from torch_vis.analysis.compare.comparison import compare as compare
from torch_vis.analysis.ranks.fit import fit as fit
from torch_vis.analysis.ranks.gathering import join as join
from torch_vis.analysis.ranks.simulate import simulate as simulate
from torch_vis.analysis.ranks.world import World as World
from torch_vis.api import load as load
from torch_vis.api import record as record
from torch_vis.api import trace as trace
from torch_vis.capture.live import live as live
from torch_vis.cli.commands.doctor import doctor as doctor
from torch_vis.graph.graph import Graph as Graph
from torch_vis.graph.metrics import Metrics as Metrics
from torch_vis.interfaces.backtrace import DLBacktrace as DLBacktrace
from torch_vis.interfaces.captures import compare_captures as compare_captures
from torch_vis.interfaces.dynamo import DynamoGraphExtractor as DynamoGraphExtractor
from torch_vis.interfaces.dynamo import SubgraphDescriptor as SubgraphDescriptor
from torch_vis.interfaces.dynamo import TensorDescriptor as TensorDescriptor
from torch_vis.interfaces.dynamo import analyze_memory_timeline as analyze_memory_timeline
from torch_vis.interfaces.dynamo import get_tensor_size as get_tensor_size
from torch_vis.interfaces.dynamo import is_last_use as is_last_use
from torch_vis.interfaces.dynamo import save_graph_to_file as save_graph_to_file
from torch_vis.interfaces.dynamo import trace_model_with_dynamo as trace_model_with_dynamo
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
from torch_vis.interfaces.tensor_ids import TensorTracer as TensorTracer
from torch_vis.interfaces.tensor_ids import create_onnx_visualization as create_onnx_visualization
from torch_vis.interfaces.tensor_ids import get_operation_sequence as get_operation_sequence
from torch_vis.interfaces.tensor_ids import trace_tensor_ids as trace_tensor_ids
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
from torch_vis.ops.cost import register_cost as register_cost
from torch_vis.views.terminal.source import ExplorerConfig as ExplorerConfig

__version__: str

# Renamed; see `_deprecated.py`.
Hardware: Any
analyze_batch_size: Any
analyze_pruning: Any
analyze_quantization: Any
calibrate: Any
compiled_kernels: Any
known_hardware: Any
load_calibration: Any
measure_memory: Any
predict_latency: Any
register_hardware: Any
