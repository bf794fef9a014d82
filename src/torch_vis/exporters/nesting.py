"""Where operations go in files with nested graphs: the parts of a run, stretches of long modules, and namespaces."""

from __future__ import annotations

from enum import IntEnum
from math import isqrt

import numpy as np

from torch_vis.exporters.facts import Names
from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.tree import inner_path
from torch_vis.graph.types import Ints


class RunPart(IntEnum):
    """What a box's operations were run for; a box has operations of one part only."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    RECOMPUTE = 3


def main_scope(graph: Graph) -> int:
    """The scope whose inside is the main graph: the run, or its one call of the traced module."""
    outermost = np.flatnonzero(graph.scope_parent == 0).tolist()
    modules = [(scope, graph.modules[graph.scope_module[scope]]) for scope in outermost]
    traced = [scope for scope, module in modules if module.kind in ("module", "compiled") and not module.path]
    return traced[0] if len(traced) == 1 else 0


def node_parts(graph: Graph) -> Ints:
    """The part of the run that each operation belongs to."""
    parts = np.array([RunPart.FORWARD, RunPart.BACKWARD, RunPart.OPTIMIZER], dtype=np.int8)[graph.node_phase]
    recomputed = (graph.node_flags & Flag.RECOMPUTE != 0) & (graph.node_phase == Phase.BACKWARD)
    return np.where(recomputed, np.int8(RunPart.RECOMPUTE), parts)


def node_reads(graph: Graph) -> list[list[tuple[int, int]]]:
    """For each operation the values that it reads, with their slots: arguments in order, then reads through aliases.

    Slot -1 is a read that no argument names: bytes that came through an alias, or the version that a partial write was
    laid over.
    """
    by_node: list[dict[tuple[int, int], None]] = [{} for _ in range(len(graph))]
    order = np.lexsort((graph.in_slot, graph.in_slot < 0, graph.in_node))
    rows = (graph.in_node[order], graph.in_slot[order], graph.in_value[order])
    for node, slot, value in zip(*(column.tolist() for column in rows)):
        by_node[node][slot, value] = None
    named: dict[int, set[int]] = {}
    for value, node in zip(*_laid_over(graph)):
        values = named.get(node) or named.setdefault(node, {read for _, read in by_node[node]})
        if value not in values:
            values.add(value)
            by_node[node][-1, value] = None
    return [list(reads) for reads in by_node]


def _laid_over(graph: Graph) -> tuple[list[int], list[int]]:
    """The versions that partial writes were laid over, with the operations that wrote; its own are left out."""
    over = np.flatnonzero((graph.value_carries >= 0) & (graph.value_producer >= 0))
    below, writer = graph.value_carries[over], graph.value_producer[over]
    from_others = graph.value_producer[below] != writer
    return below[from_others].tolist(), writer[from_others].tolist()


LONG_SCOPE = 1000  # things directly in a scope from which on it is taken apart
STRETCH_LENGTH = 200  # of a stretch; of a very long scope, so that it has as many stretches as things in each


class Stretches:
    """Numbers the stretches of every scope, separately for each part of the run."""

    def __init__(self, graph: Graph, parts: Ints, main: int) -> None:
        self._main = main
        self._parent: list[int] = graph.scope_parent.tolist()
        self._length = {
            key: max(STRETCH_LENGTH, isqrt(count))
            for key, count in self._count(graph, parts).items()
            if count > LONG_SCOPE
        }
        self._next: dict[tuple[int, int], int] = {}

    def next(self, scope: int, part: int) -> int:
        """The stretch of the next thing that is directly in a scope; -1 without stretches."""
        key = (self.inside(scope), part)
        length = self._length.get(key)
        if length is None:
            return -1
        number = self._next[key] = self._next.get(key, -1) + 1
        return number // length

    def inside(self, scope: int) -> int:
        """The scope itself, but one number for the run and the traced module: both are the main graph."""
        return 0 if scope == self._main else scope

    def _count(self, graph: Graph, parts: Ints) -> dict[tuple[int, int], int]:
        """How many operations and calls are directly in each scope, by part of the run."""
        pairs, numbers = np.unique(np.stack([graph.node_scope, parts]), axis=1, return_counts=True)
        counts: dict[tuple[int, int], int] = {}
        seen: set[tuple[int, int]] = set()
        for scope, part, count in zip(*pairs.tolist(), numbers.tolist()):
            key = (self.inside(scope), part)
            counts[key] = counts.get(key, 0) + count
            while key[0] and key not in seen:
                seen.add(key)
                key = (self.inside(self._parent[key[0]]), part)
                counts[key] = counts.get(key, 0) + 1
        return counts


NAMESPACE_DEPTH = 64  # of modules that get a name of their own; deeper ones share that of the last
WORDS = {RunPart.BACKWARD: "backward", RunPart.OPTIMIZER: "optimizer", RunPart.RECOMPUTE: "recompute"}


class Namespaces:
    """The namespaces of a graph; number 0 is the main graph, with no name.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> Namespaces(tv.trace(model, torch.ones(1, 3), backward=True).graph).names[:4]
    ['', '0', '1', 'backward']
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = [""]
        # what each is a call of; -1 is no module
        self.scopes = [-1]
        self.parents = [0]
        self.of_node: list[int] = []
        self._main = main_scope(graph)
        self._parent: list[int] = graph.scope_parent.tolist()
        self._numbers: dict[tuple[int, RunPart], int] = {}
        self._taken = Names({path.partition(".")[0] for path in graph.scope_paths})
        self._tops: dict[RunPart, int] = {RunPart.FORWARD: 0}
        # one that is cut would no longer be inside the others
        self._given = Names(longest=1 << 20)
        parts = node_parts(graph)
        self._stretches = Stretches(graph, parts, self._main)
        self._stretch_numbers: dict[tuple[int, int], int] = {}
        for scope, code in zip(graph.node_scope.tolist(), parts.tolist()):
            self.of_node.append(self._next_in(self._number(scope, RunPart(code)), scope, code))

    def name(self, node: int) -> str:
        """The namespace of an operation."""
        return self.names[self.of_node[node]]

    def _number(self, scope: int, part: RunPart) -> int:
        """The namespace of a scope in one part of the run, made together with those around it."""
        number = self._numbers.get((scope, part))
        if number is not None:
            return number
        chain = []
        while scope not in (self._main, 0) and (scope, part) not in self._numbers:
            chain.append(scope)
            scope = self._parent[scope]
        at = self._numbers.get((scope, part), -1)
        if at < 0:
            at = self._numbers[scope, part] = self._top(part)
        for inner in reversed(chain):
            at = self._next_in(at, self._parent[inner], part)
            if self.names[at].count("/") < NAMESPACE_DEPTH:
                at = self._add(self._path(at, inner), inner, at)
            self._numbers[inner, part] = at
        return at

    def _next_in(self, at: int, scope: int, part: int) -> int:
        """The namespace of the next thing directly in a scope: that of the scope, or of a stretch of it."""
        stretch = self._stretches.next(scope, part)
        if stretch < 0:
            return at
        number = self._stretch_numbers.get((at, stretch))
        if number is None:
            name = f"{self.names[at]}/operations {stretch + 1}".lstrip("/")
            number = self._stretch_numbers[at, stretch] = self._add(name, self.scopes[at], at)
        return number

    def _top(self, part: RunPart) -> int:
        if part not in self._tops:
            self._tops[part] = self._add(self._taken.new(WORDS[part]), -1, 0)
        return self._tops[part]

    def _add(self, name: str, scope: int, parent: int) -> int:
        self.names.append(self._given.new(name))
        self.scopes.append(scope)
        self.parents.append(parent)
        return len(self.names) - 1

    def _path(self, at: int, scope: int) -> str:
        """The name of a scope inside another namespace: its path from there on, and which call it is."""
        graph = self.graph
        module, call = graph.modules[int(graph.scope_module[scope])], int(graph.scope_call[scope])
        above = graph.scope_paths[self.scopes[at]] if self.scopes[at] >= 0 else ""
        path = inner_path(module.path, above)
        steps = [step for step in (path or module.type or "module").replace("/", "_").split(".") if step]
        text = "/".join(steps) or "module"
        text += f" (call {call + 1})" if call else ""
        return f"{self.names[at]}/{text}" if self.names[at] else text
