"""Edges and paths: what one reader takes of one maker, patched from another run, and what that does to a measure.

An edge is between two operations, or between two modules through all that lies between them. A change of an edge is
seen by its reader alone, and by the operations that pass it on to it; the rest of the run sees what it saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.attribution.methods import Goal
from torch_vis.analysis.report import Charts, MapReport
from torch_vis.capture.edits import EditPlace, Replacement, changed, check_replacement
from torch_vis.capture.modes import without_gradients
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind, Phase
from torch_vis.graph.types import Bools
from torch_vis.ops.names import common_name
from torch_vis.progress import progress
from torch_vis.replay.differentiable import DifferentiableReplay, ValueChange, passing_nodes
from torch_vis.replay.held_run import HeldRun
from torch_vis.replay.rerun import Rerun, planner_of
from torch_vis.replay.slicing import ReplayTarget, Sight, full_index
from torch_vis.views.charts.maps import MapPicture, NumberGrid
from torch_vis.views.text.table_layout import Field, Listing

# what passes a change on without mixing it with weights: sums, copies, casts, normalisations
PASSING = frozenset(
    "add sub rsub clone contiguous to _to_copy type_as dropout layer_norm rms_norm fused_rms_norm batch_norm "
    "group_norm alias detach lift_fresh".split()
)
OUTPUT = "output"  # the receiver at the end of every path
LOOKING = Sight(frozenset([-1]), only=True)


class EdgeRow(NamedTuple):
    """One edge: the gradient's guess of what patching it does to the measure, and for the largest what it does."""

    edge: str
    sender: str
    receiver: str
    estimate: float
    exact: float | None


class _Edge(NamedTuple):
    """What is changed for an edge: values and who sees them."""

    sender: str
    receiver: str
    values: tuple[int, ...]
    sight: Sight
    route: frozenset[int]

    @property
    def name(self) -> str:
        return f"{self.sender} -> {self.receiver}"

    def changes(
        self, put: Mapping[int, Callable[[torch.Tensor], torch.Tensor]], graph: Graph
    ) -> list[ValueChange]:
        return [
            ValueChange(value, int(graph.value_producer[value]), self.sight, put[value], self.route)
            for value in self.values
        ]


class EdgeReport(MapReport):
    """Edges by the effect of patching them from another run; ``figure`` draws senders × receivers."""

    def __init__(
        self,
        run: HeldRun,
        measure: Callable[[Any], Any],
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        between: Any = None,
        top: int = 10,
    ) -> None:
        if not args and not kwargs:
            raise UsageError(
                "attribute_edges() patches from a run on other inputs: give them after the measure"
            )
        if not isinstance(top, int) or top < 0:
            raise UsageError(f"top is how many edges are patched in fact, not {top!r}")
        self.run = run
        """The run that is patched."""
        self.between = None if between is None else str(between)
        """The modules between which edges are, as a selector; None for operations."""
        goal = Goal(measure=measure)
        graph = run.graph
        plain = DifferentiableReplay(run)
        self.measured = _number(goal, plain)
        """What is measured in the run."""
        other = DifferentiableReplay(run, args, kwargs)
        self._limits = other.limits
        self.other_measured = _number(goal, other)
        """What is measured in the other run."""
        if between is None:
            edges = _between_operations(
                graph, plain, DifferentiableReplay(run, args, kwargs, vary=_names(run)).touched
            )
        else:
            edges = _between_modules(run, plain, between)
        values = sorted({value for edge in edges for value in edge.values})
        was = _watched(DifferentiableReplay(run, watch=values))
        now = _watched(DifferentiableReplay(run, args, kwargs, watch=values))
        guess = _one_pass if between is None else _pass_by_receiver
        estimates = guess(run, goal, edges, was, now)
        order = sorted(range(len(edges)), key=lambda number: -abs(estimates[number]))
        exact: dict[int, float] = {}
        for number in progress(order[:top], "edges"):
            exact[number] = _patched(run, goal, edges[number], now) - self.measured
        self.rows = [
            EdgeRow(edges[n].name, edges[n].sender, edges[n].receiver, estimates[n], exact.get(n))
            for n in order
        ]
        """Every edge: those that were patched first, by their effect, then by the estimate."""
        self.rows.sort(
            key=lambda row: (row.exact is None, -abs(row.exact if row.exact is not None else row.estimate))
        )

    @property
    def title(self) -> str:  # type: ignore[override]
        """Between what the edges are."""
        return f"Edges between {'operations' if self.between is None else self.between}"

    def facts(self) -> Mapping[str, str]:
        """What is measured in both runs."""
        return {
            "measure": f"{self.measured:.6g}, and {self.other_measured:.6g} in the other run",
            "edges": f"{len(self.rows):,}, of which {sum(row.exact is not None for row in self.rows):,} were patched",
        }

    def listings(self) -> Sequence[Listing]:
        """The edges, the largest effect first."""
        number = "{:+.5g}".format
        fields = (
            Field("sender", "from"),
            Field("receiver", "to"),
            Field("estimate", "estimate", number),
            Field("exact", "effect", lambda item: "" if item is None else number(item)),
        )
        rows = [(row.sender, row.receiver, row.estimate, row.exact) for row in self.rows]
        return [Listing("edges", fields, rows, most=20, heading="The edges that matter most")]

    def notes(self) -> Sequence[str]:
        """What an estimate is."""
        return [
            "an estimate is the gradient at the edge times the difference of the runs; the effect is measured",
            *self._limits,
        ]

    def charts(self) -> Mapping[str, Any]:
        """Senders × receivers, coloured by the effect, or else by its estimate."""
        return Charts(edges=self._grid)

    def _grid(self) -> MapPicture:
        rows = self.rows[:200] if self.between is None else self.rows
        senders = list(dict.fromkeys(row.sender for row in rows))
        receivers = list(dict.fromkeys(row.receiver for row in rows))
        if self.between is not None:
            senders = [name for name in self._order if name in senders]
            receivers = [name for name in self._order if name in receivers]
        grid = np.full((len(senders), len(receivers)), math.nan)
        for row in rows:
            effect = row.estimate if row.exact is None else row.exact
            grid[senders.index(row.sender), receivers.index(row.receiver)] = effect
        return MapPicture(
            self.title, [NumberGrid("", grid, senders, receivers, "from", "to", diverging=True)]
        )

    @property
    def _order(self) -> list[str]:
        planner = planner_of(self.run, self.run.needs_tensors("run"))
        targets = sorted(planner.targets(self.between), key=lambda target: target.after)
        return [*(target.name for target in targets), OUTPUT]


def _names(run: HeldRun) -> list[str]:
    """The inputs that the run read."""
    return list(DifferentiableReplay(run).values)


def _number(goal: Goal, forward: DifferentiableReplay) -> float:
    with without_gradients():
        return float(goal.of(forward.run()).detach().double().sum())


def _watched(forward: DifferentiableReplay) -> dict[int, torch.Tensor]:
    with without_gradients():
        return {value: tensor.detach().clone() for value, tensor in forward.run().watched.items()}


# ---------------------------------------------------------------- which edges there are


def _between_operations(graph: Graph, forward: DifferentiableReplay, touched: Any) -> list[_Edge]:
    """What each operation reads of each other, through views, where the inputs have a part in it."""
    needed = np.zeros(len(graph), dtype=bool)
    needed[forward.nodes] = True
    # of every value the one that it is a view of
    root = np.arange(len(graph.value_type))
    edges: dict[tuple[int, int], list[int]] = {}
    for node in forward.nodes:
        span = slice(*graph.input_span(node))
        rows = graph.in_value[span][(graph.in_kind[span] != Kind.SHAPE) & (graph.in_slot[span] >= 0)].tolist()
        if graph.node_flags[node] & Flag.VIEW:
            for value in graph.out_value[slice(*graph.output_span(node))].tolist():
                root[value] = root[rows[0]] if rows else value
            continue
        for value in dict.fromkeys(rows):
            if touched[value] and graph.types[graph.value_type[value]].dtype.startswith(("float", "bfloat")):
                edges.setdefault((int(root[value]), node), []).append(value)
    result = []
    for (source, node), values in edges.items():
        producer = int(graph.value_producer[source])
        sender = _operation(graph, producer) if producer >= 0 else str(graph.values[source].name or "input")
        sight = Sight(frozenset([node]), only=True)
        result.append(_Edge(sender, _operation(graph, node), tuple(values), sight, frozenset()))
    if not result:
        raise UsageError("no operation of the run reads a floating tensor that the inputs have a part in")
    return result


def _operation(graph: Graph, node: int) -> str:
    row = graph.nodes[node]
    return f"{row.path}/{row.name}#{node}"


def _between_modules(run: HeldRun, forward: DifferentiableReplay, between: Any) -> list[_Edge]:
    """Every two of the selected calls that are joined by operations outside of all of them."""
    planner, graph = forward.planner, run.graph
    targets = planner.targets(between)
    inside = {target.name: _own_nodes(graph, target) for target in targets}
    taken = set().union(*inside.values())
    outside = {node for node in forward.nodes if node not in taken}
    edges = []
    for receiver in [*targets, None]:
        nodes = set() if receiver is None else inside[receiver.name]
        goals = set(forward.outputs) if receiver is None else _read_by(graph, nodes)
        sight = LOOKING if receiver is None else Sight(frozenset(nodes), only=True)
        for sender in targets:
            if sender is receiver or (receiver is not None and sender.after >= receiver.after):
                continue
            value = sender.values[0]
            route = passing_nodes(graph, outside, {value}, goals)
            if not route and value not in goals:
                continue
            name = OUTPUT if receiver is None else receiver.name
            edges.append(_Edge(sender.name, name, (value,), sight, route))
    if not edges:
        raise UsageError(
            f"{str(between)!r}: no two of the selected modules are joined by what lies between them"
        )
    return edges


def _own_nodes(graph: Graph, target: ReplayTarget) -> set[int]:
    """The forward operations of a call."""
    if target.sight.only:
        raise UsageError(
            f"{target.name!r} is no module: edges between modules are from what one returns to another"
        )
    return {node for node in target.sight.nodes if graph.node_phase[node] == Phase.FORWARD}


def _read_by(graph: Graph, nodes: set[int]) -> set[int]:
    return {value for node in nodes for value in graph.in_value[slice(*graph.input_span(node))].tolist()}


# ---------------------------------------------------------------- the estimate, and the effect


def _followed(leaves: dict[Any, torch.Tensor], key: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Hand a tensor on as one whose gradient can be asked for."""

    def put(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            leaves[key] = alias = tensor.clone()
            return alias
        leaf = leaves[key] = tensor.detach().clone().requires_grad_()
        return leaf.clone()

    return put


def _forward_for(run: HeldRun, edges: Sequence[_Edge]) -> DifferentiableReplay:
    graph = run.graph
    places = [
        ReplayTarget(edge.name, edge.values, int(graph.value_producer[edge.values[0]]), Sight(frozenset()))
        for edge in edges
    ]
    return DifferentiableReplay(run, places=places)


Contents = Mapping[int, torch.Tensor]


def _one_pass(run: HeldRun, goal: Goal, edges: list[_Edge], was: Contents, now: Contents) -> list[float]:
    """The estimates of edges between operations: one pass, in which every reader has a tensor of its own."""
    leaves: dict[Any, torch.Tensor] = {}
    changes = []
    for number, edge in enumerate(edges):
        put = {value: _followed(leaves, (number, value)) for value in edge.values}
        changes += edge.changes(put, run.graph)
    forward = _forward_for(run, edges)
    return _estimates(forward, goal, changes, leaves, edges, was, now)


def _pass_by_receiver(
    run: HeldRun, goal: Goal, edges: list[_Edge], was: Contents, now: Contents
) -> list[float]:
    """The estimates of edges between modules: one pass for each receiver, with all its senders followed."""
    estimates = [0.0] * len(edges)
    receivers = dict.fromkeys(edge.receiver for edge in edges)
    for receiver in progress(list(receivers), "edges"):
        numbers = [number for number, edge in enumerate(edges) if edge.receiver == receiver]
        route = frozenset().union(*(edges[number].route for number in numbers))
        leaves: dict[Any, torch.Tensor] = {}
        changes = []
        mine = []
        for index, number in enumerate(numbers):
            edge = edges[number]._replace(route=route)
            mine.append(edge)
            changes += edge.changes({v: _followed(leaves, (index, v)) for v in edge.values}, run.graph)
        of_pass = _estimates(_forward_for(run, mine), goal, changes, leaves, mine, was, now)
        for number, estimate in zip(numbers, of_pass):
            estimates[number] = estimate
    return estimates


def _estimates(
    forward: DifferentiableReplay,
    goal: Goal,
    changes: list[ValueChange],
    leaves: dict[Any, torch.Tensor],
    edges: Sequence[_Edge],
    was: Contents,
    now: Contents,
) -> list[float]:
    measured = goal.of(forward.run(changes=changes)).sum()
    keys = list(leaves)
    gradients = dict(zip(keys, forward.gradients(measured, [leaves[key] for key in keys])))
    return [
        sum(
            float(((now[value] - was[value]).double() * gradients[number, value].double()).sum())
            for value in edge.values
            if (number, value) in gradients
        )
        for number, edge in enumerate(edges)
    ]


def _patched(run: HeldRun, goal: Goal, edge: _Edge, now: Contents) -> float:
    """What is measured with one edge patched."""
    contents = {value: (lambda _, value=value: now[value].clone()) for value in edge.values}
    with without_gradients():
        outcome = _forward_for(run, [edge]).run(changes=edge.changes(contents, run.graph))
        return float(goal.of(outcome).detach().double().sum())


# ---------------------------------------------------------------- paths


def patch_path(
    run: HeldRun,
    path: Sequence[Any],
    edit: Replacement,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    frozen: Any = None,
) -> Rerun:
    """A run in which a change at the first place of a path acts through the path alone."""
    if isinstance(path, str) or len(path) < 2:
        raise UsageError('path is a list of at least two places, such as ["h.0.attn", "h.3.attn"]')
    check_replacement(path[0], edit)
    planner = planner_of(run, run.needs_tensors("run"))
    graph = run.graph
    ends_outside = isinstance(path[-1], str) and path[-1] == OUTPUT
    places = [_single(planner.targets(place), place) for place in (path[:-1] if ends_outside else path)]
    allowed = _allowed(run, DifferentiableReplay(run, args, kwargs), places, frozen)
    first = places[0]
    index = full_index(graph, first)
    (old,) = DifferentiableReplay(run, args, kwargs).values_of([first])
    with without_gradients():
        new = changed(old, edit, EditPlace(first.name), index)
    output: Any = None
    for number, sender in enumerate(places[: None if ends_outside else -1]):
        last = number + 2 > len(places) - (0 if ends_outside else 1)
        receiver = None if number + 1 >= len(places) else places[number + 1]
        forward = DifferentiableReplay(run, args, kwargs)
        edge = _leg(graph, forward, sender, receiver, allowed)
        watch = [] if receiver is None or last else [receiver.values[0]]
        patched = DifferentiableReplay(
            run, args, kwargs, watch=watch,
            places=[ReplayTarget(edge.name, edge.values, sender.after, Sight(frozenset()))],
        )  # fmt: skip
        with without_gradients():
            contents = {edge.values[0]: lambda _, new=new: new.clone()}
            outcome = patched.run(changes=edge.changes(contents, graph))
        output = outcome.output
        if watch:
            new = outcome.watched[watch[0]]
    return Rerun(output=output, ran=len(patched.nodes) - len(patched.steady))


def _single(targets: Sequence[ReplayTarget], place: Any) -> ReplayTarget:
    if len(targets) > 1:
        raise UsageError(
            f"{str(place)!r} stands for {len(targets)} places; a path goes through one at a time"
        )
    return targets[0]


def _leg(
    graph: Graph,
    forward: DifferentiableReplay,
    sender: ReplayTarget,
    receiver: ReplayTarget | None,
    allowed: set[int],
) -> _Edge:
    """From one place of a path to the next."""
    value = sender.values[0]
    if sender.sight.only:
        # a head, or what a module is given: the change begins with those who read it there
        allowed = allowed | {n for n in sender.sight.nodes if graph.node_phase[n] == Phase.FORWARD}
    if receiver is None:
        route = passing_nodes(graph, allowed | _tail(graph, forward), {value}, set(forward.outputs))
        edge = _Edge(sender.name, OUTPUT, (value,), LOOKING, route)
        joined = bool(route) or value in forward.outputs
    else:
        nodes = {node for node in receiver.sight.nodes if graph.node_phase[node] == Phase.FORWARD}
        if receiver.sight.only and not nodes:
            raise UsageError(f"{receiver.name!r} has no reader")
        goals = _read_by(graph, nodes)
        route = passing_nodes(graph, allowed - nodes, {value}, goals)
        edge = _Edge(sender.name, receiver.name, (value,), Sight(frozenset(nodes), only=True), route)
        joined = bool(route) or value in goals
    if not joined:
        raise UsageError(
            f"nothing leads from {edge.sender!r} to {edge.receiver!r} but through what is frozen; name in frozen= what "
            "is to stay as it was, and all else passes the change on"
        )
    return edge


def _tail(graph: Graph, forward: DifferentiableReplay) -> set[int]:
    """The operations at the end, one after another, that nothing else of the inputs joins: head and unembedding."""
    touched = DifferentiableReplay(forward.trace, vary=list(forward.values)).touched
    tail: set[int] = set()
    values = list(forward.outputs)
    while values:
        node = int(graph.value_producer[values.pop()])
        if node < 0 or node in tail:
            continue
        read = {v for v in graph.in_value[slice(*graph.input_span(node))].tolist() if touched[v]}
        if len(read) == 1:
            tail.add(node)
            values += read
    return tail


def _allowed(
    run: HeldRun, forward: DifferentiableReplay, places: Sequence[ReplayTarget], frozen: Any
) -> set[int]:
    """The operations that pass a change on."""
    graph = run.graph
    if frozen is not None:
        held = np.zeros(len(graph), dtype=bool)
        for match in graph.query().matches(frozen, operations=True):
            held[match.rows] = True
        return {node for node in forward.nodes if not held[node]}
    normalising = _normalising(graph)
    return {
        node
        for node in forward.nodes
        if graph.node_flags[node] & Flag.VIEW
        or normalising[node]
        or common_name(graph.nodes[node].op) in PASSING
    }


def _normalising(graph: Graph) -> Bools:
    """The operations of modules that normalise, such as ``LlamaRMSNorm``, whatever operators they are written in."""
    of_class = np.array(["norm" in module.type.lower() for module in graph.modules], dtype=bool)
    inside: Bools = graph.tree.inside_some(of_class[graph.scope_module])[graph.node_scope]
    return inside
