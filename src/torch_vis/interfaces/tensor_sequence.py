"""The operation sequence: a run as calls of public functions and their gradients, each as a plain dictionary."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from torch_vis.capture.recording.function_calls import OPENED
from torch_vis.capture.recording.user_functions import last_part
from torch_vis.graph import Graph, Metrics, Slot
from torch_vis.graph.call import Call, Special, short_name
from torch_vis.graph.schema import Flag, Phase, Role
from torch_vis.graph.types import Ints
from torch_vis.interfaces.collector import collector_paused
from torch_vis.interfaces.tensor_ids.calls import Calls, NotedCall
from torch_vis.ops.schemas import named_arguments

Level = Literal["leaf", "outermost"]
LEVELS = ("leaf", "outermost")


class OperationSteps:
    """The steps of a run, numbered in the order in which they began.

    A step depends only on steps with a smaller number. It is all that one call ran, in one piece; a call that goes on
    after something else has read its results and made what it reads next (a declared function with a training step in
    it, say) is one step before and one after.
    """

    def __init__(self, graph: Graph, level: Level) -> None:
        self.graph = graph
        self._owner = _owners(graph, level)
        self.of_node, is_gradient = self._gather()
        self.count = int(self.of_node.max()) + 1 if len(graph) else 0
        self.nodes = np.argsort(self.of_node, kind="stable")
        self.starts = np.searchsorted(self.of_node[self.nodes], np.arange(self.count + 1))
        self.first = self.nodes[self.starts[:-1]]
        link = graph.node_link[self.first]
        belongs = np.where(is_gradient[self.first], self.of_node[np.maximum(link, 0)], -1)
        self.gradient_of: list[int] = belongs.tolist()
        self.owners = np.where(is_gradient[self.first], -1, self._owner[graph.node_scope[self.first]])
        self.names = self._names()

    def _gather(self) -> tuple[Ints, Ints]:
        """The step of each node, and whether the node is the gradient of another."""
        graph, count = self.graph, len(self.graph)
        again = (graph.node_flags & Flag.RECOMPUTE) != 0
        is_gradient = (graph.node_phase == Phase.BACKWARD) & (graph.node_link >= 0) & ~again
        owner = self._owner[graph.node_scope]
        whole = owner.astype(np.int64) * len(Phase) + graph.node_phase
        label = np.where(owner >= 0, whole, len(self._owner) * len(Phase) + np.arange(count))
        label[is_gradient] = -1
        while (label < 0).any():  # gradients of operations, then gradients of those, and so on
            ready = np.flatnonzero((label < 0) & (label[graph.node_link] >= 0))
            target = label[graph.node_link[ready]]
            begins = np.ones(len(ready), dtype=bool)
            begins[1:] = (np.diff(ready) != 1) | (np.diff(target) != 0)
            label[ready] = label.max() + np.cumsum(begins)
        return _in_order(graph, _numbered(label)), is_gradient

    def _names(self) -> list[str]:
        graph = self.graph
        operators = [call.op.partition(".")[0] for call in graph.calls]
        calls, owners = (
            graph.node_call[self.first].tolist(),
            self._owner[graph.node_scope[self.first]].tolist(),
        )
        names: list[str] = []
        for call, owner, forward in zip(calls, owners, self.gradient_of, strict=True):
            if forward >= 0:
                names.append(f"gradient of {names[forward]}")
            elif owner >= 0:
                names.append(graph.modules[int(graph.scope_module[owner])].path)
            else:
                names.append(operators[call])
        return names


def _owners(graph: Graph, level: Level) -> Ints:
    """For each scope, the scope of the call that it is part of; -1 where it is in none.

    The type of a function is the last part of its path; that of the body of a traced graph is not, and it is no step.
    """
    shown = [module.kind == "function" and module.type == last_part(module.path) for module in graph.modules]
    opened = [level == "leaf" and module.path in OPENED for module in graph.modules]
    modules = graph.scope_module.tolist()
    owners: list[int] = []
    for scope, (parent, module) in enumerate(zip(graph.scope_parent.tolist(), modules, strict=True)):
        above = owners[parent] if parent >= 0 else -1
        inside = above >= 0 and not opened[modules[above]]
        owners.append(scope if shown[module] and not inside else above)
    return np.array(owners, dtype=np.int64)


def _numbered(label: Ints) -> Ints:
    """Labels as numbers in the order of first appearance."""
    if not len(label):
        return np.zeros(0, dtype=np.int64)
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _in_order(graph: Graph, step: Ints) -> Ints:
    """The same steps, those cut into pieces that would otherwise read what is made after they began."""
    source, target, _, _ = graph.edges()
    while True:
        wrong = step[source] > step[target]
        if not wrong.any():
            return step
        cut = np.zeros(int(step.max()) + 1, dtype=bool)
        cut[step[source[wrong]]] = cut[step[target[wrong]]] = True
        order = np.argsort(step, kind="stable")
        sorted_step = step[order]
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (np.diff(sorted_step) != 0) | (cut[sorted_step[1:]] & (np.diff(order) != 1))
        label: Any = np.empty(len(order), dtype=np.int64)
        label[order] = np.cumsum(begins)
        step = _numbered(label)


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


def ports_of(graph: Graph, steps: OperationSteps, level: Level, calls: Calls) -> Ports:
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


def _given(noted: NotedCall, dispatched: list[int]) -> list[int] | None:
    """The values that a call was given; None where one that its operations took is not among them."""
    if min(noted.inputs, default=0) >= 0:
        return noted.inputs
    known = [value for value in noted.inputs if value >= 0]
    return known if set(known) >= set(dispatched) else None


def _given_back(noted: NotedCall, making: list[int], step: int) -> list[int] | None:
    """The values that a call gave back and made; None where that is not known."""
    if not noted.outputs:
        return []
    own = [value for value in dict.fromkeys(noted.outputs) if value >= 0 and making[value] == step]
    return own if own and min(noted.outputs) >= 0 else None


def makers(graph: Graph, steps: OperationSteps, ports: Ports) -> Ints:
    """The step that makes each value, -1 where none does."""
    producer = graph.value_producer
    made_in = (
        np.where(producer >= 0, steps.of_node[producer], -1) if len(graph) else producer.astype(np.int64)
    )
    assigned = np.array([row.step for row in ports.assigned], dtype=np.int64)
    return np.concatenate([made_in, assigned])


# ---------------------------------------------------------------- names


def values_of(graph: Graph, ports: Ports) -> tuple[list[tuple[str, tuple[int, ...]]], list[str], list[str]]:
    """For each value the pair of name and shape, the element type and the role."""
    before = [row.value for row in ports.assigned]
    types = graph.value_type.tolist() + graph.value_type[before].tolist()
    shapes, dtypes = [row.shape for row in graph.types], [row.dtype for row in graph.types]
    pairs = [(name, shapes[number]) for name, number in zip(_value_names(graph, ports), types, strict=True)]
    roles = [ROLES[role] for role in [*graph.value_role.tolist(), *graph.value_role[before].tolist()]]
    return pairs, [dtypes[number] for number in types], roles


def _value_names(graph: Graph, ports: Ports) -> list[str]:
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


def _dispatched(graph: Graph, steps: OperationSteps) -> tuple[Lists, Lists, Ints]:
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
    values = graph.out_value[out]
    ranks = np.select([~outside[values], ~seen[values], graph.out_slot[out] < 0], [2, 3, 1], 0)
    order = np.lexsort((np.arange(len(out)), ranks, makes[out]))
    outputs = _lists(makes[out][order], values[order], steps.count)
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
    position = np.arange(len(order))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(node[order]) != 0) | (np.diff(value[order]) != 0)
    times = np.empty(len(order), dtype=np.int64)
    times[order] = position - np.maximum.accumulate(np.where(begins, position, 0))
    return times


def _distinct(step: Ints, value: Ints, time: Ints, rank: Ints, count: int) -> Lists:
    """The rows of each step, every value as often as the one operation that takes it most."""
    position = np.arange(len(step))
    order = np.lexsort((position, rank, time, value, step))
    keep = np.ones(len(order), dtype=bool)
    same = [np.diff(column[order]) == 0 for column in (step, value, time)]
    keep[1:] = ~(same[0] & same[1] & same[2])
    kept = order[keep]
    kept = kept[np.lexsort((position[kept], rank[kept], step[kept]))]
    return _lists(step[kept], value[kept], count)


def _lists(step: Ints, value: Ints, count: int) -> Lists:
    """Values sorted by step as one list for each step."""
    starts, values = np.searchsorted(step, np.arange(count + 1)).tolist(), value.tolist()
    return [values[start:end] for start, end in itertools.pairwise(starts)]


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
    steps = OperationSteps(graph, level)
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
    operations: list[Operation] = []
    for step in range(steps.count):
        inputs, outputs, side_outputs = ports.inputs[step], ports.outputs[step], ports.side[step]
        span = slice(starts[step], starts[step + 1])
        spelling = ports.spellings.get(step)
        operations.append(
            {
                "id": step,
                "name": steps.names[step],
                "phase": PHASES[phases[step]],
                "inputs": [pairs[value] for value in inputs],
                "outputs": [pairs[value] for value in outputs],
                "side_outputs": [pairs[value] for value in side_outputs],
                "input_dtypes": [dtypes[value] for value in inputs],
                "output_dtypes": [dtypes[value] for value in outputs],
                "side_output_dtypes": [dtypes[value] for value in side_outputs],
                "input_roles": [roles[value] for value in inputs],
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
    return operations


# ---------------------------------------------------------------- connections


def _parents(graph: Graph, steps: OperationSteps, ports: Ports) -> list[list[int]]:
    """The steps whose outputs each step takes, and those whose bytes it reads through an alias."""
    source, target, _, _ = graph.edges(shape=False)
    if not steps.count:
        return []
    before, after = steps.of_node[source], steps.of_node[target]
    lengths = [len(taken) for taken in ports.inputs]
    takes = np.repeat(np.arange(steps.count), lengths)
    taken_from = makers(graph, steps, ports)[
        np.fromiter(itertools.chain.from_iterable(ports.inputs), np.int64)
    ]
    after, before = np.concatenate([after, takes]), np.concatenate([before, taken_from])
    parents: list[list[int]] = [[] for _ in range(steps.count)]
    keys = np.unique((after * steps.count + before)[(before != after) & (before >= 0)])
    for step, parent in zip((keys // steps.count).tolist(), (keys % steps.count).tolist(), strict=True):
        parents[step].append(parent)
    return parents


def _gradients(steps: OperationSteps) -> list[list[int]]:
    """The steps that are gradients of each step."""
    gradients: list[list[int]] = [[] for _ in range(steps.count)]
    for step, forward in enumerate(steps.gradient_of):
        if forward >= 0:
            gradients[forward].append(step)
    return gradients


# ---------------------------------------------------------------- facts


def _modules(graph: Graph, steps: OperationSteps) -> list[str]:
    """The path of the module that each step ran in."""
    nearest = graph.tree.nearest(graph.tree.is_module)[graph.node_scope[steps.first]]
    return [graph.scope_paths[scope] if scope >= 0 else "" for scope in nearest.tolist()]


def _sources(graph: Graph, steps: OperationSteps) -> list[str | None]:
    """The user's line of each step."""
    lines = [f"{site.file}:{site.line}" for site in graph.sites]
    return [lines[site] if site >= 0 else None for site in graph.node_site[steps.first].tolist()]


def _sums(metrics: Metrics, name: str, steps: OperationSteps) -> list[Any]:
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

    def __init__(self, graph: Graph, steps: OperationSteps) -> None:
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
        arguments: dict[str, Any] = {}
        for row in real:
            call = self._call[row]
            for name, argument in self._calls[call].items():
                if name in arguments and arguments[name] != argument:
                    name = f"{self._names[call]}.{name}"
                arguments.setdefault(name, argument)
        return arguments


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
