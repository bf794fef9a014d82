"""One row per module with its figures: calls from one place merged, sums carried up, repeated modules folded.

A *module node* stands for all calls of one module from one place; a *module line* is what a view shows: one node, or
several neighbours that do the same (``0-11 × 12``), with the sums over all of them. What a checkpointed module
computes again during backward belongs to the node of its first call, and is part of what backward costs it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.schema import Flag, Kind, Phase, Role, TensorType
from torch_vis.graph.text import split_number
from torch_vis.graph.tree import inner_path
from torch_vis.graph.types import Floats, Ints

SUMMED = {
    "time_ns": "backward_ns",
    "alloc_bytes": "backward_bytes",
    "flops": "backward_flops",
    "macs": "backward_macs",
    "moved_bytes": "backward_moved_bytes",
}


@dataclass(slots=True)
class Totals:
    """What one module or row comes to; time and bytes are None where they were not measured.

    ``incomplete`` names the figures that leave out operations of which they are not known.
    """

    ops: int = 0
    backward_ops: int = 0
    recomputed_ops: int = 0  # of those of backward
    time_ns: int | None = None
    self_ns: int | None = None
    backward_ns: int | None = None
    alloc_bytes: int | None = None
    backward_bytes: int | None = None
    flops: int | None = None
    backward_flops: int | None = None
    macs: int | None = None
    backward_macs: int | None = None
    moved_bytes: int | None = None
    backward_moved_bytes: int | None = None
    incomplete: tuple[str, ...] = ()

    def add(self, other: Totals) -> None:
        """Add the figures of another module; what one of the two does not know, it leaves as it is."""
        if other.incomplete:
            either = {*self.incomplete, *other.incomplete}
            self.incomplete = tuple(name for name in AMOUNTS if name in either)
        for name in AMOUNTS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if theirs is not None:
                setattr(self, name, theirs if mine is None else mine + theirs)


AMOUNTS = tuple(name for name in Totals.__slots__ if name != "incomplete")


# Those that a view shows beside each other.
FIGURES = (
    "ops",
    "backward_ops",
    "time_ns",
    "backward_ns",
    "alloc_bytes",
    "backward_bytes",
    "flops",
    "backward_flops",
    "moved_bytes",
    "backward_moved_bytes",
)


@dataclass(slots=True)
class ModuleNode:
    """All calls of one module from one place."""

    path: str
    type: str
    kind: str
    parent: int
    calls: int = 0
    own: Totals = field(default_factory=Totals)  # its own operations, without those of the modules it calls
    sums: Totals = field(default_factory=Totals)
    own_ops: Counter[str] = field(default_factory=Counter)
    own_backward_ops: Counter[str] = field(default_factory=Counter)
    own_calls: Counter[str] = field(
        default_factory=Counter
    )  # of functions, and the operators of no call of one
    outputs: dict[TensorType, None] = field(default_factory=dict)  # an ordered set
    parameters: set[int] = field(default_factory=set)
    children: list[int] = field(default_factory=list)
    recomputed: bool = False  # in backward, because it was checkpointed
    signature: int = -1


@dataclass(slots=True)
class ModuleLine:
    """One module, or neighbours that do the same, as a view shows them."""

    members: list[ModuleNode]
    label: str
    depth: int
    sums: Totals
    own: Totals
    parameters: set[int]

    @property
    def module(self) -> ModuleNode:
        """The first of them; but for their figures, they are alike."""
        return self.members[0]


@dataclass(slots=True)
class Parameter:
    """One parameter, whatever names and versions it has."""

    name: str
    type: TensorType


class ModuleTable:
    """The modules of a run as a table with a tree: ``modules`` are its nodes, ``children`` the rows inside a row.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
    >>> [(node.path, node.sums.ops) for node in ModuleTable(t.graph, t.metrics).modules[1:]]
    [('', 3), ('0', 2), ('1', 1)]
    """

    def __init__(self, graph: Graph, metrics: Metrics) -> None:
        self.graph = graph
        self.metrics = metrics
        self.parameters, self._parameter_of_value = _parameters(graph)
        self.recomputed = graph.tree.recomputed
        self.modules, self._module_of_scope = merge_calls(graph)
        self._module_of_node = self._module_of_scope[graph.node_scope]
        self._repeated = graph.node_flags & Flag.RECOMPUTE != 0
        self._measure()
        for number in {
            *self._module_of_scope[self.recomputed].tolist(),
            *self._module_of_node[self._repeated].tolist(),
        }:
            self.modules[number].recomputed = True
        for scope, number in sorted(output_values(graph).items()):
            self.modules[self._module_of_scope[scope]].outputs[graph.types[graph.value_type[number]]] = None
        self._attribute_parameters()
        _sign(self.modules)

    @property
    def run(self) -> ModuleNode:
        """The whole run: what is above all lines, or itself the only one where it was one call of a module."""
        return self.modules[0]

    def children(self, line: ModuleLine | None) -> list[ModuleLine]:
        """The lines inside a line, or for None the outermost ones."""
        modules = self.modules
        # the whole run was one call of a module
        if line is None and self.run.kind != "run":
            return [_line([self.run], _label(self.run, ""), 0)]
        members = [self.run] if line is None else line.members
        above = members[0].path
        columns = zip(*([modules[child] for child in member.children] for member in members), strict=True)
        result: list[tuple[str, list[ModuleNode]]] = []
        last: tuple[str, int | None, int] | None = None
        counts: list[int] = []
        for column in columns:
            label = _label(column[0], above)
            stem, number = split_number(label)
            if number and last == (stem, number - 1, column[0].signature):
                result[-1][1].extend(column)
                counts[-1] += 1
            else:
                result.append((label, list(column)))
                counts.append(1)
            last = (stem, number, column[0].signature)
        depth = 0 if line is None else line.depth + 1
        return [_line(group, _folded(label, count), depth) for (label, group), count in zip(result, counts)]

    def columns(self) -> dict[str, Ints]:
        """Every module as columns, for views that show the same figures: -1 where one is not known.

        ``scope`` is the first call, ``parent`` the row around, ``low`` has a bit for each of ``FIGURES`` that leaves
        operations out.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
        >>> columns = ModuleTable(t.graph, t.metrics).columns()
        >>> columns["parameters"].tolist(), columns["calls"].tolist()
        ([8, 8, 8, 0], [1, 1, 1, 1])
        """
        _, first = np.unique(self._module_of_scope, return_index=True)
        rows = [module.sums for module in self.modules]
        held = [
            sum(self.parameters[number].type.numel for number in module.parameters) for module in self.modules
        ]
        figures = {
            name: np.array([-1 if getattr(row, name) is None else getattr(row, name) for row in rows])
            for name in FIGURES
        }
        low = [sum(1 << FIGURES.index(name) for name in row.incomplete if name in FIGURES) for row in rows]
        return {
            "scope": first,
            "parent": np.array([module.parent for module in self.modules]),
            "calls": np.array([module.calls for module in self.modules]),
            "parameters": np.array(held, dtype=np.int64),
            "low": np.array(low, dtype=np.int64),
            **figures,
        }

    def by_operator(self) -> list[tuple[str, Totals]]:
        """The run's own operations (those outside of all modules), summed up for each function or operator."""
        graph = self.graph
        outside = np.flatnonzero(self._module_of_node == 0)
        texts = [*(short_name(call.op) for call in graph.calls), *graph.names]
        # gradients by their operators, with what forward runs of these
        is_backward = graph.node_phase == Phase.BACKWARD
        called = np.where(is_backward, graph.node_call, called_by(graph))[outside].tolist()
        names: dict[str, int] = {}
        rows = [names.setdefault(texts[number], len(names)) for number in called]
        result = self._sums_by(np.array(rows, dtype=np.int64), outside, len(names))
        return list(zip(names, result, strict=True))

    def _measure(self) -> None:
        """Fill ``own`` from the nodes, ``sums`` from the nodes of all modules below, and time from the scopes."""
        graph, modules = self.graph, self.modules
        everywhere = np.arange(len(graph))
        for module, own in zip(modules, self._sums_by(self._module_of_node, everywhere, len(modules))):
            module.own = own
        self._count_operators()
        # a module comes after the one it is called from
        for module in reversed(modules):
            module.sums.add(module.own)
            if module.parent >= 0:
                modules[module.parent].sums.add(module.sums)
        for name, metric in (("time_ns", "scope_time_ns"), ("self_ns", "scope_self_ns")):
            values = _known_or_zero(self.metrics, metric)
            if values is None:
                continue
            where, values = self._called(name, values)
            for module, total in zip(modules, _sum_by(where, values, len(modules)).tolist()):
                setattr(module.sums, name, int(total))
                module.sums.incomplete = tuple(part for part in module.sums.incomplete if part != name)
        if "scope_time_ns" in self.metrics and self.run.kind == "run":
            whole = int(call_times(graph, self.metrics)[0])
            self.run.sums.time_ns = whole
            self.run.sums.self_ns = whole - sum(
                modules[child].sums.time_ns or 0 for child in self.run.children
            )

    def _called(self, name: str, values: Any) -> tuple[Any, Any]:
        """The module that each call's time counts for, and the time.

        A call that backward runs again is no part of its module's forward time. What it takes for itself is of those
        who ran backward, as is all that backward does besides operations.
        """
        if not self.recomputed.any():
            return self._module_of_scope, values
        # the call around backward has it already
        if name == "time_ns":
            return self._module_of_scope, np.where(self.recomputed, 0, values)
        return self._module_of_scope[self.graph.tree.nearest(~self.recomputed)], values

    def _sums_by(self, group: Ints, nodes: Ints, count: int) -> list[Totals]:
        """The sums over some nodes, for each of ``count`` groups that ``group`` puts them into."""
        backward = self.graph.node_phase[nodes] == Phase.BACKWARD
        cells: dict[str, list[Any]] = {
            "ops": np.bincount(group[~backward], minlength=count).tolist(),
            "backward_ops": np.bincount(group[backward], minlength=count).tolist(),
            "recomputed_ops": np.bincount(group[self._repeated[nodes]], minlength=count).tolist(),
        }
        incomplete: list[tuple[str, ...]] = [()] * count
        for name, behind in SUMMED.items():
            column: Column | None = self.metrics.get(name)
            if column is None:
                continue
            nothing_known = column.uncovered == len(column) > 0
            for title, chosen in ((name, ~backward), (behind, backward)):
                sums, low = column.sums(group[chosen], count, nodes[chosen])
                if not nothing_known:
                    cells[title] = sums
                for row in np.flatnonzero(low).tolist():
                    incomplete[row] = (*incomplete[row], title)
        return [
            Totals(**{name: column[row] for name, column in cells.items()}, incomplete=incomplete[row])
            for row in range(count)
        ]

    def _count_operators(self) -> None:
        """Count each module's own operators, in the order in which it first ran them."""
        graph, names = self.graph, [short_name(call.op) for call in self.graph.calls]
        keys = (self._module_of_node * 2 + (graph.node_phase == Phase.BACKWARD)) * max(
            1, len(names)
        ) + graph.node_call
        pairs, first, counts = np.unique(keys, return_index=True, return_counts=True)
        for index in np.argsort(first).tolist():
            number, call = divmod(int(pairs[index]), len(names))
            module = self.modules[number // 2]
            ops = module.own_backward_ops if number % 2 else module.own_ops
            ops[names[call]] += int(counts[index])
        self._count_calls(names)

    def _count_calls(self, names: Sequence[str]) -> None:
        """Count what each module's own part calls: functions once for all that they run, and what no function ran."""
        graph = self.graph
        begins_call = (graph.node_api_first < 0) | (graph.node_api_first == np.arange(len(graph)))
        first = np.flatnonzero((graph.node_phase != Phase.BACKWARD) & begins_call)
        called = called_by(graph)[first]
        texts = [*names, *graph.names]
        keys = self._module_of_node[first] * max(1, len(texts)) + called
        pairs, begins, counts = np.unique(keys, return_index=True, return_counts=True)
        for index in np.argsort(begins).tolist():
            module, text = divmod(int(pairs[index]), len(texts))
            self.modules[module].own_calls[texts[text]] += int(counts[index])

    def _attribute_parameters(self) -> None:
        """A node has the parameters that its module holds by name and those that its operations read."""
        graph, modules = self.graph, self.modules
        reads = graph.node_phase[graph.in_node] == Phase.FORWARD
        used = self._parameter_of_value[graph.in_value]
        reads &= used >= 0
        count = max(1, len(self.parameters))
        for key in np.unique(self._module_of_node[graph.in_node[reads]] * count + used[reads]).tolist():
            modules[key // count].parameters.add(key % count)
        holders: dict[str, list[ModuleNode]] = {}
        for module in modules:
            if module.kind == "module":
                holders.setdefault(module.path, []).append(module)
        # the parameters that modules of a path hold by name; each is noted at the innermost, and then handed outwards
        held: dict[str, set[int]] = {path: set() for path in holders}
        lengths = sorted(set(map(len, holders)))
        for number, parameter in enumerate(self.parameters):
            path = _holding(parameter.name, holders, lengths)
            if path is not None:
                held[path].add(number)
        for path in sorted(holders, key=len, reverse=True):
            for module in holders[path]:
                module.parameters |= held[path]
            around = _holding(path, holders, lengths)
            if around is not None:
                held[around] |= held[path]
        for module in reversed(modules):
            if module.parent >= 0:
                modules[module.parent].parameters |= module.parameters


def _holding(name: str, paths: Container[str], lengths: Sequence[int]) -> str | None:
    """The longest of some paths that a name lies inside; ``lengths`` are all that paths have, growing.

    >>> _holding("a.b.c.weight", {"", "a", "a.b"}, [0, 1, 3]), _holding("", {""}, [0])
    ('a.b', None)
    """
    # and not by the parts of the name: a stranger's may have a million
    for length in reversed(lengths[: bisect_left(lengths, len(name))]):
        if (not length or name[length] == ".") and name[:length] in paths:
            return name[:length]
    return None


def _parameters(graph: Graph) -> tuple[list[Parameter], Any]:
    """Every parameter once, however often it is tied or updated, and for each value the one that it is."""
    result: list[Parameter] = []
    numbers: dict[tuple[int, int, int], int] = {}
    of_value = np.full(len(graph.value_type), -1, dtype=np.int64)
    for value in np.flatnonzero(graph.value_role == Role.PARAMETER).tolist():
        name = int(graph.value_name[value])
        type_ = int(graph.value_type[value])
        key = (int(graph.value_storage[value]), int(graph.value_offset[value]), type_)
        number = numbers.get(key)
        if number is None:
            if name < 0 and graph.value_producer[value] >= 0:
                # a view of a parameter, not one itself
                continue
            number = numbers[key] = len(result)
            result.append(Parameter(graph.names[name] if name >= 0 else "", graph.types[type_]))
        of_value[value] = number
    return result, of_value


def merge_calls(graph: Graph) -> tuple[list[ModuleNode], Ints]:
    """One node for all the calls of a module that come from the same node, and for each scope its node."""
    indices, where = places_of_calls(graph)
    calls = np.bincount(where[~graph.tree.recomputed], minlength=len(indices)).tolist()
    modules: list[ModuleNode] = []
    for number, (above, called) in enumerate(indices):
        path, type_, kind = graph.modules[called]
        modules.append(ModuleNode(path, type_, kind, above, calls[number]))
        if above >= 0:
            modules[above].children.append(number)
    return modules, where


def places_of_calls(graph: Graph) -> tuple[list[tuple[int, int]], Ints]:
    """Where modules are called from: the place around each and its module, in order; and for each scope its place.

    A call that backward computes again has the place of its first call.
    """
    numbers: dict[tuple[int, int], int] = {}
    where: list[int] = []
    for parent, module in zip(graph.tree.by_first_call.parent.tolist(), graph.scope_module.tolist()):
        above = where[parent] if parent >= 0 else -1
        where.append(numbers.setdefault((above, module), len(numbers)))
    return list(numbers), np.array(where, dtype=np.int64)


def called_by(graph: Graph) -> Ints:
    """For each operation what the program called for it, or for what it is the gradient of.

    A place in the graph's calls and, behind them, in its names: the name of a function where one is known.
    """
    linked = (graph.node_phase == Phase.BACKWARD) & (graph.node_link >= 0)
    api = graph.node_api[np.where(linked, graph.node_link, np.arange(len(graph)))]
    result: Ints = np.where(api >= 0, len(graph.calls) + api, graph.node_call).astype(np.int64)
    return result


def own_operations(graph: Graph) -> tuple[Ints, list[str]]:
    """For each node the module that it ran in itself, as a place in the list of their names that follows.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.ones(1, 2))
    >>> module, names = own_operations(t.graph)
    >>> [(node.name, names[module[node.index]]) for node in t.graph.nodes]
    [('t', '0'), ('addmm', '0'), ('relu', '1')]
    """
    names = [module.path or f"({module.type})" for module in graph.modules]
    return graph.scope_module[graph.node_scope].astype(np.int64), names


def output_values(graph: Graph) -> dict[int, int]:
    """For each scope, the value that it hands out: read by operations outside it, or given back by the run.

    Of several, the one that was made last; the run's first output comes before all others. A scope whose values nobody
    reads hands out the last one it makes. A gradient is not counted as an output of the module that computed it:
    where the run gives one back, it is the run's output, and that of a model which is all of the run.
    """
    if not len(graph):
        return {}
    enter, leave = graph.tree.enter, graph.tree.leave
    forward = graph.node_phase != Phase.BACKWARD
    taken = (
        forward[graph.in_node] & (graph.in_kind != Kind.SHAPE) & (graph.value_producer[graph.in_value] >= 0)
    )
    value, reader = graph.in_value[taken], enter[graph.node_scope[graph.in_node[taken]]]
    given = [source for row in graph.outcomes if row.kind == "output" for source, _ in row.sources()[:1]]
    given = [source for source in given if graph.value_producer[source] >= 0]
    value = np.concatenate([value, np.array(given, dtype=value.dtype)])
    # outside of every scope
    reader = np.concatenate([reader, np.full(len(given), -1, dtype=reader.dtype)])
    keep = forward[graph.value_producer[value]]
    handed = _latest_leaving(graph, value[keep], reader[keep], enter, leave)
    fallback = graph.out_value[forward[graph.value_producer[graph.out_value]]]
    nowhere = np.full(len(fallback), -1, dtype=reader.dtype)
    result = _latest_leaving(graph, fallback, nowhere, enter, leave)
    if given and not forward[graph.value_producer[given[0]]]:
        return {**result, **handed, **dict.fromkeys(_whole_run(graph, forward), given[0])}
    first = np.array(given[:1], dtype=value.dtype)
    main = _latest_leaving(graph, first, np.full(len(first), -1, dtype=reader.dtype), enter, leave)
    return {**result, **handed, **main}


def _whole_run(graph: Graph, forward: Any) -> list[int]:
    """The run itself, and the call in which all of its forward ran, if there is one."""
    enter, leave = graph.tree.enter, graph.tree.leave
    within = enter[graph.node_scope[forward]]
    first, last = within.min(initial=len(enter)), within.max(initial=-1)
    alone = (graph.scope_parent == 0) & (enter <= first) & (last < leave)
    return [0, *np.flatnonzero(alone).tolist()]


def _latest_leaving(graph: Graph, value: Any, reader: Any, enter: Any, leave: Any) -> dict[int, int]:
    """For each scope, the last made of the values that are read outside it; ``reader`` is in ``enter``'s numbers."""
    producer = graph.value_producer[value]
    # 0 for the first output of its operation
    index = value - graph.out_value[graph.out_start[producer]]
    order = np.lexsort((-index, producer))
    value, reader = value[order], reader[order]
    scope, rank = graph.node_scope[producer[order]], np.arange(len(value))
    latest = np.full(len(graph.scope_call), -1, dtype=np.int64)
    while len(rank):
        outside = (scope >= 0) & ~((enter[scope] <= reader) & (reader < leave[scope]))
        reader, scope, rank = reader[outside], scope[outside], rank[outside]
        np.maximum.at(latest, scope, rank)
        scope = graph.scope_parent[scope]
    return {int(row): int(value[latest[row]]) for row in np.flatnonzero(latest >= 0)}


def _sign(modules: Sequence[ModuleNode]) -> None:
    """Give modules that are alike (class, counts, shapes, and so on down) the same signature."""
    known: dict[Any, int] = {}
    for module in reversed(modules):
        inside = tuple(
            (_label(modules[child], module.path), modules[child].signature) for child in module.children
        )
        key = (
            module.type,
            module.kind,
            module.calls,
            module.sums.ops,
            module.sums.backward_ops,
            module.recomputed,
            tuple(module.own_ops.items()),
            tuple(module.own_backward_ops.items()),
            tuple(module.outputs),
            len(module.parameters),
            inside,
        )
        module.signature = known.setdefault(key, len(known))


def _line(members: list[ModuleNode], label: str, depth: int) -> ModuleLine:
    if len(members) == 1:
        return ModuleLine(members, label, depth, members[0].sums, members[0].own, members[0].parameters)
    sums, own, parameters = Totals(), Totals(), set[int]()
    for member in members:
        sums.add(member.sums)
        own.add(member.own)
        parameters |= member.parameters
    return ModuleLine(members, label, depth, sums, own, parameters)


def _label(module: ModuleNode, above: str) -> str:
    """What distinguishes a module from its siblings: its path, without the part that the parent shows."""
    return inner_path(module.path, above) if module.path else module.type


def _folded(label: str, count: int) -> str:
    if count == 1:
        return label
    stem, number = split_number(label)
    return f"{label} × {count}" if number is None else f"{stem}{number}-{number + count - 1} × {count}"


def call_times(graph: Graph, metrics: Metrics) -> Floats:
    """How long each call took in forward: nothing where backward recomputed it.

    The run itself takes as long as its calls and its own operations; what backward takes stands beside that.
    """
    taken = np.where(graph.tree.recomputed, 0.0, metrics["scope_time_ns"].values.astype(np.float64))
    if len(taken) and graph.modules[graph.scope_module[0]].kind == "run" and "time_ns" in metrics:
        own = (graph.node_scope == 0) & (graph.node_phase != Phase.BACKWARD)
        taken[0] = taken[graph.scope_parent == 0].sum() + metrics["time_ns"].floats(0.0)[own].sum()
    return taken


def _known_or_zero(metrics: Metrics, name: str) -> Any:
    """A metric to be summed over what is known of it; None where nothing is."""
    if name not in metrics or metrics[name].uncovered == len(metrics[name]) > 0:
        return None
    column = metrics[name]
    return np.where(column.known_rows, column.values, 0)


def _sum_by(where: Any, values: Any, count: int) -> Any:
    return np.bincount(where, weights=values, minlength=count).astype(np.int64)
