"""The place of each operation in the tree of modules as a path of names: ``backward/encoder/layer/0``."""

from __future__ import annotations

from torch_vis.exporters.names import Names
from torch_vis.exporters.reading import Part, main_scope, node_parts
from torch_vis.exporters.stretches import Stretches
from torch_vis.graph import Graph

DEPTH = 64  # of modules that get a name of their own; deeper ones share that of the last
WORDS = {Part.BACKWARD: "backward", Part.OPTIMIZER: "optimizer", Part.RECOMPUTE: "recompute"}


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
        self.scopes = [-1]  # what each is a call of; -1 is no module
        self.parents = [0]
        self.of_node: list[int] = []
        self._main = main_scope(graph)
        self._parent: list[int] = graph.scope_parent.tolist()
        self._numbers: dict[tuple[int, Part], int] = {}
        self._taken = Names({path.partition(".")[0] for path in graph.scope_paths})
        self._tops: dict[Part, int] = {Part.FORWARD: 0}
        self._given = Names(longest=1 << 20)  # one that is cut would no longer be inside the others
        parts = node_parts(graph)
        self._stretches = Stretches(graph, parts, self._main)
        self._stretch_numbers: dict[tuple[int, int], int] = {}
        for scope, code in zip(graph.node_scope.tolist(), parts.tolist()):
            self.of_node.append(self._next_in(self._number(scope, Part(code)), scope, code))

    def name(self, node: int) -> str:
        """The namespace of an operation."""
        return self.names[self.of_node[node]]

    def _number(self, scope: int, part: Part) -> int:
        """The namespace of a scope in one part of the run, made together with those around it."""
        found = self._numbers.get((scope, part))
        if found is not None:
            return found
        chain = []
        while scope not in (self._main, 0) and (scope, part) not in self._numbers:
            chain.append(scope)
            scope = self._parent[scope]
        at = self._numbers.get((scope, part), -1)
        if at < 0:
            at = self._numbers[scope, part] = self._top(part)
        for inner in reversed(chain):
            at = self._next_in(at, self._parent[inner], part)
            if self.names[at].count("/") < DEPTH:
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

    def _top(self, part: Part) -> int:
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
        path = module.path
        if above and path.startswith(f"{above}."):
            path = path[len(above) + 1 :]
        steps = [step for step in (path or module.type or "module").replace("/", "_").split(".") if step]
        text = "/".join(steps) or "module"
        text += f" (call {call + 1})" if call else ""
        return f"{self.names[at]}/{text}" if self.names[at] else text
