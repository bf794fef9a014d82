"""What each part of a cut graph comes to, in operations, FLOPs and bytes, and why bytes pass from one to another."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from torch_vis.analysis.fusion.dependences import Rel
from torch_vis.analysis.partition.cuts import DEVICE, FULL, MODULE, PHASE, PYTHON, Budget, Cut, touched
from torch_vis.graph import Column, Graph
from torch_vis.graph.schema import Flag, Role
from torch_vis.graph.schema import Kind as Read
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.op_table import LoopKind

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

    def of(self, rows: Ints, maker: Ints, reader: Ints) -> Ints:
        """For reads, by rows of ``in_value``, of what an operation of another part made, the reason."""
        if self.cut.is_packed:
            return self._of_stretches(self.part[maker], self.part[reader])
        reason = self._of_kernels(rows, maker, reader)
        self._from_others_of_the_pair(reason, self.part[maker], self.part[reader])
        left = np.flatnonzero(reason == OPEN)
        reason[left] = self._by_order(self.part[maker[left]], self.part[reader[left]])
        return reason

    # ------------------------------------------------------------ kernels

    def _of_kernels(self, rows: Ints, maker: Ints, reader: Ints) -> Ints:
        graph, flow = self.graph, self.flow
        flags, kind, rel = graph.node_flags, flow.kind, flow.row_rel[rows]
        own = np.array([call.op.startswith(("aten::", "prims::")) for call in graph.calls] or [True])
        custom = ~own[graph.node_call] & ((flags & Flag.OPAQUE) == 0)
        escapes = (flags & Flag.ESCAPE) != 0
        stretch = np.cumsum(escapes) - escapes
        owner, elsewhere = self.cut.owner, flow.crosses_device & (flow.device >= 0)
        merged = self.cut.fused.merged
        a, b = self._groups.at(merged[maker]), self._groups.at(merged[reader])
        fits = self._fits(a, b, rows, graph.in_value[rows])
        sums = (a.pattern >= 0) | (b.pattern >= 0)
        other_axes = (a.pattern >= 0) & (b.pattern >= 0) & (a.pattern != b.pattern)
        turned = (rel == Rel.TURNED) | (a.turned & (a.pattern >= 0)) | (b.turned & sums)
        in_place = (rel == Rel.ORDER) | (kind[maker] == LoopKind.FREE) | (kind[reader] == LoopKind.FREE)
        tests = (
            graph.node_phase[maker] != graph.node_phase[reader],
            ((flow.device[maker] != flow.device[reader]) & (flow.device[reader] >= 0)) | elsewhere[reader],
            escapes[reader] | (stretch[maker] != stretch[reader]),
            custom[maker] | custom[reader],
            ((flags[maker] | flags[reader]) & Flag.OPAQUE) != 0,
            owner[maker] != owner[reader] if owner is not None else np.zeros(len(rows), dtype=bool),
            (kind[reader] == LoopKind.HEAVY) & (rel != Rel.ORDER),
            (kind[reader] == LoopKind.OTHER) | (kind[maker] == LoopKind.OTHER),
            (kind[reader] == LoopKind.GATHER) & (rel != Rel.ORDER),
            (rel == Rel.WINDOW) | (turned & ~fits & ~in_place),
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
        kept = np.array([*flow.kept, -1], dtype=np.int64)  # the last is of no pattern
        sums, same = kept[a.pattern], (size == a.numel) & (a.numel == b.numel)
        before = (b.pattern >= 0) & (a.pattern < 0) & (size == a.numel) & (a.numel == kept[b.pattern])
        after = (size == sums) & ((a.pattern == b.pattern) | (b.numel == size))
        fits = (rel == Rel.SAME) & (same | before | after)
        fits |= (rel == Rel.TURNED) & same & (a.pattern < 0) & ~a.heavy
        fits |= (
            (rel == Rel.SPREAD) & (size == sums) & (sums > 1) & (spread == a.pattern) & (a.numel == b.numel)
        )
        fits &= ~(a.turned & (a.pattern >= 0))
        return fits & ~(b.turned & ((a.pattern >= 0) | (b.pattern >= 0)))

    def _from_others_of_the_pair(self, reason: Ints, a: Ints, b: Ints) -> None:
        """Where nothing speaks against a tensor, what speaks against another one between the same two parts."""
        if not (reason == OPEN).any():
            return
        edges, random = self.flow.edges, (self.graph.node_flags & Flag.RANDOM) != 0
        ordered = (edges.rel == Rel.ORDER) & ~(random[edges.source] & random[edges.target])
        after = self.part[edges.source[ordered]] * self.count + self.part[edges.target[ordered]]
        pair = a * self.count + b
        reason[(reason == OPEN) & np.isin(pair, after)] = REASONS.index(MEMORY)
        pairs, index = np.unique(pair, return_inverse=True)
        least = np.full(len(pairs), OPEN, dtype=np.int64)
        np.minimum.at(least, index.reshape(-1), reason)
        np.minimum(reason, least[index.reshape(-1)], out=reason)

    def _by_order(self, a: Ints, b: Ints) -> Ints:
        """Of pairs of parts that could be one kernel by themselves, what the others have against it."""
        start, users = self._users
        last = np.full(self.count, -1, dtype=np.int64)  # the latest part that each waits for
        np.maximum.at(last, users, np.repeat(np.arange(self.count), np.diff(start)))
        first = np.full(self.count, self.count, dtype=np.int64)  # the first that waits for each
        has = np.flatnonzero(np.diff(start))
        first[has] = users[start[has]]
        between = (last[b] > a) & (first[a] < b)
        reason = np.where(between, REASONS.index(BETWEEN), REASONS.index(ALONG))
        wanted: dict[int, list[int]] = {}
        for row in np.flatnonzero(between).tolist():
            wanted.setdefault(int(a[row]), []).append(row)
        begin, listed, left = start.tolist(), users.tolist(), STEPS
        for source, places in sorted(wanted.items()):
            ends = b[places]
            reached, left = _reached(source, int(ends.max()), begin, listed, left)
            reason[[row for row, end in zip(places, ends.tolist()) if end in reached]] = REASONS.index(CYCLE)
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
        total = np.zeros(self.count, dtype=np.int64)
        part, _, size = self._touched
        np.add.at(total, part, size)
        return total

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
        total = np.zeros(len(a), dtype=np.int64)
        both = code[near] == looked_for if len(code) else np.zeros(0, dtype=bool)
        np.add.at(total, pair[both], size[at[both]])
        return total


def _reached(source: int, end: int, start: list[int], users: list[int], steps: int) -> tuple[set[int], int]:
    """The parts up to one of them that a path leads to through at least one other, and the steps that are left."""
    reached: set[int] = set()
    waiting = [user for user in users[start[source] : start[source + 1]] if user < end]
    seen = set(waiting)
    while waiting and steps > 0:
        part = waiting.pop()
        for user in users[start[part] : start[part + 1]]:
            steps -= 1
            if user > end:
                break  # they are in order
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
        known = self._flops.known
        return np.bincount(self.part[~known], minlength=self.count) if known is not None else self.flops * 0

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
        order = np.argsort(self.part, kind="stable")
        return order, np.searchsorted(self.part[order], np.arange(self.count + 1))

    @cached_property
    def _tensors(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Every pair of a part and a value that it touches: part, value, bytes, and whether the part made it."""
        graph, fused = self.graph, self.cut.fused
        rows = touched(fused)
        width = max(len(graph.value_type), 1)
        part, value = np.divmod(np.unique(self.part[rows.node] * width + rows.value), width)
        size = fused.flow.bytes_of_type[graph.value_type[value]]
        maker = graph.value_producer[value]
        own = (maker >= 0) & (self.part[np.maximum(maker, 0)] == part)
        return part, value, size, own

    @cached_property
    def _handed_on(self) -> Bools:
        """For each value, whether another part than its maker's reads it, or somebody outside may."""
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
        known = self._moved.known
        missing = np.bincount(self.part[~known], minlength=self.count) if known is not None else inner * 0
        rows = zip((self.moved_bytes - inner - again).tolist(), missing.tolist())
        return [None if unknown else size for size, unknown in rows]

    @cached_property
    def intensity(self) -> list[float | None]:
        """FLOPs per byte that passes in or out, if all that is internal stays on the chip; None where not known."""
        rows = zip(self.flops.tolist(), self.passing_bytes, self.uncovered.tolist())
        return [None if missing or not size else work / size for work, size, missing in rows]

    def _sum(self, part: Ints, size: Ints) -> Ints:
        total = np.zeros(self.count, dtype=np.int64)
        np.add.at(total, part, size)
        return total

    # ------------------------------------------------------------ reasons

    @cached_property
    def crossings(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Each tensor that a part takes from another: part, value, bytes, and the reason, in ``REASONS``."""
        graph, flow = self.graph, self.cut.fused.flow
        rows = np.flatnonzero((graph.in_kind != Read.SHAPE) & ~flow.is_view[graph.in_node])
        value = flow.root[graph.in_value[rows]]
        maker, reader = graph.value_producer[value], graph.in_node[rows]
        between = maker >= 0
        between[between] = self.part[maker[between]] != self.part[reader[between]]
        rows, value, maker, reader = rows[between], value[between], maker[between], reader[between]
        reason = Reasons(self.cut, self._flops).of(rows, maker, reader)
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
        total = np.zeros(len(key), dtype=np.int64)
        np.add.at(total, index.reshape(-1), size)
        order = np.lexsort((key % width, -total, key // width))
        start = np.searchsorted(key // width, np.arange(self.count + 1))
        return start.tolist(), (key % width)[order].tolist(), tensors[order].tolist(), total[order].tolist()
