"""The operation sequence: every step of a run as a plain dictionary, its tensors by lasting names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from torch_vis.graph import Graph, Metrics, Slot
from torch_vis.graph.call import Call, Special, short_name
from torch_vis.graph.schema import Flag, Phase
from torch_vis.interfaces.collector import collector_paused
from torch_vis.interfaces.tensor_ids.calls import Calls
from torch_vis.interfaces.tensor_ids.ports import Ports, makers, ports_of, values_of
from torch_vis.interfaces.tensor_ids.steps import Level, Steps
from torch_vis.ops.schemas import named_arguments

Operation = dict[str, Any]
FIGURES = {  # what a figure is called here, and the column it is the sum of
    "time_ns": "time_ns",
    "memory_bytes": "alloc_bytes",
    "flops": "flops",
    "macs": "macs",
    "moved_bytes": "moved_bytes",
}
PHASES = [phase.name.lower() for phase in Phase]


@collector_paused()
def operation_sequence(graph: Graph, metrics: Metrics, level: Level, calls: Calls) -> list[Operation]:
    """Every step of a run, in the order in which they began."""
    steps = Steps(graph, level)
    ports = ports_of(graph, steps, level, calls)
    pairs, dtypes, roles = values_of(graph, ports)
    parents, gradients = _parents(graph, steps, ports), _gradients(steps)
    time, memory, flops, macs, moved = (_sums(metrics, column, steps) for column in FIGURES.values())
    dispatched = _Arguments(graph, steps)
    operators = [call.op.partition(".")[0] for call in graph.calls]
    nodes, starts = steps.nodes.tolist(), steps.starts.tolist()
    op_calls = graph.node_call[steps.nodes].tolist()
    phases = graph.node_phase[steps.first].tolist()
    modules, sources = _modules(graph, steps), _sources(graph, steps)
    found: list[Operation] = []
    for step in range(steps.count):
        taken, made, side = ports.inputs[step], ports.outputs[step], ports.side[step]
        span = slice(starts[step], starts[step + 1])
        spelling = ports.spellings.get(step)
        found.append(
            {
                "id": step,
                "name": steps.names[step],
                "phase": PHASES[phases[step]],
                "inputs": [pairs[value] for value in taken],
                "outputs": [pairs[value] for value in made],
                "side_outputs": [pairs[value] for value in side],
                "input_dtypes": [dtypes[value] for value in taken],
                "output_dtypes": [dtypes[value] for value in made],
                "side_output_dtypes": [dtypes[value] for value in side],
                "input_roles": [roles[value] for value in taken],
                "parents": parents[step],
                "gradient_of": steps.gradient_of[step] if steps.gradient_of[step] >= 0 else None,
                "gradients": gradients[step],
                "module": modules[step],
                "source": sources[step],
                "arguments": dispatched.of(step) if spelling is None else calls.arguments(spelling),
                "dispatched": [operators[call] for call in op_calls[span]],
                "nodes": nodes[span],
                "time_ns": time[step],
                "memory_bytes": memory[step],
                "flops": flops[step],
                "macs": macs[step],
                "moved_bytes": moved[step],
            }
        )
    return found


# ---------------------------------------------------------------- connections


def _parents(graph: Graph, steps: Steps, ports: Ports) -> list[list[int]]:
    """The steps whose outputs each step takes, and those whose bytes it reads through an alias."""
    source, target, _, _ = graph.edges(shape=False)
    if not steps.count:
        return []
    before, after = steps.of_node[source], steps.of_node[target]
    lengths = [len(taken) for taken in ports.inputs]
    takes = np.repeat(np.arange(steps.count), lengths)
    made = makers(graph, steps, ports)[np.fromiter(itertools.chain.from_iterable(ports.inputs), np.int64)]
    after, before = np.concatenate([after, takes]), np.concatenate([before, made])
    found: list[list[int]] = [[] for _ in range(steps.count)]
    keys = np.unique((after * steps.count + before)[(before != after) & (before >= 0)])
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
    nearest = graph.tree.nearest(graph.tree.is_module)[graph.node_scope[steps.first]]
    return [graph.scope_paths[scope] if scope >= 0 else "" for scope in nearest.tolist()]


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
        self._calls = [dict(_literals(call)) for call in graph.calls]
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


def _literals(call: Call) -> Iterator[tuple[str, Any]]:
    for name, argument in named_arguments(call):
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
