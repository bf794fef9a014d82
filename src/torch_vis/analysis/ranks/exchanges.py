"""Each collective and message of a run, as a row: with whom, how many bytes, where from, how long it was waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torch_vis.graph.call import Call, Slot
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.run import Run
from torch_vis.graph.schema import RankGroup, TensorType
from torch_vis.graph.text import inert, shortened
from torch_vis.ops.collectives import (
    Collective,
    Traffic,
    collective,
    has_timed_waits,
    is_unseen_wait,
    reduction,
    root_of,
    traffic,
)

UNKNOWN_GROUP = "(unknown)"
MESSAGES = frozenset({"send", "recv"})
# of a path that stands in a sentence
PATH_LETTERS = 60


class Exchange(NamedTuple):
    """One collective or message of a run; None for what is not known."""

    node: int
    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send, recv, barrier."""
    axis: str
    """The group of ranks by its name: that of a mesh axis, where it is one."""
    members: tuple[int, ...]
    """The ranks of that group."""
    phase: str
    path: str
    line: str
    bytes: int | None
    """Those of the whole message."""
    sent_bytes: float | None
    """What this rank sends of it, as a ring of ranks would."""
    exposed_ns: int | None
    """How long the program did nothing else: it started the operation, or stood waiting for it."""
    waited_ns: int | None
    """Of that, how long it stood waiting; None where nobody was seen to wait."""
    start_ns: int | None
    """When the program started it, from the beginning of the run."""
    done_ns: int | None
    """When somebody had waited for it."""
    dtype: str
    """Of the numbers that are given or received; those of several tensors with a comma."""
    elements: int
    reduction: str | None
    """How numbers are added up."""
    peer: int | None
    """The rank that a message goes to or comes from, or that is the root of a collective."""
    tag: int
    number: int
    """Its place among those of its group; of messages, among those to or from the same rank with the same tag."""
    landed_ns: int | None = None
    """Where C++ code waited, unseen: the end of the longest time in which the rank ran no operation."""
    quiet_ns: int | None = None
    """How long that was: it waited then, or Python ran."""

    @property
    def span_ns(self) -> int | None:
        """From its start until it was waited for."""
        return None if self.done_ns is None or self.start_ns is None else self.done_ns - self.start_ns

    @property
    def is_message(self) -> bool:
        """Whether it is between two ranks alone."""
        return self.kind in MESSAGES

    @property
    def place(self) -> str:
        """Where it is in the program: the line, and the module."""
        where = self.line or "a place without a source line"
        return inert(f"{where} ({shortened(self.path, PATH_LETTERS)})" if self.path else where)


def exchanges_of(run: Run) -> list[Exchange]:
    """The collectives and messages of a run, in order.

    >>> import torch, torch_vis as tv
    >>> exchanges_of(tv.trace(torch.nn.ReLU(), torch.ones(2)))
    []
    """
    graph = run.graph
    if not len(graph.comm_node):
        return []
    groups = dict(enumerate(graph.groups))
    times = _Times(run)
    rows = []
    for number, index in enumerate(graph.comm_node.tolist()):
        node = Node(graph, index)
        row, group = collective(node.op), groups.get(int(graph.comm_group[number]))
        tensors = _Tensors(graph, node, row)
        amount = tensors.traffic(group)
        site, peer = node.site, int(graph.comm_peer[number])
        rows.append(
            Exchange(
                index,
                "other" if row is None else row.kind,
                UNKNOWN_GROUP if group is None else group.name,
                () if group is None else group.ranks,
                node.phase,
                node.path,
                "" if site is None else site.short,
                None if amount is None else amount.bytes,
                None if amount is None else amount.sent,
                times.exposed(number, index),
                times.waited.get(number),
                times.start(index),
                times.done.get(number),
                tensors.dtype,
                tensors.elements,
                reduction(node.call),
                peer if peer >= 0 else None,
                int(graph.comm_tag[number]),
                int(graph.comm_seq[number]),
                *times.unseen.get(number, (None, None)),
            )
        )
    return rows


def slots_of(call: Call, where: int | str | None) -> list[int]:
    """The slots of the tensors in an argument, by position or keyword.

    >>> slots_of(Call("c10d::allgather_", (((Slot(0), Slot(1)),), (Slot(2),)), ()), 0)
    [0, 1]
    """
    if isinstance(where, str):
        stack = [dict(call.kwargs).get(where)]
    else:
        stack = [] if where is None or where >= len(call.args) else [call.args[where]]
    slots = []
    while stack:
        item = stack.pop()
        if isinstance(item, Slot):
            slots.append(item.number)
        elif type(item) is tuple:
            stack.extend(item)
    return sorted(slots)


def splits_of(call: Call) -> tuple[int, ...]:
    """How many rows a call gives to each rank of its group; nothing where it gives as many to each.

    >>> splits_of(Call("_c10d_functional::all_to_all_single", (Slot(0), (2, 2), (1, 3), "dp"), ()))
    (1, 3)
    """
    row = collective(call.op)
    place = None if row is None else row.splits
    splits = call.args[place] if place is not None and place < len(call.args) else ()
    if not isinstance(splits, tuple):
        return ()
    return tuple(int(item) for item in splits if type(item) is int)


class _Times:
    """When the collectives of a run were waited for; nothing of runs without times, or whose waits are on a device."""

    def __init__(self, run: Run) -> None:
        graph, metrics = run.graph, run.metrics
        self.waited: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.unseen: dict[int, tuple[int, int]] = {}
        self._timed = has_timed_waits(run)
        if not self._timed:
            return
        self._time, self._start = metrics["time_ns"].values, metrics["start_ns"].values
        for node, comm in zip(graph.wait_node.tolist(), graph.wait_comm.tolist()):
            if is_unseen_wait(run, node):
                self._note_unseen(graph, node, comm)
                continue
            self.waited[comm] = self.waited.get(comm, 0) + int(self._time[node])
            end = int(self._start[node] + self._time[node])
            self.done[comm] = max(self.done.get(comm, 0), end)

    def _note_unseen(self, graph: Graph, node: int, comm: int) -> None:
        """The longest time without an operation, from the start of a collective until what it receives is read."""
        span = slice(int(graph.comm_node[comm]), node + 1)
        starts, ends = self._start[span], self._start[span] + self._time[span]
        gaps = starts[1:] - np.maximum.accumulate(ends)[:-1]
        longest = int(np.argmax(gaps))
        self.unseen[comm] = int(starts[longest + 1]), max(int(gaps[longest]), 0)

    def exposed(self, comm: int, node: int) -> int | None:
        return int(self._time[node]) + self.waited[comm] if comm in self.waited else None

    def start(self, node: int) -> int | None:
        return int(self._start[node]) if self._timed else None


class _Tensors:
    """What one call gives and fills, on this rank."""

    def __init__(self, graph: Graph, node: Node, row: Collective | None) -> None:
        self._graph, self._call, self._row = graph, node.call, row
        span = range(*graph.input_span(node.index))
        self._values = {int(graph.in_slot[item]): int(graph.in_value[item]) for item in span}
        self._given = slots_of(node.call, None if row is None else row.given)
        self._filled = slots_of(node.call, None if row is None else row.filled)

    def _bytes(self, slots: Sequence[int]) -> int | None:
        graph = self._graph
        sizes = [graph.types[graph.value_type[self._values[slot]]].nbytes for slot in slots]
        return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)

    @property
    def _types(self) -> list[TensorType]:
        graph = self._graph
        slots = self._given or self._filled
        return [graph.types[graph.value_type[self._values[slot]]] for slot in slots]

    @property
    def dtype(self) -> str:
        return ", ".join(sorted({row.dtype for row in self._types}))

    @property
    def elements(self) -> int:
        return sum(row.numel for row in self._types)

    def traffic(self, group: RankGroup | None) -> Traffic | None:
        """The bytes of the call."""
        row, call = self._row, self._call
        given, filled = self._bytes(self._given), self._bytes(self._filled)
        if row is None or group is None or given is None or filled is None:
            return None
        splits, kept = splits_of(call), None
        total = sum(splits)
        if 0 <= group.position < len(splits) and total:
            kept = given * splits[group.position] // total
        return traffic(
            row.kind,
            given,
            filled,
            len(group.ranks),
            position=group.position,
            root=root_of(row, call.args),
            kept=kept,
        )
