"""The calls of modules of two aligned runs, by what became of them: new, gone, moved, reordered, of another class."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from torch_vis.analysis.compare.align import Alignment
from torch_vis.analysis.compare.module_deltas import is_root
from torch_vis.analysis.compare.sequence_diff import increasing
from torch_vis.graph.graph import Graph, Scope

ScopePairs = list[tuple[Scope, Scope]]


class ModuleLists:
    """What became of the modules of ``a`` in ``b``."""

    def __init__(self, a: Graph, b: Graph, alignment: Alignment) -> None:
        self.a, self.b, self.alignment = a, b, alignment

    @cached_property
    def changed(self) -> ScopePairs:
        """Modules in the same place that are of another class, by their first calls; not the model as a whole."""
        a, b = self.a, self.b
        changed: dict[int, tuple[Scope, Scope]] = {}
        for scope, other in enumerate(self.alignment.scope_to_b.tolist()):
            module = int(a.scope_module[scope])
            before, after = a.modules[module], b.modules[int(b.scope_module[other])]
            if other < 0 or before.type == after.type or before.kind != "module" or module in changed:
                continue
            if not is_root(a, scope) and not is_root(b, other):
                changed[module] = a.scopes[scope], b.scopes[other]
        return list(changed.values())

    @cached_property
    def added(self) -> list[Scope]:
        """Calls of modules that only ``b`` makes; not those that it makes again in backward."""
        scope_to_b = self.alignment.scope_to_b
        known = {*scope_to_b[scope_to_b >= 0].tolist(), *self.b.tree.first_calls}
        return _modules(scope for scope in self.b.scopes if scope.index not in known)

    @cached_property
    def removed(self) -> list[Scope]:
        """Calls of modules that only ``a`` makes; not those that it makes again in backward."""
        recomputed = self.a.tree.first_calls
        removed = np.flatnonzero(self.alignment.scope_to_b < 0).tolist()
        return _modules(self.a.scopes[scope] for scope in removed if scope not in recomputed)

    @cached_property
    def moved(self) -> ScopePairs:
        """Calls of modules that both make, under another path."""
        moved = []
        for scope, other in enumerate(self.alignment.scope_to_b.tolist()):
            if other < 0:
                continue
            before, after = self.a.scopes[scope], self.b.scopes[other]
            if before.path != after.path and before.kind == "module":
                if not (is_root(self.a, scope) and is_root(self.b, other)):
                    moved.append((before, after))
        return moved

    @cached_property
    def reordered(self) -> ScopePairs:
        """Calls of modules that both make, in another order: the fewest that would have to move."""
        calls = [
            (scope, other)
            for scope, other in enumerate(self.alignment.scope_to_b.tolist())
            if other >= 0 and self.a.scopes[scope].kind == "module"
        ]
        in_order = increasing([other for _, other in calls])
        moved = {scope: other for index, (scope, other) in enumerate(calls) if index not in in_order}
        parent = self.a.scope_parent
        # what is inside has moved with it
        outermost = ((scope, other) for scope, other in moved.items() if int(parent[scope]) not in moved)
        return [(self.a.scopes[scope], self.b.scopes[other]) for scope, other in outermost]


def _modules(scopes: Iterable[Scope]) -> list[Scope]:
    """Those that are calls of modules; not of the whole model once more, inside what a compiler captured of it."""
    return [
        scope
        for scope in scopes
        if scope.kind == "module" and not (scope.path and is_root(scope.graph, scope.index))
    ]
