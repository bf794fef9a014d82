"""The .json file: readable by any tool, and a way back to the graph."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.graphs import (
    LIMITS,
    META,
    synthetic,
    training_graph,
    training_metrics,
)
from tests.kit.same import assert_same_graph, assert_same_metrics
from tests.kit.trace_files import MAKERS, assert_comes_back, saved_run
from torch_vis.errors import CorruptFile, FileError, NewerFile, NotOurFile, UsageError
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.io import json as exporter
from torch_vis.graph.run import Run

DOCS = Path(__file__).parents[2] / "docs" / "json.md"


def refuse(token: str) -> Any:
    raise AssertionError(f"{token} is not JSON")


def read(path: Path) -> dict[str, Any]:
    """The file as a strict reader sees it."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return saved_run(exporter, tmp_path / "run.json")


@pytest.mark.parametrize("make", MAKERS)
def test_a_graph_comes_back(tmp_path: Path, make: Callable[[], Graph]) -> None:
    assert_comes_back(exporter, tmp_path / "run.json", make)
    read(tmp_path / "run.json")


def test_metrics_come_back(saved: Path) -> None:
    assert_same_metrics(exporter.load(saved).metrics, training_metrics())


def test_a_graph_of_more_than_one_chunk_comes_back(tmp_path: Path) -> None:
    graph, metrics = synthetic(2 * exporter.CHUNK + 7)
    exporter.save(tmp_path / "run.json", Run(graph, metrics))
    loaded = exporter.load(tmp_path / "run.json")
    back, measured = loaded.graph, loaded.metrics
    assert_same_graph(back, graph)
    assert_same_metrics(measured, metrics)


def test_a_node_explains_itself(saved: Path) -> None:
    node = read(saved)["nodes"][1]
    assert node == {
        "id": 1,
        "call": 1,
        "op": "aten::addmm",
        "name": "addmm",
        "args": [{"tensor": 0}, {"tensor": 1}],
        "kwargs": {"beta": 1, "alpha": 1.0},
        "phase": "forward",
        "scope": 1,
        "path": "fc",
        "site": 0,
        "inputs": [0, 2],
        "input_slots": [0, 1],
        "input_kinds": ["whole", "whole"],
        "outputs": [3],
        "output_slots": [0],
        "link": None,
        "api": None,
        "api_first": None,
        "flags": [],
        "metrics": {
            "start_ns": 10,
            "time_ns": 15,
            "alloc_bytes": 32,
            "free_bytes": 0,
            "live_bytes": 104,
            "flops": 48,
            "grad_norm": "nan",
        },
    }


def test_what_is_not_known_is_null(saved: Path) -> None:
    nodes = read(saved)["nodes"]
    assert nodes[2]["metrics"]["flops"] is None
    assert (nodes[4]["link"], nodes[4]["site"], nodes[4]["phase"]) == (3, None, "backward")


def test_edges_say_what_passes(saved: Path) -> None:
    edges = read(saved)["edges"]
    assert {"source": 2, "target": 3, "value": 4, "kind": "whole", "shape": [2], "dtype": "float32"} in edges
    assert len(edges) == 5


def test_nothing_of_a_file_is_left_once_its_graph_is_gone(saved: Path) -> None:
    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    exporter.load(saved)
    before = objects()
    for _ in range(10):
        exporter.load(saved)
    assert objects() - before < 10


def test_the_dictionary_is_the_file(saved: Path) -> None:
    document = exporter.to_dict(Run(training_graph(), training_metrics(), LIMITS, META))
    assert json.loads(json.dumps(document, allow_nan=False)) == read(saved)


def test_the_schema_is_documented_field_by_field(saved: Path) -> None:
    """Every field of the file stands in docs/json.md under its list's heading, and nothing else does."""
    document, text = read(saved), DOCS.read_text("utf-8")
    sections = dict(re.findall(r"^### `?(\w+)`?$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    for name in ("nodes", "edges", "values", "storages", "scopes", "results"):
        assert re.findall(r"^\| `(\w+)`", sections[name], re.MULTILINE) == list(document[name][0])
    for name in ("calls", "types", "sites", "modules"):
        row = re.search(rf"^\| `{name}` \| (.*) \|$", sections["Tables"], re.MULTILINE)
        assert row and re.findall(r"`(\w+)`", row[1]) == list(document[name][0])
    top = text.partition("## The document")[2].partition("###")[0]
    assert re.findall(r"^\| `(\w+)`", top, re.MULTILINE) == list(document)


def test_a_failed_write_leaves_the_old_file(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(UsageError, match="meta cannot be written as JSON"):
        exporter.save(saved, Run(training_graph(), Metrics(), meta={"wall": float("nan")}))
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["run.json"]


def test_a_reformatted_file_still_loads(saved: Path) -> None:
    saved.write_text(json.dumps(read(saved), indent=2), "utf-8")
    assert_same_graph(exporter.load(saved).graph, training_graph())


@pytest.mark.parametrize(
    "data", ["hello", "[1, 2]", '{"nodes": []}', '{"format": "other", "version": 1}', "3", "\x00"]
)
def test_a_file_of_another_kind(tmp_path: Path, data: str) -> None:
    (tmp_path / "x.json").write_text(data)
    with pytest.raises(NotOurFile):
        exporter.load(tmp_path / "x.json")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no such file"):
        exporter.load(tmp_path / "x.json")


def test_every_truncation_is_told_as_one(saved: Path) -> None:
    data = saved.read_bytes().rstrip()
    for length in [*range(40), *range(40, len(data), 101), len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(CorruptFile, match="truncated or damaged"):
            exporter.load(saved)


def test_a_newer_file(saved: Path) -> None:
    saved.write_text(json.dumps({"format": "torch_vis.graph", "version": 2, "graph": "in another shape"}))
    with pytest.raises(NewerFile, match="version 2, and this torch_vis reads up to version 1"):
        exporter.load(saved)


def drop(document: dict[str, Any]) -> None:
    del document["values"]


def drop_field(document: dict[str, Any]) -> None:
    del document["nodes"][3]["inputs"]


def unknown_phase(document: dict[str, Any]) -> None:
    document["nodes"][3]["phase"] = "sideways"


def wrong_order(document: dict[str, Any]) -> None:
    document["nodes"].reverse()


def wrong_scope(document: dict[str, Any]) -> None:
    document["nodes"][3]["scope"] = 9


def too_large(document: dict[str, Any]) -> None:
    document["nodes"][3]["scope"] = 2**80


def text_for_number(document: dict[str, Any]) -> None:
    document["values"][3]["type"] = "three"


def list_for_record(document: dict[str, Any]) -> None:
    document["scopes"][1] = []


def object_metric(document: dict[str, Any]) -> None:
    document["metrics"][0]["dtype"] = "object"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop, "'values' is missing"),
        (drop_field, "'inputs' is missing"),
        (unknown_phase, "'sideways' is missing or unknown"),
        (wrong_order, "nodes has the id 4 in place 0"),
        (wrong_scope, r"node 3 \(aten::sum\): node_scope is 9"),
        (too_large, "damaged"),
        (text_for_number, "damaged"),
        (list_for_record, "damaged"),
        (object_metric, "metric start_ns is of type object"),
    ],
)
def test_a_damaged_record_is_told(
    saved: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    document = read(saved)
    damage(document)
    saved.write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match=message):
        exporter.load(saved)
