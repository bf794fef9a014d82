"""The proof of edges: every byte that an operation reads is named by its own edges, and every edge names such a byte.

Which bytes an operation reads follows from its arguments: all of a tensor; none of a tensor whose shape alone it looks
at, or which it overwrites; of a view's base those that the view shows. Who wrote each byte last is followed here write
by write, on plain arrays, without any code of the recorder's. No tensor's contents are looked at, so a missing edge is
found also where the bytes would not have mattered, and so is an edge through which nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from torch_vis.capture.recording.op_plan import OpPlan
from torch_vis.capture.recording.opaque_nodes import FILL
from torch_vis.errors import CheckFailed, UsageError
from torch_vis.graph.call import Call, short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import RECORDED, Flag, Kind, RankGroup, TensorType
from torch_vis.ops.collectives import collective, group_of, is_wait, root_of
from torch_vis.ops.collectives import effects as collective_effects
from torch_vis.ops.schemas import resolve
from torch_vis.replay.replay import node_text

DATA, WHOLE, SHAPE = int(Kind.DATA), int(Kind.WHOLE), int(Kind.SHAPE)
VIEW = int(Flag.VIEW)
# what was in a block from outside before the run
OUTSIDE = -1


class CallEffects(NamedTuple):
    """What a call does with the tensors in its slots, by the operator's own definition."""

    unread: frozenset[int]
    """The slots of which it takes no contents: only the shape, or it overwrites them."""
    writes: frozenset[int] | None
    """The slots that it writes; None where that is not known."""
    undefined: bool = False
    """Whether it gives memory without contents."""
    moves: bool = False
    """Whether it gives the argument that it writes other memory."""


def effects(call: Call, groups: tuple[RankGroup, ...] = ()) -> CallEffects:
    """What a call does with its tensors; in which group a rank is decides what it is sent.

    >>> from torch_vis.graph.call import Slot
    >>> effects(Call("aten::copy_", (Slot(0), Slot(1)), ())).unread
    frozenset({0})
    """
    if call.op == FILL:
        return CallEffects(frozenset({0}), frozenset({0}))
    if is_wait(call.op):
        # it writes what has arrived over what was pending
        return CallEffects(frozenset(), frozenset(call.slots()))
    named = dict(call.kwargs)

    def slots(keys: Iterable[int | str]) -> frozenset[int]:
        arguments = tuple(
            named.get(key) if isinstance(key, str) else call.args[key]
            for key in keys
            if isinstance(key, str) or key < len(call.args)
        )
        return frozenset(Call("", arguments, ()).slots())

    row = collective(call.op)
    if row is not None:
        group = group_of(call, groups)
        what = collective_effects(row, None if group is None else group.position, root_of(row, call.args))
        return CallEffects(slots(what.unread) | slots(what.overwrites), slots(what.writes))
    try:
        plan = OpPlan(resolve(call.op))
    except UsageError:
        return CallEffects(frozenset(), None)
    return CallEffects(
        slots(plan.unread(call.args)) | slots(plan.overwrites),
        slots(plan.written(call.args, named)),
        plan.uninitialized,
        short_name(call.op) == "set_",
    )


def prove_edges(graph: Graph, *, approximate: bool = False) -> int:
    """Raise ``CheckFailed`` at the first edge that is missing or that nothing is read through; gives their number.

    ``approximate`` is for a run that says of itself that some edges are there only because they could not be
    ruled out (a limit of the kind "dataflow").
    """
    proof = _Proof(graph, approximate)
    proof.check_memory()
    proof.check_arguments()
    proof.check_buffers()
    return int((graph.in_kind != SHAPE).sum() + (graph.result_kind != SHAPE).sum())


class Read(NamedTuple):
    """One row of what a node or a result takes: the value, the slot and the kind."""

    value: int
    slot: int
    kind: int


class _Proof:
    """Goes through a graph once, in time order."""

    def __init__(self, graph: Graph, approximate: bool) -> None:
        self.graph = graph
        self.approximate = approximate
        self.effects = [effects(call, graph.groups) for call in graph.calls]
        has_producer = graph.value_producer >= 0
        self.written = np.zeros(len(graph.storage_bytes), dtype=bool)
        self.written[graph.value_storage[graph.out_value[graph.out_slot < 0]]] = True
        # a tensor that torch made unseen, on memory of the run, is read through that memory
        unseen = ~has_producer & (graph.storage_birth[graph.value_storage] >= 0)
        self.written[graph.value_storage[unseen]] = True
        self.is_empty = np.array([0 in row.shape for row in graph.types], dtype=bool)

    # ---------------------------------------------------------------- memory

    def check_memory(self) -> None:
        """Blocks are made where the graph says, no freed one is read, and writes are those of the operator."""
        graph = self.graph
        made_by, storage = graph.out_node, graph.value_storage[graph.out_value]
        returned = graph.out_slot >= 0
        is_returned = np.zeros(len(graph.storage_bytes), dtype=bool)
        is_returned[storage[returned & (graph.storage_birth[storage] == made_by)]] = True
        for block in np.flatnonzero((graph.storage_birth >= 0) & ~is_returned).tolist():
            maker = node_text(graph, int(graph.storage_birth[block]))
            raise CheckFailed(f"{maker} is said to make memory block {block}, but returns nothing in it")
        reads = graph.in_kind != SHAPE
        late = reads & (graph.storage_death[graph.value_storage[graph.in_value]] <= graph.in_node)
        for row in np.flatnonzero(late).tolist():
            raise CheckFailed(
                f"{self._node(int(graph.in_node[row]))} reads {self._name(int(graph.in_value[row]))}, "
                "whose memory was freed before"
            )
        self._check_writes()
        self._check_views()

    def _check_writes(self) -> None:
        graph = self.graph
        rows = np.flatnonzero(graph.out_slot < 0)
        claimed: dict[int, set[int]] = {}
        for row in rows.tolist():
            claimed.setdefault(int(graph.out_node[row]), set()).add(-1 - int(graph.out_slot[row]))
        writing = np.array([bool(row.writes) for row in self.effects] or [False], dtype=bool)
        nodes = np.flatnonzero(writing[graph.node_call]).tolist() if len(graph) else []
        for node in sorted({*claimed, *nodes}):
            expected = self.effects[graph.node_call[node]].writes
            slots = claimed.get(node, set())
            if expected is not None and expected != slots:
                raise CheckFailed(
                    f"{self._node(node)} writes {_arguments(expected)}, and the graph says {_arguments(slots)}"
                )
        for row in rows.tolist():
            self._check_written(
                int(graph.out_node[row]), int(graph.out_value[row]), -1 - int(graph.out_slot[row])
            )

    def _check_written(self, node: int, value: int, slot: int) -> None:
        """A new version lies in the memory of the argument that was written."""
        graph = self.graph
        if self.effects[graph.node_call[node]].moves:
            return
        span = range(*graph.input_span(node))
        given = [int(graph.in_value[row]) for row in span if graph.in_slot[row] == slot]
        if not given or graph.value_storage[given[0]] != graph.value_storage[value]:
            raise CheckFailed(
                f"{self._node(node)} makes {self._name(value)} by writing to tensor {slot}, but in other memory"
            )

    def _check_views(self) -> None:
        """What is returned in memory that was there before is a view: of an argument, by a node that is marked."""
        graph = self.graph
        storage = graph.value_storage[graph.out_value]
        older = (graph.out_slot >= 0) & (graph.storage_birth[storage] < graph.out_node)
        fresh = np.bincount(graph.out_node[~older], minlength=len(graph))
        arguments = {(int(n), int(s)) for n, s in zip(graph.in_node, graph.value_storage[graph.in_value])}
        for row in np.flatnonzero(older & (graph.node_flags[graph.out_node] & RECORDED == 0)).tolist():
            node = int(graph.out_node[row])
            if self._takes_object(node):  # a sparse tensor's indices, say
                continue
            if (node, int(storage[row])) not in arguments:
                raise CheckFailed(
                    f"{self._node(node)} returns {self._name(int(graph.out_value[row]))} in memory that was there "
                    "before and is none of its arguments'"
                )
        is_view = (fresh == 0) & (np.diff(graph.out_start) > 0) & (graph.node_flags & RECORDED == 0)
        for node in np.flatnonzero(is_view != (graph.node_flags & VIEW != 0)).tolist():
            word = "is" if is_view[node] else "is not"
            raise CheckFailed(f"{self._node(node)} {word} a view, and the graph says otherwise")

    def _takes_object(self, node: int) -> bool:
        """Whether an argument is a tensor without plain memory, whose parts may be views of anything."""
        graph = self.graph
        types = graph.value_type[graph.in_value[slice(*graph.input_span(node))]]
        return any(graph.types[row].layout != "strided" for row in types)

    # ---------------------------------------------------------------- arguments

    def check_arguments(self) -> None:
        """In memory that is written once, an argument is read exactly if the operator reads it."""
        graph = self.graph
        storage = graph.value_storage[graph.in_value]
        unread = self._unread_rows()
        reads = graph.in_kind != SHAPE
        for row in np.flatnonzero(reads & unread).tolist():
            raise CheckFailed(self._extra(int(graph.in_node[row]), self._read(row)))
        hidden = (graph.in_slot < 0) & ~self.written[storage]
        for row in np.flatnonzero(hidden).tolist():
            raise CheckFailed(self._extra(int(graph.in_node[row]), self._read(row)))
        plain = ~self.written[storage] & ~self.is_empty[graph.value_type[graph.in_value]]
        for row in np.flatnonzero(plain & ~unread & ~reads).tolist():
            raise CheckFailed(self._missing(int(graph.in_node[row]), int(graph.in_value[row])))
        for kinds, values in ((graph.in_kind, graph.in_value), (graph.result_kind, graph.result_value)):
            alone = (kinds == WHOLE) & (graph.value_carries[values] < 0)
            for row in np.flatnonzero(alone).tolist():
                name = self._name(int(values[row]))
                raise CheckFailed(f"{name} is read with all that it carries along, and carries nothing")

    def _unread_rows(self) -> Any:
        """Which rows are arguments that the operator takes no contents of."""
        graph = self.graph
        unread = np.zeros(len(graph.in_value), dtype=bool)
        some = np.array([bool(row.unread) for row in self.effects] or [False], dtype=bool)
        if not some.any() or not len(graph):
            return unread
        for row in np.flatnonzero(some[graph.node_call[graph.in_node]] & (graph.in_slot >= 0)).tolist():
            call = int(graph.node_call[graph.in_node[row]])
            unread[row] = int(graph.in_slot[row]) in self.effects[call].unread
        return unread

    def _read(self, row: int) -> Read:
        graph = self.graph
        return Read(int(graph.in_value[row]), int(graph.in_slot[row]), int(graph.in_kind[row]))

    # ---------------------------------------------------------------- buffers that are written again

    def check_buffers(self) -> None:
        """In memory that is written more than once, readers name exactly those who wrote what they read."""
        graph = self.graph
        partial = {int(value) for value in np.flatnonzero(graph.value_carries >= 0)}
        self.buffers: dict[int, _Buffer] = {}
        # values that are the one view that a node returns of such memory
        self.views: set[int] = set()
        touched = np.zeros(len(graph), dtype=bool)
        touched[graph.in_node[self.written[graph.value_storage[graph.in_value]]]] = True
        touched[graph.out_node[self.written[graph.value_storage[graph.out_value]]]] = True
        for node in np.flatnonzero(touched).tolist():
            self._reads_of(node)
            partial -= self._writes_of(node)
        for number, result in enumerate(graph.outcomes):
            rows = [
                Read(value, 0 if n == 0 else -1, kind) for n, (value, kind) in enumerate(result.sources())
            ]
            self._check_result(number, rows)
        if partial:
            value = min(partial)
            raise CheckFailed(f"{self._name(value)} carries an older version along, but is no partial write")

    def _reads_of(self, node: int) -> None:
        graph = self.graph
        unread = self.effects[graph.node_call[node]].unread
        rows = [self._read(row) for row in range(*graph.input_span(node))]
        by_storage: dict[int, list[Read]] = {}
        for read in rows:
            storage = int(graph.value_storage[read.value])
            if self.written[storage]:
                by_storage.setdefault(storage, []).append(read)
        for storage, reads in by_storage.items():
            views = self._views_of(node, storage)
            is_view = bool(graph.node_flags[node] & VIEW)
            if len(views) > 1 and is_view:
                # readers of each view name what they read: together the views may show more than any of them
                for read in reads:
                    if read.kind != SHAPE:
                        raise CheckFailed(self._extra(node, read))
                continue
            arguments = [read for read in reads if read.slot >= 0 and read.slot not in unread]
            regions = [] if views and is_view else [(read.slot, read.value) for read in arguments]
            if len(views) == 1:
                regions += [(read.slot, views[0]) for read in arguments]
                self.views.add(views[0])
            self._check_reads(node, storage, reads, regions)

    def _check_result(self, number: int, rows: list[Read]) -> None:
        graph = self.graph
        storage = int(graph.value_storage[rows[0].value])
        for read in rows:
            if graph.value_storage[read.value] != storage:
                raise CheckFailed(self._extra(-1 - number, read))
        if self.written[storage]:
            self._check_reads(-1 - number, storage, rows, [(0, rows[0].value)])
        elif len(rows) > 1:
            raise CheckFailed(self._extra(-1 - number, rows[1]))
        elif rows[0].kind == SHAPE and not self.is_empty[graph.value_type[rows[0].value]]:
            raise CheckFailed(self._missing(-1 - number, rows[0].value))

    def _views_of(self, node: int, storage: int) -> list[int]:
        """What a node returns in a block that was there before."""
        graph = self.graph
        if graph.storage_birth[storage] >= node:
            return []
        return [
            int(graph.out_value[row])
            for row in range(*graph.output_span(node))
            if graph.out_slot[row] >= 0 and graph.value_storage[graph.out_value[row]] == storage
        ]

    def _writes_of(self, node: int) -> set[int]:
        """Note the writes of a node; gives those that left part of their buffer as it was."""
        graph = self.graph
        partial = set()
        for row in range(*graph.output_span(node)):
            value = int(graph.out_value[row])
            if graph.out_slot[row] >= 0 or not self.written[graph.value_storage[value]]:
                continue
            buffer = self._buffer(int(graph.value_storage[value]))
            newest = buffer.newest
            carried = int(graph.value_carries[value])
            if buffer.write(value, self._area(value)):
                partial.add(value)
                if carried != newest:
                    what = "nothing" if carried < 0 else self._name(carried)
                    raise CheckFailed(
                        f"{self._node(node)} writes a part of {self._name(newest)}, and the graph says that it "
                        f"was laid over {what}"
                    )
        return partial

    def _check_reads(
        self, node: int, storage: int, reads: list[Read], regions: list[tuple[int, int]]
    ) -> None:
        """Compare what is named with who wrote what is read; ``regions`` has slots and the values that are read."""
        buffer = self._buffer(storage)
        takes = [read for read in reads if read.kind != SHAPE]
        views = [read for read in takes if read.value in self.views]
        named: dict[int, list[Read]] = {}
        for read in takes:
            for owner in self._covered(read, storage):
                named.setdefault(owner, []).append(read)
        not_taken = {(read.slot, read.value) for read in reads if read.kind == SHAPE}
        useful: set[Read] = set()
        for slot, value in regions:
            area = self._area(value)
            for owner in buffer.owners(area):
                covering = named.get(owner, [])
                # a view stands for what it showed when it was made
                for read in views:
                    shown = buffer.shown(self._area(read.value), area, owner)
                    if shown and owner > read.value:
                        raise CheckFailed(self._stale(node, read, owner))
                    if shown == "all":
                        covering = [*covering, read]
                in_chain = any(read.kind == WHOLE for read in covering)
                if not covering or ((slot, owner) in not_taken and not in_chain):
                    raise CheckFailed(self._missing(node, value, owner))
                useful.update(covering)
        for read in takes:
            if read not in useful and not self._is_tolerated(read, storage, regions):
                raise CheckFailed(self._extra(node, read))
            if read.kind == WHOLE:
                self._check_whole(node, read, storage, regions)

    def _covered(self, read: Read, storage: int) -> set[int]:
        """The owners whose bytes are named by a read of a value that is no view."""
        graph = self.graph
        covered = self._carried(read.value) if read.kind == WHOLE else {read.value}
        birth = graph.storage_birth[storage]
        if any(graph.value_producer[value] == birth for value in covered):
            # all that is from outside, or of the operation that made the block, goes by one name
            covered.add(self._buffer(storage).first_owner)
        return covered

    def _carried(self, value: int) -> set[int]:
        """A version and all that it carries along."""
        carried = {value}
        while (value := int(self.graph.value_carries[value])) >= 0:
            carried.add(value)
        return carried

    def _check_whole(self, node: int, read: Read, storage: int, regions: list[tuple[int, int]]) -> None:
        """All that a version carries along must be read, but for a first version that was made from nothing."""
        if self.approximate:
            return
        buffer = self._buffer(storage)
        owners = {owner for _, value in regions for owner in buffer.owners(self._area(value))}
        birth = self.graph.storage_birth[storage]
        for value in self._carried(read.value) - owners:
            # all that is from outside, or of the operation that made the block, goes by one name
            if self.graph.value_producer[value] == birth and buffer.first_owner in owners:
                continue
            if self.graph.value_carries[value] >= 0 or not self._is_inert(value):
                raise CheckFailed(
                    f"{self._node(node)} takes {self._name(read.value)} with all that it carries along, but reads "
                    f"nothing of {self._name(value)}"
                )

    def _is_inert(self, value: int) -> bool:
        """Whether a value was made from nothing but shapes."""
        graph = self.graph
        producer = int(graph.value_producer[value])
        return producer >= 0 and bool((graph.in_kind[slice(*graph.input_span(producer))] == SHAPE).all())

    def _is_tolerated(self, read: Read, storage: int, regions: list[tuple[int, int]]) -> bool:
        """Whether the recorder may name a version that later writes hide, because it could not rule it out."""
        if not self.approximate or read.value < self._buffer(storage).bottom:
            return False
        span = self._area(read.value).span
        others = (self._area(value).span for _, value in regions)
        return any(span.start < other.stop and other.start < span.stop for other in others)

    # ---------------------------------------------------------------- regions

    def _buffer(self, storage: int) -> _Buffer:
        buffer = self.buffers.get(storage)
        if buffer is None:
            values = self._values_on[storage]
            base = values[0]
            unit = 0
            for value in values:
                row = self.graph.types[self.graph.value_type[value]]
                unit = gcd(unit, _itemsize(row))
            size = int(self.graph.storage_bytes[storage])
            first_owner = OUTSIDE if self.graph.storage_birth[storage] < 0 else base
            buffer = self.buffers[storage] = _Buffer(base, first_owner, size, unit)
        return buffer

    @cached_property
    def _values_on(self) -> dict[int, list[int]]:
        """The values in each block that is written more than once, oldest first."""
        values: dict[int, list[int]] = {}
        for value in np.flatnonzero(self.written[self.graph.value_storage]).tolist():
            values.setdefault(int(self.graph.value_storage[value]), []).append(value)
        return values

    def _area(self, value: int) -> Area:
        graph = self.graph
        return area_of(graph.types[graph.value_type[value]], int(graph.value_offset[value]))

    # ---------------------------------------------------------------- words

    def _node(self, node: int) -> str:
        if node >= 0:
            return node_text(self.graph, node)
        row = self.graph.results[-1 - node]
        return f"{row.kind} {row.name!r}"

    def _name(self, value: int) -> str:
        name = self.graph.values[value].name
        return f"%{value} ({name})" if name else f"%{value}"

    def _maker(self, value: int) -> str:
        producer = -1 if value < 0 else int(self.graph.value_producer[value])
        return "the memory from outside" if producer < 0 else node_text(self.graph, producer)

    def _missing(self, node: int, value: int, owner: int | None = None) -> str:
        if owner is None:
            owner = value
        return (
            f"{self._node(node)} reads {self._name(value)}, but no edge names what it reads of it: "
            f"the bytes of {self._maker(owner)}"
        )

    def _stale(self, node: int, read: Read, owner: int) -> str:
        return (
            f"{self._node(node)} takes {self._name(read.value)} as it was when the view was made, but "
            f"{self._maker(owner)} has written to it since"
        )

    def _extra(self, node: int, read: Read) -> str:
        return f"{self._node(node)} has an edge from {self._name(read.value)}, but reads none of its bytes"


def _arguments(slots: Iterable[int]) -> str:
    return ", ".join(f"tensor {slot}" for slot in sorted(slots)) or "none of its tensors"


# ---------------------------------------------------------------- areas and owners


class Area(NamedTuple):
    """The bytes of a strided tensor: where it begins, and ``(step, count)`` per dimension, largest step first.

    The last dimension is the bytes of one element. Memory of another kind is one byte.
    """

    start: int
    dims: tuple[tuple[int, int], ...]

    @property
    def is_empty(self) -> bool:
        """Whether it has no bytes."""
        return any(count == 0 for _, count in self.dims)

    @property
    def span(self) -> range:
        """From its first byte to one past its last."""
        if self.is_empty:
            return range(self.start, self.start)
        return range(self.start, self.start + sum(step * (count - 1) for step, count in self.dims) + 1)

    def is_dense(self) -> bool:
        """Whether it has every byte of its span, as far as that is plain from its steps.

        >>> area_of(TensorType("float32", (2, 3), (1, 2)), 0).is_dense()
        True
        >>> area_of(TensorType("float32", (2, 3), (4, 1)), 0).is_dense()
        False
        """
        reach = 1
        for step, count in reversed(self.dims):
            if step != reach:
                return False
            reach *= count
        return True


def _itemsize(row: TensorType) -> int:
    return 1 if row.layout != "strided" else row.itemsize or 1


def area_of(row: TensorType, offset: int) -> Area:
    """The bytes of a tensor of a type at an offset."""
    if row.layout != "strided":
        return Area(0, ((1, 1),))
    size = _itemsize(row)
    steps = [(step * size, count) for step, count in zip(row.stride, row.shape) if count != 1 and step]
    if 0 in row.shape:
        steps = [(1, 0)]
    return Area(offset * size, (*sorted(steps, reverse=True), (1, size)))


class _Buffer:
    """A block of memory that is written more than once: who wrote its bytes, in units of the smallest element."""

    def __init__(self, base: int, first_owner: int, size: int, unit: int) -> None:
        self.newest = self.bottom = base
        self.first_owner = first_owner
        self.size = size
        self.unit = unit
        # the one owner of all of it, or an array with the owner of every unit
        self.sole: int | None = first_owner
        self.units: Any = None

    def write(self, value: int, area: Area) -> bool:
        """Note a write; whether it left part of the buffer as it was."""
        if area.is_empty:
            return False
        self.newest = value
        span = area.span
        if span.start == 0 and span.stop >= self.size and area.is_dense():
            self.sole, self.units, self.bottom = value, None, value
            self.size = span.stop
            return False
        if self.units is None:
            self.units = np.full(-(-max(self.size, span.stop) // self.unit), self.sole, dtype=np.int64)
            self.sole = None
        self._at(area)[...] = value
        return True

    def owners(self, area: Area) -> list[int]:
        """The values whose bytes an area holds."""
        if area.is_empty:
            return []
        if self.units is None:
            assert self.sole is not None
            return [self.sole]
        owners: list[int] = np.unique(self._at(area)).tolist()
        return owners

    def shown(self, view: Area, area: Area, owner: int) -> str:
        """How much of an owner's bytes in an area lies in a view: "all", "some", or "" for nothing."""
        if view == area:
            return "all"
        numbers = np.arange(-(-max(self.size, view.span.stop, area.span.stop) // self.unit))
        in_view = np.zeros(len(numbers), dtype=bool)
        self._view(in_view, view)[...] = True
        owned = self._view(numbers, area).reshape(-1)
        if self.units is not None:
            owned = owned[self.units[owned] == owner]
        return "all" if in_view[owned].all() else "some" if in_view[owned].any() else ""

    def _at(self, area: Area) -> Any:
        if area.span.stop > len(self.units) * self.unit:
            grown = np.full(-(-area.span.stop // self.unit), self.first_owner, dtype=np.int64)
            grown[: len(self.units)] = self.units
            self.units = grown
        return self._view(self.units, area)

    def _view(self, array: Any, area: Area) -> Any:
        unit = self.unit
        *dims, (_, size) = area.dims
        shape = [*(count for _, count in dims), size // unit]
        steps = [*(step // unit for step, _ in dims), 1]
        return np.lib.stride_tricks.as_strided(
            array[area.start // unit :],
            shape=shape,
            strides=[step * array.itemsize for step in steps],
        )
