"""The compilers' front-ends: fx, export, Dynamo and AOT, and how the program of each runs under the recorder."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.nn.modules import module as module_file
from torch.utils import _pytree as pytree

from torch_vis.capture.compilers.diagnose import (
    ANY,
    as_far_as_it_goes,
    blamed,
    blaming,
    failed,
    own_error,
    quiet,
)
from torch_vis.capture.compilers.dynamo_cache import forgetting, isolated, whole_compilations
from torch_vis.capture.compilers.graph_breaks import DynamoLog, listening, with_ends, with_losses
from torch_vis.capture.compilers.interpreter import ProgramRun
from torch_vis.capture.compilers.program import Program, count_nodes, describe, remember_outputs, with_untaken
from torch_vis.capture.compilers.symbolic_sizes import (
    bounds_of,
    constrained,
    given_names,
    marked_sizes,
    marks_kept,
    open_sizes,
    with_symbols,
)
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.recording.module_calls import aside_while_compiling
from torch_vis.capture.recording.recorder import Recorder, get_ident
from torch_vis.capture.session import Capture
from torch_vis.capture.undo import HeldSignals, Undo
from torch_vis.errors import CaptureFailed, UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.run import Limit

Runner = Callable[[], Any]


class Options(NamedTuple):
    """What a front-end is asked for beside the model."""

    dynamic: bool | None = None
    dynamic_shapes: Any = None
    fullgraph: bool = False


class CaptureRequest(NamedTuple):
    """What a front-end is to capture, and where it puts the result."""

    program: Program
    run: ProgramRun
    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Options
    clean_up: Undo


@dataclass
class CapturedProgram:
    """A program that a front-end gave, and what runs it under the recorder."""

    program: Program
    program_run: ProgramRun
    run: Runner
    forget: Callable[[], None]
    limits: tuple[str, ...] = ()

    def named(self, graph: Graph) -> Graph:
        """The recorded graph with the open sizes of the program named; the program learns what the graph knows."""
        program, run = self.program, self.program_run
        program.subgraphs = tuple(run.subgraphs.values())
        if any(not subgraph.ran for subgraph in program.subgraphs):
            graph = with_untaken(graph)
        if run.log is not None:
            sizes = [count_nodes(module) for module in program.modules]
            program.breaks, program.lost = with_losses(run.log.breaks(sizes), graph)
            graph = with_ends(graph, program.breaks, sizes)
        if not program.bounds:
            program.bounds = bounds_of(program.modules, program.names)
        return with_symbols(graph, run.symbols, run.capture.numbers, program.names)


def prepare(
    via: str,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    capture: Capture,
    options: Options,
    *,
    partial: bool = False,
) -> CapturedProgram:
    """A program, and what runs it: called inside the capture, it gives the model's output.

    With ``partial``, a model that raises while it is captured is run without the compiler, as far as it goes.
    """
    _check(via, options)
    program, program_run = Program(via), ProgramRun(capture)
    clean_up = Undo()
    limits: tuple[str, ...] = ()
    frontend = {"fx": _fx, "export": _export, "dynamo": _dynamo, "aot": _dynamo}[via]
    started = time.perf_counter_ns()
    try:
        with HeldSignals(), quiet():
            run = frontend(CaptureRequest(program, program_run, model, args, dict(kwargs), options, clean_up))
    except CaptureFailed:
        own = own_error(model, args, kwargs)
        if own is None:
            raise
        if not partial:
            raise own from None
        run = as_far_as_it_goes(model, args, kwargs, own)
        text = f"the model raised while {via} captured it: this is what ran of it without {via}"
        limits = (Limit(text, kind="program"),)
    program.compile_ns = time.perf_counter_ns() - started
    return CapturedProgram(program, program_run, run, clean_up.run, limits)


# ---------------------------------------------------------------- fx


def _fx(request: CaptureRequest) -> Runner:
    """Symbolic tracing: the forward is run once with stand-ins for its inputs."""
    program, program_run, model, args, kwargs, *_ = request
    signature = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise failed("fx", error, ANY) from error
    fixed = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name not in given.arguments and parameter.default is not inspect.Parameter.empty
    }
    try:
        module = fx.symbolic_trace(model, concrete_args=fixed or None)
    except Exception as error:
        raise failed("fx", error, "via='export' or via='dynamo' can take control flow and shapes") from error
    program.modules.append(module)
    names = [node.target for node in module.graph.nodes if node.op == "placeholder"]
    flat = _placeholders(names, given.arguments, fixed)

    def run() -> Any:
        with _inside(program_run.recorder, model):
            return program_run.interpret(module, *flat)

    return blaming(run, program.via, model, args, kwargs, program_run.recorder)


def _placeholders(names: list[Any], given: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[Any]:
    """The inputs of an fx program in the order of its placeholders."""
    inputs = []
    for name in names:
        bare = str(name).lstrip("*")
        if bare in given:
            inputs.append(given[bare])
        else:
            stem = re.sub(r"_\d+$", "", bare)
            inputs.append(given.get(stem, fixed.get(stem)))
    return inputs


class FunctionModule(torch.nn.Module):
    """A plain function as a module, for front-ends that take nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


def as_module(model: Callable[..., Any]) -> torch.nn.Module:
    """A module as it is, and any other callable as a module with its signature."""
    return model if isinstance(model, torch.nn.Module) else FunctionModule(model)


# ---------------------------------------------------------------- export


def _export(request: CaptureRequest) -> Runner:
    """``torch.export``: one graph of aten operators, with parameters and buffers as inputs."""
    program, program_run, model, args, kwargs, options, _ = request
    target = as_module(model)
    shapes = options.dynamic_shapes
    hooks: Any = module_file._global_buffer_registration_hooks
    before = set(hooks)
    try:
        with marks_kept(args, kwargs):
            if shapes is None:
                shapes = (open_sizes if options.dynamic else marked_sizes)(target, args, kwargs)
            exported = torch.export.export(target, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        for hook in set(hooks) - before:  # torch 2.11 leaves one behind when it fails
            del hooks[hook]
        raise failed("export", error, f"via='dynamo' takes programs with graph breaks, and {ANY}") from error
    program.exported = exported
    program.modules.append(exported.graph_module)
    flat = export_inputs(exported, target, args, kwargs)
    if shapes is not None:
        program.names = given_names(exported.graph_module, flat, target, args, kwargs, shapes)
    program.bounds = constrained(exported.range_constraints, program.names)

    def run() -> Any:
        outputs = program_run.interpret(exported.graph_module, *flat)
        return export_outputs(exported, target, outputs)

    return blaming(run, program.via, model, args, kwargs, program_run.recorder)


def export_inputs(
    exported: Any, target: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The inputs of an exported graph, in its order: parameters, buffers, constants and the user's, flattened."""
    held: dict[str, Any] = dict(target.named_parameters(remove_duplicate=False))
    held |= dict(target.named_buffers(remove_duplicate=False))
    names = exported.call_spec.in_spec.children()[1].context or ()
    ordered = {name: kwargs[name] for name in names if name in kwargs}
    users = iter(pytree.tree_leaves((tuple(args), ordered), is_leaf=lambda leaf: leaf is None))
    inputs = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            inputs.append(next(users))
        elif spec.target in held:
            inputs.append(held[spec.target])
        else:
            inputs.append(exported.state_dict.get(spec.target, exported.constants.get(spec.target)))
    return inputs


def export_outputs(exported: Any, target: torch.nn.Module, returned: Any) -> Any:
    """The user's outputs in their own shape, after new states of buffers are written where they belong."""
    outputs = []
    buffers = {**dict(target.named_buffers()), **dict(target.named_parameters())}
    for spec, value in zip(exported.graph_signature.output_specs, returned):
        kind = spec.kind.name
        if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION") and spec.target in buffers:
            with without_gradients():
                buffers[spec.target].copy_(value)
        elif kind == "USER_OUTPUT":
            outputs.append(value)
    return pytree.tree_unflatten(outputs, exported.call_spec.out_spec)


# ---------------------------------------------------------------- Dynamo, with and without AOT


def _dynamo(request: CaptureRequest) -> Runner:
    """Dynamo compiles while the model runs: each partition is interpreted in a scope, other code runs as it is."""
    program, program_run, model, args, kwargs, options, clean_up = request
    rec = program_run.recorder
    log = program_run.log = DynamoLog(rec)
    program.signature = _signature(model)

    held = HeldSignals(holding=False)
    link = CaptureLink(program, program_run, log, held)
    optimized = torch._dynamo.optimize(
        link.keep_partition if program.via == "dynamo" else _aot(link),
        nopython=options.fullgraph,
        dynamic=options.dynamic,
        guard_export_fn=lambda guards: None if link.log is None else link.log.export_guards(guards),
        guard_fail_fn=lambda failure: None if link.log is None else link.log.guard_failed(failure),
        **isolated(),
    )(model)

    called = optimized.forward if isinstance(optimized, torch.nn.Module) else optimized

    def run() -> Any:
        marks = marks_kept(args, kwargs)
        with (
            held,
            quiet(),
            whole_compilations(held),
            marks,
            listening(log),
            aside_while_compiling(),
            _inside(rec, model),
        ):
            try:
                return called(*args, **kwargs)
            except Exception as error:
                raised = blamed(program.via, error, model, args, kwargs, rec)
                if raised is error:
                    raise
                raise raised from (error if isinstance(raised, CaptureFailed) else None)
            finally:
                program.compile_ns += log.compile_ns
                program.guards = tuple(log.guards)
                program.recompilations = tuple(log.recompilations)

    clean_up.add(link.cut)
    clean_up.enter(forgetting())
    return run


class CaptureLink:
    """What compiled code knows of the capture that it was compiled for, until that is over.

    Dynamo keeps the functions that it is given here, and must not keep the model with them.
    """

    def __init__(self, program: Program, run: ProgramRun, log: DynamoLog, held: HeldSignals) -> None:
        self.program: Program = program
        self.run: ProgramRun | None = run
        self.log: DynamoLog | None = log
        self.held = held

    def cut(self) -> None:
        """The capture is over."""
        self.program, self.run, self.log = Program(self.program.via), None, None

    def keep_partition(self, module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        """A backend for Dynamo: the partition is kept as it is, and interpreted where it is called."""
        describe(module, inputs)
        return self.interpreted(module, f"partition {self.add(module)}")

    def add(self, module: fx.GraphModule, *, counts: bool = True) -> int:
        """Add a graph to the program, as another compilation if it counts as one; gives its number."""
        number = len(self.program.modules)
        self.program.modules.append(module)
        if counts and self.log is not None:
            self.log.compiled(number)
        return number

    def interpreted(self, module: fx.GraphModule, name: str) -> Callable[..., Any]:
        """A function that runs a graph node by node under the recorder, in the scope of a partition."""

        def run_graph(*inputs: Any) -> Any:
            if self.run is None or self.run.recorder.closed:
                return module(*inputs)
            outputs = self.run.interpret(module, *inputs)
            remember_outputs(module, outputs)
            return outputs

        return self.in_partition(run_graph, module, name)

    def in_partition(
        self, function: Callable[..., Any], module: fx.GraphModule, name: str
    ) -> Callable[..., Any]:
        """A function that runs another in the scope of a partition, where it is not in that already."""

        def partition(*inputs: Any) -> Any:
            thread = get_ident()
            rec = None if self.run is None or self.run.recorder.closed else self.run.recorder
            if rec is None:
                return function(*inputs)
            self.held.deliver()
            number = rec.module_number(module, name, name, "compiled")
            if rec.scopes[rec.current.get(thread, 0)][0] == number:
                return function(*inputs)
            scope = rec.enter(number, thread)
            try:
                return function(*inputs)
            finally:
                rec.leave(scope, thread)

        return partition


@contextmanager
def _inside(rec: Recorder, model: Any) -> Iterator[None]:
    """A scope of the model itself, where it is a module."""
    if not isinstance(model, torch.nn.Module):
        yield
        return
    thread = get_ident()
    scope = rec.enter(rec.module_number(model, "", type(model).__name__, "module"), thread)
    try:
        yield
    finally:
        rec.leave(scope, thread)


def _signature(model: Any) -> inspect.Signature | None:
    """The arguments as the function that Dynamo takes has them, decorators not looked through."""
    called = model.forward if isinstance(model, torch.nn.Module) else model
    function = getattr(called, "__func__", called)
    try:
        raw = inspect.signature(function, follow_wrapped=False)
        signature = inspect.signature(called, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    # A method that takes itself as one of *args: its positions are not those of the caller.
    is_loose = function is not called and len(raw.parameters) == len(signature.parameters)
    return None if is_loose else signature


def _aot(link: CaptureLink) -> Any:
    """A backend for Dynamo that takes a partition through AOT autograd: forward and backward as graphs of operators."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    phases: dict[int, str] = {}

    def compiler(phase: str) -> Callable[..., Any]:
        def compile_(module: fx.GraphModule, inputs: Any) -> Any:
            number = link.add(module, counts=phase == "forward")
            phases[number] = phase
            return make_boxed_func(link.interpreted(module, f"{phase} {number}"))

        return compile_

    forward, backward = compiler("forward"), compiler("backward")
    compile_both = aot_autograd(fw_compiler=forward, bw_compiler=backward, inference_compiler=forward)

    def backend(module: fx.GraphModule, inputs: Any) -> Any:
        modules = link.program.modules
        count = len(modules)
        compiled = compile_both(module, inputs)
        # What AOT does around the graph, such as writing buffers back, is of the partition too.
        first = next((at for at in range(count, len(modules)) if phases[at] == "forward"), None)
        if first is None:
            return compiled
        return link.in_partition(compiled, modules[first], f"forward {first}")

    return backend


def _check(via: str, options: Options) -> None:
    """Refuse options that a front-end does not have."""
    if via == "eager":
        raise UsageError(
            "dynamic, dynamic_shapes and fullgraph are for captures through a compiler: name one with via="
        )
    if options.fullgraph and via not in ("dynamo", "aot"):
        raise UsageError(f"fullgraph=True is for via='dynamo' and via='aot'; {via} always gives one graph")
    if options.dynamic and via == "fx":
        raise UsageError("dynamic=True is for via='export', 'dynamo' and 'aot'; fx knows no sizes")
    if options.dynamic_shapes is not None and via != "export":
        raise UsageError(
            f"dynamic_shapes is for via='export'; with via={via!r} use dynamic=True or mark_dynamic"
        )
