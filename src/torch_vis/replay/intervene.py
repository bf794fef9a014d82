"""The recorded operations run again: on new inputs, with interventions, keeping what is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.errors import CheckFailed, TensorsMissing, UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import many
from torch_vis.replay.activation_sink import keeper
from torch_vis.replay.inputs import input_values
from torch_vis.replay.replay import Replay, ReplayPlan, where
from torch_vis.replay.slicing import descendants, needed_nodes, only_touched
from torch_vis.replay.targets import Target, all_nodes, forward_names, gradient_names, targets, value_names

Replacement = torch.Tensor | Callable[[Any], Any]


@dataclass(repr=False)
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
    basis: Basis | None = field(default=None, repr=False)
    """The memory of the whole run, where ``keep="all"`` kept it, and what ``again`` starts from."""
    _again: Callable[..., Rerun] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        parts = [f"{many(self.ran, 'operation')} ran"]
        parts += [
            f"{len(of):,} {what}" for what, of in (("gradients", self.gradients), ("kept", self.kept)) if of
        ]
        return f"<Rerun: {', '.join(parts)}; output {_told(self.output)}>"

    def again(self, *, replace: Mapping[Any, Replacement], keep: Any = None) -> Rerun:
        """Intervene in this run, which kept everything: only the operations that depend on the replacement run.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2), torch.nn.ReLU())
        >>> run = tv.trace(model, torch.ones(1, 3)).run(keep="all")
        >>> changed = run.again(replace={"1": torch.zeros_like})
        >>> changed.output, changed.ran, run.ran
        (tensor([[0., 0.]]), 2, 5)
        """
        if self._again is None:
            raise UsageError(
                'again() starts from a run that kept everything: t.run(..., keep="all"), in memory'
            )
        return self._again(replace, keep)


class Diverged(Exception):
    """These inputs take another way through the program than the one that was recorded."""

    def __init__(self, node: int, was: bool, now: bool) -> None:
        super().__init__(node, was, now)
        self.node, self.was, self.now = node, was, now


def _told(output: Any) -> str:
    """What an output is, without its numbers."""
    if isinstance(output, torch.Tensor):
        return f"{str(output.dtype).removeprefix('torch.')} {tuple(output.shape)}"
    return type(output).__name__


class Basis(NamedTuple):
    """Every block of memory of a run as the run left it, the random states that it drew from, and its inputs."""

    memory: dict[int, torch.UntypedStorage]
    objects: dict[int, torch.Tensor]
    states: dict[int, Any]
    inputs: Mapping[str, torch.Tensor]
    results: dict[int, torch.Tensor]


@dataclass
class Request:
    """What a run is asked for."""

    inputs: Mapping[str, torch.Tensor]
    replace: Mapping[Any, Replacement]
    keep: Any
    to: str | os.PathLike[str] | None


def execute(
    graph: Graph, held: KeptTensors, request: Request, basis: Basis | None = None
) -> tuple[Rerun, dict[int, torch.Tensor]]:
    """Run what the request touches; gives the tensors of all results by number as well."""
    if any(t.device.type == "meta" or type(t).__name__ == "FakeTensor" for t in held.results.values()):
        raise TensorsMissing(
            "the run used meta or fake tensors, which hold no data; trace with real tensors to run it"
        )
    plan = ReplayPlan(graph, held)
    patches = [(t, by) for key, by in request.replace.items() for t in _patched(graph, key)]
    kept = _kept(graph, request.keep)
    given = input_values(graph, list(request.inputs))
    changed = {value for target, _ in patches for value in target.values}
    start = changed if basis is not None else changed | set(given.values())
    touched = descendants(graph, start)
    goals = [r for r in range(len(graph.results)) if not start or _rests_on(graph, r, touched)]
    deciding = _deciding(graph, held, touched)
    replaced = [target for target, _ in patches]
    needed = needed_nodes(graph, goals, kept, replaced, deciding)
    if basis is not None:
        needed = only_touched(graph, plan, needed, touched, kept, replaced, deciding)
    names = {name: value for target in kept for name, value in value_names(graph, target)}
    rerun = Rerun(ran=len(needed))
    whole = request.keep == "all" and request.to is None and not patches
    states: dict[int, Any] = {} if basis is None else dict(basis.states)
    with keeper(graph, names, request.to) as sink:
        run = _Execution(graph, held, plan, sink, kept, patches)
        run.deciding = frozenset(deciding)
        run.give({value: request.inputs[name] for name, value in given.items()})
        if basis is not None:
            run.start_from(basis, needed)
        try:
            run.run(needed, states=states, release=not whole)
        except CheckFailed as error:
            raise UsageError(
                f"the recorded operations do not fit: {error}; what depends on the data (sizes, branches) is as "
                "recorded, so trace again with these inputs"
            ) from error
        rerun.kept = sink.kept
        refused = getattr(sink, "refused", ())
    rerun.limits = _limits(graph, held, touched, run.otherwise)
    if refused:
        rerun.limits += (f"not written, safetensors has no form for them: {', '.join(refused)}",)
    again, before = set(goals), held.results if basis is None else basis.results
    results = {r: run.result(r) if r in again else before[r] for r in range(len(graph.results))}
    _sort(graph, results, rerun)
    if whole:
        rerun.basis = Basis(run.memory, run.objects, states, request.inputs, results)
    return rerun, results


def _sort(graph: Graph, results: Mapping[int, torch.Tensor], rerun: Rerun) -> None:
    for number, tensor in results.items():
        row = graph.results[number]
        if row.kind == "gradient":
            rerun.gradients[row.name.removesuffix(".grad")] = tensor
        elif row.kind == "state":
            rerun.state[row.name] = tensor


class _Execution(Replay):
    """A replay in which values can be replaced for all who read them afterwards.

    A replaced value gets a block of its own, and with it the views of it and the writes to it that follow. The
    operations that it came from still see the old one in their backward, as they do where a hook
    replaces an output.
    """

    def __init__(
        self,
        graph: Graph,
        held: KeptTensors,
        plan: ReplayPlan,
        sink: Any,
        kept: Sequence[Target],
        patches: Sequence[tuple[Target, Replacement]],
    ) -> None:
        super().__init__(graph, held, plan)
        self.sink = sink
        self.at = -1
        self.deciding: frozenset[int] = frozenset()
        self.otherwise: dict[int, Any] = {}  # what left for Python and is not what it was
        self.moved: dict[int, int] = {}  # value → its block of its own
        self.origin: dict[int, frozenset[int]] = {}  # value → the operations that see the old one
        self.actions: dict[int, list[Callable[[], None]]] = {}
        for target, by in patches:
            self._when(target.after, partial(self.patch, target, by))
        for target in kept:
            self._when(target.after, partial(self.store, target))
            for name, value in gradient_names(graph, target):
                self._when(int(graph.value_producer[value]), partial(self.put, name, value))

    def _when(self, node: int, action: Callable[[], None]) -> None:
        self.actions.setdefault(node, []).append(action)

    def block(self, value: int) -> int:
        """The block of a value: one of its own once it was replaced."""
        if value in self.moved and self.at not in self.origin[value]:
            return self.moved[value]
        return super().block(value)

    def run_node(self, node: int, states: dict[int, Any] | None) -> None:
        """Execute one node, as ``run`` does."""
        self.at = node
        if self.moved:
            self._follow(node)
        super().run_node(node, states)
        if node in self.deciding:
            self._compare(node)
        self.at = -1
        for action in self.actions.get(node, ()):
            action()

    def _compare(self, node: int) -> None:
        """See whether what left for Python is what it was; another truth value is another way through the program."""
        prepared = self.plan.prepared(node)
        args, kwargs = prepared.arguments([self.tensor(value) for value in self.plan.arguments(node)])
        was, now = self.held.python_values[node], prepared.run(*args, **kwargs)
        if was == now or (was != was and now != now):
            return
        if isinstance(was, bool):
            raise Diverged(node, was, now)
        self.otherwise[node] = now

    def _follow(self, node: int) -> None:
        """Views of and writes to a replaced value lie in its block."""
        graph = self.graph
        for read in self.plan.arguments(node):
            if read in self.moved and node not in self.origin[read]:
                for value in graph.out_value[slice(*graph.output_span(node))].tolist():
                    if graph.value_storage[value] == graph.value_storage[read]:
                        self.moved[value], self.origin[value] = self.moved[read], self.origin[read]

    def start_from(self, basis: Basis, nodes: Sequence[int]) -> None:
        """Take the memory of a run that is done, but for what these operations write anew."""
        graph = self.graph
        anew = {
            int(graph.value_storage[value])
            for node in nodes
            for value in graph.out_value[slice(*graph.output_span(node))].tolist()
            if self.plan.written[graph.value_storage[value]]
            or graph.storage_birth[graph.value_storage[value]] == node
        }
        self.memory.update((storage, block) for storage, block in basis.memory.items() if storage not in anew)
        self.objects.update((storage, item) for storage, item in basis.objects.items() if storage not in anew)

    def give(self, inputs: Mapping[int, torch.Tensor]) -> None:
        """Put new inputs in the place of the recorded ones."""
        graph = self.graph
        for value, tensor in inputs.items():
            storage = int(graph.value_storage[value])
            if value in self.held.opaque_tensors:
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
        for name, value in forward_names(target):
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


# ---------------------------------------------------------------- names


def _rests_on(graph: Graph, result: int, touched: Any) -> bool:
    return any(touched[value] for value, _ in graph.outcomes[result].sources())


def _left(graph: Graph, touched: Any) -> list[int]:
    """The operations through which a value that may be another now left for Python, or for code that cannot be run."""
    found = []
    for node in np.flatnonzero(graph.node_flags & (Flag.ESCAPE | Flag.OPAQUE)).tolist():
        if touched[graph.in_value[slice(*graph.input_span(node))]].any():
            if graph.node_flags[node] & Flag.OPAQUE:
                raise UsageError(
                    f"{where(graph, node)} could not be looked into when it was recorded, and cannot be run"
                )
            found.append(node)
    return found


def _deciding(graph: Graph, held: KeptTensors, touched: Any) -> list[int]:
    """Those of which it is known what the recorded run saw: they run again, and the two are compared."""
    return [node for node in _left(graph, touched) if node in held.python_values]


def _limits(graph: Graph, held: KeptTensors, touched: Any, otherwise: Mapping[int, Any]) -> tuple[str, ...]:
    """Where the rest of the run is as recorded though what it rested on is not."""
    found = []
    for node in _left(graph, touched):
        if node in otherwise:
            values = f" ({held.python_values[node]!r}, and {otherwise[node]!r} now)"
        elif node in held.python_values:
            continue
        else:
            values = ""
        found.append(
            f"a value left for Python at {where(graph, node)}{values}: what was decided by it is as recorded"
        )
    return tuple(found)


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
