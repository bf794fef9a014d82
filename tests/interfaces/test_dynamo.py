"""The Dynamo front door: the backend, what its nodes say, memory over time, descriptors, breaks, and a clean slate."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.passes.shape_prop import ShapeProp

import torch_vis as tv
from tests.zoo import ZOO
from torch_vis.errors import CaptureFailed, NoMatch, UsageError

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.sum() > 0:
            x = x * 2
        return self.last(x)


X = torch.randn(2, 3, 8, 8)


def test_it_is_a_backend_that_changes_nothing() -> None:
    model = Net()
    extractor = tv.DynamoGraphExtractor()
    found = torch.compile(model, backend=extractor)(X)
    other = Net()
    other.load_state_dict(model.state_dict())
    model.eval(), other.eval()
    assert len(extractor.graph_modules) == 1 and extractor.trace is None
    assert found.shape == (2, 2)
    assert torch.equal(torch.compile(model, backend=tv.DynamoGraphExtractor())(X), other(X))


def test_the_documented_access_to_shapes_and_types() -> None:
    extractor = tv.trace_model_with_dynamo(Net(), X)
    shapes = {}
    for node in extractor.graph_modules[0].graph.nodes:
        if "tensor_meta" in node.meta:
            shapes[node.name] = tuple(node.meta["tensor_meta"].shape), node.meta["tensor_meta"].dtype
    assert shapes["conv2d"] == ((2, 4, 6, 6), torch.float32)
    assert shapes["l_x_"] == ((2, 3, 8, 8), torch.float32)
    assert shapes["l_self_modules_norm_buffers_num_batches_tracked_"] == ((), torch.int64)


@pytest.mark.parametrize("name", ["tied_weights", "lstm_cell_loop", "vit", "batch_norm_train"])
def test_every_node_that_makes_one_tensor_says_its_shape(name: str) -> None:
    model, args, kwargs = ZOO[name].make()
    extractor = tv.DynamoGraphExtractor()
    made: dict[torch.fx.Node, Any] = {}

    class Noting(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            made[n] = super().run_node(n)
            return made[n]

    def backend(module: Any, inputs: Any) -> Any:
        extractor(module, inputs)
        return lambda *given: Noting(module).run(*given)

    torch.compile(model, backend=backend)(*args, **kwargs)
    said = {n for n in made if "tensor_meta" in n.meta}
    assert said == {n for n, found in made.items() if isinstance(found, Tensor)}
    for node in said:
        shape, dtype = tuple(node.meta["tensor_meta"].shape), node.meta["tensor_meta"].dtype
        assert (shape, dtype) == (tuple(made[node].shape), made[node].dtype), node.name


def test_inputs_as_tensor_tuple_list_or_dictionary() -> None:
    def add(a: Tensor, b: Tensor | None = None) -> Tensor:
        return a + 1 if b is None else a + b

    one = torch.ones(2)
    for example in (one, (one, one), [one, one], {"a": one, "b": one}):
        extractor = tv.trace_model_with_dynamo(add, example)
        assert extractor.trace is not None and torch.equal(extractor.trace.output, torch.full((2,), 2.0))
    with pytest.raises(UsageError, match="keys"):
        tv.trace_model_with_dynamo(add, {1: one})


def test_breaks_have_reason_and_line_and_fullgraph_raises() -> None:
    extractor = tv.trace_model_with_dynamo(Broken(), torch.ones(2, 4))
    (found,) = extractor.breaks
    assert found.reason == "Data-dependent branching" and found.code == "if x.sum() > 0:"
    assert found.file == __file__ and found.function == "forward"
    assert len(extractor.graph_modules) == 2
    text = str(extractor)
    assert "Graph Partition 1" in text and "Graph Partition 2" in text and "if x.sum() > 0:" in text
    with pytest.raises(CaptureFailed, match=r"test_dynamo\.py"):
        tv.trace_model_with_dynamo(Broken(), torch.ones(2, 4), fullgraph=True)


def test_counts_by_kind_and_operation() -> None:
    extractor = tv.trace_model_with_dynamo(Net(), X)
    kinds = extractor.node_kinds
    assert kinds["output"] == 1 and sum(kinds.values()) == len(extractor.graph_modules[0].graph.nodes)
    assert (
        extractor.operations["torch.conv2d"] == 1 and extractor.operations["torch.nn.functional.linear"] == 1
    )
    (part,) = extractor.summary()
    assert part.operations == extractor.operations and part.node_kinds == kinds


def test_it_does_not_print(capsys: pytest.CaptureFixture[str]) -> None:
    tv.trace_model_with_dynamo(Net(), X)
    assert capsys.readouterr().out == ""


def test_nothing_stays_compiled_and_a_compiled_model_is_not_compiled_again() -> None:
    model = Net().eval()
    seen = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(module)
        return module.forward

    tv.trace_model_with_dynamo(model, X)
    compiled = torch.compile(model, backend=backend)
    compiled(X)
    compiled(X)
    assert len(seen) == 1


def test_a_model_the_user_has_compiled_stays_compiled_and_traces_do_not_learn_sizes() -> None:
    model = Broken()
    seen = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(module)
        return module.forward

    compiled = torch.compile(model, backend=backend)
    compiled(torch.ones(2, 4))
    before = len(seen)
    for rows in (2, 3, 5, 7, 8, 9, 10, 11, 12, 13):  # more often than Dynamo would compile one function
        extractor = tv.trace_model_with_dynamo(model, torch.ones(rows, 4))
        assert len(extractor.graph_modules) == 2
        first = extractor.graph_modules[0].graph
        assert next(n for n in first.nodes if n.name == "l_x_").meta["tensor_meta"].shape == (rows, 4)
        assert not any(isinstance(n.meta.get("example_value"), torch.SymInt) for n in first.nodes)
    compiled(torch.ones(2, 4))
    assert len(seen) == before


# Memory


def points(module: torch.fx.GraphModule) -> dict[str, int | None]:
    return {name: size for _, name, size in tv.analyze_memory_timeline(module.graph)}


def test_memory_follows_lifetimes_views_and_types() -> None:
    def chain(x: Tensor) -> Tensor:
        a = x + 1  # 64 bytes
        b = a.view(4, 4).t()  # lies in a
        c = b.double()  # 128 bytes; a is read for the last time
        d = c * 2  # 128 bytes
        return d.half()  # 32 bytes

    extractor = tv.trace_model_with_dynamo(chain, torch.ones(16))
    found = list(points(extractor.graph_modules[0]).values())
    x = 64  # the caller's, throughout
    assert found == [x, x + 64, x + 64, x + 64, x + 64 + 128, x + 256, x + 128 + 32, x + 32]


def test_memory_leaves_weights_out_and_counts_them_apart() -> None:
    extractor = tv.trace_model_with_dynamo(nn.Linear(100, 100), torch.ones(1, 100))
    (part,) = extractor.summary()
    assert part.weight_bytes == (100 * 100 + 100) * 4
    assert part.peak_bytes == 800
    (without,) = tv.trace_model_with_dynamo(nn.Linear(2, 2), torch.ones(1, 2), analyze_memory=False).summary()
    assert without.peak_bytes is None and without.weight_bytes is None


def test_in_place_writes_and_open_sizes_make_no_new_memory() -> None:
    def write(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1).relu_()
        return y

    for dynamic in (False, True):
        extractor = tv.trace_model_with_dynamo(write, torch.ones(8), dynamic=dynamic)
        sizes = [size for size in points(extractor.graph_modules[0]).values() if size]
        assert max(sizes) == 64 and sizes[-1] == 64


def test_memory_is_that_of_the_run() -> None:
    """On a chain without views, what lives while a node runs is what the recorder saw living."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Sigmoid())
    with torch.no_grad():
        extractor = tv.trace_model_with_dynamo(model, torch.ones(2, 8))
    trace = extractor.trace
    assert trace is not None
    own = [int(b) for s, b in enumerate(trace.graph.storage_bytes) if trace.graph.storage_birth[s] >= 0]
    timeline = extractor.memory_timeline()
    assert max(size for _, _, size in timeline) == 64 + max(a + b for a, b in pairwise(own))


def test_graphs_with_shapes_alone_and_with_nothing() -> None:
    module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with pytest.raises(UsageError, match="ShapeProp"):
        tv.analyze_memory_timeline(module.graph)
    ShapeProp(module).propagate(torch.ones(2, 4))
    assert points(module)["_1"] == 96
    with pytest.raises(UsageError, match=r"torch\.fx\.Graph"):
        tv.analyze_memory_timeline(3)  # type: ignore[arg-type]


# Descriptors


def test_descriptors_carry_tensors_weights_and_costs() -> None:
    extractor = tv.trace_model_with_dynamo(Net(), X)
    by_name = {part.name: part for part in extractor.descriptors()}
    conv = by_name["conv2d"]
    assert [t.shape for t in conv.input_tensors] == [(2, 3, 8, 8)]
    assert [t.nbytes for t in conv.output_tensors] == [2 * 4 * 6 * 6 * 4]
    assert [t.shape for t in conv.weights] == [(4, 3, 3, 3), (4,)]
    assert conv.macs == 2 * 4 * 6 * 6 * 27
    (whole,) = extractor.descriptors("partition")
    trace = extractor.trace
    assert trace is not None
    assert (
        whole.flops == trace.metrics["flops"].total()
        and whole.moved_bytes == trace.metrics["moved_bytes"].total()
    )
    assert [t.shape for t in whole.input_tensors] == [(2, 3, 8, 8)]
    with pytest.raises(NoMatch, match="node"):
        extractor.descriptors("nodes")  # type: ignore[arg-type]


def test_costs_of_partitions_add_up_and_are_unknown_without_a_trace() -> None:
    extractor = tv.trace_model_with_dynamo(Broken(), torch.ones(2, 4))
    parts = extractor.descriptors("partition")
    assert [part.partition for part in parts] == [0, 1] and all(part.flops for part in parts)
    plain = tv.DynamoGraphExtractor()
    torch.compile(Net(), backend=plain)(X)
    assert all(part.flops is None for part in plain.descriptors())


def test_open_sizes_are_those_of_the_run() -> None:
    extractor = tv.trace_model_with_dynamo(nn.Linear(4, 2), torch.ones(3, 4), dynamic=True)
    (linear,) = [part for part in extractor.descriptors() if "linear" in part.name]
    assert linear.output_tensors[0].shape == (3, 2) and linear.output_tensors[0].nbytes == 24


def test_a_graph_without_metadata_has_no_known_sizes():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with pytest.raises(UsageError, match="no tensor metadata"):
        tv.analyze_memory_timeline(torch.fx.symbolic_trace(model).graph)


def test_the_documents_own_timeline_runs_with_our_names():
    graph = (
        tv.trace_model_with_dynamo(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(4, 3))
        .graph_modules[0]
        .graph
    )
    live, timeline = {}, []
    for number, node in enumerate(graph.nodes):
        if "tensor_meta" in node.meta:
            live[node.name] = node.meta["tensor_meta"]
        for arg in node.args:
            if isinstance(arg, torch.fx.Node) and tv.is_last_use(arg, graph, node):
                del live[arg.name]
        timeline.append((number, node.name, sum(tv.get_tensor_size(tensor) for tensor in live.values())))
    assert timeline[-2][2] == 4 * 2 * 4 and len(timeline) == len(graph.nodes)
