"""Who reads whose bytes, looked through views, and what else must keep its order: what fusing may not break."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from torch_vis.graph import Graph, TensorType
from torch_vis.graph.flow import inputs_by_slot, outputs_by_slot, roots
from torch_vis.graph.schema import RECORDED, Flag
from torch_vis.graph.schema import Kind as Read
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.call_groups import classes
from torch_vis.ops.cost.registry import touched
from torch_vis.ops.families import SPACES, LoopNest, Pattern, kept, loop_of, pattern
from torch_vis.ops.op_table import LoopKind

_Pairs = tuple[list[int], list[int]]


class LoopRelation(IntEnum):
    """How the loop of a reader runs over the tensor that it reads."""

    ORDER = 0  # not at all: one has to come before the other, or an element is needed at other places
    SAME = 1  # element by element, in the same order
    TURNED = 2  # element by element, with axes in another order
    SPREAD = 3  # each element for several of the loop's
    PART = 4  # the tensor makes a part of the result
    WINDOW = 5  # a part of the tensor, or elements at other places


class DependenceEdges(NamedTuple):
    """Dependences of an operation on another, as columns; ``pattern`` is that of a spread, -1 where there is none."""

    source: Ints
    target: Ints
    rel: Ints
    numel: Ints
    pattern: Ints


class Dependences:
    """A graph as a compiler sees it: each operation's loop, and each dependence with how the reader's loop uses it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.patterns: list[Pattern] = []
        self._pattern_numbers: dict[Pattern, int] = {}
        self.is_view = self._plain_views()
        self._shape_loops()

    def _plain_views(self) -> Bools:
        """The operations that can be looked through: views whose bytes come by the argument that they are taken of.

        Where they come by an alias that was written since, the view stands in the way, as does an operator that is
        not torch's own and may do more: ``wait_tensor`` waits.
        """
        graph = self.graph
        torchs = np.array([call.op.startswith(SPACES) for call in graph.calls] or [False])
        views: Bools = ((graph.node_flags & Flag.VIEW) != 0) & torchs[graph.node_call]
        taken = graph.in_kind != Read.SHAPE
        named = np.bincount(graph.in_node[taken & (graph.in_slot >= 0)], minlength=len(graph))
        others = np.bincount(graph.in_node[taken & (graph.in_slot < 0)], minlength=len(graph))
        base = np.full(len(graph), -1, dtype=np.int64)
        base[graph.in_node[taken]] = graph.in_value[taken]
        producer = graph.out_node
        kept = views & (named == 1) & (others == 0)
        elsewhere = graph.value_storage[graph.out_value] != graph.value_storage[base[producer]]
        kept[producer[elsewhere]] = False
        return kept

    def number_of(self, runs: Pattern | None) -> int:
        """The number of a pattern in ``patterns``; -1 for none."""
        if runs is None:
            return -1
        number = self._pattern_numbers.setdefault(runs, len(self.patterns))
        if number == len(self.patterns):
            self.patterns.append(runs)
        return number

    @property
    def kept(self) -> list[int]:
        """For each pattern, how many sums it makes."""
        return [kept(runs) for runs in self.patterns]

    def _shape_loops(self) -> None:
        """Find the loop of every operation: once for each kind of call, then for all of them."""
        graph, count = self.graph, len(self.graph)
        self.kind = np.full(count, LoopKind.VIEW, dtype=np.int64)
        self.numel = np.zeros(count, dtype=np.int64)
        self.pattern = np.full(count, -1, dtype=np.int64)
        self._class = np.zeros(count, dtype=np.int64)
        self._loops: list[LoopNest] = [LoopNest(LoopKind.VIEW)]
        nodes = np.flatnonzero(~self.is_view)
        if len(nodes):
            types = len(graph.types)
            read = graph.in_slot.astype(np.int64) * types + graph.value_type[graph.in_value]
            slot = graph.out_slot.astype(np.int64)
            written = np.where(slot >= 0, 2 * slot, -2 * slot - 1) * types + graph.value_type[graph.out_value]
            inputs, outputs = (read, graph.in_start, graph.in_slot >= 0), (written, graph.out_start, None)
            group = classes(nodes, graph.node_call.astype(np.int64), inputs, outputs)
            first = np.zeros(int(group.max()) + 1, dtype=np.int64)
            first[group[::-1]] = nodes[::-1]
            self._loops += [self._loop(int(node)) for node in first]
            self._class[nodes] = group + 1
            shapes = [1 if loop.kind != LoopKind.OTHER else 0 for loop in self._loops]
            for index, loop in enumerate(self._loops):
                for size in loop.shape:
                    shapes[index] *= size
            self.kind[nodes] = np.array([int(loop.kind) for loop in self._loops])[group + 1]
            self.numel[nodes] = np.array(shapes, dtype=np.int64)[group + 1]
            self.pattern[nodes] = np.array([self.number_of(loop.pattern) for loop in self._loops])[group + 1]
        self._set_apart()

    def _loop(self, node: int) -> LoopNest:
        graph, types = self.graph, self.graph.types
        inputs = {slot: types[graph.value_type[value]] for slot, value in inputs_by_slot(graph, node).items()}
        outputs = sorted(outputs_by_slot(graph, node).items())
        written = [value for slot, value in reversed(outputs) if slot < 0]
        returned = [value for slot, value in outputs if slot >= 0]
        call = graph.calls[int(graph.node_call[node])]
        return loop_of(call, inputs, [types[graph.value_type[value]] for value in returned or written])

    def _set_apart(self) -> None:
        """Take out of every loop what no kernel shares: code unseen, data for Python, other devices, partial writes."""
        graph = self.graph
        separate = (graph.node_flags & (RECORDED | Flag.ESCAPE)) != 0
        producer = graph.out_node
        separate[producer[graph.value_carries[graph.out_value] >= 0]] = True
        device = graph.storage_device[graph.value_storage]
        self.device = np.full(len(graph), -1, dtype=np.int64)
        self.device[producer[::-1]] = device[graph.out_value[::-1]]
        sizes = np.array([type_.numel for type_ in graph.types], dtype=np.int64)
        large = (graph.in_kind != Read.SHAPE) & (sizes[graph.value_type[graph.in_value]] > 1)
        self.crosses_device = np.zeros(len(graph), dtype=bool)
        self.crosses_device[graph.in_node[large & (device[graph.in_value] != self.device[graph.in_node])]] = (
            True
        )
        separate |= self.crosses_device
        views = (graph.node_flags & Flag.VIEW) != 0
        self.kind[separate & ~self.is_view & (self.kind != LoopKind.FREE)] = LoopKind.OTHER
        self.kind[views & ~self.is_view] = LoopKind.FREE

    @cached_property
    def root(self) -> Ints:
        """For each value the one whose bytes it shows: itself, or what a chain of views was taken of."""
        return roots(self.graph, self.is_view)

    @cached_property
    def bytes_of_type(self) -> Ints:
        """The bytes under a tensor of each type; 0 where that is not known."""
        return np.array([touched(type_) or 0 for type_ in self.graph.types], dtype=np.int64)

    @cached_property
    def numel_of_type(self) -> Ints:
        """The elements of a tensor of each type."""
        return np.array([type_.numel for type_ in self.graph.types], dtype=np.int64)

    @cached_property
    def reads(self) -> Bools:
        """For each row of ``in_value``, whether a kernel is given those bytes there."""
        graph = self.graph
        return (graph.in_slot >= 0) & (graph.in_kind != Read.SHAPE) & ~self.is_view[graph.in_node]

    @cached_property
    def edges(self) -> DependenceEdges:
        """Every dependence: those through bytes by how they are read, and those of order alone."""
        graph = self.graph
        source, target, value, _ = graph.edges(shape=False)
        rows = (graph.value_producer[graph.in_value] >= 0) & (graph.in_kind != Read.SHAPE)
        # the rows of the graph's edges that come from arguments stand first
        count = int(rows.sum())
        rel = np.full(len(source), LoopRelation.ORDER, dtype=np.int64)
        numel = np.zeros(len(source), dtype=np.int64)
        spread = np.full(len(source), -1, dtype=np.int64)
        named = graph.in_slot[rows] >= 0
        candidates = np.flatnonzero(named & ~self.is_view[target[:count]])
        rel[candidates], numel[candidates], spread[candidates] = self._relations(
            value[candidates], target[candidates]
        )
        viewed = np.flatnonzero(named & self.is_view[target[:count]])
        rel[viewed] = LoopRelation.SAME
        # the same, by row of in_value
        self.row_rel = np.full(len(graph.in_value), int(LoopRelation.ORDER), dtype=np.int64)
        self.row_spread = np.full(len(graph.in_value), -1, dtype=np.int64)
        self.row_rel[rows], self.row_spread[rows] = rel[:count], spread[:count]
        direct = source[:count][named].astype(np.int64) * len(graph) + target[:count][named]
        before, after = self._hazards(direct)
        none = np.zeros(len(before), dtype=np.int64)
        return DependenceEdges(
            np.concatenate([source, before]).astype(np.int64),
            np.concatenate([target, after]).astype(np.int64),
            np.concatenate([rel, none]),
            np.concatenate([numel, none]),
            np.concatenate([spread, none - 1]),
        )

    def _relations(self, value: Ints, target: Ints) -> tuple[Ints, Ints, Ints]:
        """For values and their readers: how the reader's loop uses it, its size, and the pattern of a spread."""
        graph = self.graph
        under = graph.value_type[self.root[value]].astype(np.int64)
        seen, loop = graph.value_type[value].astype(np.int64), self._class[target]
        code = (under * len(graph.types) + seen) * len(self._loops) + loop
        _, first, group = np.unique(code, return_index=True, return_inverse=True)
        rows = []
        for row in first.tolist():
            root_type, seen_type = graph.types[int(under[row])], graph.types[int(seen[row])]
            rel, spread = relation(root_type, seen_type, self._loops[int(loop[row])])
            rows.append((int(rel), root_type.numel, self.number_of(spread)))
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)[group.reshape(-1)]
        table[self.kind[target] == LoopKind.OTHER, 0] = LoopRelation.WINDOW
        return table[:, 0], table[:, 1], table[:, 2]

    def _hazards(self, direct: Ints) -> tuple[Ints, Ints]:
        """Order that no bytes say: a write after reads and writes of the same memory, and draws of random numbers.

        An operation that works on in place what another made (``direct`` has these pairs) only continues it.
        """
        graph = self.graph
        producer = graph.out_node
        storage = graph.value_storage[graph.out_value]
        written = ~self.is_view[producer] & (
            (graph.out_slot < 0)
            | (graph.storage_birth[storage] == producer)
            | (self.kind[producer] == LoopKind.OTHER)
        )
        rewritten = written & (graph.storage_birth[storage] != producer)
        changed = np.zeros(len(graph.storage_bytes), dtype=bool)
        changed[storage[rewritten]] = True
        reads = (graph.in_kind != Read.SHAPE) & ~self.is_view[graph.in_node]
        reads &= changed[graph.value_storage[graph.in_value]]
        writes = written & changed[storage]
        at = np.concatenate([graph.value_storage[graph.in_value[reads]], storage[writes]])
        node = np.concatenate([graph.in_node[reads], producer[writes]])
        is_write = np.concatenate([np.zeros(int(reads.sum()), bool), np.ones(int(writes.sum()), bool)])
        order = np.lexsort((is_write, node, at))
        read, wrote = _ordered(at[order].tolist(), node[order].tolist(), is_write[order].tolist())
        over = np.array(wrote, dtype=np.int64)
        over = over[:, ~np.isin(over[0] * len(graph) + over[1], direct)]
        before, after = read[0] + over[0].tolist(), read[1] + over[1].tolist()
        drawn = np.flatnonzero((graph.node_flags & Flag.RANDOM) != 0)
        return (
            np.array([*before, *drawn[:-1].tolist()], dtype=np.int64),
            np.array([*after, *drawn[1:].tolist()], dtype=np.int64),
        )


def _ordered(at: list[int], node: list[int], is_write: list[bool]) -> tuple[_Pairs, _Pairs]:
    """Pairs of operations on one block of memory of which the second overwrites what the first read, or wrote."""
    read: _Pairs = ([], [])
    wrote: _Pairs = ([], [])
    block, writer, readers = -1, -1, set[int]()
    for storage, number, writes in zip(at, node, is_write):
        if storage != block:
            block, writer, readers = storage, -1, set()
        if not writes:
            readers.add(number)
            continue
        readers.discard(number)
        read[0].extend(readers)
        read[1].extend([number] * len(readers))
        if writer not in (-1, number):
            wrote[0].append(writer)
            wrote[1].append(number)
        writer, readers = number, set()
    return read, wrote


def relation(under: TensorType, seen: TensorType, loop: LoopNest) -> tuple[LoopRelation, Pattern | None]:
    """How a loop runs over a tensor of type ``under`` that it is given as a view of type ``seen``.

    >>> x = TensorType("float32", (2, 3), (3, 1))
    >>> point = LoopNest(LoopKind.POINT, (2, 3))
    >>> relation(x, x._replace(shape=(6,), stride=(1,)), LoopNest(LoopKind.POINT, (6,)))[0].name
    'SAME'
    >>> relation(x, x._replace(shape=(3, 2), stride=(1, 3)), LoopNest(LoopKind.POINT, (3, 2)))[0].name
    'TURNED'
    >>> relation(TensorType("float32", (2, 1), (1, 1)), TensorType("float32", (2, 1), (1, 1)), point)
    (<LoopRelation.SPREAD: 3>, ((2, False), (3, True)))
    """
    if loop.kind not in (LoopKind.POINT, LoopKind.ROWS, LoopKind.JOIN):
        return LoopRelation.WINDOW, None
    if len(under.stride) != len(under.shape) or len(seen.stride) != len(seen.shape):
        return LoopRelation.WINDOW, None
    shown = tuple(size if step else 1 for size, step in zip(seen.shape, seen.stride))
    whole = _product(shown) == under.numel and not any(
        size > 1 and step == 0 for size, step in zip(under.shape, under.stride)
    )
    if not whole:
        return LoopRelation.WINDOW, None
    turned = _runs(under.shape, under.stride) != _runs(shown, seen.stride)
    if loop.kind == LoopKind.JOIN:
        return (LoopRelation.WINDOW if turned else LoopRelation.PART), None
    if _product(shown) == _product(loop.shape):
        return (LoopRelation.TURNED if turned else LoopRelation.SAME), None
    aligned = (1,) * (len(loop.shape) - len(shown)) + shown
    fits = len(aligned) == len(loop.shape) and all(
        a in (1, size) for a, size in zip(aligned, loop.shape, strict=True)
    )
    if not fits or turned:
        return LoopRelation.WINDOW, None
    return LoopRelation.SPREAD, pattern(
        loop.shape, [a == 1 and size > 1 for a, size in zip(aligned, loop.shape, strict=True)]
    )


def _runs(shape: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Sizes and steps with those joined that are one axis in memory: equal for two views in the same order."""
    runs: list[tuple[int, int]] = []
    for size, step in zip(shape, stride):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * step:
            runs[-1] = (runs[-1][0] * size, step)
        else:
            runs.append((size, step))
    return tuple(runs)


def _product(sizes: Sequence[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count
