"""Files that would run code while they are read: without trust none does, and what they hold is listed all the same."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.kit.forking import Server
from torch_vis.errors import TorchVisError
from torch_vis.interfaces.explorer.archives import Global, NotUnderstood, PickledCall, read_pickle, strided
from torch_vis.interfaces.explorer.explorer import source_of
from torch_vis.interfaces.explorer.weight_files import compare_weights

COMMANDS = (["summary"], ["explore", "--json"], ["compare", "self"], ["show"])


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


class Restoring(torch.nn.Module):
    """Writes a file when TorchScript loads it."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.marker = marker

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, str, bool]:
        return self.weight, self.marker, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, str, bool]) -> None:
        written = torch.from_file(state[1], True, 4, dtype=torch.float32)
        written.copy_(state[0])
        self.weight = written
        self.marker = state[1]
        self.training = state[2]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("untrusted"))
    yield server
    server.close()


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.BatchNorm1d(3)).eval()


def saved(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


@functools.cache
def exported() -> bytes:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(net(), (torch.ones(2, 4),)), buffer)
    return buffer.getvalue()


def scripted(model: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model), buffer)
    return buffer.getvalue()


def changed(data: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """An archive whose records are replaced."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(buffer, "w") as after:
        for entry in before.infolist():
            after.writestr(entry.filename, change(entry.filename, before.read(entry)))
    return buffer.getvalue()


def replaced(data: bytes, part: str, new: bytes) -> bytes:
    return changed(data, lambda name, old: new if part in name else old)


def pickled_weight(marker: str) -> bytes:
    """An exported program one of whose weights is said to be a pickle."""
    evil = replaced(exported(), "weights/weight_0", saved(Runs(marker)))

    def say(name: str, old: bytes) -> bytes:
        if not name.endswith("weights_config.json"):
            return old
        table = json.loads(old)
        for payload in table["config"].values():
            payload["use_pickle"] = payload["path_name"] == "weight_0"
        return json.dumps(table).encode()

    return changed(evil, say)


def custom_object(marker: str) -> bytes:
    """An exported program with a constant that is no tensor."""
    payload = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    evil = replaced(exported(), "constants_config.json", json.dumps({"config": {"thing": payload}}).encode())
    buffer = io.BytesIO(evil)
    with zipfile.ZipFile(buffer, "a") as archive:
        folder = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{folder}/data/constants/opaque_obj_0", pickle.dumps(Runs(marker)))
    return buffer.getvalue()


def instance(marker: str) -> bytes:
    """A pickle that calls by the oldest instruction there is, which needs no REDUCE."""
    return b"(S" + repr(marker).encode() + b"\nios\nmkdir\n."


def legacy_tar(marker: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:") as archive:
        for name in ("storages", "tensors", "pickle"):
            data = pickle.dumps(Runs(marker))
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def package(marker: str) -> bytes:
    from torch.package import PackageExporter

    buffer = io.BytesIO()
    with PackageExporter(buffer) as archive:
        archive.save_source_string("evil", f"import os\nos.mkdir({marker!r})\n")
        archive.save_pickle("model", "model.pkl", {"a": 1})
    return buffer.getvalue()


PICKLES: dict[str, Callable[[str], bytes]] = {
    "torch.save": lambda marker: saved({"a": torch.ones(1), "b": Runs(marker)}),
    "torch.save, legacy": lambda m: saved({"b": Runs(m)}, _use_new_zipfile_serialization=False),
    "protocol 4": lambda marker: pickle.dumps(Runs(marker), protocol=4),
    "tar": legacy_tar,
    "package": package,
}
PROGRAMS: dict[str, Callable[[str], bytes]] = {
    "exported, sample inputs": lambda m: replaced(exported(), "sample_inputs", saved({"x": Runs(m)})),
    "exported, pickled weight": pickled_weight,
    "exported, custom object": custom_object,
    "scripted, __setstate__": lambda marker: scripted(Restoring(marker)),
    "scripted, data.pkl": lambda m: replaced(scripted(net()), "/data.pkl", pickle.dumps(Runs(m), 2)),
    "scripted, INST": lambda m: replaced(scripted(net()), "/data.pkl", instance(m)),
    "scripted, constants.pkl": lambda m: replaced(
        scripted(net()), "/constants.pkl", pickle.dumps(Runs(m), 2)
    ),
    "scripted, debug_pkl": lambda m: replaced(scripted(net()), ".debug_pkl", pickle.dumps(Runs(m), 2)),
}
LISTED = {
    "exported, sample inputs",
    "exported, custom object",
    "scripted, __setstate__",
    "scripted, constants.pkl",
    "scripted, debug_pkl",
}
RENAMED = ("pt", "pth", "bin", "ckpt", "pkl", "pt2")
OTHERS = ("onnx", "safetensors", "json", "tvz")
CASES = [
    *((name, ending) for name in PROGRAMS for ending in ("pt", "pt2")),
    *(
        (name, ending)
        for name in ("exported, sample inputs", "scripted, __setstate__")
        for ending in RENAMED[1:5]
    ),
    *((name, ending) for name in ("exported, sample inputs", "scripted, __setstate__") for ending in OTHERS),
    *((name, ending) for name in PICKLES for ending in ("pt", "pt2")),
    *(("torch.save", ending) for ending in (*RENAMED[1:5], *OTHERS)),
]


@pytest.mark.parametrize(("name", "ending"), CASES, ids=[f"{name}, .{ending}" for name, ending in CASES])
def test_no_code_of_a_file_runs_without_trust(cli: Server, tmp_path: Path, name: str, ending: str) -> None:
    marker, path = tmp_path / "marker", tmp_path / f"file.{ending}"
    path.write_bytes({**PROGRAMS, **PICKLES}[name](str(marker)))
    is_listed = name in LISTED and ending in RENAMED
    for command, *more in COMMANDS if ending in ("pt", "pt2") else COMMANDS[:1]:
        words = [str(path), str(path)] if more == ["self"] else [str(path), *more]
        done = cli(command, *words)
        assert not marker.exists(), (command, more)
        assert done.code in (0, 2) and "Traceback" not in done.err, done.err
        if is_listed and command != "show":
            assert done.code == 0, done.err
            assert command == "compare" or "float32" in done.out
        else:
            assert done.code == 2 and len((done.err or done.out).strip().splitlines()) == 1, done.err
    try:
        source = source_of(path)
        assert is_listed and any("param" in fact for fact in source.facts)
        for row in range(len(source.forest)):
            source.details(row), source.figures(row), source.histograms(row), source.source_code(row)
    except TorchVisError as error:
        reasons = ("trust=True", "cannot read", "was not written by torch_vis")
        assert not is_listed and any(reason in str(error) for reason in reasons)
        assert "\n" not in str(error)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["torch.save", "exported, sample inputs", "scripted, __setstate__"])
def test_the_attacks_are_real(cli: Server, tmp_path: Path, name: str) -> None:
    """With trust the same files do run their code, so the tests above can fail."""
    marker = tmp_path / "marker"
    path = tmp_path / ("file.pt2" if name.startswith("exported") else "file.pt")
    path.write_bytes({**PROGRAMS, **PICKLES}[name](str(marker)))
    cli("summary", str(path), "--trust")
    assert marker.exists()


def test_no_code_runs_in_a_program_that_opens_files(tmp_path: Path) -> None:
    """In a new interpreter, whose logging does not raise as that of the tests does."""
    marker, code = (
        tmp_path / "marker",
        "import sys\nfrom torch_vis.interfaces.explorer.explorer import source_of\n",
    )
    for name in ("exported, sample inputs", "scripted, __setstate__"):
        path = tmp_path / ("file.pt2" if name.startswith("exported") else "file.pt")
        path.write_bytes(PROGRAMS[name](str(marker)))
        code += f"assert len(source_of({str(path)!r}).forest)\n"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not marker.exists()


def test_what_needs_trust_names_it_in_one_line(cli: Server, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(PROGRAMS["scripted, INST"](str(tmp_path / "marker")))
    done = cli("summary", str(path))
    assert done.code == 2 and done.err.rstrip().endswith("add --trust") and "TorchScript writes" in done.err
    assert done.err.count("\n") == 1


def test_what_would_restore_itself_is_listed_as_the_file_has_it(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(scripted(Restoring(str(tmp_path / "marker"))))
    source = source_of(tmp_path / "a.pt")
    assert any("1 module not restored" in fact for fact in source.facts)
    assert [(one.name, one.shape) for one in source.details(0).tensors] == [("state_0", (4,))]


class Tied(torch.nn.Module):
    """Tied and unused tensors, views, a plain tensor, a list and a parameter that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 3)
        self.b = torch.nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.narrow = torch.nn.Linear(3, 3).half()
        self.frozen = torch.nn.Linear(3, 2).requires_grad_(False)
        self.rest = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Conv2d(1, 2, 3)])
        self.register_buffer("turned", torch.arange(6.0).view(3, 2).t())
        self.register_buffer("unsaved", torch.zeros(3), persistent=False)
        self.register_buffer("scalar", torch.tensor(3))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_parameter("none", None)
        self.plain, self.numbers, self.words = torch.ones(5), [1, 2], {"x": 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            self.frozen(self.rest[0](self.b(self.a(x))))
            + self.scalar
            + self.turned.sum()
            + self.unsaved.sum()
        )


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[Any, ...]]] = {
    "small": (net, (torch.ones(2, 4),)),
    "tied": (Tied, (torch.ones(2, 3),)),
    "transformer": (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16).eval(), (torch.ones(2, 3, 8),)),
    "lstm": (lambda: torch.nn.LSTM(3, 4, 2), (torch.ones(2, 3, 3),)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["script", "trace", "export"])
@pytest.mark.parametrize("name", MODELS)
def test_a_listing_without_trust_is_that_with_it(tmp_path: Path, name: str, form: str) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model, path = make(), tmp_path / ("a.pt2" if form == "export" else "a.pt")
    if form == "export":
        torch.export.save(torch.export.export(model, inputs), path)
    elif form == "script":
        torch.jit.script(model).save(path)
    else:
        torch.jit.trace(model, inputs, check_trace=False).save(path)
    safe, trusted = source_of(path), source_of(path, trust=True)
    assert rows(safe) == rows(trusted) and safe.facts == trusted.facts and safe.title == trusted.title
    assert compare_weights(safe, trusted).same
    assert {*model.state_dict(), "unsaved"} >= {pair.name for pair in compare_weights(safe, trusted).pairs}


def rows(source: Any) -> list[Any]:
    forest = source.forest
    columns = ("params", "trainable", "bytes", "buffer_bytes")
    figures = [[int(forest.numbers[column][row]) for column in columns] for row in range(len(forest))]
    tensors = [
        sorted((one.name, one.role, one.shape, one.dtype) for one in source.details(row).tensors)
        for row in range(len(forest))
    ]
    return sorted(zip(forest.paths, forest.types, figures, tensors, strict=True), key=lambda row: row[0])


def test_a_renamed_file_is_read_by_what_is_in_it(tmp_path: Path) -> None:
    for name, data in (("a.pth", exported()), ("b.bin", scripted(net())), ("c.pt2", scripted(net()))):
        (tmp_path / name).write_bytes(data)
        assert int(source_of(tmp_path / name).forest.numbers["params"][0]) == 21


# what a hostile archive says of itself


def test_a_pickle_is_read_without_calling_anything(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    value = read_pickle(pickle.dumps({"a": [Runs(str(marker)), (1, None, 2.5)]}, protocol=2))
    call = value["a"][0]
    assert (
        isinstance(call, PickledCall)
        and call.function == Global("posix", "mkdir")
        and call.args == (str(marker),)
    )
    assert value["a"][1] == (1, None, 2.5) and not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02.",
        b"\x80\x02]\x86.",
        b"\x80\x02h\x05.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02K\x01}b.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"cos\nsystem\n(S'x'\no.",
        b"\x80\x02\x82\x01.",
        b"Pos\n.",
        b"\x80\x02})" + b"\x85" * 1_000_000 + b"K\x01s.",
    ],
)
def test_instructions_that_make_no_sense_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError, KeyError)):
        read_pickle(data)


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [
        ([4], [1], 1),
        ([2, 2], [3, 1], 0),
        ([1], [1], 4),
        ([1], [1], -1),
        ([4], [-1], 3),
        ([2**62, 2**62], [0, 0], 0),
        ([2**61], [0], 0),
        ([2**30], [0], 0),
        ([2], [2**63], 0),
        ([4], [1, 1], 0),
        ([1.0], [1], 0),
        (["4"], [1], 0),
        ([True], [1], 0),
        ([0, 2**63], [1, 1], 0),
    ],
)
def test_a_tensor_stays_inside_its_storage(shape: Any, stride: Any, offset: Any) -> None:
    with pytest.raises(NotUnderstood):
        strided(torch.zeros(4), shape, stride, offset)


def test_expanded_and_empty_tensors_are_inside() -> None:
    assert strided(torch.ones(1), [3, 4], [0, 0], 0).sum() == 12
    assert strided(torch.ones(0), [0, 4], [4, 1], 7).shape == (0, 4)
    assert strided(torch.ones(4), [], [], 3).shape == ()


def config(change: Callable[[dict[str, Any]], None]) -> bytes:
    """An exported program with another table of weights."""

    def say(name: str, old: bytes) -> bytes:
        if not name.endswith("weights_config.json"):
            return old
        table = json.loads(old)
        change(table["config"])
        return json.dumps(table).encode()

    return changed(exported(), say)


def huge(payloads: dict[str, Any]) -> None:
    payloads["0.weight"]["tensor_meta"]["sizes"] = [{"as_int": 10**9}, {"as_int": 10**3}]


def outside(payloads: dict[str, Any]) -> None:
    payloads["0.weight"]["path_name"] = "../../../../etc/passwd"


def absolute(payloads: dict[str, Any]) -> None:
    payloads["0.weight"]["path_name"] = "/etc/passwd"


def odd(payloads: dict[str, Any]) -> None:
    payloads["0.weight"]["tensor_meta"] = {"dtype": [1]}


def deep(payloads: dict[str, Any]) -> None:
    payloads["a." * 5000 + "w"] = payloads["0.weight"]


@pytest.mark.parametrize("change", [huge, outside, absolute, odd, deep])
def test_tables_that_lie_are_refused_in_one_line(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "a.pt2"
    path.write_bytes(config(change))
    with pytest.raises(TorchVisError, match="trust=True") as caught:
        source_of(path)
    assert "\n" not in str(caught.value)


def test_tables_nested_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    path.write_bytes(replaced(exported(), "models/model.json", b"[" * 1_000_000))
    with pytest.raises(TorchVisError, match="trust=True"):
        source_of(path)


def test_a_compressed_table_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    data = exported()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(path, "w") as after:
        for entry in before.infolist():
            bomb = entry.filename.endswith("model.json")
            content = b" " * (17 << 20) if bomb else before.read(entry)
            after.writestr(entry.filename, content, zipfile.ZIP_DEFLATED if bomb else zipfile.ZIP_STORED)
    with pytest.raises(TorchVisError, match=r"larger than 16 MiB.*trust=True"):
        source_of(path)


def test_a_compressed_record_is_not_expanded_beyond_the_size_it_claims(tmp_path: Path) -> None:
    """A megabyte that is a gigabyte, and says that it is a hundred bytes."""
    import tracemalloc

    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/constants.pkl", b"")
        with archive.open("a/data.pkl", "w", force_zip64=False) as stream:
            for _ in range(256):
                stream.write(bytes(1 << 20))
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 100)
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(TorchVisError, match="trust=True"):
            source_of(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_entries_that_overlap_are_refused(tmp_path: Path) -> None:
    """Many entries over the same bytes would make a small file a large one."""
    path = tmp_path / "a.pt"
    data = bytearray(scripted(net()))
    at = data.find(b"PK\x01\x02")
    struct.pack_into("<II", data, at + 20, 1 << 30, 1 << 30)
    path.write_bytes(data)
    with pytest.raises(TorchVisError, match="overlap"):
        source_of(path)


def test_an_archive_of_several_disks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    data = bytearray(scripted(net()))
    struct.pack_into("<I", data, data.rfind(b"PK\x06\x07") + 16, 9)
    path.write_bytes(data)
    with pytest.raises(TorchVisError, match="disks"):
        source_of(path)


def modules(state: bytes) -> bytes:
    """A TorchScript file whose pickle is this one; ``M`` is a module."""
    buffer = io.BytesIO()
    code = b"class M(Module):\n  __parameters__ = []\n"
    with zipfile.ZipFile(io.BytesIO(scripted(net()))) as before, zipfile.ZipFile(buffer, "w") as after:
        # Where other modules were scripted before, torch numbers its files of code.
        names = [name for name in before.namelist() if "/container" not in name]
        for name in names:
            after.writestr(name, state if name.endswith("/data.pkl") else before.read(name))
        root = names[0].partition("/")[0]
        after.writestr(f"{root}/code/__torch__/torch/nn/modules/container.py", code)
    return buffer.getvalue()


MODULE = b"c__torch__.torch.nn.modules.container\nM\n)\x81"
TWICE = (
    MODULE
    + b"q\x01"
    + b"".join(MODULE + b"}(X\x01\x00\x00\x00ah\x01X\x01\x00\x00\x00bh\x01ubq\x01" for _ in range(40))
)
DEEP = MODULE + b"q\x01" + b"".join(MODULE + b"}(X\x01\x00\x00\x00ah\x01ubq\x01" for _ in range(3000))
ENDLESS = MODULE + b"q\x01}(X\x01\x00\x00\x00ah\x01ub"


@pytest.mark.parametrize("state", [TWICE, DEEP, ENDLESS], ids=["twice", "deep", "endless"])
def test_modules_without_end_are_refused(tmp_path: Path, state: bytes) -> None:
    """Modules in themselves, and forty levels of two names each, which would be 2⁴⁰ names."""
    (tmp_path / "a.pt").write_bytes(modules(b"\x80\x02" + state + b"."))
    with pytest.raises(TorchVisError, match=r"(nested too deep|inside itself).*trust=True"):
        source_of(tmp_path / "a.pt")


def test_containers_nested_without_end_are_refused(tmp_path: Path) -> None:
    nested: list[Any] = []
    for _ in range(150):
        nested = [1, nested]
    torch.save({"a": nested}, tmp_path / "a.pt")
    with pytest.raises(TorchVisError, match="nested more than 100"):
        source_of(tmp_path / "a.pt")


def test_reading_does_not_change_the_file(tmp_path: Path) -> None:
    """Tensors are mapped into memory, and what is written to them stays there."""
    path = tmp_path / "a.pt"
    path.write_bytes(scripted(net()))
    before = path.read_bytes()
    source: Any = source_of(path)
    with torch.no_grad():
        for parameter in source.model.parameters():
            parameter.zero_()
    assert path.read_bytes() == before
    assert np.all(source_of(path).figures(1)[0].figures is not None)


# ONNX files whose tables lie


def onnx_file(path: Path, data_type: int = 1, dims: tuple[int, ...] = (2,), *, outside: bool = False) -> Path:
    onnx = pytest.importorskip("onnx")
    tensor = onnx.TensorProto(name="w", data_type=data_type, dims=dims, raw_data=b"" if outside else bytes(8))
    if outside:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../etc/passwd")
    graph = onnx.GraphProto(name="g", initializer=[tensor])
    path.write_bytes(onnx.ModelProto(ir_version=8, graph=graph).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_type": 99}, "element type 99"),
        ({"dims": (-3,)}, "which none can have"),
        ({"dims": (2**40, 2**40)}, "which none can have"),
        ({"dims": (1,) * 2000}, "2,000 dimensions"),
    ],
)
def test_an_onnx_file_that_lies_is_refused_in_one_line(
    cli: Server, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    done = cli("summary", str(onnx_file(tmp_path / "a.onnx", **options)))
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1


def test_onnx_data_outside_of_its_folder_is_not_read(cli: Server, tmp_path: Path) -> None:
    path = str(onnx_file(tmp_path / "a.onnx", outside=True))
    done = cli("compare", path, path)
    assert done.code == 2 and "cannot read w of" in done.err and "Traceback" not in done.err


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="not in this torch")
def test_elements_that_torch_cannot_compute_with_are_compared_by_their_bytes() -> None:
    def stored(*numbers: int) -> Any:
        packed = torch.tensor(numbers, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        return source_of({"w": packed})

    assert compare_weights(stored(1, 2), stored(1, 2)).same
    differences = compare_weights(stored(1, 2), stored(1, 3))
    assert [(pair.change, pair.largest) for pair in differences.different] == [("values", None)]
    assert "1 with other values" in str(differences)
    source = stored(1, 2)
    for row in range(len(source.forest)):
        source.details(row), source.figures(row), source.histograms(row)


# what a path may be, and what a name or an element may be


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("ending", ["pt", "pt2", "onnx", "safetensors", "bin", "tvz", "json"])
def test_a_pipe_and_a_device_are_not_waited_for(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"pipe.{ending}")
    os.symlink("/dev/zero", tmp_path / f"device.{ending}")
    for name in ("pipe", "device"):
        with pytest.raises(TorchVisError, match="not a regular file"):
            source_of(tmp_path / f"{name}.{ending}")


def test_a_name_that_is_endless_as_text_is_cut(tmp_path: Path) -> None:
    """A key of a pair of a pair of a pair …, which takes a few hundred bytes in a pickle."""
    key: Any = (1,)
    for _ in range(18):
        key = (key, key)
    torch.save({key: torch.ones(2), "a": {3: torch.ones(1), None: torch.ones(1)}}, tmp_path / "a.pt")
    forest = source_of(tmp_path / "a.pt").forest
    assert max(map(len, forest.paths)) < 200 and {"a.3", "a.None"} <= set(forest.paths)


def test_a_pickle_gets_no_more_memory_than_its_file_has_bytes(tmp_path: Path) -> None:
    """One that announces a text of two gigabytes."""
    import tracemalloc

    path = tmp_path / "a.pt"
    path.write_bytes(b"\x80\x02X" + struct.pack("<I", (1 << 31) - 1) + b"abc")
    tracemalloc.start()
    try:
        with pytest.raises(TorchVisError):
            source_of(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_compressed_checkpoint_is_not_expanded(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    buffer = io.BytesIO(saved({"a": torch.zeros(8_000_000)}))
    with zipfile.ZipFile(buffer) as before, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as after:
        for entry in before.infolist():
            after.writestr(entry.filename, before.read(entry), zipfile.ZIP_DEFLATED)
    with pytest.raises(TorchVisError, match="compressed"):
        source_of(path)


def test_a_plain_checkpoint_of_an_older_torch_opens(tmp_path: Path) -> None:
    state = {"a": torch.arange(4.0), "b": torch.ones(2, 3, dtype=torch.bfloat16), "step": 3}
    (tmp_path / "a.pth").write_bytes(saved(state, _use_new_zipfile_serialization=False))
    (tmp_path / "b.pt").write_bytes(saved(state))
    assert compare_weights(source_of(tmp_path / "a.pth"), source_of(tmp_path / "b.pt")).same


def onnx_of(path: Path, *tensors: Any) -> Path:
    onnx = pytest.importorskip("onnx")
    graph = onnx.GraphProto(name="g", initializer=tensors)
    path.write_bytes(onnx.ModelProto(ir_version=8, graph=graph).SerializeToString())
    return path


@pytest.mark.parametrize("elements", [1, 3])
@pytest.mark.parametrize(
    ("kind", "width", "dtype"),
    [
        ("BFLOAT16", 2, "bfloat16"),
        ("FLOAT8E4M3FN", 1, "float8_e4m3fn"),
        ("FLOAT8E5M2", 1, "float8_e5m2"),
        ("INT4", 1, "int4"),
        ("UINT4", 1, "uint4"),
        ("FLOAT4E2M1", 1, "float4_e2m1fn"),
    ],
)
def test_onnx_elements_that_numpy_has_from_elsewhere_are_read(
    tmp_path: Path, kind: str, width: int, dtype: str, elements: int
) -> None:
    onnx = pytest.importorskip("onnx")

    def tensor(byte: bytes) -> Any:
        data_type = getattr(onnx.TensorProto, kind)
        return onnx.TensorProto(
            name="w", data_type=data_type, dims=[elements], raw_data=byte * elements * width
        )

    one, other = onnx_of(tmp_path / "a.onnx", tensor(b"\x11")), onnx_of(tmp_path / "b.onnx", tensor(b"\x22"))
    source = source_of(one)
    (shown,) = source.figures(source.forest.paths.index("initializers.w"))
    assert shown.dtype == dtype and shown.shape == (elements,) and shown.figures is not None
    assert compare_weights(source, source_of(one)).same
    assert [pair.change for pair in compare_weights(source, source_of(other)).different] == ["values"]


def test_onnx_words_are_values_and_not_tensors(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    words = onnx.TensorProto(name="words", data_type=onnx.TensorProto.STRING, dims=[2])
    words.string_data.extend([b"yes", b"\xff"])
    source = source_of(onnx_of(tmp_path / "a.onnx", words))
    row = source.forest.paths.index("initializers.words")
    assert source.forest.texts["value"](row) == "['yes', '�']" and not source.details(row).tensors


def test_onnx_names_that_are_no_text_are_shown(tmp_path: Path) -> None:
    """Protobuf gives bytes where a name is no UTF-8."""
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Relu", ["in"], ["out"], name="nameXX")
    path = onnx_of(tmp_path / "a.onnx")
    graph = onnx.GraphProto(name="g", node=[node])
    data = onnx.ModelProto(ir_version=8, graph=graph).SerializeToString()
    path.write_bytes(data.replace(b"nameXX", b"name\xff\xfe").replace(b"out", b"\xff\xfe\xfd"))
    assert any(path.startswith("nodes.name") for path in source_of(path).forest.paths)


def test_the_table_of_a_safetensors_file_is_not_read_for_each_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    for name in ("a", "b"):
        save_file({f"w{number}": torch.ones(2) for number in range(30)}, tmp_path / f"{name}.safetensors")
    left, right = source_of(tmp_path / "a.safetensors"), source_of(tmp_path / "b.safetensors")
    opened, safe_open = [], safetensors.safe_open
    monkeypatch.setattr(
        safetensors, "safe_open", lambda *args, **kwargs: (opened.append(args), safe_open(*args, **kwargs))[1]
    )
    assert compare_weights(left, right).same and len(opened) <= 2
    # what has been written anew meanwhile is read anew
    save_file({f"w{number}": torch.zeros(2) for number in range(30)}, tmp_path / "b.safetensors")
    assert len(compare_weights(left, right).different) == 30
