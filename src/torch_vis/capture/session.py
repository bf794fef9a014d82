"""``Capture``: run a program under the recorder, then name its tensors and modules and give the finished run."""

from __future__ import annotations

import platform
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from torch_vis.capture.assembling.assemble import Assembly, NamedTensor, ResultTensor, RunFacts, assemble
from torch_vis.capture.assembling.limits import describe_limits, packed_weights
from torch_vis.capture.assembling.log import with_stored
from torch_vis.capture.containers import Form, argument_names, bound_arguments, named_tensors, renumbered
from torch_vis.capture.kept_tensors import Geometry, KeptTensors, ModuleMode, RaisedOp, mode_of, version_of
from torch_vis.capture.modes import keep_gradients, push_mode
from torch_vis.capture.recording import inductor_calls
from torch_vis.capture.recording.collectives import land_rest, wait_for_results
from torch_vis.capture.recording.dispatch_mode import RecordMode, TaskMode
from torch_vis.capture.recording.function_calls import FunctionScopes
from torch_vis.capture.recording.module_calls import (
    ModuleCalls,
    running_codes,
    thread_clocks,
    worked_meanwhile,
)
from torch_vis.capture.recording.recorder import CallForms, Recorder, call_form, clock
from torch_vis.capture.recording.source_lines import resolve
from torch_vis.capture.recording.tensors import overlapping_memory, settle_lent
from torch_vis.capture.settings import looks_at_mode, module_settings
from torch_vis.capture.state import gradient_of_leaf, is_leaf
from torch_vis.capture.undo import Context, Undo, hears_interrupts
from torch_vis.errors import NothingToDifferentiate
from torch_vis.graph.call import Special
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.run import SUMMED_OUTPUTS, Run
from torch_vis.graph.schema import Placement, Role
from torch_vis.graph.text import and_more

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# a process that takes the processor from another has it for so long at most, as a rule, and leaves it other caches
LONGEST_TURN_NS, RETURN_NS = 100_000_000, 1_000_000
# a module whose parameters and parts get names, and the prefix of all these names
Root = tuple[str, torch.nn.Module]


class SubstituteMode(Protocol):
    """A mode that hands every operation other tensors in place of the user's: in a fake run, those without numbers."""

    def substitute(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that operations get in place of one of the user's."""

    def memory_of(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The memory that such tensors lie on in place of some of the user's."""


class ThreadTime(NamedTuple):
    """The CPU time of this thread so far, and how often it was preempted (involuntary context switches)."""

    time_ns: int
    preemptions: int

    @classmethod
    def now(cls) -> ThreadTime:
        """The current figures; 0 preemptions where the system does not count them."""
        own_thread = getattr(resource, "RUSAGE_THREAD", None)
        count = 0 if resource is None or own_thread is None else resource.getrusage(own_thread).ru_nivcsw
        return cls(time.thread_time_ns(), count)

    def interrupted_ns(self, wall_ns: int) -> int:
        """How much of the time since then others may have had the processor."""
        now = ThreadTime.now()
        away = max(wall_ns - (now.time_ns - self.time_ns), 0)
        turns = now.preemptions - self.preemptions
        return min(away, turns * LONGEST_TURN_NS) + turns * RETURN_NS


class CapturedRun(NamedTuple):
    """What a session gives: the run as data, and the live objects that belong to it."""

    run: Run
    kept: KeptTensors | None = None
    """The tensors that a replay starts from; None where none were to be kept."""
    output: Any = None
    """What the callable returned."""
    error: BaseException | None = None
    """The exception that ended the run early, if one did."""


class Capture(Context["Capture"]):
    """One recording of (a part of) a program: enter, run, leave, then ``finish`` gives the run.

    ``names`` are what the modules are called, in their order; ``known`` has, by id, the names of other modules that the
    program may call.
    """

    def __init__(
        self,
        *modules: torch.nn.Module,
        keep: bool = True,
        timing: bool = True,
        memory: bool = True,
        functions: bool = False,
        declared: Iterable[Callable[..., Any]] = (),
        substitutes: SubstituteMode | None = None,
        names: Sequence[str] = (),
        known: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._known_names = known
        self.substitutes = substitutes
        self.recorder = Recorder(keep=keep, timing=timing, memory=memory)
        if substitutes is not None:
            self.recorder.grad_writes.substitute = substitutes.substitute
            self.recorder.twin_of = substitutes.memory_of
        self.roots: list[Root] = []
        for index, module in enumerate(modules):
            prefix = "" if len(modules) == 1 else f"{type(module).__name__.lower()}{index}"
            self.roots.append((names[index] if names else prefix, module))
        inside = frozenset(id(part) for module in modules for part in module.modules())
        self.module_calls = ModuleCalls(self.recorder, inside)
        self.call_forms = CallForms(self.recorder)
        if keep:
            self.recorder.call_observer = self.call_forms
        self.mode = RecordMode(self.recorder)
        self._functions = FunctionScopes(self.recorder, declared) if functions else None
        self.inputs: list[tuple[str, torch.Tensor]] = []
        self.output: Any = None
        self.has_output = False
        self.sums_outputs = False
        self.error: BaseException | None = None
        self.compile_ns = 0
        self.ended = 0
        self.interrupted_ns = 0

    def _begin(self, undo: Undo) -> Capture:
        rec = self.recorder
        keep_gradients(undo)
        rec.codes_at_start = running_codes()
        rec.bind_to_task(undo)
        if rec.task is not None:
            self.mode = TaskMode(rec)
        undo.enter(self.module_calls)
        push_mode(undo, self.mode)
        if self._functions is not None:
            undo.enter(self._functions)
        # above the recorder, which then sees only the substitutes
        if self.substitutes is not None:
            push_mode(undo, self.substitutes)
        # before the step that asks for it, which an interrupt may bring on at once
        self._thread_time = ThreadTime.now()
        self._thread_clocks = thread_clocks()
        undo.add(self._close, inductor_calls.compile_ns())
        rec.scopes[0][2] = clock()
        return self

    def _close(self, compiled_before: int) -> None:
        """The recording is over, before the modes are taken off."""
        self.ended = clock()
        self.working_threads = worked_meanwhile(self._thread_clocks)
        self.interrupted_ns = self._thread_time.interrupted_ns(self.ended - self.recorder.scopes[0][2])
        land_rest(self.recorder)
        self.compile_ns = inductor_calls.compile_ns() - compiled_before
        self.recorder.close()
        if self.recorder.user_functions is not None:
            self.recorder.user_functions.end()

    def run(
        self,
        target: Callable[[], Any],
        *,
        backward: bool,
        loss: Callable[[Any], Any] | None,
        partial: bool,
    ) -> None:
        """Record one call and a backward pass from its output; with ``partial``, an exception ends it in ``error``."""
        self.has_output = True
        try:
            with self:
                self.output = target()
                wait_for_results(self.recorder, self.output)
                if backward or loss is not None:
                    self.sums_outputs = loss is None
                    run_backward(self.output, loss)
        except Exception as raised:
            if not partial or isinstance(raised, NothingToDifferentiate):
                raise
            self.error = raised

    @hears_interrupts
    def finish(self) -> CapturedRun:
        """The run that was recorded, and the tensors that were kept of it."""
        rec = self.recorder
        rec.settle()
        facts = RunFacts(ended=self.ended, live_outputs=not self.has_output)
        facts.paths = self._paths()
        facts.named = self._named()
        facts.results = self._results(facts)
        layout = MeshLayout.of([tensor for _, tensor in self._leaves()])
        layout.name_groups(rec)
        facts.placements = layout.placements(self._leaves(), self._substitute)
        facts.gradients = rec.grad_writes.named(self._leaf_names(facts))
        assembly = assemble(rec, facts)
        graph = assembly.graph
        # for each of the recorder's values, its number in the graph; one left out has the number before it
        self.numbers = assembly.numbers
        self.in_graph = np.diff(self.numbers, prepend=-1) > 0
        rec.kept.opaque_tensors = {
            int(self.numbers[value]): tensor
            for value, tensor in rec.kept.opaque_tensors.items()
            if self.in_graph[value]
        }
        if rec.keep:
            self._keep_results(facts)
            self._keep_calls(assembly)
            self._keep_escapes(_numbering(self._graph_values(assembly)))
            self._keep_modes(facts.paths)
        self._count_opaque(graph)
        rec.open_steps.clear()
        packed = packed_weights(rec.kept.objects.values())
        meta = self._meta(graph) | self._recording_time(assembly) | self._settings(facts.paths)
        meta |= rank_meta(rec, layout)
        if packed.objects:
            meta["packed_bytes"] = packed.size_bytes
        limits = describe_limits(rec, graph, assembly.guesses, packed)
        run = Run(graph, self._metrics(assembly), limits, meta)
        return CapturedRun(run, rec.kept if rec.keep else None, self.output, self.error)

    def _metrics(self, assembly: Assembly) -> Metrics:
        """The metrics, with the elements that sparse and nested tensors hold."""
        elements = self.recorder.stored_elements
        stored = {int(self.numbers[v]): n for v, n in elements.items() if self.in_graph[v]}
        return with_stored(assembly.metrics, stored, len(assembly.graph.value_type))

    def _count_opaque(self, graph: Graph) -> None:
        """Count tensors that no recorded operation made: those that appeared in backward, and outputs."""
        rec = self.recorder
        roles = [
            graph.value_role[self.numbers[value]]
            for value in rec.appeared_in_backward
            if self.in_graph[value]
        ]
        rec.uncaptured["appeared"] = sum(int(role) == Role.CONSTANT for role in roles)
        outputs = [result for result in graph.outcomes if result.kind == "output"]
        rec.uncaptured["outputs"] = sum(result.value.role == "constant" for result in outputs)

    # ---------------------------------------------------------------- names

    def _paths(self) -> dict[int, str]:
        """A path for every module that was called, from the roots given or else from the outermost modules."""
        rec = self.recorder
        numbers = {id(row.owner): number for number, row in enumerate(rec.modules) if number}
        self.roots = self.roots or self.outermost_modules()
        paths: dict[int, str] = {}
        for prefix, root in self.roots:
            for name, module in root.named_modules():
                number = numbers.get(id(module))
                if number is not None:
                    paths.setdefault(number, ".".join(part for part in (prefix, name) if part))
        for number, row in enumerate(rec.modules):
            if number and number not in paths:
                paths[number] = row.path or (row.type if row.kind == "module" else "")
        return paths

    def outermost_modules(self) -> list[Root]:
        """The modules that were called and that are part of no other; each with its class as prefix if several."""
        # what has a path is no module of the user's: a partition, the body of an operator
        rows = [row for row in self.recorder.modules[1:] if not row.path]
        modules = [row.owner for row in rows if isinstance(row.owner, torch.nn.Module)]
        inner = {id(part) for module in modules for part in module.modules() if part is not module}
        outer = [module for module in modules if id(module) not in inner]
        if len(outer) == 1:
            return [("", outer[0])]
        counts: dict[str, int] = {}
        roots = []
        for module in outer:
            name = self._known_names.get(id(module)) or type(module).__name__.lower()
            number = counts.get(name, 0)
            counts[name] = number + 1
            roots.append((f"{name}_{number}" if number else name, module))
        return roots

    def _named(self) -> list[NamedTensor]:
        """Every tensor that the program has a name for: parameters, buffers, optimizer state, inputs, gradients."""
        named: list[NamedTensor] = []
        for (prefix, root), parameters in zip(self.roots, self._named_parameters):
            for name, parameter in parameters:
                named += _parts(name, parameter, Role.PARAMETER)
            for name, buffer in root.named_buffers():
                named += _parts(_join(prefix, name), buffer, Role.BUFFER)
        known = {id(row.tensor): row.name for row in named}
        for owner, _, name, kind in self.recorder.modules:
            if kind == "optimizer":
                for parameter, state in owner.state.items():
                    prefix = f"{name}.{known.get(id(parameter), 'parameter')}"
                    for key, tensor in named_tensors(state):
                        named.append(NamedTensor(f"{prefix}.{key}", tensor, Role.OPTIMIZER_STATE))
        named += [NamedTensor(name, tensor, Role.INPUT) for name, tensor in self.inputs]
        for name, tensor in self._leaves():
            gradient = gradient_of_leaf(tensor)
            if gradient is not None:
                named += _parts(f"{name}.grad", gradient, Role.GRADIENT)
        return [row._replace(tensor=self._substitute(row.tensor)) for row in named]

    def _substitute(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that the recorder has seen."""
        return tensor if self.substitutes is None else self.substitutes.substitute(tensor)

    def _leaves(self) -> list[tuple[str, torch.Tensor]]:
        """Every parameter and input by name, wrappers (a DTensor, say) left whole."""
        return [*chain(*self._named_parameters), *self.inputs]

    @cached_property
    def _named_parameters(self) -> list[list[tuple[str, torch.nn.Parameter]]]:
        """The parameters of each root by name; the walk over all modules is done once."""
        return [
            [(_join(prefix, name), parameter) for name, parameter in root.named_parameters()]
            for prefix, root in self.roots
        ]

    def _external_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors from outside that are still alive, under the names of constants."""
        tensors = [(number, alive()) for number, alive in self.recorder.external_tensors.items()]
        return [(f"constant.{number}", tensor) for number, tensor in tensors if tensor is not None]

    def _results(self, facts: RunFacts) -> list[ResultTensor]:
        """The results of the run: its outputs, the gradients that it made, and the outside state that it wrote."""
        rec = self.recorder
        results = [
            ResultTensor(name, "output", self._substitute(tensor))
            for name, tensor in named_tensors(self.output, "output")
        ]
        names = {id(row.tensor): row.name for row in facts.named}
        gradients: set[int] = set()
        externals = self._external_tensors()
        constants = [row for row in externals if id(row[1]) not in names]
        for name, tensor in [*self._leaves(), *constants]:
            gradient = gradient_of_leaf(tensor)
            if gradient is not None and id(gradient) not in gradients:
                for part_name, part in named_tensors(gradient, f"{name}.grad"):
                    recorded = self._substitute(part)
                    if rec.knows(recorded):
                        results.append(ResultTensor(part_name, "gradient", recorded))
                        gradients.add(id(recorded))
        for name, tensor in externals:
            if id(tensor) not in gradients and rec.was_written(tensor) and _has_memory(tensor):
                results.append(ResultTensor(names.get(id(tensor), name), "state", tensor))
        return results + self._written_parts(facts, results)

    def _written_parts(self, facts: RunFacts, results: list[ResultTensor]) -> list[ResultTensor]:
        """Named tensors on written memory that is in no other result: the tensor that was first seen there is gone."""
        rec = self.recorder
        overwritten = rec.written_storages & rec.external_storages
        overwritten -= {number for row in results if (number := rec.storage_number(row.tensor)) is not None}
        if not overwritten:
            return []
        named = [row for row in facts.named if row.role != Role.INPUT and _has_memory(row.tensor)]
        return [
            ResultTensor(name, "state", tensor)
            for name, tensor, _ in named
            if rec.storage_number(tensor) in overwritten
        ]

    def _leaf_names(self, facts: RunFacts) -> dict[int, str]:
        """The names of all tensors that can have a gradient, by ``id``."""
        names = {id(tensor): name for name, tensor in self._leaves()}
        known = {id(row.tensor) for row in facts.named}
        for name, tensor in self._external_tensors():
            if id(tensor) not in known:
                names.setdefault(id(tensor), name)
        return names

    def _keep_results(self, facts: RunFacts) -> None:
        """Keep the results for ``check``, and the versions of all named tensors, to notice later writes to them."""
        kept = self.recorder.kept
        for number, (name, _, tensor) in enumerate(facts.results):
            kept.results[number] = _without_history(tensor)
            kept.versions.append((name, kept.results[number], version_of(tensor)))
        for name, tensor, role in facts.named:
            if role != Role.GRADIENT and self.recorder.knows(tensor):
                kept.versions.append((name, _without_history(tensor), version_of(tensor)))

    def _keep_modes(self, paths: dict[int, str]) -> None:
        """Keep which modules were in training mode, to notice where another mode would run other operations."""
        looks: dict[type, bool] = {}
        for number, row in enumerate(self.recorder.modules):
            if row.kind != "module" or not isinstance(row.owner, torch.nn.Module):
                continue
            kind, training = type(row.owner), mode_of(row.owner)
            if kind not in looks:
                looks[kind] = looks_at_mode(kind)
            if looks[kind] and training is not None:
                mode = ModuleMode(paths[number], weakref.ref(row.owner), training)
                self.recorder.kept.modes.append(mode)

    def _graph_values(self, assembly: Assembly) -> Any:
        """The numbers in the graph of the recorder's values; -1 for one that the graph leaves out."""
        stands_for = assembly.stands_for
        return np.where(self.in_graph[stands_for], assembly.numbers[stands_for], -1)

    def _keep_calls(self, assembly: Assembly) -> None:
        """Keep what calls of modules were given and returned, to be looked at if somebody asks."""
        rec = self.recorder
        given, returned = self.call_forms.forms()
        names: dict[Any, list[str]] = {}
        arguments: dict[int, list[str]] = {}
        for scope in given:
            owner = rec.modules[rec.scopes[scope][0]].owner
            forward = getattr(type(owner), "forward", None)
            if forward not in names:
                names[forward] = argument_names(owner)
            arguments[scope] = names[forward]
        rec.kept.read_calls = partial(_read_calls, given, returned, arguments, self._graph_values(assembly))

    def _keep_escapes(self, number: Callable[[int], int | None]) -> None:
        """Keep where inputs lie, and say of tensors that left for Python which values and inputs they were."""
        rec = self.recorder
        settle_lent(rec)
        kept = rec.kept
        addresses = {}
        for name, tensor in self.inputs:
            try:
                address = addresses[name] = tensor.untyped_storage()._cdata
                block = rec.storages.get(address)
                if block is not None and tensor.layout is torch.strided:
                    geometry = Geometry(
                        tensor.dtype,
                        tuple(tensor.shape),
                        tuple(tensor.stride()),
                        int(tensor.storage_offset()),
                    )
                    kept.inputs[name] = block.number, geometry
            except (RuntimeError, NotImplementedError):
                continue
        for escape in kept.escapes:
            known = None if escape.value < 0 else number(escape.value)
            escape.value = -1 if known is None else known
            block = rec.storages.get(escape.address)
            # what is from outside is alive, so the address is its own
            if escape.storage < 0 and block is not None and block.number in kept.storages:
                escape.storage = block.number
            escape.inputs = tuple(name for name, other in addresses.items() if other == escape.address)
            escape.where = self._line(escape.site)
        for op, values, site in rec.raised:
            numbers = (number(value) for value in values)
            kept.raised.append(RaisedOp(op, tuple(n for n in numbers if n is not None), self._line(site)))
        kept.started = [f"{what} that was started at {self._line(site)}" for what, site in rec.started]
        kept.started += self.working_threads
        kept.overlaps = overlapping_memory(rec)

    def _line(self, site: int) -> str:
        return "an unknown line" if site < 0 else str(resolve(*self.recorder.sites[site]))

    def parameters(self) -> list[torch.nn.Parameter]:
        """Every parameter of the roots, tied ones once, ones without a shape yet left out."""
        unique = {id(p): p for _, p in chain(*self._named_parameters)}
        return [p for p in unique.values() if not isinstance(p, torch.nn.UninitializedParameter)]

    # ---------------------------------------------------------------- settings, meta, times

    def _settings(self, paths: dict[int, str]) -> dict[str, Any]:
        """What the modules that were called, and the optimizers that made a step, were set to."""
        rec = self.recorder
        called = [
            (paths[number], row.owner)
            for number, row in enumerate(rec.modules)
            if row.kind == "module" and isinstance(row.owner, torch.nn.Module)
        ]
        steps = {"optimizers": list(rec.steps.values())} if rec.steps else {}
        second_paths = self._second_paths(paths) if called else {}
        aliases = {"second_paths": second_paths} if second_paths else {}
        return {"settings": module_settings(called) | steps | aliases} if called or steps else {}

    def _second_paths(self, paths: dict[int, str]) -> dict[str, str]:
        """Further paths of modules that were called, each with the path that the graph has."""
        modules = self.recorder.modules
        first = {id(modules[number].owner): path for number, path in paths.items() if path}
        second: dict[str, str] = {}
        for prefix, root in self.roots:
            for name, parent in root.named_modules():
                for part, module in parent._modules.items():
                    path = ".".join(word for word in (prefix, name, part) if word)
                    if id(module) in first and first[id(module)] != path:
                        second[path] = first[id(module)]
        return second

    def _meta(self, graph: Graph) -> dict[str, Any]:
        unused = unused_parameters(graph, chain(*self._named_parameters))
        return {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "devices": [graph.devices[number] for number in np.unique(graph.storage_device)],
            "model": self._model_name() if self.roots else None,
            "parameters": sum(p.numel() for p in self.parameters()) if self.roots else None,
            **({"unused_parameters": unused} if unused else {}),
            **({"zeroed_at": self.recorder.zeroed} if self.recorder.zeroed else {}),
            **({"compile_ns": self.compile_ns} if self.compile_ns else {}),
            **({"loss": SUMMED_OUTPUTS} if self.sums_outputs else {}),
        }

    def _model_name(self) -> str:
        """The class of the one model there is; several by their names."""
        if len(self.roots) == 1:
            return type(self.roots[0][1]).__name__
        return and_more([prefix for prefix, _ in self.roots], 3)

    def _recording_time(self, assembly: Assembly) -> dict[str, int]:
        """The time of the run, how much of it recording took, and how far off that may be."""
        wall = self.ended - self.recorder.scopes[0][2]
        if "scope_time_ns" not in assembly.metrics:
            return {"wall_ns": wall, "overhead_ns": self.recorder.overhead}
        run = int(assembly.metrics["scope_time_ns"].values[0])
        # recording may have taken any of the time that is neither the run's nor measured as the recorder's
        unmeasured = wall - self.recorder.overhead - run
        error = max(assembly.time_error_ns + self.interrupted_ns, unmeasured)
        return {"wall_ns": wall, "overhead_ns": wall - run, "overhead_error_ns": max(error, 0)}


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _parts(name: str, tensor: torch.Tensor, role: Role) -> list[NamedTensor]:
    """A named tensor, or the tensors inside it where it is a wrapper (a DTensor, say)."""
    return [NamedTensor(part_name, part, role) for part_name, part in named_tensors(tensor, name)]


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is there: whole parameters are freed once each rank has its shard back."""
    try:
        return bool(tensor.untyped_storage().nbytes()) or not tensor.numel()
    # a tensor without plain memory
    except (RuntimeError, NotImplementedError):
        return True


def _numbering(numbers: Any) -> Callable[[int], int | None]:
    """A function from the recorder's number of a value to the graph's; None where there is none."""
    # a list, for much is asked of it
    known = numbers.tolist()

    def number(value: int) -> int | None:
        known_number: int = known[value] if value < len(known) else -1
        return known_number if known_number >= 0 else None

    return number


def _read_calls(
    given: dict[int, Any], returned: dict[int, Any], arguments: dict[int, list[str]], numbers: Any
) -> tuple[dict[int, Any], dict[int, Any]]:
    """What calls of modules were given, by the names of the arguments, and returned, by the numbers of the graph."""
    number = _numbering(numbers)
    named_given = {}
    for scope, form in given.items():
        positional, named = renumbered(call_form(form), number).parts
        names = arguments[scope]
        keys = [*names, *map(str, range(len(names), len(positional.parts)))]
        keys = [*keys[: len(positional.parts)], *named.keys]
        named_given[scope] = Form(dict, tuple(keys), (*positional.parts, *named.parts))
    return named_given, {scope: renumbered(form, number) for scope, form in returned.items()}


def _without_history(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if is_leaf(tensor) else tensor.detach()


def unused_parameters(graph: Graph, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, int]:
    """By the path of the module that holds them, how many elements no operation of the run read or wrote."""
    outside = (graph.value_role == Role.PARAMETER) & (graph.value_producer < 0) & (graph.value_name >= 0)
    used = {graph.names[name] for name in np.unique(graph.value_name[outside]).tolist()}
    unused: dict[str, int] = {}
    for name, parameter in parameters:
        if name in used or isinstance(parameter, torch.nn.UninitializedParameter):
            continue
        # a wrapper is known by its parts
        if used.isdisjoint(part for part, _ in named_tensors(parameter, name)):
            path = name.rpartition(".")[0]
            unused[path] = unused.get(path, 0) + parameter.numel()
    return unused


def name_inputs(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """The input tensors under the names that the callable gives its parameters.

    >>> [name for name, _ in name_inputs(lambda a, b: None, (torch.ones(1), [torch.ones(1)]), {})]
    ['a', 'b.0']
    """
    bound = bound_arguments(target, args, kwargs)
    return [pair for name, arg in bound.items() for pair in named_tensors(arg, name)]


def run_backward(output: Any, loss: Callable[[Any], Any] | None) -> None:
    """Backward from ``loss(output)``, or from the sum of all floating outputs."""
    if loss is not None:
        total = loss(output)
        if not isinstance(total, torch.Tensor) or total.numel() != 1:
            is_tensor = isinstance(total, torch.Tensor)
            kind = f"a tensor of shape {tuple(total.shape)}" if is_tensor else type(total).__name__
            raise NothingToDifferentiate(
                f"loss must return a scalar tensor, not {kind}; reduce it, e.g. with .mean()"
            )
        if not total.requires_grad:
            raise NothingToDifferentiate("the loss does not depend on anything that requires a gradient")
        total.backward()
        return
    parts = []
    for _, tensor in named_tensors(output):
        if tensor.requires_grad and tensor.is_complex():
            parts.append(tensor.real.sum() + tensor.imag.sum())
        elif tensor.requires_grad and tensor.is_floating_point():
            parts.append(tensor.sum())
    if not parts:
        raise NothingToDifferentiate(
            "backward=True, but no output requires a gradient; are the parameters frozen, or is it under no_grad?"
        )
    total = parts[0]
    for part in parts[1:]:
        total = total + (part if part.device == total.device else part.to(total.device))
    total.backward()


# ---------------------------------------------------------------- the place of a run among ranks


class MeshLayout:
    """The meshes that the parameters and inputs of a run lie on."""

    def __init__(self, meshes: list[Any]) -> None:
        self.meshes = meshes

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> MeshLayout:
        """The meshes of those tensors that are parts of larger ones; the one with most axes first."""
        meshes: dict[int, Any] = {}
        for tensor in tensors:
            spec = mesh_spec(tensor)
            if spec is not None:
                mesh = spec.mesh
                root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
                meshes.setdefault(id(root), root)
                meshes.setdefault(id(mesh), mesh)
        return cls(sorted(meshes.values(), key=lambda mesh: -mesh.ndim))

    def name_groups(self, rec: Recorder) -> None:
        """Give groups of ranks the names of their axes where torch describes them otherwise."""
        axes: dict[str, str] = {}
        for mesh in self.meshes:
            for axis in mesh.mesh_dim_names or ():
                axes.setdefault(mesh.get_group(axis).group_name, str(axis))
        renamed: dict[str, str] = {}
        for name, number in rec.group_numbers.items():
            group = rec.groups[number]
            axis = axes.get(name)
            taken = {other.name for other in rec.groups}
            if axis is not None and not group.axis and axis not in taken:
                rec.groups[number] = group._replace(name=axis, axis=axis)
                renamed[group.name] = axis
        if not renamed:
            return
        for number in set(rec.comm_calls.values()):
            info = rec.calls[number]
            args = tuple(
                Special("group", renamed.get(item.text, item.text))
                if isinstance(item, Special) and item.kind == "group"
                else item
                for item in info.call.args
            )
            rec.calls[number] = info._replace(call=info.call._replace(args=args))

    def placements(
        self, named: Iterable[tuple[str, torch.Tensor]], substitute: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[tuple[torch.Tensor, Placement]]:
        """The parts of larger tensors that the recorder has seen, and how these lie on their meshes."""
        rows = []
        for _, tensor in named:
            for whole in (tensor, gradient_of_leaf(tensor)):
                spec = mesh_spec(whole)
                if whole is not None and spec is not None:
                    names = spec.mesh.mesh_dim_names or range(spec.mesh.ndim)
                    placement = Placement(
                        tuple(int(size) for size in whole.shape),
                        tuple(str(name) for name in names),
                        tuple(str(part) for part in spec.placements),
                    )
                    part: Any = whole
                    rows.append((substitute(part._local_tensor), placement))
        return rows


def mesh_spec(tensor: Any) -> Any:
    """How a tensor lies on a mesh; None for one that does not."""
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is None or not isinstance(tensor, tensors.DTensor):
        return None
    return tensor._spec


def rank_meta(rec: Recorder, layout: MeshLayout) -> dict[str, Any]:
    """What a run says of its place in its job; nothing for a run that is no part of one."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        return {}
    now = time.time_ns() - time.perf_counter_ns()
    meta: dict[str, Any] = {
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "host": platform.node(),
        # when the run began, on the clock of its machine
        "began_ns": int(now + rec.scopes[0][2]),
    }
    mesh: dict[str, int] = {}
    coordinates: dict[str, int] = {}
    for item in layout.meshes:
        coordinate = item.get_coordinate()
        for number, axis in enumerate(item.mesh_dim_names or ()):
            mesh.setdefault(str(axis), int(item.size(number)))
            if coordinate is not None:
                coordinates.setdefault(str(axis), int(coordinate[number]))
    for group in rec.groups:
        if group.axis:
            mesh.setdefault(group.axis, len(group.ranks))
            coordinates.setdefault(group.axis, group.position)
    if mesh:
        meta |= {"mesh": mesh, "coordinates": coordinates}
    stages = [row.owner.stage_index for row in rec.modules if row.kind == "stage"]
    return meta | ({"stage": int(stages[0])} if stages else {})
