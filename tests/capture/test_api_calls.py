"""The calls of torch's functions that operations ran in: read from the caller's instructions, and true."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import torch_vis as tv
from tests.kit.traced import traced
from torch_vis.capture.assembling.api_calls import HAS_POSITIONS, called_name, names_in, period
from torch_vis.graph import Graph
from torch_vis.ops.api_level import api_graph

# operations that go by the name of their sign, and have no call of their own
SIGNS = frozenset("add sub mul div neg eq ne lt le gt ge pow floor_divide bool and or invert".split())
needs_positions = pytest.mark.skipif(not HAS_POSITIONS, reason="names are known from Python 3.11 on")
MODELS = ("bert", "llama", "vit", "lstm_cell_loop", "indexed_reads")


def calls(graph: Graph) -> list[tuple[str | None, list[str]]]:
    """Calls in order, each with the operations that it ran."""
    rows: list[tuple[int, str | None, list[str]]] = []
    for node in graph.nodes:
        if node.phase != "forward":
            continue
        first = int(graph.node_api_first[node.index])
        if first < 0 or not rows or rows[-1][0] != first:
            rows.append((first, node.api, []))
        rows[-1][2].append(node.name)
    return [(api, names) for _, api, names in rows]


class Attention(nn.Module):
    """Functions by module, by method, by operator, by a name imported, and by an attribute that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.act = functional.gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each line another kind of call."""
        q = self.project(x).view(2, 3, 2, 4).transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, q, q)
        y = (
            y.transpose(1, 2)
            .reshape(2, 3, 8)
        )  # fmt: skip
        y = functional.dropout(self.act(y), 0.5, training=True)
        return torch.matmul(y, y.mT).sum(dim=-1, keepdim=True)


@needs_positions
def test_every_call_has_the_name_that_the_program_has_for_it() -> None:
    t = tv.trace(Attention(), torch.ones(2, 3, 8))
    assert calls(t.graph) == [
        ("linear", ["view", "t", "addmm", "view"]),
        ("view", ["view"]),
        ("transpose", ["transpose"]),
        ("scaled_dot_product_attention", ["_scaled_dot_product_flash_attention_for_cpu"]),
        ("transpose", ["transpose"]),
        ("reshape", ["view"]),
        (None, ["gelu"]),
        ("dropout", ["empty_like", "bernoulli_", "div_", "mul"]),
        ("mT", ["transpose"]),
        ("matmul", ["expand", "view", "expand", "view", "bmm", "_unsafe_view"]),
        ("sum", ["sum"]),
    ]


@needs_positions
def test_a_loop_around_one_call_is_as_many_calls() -> None:
    def many(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.matmul(x, x)
        return x

    t = tv.trace(many, torch.ones(2, 3, 3))
    assert [api for api, _ in calls(t.graph)] == ["matmul"] * 3
    assert [scope.path for scope in api_graph(t.graph).scopes] == ["", "matmul", "matmul", "matmul"]


def test_what_the_tool_itself_adds_is_no_call_of_the_users() -> None:
    t = tv.trace(nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    assert all(node.api != "trace" for node in t.graph.nodes)


@needs_positions
@pytest.mark.parametrize("name", MODELS)
def test_names_are_those_that_a_function_mode_hears(name: str) -> None:
    """A function mode hears of every call, at the cost of fast paths; where it leaves the run alone, both agree."""
    from tests.zoo import ZOO

    quiet = traced(name).graph
    model, args, kwargs = ZOO[name].make()
    heard = tv.trace(model, *args, kwargs=kwargs, hold=False, functions=True).graph
    forward = [node for node in quiet.nodes if node.phase == "forward"]
    wrong, unnamed, count = [], [], 0
    for ours, theirs in zip(forward, heard.nodes):
        if ours.name != theirs.name:
            break
        if theirs.scope.kind != "function":
            continue
        want = theirs.scope.path.split(".")[-1].strip("_")
        count += 1
        if ours.api is None:
            unnamed += [] if want in SIGNS else [(ours.name, want)]
        elif ours.api.rstrip("_") != want:
            wrong.append((ours.name, ours.api, want))
    assert count > 10 and not wrong
    assert len(unnamed) <= count / 10, unnamed


def test_a_fast_path_is_taken_as_without_us() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        t = tv.trace(layer, torch.ones(1, 4, 16))
    assert [node.name for node in t.graph.nodes] == ["_transformer_encoder_layer_fwd"]


@needs_positions
def test_views_for_people_show_the_call_and_keep_the_numbers_of_scopes() -> None:
    t = tv.trace(Attention(), torch.ones(2, 3, 8), backward=True)
    deep = api_graph(t.graph)
    count = len(t.graph.scope_call)
    assert [scope.path for scope in deep.scopes[:count]] == [scope.path for scope in t.graph.scopes]
    # the module's only call and calls that only look at memory need no scope
    assert [scope.path for scope in deep.scopes[count:]] == ["dropout", "matmul"]
    gradients = [node.scope.path for node in deep.nodes if node.phase == "backward" and node.name == "bmm"]
    assert gradients == ["matmul", "matmul"]
    deep.check()


def test_the_calls_come_back_from_a_file(tmp_path: Any) -> None:
    t = tv.trace(Attention(), torch.ones(2, 3, 8))
    for ending in ("tvz", "json"):
        t.save(tmp_path / f"run.{ending}")
        assert calls(tv.load(tmp_path / f"run.{ending}").graph) == calls(t.graph)


@needs_positions
def test_a_name_is_taken_from_where_the_function_is_loaded() -> None:
    def f(x: Any, act: Any, table: Any) -> Any:
        a = act(x)
        b = table["relu"](x)
        return torch.cat([a.float(), b.view(-1)], dim=torch.ones(1).argmax())

    names = set(names_in(f.__code__).values())
    assert {"cat", "float", "view", "ones", "argmax"} <= names
    assert not names & {"act", "relu", "table"}
    assert called_name(f.__code__, -2) is None


def test_a_stretch_on_end_is_cut_where_it_begins_again() -> None:
    assert period([1, 2, 2, 1, 2, 2]) == 3
    assert period([1, 1, 2]) == 3
    assert period([]) == 0


@pytest.mark.skipif(HAS_POSITIONS, reason="from Python 3.11 on, names are known")
def test_where_names_cannot_be_known_limits_say_so() -> None:
    assert any("from 3.11 on" in limit for limit in tv.trace(nn.Linear(2, 2), torch.ones(1, 2)).limits)
