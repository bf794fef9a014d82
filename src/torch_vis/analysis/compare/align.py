"""Two runs laid over one another by their structure: which call of a module, and which operation, became which.

Calls are matched from the outside in, by what forward does in them: those that do the same under the same name, then
those that do the same, with the same weights first, then by name and class, then by their operators, then by class
alone, if there are as many of it in both; what is left, wherever it is called from. So a module that was renamed, moved
or wrapped is still the same module. Operations are matched within two calls that belong together, those of
backward by what they belong to in forward; what is left of them, with the calls inside that have no counterpart, is
matched once more by operators and what they make: a compiler, or a change that writes a module's code out, leaves the
operations and drops the call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.match_modules import Alike, Weights, match_calls
from torch_vis.analysis.compare.match_ops import match_operations
from torch_vis.analysis.compare.sides import TRANSPARENT, Side
from torch_vis.analysis.compare.wiring import Wiring
from torch_vis.graph import Graph, Node, Scope

BETWEEN = TRANSPARENT | {"operator"}


class Alignment(NamedTuple):
    """For each operation and call of ``a`` the one of ``b`` that it became, -1 for none."""

    to_b: Any
    changed: Any
    """Of each operation of ``b``: whether its arguments, what it reads, or the shapes, types and strides differ."""
    scope_to_b: Any
    wiring: Wiring
    alike: list[Alike]


def align(a: Graph, b: Graph, weights: tuple[Weights, Weights] | None = None) -> Alignment:
    """Match two graphs; ``weights`` give what the contents of a value can be told by, in each of them.

    >>> import torch, torch_vis as tv
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3)).graph
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), torch.ones(1, 3)).graph
    >>> align(one, two).to_b.tolist()
    [0, 1, -1]
    """
    known: dict[Any, int] = {}
    one, two = Side(a, known), Side(b, known)
    scopes, alike = match_calls(one, two, known, weights)
    to_b, wired = match_operations(one, two, scopes)
    changed = _changed(one, two, to_b, known)
    changed[list(wired.reads)] = True
    return Alignment(to_b, changed, scopes, wired, alike)


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
