"""A replay that autograd can differentiate: operations run on tensors, where ``Replay`` runs them on blocks of memory.

A ``DifferentiableReplay`` runs those that lead to the outputs, as often as wanted, with inputs or values on the way put
in by the caller. Every value is the tensor that torch's own operator gave, views and writes in place included, so that
autograd sees what it saw in the recorded program. What does not depend on what is put in is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.containers import Form, KeptByName, filled
from torch_vis.capture.edits import EditPlace, changed, same_form, sliced, takes_first
from torch_vis.capture.modes import gradients, with_gradients, without_gradients
from torch_vis.errors import CheckFailed, TorchVisError, UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import RECORDED, Flag
from torch_vis.ops.names import plain_name
from torch_vis.replay.decompositions import lstm_layer
from torch_vis.replay.edited_replay import called, edit_places, refuse_passed
from torch_vis.replay.held_run import HeldRun, input_values
from torch_vis.replay.replay import Replay, flat, node_text, replay_context
from torch_vis.replay.rerun import Rerun, RunPlanner, doubts_of, planner_of, rebuilt, replaced_by, rerun
from torch_vis.replay.slicing import (
    ReplayTarget,
    Sight,
    descendants,
    full_index,
    kept_values,
    needed_nodes,
)

VIEW, RANDOM, GRAD_MODE, ESCAPE = int(Flag.VIEW), int(Flag.RANDOM), int(Flag.GRAD_MODE), int(Flag.ESCAPE)

# operators whose derivative torch has only for a run that was made to have one, and what they are made of
IN_PARTS: dict[str, Callable[..., Any]] = {"mkldnn_rnn_layer": lstm_layer}


Observer = Callable[[int, "list[torch.Tensor]", "dict[int, torch.Tensor]"], None]


class ValueChange(NamedTuple):
    """A replacement of one value, and who sees it; ``route`` are operations that pass it on to no others."""

    value: int
    after: int
    sight: Sight
    put: Callable[[torch.Tensor], torch.Tensor]
    route: frozenset[int] = frozenset()


def change_of(target: ReplayTarget, put: Callable[[torch.Tensor], torch.Tensor]) -> ValueChange:
    """A change of the first tensor of a target."""
    return ValueChange(target.values[0], target.after, target.sight, put)


class ForwardPass(NamedTuple):
    """What one run gave: the output in its containers, the tensors of the outputs, and the values that were watched."""

    output: Any
    outputs: list[torch.Tensor]
    watched: dict[int, torch.Tensor]


class DifferentiableReplay:
    """Reruns the operations that lead to a run's outputs, with gradients.

    ``args`` and ``kwargs`` are the inputs, as recorded where there are none; ``vary`` names those that are put in anew
    in every pass, ``places`` what is changed on the way, ``watch`` values to be handed out.
    """

    def __init__(
        self,
        trace: HeldRun,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        vary: Sequence[str] = (),
        places: Sequence[ReplayTarget] = (),
        watch: Sequence[int] = (),
        fixed: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        self.trace = trace
        self.planner: RunPlanner = planner_of(trace, trace.needs_tensors("run"))
        graph = self.graph = self.planner.graph
        self.results = [r for r, row in enumerate(graph.results) if row.kind == "output"]
        self.outputs = [graph.outcomes[r].value.index for r in self.results]
        if not self.outputs:
            raise UsageError("the run returned no tensor, so that there is nothing to start from")
        self.inputs = inputs_of(trace, args, kwargs)
        self.limits = doubts_of(trace, self.planner.held, self.inputs, args, dict(kwargs or {}))
        """What is as recorded and might be different with these inputs, in sentences."""
        if self.inputs and self.planner.escapes.any:
            # raises where they take another way through the program
            self.limits = rerun(trace, args, dict(kwargs or {}), {}, None, None).limits
        if trace.entry is not None:
            names = list(trace.entry.names)
        else:
            names = [str(value.name) for value in graph.inputs if value.role == "input"]
        known = input_values(graph, names)
        # in the order of the call; an input that no operation read has no value
        self.values = {name: known[name] for name in dict.fromkeys(names) if name in known}
        self.vary = {name: self.values[name] for name in vary}
        self.watch = frozenset(watch)
        self.places = list(places)
        # what inputs are in every pass, by value: those that were given and are not varied
        self.fixed = {
            self.values[name]: tensor for name, tensor in self.inputs.items() if name in self.values
        }
        self.fixed.update(fixed or {})
        self.nodes = _with_objects(graph, self._needed())
        touched = descendants(graph, set(self.vary.values()))
        for target in self.places:
            touched = touched | self.planner.touched_by(target)
        self.touched = touched
        self.states: dict[int, Any] = {}
        self._follows_gradients = bool(
            (graph.node_flags[self.nodes] & GRAD_MODE).any() if len(self.nodes) else False
        )

    def _needed(self) -> list[int]:
        graph = self.graph
        watched = [
            ReplayTarget(str(value), (value,), int(graph.value_producer[value]), Sight(frozenset()))
            for value in self.watch
        ]
        return needed_nodes(graph, self.results, watched, self.places)

    @cached_property
    def left(self) -> list[int]:
        """The operations through which something that may be another now leaves for Python, or for unseen code."""
        graph = self.graph
        rows = np.flatnonzero(graph.node_flags & (Flag.ESCAPE | Flag.OPAQUE)).tolist()
        return [n for n in rows if self.touched[graph.in_value[slice(*graph.input_span(n))]].any()]

    @cached_property
    def left_at(self) -> list[str]:
        """The places in the program where something that may be another now leaves for Python, or for unseen code."""
        touched = self.touched | descendants(self.graph, set(self.fixed))
        left = self.planner.escapes
        escapes = [*left.changed_before(touched), *left.changed_after(touched)]
        places = [node_text(self.graph, node) for node in [*self.left, *left.deciding(touched)]]
        return [*places, *(f"{escape.method}() at {escape.where}" for escape in escapes)]

    @cached_property
    def cut(self) -> list[int]:
        """The operations on floating numbers that ran without gradients though others had them: none passes through."""
        graph = self.graph
        if not self._follows_gradients:
            return []
        return [
            node
            for node in self.nodes
            if not graph.node_flags[node] & (GRAD_MODE | ESCAPE)
            and any(
                self.touched[value]
                and graph.types[graph.value_type[value]].dtype.startswith(("float", "bfloat"))
                for value in graph.out_value[slice(*graph.output_span(node))].tolist()
            )
        ]

    @cached_property
    def _watched_and_written(self) -> dict[int, list[int]]:
        """The watched values whose memory is written to, by the node that makes them."""
        graph, written = self.graph, self.planner.plan.written
        rows: dict[int, list[int]] = {}
        for value in self.watch:
            if written[graph.value_storage[value]]:
                rows.setdefault(max(int(graph.value_producer[value]), -1), []).append(value)
        return rows

    @cached_property
    def steady(self) -> frozenset[int]:
        """The operations that give the same in every pass, and whose memory nobody writes to."""
        graph, written = self.graph, self.planner.plan.written
        out_changes = self.touched[graph.out_value] | written[graph.value_storage[graph.out_value]]
        in_changes = self.touched[graph.in_value] | written[graph.value_storage[graph.in_value]]
        changes = np.zeros(len(graph), dtype=bool)
        changes[graph.out_node[out_changes]] = True
        changes[graph.in_node[in_changes]] = True
        changes |= (graph.node_flags & (RANDOM | RECORDED)) != 0
        # and whoever reads what such an operation made
        rows = changes.tolist()
        producer = graph.value_producer[graph.in_value].tolist()
        start = graph.in_start.tolist()
        for node in self.nodes:
            if not rows[node]:
                rows[node] = any(p >= 0 and rows[p] for p in producer[start[node] : start[node + 1]])
        return frozenset(node for node in self.nodes if not rows[node])

    @cached_property
    def constants(self) -> dict[int, torch.Tensor]:
        """What the steady operations made, as far as others read it."""
        run = _Pass(self, {}, ())
        with replay_context(self.planner.plan.generators):
            for node in self.nodes:
                if node in self.steady:
                    run.run_node(node, self.states)
        graph = self.graph
        others = [node for node in self.nodes if node not in self.steady]
        read = set(self.outputs) | self.watch
        for node in others:
            read.update(self.planner.plan.arguments(node))
        read.update(target.values[0] for target in self.places)
        read.update(value for value in run.made if graph.value_producer[value] < 0)
        return {value: tensor for value, tensor in run.made.items() if value in read}

    def run(
        self,
        inputs: Mapping[str, torch.Tensor] | None = None,
        changes: Sequence[ValueChange] = (),
        observe: Observer | None = None,
    ) -> ForwardPass:
        """One pass: ``inputs`` for those that vary, ``changes`` at the places.

        ``observe`` is called for every operation that is not steady with its number, the tensors in its slots, and what
        it made by value; of memory that is written to, with copies.
        """
        given = {self.vary[name]: tensor for name, tensor in (inputs or {}).items()}
        constants = self.constants
        run = _Pass(self, given, changes)
        run.observe = observe
        run.made.update({v: t for v, t in constants.items() if v not in given})
        # what is written to later is copied when it is there
        passing = self._watched_and_written
        copies = {value: run.seen(-1, value).clone() for value in passing.get(-1, ())}
        with replay_context(self.planner.plan.generators):
            run.act(-1)
            for node in self.nodes:
                if node not in self.steady:
                    run.run_node(node, self.states)
                run.act(node)
                for value in passing.get(node, ()):
                    copies[value] = run.seen(-1, value).clone()
        tensors = [run.seen(-1, value) for value in self.outputs]
        watched = {v: copies[v] if v in copies else run.seen(-1, v) for v in self.watch}
        results = {**self.planner.held.results, **dict(zip(self.results, tensors))}
        return ForwardPass(rebuilt(self.trace, results), tensors, watched)

    def input(self, name: str) -> torch.Tensor:
        """An input as it was given, or else as it was recorded."""
        if name in self.inputs:
            return self.inputs[name].detach()
        planner = self.planner
        return Replay(planner.graph, planner.held, planner.plan).tensor(self.values[name])

    def values_of(self, targets: Sequence[ReplayTarget]) -> list[torch.Tensor]:
        """What places have in a pass with nothing changed, as copies without history."""
        values = {target.values[0] for target in targets}
        taken: dict[int, torch.Tensor] = {}
        changes = []
        for target in targets:

            def take(tensor: torch.Tensor, value: int = target.values[0]) -> torch.Tensor:
                taken[value] = tensor.detach().clone()
                return tensor

            changes.append(change_of(target, take))
        whole = DifferentiableReplay(self.trace, places=list(targets), watch=sorted(values), fixed=self.fixed)
        whole.states = self.states
        with without_gradients():
            whole.run(changes=changes)
        return [taken[target.values[0]] for target in targets]

    def gradients(self, measured: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients of a number by some tensors; zeros where it does not depend on one."""
        if not measured.requires_grad and (self.cut or self.left):
            raise UsageError(
                f"no gradient passes through the run: {node_text(self.graph, (self.cut or self.left)[0])} ran without "
                "gradients (torch.no_grad, a custom autograd.Function, compiled code); occlusion needs none"
            )
        if not measured.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
        try:
            grads = torch.autograd.grad(measured, list(leaves), allow_unused=True)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise UsageError(
                f"no gradient passes through the run: {reason}; trace it with gradients enabled, "
                "so that torch takes kernels that have one"
            ) from error
        return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, grads)]


def run_with_gradients(
    trace: HeldRun, args: tuple[Any, ...], kwargs: dict[str, Any], replace: Mapping[Any, Any], keep: Any
) -> Rerun:
    """A run whose tensors have a history: that of inputs that require gradients, and of what replaces something."""
    planner = planner_of(trace, trace.needs_tensors("run"))
    if keep == "all" and isinstance(keep, str):
        raise UsageError("differentiable=True keeps places by name: keep=[...]")
    limits: tuple[str, ...] = ()
    if planner.escapes.any:
        # raises where they take another way through the program
        limits = rerun(trace, args, kwargs, replace, None, None).limits
    patches = replaced_by(planner, replace)
    kept = planner.kept(keep)
    watch = [value for target in kept for value in target.values]
    forward = DifferentiableReplay(trace, args, kwargs, places=[t for t, _ in patches], watch=watch)
    for target in forward.places:
        if not planner.touched_by(target)[[*forward.outputs, *watch]].any():
            raise UsageError(
                f"replacing {target.name!r} would change neither the output nor what is kept, and with "
                "differentiable=True a run has nothing else"
            )
    changes = [
        change_of(target, partial(_put, planner.graph, target, by, place))
        for (target, by), place in zip(patches, edit_places(forward.places))
    ]
    passed = forward.run(changes=changes)
    result = Rerun(output=passed.output, ran=len(forward.nodes), limits=limits or forward.limits)
    result.kept = by_name = KeptByName()
    by_name.second_paths, by_name.asked = planner.finder.second_paths, planner.asked(keep)
    for target in kept:
        by_name.update(_kept_with_history(planner.graph, target, passed.watched))
    return result


def _put(graph: Graph, target: ReplayTarget, by: Any, place: EditPlace, tensor: torch.Tensor) -> torch.Tensor:
    """What a replacement puts in the place of a tensor."""
    refuse_passed(target, target.values[0])
    if takes_first(by) or not target.whole:
        return changed(tensor, by, place, full_index(graph, target))
    if len(target.values) > 1:
        raise UsageError(
            f"{target.name!r} gives {len(target.values)} tensors: with differentiable=True a function is given one, so "
            f"name it, {target.name + '.output.0'!r} say, or use tv.live"
        )
    (new,) = called(target, by, [tensor])
    same_form(target.name, tensor, new)
    return new


def _kept_with_history(
    graph: Graph, target: ReplayTarget, watched: Mapping[int, torch.Tensor]
) -> dict[str, Any]:
    """What was kept of a place, in the form in which the module returned it."""
    index = full_index(graph, target)
    if isinstance(target.form, Form):
        parts = {value: sliced(watched[value], index, target.name) for value in target.values}
        return {target.name: filled(target.form, lambda number: None if number is None else parts[number])}
    rows = kept_values(graph, target._replace(is_module=False))
    return {row.name: sliced(watched[row.value], row.part, row.name) for row in rows}


def inputs_of(
    trace: HeldRun, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> dict[str, torch.Tensor]:
    """New inputs by name; none where those of the recorded run are meant."""
    if not args and not kwargs:
        return {}
    if trace.entry is None:
        raise UsageError("a recorded block has no inputs of its own; trace() the callable")
    inputs = trace.entry.named(args, dict(kwargs or {}))
    other = trace.entry.reshaped(inputs)
    if other:
        raise UsageError(
            f"input {'; input '.join(other)}; the recorded operations have their sizes fixed: trace with this input"
        )
    return inputs


def _with_objects(graph: Graph, needed: Sequence[int]) -> list[int]:
    """The needed operations and those that make the tensors in their slots, though only their memory is meant."""
    chosen = np.zeros(len(graph), dtype=bool)
    stack = list(needed)
    chosen[stack] = True
    producer = graph.value_producer[graph.in_value].tolist()
    start = graph.in_start.tolist()
    while stack:
        node = stack.pop()
        for source in producer[start[node] : start[node + 1]]:
            if source >= 0 and not chosen[source]:
                chosen[source] = True
                stack.append(source)
    return np.flatnonzero(chosen).tolist()


class _Pass(Replay):
    """One pass: every value as the tensor that torch gave."""

    def __init__(
        self, forward: DifferentiableReplay, given: Mapping[int, torch.Tensor], changes: Sequence[ValueChange]
    ) -> None:
        planner = forward.planner
        super().__init__(planner.graph, planner.held, planner.plan)
        self.forward = forward
        self.made: dict[int, torch.Tensor] = {}
        self.shadows: dict[int, list[tuple[torch.Tensor, ValueChange]]] = {}
        self.bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self.observe: Observer | None = None
        self.waiting = sorted(changes, key=lambda change: change.after)[::-1]
        for value, tensor in {**forward.fixed, **given}.items():
            self.made[value] = self._shaped(value, tensor)

    def _shaped(self, value: int, tensor: torch.Tensor) -> torch.Tensor:
        """An input with the strides of the recorded one, which the program may write to."""
        row = self.graph.types[self.graph.value_type[value]]
        if row.layout != "strided":
            return tensor
        if tuple(tensor.stride()) == row.stride and not self.plan.written[self.graph.value_storage[value]]:
            return tensor
        with with_gradients():
            copy = torch.empty_strided(row.shape, row.stride, dtype=tensor.dtype, device=tensor.device)
            return copy.copy_(tensor)

    def act(self, node: int) -> None:
        """Put in what is due once a node has run."""
        while self.waiting and self.waiting[-1].after <= node:
            change = self.waiting.pop()
            with with_gradients():
                new = change.put(self.seen(-1, change.value))
            self.shadows.setdefault(change.value, []).append((new, change))

    def seen(self, node: int, value: int) -> torch.Tensor:
        """A value as a node sees it; -1 is who looks at it from outside."""
        for shadow, change in reversed(self.shadows.get(value, ())):
            if change.sight.sees(node) or node in change.route:
                return shadow
        if value not in self.made:
            self.made[value] = self._from_outside(value)
        return self.made[value]

    def _from_outside(self, value: int) -> torch.Tensor:
        """A tensor from before the run; what is written to is a part of one block, so that views are views."""
        storage = int(self.graph.value_storage[value])
        row = self.graph.types[self.graph.value_type[value]]
        plain = row.layout == "strided" and not row.conj and not row.neg
        if not plain or not self.plan.written[storage] or self.plan.allocated_in_run[storage]:
            return super().tensor(value)
        dtype, _ = self.plan.dtype_and_extent(int(self.graph.value_type[value]))
        base = self.bases.get((storage, dtype))
        if base is None:
            block = self.memory[storage]
            count = block.nbytes() // dtype.itemsize
            base = torch.empty(0, dtype=dtype, device=block.device).set_(block, 0, (count,), (1,))
            self.bases[storage, dtype] = base
        return base.as_strided(row.shape, row.stride, int(self.graph.value_offset[value]))

    def run_node(self, node: int, states: dict[int, Any] | None) -> None:
        """Run one operation on what it sees."""
        try:
            self._run(node, states)
        except TorchVisError:
            raise
        except Exception as error:
            raise UsageError(
                f"{node_text(self.graph, node)} does not run on these values: {type(error).__name__}: {error}"
            ) from error

    def _run(self, node: int, states: dict[int, Any] | None) -> None:
        if self.plan.flags[node] & RECORDED:
            self._take_recorded(node)
            for value in self.graph.out_value[slice(*self.graph.output_span(node))].tolist():
                self.made[value] = super().tensor(value)
            return
        if self.plan.flags[node] & RANDOM and states is not None:
            self._seed(node, states)
        values = self.plan.arguments(node)
        passing = self._passing(node, values)
        if passing is not None:
            # for those on the route it has another result than for the rest of the run
            tensors = [self.seen(node, value) for value in values]
            for value, tensor in self._results(node, tensors, self.call(node, tensors)):
                self.shadows.setdefault(value, []).append((tensor, passing))
            tensors = [self.seen(-2, value) for value in values]
        else:
            tensors = [self.seen(node, value) for value in values]
        read = [] if self.observe is None else [self._copy(v, t) for v, t in zip(values, tensors)]
        results = self._results(node, tensors, self.call(node, tensors))
        for value, tensor in results:
            self.made[value] = tensor
        if self.observe is not None:
            self.observe(node, read, {value: self._copy(value, tensor) for value, tensor in results})

    def _copy(self, value: int, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor whose contents stay as they are now."""
        return tensor.clone() if self.plan.written[self.graph.value_storage[value]] else tensor

    def _passing(self, node: int, values: Sequence[int]) -> ValueChange | None:
        """The change that an operation on its route reads, if it does."""
        for value in values if self.shadows else ():
            for _, change in self.shadows.get(value, ()):
                if node in change.route:
                    return change
        return None

    def call(self, node: int, tensors: Sequence[torch.Tensor]) -> Any:
        """What a node's operator gives, with gradients unless the program had them off here alone."""
        prepared = self.plan.prepared(node)
        args, kwargs = prepared.arguments(tensors)
        has_gradients = bool(self.plan.flags[node] & GRAD_MODE) or not self.forward._follows_gradients
        begin, end = self.graph.output_span(node)
        with gradients(has_gradients and not (self.plan.flags[node] & ESCAPE and begin == end)):
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
                parts = IN_PARTS.get(plain_name(self.graph.nodes[node].op))
                if parts is not None:
                    return parts(*args, **kwargs)
            return prepared.run(*args, **kwargs)

    def _results(
        self, node: int, tensors: Sequence[torch.Tensor], result: Any
    ) -> list[tuple[int, torch.Tensor]]:
        """The values that a node makes, each with its tensor."""
        graph = self.graph
        begin, end = graph.output_span(node)
        slots, values = graph.out_slot[begin:end].tolist(), graph.out_value[begin:end].tolist()
        written = [tensors[-1 - slot] for slot in slots if slot < 0]
        fresh = [t for t in flat(result) if not any(t is other for other in written)]
        if max(slots, default=-1) >= len(fresh):
            raise CheckFailed(f"{node_text(graph, node)} returned {len(fresh)} tensors")
        return [
            (value, tensors[-1 - slot] if slot < 0 else fresh[slot]) for slot, value in zip(slots, values)
        ]


def passing_nodes(graph: Graph, allowed: Set[int], sources: Set[int], goals: Set[int]) -> frozenset[int]:
    """The allowed operations on a way from some values to others."""
    reached = set(sources)
    forward: list[int] = []
    for node in sorted(allowed):
        span = slice(*graph.input_span(node))
        if not reached.isdisjoint(graph.in_value[span].tolist()):
            forward.append(node)
            reached.update(graph.out_value[slice(*graph.output_span(node))].tolist())
    wanted = set(goals)
    route = set()
    for node in reversed(forward):
        if not wanted.isdisjoint(graph.out_value[slice(*graph.output_span(node))].tolist()):
            route.add(node)
            wanted.update(graph.in_value[slice(*graph.input_span(node))].tolist())
    return frozenset(route)
