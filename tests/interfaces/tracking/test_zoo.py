"""Every case of the zoo through the tracker: a consistent graph, and nothing left behind."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.kit.side_effects import lasting_globals, module_state, random_states
from tests.zoo import ZOO, Case, close_process_group, first_difference, leaves
from torch_vis import ComputationalGraphTracker, track_computational_graph_execution
from torch_vis.graph.schema import Phase


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


def state(model: Any, tensors: list[Tensor]) -> list[Any]:
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    gradients = [tensor.grad for tensor in (*tensors, *parameters) if tensor.is_leaf]
    return [
        copy.deepcopy(module_state(model)),
        [t.detach().clone() for t in tensors],
        gradients,
        random_states(),
    ]


@pytest.mark.parametrize("operations", [True, False], ids=["operations", "calls"])
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ZOO.items()])
def test_tracking(case: Case, operations: bool) -> None:
    model, args, kwargs = case.make()
    tensors = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    run, given = (model, args) if not kwargs else (lambda *args: model(*args, **kwargs), args)
    before, settings = state(model, tensors), lasting_globals()
    tracker = track_computational_graph_execution(run, given, track_tensor_ops=operations)
    assert lasting_globals() == settings
    if isinstance(model, nn.Module):
        assert first_difference(before, state(model, tensors)) is None
    assert tracker.get_graph_summary()["backward"] or not case.backward
    consistent(tracker)


def consistent(tracker: ComputationalGraphTracker) -> None:
    data, summary = tracker.get_graph_data(), tracker.get_graph_summary()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    nodes = {node["id"]: node for node in data["nodes"]}
    assert len(nodes) == len(data["nodes"]) == summary["total_nodes"]
    assert len(data["edges"]) == summary["total_edges"]
    contained: dict[str, str] = {}
    for edge in data["edges"]:
        assert edge["source_id"] in nodes and edge["target_id"] in nodes
        if edge["edge_type"] == "containment":
            assert edge["target_id"] not in contained, "one container each"
            contained[edge["target_id"]] = edge["source_id"]
        else:
            assert edge["source_id"] in nodes[edge["target_id"]]["parent_ids"]
            assert edge["target_id"] in nodes[edge["source_id"]]["child_ids"]
    for node in data["nodes"]:
        layer = node["metadata"].get("layer")
        assert layer is None or nodes[layer]["operation_type"] == "layer_op"
        if node["id"].startswith("op_"):
            assert node["id"] in contained and node["execution_time"] >= 0 and node["memory_usage"] >= 0
            assert node["timestamp"] <= summary["execution_time"] + tracker.trace.meta["overhead_ns"] / 1e9
    agrees_with_the_trace(tracker)


def agrees_with_the_trace(tracker: ComputationalGraphTracker) -> None:
    """Operations, their layers and their connections are those of the graph behind."""
    graph = tracker.trace.graph
    graph.check()
    nodes = {node.id: node for node in tracker.nodes}
    pairs = {(e.source_id, e.target_id) for e in tracker.edges if e.edge_type != "containment"}
    for node in graph.nodes:
        found = nodes[f"op_{node.index}"]
        assert (found.name, found.output_shapes) == (node.name, [value.shape for value in node.outputs])
        assert found.input_shapes == [value.shape for value in node.inputs]
        inside = node.scope
        while inside.kind not in ("module", "compiled", "run"):
            inside = inside.parent or inside
        assert found.module_name == (None if inside.kind == "run" else inside.path or inside.type)
        for producer in node.producers:
            assert (f"op_{producer.index}", found.id) in pairs
        if node.link is not None and graph.node_phase[node.index] == Phase.BACKWARD:
            assert (f"op_{node.link.index}", found.id) in pairs
    total = tracker.get_graph_summary()["execution_time"]
    assert (
        torch.tensor([n.execution_time or 0.0 for n in nodes.values() if n.id.startswith("op_")]).sum()
        <= total
    )
