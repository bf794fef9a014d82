"""The .onnx file: valid for ONNX's own checker, and not an edge lost on the way."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torch_vis as tv
from tests.kit.graphs import (
    LIMITS,
    META,
    columns,
    empty_graph,
    linear_chain,
    odd_calls_graph,
    one_node_graph,
    synthetic,
    training_graph,
    training_metrics,
)
from tests.kit.onnx_reader import (
    Flat,
    attributes,
    expected_inputs,
    graphs,
    metadata,
    nodes,
    origin,
    shape,
)
from tests.kit.traced import NAMES, traced
from torch_vis.errors import FileError, MissingExtra
from torch_vis.exporters.onnx import save, to_onnx
from torch_vis.exporters.onnx_protos import Protos
from torch_vis.graph import Call, Column, Graph, Metrics, Slot, TensorType
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Module

onnx = pytest.importorskip("onnx")

TABLES = ("calls", "types", "sites", "modules", "names", "devices", "results")


def check(model: Any, graph: Graph) -> Flat:
    """ONNX's full check, and every input of every operation against the graph."""
    onnx.checker.check_model(model, full_check=True)
    flat = Flat(model)
    assert sorted(flat.inputs) == list(range(len(graph)))
    for node, read in flat.inputs.items():
        arguments, more = expected_inputs(graph, node)
        assert read[: len(arguments)] == arguments, graph.nodes[node]
        assert sorted(map(repr, read[len(arguments) :])) == more, graph.nodes[node]
    return flat


def changed(graph: Graph, **tables: Any) -> Graph:
    """A graph with some of its tables or columns replaced."""
    parts = {name: tables.get(name, getattr(graph, name)) for name in columns()}
    made = Graph(parts, {name: tables.get(name, getattr(graph, name)) for name in TABLES})
    made.check()
    return made


def export(model: Any, *args: Any, backward: bool = False) -> tuple[Any, tv.Trace]:
    t = tv.trace(model, *args, backward=backward)
    made = to_onnx(t)
    check(made, t.graph)
    return made, t


def find(model: Any, op_type: str) -> Any:
    """The first node of that type in any graph."""
    return next(node for node in nodes(model) if node.op_type == op_type)


# ---------------------------------------------------------------- every graph


@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_is_valid_and_whole(name: str) -> None:
    t = traced(name)
    model = to_onnx(t)
    flat = check(model, t.graph)
    found = [made if isinstance(made, list) else [made] for made in flat.outputs.values()]
    for row in t.graph.outcomes:
        if row.kind == "output":
            assert [origin(t.graph.values[value]) for value in dict(row.sources())] in found
    for value in t.graph.values:
        info = flat.types.get(f"%{value.index}")
        assert info is None or shape(info) == value.shape
    named = Counter(node.name for node in nodes(model))
    assert max(named.values(), default=1) == 1


@pytest.mark.parametrize(
    "make", [empty_graph, one_node_graph, training_graph, odd_calls_graph, lambda: synthetic(300)[0]]
)
def test_graphs_made_by_hand(make: Callable[[], Graph], tmp_path: Path) -> None:
    save(tmp_path / "run.onnx", Run(make(), Metrics(), LIMITS, META))
    model = onnx.load(tmp_path / "run.onnx")
    check(model, make())
    assert model.graph.name == "Net"
    assert metadata(model)["limits"] == LIMITS[0]


def test_the_same_graph_gives_the_same_bytes() -> None:
    t = traced("bert")
    first, second = (to_onnx(t) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


@st.composite
def tangled_graphs(draw: st.DrawFn) -> Graph:
    """Operations that read any earlier ones, in modules and phases dealt out without sense or order."""
    count = draw(st.integers(1, 14))
    scopes = draw(st.integers(1, 6))
    reads = [draw(st.lists(st.integers(0, node), min_size=1, max_size=3)) for node in range(count)]
    graph = linear_chain(["aten::a"] * count)
    starts = np.cumsum([0, *map(len, reads)])
    calls = [graph.calls[0]._replace(args=tuple(Slot(slot) for slot in range(len(row)))) for row in reads]
    return changed(
        graph,
        calls=calls,
        modules=[Module("", "run", "run"), *(Module(f"m.{scope}", "M") for scope in range(1, scopes))],
        scope_parent=np.array([-1, *(draw(st.integers(0, scope - 1)) for scope in range(1, scopes))]),
        scope_module=np.arange(scopes),
        scope_call=np.zeros(scopes),
        node_scope=np.array([draw(st.integers(0, scopes - 1)) for _ in range(count)]),
        node_phase=np.array([draw(st.integers(0, 2)) for _ in range(count)]),
        in_start=starts,
        in_value=np.concatenate(reads),
        in_slot=np.concatenate([np.arange(len(row)) for row in reads]),
        in_kind=np.ones(starts[-1]),
    )


@given(tangled_graphs())
def test_no_order_of_modules_makes_a_cycle(graph: Graph) -> None:
    check(to_onnx(Run(graph, Metrics())), graph)


# ---------------------------------------------------------------- what a person sees


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.fc(x))


def test_modules_are_nodes_with_bodies() -> None:
    model, _ = export(nn.Sequential(Block(), nn.ReLU()), torch.ones(2, 3))
    block, relu = model.graph.node
    assert (block.op_type, block.name, block.domain, relu.op_type) == ("Block", "0", "torch_vis", "ReLU")
    body = attributes(block)["body"]
    assert [node.op_type for node in body.node] == ["Linear", "LayerNorm", "add"]
    assert [node.name for node in body.node][:2] == ["0.fc", "0.norm"]
    assert [node.op_type for node in attributes(body.node[0])["body"].node] == ["t", "addmm"]
    assert attributes(body.node[0])["body"].name == "fc"
    assert [info.name for info in model.graph.input] == ["input"]
    assert [info.name for info in model.graph.output] == ["output"]
    assert shape(model.graph.output[0]) == (2, 3)


def test_what_a_skip_connection_carries_enters_the_body() -> None:
    model, _ = export(nn.Sequential(nn.Identity(), Block()), torch.ones(2, 3))
    block = find(model, "Block")
    assert list(block.input) == ["input"] == [info.name for info in attributes(block)["body"].input]
    assert find(model, "add").input[0] == "input"


def test_weights_show_on_their_module_without_data() -> None:
    model, _ = export(
        nn.Sequential(nn.Linear(3, 4).to(torch.bfloat16)), torch.ones(2, 3, dtype=torch.bfloat16)
    )
    linear = find(model, "Linear")
    weights = {weight.values.name: weight for weight in model.graph.sparse_initializer}
    assert set(weights) == {"0.weight", "0.bias"} < set(linear.input)
    assert metadata(linear)["input_names"] == "['input', '0.weight', '0.bias']".replace("0.", "")
    weight = weights["0.weight"]
    assert (list(weight.dims), weight.values.data_type) == ([4, 3], onnx.TensorProto.BFLOAT16)
    assert not weight.values.raw_data and not weight.values.float_data
    assert len(model.SerializeToString()) < 4000


def test_an_operation_shows_its_arguments() -> None:
    model, _ = export(nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), torch.ones(1, 2, 8, 8))
    node = find(model, "convolution")
    assert (node.domain, node.op_type) == ("aten", "convolution")
    shown = attributes(node)
    assert (shown["stride"], shown["padding"], shown["groups"], shown["transposed"]) == ([2, 2], [1, 1], 1, 0)
    assert "bias" not in shown and metadata(node)["input_names"] == "['input', 'weight']"
    assert (
        node.doc_string
        == "output = convolution(input, weight, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)"
    )
    norm, _ = export(Block(), torch.ones(2, 3))
    assert attributes(find(norm, "native_layer_norm")) == {"normalized_shape": [3], "eps": b"1e-12"}


def test_lists_of_tensors_and_odd_arguments() -> None:
    def model(x: Tensor, i: Tensor) -> Tensor:
        return torch.cat([x, x[:, i]], dim=1).to(torch.float64)

    made, _ = export(model, torch.ones(2, 3), torch.tensor([0, 2]))
    assert attributes(find(made, "cat")) == {"dim": 1}
    assert metadata(find(made, "cat"))["input_names"] == "['tensors[0]', 'tensors[1]']"
    assert attributes(find(made, "index")) == {"indices": b"[None, indices[1]]"}
    assert attributes(find(made, "_to_copy"))["dtype"] == b"float64"


def test_backward_is_a_box_of_its_own_and_leads_to_the_gradients() -> None:
    model, t = export(nn.Sequential(Block(), nn.ReLU()), torch.ones(2, 3), backward=True)
    titles = [node.op_type for node in model.graph.node]
    assert titles[:2] == ["Block", "ReLU"] and titles[-2:] == ["ReLU backward", "Block backward"]
    linear = find(model, "Linear backward")
    assert {name for name in linear.output if name.endswith("grad")} == {"0.fc/bias.grad", "0.fc/weight.grad"}
    node = next(node for node in attributes(linear)["body"].node if node.op_type == "mm")
    said = metadata(node)
    assert said["phase"] == "backward" and said["forward"] == find(model, "addmm").name
    assert t.graph.nodes[int(said["forward"].rpartition("_")[2])].name == "addmm"


def test_boxes_of_a_deep_model_have_few_inputs() -> None:
    t = traced("bert")
    model = to_onnx(t)
    for node, _ in graphs(model):
        if node is not None:
            assert len(node.input) <= 8 and len(node.output) <= 8, node.name


@pytest.mark.parametrize("name", ["long_chain", "id_reuse_loop"])
def test_long_programs_are_shown_in_stretches(name: str) -> None:
    t = traced(name)
    model = to_onnx(t)
    assert len(t.graph) > 3000
    assert max(len(graph.node) for _, graph in graphs(model)) < 1000
    stretch = find(model, "operations")
    inside = [
        int(node.name.rpartition("_")[2]) for node in attributes(stretch)["body"].node if node.doc_string
    ]
    assert stretch.name.endswith(f"{inside[0]}–{inside[-1]}") and inside == sorted(inside)
    assert len({metadata(node)["source"] for node in nodes(model) if "source" in metadata(node)}) > 1


def test_calls_of_one_module_are_several_nodes() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x))

    model, _ = export(Twice(), torch.ones(2, 3))
    assert [node.name for node in model.graph.node] == ["fc", "fc call 2"]
    assert metadata(model.graph.node[1])["call"] == "2"
    assert len(model.graph.sparse_initializer) == 2


def test_metadata_says_what_is_known() -> None:
    model = to_onnx(Run(training_graph(), training_metrics()))
    by_name = {node.name: metadata(node) for node in nodes(model)}
    assert by_name["addmm_1"] == {
        "input_names": "['self', 'mat1']",
        "phase": "forward",
        "source": "model.py:5 in forward",
        "time": "15 ns",
        "memory": "32 B",
        "live": "104 B",
        "FLOPs": "48",
    }
    assert "FLOPs" not in by_name["fill__2"] and by_name["fill__2"]["flags"] == "escape, random"
    assert by_name["expand_4"]["forward"] == "sum_3" and "source" not in by_name["expand_4"]
    box = by_name["fc"]
    assert (box["operations"], box["time"], box["FLOPs"]) == ("2", "20 ns", "48")


def test_sums_say_what_they_leave_out() -> None:
    known = np.array([True, False, True, True, True])
    column = Column("flops", np.array([5, 0, 2_500_000, 0, 0]), known=known)
    model = to_onnx(Run(training_graph(), Metrics({"flops": column})))
    assert metadata(find(model, "Linear"))["FLOPs"] == "5; 1 operation not known"
    assert metadata(find(model, "fill_"))["FLOPs"] == "2.5 M"


def test_a_line_of_backward_is_said_once() -> None:
    model, _ = export(nn.Sequential(Block(), nn.ReLU()), torch.ones(2, 3), backward=True)
    sources = [(node.op_type, metadata(node).get("source")) for node, _ in graphs(model) if node is not None]
    assert re.match(r".*test_onnx\.py:\d+ in export", str(dict(sources)["Block backward"]))
    assert dict(sources)["Linear backward"] is None
    assert "source" in metadata(find(model, "addmm")) and "source" not in metadata(find(model, "mm"))


def test_checkpointing_shows_as_recomputation() -> None:
    t = traced("checkpoint_reentrant")
    titles = [node.op_type for node in nodes(to_onnx(t))]
    assert any(title.endswith(" recompute") for title in titles)


def test_an_optimizer_is_a_box() -> None:
    t = traced("adamw_foreach_step")
    model = to_onnx(t)
    box = find(model, "AdamW")
    assert metadata(box)["kind"] == "optimizer" and attributes(box)["body"].node


# ---------------------------------------------------------------- what ONNX has not


def with_type(type_: TensorType) -> Graph:
    return changed(one_node_graph(), types=[type_])


def test_scalars_from_outside_have_no_invented_value() -> None:
    model, _ = export(nn.BatchNorm1d(3), torch.ones(2, 3))
    node = find(model, "buffer")
    assert list(node.output) == ["num_batches_tracked"] and not node.input
    assert not any(graph.initializer for _, graph in graphs(model))


def test_empty_tensors_from_outside() -> None:
    weight = nn.Parameter(torch.ones(0, 3))
    model, _ = export(lambda x: x + weight.sum(), torch.ones(2))
    (empty,) = model.graph.initializer
    assert list(empty.dims) == [0, 3]


@pytest.mark.parametrize(
    ("dtype", "nearest"),
    [("complex32", "COMPLEX64"), ("quint8", "UINT8"), ("bits1x8", "UINT8"), ("odd", "UINT8")],
)
def test_an_element_type_that_onnx_has_not(dtype: str, nearest: str) -> None:
    graph = with_type(TensorType(dtype, (4,), (1,)))
    model = to_onnx(Run(graph, Metrics()))
    check(model, graph)
    info = model.graph.input[0]
    assert info.type.tensor_type.elem_type == onnx.TensorProto.DataType.Value(nearest)
    assert info.doc_string == dtype and metadata(find(model, "relu"))["type of output"] == dtype


def test_layouts_are_told() -> None:
    model = to_onnx(Run(with_type(TensorType("float32", (4,), (1,), "sparse_coo")), Metrics()))
    assert model.graph.input[0].doc_string == "float32, sparse_coo"


def test_dimensions_without_a_number() -> None:
    sizes: Any = ("batch", 3)
    declared = Protos().type(TensorType("float32", sizes, (3, 1)))
    assert [dim.dim_param or dim.dim_value for dim in declared.tensor_type.shape.dim] == ["batch", 3]


ODD = ["", "é 漢字 \U0001f600", "\ud800 lone", "a\x00b\n", "x" * 100_000, "'], ['", "../..", "%3"]


@pytest.mark.parametrize("text", ODD)
def test_any_text_can_be_written(text: str, tmp_path: Path) -> None:
    graph = training_graph()
    odd = changed(
        graph,
        calls=[call._replace(op=f"{text}::{text}") for call in graph.calls],
        modules=[Module(text, text), Module(f"{text}.fc", text)],
        sites=[site._replace(file=text, function=text) for site in graph.sites],
        names=[text, text],
        results=[row._replace(name=text) for row in graph.results],
    )
    save(tmp_path / "run.onnx", Run(odd, training_metrics(), (text,), {text: text, "model": text}))
    onnx.checker.check_model(str(tmp_path / "run.onnx"), full_check=True)


def test_numbers_that_attributes_cannot_hold() -> None:
    graph = odd_calls_graph()
    model = to_onnx(Run(graph, Metrics()))
    check(model, graph)
    shown = attributes(next(node for node in nodes(model) if node.name == "a_0"))
    assert shown["arg1"] == 1 and shown["arg10"] == str(2**80).encode() and shown["arg18"] == b"1j"
    assert math.isnan(shown["arg15"]) and shown["arg14"] == b"0.1" and "arg7" not in shown


# ---------------------------------------------------------------- files and extras


def test_saved_by_its_ending(tmp_path: Path) -> None:
    t = tv.trace(Block(), torch.ones(2, 3))
    t.save(tmp_path / "run.onnx")
    assert onnx.load(tmp_path / "run.onnx").graph.name == "Block"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        save(tmp_path / "no" / "run.onnx", Run(empty_graph(), Metrics()))


def test_without_onnx_the_error_holds_the_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "run.onnx").write_bytes(b"old")
    with pytest.raises(MissingExtra, match=r"onnx is not installed; run: pip install 'torch-vis\[onnx\]'"):
        save(tmp_path / "run.onnx", Run(one_node_graph(), Metrics()))
    assert (tmp_path / "run.onnx").read_bytes() == b"old"


def test_without_torch_arguments_go_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(op: str) -> set[str]:
        graph = changed(one_node_graph(), calls=[Call(op, (Slot(0), (1,)), ())])
        return set(attributes(find(to_onnx(Run(graph, Metrics())), "sum")))

    assert names("aten::sum.dim_IntList") == {"dim"}
    assert names("elsewhere::sum") == names("aten::sum.no_such_overload") == {"arg1"}
    monkeypatch.setitem(sys.modules, "torch", None)
    assert names("aten::sum.IntList_out") == {"arg1"}  # one that was not looked up before
