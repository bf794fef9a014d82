"""What a graph tells about a run, and that nobody can change it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kit.graphs import (
    empty_graph,
    linear_chain,
    one_node_graph,
    synthetic,
    training_builder,
    training_graph,
)
from torch_vis.errors import NoMatch
from torch_vis.graph import Graph
from torch_vis.graph.schema import COLUMNS, TABLES, Kind


def names(nodes: object) -> list[str]:
    return [node.name for node in nodes]  # type: ignore[attr-defined]


def test_rows_read_the_columns() -> None:
    node = training_graph().nodes[1]
    assert (node.op, node.name, node.phase, node.path) == ("aten::addmm", "addmm", "forward", "fc")
    assert node.site is not None and str(node.site) == "model.py:5 in forward"
    assert [value.index for value in node.inputs] == [0, 2]
    assert [str(value.type) for value in node.outputs] == ["f32[2, 4]"]
    assert node.format() == "%3 = addmm(%0, %2, beta=1, alpha=1.0)"
    assert names(node.users) == ["fill_"] and names(node.producers) == ["t"]


def test_marks_links_and_roles_read_as_words() -> None:
    graph = training_graph()
    assert graph.nodes[2].flags == ("escape", "random")
    assert graph.nodes[4].link == graph.nodes[3] and graph.nodes[3].link is None
    assert graph.nodes[4].phase == "backward" and graph.nodes[4].site is None
    assert [value.role for value in graph.inputs] == ["input", "parameter"]
    assert [value.name for value in graph.inputs] == ["x", "fc.weight"]
    assert [(result.kind, result.value.index) for result in graph.outcomes] == [
        ("output", 5),
        ("gradient", 6),
    ]


def test_edges_run_through_the_version_that_a_partial_write_was_laid_over() -> None:
    source, target, value, kind = training_graph().edges()
    edges = set(zip(source.tolist(), target.tolist(), value.tolist(), kind.tolist(), strict=True))
    assert edges == {
        (0, 1, 2, Kind.WHOLE),
        (1, 2, 3, Kind.SHAPE),
        (2, 3, 4, Kind.WHOLE),
        (3, 4, 5, Kind.DATA),
        (1, 2, 3, Kind.WHOLE),  # not read by fill_, but under what it wrote
    }


def test_edges_of_geometry_can_be_left_out() -> None:
    graph = training_graph()
    assert Kind.SHAPE not in graph.edges(shape=False)[3]
    assert len(graph.edges()[0]) - len(graph.edges(shape=False)[0]) == 1


def test_ancestors_of_a_part_leave_out_what_lies_under_it() -> None:
    graph = training_graph()
    whole, _ = graph.ancestors([(4, Kind.WHOLE)])
    part, values = graph.ancestors([(4, Kind.DATA)])
    assert whole.tolist() == [True, True, True, False, False]
    assert part.tolist() == [False, False, True, False, False]
    assert np.flatnonzero(values).tolist() == [4]


def test_a_value_asked_for_first_in_part_and_then_whole_is_followed_both_ways() -> None:
    nodes, _ = training_graph().ancestors([(4, Kind.WHOLE), (4, Kind.DATA)])
    assert nodes.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"path": "fc"}, ["t", "addmm"]),
        ({"path": ""}, ["t", "addmm", "fill_", "sum", "expand"]),
        ({"path": "f*", "op": "add*"}, ["addmm"]),
        ({"op": "aten::fill_.Scalar"}, ["fill_"]),
        ({"op": "aten::fill_"}, ["fill_"]),
        ({"phase": "backward"}, ["expand"]),
        ({"flag": "escape"}, ["fill_"]),
        ({"dtype": "float32", "phase": "forward", "op": "s*"}, ["sum"]),
        ({"op": "conv*"}, []),
        ({"dtype": "int64"}, []),
    ],
)
def test_find(query: dict[str, str], found: list[str]) -> None:
    assert names(training_graph().find(**query)) == found


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"path": "fd"}, "no module or operation 'fd'; did you mean 'fc'?"),
        ({"phase": "backwards"}, "no phase 'backwards'; did you mean 'backward'"),
        ({"flag": "escaped"}, "no flag 'escaped'; did you mean 'escape'"),
    ],
)
def test_find_offers_the_nearest_name(query: dict[str, str], message: str) -> None:
    with pytest.raises(NoMatch) as caught:
        training_graph().find(**query)
    assert str(caught.value).startswith(message)


def test_a_graph_cannot_be_changed() -> None:
    graph = training_graph()
    with pytest.raises(AttributeError, match="immutable"):
        graph.calls = ()
    with pytest.raises(ValueError, match="read-only"):
        graph.node_call[0] = 3
    assert all(not getattr(graph, name).flags.writeable for name in COLUMNS)
    assert all(type(getattr(graph, name)) is tuple for name in TABLES)


def test_a_column_given_to_the_builder_cannot_be_changed_afterwards() -> None:
    builder = training_builder()
    phases = np.array([0, 0, 0, 0, 1], dtype=np.int8)
    builder.set(node_phase=phases)
    builder.build()
    with pytest.raises(ValueError, match="read-only"):
        phases[0] = 1


def test_rows_slice_and_compare() -> None:
    graph = training_graph()
    assert names(graph.nodes[1:3]) == ["addmm", "fill_"]
    assert graph.nodes[-1] == graph.nodes[4] != training_graph().nodes[4]
    assert len(graph.nodes[:0]) == 0
    with pytest.raises(IndexError):
        graph.nodes[5]


@pytest.mark.parametrize("make", [empty_graph, one_node_graph, training_graph])
def test_a_graph_describes_itself(make: object) -> None:
    graph: Graph = make()  # type: ignore[operator]
    assert f"{len(graph)} operation{'' if len(graph) == 1 else 's'}," in repr(graph)
    for rows in (graph.nodes, graph.values, graph.scopes, graph.outcomes):
        assert repr(rows)


def test_a_deep_graph_needs_no_recursion() -> None:
    graph = linear_chain(["aten::relu"] * 50_000)
    nodes, _ = graph.ancestors(graph.outcomes[0].sources())
    assert nodes.all()


def test_an_operation_holds_few_bytes() -> None:
    graph, metrics = synthetic(100_000)
    assert (graph.nbytes + metrics.nbytes) / len(graph) < 250
