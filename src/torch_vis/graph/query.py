"""Selection of operations by module path, operator, phase, element type and mark."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate

import numpy as np

from torch_vis.errors import UsageError, no_match
from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.types import Ints


def find(
    graph: Graph, *, path: str | None, op: str | None, phase: str | None, dtype: str | None, flag: str | None
) -> Ints:
    """The numbers of the nodes that match every pattern given."""
    for name, pattern in {"path": path, "op": op, "phase": phase, "dtype": dtype, "flag": flag}.items():
        if pattern is not None and not isinstance(pattern, str):
            raise UsageError(f"{name} is a pattern of text, not {pattern!r}")
    mask = np.ones(len(graph), dtype=bool)
    if path is not None:
        mask &= _scopes(graph, path)[graph.node_scope]
    if op is not None:
        mask &= _calls(graph, op)[graph.node_call]
    if phase is not None:
        mask &= graph.node_phase == _code(Phase, phase, "phase")
    if flag is not None:
        mask &= (graph.node_flags & _code(Flag, flag, "flag")) != 0
    if dtype is not None:
        mask &= _makes(graph, dtype)
    return np.flatnonzero(mask)


def _scopes(graph: Graph, pattern: str) -> Ints:
    paths = [module.path for module in graph.modules]
    matches = _matcher(pattern)
    hit = np.array([matches(path) for path in paths], dtype=bool)
    if not hit.any():
        raise no_match("module", pattern, paths)
    inside = hit[graph.scope_module]
    for scope in range(1, len(inside)):  # parents come first, so one pass carries a match down
        inside[scope] |= inside[graph.scope_parent[scope]]
    return inside


def _calls(graph: Graph, pattern: str) -> Ints:
    matches = _matcher(pattern)
    names = ((call.op, call.op.partition(".")[0], short_name(call.op)) for call in graph.calls)
    return np.array([any(map(matches, name)) for name in names], dtype=bool).reshape(len(graph.calls))


def _makes(graph: Graph, pattern: str) -> Ints:
    matches = _matcher(pattern)
    hit = np.array([matches(row.dtype) for row in graph.types], dtype=bool).reshape(len(graph.types))
    mask = np.zeros(len(graph), dtype=bool)
    if len(graph.out_value):
        made = graph.out_value[hit[graph.value_type[graph.out_value]]]
        mask[graph.value_producer[made]] = True
    return mask


def _code(codes: type[Phase] | type[Flag], name: str, kind: str) -> int:
    known = {code.name.lower(): int(code) for code in codes}
    if name not in known:
        raise no_match(kind, name, known)
    return known[name]


def _matcher(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(translate(pattern))
    return lambda text: compiled.match(text) is not None
