"""Damaged graphs: random changes of every column that edges are made of, and which of them mean something else.

A mutant is judged by what it says, not by whether a check found it. It is equivalent to the graph that it was made from
if every operation that leads to a result is given the same bytes and depends on the same operations and memory from
outside, views looked through, and if every result is the same tensor and depends on the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

import torch_vis as tv
from tests.zoo import ZOO
from torch_vis import errors
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.replay.check import check
from torch_vis.replay.edge_proof import effects
from torch_vis.replay.replay import Replay, ReplayPlan, flat, replay_context, same_bits

SHAPE, WHOLE = int(Kind.SHAPE), int(Kind.WHOLE)
COMMUTATIVE = frozenset(
    "mul add maximum minimum eq ne logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor".split()
)
Columns = dict[str, Any]


class Mutant(NamedTuple):
    """A changed graph, and what was changed."""

    what: str
    graph: Graph


class Verdict(NamedTuple):
    """What became of a mutant: the error that found it, None if it passed; ``raw`` if that was not one of ours."""

    what: str
    equivalent: bool
    error: str | None
    raw: bool

    @property
    def found(self) -> bool:
        """Whether it was found as it should be."""
        return self.error is not None and not self.raw


# ---------------------------------------------------------------- of what

# small graphs of which every edge is deleted in turn: cases of the zoo, and a few that have what these lack
SMALL = (
    "mlp", "cache", "large_cache", "attention", "disjoint_view_writes", "overwritten_column", "strided_writes",
    "writes_buffer", "split_then_write", "overlapping_views", "set_storage", "reinterpreted_bytes",
    "copy_onto_itself", "complex_view_writes", "partly_no_grad", "tied_weights", "batch_norm_train", "dropout_train",
    "sgd_momentum_step", "indexed_writes",
)  # fmt: skip
# without contents, or with memory that is written where nobody can see it
UNPROVABLE = frozenset({"fake", "unseen"})


def _cache(x: torch.Tensor, rows: int) -> list[torch.Tensor]:
    """A buffer that is filled row by row, and read as a whole and in part."""
    buffer = torch.zeros(rows, len(x))
    for row in range(rows):
        buffer[row] = x * row
    return [buffer.sum(0), buffer[2:4] + 1]


def _attention(x: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(x @ x.transpose(-1, -2), -1).masked_fill(torch.eye(len(x), dtype=torch.bool), 0.0)
    return torch.where(weights > 2, x.sum(), weights) @ x


def run_of(name: str) -> tv.Trace:
    """The trace of a small graph or of a case of the zoo, forward and, where it has one, backward."""
    torch.manual_seed(0)
    if name == "mlp":
        layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        return tv.trace(layers, torch.rand(2, 3), backward=True)
    if name == "cache":
        return tv.trace(_cache, torch.rand(3), 10)
    if name == "large_cache":
        return tv.trace(_cache, torch.rand(500), 10)
    if name == "attention":
        return tv.trace(_attention, torch.rand(4, 3, requires_grad=True), backward=True)
    case = ZOO[name]
    model, args, kwargs = case.make()
    return tv.trace(model, *args, kwargs=kwargs, backward=case.backward)


# ---------------------------------------------------------------- making them


def _rows(graph: Graph, rows: Any, chance: random.Random) -> int | None:
    return chance.choice(rows) if len(rows) else None


def _other_kind(graph: Graph, chance: random.Random) -> Columns | None:
    row = _rows(graph, range(len(graph.in_kind)), chance)
    if row is None:
        return None
    kinds = graph.in_kind.copy()
    kinds[row] = chance.choice([int(kind) for kind in Kind if kind != kinds[row]])
    return {"in_kind": kinds}


def _other_value(graph: Graph, chance: random.Random) -> Columns | None:
    """Another value in an argument or a hidden read: of the same memory, of the same type, or any."""
    row = _rows(graph, range(len(graph.in_value)), chance)
    if row is None:
        return None
    value = _instead(graph, int(graph.in_value[row]), int(graph.in_node[row]), chance)
    return None if value is None else {"in_value": _set(graph.in_value, row, value)}


def _instead(graph: Graph, value: int, node: int, chance: random.Random) -> int | None:
    """A value that was there before a node ran, rather one that could be taken for the given one."""
    there = graph.value_producer < node
    there[value] = False
    groups = [
        there & (graph.value_storage == graph.value_storage[value]),
        there & (graph.value_type == graph.value_type[value]),
        there,
    ]
    chance.shuffle(groups)
    for group in groups:
        rows = np.flatnonzero(group)
        if len(rows):
            return int(chance.choice(rows))
    return None


def _swapped_slots(graph: Graph, chance: random.Random) -> Columns | None:
    several = np.flatnonzero(np.bincount(graph.in_node[graph.in_slot >= 0], minlength=len(graph)) > 1)
    node = _rows(graph, several, chance)
    if node is None:
        return None
    rows = [row for row in range(*graph.input_span(int(node))) if graph.in_slot[row] >= 0]
    first, second = chance.sample(rows, 2)
    slots = graph.in_slot.copy()
    slots[[first, second]] = slots[[second, first]]
    return {"in_slot": slots}


def _no_slot(graph: Graph, chance: random.Random) -> Columns | None:
    row = _rows(graph, range(len(graph.in_slot)), chance)
    if row is None:
        return None
    slot = int(graph.in_slot[row])
    return {"in_slot": _set(graph.in_slot, row, -1 if slot >= 0 else chance.randrange(3))}


def _hidden_dropped(graph: Graph, chance: random.Random) -> Columns | None:
    row = _rows(graph, np.flatnonzero(graph.in_slot < 0), chance)
    return None if row is None else dropped(graph, int(row))


def dropped(graph: Graph, row: int) -> Columns:
    """The columns of a graph without one row of what is read."""
    start = graph.in_start.copy()
    start[start > row] -= 1
    columns: Columns = {"in_start": start}
    for name in ("in_value", "in_slot", "in_kind"):
        columns[name] = np.delete(getattr(graph, name), row)
    return columns


def _hidden_added(graph: Graph, chance: random.Random) -> Columns | None:
    node = _rows(graph, range(len(graph)), chance)
    if node is None:
        return None
    _, stop = graph.input_span(node)
    taken = graph.in_value[slice(*graph.input_span(node))]
    like = int(chance.choice(taken)) if len(taken) else 0
    value = _instead(graph, like, node, chance)
    if value is None:
        return None
    start = graph.in_start.copy()
    start[node + 1 :] += 1
    return {
        "in_start": start,
        "in_value": np.insert(graph.in_value, stop, value),
        "in_slot": np.insert(graph.in_slot, stop, -1),
        "in_kind": np.insert(graph.in_kind, stop, chance.choice([Kind.DATA, Kind.WHOLE])),
    }


def _carries(graph: Graph, chance: random.Random) -> Columns | None:
    """Another version, or none, under a write; or one under what was no partial write."""
    carrying = np.flatnonzero(graph.value_carries >= 0)
    rows = carrying if len(carrying) and chance.random() < 0.8 else np.arange(len(graph.value_type))
    value = _rows(graph, rows, chance)
    if value is None:
        return None
    older = np.flatnonzero(graph.value_storage[:value] == graph.value_storage[value]).tolist()
    choices = [other for other in (-1, *older) if other != graph.value_carries[value]]
    if not choices:
        return None
    return {"value_carries": _set(graph.value_carries, value, chance.choice(choices))}


def _out_slots(graph: Graph, chance: random.Random) -> Columns | None:
    row = _rows(graph, range(len(graph.out_slot)), chance)
    if row is None:
        return None
    start, stop = graph.output_span(int(graph.out_node[row]))
    if stop - start > 1 and chance.random() < 0.6:
        first, second = chance.sample(range(start, stop), 2)
        slots = graph.out_slot.copy()
        slots[[first, second]] = slots[[second, first]]
        return {"out_slot": slots}
    slot = int(graph.out_slot[row])
    return {"out_slot": _set(graph.out_slot, row, chance.choice([s for s in range(-4, 4) if s != slot]))}


def _out_values(graph: Graph, chance: random.Random) -> Columns | None:
    if len(graph.out_value) < 2:
        return None
    first = chance.randrange(len(graph.out_value))
    start, stop = graph.output_span(int(graph.out_node[first]))
    rows = range(start, stop) if stop - start > 1 and chance.random() < 0.7 else range(len(graph.out_value))
    second = chance.choice([row for row in rows if row != first])
    values = graph.out_value.copy()
    values[[first, second]] = values[[second, first]]
    producers = graph.value_producer.copy()
    if chance.random() < 0.8:  # as whoever mixes them up would have it
        producers[values] = graph.out_node
    return {"out_value": values, "value_producer": producers}


def _producer(graph: Graph, chance: random.Random) -> Columns | None:
    value = _rows(graph, range(len(graph.value_producer)), chance)
    if value is None or not len(graph):
        return None
    return {"value_producer": _set(graph.value_producer, value, chance.randrange(-1, len(graph)))}


def _offset(graph: Graph, chance: random.Random) -> Columns | None:
    value = _rows(graph, range(len(graph.value_offset)), chance)
    if value is None:
        return None
    step = chance.choice([-2, -1, 1, 2, 64, 1 << 40])
    return {"value_offset": _set(graph.value_offset, value, int(graph.value_offset[value]) + step)}


def _type(graph: Graph, chance: random.Random) -> Columns | None:
    """Another geometry: of as many elements, or any."""
    value = _rows(graph, range(len(graph.value_type)), chance)
    if value is None or len(graph.types) < 2:
        return None
    own = int(graph.value_type[value])
    alike = [n for n, row in enumerate(graph.types) if n != own and row.numel == graph.types[own].numel]
    others = alike or [n for n in range(len(graph.types)) if n != own]
    return {"value_type": _set(graph.value_type, value, chance.choice(others))}


def _storage(graph: Graph, chance: random.Random) -> Columns | None:
    value = _rows(graph, range(len(graph.value_storage)), chance)
    if value is None or len(graph.storage_bytes) < 2:
        return None
    own = int(graph.value_storage[value])
    others = [n for n in range(len(graph.storage_bytes)) if n != own]
    alike = [n for n in others if graph.storage_bytes[n] == graph.storage_bytes[own]]
    return {"value_storage": _set(graph.value_storage, value, chance.choice(alike or others))}


def _birth(graph: Graph, chance: random.Random) -> Columns | None:
    storage = _rows(graph, range(len(graph.storage_birth)), chance)
    if storage is None or not len(graph):
        return None
    return {"storage_birth": _set(graph.storage_birth, storage, chance.randrange(-1, len(graph)))}


def _result_value(graph: Graph, chance: random.Random) -> Columns | None:
    row = _rows(graph, range(len(graph.result_value)), chance)
    if row is None:
        return None
    value = _instead(graph, int(graph.result_value[row]), len(graph), chance)
    return None if value is None else {"result_value": _set(graph.result_value, row, value)}


def _result_kind(graph: Graph, chance: random.Random) -> Columns | None:
    row = _rows(graph, range(len(graph.result_kind)), chance)
    if row is None:
        return None
    kind = chance.choice([int(kind) for kind in Kind if kind != graph.result_kind[row]])
    return {"result_kind": _set(graph.result_kind, row, kind)}


def _result_rows(graph: Graph, chance: random.Random) -> Columns | None:
    """A result that rests on one value more or less."""
    if not len(graph.results):
        return None
    result = chance.randrange(len(graph.results))
    first, stop = int(graph.result_start[result]), int(graph.result_start[result + 1])
    start = graph.result_start.copy()
    if stop - first > 1 and chance.random() < 0.5:
        row = chance.randrange(first + 1, stop)
        start[result + 1 :] -= 1
        values, kinds = np.delete(graph.result_value, row), np.delete(graph.result_kind, row)
    else:
        value = _instead(graph, int(graph.result_value[first]), len(graph), chance)
        if value is None:
            return None
        start[result + 1 :] += 1
        values = np.insert(graph.result_value, stop, value)
        kinds = np.insert(graph.result_kind, stop, chance.choice([Kind.DATA, Kind.WHOLE]))
    return {"result_start": start, "result_value": values, "result_kind": kinds}


def _spans(graph: Graph, chance: random.Random) -> Columns | None:
    """A row that belongs to the neighbour."""
    name = chance.choice(["in_start", "out_start", "result_start"])
    start = getattr(graph, name)
    if len(start) < 3:
        return None
    place = chance.randrange(1, len(start) - 1)
    return {name: _set(start, place, int(start[place]) + chance.choice([-1, 1]))}


def _set(column: Any, row: int, number: int) -> Any:
    changed = column.copy()
    changed[row] = number
    return changed


MUTATIONS: dict[str, Callable[[Graph, random.Random], Columns | None]] = {
    "in_kind": _other_kind,
    "in_value": _other_value,
    "in_slot swapped": _swapped_slots,
    "in_slot": _no_slot,
    "hidden read dropped": _hidden_dropped,
    "hidden read added": _hidden_added,
    "value_carries": _carries,
    "out_slot": _out_slots,
    "out_value": _out_values,
    "value_producer": _producer,
    "value_offset": _offset,
    "value_type": _type,
    "value_storage": _storage,
    "storage_birth": _birth,
    "result_value": _result_value,
    "result_kind": _result_kind,
    "result rows": _result_rows,
    "in_start, out_start, result_start": _spans,
}


def mutant(graph: Graph, chance: random.Random) -> Mutant:
    """A graph with one random change."""
    while True:
        what = chance.choice(list(MUTATIONS))
        columns = MUTATIONS[what](graph, chance)
        changes = [] if columns is None else _changes(graph, columns)
        if columns is not None and changes:
            return Mutant(f"{what}: {'; '.join(changes)}", graph.replaced(**columns))


def _changes(graph: Graph, columns: Columns) -> list[str]:
    """What was changed, in words."""
    words = []
    for name, column in columns.items():
        before = getattr(graph, name)
        if len(before) != len(column):
            words.append(f"{name} has {len(column)} rows, not {len(before)}")
        else:
            rows = np.flatnonzero(before != column)[:3].tolist()
            words += [f"{name}[{row}] is {column[row]}, not {before[row]}" for row in rows]
    return words


def deletions(graph: Graph) -> Iterator[Mutant]:
    """A graph with each of its edges taken away in turn."""
    for row in np.flatnonzero(graph.in_kind != SHAPE).tolist():
        node = graph.nodes[int(graph.in_node[row])]
        edge = f"%{graph.in_value[row]} of {node.format()}"
        if graph.in_slot[row] >= 0:
            columns: Columns = {"in_kind": _set(graph.in_kind, row, SHAPE)}
        else:
            columns = dropped(graph, row)
        yield Mutant(edge, graph.replaced(**columns))
    for value in np.flatnonzero(graph.value_carries >= 0).tolist():
        edge = f"what %{value} carries"
        yield Mutant(edge, graph.replaced(value_carries=_set(graph.value_carries, value, -1)))
    for row in np.flatnonzero(graph.result_kind != SHAPE).tolist():
        edge = f"%{graph.result_value[row]} of a result"
        yield Mutant(edge, graph.replaced(result_kind=_set(graph.result_kind, row, SHAPE)))


# ---------------------------------------------------------------- judging them


def judge(trace: tv.Trace, mutant: Mutant, **options: Any) -> Verdict:
    """Check a mutant of a trace, and say whether it means the same."""
    assert trace.kept is not None
    error: Exception | None = None
    try:
        check(mutant.graph, trace.kept, **options)
    except Exception as raised:
        error = raised
    text = None if error is None else f"{type(error).__name__}: {error}"
    raw = error is not None and not isinstance(error, errors.TorchVisError)
    return Verdict(mutant.what, is_equivalent(trace, mutant.graph), text, raw)


def is_equivalent(trace: tv.Trace, mutant: Graph) -> bool:
    """Whether a changed graph says the same of all that leads to a result."""
    graph = trace.graph
    try:
        mutant.check()
    except errors.GraphError:
        return False
    if any(np.diff(getattr(mutant, name)).tolist() != np.diff(getattr(graph, name)).tolist()
           for name in ("out_start",)):  # fmt: skip
        return False
    mutant = _restored(trace, mutant)
    live, taken = graph.ancestors([pair for row in graph.outcomes for pair in row.sources()])
    if _makes(graph, live, taken) != _makes(mutant, live, taken):
        return False
    ours, theirs = Sources(graph), Sources(mutant)
    for node in np.flatnonzero(live).tolist():
        if not graph.node_flags[node] & Flag.VIEW and ours.of_node(node) != theirs.of_node(node):
            return False
    if any(ours.of_result(n) != theirs.of_result(n) for n in range(len(graph.results))):
        return False
    return _same_bytes(trace, mutant, live)


def _restored(trace: tv.Trace, mutant: Graph) -> Graph:
    """The mutant with each value back that was exchanged for one of the same bytes: no number can tell them apart.

    Where an operator looks at the shape alone, the same shape is enough.
    """
    graph, kept = trace.graph, trace.kept
    assert kept is not None
    columns = {name: getattr(mutant, name).copy() for name in ("in_value", "result_value", "value_storage")}
    changed = {
        name: np.flatnonzero(getattr(graph, name) != column)
        for name, column in columns.items()
        if len(getattr(graph, name)) == len(column)
    }
    by_node: dict[int, list[int]] = {}
    for row in changed.get("in_value", ()):
        by_node.setdefault(int(graph.in_node[row]), []).append(int(row))
    if not any(len(rows) for rows in changed.values()):
        return mutant
    replay, states = Replay(graph, kept, ReplayPlan(graph, kept)), dict[int, Any]()
    for value in changed["value_storage"].tolist():
        if graph.value_producer[value] < 0 and _same(replay, mutant, value, value):
            columns["value_storage"][value] = graph.value_storage[value]
    with replay_context(replay.plan.generators):
        for node in range(len(graph)):
            for row in by_node.get(node, ()):
                ours, theirs = int(graph.in_value[row]), int(mutant.in_value[row])
                slot, unread = int(graph.in_slot[row]), effects(graph.nodes[node].call).unread
                alike = slot in unread and graph.value_type[ours] == mutant.value_type[theirs]
                if alike or _elsewhere(replay, mutant, ours, theirs):
                    columns["in_value"][row] = graph.in_value[row]
            replay.run_node(node, states)
        for row in changed.get("result_value", ()):
            if _elsewhere(replay, mutant, int(graph.result_value[row]), int(mutant.result_value[row])):
                columns["result_value"][row] = graph.result_value[row]
    return mutant.replaced(**columns)


def _elsewhere(replay: Replay, mutant: Graph, ours: int, theirs: int) -> bool:
    """Whether a value in other memory holds the same bytes; in the same memory it may be another version."""
    memory = replay.graph.value_storage[ours]
    return bool(memory != mutant.value_storage[theirs] and _same(replay, mutant, ours, theirs))


def _makes(graph: Graph, live: Any, taken: Any) -> set[tuple[int, ...]]:
    """Which value is which output of an operation that leads to a result, and the version that it was laid over."""
    return {
        (node, slot, value)
        for node, slot, value in zip(
            graph.out_node.tolist(), graph.out_slot.tolist(), graph.out_value.tolist()
        )
        if live[node] and taken[value]
    }


class Sources:
    """What operations and results depend on, views looked through: operations by number, memory from outside."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._views: dict[int, frozenset[int]] = {}

    def of_node(self, node: int) -> frozenset[int]:
        """What an operation depends on: numbers of operations, and of blocks from outside as -1 - number."""
        graph = self.graph
        span = slice(*graph.input_span(node))
        return self._of(zip(graph.in_value[span].tolist(), graph.in_kind[span].tolist()))

    def of_result(self, result: int) -> frozenset[int]:
        """What a result depends on."""
        return self._of(self.graph.outcomes[result].sources())

    def _of(self, reads: Any) -> frozenset[int]:
        sources: set[int] = set()
        for value, kind in reads:
            if kind == SHAPE:
                continue
            sources |= self._of_value(value)
            while kind == WHOLE and (value := int(self.graph.value_carries[value])) >= 0:
                sources |= self._of_value(value)
        return frozenset(sources)

    def _of_value(self, value: int) -> frozenset[int]:
        graph = self.graph
        producer = int(graph.value_producer[value])
        if producer < 0:
            return frozenset([-1 - int(graph.value_storage[value])])
        if not graph.node_flags[producer] & Flag.VIEW:
            return frozenset([producer])
        if producer not in self._views:
            self._views[producer] = self.of_node(producer)
        return self._views[producer]


def _same_bytes(trace: tv.Trace, mutant: Graph, live: Any) -> bool:
    """Whether the arguments of all operations that lead to a result, and the results, hold the same bytes."""
    graph, kept = trace.graph, trace.kept
    assert kept is not None
    plan = ReplayPlan(graph, kept)
    try:
        other = ReplayPlan(mutant, kept)
    except errors.TensorsMissing:
        return False
    replay, states = Replay(graph, kept, plan), dict[int, Any]()
    with replay_context(plan.generators):
        for node in range(len(graph)):
            ours, theirs = plan.arguments(node), other.arguments(node)
            if live[node] and not _same_arguments(replay, mutant, node, ours, theirs):
                return False
            replay.run_node(node, states)
        firsts = [(row.value.index, other.value.index) for row, other in zip(graph.outcomes, mutant.outcomes)]
        return all(_same(replay, mutant, ours, theirs) for ours, theirs in firsts)


def _same_arguments(replay: Replay, mutant: Graph, node: int, ours: list[int], theirs: list[int]) -> bool:
    if len(ours) != len(theirs):
        return False
    if all(_same(replay, mutant, a, b) for a, b in zip(ours, theirs)):
        return True
    row = replay.graph.nodes[node]
    commutes = row.name in COMMUTATIVE and len(ours) == 2 and not row.call.kwargs
    if commutes and all(_same(replay, mutant, a, b) for a, b in zip(ours, reversed(theirs))):
        return True
    return _gives_the_same(replay, mutant, node, ours, theirs)


def _gives_the_same(replay: Replay, mutant: Graph, node: int, ours: list[int], theirs: list[int]) -> bool:
    """Whether an operation gives the same bits for other views of the memory that it depends on anyway."""
    graph = replay.graph
    memory = [graph.value_storage[value] for value in ours]
    if memory != [mutant.value_storage[value] for value in theirs] or graph.node_flags[node] & Flag.RANDOM:
        return False
    given = [replay.tensor(value).clone() for value in ours]
    tensors = [_tensor(replay, mutant, value) for value in theirs]
    if any(tensor is None for tensor in tensors):
        return False
    others = [tensor.clone() for tensor in tensors if tensor is not None]
    try:
        results = [[*flat(replay.call(node, row)), *row] for row in (given, others)]
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    made = len(results[0]) - len(given)
    return len(results[0]) == len(results[1]) and all(same_bits(a, b) for a, b in list(zip(*results))[:made])


def _same(replay: Replay, mutant: Graph, ours: int, theirs: int) -> bool:
    """Whether a value of the mutant is now the same tensor as one of the graph, or holds the same bytes."""
    graph = replay.graph
    row, other = graph.types[graph.value_type[ours]], mutant.types[mutant.value_type[theirs]]
    place = (graph.value_storage[ours], graph.value_offset[ours], row)
    if place == (mutant.value_storage[theirs], mutant.value_offset[theirs], other):
        return True
    tensor = _tensor(replay, mutant, theirs)
    if tensor is None or row.layout != other.layout or row.shape != other.shape:
        return False
    return same_bits(replay.tensor(ours), tensor)


def _tensor(replay: Replay, mutant: Graph, value: int) -> torch.Tensor | None:
    """A value of the mutant on the memory of a replay of the right graph; None where that is not there."""
    row = mutant.types[mutant.value_type[value]]
    if row.layout != "strided":
        return replay.objects.get(int(mutant.value_storage[value]))
    block = replay.memory.get(int(mutant.value_storage[value]))
    dtype, reach = replay.plan.dtype_and_extent(int(mutant.value_type[value]))
    offset = int(mutant.value_offset[value])
    if block is None or block.nbytes() < (offset + reach) * dtype.itemsize:
        return None
    tensor = torch.empty(0, dtype=dtype).set_(block, offset, row.shape, row.stride)
    return torch._conj(tensor) if row.conj else tensor
