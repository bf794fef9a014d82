"""Two aligned graphs as one: everything of both is there once, in an order that the verifier accepts."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

import torch_vis as tv
from torch_vis.graph.union import ADDED, REMOVED, SAME, UnionGraph
from torch_vis.graph.verify import check


def union_of(a: nn.Module, b: nn.Module) -> tuple[UnionGraph, tv.Graph, tv.Graph]:
    x = torch.ones(2, 3)
    # copies, so that no gradient of the first run is there in the second
    models = copy.deepcopy(a), copy.deepcopy(b)
    traces = [tv.trace(model, x, backward=any(True for _ in model.parameters())) for model in models]
    alignment = tv.compare(*traces).alignment
    graph_a, graph_b = (trace.graph for trace in traces)
    arrays = alignment.to_b, alignment.scope_to_b, alignment.wiring.value_to_b, alignment.changed
    return UnionGraph(graph_a, graph_b, *arrays), graph_a, graph_b


def test_a_run_united_with_itself_is_that_run() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    union, a, _ = union_of(model, model)
    check(union.graph)
    assert len(union.graph) == len(a) and (union.status() == SAME).all()
    assert len(union.graph.value_type) == len(a.value_type) and not union.renamed_modules()


def test_what_only_one_run_has_stands_where_it_ran() -> None:
    first, last = nn.Linear(3, 4), nn.Linear(4, 1)
    union, a, b = union_of(nn.Sequential(first, nn.ReLU(), last), nn.Sequential(first, nn.Tanh(), last))
    check(union.graph)
    names = [node.name for node in union.graph.nodes if node.phase == "forward"]
    assert names[:2] == ["t", "addmm"] and {"relu", "tanh"} <= set(names[2:4])
    status = dict(zip([node.name for node in union.graph.nodes], union.status().tolist()))
    assert status["relu"] == REMOVED and status["tanh"] == ADDED
    assert sorted([*union.node_of_a[union.to_b < 0], *union.node_of_b[:-1]]) == list(range(len(union.graph)))
    assert len(union.graph) == len(b) + int((union.to_b < 0).sum()) and len(a) == len(union.to_b)


def test_a_weight_of_a_renamed_module_is_one_value() -> None:
    inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    union, a, b = union_of(nn.Sequential(inner), nn.Sequential(nn.Identity(), inner))
    check(union.graph)
    outside = union.graph.value_producer < 0
    assert int(outside.sum()) == int((b.value_producer < 0).sum()) == int((a.value_producer < 0).sum())
    assert [path for _, path in union.renamed_modules()] == ["0"]


def test_an_empty_run_is_united_with_another() -> None:
    union, _, b = union_of(nn.Identity(), nn.Linear(3, 1))
    check(union.graph)
    assert len(union.graph) == len(b) and (union.status() == ADDED).all()
    union, a, _ = union_of(nn.Linear(3, 1), nn.Identity())
    assert len(union.graph) == len(a) and (union.status() == REMOVED).all()
    assert np.array_equal(union.node_of_a, np.arange(len(a)))
