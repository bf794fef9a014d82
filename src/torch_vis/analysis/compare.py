"""Two runs laid over one another by their structure: which call of a module, and which operation, became which.

Calls are matched from the outside in: those that do the same under the same name, then those that do the same, then
by name and class, then by their operators, then by class alone. So a module that was renamed or moved is still the same
module. Within two calls that belong together, operations are matched by the longest common sequence of operators; what
is left of them, with the calls inside that have no counterpart, is matched once more by operators and what they make: a
compiler, or a change that writes a module's code out, leaves the operations and drops the call.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare_calls import match_calls
from torch_vis.analysis.compare_sides import TRANSPARENT, Side
from torch_vis.analysis.sequences import common
from torch_vis.graph import Graph, Node, Scope

BETWEEN = TRANSPARENT | {"operator"}


class Alignment(NamedTuple):
    """For each operation and call of ``a`` the one of ``b`` that it became, -1 for none."""

    to_b: Any
    changed: Any
    """Of each operation of ``b``: whether its arguments, or the shapes, types and strides of what it makes, differ."""
    scope_to_b: Any


def align(a: Graph, b: Graph) -> Alignment:
    """Match two graphs.

    >>> import torch, torch_vis as tv
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3)).graph
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), torch.ones(1, 3)).graph
    >>> align(one, two).to_b.tolist()
    [0, 1, -1]
    """
    known: dict[Any, int] = {}
    one, two = Side(a, known), Side(b, known)
    scopes = match_calls(one, two, known)
    to_b = np.full(len(a), -1, dtype=np.int64)
    for (scope, phase), nodes in one.operations.items():
        others = two.operations.get((int(scopes[scope]), phase)) if scopes[scope] >= 0 else None
        if others:
            for here, there in common(one.operators(nodes), two.operators(others)):
                to_b[nodes[here]] = others[there]
    _match_dissolved(one, two, scopes, to_b)
    return Alignment(to_b, _changed(one, two, to_b, known), scopes)


def module_of(node: Node) -> str:
    """The path of the module that an operation ran in, looked at through the functions and operators between.

    >>> import torch, torch_vis as tv
    >>> node = tv.trace(torch.nn.Sequential(torch.nn.ReLU()), torch.ones(1, 3), via="export").graph.nodes[0]
    >>> node.path, module_of(node)
    ('relu', '0')
    """
    scope: Scope | None = node.scope
    while scope is not None and scope.kind in BETWEEN:
        scope = scope.parent
    return "" if scope is None else scope.path


def _changed(one: Side, two: Side, to_b: Any, known: dict[Any, int]) -> Any:
    changed = np.zeros(len(two.graph), dtype=bool)
    numbers: dict[Any, int] = {}
    call_a, call_b = (
        np.array([numbers.setdefault(call, len(numbers)) for call in side.graph.calls], dtype=np.int64)
        for side in (one, two)
    )
    kept = np.flatnonzero(to_b >= 0)
    other = to_b[kept]
    if len(kept):
        differs = call_a[one.graph.node_call[kept]] != call_b[two.graph.node_call[other]]
        here, there = (np.array(side.laid_out(known)) for side in (one, two))
        changed[other] = differs | (here[kept] != there[other])
    return changed


def _match_dissolved(one: Side, two: Side, scopes: Any, to_b: Any) -> None:
    """Match operations whose call is gone with those that run in the call around it, or in another that is new."""
    around_a = _around(one.graph, scopes >= 0)
    has_a = np.zeros(len(two.graph.scope_call), dtype=bool)
    has_a[scopes[scopes >= 0]] = True
    around_b = _around(two.graph, has_a)
    if (around_a == np.arange(len(around_a))).all() and (around_b == np.arange(len(around_b))).all():
        return
    free = np.ones(len(two.graph), dtype=bool)
    free[to_b[to_b >= 0]] = False
    left_a = _grouped(one, around_a, np.flatnonzero(to_b < 0))
    left_b = _grouped(two, around_b, np.flatnonzero(free))
    for (scope, phase), nodes in left_a.items():
        others = left_b.get((int(scopes[scope]), phase))
        if others:
            for here, there in common(one.exactly(nodes), two.exactly(others)):
                to_b[nodes[here]] = others[there]


def _around(graph: Graph, matched: Any) -> Any:
    """For each call itself where it has a counterpart, else the nearest one around it that has."""
    found = np.arange(len(matched))
    for scope, parent in enumerate(graph.scope_parent.tolist()):
        if parent >= 0 and not matched[scope]:
            found[scope] = found[parent]
    return found


def _grouped(side: Side, around: Any, nodes: Any) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for node, scope, phase in zip(
        nodes.tolist(), around[side.graph.node_scope[nodes]].tolist(), side.graph.node_phase[nodes].tolist()
    ):
        found[scope, phase].append(node)
    return found
