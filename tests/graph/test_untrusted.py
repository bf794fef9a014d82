"""Traces from strangers: what their tables, columns and meta may hold, how much memory they may ask for, and that
whatever is wrong with them is one error that says what and where."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.graphs import linear_chain, training_graph, training_metrics
from tests.kit.same import assert_same_graph
from tests.kit.trace_files import saved_run
from tools.fuzz_files import FAILURES, fuzz
from torch_vis.errors import CorruptFile, FileError
from torch_vis.graph import Column, Metrics
from torch_vis.graph.io import json as json_file
from torch_vis.graph.io import tvz, world
from torch_vis.graph.run import Run
from torch_vis.graph.schema import COLUMNS, Spec

Edit = Callable[[Any], Any]


def entries_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, entries: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


def changed(path: Path, name: str, edit: Edit) -> None:
    """Change one JSON entry of a .tvz, and leave out the sums so that nothing but the change is wrong."""
    entries = entries_of(path)
    document = json.loads(entries[name])
    edit(document)
    entries[name] = json.dumps(document).encode()
    header = json.loads(entries["header.json"])
    header.pop("checksums")
    entries["header.json"] = json.dumps(header).encode()
    write(path, entries)


def types_of(number: int, **fields: Any) -> Edit:
    """Change fields of a tensor type in the tables of a .tvz."""
    places = ("dtype", "shape", "stride", "layout", "conj", "neg", "symbols")

    def edit(tables: Any) -> None:
        for name, value in fields.items():
            tables["types"][number][places.index(name)] = value

    return edit


def test_a_path_of_more_parts_than_any_model_is_refused(tmp_path: Path) -> None:
    for table, column in (("names", None), ("modules", 0)):
        path = saved_run(tvz, tmp_path / "run.tvz")

        def deepen(tables: Any, table: str = table, column: int | None = column) -> None:
            rows = tables[table] if column is None else tables[table][-1]
            rows[column or 0] = "a." * 400_000

        changed(path, "tables.json", deepen)
        with pytest.raises(CorruptFile, match="400,001 parts, and no model is that deep") as caught:
            tvz.load(path)
        assert_short(caught.value, path)


NAN = float("nan")
BAD_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"shape": [NAN, 3]}, "row 0 of types: a size is nan"),
    ({"shape": [None, 3]}, "a size is None"),
    ({"shape": ["2", 3]}, "a size is '2'"),
    ({"shape": [2.0, 3]}, "a size is 2.0"),
    ({"shape": [True, 3]}, "a size is True"),
    ({"shape": [-2, 3]}, "a size is -2"),
    ({"shape": [10**18, 10**18]}, "larger than any memory"),
    ({"shape": [10**30, 3]}, "a size is 10"),
    ({"shape": 5}, "a shape are 5"),
    ({"shape": "23"}, "a shape are '23'"),
    ({"shape": None}, "a shape are None"),
    ({"stride": [3]}, "2 dimensions has 1 strides"),
    ({"stride": [3, -1]}, "a stride is -1"),
    ({"stride": [3, 0.5]}, "a stride is 0.5"),
    ({"stride": [2**62, 1]}, "larger than any memory"),
    ({"dtype": "object"}, "a dtype is 'object'"),
    ({"dtype": "float32\x1b[2J"}, "a dtype is"),
    ({"dtype": "x" * 100_000}, "a dtype is"),
    ({"dtype": 5}, "a dtype is 5"),
    ({"layout": "evil"}, "a layout is 'evil'"),
    ({"layout": None}, "a layout is None"),
    ({"conj": 1}, "conj and neg are 1 and False"),
    ({"shape": [1] * 2000, "stride": [1] * 2000}, "a shape has 2,000 dimensions"),
    ({"symbols": ["a"]}, "2 dimensions has 1 open sizes"),
    ({"symbols": [1, 2]}, "an open size is 1"),
    ({"shape": [2, 30]}, "value 0 reaches beyond its storage"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_TYPES)
def test_a_tensor_type_that_cannot_be_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    path = saved_run(tvz, tmp_path / "run.tvz")
    changed(path, "tables.json", types_of(0, **fields))
    with pytest.raises(CorruptFile, match=message) as caught:
        tvz.load(path)
    assert_short(caught.value, path)
    path = saved_run(json_file, tmp_path / "run.json")
    document = json.loads(path.read_text())
    document["types"][0].update(fields)
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match=message) as caught:
        json_file.load(path)
    assert_short(caught.value, path)


def assert_short(error: Exception, path: Path) -> None:
    """A message is one line of text, however long what it is about."""
    assert len(str(error)) < 300 + len(str(path)) and str(error).isprintable()


def put(*path: Any, to: Any) -> Edit:
    def edit(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return edit


DEEP: list[Any] = []
for _ in range(150):
    DEEP = [DEEP]

BAD_TABLES: list[tuple[Edit, str]] = [
    (put("calls", 0, 0, to=5), "row 0 of calls: an operator is 5"),
    (put("calls", 0, 1, to={"tensor": 0}), "arguments are"),
    (put("calls", 0, 1, to=[{"tensor": True}]), "the number of a tensor is True"),
    (put("calls", 0, 1, to=[{"tensor": -1}]), "the number of a tensor is -1"),
    (put("calls", 0, 1, to=[{"tensor": 0, "dtype": "x"}]), "too many values"),
    (put("calls", 0, 1, to=[{"float": "x" * 10_000}]), "could not convert"),
    (put("calls", 0, 1, to=[{"dtype": 3}]), "an argument that is a 'dtype' is 3"),
    (put("calls", 0, 1, to=DEEP), "nested more than 100"),
    (put("calls", 0, 1, to=[10**400]), "an argument is 10"),
    (put("calls", 0, 2, to=[["a", 1], ["a", 2]]), "a keyword stands twice"),
    (put("calls", 0, 2, to=[[1, 2]]), "a keyword is 1"),
    (put("calls", 0, to=[]), "row 0 of calls: not enough values"),
    (put("sites", 0, 1, to="5"), "row 0 of sites: the number of a line is '5'"),
    (put("sites", 0, 1, to=True), "the number of a line is True"),
    (put("sites", 0, 1, to=-3), "the number of a line is -3"),
    (put("sites", 0, 0, to=None), "a source file is None"),
    (put("modules", 1, 0, to=7), "row 1 of modules: the path of a module is 7"),
    (put("modules", 1, 2, to="evil"), "the kind of a module is 'evil'"),
    (put("names", 0, to=3), "row 0 of names: a name is 3"),
    (put("devices", 0, to=None), "row 0 of devices: a device is None"),
    (put("results", 0, 1, to="evil"), "row 0 of results: the kind of a result is 'evil'"),
    (put("names", to={}), "Expecting"),
    (put("more", to=[]), "there is no such table"),
]


@pytest.mark.parametrize(("edit", "message"), BAD_TABLES)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, edit: Edit, message: str) -> None:
    path = saved_run(tvz, tmp_path / "run.tvz")
    changed(path, "tables.json", edit)
    with pytest.raises(CorruptFile, match=message) as caught:
        tvz.load(path)
    assert_short(caught.value, path)


def test_sizes_that_no_machine_has_are_summed_all_the_same(tmp_path: Path) -> None:
    from torch_vis import load

    path = saved_run(json_file, tmp_path / "run.json")
    document = json.loads(path.read_text())
    # their sum with what was there before goes round, and the rest is no number of 64 bits
    document["nodes"][0]["metrics"]["alloc_bytes"] = 2**63 - 1
    document["nodes"][0]["metrics"]["live_bytes"] = 2**63 - 1
    document["checksum"] = None
    path.write_text(json.dumps(document))
    run = load(path)
    assert str(run.memory()) and run.memory().to_dict()


EAGER = {"op": "aten::item", "times": 1, "file": "net.py", "line": 3}
BREAK = {
    "reason": "r", "explanation": "e", "hints": [], "id": "", "file": "net.py", "line": 3, "function": "f", "code": "",
}  # fmt: skip
KERNELS = {
    "names": ["gemm"], "kernel_name": [0], "kernel_node": [3], "kernel_start_ns": [10], "kernel_time_ns": [5],
    "kernel_device": [0], "kernel_stream": [7], "wait_name": [], "wait_node": [], "wait_start_ns": [],
    "wait_time_ns": [],
}  # fmt: skip
BAD_META: list[tuple[dict[str, Any], str]] = [
    ({"devices": 5}, "meta.devices is 5, and no list"),
    ({"devices": "cpu"}, "meta.devices is 'cpu'"),
    ({"devices": [None]}, r"meta.devices\[0\] is None"),
    ({"model": ["a"]}, "meta.model is"),
    ({"wall_ns": NAN}, "meta.wall_ns is nan"),
    ({"wall_ns": -1}, "meta.wall_ns is -1"),
    ({"wall_ns": 2**63}, "meta.wall_ns is 9"),
    ({"wall_ns": True}, "meta.wall_ns is True"),
    ({"threads": "many"}, "meta.threads is 'many'"),
    ({"repeat": 1.5}, "meta.repeat is 1.5"),
    ({"plain_wall_ns": 5}, "without its quartiles"),
    ({"unused_parameters": ["a"]}, "meta.unused_parameters is"),
    ({"unused_parameters": {"a": "b"}}, "meta.unused_parameters.'a' is 'b'"),
    ({"executions": 5}, "meta.executions is 5"),
    ({"executions": {"plain": "often"}}, "meta.executions.'plain' is 'often'"),
    ({"zeroed_at": [1.5]}, r"meta.zeroed_at\[0\] is 1.5"),
    ({"program": 3}, "meta.program is 3"),
    ({"program": {"partitions": [1.5]}}, r"meta.program.partitions\[0\] is 1.5"),
    ({"program": {"via": 3}}, "meta.program.via is 3"),
    ({"program": {"breaks": [{}]}}, r"meta.program.breaks\[0\].reason is None"),
    ({"program": {"breaks": [{**BREAK, "partitions": [2]}], "partitions": [1, 1]}}, "partitions is 2"),
    ({"program": {"lost": [{**EAGER, "more": 1}]}}, "has the fields"),
    ({"program": {"ranges": {"s0": 3}}}, "meta.program.ranges.'s0' is 3"),
    ({"program": {"recompilations": [{"function": "f"}]}}, "recompilations"),
    ({"device_time": {}}, "meta.device_time.names is None"),
    ({"device_time": {**KERNELS, "kernel_name": [1]}}, "kernel_name is 1"),
    ({"device_time": {**KERNELS, "kernel_node": [5]}}, "kernel_node is 5"),
    ({"device_time": {**KERNELS, "kernel_time_ns": [1, 2]}}, r"the columns kernel of meta.device_time"),
    ({"device_time": {**KERNELS, "kernel_start_ns": ["x"]}}, "kernel_start_ns is 'x'"),
]


@pytest.mark.parametrize("format_", [tvz, json_file])
@pytest.mark.parametrize(("fields", "message"), BAD_META)
def test_meta_that_would_break_a_view_is_refused(
    tmp_path: Path, format_: Any, fields: dict[str, Any], message: str
) -> None:
    path = saved_run(format_, tmp_path / "run")
    if format_ is tvz:
        changed(path, "header.json", lambda header: header["meta"].update(fields))
    else:
        document = json.loads(path.read_text())
        document["meta"].update(fields)
        path.write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match=message) as caught:
        format_.load(path)
    assert_short(caught.value, path)


def test_meta_of_one_s_own_may_be_anything(tmp_path: Path) -> None:
    meta = {
        "mine": [1, None, {"a": 1.5}],
        "program": {"breaks": [BREAK], "lost": [EAGER]},
        "device_time": KERNELS,
    }
    for format_ in (tvz, json_file):
        format_.save(tmp_path / "run", Run(training_graph(), Metrics(), meta=meta))
        assert format_.load(tmp_path / "run").meta == meta


BAD_CELLS: list[tuple[Edit, str]] = [
    (put("values", 3, "offset", to=-5), "value 3 begins before its storage"),
    (put("values", 3, "offset", to=2**63 - 1), "value 3 reaches beyond its storage"),
    (put("values", 3, "offset", to=1), "value 3 reaches beyond its storage"),
    (put("values", 3, "offset", to=0.0), "value_offset of values from 0 on has 0.0"),
    (put("nodes", 1, "inputs", 0, to=1.7), "in_value of nodes from 0 on has 1.7"),
    (put("nodes", 1, "inputs", 0, to="1"), "in_value of nodes from 0 on has '1'"),
    (put("nodes", 1, "inputs", 0, to=True), "in_value of nodes from 0 on has True"),
    (put("nodes", 1, "call", to=None), "node_call of nodes from 0 on has None"),
    (put("nodes", 1, "scope", to=2**40), "node_scope has numbers below"),
    (put("nodes", 1, "inputs", to="ab"), "inputs is 'ab'"),
    (put("nodes", 1, "flags", to="view"), "flags is 'view'"),
    (put("nodes", 1, "phase", to=["forward"]), "unhashable"),
    (put("nodes", 1, "metrics", "time_ns", to="15"), "metric time_ns of node 1 is '15'"),
    (put("nodes", 1, "metrics", "time_ns", to=True), "metric time_ns of node 1 is True"),
    (put("nodes", 1, "metrics", "time_ns", to=1.5), "metric time_ns of node 1 is 1.5"),
    (put("nodes", 1, "metrics", "time_ns", to=2**70), "metric time_ns has numbers that are no int64"),
    (put("nodes", 1, "metrics", "grad_norm", to="infinite"), "metric grad_norm of node 1 is 'infinite'"),
    (put("storages", 0, "bytes", to=2**63 - 1), "which no machine has"),
    (put("scopes", 1, "call", to=-1), "scope 1 has a negative number"),
    (put("limits", to="ab"), "limits are no list"),
    (put("limits", to=[5]), "a limit is a int without a text"),
    (put("limits", to=[{"text": "a", "kind": 3}]), "the kind or the site of a limit"),
    (put("meta", to=[]), "meta is no object"),
    (put("types", 0, "id", to=True), "types has the id True in place 0"),
    (put("metrics", 0, "dtype", to=["int64"]), "a metric is"),
    (put("metrics", 0, "along", to="edge"), "metric start_ns runs along 'edge'"),
]


@pytest.mark.parametrize(("edit", "message"), BAD_CELLS)
def test_a_number_that_cannot_be_is_refused(tmp_path: Path, edit: Edit, message: str) -> None:
    path = saved_run(json_file, tmp_path / "run.json")
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match=message) as caught:
        json_file.load(path)
    assert_short(caught.value, path)


HEADERS: list[tuple[Edit, str]] = [
    (put("columns", "node_phase", "rows", to=True), "cannot have True rows"),
    (put("columns", "node_phase", "rows", to=-5), "cannot have -5 rows"),
    (put("columns", "node_phase", "stored", to="<f4"), "bytes where 20 belong"),
    (put("columns", "node_phase", "steps", to=None), "cannot have 5 rows"),
    (put("columns", to=[]), "columns of the header is"),
    (put("metrics", to={}), "metrics of the header is"),
    (put("metrics", 0, "dtype", to="O"), "metric start_ns is of type 'O'"),
    (put("metrics", 0, "dtype", to="V8"), "metric start_ns is of type"),
    (put("metrics", 0, "dtype", to="<f8"), "cannot be float64"),
    (put("metrics", 0, "along", to="edge"), "rows along 'edge'"),
    (put("metrics", 0, "name", to=None), "name of the header is None"),
    (put("limits", to=None), "limits of the header is None"),
    (put("meta", to=None), "meta of the header is None"),
]


@pytest.mark.parametrize(("edit", "message"), HEADERS)
def test_a_header_that_cannot_be_is_refused(tmp_path: Path, edit: Edit, message: str) -> None:
    path = saved_run(tvz, tmp_path / "run.tvz")
    changed(path, "header.json", edit)
    with pytest.raises(CorruptFile, match=message):
        tvz.load(path)


def test_numbers_that_a_column_cannot_hold_are_refused(tmp_path: Path) -> None:
    path = saved_run(tvz, tmp_path / "run.tvz")
    entries = entries_of(path)
    entries["columns/node_scope"] = (
        np.array([1, 1, 0, 2**32, 0], dtype="<i8").view(np.uint8).reshape(5, 8).T.tobytes()
    )
    write(path, entries)
    changed(path, "header.json", put("columns", "node_scope", "stored", to="<i8"))
    with pytest.raises(CorruptFile, match="columns/node_scope has numbers that are no int32"):
        tvz.load(path)


# ---------------------------------------------------------------- nothing loads as other data


def test_a_changed_digit_in_json_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = saved_run(json_file, tmp_path / "run.json")
    text = path.read_text()
    for old, new in (
        ('"time_ns":15', '"time_ns":16'),
        ('"line":5', '"line":6'),
        ('"shape":[4,3]', '"shape":[2,3]'),
    ):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(CorruptFile, match="checksum"):
            json_file.load(path)


def test_a_file_that_was_changed_on_purpose_loads_without_its_checksum(tmp_path: Path) -> None:
    path = saved_run(json_file, tmp_path / "run.json")
    document = json.loads(path.read_text())
    document["meta"]["model"] = "Mine"
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match="make that null"):
        json_file.load(path)
    for gone in (document | {"checksum": None}, {k: v for k, v in document.items() if k != "checksum"}):
        path.write_text(json.dumps(gone))
        assert json_file.load(path).meta["model"] == "Mine"


def test_an_entry_of_another_file_is_found(tmp_path: Path) -> None:
    """Each entry is intact, and both are of the same form."""
    path, other = tmp_path / "run.tvz", tmp_path / "other.tvz"
    for target, ops in ((path, ["aten::relu", "aten::exp"]), (other, ["aten::exp", "aten::relu"])):
        tvz.save(target, Run(linear_chain(ops), Metrics()))
    entries = entries_of(path)
    entries["tables.json"] = entries_of(other)["tables.json"]
    write(path, entries)
    with pytest.raises(CorruptFile, match=r"tables.json is not the one that was saved"):
        tvz.load(path)


def test_two_files_in_one_are_not_read_as_the_second(tmp_path: Path) -> None:
    path = saved_run(tvz, tmp_path / "run.tvz")
    other = tmp_path / "other.tvz"
    tvz.save(other, Run(linear_chain(["aten::relu"]), Metrics()))
    path.write_bytes(path.read_bytes() + other.read_bytes())
    with pytest.raises(CorruptFile, match="begins with something else"):
        tvz.load(path)


# ---------------------------------------------------------------- memory


def peak_of(load: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        load()
    except FileError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def blanks(entries: dict[str, bytes]) -> None:
    entries["header.json"] = b" " * 100_000_000 + entries["header.json"]


def zeros(entries: dict[str, bytes]) -> None:
    header = json.loads(entries["header.json"])
    header["columns"]["node_call"] = {"rows": 300_000_000, "stored": "<i1", "steps": False}
    entries["columns/node_call"] = bytes(300_000_000)
    entries["header.json"] = json.dumps(header).encode()


def all_zeros(entries: dict[str, bytes]) -> None:
    """Every column along nodes, so that they agree."""
    header = json.loads(entries["header.json"])
    for name, spec in COLUMNS.items():
        if spec.along in ("node", "node+1"):
            rows = 3_000_000 + (spec.along == "node+1")
            header["columns"][name] = {"rows": rows, "stored": "<i1", "steps": False}
            entries[f"columns/{name}"] = bytes(rows)
    header["metrics"] = []
    entries["header.json"] = json.dumps(header).encode()


def many_names(entries: dict[str, bytes]) -> None:
    tables = json.loads(entries["tables.json"])
    tables["names"] += ["ab"] * 2_000_000
    entries["tables.json"] = json.dumps(tables).encode()


def large_meta(entries: dict[str, bytes]) -> None:
    entries["header.json"] = entries["header.json"].replace(
        b'"meta":{', b'"meta":{"x":[' + b"[]," * 3_000_000 + b"0],"
    )


def lying(entries: dict[str, bytes]) -> None:
    """Nothing: the sizes in the directory are made to lie afterwards."""
    entries["header.json"] = entries["header.json"] + b" " * 100_000_000


@pytest.mark.parametrize("make", [blanks, zeros, all_zeros, many_names, large_meta, lying])
def test_a_bomb_takes_no_more_memory_than_its_size_allows(tmp_path: Path, make: Any) -> None:
    path = saved_run(tvz, tmp_path / "run.tvz")
    entries = entries_of(path)
    make(entries)
    write(path, entries)
    if make is lying:
        data = bytearray(path.read_bytes())
        at = data.rfind(b"header.json") - 46
        data[at + 24 : at + 28] = (2000).to_bytes(4, "little")
        path.write_bytes(data)
    with pytest.raises(CorruptFile):
        tvz.load(path)
    assert peak_of(lambda: tvz.load(path)) <= tvz.allowed(path.stat().st_size)


@pytest.mark.parametrize("inside", ["[]", "{}", '{"":0}', '"ab"', "[[[[]]]]", "[0]"])
@pytest.mark.parametrize("field", ["meta", "args", "limits", "unknown"])
def test_a_json_file_takes_no_more_than_twenty_times_its_size(
    tmp_path: Path, inside: str, field: str
) -> None:
    path = saved_run(json_file, tmp_path / "run.json")
    text, many = path.read_text(), ",".join([inside] * 300_000)
    place = {
        "meta": ('"meta":{', f'"meta":{{"x":[{many}],'),
        "args": ('"args":[', f'"args":[{many},'),
        "limits": ('"limits":[', f'"limits":[{many},'),
        "unknown": ('"meta":', f'"x":[{many}],"meta":'),
    }[field]
    path.write_text(text.replace(*place, 1))
    assert peak_of(lambda: json_file.load(path)) <= max(20 * path.stat().st_size, 16 << 20)


def long_run(count: int) -> Run:
    """A run whose columns compress a thousand times."""
    graph = linear_chain(["aten::relu"] * 2)
    columns: dict[str, Any] = {}
    for name, spec in COLUMNS.items():
        if spec.along in ("node", "node+1"):
            columns[name] = np.resize(getattr(graph, name), count + (spec.along == "node+1"))
    columns["node_call"][:] = 0
    columns["in_start"] = columns["out_start"] = np.minimum(np.arange(count + 1), 2)
    columns["storage_death"] = np.full(len(graph.storage_bytes), count + 1)
    long = graph.replaced(**columns)
    calls = (graph.calls[0], graph.calls[0]._replace(args=()))
    long = long.replaced(calls=calls, node_call=np.minimum(np.arange(count) // 2, 1))
    return Run(long, Metrics({"time_ns": Column("time_ns", np.zeros(count, dtype=np.int64))}))


def test_a_regular_run_of_any_length_loads(tmp_path: Path) -> None:
    """Such a file is padded, so that it is no bomb."""
    path, run = tmp_path / "run.tvz", long_run(400_000)
    tvz.save(path, run)
    loaded: list[Run] = []
    assert peak_of(lambda: loaded.append(tvz.load(path))) <= 20 * path.stat().st_size
    assert_same_graph(loaded[0].graph, run.graph)
    assert "padding" in entries_of(path)


def test_a_regular_run_of_any_length_loads_as_one_of_several_ranks(tmp_path: Path) -> None:
    path, run = tmp_path / "run.tvz", long_run(400_000)
    world.save(path, {0: run, 1: run}, {}, {})
    assert_same_graph(world.WorldFile(path).run(1).graph, run.graph)


def of_one_blob(index: Any) -> None:
    """A rank of which one field is made of the same blob many times."""
    entries = index["ranks"][0]["entries"]
    entries["columns/node_call"] = [["x", 0] for _ in range(300_000)]


def of_many_names(index: Any) -> None:
    entries = index["ranks"][0]["entries"]
    entries.update((f"columns/{number}", 0) for number in range(300_000))


def with_many_facts(index: Any) -> None:
    index["facts"]["x"] = [[] for _ in range(600_000)]


@pytest.mark.parametrize("make", [of_one_blob, of_many_names, with_many_facts])
def test_ranks_in_one_file_take_no_more_memory_than_its_size_allows(
    tmp_path: Path, make: Callable[[Any], None]
) -> None:
    path = tmp_path / "run.tvz"
    world.save(path, {0: Run(training_graph(), training_metrics())}, {}, {})
    entries = entries_of(path)
    index = json.loads(entries[world.INDEX])
    make(index)
    entries[world.INDEX] = json.dumps(index).encode()
    entries["blobs/0"] = bytes(2000)
    write(path, entries)
    with pytest.raises(CorruptFile):
        world.WorldFile(path).run(0)
    # and the numbers of the blobs, as JSON has them
    most = tvz.allowed(path.stat().st_size) + world.INDEX_BYTES
    assert peak_of(lambda: world.WorldFile(path).run(0)) <= most + len(entries[world.INDEX])


def test_a_job_of_many_ranks_loads(tmp_path: Path) -> None:
    path = tmp_path / "run.tvz"
    copies = {rank: (0, {"rank": rank, "coordinates": {"dp": rank}}) for rank in range(1, 40_000)}
    world.save(path, {0: Run(training_graph(), training_metrics())}, copies, {})
    assert len(world.WorldFile(path).ranks) == 40_000


def test_what_asks_for_more_than_its_size_loads_if_it_is_trusted(tmp_path: Path) -> None:
    """A file of an earlier version, which was not padded."""
    path = saved_run(tvz, tmp_path / "run.tvz")
    entries = entries_of(path)
    header = json.loads(entries["header.json"])
    header["meta"]["note"] = "x" * 4_000_000
    entries["header.json"] = json.dumps(header).encode()
    write(path, entries)
    with pytest.raises(CorruptFile, match=r"may take 16 MiB; a trace of an earlier version .* --trust"):
        tvz.load(path)
    assert_same_graph(tvz.load(path, trust=True).graph, training_graph())


# ---------------------------------------------------------------- older files

FIRST_COLUMNS = 30


def test_a_file_from_before_a_column_loads_with_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved_run(tvz, tmp_path / "run.tvz")
    as_json = saved_run(json_file, tmp_path / "run.json")
    monkeypatch.setitem(COLUMNS, "node_rank", Spec(np.int16, "node", default=-1))
    for run in (tvz.load(path), json_file.load(as_json)):
        assert run.graph.__dict__["node_rank"].tolist() == [-1] * 5
    ranked = training_graph().replaced(node_rank=np.arange(5, dtype=np.int16))
    tvz.save(path, Run(ranked, training_metrics()))
    assert tvz.load(path).graph.__dict__["node_rank"].tolist() == [0, 1, 2, 3, 4]


def test_every_column_that_came_later_has_a_default() -> None:
    assert all(spec.default is not None for spec in list(COLUMNS.values())[FIRST_COLUMNS:])


@pytest.mark.parametrize("kind", ["tvz", "json"])
def test_damaged_files_are_told_or_harmless(kind: str) -> None:
    """A little of what ``tools/fuzz_files.py`` does."""
    figures = fuzz(kind, 150)
    assert [figures.counts[name] for name in FAILURES] == [0, 0, 0], figures.failures
