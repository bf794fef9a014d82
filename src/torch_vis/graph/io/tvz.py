"""The ``.tvz`` file: a zip of a graph's columns and tables, read back with numpy alone.

===================  ============================================================================================
entry                content
===================  ============================================================================================
``torch_vis.json``   first and not compressed: ``{"format": "torch_vis.graph", "version": 1}``
``columns/NAME``     one column of ``schema.COLUMNS``
``metrics/N``        one measurement; ``metrics/N.known`` is beside it where some rows are not known
``tables.json``      the interned tables, each a list of rows; calls as ``template.to_plain`` gives them
``header.json``      how each column is stored (rows, element type, steps), the metrics' names, ``limits``, ``meta``
===================  ============================================================================================

A column goes through three steps, each of which the header lets a reader undo:

1. integers that never decrease (offsets, clocks, running numbers) are stored as steps from one to the next;
2. integers take the smallest signed type that holds them, little-endian;
3. bytes are grouped by significance (all lowest bytes, then all second bytes…), so that deflate sees long runs.

Dates in the zip are fixed: the same graph always gives the same bytes. There is no pickle anywhere in it.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from torch_vis.errors import FileError, GraphError
from torch_vis.graph.graph import Graph
from torch_vis.graph.io.atomic import PathLike, read_whole, replacing
from torch_vis.graph.io.codec import FLOATS, INTEGERS, decode, encode
from torch_vis.graph.io.tables_json import (
    FORMAT,
    check_header,
    check_metrics,
    damaged,
    is_number,
    not_ours,
    tables_from_plain,
    tables_to_plain,
    to_json,
)
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.record import Limit, Run
from torch_vis.graph.schema import COLUMNS
from torch_vis.graph.types import Array

VERSION = 1
MARKER = "torch_vis.json"
# At a million operations, level 6 takes twice as long for 6 % fewer bytes, level 1 a third less for 7 % more.
LEVEL = 4
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
    >>> from torch_vis.graph.record import Run
    >>> path = tempfile.mkdtemp() + "/run.tvz"
    >>> save(path, Run(GraphBuilder().build(), Metrics(), ["nothing ran"], {"model": "Net"}))
    >>> load(path).limits
    ('nothing ran',)
    """
    graph = run.graph
    # What can be computed from the graph need not be kept beside it.
    metrics = run.metrics.at_hand()
    check_metrics(graph, metrics)
    tables = to_json("the graph's tables", tables_to_plain(graph))
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive,
    ):
        marker = to_json("the marker", {"format": FORMAT, "version": VERSION})
        archive.writestr(_entry(MARKER), marker, zipfile.ZIP_STORED)
        columns = {name: _write_column(archive, f"columns/{name}", getattr(graph, name)) for name in COLUMNS}
        header = {
            "columns": columns,
            "metrics": [
                _write_metric(archive, number, column) for number, column in enumerate(metrics.values())
            ],
            "limits": [limit.to_dict() for limit in run.limits],
            "meta": run.meta,
        }
        _write(archive, "tables.json", tables.encode())
        _write(archive, "header.json", to_json("the trace's meta", header).encode())


def load(path: PathLike) -> Run:
    """Read back what ``save`` wrote: the graph, verified, its metrics, limits and meta."""
    data = read_whole(path)
    if not data:
        raise damaged(path, "it is empty")
    start = b"PK\3\4" + data[4:30] + MARKER.encode()
    begins_like_ours = data.startswith(start[: len(data)])
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if not begins_like_ours and MARKER not in archive.namelist():
                raise not_ours(path)
            check_header(path, json.loads(_read(archive, MARKER)), VERSION)
            return _read_all(archive)
    except FileError:
        raise
    except zipfile.BadZipFile as error:
        raise (damaged(path, error) if begins_like_ours else not_ours(path)) from error
    except DAMAGE as error:
        raise damaged(path, error) from error


def _read_all(archive: zipfile.ZipFile) -> Run:
    header = json.loads(_read(archive, "header.json"))
    columns = {
        name: _read_column(archive, f"columns/{name}", header["columns"][name]).astype(spec.dtype, copy=False)
        for name, spec in COLUMNS.items()
    }
    graph = Graph(columns, tables_from_plain(json.loads(_read(archive, "tables.json"))))
    graph.check()
    result = [_read_metric(archive, number, entry) for number, entry in enumerate(header["metrics"])]
    metrics = Metrics({column.name: column for column in result})
    check_metrics(graph, metrics)
    return Run(graph, metrics, map(Limit.from_plain, header["limits"]), dict(header["meta"]))


def _write_metric(archive: zipfile.ZipFile, number: int, column: Column) -> dict[str, Any]:
    name, known = f"metrics/{number}", column.known
    return {
        "name": column.name,
        "along": column.along,
        "dtype": column.values.dtype.str,
        "values": _write_column(archive, name, column.values),
        "known": None if known is None else _write_column(archive, f"{name}.known", known),
    }


def _read_metric(archive: zipfile.ZipFile, number: int, entry: Mapping[str, Any]) -> Column:
    name, dtype = f"metrics/{number}", np.dtype(entry["dtype"])
    if not is_number(dtype):
        raise ValueError(f"metric {entry['name']} is of type {dtype}")
    values = _read_column(archive, name, entry["values"]).astype(dtype, copy=False)
    known = entry["known"]
    mask = None if known is None else _read_column(archive, f"{name}.known", known).astype(np.bool_)
    return Column(str(entry["name"]), values, along=entry["along"], known=mask)


def _write_column(archive: zipfile.ZipFile, name: str, column: Array) -> dict[str, Any]:
    """Store one column and say how."""
    encoded = encode(column)
    _write(archive, name, encoded.data)
    return {"rows": len(column), "stored": f"<{encoded.code}", "steps": encoded.difference}


def _read_column(archive: zipfile.ZipFile, name: str, how: Mapping[str, Any]) -> Array:
    """The inverse of ``_write_column``, up to the width of the integers."""
    rows, stored = how["rows"], how["stored"]
    if type(rows) is not int or rows < 0 or stored not in STORED:
        raise ValueError(f"{name} cannot have {rows!r} rows of {stored!r}")
    data = _read(archive, name, size=rows * np.dtype(stored).itemsize)
    return decode(data, stored[1:], bool(how["steps"]))


def _write(archive: zipfile.ZipFile, name: str, data: Any) -> None:
    archive.writestr(_entry(name), data, zipfile.ZIP_DEFLATED, LEVEL)


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))


def _read(archive: zipfile.ZipFile, name: str, *, size: int | None = None) -> bytes:
    """One entry, after its sizes were found possible: nothing is unpacked that the header did not announce."""
    entry = archive.getinfo(name)
    if size is not None and entry.file_size != size:
        raise ValueError(f"{name} has {entry.file_size} bytes where {size} belong")
    if entry.file_size > MOST_EXPANSION * entry.compress_size + 1024:
        raise ValueError(f"{name} cannot hold {entry.file_size} bytes")
    return archive.read(entry)
