"""Which of a graph's dispatcher operations make up one step: a call of a public function, or its gradient."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from torch_vis.capture.recording.function_calls import OPENED
from torch_vis.capture.recording.user_functions import last_part
from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.types import Ints

Level = Literal["leaf", "outermost"]
LEVELS = ("leaf", "outermost")


class Steps:
    """The steps of a run, numbered in the order in which they began.

    A step depends only on steps with a smaller number. It is all that one call ran, in one piece; a call that goes on
    after something else has read its results and made what it reads next (a declared function with a training step in
    it, say) is one step before and one after.
    """

    def __init__(self, graph: Graph, level: Level) -> None:
        self.graph = graph
        self._owner = _owners(graph, level)
        self.of_node, is_gradient = self._gather()
        self.count = int(self.of_node.max()) + 1 if len(graph) else 0
        self.nodes = np.argsort(self.of_node, kind="stable")
        self.starts = np.searchsorted(self.of_node[self.nodes], np.arange(self.count + 1))
        self.first = self.nodes[self.starts[:-1]]
        link = graph.node_link[self.first]
        belongs = np.where(is_gradient[self.first], self.of_node[np.maximum(link, 0)], -1)
        self.gradient_of: list[int] = belongs.tolist()
        self.owners = np.where(is_gradient[self.first], -1, self._owner[graph.node_scope[self.first]])
        self.names = self._names()

    def _gather(self) -> tuple[Ints, Ints]:
        """The step of each node, and whether the node is the gradient of another."""
        graph, count = self.graph, len(self.graph)
        again = (graph.node_flags & Flag.RECOMPUTE) != 0
        is_gradient = (graph.node_phase == Phase.BACKWARD) & (graph.node_link >= 0) & ~again
        owner = self._owner[graph.node_scope]
        whole = owner.astype(np.int64) * len(Phase) + graph.node_phase
        label = np.where(owner >= 0, whole, len(self._owner) * len(Phase) + np.arange(count))
        label[is_gradient] = -1
        while (label < 0).any():  # gradients of operations, then gradients of those, and so on
            ready = np.flatnonzero((label < 0) & (label[graph.node_link] >= 0))
            target = label[graph.node_link[ready]]
            begins = np.ones(len(ready), dtype=bool)
            begins[1:] = (np.diff(ready) != 1) | (np.diff(target) != 0)
            label[ready] = label.max() + np.cumsum(begins)
        return _in_order(graph, _numbered(label)), is_gradient

    def _names(self) -> list[str]:
        graph = self.graph
        operators = [call.op.partition(".")[0] for call in graph.calls]
        calls, owners = (
            graph.node_call[self.first].tolist(),
            self._owner[graph.node_scope[self.first]].tolist(),
        )
        names: list[str] = []
        for call, owner, forward in zip(calls, owners, self.gradient_of, strict=True):
            if forward >= 0:
                names.append(f"gradient of {names[forward]}")
            elif owner >= 0:
                names.append(graph.modules[int(graph.scope_module[owner])].path)
            else:
                names.append(operators[call])
        return names


def _owners(graph: Graph, level: Level) -> Ints:
    """For each scope, the scope of the call that it is part of; -1 where it is in none.

    The type of a function is the last part of its path; that of the body of a traced graph is not, and it is no step.
    """
    shown = [module.kind == "function" and module.type == last_part(module.path) for module in graph.modules]
    opened = [level == "leaf" and module.path in OPENED for module in graph.modules]
    modules = graph.scope_module.tolist()
    owners: list[int] = []
    for scope, (parent, module) in enumerate(zip(graph.scope_parent.tolist(), modules, strict=True)):
        above = owners[parent] if parent >= 0 else -1
        inside = above >= 0 and not opened[modules[above]]
        owners.append(scope if shown[module] and not inside else above)
    return np.array(owners, dtype=np.int64)


def _numbered(label: Ints) -> Ints:
    """Labels as numbers in the order of first appearance."""
    if not len(label):
        return np.zeros(0, dtype=np.int64)
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _in_order(graph: Graph, step: Ints) -> Ints:
    """The same steps, those cut into pieces that would otherwise read what is made after they began."""
    source, target, _, _ = graph.edges()
    while True:
        wrong = step[source] > step[target]
        if not wrong.any():
            return step
        cut = np.zeros(int(step.max()) + 1, dtype=bool)
        cut[step[source[wrong]]] = cut[step[target[wrong]]] = True
        order = np.argsort(step, kind="stable")
        sorted_step = step[order]
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (np.diff(sorted_step) != 0) | (cut[sorted_step[1:]] & (np.diff(order) != 1))
        label: Any = np.empty(len(order), dtype=np.int64)
        label[order] = np.cumsum(begins)
        step = _numbered(label)
