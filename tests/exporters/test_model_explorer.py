"""The .explorer.json file and its heat maps: nothing in them that Model Explorer would drop without a word."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.kit.graphs import (
    LIMITS,
    META,
    columns,
    empty_graph,
    odd_calls_graph,
    one_node_graph,
    training_graph,
    training_metrics,
)
from tests.kit.traced import NAMES, traced
from torch_vis.errors import FileError
from torch_vis.exporters.model_explorer import heat_path, save
from torch_vis.graph import Column, Graph, Metrics
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Module

OWN = re.compile(r"|backward|recompute|operations \d+")  # layers that stand for no module


def refuse(token: str) -> Any:
    raise AssertionError(f"{token} is not JSON")


def read(path: Path | str) -> Any:
    return json.loads(Path(path).read_text("utf-8"), parse_constant=refuse)


def written(
    folder: Path,
    graph: Graph,
    metrics: Metrics,
    limits: tuple[str, ...] = (),
    meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Save, read back and check a graph; returns the graph's record."""
    path = folder / "run.explorer.json"
    save(path, Run(graph, metrics, limits, meta))
    document = read(path)
    assert set(document) == {"label", "graphs"}
    (record,) = document["graphs"]
    check(record, graph)
    for word in ("time", "memory", "flops"):
        heat = folder / f"run.heat.{word}.json"
        if heat.exists():
            check_heat(read(heat), record)
    found: dict[str, Any] = record
    return found


def check(record: dict[str, Any], graph: Graph) -> None:
    """Ids are unique, edges lead from a node that is there to the output that it names, layers are paths."""
    nodes = {node["id"]: node for node in record["nodes"]}
    assert len(nodes) == len(record["nodes"])
    assert len(nodes) == len(graph) + len(graph.inputs) + len(graph.outcomes)
    edges = 0
    for node in nodes.values():
        assert node["namespace"] == "" or all(node["namespace"].split("/")), node["namespace"]
        assert [edge["targetNodeInputId"] for edge in node["incomingEdges"]] == [
            str(place) for place in range(len(node["incomingEdges"]))
        ]
        for edge in node["incomingEdges"]:
            outputs = nodes[edge["sourceNodeId"]]["outputsMetadata"]
            assert outputs[int(edge["sourceNodeOutputId"])]["id"] == edge["sourceNodeOutputId"]
            edges += 1
        for part in (node, *node["outputsMetadata"], *node.get("inputsMetadata", [])):
            assert all(set(attr) == {"key", "value"} for attr in part["attrs"])
            assert all(isinstance(attr["value"], str) for attr in part["attrs"])
    sources, targets, _, _ = graph.edges()
    pairs = {
        (edge["sourceNodeId"], node["id"])
        for node in nodes.values()
        for edge in node["incomingEdges"]
        if node["id"][:6] not in ("value:", "result") and not edge["sourceNodeId"].startswith("value:")
    }
    names = [f"{node.name}_{node.index}" for node in graph.nodes]
    assert pairs == {(names[source], names[target]) for source, target in zip(sources, targets)}
    layers = {node["namespace"] for node in nodes.values()}
    opened = {"/".join(layer.split("/")[:depth]) for layer in layers for depth in range(layer.count("/") + 2)}
    assert set(record["groupNodeAttributes"]) <= opened | {""}


def check_heat(heat: dict[str, Any], record: dict[str, Any]) -> None:
    ((graph, data),) = heat.items()
    assert graph == record["id"]
    assert set(data["results"]) <= {node["id"] for node in record["nodes"]}
    stops = [stop["stop"] for stop in data["gradient"]]
    assert stops == sorted(stops) and (stops[0], stops[-1]) == (0, 1)
    assert all(stop["bgColor"].startswith("#") for stop in data["gradient"])


def attrs(node: dict[str, Any]) -> dict[str, str]:
    return {attr["key"]: attr["value"] for attr in node["attrs"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_zoo(name: str, tmp_path: Path) -> None:
    t = traced(name)
    record = written(tmp_path, t.graph, t.metrics, t.limits, t.meta)
    by_id = {node["id"]: node for node in record["nodes"]}
    spaces: dict[tuple[int, str], set[str]] = {}
    for row in t.graph.nodes:
        spaces.setdefault((row.scope.index, row.phase), set()).add(
            by_id[f"{row.name}_{row.index}"]["namespace"]
        )
    for found in spaces.values():
        modules = {tuple(step for step in space.split("/") if not OWN.fullmatch(step)) for space in found}
        assert len(modules) == 1


@pytest.mark.parametrize("make", [empty_graph, one_node_graph, training_graph, odd_calls_graph])
def test_graphs_made_by_hand(make: Callable[[], Graph], tmp_path: Path) -> None:
    record = written(tmp_path, make(), Metrics(), LIMITS, META)
    assert record["id"] == "Net"
    assert record["groupNodeAttributes"][""]["limits"] == LIMITS[0]
    assert [path.name for path in tmp_path.iterdir()] == ["run.explorer.json"]


def test_a_node_says_what_is_known(tmp_path: Path) -> None:
    record = written(tmp_path, training_graph(), training_metrics())
    node = next(node for node in record["nodes"] if node["id"] == "addmm_1")
    assert (node["label"], node["namespace"]) == ("addmm", "fc")
    assert list(attrs(node).items())[:4] == [
        ("op", "aten::addmm"),
        ("beta", "1"),
        ("alpha", "1.0"),
        ("code", "addmm(self, mat1, beta=1, alpha=1.0)"),
    ]
    assert (attrs(node)["source"], attrs(node)["time"]) == ("model.py:5 in forward", "15 ns")
    assert (attrs(node)["FLOPs"], attrs(node)["module"]) == ("48", "fc")
    assert node["incomingEdges"] == [
        {"sourceNodeId": "value:0", "sourceNodeOutputId": "0", "targetNodeInputId": "0"},
        {"sourceNodeId": "t_0", "sourceNodeOutputId": "0", "targetNodeInputId": "1"},
    ]
    assert attrs(node["outputsMetadata"][0]) == {"tensor_shape": "float32[2, 4]"}
    assert [attrs(port)["__tensor_tag"] for port in node["inputsMetadata"]] == ["self", "mat1"]
    assert record["groupNodeAttributes"]["fc"] == {
        "class": "Linear",
        "module": "fc",
        "operations": "2",
        "time": "20 ns",
        "memory": "32 B",
        "FLOPs": "48",
    }


def test_tensors_stand_beside_what_uses_them(tmp_path: Path) -> None:
    t = tv.trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.ones(1, 3), backward=True)
    record = written(tmp_path, t.graph, t.metrics)
    places = {
        (attrs(node)["name"], attrs(node).get("role") or attrs(node)["result"]): (
            node["label"],
            node["namespace"],
        )
        for node in record["nodes"]
        if "name" in attrs(node)
    }
    assert places["input", "input"] == ("input", "") and places["output", "output"] == ("output", "")
    assert places["0.weight", "parameter"] == ("weight", "0")
    assert places["0.weight.grad", "gradient"] == ("weight.grad", "backward/0")


def test_layers_are_paths_with_the_number_of_the_call(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(3, 3))])

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](self.layers[0](x))

    t = tv.trace(Twice(), torch.ones(2, 3))
    record = written(tmp_path, t.graph, t.metrics)
    spaces = {node["namespace"] for node in record["nodes"] if node["label"] == "addmm"}
    assert spaces == {"layers/0/0", "layers/0 (call 2)/0 (call 2)"}


def test_long_programs_are_shown_in_layers(tmp_path: Path) -> None:
    t = traced("long_chain")
    record = written(tmp_path, t.graph, t.metrics)
    sizes = Counter(node["namespace"] for node in record["nodes"])
    assert len(t.graph) > 3000 and max(sizes.values()) <= 250 and "operations 2" in sizes


def test_a_module_that_is_named_like_a_part_of_the_run(tmp_path: Path) -> None:
    t = tv.trace(nn.ModuleDict({"backward": nn.Linear(3, 3)})["backward"], torch.ones(2, 3), backward=True)
    graph = t.graph
    modules = [
        Module("backward.x", module.type) if module.kind == "module" else module for module in graph.modules
    ]
    tables = ("types", "sites", "names", "devices", "results", "calls")
    named = Graph(
        {name: getattr(graph, name) for name in columns()},
        {**{name: getattr(graph, name) for name in tables}, "modules": modules},
    )
    record = written(tmp_path, named, Metrics())
    spaces = {attrs(node)["phase"]: node["namespace"] for node in record["nodes"] if "module" in attrs(node)}
    assert spaces == {"forward": "backward/x", "backward": "backward_2/backward/x"}


def test_a_heat_map_has_what_is_known(tmp_path: Path) -> None:
    written(tmp_path, training_graph(), training_metrics(), meta=META)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.explorer.json",
        "run.heat.flops.json",
        "run.heat.memory.json",
        "run.heat.time.json",
    ]
    flops = read(tmp_path / "run.heat.flops.json")["Net"]
    assert {node: row["value"] for node, row in flops["results"].items()} == {
        "t_0": 0,
        "addmm_1": 48,
        "sum_3": 8,
        "expand_4": 0,
    }
    assert read(tmp_path / "run.heat.time.json")["Net"]["results"]["addmm_1"] == {"value": 15}


def test_a_figure_that_is_no_number_has_no_colour(tmp_path: Path) -> None:
    column = Column("time_ns", np.array([1.0, np.nan, np.inf, 2.0, 3.0]))
    written(tmp_path, training_graph(), Metrics({"time_ns": column}))
    assert set(read(tmp_path / "run.heat.time.json")["run"]["results"]) == {"t_0", "sum_3", "expand_4"}


def test_saved_by_its_ending(tmp_path: Path) -> None:
    tv.trace(nn.ReLU(), torch.ones(2)).save(tmp_path / "Run.explorer.json")
    assert read(tmp_path / "Run.explorer.json")["label"] == "ReLU"
    assert (tmp_path / "Run.heat.time.json").exists()


def test_where_heat_maps_go() -> None:
    assert heat_path("a.b/run", "time") == "a.b/run.heat.time.json"
    assert heat_path("a.b/X.Explorer.JSON", "flops") == "a.b/X.heat.flops.json"


@pytest.mark.parametrize("text", ["", "é 漢字", "\ud800 lone", "a/b//c", "x" * 5000, "/", "."])
def test_any_text_can_be_written(text: str, tmp_path: Path) -> None:
    graph = training_graph()
    tables = {
        "types": graph.types,
        "devices": graph.devices,
        "calls": graph.calls,
        "modules": [Module(text, text), Module(f"{text}.fc", text)],
        "sites": [site._replace(file=text, function=text) for site in graph.sites],
        "names": [text, text],
        "results": [row._replace(name=text) for row in graph.results],
    }
    odd = Graph({name: getattr(graph, name) for name in columns()}, tables)
    written(tmp_path, odd, training_metrics(), (text,), {"model": text, "note": text})


def test_a_heat_map_that_cannot_be_written_leaves_whole_files_only(tmp_path: Path) -> None:
    (tmp_path / "run.heat.time.json").mkdir()
    with pytest.raises(FileError, match=r"cannot write .*run\.heat\.time\.json: it is a directory"):
        save(tmp_path / "run.explorer.json", Run(training_graph(), training_metrics()))
    assert read(tmp_path / "run.explorer.json")["label"] == "run"
    assert len(list(tmp_path.iterdir())) == 2
