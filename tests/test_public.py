"""The public surface: names, signatures, and a docstring with a working example for each."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from typing import Any

import pytest

import torch_vis as tv

tv.trace

NAMES = [
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
    "__version__",
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
SIGNATURES = {
    "trace": "(model, *args, kwargs=None, backward=False, loss=None, keep=True, partial=False, functions=False, "
    "via='eager', dynamic=None, dynamic_shapes=None, fullgraph=False, "
    "fake=False, repeat=0)",
    "record": "(*modules, keep=True, functions=False)",
    "load": "(path)",
    "measure_memory": "(function, *args, kwargs=None, warmup=1)",
    "Trace.check": "(self, *, inputs=False, shuffles=2, seed=0)",
    "Trace.save": "(self, path, *, format=None)",
    "Trace.figure": "(self, renderer='plotly', *, depth='auto', color='type', phase=None)",
    "Trace.release": "(self)",
    "Trace.run": "(self, *args, kwargs=None, replace=None, keep=None, to=None)",
    "Trace.show": "(self)",
    "Trace.table": "(self, *, depth='auto', width=None)",
    "Trace.to_networkx": "(self)",
    "Trace.to_pandas": "(self)",
    "Graph.find": "(self, path=None, *, op=None, phase=None, dtype=None, flag=None)",
    "Graph.check": "(self)",
    "Graph.ancestors": "(self, values)",
    "Graph.edges": "(self, *, shape=True)",
    "Metrics.with_column": "(self, column)",
    "analyze_memory_timeline": "(graph)",
    "trace_model_with_dynamo": "(model, example_input, *, fullgraph=False, dynamic=None, analyze_memory=True)",
    "save_graph_to_file": "(extractor, path)",
    "DynamoGraphExtractor": "(*, analyze_memory=True)",
    "DynamoGraphExtractor.descriptors": "(self, by='node')",
    "trace_tensor_ids": "(input_tensors=None, *, functions=(), keep=True)",
    "get_operation_sequence": "(traced, *, level='leaf')",
    "TensorTracer.get_operation_sequence": "(self, *, level='leaf')",
    "create_onnx_visualization": "(operations, path=None)",
    "DLBacktrace": "(model, input_for_graph, device=None, dynamic_shapes=None)",
    "DLBacktrace.predict": "(self, *inputs, kwargs=None, keep='all')",
    "DLBacktrace.evaluation": "(self, node_io, *, mode='default', target=None, against=None, output=0, "
    "relevance=None, multiplier=1.0, tensors=False)",
    "Trace.fusion": "(self)",
    "Trace.gradients": "(self)",
    "Trace.report": "(self, path)",
    "Trace.subgraph": "(self, name)",
    "Trace.summary": "(self)",
    "compare": "(a, b)",
    "get_tensor_size": "(tensor)",
    "is_last_use": "(node, graph, user)",
    "analyze_batch_size": (
        "(model, *args, kwargs=None, memory=None, backward=False, loss=None, measure=True, largest=1048576, "
        "dim=None)"
    ),
    "analyze_quantization": (
        "(model, *args, kwargs=None, formats=('int8', 'fp8', 'int4'), effect=True, floor_db=30.0, hardware=None)"
    ),
    "analyze_pruning": "(model, *args, kwargs=None, ratio=0.3, each=True, hardware=None)",
    "Trace.time": "(self)",
    "Trace.partition": "(self, *, by='fusion', depth=None, max_operations=None, max_flops=None, max_bytes=None)",
    "compiled_kernels": "(model, *args, kwargs=None)",
    "Trace.explore": "(self, *, model=None, against=None, config=None)",
    "explore_model": "(model, *, trace=None, against=None, config=None, trust=False)",
    "explore_torch_module": "(module, *, config=None)",
    "record_torch_module_forward_stats": "(model, *, contents=False, maps=False)",
    "get_forward_stats": "(model)",
    "analyze_memory_usage": "(model)",
    "get_parameter_statistics": "(model)",
    "export_model_summary": "(model, format='text', *, trace=None, config=None)",
    "format_shape": "(shape)",
    "format_param_count": "(count)",
    "format_time": "(seconds)",
    "calibrate": "(*, device=None, again=False, seconds=55.0, path=None)",
    "load_calibration": "(path)",
    "predict_latency": "(trace, *, hardware=None, calibration=None)",
    "register_hardware": "(profile)",
    "known_hardware": "()",
    "Trace.roofline": "(self, hardware=None)",
    "Trace.latency": "(self, *, hardware=None, calibration=None)",
}
MEMBERS = {
    "Trace": (
        "breaks check error explore figure fusion gradients graph latency limits load memory meta metrics "
        "output partition program release report roofline run save show subgraph summary table time to_networkx "
        "to_pandas"
    ).split(),
}


def find(name: str) -> Any:
    item: Any = tv
    for part in name.split("."):
        item = getattr(item, part)
    return item


def plain_signature(item: Any) -> str:
    signature = inspect.signature(item)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def modules() -> list[str]:
    found = pkgutil.walk_packages(tv.__path__, "torch_vis.")
    return ["torch_vis", *(info.name for info in found)]


def test_names() -> None:
    assert dir(tv) == NAMES
    assert sorted([*tv.__all__, "__version__"]) == NAMES
    for name in NAMES:
        assert getattr(tv, name) is not None
    with pytest.raises(AttributeError, match="tracee"):
        tv.tracee


@pytest.mark.parametrize("first", ["tv.load", "tv.Trace", "tv.record", "import torch_vis.trace", "tv.errors"])
def test_names_mean_the_same_whatever_was_used_first(first: str) -> None:
    """A submodule must not take the place of the function that has its name."""
    code = (
        f"import torch_vis as tv\n{first}\nassert callable(tv.trace), tv.trace\nfrom torch_vis import trace\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    if "No module named 'torch_vis.trace'" in done.stderr:
        return
    assert done.returncode == 0, done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    assert plain_signature(find(name)) == SIGNATURES[name]


def test_what_a_trace_offers() -> None:
    public = {name for name in dir(tv.Trace) if not name.startswith("_")} | set(tv.Trace.__annotations__)
    assert sorted(public - {"load"}) == sorted(set(MEMBERS["Trace"]) - {"load"})


@pytest.mark.parametrize(
    "name", [n for n in SIGNATURES if "with_column" not in n] + ["Graph", "Metrics", "Trace"]
)
def test_every_public_name_has_a_docstring_with_an_example(name: str) -> None:
    text = inspect.getdoc(find(name)) or ""
    first = text.partition("\n")[0]
    assert first.endswith((".", ":")) or text.partition("\n\n")[0].rstrip().endswith("."), name
    assert ">>> " in text, f"{name} has no example"


def test_every_error_has_a_docstring() -> None:
    for name, item in vars(tv.errors).items():
        if isinstance(item, type) and issubclass(item, tv.errors.TorchVisError):
            assert item.__dict__.get("__doc__"), name


@pytest.mark.parametrize("name", modules())
def test_every_module_says_its_subject(name: str) -> None:  # its examples are run by pytest itself
    module = importlib.import_module(name)
    assert module.__doc__ and len(module.__doc__.split()) > 3, f"{name} does not say what it is"


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("torch-vis")
    except PackageNotFoundError:
        pytest.skip("torch-vis is on the path and not installed")
    assert tv.__version__ == installed


def test_importing_is_light() -> None:
    """`import torch_vis` brings in neither torch nor any optional library, and no stage of its own."""
    code = (
        "import sys; before = set(sys.modules); import torch_vis; "
        "print(sorted(m.partition('.')[0] for m in set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("'torch'", "networkx", "pandas", "rich", "numpy"):
        assert heavy not in out, f"import torch_vis imports {heavy}"
