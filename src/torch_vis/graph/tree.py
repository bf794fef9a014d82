"""Rows in groups and in trees: depth, what lies inside what, sums over it; and the tree of a run's module calls.

Parents come before the rows inside them, as they do among the scopes of a graph. Nothing here recurses: a model may
nest its calls as deeply as it likes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from torch_vis.graph.schema import Flag, Module, Phase
from torch_vis.graph.types import Array, Bools, Ints


def group_sums(group: Ints, values: Array, count: int) -> Array:
    """The sum of the values in each of ``count`` groups, of whole numbers without rounding.

    >>> group_sums(np.array([0, 2, 0]), np.array([3, 4, 5]), 3)
    array([8, 0, 4])
    """
    sums = np.zeros(count, dtype=np.float64 if values.dtype.kind == "f" else np.int64)
    np.add.at(sums, group, values)
    return sums


def group_rows(group: Ints, count: int) -> tuple[Ints, Ints]:
    """The rows sorted by their groups, and where each of ``count`` groups begins; those of none, -1, come first.

    >>> rows, start = group_rows(np.array([1, -1, 0, 1]), 2)
    >>> [rows[start[number] : start[number + 1]].tolist() for number in range(2)]
    [[2], [0, 3]]
    """
    rows = np.argsort(group, kind="stable")
    return rows, np.searchsorted(group[rows], np.arange(count + 1))


class Tree:
    """Rows that lie inside each other: ``parent`` is the row around each, -1 for an outermost one.

    >>> tree = Tree([-1, 0, 1, 0])
    >>> tree.depth.tolist(), tree.inclusive(np.array([1, 10, 100, 1000])).tolist()
    ([0, 1, 2, 1], [1111, 110, 100, 1000])
    """

    def __init__(self, parent: Sequence[int] | Ints) -> None:
        self.parent: Ints = np.asarray(parent, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def depth(self) -> Ints:
        """How many rows are around each."""
        depth: list[int] = []
        for parent in self.parent.tolist():
            depth.append(depth[parent] + 1 if parent >= 0 else 0)
        return np.array(depth, dtype=np.int64)

    @cached_property
    def levels(self) -> list[Ints]:
        """The rows of each depth, the outermost first."""
        if not len(self):
            return []
        order = np.argsort(self.depth, kind="stable")
        return list(np.split(order, np.cumsum(np.bincount(self.depth))[:-1]))

    @cached_property
    def size(self) -> Ints:
        """How many rows lie inside each, itself counted."""
        return self.inclusive(np.ones(len(self), dtype=np.int64))

    @cached_property
    def enter(self) -> Ints:
        """Positions in depth-first order: ``enter[a] <= enter[b] < leave[a]`` exactly when b is a, or inside it."""
        sizes = self.size.tolist()
        enter: list[int] = []
        # the next free position inside each row, and for an outermost row
        free: list[int] = []
        outermost = 0
        for row, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                enter.append(free[parent])
                free[parent] += sizes[row]
            else:
                enter.append(outermost)
                outermost += sizes[row]
            free.append(enter[row] + 1)
        return np.array(enter, dtype=np.int64)

    @cached_property
    def leave(self) -> Ints:
        """The end of each row's interval; see ``enter``."""
        return self.enter + self.size

    @cached_property
    def children(self) -> list[list[int]]:
        """The rows directly inside each, in order."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for row, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                children[parent].append(row)
        return children

    # ---------------------------------------------------------------- sums

    def inclusive(self, own: Array, combine: np.ufunc = np.add) -> Array:
        """Sums over each row and all that lie inside it, along the last axis; ``np.maximum`` takes the largest."""
        sums = own.astype(np.float64 if own.dtype.kind == "f" else np.int64)
        # a view, so that rows are added in place
        columns = sums.T
        for rows in reversed(self.levels[1:]):
            combine.at(columns, self.parent[rows], columns[rows])
        return sums

    def own(self, inclusive: Array) -> Array:
        """What is left of each row without the rows directly inside it, along the last axis."""
        own = inclusive.copy()
        inner = np.flatnonzero(self.parent >= 0)
        np.subtract.at(own.T, self.parent[inner], inclusive.T[inner])
        return own

    # ---------------------------------------------------------------- relations

    def around_some(self, rows: Bools) -> Bools:
        """Which rows are among ``rows``, or have one of them inside."""
        result = rows.copy()
        for level in reversed(self.levels[1:]):
            result[self.parent[level[result[level]]]] = True
        return result

    def inside_some(self, rows: Bools) -> Bools:
        """Which rows are among ``rows``, or lie inside one of them."""
        result = rows.copy()
        for level in self.levels[1:]:
            result[level] |= result[self.parent[level]]
        return result

    def nearest(self, rows: Bools) -> Ints:
        """For each row the innermost of ``rows`` that is the row itself or around it, -1 for none."""
        nearest = np.where(rows, np.arange(len(self)), -1)
        for level in self.levels[1:]:
            others = level[~rows[level]]
            nearest[others] = nearest[self.parent[others]]
        return nearest

    def common(self, a: Ints, b: Ints) -> Ints:
        """The innermost row around both ``a[i]`` and ``b[i]``, for each i; both must be inside one outermost row."""
        a, b = a.copy(), b.copy()
        while (different := a != b).any():
            up = different & (self.depth[a] >= self.depth[b])
            down = different & (self.depth[b] >= self.depth[a])
            a[up], b[down] = self.parent[a[up]], self.parent[b[down]]
        return a

    def outermost(self, group: Sequence[int] | Ints) -> Bools:
        """Which rows lie inside no other row of their group."""
        groups = np.asarray(group).tolist()
        # how many rows of each group are around the current one
        running: Counter[int] = Counter()
        outermost = np.ones(len(self), dtype=bool)
        stack = [(int(row), False) for row in np.flatnonzero(self.parent < 0)[::-1]]
        while stack:
            row, leaving = stack.pop()
            if leaving:
                running[groups[row]] -= 1
                continue
            outermost[row] = running[groups[row]] == 0
            running[groups[row]] += 1
            stack.append((row, True))
            stack += [(child, False) for child in reversed(self.children[row])]
        return outermost


class Scoped(Protocol):
    """The columns of a graph that say which operation ran in which call."""

    scope_parent: Ints
    scope_module: Ints
    node_scope: Ints
    node_phase: Ints
    node_flags: Ints
    modules: tuple[Module, ...]


class ScopeTree(Tree):
    """The calls of a run's modules and functions; the first is the whole run.

    >>> import torch, torch_vis as tv
    >>> graph = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3)).graph
    >>> [graph.scope_paths[scope] for scope in graph.tree.children[1]]
    ['0', '1']
    """

    def __init__(self, graph: Scoped) -> None:
        super().__init__(graph.scope_parent)
        self._graph = graph

    def of_nodes(self, values: Array, nodes: Array | None = None) -> Array:
        """The sum of ``values`` over the operations directly in each scope, of all operations or of some.

        ``values`` has a row for each operation of the graph; ``nodes`` chooses some by number or by mask.
        """
        scopes = self._graph.node_scope
        if nodes is not None:
            scopes, values = scopes[nodes], values[nodes]
        return group_sums(scopes, values, len(self))

    @cached_property
    def is_module(self) -> Bools:
        """Which scopes are calls of modules, not of functions, optimizers or compiled regions."""
        kinds = np.array([module.kind == "module" for module in self._graph.modules], dtype=bool)
        return kinds[self._graph.scope_module] if len(kinds) else np.zeros(len(self), dtype=bool)

    # ---------------------------------------------------------------- recomputed calls

    @cached_property
    def recomputed(self) -> Bools:
        """Which scopes are calls that backward recomputed, because they were checkpointed.

        Such a call has recomputed operations and none of a forward pass. One that runs no operation at all (dropout of
        nothing, say) is as its neighbours are, if its module was called before.

        >>> import torch, torch_vis as tv
        >>> from torch.utils.checkpoint import checkpoint
        >>> layer = torch.nn.Tanh()
        >>> def f(x):
        ...     return checkpoint(layer, x, use_reentrant=False)
        >>> graph = tv.trace(f, torch.ones(2, requires_grad=True), backward=True).graph
        >>> [scope.type for scope in graph.scopes if graph.tree.recomputed[scope.index]]
        ['Tanh']
        """
        repeated = self._graph.node_flags & Flag.RECOMPUTE != 0
        return self._only_in_backward(repeated) if repeated.any() else np.zeros(len(self), dtype=bool)

    @cached_property
    def first_calls(self) -> dict[int, int]:
        """For each call of a module in which only backward runs, the call of forward that it stands for.

        Such calls are made again by activation checkpointing, or stand for a module's backward in what a compiler
        captured. Backward comes to them from the last on; those of one stretch that was checkpointed are in their
        order again.

        >>> import torch, torch_vis as tv
        >>> from torch.utils.checkpoint import checkpoint
        >>> layer = torch.nn.Tanh()
        >>> def f(x):
        ...     return checkpoint(lambda x: layer(layer(x)), x, use_reentrant=True)
        >>> tv.trace(f, torch.ones(2, requires_grad=True), backward=True).graph.tree.first_calls
        {3: 1, 4: 2}
        """
        backward_only = self._only_in_backward(self._graph.node_phase == Phase.BACKWARD).tolist()
        modules, around = self._graph.scope_module.tolist(), self._modules_around()
        # the forward calls of each module
        calls: dict[int, list[int]] = defaultdict(list)
        # the same, by (call around, module)
        calls_inside: dict[tuple[int, int], list[int]] = defaultdict(list)
        # how many forward calls of each module backward has come by, last first
        passed: Counter[int] = Counter()
        first: dict[int, int] = {}
        for stretch in self._stretches(backward_only, around):
            passed += Counter(
                modules[scope]
                for scope in stretch
                if backward_only[scope] and not _is_marked(backward_only, around[scope])
            )
            # calls so far in this stretch, by (call around, module)
            seen: Counter[tuple[int, int]] = Counter()
            for scope in stretch:
                module, outer = modules[scope], around[scope]
                if not backward_only[scope]:
                    calls[module].append(scope)
                    calls_inside[outer, module].append(scope)
                    continue
                # inside a call of backward: the calls inside the forward call that it stands for; else all calls of
                # the module, from the one that backward has come to
                begin = 0
                in_backward = _is_marked(backward_only, outer)
                candidates = calls_inside.get((first.get(outer, -1), module)) if in_backward else None
                if candidates is None:
                    candidates = calls[module]
                    begin = max(len(candidates) - passed[module], 0)
                elif not self.recomputed[scope]:
                    candidates = candidates[::-1]
                # a call more than forward made stands for the last one again
                if candidates:
                    first[scope] = candidates[min(begin + seen[outer, module], len(candidates) - 1)]
                seen[outer, module] += 1
        return first

    @cached_property
    def by_first_call(self) -> Tree:
        """The tree in which a recomputed call lies where it was called first: there its figures count.

        Backward comes to a checkpointed call from anywhere. Its own first call decides, not the first of its module,
        which others may have called too; a compiled region, of which calls are not told apart, goes by its first.
        """
        if not self.recomputed.any():
            return self
        parent = self.parent.copy()
        first_of_module: dict[int, int] = {}
        outer = self.recomputed & ~self.recomputed[self.parent]
        for scope, module in enumerate(self._graph.scope_module.tolist()):
            first_of_module.setdefault(module, scope)
            if outer[scope]:
                parent[scope] = self.parent[self.first_calls.get(scope, first_of_module[module])]
        return Tree(parent)

    def _modules_around(self) -> list[int]:
        """For each scope the nearest call of a module around it, -1 for none."""
        around: list[int] = np.where(self.parent >= 0, self.nearest(self.is_module)[self.parent], -1).tolist()
        return around

    def _stretches(self, backward_only: list[bool], around: list[int]) -> list[list[int]]:
        """Calls of modules in order: each of forward alone, those of backward grouped where no gradient is between."""
        graph = self._graph
        count = len(graph.node_scope)
        is_gradient = (graph.node_phase == Phase.BACKWARD) & (graph.node_flags & Flag.RECOMPUTE == 0)
        gradients_before = np.concatenate([[0], np.cumsum(is_gradient)])
        own_first = np.full(len(self), count, dtype=np.int64)
        np.minimum.at(own_first, graph.node_scope, np.arange(count))
        first_node = self.inclusive(own_first, np.minimum).tolist()
        stretches: list[list[int]] = []
        # of the call before: how many gradients came before it, -1 for a call of forward
        last = -1
        for scope in np.flatnonzero(self.is_module).tolist():
            if not backward_only[scope]:
                position = -1
            elif first_node[scope] == count or _is_marked(backward_only, around[scope]):
                # a call that runs nothing goes with those before it, and one inside another with that one
                position = last
            else:
                position = int(gradients_before[first_node[scope]])
            if position < 0 or position != last:
                stretches.append([])
            stretches[-1].append(scope)
            last = position
        return stretches

    def _only_in_backward(self, chosen: Bools) -> Bools:
        """Whether a scope is a call of a module with some of the chosen operations, and none of a forward pass."""
        graph = self._graph
        has_chosen, has_forward, has_any = (
            self.around_some(np.bincount(graph.node_scope[nodes], minlength=len(self)) > 0)
            for nodes in (chosen, graph.node_phase != Phase.BACKWARD, np.ones(len(chosen), dtype=bool))
        )
        kinds = np.array([module.kind in ("module", "compiled") for module in graph.modules], dtype=bool)
        marks: list[bool] = (has_chosen & ~has_forward & kinds[graph.scope_module]).tolist()
        _mark_empty(graph.scope_module.tolist(), self.parent.tolist(), has_any.tolist(), marks)
        return np.array(marks, dtype=bool)


def inner_path(path: str, above: str) -> str:
    """A module's path without the part that is the path of the module around it.

    >>> inner_path("encoder.layer.0", "encoder"), inner_path("head", "encoder")
    ('layer.0', 'head')
    """
    return path[len(above) + 1 :] if above and path.startswith(above + ".") else path


def _is_marked(marks: list[bool], scope: int) -> bool:
    """Whether a scope is marked; -1 stands for no scope."""
    return scope >= 0 and marks[scope]


def _mark_empty(modules: list[int], parents: list[int], has_any: list[bool], marks: list[bool]) -> None:
    """Mark the scopes without operations that are inside a marked call or beside one."""
    # by parent: whether the sibling before is marked
    last: dict[int, bool] = {}
    # by parent: empty scopes that the next sibling decides
    waiting: dict[int, list[int]] = {}
    # modules that were called before
    seen: set[int] = set()
    for scope, (module, parent) in enumerate(zip(modules, parents)):
        if parent >= 0 and marks[parent]:
            marks[scope] = True
        elif has_any[scope]:
            for empty in waiting.pop(parent, []):
                marks[empty] = marks[scope]
            last[parent] = marks[scope]
        elif module in seen:
            marks[scope] = last.get(parent, False)
            if not marks[scope]:
                waiting.setdefault(parent, []).append(scope)
        seen.add(module)
