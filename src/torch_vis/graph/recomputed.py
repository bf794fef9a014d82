"""Which calls of modules backward ran again: the second computation of what was checkpointed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Phase


def recomputed_scopes(graph: Graph) -> NDArray[np.bool_]:
    """For each scope, whether it is a call that backward ran again.

    Such a call has recomputed operations and none of a forward pass. One that runs no operation at all (dropout of
    nothing, say) is as its neighbours are, if its module was called before.

    >>> import torch, torch_vis as tv
    >>> from torch.utils.checkpoint import checkpoint
    >>> layer = torch.nn.Tanh()
    >>> def f(x):
    ...     return checkpoint(layer, x, use_reentrant=False)
    >>> t = tv.trace(f, torch.ones(2, requires_grad=True), backward=True)
    >>> [scope.type for scope in t.graph.scopes if recomputed_scopes(t.graph)[scope.index]]
    ['Tanh']
    """
    repeated = graph.node_flags & Flag.RECOMPUTE != 0
    count = len(graph.scope_call)
    if not repeated.any():
        return np.zeros(count, dtype=bool)
    parents = graph.scope_parent.tolist()
    some, rest, any_ = (
        _with_those_inside(np.bincount(graph.node_scope[chosen], minlength=count) > 0, parents)
        for chosen in (repeated, graph.node_phase != Phase.BACKWARD, np.ones(len(graph), dtype=bool))
    )
    kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
    found = [a and not b and kind in ("module", "compiled") for a, b, kind in zip(some, rest, kinds)]
    _settle_empty(graph.scope_module.tolist(), parents, any_, found)
    return np.array(found, dtype=bool)


def _with_those_inside(here: Any, parents: list[int]) -> list[bool]:
    """Whether it is so of a scope or of one inside it."""
    found: list[bool] = here.tolist()
    for scope in range(len(found) - 1, 0, -1):  # parents come before the calls in them
        if found[scope]:
            found[parents[scope]] = True
    return found


def _settle_empty(modules: list[int], parents: list[int], any_: list[bool], found: list[bool]) -> None:
    """Find those without operations: inside a call that was run again, or beside one."""
    last: dict[int, bool] = {}  # by parent: what the sibling before was
    waiting: dict[int, list[int]] = {}
    seen: set[int] = set()
    for scope, (module, parent) in enumerate(zip(modules, parents)):
        if parent >= 0 and found[parent]:
            found[scope] = True
        elif any_[scope]:
            for empty in waiting.pop(parent, []):
                found[empty] = found[scope]
            last[parent] = found[scope]
        elif module in seen:
            found[scope] = last.get(parent, False)
            if not found[scope]:
                waiting.setdefault(parent, []).append(scope)
        seen.add(module)
