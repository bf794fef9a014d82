"""What both file formats have as JSON: a graph's interned tables, the header, and the circumstances of the run.

Everything is checked as it is read, before anything uses it.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis.errors import CorruptFile, GraphError, NewerFile, NotOurFile, UsageError, shortened
from torch_vis.graph.call import Call, from_plain, to_plain
from torch_vis.graph.graph import Graph
from torch_vis.graph.io.atomic import PathLike
from torch_vis.graph.io.json_stream import TooLarge
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.schema import (
    LATER_TABLES,
    LAYOUTS,
    MODULE_KINDS,
    RESULT_KINDS,
    Module,
    Placement,
    RankGroup,
    ResultRow,
    Site,
    TensorType,
)

FORMAT = "torch_vis.graph"
LARGEST = 2**63 - 1  # of a size, a stride, an offset, a number of bytes
MOST_ROWS = 2**31 - 1
MOST_LEVELS = 10_000
MOST_DIMENSIONS = 1000
DEEPEST = 100  # levels of an argument
END = object()
BRIEF = reprlib.Repr()
BRIEF.maxlevel, BRIEF.maxstring, BRIEF.maxother = 2, 25, 40
# torch's names of element types, those that it does not have yet included
DTYPE = re.compile(r"bool|(bfloat|float|complex|u?int|qu?int|bits)\d+[a-z0-9_]{0,40}")
LENIENT = json.JSONEncoder(separators=(",", ":"))
STRICT = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


def call_to_plain(call: Call) -> list[Any]:
    """A call as ``[operator, arguments, [[keyword, argument], …]]``.

    >>> call_to_plain(Call("aten::sum", (1,), (("keepdim", True),)))
    ['aten::sum', [1], [['keepdim', True]]]
    """
    return [call.op, to_plain(call.args), [[name, to_plain(arg)] for name, arg in call.kwargs]]


def call_from_plain(row: Sequence[Any]) -> Call:
    """The inverse of ``call_to_plain``."""
    op, args, kwargs = row
    pairs = [(_text(name, "a keyword"), _argument(arg)) for name, arg in _list(kwargs, "keywords")]
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a keyword stands twice")
    arguments = tuple(_argument(arg) for arg in _list(args, "arguments"))
    return Call(_text(op, "an operator"), arguments, tuple(pairs))


def _argument(plain: Any) -> Any:
    """An argument of a call, if all that is in it can be one."""
    levels = [iter([plain])]
    while levels:
        item = next(levels[-1], END)
        if item is END:
            levels.pop()
        elif type(item) is list:
            levels.append(iter(item))
            if len(levels) > DEEPEST:
                raise ValueError(f"an argument is nested more than {DEEPEST} levels deep")
        elif type(item) is dict:
            ((kind, text),) = item.items()
            if kind == "tensor":
                whole(text, "the number of a tensor", 0, MOST_ROWS)
            else:
                _text(text, f"an argument that is a {shown(kind)}")
        elif type(item) is int:
            whole(item, "an argument", -(2**128), 2**128)
        elif item is not None and type(item) not in (bool, float, str):
            raise ValueError(f"an argument is {shown(item)}")
    return from_plain(plain)


def type_from_plain(row: Sequence[Any]) -> TensorType:
    """A tensor type from the list of its fields."""
    dtype, shape, stride, layout, conj, neg, *symbols = row  # files of 0.1 have no symbols
    if not DTYPE.fullmatch(_text(dtype, "a dtype")):
        raise ValueError(f"a dtype is {shown(dtype)}, which torch has none of")
    if _text(layout, "a layout") not in LAYOUTS:
        raise ValueError(f"a layout is {shown(layout)}; there are {', '.join(sorted(LAYOUTS))}")
    sizes = tuple(whole(size, "a size", 0) for size in few_dimensions(_list(shape, "a shape")))
    steps = tuple(whole(step, "a stride", 0) for step in _list(stride, "strides"))
    if len(steps) != len(sizes) and (layout == "strided" or steps):
        raise ValueError(f"a tensor of {len(sizes)} dimensions has {len(steps)} strides")
    if type(conj) is not bool or type(neg) is not bool:
        raise ValueError(f"conj and neg are {shown(conj)} and {shown(neg)}")
    names = tuple(_text(name, "an open size") for name in _list(symbols[0] if symbols else [], "open sizes"))
    if len(symbols) > 1 or len(names) not in (0, len(sizes)):
        raise ValueError(f"a tensor of {len(sizes)} dimensions has {len(names)} open sizes")
    record = TensorType(dtype, sizes, steps, layout, conj, neg, names)
    if max(record.numel, record.extent) * (record.itemsize or 16) > LARGEST:
        raise ValueError(f"a tensor of shape {shown(shape)} is larger than any memory")
    return record


def site_from_plain(row: Sequence[Any]) -> Site:
    """A source line from the list of its fields."""
    file, line, function = row
    line = whole(line, "the number of a line", 0, MOST_ROWS)
    return Site(_text(file, "a source file"), line, _text(function, "a function"))


def module_from_plain(row: Sequence[Any]) -> Module:
    """A module from the list of its fields."""
    path, type_, kind = row
    if _text(kind, "the kind of a module") not in MODULE_KINDS:
        raise ValueError(f"the kind of a module is {shown(kind)}; there are {', '.join(MODULE_KINDS)}")
    return Module(_path(path, "the path of a module"), _text(type_, "the class of a module"), kind)


def result_from_plain(row: Sequence[Any]) -> ResultRow:
    """A result from the list of its fields."""
    name, kind = row
    if _text(kind, "the kind of a result") not in RESULT_KINDS:
        raise ValueError(f"the kind of a result is {shown(kind)}; there are {', '.join(RESULT_KINDS)}")
    return ResultRow(_text(name, "the name of a result"), kind)


def group_from_plain(row: Sequence[Any]) -> RankGroup:
    """A group of ranks from the list of its fields."""
    name, ranks, position, axis, backend = row
    members = tuple(whole(rank, "a rank", 0, MOST_ROWS) for rank in _list(ranks, "the ranks of a group"))
    position = whole(position, "the place of a rank in its group", -1, max(len(members) - 1, -1))
    texts = (_text(text, "the name, axis or backend of a group") for text in (name, axis, backend))
    name, axis, backend = texts
    return RankGroup(name, members, position, axis, backend)


def placement_from_plain(row: Sequence[Any]) -> Placement:
    """A placement from the list of its fields."""
    shape, axes, placements = row
    sizes = tuple(whole(size, "a size", 0) for size in _list(shape, "a shape"))
    axes = tuple(_text(axis, "the axis of a mesh") for axis in _list(axes, "the axes of a mesh"))
    placements = tuple(_text(text, "a placement") for text in _list(placements, "placements"))
    if len(axes) != len(placements):
        raise ValueError(f"a mesh of {len(axes)} axes has {len(placements)} placements")
    return Placement(sizes, axes, placements)


# What a file says, if it can be that


def shown(item: object) -> str:
    """Something of a file in a message, however long or deep it is.

    >>> shown("float" * 1000)
    "'floatfloat...floatfloat'"
    """
    return BRIEF.repr(item)


def whole(item: object, what: str, low: int, high: int = LARGEST) -> int:
    """A whole number in its bounds; ``True`` and ``1.0`` are refused.

    >>> whole(3, "a size", 0)
    3
    """
    if type(item) is not int or not low <= item <= high:
        raise ValueError(f"{what} is {shown(item)}, and no whole number from {low} to {high}")
    return item


def few_dimensions(shape: Sequence[Any]) -> Sequence[Any]:
    """A shape of no more dimensions than torch could have: to multiply a million sizes takes minutes.

    >>> few_dimensions([2, 3])
    [2, 3]
    """
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"a shape has {len(shape):,} dimensions, and no tensor has that many")
    return shape


def _text(item: object, what: str) -> str:
    if type(item) is not str:
        raise ValueError(f"{what} is {shown(item)}, and no text")
    return item


def _path(item: object, what: str) -> str:
    path = _text(item, what)
    # what goes through the modules around one takes the square of how many they are
    if path.count(".") > MOST_LEVELS:
        raise ValueError(
            f"{what} is {shown(path)}, of {path.count('.') + 1:,} parts, and no model is that deep"
        )
    return path


def _list(item: object, what: str) -> list[Any]:
    if type(item) is not list:
        raise ValueError(f"{what} are {shown(item)}, and no list")
    return item


TO_PLAIN: dict[str, Callable[[Any], Any]] = {
    "calls": call_to_plain,
    "types": list,
    "sites": list,
    "modules": list,
    "names": str,
    "devices": str,
    "results": list,
    "groups": list,
    "placements": list,
}
FROM_PLAIN: dict[str, Callable[[Any], Any]] = {
    "calls": call_from_plain,
    "types": type_from_plain,
    "sites": site_from_plain,
    "modules": module_from_plain,
    "names": lambda row: _path(row, "a name"),
    "devices": lambda row: _text(row, "a device"),
    "results": result_from_plain,
    "groups": group_from_plain,
    "placements": placement_from_plain,
}


def tables_to_plain(graph: Graph) -> dict[str, list[Any]]:
    """Every interned table as a list of plain rows; those that few runs have only where there is one."""
    return {
        name: [plain(row) for row in getattr(graph, name)]
        for name, plain in TO_PLAIN.items()
        if name not in LATER_TABLES or getattr(graph, name)
    }


def rows_from_plain(table: str, rows: Sequence[Any], first: int = 0) -> list[Any]:
    """Rows of an interned table, checked; ``first`` is the number of the first of them.

    >>> rows_from_plain("sites", [["net.py", 3, "forward"]])
    [Site(file='net.py', line=3, function='forward')]
    """
    record = FROM_PLAIN[table]
    result: list[Any] = []
    for row in rows:
        try:
            result.append(record(row))
        except (ValueError, TypeError) as error:
            raise ValueError(f"row {first + len(result)} of {table}: {error}") from error
    return result


def check_metrics(graph: Graph, metrics: Metrics) -> None:
    """Raise ``GraphError`` unless every metric has one row for each node, value, storage or scope it runs along."""
    for name, column in metrics.items():
        check_rows(graph, name, column)
        if not is_number(column.values.dtype):
            raise GraphError(
                f"metric {name} holds {column.values.dtype}; a file keeps numbers of up to 64 bits"
            )


def check_rows(graph: Graph, name: str, column: Column) -> None:
    """Raise ``GraphError`` unless a column has one row for each of what it runs along."""
    rows = {
        "node": len(graph.node_call),
        "value": len(graph.value_type),
        "storage": len(graph.storage_bytes),
        "scope": len(graph.scope_call),
    }
    if column.along not in rows:
        raise GraphError(f"metric {name} runs along {column.along!r}; it can run along {', '.join(rows)}")
    if len(column) != rows[column.along] or (column.known is not None and len(column.known) != len(column)):
        raise GraphError(f"metric {name} has {len(column)} rows where {rows[column.along]} belong")


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a metric of this type can be kept in a file.

    >>> is_number(np.dtype("int16")), is_number(np.dtype("object"))
    (True, False)
    """
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def check_header(path: PathLike, header: Any, newest: int, format: str = FORMAT) -> None:
    """Raise unless a file's header says that it is ours and of a version we can read."""
    if not isinstance(header, dict) or header.get("format") != format:
        raise not_ours(path)
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise damaged(path, f"its version number reads {shown(version)}")
    if version > newest:
        raise NewerFile(
            f"{path} was written in format version {version}, and this torch_vis reads up to version {newest}; "
            "run: pip install --upgrade torch-vis"
        )


def not_ours(path: PathLike) -> NotOurFile:
    """The error for a file that torch_vis did not write."""
    return NotOurFile(
        f"{path} was not written by torch_vis; tv.load reads the .tvz and .json files of Trace.save"
    )


def damaged(path: PathLike, what: object) -> CorruptFile:
    """The error for a file of ours that cannot be read back whole."""
    if isinstance(what, TooLarge):
        return CorruptFile(
            f"{path} was not loaded: {what}; a trace of an earlier version that does opens in torch-vis explore --trust"
        )
    reason = shortened(f"{what} is missing or unknown" if isinstance(what, KeyError) else str(what))
    return CorruptFile(f"{path} is truncated or damaged ({reason}); copy it again, or save the trace again")


def to_json(what: str, item: Any, *, strict: bool = False) -> str:
    """Text of JSON data on one line; ``strict`` refuses what only Python calls JSON (NaN, Infinity)."""
    try:
        return (STRICT if strict else LENIENT).encode(item)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be written as JSON: {error}") from error


# The circumstances of a run

LONGEST_NS = 2**62  # of a time, so that the sum of two is a number of 64 bits
SITE = {"file": str, "line": int}
EAGER = {"op": str, "times": int, **SITE}
BREAK = {
    "reason": str, "explanation": str, "hints": [str], "id": str, "function": str, "code": str, **SITE,
}  # fmt: skip
BREAK_MORE = {
    "context": str,
    "partition": int,
    "nodes": int,
    "partitions": [int],
    "times": int,
    "lost": [EAGER],
}
COLUMNS = {
    "kernel": ("name", "node", "start_ns", "time_ns", "device", "stream"),
    "wait": ("name", "node", "start_ns", "time_ns"),
}

# What a field that torch_vis itself reads may hold, where it is there and is not null: ``[x]`` is a list of x,
# ``{str: x}`` names with an x each, a dictionary with names an object that has all of these. Other fields may hold
# anything.
FIELDS: dict[str, Any] = {
    **dict.fromkeys(("torch", "python", "machine", "model", "loss", "error", "script", "traced"), str),
    **dict.fromkeys(("threads", "repeat", "parameters", "packed_bytes"), int),
    **dict.fromkeys(("wall_ns", "overhead_ns", "overhead_error_ns", "compile_ns"), int),
    **dict.fromkeys(("plain_wall_ns", "plain_wall_low_ns", "plain_wall_high_ns"), int),
    **dict.fromkeys(("fake", "backward", "simulated"), bool),
    "predicted": {"machine": str, "links": {str: str}},
    **dict.fromkeys(("rank", "world_size", "stage", "began_ns", "clock_error_ns"), int),
    "host": str,
    "mesh": {str: int},
    "coordinates": {str: int},
    "devices": [str],
    "zeroed_at": [int],
    "unused_parameters": {str: int},
    "executions": {str: int},
}
PROGRAM: dict[str, Any] = {
    "via": str,
    "partitions": [int],
    "breaks": [BREAK],
    "lost": [EAGER],
    "guards": [str],
    "recompilations": [{"function": str, "guard": str, **SITE}],
    "ranges": {str: str},
    "subgraphs": [{"name": str, "operator": str, "role": str, "ran": int, "operations": [str]}],
    "compile_ns": int,
}


def check_meta(meta: Mapping[str, Any], nodes: int) -> None:
    """Raise ``ValueError`` at the first field that cannot be what a run of so many operations says of itself.

    >>> check_meta({"model": "Net", "mine": [1, 2]}, 3)
    >>> check_meta({"devices": 5}, 3)
    Traceback (most recent call last):
    ValueError: meta.devices is 5, and no list
    """
    _check_fields(meta, FIELDS, "meta")
    if len({meta.get(f"plain_wall_{part}ns") is None for part in ("", "low_", "high_")}) > 1:
        raise ValueError("meta has a wall time without its quartiles")
    program = meta.get("program")
    if program is not None:
        _check_program(program)
    if "device_time" in meta:
        _check_device_time(meta["device_time"], nodes)


def _check_program(program: Any) -> None:
    _check(program, dict, "meta.program")
    _check_fields(program, PROGRAM, "meta.program")
    partitions = len(program.get("partitions") or ())
    for number, row in enumerate(program.get("breaks") or ()):
        what = f"meta.program.breaks[{number}]"
        _check_fields(row, BREAK_MORE, what)
        for part in row.get("partitions") or ():
            whole(part, f"{what}.partitions", 0, partitions - 1)
    # rows that are made into records, which have no other fields
    eager = [
        *(program.get("lost") or ()),
        *(part for row in program.get("breaks") or () for part in row.get("lost") or ()),
    ]
    for row in eager:
        if row.keys() != EAGER.keys():
            raise ValueError(f"an operation that ran in eager mode has the fields {shown(list(row))}")


def _check_device_time(time: Any, nodes: int) -> None:
    """Columns of kernels and of waits, one of which points into the names and one into the operations."""
    _check(time, dict, "meta.device_time")
    _check(time.get("names"), [str], "meta.device_time.names")
    bounds = {"name": (0, len(time["names"]) - 1), "node": (-1, nodes - 1), "device": (0, MOST_ROWS)}
    for table, fields in COLUMNS.items():
        lengths = set()
        for field in fields:
            name = f"meta.device_time.{table}_{field}"
            column = time.get(f"{table}_{field}")
            if type(column) is not list:
                raise ValueError(f"{name} is {shown(column)}, and no list")
            low, high = bounds.get(field, (-LONGEST_NS, LONGEST_NS))
            for number in column:
                whole(number, name, low, high)
            lengths.add(len(column))
        if len(lengths) > 1:
            raise ValueError(f"the columns {table} of meta.device_time have {shown(sorted(lengths))} rows")


def _check_fields(item: Mapping[str, Any], kinds: Mapping[str, Any], what: str) -> None:
    """Check the fields that are there."""
    for name, kind in kinds.items():
        if item.get(name) is not None:
            _check(item[name], kind, f"{what}.{name}")


def _check(item: Any, kind: Any, what: str) -> None:
    """Raise unless something of a file is of a kind."""
    if kind is int:
        whole(item, what, 0, LONGEST_NS)
    elif isinstance(kind, type):
        if type(item) is not kind:
            raise ValueError(f"{what} is {shown(item)}, and no {kind.__name__}")
    elif isinstance(kind, list):
        if type(item) is not list:
            raise ValueError(f"{what} is {shown(item)}, and no list")
        for number, part in enumerate(item):
            _check(part, kind[0], f"{what}[{number}]")
    elif type(item) is not dict:
        raise ValueError(f"{what} is {shown(item)}, and no object")
    elif str in kind:
        for name, part in item.items():
            _check(part, kind[str], f"{what}.{shown(name)}")
    else:
        for name, part in kind.items():
            _check(item.get(name), part, f"{what}.{name}")
