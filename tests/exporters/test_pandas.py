"""The operations as a pandas table."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.kit.graphs import empty_graph, one_node_graph, training_graph, training_metrics
from torch_vis.errors import MissingExtra
from torch_vis.exporters.operations import to_pandas
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.run import Run

pd = pytest.importorskip("pandas")


def test_one_row_for_each_operation() -> None:
    frame = to_pandas(Run(training_graph(), training_metrics()))
    assert frame.index.name == "node" and len(frame) == 5
    row = frame.loc[1]
    assert (row["op"], row["name"], row["phase"]) == ("aten::addmm", "addmm", "forward")
    assert (row["path"], row["module"], row["call"]) == ("fc", "Linear", 0)
    assert (row["file"], row["line"], row["function"]) == ("model.py", 5, "forward")
    assert (row["shape"], row["dtype"], row["input_shapes"]) == ((2, 4), "float32", ((2, 3), (3, 4)))


def test_what_is_not_known_is_na() -> None:
    frame = to_pandas(Run(training_graph(), training_metrics()))
    assert frame["flops"].isna().tolist() == [False, False, True, False, False]
    assert frame["flops"].sum() == 56
    assert frame["link"].isna().tolist() == [True, True, True, True, False] and frame["link"][4] == 3
    assert frame.loc[4, ["file", "line", "function"]].isna().all()


def test_metrics_of_nodes_are_columns_and_can_be_summed_by_module() -> None:
    frame = to_pandas(Run(training_graph(), training_metrics()))
    assert frame.groupby("path")["time_ns"].sum().to_dict() == {"": 25, "fc": 20}
    assert "scope_time_ns" not in frame


@pytest.mark.parametrize(("make", "rows"), [(empty_graph, 0), (one_node_graph, 1)])
def test_small_graphs(make: Callable[[], Graph], rows: int) -> None:
    frame = to_pandas(Run(make(), Metrics()))
    assert len(frame) == rows and "input_shapes" in frame


def test_without_pandas_the_error_holds_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingExtra, match=r"pandas is not installed; run: pip install 'torch-vis\[pandas\]'"
    ):
        to_pandas(Run(training_graph(), Metrics()))
