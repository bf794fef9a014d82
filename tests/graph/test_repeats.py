"""What is drawn once for several: repeated stretches, the odd ones in them, and what the page is given of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.graphs import empty_graph, one_node_graph
from tests.kit.traced import NAMES, traced
from torch_vis.graph.repeats import (
    Elements,
    Stretch,
    folds,
    odd_instances,
    repeated,
    stretches,
)
from torch_vis.ops.display_names import ScopeLabels
from torch_vis.views.page.payload import fold_columns

CALLS, OPERATIONS = True, False


def found(keys: list[int], kind: bool = CALLS) -> list[tuple[int, int, int]]:
    return [tuple(stretch) for stretch in stretches(np.array(keys), np.full(len(keys), kind))]


# ---------------------------------------------------------------- one sequence


def test_repeated_stretches_are_found_and_the_one_that_covers_most_wins() -> None:
    assert found([7, 1, 2, 1, 2, 1, 2, 9]) == [(1, 2, 3)]
    assert found([1, 1, 1, 5, 5]) == [(0, 1, 3), (3, 1, 2)]
    assert found([1, 2, 3]) == [] == found([])


def test_three_equal_operations_are_no_repeat_and_four_are() -> None:
    assert found([1] * 3, OPERATIONS) == []
    assert found([1] * 4, OPERATIONS) == [(0, 1, 4)]


def test_two_steps_of_several_calls_are_no_repeat_and_three_are() -> None:
    assert found([1, 2, 1, 2]) == [] and found([1, 2, 1, 2, 1, 2]) == [(0, 2, 3)]


def slow(keys: list[int], is_call: list[bool], longest: int) -> list[Stretch]:
    """The same by looking at every place, as one would say it."""
    result, place = [], 0
    while place < len(keys):
        best = Stretch(place, 1, 1)
        for period in range(1, min(longest, len(keys) // 2) + 1):
            times = 1
            while keys[place : place + period] == keys[place + times * period : place + (times + 1) * period]:
                times += 1
                if place + times * period >= len(keys):
                    break
            has_calls = any(is_call[place : place + period])
            fewest = (2 if period == 1 else 3) if has_calls else 4
            if times >= fewest and times * period > best.period * best.times:
                best = Stretch(place, period, times)
        if best.times > 1:
            result.append(best)
        place += best.period * best.times
    return result


@pytest.mark.parametrize("seed", range(60))
def test_any_sequence_is_cut_as_looking_at_every_place_would(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2 + seed % 3, 40)
    is_call = rng.random(40) < (0.0, 0.3, 1.0)[seed % 3]
    assert stretches(keys, is_call, 12) == slow(keys.tolist(), is_call.tolist(), 12)


def test_a_very_long_sequence_is_folded_all_the_same() -> None:
    keys = np.arange(500_000) % 20
    assert repeated(np.arange(500_000), keys, keys, np.zeros(500_000, dtype=bool)) == [Stretch(0, 20, 25_000)]


def test_where_too_much_is_left_only_operators_have_to_agree() -> None:
    loose = np.arange(120) % 40
    is_call = np.zeros(120, dtype=bool)
    assert repeated(np.arange(40), loose[:40], loose[:40], is_call[:40]) == []
    assert repeated(np.tile(loose, 2), np.tile(loose, 2), np.tile(loose, 2), np.zeros(240, dtype=bool)) == [
        Stretch(0, 40, 6)
    ]


def test_odd_instances_are_the_fewer() -> None:
    assert odd_instances(np.array([1, 1, 2, 1]), Stretch(0, 1, 4)).tolist() == [2]
    assert odd_instances(np.array([9, 1, 2, 1, 3, 1, 2]), Stretch(1, 2, 3)).tolist() == [1]
    assert odd_instances(np.array([1, 2, 3, 4]), Stretch(0, 1, 4)).tolist() == []


# ---------------------------------------------------------------- a run


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, size), nn.Linear(size, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Tower(nn.Module):
    """Layers of which some are wider, checkpointed or not."""

    def __init__(self, sizes: list[int], again: bool = False) -> None:
        super().__init__()
        self.stem, self.layers = nn.Linear(4, 4), nn.ModuleList(Layer(size) for size in sizes)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x


def of(trace: tv.Trace, *phases: int) -> list[tuple[Any, ...]]:
    """The stretches: type of the call, start, period, times, and the odd instances."""
    columns = folds(Elements(trace.graph, phases))
    odd: dict[int, list[int]] = {}
    for fold, instance in zip(columns.odd_fold.tolist(), columns.odd_instance.tolist()):
        odd.setdefault(fold, []).append(instance)
    rows = zip(*(column.tolist() for column in columns[:4]))
    return [
        (trace.graph.scopes[scope].type, *row, odd.get(number, []))
        for number, (scope, *row) in enumerate(rows)
    ]


def test_equal_layers_are_one_stretch() -> None:
    assert of(tv.trace(Tower([8] * 5), torch.ones(2, 4)), 0) == [("Tower", 1, 1, 5, [])]


def test_the_layer_that_differs_is_in_the_stretch_as_an_odd_one() -> None:
    assert of(tv.trace(Tower([8, 8, 6, 8, 8]), torch.ones(2, 4)), 0) == [("Tower", 1, 1, 5, [2])]


def test_many_that_differ_and_those_at_the_ends_are_not() -> None:
    assert of(tv.trace(Tower([6, 8, 8, 8, 8]), torch.ones(2, 4)), 0) == [("Tower", 2, 1, 4, [])]
    assert of(tv.trace(Tower([8, 6, 8, 6, 8]), torch.ones(2, 4)), 0) == []


def test_what_ran_again_is_not_folded_with_what_ran_first() -> None:
    trace = tv.trace(Tower([8, 8, 8], again=True), torch.ones(2, 4), backward=True)
    again = trace.graph.tree.recomputed
    elements = Elements(trace.graph, [0, 1])
    columns = folds(elements)
    for scope, start, period, times in zip(*columns[:4]):
        row = elements.element[elements.start[scope] : elements.start[scope + 1]]
        calls = [~element for element in row[start : start + period * times] if element < 0]
        assert len({bool(again[call]) for call in calls}) <= 1
    backward = folds(Elements(trace.graph, [1]))
    assert (backward.times == 3).any(), "the three layers that backward computes again are one"


class Writer(nn.Module):
    """A cell whose state is made in the first turn."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(5, 4), nn.GRUCell(4, 4), nn.Linear(4, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state, rows = None, []
        for row in ids:
            state = self.cell(self.embed(row), state)
            rows.append(self.head(state))
        return torch.stack(rows)


def test_a_loop_begins_where_its_turns_begin_though_the_first_makes_its_state() -> None:
    graph = tv.trace(Writer(), torch.ones(6, 2, dtype=torch.long)).graph
    elements = Elements(graph, [0])
    columns = folds(elements)
    ((scope, start, period, times),) = zip(*(column.tolist() for column in columns[:4]))
    turn = elements.element[elements.start[scope] + start :][:period]
    calls = [graph.modules[graph.scope_module[~element]].path for element in turn if element < 0]
    assert (calls, times) == (["embed", "cell", "head"], 5)


@pytest.mark.parametrize("name", NAMES)
def test_scopes_that_are_folded_together_are_folded_as_each_would_be(name: str) -> None:
    graph = traced(name).graph
    phases = np.unique(graph.node_phase).tolist()
    elements = Elements(graph, phases)
    columns = folds(elements)
    inside: dict[int, list[Stretch]] = {}
    for scope, *row in zip(*(column.tolist() for column in columns[:4])):
        inside.setdefault(scope, []).append(Stretch(*row))
    for scope in range(len(graph.scope_call)):
        row = elements.element[elements.start[scope] : elements.start[scope + 1]]
        strict, loose = (elements.keys(row, strict=kind) for kind in (True, False))
        neighbours = elements.neighbours(row)
        if len(np.unique(neighbours[neighbours >= 0])) == len(neighbours[neighbours >= 0]):
            assert inside.get(scope, []) == repeated(strict, loose, elements.names(row), row < 0), scope


def test_the_page_has_them_for_each_phase_and_for_all_together() -> None:
    graph = tv.trace(Tower([8] * 3), torch.ones(2, 4), backward=True).graph
    columns = fold_columns(graph, ScopeLabels(graph), graph.tree.recomputed, None)
    assert set(columns["fold_phases"].tolist()) == {1, 2, 3}
    assert (
        len({len(columns[f"fold_{name}"]) for name in ("phases", "scope", "start", "period", "times")}) == 1
    )


def test_in_a_comparison_what_differs_is_no_repeat_of_what_does_not() -> None:
    graph = tv.trace(Tower([8] * 4), torch.ones(2, 4)).graph
    nodes = [node.index for node in graph.find("layers.3")]
    status = np.zeros(len(graph), dtype=np.int64)
    status[nodes] = 1
    recomputed = graph.tree.recomputed
    assert fold_columns(graph, ScopeLabels(graph), recomputed, None)["fold_times"].tolist() == [4]
    assert fold_columns(graph, ScopeLabels(graph), recomputed, status)["fold_times"].tolist() == [3]


@pytest.mark.parametrize("graph", [empty_graph(), one_node_graph()], ids=["empty", "one node"])
def test_smallest_graphs(graph: tv.Graph) -> None:
    columns = fold_columns(graph, ScopeLabels(graph), graph.tree.recomputed, None)
    assert all(len(column) == 0 for column in columns.values())
