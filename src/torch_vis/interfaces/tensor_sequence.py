"""The operation sequence: a run as calls of public functions and their gradients, each as a plain dictionary."""

from __future__ import annotations

import inspect
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from torch_vis._trace import Trace
from torch_vis.capture.recording.function_calls import OPENED, TENSOR, UNKNOWN
from torch_vis.capture.recording.user_functions import last_part
from torch_vis.capture.undo import without_collector
from torch_vis.graph import Graph, Metrics, Slot
from torch_vis.graph.call import Call, Special, short_name
from torch_vis.graph.schema import Flag, Phase, Role
from torch_vis.graph.tree import group_rows
from torch_vis.graph.types import Ints
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
        self.nodes, self.starts = group_rows(self.of_node, self.count)
        self.first = self.nodes[self.starts[:-1]]
        link = graph.node_link[self.first]
        belongs = np.where(is_gradient[self.first], self.of_node[np.maximum(link, 0)], -1)
        self.gradient_of: list[int] = belongs.tolist()
        self.owners = np.where(is_gradient[self.first], -1, self._owner[graph.node_scope[self.first]])
        self.names = self._names()

    def _gather(self) -> tuple[Ints, Ints]:
        """The step of each node, and whether the node is the gradient of another."""
        graph, count = self.graph, len(self.graph)
        recomputed = (graph.node_flags & Flag.RECOMPUTE) != 0
        is_gradient = (graph.node_phase == Phase.BACKWARD) & (graph.node_link >= 0) & ~recomputed
        owner = self._owner[graph.node_scope]
        whole = owner.astype(np.int64) * len(Phase) + graph.node_phase
        label = np.where(owner >= 0, whole, len(self._owner) * len(Phase) + np.arange(count))
        label[is_gradient] = -1
        # gradients of operations, then gradients of those, and so on
        while (label < 0).any():
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


class AssignedTensor(NamedTuple):
    """A tensor after a part of it was assigned to: as a whole, it is no value of the graph's."""

    value: int  # what it was before
    step: int
    first: int  # the first value that the step made


class Ports(NamedTuple):
    """By step, the values that it takes, returns, and makes besides; those of ``assigned`` follow the graph's."""

    inputs: Lists
    outputs: Lists
    side: Lists
    spellings: dict[int, int]
    assigned: list[AssignedTensor]


def ports_of(graph: Graph, steps: OperationSteps, level: Level, calls: Calls) -> Ports:
    """What each step takes and returns: its call's arguments and results where those were noted."""
    inputs, outputs, read = _dispatched(graph, steps)
    ports = Ports(inputs, outputs, [[] for _ in range(steps.count)], {}, [])
    opened = [level == "leaf" and module.path in OPENED for module in graph.modules]
    scope_module, owners = graph.scope_module.tolist(), steps.owners.tolist()
    times = Counter(owners)
    making = producing_steps(graph, steps, ports).tolist()
    newest: dict[int, int] = {}
    for step, owner in enumerate(owners):
        noted = calls.at(owner)
        if noted is None or times[owner] > 1 or opened[scope_module[owner]]:
            continue
        ports.spellings[step] = noted.spelling
        if steps.names[step] == "Tensor.__setitem__" and not noted.outputs and noted.inputs[0] >= 0:
            first = min(outputs[step], default=len(making))
            ports.assigned.append(AssignedTensor(noted.inputs[0], step, first))
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
    """The values that a call was given; None if its operations read others besides."""
    if min(noted.inputs, default=0) >= 0:
        return noted.inputs
    known = [value for value in noted.inputs if value >= 0]
    return known if set(known) >= set(dispatched) else None


def _given_back(noted: NotedCall, making: list[int], step: int) -> list[int] | None:
    """The values that a call returned and made; None where that is unknown."""
    if not noted.outputs:
        return []
    own = [value for value in dict.fromkeys(noted.outputs) if value >= 0 and making[value] == step]
    return own if own and min(noted.outputs) >= 0 else None


def producing_steps(graph: Graph, steps: OperationSteps, ports: Ports) -> Ints:
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
            # the number alone is the tensor before
            taken.add(wanted)
        while name in taken:
            versions[wanted] = versions.get(wanted, 0) + 1
            name = f"{wanted}@{versions[wanted]}"
        taken.add(name)
        names[value] = name
    return names


# ---------------------------------------------------------------- by operations alone


def _dispatched(graph: Graph, steps: OperationSteps) -> tuple[Lists, Lists, Ints]:
    """The inputs and outputs of each step by its operations alone, and which values other steps read.

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
    making = np.where(producer >= 0, steps.of_node[producer], -1) if len(graph) else step
    held = np.isin(graph.value_role[value], (Role.PARAMETER, Role.BUFFER)) & (producer < 0)
    # there, they are what it is all about
    held &= graph.node_phase[reader] != Phase.OPTIMIZER
    incoming = (graph.value_role[value] == Role.GRADIENT) & (graph.node_phase[reader] == Phase.BACKWARD)
    rank = np.select([slot < 0, held, ~incoming], [3, 2, 1], 0)
    time = np.where(slot < 0, 0, _times(reader, value))
    outer = np.flatnonzero(step != making)
    inputs = _distinct(step[outer], value[outer], time[outer], rank[outer], steps.count)

    inside, outside, seen = (np.zeros(len(graph.value_type), dtype=bool) for _ in range(3))
    inside[value[step == making]] = True
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


@without_collector
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
    taken_from = producing_steps(graph, steps, ports)[
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


NOWHERE = -1  # a tensor that is not in the graph
TYPES = {  # by the kind of a literal, what the types of parameters that take it have in them
    "int": ("int", "number", "float"),
    "bool": ("bool", "number"),
    "float": ("float", "number"),
    "str": ("str", "Device"),
    "dtype": ("int",),
    "layout": ("int",),
    "memory_format": ("int",),
    "device": ("Device",),
    "object": ("number", "int", "Generator"),
}
INDEXING = frozenset({"__getitem__", "__setitem__"})
Spelling = tuple[str, Any, Any, Any]  # name, function, positional and keyword arguments


class NotedCall(NamedTuple):
    """One call: the values in its arguments and in its result, and where its arguments are spelled."""

    inputs: list[int]
    outputs: list[int]
    spelling: int


class Calls:
    """The calls of a recording by scope, in the numbers of the graph."""

    def __init__(self, trace: Trace) -> None:
        self._graph = trace.graph
        self._calls: dict[int, NotedCall] = {}
        self._spellings: list[Spelling] = []
        self._arguments: dict[int, dict[str, Any]] = {}
        # only what was just recorded has notes; files do not
        capture: Any = getattr(trace, "capture", None)
        if capture is None or capture.recorder.function_mode is None or not hasattr(capture, "numbers"):
            return
        recorder = capture.recorder
        modules = recorder.modules
        for module, args, kwargs in recorder.function_mode.spellings:
            self._spellings.append((modules[module][1], modules[module][0], args, kwargs))
        values = _in_graph(recorder.values, capture.numbers, trace.graph)
        self._read(recorder.function_mode.notes.tolist(), values)

    def at(self, scope: int) -> NotedCall | None:
        """The call that a scope is of."""
        return self._calls.get(scope)

    def arguments(self, spelling: int) -> dict[str, Any]:
        """The literals among a call's arguments."""
        arguments = self._arguments.get(spelling)
        if arguments is None:
            arguments = self._arguments[spelling] = literals(*self._spellings[spelling])
        return dict(arguments)

    def _read(self, notes: list[int], values: list[int]) -> None:
        position, count = 0, len(notes)
        while position < count:
            scope, spelling, given, returned = notes[position : position + 4]
            position += 4 + given + returned
            numbers = notes[position - given - returned : position - returned]
            outputs = [values[n] if n >= 0 else NOWHERE for n in notes[position - returned : position]]
            if given and min(numbers) < 0:
                late = [values[-2 - n] for n in numbers if n < UNKNOWN]
                inputs = [self._before(n, values) for n in numbers]
                # of tensors first seen in the call, those that it wrote
                if not returned:
                    outputs = [
                        value for value in late if value >= 0 and self._graph.value_producer[value] >= 0
                    ]
            else:
                inputs = [values[n] for n in numbers]
            self._calls[scope] = NotedCall(inputs, outputs, spelling)

    def _before(self, number: int, values: list[int]) -> int:
        """What a tensor was before the call: if it was first seen in it, the version that no operation has made."""
        if number >= UNKNOWN:
            return values[number] if number >= 0 else NOWHERE
        graph, value = self._graph, values[-2 - number]
        while value >= 0 and (node := int(graph.value_producer[value])) >= 0:
            outputs = slice(int(graph.out_start[node]), int(graph.out_start[node + 1]))
            slot = int(graph.out_slot[outputs][graph.out_value[outputs] == value][0])
            if slot >= 0:
                return NOWHERE
            inputs = slice(int(graph.in_start[node]), int(graph.in_start[node + 1]))
            value = int(graph.in_value[inputs][graph.in_slot[inputs] == -1 - slot][0])
        return value


def _in_graph(rows: list[int], numbers: Ints, graph: Graph) -> list[int]:
    """For each of the recorder's values its number in the graph, for an alias that of what it stands for."""
    kept = np.diff(numbers, prepend=-1) > 0
    in_graph = np.where(kept, numbers, NOWHERE)
    aliases = np.flatnonzero(~kept)
    if len(aliases):
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        table = table[np.argsort(table[:, 0], kind="stable")]
        written = np.zeros(len(graph.value_type), dtype=bool)
        written[graph.out_value[graph.out_slot < 0]] = True
        known: dict[tuple[int, ...], int] = {}
        for number in np.flatnonzero(np.isin(table[:, 1], table[aliases, 1])).tolist():
            key = tuple(table[number, 1:].tolist())
            if not kept[number]:
                in_graph[number] = known.get(key, NOWHERE)
            elif written[in_graph[number]] or key not in known:
                known[key] = int(in_graph[number])
    values: list[int] = in_graph.tolist()
    return values


# ---------------------------------------------------------------- literals


def literals(name: str, function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call that are no tensors, by name, as JSON data.

    >>> literals("f", lambda x, size: None, (tuple, TENSOR, (tuple, 2, 3)), (dict, ("mode", (str, "a"))))
    {'size': [2, 3], 'mode': 'a'}
    """
    positional = list(args[1:])
    named: list[tuple[str, Any]] = []
    if last_part(name) in INDEXING:
        named.append(("index", (str, index_text(positional[1]))))
        named += [("value", part) for part in positional[2:]]
    else:
        named += _by_name(name, function, positional, kwargs[1:] if kwargs else ())
    named += list(kwargs[1:]) if kwargs else []
    plain_arguments = {
        key: plain(part) for key, part in named if not (_is_blank(part) or key.startswith("_"))
    }
    return {key: part for key, part in plain_arguments.items() if part is not None}


def _by_name(name: str, function: Any, parts: list[Any], kwargs: Sequence[Any]) -> list[tuple[str, Any]]:
    """Positional arguments under the names of the function's own signature, or else of the operator's."""
    names = _signature(function)
    if names is None or len(names) < len(parts):
        written = {key for key, _ in kwargs}
        overloads = _schemas(name, function)
        # torch adds some of its own
        overloads.sort(key=lambda overload: len(written.difference(overload[0])))
        for overload, types in overloads:
            if (fitting := _fit(overload, types, parts)) is not None:
                return fitting
        return [(f"arg{index}", part) for index, part in enumerate(parts)]
    return list(zip(names, parts, strict=False))


def _signature(function: Any) -> list[str] | None:
    """The names of a function's positional parameters; None where they are not to be had, or only ``*args`` is."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]


def _schemas(name: str, function: Any) -> list[tuple[list[str], list[str]]]:
    """The overloads of the operator that a function is called like: names and types of their parameters."""
    import torch

    packet = function
    if isinstance(function, torch._ops.OpOverload):
        return [_parameters(function._schema)]
    if not isinstance(function, torch._ops.OpOverloadPacket):
        packet = getattr(torch.ops.aten, last_part(name), None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        # what is left are operators, x & 1
        return [(["self", "other"], ["Tensor", "number"])]
    return [_parameters(getattr(packet, overload)._schema) for overload in packet.overloads()]


def _parameters(schema: Any) -> tuple[list[str], list[str]]:
    """The names, those that go by keyword only last, and the types of those that do not."""
    positional = [part for part in schema.arguments if not part.kwarg_only]
    names = [part.name for part in positional] + [part.name for part in schema.arguments if part.kwarg_only]
    return names, [str(part.type) for part in positional]


def _fit(names: list[str], types: list[str], parts: list[Any]) -> list[tuple[str, Any]] | None:
    """Arguments under the names of one overload; None if it cannot have been meant.

    Sizes that are written one by one (``x.view(2, 3)``) are the list that the overload takes last.
    """
    for index, (part, type_) in enumerate(zip(parts, types, strict=False)):
        rest = parts[index:]
        if (
            "List" in type_
            and index == len(types) - 1 < len(parts) - 1
            and all(_is_one(item) for item in rest)
        ):
            return [*zip(names[:index], parts[:index], strict=True), (names[index], (tuple, *rest))]
        if part is not None and not _suits(part, type_):
            return None
    return list(zip(names, parts, strict=False)) if len(parts) <= len(types) else None


def _suits(part: Any, type_: str) -> bool:
    """Whether an argument can be meant for a parameter of this type."""
    if _is_list(part):
        return "List" in type_
    if part == TENSOR:
        return "Tensor" in type_
    kind = part[0] if type(part) is tuple else type(part)
    return (
        any(word in type_ for word in TYPES.get(getattr(kind, "__name__", ""), ())) and "Tensor" not in type_
    )


def _is_one(part: Any) -> bool:
    return part == TENSOR or type(part) is int


def _is_list(part: Any) -> bool:
    return type(part) is tuple and part[:1] in ((list,), (tuple,))


def _is_blank(part: Any) -> bool:
    """Whether an argument is a tensor, not given, or a list of such."""
    if _is_list(part) and len(part) > 1:
        return all(_is_blank(inner) for inner in part[1:])
    return part is None or part == TENSOR


def plain(part: Any) -> Any:
    """A frozen argument as JSON data.

    >>> plain((list, 1, (float, 0.5), TENSOR))
    [1, 0.5, '<tensor>']
    """
    if type(part) is not tuple:
        return part if part is None or type(part) in (int, str) else _named(part)
    kind, *rest = part
    if kind in (list, tuple):
        return [plain(inner) for inner in rest]
    if kind is dict:
        return {key: plain(inner) for key, inner in rest}
    if kind is slice:
        return index_text(part)
    if kind is bool:
        return rest[0] is True
    if kind is float:
        number = float(rest[0])
        return number if math.isfinite(number) else repr(number)
    return rest[0]


def _named(item: Any) -> str:
    return "..." if item is ... else str(item).removeprefix("torch.")


def index_text(part: Any) -> str:
    """An index as it was written.

    >>> index_text((tuple, (slice, None, None, None), 0, ...)), index_text((slice, 1, -1, 2)), index_text(TENSOR)
    (':, 0, ...', '1:-1:2', '<tensor>')
    """
    if type(part) is not tuple:
        return "None" if part is None else str(plain(part))
    if part[0] is tuple:
        return ", ".join(index_text(inner) for inner in part[1:]) if len(part) > 1 else "()"
    if part[0] is list:
        return f"[{', '.join(index_text(inner) for inner in part[1:])}]"
    if part[0] is slice:
        start, stop, step = ("" if inner is None else index_text(inner) for inner in part[1:])
        return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"
    return str(plain(part))
