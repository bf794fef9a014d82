"""Connected tensor tracing: operations under their public names, linked by values, and as a file for Netron."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_vis as tv
from tests.kit.side_effects import torch_globals
from tests.zoo import ZOO, close_process_group, floating_sum
from torch_vis.errors import FileError, MissingExtra, NoMatch, UsageError

onnx = pytest.importorskip("onnx")

KEYS = (
    "id name phase inputs outputs side_outputs input_dtypes output_dtypes side_output_dtypes input_roles parents "
    "gradient_of gradients module source arguments dispatched nodes time_ns memory_bytes flops macs moved_bytes"
).split()


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


def names(operations: list[dict[str, Any]], phase: str = "forward") -> list[str]:
    return [operation["name"] for operation in operations if operation["phase"] == phase]


def ids(pairs: list[tuple[str, Any]]) -> list[str]:
    return [tensor for tensor, _ in pairs]


def valid(path: str) -> Any:
    """The model in a file that ONNX's own checker accepts."""
    onnx.checker.check_model(path, full_check=True)
    return onnx.load(path)


def connections(operations: list[dict[str, Any]]) -> dict[int, set[int]]:
    """Which operations each one takes tensors from, by ids alone; an id must be made once, and before it is read."""
    made: dict[str, int] = {}
    found: dict[int, set[int]] = {}
    for operation in operations:
        found[operation["id"]] = {made[tensor] for tensor in ids(operation["inputs"]) if tensor in made}
        for tensor in ids(operation["outputs"]) + ids(operation["side_outputs"]):
            assert tensor not in made
            made[tensor] = operation["id"]
    for operation in operations:
        late = [tensor for tensor in ids(operation["inputs"]) if made.get(tensor, -1) >= operation["id"]]
        assert late == []
    return found


# ---------------------------------------------------------------- as the document shows it


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        return self.head(x.view(x.shape[0], -1))


def test_the_document_s_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_vis import create_onnx_visualization, trace_tensor_ids

    monkeypatch.chdir(tmp_path)
    model = Net()
    input_tensor = torch.randn(2, 3, 4, 4)
    with trace_tensor_ids(input_tensors=[input_tensor]) as tracer:
        output = model(input_tensor)
    operations = tracer.get_operation_sequence()
    onnx_path = create_onnx_visualization(operations)

    assert output.shape == (2, 5)
    assert names(operations) == [
        "torch.nn.functional.conv2d",
        "Tensor.add_",
        "torch.nn.functional.batch_norm",
        "torch.nn.functional.relu",
        "Tensor.view",
        "torch.nn.functional.linear",
    ]
    assert [node.op_type for node in valid(onnx_path).graph.node] == [
        "conv2d", "add_", "batch_norm", "relu", "view", "linear",
    ]  # fmt: skip
    assert os.path.dirname(onnx_path) == ""


def test_what_an_operation_says() -> None:
    model, x = Net(), torch.randn(2, 3, 4, 4)
    with tv.trace_tensor_ids(input_tensors={"x": x}) as tracer:
        model(x)
    operations = tracer.get_operation_sequence()
    assert all(list(operation) == KEYS for operation in operations)
    conv = operations[0]
    assert conv["inputs"] == [("x", (2, 3, 4, 4)), ("conv.weight", (4, 3, 3, 3)), ("conv.bias", (4,))]
    assert conv["input_roles"] == ["input", "parameter", "parameter"]
    assert [shape for _, shape in conv["outputs"]] == [(2, 4, 4, 4)]
    assert conv["input_dtypes"] == ["float32"] * 3 and conv["output_dtypes"] == ["float32"]
    assert (conv["module"], conv["phase"], conv["gradient_of"]) == ("conv", "forward", None)
    assert conv["arguments"]["padding"] == [1, 1] and conv["arguments"]["groups"] == 1
    assert conv["source"].startswith(__file__) and conv["source"].rpartition(":")[2].isdigit()
    assert conv["dispatched"] == ["aten::convolution"]
    assert conv["time_ns"] > 0 and conv["memory_bytes"] == 2 * 4 * 4 * 4 * 4
    assert operations[-1]["dispatched"] == ["aten::t", "aten::addmm"]
    assert [tracer.trace.graph.nodes[n].op for n in operations[-1]["nodes"]] == ["aten::t", "aten::addmm"]


def test_cost_figures_are_those_of_the_trace() -> None:
    model, x = nn.Linear(3, 2), torch.ones(4, 3)
    with tv.trace_tensor_ids([x]) as tracer:
        model(x)
    (linear,) = tracer.get_operation_sequence()
    for key in ("flops", "macs", "moved_bytes"):
        if key in tracer.trace.metrics:
            cells = tracer.trace.metrics[key][:]
            assert linear[key] == (None if None in cells else sum(cells))
        else:
            assert linear[key] is None


# ---------------------------------------------------------------- connected by value


def test_temporaries_that_share_an_address_are_told_apart() -> None:
    """Twenty thousand of them, nearly all at the address of another: each reads what it reads and nothing else."""
    x, count = torch.ones(4), 10_000
    with tv.trace_tensor_ids(input_tensors={"x": x}, keep=False) as tracer:
        total = x * 0
        addresses = set()
        for _ in range(count):
            part = x + 1
            addresses.add(id(part))
            total = total + part
    operations = tracer.get_operation_sequence()
    assert len(operations) == 2 * count + 1
    assert len(addresses) < count / 10
    assert connections(operations) == {
        0: set(),
        **{2 * i + 1: set() for i in range(count)},
        **{2 * i + 2: {2 * i, 2 * i + 1} for i in range(count)},
    }
    assert all(set(operation["parents"]) == found for operation, found in
               zip(operations, connections(operations).values()))  # fmt: skip


def test_views_and_writes_connect() -> None:
    with tv.trace_tensor_ids() as tracer:
        base = torch.zeros(4)
        view = base[1:3]
        view.add_(1)
        whole = base * 2
        other = base[3:] + 1
    operations = tracer.get_operation_sequence()
    assert names(operations) == [
        "torch.zeros", "Tensor.__getitem__", "Tensor.add_", "Tensor.mul", "Tensor.__getitem__", "Tensor.add",
    ]  # fmt: skip
    parents = {operation["id"]: operation["parents"] for operation in operations}
    assert 2 in parents[3], "the whole was written to through the view"
    assert 2 not in parents[5] and 2 not in parents[4], "the last element was not"
    assert parents[2] == [0, 1] and parents[3] == [0, 2] and parents[5] == [4]
    assert tracer.trace.check().results and whole is not other


def test_a_reader_of_views_depends_on_the_views_and_on_who_wrote() -> None:
    x = torch.ones(4)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        h = x + 1
        h.mul_(2)
        a, b = h.chunk(2)
        a * b
    _, write, chunk, mul = tracer.get_operation_sequence()
    assert ids(chunk["inputs"]) == ids(write["outputs"]) and chunk["parents"] == [1]
    assert ids(mul["inputs"]) == ids(chunk["outputs"]) and mul["parents"] == [1, 2]


def test_inputs_and_outputs_are_those_of_the_call() -> None:
    x, weight = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4)
    norm, batch, lstm = nn.LayerNorm(4), nn.BatchNorm1d(3), nn.LSTM(4, 6, batch_first=True)
    with tv.trace_tensor_ids({"x": x, "w": weight}) as tracer:
        F.linear(x, weight)
        norm(x)
        batch(x)
        out, _ = lstm(x)
        out.sum().backward()
    operations = tracer.get_operation_sequence()
    by_name = {operation["name"].rpartition(".")[2]: operation for operation in operations[::-1]}
    assert ids(by_name["linear"]["inputs"]) == ["x", "w"]
    assert ids(by_name["layer_norm"]["inputs"]) == ["x", "layernorm.weight", "layernorm.bias"]
    assert ids(by_name["batch_norm"]["inputs"])[0] == "x"
    (lstm_call,) = [operation for operation in operations if operation["name"] == "torch.lstm"]
    assert [shape for _, shape in lstm_call["inputs"]][:4] == [(2, 3, 4), (1, 2, 6), (1, 2, 6), (24, 4)]
    assert [shape for _, shape in lstm_call["outputs"]] == [(2, 3, 6), (1, 2, 6), (1, 2, 6)]
    for name in ("linear", "layer_norm", "batch_norm"):
        assert len(by_name[name]["outputs"]) == 1, name
    assert "batchnorm1d.running_mean@1" in ids(by_name["batch_norm"]["side_outputs"])
    made = {t for op in operations for t in ids(op["outputs"]) + ids(op["side_outputs"])}
    backward = [op for op in operations if op["phase"] == "backward"]
    assert backward and all(t in made for op in backward for t in ids(op["inputs"]) if t.startswith("%"))


def test_an_assignment_to_a_part_is_a_new_version_of_the_whole() -> None:
    x = torch.ones(2, 3)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        h = x * 1
        h[:, 0] = 0
        h + x
        x[0] = h[1]
        x.add_(1)
    _, assign, add, _, whole, last = tracer.get_operation_sequence()
    assert assign["outputs"] == [(f"{ids(assign['inputs'])[0]}@1", (2, 3))]
    assert ids(add["inputs"]) == [ids(assign["outputs"])[0], "x"] and add["parents"] == [0, 1]
    assert (ids(whole["inputs"])[0], whole["outputs"]) == ("x", [("x@1", (2, 3))])
    assert ids(last["inputs"]) == ["x@1"] and last["parents"] == [4]
    connections(tracer.get_operation_sequence())


def test_writes_without_a_result_give_what_they_changed() -> None:
    x, y = torch.ones(2), torch.ones(3)
    with tv.trace_tensor_ids({"x": x, "y": y}) as tracer:
        torch._foreach_add_([x, y], 1)
        torch.add(x, x, out=y)
    foreach, add = tracer.get_operation_sequence()
    assert (ids(foreach["inputs"]), ids(foreach["outputs"])) == (["x", "y"], ["x@1", "y@1"])
    assert (ids(add["inputs"]), ids(add["outputs"])) == (["x@1", "x@1", "y@1"], ["y@2"])


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x.chunk(2, dim=1), {"chunks": 2, "dim": 1}),
        (lambda x: torch.einsum("ij,kj->ik", x, x), {"equation": "ij,kj->ik"}),
        (lambda x: x[0], {"index": "0"}),
        (lambda x: x[..., 1:4:2, None], {"index": "..., 1:4:2, None"}),
        (lambda x: x[x > 0], {"index": "<tensor>"}),
        (lambda x: x.__setitem__((slice(None), 0), 5), {"index": ":, 0", "value": 5}),
        (lambda x: x.view(2, 2, 2), {"size": [2, 2, 2]}),
        (lambda x: x.to(torch.float64), {"dtype": "float64"}),
        (lambda x: x + 0.5, {"other": 0.5}),
        (lambda x: x.sum(0, keepdim=True), {"dim": 0, "keepdim": True}),
        (lambda x: F.softmax(x, dim=-1), {"dim": -1}),
        (lambda x: F.pad(x, (1, 2), value=float("inf")), {"pad": [1, 2], "mode": "constant", "value": "inf"}),
        (lambda x: torch.cat([x, x]), {}),
    ],
)
def test_arguments_are_those_of_the_call(call: Any, expected: dict[str, Any]) -> None:
    x = torch.ones(2, 4)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        call(x)
    assert tracer.get_operation_sequence()[-1]["arguments"] == expected


def test_without_notes_the_sequence_is_what_the_dispatcher_saw() -> None:
    t = tv.trace(lambda x: F.linear(x, torch.ones(3, 4)), torch.ones(2, 4), functions=True)
    (_, linear) = tv.get_operation_sequence(t)
    assert linear["name"] == "torch.nn.functional.linear" and linear["parents"] == [0]
    assert {shape for _, shape in linear["inputs"]} == {(2, 4), (3, 4)}


def test_a_write_in_place_makes_a_new_id() -> None:
    x = torch.ones(2)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        x.add_(1)
        x.mul_(x)
    add, mul = tracer.get_operation_sequence()
    assert (ids(add["inputs"]), ids(add["outputs"])) == (["x"], ["x@1"])
    assert (ids(mul["inputs"]), ids(mul["outputs"])) == (["x@1", "x@1"], ["x@2"])


def test_ids_are_the_same_whenever_they_are_asked_for() -> None:
    x = torch.ones(2)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        x.add_(1).exp()
    assert tracer.get_operation_sequence() == tracer.get_operation_sequence()
    assert tv.get_operation_sequence(tracer.trace) == tv.get_operation_sequence(tracer)


def test_nested_containers() -> None:
    class Odd(nn.Module):
        def forward(self, items: dict[str, Any]) -> dict[str, Any]:
            stacked = torch.stack([items["a"][0], items["a"][1][0]])
            return {"list": [stacked, None], "pair": (torch.cat(items["a"][1]), {"x": items["b"] + 1})}

    items = {"a": [torch.ones(2), (torch.zeros(2), torch.ones(2))], "b": torch.ones(3), "c": None, "d": 4}
    model = Odd()
    with tv.trace_tensor_ids(input_tensors=items) as tracer:
        out = model(items)
    operations = tracer.get_operation_sequence()
    assert [(operation["name"], ids(operation["inputs"])) for operation in operations] == [
        ("torch.stack", ["a.0", "a.1.0"]),
        ("torch.cat", ["a.1.0", "a.1.1"]),
        ("Tensor.add", ["b"]),
    ]
    assert out["list"][1] is None
    assert {outcome.kind for outcome in tracer.trace.graph.outcomes} == {"output"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (lambda x: None, "%0"),
        (lambda x: [], "%0"),
        (lambda x: x, "input"),
        (lambda x: [x], "input.0"),
        (lambda x: [{"k": (x,)}], "input.0.k.0"),
        (lambda x: {"image": x}, "image"),
    ],
)
def test_how_inputs_are_named(given: Any, expected: str) -> None:
    x = torch.ones(2)
    with tv.trace_tensor_ids(given(x)) as tracer:
        x.exp()
    assert ids(tracer.get_operation_sequence()[0]["inputs"]) == [expected]


def test_operations_without_outputs_or_inputs() -> None:
    with tv.trace_tensor_ids() as tracer:
        torch.ones(3).sum().item()
    ones, _, item = tracer.get_operation_sequence()
    assert (ones["inputs"], item["outputs"], item["name"]) == ([], [], "Tensor.item")


# ---------------------------------------------------------------- backward and optimizers


def test_gradients_are_linked_both_ways() -> None:
    model, x = Net(), torch.randn(2, 3, 4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        loss = F.cross_entropy(model(x), torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
    operations = tracer.get_operation_sequence()
    assert names(operations, "backward") == [
        "torch.ones_like",
        "gradient of torch.nn.functional.cross_entropy",
        "gradient of torch.nn.functional.linear",
        "gradient of Tensor.view",
        "gradient of torch.nn.functional.relu",
        "gradient of torch.nn.functional.batch_norm",
        "gradient of torch.nn.functional.conv2d",
    ]
    for operation in operations:
        for gradient in operation["gradients"]:
            assert operations[gradient]["gradient_of"] == operation["id"]
            assert operations[gradient]["name"] == f"gradient of {operation['name']}"
            assert operations[gradient]["module"] == operation["module"]
    linear = next(op for op in operations if op["name"] == "gradient of torch.nn.functional.linear")
    assert {"head.weight.grad", "head.bias.grad"} <= set(ids(linear["outputs"]))
    step = next(op for op in operations if op["phase"] == "optimizer" and "head.weight" in ids(op["inputs"]))
    assert linear["id"] in step["parents"] and "head.weight@1" in ids(step["outputs"])
    assert set(connections(operations)[step["id"]]) <= set(step["parents"])
    tracer.trace.check()


def test_two_backward_passes_are_two_gradients() -> None:
    x = torch.ones(2, requires_grad=True)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        y = x.exp()
        y.sum().backward(retain_graph=True)
        y.sum().backward()
    operations = tracer.get_operation_sequence()
    assert len(operations[0]["gradients"]) == 2
    connections(operations)


def test_a_gradient_of_a_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        (grad,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
        grad.sum().backward()
    operations = tracer.get_operation_sequence()
    assert "gradient of gradient of Tensor.exp" in names(operations, "backward")
    connections(operations)


# ---------------------------------------------------------------- custom operations


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 1) + x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@torch.library.custom_op("torch_vis_tensor_ids::shift", mutates_args=())
def shift(x: Tensor, by: float) -> Tensor:
    return x + by


def own(x: Tensor) -> Tensor:
    return (x * 3).relu() + 1


def test_custom_operations_appear() -> None:
    x = torch.ones(2, requires_grad=True)
    with tv.trace_tensor_ids({"x": x}, functions=[own]) as tracer:
        y = own(Double.apply(x))
        y.sum().backward()
        shift(x.detach(), 2.0)
    operations = tracer.get_operation_sequence()
    assert names(operations) == [
        "Double", f"{__name__}.own", "Tensor.sum", "Tensor.detach", "torch.ops.torch_vis_tensor_ids.shift",
    ]  # fmt: skip
    double, mine = operations[:2]
    assert double["dispatched"] == ["aten::mul", "aten::add"] and ids(double["inputs"]) == ["x"]
    assert mine["dispatched"] == ["aten::mul", "aten::relu", "aten::add"] and mine["parents"] == [0]
    assert operations[-1]["arguments"] == {"by": 2.0}
    assert names(operations, "backward")[-2:] == [f"gradient of {__name__}.own", "gradient of Double"]
    tracer.trace.check()


def test_a_declared_training_step_keeps_the_order() -> None:
    """It reads what backward made from what it made itself: as one operation it would have to wait for itself."""
    model, x = nn.Linear(3, 1), torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    with tv.trace_tensor_ids({"x": x}, functions=[step]) as tracer:
        step()
        step()
    operations = tracer.get_operation_sequence()
    found = connections(operations)
    assert all(set(operation["parents"]) >= found[operation["id"]] for operation in operations)
    assert {name.rpartition(".")[2] for name in names(operations)} == {"step"}


# ---------------------------------------------------------------- attention


@pytest.mark.skipif(not hasattr(torch.overrides, "redispatch_function"), reason="this torch cannot open it")
@pytest.mark.parametrize("training", [True, False])
def test_attention_is_shown_in_steps_or_as_one(training: bool) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).train(training)
    x = torch.ones(3, 2, 8)
    with torch.set_grad_enabled(training), tv.trace_tensor_ids({"x": x}) as tracer:
        attention(x, x, x)
    steps = names(tracer.get_operation_sequence())
    assert steps.count("torch.nn.functional.linear") == 2 and "torch.nn.functional.softmax" in steps
    assert "torch.nn.functional.multi_head_attention_forward" not in steps
    assert names(tracer.get_operation_sequence(level="outermost")) == [
        "Tensor.transpose",
        "torch.nn.functional.multi_head_attention_forward",
        "Tensor.transpose",
    ]
    assert any("fast path" in limit for limit in tracer.trace.limits) == (not training)


# ---------------------------------------------------------------- the block


def test_an_exception_passes_and_what_ran_stays() -> None:
    before = torch_globals()
    error = KeyError("x")
    with pytest.raises(KeyError) as caught, tv.trace_tensor_ids() as tracer:
        torch.ones(2).exp()
        raise error
    assert caught.value is error and torch_globals() == before
    assert names(tracer.get_operation_sequence()) == ["torch.ones", "Tensor.exp"]
    assert tracer.trace.error is error


def test_a_tracer_answers_only_after_its_block() -> None:
    tracer = tv.trace_tensor_ids()
    with pytest.raises(UsageError, match="with statement"):
        tracer.get_operation_sequence()
    with tracer:
        torch.ones(2)
        with pytest.raises(UsageError, match="still recording"):
            tracer.get_operation_sequence()
        with pytest.raises(UsageError, match="still recording"):
            tracer.trace
        assert repr(tracer) == "<TensorTracer: recording>"
    assert repr(tracer) == "<TensorTracer: 1 operation>"
    with pytest.raises(UsageError, match="one block"), tracer:
        pass


@pytest.mark.parametrize("wrong", [3, "x", [1, 2], {"x": 3.5}])
def test_inputs_without_a_tensor(wrong: Any) -> None:
    with pytest.raises(UsageError, match="input_tensors holds no tensor"):
        tv.trace_tensor_ids(wrong)


def test_other_bad_input() -> None:
    t = tv.trace(nn.ReLU(), torch.ones(2))
    with pytest.raises(NoMatch, match="leaf"):
        tv.get_operation_sequence(t, level="leaff")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="takes a tracer or a trace, not list"):
        tv.get_operation_sequence([])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="functions is a list"):
        tv.trace_tensor_ids(functions=own)  # type: ignore[arg-type]


def test_a_trace_without_names_gives_dispatcher_operations(tmp_path: Path) -> None:
    t = tv.trace(nn.Linear(3, 2), torch.ones(1, 3))
    assert names(tv.get_operation_sequence(t)) == ["aten::t", "aten::addmm"]
    t.save(tmp_path / "run.tvz")
    assert names(tv.get_operation_sequence(tv.load(tmp_path / "run.tvz"))) == ["aten::t", "aten::addmm"]


def test_a_saved_trace_gives_the_same_operations(tmp_path: Path) -> None:
    """How calls were written is not in the file: all but the arguments, where a call's tensors are its operations'."""
    x = torch.ones(2, 2)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        F.relu(x) @ x
    tracer.trace.save(tmp_path / "run.tvz")
    again = tv.get_operation_sequence(tv.load(tmp_path / "run.tvz"))
    for loaded, operation in zip(again, tracer.get_operation_sequence(), strict=True):
        assert {**loaded, "arguments": None} == {**operation, "arguments": None}


# ---------------------------------------------------------------- the zoo


@cache
def traced(name: str) -> tv.TensorTracer:
    case = ZOO[name]
    model, args, kwargs = case.make()
    with tv.trace_tensor_ids({"args": args, "kwargs": kwargs}, keep=False) as tracer:
        out = model(*args, **kwargs)
        if case.backward:
            floating_sum(out).backward()
    return tracer


@pytest.mark.parametrize("level", ["leaf", "outermost"])
@pytest.mark.parametrize("name", ZOO)
def test_every_case_of_the_zoo_gives_a_connected_sequence_and_a_valid_file(
    name: str, level: Any, tmp_path: Path
) -> None:
    tracer = traced(name)
    operations = tracer.get_operation_sequence(level=level)
    nodes = [node for operation in operations for node in operation["nodes"]]
    assert sorted(nodes) == list(range(len(tracer.trace.graph)))  # each in one operation
    found = connections(operations)
    for operation in operations:
        assert set(operation["parents"]) >= found[operation["id"]]
    plain = json.loads(json.dumps(operations, allow_nan=False))
    model = valid(tv.create_onnx_visualization(plain, tmp_path / "zoo.onnx"))
    assert len(model.graph.node) == len(operations)


def test_netron_reads_the_files_of_the_zoo(tmp_path: Path) -> None:
    netron, node = pytest.importorskip("netron"), shutil.which("node")
    if node is None:
        pytest.skip("there is no node on the path to run Netron's JavaScript with")
    scripts = Path(shutil.copytree(Path(netron.__file__).parent, tmp_path / "netron"))
    (scripts / "package.json").write_text('{"type": "module"}')
    files = tmp_path / "files"
    files.mkdir()
    for name in ZOO:
        tv.create_onnx_visualization(traced(name).get_operation_sequence(), files / f"{name}.onnx")
    reader = Path(__file__).parents[1] / "exporters" / "netron_reader.mjs"
    lines = subprocess.check_output([node, str(reader), str(scripts), str(files)], text=True).splitlines()
    for record in map(json.loads, lines):
        operations = traced(record["file"].removesuffix(".onnx")).get_operation_sequence()
        assert record["error"] is None
        (graph,) = record["graphs"]
        assert len(graph["nodes"]) == len(operations), record["file"]
        for node, operation in zip(graph["nodes"], operations, strict=True):
            assert len(node["inputs"]) == len(operation["inputs"])
            assert node["metadata"]["phase"] == operation["phase"]
    assert len(lines) == len(ZOO)


# ---------------------------------------------------------------- ONNX


def small() -> list[dict[str, Any]]:
    model, x = Net(), torch.randn(2, 3, 4, 4)
    with tv.trace_tensor_ids({"x": x}) as tracer:
        F.cross_entropy(model(x), torch.tensor([0, 1])).backward()
    return tracer.get_operation_sequence()


def test_what_netron_is_told(tmp_path: Path) -> None:
    operations = small()
    graph = valid(tv.create_onnx_visualization(operations, tmp_path / "net.onnx")).graph
    conv, gradient = graph.node[0], graph.node[-1]
    assert (conv.op_type, conv.domain, conv.input[0]) == ("conv2d", "torch.nn.functional", "x")
    assert (gradient.op_type, gradient.domain) == ("grad conv2d", "torch.nn.functional")
    said = {entry.key: entry.value for entry in conv.metadata_props}
    assert said["phase"] == "forward" and said["module"] == "conv" and __file__ in said["source"]
    assert said["memory"] == "512 B" and "time" in said and said["dispatched"] == "aten::convolution"
    assert said["gradients"] == gradient.name
    assert {entry.key: entry.value for entry in gradient.metadata_props}["gradient of"] == conv.name
    assert {a.name: list(a.ints) for a in conv.attribute}["padding"] == [1, 1]
    shapes = {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in [*graph.input, *graph.value_info, *graph.output]
    }
    assert shapes["x"] == [2, 3, 4, 4] and shapes[conv.output[0]] == [2, 4, 4, 4]
    weights = [weight.values.name for weight in graph.sparse_initializer]
    assert "conv.weight" in weights and "conv.weight" not in shapes
    assert all(tensor in shapes for node in graph.node for tensor in node.output)


def test_netron_is_told_of_writes_that_no_line_shows(tmp_path: Path) -> None:
    with tv.trace_tensor_ids() as tracer:
        base = torch.zeros(4)
        base[1:3].add_(1)
        base * 2
    graph = valid(tv.create_onnx_visualization(tracer.get_operation_sequence(), tmp_path / "a.onnx")).graph
    said = [{entry.key: entry.value for entry in node.metadata_props} for node in graph.node]
    assert said[3]["reads memory written by"] == graph.node[2].name
    assert "reads memory written by" not in said[1]


def test_part_of_a_list_and_a_list_in_another_order(tmp_path: Path) -> None:
    operations = small()
    part = operations[2:5]
    graph = valid(tv.create_onnx_visualization(part, tmp_path / "part.onnx")).graph
    assert part[0]["inputs"][0][0] in [info.name for info in graph.input]
    graph = valid(tv.create_onnx_visualization(operations[::-1], tmp_path / "back.onnx")).graph
    place = {tensor: number for number, node in enumerate(graph.node) for tensor in node.output}
    assert all(
        place.get(tensor, -1) < number for number, node in enumerate(graph.node) for tensor in node.input
    )


def test_a_list_made_by_hand(tmp_path: Path) -> None:
    by_hand = [
        {"name": "load", "inputs": [], "outputs": [(140123, (None, 3))]},
        {"name": "ai.onnx.Add", "inputs": [(140123, [2, "n"]), ("b", ())], "outputs": [["c", [2, 3]]],
         "arguments": {"alpha": [1, [2.5, "x"]], "flag": True, "none": None, "odd": {"a": 1}}, "gradient_of": 77},
        {"name": "print", "inputs": [("c", [2, 3])], "outputs": []},
        {"name": "nothing at all", "inputs": [], "outputs": []},
    ]  # fmt: skip
    graph = valid(tv.create_onnx_visualization(by_hand, tmp_path / "hand.onnx")).graph
    assert [(node.op_type, node.domain) for node in graph.node] == [
        (name, "torch_vis") for name in ("load", "Add", "print", "nothing at all")
    ]
    assert [info.name for info in graph.input] == ["b"]
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UNDEFINED


def test_no_operations(tmp_path: Path) -> None:
    assert len(valid(tv.create_onnx_visualization([], tmp_path / "none.onnx")).graph.node) == 0


def test_where_the_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    operations = [{"name": "f", "inputs": [], "outputs": [("a", (1,))]}]
    found = [tv.create_onnx_visualization(operations) for _ in range(3)]
    assert found == ["torch_operations.onnx", "torch_operations_2.onnx", "torch_operations_3.onnx"]
    assert sorted(os.listdir()) == sorted(found)
    given = tmp_path / "given.onnx"
    given.write_text("old")
    assert tv.create_onnx_visualization(operations, given) == str(given)
    valid(str(given))
    with pytest.raises(FileError, match="cannot write"):
        tv.create_onnx_visualization(operations, tmp_path / "no" / "such.onnx")
    with pytest.raises(UsageError, match="a path is"):
        tv.create_onnx_visualization(operations, 3)  # type: ignore[arg-type]


GOOD = {"name": "f", "inputs": [("a", (2,))], "outputs": [("b", (2,))]}
BAD: list[tuple[Any, str]] = [
    (None, "takes the list that get_operation_sequence"),
    ("abc", "takes the list"),
    (GOOD, "takes the list"),
    ([GOOD, 3], r"operations\[1\] is int 3, and not a dictionary"),
    ([GOOD, {**GOOD, "name": None}], r"operations\[1\] \(None\): 'name' must be a text"),
    ([{"name": "f", "outputs": []}], r"operations\[0\] \(f\): 'inputs' must be a list"),
    ([{**GOOD, "outputs": "b"}], r"'outputs' must be a list"),
    ([{**GOOD, "inputs": ["ab"]}], r"inputs\[0\] must be a pair"),
    ([{**GOOD, "inputs": [(None, (1,))]}], r"inputs\[0\]: a tensor id is a text or a number, not None"),
    ([{**GOOD, "outputs": [("b", 3)]}], r"outputs\[0\]: a shape is a list of sizes, not 3"),
    ([{**GOOD, "outputs": [("b", (-1,))]}], r"outputs\[0\]: a shape"),
    ([{**GOOD, "input_dtypes": []}], r"'input_dtypes' must have one element type for each of 'inputs' \(1\)"),
    (
        [GOOD, {**GOOD, "name": "g"}],
        r"operations\[1\] \(g\): outputs\[0\] 'b' is made by operations\[0\] already",
    ),
    (
        [{**GOOD, "outputs": [("a", (2,))]}],
        r"operations\[0\] \(f\): 'inputs' and 'outputs' have an id in common",
    ),
    (
        [GOOD, {"name": "g", "inputs": [("b", (2,))], "outputs": [("a", (2,))]}],
        r"operations\[0\] \(f\).*circle",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_bad_operations_are_named(wrong: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        tv.create_onnx_visualization(copy.deepcopy(wrong), tmp_path / "bad.onnx")
    assert os.listdir(tmp_path) == []


def test_without_onnx_the_error_holds_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'torch-vis\[onnx\]'"):
        tv.create_onnx_visualization([])
