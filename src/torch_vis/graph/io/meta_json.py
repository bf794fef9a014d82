"""The circumstances of a run as a file has them: what each of its fields may hold, checked before anything uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_vis.graph.io.tables_json import MOST_ROWS, shown, whole

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
    "unused_parameters": {str: int},
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
