"""A graph's interned tables as JSON data and back, and the header that both file formats begin with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis.errors import CorruptFile, GraphError, NewerFile, NotOurFile, UsageError
from torch_vis.graph.call import Call, from_plain, to_plain
from torch_vis.graph.graph import Graph
from torch_vis.graph.io.atomic import PathLike
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.schema import Module, ResultRow, Site, TensorType

FORMAT = "torch_vis.graph"
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
    return Call(op, from_plain(args), tuple((name, from_plain(arg)) for name, arg in kwargs))


def type_from_plain(row: Sequence[Any]) -> TensorType:
    """A tensor type from the list of its fields."""
    dtype, shape, stride, layout, conj, neg, *symbols = row  # files of 0.1 have no symbols
    return TensorType(dtype, tuple(shape), tuple(stride), layout, conj, neg, tuple(*symbols))


TO_PLAIN: dict[str, Callable[[Any], Any]] = {
    "calls": call_to_plain,
    "types": list,
    "sites": list,
    "modules": list,
    "names": str,
    "devices": str,
    "results": list,
}
FROM_PLAIN: dict[str, Callable[[Any], Any]] = {
    "calls": call_from_plain,
    "types": type_from_plain,
    "sites": lambda row: Site(*row),
    "modules": lambda row: Module(*row),
    "names": str,
    "devices": str,
    "results": lambda row: ResultRow(*row),
}


def tables_to_plain(graph: Graph) -> dict[str, list[Any]]:
    """Every interned table as a list of plain rows."""
    return {name: [plain(row) for row in getattr(graph, name)] for name, plain in TO_PLAIN.items()}


def tables_from_plain(tables: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The inverse of ``tables_to_plain``."""
    return {name: [record(row) for row in tables[name]] for name, record in FROM_PLAIN.items()}


def check_metrics(graph: Graph, metrics: Metrics) -> None:
    """Raise ``GraphError`` unless every metric has one row for each node, value, storage or scope it runs along."""
    rows = {
        "node": len(graph.node_call),
        "value": len(graph.value_type),
        "storage": len(graph.storage_bytes),
        "scope": len(graph.scope_call),
    }
    for name, column in metrics.items():
        if column.along not in rows:
            raise GraphError(f"metric {name} runs along {column.along!r}; it can run along {', '.join(rows)}")
        if len(column) != rows[column.along] or (
            column.known is not None and len(column.known) != len(column)
        ):
            raise GraphError(f"metric {name} has {len(column)} rows where {rows[column.along]} belong")
        if not is_number(column.values.dtype):
            raise GraphError(
                f"metric {name} holds {column.values.dtype}; a file keeps numbers of up to 64 bits"
            )


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a metric of this type can be kept in a file.

    >>> is_number(np.dtype("int16")), is_number(np.dtype("object"))
    (True, False)
    """
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def check_header(path: PathLike, header: Any, newest: int) -> None:
    """Raise unless a file's header says that it is ours and of a version we can read."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise not_ours(path)
    version = header.get("version")
    if type(version) is not int or version < 1:
        raise damaged(path, f"its version number reads {version!r}")
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
    return CorruptFile(f"{path} is truncated or damaged ({what}); copy it again, or save the trace again")


def to_json(what: str, item: Any, *, strict: bool = False) -> str:
    """Text of JSON data on one line; ``strict`` refuses what only Python calls JSON (NaN, Infinity)."""
    try:
        return (STRICT if strict else LENIENT).encode(item)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be written as JSON: {error}") from error
