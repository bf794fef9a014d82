"""Everything that traces print, return and write, as texts that are the same on every machine.

``tests/test_snapshots.py`` compares these texts with the files in ``tests/snapshots``; ``make snapshots`` (this module
as a program) rewrites the files. Only the public interface is used: the page's data are read from the page itself.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import json
import linecache
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if __name__ == "__main__":  # the tests have these from conftest.py
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import torch_vis as tv
from tests.kit.page import page_data, world_data
from tests.kit.ranks import fake_group, training_step
from tests.zoo import ZOO, seed_everything
from torch_vis.graph.run import Limit

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "tests" / "snapshots"

# Files whose line numbers say nothing: the package moves, and this module only calls it.
UNNUMBERED = (REPOSITORY / "src" / "torch_vis", Path(__file__).resolve().parent)
PYTHON_FILE = re.compile(r"(?<![\w.-])(?P<path>(?:/[^\s/:'\"()]+)+\.py)(?::(?P<line>\d+))?")
ADDRESS = re.compile(r"\b(?:0x[0-9a-f]{6,}|\d{13,})\b")
# Dynamo counts the dictionaries of builtins that it has met in a process.
CALLING = re.compile(r"_compiled_call_impl|__import_torch_dot_nn_dot_modules_dot_module")
COUNTED = re.compile(r"(?<=__builtins_dict___)\d+")
NUMBER = re.compile(r" *-?\d[\d.,]*(?:e[+-]?\d+)?")
# What is left of nothing by rounding.
NOISE = re.compile(r"-?\d(?:\.\d+)?e-(?:0[6-9]|[1-9]\d)")
LONG_DECIMAL = re.compile(r"-?\d+\.\d{6,}(?:e[+-]?\d+)?")

# What is the same in every frozen trace, where a trace says it at all.
CIRCUMSTANCES = {"torch": "2.0.0", "python": "3.0.0", "machine": "machine", "threads": 1}
# Significant digits of numbers: as they are written, and those that the kernels of a processor have a say in.
EXACT, COMPUTED = 6, 3
WIDTH = 200


class Room(NamedTuple):
    """How much of something long is kept beside its digest."""

    characters: int
    rows: int
    lines: int


REPORT, FILE, REPEATED = Room(WIDTH, 2, 20), Room(80, 1, 8), Room(60, 0, 3)


# Freezing a trace


def placed(trace: tv.Trace) -> tv.Trace:
    """A trace of the same run whose source files have names without folders."""
    still = copy.copy(trace)
    for site in trace.graph.sites:
        # A page shows source lines, and reads them under the name that a site has.
        lines = [] if _line(site.file, 1) == 0 else linecache.getlines(site.file)
        linecache.cache[os.path.basename(site.file)] = (sum(map(len, lines)), None, lines, site.file)
    sites = [
        site._replace(file=portable(site.file), line=_line(site.file, site.line))
        for site in trace.graph.sites
    ]
    tables = {**vars(trace.graph), "sites": sites}
    still.graph = tv.Graph(vars(trace.graph), tables)
    return still


def frozen(trace: tv.Trace) -> tv.Trace:
    """A trace of the same run whose times, versions and source paths are the same on every machine."""
    still = placed(trace)
    times = frozen_times(trace.graph)
    for name, column in trace.metrics.items():
        if name.endswith("_ns"):
            kind, values = type(column), times[name]
            still.metrics = still.metrics.with_column(
                kind(name, values, along=column.along, known=column.known)
            )
    still.limits = tuple(
        Limit(portable(limit), kind=limit.kind, site=limit.site and portable(limit.site))
        for limit in trace.limits
    )
    still.meta = {name: _frozen_fact(name, fact, times) for name, fact in trace.meta.items()}
    return still


def frozen_times(graph: tv.Graph) -> dict[str, Any]:
    """Times that add up: of operations from their numbers, of calls from what runs inside them."""
    time = 1000 + 1000 * (np.arange(len(graph), dtype=np.int64) * 37 % 101)
    start = np.cumsum(time + 200) - time
    own = 100 + np.bincount(graph.node_scope, weights=time, minlength=len(graph.scope_parent)).astype(
        np.int64
    )
    whole, begin = own.copy(), np.full(len(own), int(start[-1]) if len(start) else 0)
    np.minimum.at(begin, graph.node_scope, start)
    for scope in range(len(own) - 1, 0, -1):
        parent = graph.scope_parent[scope]
        whole[parent] += whole[scope]
        begin[parent] = min(begin[parent], begin[scope])
    columns = {"start_ns": start, "time_ns": time}
    columns |= {"scope_start_ns": begin, "scope_time_ns": whole, "scope_self_ns": own}
    for name, middle in (("time", time), ("scope_time", whole)):
        columns |= {f"{name}_low_ns": middle * 9 // 10, f"{name}_high_ns": middle * 12 // 10}
    return columns


def _frozen_fact(name: str, fact: Any, times: Mapping[str, Any]) -> Any:
    if name.endswith("_ns"):
        wall = int(times["scope_time_ns"][0])
        return {"overhead_ns": wall // 2, "overhead_error_ns": wall // 10, "compile_ns": 3 * wall}.get(
            name, wall
        )
    if name == "guards":  # how Dynamo looks at Module.__call__ depends on what the process compiled before
        fact = [guard for guard in fact if not CALLING.search(guard)]
    if isinstance(fact, dict):
        return {key: _frozen_fact(key, part, times) for key, part in _portable_data(fact).items()}
    return CIRCUMSTANCES.get(name, _portable_data(fact))


def portable(text: str) -> str:
    """A text with files by their names alone, without addresses."""
    return COUNTED.sub("0", ADDRESS.sub("0", PYTHON_FILE.sub(_file_name, text)))


def _file_name(match: re.Match[str]) -> str:
    name, line = os.path.basename(match["path"]), match["line"]
    return name if line is None else f"{name}:{_line(match['path'], int(line))}"


def _line(path: str, line: int) -> int:
    return 0 if any(folder in Path(path).parents for folder in UNNUMBERED) else line


def _portable_data(item: Any) -> Any:
    if isinstance(item, str):
        return portable(item)
    if isinstance(item, dict):
        plain = {key: _portable_data(part) for key, part in item.items()}
        if isinstance(item.get("file"), str) and isinstance(item.get("line"), int):
            plain["line"] = _line(item["file"], item["line"])
        return plain
    return type(item)(map(_portable_data, item)) if type(item) in (list, tuple) else item


# The traces


class Exact(torch.nn.Module):
    """Layers of small whole numbers: every sum is exact, in whatever order a processor adds."""

    def __init__(self, activation: torch.nn.Module | None = None, largest: int = 2) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.activation = activation or torch.nn.ReLU()
        self.last = torch.nn.Linear(8, 3)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                steps = torch.arange(parameter.numel()).reshape(parameter.shape) * 7 + number
                parameter.copy_(steps % (2 * largest + 1) - largest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.activation(self.first(x)))


def exact_batch() -> torch.Tensor:
    """A batch of small whole numbers."""
    return (torch.arange(24.0) % 5 - 2).reshape(6, 4)


def zoo(name: str, **options: Any) -> tv.Trace:
    """The trace of a case of the zoo, with its backward pass unless the options say otherwise."""
    torch._dynamo.reset()
    case = ZOO[name]
    model, args, kwargs = case.make()
    return tv.trace(model, *args, kwargs=kwargs, **{"backward": case.backward, **options})


def exact(*args: Any, via: str = "eager", dtype: torch.dtype = torch.float32, **options: Any) -> tv.Trace:
    """The trace of a model of whole numbers, forward and backward."""
    torch._dynamo.reset()
    seed_everything()
    return tv.trace(Exact(*args, **options).to(dtype), exact_batch().to(dtype), backward=True, via=via)


def nan_in_loss() -> tv.Trace:
    """A run whose loss is NaN from a logarithm on."""
    seed_everything()
    return tv.trace(Exact(), exact_batch(), loss=lambda y: (y - torch.log(y * 0 - 1)).sum())


def pruned(model: torch.nn.Module, batch: torch.Tensor) -> Any:
    """What pruning half of a model comes to, with the time that it measures replaced."""
    report = tv.advise.pruning(model, batch, ratio=0.5, hardware="a100")
    report.before["time_ns"], report.after["time_ns"] = 30_000, 20_000
    return report


LOOPING = '''
import torch

class Looping(torch.nn.Module):
    """Turns of a plain loop, and a branch that Python decides by a number."""

    def __init__(self):
        super().__init__()
        self.step = torch.nn.Linear(2, 2)

    def forward(self, x):
        for _ in range(4):
            x = torch.relu(self.step(x))
        return x + 1 if x.sum() > 0 else x - 1
'''


class Attending(torch.nn.Module):
    """One layer of attention with a stream beside it, and what reads the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(x))


def looping() -> tv.Trace:
    """A run with a loop and a branch, of a program that lies in no folder."""
    program: dict[str, Any] = {"__name__": "looping"}
    linecache.cache["looping.py"] = (len(LOOPING), None, LOOPING.splitlines(keepends=True), "looping.py")
    exec(compile(LOOPING, "looping.py", "exec"), program)
    seed_everything()
    return tv.trace(program["Looping"](), torch.ones(1, 2))


def attending() -> tv.Trace:
    """A run with attention, two heads over four positions."""
    seed_everything()
    return tv.trace(Attending(), torch.randn(1, 4, 8))


def convolved() -> Any:
    """What one output of two convolutions reads of the input."""
    layers = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 3), torch.nn.Conv1d(1, 1, 3, stride=2))
    return tv.trace(layers, (torch.arange(20.0) % 5 - 2).reshape(1, 1, 20)).receptive_field("1[0, 0, 4]")


def deep_layers(depth: int = 6) -> torch.nn.Module:
    """Equal layers, of which some can be checkpointed."""
    return torch.nn.Sequential(*[Exact() if not n else torch.nn.Linear(3, 3) for n in range(depth)])


def sharded(mesh: Any, layers: int = 12) -> Any:
    """A small model of equal layers, its parameters divided among data-parallel ranks."""
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(layers)])
    for layer in model:
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


@cache
def world() -> tv.World:
    """A step of four ranks that share their parameters, by shapes, on a machine of which the datasheet is known."""
    w = tv.simulate(
        lambda mesh: sharded(mesh, 2), torch.ones(8, 64), mesh={"dp": 4}, hardware="H100", ranks="all"
    )
    return w.with_traces({rank: placed(w[rank]) for rank in w.ranks})


def rank_of_four() -> tv.Trace:
    """A training step of the first of four ranks, by shapes: data parallel in twos, tensor parallel in twos."""
    with fake_group(4):
        return tv.trace(training_step("fsdp2_tp", 0, 4), fake=True)


TRACES: dict[str, Callable[[], tv.Trace]] = {
    "mlp": exact,
    "nan": nan_in_loss,
    "cnn": lambda: zoo("unet"),
    "transformer": lambda: zoo("vit"),
    "repeated_blocks": lambda: zoo("gpt2"),
    "checkpointed": lambda: zoo("checkpoint_nonreentrant"),
    "in_place": lambda: zoo("in_place_on_view_with_grad"),
    "training_step": lambda: zoo("first_step_creates_state"),
    "recurrent": lambda: zoo("lstm_cell_loop"),
    "graph_breaks": lambda: zoo("item_control_flow", via="dynamo"),
    "exported": lambda: zoo("tied_weights", via="export"),
    "aot": lambda: zoo("shared_module", via="aot"),
    "branches": lambda: zoo("cond_operator", via="export", backward=False),
    "functions": lambda: zoo("autocast_bf16", functions=True),
    "timed": lambda: zoo("dropout_train", repeat=2),
    "fake": lambda: zoo("resnet50", fake=True),
    "failed": lambda: zoo("raises_half_way", partial=True),
    "empty": lambda: zoo("empty_model"),
}
PAIRS: dict[str, Callable[[], tuple[tv.Trace, tv.Trace]]] = {
    "compare_activation": lambda: (exact(), exact(torch.nn.Hardtanh(-3, 3))),
    "compare_captured": lambda: (exact(), exact(via="export")),
    "compare_precision": lambda: (exact(largest=11), exact(largest=11, dtype=torch.bfloat16)),
    "compare_checkpoints": lambda: (zoo("checkpoint_nonreentrant"), zoo("checkpoint_reentrant")),
}
ANALYSES: dict[str, Callable[[], Any]] = {
    "batch_size": lambda: tv.advise.batch_size(
        Exact(), exact_batch(), memory="64 KiB", backward=True, measured=False
    ),
    "quantization": lambda: tv.advise.quantization(Exact(largest=11), exact_batch(), hardware="a100"),
    "pruning": lambda: pruned(Exact(), exact_batch()),
    "communication": lambda: frozen(rank_of_four()).communication(),
    "loops": lambda: looping().loops(),
    "python_branches": lambda: looping().branches(),
    "receptive_field": convolved,
    "attribution": lambda: exact().attribute("saliency", target=1),
    "attribution_of_edges": lambda: exact().attribute_edges(lambda y: y.sum(), exact_batch() + 1),
    "attention": lambda: attending().attention(),
    "logit_lens": lambda: attending().logit_lens(),
    "relevance": lambda: exact().relevance(target=1),
    "selection": lambda: exact().select("class:Linear"),
    "sweep": lambda: exact().sweep("class:Linear", tv.edit.zero(), measure=lambda y: y.sum()),
    "checkpointing": lambda: tv.advise.checkpointing(deep_layers(), exact_batch(), memory="1 KiB"),
    "fit": lambda: tv.fit(sharded, torch.ones(8, 64), world=4, memory="1 MiB", whole=False),
    "world": world,
    "world_memory": lambda: world().memory(),
    "world_communication": lambda: world().communication(),
    "world_schedule": lambda: world().schedule(),
    "world_step_time": lambda: world().step_time(),
    "world_critical_path": lambda: world().critical_path(),
    "world_stragglers": lambda: world().stragglers(),
}


@cache
def traced(name: str) -> tv.Trace:
    """The trace of a name, as it was recorded."""
    return TRACES[name]()


@cache
def pair(name: str) -> tuple[tv.Trace, tv.Trace]:
    """The two frozen traces of a comparison."""
    first, second = PAIRS[name]()
    return frozen(first), frozen(second)


# Texts and data of bounded size


def shortened(text: str, room: Room = REPORT, digits: int = EXACT) -> str:
    """A text in which the rest of every long paragraph is a digest."""
    paragraphs = portable(text).rstrip("\n").split("\n\n")
    texts = (_shortened_lines(paragraph.split("\n"), room, digits) for paragraph in paragraphs)
    return "\n\n".join(texts) + "\n"


def _shortened_lines(lines: list[str], room: Room, digits: int) -> str:
    if len(lines) > room.lines + 1:
        rest = lines[room.lines :]
        # A digest of thousands of computed numbers would differ from one processor to the next.
        comparable = [NUMBER.sub("0", line) for line in rest] if digits == COMPUTED else rest
        lines = [*lines[: room.lines], f"… {len(rest)} more lines: {digest(comparable)}"]
    return "\n".join(line if len(line) <= WIDTH else f"{line[:WIDTH]}… {digest(line)}" for line in lines)


def condensed(item: Any, room: Room = FILE, digits: int = EXACT) -> str:
    """Data as JSON, a line for what fits one; of long lists the first rows, and a digest of each column."""
    plain = _plain(item, digits)
    coarse = _without_floats(plain) if digits == COMPUTED else plain
    return "\n".join(_json_lines(_condensed(plain, coarse, room), "")) + "\n"


def _without_floats(item: Any) -> Any:
    """Data in which a float is only there or not: digests of computed numbers differ from one processor to the next."""
    if isinstance(item, dict):
        return {key: _without_floats(part) for key, part in item.items()}
    if isinstance(item, list):
        return [_without_floats(part) for part in item]
    return "float" if isinstance(item, float) else item


def _plain(item: Any, digits: int) -> Any:
    """Data of JSON's own types, with sorted keys and rounded numbers."""
    if isinstance(item, Mapping):
        return {str(key): _plain(item[key], digits) for key in sorted(item, key=str)}
    if isinstance(item, (list, tuple)):
        return [_plain(part, digits) for part in item]
    if isinstance(item, (float, np.floating)):
        return float(f"{float(item):.{digits}g}")
    if isinstance(item, (np.integer, np.ndarray)):
        return _plain(item.tolist(), digits)
    if item is None or isinstance(item, (bool, int)):
        return item
    return portable(str(item))


def _condensed(item: Any, coarse: Any, room: Room) -> Any:
    """The item, or what stands for it where it is long: its first rows, and digests of its coarse form."""
    if len(json.dumps(item, ensure_ascii=False)) <= room.characters:
        return item
    if isinstance(item, str):
        return f"{item[: room.characters]}… {digest(item)}"
    if isinstance(item, dict):
        if len(item) > 40 and all(isinstance(part, dict) for part in item.values()):
            return {"keys": f"{len(item)}: {digest([*item])}", "digest": _digests([*coarse.values()])}
        return {key: _condensed(part, coarse[key], room) for key, part in item.items()}
    if not isinstance(item, list):
        return item
    if not isinstance(item[0], (dict, list)):
        return f"{len(item)} × {json.dumps(item[0], ensure_ascii=False)[:40]}, …: {digest(coarse)}"
    if len(item) <= max(room.rows, 1):
        return [_condensed(part, rough, room) for part, rough in zip(item, coarse)]
    if not room.rows:
        return {"rows": len(item), "digest": digest(coarse)}
    head = [_condensed(part, rough, room) for part, rough in zip(item[: room.rows], coarse)]
    return {"rows": len(item), "first": head, "digest": _digests(coarse)}


def _digests(rows: list[Any]) -> Any:
    """One digest of a list, or of each column where its rows have names or are of one length."""
    if all(isinstance(row, dict) for row in rows):
        names = sorted({name for row in rows for name in row})
        return {name: digest([row.get(name) for row in rows]) for name in names}
    if all(isinstance(row, list) for row in rows) and len({len(row) for row in rows}) == 1 and rows[0]:
        return [digest(column) for column in zip(*rows)]
    return digest(rows)


def digest(item: Any) -> str:
    """The start of the SHA-256 of data."""
    return "#" + hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()[:12]


def _json_lines(item: Any, indent: str) -> Iterator[str]:
    """JSON that breaks lines only where it has to."""
    line = json.dumps(item, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not item or not isinstance(item, (dict, list)):
        yield line
        return
    opening, closing = "{}" if isinstance(item, dict) else "[]"
    named = item.items() if isinstance(item, dict) else ((None, part) for part in item)
    yield opening
    for number, (name, part) in enumerate(named, 1):
        lines = list(_json_lines(part, indent + " "))
        lines[0] = lines[0] if name is None else f"{json.dumps(name, ensure_ascii=False)}: {lines[0]}"
        lines[-1] += "," if number < len(item) else ""
        yield from (f" {line}" for line in lines)
    yield closing


# The kinds of snapshots: each makes the files of one trace, by name

Files = dict[str, str]


def report_of(name: str, make: Callable[[], Any], digits: int = EXACT) -> Files:
    """What a report prints and what its data are; or why there is none."""
    try:
        report = make()
    except tv.errors.TorchVisError as error:
        return {f"{name}.txt": shortened(f"{type(error).__name__}: {error}")}
    files = {f"{name}.txt": shortened(str(report), digits=digits)}
    if hasattr(report, "to_dict"):
        files[f"{name}.json"] = condensed(report.to_dict(), REPORT, digits)
    return files


REPORTS: dict[str, Callable[[tv.Trace], Any]] = {
    "table": lambda trace: trace.table(width=140),
    "summary": lambda trace: trace.summary(),
    "memory": lambda trace: trace.memory(),
    "time": lambda trace: trace.time(),
    "health": lambda trace: trace.health(),
    "gradients": lambda trace: trace.gradients(),
    "fusion": lambda trace: trace.fusion(),
    "partition": lambda trace: trace.partition(),
    "partition_by_module": lambda trace: trace.partition(by="module"),
    "roofline": lambda trace: trace.roofline(hardware="a100"),
    "latency": lambda trace: trace.latency(hardware="a100"),
    "breaks": lambda trace: trace.breaks,
    "check": lambda trace: trace.check(inputs=True),
}
FROM_TENSORS = ("gradients", "health")
# The traces of whole numbers: their files have what these reports leave beside the trace, and their charts are drawn.
WHOLE = ("mlp", "nan")
CHARTED = ("memory", "time", "health", "gradients", "fusion", "partition", "roofline", "latency")


def charts_of(trace: tv.Trace) -> Files:
    """The charts of all reports, as plotly has them."""
    charts: dict[str, Any] = {}
    for kind in CHARTED:
        report = REPORTS[kind](trace)
        charts[kind] = {
            name: report.figure("plotly", chart=name).to_plotly_json() for name in report.charts()
        }
        for figure in charts[kind].values():
            # The look of plotly's own template is not ours.
            figure["layout"].pop("template", None)
    return {"charts.json": condensed(charts, REPEATED)}


def json_file(path: Path) -> str:
    """A JSON file, by keys."""
    return condensed(json.loads(path.read_text(encoding="utf-8")))


def text_file(path: Path) -> str:
    """The beginning of a text file, and a digest of it all."""
    text = LONG_DECIMAL.sub(lambda match: f"{float(match[0]):.{EXACT}g}", path.read_text(encoding="utf-8"))
    return shortened(text, FILE)


def prose_file(path: Path) -> str:
    """A file to read that repeats other reports: every paragraph, of long tables the beginning."""
    return shortened(path.read_text(encoding="utf-8"), REPEATED)


def repeated_data(path: Path) -> str:
    """Data that other reports have as well."""
    return condensed(json.loads(path.read_text(encoding="utf-8")), REPEATED, COMPUTED)


def csv_file(path: Path) -> str:
    """A table, by columns."""
    titles, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
    columns = zip(*rows) if rows else [()] * len(titles)
    return condensed({"titles": titles, "columns": dict(zip(titles, map(list, columns)))})


def archive_file(path: Path) -> str:
    """A zip archive, by members; of those that are JSON, by keys."""
    members: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            if name.endswith(".json"):
                members |= {f"{name}: {key}": digest(part) for key, part in json.loads(data).items()}
            else:
                members[name] = digest(data.hex())
    return condensed(members)


def page_file(path: Path) -> str:
    """The data of a page, unpacked."""
    return condensed(page_data(path.read_text(encoding="utf-8")))


def world_page_file(path: Path) -> str:
    """The data of a page of several ranks, unpacked."""
    return condensed(world_data(path.read_text(encoding="utf-8")))


class Written(NamedTuple):
    """A file that a trace can write: its ending, how it is written, and how it is read for a snapshot."""

    ending: str
    read: Callable[[Path], str]
    write: Callable[[Any, Path], None] = lambda trace, path: trace.save(path)


FILES: dict[str, Written] = {
    "page": Written(".html", page_file),
    "world_page": Written(".html", world_page_file),
    "tvz": Written(".tvz", archive_file),
    "json": Written(".json", json_file),
    "csv": Written(".csv", csv_file),
    "graphml": Written(".graphml", text_file),
    "dot": Written(".dot", text_file),
    "explorer": Written(".explorer.json", json_file),
    "perfetto": Written(".perfetto.json", json_file),
    "svg": Written(".svg", text_file),
    "markdown": Written(".md", prose_file),
    "full_report_data": Written(".json", repeated_data, lambda trace, path: trace.report(path)),
}


def file_of(kind: str, trace: Any) -> Files:
    """A written file, as its snapshot."""
    written = FILES[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"run{written.ending}"
        written.write(trace, path)
        text = written.read(path)
    ending = ".txt" if written.read in (text_file, prose_file) else ".json"
    return {f"file_{kind}{ending}": text}


@contextmanager
def uncalibrated() -> Iterator[None]:
    """No calibration of the machine that this runs on is found."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def kinds(name: str) -> list[str]:
    """The kinds of snapshots that a folder has."""
    if name in PAIRS:
        return ["comparison", "differences", "page"]
    if name in ANALYSES:
        return ["analysis", "world_page"] if name == "world" else ["analysis"]
    files = [kind for kind in FILES if kind != "world_page"]
    return [*REPORTS, *files, "charts"] if name in WHOLE else [*REPORTS, *files]


@cache
def snapshot(name: str, kind: str) -> Files:
    """The files of one kind in one folder, by name."""
    with uncalibrated():
        if name in ANALYSES and kind in FILES:
            return file_of(kind, ANALYSES[name]())
        if name in ANALYSES:
            files = report_of(kind, ANALYSES[name], COMPUTED)
            return {file: NOISE.sub("0", text) for file, text in files.items()}
        if name in PAIRS:
            comparison = tv.compare(*pair(name))
            if kind == "page":
                return file_of(kind, comparison)
            make = comparison.differences if kind == "differences" else lambda: comparison
            return report_of(kind, make, COMPUTED if kind == "differences" else EXACT)
        trace = frozen(traced(name))
        if kind == "charts":
            return charts_of(trace)
        if kind in FILES and name in WHOLE:
            trace = trace.with_metrics(trace.roofline(hardware="a100"), trace.gradients())
        if kind in FILES:
            return file_of(kind, trace)
        digits = COMPUTED if kind in FROM_TENSORS else EXACT
        return report_of(kind, lambda: REPORTS[kind](trace), digits)


NAMES = (*TRACES, *PAIRS, *ANALYSES)


def main() -> None:
    """Write every snapshot anew, or only those of the folders that are named."""
    names = sys.argv[1:] or [*NAMES]
    if not sys.argv[1:]:
        shutil.rmtree(FOLDER, ignore_errors=True)
    count = 0
    for name in names:
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        (FOLDER / name).mkdir(parents=True)
        for kind in kinds(name):
            for file, text in snapshot(name, kind).items():
                (FOLDER / name / file).write_text(text, encoding="utf-8")
                count += 1
    print(f"{count} files in {FOLDER.relative_to(REPOSITORY)}; git diff shows what changed")


if __name__ == "__main__":
    sys.exit(main())
