"""A model taken through ``torch.export`` for running it again, and which inputs the exported graph takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.capture.compilers.diagnose import failed
from torch_vis.capture.compilers.frontends import export_inputs
from torch_vis.capture.compilers.symbolic_sizes import marks_kept
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.state import RngStates
from torch_vis.capture.undo import HeldSignals
from torch_vis.errors import CaptureFailed, NotTraceable, UsageError
from torch_vis.ops.names import is_in_place, out_of_place

# ---------------------------------------------------------------- export


ADVICE = (
    "an exported graph has no branches on values: use torch.cond or torch.where, or look at the model with "
    "tv.trace(model, x) or via='dynamo', which take any"
)


class ExportResult(NamedTuple):
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


def same_device(a: torch.device, b: torch.device) -> bool:
    """Whether two devices are one; ``cuda`` stands for any of its kind."""
    return a.type == b.type and (a.index is None or b.index is None or a.index == b.index)


def export(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    fits: Callable[[Any], bool],
) -> ExportResult:
    """The model as a graph of operators that write nothing in place, with the sizes of batches and sequences open.

    ``fits`` says whether a program takes the inputs as they are, where it was exported for a larger batch.
    """
    with RngStates():
        if dynamic_shapes is not None:
            return ExportResult(without_writes(_export(model, args, kwargs, dynamic_shapes)), ())
        wide = _widened(args, kwargs)
        if wide is not None:
            try:
                program = without_writes(_export(model, *wide, open_sizes(model, *wide)))
                if fits(program) and _agrees(program, model, args, kwargs):
                    return ExportResult(program, ())
            except Exception:  # torch says no in many ways; a batch of one is then what the graph is for
                pass
        try:
            return ExportResult(
                without_writes(_export(model, args, kwargs, open_sizes(model, args, kwargs))), ()
            )
        except CaptureFailed as error:
            # This raises what is wrong, if it is not sizes.
            program = without_writes(_export(model, args, kwargs, None))
            return ExportResult(program, (f"sizes are fixed to those of input_for_graph: {error}",))


def _export(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any) -> Any:
    try:
        # torch drops an interrupt in the middle of it
        with HeldSignals(), marks_kept(args, kwargs):
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise _explained(model, args, kwargs, error, shapes) from error


def _explained(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, shapes: Any
) -> CaptureFailed:
    """What went wrong, with the likeliest cause in words."""
    if shapes is not None and _is_about_sizes(error):
        message = " ".join(str(error).split())[:300]
        return CaptureFailed(
            f"dynamic_shapes does not fit the model or the inputs: {type(error).__name__}: {message}; it names sizes "
            "by input and dimension, such as {'x': {0: torch.export.Dim('batch', min=1)}}, and the example lies within"
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
    message = str(error).lower()
    by_kind = type(error).__name__ == "ConstraintViolationError"
    by_place = isinstance(error, IndexError) and "list assignment" in message
    return by_kind or by_place or any(word in message for word in words)


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
    names += [f"input_{position}" for position in range(len(names), len(args))]
    leaves, _ = pytree.tree_flatten_with_path({**dict(zip(names, args)), **kwargs})
    named = []
    for path, leaf in leaves:
        first: Any = path[0]
        named.append((str(first.key) + "".join(str(key) for key in path[1:]), leaf))
    return named


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
        # running the model for a test would change it
        return False
    with without_gradients(), RngStates():
        expected = pytree.tree_leaves(model(*args, **kwargs))
    with without_gradients(), RngStates():
        inputs = export_inputs(program, model, args, kwargs)
        returned = program.graph_module(*inputs)
    outputs = pytree.tree_leaves(returned)
    pairs = list(zip(expected, outputs))
    return len(expected) == len(outputs) and all(
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
        with HeldSignals():
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
    written = [position for position, argument in enumerate(target._schema.arguments) if _is_write(argument)]
    source = node.args[0] if node.args else None
    if written != [0] or not isinstance(source, fx.Node) or source.op != "call_function":
        return None
    if list(source.users) != [node] or not isinstance(source.target, torch._ops.OpOverload):
        return None
    if any(result.alias_info is not None for result in source.target._schema.returns):
        # a view of something else
        if not _writes(source.target):
            return None
    name = target._schema.name.split("::")[1]
    packet = getattr(getattr(torch.ops, target.namespace), out_of_place(name), None)
    return getattr(packet, target._overloadname, None) if is_in_place(name) else None


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


# ---------------------------------------------------------------- inputs


UNBOUNDED = 2**62
OPEN = "trace with such an input, or leave it open with dynamic_shapes"
ONE = "torch takes a size of 1 for a constant, so give input_for_graph two or more there"


class ExpectedInput(NamedTuple):
    """One input as the graph was traced with it."""

    name: str
    shape: tuple[Any, ...] | None  # numbers, and expressions where a size is open; None: no tensor
    dtype: torch.dtype | None
    device: torch.device | None
    constant: Any


class Contract:
    """Checks inputs against an exported program, and puts them into the order of its placeholders."""

    def __init__(
        self,
        program: Any,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        declared: bool,
    ) -> None:
        order = program.call_spec.in_spec.children()[1].context or ()
        kwargs = {name: kwargs[name] for name in order}
        self.model = model
        self.positional = len(args)
        self.keywords = tuple(kwargs)
        self.spec = pytree.tree_structure((args, kwargs))
        self.declared = declared
        self.ranges = dict(program.range_constraints)
        specs = program.graph_signature.input_specs
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        users = [node for node, spec in zip(nodes, specs) if spec.kind.name == "USER_INPUT"]
        leaves = named_leaves(model, args, kwargs)
        self.expected = [
            _expected(name, leaf, node) for (name, leaf), node in zip(leaves, users, strict=True)
        ]
        self.guards = _guards(users)
        self._passed: set[Any] = set()

    def arrange(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs, flat, after they are found to fit."""
        arguments = bind(self.model, inputs, kwargs, "the inputs")
        if len(inputs) != self.positional or tuple(kwargs) != self.keywords:
            inputs, kwargs = self._as_traced(arguments, inputs, kwargs)
        leaves, spec = pytree.tree_flatten((tuple(inputs), dict(kwargs)))
        if spec != self.spec or len(leaves) != len(self.expected):
            traced = ", ".join(row.name for row in self.expected)
            given = ", ".join(f"{n}: {describe(v)}" for n, v in named_leaves(self.model, inputs, kwargs))
            raise UsageError(
                f"the graph was traced with the inputs {traced}, and these have another structure ({given}); "
                "make a new DLBacktrace for them"
            )
        for row, leaf in zip(self.expected, leaves):
            _check_kind(row, leaf)
        sizes = tuple(tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None for leaf in leaves)
        if sizes not in self._passed:
            self._check_sizes(sizes)
            self._passed.add(sizes)
        return leaves

    def spread(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """A batch as a loader gives it, one list of all inputs, as inputs of their own."""
        if len(inputs) != 1 or type(inputs[0]) not in (list, tuple) or len(inputs[0]) != self.positional:
            return inputs
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(inputs)):
            return inputs
        first = self.spec.children()[0]
        return inputs if self.positional == 1 and not first.children()[0].is_leaf() else tuple(inputs[0])

    def _as_traced(
        self, arguments: dict[str, Any], inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same inputs with those by position and those by name that the tracing had."""
        names = list(arguments)
        if set(names) & {"args", "kwargs"} or not set(self.keywords) <= set(names):
            return inputs, dict(kwargs)
        first = [name for name in names if name not in self.keywords]
        if len(first) != self.positional:
            return inputs, dict(kwargs)
        return tuple(arguments[name] for name in first), {name: arguments[name] for name in self.keywords}

    def _check_sizes(self, sizes: tuple[Any, ...]) -> None:
        bound: dict[Any, int] = {}
        seen: dict[Any, str] = {}
        derived: list[tuple[Any, int, str]] = []
        for row, shape in zip(self.expected, sizes):
            if row.shape is None:
                continue
            if len(shape) != len(row.shape):
                raise UsageError(
                    f"input {row.name!r} has shape {shape}; the graph was traced with {_shown(row.shape)}"
                )
            for dim, (wanted, size) in enumerate(zip(row.shape, shape)):
                where = f"size {dim} of input {row.name!r}"
                if isinstance(wanted, int):
                    if wanted != size:
                        raise UsageError(
                            f"{where} is {size}, and the graph is for {wanted}; "
                            + (ONE if wanted == 1 and self.declared else OPEN)
                        )
                elif wanted.is_symbol:
                    if bound.setdefault(wanted, size) != size:
                        raise UsageError(f"{where} is {size} and must equal {seen[wanted]}: {bound[wanted]}")
                    seen.setdefault(wanted, where)
                    self._check_range(wanted, size, where)
                else:
                    derived.append((wanted, size, where))
        for wanted, size, where in derived:
            if (value := wanted.xreplace(bound)).is_number and int(value) != size:
                raise UsageError(f"{where} is {size} and must be {wanted} = {value}")
        self._check_guards(bound, seen)

    def _check_range(self, symbol: Any, size: int, where: str) -> None:
        limits = self.ranges.get(symbol)
        if limits is None:
            return
        lower, upper = _number(limits.lower, 0), _number(limits.upper, UNBOUNDED)
        if not self.declared and lower <= 2:
            # torch's own bound, not one of the model's
            lower = 0
        if not lower <= size <= upper:
            most = f" and at most {upper}" if upper < UNBOUNDED else ""
            raise UsageError(f"{where} is {size}; the graph takes at least {lower}{most}")

    def _check_guards(self, bound: dict[Any, int], seen: dict[Any, str]) -> None:
        for guard in self.guards:
            if guard.free_symbols <= bound.keys() and guard.xreplace(bound) == False:  # noqa: E712  (sympy's false)
                values = ", ".join(f"{seen[s]} is {bound[s]}" for s in sorted(guard.free_symbols, key=str))
                raise UsageError(f"the graph holds only where {guard}: {values}; trace with such an input")


def _expected(name: str, leaf: Any, node: Any) -> ExpectedInput:
    if not isinstance(leaf, torch.Tensor):
        return ExpectedInput(name, None, None, None, leaf)
    shape = tuple(
        size if isinstance(size, int) else _plain(size.node.expr) for size in node.meta["val"].shape
    )
    return ExpectedInput(name, shape, leaf.dtype, leaf.device, None)


def _plain(expression: Any) -> Any:
    return int(expression) if expression.is_number else expression


def _guards(nodes: list[Any]) -> list[Any]:
    """What the tracing took for granted of the open sizes."""
    for node in nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            replaced = mode.shape_env.replacements
            guards = [guard.expr.xreplace(replaced) for guard in mode.shape_env.guards]
            return [guard for guard in dict.fromkeys(guards) if guard.free_symbols]
    return []


def _check_kind(row: ExpectedInput, leaf: Any) -> None:
    if row.shape is None:
        if isinstance(leaf, torch.Tensor) or type(leaf) is not type(row.constant) or leaf != row.constant:
            raise UsageError(
                f"input {row.name!r} is {describe(leaf)}; the graph was traced with {row.constant!r} "
                "and holds for nothing else"
            )
        return
    if not isinstance(leaf, torch.Tensor):
        raise UsageError(f"input {row.name!r} is {type(leaf).__name__} {leaf!r}, where a tensor is expected")
    if leaf.dtype != row.dtype:
        raise UsageError(
            f"input {row.name!r} is {leaf.dtype}, and the graph was traced with {row.dtype}; "
            f"give {row.name}.to({row.dtype})"
        )
    if row.device is not None and not same_device(leaf.device, row.device):
        raise UsageError(
            f"input {row.name!r} is on {leaf.device}, and the graph was traced on {row.device}; "
            f"give {row.name}.to('{row.device}')"
        )


def _shown(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _number(bound: Any, otherwise: int) -> int:
    try:
        return min(int(bound), UNBOUNDED)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return otherwise
