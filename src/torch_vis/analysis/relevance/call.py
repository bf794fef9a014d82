"""One operation of a run as the rules see it: its arguments by name, its result, and the relevance of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.capture.compilers.interpreter import op_name
from torch_vis.ops.schemas import schema_arguments


class Amount(NamedTuple):
    """Relevance of one tensor by element: the total, and the net where evidence for and against is followed apart."""

    total: torch.Tensor
    net: torch.Tensor | None = None

    def __add__(self, other: Amount) -> Amount:  # type: ignore[override]  # amounts add up, rows do not
        net = None if self.net is None or other.net is None else self.net + other.net
        return Amount(self.total + other.total, net)

    def times(self, factor: float | torch.Tensor) -> Amount:
        """A share of it."""
        return Amount(self.total * factor, None if self.net is None else self.net * factor)

    def like(self, shape: torch.Size) -> Amount:
        """Summed over the dimensions in which a tensor of this shape was repeated."""
        return Amount(_fit(self.total, shape), None if self.net is None else _fit(self.net, shape))

    def sum(self) -> float:
        """All of it in one number."""
        return float(self.total.sum(dtype=torch.float64))

    def net_sum(self) -> float:
        """What speaks for the start, less what speaks against it."""
        return self.sum() if self.net is None else float(self.net.sum(dtype=torch.float64))


def _fit(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if tensor.shape == shape:
        return tensor
    return tensor.sum_to_size(shape) if tensor.dim() >= len(shape) else tensor.expand(shape)


def magnitude(tensor: torch.Tensor) -> torch.Tensor:
    """Absolute values in a type wide enough to share by; infinities (masks) become large numbers."""
    real = tensor.detach().abs().to(wide(tensor))
    return real if bool(torch.isfinite(real).all()) else torch.nan_to_num(real, nan=0.0, posinf=1e30)


def signed(tensor: torch.Tensor) -> torch.Tensor:
    """The values themselves, likewise."""
    return torch.nan_to_num(tensor.detach().to(wide(tensor)), nan=0.0, posinf=1e30, neginf=-1e30)


def wide(tensor: torch.Tensor) -> torch.dtype:
    """The type in which relevance of a tensor is worked out."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def lifted(amount: torch.Tensor) -> torch.Tensor:
    """Magnitudes, none of them zero: where every contribution is nothing, all have the same share."""
    if not amount.numel():
        return amount
    mean = amount.mean()
    return amount + torch.where((mean > 0) & torch.isfinite(mean), mean * 1e-6, torch.ones_like(mean))


def ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """``part / whole``, and nothing where there is nothing to share by."""
    return torch.where(whole > 0, part / whole.clamp_min(torch.finfo(whole.dtype).tiny), 0.0)


def sign(tensor: torch.Tensor) -> torch.Tensor:
    """+1 or -1, zero counted as positive."""
    return torch.where(tensor.detach() < 0, -1.0, 1.0).to(wide(tensor))


# ---------------------------------------------------------------- operations


Given = Mapping[int, Amount]  # of an operation's outputs, by position
Shares = dict[int, Amount]  # of its arguments' leaves, by position
Rule = Callable[["OpCall", Given], "Shares | None"]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the operators of these names (``add``, ``conv2d``; all their overloads)."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a rule already")
            RULES[name] = function
        return function

    return register


class Leaf(NamedTuple):
    """One argument, or one entry of a list that is an argument."""

    name: str  # of the argument in the operator's schema
    value: Any
    node: fx.Node | None
    carries: bool


class OpCall:
    """An operation that has run."""

    def __init__(
        self, node: fx.Node, read: Callable[[fx.Node], Any], carries: Callable[[fx.Node], bool]
    ) -> None:
        self.node = node
        self.target: Any = node.target
        self.name = op_name(node)
        nodes, self.spec = pytree.tree_flatten((tuple(node.args), dict(node.kwargs)))
        names = self._names()
        self.leaves = [
            Leaf(name, read(item), item, carries(item))
            if isinstance(item, fx.Node)
            else Leaf(name, item, None, False)
            for name, item in zip(names, nodes, strict=True)
        ]
        self.out = read(node)
        self.outs: list[Any] = list(self.out) if isinstance(self.out, (tuple, list)) else [self.out]

    def _names(self) -> list[str]:
        known = [argument.name for argument in schema_arguments(self.target)]
        names: list[str] = []
        for position, value in enumerate(self.node.args):
            name = known[position] if position < len(known) else f"arg{position}"
            names += [name] * len(pytree.tree_leaves(value))
        for name, value in self.node.kwargs.items():
            names += [name] * len(pytree.tree_leaves(value))
        return names

    @property
    def carriers(self) -> list[int]:
        """The positions of the leaves that carry relevance."""
        return [position for position, leaf in enumerate(self.leaves) if leaf.carries]

    def carriers_named(self, *names: str) -> list[int]:
        """The positions of the leaves under these argument names that carry relevance."""
        return [position for position in self.carriers if self.leaves[position].name in names]

    def positions(self, *names: str) -> list[int]:
        """The positions of tensors under these argument names."""
        return [
            position
            for position, leaf in enumerate(self.leaves)
            if leaf.name in names and isinstance(leaf.value, torch.Tensor)
        ]

    def value(self, name: str, otherwise: Any = None) -> Any:
        """An argument that is no list, by name."""
        return next((leaf.value for leaf in self.leaves if leaf.name == name), otherwise)

    def run(self, replaced: Mapping[int, Any]) -> Any:
        """The operator's result with some leaves replaced."""
        values = [replaced.get(position, leaf.value) for position, leaf in enumerate(self.leaves)]
        args, kwargs = pytree.tree_unflatten(values, self.spec)
        return self.target(*args, **kwargs)

    def pull(
        self, moved: Mapping[int, torch.Tensor], fixed: Mapping[int, Any], given: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """The vector-Jacobian product with ``given`` at the outputs, for the leaves in ``moved``."""
        with torch.enable_grad():
            inputs = {position: tensor.detach().requires_grad_() for position, tensor in moved.items()}
            result = self.run({**fixed, **inputs})
            outs = list(result) if isinstance(result, (tuple, list)) else [result]
            chosen = [position for position in given if outs[position].requires_grad]
            if not chosen:
                return {position: torch.zeros_like(tensor) for position, tensor in moved.items()}
            gradients = torch.autograd.grad(
                [outs[position] for position in chosen],
                list(inputs.values()),
                [given[position].to(outs[position].dtype) for position in chosen],
                allow_unused=True,
            )
        return {
            position: torch.zeros_like(moved[position]) if gradient is None else gradient
            for position, gradient in zip(inputs, gradients)
        }
