"""The recorded operations run again: on new inputs, with interventions, keeping what is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from torch_vis.errors import CheckFailed, TensorsMissing, UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.held import Held, copy_of
from torch_vis.run.inputs import input_values
from torch_vis.run.keeping import keeper
from torch_vis.run.replay import Replay, ReplayPlan, where
from torch_vis.run.select import Target, all_nodes, gradients, targets

Replacement = torch.Tensor | Callable[[Any], Any]


@dataclass
class Rerun:
    """What a run of the recorded graph gave.

    >>> import torch, torch_vis as tv
    >>> again = tv.trace(torch.nn.ReLU(), torch.ones(2)).run(torch.tensor([-1.0, 2.0]))
    >>> again.output, again.ran
    (tensor([0., 2.]), 1)
    """

    output: Any = None
    """The output, in the containers in which the model returned it."""
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    """The gradients by the name of what they belong to, where the trace has a backward pass."""
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    """State that the run changes (running statistics, caches), as it would be; the model's own is not touched."""
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    """The tensors that ``keep`` asked for; empty where they went to a file."""
    ran: int = 0
    """How many operations ran."""
    limits: tuple[str, ...] = ()
    """What is as it was recorded and might be different now, in sentences."""


@dataclass
class Request:
    """What a run is asked for."""

    inputs: Mapping[str, torch.Tensor]
    replace: Mapping[Any, Replacement]
    keep: Any
    to: str | os.PathLike[str] | None


def execute(graph: Graph, held: Held, request: Request) -> tuple[Rerun, dict[int, torch.Tensor]]:
    """Run what the request touches; gives the tensors of all results by number as well."""
    if any(t.device.type == "meta" or type(t).__name__ == "FakeTensor" for t in held.results.values()):
        raise TensorsMissing(
            "the run used meta or fake tensors, which hold no data; trace with real tensors to run it"
        )
    plan = ReplayPlan(graph, held)
    patches = [(t, by) for key, by in request.replace.items() for t in _patched(graph, key)]
    kept = _kept(graph, request.keep)
    given = input_values(graph, list(request.inputs))
    start = set(given.values()) | {value for target, _ in patches for value in target.values}
    touched = descendants(graph, start)
    goals = [r for r in range(len(graph.results)) if not start or _rests_on(graph, r, touched)]
    needed = _needed(graph, goals, kept, patches)
    names = {name: value for target in kept for name, value in _names(graph, target)}
    rerun = Rerun(ran=len(needed), limits=_limits(graph, needed, touched))
    with keeper(graph, names, request.to) as sink:
        run = _Execution(graph, held, plan, sink, kept, patches)
        run.give({value: request.inputs[name] for name, value in given.items()})
        try:
            run.run(needed, states={})
        except CheckFailed as error:
            raise UsageError(
                f"the recorded operations do not fit: {error}; what depends on the data (sizes, branches) is as "
                "recorded, so trace again with these inputs"
            ) from error
        rerun.kept = sink.kept
        refused = getattr(sink, "refused", ())
    if refused:
        rerun.limits += (f"not written, safetensors has no form for them: {', '.join(refused)}",)
    again = set(goals)
    results = {r: run.result(r) if r in again else held.results[r] for r in range(len(graph.results))}
    for number, tensor in results.items():
        row = graph.results[number]
        if row.kind in ("gradient", "state"):
            kind = rerun.gradients if row.kind == "gradient" else rerun.state
            kind[row.name.removesuffix(".grad") if row.kind == "gradient" else row.name] = tensor
    return rerun, results


class _Execution(Replay):
    """A replay in which values can be replaced for all who read them afterwards.

    A replaced value gets a block of its own, and with it the views of it and the writes to it that follow. The
    operations that it came from still see the old one in their backward, as they do where a hook
    replaces an output.
    """

    def __init__(
        self,
        graph: Graph,
        held: Held,
        plan: ReplayPlan,
        sink: Any,
        kept: Sequence[Target],
        patches: Sequence[tuple[Target, Replacement]],
    ) -> None:
        super().__init__(graph, held, plan)
        self.sink = sink
        self.at = -1
        self.moved: dict[int, int] = {}  # value → its block of its own
        self.origin: dict[int, frozenset[int]] = {}  # value → the operations that see the old one
        self.actions: dict[int, list[Callable[[], None]]] = {}
        for target, by in patches:
            self._when(target.after, partial(self.patch, target, by))
        for target in kept:
            self._when(target.after, partial(self.store, target))
            for name, value in _gradient_names(graph, target):
                self._when(int(graph.value_producer[value]), partial(self.put, name, value))

    def _when(self, node: int, action: Callable[[], None]) -> None:
        self.actions.setdefault(node, []).append(action)

    def block(self, value: int) -> int:
        """The block of a value: one of its own once it was replaced."""
        if value in self.moved and self.at not in self.origin[value]:
            return self.moved[value]
        return super().block(value)

    def _run_node(self, node: int, states: dict[int, Any] | None) -> None:
        self.at = node
        if self.moved:
            self._follow(node)
        super()._run_node(node, states)
        self.at = -1
        for action in self.actions.get(node, ()):
            action()

    def _follow(self, node: int) -> None:
        """Views of and writes to a replaced value lie in its block."""
        graph = self.graph
        for read in self.plan.arguments(node):
            if read in self.moved and node not in self.origin[read]:
                for value in graph.out_value[slice(*graph.output_span(node))].tolist():
                    if graph.value_storage[value] == graph.value_storage[read]:
                        self.moved[value], self.origin[value] = self.moved[read], self.origin[read]

    def give(self, inputs: Mapping[int, torch.Tensor]) -> None:
        """Put new inputs in the place of the recorded ones."""
        graph = self.graph
        for value, tensor in inputs.items():
            storage = int(graph.value_storage[value])
            if value in self.held.opaque:
                self.objects[storage] = tensor.detach()
                continue
            if self.memory[storage]._cdata == self.held.storages[storage]._cdata:
                self.memory[storage] = copy_of(self.held.storages[storage])
            with torch.no_grad():
                self.tensor(value).copy_(tensor)

    def patch(self, target: Target, by: Replacement) -> None:
        """Replace what a module or operation gave."""
        before = [self.tensor(value).clone() for value in target.values]
        found = by if isinstance(by, torch.Tensor) else by(before[0] if len(before) == 1 else tuple(before))
        after = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(after) != len(before):
            raise UsageError(
                f"{target.name!r} gives {len(before)} tensors; the replacement gave {len(after)}"
            )
        blocks: dict[int, int] = {}
        for value, old, new in zip(target.values, before, after):
            _same_form(target.name, old, new)
            storage = super().block(value) if value not in self.moved else self.moved[value]
            if storage not in blocks:
                blocks[storage] = -1 - len(self.moved) - len(blocks)
                while blocks[storage] in self.memory or blocks[storage] in self.objects:
                    blocks[storage] -= 1
                if storage in self.memory:
                    self.memory[blocks[storage]] = copy_of(self.memory[storage])
            self.moved[value], self.origin[value] = blocks[storage], target.inside
            if storage in self.memory:
                self.tensor(value).copy_(new)
            else:
                self.objects[blocks[storage]] = new

    def store(self, target: Target) -> None:
        """Keep what a module or operation gave."""
        for name, value in _forward_names(target):
            self.put(name, value)

    def put(self, name: str, value: int) -> None:
        """Keep one value."""
        written = self.plan.written[int(self.graph.value_storage[value])] or value in self.moved
        self.sink.put(name, self.tensor(value), copy=bool(written))

    def result(self, number: int) -> torch.Tensor:
        """One of the run's results."""
        return self.tensor(self.graph.outcomes[number].value.index)


def _same_form(name: str, old: torch.Tensor, new: Any) -> None:
    if not isinstance(new, torch.Tensor):
        raise UsageError(f"the replacement for {name!r} gave {type(new).__name__}, not a tensor")
    for what in ("shape", "dtype", "device"):
        if getattr(old, what) != getattr(new, what):
            raise UsageError(
                f"{name!r} has {what} {getattr(old, what)}; the replacement has {getattr(new, what)}"
            )


# ---------------------------------------------------------------- what has to run


def descendants(graph: Graph, values: set[int]) -> Any:
    """A mask of the values that depend on the bytes of the given ones, themselves included."""
    touched = np.zeros(len(graph.value_type), dtype=bool)
    touched[list(values)] = True
    outside = [v for v in values if graph.value_producer[v] < 0]
    for value in outside:  # other tensors on the same memory from outside
        touched |= (graph.value_storage == graph.value_storage[value]) & (graph.value_producer < 0)
    reads = graph.in_kind != Kind.SHAPE
    for node in range(len(graph)):
        start, stop = graph.input_span(node)
        if (touched[graph.in_value[start:stop]] & reads[start:stop]).any():
            touched[graph.out_value[slice(*graph.output_span(node))]] = True
            continue
        for value in graph.out_value[slice(*graph.output_span(node))]:
            carried = graph.value_carries[value]
            if carried >= 0 and touched[carried]:
                touched[value] = True
    return touched


def _rests_on(graph: Graph, result: int, touched: Any) -> bool:
    return any(touched[value] for value, _ in graph.outcomes[result].sources())


def _needed(
    graph: Graph, goals: list[int], kept: list[Target], patches: Sequence[tuple[Target, Replacement]]
) -> list[int]:
    """The operations that lead to the results that change and to what is kept, in order."""
    wanted = [pair for goal in goals for pair in graph.outcomes[goal].sources()]
    asked = [*kept, *(target for target, _ in patches)]
    wanted += [(value, int(Kind.WHOLE)) for target in asked for value in target.values]
    wanted += [(v, int(Kind.WHOLE)) for target in kept for v in _gradient_values(graph, target)]
    nodes, _ = graph.ancestors(wanted)
    return np.flatnonzero(nodes).tolist()


def _limits(graph: Graph, needed: list[int], touched: Any) -> tuple[str, ...]:
    """Where the rest of the run is as recorded though what it rested on is not."""
    found = []
    flags = graph.node_flags
    for node in np.flatnonzero(flags & (Flag.ESCAPE | Flag.OPAQUE)).tolist():
        reads = graph.in_value[slice(*graph.input_span(node))]
        if touched[reads].any():
            if flags[node] & Flag.OPAQUE:
                raise UsageError(
                    f"{where(graph, node)} could not be looked into when it was recorded, and cannot be run"
                )
            found.append(
                f"a value left for Python at {where(graph, node)}: what was decided by it is as recorded"
            )
    return tuple(found)


# ---------------------------------------------------------------- names


def _patched(graph: Graph, key: Any) -> list[Target]:
    found = targets(graph, key)
    for target in found:
        if not target.values:
            raise UsageError(f"{target.name!r} makes no tensor that could be replaced")
    return found


def _kept(graph: Graph, keep: Any) -> list[Target]:
    if keep is None:
        return []
    if isinstance(keep, str) and keep == "all":
        return all_nodes(graph)
    wanted = keep if isinstance(keep, (list, tuple, set)) else [keep]
    found = {target.name: target for item in wanted for target in targets(graph, item)}
    return list(found.values())


def _gradient_values(graph: Graph, target: Target) -> tuple[int, ...]:
    return gradients(graph, target) if target.is_module else ()


def _forward_names(target: Target) -> list[tuple[str, int]]:
    return [
        (target.name if number == 0 else f"{target.name}.{number}", value)
        for number, value in enumerate(target.values)
    ]


def _gradient_names(graph: Graph, target: Target) -> list[tuple[str, int]]:
    return [
        (f"{target.name}.grad" + (f".{number}" if number else ""), value)
        for number, value in enumerate(_gradient_values(graph, target))
    ]


def _names(graph: Graph, target: Target) -> list[tuple[str, int]]:
    return _forward_names(target) + _gradient_names(graph, target)
