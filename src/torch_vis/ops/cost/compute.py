"""From a graph to its cost columns: each kind of call is worked out once, and spread over the nodes in bulk."""

from __future__ import annotations

import logging
from operator import index
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Call, Column, Graph, Slot, TensorType
from torch_vis.graph.schema import Flag, Kind
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.call_groups import classes
from torch_vis.ops.cost.registry import (
    UNKNOWN_BYTES,
    Cost,
    FormulaEntry,
    Operation,
    RepeatedType,
    formula_of,
    is_sized,
    touched,
)
from torch_vis.ops.cost.shared_reads import is_unread, read_bytes
from torch_vis.ops.cost.sparse import with_nested_sizes, with_sparse_sizes

LARGEST = 2**63 - 1
BY_TYPE = -2  # in a table of bytes: to be taken from the types
FILLED = "torch_vis::unseen_write"
UNSEEN = {  # what stands for code that no formula can be about
    FILLED: "something outside of torch may have filled the memory; what it took is not known",
    "torch_vis::compiled": "compiled code, which cannot be looked into",
}

log = logging.getLogger(__name__)


def costs(graph: Graph, stored: Column | None = None) -> dict[str, Column]:
    """The columns ``flops``, ``macs`` and ``moved_bytes``, one row per operation; the package docstring defines them.

    They follow from types and call templates alone, so they can be had of a loaded file, and without torch. A row is
    not known where no formula covers the operation. ``stored`` is the metric of that name: how many elements sparse
    and nested tensors have.

    >>> import torch, torch_vis as tv
    >>> graph = tv.trace(torch.nn.Linear(3, 2), torch.ones(4, 3)).graph
    >>> columns = costs(graph)
    >>> [node.name for node in graph.nodes], columns["flops"][:], columns["macs"][:]
    (['t', 'addmm'], [0, 56], [0, 24])
    """
    return _worked_out(graph, stored)[0]


def _worked_out(graph: Graph, stored: Column | None) -> tuple[dict[str, Column], dict[str, str]]:
    """The columns, and by operator how its formula failed."""
    values, types = with_nested_sizes(graph, *with_sparse_sizes(graph, stored), stored)
    read, in_type = _reads(graph, values, types)
    flops, macs = np.zeros(len(graph), dtype=np.int64), np.zeros(len(graph), dtype=np.int64)
    known = np.zeros(len(graph), dtype=np.bool_)
    moved, sized = _bytes_by_type(graph, read, _sizes(types)[values[graph.out_value]])
    views = (graph.node_flags & Flag.VIEW) != 0
    nothing = views | _fills_nothing(graph)
    known[nothing], sized[nothing], moved[nothing] = True, True, 0
    work = _Work(graph, in_type, values[graph.out_value], types)
    nodes = np.flatnonzero(~views & ((graph.node_flags & Flag.OPAQUE) == 0) & work.has_formula)
    if len(nodes):
        group, first = work.groups(nodes)
        costs_of_first = [work.cost_of(node) for node in first.tolist()]
        table = np.array([_row(cost) for cost in costs_of_first], dtype=np.int64).reshape(-1, 4)[group]
        flops[nodes], macs[nodes], known[nodes] = table[:, 0], table[:, 1], table[:, 3] != 0
        given = table[:, 2] != BY_TYPE
        moved[nodes[given]], sized[nodes[given]] = table[given, 2], table[given, 2] != UNKNOWN_BYTES
    columns = {
        "flops": Column("flops", flops, known=known),
        "macs": Column("macs", macs, known=known),
        "moved_bytes": Column("moved_bytes", np.where(known & sized, moved, 0), known=known & sized),
    }
    return columns, work.failed


def uncovered(graph: Graph, stored: Column | None = None) -> list[tuple[str, int]]:
    """The operators whose FLOPs are not known, each with the number of its calls, the most frequent first.

    >>> import torch, torch_vis as tv
    >>> uncovered(tv.trace(lambda a: a @ a, torch.eye(3).to_sparse()).graph)
    [('aten::mm', 1)]
    """
    return graph.operator_counts(costs(graph, stored)["flops"].unknown_rows)


def why_uncovered(graph: Graph, stored: Column | None = None) -> dict[str, str]:
    """For each operator whose FLOPs are not known, the most frequent first, why not.

    >>> import torch, torch_vis as tv
    >>> why_uncovered(tv.trace(lambda a: a @ a, torch.eye(3).to_sparse()).graph)
    {'aten::mm': 'its formula does not cover these arguments'}
    """
    columns, failed = _worked_out(graph, stored)
    reasons = {}
    for op, _ in graph.operator_counts(columns["flops"].unknown_rows):
        none = formula_of(op) is None
        open_ = UNSEEN.get(op, "no formula") if none else "its formula does not cover these arguments"
        reasons[op] = f"its formula failed: {failed[op]}" if op in failed else open_
    return reasons


def _row(cost: Cost | None) -> tuple[int, int, int, int]:
    """A cost as numbers: FLOPs, MACs, bytes or ``BY_TYPE``, and whether it is known at all."""
    if cost is None or max(cost.flops, cost.macs, cost.bytes or 0) > LARGEST:
        return 0, 0, UNKNOWN_BYTES, 0
    return cost.flops, cost.macs, BY_TYPE if cost.bytes is None else cost.bytes, 1


def _sizes(types: list[TensorType]) -> Ints:
    return np.array([-1 if (size := touched(type_)) is None else size for type_ in types], dtype=np.int64)


def _reads(graph: Graph, values: Ints, types: list[TensorType]) -> tuple[Ints, Ints]:
    """Of every input the bytes that are read for it, -1 where not known, and the number of its type.

    Bytes count for the first that has them. What has none left is of a ``RepeatedType``, added to the types.
    """
    number = values[graph.in_value]
    size = _sizes(types)[number]
    size[(graph.in_slot < 0) | ((graph.in_kind == Kind.SHAPE) & ~_read_by_another_name(graph))] = 0
    unread = is_unread(graph)
    size[unread] = 0
    rows = np.flatnonzero(size > 0)
    read = size.copy()
    read[rows] = read_bytes(graph, rows, size[rows], types, number[rows])
    gone = np.flatnonzero(unread | ((size > 0) & (read == 0)))
    kinds, new = np.unique(number[gone], return_inverse=True)
    number[gone] = len(types) + new.reshape(-1)
    types += [RepeatedType(*types[kind]) if is_sized(types[kind]) else types[kind] for kind in kinds.tolist()]
    return read, number


def _bytes_by_type(graph: Graph, read: Ints, out_bytes: Ints) -> tuple[Ints, Bools]:
    """What every node reads and writes going by its tensors' types, and where that is known."""
    write = np.where(_is_fresh(graph), out_bytes, 0)
    total, unknown = np.zeros(len(graph), dtype=np.int64), np.zeros(len(graph), dtype=np.int64)
    for cells, start in ((read, graph.in_start), (write, graph.out_start)):
        total += _sums(np.maximum(cells, 0), start)
        unknown += _sums((cells < 0).astype(np.int64), start)
    return total, unknown == 0


def _read_by_another_name(graph: Graph) -> Bools:
    """For each input, whether its bytes are those of a value below slot 0: an alias that was written to since."""
    # no argument, but the newest version of the memory that one lies in
    named = graph.in_slot < 0
    if not named.any():
        return named
    cell = graph.in_node * np.int64(len(graph.storage_bytes)) + graph.value_storage[graph.in_value]
    return ~named & np.isin(cell, cell[named & (graph.in_kind != Kind.SHAPE)])


def _is_fresh(graph: Graph) -> Bools:
    """For each output, whether its bytes were written: it is not an alias of something older."""
    producer = graph.out_node
    return (graph.out_slot < 0) | (graph.storage_birth[graph.value_storage[graph.out_value]] >= producer)


def _fills_nothing(graph: Graph) -> Bools:
    """The operations that stand for a write by code that was not seen, of memory without a byte: there was none."""
    fills = np.array([call.op == FILLED for call in graph.calls] or [False])[graph.node_call]
    if not fills.any():
        return fills
    out_bytes = graph.storage_bytes[graph.value_storage[graph.out_value]]
    return fills & (_sums(out_bytes, graph.out_start) == 0)


def _sums(cells: Ints, start: Ints) -> Ints:
    before = np.concatenate([[0], np.cumsum(cells)])
    return before[start[1:]] - before[start[:-1]]


class _Slots(NamedTuple):
    """The rows of one node's inputs or outputs, as plain lists."""

    slots: list[int]
    types: list[int]


class _Work:
    """The formulas of a graph's calls, and the types that each node calls them with."""

    def __init__(self, graph: Graph, in_type: Ints, out_type: Ints, types: list[TensorType]) -> None:
        self.graph = graph
        self.types = types
        self.entries: list[FormulaEntry | None] = _entries(graph.calls)
        has = np.array([entry is not None for entry in self.entries], dtype=np.bool_)
        self.has_formula = has[graph.node_call] if len(has) else np.zeros(len(graph), dtype=np.bool_)
        self.in_type, self.out_type = in_type, out_type
        self.is_sized = [is_sized(type_) for type_ in types]
        # by operator, with what its formula raised first
        self.failed: dict[str, str] = {}

    def groups(self, nodes: Ints) -> tuple[Ints, Ints]:
        """The class of each node, equal where call and types are, and the first node of each class."""
        graph, count = self.graph, len(self.types)
        named = graph.in_slot >= 0
        inputs = (graph.in_slot.astype(np.int64) * count + self.in_type, graph.in_start, named)
        slot = graph.out_slot.astype(np.int64)
        outputs = (
            np.where(slot >= 0, 2 * slot, -2 * slot - 1) * count + self.out_type,
            graph.out_start,
            None,
        )
        group = classes(nodes, graph.node_call, inputs, outputs)
        first = np.zeros(int(group.max()) + 1, dtype=np.int64)
        first[group[::-1]] = nodes[::-1]
        return group, first

    def cost_of(self, node: int) -> Cost | None:
        """The cost of one node by its formula; None where the formula does not cover it."""
        graph = self.graph
        call = graph.calls[int(graph.node_call[node])]
        entry = self.entries[int(graph.node_call[node])]
        assert entry is not None
        inputs = self._rows(graph.input_span(node), graph.in_slot, self.in_type)
        outputs = self._rows(graph.output_span(node), graph.out_slot, self.out_type)
        if not entry.any_layout and not all(self.is_sized[kind] for kind in (*inputs.types, *outputs.types)):
            return None
        op = _operation(call, inputs, outputs, self.types)
        try:
            return _checked(entry.formula(op))
        except Exception as error:  # the formula may be the user's; the rest still counts
            self.failed.setdefault(call.op, f"{type(error).__name__}: {error}")
            cause = call.op, _cause(error)
            # other shapes fail alike
            if cause not in entry.failed:
                entry.failed.add(cause)
                log.warning("the cost formula of %s failed on %s: %r", call.op, call.format(), error)
            return None

    def _rows(self, span: tuple[int, int], slots: Any, types: Ints) -> _Slots:
        part = slice(*span)
        return _Slots(slots[part].tolist(), types[part].tolist())


def _cause(error: Exception) -> str:
    """What tells one failure from another: the kind of error and the line, as messages have figures in them."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    where = "" if step is None else f" at {step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
    return f"{type(error).__name__}{where}"


def _checked(cost: Cost | None) -> Cost | None:
    """A cost in whole numbers, or the error that says that it is none."""
    if cost is None:
        return None
    if not isinstance(cost, tuple) or len(cost) != len(Cost._fields):
        raise TypeError(f"the formula returned {cost!r}; return op.count(...) or Cost(flops=...)")
    flops, macs, moved = cost
    checked = Cost(index(flops), index(macs), None if moved is None else index(moved))
    if min(checked.flops, checked.macs) < 0:
        raise ValueError(f"{cost} is negative")
    return checked


def _entries(calls: tuple[Call, ...]) -> list[FormulaEntry | None]:
    by_name: dict[str, FormulaEntry | None] = {}
    for call in calls:
        if call.op not in by_name:
            by_name[call.op] = formula_of(call.op)
    return [by_name[call.op] for call in calls]


def _operation(call: Call, inputs: _Slots, outputs: _Slots, types: list[TensorType]) -> Operation:
    """A call with its tensors' types in their places."""
    by_slot = {slot: types[kind] for slot, kind in zip(*inputs)}
    rows = sorted((slot, kind) for slot, kind in zip(*outputs))
    returned = tuple(types[kind] for slot, kind in rows if slot >= 0)
    written = tuple(types[kind] for slot, kind in reversed(rows) if slot < 0)
    args = tuple(_filled(arg, by_slot) for arg in call.args)
    kwargs = {name: _filled(arg, by_slot) for name, arg in call.kwargs}
    return Operation(call.op, args, kwargs, returned, written)


def _filled(item: Any, given: dict[int, TensorType]) -> Any:
    if type(item) is Slot:
        return given[item.number]
    if type(item) is tuple:
        return tuple(_filled(part, given) for part in item)
    return item
