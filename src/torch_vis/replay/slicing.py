"""What a selector means in a replay, and the slice of the graph that has to run for it.

``TargetFinder`` finds a selector's values; ``needed_nodes`` and ``only_touched`` give the operations to be run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from torch_vis.capture.containers import form_leaves, no_part
from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.query.selector import (
    Branch,
    HeadPlace,
    head_place,
    is_about_operations,
    selector,
)
from torch_vis.graph.schema import Flag, Kind, Phase
from torch_vis.ops.schemas import named_arguments, slot_names
from torch_vis.replay.replay import ReplayPlan


class Sight(NamedTuple):
    """Which operations see a replacement: all but those of ``nodes``, or with ``only`` those and no others."""

    nodes: frozenset[int]
    only: bool = False
    passing: frozenset[int] = frozenset()
    """Of these, views outside of the readers, through which they read: others who read the view see the old one."""

    def after(self, node: int) -> Sight:
        """Who sees what a node that sees the replacement makes on the same memory: a view of it, a write to it."""
        return self if not self.only or node in self.passing else EVERYONE

    def sees(self, node: int) -> bool:
        """Whether a node sees the replacement; -1 is what is looked at between operations."""
        return (node in self.nodes) is self.only


EVERYONE = Sight(frozenset())


class ReplayTarget(NamedTuple):
    """Values under a name, the node after which they are all there, and who sees them when they are replaced."""

    name: str
    values: tuple[int, ...]
    after: int
    sight: Sight
    is_module: bool = False
    form: Any = None
    """What the call returned or was given, as a form of values; None where the values stand for themselves."""
    part: tuple[Any, ...] | None = None
    """A slice of the first value."""
    head: Any = None
    place: HeadPlace | None = None
    whole: bool = True
    """Whether what is handed to a function is the whole of what the call gave, not one tensor of it."""
    passed: frozenset[int] = frozenset()
    """Values that the call handed on as it got them: others read them too, so they cannot be replaced here."""
    places: tuple[str, ...] = ()
    """Where the first value is among what the call returned or was given, if that is in several places."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides which operations have to run for it."""
        return (self.values, self.after, self.sight)


class TargetFinder:
    """Finds the values of a run that a selector stands for, as ``ReplayTarget``."""

    def __init__(self, graph: Graph, held: KeptTensors, settings: Mapping[str, Any] | None = None) -> None:
        self.graph, self.held = graph, held
        self.settings = settings or {}
        self.second_paths: Mapping[str, str] = self.settings.get("second_paths", {})
        self.query = graph.query(second_paths=self.second_paths)

    def targets(self, wanted: Any) -> list[ReplayTarget]:
        """What a selector, a node or its number stands for.

        A module stands for what it returned, one target for each call.
        """
        graph = self.graph
        if isinstance(wanted, Node):
            wanted = wanted.index
        if isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool):
            if not 0 <= wanted < len(graph):
                raise UsageError(f"no node {wanted}; there are {len(graph):,}, counted from 0")
            return [node_target(graph, int(wanted))]
        result: list[ReplayTarget] = []
        for branch, rows, is_operation in self.query.matches(wanted):
            if is_operation:
                nodes = self._forward(branch, rows.tolist())
                result += [self._at_node(branch, node) for node in nodes]
            else:
                result += [self._at_call(branch, scope) for scope in self._calls(branch, rows.tolist())]
        if not result:
            raise UsageError(
                f"{str(selector(wanted))!r} selects nothing of this run; t.select(…) shows what a part selects"
            )
        return list({target.name: target for target in result}.values())

    # ---------------------------------------------------------------- calls of modules

    def _calls(self, branch: Branch, scopes: list[int]) -> list[int]:
        """One scope for each call: a front-end may open a module anew inside itself."""
        scopes = _outermost(self.graph, scopes)
        ran = [scope for scope in scopes if _runs_forward(self.graph, scope)]
        # a pattern passes over modules that ran nothing (an eval Dropout); one that is named must have run
        return ran or [scope for scope in scopes if not self.graph.tree.recomputed[scope]]

    def _at_call(self, branch: Branch, scope: int) -> ReplayTarget:
        graph = self.graph
        name = graph.scope_paths[scope] + (f"#{graph.scope_call[scope]}" if graph.scope_call[scope] else "")
        name += branch.suffix
        if branch.head is not None:
            return self._at_head(branch, scope, name)
        if branch.reader is not None:
            return self._on_edge(branch, module_target(graph, self.held, scope), name)
        if branch.port == "input":
            target = self._input(scope, branch, name)
        elif branch.port == "grad":
            target = self._gradient(scope, branch, name)
        else:
            target = module_target(graph, self.held, scope)._replace(name=name)
            if branch.leaf:
                target = self._leaf(target, branch.leaf)
        calls = {"input": self.held.given, "output": self.held.returned}.get(branch.port or "output", {})
        leaves = [key for key, number in form_leaves(calls.get(scope)) if number in target.values[:1]]
        places = tuple(leaves) if len(leaves) > 1 else ()
        return target._replace(part=branch.index, whole=target.whole and branch.index is None, places=places)

    def _leaf(self, target: ReplayTarget, leaf: str) -> ReplayTarget:
        """One tensor of what a call returned."""
        leaves = {name: number for name, number in form_leaves(target.form) if number is not None}
        chosen = _chosen(leaves, leaf, target.name)
        # the rest of the run sees it where it sees the whole
        return target._replace(
            values=(chosen,), after=int(self.graph.value_producer[chosen]), form=None, whole=False,
            passed=target.passed & {chosen},
        )  # fmt: skip

    def _input(self, scope: int, branch: Branch, name: str) -> ReplayTarget:
        graph = self.graph
        if scope not in self.held.given:
            raise UsageError(f"what {name!r} was given is not known: only eager calls of modules tell")
        leaves = {key: number for key, number in form_leaves(self.held.given[scope]) if number is not None}
        if not leaves:
            raise UsageError(
                f"{name!r}: the call was given no tensor that an operation of the run has read or made"
            )
        value = _chosen(leaves, branch.leaf, name) if branch.leaf else next(iter(leaves.values()))
        nodes = np.flatnonzero(within(graph, scope)[graph.node_scope])
        return ReplayTarget(
            name,
            (value,),
            int(graph.value_producer[value]),
            Sight(frozenset(nodes.tolist()), only=True),
            whole=False,
        )

    def _gradient(self, scope: int, branch: Branch, name: str) -> ReplayTarget:
        graph = self.graph
        target = module_target(graph, self.held, scope)
        values = gradients(graph, target)
        if not values:
            why = (
                "the run has no backward pass"
                if not (graph.node_phase == Phase.BACKWARD).any()
                else "none comes to it"
            )
            raise UsageError(f"{name!r}: there is no gradient: {why}")
        chosen = int(branch.leaf) if branch.leaf.isdigit() else 0
        if chosen >= len(values):
            raise UsageError(f"{name!r}: {len(values)} gradients come to it, counted from 0")
        value = values[chosen]
        inside = [node for node in target.sight.nodes if graph.node_phase[node] == Phase.BACKWARD]
        return ReplayTarget(
            name, (value,), int(graph.value_producer[value]), Sight(frozenset(inside), only=True), whole=False
        )

    # ---------------------------------------------------------------- heads

    def _at_head(self, branch: Branch, scope: int, name: str) -> ReplayTarget:
        graph = self.graph
        path = graph.scope_paths[scope]
        place = head_place(path, self._paths, self._setting, self._called.__contains__)
        inside = within(graph, scope)
        if place.port == "weight":
            target = self._beside_weight(f"{place.path}.weight", inside, name)
        else:
            calls = [s for s in np.flatnonzero(inside).tolist() if graph.scope_paths[s] == place.path]
            calls = [s for s in _outermost(graph, calls) if graph.tree.is_module[s]] or [scope]
            plain = Branch(branch.term, port=place.port)
            target = self._at_call(plain, calls[0])
        return target._replace(
            name=name, values=target.values[:1], form=None, head=branch.head, place=place, part=branch.index,
            whole=False,
        )  # fmt: skip

    @cached_property
    def _called(self) -> frozenset[str]:
        return frozenset(
            path for path, module in zip(self.graph.scope_paths, self.graph.tree.is_module) if module
        )

    @cached_property
    def _paths(self) -> list[str]:
        """The modules that were called, and those whose parameters the run read."""
        owners = [
            str(value.name).rpartition(".")[0] for value in self.graph.inputs if value.role == "parameter"
        ]
        return list(
            dict.fromkeys(
                [*(module.path for module in self.graph.modules if module.kind == "module"), *owners]
            )
        )

    def _setting(self, path: str, name: str) -> int | None:
        """A number that a module was set to, as the recording noted it."""
        rows, of = self.settings.get("rows", ()), self.settings.get("of", {})
        if path not in of:
            return None
        row = rows[of[path]]
        text = str(row.get("set", {}).get(name, row.get("made", {}).get(name, "")))
        return int(text) if text.isdigit() else None

    def _beside_weight(self, parameter: str, inside: Any, name: str) -> ReplayTarget:
        """What an operation multiplies with a weight, as that operation alone reads it."""
        graph = self.graph
        weights = {value.index for value in graph.inputs if value.name == parameter}
        views: set[int] = set(weights)
        for node in np.flatnonzero(inside[graph.node_scope] & (graph.node_phase == Phase.FORWARD)).tolist():
            slots = [v.index for v in graph.nodes[node].inputs]
            if not views & set(slots):
                continue
            outputs = graph.out_value[slice(*graph.output_span(node))].tolist()
            if graph.node_flags[node] & Flag.VIEW:
                views |= set(outputs)
                continue
            width = graph.values[next(iter(weights))].shape[-1]
            others = [
                v
                for v in slots
                if v not in views
                and graph.values[v].shape[-1:] == (width,)
                and len(graph.values[v].shape) > 1
            ]
            if others:
                value = others[0]
                sight = Sight(frozenset([node]), only=True)
                return ReplayTarget(name, (value,), int(graph.value_producer[value]), sight, whole=False)
        raise UsageError(
            f"{name!r}: no operation of the run multiplies with {parameter!r}; a fused kernel may have done all "
            "at once (torch.backends.mha.set_fastpath_enabled(False) prevents that of nn.MultiheadAttention)"
        )

    # ---------------------------------------------------------------- operations and edges

    def _forward(self, branch: Branch, nodes: list[int]) -> list[int]:
        """The nodes that are meant: those of forward, unless only others are selected."""
        forward = [node for node in nodes if self.graph.node_phase[node] == Phase.FORWARD]
        return forward or nodes

    def _at_node(self, branch: Branch, node: int) -> ReplayTarget:
        graph = self.graph
        target = node_target(graph, node)
        name = target.name + branch.suffix
        if branch.head is not None:
            raise UsageError(f"{name!r}: heads are those of a module, not of an operation")
        if branch.reader is not None:
            return self._on_edge(branch, target, name)
        if branch.port == "input":
            row = graph.nodes[node]
            names = slot_names(named_arguments(row.call))
            leaves = {names.get(slot, str(slot)): value.index for slot, value in enumerate(row.inputs)}
            value = _chosen(leaves, branch.leaf or "0", name)
            target = ReplayTarget(
                name,
                (value,),
                int(graph.value_producer[value]),
                Sight(frozenset([node]), only=True),
                whole=False,
            )
        elif branch.port == "grad":
            raise UsageError(
                f"{name!r}: gradients are those of modules; a backward operation is selected with phase:backward"
            )
        elif branch.leaf:
            if not branch.leaf.isdigit() or int(branch.leaf) >= len(target.values):
                raise UsageError(
                    f"{name!r}: the operation makes {len(target.values)} tensors, counted from 0"
                )
            target = target._replace(values=(target.values[int(branch.leaf)],), whole=False)
        return target._replace(name=name, part=branch.index, whole=target.whole and branch.index is None)

    def _on_edge(self, branch: Branch, target: ReplayTarget, name: str) -> ReplayTarget:
        """What one reader takes of a target: the reader's own operations see the replacement, and views on the way."""
        graph = self.graph
        assert branch.reader is not None
        if is_about_operations(branch.reader):
            readers = self.query.nodes(branch.reader)
        else:
            scopes = self.query.scopes(branch.reader)
            readers = graph.tree.inside_some(scopes)[graph.node_scope]
        values, nodes, reads = set(target.values), set[int](), False
        passing: set[int] = set()
        for node in range(max(target.after, 0), len(graph)):
            span = slice(*graph.input_span(node))
            taken = graph.in_value[span][graph.in_kind[span] != Kind.SHAPE].tolist()
            if values.isdisjoint(taken):
                continue
            if readers[node]:
                reads = True
                nodes.add(node)
            elif graph.node_flags[node] & Flag.VIEW:
                nodes.add(node)
                passing.add(node)
            if graph.node_flags[node] & Flag.VIEW:
                values |= set(graph.out_value[slice(*graph.output_span(node))].tolist())
        if not reads:
            users = {
                graph.nodes[int(user)].path or "(the model itself)"
                for v in target.values
                for user in graph.value_users(v)
            }
            listed = ", ".join(map(repr, sorted(users)[:6])) or "nobody"
            raise UsageError(f"{name!r}: the reader reads nothing of it; it is read in {listed}")
        return target._replace(
            name=f"{name} ->",
            sight=Sight(frozenset(nodes), only=True, passing=frozenset(passing)),
            part=branch.index,
            whole=False,
            form=None,
        )


def _chosen(leaves: Mapping[str, int], leaf: str, name: str) -> int:
    """The value of a part by its name or its place; the last part of a name will do."""
    if leaf in leaves:
        return leaves[leaf]
    if leaf.isdigit() and int(leaf) < len(leaves):
        return list(leaves.values())[int(leaf)]
    ends = [
        value for key, value in leaves.items() if key.rpartition(".")[2] == leaf or key.startswith(f"{leaf}.")
    ]
    if len(ends) == 1 or (ends and leaf.isalpha()):
        return ends[0]
    raise no_part(name, leaf, leaves)


def _runs_forward(graph: Graph, scope: int) -> bool:
    inside = within(graph, scope)[graph.node_scope]
    return bool((inside & (graph.node_phase == Phase.FORWARD)).any())


def _outermost(graph: Graph, scopes: list[int]) -> list[int]:
    """One scope for each call: a front-end may open a module anew inside itself."""
    chosen = set(scopes)
    return [s for s in scopes if not _has_above(graph, s, chosen)]


def _has_above(graph: Graph, scope: int, chosen: set[int]) -> bool:
    module = graph.scope_module[scope]
    above = int(graph.scope_parent[scope])
    while above >= 0:
        if above in chosen and graph.scope_module[above] == module:
            return True
        above = int(graph.scope_parent[above])
    return False


def node_target(graph: Graph, node: int, *, backward: bool = True) -> ReplayTarget:
    """What one operation makes; its backward operations see what it made itself."""
    row = graph.nodes[node]
    values = tuple(value.index for value in row.outputs)
    linked = np.flatnonzero(graph.node_link == node).tolist() if backward else ()
    return ReplayTarget(f"{row.path}/{row.name}#{node}", values, node, Sight(frozenset([node, *linked])))


def module_target(graph: Graph, held: KeptTensors, scope: int) -> ReplayTarget:
    """What one call of a module returned; where that was not recorded, what the rest of the run takes from it."""
    row = graph.scopes[scope]
    name = row.path + (f"#{row.call}" if row.call else "")
    inside = within(graph, scope)
    nodes = np.flatnonzero(inside[graph.node_scope])
    forward = nodes[graph.node_phase[nodes] == Phase.FORWARD]
    mine = np.zeros(len(graph), dtype=bool)
    mine[forward] = True
    form = held.returned.get(scope)
    values = [number for _, number in form_leaves(form) if number is not None]
    if not values:
        form = None
        values = _taken(graph, inside, forward, mine, name)
    producer = graph.value_producer[values]
    made_here = (producer >= 0) & mine[producer]
    passed = frozenset(value for value, own in zip(values, made_here) if not own)
    return ReplayTarget(
        name, tuple(values), int(producer.max()), Sight(frozenset(nodes.tolist())), is_module=True, form=form,
        passed=passed,
    )  # fmt: skip


def _taken(graph: Graph, inside: Any, forward: Any, mine: Any, name: str) -> list[int]:
    """The values that the rest of a run takes from a call, or else the last that it made."""
    if not len(forward):
        raise UsageError(
            f"module {name!r} ran no operation of its own, and none of the run read what it gave on; tv.live keeps "
            "what calls of modules return"
        )
    producer = graph.value_producer
    crosses = mine[producer[graph.in_value]] & (producer[graph.in_value] >= 0)
    crosses &= ~inside[graph.node_scope[graph.in_node]] & (graph.in_slot >= 0)
    crosses &= graph.node_phase[graph.in_node] == Phase.FORWARD
    values = set(graph.in_value[crosses].tolist())
    returned = {result.value.index for result in graph.outcomes if result.kind == "output"}
    values |= {v for v in returned if producer[v] >= 0 and mine[producer[v]]}
    if not values:  # nobody takes it: the last thing that it made
        values = set(graph.out_value[slice(*graph.output_span(int(forward[-1])))].tolist())
    return sorted(values)


def gradients(graph: Graph, target: ReplayTarget) -> tuple[int, ...]:
    """The gradients that come into a module's backward from outside."""
    inside = np.zeros(len(graph), dtype=bool)
    inside[list(target.sight.nodes)] = True
    producer = graph.value_producer[graph.in_value]
    came = (producer >= 0) & ~inside[producer] & inside[graph.in_node]
    came &= (graph.node_phase[producer] == Phase.BACKWARD) & (
        graph.node_phase[graph.in_node] == Phase.BACKWARD
    )
    return tuple(sorted(set(graph.in_value[came & (graph.in_slot >= 0)].tolist())))


def within(graph: Graph, scope: int) -> Any:
    """A mask of the scopes inside one, itself included."""
    enter, leave = graph.tree.enter, graph.tree.leave
    return (enter[scope] <= enter) & (enter < leave[scope])


def all_nodes(graph: Graph) -> list[ReplayTarget]:
    """Every operation that makes something."""
    makes = np.flatnonzero(np.diff(graph.out_start) > 0).tolist()
    return [node_target(graph, node, backward=False) for node in makes]


class KeptValue(NamedTuple):
    """One tensor that is kept: its name, its value, and the slice of it."""

    name: str
    value: int
    part: tuple[Any, ...] | None = None


def kept_values(graph: Graph, target: ReplayTarget) -> list[KeptValue]:
    """Everything that is kept of a target: its tensors, and of a module the gradients that come to it."""
    if target.form is not None:
        named = [(name, value) for name, value in form_leaves(target.form) if value is not None]
        rows = [KeptValue(f"{target.name}.{name}" if name else target.name, value) for name, value in named]
    else:
        rows = [
            KeptValue(target.name if number == 0 else f"{target.name}.{number}", value)
            for number, value in enumerate(target.values)
        ]
    if target.part is not None or target.head is not None:
        rows = [KeptValue(target.name, target.values[0], full_index(graph, target))]
    return rows + gradient_names(graph, target)


def full_index(graph: Graph, target: ReplayTarget) -> tuple[Any, ...] | None:
    """The slice of a target's first value that is meant; a head's is known by the tensor's width."""
    if target.head is None or target.place is None:
        return target.part
    width = graph.types[graph.value_type[target.values[0]]].shape[-1]
    index = target.place.slice_of(target.head, width, target.name)
    return index if target.part is None else (*target.part, index[1])


def gradient_names(graph: Graph, target: ReplayTarget) -> list[KeptValue]:
    """The gradients that come to a module, under the names that they are kept by."""
    values = gradients(graph, target) if target.is_module and target.whole else ()
    return [
        KeptValue(f"{target.name}.grad" + (f".{number}" if number else ""), value)
        for number, value in enumerate(values)
    ]


def descendants(graph: Graph, values: set[int], nodes: Set[int] = frozenset()) -> Any:
    """A mask of the values that depend on the bytes of the given ones, themselves included, and on what nodes make."""
    touched = np.zeros(len(graph.value_type), dtype=bool)
    touched[list(values)] = True
    for value in values:  # other tensors from outside on the same memory
        if graph.value_producer[value] < 0:
            touched |= (graph.value_storage == graph.value_storage[value]) & (graph.value_producer < 0)
    reached = touched.tolist()
    in_value = np.where(graph.in_kind != Kind.SHAPE, graph.in_value, -1).tolist()
    out_value, carries = graph.out_value.tolist(), graph.value_carries.tolist()
    in_start, out_start = graph.in_start.tolist(), graph.out_start.tolist()
    reached.append(False)  # what a value that is not read, or carries nothing, refers to
    for node in range(len(in_start) - 1):
        outputs = out_value[out_start[node] : out_start[node + 1]]
        if node in nodes or any(reached[value] for value in in_value[in_start[node] : in_start[node + 1]]):
            for value in outputs:
                reached[value] = True
        else:
            for value in outputs:
                reached[value] = reached[value] or reached[carries[value]]
    return np.array(reached[:-1], dtype=bool)


def first_touched(graph: Graph, target: ReplayTarget) -> tuple[set[int], set[int]]:
    """What a replacement changes first: its values, or where only some read them, what these make."""
    if not target.sight.only:
        return set(target.values), set()
    values = set(target.values)
    readers = {
        node
        for node in target.sight.nodes
        if not values.isdisjoint(graph.in_value[slice(*graph.input_span(node))].tolist())
    }
    return set(), readers


def needed_nodes(
    graph: Graph,
    goals: list[int],
    kept: list[ReplayTarget],
    patched: list[ReplayTarget],
    deciding: Sequence[int] = (),
) -> list[int]:
    """The operations that lead to the results that change, to what is kept, replaced or decided by, in order."""
    wanted = [pair for goal in goals for pair in graph.outcomes[goal].sources()]
    wanted += [(value, int(Kind.WHOLE)) for target in patched for value in target.values]
    wanted += [(row.value, int(Kind.WHOLE)) for target in kept for row in kept_values(graph, target)]
    for node in deciding:
        span = slice(*graph.input_span(node))
        wanted += [(int(v), int(k)) for v, k in zip(graph.in_value[span], graph.in_kind[span])]
    nodes, _ = graph.ancestors(wanted)
    random = np.flatnonzero(graph.node_flags & Flag.RANDOM)
    if len(random) and nodes[random].any():
        # Each takes the generator as the one before it left it, so those before have to draw as well.
        before = random[: int(np.flatnonzero(nodes[random])[-1]) + 1]
        for node in before[~nodes[before]].tolist():
            outputs = graph.out_value[slice(*graph.output_span(node))].tolist()
            wanted += [(value, int(Kind.WHOLE)) for value in outputs]
        nodes, _ = graph.ancestors(wanted)
    nodes[list(deciding)] = True
    return np.flatnonzero(nodes).tolist()


def only_touched(
    graph: Graph,
    plan: ReplayPlan,
    needed: Sequence[int],
    touched: Any,
    kept: list[ReplayTarget],
    patched: list[ReplayTarget],
    deciding: Sequence[int] = (),
) -> list[int]:
    """Of the needed operations, those that depend on a change, where the memory of a whole run is at hand.

    Memory that is written in place holds only its last version, so whoever touches it brings along all who write it.
    """
    run = np.zeros(len(graph), dtype=bool)
    # what reads a changed value, or writes over a part of one; a value that is replaced need not be made again
    run[graph.in_node[touched[graph.in_value] & (graph.in_kind != Kind.SHAPE)]] = True
    carried = graph.value_carries[graph.out_value]
    run[graph.out_node[(carried >= 0) & touched[carried]]] = True
    for target in patched:
        run[list(first_touched(graph, target)[1])] = True
    asked = [value for target in patched for value in target.values]
    asked += [row.value for target in kept for row in kept_values(graph, target)]
    # what is written in place has to be made again to be there as it was; the rest lies in memory
    remade = np.array([value for value in asked if plan.written[graph.value_storage[value]]], dtype=np.int64)
    producers = graph.value_producer[remade]
    run[producers[producers >= 0]] = True
    run[list(deciding)] = True
    may = np.zeros(len(graph), dtype=bool)
    may[list(needed)] = True
    run &= may
    written_out = plan.written[graph.value_storage[graph.out_value]]
    written_in = plan.written[graph.value_storage[graph.in_value]]
    while True:
        blocks = np.zeros(len(graph.storage_bytes), dtype=bool)
        blocks[graph.value_storage[graph.out_value[written_out & run[graph.out_node]]]] = True
        blocks[graph.value_storage[graph.in_value[written_in & run[graph.in_node]]]] = True
        more = run.copy()
        more[graph.out_node[blocks[graph.value_storage[graph.out_value]]]] = True
        if (more == run).all():
            return np.flatnonzero(run).tolist()
        run = more
