"""Damage traces in every way that comes to mind, load them, and count what should never happen.

    python tools/fuzz_files.py 10000            # so many .tvz and so many .json
    python tools/fuzz_files.py 500 --seed 7     # others; the same seed gives the same files
    python tools/fuzz_files.py 1000 --kind world --kind activations --kind calibration --kind weights

Three things are counted, and all of them should be 0: errors that are not ours (from ``load``, or from anything that is
asked of what was loaded), files that load as other data although their checksum was left as it was, and files that take
more memory than ``SECURITY.md`` allows.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import io
import json
import random
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import torch_vis as tv
from torch_vis._reports import REPORTS
from torch_vis.errors import FileError, TorchVisError
from torch_vis.formats import FORMATS
from torch_vis.graph.io import tvz as tvz_file
from torch_vis.graph.schema import COLUMNS, TABLES
from torch_vis.graph.text import inert_lines

MOST_TIMES, FREE_BYTES = 20, 16 << 20  # what SECURITY.md promises
SLOW_FORMATS = ("png", "pdf", "html")  # asked for of one loaded file in ten
HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 1.5, -0.0, float("nan"), float("inf"), 2**31, 2**63 - 1, 2**63, -(2**63), 10**18,
    10**30, "", "1", "x", "nan", "float32", "\x1b]0;owned\x07", "\u202e\ud800", "a" * 5000, "../../etc/passwd", [],
    [[]], [1], [None], [-1], [10**18, 10**18], [1.5], ["a"], {}, {"a": 1}, {"tensor": 0}, {"tensor": -1},
    {"float": "x"}, {"complex": "j"}, {"id": 0}, [[[[[[]]]]]],
)  # fmt: skip


class Mutant(NamedTuple):
    """A damaged file: its bytes, what was done, and whether its checksums were made to fit."""

    data: bytes
    what: str
    crafted: bool


# What is damaged


class Original(NamedTuple):
    """A good trace as both files."""

    run: Any
    tvz: bytes
    json: bytes


def originals(folder: Path) -> list[Original]:
    """Small traces that have all there is in a file between them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    )

    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 0] = 1
        y[1:].mul_(2)
        return torch.nn.functional.dropout(y.t(), 0.5) + float(y.sum())

    runs = [
        tv.trace(model, torch.ones(5, 3), backward=True),
        tv.trace(in_place, torch.ones(3, 3)),
        tv.trace(torch.nn.ReLU(), torch.ones(2)),
    ]
    runs[0].meta.update(program=PROGRAM, device_time=DEVICE_TIME, repeat=3, error="ValueError: no")
    runs[0].meta.update(plain_wall_ns=5, plain_wall_low_ns=4, plain_wall_high_ns=6, packed_bytes=9)
    runs[0].meta.update(unused_parameters={"a": 1})
    result = []
    for run in runs:
        run.save(folder / "a.tvz")
        run.save(folder / "a.json")
        result.append(Original(run, (folder / "a.tvz").read_bytes(), (folder / "a.json").read_bytes()))
    return result


EAGER = {"op": "aten::item", "times": 2, "file": "net.py", "line": 3}
PROGRAM = {
    "via": "dynamo", "partitions": [3, 4], "lost": [EAGER], "guards": ["x.shape[0] == 2"], "compile_ns": 12,
    "breaks": [{
        "reason": "data-dependent", "explanation": "why", "hints": ["do not"], "context": "c", "id": "GB0001",
        "file": "net.py", "line": 3, "function": "forward", "code": "x.item()", "partition": 0, "nodes": 3,
        "partitions": [0], "times": 1, "lost": [EAGER],
    }],
    "recompilations": [{"function": "forward", "file": "net.py", "line": 3, "guard": "size"}],
    "ranges": {"s0": "2 ≤ s0 ≤ 128"},
    "subgraphs": [{
        "name": "cond.true", "operator": "cond", "role": "true", "ran": 1, "operations": ["aten.add"], "site": None,
    }],
}  # fmt: skip
DEVICE_TIME = {
    "names": ["gemm", "wait"], "kernel_name": [0, 0], "kernel_node": [3, -1], "kernel_start_ns": [10, 30],
    "kernel_time_ns": [5, 5], "kernel_device": [0, 0], "kernel_stream": [7, 7], "wait_name": [1], "wait_node": [2],
    "wait_start_ns": [40], "wait_time_ns": [2], "total_ns": 10, "unmatched": 1,
}  # fmt: skip


# How bytes are damaged


def flip(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Flip one to three bits."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        result[rng.randrange(len(result))] ^= 1 << rng.randrange(8)
    return bytes(result)


def overwrite(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Put other bytes in the place of some."""
    at, length = rng.randrange(len(data)), rng.choice((1, 2, 8, 100))
    return (
        data[:at] + rng.choice((bytes(length), rng.randbytes(length), b"\xff" * length)) + data[at + length :]
    )


def truncate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Leave out the end."""
    return data[: rng.randrange(len(data))]


def cut(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Leave out a part, or have it twice."""
    start, stop = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:start] + data[stop:] if rng.random() < 0.7 else data[:stop] + data[start:]


def splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]


def digit(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Change a digit."""
    places = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
    at = rng.choice(places)
    return data[:at] + str(rng.choice([n for n in range(10) if n != data[at] - 48])).encode() + data[at + 1 :]


def append(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Put something after the end."""
    return data + rng.choice((b"\n", b"}", b" " * 1000, bytes(1000), other))


# How what is in them is damaged


def places(item: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside JSON data."""
    rows = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    for key, part in rows:
        yield (*path, key)
        yield from places(part, (*path, key))


def change(document: Any, rng: random.Random) -> str:
    """Change something in JSON data; gives what."""
    path = rng.choice(list(places(document)))
    around = document
    for key in path[:-1]:
        around = around[key]
    key, what = path[-1], ".".join(map(str, path))
    action = rng.randrange(6)
    if action == 0:
        del around[key]
        return f"without {what}"
    if action == 1 and isinstance(around, list):
        around.insert(key, copy.deepcopy(around[key]))
        return f"{what} twice"
    if action == 2 and isinstance(around, dict):
        around[f"{key}x"] = around.pop(key)
        return f"{what} renamed"
    if action == 3 and type(around[key]) is int:
        around[key] += rng.choice((-1, 1, 2, 2**31, 2**32, 2**62))
        return f"{what} is {around[key]}"
    around[key] = copy.deepcopy(rng.choice(HOSTILE))
    return f"{what} is {around[key]!r:.40}"


def entries_of(data: bytes) -> dict[str, bytes]:
    """What is in a zip."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data, zipfile.ZIP_STORED if name == tvz_file.MARKER else method)
    return buffer.getvalue()


def changed_tvz(data: bytes, other: bytes, rng: random.Random) -> Mutant:
    """A .tvz with something else in its tables, header or columns, packed anew."""
    entries, document = entries_of(data), None
    action = rng.randrange(9)
    name = rng.choice(("header.json", "tables.json", "tables.json"))
    if action < 4:
        document = json.loads(entries[name])
        what = " and ".join(change(document, rng) for _ in range(rng.choice((1, 1, 2))))
        entries[name] = json.dumps(document).encode()
    elif action == 4:
        name = rng.choice([name for name in entries if "/" in name and entries[name]])
        entries[name] = flip(entries[name], b"", rng)
        what = f"{name} flipped"
    elif action == 5:
        name = rng.choice(list(entries))
        entries[name] = entries_of(other).get(name, b"")
        return Mutant(packed(entries), f"{name} of another file", crafted=False)
    elif action == 6:
        name = rng.choice(list(entries))
        del entries[name]
        what = f"without {name}"
    elif action == 7:
        return Mutant(
            packed(entries, rng.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))),
            "another packing",
            crafted=True,
        )
    else:
        return Mutant(*bomb_tvz(entries, rng), crafted=True)
    header = json.loads(entries["header.json"]) if "header.json" in entries else {}
    if isinstance(header, dict) and header.pop("checksums", None) is not None:
        entries["header.json"] = json.dumps(header).encode()
    return Mutant(packed(entries), what, crafted=True)


def bomb_tvz(entries: dict[str, bytes], rng: random.Random) -> tuple[bytes, str]:
    """A .tvz that is small and asks for much."""
    size, header = rng.choice((3_000_000, 30_000_000)), json.loads(entries["header.json"])
    tables = json.loads(entries["tables.json"])
    action = rng.randrange(7)
    if action == 0:
        name = rng.choice(("header.json", "tables.json", tvz_file.MARKER))
        entries[name] = b" " * size + entries[name]
        return packed(entries), f"{name} after {size} blanks"
    if action == 1:
        name = rng.choice(list(COLUMNS))
        entries[f"columns/{name}"] = bytes(size)
        header["columns"][name] = {"rows": size, "stored": "<i1", "steps": False}
        what = f"{name} of {size} rows"
    elif action == 2:
        along = rng.choice(("node", "input", "output", "value", "storage", "scope", "result_input"))
        for name, spec in COLUMNS.items():
            if spec.along.partition("+")[0] == along:
                rows = size // 10 + ("+" in spec.along)
                entries[f"columns/{name}"] = bytes(rows)
                header["columns"][name] = {"rows": rows, "stored": "<i1", "steps": rng.random() < 0.5}
        what = f"all columns along {along} of {size // 10} rows"
    elif action == 3:
        name = rng.choice(TABLES)
        tables[name] = (tables.get(name) or ["a"])[:1] * (size // 100)
        what = f"{size // 100} rows of {name}"
    elif action == 4:
        header["meta"]["x"] = rng.choice(([[]], [{}], [{"": 0}], ["ab"])) * (size // 20)
        what = "a large meta"
    elif action == 5:
        header["limits"] = ["ab"] * (size // 10)
        what = "many limits"
    else:
        inside = rng.choice(([], [0], {"float": "1"}, "ab"))
        tables["calls"] = [["aten::add", [[inside] * (size // 20)], []]]
        what = "a call with many arguments"
    entries["header.json"], entries["tables.json"] = (json.dumps(part).encode() for part in (header, tables))
    return packed(entries), what


def changed_json(data: bytes, other: bytes, rng: random.Random) -> Mutant:
    """A .json with something else in it, with the old checksum, with one that fits, or with none."""
    document = json.loads(data)
    if rng.random() < 0.1:
        return Mutant(bomb_json(document, rng), "a bomb", crafted=True)
    what = " and ".join(change(document, rng) for _ in range(rng.choice((1, 1, 2))))
    keeps = rng.random() < 0.3
    if not keeps:
        document.pop("checksum", None)
    if not keeps and rng.random() < 0.5:
        body = json.dumps(document, indent=rng.choice((None, 1))).encode()
        document["checksum"] = f"sha256:{hashlib.sha256(body).hexdigest()}"
    text = json.dumps(document, indent=rng.choice((None, None, 1)))
    return Mutant(text.encode(), what, crafted=not keeps)


def bomb_json(document: Any, rng: random.Random) -> bytes:
    """A .json that asks for far more memory than it has bytes."""
    size = rng.choice((20_000, 200_000))
    document.pop("checksum", None)
    inside = rng.choice(([], {}, [0], {"": 0}, "ab", [[[[]]]], 1.5))
    action = rng.randrange(4)
    if action == 0:
        document["meta"]["x"] = [inside] * size
    elif action == 1:
        document["calls"][0]["args"] = [inside] * size
    elif action == 2:
        document["names"] = ["ab"] * size
    else:
        document["limits"] = ["ab"] * size
    return json.dumps(document).encode()


BYTES: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (
    flip,
    overwrite,
    truncate,
    cut,
    splice,
    append,
)


def mutant(kind: str, original: Original, other: Original, rng: random.Random) -> Mutant:
    """One damaged file."""
    data, stranger = (original.tvz, other.tvz) if kind == "tvz" else (original.json, other.json)
    if rng.random() < 0.5:
        return (changed_tvz if kind == "tvz" else changed_json)(data, stranger, rng)
    damage = rng.choice((*BYTES, flip, digit) if kind == "json" else (*BYTES, flip))
    return Mutant(damage(data, stranger, rng), damage.__name__, crafted=False)


# What becomes of it


def content(run: Any) -> str:
    """All that a run holds, as one text that is equal for equal runs."""
    digest = hashlib.sha256()
    for name in COLUMNS:
        digest.update(np.ascontiguousarray(getattr(run.graph, name)).tobytes())
    for name in TABLES:
        digest.update(repr(getattr(run.graph, name)).encode("utf-8", "surrogatepass"))
    for name, column in run.metrics.at_hand().items():
        digest.update(
            f"{name} {column.along} {[column[row] for row in range(len(column))]}".encode("utf-8", "replace")
        )
    meta = json.dumps(json.loads(json.dumps(run.meta)), sort_keys=True)
    digest.update(f"{[limit.to_dict() for limit in run.limits]} {meta}".encode())
    return digest.hexdigest()


def ask(trace: Any, folder: Path, rng: random.Random) -> None:
    """Ask everything of a trace that can be asked; errors of ours are answers."""
    questions: list[Callable[[], Any]] = [
        lambda: str(trace), lambda: repr(trace), lambda: trace.table(width=80), trace.check, trace.graph.check,
        lambda: repr(list(trace.graph.nodes)), lambda: repr(list(trace.graph.values)), lambda: str(trace.breaks),
        lambda: repr(list(trace.graph.scopes)), lambda: repr(list(trace.graph.outcomes)), lambda: repr(trace.metrics),
        trace._repr_html_, lambda: str(tv.compare(trace, trace)),
    ]  # fmt: skip
    for name in REPORTS:
        options = {"hardware": "cpu"} if name in ("roofline", "latency") else {}
        questions += [lambda name=name, options=options: _read(getattr(trace, name)(**options))]
    for name, row in FORMATS.items():
        if name not in SLOW_FORMATS or rng.random() < 0.1:
            questions += [lambda name=name, row=row: trace.save(folder / f"out{row.endings[0]}", format=name)]
    for question in questions:
        try:
            question()
        except TorchVisError:
            continue


def _read(report: Any) -> None:
    str(report), repr(report), report.to_dict()


class Figures:
    """The counts, and the first few failures of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, list[str]] = {}
        self.worst = 0.0

    def fail(self, kind: str, text: str) -> None:
        """Count a failure."""
        self.counts[kind] += 1
        self.failures.setdefault(kind, []).append(text)


def try_one(
    kind: str, mutated: Mutant, expected: str, folder: Path, figures: Figures, rng: random.Random
) -> None:
    """Load a damaged file, and ask everything of it where it loads."""
    path = folder / f"mutant.{kind}"
    path.write_bytes(mutated.data)
    trace, error = None, None
    tracemalloc.start()
    try:
        trace = tv.load(path)
    except FileError as refused:
        error = refused
    except BaseException:
        figures.fail("raw errors", f"{mutated.what}\n{traceback.format_exc(limit=-4)}")
        return
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    bound = max(MOST_TIMES * len(mutated.data), FREE_BYTES)
    figures.worst = max(figures.worst, peak / bound)
    if peak > bound:
        figures.fail(
            "memory over the bound", f"{mutated.what}: {peak / len(mutated.data):.1f} × {len(mutated.data)}"
        )
    if error is not None or trace is None:
        figures.counts["refused"] += 1
        if len(str(error)) > 1000 + len(str(path)) or not str(error).isprintable():
            figures.fail(
                "raw errors", f"{mutated.what}: a message of {len(str(error))} letters: {str(error)[:200]!r}"
            )
        return
    figures.counts["loaded"] += 1
    if not mutated.crafted and content(trace) != expected:
        figures.fail("other data in silence", mutated.what)
    if mutated.crafted or rng.random() < 0.02:
        try:
            ask(trace, folder, rng)
        except BaseException:
            figures.fail(
                "raw errors", f"{mutated.what}, after it was loaded\n{traceback.format_exc(limit=-6)}"
            )


# Files that are not of one trace


class OtherKind(NamedTuple):
    """A kind of file, or of folders of them: how good ones are made, and what is asked of a damaged one."""

    make: Callable[[Path], list[Path]]
    """Writes one, and names the files that can be damaged."""
    ask: Callable[[Path, Path], None]
    """Asks everything of the one at a path; the second is a folder to write to."""


def make_world(path: Path) -> list[Path]:
    """A trace of several ranks, of which one is a copy."""

    def make(mesh: Any) -> Callable[[Any], Any]:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(torch.nn.Linear(6, 6), mesh=mesh["dp"])
        return lambda x: model(x).sum().backward()

    path.mkdir()
    tv.simulate(make, torch.ones(2, 6), mesh={"dp": 2}, hardware="H100 SXM").save(path / "w.tvz")
    return [path / "w.tvz"]


def ask_world(path: Path, folder: Path) -> None:
    world = tv.load(path / "w.tvz")
    questions: list[Callable[[], Any]] = [lambda: str(world), lambda: repr(world)]
    for name in ("communication", "step_time", "waiting", "memory", "time", "summary", "agreement"):
        if callable(getattr(world, name, None)):
            questions.append(lambda name=name: _read(getattr(world, name)()))
    if hasattr(world, "save"):
        questions.append(lambda: world.save(folder / "again.tvz"))
    _answered(questions)
    for rank in list(getattr(world, "ranks", ()))[:3] if hasattr(world, "ranks") else ():
        _answered([lambda rank=rank: str(world[rank]), lambda rank=rank: _read(world[rank].memory())])


def make_activations(path: Path) -> list[Path]:
    """Two shards of what was kept of a small model."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    tv.extract(model, [torch.ones(2, 3), torch.ones(1, 3)], keep=["0", "1"], to=path, shard_bytes=40)
    return sorted(file for file in path.iterdir() if file.is_file())


def ask_activations(path: Path, folder: Path) -> None:
    acts = tv.open_activations(path)
    questions: list[Callable[[], Any]] = [lambda: str(acts), lambda: repr(acts), lambda: acts["0"]]
    for name in list(acts):
        array = acts[name]
        questions += [lambda array=array: repr(array), lambda array=array: str(array[0])]
        questions += [lambda array=array: str(array[:]), lambda array=array: [str(part) for part in array]]
    _answered(questions)


def make_calibration(path: Path) -> list[Path]:
    """The calibration that tests use."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.kit.calibrations import made_up

    path.mkdir()
    made_up().save(path / "c.json")
    return [path / "c.json"]


def ask_calibration(path: Path, folder: Path) -> None:
    machine = tv.hardware.load(path / "c.json")
    trace = tv.trace(torch.nn.Linear(3, 4), torch.ones(2, 3), hold=False)
    _answered(
        [
            lambda: str(machine), lambda: repr(machine), lambda: str(machine.hardware),
            lambda: _read(trace.latency(calibration=machine)), lambda: machine.save(folder / "again.json"),
            lambda: _read(trace.roofline(hardware=machine)), lambda: machine.at_pace(100.0),
        ]
    )  # fmt: skip


def make_weights(path: Path) -> list[Path]:
    """One small model in every file that the explorer reads weights from."""
    import onnx
    from onnx import numpy_helper
    from safetensors.torch import save_file

    path.mkdir()
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU()).eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save({"model": state, "step": 3, "lr": [0.1, 0.2]}, path / "state.pt")
    torch.save(state, path / "old.pth", _use_new_zipfile_serialization=False)
    torch.jit.script(model).save(path / "script.pt")
    torch.export.save(torch.export.export(model, (torch.ones(2, 3),)), path / "program.pt2")
    save_file(state, path / "state.safetensors", metadata={"format": "pt"})
    arrays = [numpy_helper.from_array(tensor.numpy(), name) for name, tensor in state.items()]
    node = onnx.helper.make_node("Relu", ["x"], ["y"], name="relu")
    graph = onnx.helper.make_graph([node], "g", [], [], arrays)
    onnx.save(onnx.helper.make_model(graph), path / "net.onnx")
    return sorted(path.iterdir())


def ask_weights(path: Path, folder: Path) -> None:
    from torch_vis.interfaces.explorer.file_source import open_file
    from torch_vis.interfaces.explorer.weight_files import as_data, as_text, compare_weights

    def asked(file: Path) -> None:
        source = open_file(file)
        if not inert_lines(text := as_text(source, depth=None)) == text:
            raise AssertionError(f"{file.name} is shown with what acts on a terminal")
        json.dumps(as_data(source))
        _answered(
            [
                lambda row=row, look=look: look(row)
                for row in range(min(len(source.forest), 100))
                for look in (source.details, source.figures, source.histograms, source.source_code)
            ]
        )
        str(compare_weights(source, open_file(file)))

    _answered([lambda file=file: asked(file) for file in sorted(path.iterdir())])


def _answered(questions: list[Callable[[], Any]]) -> None:
    for question in questions:
        try:
            question()
        except TorchVisError:
            continue


OTHERS = {
    "world": OtherKind(make_world, ask_world),
    "activations": OtherKind(make_activations, ask_activations),
    "calibration": OtherKind(make_calibration, ask_calibration),
    "weights": OtherKind(make_weights, ask_weights),
}


def changed_other(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Some bytes of a file damaged, or something else in its JSON, in a zip or in lines of it perhaps."""
    if rng.random() < 0.4:
        damage = rng.choice((*BYTES, flip))
        return damage(data, data, rng), damage.__name__
    if data[:2] == b"PK":
        entries = entries_of(data)
        name = rng.choice(list(entries))
        entries[name], what = changed_other(entries[name] or b" ", rng)
        return packed(entries), f"{name}: {what}"
    if len(data) > 8 and data[8:9] == b"{":
        # safetensors
        size = int.from_bytes(data[:8], "little")
        head, what = changed_other(data[8 : 8 + size], rng)
        return len(head).to_bytes(8, "little") + head + data[8 + size :], f"header: {what}"
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    for number in (at, 0):
        try:
            document = [json.loads(lines[number])]
        except ValueError:
            continue
        if isinstance(document[0], (dict, list)) and document[0]:
            what = change(document[0], rng)
            lines[number] = json.dumps(document[0]).encode()
            return b"\n".join(lines), f"line {number}: {what}"
    return flip(data, b"", rng), "flip"


def fuzz_other(kind: str, number: int, seed: int = 0) -> Figures:
    """Damage one file of a kind at a time, and ask everything of what is left."""
    figures, rng = Figures(), random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        paths = OTHERS[kind].make(folder / "good")
        for _ in range(number):
            path = rng.choice(paths)
            good = path.read_bytes()
            data, what = changed_other(good, rng)
            path.write_bytes(data)
            what = f"{path.name}: {what}"
            tracemalloc.start()
            try:
                OTHERS[kind].ask(folder / "good", folder)
                figures.counts["loaded"] += 1
            except TorchVisError as error:
                figures.counts["refused"] += 1
                if len(str(error)) > 1500 or not str(error).isprintable():
                    figures.fail("raw errors", f"{what}: a message {str(error)[:200]!r}")
            except BaseException:
                figures.fail("raw errors", f"{what}\n{traceback.format_exc(limit=-5)}")
            finally:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            if peak > (bound := max(2 * MOST_TIMES * len(data), 4 * FREE_BYTES)):
                figures.fail("memory over the bound", f"{what}: {peak:,} of {bound:,}")
            path.write_bytes(good)
    return figures


FAILURES = ("raw errors", "other data in silence", "memory over the bound")


def fuzz(kind: str, number: int, seed: int = 0) -> Figures:
    """Damage and load so many files of one kind."""
    figures, rng = Figures(), random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        good = originals(folder)
        expected = [content(tv.load(_saved(folder / f"good.{kind}", getattr(row, kind)))) for row in good]
        for _ in range(number):
            chosen = rng.randrange(len(good))
            other = good[(chosen + 1) % len(good)]
            try_one(kind, mutant(kind, good[chosen], other, rng), expected[chosen], folder, figures, rng)
    return figures


def _saved(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def main() -> int:
    """Print the figures; gives 1 if any is not 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int, help="how many files of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=("tvz", "json", *OTHERS), action="append")
    options = parser.parse_args()
    failed = False
    for kind in options.kind or ("tvz", "json"):
        start = time.perf_counter()
        figures = (fuzz_other if kind in OTHERS else fuzz)(kind, options.number, options.seed)
        took = time.perf_counter() - start
        words = "; ".join(f"{name} {figures.counts[name]}" for name in FAILURES)
        print(
            f".{kind}: {options.number:,} files, {figures.counts['refused']:,} refused, {figures.counts['loaded']:,} "
            f"loaded, at most {figures.worst:.0%} of the memory allowed, {took:.0f} s: {words}"
        )
        for name, texts in figures.failures.items():
            failed = True
            for text in texts[:5]:
                print(f"  {name}: {text}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
