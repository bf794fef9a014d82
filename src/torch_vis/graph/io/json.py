"""The ``.json`` file: every operation and edge as a record that any tool can read, and the way back to a graph.

``docs/json.md`` describes the schema. Each record explains itself (a node holds its operator, arguments and path), so
some of it is said twice. ``load`` goes by the numbers and passes over what only repeats them: ``edges``, and in a
record the fields that its ``call``, ``type``, ``module`` or ``scope`` already gives.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis.errors import GraphError
from torch_vis.graph import Call, Column, Graph, Metrics
from torch_vis.graph.call import from_plain, short_name, to_plain
from torch_vis.graph.io.atomic import PathLike, read_whole, replacing
from torch_vis.graph.io.tables_json import (
    FORMAT,
    check_header,
    check_metrics,
    damaged,
    is_number,
    not_ours,
    to_json,
)
from torch_vis.graph.record import Limit, Run
from torch_vis.graph.schema import COLUMNS, Flag, Kind, Module, Phase, ResultRow, Role, Site, TensorType

VERSION = 1
HEAD = b'{\n"format":"' + FORMAT.encode()
CHUNK = 4096  # records made at a time, so that a large graph is never in memory as records

KINDS = [kind.name.lower() for kind in Kind]
PHASES = [phase.name.lower() for phase in Phase]
ROLES = [role.name.lower() for role in Role]

Record = dict[str, Any]


def save(path: PathLike, run: Run) -> None:
    """Write a graph as JSON, one record to a line, whole or not at all.

    >>> import tempfile
    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.record import Run
    >>> path = tempfile.mkdtemp() + "/run.json"
    >>> save(path, Run(GraphBuilder().build(), Metrics(), meta={"model": "Net"}))
    >>> load(path).meta
    {'model': 'Net'}
    """
    check_metrics(run.graph, run.metrics)
    with replacing(path) as file:
        opening = b"{\n"
        for name, section in _sections(run):
            file.write(opening + f'"{name}":'.encode())
            if isinstance(section, Iterator):
                separator = b"[\n"
                for record in section:
                    file.write(separator + to_json(name, record, strict=True).encode())
                    separator = b",\n"
                file.write(b"[]" if separator == b"[\n" else b"\n]")
            else:
                file.write(to_json(name, section, strict=True).encode())
            opening = b",\n"
        file.write(b"\n}\n")


def to_dict(run: Run) -> Record:
    """The same document as Python data.

    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.record import Run
    >>> to_dict(Run(GraphBuilder().build(), Metrics()))["nodes"]
    []
    """
    check_metrics(run.graph, run.metrics)
    return {
        name: list(section) if isinstance(section, Iterator) else section for name, section in _sections(run)
    }


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
            _measured(metrics, "node", part),
        )
        for row, (call, phase, scope, site, link, bits, result) in enumerate(zip(*columns)):
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


def load(path: PathLike) -> Run:
    """Read back what ``save`` wrote: the graph, verified, its metrics, limits and meta."""
    data = read_whole(path)
    if not data:
        raise damaged(path, "it is empty")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        begins_like_ours = HEAD.startswith(data) or re.match(
            rb'\s*\{\s*"format"\s*:\s*"' + FORMAT.encode(), data
        )
        raise (damaged(path, error) if begins_like_ours else not_ours(path)) from error
    check_header(path, document, VERSION)
    try:
        return _read_document(document)
    except KeyError as error:
        raise damaged(path, f"{error} is missing or unknown") from error
    except (GraphError, LookupError, ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise damaged(path, error) from error


def _read_document(document: Record) -> Run:
    numbered = ("calls", "types", "sites", "modules", "scopes", "storages", "values", "nodes", "results")
    for section in numbered:
        for number, record in enumerate(document[section]):
            if record["id"] != number:
                raise ValueError(f"{section} has the id {record['id']} in place {number}")
    tables: dict[str, list[Any]] = {
        "calls": [_call(row) for row in document["calls"]],
        "types": [_type(row) for row in document["types"]],
        "sites": [Site(row["file"], row["line"], row["function"]) for row in document["sites"]],
        "modules": [Module(row["path"], row["type"], row["kind"]) for row in document["modules"]],
        "names": [str(name) for name in document["names"]],
        "devices": [str(name) for name in document["devices"]],
        "results": [ResultRow(row["name"], row["kind"]) for row in document["results"]],
    }
    columns = {name: _column(name, cells) for name, cells in _cells_of(document, tables).items()}
    graph = Graph(columns, tables)
    graph.check()
    result = {row["name"]: _metric(document, row) for row in document["metrics"]}
    metrics = Metrics(result)
    check_metrics(graph, metrics)
    return Run(graph, metrics, map(Limit.from_plain, document["limits"]), dict(document["meta"]))


def _cells_of(document: Record, tables: Mapping[str, list[Any]]) -> dict[str, Iterable[Any]]:
    """Where in the records each column's numbers stand."""
    nodes, values, storages = document["nodes"], document["values"], document["storages"]
    scopes, results = document["scopes"], document["results"]
    kinds, phases, roles = ({name: i for i, name in enumerate(names)} for names in (KINDS, PHASES, ROLES))
    names = {name: number for number, name in enumerate(tables["names"])}
    devices = {name: number for number, name in enumerate(tables["devices"])}
    bits = {flag.name.lower(): int(flag) for flag in Flag}
    return {
        "node_call": (row["call"] for row in nodes),
        "node_scope": (row["scope"] for row in nodes),
        "node_site": (row["site"] for row in nodes),
        "node_link": (row["link"] for row in nodes),
        "node_phase": (phases[row["phase"]] for row in nodes),
        "node_flags": (sum(bits[flag] for flag in row["flags"]) for row in nodes),
        "in_start": _starts(row["inputs"] for row in nodes),
        "out_start": _starts(row["outputs"] for row in nodes),
        "in_value": (value for row in nodes for value in row["inputs"]),
        "in_slot": (slot for row in nodes for slot in row["input_slots"]),
        "in_kind": (kinds[kind] for row in nodes for kind in row["input_kinds"]),
        "out_value": (value for row in nodes for value in row["outputs"]),
        "out_slot": (slot for row in nodes for slot in row["output_slots"]),
        "value_producer": (row["producer"] for row in values),
        "value_type": (row["type"] for row in values),
        "value_storage": (row["storage"] for row in values),
        "value_offset": (row["offset"] for row in values),
        "value_carries": (row["carries"] for row in values),
        "value_name": (None if row["name"] is None else names[row["name"]] for row in values),
        "value_role": (roles[row["role"]] for row in values),
        "storage_bytes": (row["bytes"] for row in storages),
        "storage_birth": (row["birth"] for row in storages),
        "storage_death": (row["death"] for row in storages),
        "storage_device": (devices[row["device"]] for row in storages),
        "scope_parent": (row["parent"] for row in scopes),
        "scope_module": (row["module"] for row in scopes),
        "scope_call": (row["call"] for row in scopes),
        "result_start": _starts(row["sources"] for row in results),
        "result_value": (source["value"] for row in results for source in row["sources"]),
        "result_kind": (kinds[source["kind"]] for row in results for source in row["sources"]),
    }


def _column(name: str, cells: Iterable[Any]) -> Any:
    spec = COLUMNS[name]
    return np.fromiter((-1 if cell is None else cell for cell in cells), dtype=spec.dtype)


def _starts(lists: Iterable[Sequence[Any]]) -> Iterator[int]:
    total = 0
    yield total
    for items in lists:
        total += len(items)
        yield total


def _call(row: Record) -> Call:
    return Call(
        row["op"], from_plain(row["args"]), tuple((k, from_plain(v)) for k, v in row["kwargs"].items())
    )


def _type(row: Record) -> TensorType:
    shape, stride = tuple(row["shape"]), tuple(row["stride"])
    symbols = tuple(row.get("symbols", ()))
    return TensorType(row["dtype"], shape, stride, row["layout"], row["conj"], row["neg"], symbols)


def _metric(document: Record, row: Record) -> Column:
    name, dtype = row["name"], np.dtype(row["dtype"])
    if not is_number(dtype):
        raise ValueError(f"metric {name} is of type {dtype}")
    cells = [record["metrics"][name] for record in document[f"{row['along']}s"]]
    known = np.array([cell is not None for cell in cells], dtype=np.bool_)
    number = float if dtype.kind == "f" else int
    values = np.array([number(0 if cell is None else cell) for cell in cells], dtype=dtype)
    return Column(name, values, along=row["along"], known=known)
