"""Aligns two runs by their structure: for every module call and operation of ``a`` its counterpart in ``b``.

Three steps, each in a module of its own:

1. ``match_modules``: calls of modules, from the outermost in, so that a module that was renamed, moved or wrapped is
   still the same module.
2. ``match_ops``: operations, within matched modules first; those of backward by the operations of forward that they
   belong to; what is left by what it reads, and across module boundaries.
3. ``wiring``: which value is which, and with that which matched operations read something else.

``match_modules.PASSES`` and ``match_ops.PASSES`` list what is tried, in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.compare.match_modules import AmbiguousGroup, WeightDigest, match_modules
from torch_vis.analysis.compare.match_ops import match_operations
from torch_vis.analysis.compare.sides import TRANSPARENT, Side
from torch_vis.analysis.compare.wiring import Wiring
from torch_vis.graph import Graph, Node, Scope
from torch_vis.graph.types import Bools, Ints

# Kinds of scopes that are no modules.
BETWEEN = TRANSPARENT | {"operator"}


class Alignment(NamedTuple):
    """For each operation and each scope of ``a`` its counterpart in ``b``, -1 for none."""

    to_b: Ints
    changed: Bools
    """For each operation of ``b`` whether its arguments, inputs, or output shapes, dtypes or strides differ."""
    scope_to_b: Ints
    wiring: Wiring
    ambiguous: list[AmbiguousGroup]


def align(a: Graph, b: Graph, weights: tuple[WeightDigest, WeightDigest] | None = None) -> Alignment:
    """Match two graphs; ``weights`` give a digest of a value's contents in each, which distinguishes equal layers.

    >>> import torch, torch_vis as tv
    >>> a = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3)).graph
    >>> b = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), torch.ones(1, 3)).graph
    >>> align(a, b).to_b.tolist()
    [0, 1, -1]
    """
    known: dict[Any, int] = {}
    side_a, side_b = Side(a, known), Side(b, known)
    scope_to_b, ambiguous = match_modules(side_a, side_b, known, weights)
    to_b, wiring = match_operations(side_a, side_b, scope_to_b)
    changed = _changed(side_a, side_b, to_b, known)
    changed[list(wiring.changed_inputs)] = True
    return Alignment(to_b, changed, scope_to_b, wiring, ambiguous)


def module_of(node: Node) -> str:
    """The path of the module that an operation ran in, functions and operators between looked through.

    >>> import torch, torch_vis as tv
    >>> node = tv.trace(torch.nn.Sequential(torch.nn.ReLU()), torch.ones(1, 3), via="export").graph.nodes[0]
    >>> node.path, module_of(node)
    ('relu', '0')
    """
    scope: Scope | None = node.scope
    while scope is not None and scope.kind in BETWEEN:
        scope = scope.parent
    return "" if scope is None else scope.path


def _changed(side_a: Side, side_b: Side, to_b: Ints, known: dict[Any, int]) -> Bools:
    """For each operation of ``b`` whether it is called otherwise than its counterpart, or its outputs differ."""
    changed = np.zeros(len(side_b.graph), dtype=bool)
    numbers: dict[Any, int] = {}
    calls_a, calls_b = (
        np.array([numbers.setdefault(call, len(numbers)) for call in side.graph.calls], dtype=np.int64)
        for side in (side_a, side_b)
    )
    matched = np.flatnonzero(to_b >= 0)
    other = to_b[matched]
    if len(matched):
        differs = calls_a[side_a.graph.node_call[matched]] != calls_b[side_b.graph.node_call[other]]
        layouts_a, layouts_b = (np.array(side.layouts(known)) for side in (side_a, side_b))
        changed[other] = differs | (layouts_a[matched] != layouts_b[other])
    return changed
