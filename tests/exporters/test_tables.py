"""CSV and GraphML: every operation and every connection, readable by the usual readers."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.graphs import empty_graph
from tests.kit.traced import NAMES, traced
from torch_vis.graph import Column, Metrics

nx = pytest.importorskip("networkx", reason="networkx is not installed")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_csv_of_the_zoo(name: str, tmp_path: Path) -> None:
    t = traced(name)
    t.save(tmp_path / "run.csv")
    found = rows(tmp_path / "run.csv")
    assert [row["name"] for row in found] == [node.name for node in t.graph.nodes]
    assert [row["path"] for row in found] == [node.path for node in t.graph.nodes]
    assert [row["link"] for row in found] == [
        str(node.link.index) if node.link else "" for node in t.graph.nodes
    ]
    assert [int(row["time_ns"]) for row in found] == t.metrics["time_ns"].values.tolist()


def test_csv_writes_shapes_and_sources(tmp_path: Path) -> None:
    tv.trace(lambda x: (x @ x.T).sum(), torch.ones(2, 3)).save(tmp_path / "run.csv")
    last, product = (row for row in reversed(rows(tmp_path / "run.csv")) if row["name"] in ("sum", "mm"))
    assert (last["shape"], product["shape"], product["input_shapes"]) == ("scalar", "2x2", "2x3 3x2")
    assert product["file"].endswith("test_tables.py") and int(product["line"]) > 0


def test_an_unknown_figure_is_an_empty_cell(tmp_path: Path) -> None:
    t = tv.trace(nn.Sequential(nn.Tanh(), nn.Tanh()), torch.ones(2))
    known = torch.tensor([True, False]).numpy()
    t.metrics = t.metrics.with_column(Column("cost", t.metrics["time_ns"].values, known=known))
    t.save(tmp_path / "run.csv")
    assert [bool(row["cost"]) for row in rows(tmp_path / "run.csv")] == [True, False]
    t.save(tmp_path / "run.graphml")
    graph = nx.read_graphml(tmp_path / "run.graphml")
    assert "cost" in graph.nodes["0"] and "cost" not in graph.nodes["1"]


def test_text_of_the_program_is_quoted(tmp_path: Path) -> None:
    odd = type('a,"b"\n<c>&\x01', (nn.Tanh,), {})()
    t = tv.trace(odd, torch.ones(2))
    t.save(tmp_path / "run.csv")
    assert rows(tmp_path / "run.csv")[0]["module"] == 'a,"b"\ufffd<c>&\ufffd'
    t.save(tmp_path / "run.graphml")
    assert nx.read_graphml(tmp_path / "run.graphml").nodes["0"]["module"] == 'a,"b"\ufffd<c>&\ufffd'


def test_a_run_without_operations(tmp_path: Path) -> None:
    t = tv.Trace(empty_graph(), Metrics())
    t.save(tmp_path / "run.csv")
    assert rows(tmp_path / "run.csv") == [] and (tmp_path / "run.csv").read_text().startswith("node,op,name")
    t.save(tmp_path / "run.graphml")
    assert len(nx.read_graphml(tmp_path / "run.graphml")) == 0


@pytest.mark.parametrize("name", NAMES)
def test_graphml_of_the_zoo_is_the_networkx_graph(name: str, tmp_path: Path) -> None:
    t = traced(name)
    t.save(tmp_path / "run.graphml")
    found = nx.MultiDiGraph(nx.read_graphml(tmp_path / "run.graphml", force_multigraph=True))
    wanted = t.to_networkx()
    assert set(found.nodes) == {str(node) for node in wanted.nodes}
    plain = sorted((str(a), str(b), data["value"], data["kind"]) for a, b, data in wanted.edges(data=True))
    assert sorted((a, b, data["value"], data["kind"]) for a, b, data in found.edges(data=True)) == plain
    for node in t.graph.nodes:
        assert found.nodes[str(node.index)]["label"] == node.name
        assert found.nodes[str(node.index)]["time_ns"] == t.metrics["time_ns"][node.index]
