"""Which calls of modules backward ran again for what was checkpointed, and which calls of forward they were first."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.types import Bools


def recomputed_scopes(graph: Graph) -> Bools:
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
    if not repeated.any():
        return np.zeros(len(graph.scope_call), dtype=bool)
    return np.array(_only_in_backward(graph, repeated), dtype=bool)


def first_calls(graph: Graph) -> dict[int, int]:
    """For each call of a module in which only backward runs, the call of forward that it stands for.

    Such calls are made again by activation checkpointing, or stand for a module's backward in what a compiler captured.
    Backward comes to them from the last on; those of one stretch that was checkpointed are in their order again.

    >>> import torch, torch_vis as tv
    >>> from torch.utils.checkpoint import checkpoint
    >>> layer = torch.nn.Tanh()
    >>> def f(x):
    ...     return checkpoint(lambda x: layer(layer(x)), x, use_reentrant=True)
    >>> first_calls(tv.trace(f, torch.ones(2, requires_grad=True), backward=True).graph)
    {3: 1, 4: 2}
    """
    again, repeated = _only_in_backward(graph, graph.node_phase == Phase.BACKWARD), recomputed_scopes(graph)
    modules, around = graph.scope_module.tolist(), _modules_around(graph)
    calls: dict[int, list[int]] = defaultdict(list)  # of each module, in forward
    inside: dict[tuple[int, int], list[int]] = defaultdict(list)  # the same, by the call around them
    passed: Counter[int] = Counter()  # how many of them backward has come by, from the last on
    found: dict[int, int] = {}
    for stretch in _stretches(graph, again, around):
        outer = Counter(modules[scope] for scope in stretch if again[scope] and not _is(again, around[scope]))
        passed += outer
        seen: Counter[tuple[int, int]] = Counter()
        for scope in stretch:
            module, outside = modules[scope], around[scope]
            if not again[scope]:
                calls[module].append(scope)
                inside[outside, module].append(scope)
                continue
            begin = 0
            left = inside.get((found.get(outside, -1), module)) if _is(again, outside) else None
            if left is None:
                left = calls[module]
                begin = max(len(left) - passed[module], 0)
            elif not repeated[scope]:
                left = left[::-1]
            if left:  # what is run once more than it was stands for the last one again
                found[scope] = left[min(begin + seen[outside, module], len(left) - 1)]
            seen[outside, module] += 1
    return found


def _is(marks: list[bool], scope: int) -> bool:
    return scope >= 0 and marks[scope]


def _modules_around(graph: Graph) -> list[int]:
    """For each scope the nearest call of a module around it, -1 for none."""
    modules = graph.scope_module.tolist()
    found: list[int] = []
    for parent in graph.scope_parent.tolist():
        is_module = parent < 0 or graph.modules[modules[parent]].kind == "module"
        found.append(parent if is_module else found[parent])
    return found


def _stretches(graph: Graph, again: list[bool], around: list[int]) -> list[list[int]]:
    """Calls of modules as they were made: one of forward by itself, those of backward with no gradient between."""
    plain = (graph.node_phase == Phase.BACKWARD) & (graph.node_flags & Flag.RECOMPUTE == 0)
    passed = np.concatenate([[0], np.cumsum(plain)])
    begins = np.full(len(again), len(graph), dtype=np.int64)
    np.minimum.at(begins, graph.node_scope, np.arange(len(graph)))
    for scope in range(len(again) - 1, 0, -1):
        begins[graph.scope_parent[scope]] = min(begins[graph.scope_parent[scope]], begins[scope])
    found: list[list[int]] = []
    last = -1
    for scope, (module, begin) in enumerate(zip(graph.scope_module.tolist(), begins.tolist())):
        if graph.modules[module].kind != "module":
            continue
        if not again[scope]:
            here = -1
        elif begin == len(graph) or _is(again, around[scope]):
            here = last  # one that runs nothing is as those before it, and what is inside belongs to what is around
        else:
            here = int(passed[begin])
        if here < 0 or here != last:
            found.append([])
        found[-1].append(scope)
        last = here
    return found


def _only_in_backward(graph: Graph, chosen: Any) -> list[bool]:
    """Whether a scope is a call of a module with some of the chosen operations, and none of a forward pass."""
    count = len(graph.scope_call)
    parents = graph.scope_parent.tolist()
    some, rest, any_ = (
        _with_those_inside(np.bincount(graph.node_scope[these], minlength=count) > 0, parents)
        for these in (chosen, graph.node_phase != Phase.BACKWARD, np.ones(len(graph), dtype=bool))
    )
    kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
    found = [a and not b and kind in ("module", "compiled") for a, b, kind in zip(some, rest, kinds)]
    _settle_empty(graph.scope_module.tolist(), parents, any_, found)
    return found


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
