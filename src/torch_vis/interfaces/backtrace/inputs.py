"""What an exported graph takes: the structure, types and sizes that new inputs are held to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_vis.errors import UsageError
from torch_vis.interfaces.backtrace.export import bind, describe, named_leaves, same_device

UNBOUNDED = 2**62
OPEN = "trace with such an input, or leave it open with dynamic_shapes"
ONE = "torch takes a size of 1 for a constant, so give input_for_graph two or more there"


class Expected(NamedTuple):
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
            for place, (wanted, size) in enumerate(zip(row.shape, shape)):
                where = f"size {place} of input {row.name!r}"
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
            lower = 0  # torch's own bound, not one of the model's
        if not lower <= size <= upper:
            most = f" and at most {upper}" if upper < UNBOUNDED else ""
            raise UsageError(f"{where} is {size}; the graph takes at least {lower}{most}")

    def _check_guards(self, bound: dict[Any, int], seen: dict[Any, str]) -> None:
        for guard in self.guards:
            if guard.free_symbols <= bound.keys() and guard.xreplace(bound) == False:  # noqa: E712  (sympy's false)
                values = ", ".join(f"{seen[s]} is {bound[s]}" for s in sorted(guard.free_symbols, key=str))
                raise UsageError(f"the graph holds only where {guard}: {values}; trace with such an input")


def _expected(name: str, leaf: Any, node: Any) -> Expected:
    if not isinstance(leaf, torch.Tensor):
        return Expected(name, None, None, None, leaf)
    shape = tuple(
        size if isinstance(size, int) else _plain(size.node.expr) for size in node.meta["val"].shape
    )
    return Expected(name, shape, leaf.dtype, leaf.device, None)


def _plain(expression: Any) -> Any:
    return int(expression) if expression.is_number else expression


def _guards(nodes: list[Any]) -> list[Any]:
    """What the tracing took for granted of the open sizes."""
    for node in nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            replaced = mode.shape_env.replacements
            found = [guard.expr.xreplace(replaced) for guard in mode.shape_env.guards]
            return [guard for guard in dict.fromkeys(found) if guard.free_symbols]
    return []


def _check_kind(row: Expected, leaf: Any) -> None:
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
