"""The ``.tvz`` file: a zip of a graph's columns and tables, read back with numpy alone.

===================  ============================================================================================
entry                content
===================  ============================================================================================
``torch_vis.json``   first and not compressed: ``{"format": "torch_vis.graph", "version": 1}``
``columns/NAME``     one column of ``schema.COLUMNS``; of those that few runs have, only where it has rows
``metrics/N``        one measurement; ``metrics/N.known`` is beside it where some rows are not known
``tables.json``      the interned tables, each a list of rows; calls as ``call.to_plain`` gives them
``header.json``      how each column is stored (rows, element type, steps), the metrics' names, ``limits``, ``meta``,
                     and the CRC-32 of every other entry
``padding``          zeros, in a file that would be less than a twentieth of the memory that it takes
===================  ============================================================================================

A column goes through three steps, each of which the header lets a reader undo:

1. integers that take less room so (offsets, clocks, running numbers) are stored as steps from one to the next;
2. integers take the smallest signed type that holds them, little-endian;
3. bytes are grouped by significance (all lowest bytes, then all second bytes…), so that deflate sees long runs.

Dates in the zip are fixed: the same graph always gives the same bytes. There is no pickle anywhere in it.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import IO, Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from torch_vis.errors import FileError, GraphError, shortened
from torch_vis.graph.graph import Graph
from torch_vis.graph.io.atomic import PathLike, read_whole, replacing
from torch_vis.graph.io.codec import FLOATS, INTEGERS, decode, encode
from torch_vis.graph.io.json_stream import JsonStream, TooLarge, kept_of, weight
from torch_vis.graph.io.tables_json import (
    FORMAT,
    check_header,
    check_meta,
    check_metrics,
    damaged,
    not_ours,
    rows_from_plain,
    shown,
    tables_to_plain,
    to_json,
)
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.run import Limit, Run
from torch_vis.graph.schema import COLUMNS, LATER_TABLES, SPARSE, TABLES
from torch_vis.graph.types import Array

Item = TypeVar("Item")

VERSION = 1
MARKER = "torch_vis.json"
# At a million operations, level 6 takes twice as long for 6 % fewer bytes, level 1 a third less for 7 % more.
LEVEL = 4
# What a file may take of memory: so many times its own size, and as much as this however small it is. A file is padded
# where that is not enough, so that one that asks for more was not written here.
MOST_TIMES = 20
FREE_BYTES = 16 << 20
# What the rules of a graph need per row, and what a limit can be as a Python object.
SCRATCH_BYTES = 36
LIMIT_BYTES = 160
SHORT = 1024
METRIC_DTYPE = re.compile(r"\|[bui]1|[<>]([iu][248]|f[248])")
STORED = tuple(f"<{code}" for code in INTEGERS + FLOATS)
MOST_EXPANSION = 1100  # deflate cannot pack tighter than 1032 to 1

# What zipfile, zlib, json and our own decoding can raise on bytes that are not what they were.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,  # what other compressors say of data that is none of theirs
    GraphError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
    ValueError,  # bad JSON and bad text encoding are ValueErrors
    RuntimeError,  # "encrypted", "unknown compression method", nested too deep
)


def save(path: PathLike, run: Run) -> None:
    """Write a graph and all that goes with it to one ``.tvz`` file, whole or not at all.

    >>> import tempfile
    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.run import Run
    >>> path = tempfile.mkdtemp() + "/run.tvz"
    >>> save(path, Run(GraphBuilder().build(), Metrics(), ["nothing ran"], {"model": "Net"}))
    >>> load(path).limits
    ('nothing ran',)
    """
    with replacing(path) as file:
        write(file, run)


def write(file: BinaryIO, run: Run) -> None:
    """Write the same to an open file."""
    graph = run.graph
    # What can be computed from the graph need not be kept beside it.
    metrics = run.metrics.at_hand()
    check_metrics(graph, metrics)
    tables = to_json("the graph's tables", tables_to_plain(graph))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive:
        marker = to_json("the marker", {"format": FORMAT, "version": VERSION})
        archive.writestr(_entry(MARKER), marker, zipfile.ZIP_STORED)
        columns = {
            name: _write_column(archive, f"columns/{name}", getattr(graph, name))
            for name, spec in COLUMNS.items()
            if spec.along not in SPARSE or len(getattr(graph, name))
        }
        measured = [_write_metric(archive, number, column) for number, column in enumerate(metrics.values())]
        _write(archive, "tables.json", tables.encode())
        header = {
            "columns": columns,
            "metrics": measured,
            "limits": [limit.to_dict() for limit in run.limits],
            "meta": run.meta,
            "checksums": {entry.filename: entry.CRC for entry in archive.infolist()},
        }
        text = to_json("the trace's meta", header)
        _write(archive, "header.json", text.encode())
        weighs = weight(text) + LIMIT_BYTES * len(run.limits)
        _pad(file, archive, _memory(graph, metrics, kept_of(len(tables), tables.count("[")), weighs))


def _memory(graph: Graph, metrics: Metrics, tables: int, header: int) -> int:
    """The memory that a reader reckons with."""
    columns = [(len(column), column.itemsize) for column in (getattr(graph, name) for name in COLUMNS)]
    columns += [
        (len(column), column.values.itemsize + (column.known is not None)) for column in metrics.values()
    ]
    return needed(columns, tables, header)


def _pad(file: BinaryIO, archive: zipfile.ZipFile, memory: int) -> None:
    """Pad a file that compresses so well that it would be refused for the memory it expands to."""
    short = memory // MOST_TIMES - file.tell()
    if memory > FREE_BYTES and short > 0:
        archive.writestr(_entry("padding"), bytes(short), zipfile.ZIP_STORED)


def load(path: PathLike, *, trust: bool = False) -> Run:
    """Read back what ``save`` wrote: the graph, verified, its metrics, limits and meta.

    ``trust`` takes a file that asks for more memory than its size allows.
    """
    data = read_whole(path)
    return read(path, data, inf if trust else allowed(len(data)))


def read(path: PathLike, data: bytes, memory: float) -> Run:
    """The same of the bytes of a file, which may take so much memory."""
    if not data:
        raise damaged(path, "it is empty")
    start = b"PK\3\4" + data[4:30] + MARKER.encode()
    begins_like_ours = data.startswith(start[: len(data)])
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if not begins_like_ours and MARKER not in archive.namelist():
                raise not_ours(path)
            reader = _Reader(archive, memory)
            # a zip is read from its end on, so that of two files one after the other the second would be read
            if archive.getinfo(MARKER).header_offset:
                raise ValueError("it begins with something else")
            check_header(path, json.loads(reader.read(MARKER, SHORT)), VERSION)
            return reader.run()
    except FileError:
        raise
    except zipfile.BadZipFile as error:
        raise (damaged(path, error) if begins_like_ours else not_ours(path)) from error
    except DAMAGE as error:
        raise damaged(path, error) from error


def allowed(file_size: int) -> int:
    """The bytes of memory that a file of a size may take when it is loaded.

    >>> allowed(1000), allowed(10_000_000)
    (16777216, 200000000)
    """
    return max(MOST_TIMES * file_size, FREE_BYTES)


def needed(columns: Iterable[tuple[int, int]], tables: int, header: int) -> int:
    """The most memory that a graph takes: columns by rows and bytes per row, what the tables and the header weigh.

    >>> needed([(1000, 4), (2000, 8)], tables=100, header=0)
    92100
    """
    rows = [*columns]
    # the rules of a graph are checked with tables of numbers as long as its longest column
    scratch = SCRATCH_BYTES * max((count for count, _ in rows), default=0)
    return sum(count * width for count, width in rows) + scratch + tables + header


class _Reader:
    """The reading of one file, which may take so much memory; nothing is unpacked before its size is known to fit."""

    def __init__(self, archive: zipfile.ZipFile, memory: float) -> None:
        self.archive = archive
        self.memory = memory
        self.sums: dict[str, int] = {}

    def run(self) -> Run:
        """All that the file holds."""
        header, weighs = self._header()
        self._check_sizes(header)
        others = needed(header.sizes(), 0, weighs)
        least = kept_of(self._entry("tables.json").file_size, 0)
        self._afford(others + least)
        tables = self._tables(others, self.memory - weighs - least)
        columns = {
            name: self._column(f"columns/{name}", header.columns[name], np.dtype(spec.dtype))
            for name, spec in COLUMNS.items()
            if name in header.columns or spec.default is None
        }
        graph = Graph(columns, tables)
        graph.check()
        metrics = Metrics(
            {entry.name: self._metric(number, entry) for number, entry in enumerate(header.metrics)}
        )
        check_metrics(graph, metrics)
        check_meta(header.meta, len(graph))
        self._check_sums(header.sums)
        return Run(graph, metrics, header.limits, header.meta)

    def _afford(self, size: float) -> None:
        if size > self.memory:
            raise TooLarge(
                f"it takes {size / 2**20:,.0f} MiB of memory, and a file of its size may take "
                f"{self.memory / 2**20:,.0f} MiB"
            )

    def _header(self) -> tuple[_Header, int]:
        """The header, and the memory that it takes."""
        size = self._entry("header.json").file_size
        self._afford(kept_of(size, 0))
        text = self.read("header.json", size).decode()
        weighs = weight(text)
        self._afford(weighs)
        fields = json.loads(text)
        limits = _of_kind(fields["limits"], list, "limits")
        weighs += LIMIT_BYTES * len(limits)
        self._afford(weighs)
        header = _Header(
            {name: _stored(name, how) for name, how in _of_kind(fields["columns"], dict, "columns").items()},
            [_metric_entry(entry) for entry in _of_kind(fields["metrics"], list, "metrics")],
            [Limit.from_plain(limit) for limit in limits],
            _of_kind(fields["meta"], dict, "meta"),
            _of_kind(fields.get("checksums", {}), dict, "checksums"),
        )
        return header, weighs

    def _check_sizes(self, header: _Header) -> None:
        """Every column is as long as announced, and as those beside it."""
        for name, how in header.stored():
            size, announced = self._entry(name).file_size, how.rows * np.dtype(how.code).itemsize
            if size != announced:
                raise ValueError(f"{name} has {size} bytes where {announced} belong")

    def _tables(self, others: int, most: float) -> dict[str, list[Any]]:
        """The tables; ``others`` is the memory for the rest of the file, ``most`` the limit for one record."""
        tables: dict[str, list[Any]] = {}
        with self._open("tables.json") as stream:
            source = JsonStream(stream.read, most=most)
            for name in source.fields():
                if name not in TABLES or name in tables:
                    raise ValueError(f"tables.json has {shown(name)} twice, or there is no such table")
                rows = tables[name] = []
                for batch in source.batches():
                    self._afford(others + source.kept)
                    rows += rows_from_plain(name, batch, len(rows))
        for name in TABLES:
            if name not in tables and name not in LATER_TABLES:
                raise ValueError(f"tables.json has no {name}")
        return tables

    def _metric(self, number: int, entry: _MetricEntry) -> Column:
        name = f"metrics/{number}"
        values = self._column(name, entry.values, entry.dtype)
        mask = None if entry.known is None else self._column(f"{name}.known", entry.known, np.dtype(np.bool_))
        return Column(entry.name, values, along=entry.along, known=mask)

    def _column(self, name: str, how: _Stored, dtype: np.dtype[Any]) -> Array:
        """The inverse of ``_write_column``."""
        data = self.read(name, how.rows * np.dtype(how.code).itemsize)
        if (how.code[1] == "f") != (dtype.kind == "f"):
            raise ValueError(f"{name} is stored as {how.code}, which cannot be {dtype}")
        column = decode(data, how.code[1:], how.is_steps)
        # what is not signed and of 64 bits wraps, and wraps back
        if len(column) and dtype.kind in "biu" and dtype.str[1:] != "u8":
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            if column.min() < low or column.max() > high:
                raise ValueError(f"{name} has numbers that are no {dtype}")
        return column.astype(dtype, copy=False)

    def read(self, name: str, most: int) -> bytes:
        """One entry, which is no longer than announced."""
        with self._open(name) as stream:
            # with a number: without one, all that is compressed is expanded first, whatever size it claims
            data = stream.read(most)
            # at the end its sum is checked
            if stream.read(1):
                raise ValueError(f"{name} is longer than announced")
        return data

    def _open(self, name: str) -> IO[bytes]:
        entry = self._entry(name)
        self.sums[name] = entry.CRC
        return self.archive.open(entry)

    def _entry(self, name: str) -> zipfile.ZipInfo:
        if name not in self.archive.NameToInfo:
            raise ValueError(f"{name} is missing")
        entry = self.archive.getinfo(name)
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed in a way that no file of ours is")
        if entry.file_size > MOST_EXPANSION * entry.compress_size + 1024:
            raise ValueError(f"{name} cannot hold {entry.file_size} bytes")
        return entry

    def _check_sums(self, sums: Mapping[str, Any]) -> None:
        """Each entry is intact on its own; this finds those that come from another file."""
        for name, number in self.sums.items():
            if name in sums and sums[name] != number:
                raise ValueError(f"{name} is not the one that was saved with the rest")


class _Stored(NamedTuple):
    """How a column is stored: how many rows, of which type, and whether as steps from one to the next."""

    rows: int
    code: str
    is_steps: bool


class _MetricEntry(NamedTuple):
    """What the header says of a metric."""

    name: str
    along: str
    dtype: np.dtype[Any]
    values: _Stored
    known: _Stored | None


class _Header(NamedTuple):
    """The file's header, field by field."""

    columns: dict[str, _Stored]
    metrics: list[_MetricEntry]
    limits: list[Limit]
    meta: dict[str, Any]
    sums: dict[str, Any]

    def stored(self) -> Iterator[tuple[str, _Stored]]:
        """Every column and the entry that it is in."""
        yield from ((f"columns/{name}", how) for name, how in self.columns.items() if name in COLUMNS)
        for number, metric in enumerate(self.metrics):
            yield f"metrics/{number}", metric.values
            if metric.known is not None:
                yield f"metrics/{number}.known", metric.known

    def sizes(self) -> Iterator[tuple[int, int]]:
        """The rows of every column and the bytes of a row in memory; rows that disagree are an error."""
        rows: dict[str, int] = {}
        for name, how in self.columns.items():
            if name in COLUMNS:
                along, _, extra = COLUMNS[name].along.partition("+")
                more = 1 if extra else 0
                expected = rows.setdefault(along, how.rows - more) + more
                if how.rows != expected:
                    raise ValueError(f"column {name} has {how.rows} rows where {expected} belong")
                yield how.rows, np.dtype(COLUMNS[name].dtype).itemsize
        for metric in self.metrics:
            for part, width in ((metric.values, metric.dtype.itemsize), (metric.known, 1)):
                if part is not None and part.rows != rows.get(metric.along):
                    raise ValueError(
                        f"metric {shortened(metric.name)} has {part.rows} rows along {shown(metric.along)}"
                    )
                yield (0 if part is None else part.rows), width


def _stored(name: str, how: Any) -> _Stored:
    rows, code, is_steps = (_of_kind(how, dict, "columns")[field] for field in ("rows", "stored", "steps"))
    if type(rows) is not int or rows < 0 or code not in STORED or type(is_steps) is not bool:
        raise ValueError(f"{shown(name)} cannot have {shown(rows)} rows of {shown(code)}")
    if is_steps and code[1] == "f":
        raise ValueError(f"{shown(name)} cannot be steps of {code}")
    return _Stored(rows, code, is_steps)


def _metric_entry(entry: Any) -> _MetricEntry:
    name, along, code = (_of_kind(entry[field], str, field) for field in ("name", "along", "dtype"))
    if not METRIC_DTYPE.fullmatch(code):
        raise ValueError(f"metric {shortened(name)} is of type {shown(code)}")
    values, known = _stored(name, entry["values"]), entry["known"]
    return _MetricEntry(name, along, np.dtype(code), values, None if known is None else _stored(name, known))


def _of_kind(item: Any, kind: type[Item], what: str) -> Item:
    if type(item) is not kind:
        raise ValueError(f"{what} of the header is {shown(item)}")
    return item


def _write_metric(archive: zipfile.ZipFile, number: int, column: Column) -> dict[str, Any]:
    name, known = f"metrics/{number}", column.known
    return {
        "name": column.name,
        "along": column.along,
        "dtype": column.values.dtype.str,
        "values": _write_column(archive, name, column.values),
        "known": None if known is None else _write_column(archive, f"{name}.known", known),
    }


def _write_column(archive: zipfile.ZipFile, name: str, column: Array) -> dict[str, Any]:
    """Store one column and say how."""
    encoded = encode(column)
    _write(archive, name, encoded.data)
    return {"rows": len(column), "stored": f"<{encoded.code}", "steps": encoded.difference}


def _write(archive: zipfile.ZipFile, name: str, data: Any) -> None:
    archive.writestr(_entry(name), data, zipfile.ZIP_DEFLATED, LEVEL)


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
