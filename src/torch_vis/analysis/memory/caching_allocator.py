"""CUDA's caching allocator, played through for the blocks of a run: what is allocated, what is reserved.

Sizes are rounded to 512 bytes. Up to 1 MiB they come out of segments of 2 MiB, below 10 MiB out of segments of 20 MiB,
and larger ones get a segment of their own, rounded to 2 MiB. The smallest free block that fits is taken, and split if
the rest is worth it; neighbours that are free are joined again. Segments stay reserved until memory runs out.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np

from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import Lifetimes, in_place_sums
from torch_vis.graph.schema import Phase
from torch_vis.graph.types import Bools, Ints

ROUND = 512
SMALL, SMALL_SEGMENT = 1 << 20, 2 << 20
LARGE, LARGE_SEGMENT, LARGE_ROUND = 10 << 20, 20 << 20, 2 << 20
# operations that make cuBLAS ask for its workspace, which it then keeps
PRODUCTS = frozenset(
    "aten::mm aten::addmm aten::bmm aten::baddbmm aten::addmv aten::mv aten::_int_mm aten::linear "
    "aten::_addmm_activation aten::dot aten::addbmm aten::_scaled_mm".split()
)
WORKSPACE = 32 << 20  # of cuBLAS, from compute capability 9.0 on; 8,519,680 bytes before
LIGHT_WORKSPACE = 1 << 20  # of cuBLASLt, which adds a bias in the same kernel


class Caching(NamedTuple):
    """What the caching allocator would report of a run on one device, in bytes."""

    device: str
    peak_bytes: int
    """The most that was allocated at once: blocks, rounded and with what was not worth splitting off."""
    reserved_bytes: int
    """What was reserved from the driver in the end."""
    free_at_peak_bytes: int
    """Reserved, and not allocated, at the moment of the peak."""
    workspace_bytes: int
    """What cuBLAS and cuBLASLt keep for themselves; part of the peak."""
    peak_node: int | None


class Pool:
    """Free and taken blocks of one allocator, by address."""

    def __init__(self) -> None:
        self.free: dict[bool, list[tuple[int, int]]] = {
            True: [],
            False: [],
        }  # by small: sizes and addresses, in order
        self.size: dict[int, int] = {}  # of every block, by address
        self.before: dict[int, int] = {}  # the neighbour below, by address
        self.after: dict[int, int] = {}
        self.is_free: set[int] = set()
        self.is_small: dict[int, bool] = {}
        self.allocated = self.reserved = 0
        self._next = 0

    def take(self, wanted: int) -> int:
        """The address of a block for so many bytes."""
        size = max(ROUND, -(-wanted // ROUND) * ROUND)
        small = size <= SMALL
        choices = self.free[small]
        index = bisect_left(choices, (size, -1))
        if index < len(choices):
            address = choices.pop(index)[1]
            self.is_free.discard(address)
        else:
            address = self._segment(size, small)
        rest = self.size[address] - size
        if rest >= ROUND if small else rest > SMALL:
            self._split(address, size, small)
        self.allocated += self.size[address]
        return address

    def give(self, address: int) -> None:
        """Give a block back; free neighbours become one with it."""
        self.allocated -= self.size[address]
        small = self.is_small[address]
        above = self.after.get(address)
        if above is not None and above in self.is_free:
            self._join(address, above, small)
        below = self.before.get(address)
        if below is not None and below in self.is_free:
            self._unlist(below, small)
            self._absorb(below, address)
            address = below
        self.is_free.add(address)
        insort(self.free[small], (self.size[address], address))

    def _segment(self, size: int, small: bool) -> int:
        if small:
            whole = SMALL_SEGMENT
        elif size < LARGE:
            whole = LARGE_SEGMENT
        else:
            whole = -(-size // LARGE_ROUND) * LARGE_ROUND
        address, self._next = self._next, self._next + whole + 1  # a gap: segments are never joined
        self.size[address], self.is_small[address] = whole, small
        self.reserved += whole
        return address

    def _split(self, address: int, size: int, small: bool) -> None:
        rest, above = address + size, self.after.get(address)
        self.size[rest], self.is_small[rest] = self.size[address] - size, small
        self.size[address] = size
        self.after[address], self.before[rest] = rest, address
        if above is not None:
            self.after[rest], self.before[above] = above, rest
        self.is_free.add(rest)
        insort(self.free[small], (self.size[rest], rest))

    def _join(self, address: int, above: int, small: bool) -> None:
        self._unlist(above, small)
        self._absorb(address, above)

    def _unlist(self, address: int, small: bool) -> None:
        choices = self.free[small]
        del choices[bisect_left(choices, (self.size[address], address))]
        self.is_free.discard(address)

    def _absorb(self, address: int, above: int) -> None:
        self.size[address] += self.size.pop(above)
        further = self.after.pop(above, None)
        self.before.pop(above, None)
        self.is_small.pop(above)
        if further is None:
            self.after.pop(address, None)
        else:
            self.after[address], self.before[further] = further, address


def simulate_caching(
    graph: Graph, blocks: Lifetimes, *, device: str, workspace: int = WORKSPACE, scratch: Ints | None = None
) -> Caching:
    """Play the run of one device through the caching allocator.

    ``scratch`` is what each operation takes for itself while it runs. Lifetimes from outside are taken before the run,
    those with names in the order of the names. ``workspace`` is what cuBLAS takes at the first matrix product of each
    thread, and keeps; autograd has a thread of its own for a GPU.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(300, 300), torch.ones(8, 300))
    >>> simulated = simulate_caching(t.graph, t.memory().blocks, device="cpu", workspace=0)
    >>> simulated.peak_bytes, simulated.reserved_bytes  # 360,448 + 1,536 + 9,728 + 9,728 bytes, in one small segment
    (381440, 2097152)
    """
    number = graph.devices.index(device) if device in graph.devices else -1
    mine = (graph.storage_device == number) & (blocks.bytes > 0)
    address: dict[int, int] = {}
    pool, count = Pool(), len(graph)
    sums = in_place_sums(graph)
    stands_for = dict(zip(sums.made.tolist(), sums.reused.tolist()))
    death = _last_deaths(blocks, stands_for)
    size = blocks.size_at(None).copy()
    for block in _from_outside(graph, blocks, mine & (size > 0)):
        address[block] = pool.take(int(size[block]))
    order = np.flatnonzero(mine & (blocks.birth >= 0))
    order = order[np.argsort(blocks.birth[order], kind="stable")]
    made_at = np.split(order, np.searchsorted(blocks.birth[order], np.arange(1, count))) if count else []
    dying = [(int(death[block]), block) for block in address if death[block] <= count]
    heapq.heapify(dying)
    resized = _resizes(graph, mine)
    kept = _workspaces(graph, number, workspace) if workspace else {}
    peak, free, where = pool.allocated, pool.reserved - pool.allocated, None
    for node in range(count):
        while dying and dying[0][0] <= node:
            block = heapq.heappop(dying)[1]
            if block in address:
                pool.give(address.pop(block))
        for amount in kept.get(node, ()):
            pool.take(amount)
        extra = pool.take(int(scratch[node])) if scratch is not None and scratch[node] else None
        for block in made_at[node].tolist():
            if block not in stands_for and size[block]:
                address[block] = pool.take(int(size[block]))
                if death[block] <= count:
                    heapq.heappush(dying, (int(death[block]), block))
        for block, wanted in resized.get(node, ()):
            if size[block] == wanted:
                continue
            size[block] = wanted
            if block in address:
                pool.give(address.pop(block))
            if wanted:
                address[block] = pool.take(wanted)
                heapq.heappush(dying, (int(death[block]), block))
        if pool.allocated > peak:
            peak, free, where = pool.allocated, pool.reserved - pool.allocated, node
        if extra is not None:
            pool.give(extra)
    held = sum(amount for amounts in kept.values() for amount in amounts)
    return Caching(device, peak, pool.reserved, free, held, where)


def _resizes(graph: Graph, mine: Bools) -> dict[int, list[tuple[int, int]]]:
    """The blocks that become larger or smaller during the run, by the operation from which on they are."""
    result: dict[int, list[tuple[int, int]]] = {}
    columns = (graph.resize_storage, graph.resize_node, graph.resize_bytes)
    for block, node, size in zip(*(column.tolist() for column in columns)):
        if mine[block]:
            result.setdefault(node, []).append((block, size))
    return result


def _from_outside(graph: Graph, blocks: Lifetimes, mine: Bools) -> list[int]:
    """The blocks that are there before the run, in the order in which a model is moved to its device."""
    result = np.flatnonzero(mine & (blocks.birth < 0) & (blocks.death > 0))
    values = blocks.first_value[result]
    names = np.where(values >= 0, graph.value_name[values], -1)
    last = len(graph.names) + 1
    return result[np.argsort(np.where(names >= 0, names, last), kind="stable")].tolist()


def _last_deaths(blocks: Lifetimes, stands_for: dict[int, int]) -> Ints:
    """When each block dies, with one that stands for others living as long as the last of them."""
    death: Ints = blocks.death.copy()
    for new, old in sorted(stands_for.items(), key=lambda pair: -int(blocks.birth[pair[0]])):
        death[old] = max(death[old], death[new])
    return death


def _workspaces(graph: Graph, device: int, size: int) -> dict[int, list[int]]:
    """What the libraries of matrix products take and keep, by the operation that makes them: once for each thread."""
    result: dict[int, list[int]] = {}
    ops = [call.op.partition(".")[0] for call in graph.calls]
    for wanted, amount in ((PRODUCTS, size), (frozenset({"aten::addmm"}), LIGHT_WORKSPACE)):
        products = np.array([op in wanted for op in ops], dtype=bool)
        nodes = np.flatnonzero(products[graph.node_call]) if len(products) else np.zeros(0, dtype=np.int64)
        values = graph.first_output[nodes]
        nodes = nodes[(values >= 0) & (graph.storage_device[graph.value_storage[values]] == device)]
        for backward in (False, True):
            own = nodes[(graph.node_phase[nodes] == Phase.BACKWARD) == backward]
            if len(own):
                result.setdefault(int(own[0]), []).append(amount)
    return result
