"""The tracked graph: true figures on every node, true connections, switches, and errors that say what to do."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torch_vis as tv
from tests.kit.side_effects import torch_globals
from torch_vis import ComputationalGraphTracker, GraphNode, OperationType, track_computational_graph_execution
from torch_vis.errors import FileError, NoMatch, NotTraceable, UsageError


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Net(nn.Module):
    """Nested modules, an operation of its own, a view, and an autograd function."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Double.apply(self.body(x)) + 1).view(-1)


def track(model: Any = None, given: Any = None, **switches: bool) -> ComputationalGraphTracker:
    return track_computational_graph_execution(
        model or Net(), torch.rand(3, 4) if given is None else given, **switches
    )


def by_id(tracker: ComputationalGraphTracker) -> dict[str, GraphNode]:
    return {node.id: node for node in tracker.nodes}


def named(tracker: ComputationalGraphTracker, name: str) -> GraphNode:
    (found,) = [node for node in tracker.nodes if node.name == name]
    return found


def edges(tracker: ComputationalGraphTracker, kind: str) -> set[tuple[str, str]]:
    names = {node.id: node.name for node in tracker.nodes}
    return {(names[e.source_id], names[e.target_id]) for e in tracker.edges if e.edge_type == kind}


# ---------------------------------------------------------------- nodes


def test_layers_are_nodes_with_their_figures() -> None:
    tracker = track()
    layers = [node for node in tracker.nodes if node.operation_type is OperationType.LAYER_OP]
    assert [node.name for node in layers] == [
        "Net",
        "body (Sequential)",
        "body.0 (Linear)",
        "body.1 (BatchNorm1d)",
        "body.2 (ReLU)",
        "head (Linear)",
    ]
    linear = layers[2]
    assert (linear.module_name, linear.input_shapes, linear.output_shapes) == ("body.0", [(3, 4)], [(3, 8)])
    assert linear.parameters == {
        "weight": {"shape": [8, 4], "dtype": "float32", "count": 32, "trainable": True},
        "bias": {"shape": [8], "dtype": "float32", "count": 8, "trainable": True},
        "in_features": 4,
        "out_features": 8,
    }
    assert linear.memory_usage == 3 * 8 * 4
    norm = layers[3]
    assert norm.parameters is not None and norm.parameters["momentum"] == 0.1
    assert norm.metadata is not None and norm.metadata["training"] is True
    assert layers[0].input_shapes == [(3, 4)] and layers[0].output_shapes == [(6,)]


def test_operations_are_what_they_are() -> None:
    tracker = track()
    kinds = {node.name: node.operation_type for node in tracker.nodes if node.module_name != "body.0"}
    assert kinds["relu"] is OperationType.TENSOR_OP
    assert kinds["Double"] is OperationType.CUSTOM
    assert kinds["forward"] is OperationType.FORWARD and kinds["backward"] is OperationType.BACKWARD
    assert kinds["body.1.running_mean"] is OperationType.MEMORY_OP
    views = [node for node in tracker.nodes if node.name == "t" and node.metadata["phase"] == "forward"]
    assert views and all(node.operation_type is OperationType.MEMORY_OP for node in views)
    for node in tracker.nodes:
        if (node.metadata or {}).get("phase") == "backward" and node.id.startswith("op_"):
            assert node.operation_type is OperationType.GRADIENT_OP


def test_what_only_views_copies_or_allocates_is_of_memory() -> None:
    class Copies(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            whole = torch.as_strided_copy(x, (2, 2), (2, 1)) + torch.zeros(2, 2)
            return whole.clone().tril().masked_fill(whole > 1, 0.0) + torch.arange(2)

    tracker, x = ComputationalGraphTracker(Copies()), torch.ones(4)
    with tracker:
        tracker.model(x)
    kinds = {node.name: node.operation_type for node in tracker.nodes if node.id.startswith("op_")}
    memory = {name for name, kind in kinds.items() if kind is OperationType.MEMORY_OP}
    assert memory == {"as_strided_copy", "zeros", "clone"}
    assert kinds.keys() - memory == {"add", "tril", "gt", "masked_fill", "arange"}


def test_a_custom_operator_is_custom() -> None:
    @torch.library.custom_op("tracking_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    tracker = track(twice, torch.ones(2))
    assert named(tracker, "twice").operation_type is OperationType.CUSTOM


def test_times_nest() -> None:
    tracker = track()
    nodes = by_id(tracker)
    inside: dict[str, float] = {}
    for edge in tracker.edges:
        if edge.edge_type == "containment":
            child = nodes[edge.target_id]
            assert child.execution_time is not None
            inside[edge.source_id] = inside.get(edge.source_id, 0.0) + child.execution_time
    for container, time in inside.items():
        whole = nodes[container].execution_time
        assert whole is not None and time <= whole * (1 + 1e-9), nodes[container]
    total = tracker.get_graph_summary()["execution_time"]
    assert nodes["forward"].execution_time + nodes["backward"].execution_time <= total  # type: ignore[operator]
    begun = [node.timestamp for node in tracker.nodes if node.id.startswith("op_")]
    assert all(a <= b for a, b in itertools.pairwise(begun))  # type: ignore[operator]
    assert all(0 <= begin <= total * 100 for begin in begun)  # type: ignore[operator]
    linear = named(tracker, "body.0 (Linear)")
    first = next(node for node in tracker.nodes if node.name == "addmm")
    assert linear.timestamp < first.timestamp  # type: ignore[operator]


def test_memory_is_what_was_allocated() -> None:
    tracker = track(lambda x: (x + 1).view(-1), torch.ones(256))
    assert [(n.name, n.memory_usage) for n in tracker.nodes if n.id.startswith("op_")] == [
        ("add", 1024),
        ("view", 0),
    ]
    memory = tracker.get_graph_summary()["memory"]
    assert (memory["start_bytes"], memory["allocated_bytes"], memory["peak_bytes"]) == (1024, 1024, 2048)
    assert tracker.get_graph_summary()["memory_usage"] == 2048


def test_a_layer_that_does_nothing_still_has_its_shapes() -> None:
    tracker = track(nn.Sequential(nn.Identity(), nn.Linear(4, 2)))
    identity = named(tracker, "0 (Identity)")
    assert (identity.input_shapes, identity.output_shapes) == ([(3, 4)], [(3, 4)])


def test_a_module_called_twice_is_two_nodes() -> None:
    layer = nn.Linear(4, 4)
    tracker = track(nn.Sequential(layer, layer))
    calls = [node for node in tracker.nodes if node.name == "0 (Linear)"]
    assert [node.metadata["call"] for node in calls if node.metadata] == [0, 1]
    assert len({node.id for node in calls}) == 2


# ---------------------------------------------------------------- edges


def test_data_flows_between_operations_and_between_layers() -> None:
    tracker = track(nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2)))
    flow = edges(tracker, "data_flow")
    assert {("addmm", "relu"), ("relu", "addmm"), ("input", "addmm")} <= flow
    assert {
        ("0.0 (Linear)", "0.1 (ReLU)"),
        ("0 (Sequential)", "1 (Linear)"),
        ("0.1 (ReLU)", "1 (Linear)"),
    } <= flow
    assert ("1 (Linear)", "0.0 (Linear)") not in flow
    relu = named(tracker, "0.1 (ReLU)")
    nodes = by_id(tracker)
    assert [nodes[parent].name for parent in relu.parent_ids or []] == ["0.0 (Linear)"]
    assert [nodes[child].name for child in relu.child_ids or []] == ["1 (Linear)"]


def test_edges_carry_shapes() -> None:
    tracker = track()
    shapes = {(e.source_id, e.target_id): e.tensor_shape for e in tracker.edges if e.edge_type == "data_flow"}
    relu = named(tracker, "relu")
    (child,) = [key for key in shapes if key[0] == relu.id and key[1].startswith("op_")][:1]
    assert shapes[child] == (3, 8)
    assert all(e.tensor_shape is not None for e in tracker.edges if e.edge_type in ("data_flow", "parameter"))


def test_parameters_lead_to_the_operations_that_read_them() -> None:
    tracker = track()
    assert {("body.0.weight", "t"), ("body.0.bias", "addmm"), ("head.weight", "t")} <= edges(
        tracker, "parameter"
    )
    assert ("body.1.running_mean", "native_batch_norm") in edges(tracker, "parameter")
    weight = named(tracker, "body.0.weight")
    assert weight.output_shapes == [(8, 4)] and weight.memory_usage == 128
    assert weight.metadata is not None and weight.metadata["role"] == "parameter"


def test_containment_is_a_tree() -> None:
    tracker = track()
    nodes = by_id(tracker)
    parent = [(e.target_id, e.source_id) for e in tracker.edges if e.edge_type == "containment"]
    assert len({child for child, _ in parent}) == len(parent), "each has one container"
    above = dict(parent)
    assert {i for i in nodes if i not in above and not i.startswith("tensor_")} == {"forward", "backward"}
    relu = named(tracker, "relu")
    chain = [relu.id]
    while chain[-1] in above:
        chain.append(above[chain[-1]])
    assert [nodes[i].name for i in chain] == ["relu", "body.2 (ReLU)", "body (Sequential)", "Net", "forward"]


def test_gradients_are_linked_to_what_they_differentiate() -> None:
    tracker = track()
    nodes = by_id(tracker)
    backward = named(tracker, "threshold_backward")
    assert backward.metadata is not None and backward.module_name == "body.2"
    assert nodes[backward.metadata["forward_id"]].name == "relu"
    links = {
        (nodes[e.source_id].name, nodes[e.target_id].name)
        for e in tracker.edges
        if e.edge_type == "gradient_flow" and (e.metadata or {}).get("link")
    }
    assert {("relu", "threshold_backward"), ("forward", "backward")} <= links
    assert ("threshold_backward", "native_batch_norm_backward") in edges(tracker, "gradient_flow")
    assert ("relu", "threshold_backward") in edges(tracker, "data_flow"), "the saved result is read"


def test_what_is_computed_again_in_backward_is_a_layer_of_backward() -> None:
    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    for operations in (True, False):
        tracker = track(Saving(), torch.rand(3, 4, requires_grad=True), track_tensor_ops=operations)
        contained = edges(tracker, "containment")
        assert ("backward", "inner (Linear)") in contained and ("Saving", "inner (Linear)") in contained


def test_parents_and_children_are_the_ends_of_the_edges() -> None:
    tracker = track()
    parents: dict[str, set[str]] = {node.id: set() for node in tracker.nodes}
    children: dict[str, set[str]] = {node.id: set() for node in tracker.nodes}
    for edge in tracker.edges:
        if edge.edge_type != "containment":
            parents[edge.target_id].add(edge.source_id)
            children[edge.source_id].add(edge.target_id)
    for node in tracker.nodes:
        assert node.parent_ids is not None and len(set(node.parent_ids)) == len(node.parent_ids)
        assert set(node.parent_ids) == parents[node.id] and set(node.child_ids or []) == children[node.id]


# ---------------------------------------------------------------- inputs


class Pair(nn.Module):
    def forward(self, a: Tensor, *, b: Tensor | None = None) -> Tensor:
        return a if b is None else a * b


class Batch(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["a"] * batch["b"]


class Every(nn.Module):
    def forward(self, xs: list[Tensor]) -> Tensor:
        return torch.stack(list(xs))


class Two(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


@pytest.mark.parametrize(
    ("model", "given", "names"),
    [
        (Two(), (torch.ones(2), torch.ones(2)), ["a", "b"]),
        (Two(), [torch.ones(2), torch.ones(2)], ["a", "b"]),
        (Pair(), {"a": torch.ones(2), "b": torch.ones(2)}, ["a", "b"]),
        (Batch(), {"a": torch.ones(2), "b": torch.ones(2)}, ["batch.a", "batch.b"]),
        (Batch(), {"batch": {"a": torch.ones(2), "b": torch.ones(2)}}, ["batch.a", "batch.b"]),
        (Batch(), {"a": torch.ones(2), "b": torch.ones(2), 3: None}, ["batch.a", "batch.b"]),
        (Every(), [torch.ones(2), torch.ones(2)], ["xs.0", "xs.1"]),
        (Every(), ([torch.ones(2), torch.ones(2)],), ["xs.0", "xs.1"]),
        (nn.Embedding(5, 2), torch.tensor([1, 2]), ["input"]),
        (nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True), ["input"]),
    ],
)
def test_inputs_of_many_kinds(model: nn.Module, given: Any, names: list[str]) -> None:
    tracker = track(model, given)
    inputs = [n.name for n in tracker.nodes if n.metadata and n.metadata.get("role") == "input"]
    assert inputs == names
    tracker = track(model, given, track_tensor_ops=False)
    assert all(
        n.metadata["unknown_inputs"] == 0 for n in tracker.nodes if n.metadata and "class" in n.metadata
    )


@pytest.mark.parametrize("operations", [True, False])
def test_where_nothing_can_be_differentiated_only_forward_is_run(operations: bool) -> None:
    frozen = nn.Linear(4, 2).requires_grad_(False)
    tracker = track(frozen, track_tensor_ops=operations)
    summary = tracker.get_graph_summary()
    assert summary["backward"] is False and "backward" not in summary["edge_types"]
    assert any("no backward pass was run" in limit for limit in summary["limits"])
    with torch.no_grad():
        assert track(nn.Linear(4, 2), track_tensor_ops=operations).get_graph_summary()["backward"] is False


# ---------------------------------------------------------------- switches


def test_without_timing_there_are_no_times() -> None:
    for operations in (True, False):
        tracker = track(track_timing=False, track_tensor_ops=operations)
        summary = tracker.get_graph_summary()
        assert summary["execution_time"] is None and summary["backward"] is True
        assert all(node.execution_time is None and node.timestamp is None for node in tracker.nodes)
        assert tracker.trace.meta["wall_ns"] is None
    memory = track(track_timing=False).get_graph_summary()["memory"]
    assert memory["peak_bytes"] > 0


def test_without_memory_there_are_no_bytes() -> None:
    for operations in (True, False):
        tracker = track(track_memory=False, track_tensor_ops=operations)
        summary = tracker.get_graph_summary()
        assert summary["memory"] is None and summary["memory_usage"] is None
        assert all(node.memory_usage is None for node in tracker.nodes)
        assert summary["execution_time"] > 0


def test_without_memory_the_graph_is_the_same() -> None:
    """A block of memory whose death goes unreported must not be taken for the next one at its address."""

    def churn(x: Tensor) -> Tensor:
        for step in range(200):
            x = (x + step).sin() * 0.5
            x = torch.cat([x[:2], x[2:].clone()])
            x[0].mul_(2)
        return x

    full, lean = (track(churn, torch.rand(4), track_memory=memory) for memory in (True, False))
    assert [n.name for n in full.nodes] == [n.name for n in lean.nodes]
    assert full.edges == lean.edges


def test_without_operations_no_mode_is_there_and_layers_are_connected() -> None:
    modes = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(torch_globals()["modes"][0])
            return x + 1

    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(inplace=True), Looks()), nn.Linear(8, 2))
    tracker = track(model, track_tensor_ops=False)
    assert modes == [[]]
    assert edges(tracker, "data_flow") == {
        ("0 (Linear)", "1 (Sequential)"),
        ("0 (Linear)", "1.0 (ReLU)"),
        ("1.0 (ReLU)", "1.1 (Looks)"),
        ("1.1 (Looks)", "2 (Linear)"),
        ("1 (Sequential)", "2 (Linear)"),
    }
    backward = named(tracker, "backward")
    assert backward.execution_time is not None and backward.execution_time > 0
    linear = named(tracker, "0 (Linear)")
    assert (linear.input_shapes, linear.output_shapes, linear.memory_usage) == ([(3, 4)], [(3, 8)], 96)
    assert named(tracker, "1.0 (ReLU)").memory_usage == 0, "it wrote into what it was given"
    summary = tracker.get_graph_summary()
    assert summary["total_operations"] is None and "tensor_op" not in summary["operation_types"]


def test_without_operations_what_comes_from_elsewhere_is_counted() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Bilinear(4, 4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.second(y, F.relu(y))

    tracker = track(Mixed(), track_tensor_ops=False)
    second = named(tracker, "second (Bilinear)")
    assert second.metadata is not None and second.metadata["unknown_inputs"] == 1
    assert edges(tracker, "data_flow") == {("first (Linear)", "second (Bilinear)")}
    assert any(limit.startswith("1 × tensors that a layer took") for limit in tracker.trace.limits)


def test_without_operations_tensors_that_die_are_not_mistaken_for_others() -> None:
    class Forgets(nn.Module):
        """Each layer's result is thrown away, and the next tensor gets its place."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(300):
                self.layer(torch.rand(3, 4))
            return x

    tracker = track(Forgets(), track_tensor_ops=False)
    assert edges(tracker, "data_flow") == set()


# ---------------------------------------------------------------- the tracker by hand


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("operations", [True, False])
def test_a_training_step(operations: bool) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = torch_globals()
    with ComputationalGraphTracker(model, track_tensor_ops=operations) as tracker:
        step(model, optimizer, torch.rand(3, 4))
    assert torch_globals() == before
    taken = named(tracker, "SGD.step")
    assert taken.operation_type is OperationType.CUSTOM and taken.execution_time > 0  # type: ignore[operator]
    assert model.weight.grad is not None
    if operations:
        inside = [n for n in tracker.nodes if n.metadata and n.metadata.get("phase") == "optimizer"]
        assert inside and {n.operation_type for n in inside} <= {
            OperationType.TENSOR_OP,
            OperationType.MEMORY_OP,
        }
        assert tracker.get_graph_summary()["operations_by_phase"]["optimizer"] == len(inside)


def test_a_second_start_begins_anew() -> None:
    model = nn.Linear(4, 2)
    tracker = ComputationalGraphTracker(model)
    counts = []
    for repeats in (1, 3):
        tracker.start_tracking()
        assert tracker.is_tracking
        for _ in range(repeats):
            model(torch.rand(3, 4))
        tracker.stop_tracking()
        counts.append(tracker.get_graph_summary()["total_layers"])
    assert counts == [1, 3] and not tracker.is_tracking


def test_wrong_order_is_said() -> None:
    tracker = ComputationalGraphTracker(nn.ReLU())
    with pytest.raises(UsageError, match=r"call start_tracking\(\) first"):
        tracker.stop_tracking()
    for ask in (
        lambda: tracker.nodes,
        lambda: tracker.edges,
        lambda: tracker.trace,
        tracker.get_graph_summary,
        tracker.get_graph_data,
    ):
        with pytest.raises(UsageError, match="nothing was tracked yet"):
            ask()
    tracker.start_tracking()
    try:
        with pytest.raises(UsageError, match=r"call stop_tracking\(\) first"):
            tracker.start_tracking()
        with pytest.raises(UsageError, match="still on"):
            tracker.get_graph_summary()
    finally:
        tracker.stop_tracking()
    assert tracker.get_graph_summary()["total_nodes"] == 0
    assert tracker.get_graph_data()["nodes"] == []


@pytest.mark.parametrize("operations", [True, False])
def test_code_that_raises_is_kept_up_to_there(operations: bool) -> None:
    model, before = Net(), torch_globals()
    with (
        pytest.raises(RuntimeError),
        ComputationalGraphTracker(model, track_tensor_ops=operations) as tracker,
    ):
        model.body(torch.rand(3, 4))
        model.body(torch.rand(3, 5))
    assert torch_globals() == before
    failed = [n for n in tracker.nodes if n.name == "body.0 (Linear)"][-1]
    assert failed.input_shapes == [(3, 5)] and failed.output_shapes is None


@pytest.mark.parametrize("operations", [True, False])
def test_a_tracker_that_is_dropped_lets_go(operations: bool) -> None:
    before = torch_globals()
    tracker = ComputationalGraphTracker(nn.ReLU(), track_tensor_ops=operations)
    tracker.start_tracking()
    assert torch_globals() != before
    gone = weakref.ref(tracker)
    del tracker
    gc.collect()
    assert gone() is None and torch_globals() == before


def test_a_mode_entered_while_tracking_stays() -> None:
    tracker = ComputationalGraphTracker(nn.Linear(4, 2))
    before = torch_globals()
    tracker.start_tracking()
    with FlopCounterMode(display=False) as counter:
        nn.Linear(4, 2)(torch.rand(3, 4))
        tracker.stop_tracking()
        nn.Linear(4, 2)(torch.rand(3, 4))
    assert torch_globals() == before
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 2
    assert tracker.get_graph_summary()["total_layers"] == 1


def test_stopping_on_another_thread_is_refused() -> None:
    tracker = ComputationalGraphTracker(nn.ReLU())
    tracker.start_tracking()
    errors: list[Exception] = []

    def stop() -> None:
        try:
            tracker.stop_tracking()
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    tracker.stop_tracking()
    assert "thread" in str(errors[0])


def test_a_tracker_inside_a_tracker() -> None:
    model = nn.Linear(4, 2)
    with ComputationalGraphTracker(model) as outer:
        with ComputationalGraphTracker(model, track_tensor_ops=False) as inner:
            model(torch.rand(3, 4))
        model(torch.rand(3, 4))
    assert outer.get_graph_summary()["total_layers"] == 2
    assert [n.input_shapes for n in inner.nodes if n.metadata and "class" in n.metadata] == [[(3, 4)]]


def test_no_tensor_is_held() -> None:
    model, x = nn.Linear(4, 2), torch.rand(3, 4)
    made: list[weakref.ref[Tensor]] = []
    model.register_forward_hook(lambda _, __, out: made.append(weakref.ref(out)))
    tracker = track(model, x)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None and made[0]() is None
    assert tracker.get_graph_summary()["total_nodes"] > 0


def test_the_operations_are_those_of_a_trace() -> None:
    model, x = Net(), torch.rand(3, 4)
    plain = tv.trace(model, x, backward=True).graph
    model.zero_grad()
    tracked = track(model, x).trace.graph
    assert [node.format() for node in tracked.nodes] == [node.format() for node in plain.nodes]


# ---------------------------------------------------------------- data, analysis, files


def test_the_data_is_json_as_it_is() -> None:
    model = Net()
    model.strange = float("nan")  # type: ignore[assignment]
    data = track(model).get_graph_data()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert list(data) == ["nodes", "edges", "summary", "metadata"]
    assert set(data["nodes"][0]) == set(GraphNode.__dataclass_fields__)
    assert data["metadata"]["track_timing"] is True and data["metadata"]["torch"] == torch.__version__


def test_the_summary_adds_up() -> None:
    tracker = track()
    summary = tracker.get_graph_summary()
    assert sum(summary["operation_types"].values()) == summary["total_nodes"] == len(tracker.nodes)
    assert sum(summary["edge_types"].values()) == summary["total_edges"] == len(tracker.edges)
    assert summary["total_operations"] == sum(summary["operations_by_phase"].values())
    assert summary["total_parameters"] == sum(p.numel() for p in Net().parameters())
    assert (summary["model"], summary["devices"]) == ("Net", ["cpu"])


def test_costs_are_on_operations_on_layers_and_in_the_summary() -> None:
    tracker = track()
    assert (
        named(tracker, "head (Linear)").metadata["flops"] == 2 * 3 * 8 * 2 + 3 * 2
    )  # multiply, add, the bias
    assert named(tracker, "head (Linear)").metadata["macs"] == 3 * 8 * 2
    summary, operations = tracker.get_graph_summary(), [n for n in tracker.nodes if n.id.startswith("op_")]
    for name in ("flops", "macs", "moved_bytes"):
        cells = [node.metadata[name] for node in operations]
        assert summary[f"total_{name}"] == sum(cell for cell in cells if cell is not None)
        assert summary[f"unknown_{name}"] == cells.count(None)
    without = track(track_tensor_ops=False)
    assert without.get_graph_summary()["total_flops"] is None
    assert named(without, "head (Linear)").metadata["flops"] is None


def test_a_cost_that_is_not_known_is_counted() -> None:
    @torch.library.custom_op("torch_vis_tests::tripled", mutates_args=())
    def tripled(x: Tensor) -> Tensor:
        return x * 3

    class Tripled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.torch_vis_tests.tripled(x) * 2

    tracker = track(Tripled(), torch.eye(3))
    whole, summary = named(tracker, "Tripled").metadata, tracker.get_graph_summary()
    own = next(n for n in tracker.nodes if n.name.startswith("tripled"))
    assert own.metadata["flops"] is None
    assert (whole["unknown_flops"], summary["unknown_flops"]) == (1, 1)
    assert whole["flops"] == summary["total_flops"] > 0


def test_the_analysis_covers_every_operation() -> None:
    analysis = tv.analyze_computational_graph_execution(Net(), torch.rand(3, 4))
    found = [op for ops in analysis["layer_analysis"].values() for op in ops if op["id"].startswith("op_")]
    assert len(found) == analysis["summary"]["total_operations"]
    assert {op["name"] for op in analysis["layer_analysis"]["body.2"]} == {
        "body.2 (ReLU)",
        "relu",
        "threshold_backward",
    }
    performance = analysis["performance"]
    assert performance["operations_per_second"] == pytest.approx(
        analysis["summary"]["total_operations"] / analysis["summary"]["execution_time"]
    )
    assert performance["memory_usage"] == analysis["summary"]["memory"]["peak_bytes"]
    assert sum(row["count"] for row in performance["by_operation_type"].values()) == len(found)
    times = [op["execution_time"] for op in performance["slowest_operations"]]
    assert times == sorted(times, reverse=True) and times[0] == max(op["execution_time"] for op in found)
    json.dumps(analysis, allow_nan=False)


def test_the_trace_is_there_with_its_views_and_files(tmp_path: Path) -> None:
    tracker = track()
    assert "body" in str(tracker.trace)
    tracker.trace.save(tmp_path / "run.tvz")
    assert len(tv.load(tmp_path / "run.tvz").graph) == tracker.get_graph_summary()["total_operations"]
    assert "Linear" in str(track(track_tensor_ops=False).trace)


@pytest.mark.parametrize("format", ["tvz", "csv", "dot"])
def test_other_formats_by_name(format: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.out"
    assert tv.export_computational_graph(Net(), torch.rand(3, 4), path, format=format) == str(path)
    assert path.stat().st_size > 100


def test_other_renderers_and_how_much_to_draw() -> None:
    whole = str(tv.visualize_computational_graph(Net(), torch.rand(3, 4), renderer="svg", depth=None))
    forward = str(
        tv.visualize_computational_graph(Net(), torch.rand(3, 4), "svg", phase="forward", color="time")
    )
    assert "threshold_backward" in whole and "threshold_backward" not in forward and "Linear" in forward


def test_bad_names_are_said_before_anything_runs(tmp_path: Path) -> None:
    def never(x: Tensor) -> Tensor:
        raise AssertionError("it ran")

    with pytest.raises(NoMatch, match="did you mean 'plotly'"):
        tv.visualize_computational_graph(never, torch.ones(2), renderer="plotli")
    with pytest.raises(NoMatch, match="did you mean 'json'"):
        tv.export_computational_graph(never, torch.ones(2), tmp_path / "x", format="jsonn")
    with pytest.raises(UsageError, match="keys must be strings"):
        track(lambda a, b: never(a), {1: torch.ones(2)})
    for name, format in (("g.svg", "svg"), ("g.onnx", "onnx"), ("g.perfetto.json", "perfetto")):
        with pytest.raises(UsageError, match=f"{name} ends as {format} files do.*pass format='{format}'"):
            tv.export_computational_graph(never, torch.ones(2), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotTraceable):
        track_computational_graph_execution(3, torch.ones(2))


def test_a_path_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        tv.export_computational_graph(nn.ReLU(), torch.ones(2), tmp_path / "missing" / "graph.json")
    with pytest.raises(FileError):
        tv.export_computational_graph(nn.ReLU(), torch.ones(2), tmp_path)
    assert list(tmp_path.iterdir()) == []
