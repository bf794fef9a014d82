"""The ``.json`` file: every operation and edge as a record that any tool can read, and the way back to a graph.

``docs/json.md`` describes the schema. Each record explains itself (a node holds its operator, arguments and path), so
some of it is said twice. ``load`` goes by the numbers and passes over what only repeats them: ``edges``, and in a
record the fields that its ``call``, ``type``, ``module`` or ``scope`` already gives.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, chain
from typing import Any, BinaryIO

import numpy as np

from torch_vis.errors import FileError, GraphError, shortened
from torch_vis.graph import Call, Column, Graph, Metrics
from torch_vis.graph.call import short_name, to_plain
from torch_vis.graph.io.atomic import PathLike, reading, replacing
from torch_vis.graph.io.json_stream import JsonStream, TooLarge
from torch_vis.graph.io.tables_json import (
    FORMAT,
    check_header,
    check_meta,
    check_metrics,
    damaged,
    not_ours,
    rows_from_plain,
    shown,
    to_json,
)
from torch_vis.graph.run import Limit, Run
from torch_vis.graph.schema import COLUMNS, TABLES, Flag, Kind, Phase, Role
from torch_vis.graph.types import Array, Ints

VERSION = 1
HEAD = b'{\n"format":"' + FORMAT.encode()
CHUNK = 4096  # records made at a time, so that a large graph is never in memory as records
ALGORITHM = "sha256"
# What one record, and all tables, may take of memory: so many times the file's size. One record may be as much as this,
# however small the file is.
MOST_TIMES, ALL_TIMES = 8, 20
FREE_BYTES = 6 << 20
PARTS = ("format", "version", "meta", "limits", "metrics", "names", "devices", "checksum")
LISTS = (
    "calls", "types", "sites", "modules", "scopes", "storages", "values", "nodes", "edges", "results",
    "groups", "placements", "collectives", "waits", "resizes", "placed",
)  # fmt: skip
# what is written only where there is some of it, and need not be there
SELDOM = frozenset(("checksum", "edges", *LISTS[-6:]))
# what has to be known before a list of records can be read
BEFORE = {
    "scopes": ("metrics",),
    "storages": ("metrics", "devices"),
    "values": ("metrics", "names"),
    "nodes": ("metrics",),
}

KINDS = [kind.name.lower() for kind in Kind]
PHASES = [phase.name.lower() for phase in Phase]
ROLES = [role.name.lower() for role in Role]

Record = dict[str, Any]


def save(path: PathLike, run: Run) -> None:
    """Write a graph as JSON, one record to a line, whole or not at all.

    >>> import tempfile
    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.run import Run
    >>> path = tempfile.mkdtemp() + "/run.json"
    >>> save(path, Run(GraphBuilder().build(), Metrics(), meta={"model": "Net"}))
    >>> load(path).meta
    {'model': 'Net'}
    """
    check_metrics(run.graph, run.metrics)
    with replacing(path) as file:
        checksum = hashlib.sha256()
        for part in _written(_sections(run)):
            checksum.update(part)
            file.write(part)
        file.write(_ending(checksum.hexdigest()))


def to_dict(run: Run) -> Record:
    """The same document as Python data.

    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.run import Run
    >>> to_dict(Run(GraphBuilder().build(), Metrics()))["nodes"]
    []
    """
    check_metrics(run.graph, run.metrics)
    document: Record = {
        name: list(section) if isinstance(section, Iterator) else section for name, section in _sections(run)
    }
    return {**document, "checksum": f"{ALGORITHM}:{_checksum(document)}"}


def _written(sections: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """The text of a document up to its checksum, in pieces: one record to a line."""
    opening = "{\n"
    for name, section in sections:
        yield f"{opening}{to_json(name, name)}:".encode()
        if isinstance(section, Iterator):
            separator = "[\n"
            for record in section:
                yield (separator + to_json(name, record, strict=True)).encode()
                separator = ",\n"
            yield b"[]" if separator == "[\n" else b"\n]"
        else:
            yield to_json(name, section, strict=True).encode()
        opening = ",\n"


def _ending(checksum: str) -> bytes:
    return f',\n"checksum":"{ALGORITHM}:{checksum}"\n}}\n'.encode()


def _checksum(document: Mapping[str, Any]) -> str:
    """The checksum of a document, which is that of its text as ``save`` writes it."""
    checksum = hashlib.sha256()
    lists = (name for name in document if name in LISTS)
    sections = {**document, **{name: iter(document[name]) for name in lists}}
    for part in _written(sections.items()):
        checksum.update(part)
    return checksum.hexdigest()


def _sections(run: Run) -> Iterator[tuple[str, Any]]:
    """The document's parts in order; an iterator stands for a list that is made record by record."""
    graph, metrics = run.graph, run.metrics
    yield "format", FORMAT
    yield "version", VERSION
    yield "meta", run.meta
    yield "limits", [limit.to_dict() for limit in run.limits]
    yield (
        "metrics",
        [{"name": c.name, "along": c.along, "dtype": c.values.dtype.name} for c in metrics.values()],
    )
    calls = [{"op": c.op, "args": to_plain(c.args), "kwargs": to_plain_kwargs(c)} for c in graph.calls]
    yield "calls", _numbered(calls)
    yield "types", _numbered(row._asdict() for row in graph.types)
    yield "sites", _numbered(row._asdict() for row in graph.sites)
    yield "modules", _numbered(row._asdict() for row in graph.modules)
    yield "names", list(graph.names)
    yield "devices", list(graph.devices)
    yield "scopes", _numbered(_scopes(graph, metrics))
    yield "storages", _numbered(_storages(graph, metrics))
    yield "values", _numbered(_values(graph, metrics))
    yield "nodes", _numbered(_nodes(graph, metrics, calls))
    yield "edges", _edges(graph)
    yield "results", _numbered(_results(graph))
    if graph.groups:
        yield "groups", _numbered(row._asdict() for row in graph.groups)
    if graph.placements:
        yield "placements", _numbered(row._asdict() for row in graph.placements)
    for name in ("collectives", "waits", "resizes", "placed"):
        columns = [getattr(graph, column).tolist() for column in NUMBERS[name]]
        if columns[0]:
            yield name, _numbered(dict(zip(NUMBERS[name].values(), row)) for row in zip(*columns))


def to_plain_kwargs(call: Call) -> Record:
    """A call's keyword arguments as a JSON object."""
    return {name: to_plain(arg) for name, arg in call.kwargs}


def _numbered(records: Iterable[Record]) -> Iterator[Record]:
    for number, record in enumerate(records):
        yield {"id": number, **record}


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, CHUNK):
        yield slice(start, min(start + CHUNK, count))


def _or_null(column: Any) -> list[int | None]:
    return [None if number < 0 else number for number in column.tolist()]


def _measured(metrics: Metrics, along: str, part: slice) -> list[Record]:
    """The metrics of some rows; None where a row is not known, a string where it is no finite number."""
    columns = {name: _cells(column, part) for name, column in metrics.items() if column.along == along}
    if not columns:
        return [{}] * (part.stop - part.start)
    return [dict(zip(columns, row)) for row in zip(*columns.values(), strict=True)]


def _cells(column: Column, part: slice) -> list[Any]:
    cells: list[Any] = column.values[part].tolist()
    if column.values.dtype.kind == "f":
        cells = [cell if math.isfinite(cell) else repr(cell) for cell in cells]
    if column.known is not None:
        cells = [cell if known else None for cell, known in zip(cells, column.known[part].tolist())]
    return cells


def _scopes(graph: Graph, metrics: Metrics) -> Iterator[Record]:
    for part in _chunks(len(graph.scope_call)):
        parents, modules = _or_null(graph.scope_parent[part]), graph.scope_module[part].tolist()
        measured = _measured(metrics, "scope", part)
        for parent, module, call, result in zip(parents, modules, graph.scope_call[part].tolist(), measured):
            record = graph.modules[module]._asdict()
            yield {"parent": parent, "module": module, **record, "call": call, "metrics": result}


def _storages(graph: Graph, metrics: Metrics) -> Iterator[Record]:
    for part in _chunks(len(graph.storage_bytes)):
        columns = (
            graph.storage_bytes[part].tolist(),
            _or_null(graph.storage_birth[part]),
            graph.storage_death[part].tolist(),
            graph.storage_device[part].tolist(),
            _measured(metrics, "storage", part),
        )
        for size, birth, death, device, result in zip(*columns):
            yield {
                "bytes": size,
                "birth": birth,
                "death": death,
                "device": graph.devices[device],
                "metrics": result,
            }


def _values(graph: Graph, metrics: Metrics) -> Iterator[Record]:
    for part in _chunks(len(graph.value_type)):
        columns = (
            graph.value_type[part].tolist(),
            graph.value_role[part].tolist(),
            _or_null(graph.value_name[part]),
            _or_null(graph.value_producer[part]),
            graph.value_storage[part].tolist(),
            graph.value_offset[part].tolist(),
            _or_null(graph.value_carries[part]),
            _measured(metrics, "value", part),
        )
        for number, role, name, producer, storage, offset, carries, result in zip(*columns):
            type_ = graph.types[number]
            yield {
                "role": ROLES[role],
                "name": None if name is None else graph.names[name],
                "type": number,
                "dtype": type_.dtype,
                "shape": list(type_.shape),
                "producer": producer,
                "storage": storage,
                "offset": offset,
                "carries": carries,
                "metrics": result,
            }


def _nodes(graph: Graph, metrics: Metrics, calls: Sequence[Record]) -> Iterator[Record]:
    names = [(call.op.partition(".")[0], short_name(call.op)) for call in graph.calls]
    flags = [[flag.name.lower() for flag in Flag if bits & flag] for bits in range(256)]
    paths = graph.scope_paths
    for part in _chunks(len(graph)):
        reads, makes = graph.in_start[part.start : part.stop + 1], graph.out_start[part.start : part.stop + 1]
        in_rows, out_rows = slice(int(reads[0]), int(reads[-1])), slice(int(makes[0]), int(makes[-1]))
        in_value, in_slot = graph.in_value[in_rows].tolist(), graph.in_slot[in_rows].tolist()
        in_kind = [KINDS[kind] for kind in graph.in_kind[in_rows].tolist()]
        out_value, out_slot = graph.out_value[out_rows].tolist(), graph.out_slot[out_rows].tolist()
        ins, outs = (reads - reads[0]).tolist(), (makes - makes[0]).tolist()
        columns = (
            graph.node_call[part].tolist(),
            graph.node_phase[part].tolist(),
            graph.node_scope[part].tolist(),
            _or_null(graph.node_site[part]),
            _or_null(graph.node_link[part]),
            graph.node_flags[part].tolist(),
            graph.node_api[part].tolist(),
            _or_null(graph.node_api_first[part]),
            _measured(metrics, "node", part),
        )
        for row, (call, phase, scope, site, link, bits, api, first, result) in enumerate(zip(*columns)):
            read, make = slice(ins[row], ins[row + 1]), slice(outs[row], outs[row + 1])
            yield {
                "call": call,
                "op": names[call][0],
                "name": names[call][1],
                "args": calls[call]["args"],
                "kwargs": calls[call]["kwargs"],
                "phase": PHASES[phase],
                "scope": scope,
                "path": paths[scope],
                "site": site,
                "inputs": in_value[read],
                "input_slots": in_slot[read],
                "input_kinds": in_kind[read],
                "outputs": out_value[make],
                "output_slots": out_slot[make],
                "link": link,
                "flags": flags[bits],
                "api": None if api < 0 else graph.names[api],
                "api_first": first,
                "metrics": result,
            }


def _edges(graph: Graph) -> Iterator[Record]:
    source, target, value, kind = graph.edges()
    for part in _chunks(len(source)):
        columns = (source[part].tolist(), target[part].tolist(), value[part].tolist(), kind[part].tolist())
        types = graph.value_type[value[part]].tolist()
        for start, end, carried, code, number in zip(*columns, types):
            type_ = graph.types[number]
            yield {
                "source": start,
                "target": end,
                "value": carried,
                "kind": KINDS[code],
                "shape": list(type_.shape),
                "dtype": type_.dtype,
            }


def _results(graph: Graph) -> Iterator[Record]:
    for result in graph.outcomes:
        sources = [{"value": value, "kind": KINDS[kind]} for value, kind in result.sources()]
        yield {"name": result.name, "kind": result.kind, "sources": sources}


def load(path: PathLike, *, trust: bool = False) -> Run:
    """Read back what ``save`` wrote: the graph, verified, its metrics, limits and meta.

    ``trust`` takes a file one record of which asks for more memory than its size allows.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise damaged(path, "it is empty")
        most = math.inf if trust else max(MOST_TIMES * size, FREE_BYTES)
        document = _Document(path)
        try:
            document.read(JsonStream(file.read, most=most), ALL_TIMES / MOST_TIMES * most)
            run = document.run()
            _check_sum(file, document.checksum, most)
            return run
        except FileError:
            raise
        except (GraphError, LookupError, ArithmeticError, TypeError, ValueError, RecursionError) as error:
            file.seek(0)
            ours = document.is_ours or _begins_like_ours(file.read(len(HEAD) + 100))
            raise (damaged(path, error) if ours else not_ours(path)) from error


def _begins_like_ours(data: bytes) -> bool:
    start = re.match(rb'\s*\{\s*"format"\s*:\s*"' + FORMAT.encode(), data)
    return start is not None or HEAD.startswith(data)


def _check_sum(file: BinaryIO, expected: Any, most: float) -> None:
    """Raise unless a file's bytes have its checksum, or would have it if ``save`` wrote its content."""
    if expected is None:  # a file from before there were any, or one that was changed on purpose
        return
    size = file.seek(0, os.SEEK_END) - len(_ending("0" * 64))
    checksum = hashlib.sha256()
    file.seek(0)
    while file.tell() < size:
        checksum.update(file.read(min(1 << 20, size - file.tell())))
    if expected == f"{ALGORITHM}:{checksum.hexdigest()}" and file.read() == _ending(checksum.hexdigest()):
        return
    file.seek(0)
    checksum = hashlib.sha256()
    for part in _written(_sections_of(JsonStream(file.read, most=most))):
        checksum.update(part)
    if expected != f"{ALGORITHM}:{checksum.hexdigest()}":
        raise ValueError(
            "its content is not what was saved, by its checksum; if it was changed on purpose, make that null"
        )


def _sections_of(stream: JsonStream) -> Iterator[tuple[str, Any]]:
    """The parts of a document that is read, as ``_sections`` gives those of a run."""
    for name in stream.fields():
        if name == "checksum":
            stream.value()
        else:
            yield name, chain.from_iterable(stream.batches()) if name in LISTS else stream.value()


class _Document:
    """What was read of a document: tables, columns and metrics, each checked as it comes."""

    def __init__(self, path: PathLike) -> None:
        self.path = path
        self.parts: Record = {}
        self.tables: dict[str, list[Any]] = {}
        self.columns = {
            name: array("q", [0] if spec.along.endswith("+1") else []) for name, spec in COLUMNS.items()
        }
        self.metrics: dict[str, _MetricCells] = {}
        self.rows: Counter[str] = Counter()
        # of the entries of a table, by table and name
        self._numbers: dict[str, dict[str, int]] = {}

    @property
    def is_ours(self) -> bool:
        """Whether the part read so far shows that torch_vis wrote the file."""
        return self.parts.get("format") == FORMAT

    @property
    def checksum(self) -> Any:
        """The checksum; None where there is none."""
        return self.parts.get("checksum")

    def read(self, stream: JsonStream, most: float) -> None:
        """Take in all of a file, the tables of which may take so much memory."""
        done: set[str] = set()
        for name in stream.fields():
            if name in done:
                raise ValueError(f"{shown(name)} stands there twice")
            if name in PARTS or name in LISTS:
                done.add(name)
            if name in LISTS:
                self._begin(name, done)
                for batch in stream.batches():
                    if stream.kept > most:
                        raise TooLarge("its tables take more memory than a file of its size may")
                    self._add(name, batch)
            else:
                self._take(name, stream.value())
        self._check_header()
        for name in (*PARTS, *LISTS):
            if name not in done and name not in SELDOM:
                raise KeyError(name)

    def _take(self, name: str, value: Any) -> None:
        if name in PARTS:
            self.parts[name] = value
        if name in ("format", "version") and {"format", "version"} <= self.parts.keys():
            self._check_header()
        elif name in ("names", "devices"):
            self.tables[name] = rows_from_plain(name, value)
        elif name == "metrics":
            for row in value:
                if row["name"] in self.metrics:
                    raise ValueError(f"metric {shortened(str(row['name']))} stands there twice")
                self.metrics[row["name"]] = _MetricCells(row)

    def _check_header(self) -> None:
        check_header(self.path, self.parts, VERSION)

    def _begin(self, name: str, done: Set[str]) -> None:
        for other in BEFORE.get(name, ()):
            if other not in done:
                raise ValueError(f"{name} stands before {other}, which it refers to")
        if name in TABLES:
            self.tables[name] = []

    def _add(self, name: str, batch: list[Any]) -> None:
        """Take in some records of a list."""
        first = self.rows[name]
        for number, row in enumerate(batch, first):
            if type(row) is not dict:
                raise ValueError(f"row {number} of {name} is {shown(row)}, and no record")
            if name != "edges" and (type(row["id"]) is not int or row["id"] != number):
                raise ValueError(f"{name} has the id {shown(row['id'])} in place {number}")
        self.rows[name] += len(batch)
        if name in FIELDS_OF:
            plain = [[row[field] for field in FIELDS_OF[name]] for row in map(_with_pairs, batch)]
            self.tables[name] += rows_from_plain(name, plain, first)
        for column, cells in self._cells(name, batch):
            self.columns[column].extend(_numbers(column, cells, name, first))
        for metric in self.metrics.values():
            if f"{metric.along}s" == name:
                metric.add([row["metrics"][metric.name] for row in batch], first)

    def _cells(self, name: str, batch: list[Record]) -> Iterator[tuple[str, list[Any]]]:
        """The columns that a list of records holds, and where their numbers stand in it."""
        for column, field in NUMBERS.get(name, {}).items():
            yield column, [row[field] for row in batch]
        for column, (field, codes) in CODES.get(name, {}).items():
            yield column, [codes[row[field]] for row in batch]
        for column, field in SEVERAL.get(name, {}).items():
            yield column, [cell for row in batch for cell in _list(row[field], field)]
        for column, field in SPANS.get(name, {}).items():
            yield (
                column,
                [*accumulate((len(row[field]) for row in batch), initial=self.columns[column][-1])][1:],
            )
        if name == "nodes":
            names = self._numbers_of("names")
            # a file from before there were these has neither
            apis = [row.get("api") for row in batch]
            yield "node_api", [None if api is None else names[api] for api in apis]
            yield "node_api_first", [row.get("api_first") for row in batch]
            yield "node_flags", [sum({FLAGS[flag] for flag in _list(row["flags"], "flags")}) for row in batch]
            yield (
                "in_kind",
                [KIND_CODES[kind] for row in batch for kind in _list(row["input_kinds"], "input_kinds")],
            )
        elif name == "values":
            names = self._numbers_of("names")
            yield "value_name", [None if row["name"] is None else names[row["name"]] for row in batch]
        elif name == "storages":
            devices = self._numbers_of("devices")
            yield "storage_device", [devices[row["device"]] for row in batch]
        elif name == "results":
            sources = [source for row in batch for source in _list(row["sources"], "sources")]
            yield "result_value", [source["value"] for source in sources]
            yield "result_kind", [KIND_CODES[source["kind"]] for source in sources]

    def _numbers_of(self, table: str) -> dict[str, int]:
        if table not in self._numbers:
            self._numbers[table] = {name: number for number, name in enumerate(self.tables[table])}
        return self._numbers[table]

    def run(self) -> Run:
        """What the document describes."""
        columns = {
            name: _column(name, cells)
            for name, cells in self.columns.items()
            if len(cells) or COLUMNS[name].default is None
        }
        graph = Graph(columns, self.tables)
        graph.check()
        metrics = Metrics({name: cells.column() for name, cells in self.metrics.items()})
        check_metrics(graph, metrics)
        meta, limits = self.parts["meta"], self.parts["limits"]
        if type(meta) is not dict or type(limits) is not list:
            raise ValueError("meta is no object, or limits are no list")
        check_meta(meta, len(graph))
        return Run(graph, metrics, map(Limit.from_plain, limits), meta)


def _with_pairs(row: Record) -> Record:
    """A call with its keywords as a list of pairs, as tables have them; any other record as it is."""
    if "kwargs" not in row:
        return {"symbols": [], **row}
    if type(row["kwargs"]) is not dict:
        raise ValueError(f"the keywords of a call are {shown(row['kwargs'])}")
    return {**row, "kwargs": [[name, value] for name, value in row["kwargs"].items()]}


def _list(item: Any, what: str) -> list[Any]:
    if type(item) is not list:
        raise ValueError(f"{what} is {shown(item)}, and no list")
    return item


def _numbers(column: str, cells: list[Any], name: str, first: int) -> list[int]:
    """Whole numbers of a column, -1 for null where there may be none; ``True`` and ``1.0`` are no whole numbers."""
    kinds = set(map(type, cells))
    if kinds <= {int}:
        return cells
    if not kinds <= {int, type(None)} or not COLUMNS[column].optional:
        allowed = (int, type(None)) if COLUMNS[column].optional else (int,)
        wrong = next(cell for cell in cells if type(cell) not in allowed)
        raise ValueError(f"{column} of {name} from {first} on has {shown(wrong)}, which is no whole number")
    return [-1 if cell is None else cell for cell in cells]


def _column(name: str, cells: array[int]) -> Ints:
    column: Ints = np.frombuffer(cells, dtype=np.int64) if len(cells) else np.empty(0, dtype=np.int64)
    bounds = np.iinfo(np.dtype(COLUMNS[name].dtype))
    if len(column) and (column.min() < bounds.min or column.max() > bounds.max):
        raise ValueError(f"{name} has numbers below {bounds.min} or above {bounds.max}")
    return column.astype(COLUMNS[name].dtype)


class _MetricCells:
    """The numbers of a metric as they are read, a batch at a time."""

    def __init__(self, row: Record) -> None:
        self.name, self.along, dtype = (row[field] for field in ("name", "along", "dtype"))
        if not all(type(item) is str for item in (self.name, self.along, dtype)):
            raise ValueError(f"a metric is {shown(row)}")
        if self.along not in ALONG:
            raise ValueError(f"metric {shortened(self.name)} runs along {shown(self.along)}")
        if dtype not in METRIC_DTYPES:
            raise ValueError(f"metric {shortened(self.name)} is of type {dtype}")
        self.dtype = np.dtype(dtype)
        self.values: list[Array] = []
        self.known: list[Array] = []

    def add(self, cells: list[Any], first: int) -> None:
        """Some more cells; those of a float that is no finite number are texts."""
        known = [cell is not None for cell in cells]
        kinds = METRIC_CELLS[self.dtype.kind]
        for number, cell in enumerate(cells, first):
            if cell is not None and type(cell) not in kinds and not (float in kinds and cell in NOT_FINITE):
                raise ValueError(f"metric {shortened(self.name)} of {self.along} {number} is {shown(cell)}")
        filled = [0 if cell is None else cell for cell in cells]
        if self.dtype.kind in "iu":
            bounds = np.iinfo(self.dtype)
            if filled and (min(filled) < bounds.min or max(filled) > bounds.max):
                raise ValueError(f"metric {shortened(self.name)} has numbers that are no {self.dtype}")
        elif self.dtype.kind == "f":
            filled = [float(cell) for cell in filled]
        self.values.append(np.array(filled, dtype=self.dtype))
        self.known.append(np.array(known, dtype=np.bool_))

    def column(self) -> Column:
        """The metric."""
        values = np.concatenate([np.empty(0, self.dtype), *self.values])
        known = np.concatenate([np.empty(0, np.bool_), *self.known])
        return Column(self.name, values, along=self.along, known=known)


# Where in the records each column's numbers stand: fields that are numbers, words for a code, lists of numbers, and
# lists whose lengths are counted. What is not so simple is in ``_Document._cells``.
KIND_CODES, PHASE_CODES, ROLE_CODES = (
    {name: code for code, name in enumerate(names)} for names in (KINDS, PHASES, ROLES)
)
FLAGS = {flag.name.lower(): int(flag) for flag in Flag}
NUMBERS: dict[str, dict[str, str]] = {
    "nodes": {"node_call": "call", "node_scope": "scope", "node_site": "site", "node_link": "link"},
    "values": {
        "value_producer": "producer", "value_type": "type", "value_storage": "storage", "value_offset": "offset",
        "value_carries": "carries",
    },
    "storages": {"storage_bytes": "bytes", "storage_birth": "birth", "storage_death": "death"},
    "scopes": {"scope_parent": "parent", "scope_module": "module", "scope_call": "call"},
    "collectives": {
        "comm_node": "node", "comm_group": "group", "comm_seq": "number", "comm_peer": "peer", "comm_tag": "tag",
    },
    "waits": {"wait_node": "node", "wait_comm": "collective"},
    "resizes": {"resize_storage": "storage", "resize_node": "node", "resize_bytes": "bytes"},
    "placed": {"placed_value": "value", "placed_how": "placement"},
}  # fmt: skip
CODES: dict[str, dict[str, tuple[str, dict[str, int]]]] = {
    "nodes": {"node_phase": ("phase", PHASE_CODES)},
    "values": {"value_role": ("role", ROLE_CODES)},
}
SEVERAL: dict[str, dict[str, str]] = {
    "nodes": {
        "in_value": "inputs",
        "in_slot": "input_slots",
        "out_value": "outputs",
        "out_slot": "output_slots",
    }
}
SPANS: dict[str, dict[str, str]] = {
    "nodes": {"in_start": "inputs", "out_start": "outputs"},
    "results": {"result_start": "sources"},
}
# the fields of a record in the order in which tables have them
FIELDS_OF: dict[str, tuple[str, ...]] = {
    "calls": ("op", "args", "kwargs"),
    "types": ("dtype", "shape", "stride", "layout", "conj", "neg", "symbols"),
    "sites": ("file", "line", "function"),
    "modules": ("path", "type", "kind"),
    "results": ("name", "kind"),
    "groups": ("name", "ranks", "position", "axis", "backend"),
    "placements": ("shape", "axes", "placements"),
}
ALONG = ("node", "value", "storage", "scope")
METRIC_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
)
METRIC_CELLS: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "u": (int,), "f": (float, int)}
NOT_FINITE = ("nan", "inf", "-inf")
