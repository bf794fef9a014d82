"""The .tvz file: what comes back, how small it is, and what is said about files that are no good."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.kit.graphs import (
    LIMITS,
    META,
    synthetic,
    training_graph,
    training_metrics,
)
from tests.kit.same import assert_same_graph, assert_same_metrics
from tests.kit.trace_files import MAKERS, assert_comes_back, saved_run
from torch_vis.errors import CorruptFile, FileError, GraphError, NewerFile, NotOurFile, UsageError
from torch_vis.graph import Column, Graph, Metrics
from torch_vis.graph.io import tvz
from torch_vis.graph.run import Run

dtypes = st.sampled_from(
    ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4", ">f8"]
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A file that is good."""
    return saved_run(tvz, tmp_path / "run.tvz")


@pytest.mark.parametrize("make", MAKERS)
def test_a_graph_comes_back(tmp_path: Path, make: Callable[[], Graph]) -> None:
    assert_comes_back(tvz, tmp_path / "run.tvz", make)


def test_metrics_come_back_with_what_is_not_known(saved: Path) -> None:
    metrics = tvz.load(saved).metrics
    assert_same_metrics(metrics, training_metrics())
    assert metrics["flops"].uncovered == 1 and metrics["flops"][2] is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(values=dtypes.flatmap(lambda dtype: hnp.arrays(dtype, 5)), known=hnp.arrays(bool, 5))
def test_any_numbers_come_back(tmp_path: Path, values: np.ndarray, known: np.ndarray) -> None:
    metrics = Metrics({"a/b": Column("a/b", values, known=known)})
    tvz.save(tmp_path / "run.tvz", Run(training_graph(), metrics))
    back = tvz.load(tmp_path / "run.tvz").metrics["a/b"]
    assert back.values.dtype == values.dtype
    assert back.values.tobytes() == values.tobytes()
    assert back.uncovered == int((~known).sum())


def test_the_extremes_of_int64_come_back(tmp_path: Path) -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for numbers in ([low, high, 0, low, high], [low, 0, 0, 1, high], [0, 1, 2, 3, high], [low] * 5):
        column = Column("m", np.array(numbers, dtype=np.int64))
        tvz.save(tmp_path / "run.tvz", Run(training_graph(), Metrics({"m": column})))
        assert tvz.load(tmp_path / "run.tvz").metrics["m"].values.tolist() == numbers


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path, saved: Path) -> None:
    again = tmp_path / "again.tvz"
    tvz.save(again, tvz.load(saved))
    assert again.read_bytes() == saved.read_bytes()


def test_an_operation_takes_few_bytes(tmp_path: Path) -> None:
    """At most 40 bytes each, the tables that do not grow with the run included."""
    path = tmp_path / "run.tvz"
    graph, metrics = synthetic(50_000)
    tvz.save(path, Run(graph, metrics, LIMITS, META))
    assert path.stat().st_size / len(graph) <= 40
    loaded = tvz.load(path)
    back, measured = loaded.graph, loaded.metrics
    assert_same_graph(back, graph)
    assert_same_metrics(measured, metrics)


def test_loading_needs_no_torch(saved: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib.util, types\n"
        "package = types.ModuleType('torch_vis'); package.__path__ = [sys.argv[2]]\n"
        "sys.modules['torch_vis'] = package\n"
        "from torch_vis.graph.io import tvz\n"
        "print(len(tvz.load(sys.argv[1]).graph))\n"
    )
    package = Path(tvz.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, saved, package], capture_output=True, text=True, check=True
    )
    assert done.stdout == "5\n"


def test_there_is_no_pickle_in_it(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        assert archive.namelist()[0] == "torch_vis.json"
        assert not any(name.endswith((".pkl", ".npy")) for name in archive.namelist())
        assert json.loads(archive.read("torch_vis.json"))["version"] == tvz.VERSION


def test_what_cannot_be_saved_is_refused_and_the_old_file_stays(saved: Path) -> None:
    graph, before = training_graph(), saved.read_bytes()
    short = Metrics({"m": Column("m", np.zeros(3))})
    with pytest.raises(GraphError, match="metric m has 3 rows where 5 belong"):
        tvz.save(saved, Run(graph, short))
    words = Metrics({"m": Column("m", np.array(["a"] * 5, dtype=object))})
    with pytest.raises(GraphError, match="metric m holds object"):
        tvz.save(saved, Run(graph, words))
    with pytest.raises(GraphError, match="runs along 'edge'"):
        tvz.save(saved, Run(graph, Metrics({"m": Column("m", np.zeros(5), along="edge")})))
    with pytest.raises(UsageError, match="meta cannot be written as JSON"):
        tvz.save(saved, Run(graph, Metrics(), meta={"model": object()}))
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["run.tvz"]


# ---------------------------------------------------------------- bad files


def rewrite(path: Path, **entries: bytes | None) -> None:
    """Replace entries of a good file (``columns__node_call`` for ``columns/node_call``); None leaves one out."""
    changed = {name.replace("__", "/").replace("_json", ".json"): data for name, data in entries.items()}
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**found, **changed}.items():
            if data is not None:
                archive.writestr(name, data)


def header(path: Path) -> dict:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("header.json"))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no such file"):
        tvz.load(tmp_path / "run.tvz")


@pytest.mark.parametrize(
    "data", [b"hello", b"\x89PNG\r\n\x1a\n" + bytes(100), b"PK\x05\x06" + bytes(18), bytes(1000)]
)
def test_a_file_of_another_kind(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tvz").write_bytes(data)
    with pytest.raises(NotOurFile, match=r"x.tvz was not written by torch_vis"):
        tvz.load(tmp_path / "x.tvz")


def test_a_zip_of_another_kind(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.tvz", "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    with pytest.raises(NotOurFile):
        tvz.load(tmp_path / "x.tvz")


def test_a_zip_with_the_marker_of_another_format(saved: Path) -> None:
    rewrite(saved, torch_vis_json=b'{"format": "something else", "version": 1}')
    with pytest.raises(NotOurFile):
        tvz.load(saved)


def test_a_newer_file_names_both_versions_and_the_way_out(saved: Path) -> None:
    rewrite(saved, torch_vis_json=b'{"format": "torch_vis.graph", "version": 99}', header_json=b"??")
    with pytest.raises(
        NewerFile, match=r"version 99, and this torch_vis reads up to version 1; run: pip install --upgrade"
    ):
        tvz.load(saved)


def test_every_truncation_is_told_as_one(saved: Path) -> None:
    data = saved.read_bytes()
    for length in [*range(64), *range(64, len(data), 97), len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(CorruptFile, match="truncated or damaged"):
            tvz.load(saved)


def test_a_flipped_bit_is_told_or_harmless(saved: Path) -> None:
    """Damage in the data is always told; only bits that the zip format itself ignores may pass."""
    data = saved.read_bytes()
    rng = random.Random(0)
    for _ in range(600):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        saved.write_bytes(damaged)
        try:
            run = tvz.load(saved)
            graph, metrics, limits, meta = run.graph, run.metrics, run.limits, run.meta
        except FileError:
            continue
        assert_same_graph(graph, training_graph())
        assert_same_metrics(metrics, training_metrics())
        assert (limits, meta) == (LIMITS, META)


BAD_ENTRIES: list[tuple[dict[str, bytes | None], str]] = [
    ({"columns__node_call": None}, "columns/node_call"),
    ({"columns__node_call": b""}, "columns/node_call has 0 bytes where 5 belong"),
    ({"columns__in_value": bytes(99)}, "columns/in_value has 99 bytes where 6 belong"),
    ({"header_json": None}, "header.json"),
    ({"header_json": b"{"}, "Expecting"),
    ({"header_json": b"[]"}, "damaged"),
    ({"tables_json": b'{"calls": [["aten::t"]]}'}, "damaged"),
    ({"tables_json": b'{"calls": ' + b"[" * 100_000}, "damaged"),
    ({"tables_json": b"\xff\xfe"}, "damaged"),
    ({"torch_vis_json": b"not json"}, "damaged"),
    ({"torch_vis_json": b'{"format": "torch_vis.graph", "version": "1"}'}, "its version number reads '1'"),
]


@pytest.mark.parametrize(("entries", "message"), BAD_ENTRIES)
def test_a_damaged_entry_is_named(saved: Path, entries: dict[str, bytes | None], message: str) -> None:
    rewrite(saved, **entries)
    with pytest.raises(CorruptFile) as caught:
        tvz.load(saved)
    assert message in str(caught.value)


def test_columns_whose_lengths_disagree_are_told(saved: Path) -> None:
    content = header(saved)
    content["columns"]["node_phase"] = {"rows": 4, "stored": "<i1", "steps": False}
    rewrite(saved, header_json=json.dumps(content).encode(), columns__node_phase=bytes(4))
    with pytest.raises(CorruptFile, match="column node_phase has 4 rows where 5 belong"):
        tvz.load(saved)


def test_a_graph_that_breaks_its_rules_is_told_with_the_node(saved: Path) -> None:
    rewrite(saved, columns__node_scope=bytes([1, 1, 0, 9, 0]))
    with pytest.raises(CorruptFile, match=r"node 3 \(aten::sum\): node_scope is 9"):
        tvz.load(saved)


@pytest.mark.parametrize("stored", ["O", "<i3", "<U4", 7, None, "V8"])
def test_an_element_type_that_we_never_write_is_refused(saved: Path, stored: object) -> None:
    content = header(saved)
    content["columns"]["node_phase"]["stored"] = stored
    rewrite(saved, header_json=json.dumps(content).encode())
    with pytest.raises(CorruptFile):
        tvz.load(saved)


def test_a_size_that_the_file_cannot_hold_is_not_unpacked(saved: Path) -> None:
    content = header(saved)
    content["columns"]["node_phase"]["rows"] = 2**50
    rewrite(saved, header_json=json.dumps(content).encode())
    with pytest.raises(CorruptFile, match="node_phase has 5 bytes where 1125899906842624 belong"):
        tvz.load(saved)
