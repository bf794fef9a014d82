"""``Trace.run``: the recorded operations run again on new inputs, with values replaced, keeping activations."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.containers import (
    KeptByName,
    inner_tensors,
    named_tensors,
    with_tensors,
)
from torch_vis.capture.edits import (
    Replacement,
    check_replacement,
    sliced,
)
from torch_vis.capture.kept_tensors import Escape, KeptTensors
from torch_vis.capture.modes import without_gradients
from torch_vis.errors import CheckFailed, TensorsMissing, UsageError
from torch_vis.graph.graph import Graph, Node, Scope
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import and_more, many
from torch_vis.ops.higher_order import BRANCHES
from torch_vis.replay.activation_file import keeper
from torch_vis.replay.edited_replay import (
    Basis,
    Diverged,
    EditedReplay,
    Escapes,
    RunLayout,
    memory_taken,
)
from torch_vis.replay.held_run import input_values, refused_sizes
from torch_vis.replay.replay import Replay, ReplayPlan, node_text
from torch_vis.replay.slicing import (
    ReplayTarget,
    TargetFinder,
    all_nodes,
    descendants,
    first_touched,
    full_index,
    kept_values,
    needed_nodes,
    only_touched,
)

if TYPE_CHECKING:
    from torch_vis.replay.held_run import HeldRun


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
    kept: dict[str, Any] = field(default_factory=dict)
    """What ``keep`` asked for, in the form in which each module returned it; empty where it went to a file."""
    ran: int = 0
    """How many operations ran."""
    limits: tuple[str, ...] = ()
    """What is as it was recorded and might be different now, in sentences."""
    basis: Basis | None = field(default=None, repr=False)
    """The memory of the whole run, where ``keep="all"`` kept it, and what ``again`` starts from."""
    _again: Callable[..., Rerun] | None = field(default=None, repr=False)
    _at: Callable[[str], torch.Tensor | None] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        parts = [f"{many(self.ran, 'operation')} ran"]
        parts += [
            f"{len(items):,} {kind}"
            for kind, items in (("gradients", self.gradients), ("kept", self.kept))
            if items
        ]
        return f"<Rerun: {', '.join(parts)}; output {_described(self.output)}>"

    def value_at(self, place: str) -> torch.Tensor | None:
        """The tensor at a place, by a selector, of a run that kept everything; None where it is not there any more."""
        return None if self._at is None else self._at(place)

    def again(self, *, replace: Mapping[Any, Replacement], keep: Any = None) -> Rerun:
        """Intervene in this run, which kept everything: only the operations that depend on the replacement run.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2), torch.nn.ReLU())
        >>> run = tv.trace(model, torch.ones(1, 3)).run(keep="all")
        >>> changed = run.again(replace={"1": torch.zeros_like})
        >>> changed.output, changed.ran, run.ran
        (tensor([[0., 0.]]), 1, 5)
        """
        if self._again is None:
            raise UsageError(
                'again() starts from a run that kept everything: t.run(..., keep="all"), in memory'
            )
        return self._again(replace, keep)


def _described(output: Any) -> str:
    """What an output is, without its numbers."""
    if isinstance(output, torch.Tensor):
        return f"{str(output.dtype).removeprefix('torch.')} {tuple(output.shape)}"
    return type(output).__name__


@dataclass
class Request:
    """What a run is asked for."""

    inputs: Mapping[str, torch.Tensor]
    replace: Mapping[Any, Replacement]
    keep: Any
    to: str | os.PathLike[str] | None
    whole: bool = False
    """Whether the run's memory is to be a basis, without naming what is in it."""
    results: bool = True
    """Whether the run's results are wanted too, and not what is kept alone."""
    doubts: tuple[str, ...] = ()
    """Why the program might do something else with these inputs."""


class Schedule(NamedTuple):
    """Which operations have to run for one set of targets and inputs, and what follows from that."""

    goals: frozenset[int]
    """The results that are computed, by number; the others are as before."""
    touched: Any
    """A mask of the values that other inputs or the replacements can change."""
    needed: list[int]
    """The operations that run, in order."""
    deciding: frozenset[int]
    """Those of them that hand a number to Python which may be another now: it is compared with the recorded one."""
    done: dict[int, list[int]]
    """By operation, the blocks of memory that nothing needs after it."""
    rewritten: frozenset[int]
    """The blocks that these operations make or write, which are not taken from an earlier run."""
    watched: tuple[Escape, ...]
    """What left for Python without an operation and is to be compared."""


class RunPlanner:
    """What all reruns of one trace share: prepared calls, what names stand for, and which operations have to run."""

    def __init__(self, graph: Graph, held: KeptTensors, settings: Mapping[str, Any] | None = None) -> None:
        if not held.holds_numbers:
            raise TensorsMissing(
                "the run used meta or fake tensors, which hold no data; trace with real tensors to run it"
            )
        self.graph, self.held = graph, held
        self.plan = ReplayPlan(graph, held)
        self.layout = RunLayout(graph, self.plan)
        self.finder = TargetFinder(graph, held, settings)
        self.escapes = Escapes(graph, held, self.plan)
        self._targets: dict[Any, list[ReplayTarget]] = {}
        self._schedules: dict[Any, Schedule] = {}
        self._touched_by: dict[Any, Any] = {}

    def targets(self, wanted: Any) -> list[ReplayTarget]:
        """What a selector stands for, found once."""
        key = wanted.index if isinstance(wanted, Node) else wanted
        known = self._targets.get(key) if isinstance(key, (str, int)) and not isinstance(key, bool) else None
        if known is None:
            known = self.finder.targets(wanted)
            if isinstance(key, (str, int)):
                self._targets[key] = known
        return known

    def kept(self, keep: Any) -> list[ReplayTarget]:
        """What ``keep`` asks for."""
        if keep is None:
            return []
        if isinstance(keep, str) and keep == "all":
            return all_nodes(self.graph)
        wanted = keep if isinstance(keep, (list, tuple, set)) else [keep]
        by_name = {target.name: target for item in wanted for target in self.targets(item)}
        return list(by_name.values())

    def asked(self, keep: Any) -> dict[str, str]:
        """The texts among what ``keep`` asks for that stand for one place, each with the name of that."""
        texts = keep if isinstance(keep, (list, tuple, set)) else [keep]
        targets_of = {text: self.targets(text) for text in texts if isinstance(text, str) and text != "all"}
        return {text: targets[0].name for text, targets in targets_of.items() if len(targets) == 1}

    def touched_by(self, target: ReplayTarget) -> Any:
        """A mask of the values that a replacement can change."""
        if target.key not in self._touched_by:
            self._touched_by[target.key] = descendants(self.graph, *first_touched(self.graph, target))
        return self._touched_by[target.key]

    def schedule(
        self,
        given: Mapping[str, int],
        patched: Sequence[ReplayTarget],
        kept: Sequence[ReplayTarget],
        from_basis: bool,
        results: bool = True,
    ) -> Schedule:
        """Which operations have to run, worked out once for each set of targets."""
        inputs = () if from_basis else tuple(given.values())
        key = (
            inputs,
            tuple(t.key for t in patched),
            tuple((t.name, t.key) for t in kept),
            from_basis,
            results,
        )
        known = self._schedules.get(key)
        if known is None:
            wanted = range(len(self.graph.results)) if results else ()
            known = self._schedules[key] = self._scheduled(
                set(inputs), list(patched), list(kept), from_basis, wanted
            )
        return known

    def _scheduled(
        self,
        inputs: set[int],
        patched: list[ReplayTarget],
        kept: list[ReplayTarget],
        from_basis: bool,
        results: Sequence[int],
    ) -> Schedule:
        graph = self.graph
        touched = descendants(graph, inputs)
        for target in patched:
            touched = touched | self.touched_by(target)
        goals = [r for r in results if not (inputs or patched) or _rests_on(graph, r, touched)]
        deciding = [node for node in _escapes_touched(graph, touched) if node in self.held.python_values]
        watched = self.escapes.changed_before(touched)
        looked_at = {node for escape in watched for node in self.escapes.makers(escape)}
        looked_at.update(deciding, self.escapes.deciding(touched))
        self._refuse_idle(patched, kept, sorted(looked_at), watched)
        looked_at.update(self.escapes.raising(touched))
        needed = needed_nodes(graph, goals, kept, patched, sorted(looked_at))
        if from_basis:
            needed = only_touched(graph, self.plan, needed, touched, kept, patched, sorted(looked_at))
        rewritten = {
            int(graph.value_storage[value])
            for node in needed
            for value in graph.out_value[slice(*graph.output_span(node))].tolist()
            if self.plan.written[graph.value_storage[value]]
            or graph.storage_birth[graph.value_storage[value]] == node
        }
        held = {escape.storage for escape in watched}
        # a call may give what nothing reads any more by the time that it returns
        looks = [(value, target.after) for target in (*kept, *patched) for value in target.values]
        done = {
            node: [storage for storage in storages if storage not in held]
            for node, storages in self.plan.last_uses(needed, looks).items()
        }
        return Schedule(
            frozenset(goals), touched, needed, frozenset(deciding), done, frozenset(rewritten), tuple(watched)
        )

    def _refuse_idle(
        self,
        patched: Sequence[ReplayTarget],
        kept: Sequence[ReplayTarget],
        deciding: Sequence[int],
        left: Sequence[Escape],
    ) -> None:
        """Raise for a replacement that nothing of what the run gives depends on."""
        graph = self.graph
        wanted = {value for r in range(len(graph.results)) for value, _ in graph.outcomes[r].sources()}
        wanted |= {row.value for target in kept for row in kept_values(graph, target)}
        for node in deciding:
            wanted |= set(graph.in_value[slice(*graph.input_span(node))].tolist())
        wanted |= {value for escape in left for value in self.escapes.left(escape)}
        numbers = list(wanted)
        for target in patched:
            if not self.touched_by(target)[numbers].any():
                if target.sight.only:
                    raise UsageError(
                        f"replacing {target.name!r} would change nothing: nothing that the run gives depends on what "
                        "is made of it there; if the call returns it as it is, replace what makes it, or use tv.live, "
                        "which distinguishes calls"
                    )
                writer = self._writer_that_acts(target, numbers)
                if writer is not None:
                    raise UsageError(
                        f"replacing {target.name!r} would not act: what follows reads its memory past it, as a deep "
                        f"copy does; replace what wrote that memory, {writer!r}"
                    )
                raise UsageError(
                    f"replacing {target.name!r} would change nothing: no output, gradient or state of the run, and "
                    "nothing that is kept, depends on it"
                )

    def _writer_that_acts(self, target: ReplayTarget, wanted: list[int]) -> str | None:
        """The last operation that wrote the memory of a target, by its name, if what is wanted depends on that."""
        graph = self.graph
        storages = graph.value_storage[list(target.values)]
        on_memory = np.isin(graph.value_storage, storages) & (graph.value_producer >= 0)
        for value in np.flatnonzero(on_memory)[::-1].tolist():
            number = int(graph.value_producer[value])
            if number > target.after or graph.node_flags[number] & Flag.VIEW:
                continue
            if not descendants(graph, {value})[wanted].any():
                return None
            node = graph.nodes[number]
            return f"{node.path}/{node.name}#{number}".lstrip("/")
        return None


def execute(
    planner: RunPlanner, request: Request, basis: Basis | None = None
) -> tuple[Rerun, dict[int, torch.Tensor]]:
    """Run what the request touches; gives the tensors of all results by number as well."""
    graph, held, plan = planner.graph, planner.held, planner.plan
    patches = replaced_by(planner, request.replace)
    kept = planner.kept(request.keep)
    given = input_values(graph, list(request.inputs))
    made = all_nodes(graph) if request.whole else kept
    schedule = planner.schedule(
        given, [target for target, _ in patches], made, basis is not None, request.results
    )
    rows = [row for target in kept for row in kept_values(graph, target)]
    rerun = Rerun(ran=len(schedule.needed))
    whole = request.whole or (request.keep == "all" and request.to is None and not patches)
    states: dict[int, Any] = {} if basis is None else dict(basis.states)
    with keeper(graph, rows, request.to) as sink:
        run = EditedReplay(graph, held, plan, planner.layout, sink, kept, patches)
        run.deciding = schedule.deciding
        run.watch(schedule.watched, planner.escapes)
        names = {value: name for name, value in given.items()}
        run.give({value: request.inputs[name] for name, value in given.items()}, names)
        if basis is not None:
            run.start_from(basis, schedule.rewritten)
        try:
            run.run(schedule.needed, states=states, release=not whole, done=schedule.done)
        except CheckFailed as error:
            raise UsageError(
                f"the recorded operations do not fit: {error}; what depends on the data (sizes, branches) is as "
                "recorded, so trace again with these inputs"
            ) from error
        rerun.kept = by_name = KeptByName(sink.kept)
        by_name.second_paths = planner.finder.second_paths
        by_name.asked = planner.asked(request.keep)
        refused = getattr(sink, "refused", ())
    rerun.limits = _limits_of(planner, request, schedule, run, patches, from_basis=basis is not None)
    if refused:
        rerun.limits += (f"not written, safetensors has no form for them: {', '.join(refused)}",)
    before = held.results if basis is None else basis.results
    results = {r: run.result(r) if r in schedule.goals else before[r] for r in range(len(graph.results))}
    _sort_results(graph, results, rerun)
    if whole:
        rerun.basis = Basis(run.memory, run.objects, states, request.inputs, results, run.basis_views())
        rerun._at = partial(_value_at, planner, rerun.basis)
    return rerun, results


def _limits_of(
    planner: RunPlanner,
    request: Request,
    schedule: Schedule,
    run: EditedReplay,
    patches: Sequence[tuple[ReplayTarget, Any]],
    *,
    from_basis: bool,
) -> tuple[str, ...]:
    """What of a run is as it was recorded and might be different now, each sentence once."""
    graph, held, escapes = planner.graph, planner.held, planner.escapes
    replaced = [target for target, _ in patches]
    limits = [*request.doubts, *_limits_of_data(graph, held, schedule.touched, run.changed_numbers)]
    changed = [*run.changed_escapes, *escapes.changed_after(schedule.touched)]
    inputs = {} if from_basis else request.inputs
    changed += [escape for escape in held.escapes if escapes.is_another_input(escape, inputs)]
    limits += escapes.sentences(changed, schedule.touched, schedule.needed)
    limits += _partly_replaced(graph, replaced)
    limits += (
        f"{target.name!r} has one tensor in several places ({and_more(target.places)}): a recorded run does not tell "
        "who reads which, so all of them are replaced"
        for target in replaced
        if target.places
    )
    return tuple(dict.fromkeys(limits))


def _value_at(planner: RunPlanner, basis: Basis, name: str) -> torch.Tensor | None:
    """What a run that kept everything has at a place; None where it holds no tensor of it any more."""
    (target, *_) = planner.targets(name)
    reader = Replay(planner.graph, planner.held, planner.plan)
    reader.memory, reader.objects = dict(basis.memory), dict(basis.objects)
    value = target.values[0]
    storage = int(planner.graph.value_storage[value])
    if storage not in basis.memory and storage not in basis.objects:
        return None
    if planner.plan.written[storage]:
        return None
    return sliced(reader.tensor(value), full_index(planner.graph, target), name)


def _sort_results(graph: Graph, results: Mapping[int, torch.Tensor], rerun: Rerun) -> None:
    for number, tensor in results.items():
        row = graph.results[number]
        if row.kind == "gradient":
            rerun.gradients[row.name.removesuffix(".grad")] = tensor
        elif row.kind == "state":
            rerun.state[row.name] = tensor


# ---------------------------------------------------------------- names


def _rests_on(graph: Graph, result: int, touched: Any) -> bool:
    return any(touched[value] for value, _ in graph.outcomes[result].sources())


def _escapes_touched(graph: Graph, touched: Any) -> list[int]:
    """The operations through which a value that may be another now left for Python, or for code that cannot be run."""
    nodes = []
    for node in np.flatnonzero(graph.node_flags & (Flag.ESCAPE | Flag.OPAQUE)).tolist():
        if touched[graph.in_value[slice(*graph.input_span(node))]].any():
            if graph.node_flags[node] & Flag.OPAQUE:
                raise UsageError(
                    f"{node_text(graph, node)} could not be looked into when it was recorded, and cannot be run"
                )
            nodes.append(node)
    return nodes


def _limits_of_data(
    graph: Graph, held: KeptTensors, touched: Any, changed_numbers: Mapping[int, Any]
) -> tuple[str, ...]:
    """Where the rest of the run is as recorded though what it rested on is not."""
    sentences = []
    for node in _escapes_touched(graph, touched):
        if node in changed_numbers:
            values = f" ({held.python_values[node]!r}, and {changed_numbers[node]!r} now)"
        elif node in held.python_values:
            continue
        else:
            values = ""
        sentences.append(
            f"a value left for Python at {node_text(graph, node)}{values}: what was decided by it is as recorded"
        )
    gives = [
        node
        for node in np.flatnonzero(graph.node_flags & Flag.COLLECTIVE).tolist()
        if touched[graph.in_value[slice(*graph.input_span(node))]].any()
    ]
    if gives:
        sentences.append(
            f"what other ranks sent is as recorded, though they are given something else now: "
            f"{many(len(gives), 'node')}, the first {node_text(graph, gives[0])}"
        )
    return tuple(sentences)


def _partly_replaced(graph: Graph, targets: Sequence[ReplayTarget]) -> tuple[str, ...]:
    """Where memory was taken as such of which only a part is replaced."""
    takers = set()
    for target in targets:
        for value in target.values:
            if graph.types[graph.value_type[value]].nbytes != graph.storage_bytes[graph.value_storage[value]]:
                nodes = graph.in_node[np.isin(graph.in_value, memory_taken(graph, value))].tolist()
                takers |= {node for node in nodes if node > target.after and target.sight.sees(node)}
    return tuple(
        f"{node_text(graph, node)} took memory of which a part was replaced, "
        "with what else lies there: that is as recorded"
        for node in sorted(takers)
    )


def replaced_by(planner: RunPlanner, replace: Mapping[Any, Any]) -> list[tuple[ReplayTarget, Any]]:
    """What is to be replaced, each with what replaces it."""
    if not isinstance(replace, Mapping):
        raise UsageError(
            f"replace is a dictionary of modules or nodes and their replacements, not {type(replace).__name__}"
        )
    for key, by in replace.items():
        check_replacement(key, by)
    return [(target, by) for key, by in replace.items() for target in _patched(planner, key)]


def _patched(planner: RunPlanner, key: Any) -> list[ReplayTarget]:
    replaced = planner.targets(key)
    for target in replaced:
        if not target.values:
            raise UsageError(f"{target.name!r} makes no tensor that could be replaced")
        if len(target.passed) == len(target.values) and not target.sight.only:
            raise UsageError(
                f"module {target.name!r} ran no operation of its own: it returns its input as it is; replace "
                "what makes it, or use tv.live, which distinguishes calls"
            )
    return replaced


def run_whole(trace: HeldRun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rerun:
    """Rerun a trace's graph and keep the memory of all of it, for ``again`` to start from."""
    return rerun(trace, args, kwargs, {}, None, None, whole=True)


def rerun(
    trace: HeldRun,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    replace: Mapping[Any, Any],
    keep: Any,
    to: Any,
    *,
    whole: bool = False,
) -> Rerun:
    """Rerun a trace's graph."""
    held, entry = trace.needs_tensors("run"), trace.entry
    if to is not None and keep is None:
        raise UsageError('to= is where kept tensors go; say which with keep="all" or keep=[...]')
    inputs: dict[str, torch.Tensor] = {}
    if args or kwargs:
        if entry is None:
            raise UsageError(
                "a recorded block has no inputs of its own; run() takes none, or trace() the callable"
            )
        inputs = entry.named(args, kwargs)
        other = entry.reshaped(inputs)
        if other:
            return _other_sizes(trace, other, inputs, args, kwargs, bool(replace) or keep is not None)
    doubts = doubts_of(trace, held, inputs, args, kwargs)
    try:
        return _run(trace, held, Request(inputs, replace, keep, to, whole, doubts=doubts), None)
    except Diverged as divergence:
        exported = None if trace.program is None else trace.program.exported
        if exported is None or replace or keep is not None or not (args or kwargs):
            raise _another_way(trace, divergence) from None
        limit = (
            f"{_deciding_line(trace, divergence)} went the other way: the captured program ran, not the recorded "
            "operations"
        )
        return Rerun(output=_called(exported, args, kwargs), ran=len(trace.graph), limits=(limit,))


def _deciding_line(trace: HeldRun, divergence: Diverged) -> str:
    """The operator or line that decided."""
    site = trace.graph.nodes[divergence.node].site
    decider = _operator(trace, divergence) or "a branch on a tensor"
    return f"{decider} at {site}" if site is not None else decider


def _operator(trace: HeldRun, divergence: Diverged) -> str | None:
    """The higher-order operator that looked at a value, if one did."""
    scope: Scope | None = trace.graph.nodes[divergence.node].scope
    while scope is not None:
        # what follows the comma is the branch that was not taken
        name = scope.type.partition(",")[0]
        if scope.kind in ("operator", "function") and name in BRANCHES:
            return name
        scope = scope.parent
    return None


def _another_way(trace: HeldRun, divergence: Diverged) -> UsageError:
    exporting = trace.program is None or trace.program.exported is None
    advice = ""
    if exporting and _operator(trace, divergence):
        advice = ", or via='export', whose program has both ways"
    return UsageError(
        f"{_deciding_line(trace, divergence)} saw {divergence.was} in the recorded run and sees {divergence.now} now, "
        f"so other operations would run than those that were recorded; trace again with these inputs{advice}"
    )


def _called(exported: Any, args: Any, kwargs: Any) -> Any:
    """What an exported program gives; state that it would change is that of a copy."""
    module = exported.module()
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with without_gradients():
        return torch.func.functional_call(module, buffers, args, kwargs)


def planner_of(trace: HeldRun, held: KeptTensors) -> RunPlanner:
    """What the reruns of a trace share, made for the first of them."""
    planner = trace._planner
    if not isinstance(planner, RunPlanner) or planner.held is not held or planner.graph is not trace.graph:
        planner = trace._planner = RunPlanner(trace.graph, held, trace.meta.get("settings"))
    return planner


def doubts_of(
    trace: HeldRun,
    held: KeptTensors,
    inputs: Mapping[str, torch.Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[str, ...]:
    """Why a rerun might not be what the program would do now, in sentences, as far as it can be said before it runs."""
    doubts: tuple[str, ...] = ()
    if (args or kwargs) and trace.entry is not None:
        written = planner_of(trace, held).plan.written
        values = input_values(trace.graph, list(inputs))
        written_to = [name for name, value in values.items() if written[trace.graph.value_storage[value]]]
        doubts = trace.entry.doubts(args, kwargs, inputs, written_to)
    stale = [name for name in held.stale() if name not in inputs]
    if stale:
        doubts += (
            f"changed since the run was recorded: {and_more(stale)}; what is computed again is computed with them as "
            "they are now, and what does not follow from other inputs or replacements is as recorded",
        )
    words = {True: "training", False: "evaluation"}
    for training, paths in held.other_modes().items():
        doubts += (
            f"in {words[training]} mode now and in {words[not training]} mode in the recorded run: {and_more(paths)}; "
            "the operations that run are those that were recorded",
        )
    return doubts


def _run(trace: HeldRun, held: KeptTensors, request: Request, basis: Basis | None) -> Rerun:
    run, results = execute(planner_of(trace, held), request, basis)
    run.output = rebuilt(trace, results)
    whole = run.basis
    if whole is not None:
        run._again = lambda replace, keep: _again(
            trace, held, Request(whole.inputs, replace, keep, None, doubts=run.limits), whole
        )
    return run


def _again(trace: HeldRun, held: KeptTensors, request: Request, basis: Basis) -> Rerun:
    try:
        return _run(trace, held, request, basis)
    except Diverged as divergence:
        raise _another_way(trace, divergence) from None


def _other_sizes(
    trace: HeldRun, resized: list[str], inputs: Mapping[str, torch.Tensor], args: Any, kwargs: Any, more: bool
) -> Rerun:
    """Inputs of other sizes: only a program whose sizes are open can take them."""
    program = trace.program
    exported = None if program is None else program.exported
    difference = f"input {'; input '.join(resized)}"
    if program is None or exported is None or not program.bounds:
        raise UsageError(
            f"{difference}; the recorded operations have their sizes fixed: trace again with this input, or with "
            "via='export' and dynamic_shapes"
        )
    if more:
        raise UsageError(f"{difference}; replace and keep need inputs of the recorded sizes")
    ranges = ", ".join(program.ranges.values())
    wrong = refused_sizes(trace.graph, inputs, program.bounds)
    if wrong:
        raise UsageError(f"{difference}; the program leaves open {ranges}, and {wrong}")
    try:
        output = _called(exported, args, kwargs)
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UsageError(f"{difference}; the program leaves open {ranges}: {reason}") from error
    return Rerun(
        output=output, ran=len(trace.graph), limits=("the captured program ran with sizes of its own",)
    )


def rebuilt(trace: HeldRun, results: Mapping[int, torch.Tensor]) -> Any:
    """The output with each tensor replaced by that of the new run."""
    if trace.error is not None:
        return None
    numbers = [r for r, row in enumerate(trace.graph.results) if row.kind == "output"]
    tensors = [tensor for _, tensor in named_tensors(trace.output)]
    # of a recorded block: what it left behind, by name
    if not tensors:
        return (
            trace.output
            if trace.output is not None
            else {trace.graph.results[r].name: results[r] for r in numbers}
        )
    new = {id(tensor): results[number] for tensor, number in zip(tensors, numbers)}
    placed: set[int] = set()

    def renewed(_: str, tensor: torch.Tensor) -> torch.Tensor:
        parts = inner_tensors(tensor)
        if parts is None:
            placed.add(id(tensor))
            return new.get(id(tensor), tensor)
        _, context = type(tensor).__tensor_flatten__(tensor)  # type: ignore[attr-defined]
        inner = {name: renewed(name, part) for name, part in parts}
        return type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())  # type: ignore[attr-defined]

    output = with_tensors(trace.output, renewed)
    if not placed >= set(new):
        raise UsageError(
            f"an output of type {type(trace.output).__name__} cannot be made anew with other tensors; keep= gives what "
            "modules and operations gave"
        )
    return output
