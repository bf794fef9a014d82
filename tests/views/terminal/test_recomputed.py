"""The explorer on a run with activation checkpointing: what backward computed again is in its module's row, marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.nested import Checkpointed
from tests.kit.screen import drive, go_to, panel, press, screen, settle
from torch_vis.graph.module_table import ModuleTable
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import duration
from torch_vis.interfaces.explorer.trace_source import TraceSource

LAYERS = ["layers.0", "layers.1", "layers.2"]


def traced(reentrant: bool = False, inside: bool = False) -> tuple[Checkpointed, tv.Trace]:
    model = Checkpointed(reentrant, inside)
    return model, tv.trace(model, torch.ones(2, 4), backward=True)


def names(app: Any) -> list[str]:
    tree = app.tree_view
    return [tree.forest.paths[int(row)] for row in tree.rows]


def marked(forest: Any) -> list[str]:
    return sorted(forest.paths[row] for row in forest.marks)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_rows_have_the_figures_of_the_printed_table(reentrant: bool, inside: bool) -> None:
    _, trace = traced(reentrant, inside)
    forest, outline = TraceSource(trace).forest, ModuleTable(trace.graph, trace.metrics)
    assert len(forest) == len(outline.modules), "a module has one row"
    blocks = {(block.path, block.type): block for block in outline.modules}
    numbers = forest.numbers
    for row in range(1, len(forest)):
        block = blocks[forest.paths[row], forest.types[row]]
        sums = block.sums
        assert numbers["calls"][row] == block.calls == 1
        assert numbers["time"][row] == sums.time_ns, block.path
        assert numbers["backward"][row] == sums.backward_ns, block.path
        assert numbers["flops"][row] == sums.flops
        assert numbers["ops"][row] == sums.ops + sums.backward_ops
    again = len(trace.graph.find(flag="recompute"))
    assert numbers["recomputed_ops"][0] == again
    said = f"{again} of the operations of backward, {duration(int(numbers['recomputed'][0]))}"
    assert f"computed again  {said}" in str(trace)


@pytest.mark.parametrize("inside", [False, True])
def test_a_live_model_with_a_trace_has_the_same(inside: bool) -> None:
    model, trace = traced(inside=inside)
    alone = TraceSource(trace).forest

    async def steps(app: Any, pilot: Any) -> None:
        live = app.source.forest
        assert marked(live) == marked(alone)
        for path in ("first", "layers.0.0", "layers.1.3"):
            here, there = live.row(path), alone.row(path)
            for name in ("calls", "time", "self", "backward", "recomputed", "recomputed_ops", "flops", "ops"):
                assert live.numbers[name][here] == alone.numbers[name][there], (path, name)

    drive(model, steps, trace=trace)


def test_the_mark_stands_on_what_was_checkpointed() -> None:
    _, trace = traced()
    assert marked(TraceSource(trace).forest) == LAYERS
    _, parts = traced(inside=True)  # a function was, and each module that it calls is run again by itself
    assert set(marked(TraceSource(parts).forest)) >= {"layers.0.0", "layers.2.3"}
    plain = tv.trace(torch.nn.Linear(2, 2), torch.ones(1, 2), backward=True)
    source = TraceSource(plain)
    assert not source.forest.marks and "recomputed" not in source.forest.numbers


def test_what_is_checkpointed_without_a_module_counts_where_it_ran() -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wave = checkpoint(lambda x: x.exp().sin().exp(), self.stem(x), use_reentrant=False)
            return self.head(wave)

    trace = tv.trace(Bare(), torch.ones(3, 4), backward=True)
    forest, number = TraceSource(trace).forest, len(trace.graph.find(flag="recompute"))
    assert number and not forest.marks
    assert forest.numbers["recomputed_ops"].tolist() == [number, number, 0, 0]
    assert f"computed again  {number} of the operations of backward" in str(trace)


@pytest.mark.parametrize("size", [(150, 40), (80, 40)])
def test_a_row_says_that_it_is_recomputed(size: tuple[int, int]) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        (fold,) = [line for line in screen(app).splitlines() if "layers.0–2 × 3" in line]
        assert "recomputed" in fold
        await press(app, pilot, "z")
        lines = [line for line in screen(app).splitlines() if "Sequential" in line]
        assert [line.split()[2:5] for line in lines[:3]] == [
            ["▸" if "▸" in line else "▾", path, "recomputed"] for line, path in zip(lines, LAYERS)
        ]
        assert "recomputed" not in next(line for line in screen(app).splitlines() if " first " in line)

    drive(traced()[1], steps, size=size)


def test_the_filter_finds_the_mark() -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "slash", *"recomp")
        assert "3 match" in screen(app)
        assert [path for path in names(app) if path] == LAYERS

    drive(traced()[1], steps)


def test_the_panels_tell_of_it() -> None:
    _, trace = traced()

    async def steps(app: Any, pilot: Any) -> None:
        forest = app.source.forest
        row = forest.row("layers.1")
        go_to(app, row)
        await settle(app, pilot)
        inside = [node for node in trace.graph.find(flag="recompute") if node.path.startswith("layers.1")]
        took = duration(sum(trace.metrics["time_ns"][node.index] or 0 for node in inside))
        assert f"recomputed  {len(inside)} operations run again during backward, {took}" in panel(app)
        await press(app, pilot, "2")
        assert "Calls  1, and 1 recomputed" in panel(app)
        calls = [line.split() for line in panel(app).splitlines()][-2:]
        assert calls[0][0] == "0" and calls[0][-1] != "recomputed"
        assert calls[1][0] == "1" and calls[1][-1] == "recomputed"
        await press(app, pilot, "5")
        assert "; → forward, ← backward, ↻ recomputed" in panel(app), "the page's sign"
        repeated = [line.split() for line in panel(app).splitlines() if "↻" in line][1:]
        assert [int(line[0]) for line in repeated] == [node.index for node in inside]
        go_to(app, forest.row("first"))
        await press(app, pilot, "1")
        assert "recomputed" not in panel(app)

    drive(trace, steps)


def test_what_is_saved_says_it_too(tmp_path: Path) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "z")
        for ending in ("txt", "json"):
            app.save(str(tmp_path / f"view.{ending}"))
        await settle(app, pilot)

    drive(traced()[1], steps)
    assert (tmp_path / "view.txt").read_text().count(" recomputed ") >= 3
    rows = json.loads((tmp_path / "view.json").read_text())["rows"]
    assert [row["path"] for row in rows if row.get("mark") == "recomputed"] == LAYERS


def test_layers_of_which_some_are_recomputed_are_not_folded_into_one() -> None:
    class Some(Checkpointed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers[0](self.first(x))
            for layer in self.layers[1:]:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    async def steps(app: Any, pilot: Any) -> None:
        labels = [app.tree_view.arrangement.label(int(row)) for row in app.tree_view.rows]
        assert "layers.0" in labels and "layers.1–2 × 2" in labels
        row = app.source.forest.row("layers.1")
        numbers = app.source.forest.numbers["recomputed_ops"]
        assert (
            app.tree_view.figure("recomputed_ops", row)
            == numbers[row] + numbers[app.source.forest.row("layers.2")]
        )

    drive(tv.trace(Some(False, False), torch.ones(2, 4), backward=True), steps)


def test_time_of_the_run_is_that_of_forward() -> None:
    _, trace = traced()
    forest = TraceSource(trace).forest
    scopes = [scope.index for scope in trace.graph.scopes if scope.type == "Checkpointed"]
    own = [node.index for node in trace.graph.nodes if node.scope.index == 0 and node.phase == "forward"]
    time, call = trace.metrics["time_ns"], trace.metrics["scope_time_ns"]
    assert forest.numbers["time"][0] == sum(call[s] for s in scopes) + sum(time[node] for node in own)
    assert (trace.graph.node_flags & Flag.RECOMPUTE).any() and not np.isnan(forest.numbers["time"]).any()


def test_the_time_of_the_whole_run_is_told_apart_from_that_of_its_calls() -> None:
    _, trace = traced()
    whole = int(trace.metrics["scope_time_ns"].values[0])
    numbers = TraceSource(trace).forest.numbers
    rest = whole - int(numbers["time"][0] + numbers["backward"][0])

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "2")
        text = " ".join(panel(app).split())
        assert f"whole run {duration(whole)} from its beginning to its end" in text
        assert f"the rest {duration(rest)}: Python and autograd" in text
        assert "Calls" not in text and "call time self" not in text

    drive(trace, steps)


def test_what_an_optimizer_does_is_not_called_forward() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    trace = tv.trace(step, torch.ones(2, 4))
    forest = TraceSource(trace).forest
    rows = {forest.types[row]: row for row in range(len(forest))}

    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "2")
        for type_, words in (("", "forward, optimizer"), ("SGD", "optimizer"), ("Linear", "forward")):
            go_to(app, rows[type_])
            await settle(app, pilot)
            assert f"\n{words}  " in panel(app), type_
        go_to(app, rows["SGD"])
        await press(app, pilot, "5")
        assert "; ↓ optimizer" in panel(app) and "↻" not in panel(app)

    drive(trace, steps)
