"""The tensors that go into each step and come out of it, and the names that they go by."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np

from torch_vis.capture.recording.function_calls import OPENED
from torch_vis.graph import Graph
from torch_vis.graph.schema import Phase, Role
from torch_vis.graph.types import Ints
from torch_vis.interfaces.tensor_ids.calls import Calls, Noted
from torch_vis.interfaces.tensor_ids.steps import Level, Steps

ROLES = [role.name.lower() for role in Role]
Lists = list[list[int]]


class Assigned(NamedTuple):
    """A tensor after a part of it was assigned to: as a whole, it is no value of the graph's."""

    value: int  # what it was before
    step: int
    first: int  # the first value that the step made


class Ports(NamedTuple):
    """By step, the values that it takes, gives back, and makes besides; those of ``assigned`` follow the graph's."""

    inputs: Lists
    outputs: Lists
    side: Lists
    spellings: dict[int, int]
    assigned: list[Assigned]


def ports_of(graph: Graph, steps: Steps, level: Level, calls: Calls) -> Ports:
    """What each step takes and gives: what its call was given and gave back where that was noted."""
    inputs, outputs, read = _dispatched(graph, steps)
    ports = Ports(inputs, outputs, [[] for _ in range(steps.count)], {}, [])
    opened = [level == "leaf" and module.path in OPENED for module in graph.modules]
    scope_module, owners = graph.scope_module.tolist(), steps.owners.tolist()
    times = Counter(owners)
    making = makers(graph, steps, ports).tolist()
    newest: dict[int, int] = {}
    for step, owner in enumerate(owners):
        noted = calls.at(owner)
        if noted is None or times[owner] > 1 or opened[scope_module[owner]]:
            continue
        ports.spellings[step] = noted.spelling
        if steps.names[step] == "Tensor.__setitem__" and not noted.outputs and noted.inputs[0] >= 0:
            first = min(outputs[step], default=len(making))
            ports.assigned.append(Assigned(noted.inputs[0], step, first))
        given = _given(noted, inputs[step])
        if given is not None:
            inputs[step] = [newest.get(value, value) for value in given]
        back = _given_back(noted, making, step)
        if back is not None:
            own = set(back)
            ports.side[step] = [value for value in outputs[step] if value not in own and read[value]]
            outputs[step] = back
        if ports.assigned and ports.assigned[-1].step == step:
            newest[noted.inputs[0]] = len(making) + len(ports.assigned) - 1
            outputs[step] = [newest[noted.inputs[0]]]
    return ports


def _given(noted: Noted, dispatched: list[int]) -> list[int] | None:
    """The values that a call was given; None where one that its operations took is not among them."""
    if min(noted.inputs, default=0) >= 0:
        return noted.inputs
    known = [value for value in noted.inputs if value >= 0]
    return known if set(known) >= set(dispatched) else None


def _given_back(noted: Noted, making: list[int], step: int) -> list[int] | None:
    """The values that a call gave back and made; None where that is not known."""
    if not noted.outputs:
        return []
    own = [value for value in dict.fromkeys(noted.outputs) if value >= 0 and making[value] == step]
    return own if own and min(noted.outputs) >= 0 else None


def makers(graph: Graph, steps: Steps, ports: Ports) -> Ints:
    """The step that makes each value, -1 where none does."""
    producer = graph.value_producer
    made = np.where(producer >= 0, steps.of_node[producer], -1) if len(graph) else producer.astype(np.int64)
    assigned = np.array([row.step for row in ports.assigned], dtype=np.int64)
    return np.concatenate([made, assigned])


# ---------------------------------------------------------------- names


def values_of(graph: Graph, ports: Ports) -> tuple[list[tuple[str, tuple[int, ...]]], list[str], list[str]]:
    """For each value the pair of name and shape, the element type and the role."""
    before = [row.value for row in ports.assigned]
    types = graph.value_type.tolist() + graph.value_type[before].tolist()
    shapes, dtypes = [row.shape for row in graph.types], [row.dtype for row in graph.types]
    pairs = [(name, shapes[number]) for name, number in zip(_names(graph, ports), types, strict=True)]
    roles = [ROLES[role] for role in [*graph.value_role.tolist(), *graph.value_role[before].tolist()]]
    return pairs, [dtypes[number] for number in types], roles


def _names(graph: Graph, ports: Ports) -> list[str]:
    """A name for each value: a tensor's own (its later versions numbered) or ``%`` and its number in the graph.

    What is not shown, an alias inside of a step, is not counted as a version.
    """
    count = len(graph.value_type)
    names = [f"%{value}" for value in range(count)] + [f"%{row.value}" for row in ports.assigned]
    own = graph.value_name.tolist() + [int(graph.value_name[row.value]) for row in ports.assigned]
    rows = itertools.chain(ports.inputs, ports.outputs, ports.side)
    shown = np.unique(np.fromiter(itertools.chain.from_iterable(rows), np.int64))
    time = np.concatenate([np.arange(count), np.array([row.first for row in ports.assigned], np.int64)])
    order = shown[np.lexsort((-shown, time[shown]))]
    has_name = np.array(own, dtype=np.int64)[order] >= 0
    taken: set[str] = set()
    versions: dict[str, int] = {}
    for value in order[has_name | (order >= count)].tolist():
        name = wanted = graph.names[own[value]] if own[value] >= 0 else names[value]
        if value < count and (not wanted or wanted.startswith("%")):
            continue
        if value >= count and wanted.startswith("%"):
            taken.add(wanted)  # the number alone is the tensor before
        while name in taken:
            versions[wanted] = versions.get(wanted, 0) + 1
            name = f"{wanted}@{versions[wanted]}"
        taken.add(name)
        names[value] = name
    return names


# ---------------------------------------------------------------- by operations alone


def _dispatched(graph: Graph, steps: Steps) -> tuple[Lists, Lists, Ints]:
    """What goes into each step and what comes out of it by its operations alone, and which values others read.

    Into it: what its operations take and no operation of its own made; for a gradient first the gradients, then what
    was computed, then parameters and buffers, then what it depends on without naming it. Out of it: all that it made,
    but for what only itself read; first what others read of what it returns, then of what it writes, then what nobody
    reads, then what was only left for the gradient.
    """
    over = np.flatnonzero((graph.value_carries >= 0) & (graph.value_producer >= 0))
    reader = np.concatenate([graph.in_node, graph.value_producer[over]])
    value = np.concatenate([graph.in_value, graph.value_carries[over]])
    slot = np.concatenate([graph.in_slot, np.full(len(over), -1, dtype=np.int32)])
    step = steps.of_node[reader] if len(reader) else reader.astype(np.int64)
    producer = graph.value_producer[value]
    maker = np.where(producer >= 0, steps.of_node[producer], -1) if len(graph) else step
    held = np.isin(graph.value_role[value], (Role.PARAMETER, Role.BUFFER)) & (producer < 0)
    held &= graph.node_phase[reader] != Phase.OPTIMIZER  # there, they are what it is all about
    incoming = (graph.value_role[value] == Role.GRADIENT) & (graph.node_phase[reader] == Phase.BACKWARD)
    rank = np.select([slot < 0, held, ~incoming], [3, 2, 1], 0)
    time = np.where(slot < 0, 0, _times(reader, value))
    outer = np.flatnonzero(step != maker)
    inputs = _distinct(step[outer], value[outer], time[outer], rank[outer], steps.count)

    inside, outside, seen = (np.zeros(len(graph.value_type), dtype=bool) for _ in range(3))
    inside[value[step == maker]] = True
    outside[value[outer]] = True
    outside[graph.result_value] = seen[graph.result_value] = True
    seen[value[outer[graph.node_phase[reader[outer]] != Phase.BACKWARD]]] = True
    makes = np.repeat(steps.of_node, np.diff(graph.out_start))
    out = np.flatnonzero(outside[graph.out_value] | ~inside[graph.out_value])
    out = out[~_trifles(graph, out, outside, makes)]
    made = graph.out_value[out]
    ranks = np.select([~outside[made], ~seen[made], graph.out_slot[out] < 0], [2, 3, 1], 0)
    order = np.lexsort((np.arange(len(out)), ranks, makes[out]))
    outputs = _lists(makes[out][order], made[order], steps.count)
    return inputs, outputs, outside


def _trifles(graph: Graph, out: Ints, read: Ints, step: Ints) -> Ints:
    """Which outputs are tensors without elements that nobody reads, from a step that makes something else besides."""
    empty = np.array([row.numel == 0 for row in graph.types], dtype=bool)
    value = graph.out_value[out]
    trifle = ~read[value] & empty[graph.value_type[value]] if len(empty) else read[value]
    others = np.bincount(step[out][~trifle], minlength=len(graph) + 1)
    return trifle & (others[step[out]] > 0)


def _times(node: Ints, value: Ints) -> Ints:
    """For each row, how often its node has taken its value before: 1 for the second x of ``x * x``."""
    order = np.lexsort((np.arange(len(node)), value, node))
    place = np.arange(len(order))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(node[order]) != 0) | (np.diff(value[order]) != 0)
    times = np.empty(len(order), dtype=np.int64)
    times[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return times


def _distinct(step: Ints, value: Ints, time: Ints, rank: Ints, count: int) -> Lists:
    """The rows of each step, every value as often as the one operation that takes it most."""
    place = np.arange(len(step))
    order = np.lexsort((place, rank, time, value, step))
    keep = np.ones(len(order), dtype=bool)
    same = [np.diff(column[order]) == 0 for column in (step, value, time)]
    keep[1:] = ~(same[0] & same[1] & same[2])
    kept = order[keep]
    kept = kept[np.lexsort((place[kept], rank[kept], step[kept]))]
    return _lists(step[kept], value[kept], count)


def _lists(step: Ints, value: Ints, count: int) -> Lists:
    """Values sorted by step as one list for each step."""
    starts, values = np.searchsorted(step, np.arange(count + 1)).tolist(), value.tolist()
    return [values[start:end] for start, end in itertools.pairwise(starts)]
