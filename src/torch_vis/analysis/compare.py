"""Two runs laid over one another by their structure: which call of a module, and which operation, became which.

Calls are matched from the outside in: those that do the same under the same name, then those that do the same, then
by name and class, then by their operators, then by class alone. So a module that was renamed or moved is still the same
module. Within two calls that belong together, operations are matched by the longest common sequence of operators; what
is left of them, with the calls inside that have no counterpart, is matched once more by operators and what they make: a
compiler, or a change that writes a module's code out, leaves the operations and drops the call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph, Node, Scope

TRANSPARENT = frozenset({"function", "compiled"})
BETWEEN = TRANSPARENT | {"operator"}
Key = Callable[[int], Any]
LONG = 2000  # beyond, only what is unique or at the ends is matched, to stay linear


class Alignment(NamedTuple):
    """For each operation and call of ``a`` the one of ``b`` that it became, -1 for none."""

    to_b: Any
    changed: (
        Any  # of each operation of b: whether its arguments, or the shapes and types of what it makes, differ
    )
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
    one, two = _Side(a, known), _Side(b, known)
    scopes = _match_scopes(one, two, known)
    to_b = np.full(len(a), -1, dtype=np.int64)
    for (scope, phase), nodes in one.operations.items():
        others = two.operations.get((int(scopes[scope]), phase)) if scopes[scope] >= 0 else None
        if others:
            for here, there in common(one.operators(nodes), two.operators(others)):
                to_b[nodes[here]] = others[there]
    _match_dissolved(one, two, scopes, to_b)
    return Alignment(to_b, _changed(one, two, to_b), scopes)


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


class _Side:
    """One of the two graphs, as plain lists; ``known`` numbers what can be equal in both."""

    def __init__(self, graph: Graph, known: dict[Any, int]) -> None:
        self.graph = graph
        self.call: list[int] = graph.node_call.tolist()
        self.operator = [call.op.partition(".")[0] for call in graph.calls]
        self.made = self._made(known)
        self.solid = _solid(graph)
        self.operations: dict[tuple[int, int], list[int]] = defaultdict(list)
        for node, (scope, phase) in enumerate(zip(graph.node_scope.tolist(), graph.node_phase.tolist())):
            self.operations[self.solid[scope], phase].append(node)  # in order

    def _made(self, known: dict[Any, int]) -> list[int]:
        """A number for each operation that is equal where what it makes has the same shapes and types."""
        graph = self.graph
        kinds = [known.setdefault((row.dtype, row.shape), len(known)) for row in graph.types]
        made = [kinds[number] for number in graph.value_type[graph.out_value].tolist()]
        start = graph.out_start.tolist()
        return [known.setdefault(tuple(made[begin:end]), len(known)) for begin, end in pairwise(start)]

    def operators(self, nodes: list[int]) -> list[str]:
        """The operators of some operations."""
        return [self.operator[self.call[node]] for node in nodes]

    def exactly(self, nodes: list[int]) -> list[Any]:
        """Operators with what they make."""
        return [(self.operator[self.call[node]], self.made[node]) for node in nodes]


def _solid(graph: Graph) -> list[int]:
    """For each scope the one that counts: functions and compiled regions are part of what they are called in."""
    kinds = [graph.modules[module].kind for module in graph.scope_module.tolist()]
    solid: list[int] = []
    for scope, parent in enumerate(graph.scope_parent.tolist()):
        solid.append(solid[parent] if parent >= 0 and kinds[scope] in TRANSPARENT else scope)
    return solid


def _changed(one: _Side, two: _Side, to_b: Any) -> Any:
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
        changed[other] = differs | (np.array(one.made)[kept] != np.array(two.made)[other])
    return changed


# ---------------------------------------------------------------- calls


def _match_scopes(one: _Side, two: _Side, known: dict[Any, int]) -> Any:
    a, b = one.graph, two.graph
    found = np.full(len(a.scope_call), -1, dtype=np.int64)
    inside_a, inside_b = _children(one), _children(two)
    print_a, print_b = (
        _fingerprints(one, inside_a, one.operators, known),
        _fingerprints(two, inside_b, two.operators, known),
    )
    exact_a, exact_b = (
        _fingerprints(one, inside_a, one.exactly, known),
        _fingerprints(two, inside_b, two.exactly, known),
    )
    prints = (one, exact_a, print_a), (two, exact_b, print_b)
    keys: tuple[tuple[Key, Key], ...] = (
        (lambda scope: (_name(a, scope), exact_a[scope]), lambda scope: (_name(b, scope), exact_b[scope])),
        (exact_a.__getitem__, exact_b.__getitem__),
        (lambda scope: _name(a, scope), lambda scope: _name(b, scope)),
        (print_a.__getitem__, print_b.__getitem__),
        (lambda scope: _type(a, scope), lambda scope: _type(b, scope)),
    )
    found[0] = 0
    stack = [(0, 0)]
    taken = {0}
    alone: list[tuple[int, int]] = []
    looked = False
    while stack or alone:
        if not stack:
            if (
                not looked
            ):  # before it counts as one that was changed: it may be the same, wrapped or taken out
                _match_elsewhere(found, *prints)
                taken, looked = set(found.tolist()), True
            stack = [pair for pair in alone if found[pair[0]] < 0 and pair[1] not in taken]
            for here, there in stack:
                found[here] = there
                taken.add(there)
            alone = []
            continue
        here, there = stack.pop()
        left_a = [scope for scope in inside_a[here] if found[scope] < 0]
        left_b = [scope for scope in inside_b[there] if scope not in taken]
        pairs, left_a, left_b = _pair_up(left_a, left_b, keys)
        for pair in pairs:
            found[pair[0]] = pair[1]
            taken.add(pair[1])
        stack += pairs
        if len(left_a) == len(left_b) == 1:  # renamed and changed, but in the same place
            alone.append((left_a[0], left_b[0]))
    _match_elsewhere(found, *prints)
    # What was called from elsewhere, but is the same call by its whole path: fx, say, leaves containers out.
    taken = set(found.tolist())
    rest = {_place(b, scope): scope for scope in range(len(b.scope_call)) if scope not in taken}
    for scope in np.flatnonzero(found < 0).tolist():
        found[scope] = rest.pop(_place(a, scope), -1)
    return found


def _pair_up(
    left_a: list[int], left_b: list[int], keys: tuple[tuple[Key, Key], ...]
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Pairs of calls that are alike by the first key, of the others by the next; and those that have no partner."""
    found: list[tuple[int, int]] = []
    for key_a, key_b in keys:
        pairs = common([key_a(scope) for scope in left_a], [key_b(scope) for scope in left_b])
        found += [(left_a[place_a], left_b[place_b]) for place_a, place_b in pairs]
        used_a, used_b = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
        left_a = [scope for place, scope in enumerate(left_a) if place not in used_a]
        left_b = [scope for place, scope in enumerate(left_b) if place not in used_b]
    return found, left_a, left_b


def _match_elsewhere(found: Any, ours: Any, theirs: Any) -> None:
    """Match what is left by what it does, wherever it is called from: wrapped in a container, or taken out of one."""
    for prints in (1, 2):
        taken = set(found.tolist())
        left_a = [s for s in np.flatnonzero(found < 0).tolist() if ours[0].solid[s] == s]
        left_b = [
            s for s in range(len(theirs[0].graph.scope_call)) if s not in taken and theirs[0].solid[s] == s
        ]
        pairs = common([ours[prints][scope] for scope in left_a], [theirs[prints][scope] for scope in left_b])
        for place_a, place_b in pairs:
            found[left_a[place_a]] = left_b[place_b]


def _match_dissolved(one: _Side, two: _Side, scopes: Any, to_b: Any) -> None:
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


def _grouped(side: _Side, around: Any, nodes: Any) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for node, scope, phase in zip(
        nodes.tolist(), around[side.graph.node_scope[nodes]].tolist(), side.graph.node_phase[nodes].tolist()
    ):
        found[scope, phase].append(node)
    return found


def _place(graph: Graph, scope: int) -> Any:
    return graph.modules[int(graph.scope_module[scope])], int(graph.scope_call[scope])


def _children(side: _Side) -> list[list[int]]:
    graph, solid = side.graph, side.solid
    found: list[list[int]] = [[] for _ in graph.scope_call]
    for scope, parent in enumerate(graph.scope_parent.tolist()):
        if parent >= 0 and solid[scope] == scope:
            found[solid[parent]].append(scope)
    return found


def _name(graph: Graph, scope: int) -> Any:
    """What a call is within the one around it: the last part of its path, and its class."""
    path, type_, kind = graph.modules[int(graph.scope_module[scope])]
    above = graph.scope_paths[int(graph.scope_parent[scope])]
    label = path[len(above) + 1 :] if above and path.startswith(above + ".") else path
    return label, type_, kind


def _type(graph: Graph, scope: int) -> Any:
    return graph.modules[int(graph.scope_module[scope])][1:]


def _fingerprints(
    side: _Side, inside: list[list[int]], told: Callable[[list[int]], list[Any]], known: dict[Any, int]
) -> list[int]:
    """A number for each call that is equal where all that ran in it is, as far as ``told`` tells of operations."""
    graph = side.graph
    own: list[list[Any]] = [[] for _ in graph.scope_call]
    for (scope, _), nodes in side.operations.items():
        own[scope].extend(told(nodes))
    prints = [0] * len(own)
    for scope in range(len(own) - 1, -1, -1):
        key = (_type(graph, scope), tuple(own[scope]), tuple(prints[child] for child in inside[scope]))
        prints[scope] = known.setdefault(key, len(known))
    return prints


# ---------------------------------------------------------------- sequences


def common(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """Places of two sequences that belong together, in order.

    >>> common(["a", "b", "c"], ["a", "x", "c"])
    [(0, 0), (2, 2)]
    """
    shorter = min(len(one), len(two))
    head = next((i for i in range(shorter) if one[i] != two[i]), shorter)
    tail = next((i for i in range(shorter - head) if one[-1 - i] != two[-1 - i]), shorter - head)
    start = [(i, i) for i in range(head)]
    end = [(len(one) - i, len(two) - i) for i in range(tail, 0, -1)]
    middle_a, middle_b = one[head : len(one) - tail], two[head : len(two) - tail]
    if max(len(middle_a), len(middle_b)) > LONG:
        inner = _anchors(middle_a, middle_b)
    else:
        blocks = SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_matching_blocks()
        inner = [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
    return [*start, *((i + head, j + head) for i, j in inner), *end]


def _anchors(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """Elements that are unique in both, as far as their order agrees, and what runs on equally from each."""
    at_a, at_b = _unique(one), _unique(two)
    pairs = sorted((at_a[key], at_b[key]) for key in at_a.keys() & at_b.keys())
    found: list[tuple[int, int]] = []
    last_a = last_b = -1
    for start_a, start_b in pairs:
        if start_a <= last_a or start_b <= last_b:
            continue
        while start_a - 1 > last_a and start_b - 1 > last_b and one[start_a - 1] == two[start_b - 1]:
            start_a, start_b = start_a - 1, start_b - 1
        while start_a < len(one) and start_b < len(two) and one[start_a] == two[start_b]:
            found.append((start_a, start_b))
            last_a, last_b = start_a, start_b
            start_a, start_b = start_a + 1, start_b + 1
    return found


def _unique(items: list[Any]) -> dict[Any, int]:
    places: dict[Any, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        places[item].append(place)
    return {item: found[0] for item, found in places.items() if len(found) == 1}
