"""Files and pictures by name or ending: what is found, what is not, and one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.kit.graphs import empty_graph
from torch_vis import formats as registry
from torch_vis.errors import FileError, NoMatch, UsageError
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.run import Run
from torch_vis.views.figure.options import FigureOptions


@pytest.fixture
def trace() -> tv.Trace:
    return tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)


class Names:
    """An exporter of a user's own."""

    def save(self, path: str, run: Run) -> None:
        Path(path).write_text(json.dumps([node.name for node in run.graph.nodes]))


def count(run: Run, look: FigureOptions) -> str:
    """A renderer of a user's own."""
    return f"{len(run.graph)} at depth {look.depth}"


class NamesApart:
    """An exporter from before runs were one record."""

    def save(
        self, path: str, graph: Graph, metrics: Metrics, limits: Sequence[str], meta: Mapping[str, Any]
    ) -> None:
        Path(path).write_text(json.dumps([meta["model"], *(node.name for node in graph.nodes)]))


def count_apart(
    graph: Graph, metrics: Metrics, limits: Sequence[str], meta: Mapping[str, Any], look: FigureOptions
) -> str:
    """A renderer from before."""
    return f"{len(graph)} at depth {look.depth}"


not_callable = 3


@pytest.mark.parametrize("name", registry.FORMATS)
def test_every_format_writes_a_run_and_an_empty_one(name: str, trace: tv.Trace, tmp_path: Path) -> None:
    ending = registry.FORMATS[name].endings[0]
    for number, t in enumerate([trace, tv.Trace(empty_graph(), Metrics())]):
        t.save(tmp_path / f"run{number}{ending}")
        t.save(tmp_path / f"named{number}", format=name)
        assert (tmp_path / f"run{number}{ending}").stat().st_size > 0
        assert (tmp_path / f"named{number}").stat().st_size > 0
    assert not list(tmp_path.glob(".*")), "a draft was left behind"


@pytest.mark.parametrize("name", registry.FORMATS)
def test_a_file_that_cannot_be_written(name: str, trace: tv.Trace, tmp_path: Path) -> None:
    target = tmp_path / "no" / f"run{registry.FORMATS[name].endings[0]}"
    with pytest.raises(FileError, match="cannot write"):
        trace.save(target)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_ending_counts() -> None:
    assert registry.by_ending("a.perfetto.json") == "perfetto" and registry.by_ending("a.json") == "json"
    assert registry.by_ending(Path("x/y.TRACE.JSON")) == "perfetto" and registry.by_ending("a.b.svg") == "svg"


def test_an_unknown_ending_or_name(trace: tv.Trace, tmp_path: Path) -> None:
    with pytest.raises(NoMatch, match=r"no file format '.onxx'; did you mean '.onnx'"):
        trace.save(tmp_path / "a.onxx")
    with pytest.raises(NoMatch, match=r"no file format '.docx'"):
        trace.save(tmp_path / "a.docx")
    with pytest.raises(NoMatch, match="no file format 'perfeto'; did you mean 'perfetto'"):
        trace.save(tmp_path / "a.json", format="perfeto")
    with pytest.raises(NoMatch, match="no renderer 'plotli'; did you mean 'plotly'"):
        trace.figure("plotli")
    with pytest.raises(NoMatch, match="there are: 'graphviz', 'matplotlib', 'plotly', 'svg'"):
        trace.figure("canvas3000")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [3, None, b"x"])
def test_a_path_that_is_none(trace: tv.Trace, path: Any) -> None:
    with pytest.raises(UsageError, match="a path is a string"):
        trace.save(path)


def test_ones_own_exporter(trace: tv.Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "names.txt", format=f"{__name__}:Names")
    assert json.loads((tmp_path / "names.txt").read_text())[:2] == ["t", "addmm"]


def test_a_format_by_its_ending_and_an_exporter_itself(trace: tv.Trace, tmp_path: Path) -> None:
    for name in ("md", ".dot", "ONNX", "perfetto.json"):
        trace.save(tmp_path / "x", format=name)
    trace.save(tmp_path / "names.txt", format=Names)
    assert json.loads((tmp_path / "names.txt").read_text())


def test_ones_own_renderer(trace: tv.Trace) -> None:
    assert trace.figure(f"{__name__}:count", depth=3) == f"{len(trace.graph)} at depth 3"


def test_what_takes_the_parts_one_by_one_still_works_and_says_so(trace: tv.Trace, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="take one run"):
        trace.save(tmp_path / "names.txt", format=NamesApart)
    assert json.loads((tmp_path / "names.txt").read_text())[:2] == ["Linear", "t"]
    with pytest.warns(DeprecationWarning, match="take one run"):
        assert trace.figure(f"{__name__}:count_apart", depth=3) == f"{len(trace.graph)} at depth 3"


def test_ones_own_that_is_not_there(trace: tv.Trace, tmp_path: Path) -> None:
    with pytest.raises(NoMatch, match="there is no module 'nowhere_at_all'"):
        trace.save(tmp_path / "x", format="nowhere_at_all:Thing")
    with pytest.raises(NoMatch, match="Missing"):
        trace.figure(f"{__name__}:Missing")
    with pytest.raises(UsageError, match="it has no save"):
        trace.save(tmp_path / "x", format=f"{__name__}:count")
    with pytest.raises(UsageError, match="cannot draw"):
        trace.figure(f"{__name__}:not_callable")
    with pytest.raises(UsageError, match="named by a string"):
        trace.figure(3)  # type: ignore[arg-type]
