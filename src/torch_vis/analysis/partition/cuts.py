"""Where a graph is cut: atoms, an order that their dependences allow, and stretches of it within a budget.

Atoms are the groups that could be fused and the operations that could not. A part is a stretch of their order, so that
parts can be run one after another, whatever the budget.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from torch_vis.analysis.fusion.groups import Fusion, fuse
from torch_vis.errors import UsageError, no_match
from torch_vis.graph import Column, Graph
from torch_vis.graph.schema import Flag
from torch_vis.graph.schema import Kind as Read
from torch_vis.graph.types import Bools, Ints

WAYS = ("fusion", "module")
START, PHASE, DEVICE, PYTHON, MODULE = (
    "start of the run", "another phase", "another device", "data needed by Python", "module boundary"
)  # fmt: skip
FULL = {"operations": "budget of operations", "flops": "budget of FLOPs", "bytes": "budget of bytes"}


class Budget(NamedTuple):
    """The most that a part may have; None is no limit.

    Operations are those that run a kernel, not views; bytes those of all tensors that the part touches, each once.
    """

    operations: float | None = None
    flops: float | None = None
    bytes: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is any limit."""
        return any(limit is not None for limit in self)


UNLIMITED = Budget()


class Cut(NamedTuple):
    """The part of every operation, and of every part why it begins where it does ("": fusing ended there).

    Parts are kernels, or packed: stretches of the run within a budget and a home, of which ``homes`` has by reason the
    number that each part has.
    """

    fused: Fusion
    part: Ints
    begins: tuple[str, ...]
    owner: Ints | None  # for each operation, the call of a module that no part crosses
    budget: Budget = Budget()
    homes: dict[str, Ints] | None = None

    @property
    def is_packed(self) -> bool:
        """Whether parts are stretches of the run and not kernels."""
        return self.homes is not None


class Touched(NamedTuple):
    """Which operation touches which value, views looked through: what it reads and what it makes."""

    node: Ints
    value: Ints


def cut(
    graph: Graph,
    *,
    by: str = "fusion",
    depth: int | None = None,
    budget: Budget = UNLIMITED,
    flops: Column,
    moved: Column,
) -> Cut:
    """Cut a graph by what could be fused or by calls of modules; with a budget, neighbours are joined up to it.

    With a ``depth``, no part crosses a module of that depth; ``by="module"`` has 1 where none is given.
    """
    if by not in WAYS:
        raise no_match("way to partition", str(by), WAYS)
    _check(depth, budget)
    depth = 1 if by == "module" and depth is None else depth
    owner = None if depth is None else module_calls(graph, depth)
    fused = fuse(graph, moved=moved, apart=owner)
    atom = _atoms(fused, _too_large(fused, budget, flops), owner)
    atom_order = _settled(fused, _ordered(fused, atom)[atom], owner)
    if by == "fusion" and not budget.is_set:
        return Cut(fused, atom_order, ("",) * (int(atom_order.max(initial=-1)) + 1), owner)
    return _packed(fused, atom_order, owner, budget, flops)


def module_calls(graph: Graph, depth: int) -> Ints:
    """For each operation the scope of the module call at a depth that it ran in, or of the deepest above it.

    Functions and compiled regions are looked through; the model itself is at depth 0.
    """
    kinds = [module.kind for module in graph.modules]
    level, at = [-1] * len(graph.scope_call), [0] * len(graph.scope_call)
    for scope, (parent, module) in enumerate(zip(graph.scope_parent.tolist(), graph.scope_module.tolist())):
        if parent < 0 or parent == scope:
            continue
        level[scope], at[scope] = level[parent], at[parent]
        if kinds[module] in ("module", "optimizer") and level[parent] < depth:
            level[scope], at[scope] = level[parent] + 1, scope
    return np.array(at, dtype=np.int64)[graph.node_scope]


def touched(fused: Fusion) -> Touched:
    """Every pair of an operation and a value that it reads or makes, each once."""
    graph, flow = fused.graph, fused.flow
    reads = np.flatnonzero((graph.in_kind != Read.SHAPE) & ~flow.is_view[graph.in_node])
    maker = graph.out_node
    makes = np.flatnonzero(~flow.is_view[maker])
    node = np.concatenate([graph.in_node[reads], maker[makes]]).astype(np.int64)
    value = np.concatenate([flow.root[graph.in_value[reads]], graph.out_value[makes]])
    pairs = np.unique(node * max(len(graph.value_type), 1) + value)
    return Touched(*divmod(pairs, max(len(graph.value_type), 1)))


def _check(depth: int | None, budget: Budget) -> None:
    if depth is not None and (type(depth) is not int or depth < 0):
        raise UsageError(f"depth is how many levels of modules are opened, 0 or more, not {depth!r}")
    for name, limit in budget._asdict().items():
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0
        ):
            raise UsageError(f"max_{name} is a number above 0, not {limit!r}")


def _too_large(fused: Fusion, budget: Budget, flops: Column) -> Bools:
    """The groups that are over the budget by themselves and have to be taken apart."""
    over = np.zeros(fused.count, dtype=bool)
    inside = np.flatnonzero(fused.of >= 0)
    group = fused.of[inside]
    if budget.operations is not None:
        over |= fused.kernels > budget.operations
    if budget.flops is not None:
        over |= np.bincount(group, weights=flops.values[inside], minlength=fused.count) > budget.flops
    if budget.bytes is not None:
        rows = touched(fused)
        group = fused.of[rows.node]
        pairs = np.unique((group * len(fused.graph.value_type) + rows.value)[group >= 0])
        group, value = np.divmod(pairs, max(len(fused.graph.value_type), 1))
        size = fused.flow.bytes_of_type[fused.graph.value_type[value]]
        over |= np.bincount(group, weights=size, minlength=fused.count) > budget.bytes
    return over


def _atoms(fused: Fusion, apart: Bools, owner: Ints | None) -> Ints:
    """For each operation the number of its atom: of its group's first operation, or its own.

    A view goes with what it is taken of.
    """
    graph, flow = fused.graph, fused.flow
    atom = np.arange(len(graph), dtype=np.int64)
    grouped = fused.of >= 0
    grouped[grouped] = ~apart[fused.of[grouped]]
    first = np.full(fused.count, len(graph), dtype=np.int64)
    np.minimum.at(first, fused.of[grouped], np.flatnonzero(grouped))
    atom[grouped] = first[fused.of[grouped]]
    edges = flow.edges
    loose = flow.is_view & ~grouped
    maker = np.full(len(graph), -1, dtype=np.int64)
    shown = loose[edges.target]
    maker[edges.target[shown]] = edges.source[shown]
    for node in np.flatnonzero(
        loose & (maker >= 0)
    ).tolist():  # in the order of the run: the maker has its atom
        if owner is None or owner[maker[node]] == owner[node]:
            atom[node] = atom[maker[node]]
    return atom


def _settled(fused: Fusion, atom_order: Ints, owner: Ints | None) -> Ints:
    """The places with what runs no kernel (a view of a weight, memory given out) moved to its first user's.

    Its users all come later, and what it depends on comes before it, so the order stays one without cycles.
    """
    edges, count = fused.flow.edges, int(atom_order.max(initial=-1)) + 1
    loud = np.zeros(count, dtype=bool)
    loud[atom_order[fused.is_kernel]] = True
    leaves = ~loud[atom_order[edges.source]] & (atom_order[edges.source] != atom_order[edges.target])
    source, target = edges.source[leaves], edges.target[leaves]
    same = np.ones(len(source), dtype=bool) if owner is None else owner[source] == owner[target]
    goes = list(range(count))
    least: dict[int, int] = {}
    rows = sorted(zip(atom_order[source].tolist(), atom_order[target].tolist(), same.tolist()), reverse=True)
    for start, end, is_own in rows:  # from the last to the first, so that users have gone where they go
        if goes[end] <= least.get(start, count):
            least[start] = goes[end]
            goes[start] = goes[end] if is_own else start
    return np.unique(np.array(goes, dtype=np.int64)[atom_order], return_inverse=True)[1].reshape(-1)


def _ordered(fused: Fusion, atom: Ints) -> Ints:
    """For each atom its place in an order without cycles, the earliest that can run first; -1 for other numbers."""
    edges = fused.flow.edges
    numbers = np.unique(atom)
    position = np.full(len(atom), -1, dtype=np.int64)
    position[numbers] = np.arange(len(numbers))
    source, target = position[atom[edges.source]], position[atom[edges.target]]
    between = source != target
    pairs = np.unique(source[between] * max(len(numbers), 1) + target[between])
    source, target = np.divmod(pairs, max(len(numbers), 1))
    waiting = np.bincount(target, minlength=len(numbers)).tolist()
    start = np.searchsorted(source, np.arange(len(numbers) + 1)).tolist()
    users = target.tolist()
    ready = [number for number, count in enumerate(waiting) if not count]  # in order, so already a heap
    rank = [-1] * len(numbers)
    done = 0
    while ready:
        number = heapq.heappop(ready)
        rank[number] = done
        done += 1
        for user in users[start[number] : start[number + 1]]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    assert done == len(numbers), "groups that cannot be ordered"
    order = np.full(len(atom), -1, dtype=np.int64)
    order[numbers] = rank
    return order


def _packed(fused: Fusion, atom_order: Ints, owner: Ints | None, budget: Budget, flops: Column) -> Cut:
    """Join neighbours in the order as long as they share a home and the budget lasts."""
    graph, count = fused.graph, int(atom_order.max(initial=-1)) + 1
    first = np.full(count, len(graph), dtype=np.int64)
    loud = np.flatnonzero(fused.is_kernel)
    np.minimum.at(first, atom_order[loud], loud)
    quiet = first == len(graph)
    every = np.full(count, len(graph), dtype=np.int64)
    np.minimum.at(every, atom_order, np.arange(len(graph)))
    first[quiet] = every[quiet]
    home = _home_columns(fused, owner)
    rows = touched(fused)
    width = max(len(graph.value_type), 1)
    at, value = np.divmod(
        np.unique(atom_order[rows.node] * width + rows.value), width
    )  # each once in an atom
    start, values = np.searchsorted(at, np.arange(count + 1)).tolist(), value.tolist()
    size = fused.flow.bytes_of_type[graph.value_type].tolist()
    operations = np.bincount(atom_order[fused.is_kernel], minlength=count).tolist()
    work = np.bincount(atom_order, weights=flops.values, minlength=count).tolist()
    part, begins = [0] * count, list[str]()
    seen = [-1] * len(size)  # the part that touched a value last
    used = [0.0, 0.0, 0.0]
    last: tuple[int, ...] | None = None
    homes: list[tuple[int, ...]] = []
    device = [*home].index(DEVICE)
    for atom in range(count):
        node = int(first[atom])
        own = tuple(int(column[node]) for column in home.values())
        touches = values[start[atom] : start[atom + 1]]
        now = len(begins) - 1
        more = [operations[atom], work[atom], sum(size[value] for value in touches if seen[value] != now)]
        alone = [*more[:2], sum(size[value] for value in touches)]
        reason = _reason(last, own, home, used, more, budget)
        if reason:
            _must_fit(graph, node, alone, budget)
            begins.append(reason)
            homes.append(own)
            used, more = [0.0, 0.0, 0.0], alone
        used = [a + b for a, b in zip(used, more)]
        part[atom] = len(begins) - 1
        for value in touches:
            seen[value] = part[atom]
        if homes[-1][device] < 0:  # what only gives out numbers is at home on any
            homes[-1] = (*homes[-1][:device], own[device], *homes[-1][device + 1 :])
        last = homes[-1]
    columns = np.array(homes, dtype=np.int64).reshape(-1, len(home)).T
    names: dict[str, Ints] = dict(zip(home, columns))
    return Cut(fused, np.array(part, dtype=np.int64)[atom_order], tuple(begins), owner, budget, names)


def _home_columns(fused: Fusion, owner: Ints | None) -> dict[str, Ints]:
    """What a part does not go across, by the reason that is given where it ends."""
    graph = fused.graph
    escapes = (graph.node_flags & Flag.ESCAPE) != 0
    home = {PHASE: graph.node_phase, DEVICE: fused.flow.device, PYTHON: np.cumsum(escapes) - escapes}
    return home if owner is None else {**home, MODULE: owner}


def _reason(
    last: tuple[int, ...] | None,
    here: tuple[int, ...],
    home: dict[str, Ints],
    used: list[float],
    more: list[float],
    budget: Budget,
) -> str:
    """Why a part has to begin with this atom; "" if it can go with the part before."""
    if last is None:
        return START
    for name, before, now in zip(home, last, here):
        if before != now and not (name == DEVICE and -1 in (before, now)):
            return name
    for name, limit, a, b in zip(Budget._fields, budget, used, more):
        if limit is not None and a + b > limit:
            return FULL[name]
    return ""


def _must_fit(graph: Graph, node: int, alone: list[float], budget: Budget) -> None:
    for name, limit, need in zip(Budget._fields, budget, alone):
        if limit is not None and need > limit:
            row = graph.nodes[node]
            where = f" in {row.path}" if row.path else ""
            raise UsageError(
                f"nothing fits in max_{name}={limit:,.15g}: {row.name} (operation {node}{where}) "
                f"alone has {int(need):,} {'FLOPs' if name == 'flops' else name}"
            )
