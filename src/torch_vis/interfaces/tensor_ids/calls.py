"""What calls of public functions were given and gave back, as they were written: read from a recording's notes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_vis._trace import Trace
from torch_vis.capture.recording.function_calls import TENSOR, UNKNOWN
from torch_vis.capture.recording.user_functions import last_part
from torch_vis.graph import Graph
from torch_vis.graph.types import Ints

NOWHERE = -1  # a tensor that is not in the graph
TYPES = {  # by the kind of a literal, what the types of parameters that take it have in them
    "int": ("int", "number", "float"),
    "bool": ("bool", "number"),
    "float": ("float", "number"),
    "str": ("str", "Device"),
    "dtype": ("int",),
    "layout": ("int",),
    "memory_format": ("int",),
    "device": ("Device",),
    "object": ("number", "int", "Generator"),
}
INDEXING = frozenset({"__getitem__", "__setitem__"})
Spelling = tuple[str, Any, Any, Any]  # name, function, positional and keyword arguments


class NotedCall(NamedTuple):
    """One call: the values in its arguments and in its result, and where its arguments are spelled."""

    inputs: list[int]
    outputs: list[int]
    spelling: int


class Calls:
    """The calls of a recording by scope, in the numbers of the graph."""

    def __init__(self, trace: Trace) -> None:
        self._graph = trace.graph
        self._calls: dict[int, NotedCall] = {}
        self._spellings: list[Spelling] = []
        self._arguments: dict[int, dict[str, Any]] = {}
        capture: Any = getattr(trace, "capture", None)  # only what was just recorded has notes; files do not
        if capture is None or capture.recorder.function_mode is None or not hasattr(capture, "numbers"):
            return
        recorder = capture.recorder
        modules = recorder.modules
        for module, args, kwargs in recorder.function_mode.spellings:
            self._spellings.append((modules[module][1], modules[module][0], args, kwargs))
        values = _in_graph(recorder.values, capture.numbers, trace.graph)
        self._read(recorder.function_mode.notes.tolist(), values)

    def at(self, scope: int) -> NotedCall | None:
        """The call that a scope is of."""
        return self._calls.get(scope)

    def arguments(self, spelling: int) -> dict[str, Any]:
        """The literals among a call's arguments."""
        arguments = self._arguments.get(spelling)
        if arguments is None:
            arguments = self._arguments[spelling] = literals(*self._spellings[spelling])
        return dict(arguments)

    def _read(self, notes: list[int], values: list[int]) -> None:
        position, count = 0, len(notes)
        while position < count:
            scope, spelling, given, returned = notes[position : position + 4]
            position += 4 + given + returned
            numbers = notes[position - given - returned : position - returned]
            outputs = [values[n] if n >= 0 else NOWHERE for n in notes[position - returned : position]]
            if given and min(numbers) < 0:
                late = [values[-2 - n] for n in numbers if n < UNKNOWN]
                inputs = [self._before(n, values) for n in numbers]
                if not returned:  # of tensors first seen in the call, those that it wrote
                    outputs = [
                        value for value in late if value >= 0 and self._graph.value_producer[value] >= 0
                    ]
            else:
                inputs = [values[n] for n in numbers]
            self._calls[scope] = NotedCall(inputs, outputs, spelling)

    def _before(self, number: int, values: list[int]) -> int:
        """What a tensor was before the call: if it was first seen in it, the version that no operation has made."""
        if number >= UNKNOWN:
            return values[number] if number >= 0 else NOWHERE
        graph, value = self._graph, values[-2 - number]
        while value >= 0 and (node := int(graph.value_producer[value])) >= 0:
            outputs = slice(int(graph.out_start[node]), int(graph.out_start[node + 1]))
            slot = int(graph.out_slot[outputs][graph.out_value[outputs] == value][0])
            if slot >= 0:
                return NOWHERE
            inputs = slice(int(graph.in_start[node]), int(graph.in_start[node + 1]))
            value = int(graph.in_value[inputs][graph.in_slot[inputs] == -1 - slot][0])
        return value


def _in_graph(rows: list[int], numbers: Ints, graph: Graph) -> list[int]:
    """For each of the recorder's values its number in the graph, for an alias that of what it stands for."""
    kept = np.diff(numbers, prepend=-1) > 0
    in_graph = np.where(kept, numbers, NOWHERE)
    aliases = np.flatnonzero(~kept)
    if len(aliases):
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        table = table[np.argsort(table[:, 0], kind="stable")]
        written = np.zeros(len(graph.value_type), dtype=bool)
        written[graph.out_value[graph.out_slot < 0]] = True
        known: dict[tuple[int, ...], int] = {}
        for number in np.flatnonzero(np.isin(table[:, 1], table[aliases, 1])).tolist():
            key = tuple(table[number, 1:].tolist())
            if not kept[number]:
                in_graph[number] = known.get(key, NOWHERE)
            elif written[in_graph[number]] or key not in known:
                known[key] = int(in_graph[number])
    values: list[int] = in_graph.tolist()
    return values


# ---------------------------------------------------------------- literals


def literals(name: str, function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call that are no tensors, by name, as JSON data.

    >>> literals("f", lambda x, size: None, (tuple, TENSOR, (tuple, 2, 3)), (dict, ("mode", (str, "a"))))
    {'size': [2, 3], 'mode': 'a'}
    """
    positional = list(args[1:])
    named: list[tuple[str, Any]] = []
    if last_part(name) in INDEXING:
        named.append(("index", (str, index_text(positional[1]))))
        named += [("value", part) for part in positional[2:]]
    else:
        named += _by_name(name, function, positional, kwargs[1:] if kwargs else ())
    named += list(kwargs[1:]) if kwargs else []
    plain_arguments = {
        key: plain(part) for key, part in named if not (_is_blank(part) or key.startswith("_"))
    }
    return {key: part for key, part in plain_arguments.items() if part is not None}


def _by_name(name: str, function: Any, parts: list[Any], kwargs: Sequence[Any]) -> list[tuple[str, Any]]:
    """Positional arguments under the names of the function's own signature, or else of the operator's."""
    names = _signature(function)
    if names is None or len(names) < len(parts):
        written = {key for key, _ in kwargs}
        overloads = _schemas(name, function)
        overloads.sort(
            key=lambda overload: len(written.difference(overload[0]))
        )  # torch adds some of its own
        for overload, types in overloads:
            if (fitting := _fit(overload, types, parts)) is not None:
                return fitting
        return [(f"arg{index}", part) for index, part in enumerate(parts)]
    return list(zip(names, parts, strict=False))


def _signature(function: Any) -> list[str] | None:
    """The names of a function's positional parameters; None where they are not to be had, or only ``*args`` is."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]


def _schemas(name: str, function: Any) -> list[tuple[list[str], list[str]]]:
    """The overloads of the operator that a function is called like: names and types of their parameters."""
    import torch

    packet = function
    if isinstance(function, torch._ops.OpOverload):
        return [_parameters(function._schema)]
    if not isinstance(function, torch._ops.OpOverloadPacket):
        packet = getattr(torch.ops.aten, last_part(name), None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return [(["self", "other"], ["Tensor", "number"])]  # what is left are operators, x & 1
    return [_parameters(getattr(packet, overload)._schema) for overload in packet.overloads()]


def _parameters(schema: Any) -> tuple[list[str], list[str]]:
    """The names, those that go by keyword only last, and the types of those that do not."""
    positional = [part for part in schema.arguments if not part.kwarg_only]
    names = [part.name for part in positional] + [part.name for part in schema.arguments if part.kwarg_only]
    return names, [str(part.type) for part in positional]


def _fit(names: list[str], types: list[str], parts: list[Any]) -> list[tuple[str, Any]] | None:
    """Arguments under the names of one overload; None if it cannot have been meant.

    Sizes that are written one by one (``x.view(2, 3)``) are the list that the overload takes last.
    """
    for index, (part, type_) in enumerate(zip(parts, types, strict=False)):
        rest = parts[index:]
        if (
            "List" in type_
            and index == len(types) - 1 < len(parts) - 1
            and all(_is_one(item) for item in rest)
        ):
            return [*zip(names[:index], parts[:index], strict=True), (names[index], (tuple, *rest))]
        if part is not None and not _suits(part, type_):
            return None
    return list(zip(names, parts, strict=False)) if len(parts) <= len(types) else None


def _suits(part: Any, type_: str) -> bool:
    """Whether an argument can be meant for a parameter of this type."""
    if _is_list(part):
        return "List" in type_
    if part == TENSOR:
        return "Tensor" in type_
    kind = part[0] if type(part) is tuple else type(part)
    return (
        any(word in type_ for word in TYPES.get(getattr(kind, "__name__", ""), ())) and "Tensor" not in type_
    )


def _is_one(part: Any) -> bool:
    return part == TENSOR or type(part) is int


def _is_list(part: Any) -> bool:
    return type(part) is tuple and part[:1] in ((list,), (tuple,))


def _is_blank(part: Any) -> bool:
    """Whether an argument is a tensor, not given, or a list of such."""
    if _is_list(part) and len(part) > 1:
        return all(_is_blank(inner) for inner in part[1:])
    return part is None or part == TENSOR


def plain(part: Any) -> Any:
    """A frozen argument as JSON data.

    >>> plain((list, 1, (float, 0.5), TENSOR))
    [1, 0.5, '<tensor>']
    """
    if type(part) is not tuple:
        return part if part is None or type(part) in (int, str) else _named(part)
    kind, *rest = part
    if kind in (list, tuple):
        return [plain(inner) for inner in rest]
    if kind is dict:
        return {key: plain(inner) for key, inner in rest}
    if kind is slice:
        return index_text(part)
    if kind is bool:
        return rest[0] is True
    if kind is float:
        number = float(rest[0])
        return number if math.isfinite(number) else repr(number)
    return rest[0]


def _named(item: Any) -> str:
    return "..." if item is ... else str(item).removeprefix("torch.")


def index_text(part: Any) -> str:
    """An index as it was written.

    >>> index_text((tuple, (slice, None, None, None), 0, ...)), index_text((slice, 1, -1, 2)), index_text(TENSOR)
    (':, 0, ...', '1:-1:2', '<tensor>')
    """
    if type(part) is not tuple:
        return "None" if part is None else str(plain(part))
    if part[0] is tuple:
        return ", ".join(index_text(inner) for inner in part[1:]) if len(part) > 1 else "()"
    if part[0] is list:
        return f"[{', '.join(index_text(inner) for inner in part[1:])}]"
    if part[0] is slice:
        start, stop, step = ("" if inner is None else index_text(inner) for inner in part[1:])
        return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"
    return str(plain(part))
