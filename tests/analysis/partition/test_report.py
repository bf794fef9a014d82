"""A run cut into parts: every operation in one, no cycles, sums that are the graph's, and reasons that are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit import fusing
from tests.kit.traced import NAMES, traced
from torch_vis.analysis.partition.report import PartitionReport
from torch_vis.errors import NoMatch, UsageError

WAYS: dict[str, dict[str, Any]] = {
    "fusion": {},
    "modules": {"by": "module"},
    "deep modules": {"by": "module", "depth": 3},
    "fusion in modules": {"depth": 2},
    "single operations": {"max_operations": 1},
    "five operations": {"max_operations": 5},
    "modules of five": {"by": "module", "max_operations": 5},
    "bytes": {"max_bytes": 1e12},
    "FLOPs": {"max_flops": 1e15},
}


def mlp() -> tv.Trace:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1))
    return tv.trace(model, torch.ones(2, 8))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_in_one_part_and_parts_can_run_in_order(name: str) -> None:
    trace = traced(name)
    graph = trace.graph
    before, after = np.array([*fusing.must_precede(graph)], dtype=int).reshape(-1, 2).T
    for way, options in WAYS.items():
        if not len(graph):
            with pytest.raises(UsageError, match="no operations"):
                trace.partition(**options)
            continue
        columns = trace.partition(**options).columns
        assert sorted(node for p in range(columns.count) for node in columns.members(p)) == [
            *range(len(graph))
        ], way
        assert columns.operations.min() > 0, way
        assert (columns.part[before] <= columns.part[after]).all(), way


@pytest.mark.parametrize("name", [name for name in NAMES if name != "empty_model"])
def test_sums_are_those_of_the_graph(name: str) -> None:
    trace = traced(name)
    graph = trace.graph
    made = sum(
        fusing.size_of(value)
        for node in graph.nodes
        if not fusing.is_plain_view(node)
        for value in node.outputs
    )
    for options in ({}, {"by": "module"}, {"max_operations": 4}):
        columns = trace.partition(**options).columns
        assert columns.flops.sum() == (trace.metrics["flops"].total() or 0)
        assert columns.uncovered.sum() == trace.metrics["flops"].uncovered
        assert columns.moved_bytes.sum() == (trace.metrics["moved_bytes"].total() or 0)
        assert columns.internal_bytes.sum() + columns.output_bytes.sum() == made


@pytest.mark.parametrize(
    "name", ["bert", "resnet50", "sgd_momentum_step", "adamw_foreach_step", "item_control_flow"]
)
def test_bytes_of_a_part_are_those_of_the_definition(name: str) -> None:
    trace = traced(name)
    graph = trace.graph
    seen = fusing.seen_outside(graph)
    found = trace.partition(max_operations=3)
    for part in found.parts:
        inside = set(part.operations)
        loud = [graph.nodes[node] for node in part.operations if not fusing.is_plain_view(graph.nodes[node])]
        made = {value.index: value for node in loud for value in node.outputs}
        taken = {
            fusing.base(value).index: fusing.base(value)
            for node in loud
            for value, kind in node.reads
            if kind != "shape"
        }
        outside = [value for index, value in taken.items() if index not in made]
        weights = [value for value in outside if value.role in ("parameter", "buffer")]
        used = {
            fusing.base(value).index
            for node in graph.nodes
            if node.index not in inside and not fusing.is_plain_view(node)
            for value, kind in node.reads
            if kind != "shape"
        }
        out = [value for index, value in made.items() if index in used or index in seen]
        sizes = [sum(map(fusing.size_of, values)) for values in (outside, weights, out, made.values())]
        assert part.input_bytes == sizes[0] - sizes[1]
        assert part.weight_bytes == sizes[1]
        assert part.output_bytes == sizes[2]
        assert part.internal_bytes == sizes[3] - sizes[2]


def test_figures_of_a_small_network() -> None:
    first, second = mlp().partition().parts[:2]
    assert first.names == ("addmm", "relu")
    assert first.modules == ("0", "1")
    assert (first.input_bytes, first.weight_bytes) == (2 * 8 * 4, (8 * 16 + 16) * 4)
    assert (first.output_bytes, first.internal_bytes) == (2 * 16 * 4, 2 * 16 * 4)
    assert first.flops is not None
    passing = first.input_bytes + first.weight_bytes + first.output_bytes
    assert first.intensity == pytest.approx(first.flops / passing)
    assert second.reason == "operand of a matrix product"


def test_a_lookup_moves_the_rows_that_it_reads_and_holds_the_table() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.places, self.norm = (
                nn.Embedding(5000, 16),
                nn.Embedding(512, 16),
                nn.LayerNorm(16),
            )

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.norm(self.table(ids) + self.places(torch.arange(ids.shape[1])))
            return made

    trace = tv.trace(Words(), torch.zeros(2, 8, dtype=torch.int64))
    part = max(trace.partition().parts, key=lambda part: part.weight_bytes)
    assert part.names == ("embedding", "embedding", "add", "layer_norm")
    assert part.weight_bytes == (5000 + 512 + 2) * 16 * 4
    rows, ids, norm, out, statistics = (16 + 8) * 16 * 4, (16 + 8) * 8, 2 * 16 * 4, 16 * 16 * 4, 2 * 16 * 4
    assert part.moved_bytes == rows + ids + norm + out + statistics
    assert part.flops is not None and part.intensity == part.flops / part.moved_bytes
    (chain,) = trace.fusion().chains
    assert chain.bytes_after == part.moved_bytes
    assert "of a table" in str(trace.partition())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "empty_model"])
def test_a_part_that_is_a_chain_moves_what_the_chain_does(name: str) -> None:
    trace = traced(name)
    chains = {chain.operations[0]: chain.bytes_after for chain in trace.fusion().chains}
    for way, options in WAYS.items():
        columns = trace.partition(**options).columns
        found = columns.cut.fused
        for part, moved in enumerate(columns.passing_bytes):
            assert moved is None or 0 <= moved <= columns.moved_bytes[part], way
            loud = columns.members(part)[found.is_kernel[columns.members(part)]]
            groups = set(found.of[loud].tolist())
            if way == "fusion" and len(groups) == 1 and groups != {-1}:
                assert moved == chains[int(found.members(groups.pop())[0])]


def reasons(found: PartitionReport) -> set[str]:
    return {crossing.reason for part in found.parts for crossing in part.crossings}


def test_a_module_boundary_is_named() -> None:
    found = mlp().partition(by="module")
    assert [part.modules for part in found.parts] == [("0",), ("1",), ("2",), ("3",)]
    assert [part.reason for part in found.parts] == ["start of the run", *["module boundary"] * 3]
    assert reasons(found) == {"module boundary"}


def test_depth_keeps_chains_inside_modules() -> None:
    assert [part.names for part in mlp().partition(depth=1).parts] == [
        ("addmm",),
        ("relu",),
        ("addmm",),
        ("softmax",),
    ]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda x, w: F_softmax(F_softmax(x, 0), 1), "reduction"),
        (lambda x, w: x.exp()[1:].exp(), "view of another layout"),
        (lambda x, w: (x.exp() @ w).sum(), "operand of a matrix product"),
        (lambda x, w: x.exp().sort().values, "kernel of a library"),
        (lambda x, w: x.exp()[torch.tensor([1, 0])], "reads at other places"),
        (lambda x, w: x.exp() * x.exp().sum().item(), "data needed by Python"),
        (lambda x, w: x * x.exp().sum(), "reduction"),
        (lambda x, w: (y := x.exp()) + (y @ w).sin() @ w, "operand of a matrix product"),
    ],
)
def test_the_reason_is_what_separates(program: Any, reason: str) -> None:
    trace = tv.trace(program, torch.ones(4, 4), torch.ones(4, 4))
    assert reason in reasons(trace.partition())


def F_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.softmax(x, dim)


def test_phases_and_custom_operators_are_reasons() -> None:
    assert "another phase" in reasons(traced("bert").partition())
    assert "custom operator" in reasons(traced("custom_operator").partition())


def test_a_budget_is_kept() -> None:
    trace = traced("bert")
    for name, limit in (("max_operations", 7), ("max_flops", 200_000), ("max_bytes", 60_000)):
        found = trace.partition(**{name: limit})
        columns = found.columns
        sizes = columns.input_bytes + columns.weight_bytes + columns.output_bytes + columns.internal_bytes
        used = {"max_operations": columns.kernels, "max_flops": columns.flops, "max_bytes": sizes}[name]
        assert used.max() <= limit
        assert len(found.parts) < len(trace.partition(max_operations=1).parts)
        assert any("budget" in part.reason for part in found.parts)


def test_a_larger_budget_makes_no_more_parts() -> None:
    trace = traced("resnet50")
    counts = [trace.partition(max_operations=limit).columns.count for limit in (1, 4, 16, 1000)]
    assert counts == sorted(counts, reverse=True)


def test_a_budget_nothing_fits_in_names_the_operation_and_its_size() -> None:
    with pytest.raises(UsageError, match=r"max_bytes=100: addmm \(operation 1 in 0\) alone has 768 bytes"):
        mlp().partition(max_bytes=100)
    with pytest.raises(UsageError, match=r"max_flops=10: addmm \(operation 1 in 0\) alone has [\d,]+ FLOPs"):
        mlp().partition(max_flops=10)


@pytest.mark.parametrize(
    "options",
    [{"max_operations": 0}, {"max_bytes": -1}, {"max_flops": "many"}, {"depth": -1}, {"depth": 1.5}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        mlp().partition(**options)


def test_an_unknown_way_is_answered_with_the_nearest() -> None:
    with pytest.raises(NoMatch, match="did you mean 'module'"):
        mlp().partition(by="modules")
    with pytest.raises(TypeError):
        mlp().partition(max_ops=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_as_a_table_as_data_and_as_a_figure(renderer: str) -> None:
    found = traced("resnet50").partition()
    assert "convolution → batch_norm → relu_" in found.table(width=240)
    assert "operand of a matrix product" in str(found)
    assert len(found.to_pandas()) == len(found.parts)
    assert np.sum([row["operations"] for row in found.to_dict()["Parts"]]) == len(found.graph)
    assert found.figure(renderer) is not None


def test_views_are_told_apart_from_what_the_budget_counts() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6)))
    found = tv.trace(model, torch.ones(2, 8)).partition(max_operations=2)
    rows = found.to_dict()["Parts"]
    assert any(row["views"] for row in rows)
    assert all(row["operations"] - row["views"] <= 2 for row in rows)
    assert "of which views" in found.table(width=240) and "max_operations does not count them" in str(found)


@pytest.mark.parametrize("width", [80, 100, 120, 160, 240])
@pytest.mark.parametrize("options", [{}, {"max_operations": 12}, {"by": "module"}])
def test_reasons_are_printed_whole_at_any_width(width: int, options: dict[str, Any]) -> None:
    found = traced("bert").partition(**options)
    lines = found.table(width=width).splitlines()
    assert max(map(len, lines)) <= width
    first = lines.index("Parts, in the order of the run")
    rows = [line.split(maxsplit=1) for line in lines[first:] if line.split(maxsplit=1)[:1]]
    for part in found.parts[:20]:
        row = next(line for number, *line in rows if number == str(part.number))
        assert row[0].endswith(f"  {part.reason}")
    assert len(found.to_dict()["Parts"][0]) == 14 and len(found.to_pandas().columns) == 14
