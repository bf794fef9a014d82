"""The eager capture: run the user's code under the recorder, then find out what was what."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch

from torch_vis.capture.assembling.assemble import RunFacts, assemble
from torch_vis.capture.assembling.limits import describe, packed_weights
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
from torch_vis.graph.schema import Role


class SubstituteMode(Protocol):
    """A mode that hands every operation other tensors in place of the user's: in a fake run, those without numbers."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exception: Any) -> Any: ...

    def substitute(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that operations get in place of one of the user's."""


class Capture:
    """One recorded stretch of a program: enter, run, leave, then ``finish``."""

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
        self.roots: list[tuple[str, torch.nn.Module]] = []
        for place, module in enumerate(modules):
            self.roots.append(
                ("" if len(modules) == 1 else f"{type(module).__name__.lower()}{place}", module)
            )
        inside = frozenset(id(part) for module in modules for part in module.modules())
        self._following = ModuleCalls(self.recorder, inside)
        self._mode = RecordMode(self.recorder)
        self._naming = FunctionScopes(self.recorder, declared) if functions else nullcontext()
        self.inputs: list[tuple[str, torch.Tensor]] = []
        self.output: Any = None
        self.has_output = False
        self.compile_ns = 0

    def __enter__(self) -> Capture:
        self.recorder.codes_at_start = running_codes()
        with ExitStack() as entered:
            for part in (self._following, self._mode, self._naming):
                entered.enter_context(part)
            # above the recorder, which then sees only what stands for the tensors
            if self.substitutes is not None:
                entered.enter_context(self.substitutes)
            self._entered = entered.pop_all()
        self._compiled_before = inductor_calls.compile_ns()
        self.recorder.scopes[0][2] = clock()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended = clock()
        self.compile_ns = inductor_calls.compile_ns() - self._compiled_before
        self.recorder.closed = True
        if self.recorder.user_functions is not None:
            self.recorder.user_functions.end()
        self._entered.close()

    def run(
        self,
        target: Callable[[], Any],
        *,
        backward: bool,
        loss: Callable[[Any], Any] | None,
        partial: bool,
    ) -> Exception | None:
        """Record one call, and a backward pass from what it returns; with ``partial``, give what ended it early."""
        self.has_output = True
        try:
            with self:
                self.output = target()
                if backward or loss is not None:
                    run_backward(self.output, loss)
        except Exception as raised:
            if not partial or isinstance(raised, NothingToDifferentiate):
                raise
            return raised
        return None

    def finish(self) -> tuple[Graph, Metrics, KeptTensors, tuple[str, ...], dict[str, Any]]:
        """The graph of what was recorded, its metrics, the tensors held, the limits and the circumstances."""
        rec = self.recorder
        rec.settle()
        facts = RunFacts(ended=self.ended)
        facts.paths = self._paths()
        facts.named = self._named()
        facts.results = self._results(facts)
        facts.gradients = rec.grad_writes.named(self._leaf_names(facts))
        facts.live = not self.has_output
        graph, metrics, guessed, numbers = assemble(rec, facts)
        self.numbers = numbers  # of the recorder's values in the graph
        held = rec.kept
        held.opaque_tensors = {int(numbers[value]): tensor for value, tensor in held.opaque_tensors.items()}
        kept = np.diff(numbers, prepend=-1) > 0  # a value that the graph leaves out has the number before it
        stored = {int(numbers[value]): count for value, count in rec.stored_elements.items() if kept[value]}
        metrics = with_stored(metrics, stored, len(graph.value_type))
        if rec.keep:
            self._hold_results(facts)
        roles = (
            graph.value_role[numbers[rec.appeared_in_backward]] if rec.appeared_in_backward else np.zeros(0)
        )
        rec.uncaptured["appeared"] = int((roles == Role.CONSTANT).sum())
        rec.open_steps.clear()
        made_outside = [r for r in graph.outcomes if r.kind == "output" and r.value.role == "constant"]
        rec.uncaptured["outputs"] = len(made_outside)
        packed = packed_weights(held.objects.values())
        meta = self._meta(graph)
        if packed.objects:
            meta["packed_bytes"] = packed.size_bytes
        limits = describe(rec, graph, guessed, packed)
        return graph, metrics, held, limits, meta

    # ---------------------------------------------------------------- who is who

    def _paths(self) -> dict[int, str]:
        """A path for every module that was called, from the roots given or else from the outermost modules."""
        rec = self.recorder
        called = {id(owner): number for number, (owner, *_) in enumerate(rec.modules) if number}
        roots = list(self.roots)
        if not roots:
            roots = self._found_roots()
            self.roots = roots
        paths: dict[int, str] = {}
        for prefix, root in roots:
            for name, module in root.named_modules():
                number = called.get(id(module))
                if number is not None:
                    paths.setdefault(number, ".".join(part for part in (prefix, name) if part))
        for number, (_, path, kind_name, kind) in enumerate(rec.modules):
            if number and number not in paths:
                paths[number] = path or (kind_name if kind == "module" else path)
        return paths

    def _found_roots(self) -> list[tuple[str, torch.nn.Module]]:
        rec = self.recorder
        modules = [owner for owner, _, _, kind in rec.modules[1:] if isinstance(owner, torch.nn.Module)]
        inner = {id(part) for module in modules for part in module.modules() if part is not module}
        outer = [module for module in modules if id(module) not in inner]
        if len(outer) == 1:
            return [("", outer[0])]
        counts: dict[str, int] = {}
        roots = []
        for module in outer:
            name = type(module).__name__.lower()
            place = counts.get(name, 0)
            counts[name] = place + 1
            roots.append((f"{name}_{place}" if place else name, module))
        return roots

    def _named(self) -> list[tuple[str, torch.Tensor, Role]]:
        named: list[tuple[str, torch.Tensor, Role]] = []
        for (prefix, root), parameters in zip(self.roots, self._named_parameters):
            for name, parameter in parameters:
                named.extend(_named_parts(name, parameter, Role.PARAMETER))
            for name, buffer in root.named_buffers():
                named.extend(_named_parts(_join(prefix, name), buffer, Role.BUFFER))
        known = {id(tensor): name for name, tensor, _ in named}
        for owner, _, name, kind in self.recorder.modules:
            if kind == "optimizer":
                for parameter, state in owner.state.items():
                    for key, tensor in named_tensors(state):
                        label = f"{name}.{known.get(id(parameter), 'parameter')}.{key}"
                        named.append((label, tensor, Role.OPTIMIZER_STATE))
        named.extend((name, tensor, Role.INPUT) for name, tensor in self.inputs)
        for name, tensor in self._leaves():
            gradient = _gradient(tensor)
            if gradient is not None:
                named.extend(_named_parts(f"{name}.grad", gradient, Role.GRADIENT))
        return [(name, self._met(tensor), role) for name, tensor, role in named]

    def _met(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that the recorder has seen: in a fake run, the one that stands for it."""
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

    def _results(self, facts: RunFacts) -> list[tuple[str, str, torch.Tensor]]:
        rec = self.recorder
        results = [
            (name, "output", self._met(tensor)) for name, tensor in named_tensors(self.output, "output")
        ]
        names = {id(tensor): name for name, tensor, _ in facts.named}
        gradients: set[int] = set()
        leaves = self._leaves()
        for number, found in rec.external_tensors.items():
            tensor = found()
            if tensor is not None and id(tensor) not in names:
                leaves.append((f"constant.{number}", tensor))
        for name, tensor in leaves:
            gradient = _gradient(tensor)
            if gradient is not None and id(gradient) not in gradients:
                for part_name, found_part in named_tensors(gradient, f"{name}.grad"):
                    part = self._met(found_part)
                    if rec.knows(part):
                        results.append((part_name, "gradient", part))
                        gradients.add(id(part))
        for number, found in list(rec.external_tensors.items()):
            tensor = found()
            if tensor is None or id(tensor) in gradients:
                continue
            if rec.was_written(tensor):
                results.append((names.get(id(tensor), f"constant.{number}"), "state", tensor))
        return results

    def _leaf_names(self, facts: RunFacts) -> dict[int, str]:
        """The names of all that can have a gradient, by identity."""
        found = {id(tensor): name for name, tensor in self._leaves()}
        named = {id(tensor) for _, tensor, _ in facts.named}
        for number, made in self.recorder.external_tensors.items():
            tensor = made()
            if tensor is not None and id(tensor) not in named:
                found.setdefault(id(tensor), f"constant.{number}")
        return found

    def _hold_results(self, facts: RunFacts) -> None:
        held = self.recorder.kept
        for number, (name, _, tensor) in enumerate(facts.results):
            held.results[number] = tensor.detach() if tensor.grad_fn is not None else tensor
            held.versions.append((name, held.results[number], version_of(tensor)))
        for name, tensor, role in facts.named:
            if role != Role.GRADIENT and self.recorder.knows(tensor):
                kept = tensor.detach() if tensor.grad_fn is not None else tensor
                held.versions.append((name, kept, version_of(tensor)))

    def parameters(self) -> list[torch.nn.Parameter]:
        """Every parameter of the roots, tied ones once, ones without a shape yet left out."""
        found = {id(p): p for _, p in chain(*self._named_parameters)}
        return [p for p in found.values() if not isinstance(p, torch.nn.UninitializedParameter)]

    def _meta(self, graph: Graph) -> dict[str, Any]:
        left = unused(graph, chain(*self._named_parameters))
        return {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "devices": [graph.devices[number] for number in np.unique(graph.storage_device)],
            "model": type(self.roots[0][1]).__name__ if self.roots else None,
            "parameters": sum(p.numel() for p in self.parameters()) if self.roots else None,
            **({"unused_parameters": left} if left else {}),
            "wall_ns": self.ended - self.recorder.scopes[0][2],
            "overhead_ns": self.recorder.overhead,
            **({"compile_ns": self.compile_ns} if self.compile_ns else {}),
        }


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _named_parts(name: str, tensor: torch.Tensor, role: Role) -> list[tuple[str, torch.Tensor, Role]]:
    return [(part_name, part, role) for part_name, part in named_tensors(tensor, name)]


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf and tensor.requires_grad else None


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
        bound = {**{f"input.{place}": arg for place, arg in enumerate(args)}, **kwargs}
    return [pair for name, arg in bound.items() for pair in named_tensors(arg, name)]


def run_backward(output: Any, loss: Callable[[Any], Any] | None) -> None:
    """Backward from ``loss(output)``, or from the sum of all floating outputs."""
    if loss is not None:
        total = loss(output)
        if not isinstance(total, torch.Tensor) or total.numel() != 1:
            what = (
                f"a tensor of shape {tuple(total.shape)}"
                if isinstance(total, torch.Tensor)
                else type(total).__name__
            )
            raise NothingToDifferentiate(
                f"loss must return a scalar tensor, not {what}; reduce it, e.g. with .mean()"
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


def unused(graph: Graph, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, int]:
    """By the path of the module that holds them, how many elements no operation of the run read or wrote."""
    outside = (graph.value_role == Role.PARAMETER) & (graph.value_producer < 0) & (graph.value_name >= 0)
    used = {graph.names[name] for name in np.unique(graph.value_name[outside]).tolist()}
    found: dict[str, int] = {}
    for name, parameter in parameters:
        if name in used or isinstance(parameter, torch.nn.UninitializedParameter):
            continue
        if used.isdisjoint(
            part for part, _ in named_tensors(parameter, name)
        ):  # a wrapper is known by its parts
            path = name.rpartition(".")[0]
            found[path] = found.get(path, 0) + parameter.numel()
    return found
