"""The table that print(trace) shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.graphs import (
    LIMITS,
    META,
    empty_graph,
    linear_chain,
    one_node_graph,
    synthetic,
    training_graph,
    training_metrics,
)
from tests.kit.nested import Checkpointed
from torch_vis.errors import UsageError
from torch_vis.graph import Column, Graph, Metrics
from torch_vis.graph.module_table import ModuleTable
from torch_vis.graph.run import Run
from torch_vis.graph.text import duration, size
from torch_vis.ops.cost.compute import costs
from torch_vis.views.text.module_tree import MOST_ROWS, table

TABLE = """\
Net · forward and backward · torch 2.13.0 · 2 threads

                                                                        ───────── backward ────────
module  class   output     params  ops   time   self  allocated  FLOPs  ops  time  allocated  FLOPs
───────────────────────────────────────────────────────────────────────────────────────────────────
Net             f32[]          12    4  80 ns  55 ns       36 B   ≥ 56    1  5 ns          0      0
├─ fc   Linear  f32[2, 4]      12    2  25 ns  25 ns       32 B     48    0     0          0      0
└─ · fill_, sum                      2  20 ns               4 B    ≥ 8    1  5 ns          0      0

operations   5 (4 forward, 1 backward)
parameters   12 in 1 tensor (48 B)
input        x f32[2, 3]
peak memory  108 B in live tensors, at sum
wall time    81.0 µs

• flops is not known for 1 of 5 operations; sums leave them out
• without FLOPs: aten::fill_.Scalar; t.summary().why_uncovered says why

not captured
• 1 value left for Python at model.py:7"""


class Block(nn.Module):
    """Two linear layers and a sum of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Tied(nn.Module):
    """A decoder that shares the weight of the embedding, and a block that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.block = Block(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.block(self.embed(x))))


def show(trace: tv.Trace, **options: object) -> str:
    return table(trace, **{"width": 110, **options})  # type: ignore[arg-type]


def row(text: str, label: str) -> list[str]:
    """The cells of the row that begins with a label."""
    found = [line for line in body(text) if line.lstrip("│├└─ ").startswith(label)]
    assert len(found) == 1, (label, text)
    return re.split(r"\s{2,}", found[0].lstrip("│├└─ ").strip())


def body(text: str) -> list[str]:
    """The rows between the header's line and the first empty one."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("──"))
    return lines[start + 1 : lines.index("", start)]


def test_the_whole_table() -> None:
    assert table(Run(training_graph(), training_metrics(), LIMITS, META), width=110) == TABLE


def test_columns_that_were_not_measured_are_left_out() -> None:
    header = table(Run(training_graph(), Metrics()), width=110).splitlines()[3].split()
    assert header == ["module", "class", "output", "params", "ops", "ops"]
    forward = tv.trace(nn.ReLU(), torch.ones(2))
    assert "backward" not in show(forward)


def test_small_graphs_have_tables_too() -> None:
    assert "operations  0" in table(Run(empty_graph(), Metrics()))
    text = table(Run(one_node_graph(), Metrics()))
    assert row(text, "relu") == ["relu", "1"]


def test_neighbours_that_do_the_same_are_one_row_with_their_sum() -> None:
    text = show(tv.trace(nn.Sequential(*(Block(4) for _ in range(5))), torch.ones(2, 4)))
    assert row(text, "0-4 × 5")[:5] == ["0-4 × 5", "Block", "f32[2, 4]", "380", "30"]
    assert row(text, "up")[:5] == ["up", "Linear", "f32[2, 8]", "200", "10"]
    assert len(body(text)) == 5


def test_neighbours_that_differ_stay_apart() -> None:
    text = show(
        tv.trace(nn.Sequential(Block(4), Block(4), nn.Linear(4, 6), Block(6), Block(6)), torch.ones(2, 4))
    )
    assert row(text, "0-1 × 2")[1] == "Block" and row(text, "3-4 × 2")[1] == "Block"
    assert row(text, "2 ")[1] == "Linear"


def test_calls_of_a_shared_module_are_one_row_and_tied_parameters_count_once() -> None:
    model = Tied()
    text = show(tv.trace(model, torch.arange(3)))
    assert row(text, "block")[:5] == ["block", "Block", "f32[3, 4]", "2", "76"]
    assert row(text, "head")[:5] == ["head", "Linear", "f32[3, 10]", "1", "40"]
    total = sum(parameter.numel() for parameter in model.parameters())
    assert f"parameters   {total} in {len(list(model.parameters()))} tensors" in text
    assert row(text, "Tied")[3] == str(total)


def test_calls_with_different_shapes_show_the_range() -> None:
    layer = nn.Linear(4, 2)
    text = show(tv.trace(lambda *inputs: [layer(x) for x in inputs], torch.ones(3, 4), torch.ones(8, 4)))
    assert row(text, "Linear")[1] == "f32[3-8, 2]"


def test_a_module_shows_what_it_hands_out_and_not_what_it_made_last() -> None:
    class Side(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.reshape(2, 6) + 1
            self.statistic = x.sum()
            return y

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.side = Side()
            self.relu = nn.ReLU()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.relu(self.side(x))
            return y.mean(0), y

    text = show(tv.trace(Outer(), torch.ones(3, 4)))
    assert row(text, "side")[2] == "f32[2, 6]"
    assert row(text, "Outer")[1] == "f32[6]"


def test_operations_outside_of_modules_are_named() -> None:
    text = show(tv.trace(nn.Sequential(Block(4), nn.ReLU()), torch.ones(2, 4)))
    assert re.fullmatch(r"· relu, .*add", row(text, "· ")[0])


def test_a_function_without_modules_is_shown_by_operator() -> None:
    text = show(tv.trace(lambda x: (x + 1).relu() + x, torch.ones(3)))
    assert [re.split(r"\s{2,}", line)[:2] for line in body(text)] == [["add", "2"], ["relu", "1"]]
    assert "operation  ops" in text


def test_an_operator_that_runs_forward_and_backward_is_one_row_with_its_own_figures() -> None:
    def step(x: torch.Tensor) -> None:
        (x * x.sigmoid()).mul(2).sum().backward()

    trace = tv.trace(step, torch.ones(3, requires_grad=True))
    found = {
        name: (sums.ops, sums.backward_ops)
        for name, sums in ModuleTable(trace.graph, trace.metrics).by_operator()
    }
    for name, figures in found.items():
        expected = [len(trace.graph.find(op=name, phase=phase)) for phase in ("forward", "backward")]
        assert list(figures) == expected, name
    assert found["mul"][0] == 2 and found["mul"][1] > 0


def test_a_training_step_shows_its_optimizer() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    text = show(tv.trace(step, torch.ones(2, 3)))
    assert "forward, backward and optimizer" in text
    assert row(text, "SGD")


def test_by_default_deep_levels_are_folded_and_it_says_so() -> None:
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.Sequential(Block(4), nn.Linear(4, n))) for n in [4] * 2)
    )
    wide = nn.Sequential(*(nn.Sequential(Block(n), nn.Linear(n, n + 1)) for n in range(1, 25)))
    assert "more rows" not in show(tv.trace(model, torch.ones(2, 4)))
    trace = tv.trace(wide, torch.ones(2, 1))
    text = show(trace)
    assert len(body(text)) <= MOST_ROWS + 1
    assert "more rows below level 2; t.table(depth=None) shows all" in text
    assert "0 ▸" in text
    everything = show(trace, depth=None)
    assert "more rows" not in everything and "▸" not in everything
    hidden = re.search(r"… ([\d,]+) more rows", text)
    assert hidden and len(body(everything)) == len(body(text)) - 1 + int(hidden[1])


def test_more_rows_than_fit_on_one_level_are_cut() -> None:
    wide = nn.Sequential(*(nn.Linear(n, n + 1) for n in range(1, 100)))
    trace = tv.trace(lambda x: [layer(x[:, : layer.in_features]) for layer in wide], torch.ones(2, 100))
    text = show(trace)
    assert len(body(text)) == MOST_ROWS + 1
    assert "more rows; t.table(depth=None) shows all" in text


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_is_the_number_of_levels(depth: int) -> None:
    text = show(tv.trace(nn.Sequential(Block(4), nn.ReLU()), torch.ones(2, 4)), depth=depth)
    assert {len(line) - len(line.lstrip("│├└─ ")) for line in body(text) if "…" not in line} == {
        3 * level for level in range(depth)
    }


@pytest.mark.parametrize("depth", [0, -1, 1.5, "deep", True])
def test_a_depth_that_is_none_is_refused(depth: object) -> None:
    with pytest.raises(UsageError, match="depth is a number of levels"):
        table(Run(training_graph(), Metrics()), depth=depth)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1, 48, 60, 80, 100, 120, 200])
def test_it_fits_the_width(width: int) -> None:
    model = nn.Sequential(*(Block(4) for _ in range(3)), nn.Linear(4, 1_000))
    trace = tv.trace(model, torch.ones(2, 4), backward=True)
    assert max(map(len, body(show(trace, width=width)))) <= max(48, width)


def columns(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[next(place for place, line in enumerate(lines) if line.startswith("──")) - 1].split()


def test_bytes_moved_are_a_column() -> None:
    trace = tv.trace(nn.Sequential(Block(4), nn.ReLU()), torch.ones(2, 4), backward=True)
    text = show(trace, width=200)
    assert (
        columns(text)[-4:] == ["time", "allocated", "FLOPs", "accessed"]
        and columns(text).count("accessed") == 2
    )
    figures = {row.path: row for row in trace.summary().modules if row.kind == "module"}
    for path, label in (("0", "0 "), ("0.up", "up"), ("1", "1 ")):
        cells = row(text, label)
        assert cells[-1] == size(figures[path].backward_moved_bytes or 0)
        assert size(figures[path].moved_bytes or 0) in cells


def test_columns_that_there_is_no_room_for_are_named() -> None:
    model = nn.Sequential(*(nn.Sequential(Block(4)) for _ in range(3)), nn.Linear(4, 1_000))
    trace = tv.trace(model, torch.ones(2, 4), backward=True)
    text = show(trace)
    assert {"FLOPs", "accessed"} <= set(columns(text))
    (told,) = re.findall(r"• no room for (.*); t\.table\(width=(\d+)\) has all columns", text)
    assert told[0].endswith("backward FLOPs, backward accessed")
    whole = show(trace, width=int(told[1]))
    assert "no room for" not in whole and columns(whole) == columns(show(trace, width=300))
    assert "no room for" in show(trace, width=int(told[1]) - 1)


def test_the_outermost_rows_add_up_to_the_whole_graph() -> None:
    trace = tv.trace(nn.Sequential(*(Block(4) for _ in range(3))), torch.ones(2, 4), backward=True)
    outline = ModuleTable(trace.graph, trace.metrics)
    parts = [line.sums for line in outline.children(None)] + [outline.run.own]
    assert sum(part.ops for part in parts) == len(trace.graph.find(phase="forward"))
    assert sum(part.backward_ops for part in parts) == len(trace.graph.find(phase="backward"))
    allocated = sum((part.alloc_bytes or 0) + (part.backward_bytes or 0) for part in parts)
    assert allocated == trace.metrics["alloc_bytes"].total()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_what_backward_computes_again_counts_in_the_backward_columns_of_its_module(
    reentrant: bool, inside: bool
) -> None:
    trace = tv.trace(Checkpointed(reentrant, inside), torch.ones(2, 4), backward=True)
    graph, outline = trace.graph, ModuleTable(trace.graph, trace.metrics)
    again = graph.find(flag="recompute")
    assert again
    paths = [block.path for block in outline.modules[1:]]
    assert len(set(paths)) == len(paths)  # a module has one place
    text = show(trace)
    assert [line.split()[0] for line in body(text) if line[0] not in " │├└"] == ["Checkpointed", "·"]
    if not inside:
        assert row(text, "layers.0-2 × 3")
    parts = [line.sums for line in outline.children(None)] + [outline.run.own]
    for name in ("flops", "alloc_bytes", "macs", "moved_bytes"):
        behind = {"alloc_bytes": "backward_bytes"}.get(name, f"backward_{name}")
        assert (
            sum(getattr(part, name) + getattr(part, behind) for part in parts) == trace.metrics[name].total()
        )
    assert sum(part.ops + part.backward_ops for part in parts) == len(graph)
    assert {block.calls for block in outline.modules} == {1}
    assert f"{len(again)} of the operations of backward" in text and "computed again" in text
    assert sum(part.recomputed_ops for part in parts) == len(again)
    called = {scope.path for scope in graph.scopes if scope.kind == "module"}
    for path in called:
        block = next(block for block in outline.modules if block.path == path and block.kind == "module")
        assert block.recomputed == (
            (path + ".").startswith("layers.") and (not inside or path.count(".") == 2)
        ), path
    marked = [line for line in body(text) if "↻" in line]
    assert marked and all("Checkpointed" not in line and "first" not in line for line in marked)


def test_only_layers_that_were_checkpointed_are_marked() -> None:
    class Half(Checkpointed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, layer in enumerate(self.layers):
                x = layer(x) if number else checkpoint(layer, x, use_reentrant=False)
            return x

    trace = tv.trace(Half(False, False), torch.ones(2, 4), backward=True)
    text = show(trace)
    assert row(text, "layers.0 ↻")[1] == "Sequential" and row(text, "layers.1-2 × 2")[1] == "Sequential"
    modules = {found.path: found for found in trace.summary().modules}
    again = len(trace.graph.find(flag="recompute"))
    assert modules["layers.0"].recomputed_ops == modules[""].recomputed_ops == again > 0
    assert modules["layers.1"].recomputed_ops == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_time_of_what_is_computed_again_is_not_forward_time(reentrant: bool) -> None:
    trace = tv.trace(Checkpointed(reentrant, False), torch.ones(2, 4), backward=True)
    outline, time = ModuleTable(trace.graph, trace.metrics), trace.metrics["scope_time_ns"]
    model = next(scope.index for scope in trace.graph.scopes if scope.type == "Checkpointed")
    inside = [scope for scope in trace.graph.scopes if scope.parent and scope.parent.index == model]
    layers = [block for block in outline.modules if block.type == "Sequential"]
    assert len(layers) == 3
    for block in layers:
        assert block.sums.time_ns == sum(time[scope.index] for scope in inside if scope.path == block.path)
        assert block.sums.backward_ns
    # the run takes what its calls took in forward, and none of that is lost
    assert sum(block.sums.self_ns or 0 for block in outline.modules) == outline.run.sums.time_ns


def test_without_checkpoints_nothing_is_said_to_be_computed_again() -> None:
    assert "computed again" not in show(tv.trace(Block(4), torch.ones(2, 4), backward=True))


def test_the_backward_graph_of_a_captured_program_is_not_computed_again() -> None:
    trace = tv.trace(nn.Sequential(Block(4), nn.ReLU()), torch.ones(2, 4), backward=True, via="aot")
    text = show(trace)
    assert "computed again" not in text
    inside = ModuleTable(trace.graph, trace.metrics).children(None)
    captured = next(line.sums for line in inside if line.label.startswith("backward"))
    assert captured.backward_ops > 0  # a box of its own, with what it ran


@pytest.fixture
def compiled() -> Iterator[nn.Module]:
    torch._dynamo.reset()
    yield torch.compile(nn.Sequential(Block(4), nn.ReLU()), backend="eager")  # type: ignore[misc]
    torch._dynamo.reset()


def test_the_first_call_of_a_compiled_model_says_how_much_of_it_was_compilation(compiled: nn.Module) -> None:
    first = tv.trace(compiled, torch.ones(2, 4), backward=True)
    assert 0 < first.meta["compile_ns"] < first.meta["wall_ns"]
    told = f"compiling took {duration(first.meta['compile_ns'])} of the {duration(first.meta['wall_ns'])}"
    for text in (show(first, width=200), first.time().table(width=200), "\n".join(first.summary().notes())):
        assert told in text and "call the compiled model once before tracing to leave it out" in text
    assert f"{duration(first.meta['compile_ns'])} to compile" in show(first)
    again = tv.trace(compiled, torch.ones(2, 4), backward=True)
    assert "compile_ns" not in again.meta and "compiling took" not in show(again, width=200)


def test_the_time_that_a_capture_takes_is_told_apart() -> None:
    trace = tv.trace(Block(4), torch.ones(2, 4), via="dynamo")
    text = show(trace, width=200)
    assert f"capturing the program took {duration(trace.meta['compile_ns'])} of" in text
    assert "trace without via=" in text and "call the compiled model" not in text


def test_a_compiled_model_points_to_where_its_modules_are_kept(compiled: nn.Module) -> None:
    told = "tv.trace(model, …, via='dynamo') of the model before torch.compile keeps them"
    assert told in show(tv.trace(compiled, torch.ones(2, 4)), width=200)
    assert told not in show(tv.trace(Block(4), torch.ones(2, 4)), width=200)
    kept = show(tv.trace(nn.Sequential(Block(4), nn.ReLU()), torch.ones(2, 4), via="dynamo"), width=200)
    assert told not in kept and row(kept, "up")


def test_operators_without_flops_are_named() -> None:
    ops = [f"mylib::op{number}" for number in range(4)]
    graph = linear_chain([*ops, "aten::exp", ops[2]])
    text = table(Run(graph, Metrics(costs(graph))), width=140)
    assert "• without FLOPs: mylib::op2, mylib::op0, mylib::op1 and 1 more; t.summary().why_uncovered" in text
    fine = linear_chain(["aten::exp"])
    assert "without FLOPs" not in table(Run(fine, Metrics(costs(fine))))


def test_a_measure_with_gaps_says_so() -> None:
    column = Column("time_ns", np.array([5, 15, 10, 10, 5]), known=np.array([1, 0, 1, 1, 1], dtype=bool))
    text = table(Run(training_graph(), Metrics({"time_ns": column})))
    assert "• time_ns is not known for 1 of 5 operations; sums leave them out" in text
    nothing = Column("time_ns", np.zeros(5), known=np.zeros(5, dtype=bool))
    header = table(Run(training_graph(), Metrics({"time_ns": nothing}))).splitlines()[3]
    assert header.split() == ["module", "class", "output", "params", "ops", "ops"]


def test_many_limits_are_cut_short() -> None:
    text = table(Run(training_graph(), Metrics(), [f"limit {n}" for n in range(12)]))
    assert "• limit 7" in text and "limit 8" not in text and "• … and 4 more in t.limits" in text


def test_modules_nested_deeper_than_the_recursion_limit() -> None:
    assert sys.getrecursionlimit() < 5_000
    graph = chain_of_scopes(5_000)
    assert len(body(table(Run(graph, Metrics()), depth=None))) == 5_000


def chain_of_scopes(count: int) -> Graph:
    """One operation, inside modules nested ``count`` deep."""
    from torch_vis.graph import GraphBuilder
    from torch_vis.graph.schema import Module

    builder = GraphBuilder()
    builder.modules.intern(Module("", "run", "run"))
    builder.modules.intern(Module("a", "Again"))
    builder.set(
        scope_parent=range(-1, count),
        scope_module=[0] + [1] * count,
        scope_call=[0, *range(count)],
    )
    return builder.build()


def test_a_large_graph_is_a_short_table() -> None:
    graph, metrics = synthetic(100_000)
    text = table(Run(graph, metrics, LIMITS, META))
    assert len(body(text)) <= MOST_ROWS + 1 and "100,000" in text


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(nn.functional.scaled_dot_product_attention(x, x, x)).square()


def test_the_row_of_a_modules_own_part_names_functions() -> None:
    text = str(tv.trace(Around(), torch.ones(2, 4, 4)).table(width=200))
    (row,) = (line for line in text.splitlines() if "· " in line and "scaled" in line)
    assert "scaled_dot_product_attention, square" in row
