"""Everything that the documentation of the tracking interface shows, run as it is shown there."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis
from torch_vis import (
    ComputationalGraphTracker,
    GraphEdge,
    GraphNode,
    OperationType,
    analyze_computational_graph_execution,
    export_computational_graph,
    track_computational_graph_execution,
    visualize_computational_graph,
)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))


@pytest.fixture
def input_tensor() -> torch.Tensor:
    return torch.randn(1, 10, requires_grad=True)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """What was shown on a screen that there is none of; the current folder is an empty one."""
    pio = importlib.import_module("plotly.io")
    renderers = importlib.import_module("plotly.io._base_renderers")
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    found: list[Any] = []

    class Screen(renderers.ExternalRenderer):  # type: ignore[name-defined,misc]
        def render(self, fig_dict: Any) -> None:
            found.append(fig_dict)

    before = pio.renderers.default
    pio.renderers["screen"] = Screen()
    pio.renderers.default = "screen"
    monkeypatch.setattr(pyplot, "show", lambda: found.append(pyplot.gcf()))
    monkeypatch.chdir(tmp_path)
    yield found
    pio.renderers.default = before
    pyplot.close("all")


def test_quick_start(
    model: nn.Module, input_tensor: torch.Tensor, shown: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = track_computational_graph_execution(model, input_tensor)
    summary = tracker.get_graph_summary()
    print(f"Total operations: {summary['total_nodes']}")
    print(f"Execution time: {summary['execution_time']:.4f}s")
    fig = visualize_computational_graph(model, input_tensor, renderer="plotly")
    fig.show()
    assert len(shown) == 1 and shown[0]["data"]
    assert "Total operations: " in capsys.readouterr().out and summary["execution_time"] > 0


def test_tracking(model: nn.Module, input_tensor: torch.Tensor) -> None:
    tracker = track_computational_graph_execution(model, input_tensor)
    assert isinstance(tracker, ComputationalGraphTracker)
    graph_data = tracker.get_graph_data()
    summary = tracker.get_graph_summary()
    assert len(graph_data["nodes"]) == summary["total_nodes"] > 20
    assert len(graph_data["edges"]) == summary["total_edges"] > 40


def test_analysis(model: nn.Module, input_tensor: torch.Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = analyze_computational_graph_execution(model, input_tensor)
    print(f"Total operations: {analysis['summary']['total_nodes']}")
    print(f"Execution time: {analysis['summary']['execution_time']:.4f}s")
    assert "performance" in analysis and "layer_analysis" in analysis
    print(f"Operations per second: {analysis['performance']['operations_per_second']:.2f}")
    for layer_name, operations in analysis["layer_analysis"].items():
        print(f"{layer_name}: {len(operations)} operations")
    printed = capsys.readouterr().out
    assert "\n1: 3 operations" in printed  # the call of the ReLU, relu and threshold_backward


def test_detailed_analysis(
    model: nn.Module, input_tensor: torch.Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis = analyze_computational_graph_execution(model, input_tensor, detailed=True)
    performance = analysis["performance"]
    print(f"Operations per second: {performance['operations_per_second']:.2f}")
    print(f"Memory usage: {performance['memory_usage']}")
    for layer_name, operations in analysis["layer_analysis"].items():
        print(f"\n{layer_name}:")
        for op in operations:
            print(f"  - {op['operation_type']}: {op['input_shapes']} -> {op['output_shapes']}")
    printed = capsys.readouterr().out
    assert "\n0:\n  - layer_op: [[1, 10]] -> [[1, 20]]\n" in printed
    assert sorted(analyze_computational_graph_execution(model, input_tensor, detailed=False)) == ["summary"]


def test_figures_in_files(model: nn.Module, input_tensor: torch.Tensor, shown: list[Any]) -> None:
    fig = visualize_computational_graph(model, input_tensor, renderer="plotly")
    fig.show()
    fig.write_html("computational_graph.html")
    assert "Linear" in Path("computational_graph.html").read_text()
    fig = visualize_computational_graph(model, input_tensor, renderer="matplotlib")
    fig.savefig("computational_graph.png")
    assert Path("computational_graph.png").read_bytes().startswith(b"\x89PNG")


def test_a_plotly_figure_can_be_changed(
    model: nn.Module, input_tensor: torch.Tensor, shown: list[Any]
) -> None:
    fig = visualize_computational_graph(model, input_tensor, renderer="plotly")
    fig.update_layout(title="PyTorch Computational Graph", width=1200, height=800)
    fig.write_html("computational_graph.html")
    fig.show()
    assert (shown[0]["layout"]["width"], shown[0]["layout"]["height"]) == (1200, 800)
    assert "PyTorch Computational Graph" in Path("computational_graph.html").read_text()


def test_a_matplotlib_figure_is_the_current_one(
    model: nn.Module, input_tensor: torch.Tensor, shown: list[Any]
) -> None:
    import matplotlib.pyplot as plt

    fig = visualize_computational_graph(model, input_tensor, renderer="matplotlib")
    assert plt.gcf() is fig
    plt.title("PyTorch Computational Graph")
    plt.tight_layout()
    plt.savefig("computational_graph.png", dpi=300, bbox_inches="tight")
    plt.show()
    assert shown == [fig]
    assert "PyTorch Computational Graph" in [axes.get_title() for axes in fig.axes]
    assert Path("computational_graph.png").stat().st_size > 10_000


def test_export(
    model: nn.Module, input_tensor: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filepath = export_computational_graph(model, input_tensor, "graph.json")
    assert filepath == "graph.json"
    with open(filepath) as f:
        graph_data = json.load(f)
    tracker = track_computational_graph_execution(model, input_tensor)
    assert len(graph_data["nodes"]) == len(tracker.nodes)
    assert len(graph_data["edges"]) == len(tracker.edges)


def test_tracking_options(model: nn.Module, input_tensor: torch.Tensor) -> None:
    tracker = track_computational_graph_execution(
        model, input_tensor, track_memory=True, track_timing=True, track_tensor_ops=False
    )
    kinds = {node.operation_type for node in tracker.nodes}
    assert kinds == {OperationType.FORWARD, OperationType.BACKWARD, OperationType.LAYER_OP}


def test_a_tracker_by_hand(model: nn.Module, input_tensor: torch.Tensor) -> None:
    tracker = ComputationalGraphTracker(model, track_memory=True)
    tracker.start_tracking()
    output = model(input_tensor)
    loss = output.sum()
    loss.backward()
    tracker.stop_tracking()
    summary = tracker.get_graph_summary()
    graph_data = tracker.get_graph_data()
    assert summary["backward"] and summary["total_nodes"] == len(graph_data["nodes"])
    assert input_tensor.grad is not None, "it was the program's own backward"


def test_the_structures_have_the_documented_fields() -> None:
    assert dataclasses.is_dataclass(GraphNode) and dataclasses.is_dataclass(GraphEdge)
    fields = [(field.name, field.default) for field in dataclasses.fields(GraphNode)]
    missing = dataclasses.MISSING
    assert fields == [
        ("id", missing),
        ("name", missing),
        ("operation_type", missing),
        ("module_name", None),
        ("input_shapes", None),
        ("output_shapes", None),
        ("parameters", None),
        ("execution_time", None),
        ("memory_usage", None),
        ("metadata", None),
        ("parent_ids", None),
        ("child_ids", None),
        ("timestamp", None),
    ]
    assert [(field.name, field.default) for field in dataclasses.fields(GraphEdge)] == [
        ("source_id", missing),
        ("target_id", missing),
        ("edge_type", missing),
        ("tensor_shape", None),
        ("metadata", None),
    ]
    assert issubclass(OperationType, Enum)
    assert {kind.name: kind.value for kind in OperationType} == {
        name: name.lower()
        for name in "FORWARD BACKWARD TENSOR_OP LAYER_OP GRADIENT_OP MEMORY_OP CUSTOM".split()
    }


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (
            track_computational_graph_execution,
            "model, input_tensor, track_memory=True, track_timing=True, track_tensor_ops=True",
        ),
        (
            ComputationalGraphTracker,
            "model, track_memory=True, track_timing=True, track_tensor_ops=True",
        ),
        (analyze_computational_graph_execution, "model, input_tensor, detailed=True"),
        (visualize_computational_graph, "model, input_tensor, renderer='plotly'"),
        (export_computational_graph, "model, input_tensor, filepath, format='json'"),
    ],
)
def test_the_signatures_are_the_documented_ones(function: Any, parameters: str) -> None:
    found = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=p.empty) for p in found if p.kind is not p.KEYWORD_ONLY]
    assert ", ".join(map(str, bare)) == parameters


@pytest.mark.parametrize("library", ["plotly", "matplotlib"])
def test_a_missing_library_is_named_with_the_line_that_installs_it(
    library: str, model: nn.Module, input_tensor: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"pip install 'torch-vis\[{library}\]'"):
        visualize_computational_graph(model, input_tensor, renderer=library)


def test_without_torch_the_line_that_installs_it_is_named() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import torch_vis\n"
        "torch_vis.GraphNode('a', 'a', torch_vis.OperationType.CUSTOM)\n"
        "try:\n    torch_vis.track_computational_graph_execution(None, None)\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install torch" in done.stdout


def test_every_name_is_there() -> None:
    for name in (GraphNode, GraphEdge, OperationType, ComputationalGraphTracker):
        assert getattr(torch_vis, name.__name__) is name
