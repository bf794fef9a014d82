"""Captures through compilers: the same graph as the eager run, bit for bit, with breaks, symbols and lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.kit.frontends import OTHERWISE
from tests.kit.side_effects import torch_globals
from tests.zoo import ZOO, close_process_group, first_difference
from torch_vis.errors import CaptureFailed, NoMatch, TensorsMissing, UsageError

COMPILERS = ("fx", "export", "dynamo", "aot")


pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.parametrize("via", ["fx", "export", "dynamo"])
@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_through_a_front_end(name: str, via: str) -> None:
    case = ZOO[name]
    if name in OTHERWISE[via]:
        pytest.skip(OTHERWISE[via][name])
    model, args, kwargs = case.make()
    eager = tv.trace(model, *args, kwargs=kwargs, backward=case.backward, hold=False)
    close_process_group()
    model, args, kwargs = case.make()
    try:
        t = tv.trace(model, *args, kwargs=kwargs, backward=case.backward, via=via)
    except CaptureFailed as failure:
        assert failure.__cause__ is not None and "; " in str(failure)
        return  # the front-end itself cannot take it, and the message says what can
    assert first_difference(eager.output, t.output) is None
    try:
        t.check()
    except TensorsMissing:
        assert case.tags & {"fake"}
    assert t.program is not None and (t.program.modules or t.breaks or not len(t.graph))
    assert not any("torch_vis" in found.file for found in t.breaks)
    t.figure("svg")


SMALL = [
    "residual",
    "tied_weights",
    "batch_norm_train",
    "dict_in_and_out",
    "shared_module",
    "lstm_cell_loop",
    "vit",
]


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: float = 2.0) -> dict[str, Tensor]:
        return {"y": self.last(self.norm(torch.relu(self.first(x))) * scale)}


class Broken(Plain):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        x = torch.relu(self.first(x))
        if x.sum() > 0:
            x = x + 1
        torch._dynamo.graph_break()
        return self.last(x)


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize("via", COMPILERS)
def test_a_training_model_gives_what_eager_gives(via: str) -> None:
    eager, model = made(Plain), made(Plain)
    wanted = tv.trace(eager, X, backward=True)
    t = tv.trace(model, X, backward=True, via=via)
    assert torch.equal(t.output["y"], wanted.output["y"])
    for (name, one), (_, two) in zip(eager.state_dict().items(), model.state_dict().items()):
        assert torch.equal(one, two), name
    for one, two in zip(eager.parameters(), model.parameters()):
        assert one.grad is not None and two.grad is not None and torch.allclose(one.grad, two.grad, rtol=1e-5)
    t.check()
    named = {value.name for value in t.graph.values if value.role == "parameter" and value.name}
    assert named == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("via", ["fx", "export", "dynamo"])
def test_operations_are_those_of_eager_with_modules_and_lines(via: str) -> None:
    wanted = tv.trace(made(Plain), X)
    t = tv.trace(made(Plain), X, via=via)
    assert [node.op for node in t.graph.nodes] == [node.op for node in wanted.graph.nodes]
    norm = next(node for node in t.graph.nodes if "batch_norm" in node.op)
    around = norm.scope
    paths = []
    while around is not None:
        paths.append(around.path)
        around = around.parent
    assert "norm" in paths
    if via != "fx":
        assert norm.site is not None and norm.site.file == __file__
        mul = next(node for node in t.graph.nodes if node.name == "mul")
        assert mul.site is not None and mul.site.file.endswith("test_via.py")


def test_hf_inputs_by_keyword() -> None:
    model, args, kwargs = ZOO["bert"].make()
    want = model(*args, **kwargs)
    t = tv.trace(model, *args, kwargs=kwargs, via="export")
    assert torch.equal(t.output["last_hidden_state"], want["last_hidden_state"])
    assert any(scope.path == "encoder.layer.0" for scope in t.graph.scopes)


# ---------------------------------------------------------------- graph breaks


def test_breaks_say_why_and_where() -> None:
    t = tv.trace(made(Broken), X, via="dynamo")
    first, second = t.breaks
    assert (first.reason, first.id, first.function) == ("Data-dependent branching", "GB0170", "forward")
    assert first.file == __file__ and first.code == "if x.sum() > 0:" and first.hints and first.explanation
    assert first.nodes == t.breaks.partitions[0] == 4
    assert second.code == "torch._dynamo.graph_break()"
    assert t.breaks.guards and len(t.breaks.partitions) == 3
    shown = str(t.breaks)
    assert "2 graph breaks; 3 partitions" in shown and "Use `torch.cond`" in shown and "test_via.py" in shown


def test_partitions_are_scopes_of_one_connected_graph() -> None:
    t = tv.trace(made(Broken), X, via="dynamo")
    parts = [scope for scope in t.graph.scopes if scope.kind == "compiled" and "partition" in scope.path]
    assert [scope.path for scope in parts] == ["partition 0", "partition 1", "partition 2"]
    reached, _ = t.graph.ancestors(t.graph.outcomes[0].sources())
    relu = next(node.index for node in t.graph.nodes if node.name == "relu")
    assert reached[relu]  # from the last partition back into the first
    assert (
        t.graph.scopes[1].type == "Broken" or t.graph.scopes[0].type == "Broken"
    )  # not torch's wrapper of it
    assert torch.equal(t.output, made(Broken)(X))
    t.check()


@pytest.mark.parametrize("via", ["dynamo", "aot"])
def test_what_ran_in_the_partitions_of_a_function_is_not_called_eager(via: str) -> None:
    layer = made(Plain)

    class Called:
        def __call__(self, x: Tensor) -> Tensor:
            return layer(x)["y"].cos()

    def with_break(x: Tensor) -> Tensor:
        y = layer(x)["y"].sin()
        torch._dynamo.graph_break()
        return y.cos() * 2

    for function, breaks in ((with_break, 1), (Called(), 0), (lambda x: x.sin() @ x.T, 0)):
        t = tv.trace(function, X, via=via)
        assert len(t.breaks) == breaks and not t.breaks.lost and not any(row.lost for row in t.breaks)
        assert "eager mode" not in f"{t.breaks}{t.table(width=200)}"
        assert {scope.path for scope in t.graph.scopes if scope.kind == "compiled"} == {
            f"{'partition' if via == 'dynamo' else 'forward'} {number}" for number in range(breaks + 1)
        }
        assert t.meta["model"] is None, "a graph of Dynamo's is not the user's model"


def test_a_break_names_the_partition_that_it_ended_and_what_ran_eager() -> None:
    class Several(Plain):
        def positive(self, x: Tensor) -> Tensor:
            return x * 2 if x.mean() > 0 else x

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            x = self.positive(self.first(x))
            torch._dynamo.graph_break()
            rows = torch.nonzero(x)
            return self.last(x) + rows.shape[0]

    t = tv.trace(made(Several), X, via="dynamo")
    inside, asked, shaped = t.breaks
    assert (
        inside.code.startswith("return x * 2 if") and inside.times == 2
    )  # met in the caller and in the function
    assert inside.partitions == (0, 1) and (inside.partition, inside.nodes) == (0, t.breaks.partitions[0])
    assert [(part.op, part.times, part.line) for part in inside.lost] == [
        ("aten::_local_scalar_dense", 1, inside.line)
    ]
    assert (asked.partition, asked.nodes, asked.lost) == (None, None, [])
    assert shaped.partition is None and [part.op for part in shaped.lost] == ["aten::nonzero"]
    lines = str(t.breaks).splitlines()
    assert (
        lines[0].startswith("3 graph breaks; 4 partitions of 1, 2, 1, 2 nodes")
        and "2 operations ran in eager mode" in lines[0]
    )
    assert (
        lines[2].split()[:4] == ["#", "where", "reason", "page"] and "0, 1" in lines[4] and "2 ×" in lines[4]
    )
    ended = [scope.type for scope in t.graph.scopes if scope.path == "partition 0"]
    assert ended == [f"1 node, ended by Data-dependent branching at test_via.py:{inside.line}"]
    assert "ended by Data-dependent branching" in str(t.figure("svg", depth=None))
    assert t.meta["program"]["compile_ns"] > 50e6  # what Dynamo took, not what it took to ask for it


def test_a_program_that_is_left_to_eager_has_no_partitions() -> None:
    model = nn.LSTM(4, 4)
    t = tv.trace(model, X.reshape(3, 1, 4), via="dynamo")
    if t.breaks.partitions:
        pytest.skip("this torch captures an LSTM")
    assert all(found.partition is None and found.nodes is None for found in t.breaks)
    told = str(t.breaks)
    assert "nothing was captured" in told and "none" not in told.splitlines()[0]


def test_the_report_has_the_breaks(tmp_path: Path) -> None:
    t = tv.trace(made(Broken), X, via="dynamo")
    t.save(tmp_path / "run.md")
    text = (tmp_path / "run.md").read_text()
    assert "## Graph breaks" in text and "GB0170" in text and "Use \\`torch.cond\\`" in text
    assert "graph breaks" in t.table() and "captured by Dynamo" in t.table()


def test_fullgraph_fails_with_the_same_information() -> None:
    with pytest.raises(
        CaptureFailed, match=r"test_via.py:\d+ in forward: Unsupported: Data-dependent branching \[GB0170\]"
    ) as caught:
        tv.trace(made(Broken), X, via="dynamo", fullgraph=True)
    (first, _) = tv.trace(made(Broken), X, via="dynamo").breaks
    error = caught.value
    for name in ("reason", "explanation", "hints", "id", "file", "line"):
        assert getattr(error, name) == getattr(first, name), name
    assert error.explanation in str(error) and all(hint in str(error) for hint in error.hints)
    assert len(tv.trace(made(Plain), X, via="dynamo", fullgraph=True).breaks) == 0


def test_breaks_are_saved_with_the_trace(tmp_path: Path) -> None:
    t = tv.trace(made(Broken), X, via="dynamo")
    for ending in (".tvz", ".json"):
        t.save(tmp_path / f"t{ending}")
        back = tv.load(tmp_path / f"t{ending}")
        assert [found.reason for found in back.breaks] == [found.reason for found in t.breaks]
        assert str(back.breaks) == str(t.breaks)


def test_the_page_lists_the_breaks(tmp_path: Path) -> None:
    tv.trace(made(Broken), X, via="dynamo").save(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    tables = json.loads(re.search(r'id="tables">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    first = tables["breaks"][0]
    assert (first["reason"], first["id"], first["partition"]) == ("Data-dependent branching", "GB0170", 0)


def test_a_recompilation_names_the_guard() -> None:
    def inner(x: Tensor) -> Tensor:
        return (x * 2).relu()

    def loop(x: Tensor) -> Tensor:
        total = x.sum()
        for rows in (1, 2):
            torch._dynamo.graph_break()
            total = total + inner(x[:rows]).sum()
        return total

    (again,) = tv.trace(loop, X, via="dynamo", dynamic=False).breaks.recompilations
    assert again.function.endswith("inner") and again.file == __file__
    assert "size mismatch at index 0. expected 1, actual 2" in again.guard


def test_without_dynamo_there_are_no_breaks_to_know() -> None:
    t = tv.trace(made(Plain), X)
    assert len(t.breaks) == 0 and "via='dynamo'" in str(t.breaks)


# ---------------------------------------------------------------- open sizes


def test_open_sizes_are_symbols_with_ranges(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    t = tv.trace(made(Plain).eval(), X, via="export", dynamic_shapes={"x": {0: batch}})
    assert str(t.graph.values[0].type) == "f32[batch, 4]" and t.graph.values[0].shape == (3, 4)
    (limits,) = t.meta["program"]["ranges"].values()
    assert limits.startswith("2 ≤ ") and limits.endswith(" ≤ 64")
    output = next(value for value in t.graph.values if value.role == "output")
    assert output.type.symbols[0] == t.graph.values[0].type.symbols[0] != ""
    for ending in (".tvz", ".json"):
        t.save(tmp_path / f"t{ending}")
        assert tv.load(tmp_path / f"t{ending}").graph.types == t.graph.types


@pytest.mark.parametrize("via", ["export", "dynamo"])
def test_dynamic_leaves_the_batch_open(via: str) -> None:
    t = tv.trace(made(Plain).eval(), X, via=via, dynamic=True)
    assert any(row.symbols and row.symbols[0] for row in t.graph.types)
    t.check()


def test_marked_dimensions_are_open() -> None:
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    t = tv.trace(made(Plain).eval(), x, via="dynamo")
    assert any(row.symbols and row.symbols[0] for row in t.graph.types)


@pytest.mark.parametrize("via", ["export", "dynamo", "aot"])
def test_marked_dimensions_keep_their_ranges(via: str) -> None:
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0, min=2, max=100)
    marks = {key: str(mark) for key, mark in vars(x).items()}
    t = tv.trace(made(Plain).eval(), x, via=via)
    assert t.program is not None
    (limits,) = t.program.ranges.values()
    assert limits.startswith("2 ≤ ") and limits.endswith(" ≤ 100")
    assert limits in t.table()
    assert {key: str(mark) for key, mark in vars(x).items()} == marks
    if via == "export":
        assert t.run(torch.ones(70, 4)).output["y"].shape == (70, 2)


def test_sizes_outside_the_range_are_refused() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    t = tv.trace(made(Plain).eval(), X, via="export", dynamic_shapes={"x": {0: batch}})
    assert t.run(torch.ones(2, 4)).output["y"].shape == t.run(torch.ones(2, 4)).output["y"].shape == (2, 2)
    for rows in (1, 65):
        with pytest.raises(UsageError, match=f"2 ≤ batch ≤ 64, and size 0 of 'x' is {rows}"):
            t.run(torch.ones(rows, 4))
    with pytest.raises(UsageError, match="size 1 of 'x' is fixed at 4"):
        t.run(torch.ones(3, 5))


def test_sizes_are_named_on_every_box() -> None:
    batch = torch.export.Dim("batch")
    t = tv.trace(made(Plain).eval(), X, via="export", dynamic_shapes={"x": {0: batch}})
    drawn = str(t.figure("svg", depth=None))
    assert drawn.count("batch×4") >= 3 and "3×4" not in drawn


def test_a_failed_export_leaves_no_marks() -> None:
    x = X.clone()
    with pytest.raises(CaptureFailed):
        tv.trace(made(Broken), x, via="export", dynamic=True)
    assert vars(x) == {}


# ---------------------------------------------------------------- bad input, and nothing left behind


def test_what_a_capture_does_not_have() -> None:
    with pytest.raises(NoMatch, match="no capture 'exprt'; did you mean 'export'"):
        tv.trace(made(Plain), X, via="exprt")
    with pytest.raises(UsageError, match="fullgraph=True is for via='dynamo'"):
        tv.trace(made(Plain), X, via="export", fullgraph=True)
    with pytest.raises(UsageError, match="dynamic_shapes is for via='export'"):
        tv.trace(made(Plain), X, via="dynamo", dynamic_shapes={"x": None})
    with pytest.raises(UsageError, match="name one with via="):
        tv.trace(made(Plain), X, fullgraph=True)


@pytest.mark.parametrize("via", ["fx", "export"])
def test_control_flow_names_the_line_and_what_would_work(via: str) -> None:
    with pytest.raises(
        CaptureFailed,
        match=rf"{via} cannot capture this model at .*test_via.py:\d+ in (Broken.)?forward.*via='dynamo'",
    ):
        tv.trace(made(Broken), X, via=via)


@pytest.mark.parametrize("via", COMPILERS)
def test_nothing_is_left_behind(via: str) -> None:
    tv.trace(made(Plain), X, via=via)  # what loads lazily is loaded
    before: dict[str, Any] = torch_globals()
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    method = InstructionTranslatorBase.log_graph_break
    tv.trace(made(Plain), X, via=via, backward=True)
    with pytest.raises((CaptureFailed, RuntimeError)):
        tv.trace(made(Plain), torch.ones(3, 99), via=via)
    assert torch_globals() == before and InstructionTranslatorBase.log_graph_break is method


def test_the_recorder_is_not_compiled_itself() -> None:
    """Between partitions Dynamo looks at every frame; ours must not be among what it reports."""
    torch._dynamo.utils.counters.clear()
    tv.trace(made(Broken), X, via="dynamo")
    told = [text for kind in ("graph_break", "unimplemented") for text in torch._dynamo.utils.counters[kind]]
    assert told and not any("perf_counter" in text or "torch_vis" in text for text in told)


class Raises(Plain):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        raise KeyError("mine")


@pytest.mark.parametrize("via", COMPILERS)
def test_what_the_model_raises_passes_through(via: str) -> None:
    for model, x in ((made(Raises), X), (nn.Linear(4, 4), torch.ones(2, 5)), (nn.Linear(4, 4), None)):
        given = () if x is None else (x,)
        with pytest.raises(Exception) as wanted:
            model(*given)
        with pytest.raises(type(wanted.value)) as found:
            tv.trace(model, *given, via=via)
        assert str(found.value) == str(wanted.value) and not isinstance(found.value, CaptureFailed)


@pytest.mark.parametrize("via", ["export", "dynamo", "aot"])
def test_a_failed_capture_changes_nothing_and_says_nothing(
    via: str, capfd: pytest.CaptureFixture[str]
) -> None:
    class Counts(Broken):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x))

    model, options = made(Counts), {"fullgraph": True} if via != "export" else {}
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(CaptureFailed):
        tv.trace(model, X, via=via, **options)  # type: ignore[arg-type]
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert capfd.readouterr().err == ""


def test_a_cache_that_export_cannot_take_is_named() -> None:
    class DynamicCache:  # as a transformer returns one
        pass

    class Caches(Plain):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            return self.first(x), DynamicCache()

    with pytest.raises(CaptureFailed, match="use_cache") as caught:
        tv.trace(made(Caches), X, via="export")
    assert "<string>" not in str(caught.value)


def test_resumed_functions_have_their_own_names() -> None:
    t = tv.trace(made(Broken), X, via="dynamo")
    assert not any("torch_dynamo_resume" in str(site) for site in t.graph.sites)
