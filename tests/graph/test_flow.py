"""Data flow through views: whose bytes a value shows, and what operations are given and make, by slot."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import torch_vis as tv
from torch_vis.graph.flow import bases, follow, inputs_by_slot, outputs_by_slot, plain_views, roots
from torch_vis.graph.schema import Flag


@given(st.lists(st.integers(0, 10**6), max_size=60))
def test_following_leads_to_the_end_of_every_chain(draws: list[int]) -> None:
    target = [draw % (row + 1) for row, draw in enumerate(draws)]
    ends = []
    for row in range(len(target)):
        while target[row] != row:
            row = target[row]
        ends.append(row)
    assert follow(np.array(target, dtype=np.int64)).tolist() == ends


def test_a_view_of_a_view_shows_the_bytes_of_the_first_tensor() -> None:
    def f(x: Tensor) -> Tensor:
        return x.t()[0].unsqueeze(0) + 1

    graph = tv.trace(f, torch.ones(2, 2)).graph
    root = roots(graph, plain_views(graph))
    views = graph.node_flags & Flag.VIEW != 0
    assert views.sum() >= 3
    assert {graph.values[value].role for value in root[graph.out_value[views[graph.out_node]]]} == {"input"}
    assert root[graph.outcomes[0].value.index] == graph.outcomes[0].value.index


def test_bytes_written_through_another_view_are_those_of_the_write() -> None:
    def f(x: Tensor) -> Tensor:
        x = x.clone()
        whole, part = x.view(4), x.view(4)
        part.add_(1)
        return whole.view(2, 2) * 2

    graph = tv.trace(f, torch.ones(2, 2)).graph
    views = plain_views(graph)
    last = graph.find(op="view")[-1]
    shown, named = (bases(graph, views, by_argument=by)[last.outputs[0].index] for by in (False, True))
    assert graph.values[shown].producer.name == "add_"
    assert graph.values[named].producer.name == "view"


def test_slots_name_arguments_results_and_what_is_written() -> None:
    graph = tv.trace(lambda x, y: torch.addmm(y, x, x).add_(y), torch.ones(2, 2), torch.ones(2, 2)).graph
    first, second = graph.nodes
    assert inputs_by_slot(graph, first.index) == {
        slot: value.index for slot, value in enumerate(first.inputs)
    }
    assert list(outputs_by_slot(graph, first.index)) == [0] and list(
        outputs_by_slot(graph, second.index)
    ) == [-1]
