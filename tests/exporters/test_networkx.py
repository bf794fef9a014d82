"""The graph in networkx."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.kit.graphs import empty_graph, one_node_graph, training_graph, training_metrics
from torch_vis.errors import MissingExtra
from torch_vis.exporters.operations import to_networkx
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.run import Run

nx = pytest.importorskip("networkx")


def test_operations_carry_what_is_known_of_them() -> None:
    node = to_networkx(Run(training_graph(), training_metrics())).nodes[1]
    assert (node["kind"], node["op"], node["name"], node["path"]) == (
        "operation",
        "aten::addmm",
        "addmm",
        "fc",
    )
    assert (node["shapes"], node["site"], node["time_ns"]) == (((2, 4),), "model.py:5 in forward", 15)
    assert "scope_time_ns" not in node


def test_what_is_not_known_is_none() -> None:
    made = to_networkx(Run(training_graph(), training_metrics()))
    assert made.nodes[2]["flops"] is None and made.nodes[4]["site"] is None


def test_inputs_and_results_are_nodes_too() -> None:
    made = to_networkx(Run(training_graph(), Metrics()))
    assert made.nodes["value:1"] == {
        "kind": "parameter",
        "name": "fc.weight",
        "shape": (4, 3),
        "dtype": "float32",
    }
    assert made.nodes["result:1"]["kind"] == "gradient"
    assert list(made.predecessors("result:0")) == [3]
    assert nx.has_path(made, "value:1", "result:1")
    assert nx.is_directed_acyclic_graph(made)


def test_edges_say_what_passes() -> None:
    made = to_networkx(Run(training_graph(), Metrics()))
    assert made.edges[2, 3, 0] == {"value": 4, "kind": "whole", "shape": (2,), "dtype": "float32"}
    assert sorted(edge["kind"] for edge in made.get_edge_data(1, 2).values()) == ["shape", "whole"]
    assert made.number_of_edges() == 5 + 2 + 2  # between operations, from outside, to the results


@pytest.mark.parametrize(("make", "nodes"), [(empty_graph, 0), (one_node_graph, 3)])
def test_small_graphs(make: Callable[[], Graph], nodes: int) -> None:
    assert to_networkx(Run(make(), Metrics())).number_of_nodes() == nodes


def test_without_networkx_the_error_holds_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(
        MissingExtra, match=r"networkx is not installed; run: pip install 'torch-vis\[networkx\]'"
    ):
        to_networkx(Run(training_graph(), Metrics()))
