"""A model taken through ``torch.export`` for running it again: sizes left open, nothing written in place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.capture.compilers.frontends import failed
from torch_vis.capture.compilers.symbolic_sizes import marks_kept
from torch_vis.errors import CaptureFailed, NotTraceable, UsageError
from torch_vis.ops.names import is_in_place, out_of_place

ADVICE = (
    "an exported graph has no branches on values: use torch.cond or torch.where, or look at the model with "
    "tv.trace(model, x) or via='dynamo', which take any"
)


class Exported(NamedTuple):
    """The exported program and what it could not be given."""

    program: Any
    limits: tuple[str, ...]


def check_model(model: Any, device: Any) -> None:
    """Refuse what is no module, a module in train mode, and one that is not on the device asked for."""
    if not isinstance(model, torch.nn.Module):
        raise NotTraceable(f"DLBacktrace takes a torch.nn.Module, not {type(model).__name__}")
    training = [name for name, part in model.named_modules() if part.training]
    if training:
        where = f" (its part {training[0]!r})" if training[0] else ""
        raise UsageError(f"the model{where} is in train mode; call model.eval() first")
    if device is None:
        return
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device is 'cpu', 'cuda' or such, not {device!r}") from error
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not same_device(tensor.device, wanted):
            raise UsageError(
                f"device={str(wanted)!r}, but {name} is on {tensor.device}; call model.to({str(wanted)!r}) first"
            )


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are one; ``cuda`` stands for any of its kind."""
    return one.type == other.type and (one.index is None or other.index is None or one.index == other.index)


def export(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    fits: Callable[[Any], bool],
) -> Exported:
    """The model as a graph of operators that write nothing in place, with the sizes of batches and sequences open.

    ``fits`` says whether a program takes the inputs as they are, where it was exported for a larger batch.
    """
    with torch.random.fork_rng(devices=[]):
        if dynamic_shapes is not None:
            return Exported(without_writes(_export(model, args, kwargs, dynamic_shapes)), ())
        wide = _widened(args, kwargs)
        if wide is not None:
            try:
                program = without_writes(_export(model, *wide, open_sizes(model, *wide)))
                if fits(program) and _agrees(program, model, args, kwargs):
                    return Exported(program, ())
            except Exception:  # torch says no in many ways; a batch of one is then what the graph is for
                pass
        try:
            return Exported(without_writes(_export(model, args, kwargs, open_sizes(model, args, kwargs))), ())
        except CaptureFailed as error:
            program = without_writes(
                _export(model, args, kwargs, None)
            )  # raises what is wrong, if it is not sizes
            return Exported(program, (f"sizes are fixed to those of input_for_graph: {error}",))


def _export(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any) -> Any:
    try:
        with marks_kept(args, kwargs):
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise _explained(model, args, kwargs, error, shapes) from error


def _explained(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, shapes: Any
) -> CaptureFailed:
    """What went wrong, with the likeliest cause in words."""
    if shapes is not None and _is_about_sizes(error):
        told = " ".join(str(error).split())[:300]
        return CaptureFailed(
            f"dynamic_shapes does not fit the model or the inputs: {type(error).__name__}: {told}; it names sizes by "
            "input and dimension, such as {'x': {0: torch.export.Dim('batch', min=1)}}, and the example lies within"
        )
    types = {parameter.dtype for parameter in model.parameters() if parameter.dtype.is_floating_point}
    for name, leaf in named_leaves(model, args, kwargs):
        if isinstance(leaf, torch.Tensor) and types and "type" in str(error).lower():
            if leaf.dtype.is_floating_point and leaf.dtype not in types:
                wanted = str(min(types, key=str))
                return CaptureFailed(
                    f"input {name!r} is {leaf.dtype} and the model's parameters are {wanted}; give {name}.to({wanted})"
                )
    shown = ", ".join(f"{name}: {describe(leaf)}" for name, leaf in named_leaves(model, args, kwargs))
    if isinstance(error, (RuntimeError, TypeError, IndexError)) and "data-dependent" not in str(error):
        advice = f"if the model itself takes these inputs ({shown}), {ADVICE}"
        return failed("export", error, advice)
    return failed("export", error, ADVICE)


def _is_about_sizes(error: Exception) -> bool:
    """Whether an error is torch's word on the sizes that were declared open."""
    words = ("dynamic_shapes", "constraints violated", "dynamic shape", "specified as dynamic")
    told = str(error).lower()
    by_kind = type(error).__name__ == "ConstraintViolationError"
    by_place = isinstance(error, IndexError) and "list assignment" in told
    return by_kind or by_place or any(word in told for word in words)


def describe(leaf: Any) -> str:
    """An input as an error names it."""
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
    return repr(leaf)


def named_leaves(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """The inputs, those by position first, with the names that the model's signature gives them."""
    names = list(inspect.signature(model.forward).parameters)
    names += [f"input_{place}" for place in range(len(names), len(args))]
    leaves, _ = pytree.tree_flatten_with_path({**dict(zip(names, args)), **kwargs})
    found = []
    for path, leaf in leaves:
        first: Any = path[0]
        found.append((str(first.key) + "".join(str(key) for key in path[1:]), leaf))
    return found


def bind(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str
) -> dict[str, Any]:
    """The arguments by name, or an error that shows the signature."""
    signature = inspect.signature(model.forward)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        names = ", ".join(signature.parameters)
        raise UsageError(
            f"{what} do not fit forward({names}): {error}; give a tuple with one entry per input"
        ) from error


# ---------------------------------------------------------------- open sizes


def open_sizes(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sizes left open where the program allows: batches, sequences, not features and not the sides of images.

    Left open as well, these make torch reason about every stride and window of an image model for minutes, and end up
    fixed all the same; who needs them names them in ``dynamic_shapes``.
    """
    auto = torch.export.Dim.AUTO

    def sizes(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        sequence = leaf.dim() if not leaf.is_floating_point() else max(1, leaf.dim() - 1)
        return dict.fromkeys(range(min(leaf.dim(), sequence if leaf.dim() < 4 else 1)), auto)

    return {
        name: pytree.tree_map(sizes, value) for name, value in bind(model, args, kwargs, "the inputs").items()
    }


def _widened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The inputs with a batch of two where all have a batch of one: torch takes a size of one for a constant."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if not tensors or any(tensor.dim() < 2 or len(tensor) != 1 for tensor in tensors):
        return None

    def twice(leaf: Any) -> Any:
        return torch.cat([leaf.detach(), leaf.detach()]) if isinstance(leaf, torch.Tensor) else leaf

    wide: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(twice, (args, kwargs))
    return wide


def _agrees(program: Any, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a program that was exported for two gives the model's own output for one."""
    if any(spec.kind.name.endswith("MUTATION") for spec in program.graph_signature.output_specs):
        return False  # running the model for a test would change it
    from torch_vis.analysis.relevance.fx_steps import Steps
    from torch_vis.capture.compilers.frontends import export_inputs

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        expected = pytree.tree_leaves(model(*args, **kwargs))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        steps = Steps(program.graph_module)
        made = steps.outputs(steps.run(export_inputs(program, model, args, kwargs), keep=()))
    pairs = list(zip(expected, pytree.tree_leaves(made)))
    return len(expected) == len(pytree.tree_leaves(made)) and all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in pairs
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    )


# ---------------------------------------------------------------- writes in place


def without_writes(program: Any) -> Any:
    """The program with in-place operators replaced, so that a value seen once stays what it was.

    Where nobody else can see the write, the operator's twin that makes a new tensor takes its place; otherwise torch
    rewrites the whole program, which renames some operators.
    """
    graph = program.graph_module.graph
    writers = [node for node in graph.nodes if node.op == "call_function" and _writes(node.target)]
    if not writers:
        return program
    twins = {node: _twin(node) for node in writers}
    if any(twin is None for twin in twins.values()):
        return program.run_decompositions({})
    for node, twin in twins.items():
        node.target = twin
    program.graph_module.recompile()
    return program


def _writes(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _twin(node: fx.Node) -> Any:
    """The operator that gives the same as a new tensor, where the write can be seen by this node's readers alone."""
    target: Any = node.target
    written = [place for place, argument in enumerate(target._schema.arguments) if _is_write(argument)]
    source = node.args[0] if node.args else None
    if written != [0] or not isinstance(source, fx.Node) or source.op != "call_function":
        return None
    if list(source.users) != [node] or not isinstance(source.target, torch._ops.OpOverload):
        return None
    if any(result.alias_info is not None for result in source.target._schema.returns):
        if not _writes(source.target):  # a view of something else
            return None
    name = target._schema.name.split("::")[1]
    packet = getattr(getattr(torch.ops, target.namespace), out_of_place(name), None)
    return getattr(packet, target._overloadname, None) if is_in_place(name) else None


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
