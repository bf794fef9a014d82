"""The operation sequence: every step of a run as a plain dictionary, its tensors by lasting names."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from torch_vis.exporters.arguments import Signatures
from torch_vis.frontends.tensor_ids_steps import Level, Steps
from torch_vis.graph import Graph, Metrics, Slot
from torch_vis.graph.graph import Ints
from torch_vis.graph.schema import Flag, Phase, Role
from torch_vis.graph.template import Call, Special, short_name

Operation = dict[str, Any]
FIGURES = {  # what a figure is called here, and the column it is the sum of
    "time_ns": "time_ns",
    "memory_bytes": "alloc_bytes",
    "flops": "flops",
    "macs": "macs",
    "moved_bytes": "moved_bytes",
}
PHASES = [phase.name.lower() for phase in Phase]
ROLES = [role.name.lower() for role in Role]


class Ports(NamedTuple):
    """The tensors that go into steps or come out of them, those of one step on end."""

    starts: list[int]
    values: list[int]


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection: the containers made for each operation, none of them garbage, would set it off often."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@collector_paused()
def operation_sequence(graph: Graph, metrics: Metrics, level: Level) -> list[Operation]:
    """Every step of a run, in the order in which they began."""
    steps = Steps(graph, level)
    inputs, outputs = _ports(graph, steps)
    pairs, dtypes, roles = _values(graph, np.unique(np.array(inputs.values + outputs.values, dtype=np.int64)))
    parents, gradients = _parents(graph, steps), _gradients(steps)
    time, memory, flops, macs, moved = (_sums(metrics, column, steps) for column in FIGURES.values())
    arguments = _Arguments(graph, steps)
    operators = [call.op.partition(".")[0] for call in graph.calls]
    nodes, starts = steps.nodes.tolist(), steps.starts.tolist()
    calls = graph.node_call[steps.nodes].tolist()
    phases = graph.node_phase[steps.first].tolist()
    modules, sources = _modules(graph, steps), _sources(graph, steps)
    found: list[Operation] = []
    for step in range(steps.count):
        taken = inputs.values[inputs.starts[step] : inputs.starts[step + 1]]
        made = outputs.values[outputs.starts[step] : outputs.starts[step + 1]]
        span = slice(starts[step], starts[step + 1])
        found.append(
            {
                "id": step,
                "name": steps.names[step],
                "phase": PHASES[phases[step]],
                "inputs": [pairs[value] for value in taken],
                "outputs": [pairs[value] for value in made],
                "input_dtypes": [dtypes[value] for value in taken],
                "output_dtypes": [dtypes[value] for value in made],
                "input_roles": [roles[value] for value in taken],
                "parents": parents[step],
                "gradient_of": steps.gradient_of[step] if steps.gradient_of[step] >= 0 else None,
                "gradients": gradients[step],
                "module": modules[step],
                "source": sources[step],
                "arguments": arguments.of(step),
                "dispatched": [operators[call] for call in calls[span]],
                "nodes": nodes[span],
                "time_ns": time[step],
                "memory_bytes": memory[step],
                "flops": flops[step],
                "macs": macs[step],
                "moved_bytes": moved[step],
            }
        )
    return found


# ---------------------------------------------------------------- tensors


def _values(graph: Graph, shown: Ints) -> tuple[list[tuple[str, tuple[int, ...]]], list[str], list[str]]:
    """For each value the pair of name and shape, the element type and the role."""
    types = graph.value_type.tolist()
    shapes, dtypes = [row.shape for row in graph.types], [row.dtype for row in graph.types]
    names = _value_names(graph, shown)
    pairs = [(name, shapes[number]) for name, number in zip(names, types, strict=True)]
    roles = [ROLES[role] for role in graph.value_role.tolist()]
    return pairs, [dtypes[number] for number in types], roles


def _value_names(graph: Graph, shown: Ints) -> list[str]:
    """A name for each value: a tensor's own (its later versions numbered) or ``%`` and its number in the graph.

    What is not shown, an alias inside of a step, is not counted as a version.
    """
    names = [f"%{value}" for value in range(len(graph.value_type))]
    taken: set[str] = set()
    versions: dict[str, int] = {}
    for value in shown[graph.value_name[shown] >= 0].tolist():
        name = wanted = graph.names[int(graph.value_name[value])]
        if not wanted or wanted.startswith("%"):
            continue
        while name in taken:
            versions[wanted] = versions.get(wanted, 0) + 1
            name = f"{wanted}@{versions[wanted]}"
        taken.add(name)
        names[value] = name
    return names


def _ports(graph: Graph, steps: Steps) -> tuple[Ports, Ports]:
    """What goes into each step and what comes out of it.

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
    return inputs, Ports(_offsets(makes[out][order], steps.count), made[order].tolist())


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


def _distinct(step: Ints, value: Ints, time: Ints, rank: Ints, count: int) -> Ports:
    """The rows of each step, every value as often as the one operation that takes it most."""
    place = np.arange(len(step))
    order = np.lexsort((place, rank, time, value, step))
    keep = np.ones(len(order), dtype=bool)
    same = [np.diff(column[order]) == 0 for column in (step, value, time)]
    keep[1:] = ~(same[0] & same[1] & same[2])
    kept = order[keep]
    kept = kept[np.lexsort((place[kept], rank[kept], step[kept]))]
    return Ports(_offsets(step[kept], count), value[kept].tolist())


def _offsets(step: Ints, count: int) -> list[int]:
    found: list[int] = np.searchsorted(step, np.arange(count + 1)).tolist()
    return found


# ---------------------------------------------------------------- connections


def _parents(graph: Graph, steps: Steps) -> list[list[int]]:
    """The steps whose bytes each step reads."""
    source, target, _, _ = graph.edges(shape=False)
    found: list[list[int]] = [[] for _ in range(steps.count)]
    if not len(source):
        return found
    before, after = steps.of_node[source], steps.of_node[target]
    keys = np.unique((after * steps.count + before)[before != after])
    for step, parent in zip((keys // steps.count).tolist(), (keys % steps.count).tolist(), strict=True):
        found[step].append(parent)
    return found


def _gradients(steps: Steps) -> list[list[int]]:
    """The steps that are gradients of each step."""
    found: list[list[int]] = [[] for _ in range(steps.count)]
    for step, forward in enumerate(steps.gradient_of):
        if forward >= 0:
            found[forward].append(step)
    return found


# ---------------------------------------------------------------- facts


def _modules(graph: Graph, steps: Steps) -> list[str]:
    """The path of the module that each step ran in."""
    paths: list[str] = []
    of_module = [module.path if module.kind == "module" else None for module in graph.modules]
    for parent, module in zip(graph.scope_parent.tolist(), graph.scope_module.tolist(), strict=True):
        own = of_module[module]
        paths.append(own if own is not None else paths[parent] if parent >= 0 else "")
    return [paths[scope] for scope in graph.node_scope[steps.first].tolist()]


def _sources(graph: Graph, steps: Steps) -> list[str | None]:
    """The user's line of each step."""
    lines = [f"{site.file}:{site.line}" for site in graph.sites]
    return [lines[site] if site >= 0 else None for site in graph.node_site[steps.first].tolist()]


def _sums(metrics: Metrics, name: str, steps: Steps) -> list[Any]:
    """A column summed over each step; None where it does not exist or does not know one of the operations."""
    if name not in metrics or not steps.count:
        return [None] * steps.count
    column = metrics[name]
    sums: list[Any] = np.add.reduceat(column.values[steps.nodes], steps.starts[:-1]).tolist()
    if column.known is not None:
        known = np.logical_and.reduceat(column.known[steps.nodes], steps.starts[:-1])
        sums = [total if fact else None for total, fact in zip(sums, known.tolist(), strict=True)]
    return sums


class _Arguments:
    """The literal arguments of steps, each call's worked out once."""

    def __init__(self, graph: Graph, steps: Steps) -> None:
        signatures = Signatures()
        self._calls = [dict(_literals(signatures, call)) for call in graph.calls]
        self._names = [short_name(call.op) for call in graph.calls]
        self._call = graph.node_call[steps.nodes].tolist()
        bare = (np.diff(graph.in_start) == 0) | ((graph.node_flags & Flag.VIEW) != 0)
        self._aside = bare[steps.nodes].tolist()
        self._starts = steps.starts.tolist()

    def of(self, step: int) -> dict[str, Any]:
        """A step's arguments; those of views and of blank tensors on the way to its real work are left out."""
        rows = range(self._starts[step], self._starts[step + 1])
        if len(rows) == 1:
            return dict(self._calls[self._call[rows[0]]])
        real = [row for row in rows if not self._aside[row]] or rows
        found: dict[str, Any] = {}
        for row in real:
            call = self._call[row]
            for name, argument in self._calls[call].items():
                if name in found and found[name] != argument:
                    name = f"{self._names[call]}.{name}"
                found.setdefault(name, argument)
        return found


def _literals(signatures: Signatures, call: Call) -> Iterator[tuple[str, Any]]:
    for name, argument in signatures.arguments(call):
        plain = _plain(argument)
        if plain is not None:
            yield name, plain


def _plain(argument: Any) -> Any:
    """An argument as JSON data; None for a tensor or what is not given."""
    if isinstance(argument, Slot):
        return None
    if isinstance(argument, Special):
        return argument.text
    if type(argument) is tuple:
        if argument and all(isinstance(part, Slot) or part is None for part in argument):
            return None
        return [_plain(part) for part in argument]
    if isinstance(argument, complex) or (isinstance(argument, float) and not math.isfinite(argument)):
        return repr(argument)
    return argument
