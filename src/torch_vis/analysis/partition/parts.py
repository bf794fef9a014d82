"""Where a graph is cut, and why there: atoms, their order, stretches of it within a budget, a reason for each cut.

Atoms are the groups that could be fused and the operations that could not. A part is a stretch of their order, so that
parts can be run one after another, whatever the budget.
"""

from __future__ import annotations

import heapq
from functools import cached_property
from typing import NamedTuple

import numpy as np

from torch_vis.analysis.fusion.dependences import LoopRelation
from torch_vis.analysis.fusion.groups import Fusion, fuse
from torch_vis.errors import GraphError, UsageError, no_match
from torch_vis.graph import Column, Graph
from torch_vis.graph.schema import RECORDED, Flag, Role
from torch_vis.graph.schema import Kind as Read
from torch_vis.graph.tree import group_rows, group_sums
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.op_table import LoopKind

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


class ValueAccesses(NamedTuple):
    """Which values each operation reads and makes, views looked through."""

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
    fused = fuse(graph, moved=moved, owner=owner)
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


def touched(fused: Fusion) -> ValueAccesses:
    """Every pair of an operation and a value that it reads or makes, each once."""
    graph, flow = fused.graph, fused.flow
    reads = np.flatnonzero((graph.in_kind != Read.SHAPE) & ~flow.is_view[graph.in_node])
    producer = graph.out_node
    makes = np.flatnonzero(~flow.is_view[producer])
    node = np.concatenate([graph.in_node[reads], producer[makes]]).astype(np.int64)
    value = np.concatenate([flow.root[graph.in_value[reads]], graph.out_value[makes]])
    pairs = np.unique(node * max(len(graph.value_type), 1) + value)
    return ValueAccesses(*divmod(pairs, max(len(graph.value_type), 1)))


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


def _atoms(fused: Fusion, split: Bools, owner: Ints | None) -> Ints:
    """For each operation the number of its atom: of its group's first operation, or its own.

    A view goes with what it is taken of.
    """
    graph, flow = fused.graph, fused.flow
    atom = np.arange(len(graph), dtype=np.int64)
    grouped = fused.of >= 0
    grouped[grouped] = ~split[fused.of[grouped]]
    first = np.full(fused.count, len(graph), dtype=np.int64)
    np.minimum.at(first, fused.of[grouped], np.flatnonzero(grouped))
    atom[grouped] = first[fused.of[grouped]]
    edges = flow.edges
    loose = flow.is_view & ~grouped
    producer = np.full(len(graph), -1, dtype=np.int64)
    shown = loose[edges.target]
    producer[edges.target[shown]] = edges.source[shown]
    for node in np.flatnonzero(
        loose & (producer >= 0)
    ).tolist():  # in the order of the run: the producer has its atom
        if owner is None or owner[producer[node]] == owner[node]:
            atom[node] = atom[producer[node]]
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
    # from the last to the first, so that users have gone where they go
    for start, end, is_own in rows:
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
    # in order, so already a heap
    ready = [number for number, count in enumerate(waiting) if not count]
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
    # a damaged file, in which what allocates memory is marked as a view of it
    if done != len(numbers):
        raise GraphError(
            "its operations cannot be ordered in groups: what they read and make contradicts itself"
        )
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
    # each once in an atom
    at, value = np.divmod(np.unique(atom_order[rows.node] * width + rows.value), width)
    start, values = np.searchsorted(at, np.arange(count + 1)).tolist(), value.tolist()
    size = fused.flow.bytes_of_type[graph.value_type].tolist()
    operations = np.bincount(atom_order[fused.is_kernel], minlength=count).tolist()
    work = np.bincount(atom_order, weights=flops.values, minlength=count).tolist()
    part, begins = [0] * count, list[str]()
    # the part that touched a value last
    seen = [-1] * len(size)
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
        # what only gives out numbers is at home on any
        if homes[-1][device] < 0:
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


LAYOUT, REDUCTION, SIZE = "view of another layout", "reduction", "loop of another size"
MEMORY, RANDOM, PRODUCT = "memory written in place", "order of random numbers", "another matrix product"
CYCLE, BETWEEN, ALONG = (
    "cycle through other parts",
    "other parts between them",
    "others must come along",
)
# The first that holds for a tensor that one part hands to another is the reason why the two are two.
REASONS = (
    PHASE, DEVICE, PYTHON, "custom operator", "code that cannot be seen", MODULE, "operand of a matrix product",
    "kernel of a library", "reads at other places", LAYOUT, REDUCTION, SIZE, MEMORY, RANDOM, PRODUCT,
    *FULL.values(), CYCLE, BETWEEN, ALONG,
)  # fmt: skip
OPEN = len(REASONS)  # none found yet
STEPS = 100_000  # that looking for cycles may take; where they are not enough, only what is between is named


class Groups(NamedTuple):
    """What decides if groups go into one kernel, as columns: those of fusion's traits."""

    numel: Ints
    pattern: Ints
    heavy: Bools
    draws: Bools
    turned: Bools

    def at(self, group: Ints) -> Groups:
        """The rows of some groups."""
        return Groups(
            self.numel[group], self.pattern[group], self.heavy[group], self.draws[group], self.turned[group]
        )


class Reasons:
    """The reasons of the cuts of one graph, by their places in ``REASONS``."""

    def __init__(self, cut: Cut, flops: Column) -> None:
        self.cut, self._flops = cut, flops
        self.graph, self.flow = cut.fused.graph, cut.fused.flow
        self.part, self.count = cut.part, len(cut.begins)

    def of(self, rows: Ints, producer: Ints, reader: Ints) -> Ints:
        """For reads, by rows of ``in_value``, of what an operation of another part made, the reason."""
        if self.cut.is_packed:
            return self._of_stretches(self.part[producer], self.part[reader])
        reason = self._of_kernels(rows, producer, reader)
        self._from_others_of_the_pair(reason, self.part[producer], self.part[reader])
        left = np.flatnonzero(reason == OPEN)
        reason[left] = self._by_order(self.part[producer[left]], self.part[reader[left]])
        return reason

    # ------------------------------------------------------------ kernels

    def _of_kernels(self, rows: Ints, producer: Ints, reader: Ints) -> Ints:
        graph, flow = self.graph, self.flow
        flags, kind, rel = graph.node_flags, flow.kind, flow.row_rel[rows]
        own = np.array([call.op.startswith(("aten::", "prims::")) for call in graph.calls] or [True])
        custom = ~own[graph.node_call] & ((flags & RECORDED) == 0)
        escapes = (flags & Flag.ESCAPE) != 0
        stretch = np.cumsum(escapes) - escapes
        owner, elsewhere = self.cut.owner, flow.crosses_device & (flow.device >= 0)
        merged = self.cut.fused.merged
        a, b = self._groups.at(merged[producer]), self._groups.at(merged[reader])
        fits = self._fits(a, b, rows, graph.in_value[rows])
        sums = (a.pattern >= 0) | (b.pattern >= 0)
        other_axes = (a.pattern >= 0) & (b.pattern >= 0) & (a.pattern != b.pattern)
        turned = (rel == LoopRelation.TURNED) | (a.turned & (a.pattern >= 0)) | (b.turned & sums)
        in_place = (
            (rel == LoopRelation.ORDER) | (kind[producer] == LoopKind.FREE) | (kind[reader] == LoopKind.FREE)
        )
        tests = (
            graph.node_phase[producer] != graph.node_phase[reader],
            ((flow.device[producer] != flow.device[reader]) & (flow.device[reader] >= 0)) | elsewhere[reader],
            escapes[reader] | (stretch[producer] != stretch[reader]),
            custom[producer] | custom[reader],
            ((flags[producer] | flags[reader]) & RECORDED) != 0,
            owner[producer] != owner[reader] if owner is not None else np.zeros(len(rows), dtype=bool),
            (kind[reader] == LoopKind.HEAVY) & (rel != LoopRelation.ORDER),
            (kind[reader] == LoopKind.OTHER) | (kind[producer] == LoopKind.OTHER),
            (kind[reader] == LoopKind.GATHER) & (rel != LoopRelation.ORDER),
            (rel == LoopRelation.WINDOW) | (turned & ~fits & ~in_place),
            other_axes | (sums & (a.heavy | b.heavy)) | (sums & ~fits & ~in_place),
            ~fits & ~in_place,
            in_place,
            a.draws & b.draws,
            a.heavy & b.heavy,
        )
        return np.select(tests, np.arange(len(tests)), OPEN)

    @cached_property
    def _groups(self) -> Groups:
        none = (0, -1, False, False, False)
        rows = [
            none
            if traits is None
            else (traits.numel, traits.pattern, traits.heavy, traits.draws, traits.turned)
            for traits in self.cut.fused.traits
        ]
        numel, pattern, *marks = zip(*rows) if rows else ((),) * 5
        return Groups(
            np.array(numel, dtype=np.int64),
            np.array(pattern, dtype=np.int64),
            *(np.array(mark, dtype=bool) for mark in marks),
        )

    def _fits(self, a: Groups, b: Groups, rows: Ints, value: Ints) -> Bools:
        """Whether a group can take what it reads of another in one loop with it: as in ``merging``, all at once."""
        flow = self.flow
        rel, spread = flow.row_rel[rows], flow.row_spread[rows]
        size = flow.numel_of_type[self.graph.value_type[flow.root[value]]]
        # the last is of no pattern
        kept = np.array([*flow.kept, -1], dtype=np.int64)
        sums, same = kept[a.pattern], (size == a.numel) & (a.numel == b.numel)
        before = (b.pattern >= 0) & (a.pattern < 0) & (size == a.numel) & (a.numel == kept[b.pattern])
        after = (size == sums) & ((a.pattern == b.pattern) | (b.numel == size))
        fits = (rel == LoopRelation.SAME) & (same | before | after)
        fits |= (rel == LoopRelation.TURNED) & same & (a.pattern < 0) & ~a.heavy
        fits |= (
            (rel == LoopRelation.SPREAD)
            & (size == sums)
            & (sums > 1)
            & (spread == a.pattern)
            & (a.numel == b.numel)
        )
        fits &= ~(a.turned & (a.pattern >= 0))
        return fits & ~(b.turned & ((a.pattern >= 0) | (b.pattern >= 0)))

    def _from_others_of_the_pair(self, reason: Ints, a: Ints, b: Ints) -> None:
        """Where nothing speaks against a tensor, what speaks against another one between the same two parts."""
        if not (reason == OPEN).any():
            return
        edges, random = self.flow.edges, (self.graph.node_flags & Flag.RANDOM) != 0
        ordered = (edges.rel == LoopRelation.ORDER) & ~(random[edges.source] & random[edges.target])
        after = self.part[edges.source[ordered]] * self.count + self.part[edges.target[ordered]]
        pair = a * self.count + b
        reason[(reason == OPEN) & np.isin(pair, after)] = REASONS.index(MEMORY)
        pairs, index = np.unique(pair, return_inverse=True)
        least = np.full(len(pairs), OPEN, dtype=np.int64)
        np.minimum.at(least, index.reshape(-1), reason)
        np.minimum(reason, least[index.reshape(-1)], out=reason)

    def _by_order(self, a: Ints, b: Ints) -> Ints:
        """For pairs of parts that alone could be one kernel, whether other parts prevent it, and why."""
        start, users = self._users
        # the latest part that each waits for
        last = np.full(self.count, -1, dtype=np.int64)
        np.maximum.at(last, users, np.repeat(np.arange(self.count), np.diff(start)))
        # the first that waits for each
        first = np.full(self.count, self.count, dtype=np.int64)
        has = np.flatnonzero(np.diff(start))
        first[has] = users[start[has]]
        between = (last[b] > a) & (first[a] < b)
        reason = np.where(between, REASONS.index(BETWEEN), REASONS.index(ALONG))
        wanted: dict[int, list[int]] = {}
        for row in np.flatnonzero(between).tolist():
            wanted.setdefault(int(a[row]), []).append(row)
        begin, listed, left = start.tolist(), users.tolist(), STEPS
        for source, rows in sorted(wanted.items()):
            ends = b[rows]
            reached, left = _reached(source, int(ends.max()), begin, listed, left)
            reason[[row for row, end in zip(rows, ends.tolist()) if end in reached]] = REASONS.index(CYCLE)
            if left <= 0:
                break
        return reason

    @cached_property
    def _users(self) -> tuple[Ints, Ints]:
        """The parts that wait for each part, in order: where each one's begin, and all on end."""
        edges = self.flow.edges
        source, target = self.part[edges.source], self.part[edges.target]
        pairs = np.unique((source * self.count + target)[source != target])
        source, target = np.divmod(pairs, max(self.count, 1))
        return np.searchsorted(source, np.arange(self.count + 1)), target

    # ------------------------------------------------------------ stretches

    def _of_stretches(self, a: Ints, b: Ints) -> Ints:
        """What ends the stretch between neighbours; of others, a home of their own, the budget, or what is between."""
        pairs, index = np.unique(a * self.count + b, return_inverse=True)
        a, b = np.divmod(pairs, max(self.count, 1))
        begins = np.array([REASONS.index(name) if name in REASONS else OPEN for name in self.cut.begins])
        reason = np.where(b == a + 1, begins[b], OPEN)
        for name, column in (self.cut.homes or {}).items():
            differs = column[a] != column[b]
            if name == DEVICE:
                differs &= (column[a] >= 0) & (column[b] >= 0)
            reason[(reason == OPEN) & differs] = REASONS.index(name)
        for name, limit in zip(Budget._fields, self.cut.budget):
            left = np.flatnonzero(reason == OPEN)
            if limit is not None and len(left):
                over = self._together(name, a[left], b[left]) > limit
                reason[left[over]] = REASONS.index(FULL[name])
        reason[reason == OPEN] = REASONS.index(BETWEEN)
        return reason[index.reshape(-1)]

    def _together(self, name: str, a: Ints, b: Ints) -> Ints:
        """What pairs of parts have together of what a budget counts."""
        if name == "bytes":
            return self._bytes[a] + self._bytes[b] - self._shared(a, b)
        chosen = self.cut.fused.is_kernel if name == "operations" else np.ones(len(self.part), dtype=bool)
        each = chosen if name == "operations" else self._flops.values
        total = np.bincount(self.part[chosen], weights=each[chosen], minlength=self.count)
        return total[a] + total[b]

    @cached_property
    def _touched(self) -> tuple[Ints, Ints, Ints]:
        """Every part with every value that it touches: the part, the two as one number, and the bytes."""
        rows, width = touched(self.cut.fused), max(len(self.graph.value_type), 1)
        code = np.unique(self.part[rows.node] * width + rows.value)
        part, value = np.divmod(code, width)
        return part, code, self.flow.bytes_of_type[self.graph.value_type[value]]

    @cached_property
    def _bytes(self) -> Ints:
        part, _, size = self._touched
        return group_sums(part, size, self.count)

    def _shared(self, a: Ints, b: Ints) -> Ints:
        """The bytes of values that both parts of each pair touch, looked up from the part that has fewer."""
        part, code, size = self._touched
        width = max(len(self.graph.value_type), 1)
        start = np.searchsorted(part, np.arange(self.count + 1))
        length = np.diff(start)
        fewer, more = np.where(length[a] <= length[b], a, b), np.where(length[a] <= length[b], b, a)
        pair = np.repeat(np.arange(len(a)), length[fewer])
        at = np.arange(len(pair)) - np.repeat(np.cumsum(length[fewer]) - length[fewer], length[fewer])
        at += start[fewer][pair]
        looked_for = more[pair] * width + code[at] % width
        near = np.minimum(np.searchsorted(code, looked_for), max(len(code) - 1, 0))
        both = code[near] == looked_for if len(code) else np.zeros(0, dtype=bool)
        return group_sums(pair[both], size[at[both]], len(a))


def _reached(source: int, end: int, start: list[int], users: list[int], steps: int) -> tuple[set[int], int]:
    """The parts up to ``end`` that a path from ``source`` reaches through at least one other, and the steps left."""
    reached: set[int] = set()
    waiting = [user for user in users[start[source] : start[source + 1]] if user < end]
    seen = set(waiting)
    while waiting and steps > 0:
        part = waiting.pop()
        for user in users[start[part] : start[part + 1]]:
            steps -= 1
            if user > end:
                # they are in order
                break
            reached.add(user)
            if user < end and user not in seen:
                seen.add(user)
                waiting.append(user)
    return reached, steps


WEIGHTS = (Role.PARAMETER, Role.BUFFER)


class Parts:
    """The figures of a cut graph, one row per part, in an order in which they can run.

    A tensor counts once and whole in every part that touches it, a view as what it is taken of. What a part makes is
    output if another part or anybody outside can look at it, and otherwise internal: both over all parts are all that
    the graph makes.
    """

    def __init__(self, graph: Graph, cut: Cut, flops: Column, moved: Column) -> None:
        self.graph = graph
        self.cut = cut
        self.part = cut.part
        self.count = len(cut.begins)
        self._flops, self._moved = flops, moved

    @cached_property
    def operations(self) -> Ints:
        """How many operations each part has, views included."""
        return np.bincount(self.part, minlength=self.count)

    @cached_property
    def kernels(self) -> Ints:
        """How many of them run a kernel."""
        return np.bincount(self.part[self.cut.fused.is_kernel], minlength=self.count)

    @cached_property
    def flops(self) -> Ints:
        """The FLOPs of each, as far as they are known."""
        return self._sum(self.part, self._flops.values)

    @cached_property
    def uncovered(self) -> Ints:
        """How many operations of each have FLOPs that are not known."""
        return np.bincount(self.part[self._flops.unknown_rows], minlength=self.count)

    @cached_property
    def moved_bytes(self) -> Ints:
        """What the operations of each move as they are, one kernel after another."""
        return self._sum(self.part, self._moved.values)

    def members(self, part: int) -> Ints:
        """The operations of a part, in the order of the run."""
        order, start = self._listed
        return order[start[part] : start[part + 1]]

    @cached_property
    def _listed(self) -> tuple[Ints, Ints]:
        return group_rows(self.part, self.count)

    @cached_property
    def _tensors(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Every pair of a part and a value that it touches: part, value, bytes, and whether the part made it."""
        graph, fused = self.graph, self.cut.fused
        rows = touched(fused)
        width = max(len(graph.value_type), 1)
        part, value = np.divmod(np.unique(self.part[rows.node] * width + rows.value), width)
        size = fused.flow.bytes_of_type[graph.value_type[value]]
        producer = graph.value_producer[value]
        own = (producer >= 0) & (self.part[np.maximum(producer, 0)] == part)
        return part, value, size, own

    @cached_property
    def _handed_on(self) -> Bools:
        """For each value, whether another part than its producer's reads it, or somebody outside may."""
        _, value, _, own = self._tensors
        kept: Bools = self.cut.fused.results.copy()
        kept[value[~own]] = True
        return kept

    @cached_property
    def input_bytes(self) -> Ints:
        """What each takes from other parts and from outside, weights apart."""
        part, value, size, own = self._tensors
        chosen = ~own & ~self._is_weight[value]
        return self._sum(part[chosen], size[chosen])

    @cached_property
    def weight_bytes(self) -> Ints:
        """The parameters and buffers that each has to hold, whole."""
        part, value, size, own = self._tensors
        chosen = ~own & self._is_weight[value]
        return self._sum(part[chosen], size[chosen])

    @cached_property
    def output_bytes(self) -> Ints:
        """What each makes that another part or the user can look at."""
        part, value, size, own = self._tensors
        chosen = own & self._handed_on[value]
        return self._sum(part[chosen], size[chosen])

    @cached_property
    def internal_bytes(self) -> Ints:
        """What each makes for itself alone."""
        part, value, size, own = self._tensors
        chosen = own & ~self._handed_on[value]
        return self._sum(part[chosen], size[chosen])

    @property
    def _is_weight(self) -> Bools:
        return np.isin(self.graph.value_role, WEIGHTS)

    @cached_property
    def passing_bytes(self) -> list[int | None]:
        """What each moves when all that is internal stays on the chip; None where some bytes are not known.

        Of a table in which rows are looked up, these rows: far less than the weights that the part has to hold.
        """
        inner, again = self.cut.fused.kept(self.part, self.count)
        missing = np.bincount(self.part[self._moved.unknown_rows], minlength=self.count)
        rows = zip((self.moved_bytes - inner - again).tolist(), missing.tolist())
        return [None if unknown else size for size, unknown in rows]

    @cached_property
    def intensity(self) -> list[float | None]:
        """FLOPs per byte that passes in or out, if all that is internal stays on the chip; None where not known."""
        rows = zip(self.flops.tolist(), self.passing_bytes, self.uncovered.tolist())
        return [None if missing or not size else work / size for work, size, missing in rows]

    def _sum(self, part: Ints, size: Ints) -> Ints:
        return group_sums(part, size, self.count)

    # ------------------------------------------------------------ reasons

    @cached_property
    def crossings(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Each tensor that a part takes from another: part, value, bytes, and the reason, in ``REASONS``."""
        graph, flow = self.graph, self.cut.fused.flow
        rows = np.flatnonzero((graph.in_kind != Read.SHAPE) & ~flow.is_view[graph.in_node])
        value = flow.root[graph.in_value[rows]]
        producer, reader = graph.value_producer[value], graph.in_node[rows]
        between = producer >= 0
        between[between] = self.part[producer[between]] != self.part[reader[between]]
        rows, value, producer, reader = rows[between], value[between], producer[between], reader[between]
        reason = Reasons(self.cut, self._flops).of(rows, producer, reader)
        width = max(len(graph.value_type), 1)
        order = np.lexsort((reason, value, self.part[reader]))
        key = (self.part[reader] * width + value)[order]
        _, first = np.unique(key, return_index=True)
        chosen = order[first]
        size = flow.bytes_of_type[graph.value_type[value[chosen]]]
        return self.part[reader[chosen]], value[chosen], size, reason[chosen]

    def reasons(self, part: int) -> list[tuple[str, int, int]]:
        """Why a part is not one with those that it takes from: reason, tensors and bytes, the most bytes first."""
        start, codes, tensors, total = self._reasons
        span = slice(start[part], start[part + 1])
        rows = zip(codes[span], tensors[span], total[span])
        return [(REASONS[code], count, size) for code, count, size in rows]

    @cached_property
    def _reasons(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """The reasons of all parts on end: where each part's begin, the reason, its tensors and bytes."""
        part, _, size, reason = self.crossings
        width = len(REASONS)
        key, index, tensors = np.unique(part * width + reason, return_inverse=True, return_counts=True)
        total = group_sums(index.reshape(-1), size, len(key))
        order = np.lexsort((key % width, -total, key // width))
        start = np.searchsorted(key // width, np.arange(self.count + 1))
        return start.tolist(), (key % width)[order].tolist(), tensors[order].tolist(), total[order].tolist()
