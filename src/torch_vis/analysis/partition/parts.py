"""What each part of a cut graph comes to, in operations, FLOPs and bytes, and why bytes pass from one to another."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from torch_vis.analysis.partition.cuts import Cut, touched
from torch_vis.analysis.partition.reasons import REASONS, Reasons
from torch_vis.graph import Column, Graph
from torch_vis.graph.schema import Kind as Read
from torch_vis.graph.schema import Role
from torch_vis.graph.types import Bools, Ints

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
        made = (maker >= 0) & (self.part[np.maximum(maker, 0)] == part)
        return part, value, size, made

    @cached_property
    def _handed_on(self) -> Bools:
        """For each value, whether another part than its maker's reads it, or somebody outside may."""
        _, value, _, made = self._tensors
        found: Bools = self.cut.fused.results.copy()
        found[value[~made]] = True
        return found

    @cached_property
    def input_bytes(self) -> Ints:
        """What each takes from other parts and from outside, weights apart."""
        part, value, size, made = self._tensors
        chosen = ~made & ~self._is_weight[value]
        return self._sum(part[chosen], size[chosen])

    @cached_property
    def weight_bytes(self) -> Ints:
        """The parameters and buffers that each has to hold, whole."""
        part, value, size, made = self._tensors
        chosen = ~made & self._is_weight[value]
        return self._sum(part[chosen], size[chosen])

    @cached_property
    def output_bytes(self) -> Ints:
        """What each makes that another part or the user can look at."""
        part, value, size, made = self._tensors
        chosen = made & self._handed_on[value]
        return self._sum(part[chosen], size[chosen])

    @cached_property
    def internal_bytes(self) -> Ints:
        """What each makes for itself alone."""
        part, value, size, made = self._tensors
        chosen = made & ~self._handed_on[value]
        return self._sum(part[chosen], size[chosen])

    @property
    def _is_weight(self) -> Bools:
        return np.isin(self.graph.value_role, WEIGHTS)

    @cached_property
    def passing_bytes(self) -> list[int | None]:
        """What each moves when all that is internal stays on the chip; None where some bytes are not known.

        Of a table in which rows are looked up, these rows: far less than the weights that the part has to hold.
        """
        made, again = self.cut.fused.kept(self.part, self.count)
        known = self._moved.known
        missing = np.bincount(self.part[~known], minlength=self.count) if known is not None else made * 0
        rows = zip((self.moved_bytes - made - again).tolist(), missing.tolist())
        return [None if unknown else size for size, unknown in rows]

    @cached_property
    def intensity(self) -> list[float | None]:
        """FLOPs per byte that passes in or out, if all that is internal stays on the chip; None where not known."""
        rows = zip(self.flops.tolist(), self.passing_bytes, self.uncovered.tolist())
        return [None if missing or not size else work / size for work, size, missing in rows]

    def _sum(self, part: Ints, size: Ints) -> Ints:
        found = np.zeros(self.count, dtype=np.int64)
        np.add.at(found, part, size)
        return found

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
        key, place, tensors = np.unique(part * width + reason, return_inverse=True, return_counts=True)
        total = np.zeros(len(key), dtype=np.int64)
        np.add.at(total, place.reshape(-1), size)
        order = np.lexsort((key % width, -total, key // width))
        start = np.searchsorted(key // width, np.arange(self.count + 1))
        return start.tolist(), (key % width)[order].tolist(), tensors[order].tolist(), total[order].tolist()
