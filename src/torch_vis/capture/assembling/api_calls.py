"""Which call of torch's public functions each operation ran in, read after the run from the caller's own instructions.

An operation's row names an instruction: that of the user's line, or of one of torch's modules. A call, an operator sign
or a subscript there says by what name the program knows what it ran. Nothing is looked at while the program runs, so
that no fast path is lost. Operations of one instruction that follow each other in one call of a module are one call of
the function; where the same stretch of operators comes several times on end, each time is one.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.assembling.log import OpRows
from torch_vis.capture.recording.recorder import FORWARD, Recorder
from torch_vis.capture.recording.source_lines import CodeTable
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Site
from torch_vis.graph.types import Bools, Ints

# whether instructions know the columns that they come from: from Python 3.11 on
HAS_POSITIONS = sys.version_info >= (3, 11)
HOMES = (torch.Tensor, torch.nn.functional, torch, torch.linalg, torch.fft, torch.special)
# of operators, those that run more than one operation; any other goes by its operation
SIGNS = {"@": "matmul", "@=": "matmul", "[]": "getitem"}
INSTRUCTIONS = {
    "BINARY_SUBSCR": "getitem",
    "BINARY_SLICE": "getitem",
    "STORE_SUBSCR": "setitem",
    "STORE_SLICE": "setitem",
}
# what an instruction that loads a function takes it from, where its name there is the function's own
LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME")
# they lie where the function is loaded, and load none; from Python 3.13 on the names of keywords are a constant there
SILENT = frozenset({"KW_NAMES", "LOAD_CONST", "PUSH_NULL", "CACHE", "COPY", "NOP", "EXTENDED_ARG", "RESUME"})


class ApiCalls(NamedTuple):
    """For each operation the name of the function that ran it, a row of ``names``, and the call's first operation."""

    names: list[str]
    function: Ints
    first: Ints
    """Both are -1 where no call is known."""


def api_calls(rec: Recorder, rows: OpRows, scope: Ints, recomputed: Bools) -> ApiCalls:
    """The calls of public functions in a recording; ``scope`` has the call of a module that each operation ran in.

    Of what ran in backward only what was ``recomputed`` there has a call: the engine runs gradients by itself.
    """
    count = len(rows.call)
    function, first = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    # where names were asked for the calls are scopes already
    if not count or rec.function_mode is not None:
        return ApiCalls([], function, first)
    names: dict[str, int] = {}
    by_caller = [_number(names, caller_name(*caller)) for caller in rec.callers]
    by_site = [_number(names, site_name(*site)) for site in rec.sites]
    of_caller = np.array([*by_caller, -1], dtype=np.int64)[rows.caller]
    of_site = np.array([*by_site, -1], dtype=np.int64)[rows.site]
    named = np.where(rows.caller >= 0, of_caller, of_site)
    named[(rows.backward != FORWARD) & ~recomputed] = -1
    chosen = np.flatnonzero(named >= 0)
    ops = _op_numbers(rec)[rows.call]
    begins = _begins(chosen, rows.caller, rows.site, scope, rows.thread)
    for start, end in zip(begins, [*begins[1:], len(chosen)]):
        part = chosen[start:end]
        steps = period(ops[part].tolist())
        first[part] = np.repeat(part[::steps], steps)
    # names of callers that ran nothing but gradients are of no use
    used, function[chosen] = np.unique(named[chosen], return_inverse=True)
    return ApiCalls([name for name, number in names.items() if number in used], function, first)


def _begins(nodes: Ints, *columns: Ints) -> list[int]:
    """Where a stretch of operations of one instruction begins: any operation between two ends one."""
    new = np.diff(nodes, prepend=-2) != 1
    for column in columns:
        new[1:] |= np.diff(column[nodes]) != 0
    begins: list[int] = np.flatnonzero(new).tolist()
    return begins


def _number(names: dict[str, int], name: str | None) -> int:
    return -1 if name is None else names.setdefault(name, len(names))


def _op_numbers(rec: Recorder) -> Ints:
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(short_name(info.call.op), len(numbers)) for info in rec.calls]
    return np.array(rows, dtype=np.int64)


def period(items: Sequence[int]) -> int:
    """The length of the shortest stretch that items consist of, on end and whole.

    >>> period([1, 2, 1, 2, 1, 2]), period([1, 2, 1, 2, 1]), period([5, 5]), period([1, 2, 3])
    (2, 5, 1, 3)
    """
    count = len(items)
    # for each place, how long a beginning of the items also ends there
    border = [0] * count
    length = 0
    for index in range(1, count):
        while length and items[index] != items[length]:
            length = border[length - 1]
        length += items[index] == items[length]
        border[index] = length
    shortest = count - border[-1] if count else 0
    return shortest if shortest and count % shortest == 0 else count


# ---------------------------------------------------------------- names


def caller_name(code: CodeType, instruction: int) -> str | None:
    """The function that an instruction of torch's own calls; below 0, the public function that the code is."""
    return code.co_name if instruction < 0 else called_name(code, instruction)


def site_name(code: CodeType | Site, instruction: int) -> str | None:
    """The function that an instruction of the user's calls; None where a program was captured without its code."""
    return None if isinstance(code, Site) else called_name(code, instruction)


def called_name(code: CodeType, instruction: int) -> str | None:
    """The public function that the instruction at a byte offset calls, by its last name; None where it does not say.

    >>> def f(x): return torch.relu(x @ x)
    >>> [called_name(f.__code__, row.offset) for row in dis.get_instructions(f) if row.opname in ("BINARY_OP", "CALL")]
    ['matmul', 'relu']
    """
    known = _names.get(code)
    if known is None:
        known = _names.set(code, names_in(code))
    return known.get(instruction)


_names: CodeTable[dict[int, str]] = CodeTable()


def names_in(code: CodeType) -> dict[int, str]:
    """What each instruction of a code object calls, by byte offset; those that do not say are left out."""
    names: dict[int, str | None] = {}
    # by the place where their text begins, the instructions so far
    at: dict[Any, list[Any]] = {}
    for row in dis.get_instructions(code):
        if row.opname in SILENT:
            continue
        if row.opname.startswith(("CALL", "PRECALL")):
            names[row.offset] = _callee(row, at)
        elif row.opname == "BINARY_OP":
            names[row.offset] = SIGNS.get(row.argrepr)
        elif row.opname == "LOAD_ATTR":
            names[row.offset] = row.argval if is_public(row.argval) else None
        else:
            names[row.offset] = INSTRUCTIONS.get(row.opname)
        if HAS_POSITIONS and row.positions is not None:
            at.setdefault(row.positions[0::2], []).append(row)
    return {offset: name for offset, name in names.items() if name is not None}


def _callee(call: Any, at: dict[Any, list[Any]]) -> str | None:
    """The name that a call has its function under: what reaches furthest of all that begins where the call does."""
    if not HAS_POSITIONS or call.positions is None or None in call.positions:
        return None
    end = call.positions[1::2]
    inside = [row for row in at.get(call.positions[0::2], ()) if row.positions[1::2] < end]
    callee = max(inside, key=lambda row: (row.positions[1::2], row.offset), default=None)
    if callee is None or callee.opname not in LOADS or not is_public(callee.argval):
        return None
    return str(callee.argval)


@lru_cache(maxsize=4096)
def is_public(name: object) -> bool:
    """Whether torch has a public function of that name.

    >>> is_public("scaled_dot_product_attention"), is_public("view"), is_public("_softmax"), is_public("my_function")
    (True, True, False, False)
    """
    if not isinstance(name, str) or name.startswith("_"):
        return False
    return any(hasattr(home, name) for home in HOMES)
