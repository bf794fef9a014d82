"""A capture session: run the user's code under the recorder, then work out which tensor and module is which."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from torch_vis.capture.assembling.assemble import Assembly, NamedTensor, ResultTensor, RunFacts, assemble
from torch_vis.capture.assembling.limits import describe_limits, packed_weights
from torch_vis.capture.assembling.metric_columns import with_stored
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.kept_tensors import KeptTensors, version_of
from torch_vis.capture.recording import inductor_calls
from torch_vis.capture.recording.dispatch_mode import RecordMode
from torch_vis.capture.recording.function_calls import FunctionScopes
from torch_vis.capture.recording.module_calls import ModuleCalls, running_codes
from torch_vis.capture.recording.recorder import Recorder, clock
from torch_vis.errors import NothingToDifferentiate
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Metrics
from torch_vis.graph.record import Run
from torch_vis.graph.schema import Role

# a module whose parameters and parts get names, and the prefix of all these names
Root = tuple[str, torch.nn.Module]


class SubstituteMode(Protocol):
    """A mode that hands every operation other tensors in place of the user's: in a fake run, those without numbers."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exception: Any) -> Any: ...

    def substitute(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that operations get in place of one of the user's."""


class CapturedRun(NamedTuple):
    """What a session gives: the run as data, and the live objects that belong to it."""

    run: Run
    kept: KeptTensors | None = None
    """The tensors that a replay starts from; None where none were to be kept."""
    output: Any = None
    """What the callable returned."""
    error: BaseException | None = None
    """The exception that ended the run early, if one did."""


class Capture:
    """One recorded part of a program: enter, run, leave, then ``finish``."""

    def __init__(
        self,
        *modules: torch.nn.Module,
        keep: bool = True,
        timing: bool = True,
        memory: bool = True,
        functions: bool = False,
        declared: Iterable[Callable[..., Any]] = (),
        substitutes: SubstituteMode | None = None,
    ) -> None:
        self.substitutes = substitutes
        self.recorder = Recorder(keep=keep, timing=timing, memory=memory)
        if substitutes is not None:
            self.recorder.grad_writes.substitute = substitutes.substitute
        self.roots: list[Root] = []
        for index, module in enumerate(modules):
            prefix = "" if len(modules) == 1 else f"{type(module).__name__.lower()}{index}"
            self.roots.append((prefix, module))
        inside = frozenset(id(part) for module in modules for part in module.modules())
        self.module_calls = ModuleCalls(self.recorder, inside)
        self.mode = RecordMode(self.recorder)
        self._functions = FunctionScopes(self.recorder, declared) if functions else nullcontext()
        self.inputs: list[tuple[str, torch.Tensor]] = []
        self.output: Any = None
        self.has_output = False
        self.error: BaseException | None = None
        self.compile_ns = 0

    def __enter__(self) -> Capture:
        self.recorder.codes_at_start = running_codes()
        with ExitStack() as stack:
            stack.enter_context(self.module_calls)
            stack.enter_context(self.mode)
            stack.enter_context(self._functions)
            # above the recorder, which then sees only the substitutes
            if self.substitutes is not None:
                stack.enter_context(self.substitutes)
            self._stack = stack.pop_all()
        self._compiled_before = inductor_calls.compile_ns()
        self.recorder.scopes[0][2] = clock()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended = clock()
        self.compile_ns = inductor_calls.compile_ns() - self._compiled_before
        self.recorder.closed = True
        if self.recorder.user_functions is not None:
            self.recorder.user_functions.end()
        self._stack.close()

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
                if backward or loss is not None:
                    run_backward(self.output, loss)
        except Exception as raised:
            if not partial or isinstance(raised, NothingToDifferentiate):
                raise
            self.error = raised

    def finish(self) -> CapturedRun:
        """The run that was recorded, and the tensors that were kept of it."""
        rec = self.recorder
        rec.settle()
        facts = RunFacts(ended=self.ended, live_outputs=not self.has_output)
        facts.paths = self._paths()
        facts.named = self._named()
        facts.results = self._results(facts)
        facts.gradients = rec.grad_writes.named(self._leaf_names(facts))
        assembly = assemble(rec, facts)
        graph = assembly.graph
        # for each of the recorder's values, its number in the graph
        self.numbers = assembly.numbers
        rec.kept.opaque_tensors = {
            int(self.numbers[value]): tensor for value, tensor in rec.kept.opaque_tensors.items()
        }
        if rec.keep:
            self._keep_results(facts)
        self._count_opaque(graph)
        rec.open_steps.clear()
        packed = packed_weights(rec.kept.objects.values())
        meta = self._meta(graph)
        if packed.objects:
            meta["packed_bytes"] = packed.size_bytes
        limits = describe_limits(rec, graph, assembly.guessed, packed)
        run = Run(graph, self._metrics(assembly), limits, meta)
        return CapturedRun(run, rec.kept if rec.keep else None, self.output, self.error)

    def _metrics(self, assembly: Assembly) -> Metrics:
        """The metrics, with the elements that sparse and nested tensors hold."""
        # a value that the graph leaves out has the number before it
        in_graph = np.diff(self.numbers, prepend=-1) > 0
        stored = {int(self.numbers[v]): n for v, n in self.recorder.stored_elements.items() if in_graph[v]}
        return with_stored(assembly.metrics, stored, len(assembly.graph.value_type))

    def _count_opaque(self, graph: Graph) -> None:
        """Count tensors that no recorded operation made: those that appeared in backward, and outputs."""
        rec = self.recorder
        roles = [graph.value_role[self.numbers[value]] for value in rec.appeared_in_backward]
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
        modules = [row.owner for row in self.recorder.modules[1:] if isinstance(row.owner, torch.nn.Module)]
        inner = {id(part) for module in modules for part in module.modules() if part is not module}
        outer = [module for module in modules if id(module) not in inner]
        if len(outer) == 1:
            return [("", outer[0])]
        counts: dict[str, int] = {}
        roots = []
        for module in outer:
            name = type(module).__name__.lower()
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
            gradient = _gradient(tensor)
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
        """What the run leaves behind: its outputs, the gradients that it made, and the outside state that it wrote."""
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
            gradient = _gradient(tensor)
            if gradient is not None and id(gradient) not in gradients:
                for part_name, part in named_tensors(gradient, f"{name}.grad"):
                    recorded = self._substitute(part)
                    if rec.knows(recorded):
                        results.append(ResultTensor(part_name, "gradient", recorded))
                        gradients.add(id(recorded))
        for name, tensor in externals:
            if id(tensor) not in gradients and rec.was_written(tensor):
                results.append(ResultTensor(names.get(id(tensor), name), "state", tensor))
        return results

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

    def parameters(self) -> list[torch.nn.Parameter]:
        """Every parameter of the roots, tied ones once, ones without a shape yet left out."""
        unique = {id(p): p for _, p in chain(*self._named_parameters)}
        return [p for p in unique.values() if not isinstance(p, torch.nn.UninitializedParameter)]

    # ---------------------------------------------------------------- circumstances

    def _meta(self, graph: Graph) -> dict[str, Any]:
        unused = unused_parameters(graph, chain(*self._named_parameters))
        return {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "devices": [graph.devices[number] for number in np.unique(graph.storage_device)],
            "model": type(self.roots[0][1]).__name__ if self.roots else None,
            "parameters": sum(p.numel() for p in self.parameters()) if self.roots else None,
            **({"unused_parameters": unused} if unused else {}),
            "wall_ns": self.ended - self.recorder.scopes[0][2],
            "overhead_ns": self.recorder.overhead,
            **({"compile_ns": self.compile_ns} if self.compile_ns else {}),
        }


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _parts(name: str, tensor: torch.Tensor, role: Role) -> list[NamedTensor]:
    """A named tensor, or the tensors inside it where it is a wrapper (a DTensor, say)."""
    return [NamedTensor(part_name, part, role) for part_name, part in named_tensors(tensor, name)]


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf and tensor.requires_grad else None


def _without_history(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.grad_fn is not None else tensor


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
    called = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        bound = inspect.signature(called).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {**{f"input.{index}": arg for index, arg in enumerate(args)}, **kwargs}
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
