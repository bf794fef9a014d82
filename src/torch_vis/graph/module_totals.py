"""Blocks: all calls of one module from one place, and what they come to.

What a checkpointed module computes again during backward belongs to the block of its forward call: a module has one
place, and its second computation is part of what backward costs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from torch_vis.graph import Graph, TensorType
from torch_vis.graph.types import Ints

SUMMED = {
    "time_ns": "backward_ns",
    "alloc_bytes": "backward_bytes",
    "flops": "backward_flops",
    "macs": "backward_macs",
    "moved_bytes": "backward_moved_bytes",
}


@dataclass(slots=True)
class Sums:
    """Totals of one block or line; time and bytes are None where they were not measured.

    ``incomplete`` names the figures that leave out operations of which they are not known.
    """

    ops: int = 0
    backward_ops: int = 0
    recomputed_ops: int = 0  # of those of backward
    time_ns: int | None = None
    self_ns: int | None = None
    backward_ns: int | None = None
    alloc_bytes: int | None = None
    backward_bytes: int | None = None
    flops: int | None = None
    backward_flops: int | None = None
    macs: int | None = None
    backward_macs: int | None = None
    moved_bytes: int | None = None
    backward_moved_bytes: int | None = None
    incomplete: tuple[str, ...] = ()

    def add(self, other: Sums) -> None:
        """Add the figures of another block; what one of the two does not know, it leaves as it is."""
        if other.incomplete:
            either = {*self.incomplete, *other.incomplete}
            self.incomplete = tuple(name for name in AMOUNTS if name in either)
        for name in AMOUNTS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if theirs is not None:
                setattr(self, name, theirs if mine is None else mine + theirs)


AMOUNTS = tuple(name for name in Sums.__slots__ if name != "incomplete")


@dataclass(slots=True)
class Block:
    """All calls of one module from one place."""

    path: str
    type: str
    kind: str
    parent: int
    calls: int = 0
    own: Sums = field(default_factory=Sums)  # its own operations, without those of the modules it calls
    sums: Sums = field(default_factory=Sums)
    own_ops: Counter[str] = field(default_factory=Counter)
    own_backward_ops: Counter[str] = field(default_factory=Counter)
    outputs: dict[TensorType, None] = field(default_factory=dict)  # an ordered set
    parameters: set[int] = field(default_factory=set)
    children: list[int] = field(default_factory=list)
    again: bool = False  # whether backward computes it again, because it was checkpointed
    signature: int = -1


def merge_calls(graph: Graph) -> tuple[list[Block], Ints]:
    """One block for all the calls of a module that come from the same block, and for each scope its block."""
    places, where = places_of_calls(graph)
    calls = np.bincount(where[~graph.tree.recomputed], minlength=len(places)).tolist()
    blocks: list[Block] = []
    for number, (above, module) in enumerate(places):
        path, type_, kind = graph.modules[module]
        blocks.append(Block(path, type_, kind, above, calls[number]))
        if above >= 0:
            blocks[above].children.append(number)
    return blocks, where


def places_of_calls(graph: Graph) -> tuple[list[tuple[int, int]], Ints]:
    """Where modules are called from: the place around each and its module, in order; and for each scope its place.

    A call that backward computes again has the place of its first call.
    """
    numbers: dict[tuple[int, int], int] = {}
    where: list[int] = []
    for parent, module in zip(graph.tree.by_first_call.parent.tolist(), graph.scope_module.tolist()):
        above = where[parent] if parent >= 0 else -1
        where.append(numbers.setdefault((above, module), len(numbers)))
    return list(numbers), np.array(where, dtype=np.int64)
