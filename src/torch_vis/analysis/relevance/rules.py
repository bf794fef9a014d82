"""How an operation hands relevance on to its arguments: a rule for each family of operators, and the call it sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.capture.compilers.interpreter import op_name
from torch_vis.capture.modes import with_gradients, without_gradients
from torch_vis.ops.names import plain_name
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


def ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """``part / whole``, and nothing where there is nothing to share by: that stays, as the part of the bias."""
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
    source: Any
    """What made it: a node of a program, or the number of a value."""
    carries: bool
    is_gate: Callable[[], bool] = bool
    """Whether a gate made it, which a product asks for."""


class OpCall:
    """An operation that has run: ``leaf`` says of each leaf of its arguments what it is, given its argument's name."""

    def __init__(
        self,
        target: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        leaf: Callable[[str, Any], Leaf],
        out: Any,
    ) -> None:
        self.target, self.name = target, name
        items, self.spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self.leaves = [
            leaf(argument, item)
            for argument, item in zip(_argument_names(target, args, kwargs), items, strict=True)
        ]
        self.out = out
        self.outs: list[Any] = list(out) if isinstance(out, (tuple, list)) else [out]

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

    def run(self, replaced: Mapping[int, Any], function: Callable[..., Any] | None = None) -> Any:
        """The result of the operator, or of a function instead of it, with some leaves replaced."""
        values = [replaced.get(position, leaf.value) for position, leaf in enumerate(self.leaves)]
        args, kwargs = pytree.tree_unflatten(values, self.spec)
        return (function or self.target)(*args, **kwargs)

    def pull(
        self, moved: Mapping[int, torch.Tensor], fixed: Mapping[int, Any], given: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """The vector-Jacobian product with ``given`` at the outputs, for the leaves in ``moved``."""
        with with_gradients():
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


def _argument_names(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """For each leaf of a call's arguments the name of the argument."""
    known = [argument.name for argument in schema_arguments(target)]
    names: list[str] = []
    for position, value in enumerate(args):
        name = known[position] if position < len(known) else f"arg{position}"
        names += [name] * len(pytree.tree_leaves(value))
    for name, value in kwargs.items():
        names += [name] * len(pytree.tree_leaves(value))
    return names


def call_of(node: fx.Node, read: Callable[[fx.Node], Any], carries: Callable[[fx.Node], bool]) -> OpCall:
    """The call of a node of a program."""

    def leaf(name: str, item: Any) -> Leaf:
        if isinstance(item, fx.Node):
            return Leaf(name, read(item), item, carries(item), lambda: _is_gate(item))
        return Leaf(name, item, None, False)

    return OpCall(node.target, op_name(node), node.args, node.kwargs, leaf, read(node))


# ---------------------------------------------------------------- products with weights and of two activations


FACTORS = frozenset(
    {"input", "self", "weight", "other", "mat1", "mat2", "batch1", "batch2", "vec", "vec1", "vec2"}
)
FACTORS |= {"tensors", "tensor", "input1", "input2"}


@rule(
    "linear", "matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "outer", "einsum", "bilinear", "tensordot"
)
@rule("conv1d", "conv2d", "conv3d", "convolution", "_convolution")
@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def product(call: OpCall, given: Given) -> Shares | None:
    """Of every output, each input's share of ``Σ |x·w|``; the bias is left out, so that its part goes to the inputs."""
    factors = call.carriers_named(*FACTORS)
    return contributions(call, given, {position: 1 / len(factors) for position in factors}, _no_bias(call))


@rule("addmm", "addbmm", "baddbmm", "addmv", "addr")
def product_and_sum(call: OpCall, given: Given) -> Shares | None:
    """The same with something added, which counts if it comes from the inputs."""
    added = call.carriers_named("self")
    factors = [position for position in call.carriers if position not in added]
    weights = {**dict.fromkeys(added, 1.0), **{position: 1 / len(factors) for position in factors}}
    fixed: dict[int, Any] = {
        position: torch.zeros_like(magnitude(call.leaves[position].value))
        for position in call.positions("self")
        if position not in added
    }
    return contributions(call, given, weights, fixed)


def _no_bias(call: OpCall) -> dict[int, Any]:
    return {position: None for position, leaf in enumerate(call.leaves) if leaf.name == "bias"}


def contributions(
    call: OpCall, given: Given, weights: Mapping[int, float], fixed: Mapping[int, Any]
) -> Shares | None:
    """Shares of an operator that is linear in each of its tensors, worked out by running it on magnitudes."""
    if not weights:
        return None
    inputs = {position: call.leaves[position].value for position in weights}
    others = {
        position: leaf.value
        for position, leaf in enumerate(call.leaves)
        if isinstance(leaf.value, torch.Tensor) and leaf.value.is_floating_point() and position not in inputs
    }
    sizes = {position: magnitude(value) for position, value in inputs.items()}
    held = {**{position: magnitude(value) for position, value in others.items()}, **fixed}
    with without_gradients():
        whole = call.run({**held, **sizes})
    amount = given[0]
    pulled = call.pull(sizes, held, {0: ratio(amount.total, whole)})
    totals = {position: pulled[position] * sizes[position] * weights[position] for position in sizes}
    if amount.net is None:
        return {position: Amount(total) for position, total in totals.items()}
    values = {position: signed(value) for position, value in inputs.items()}
    held = {**{position: signed(value) for position, value in others.items()}, **fixed}
    pulled = call.pull(values, held, {0: ratio(amount.net, whole) * sign(call.outs[0])})
    return {
        position: Amount(total, pulled[position] * values[position] * weights[position])
        for position, total in totals.items()
    }


# ---------------------------------------------------------------- sums, averages and lookups


@rule("add", "sub", "rsub", "__radd__", "__rsub__")
def addition(call: OpCall, given: Given) -> Shares | None:
    """By the magnitude of the addends that come from the inputs; a constant gets what they have no part in alone."""
    positions = call.carriers
    amount = given[0]
    if len(positions) == 1:
        return _even(call, amount, positions)
    alpha = float(call.value("alpha", 1) or 1)
    # also of Python's __rsub__
    name = plain_name(call.name).strip("_")
    scales = {
        "self": -alpha if name == "rsub" else 1.0,
        "other": {"sub": -alpha, "rsub": 1.0}.get(name, alpha),
    }
    shape = call.outs[0].shape
    sizes: dict[int, Any] = {}
    for position in positions:
        leaf = call.leaves[position]
        size = magnitude(leaf.value) * abs(scales.get(leaf.name, 1.0))
        sizes[position] = size.expand(shape)
    whole = sum(sizes.values())
    shares = {}
    for position, size in sizes.items():
        leaf = call.leaves[position]
        net = None
        if amount.net is not None:
            value = signed(leaf.value) * scales.get(leaf.name, 1.0)
            net = ratio(amount.net, whole) * sign(call.outs[0]) * value
        shares[position] = Amount(ratio(amount.total, whole) * size, net).like(leaf.value.shape)
    return shares


@rule("sum", "mean", "cumsum", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d")
@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool3d")
@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d")
@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa")
@rule("trace", "col2im")
def reduction(call: OpCall, given: Given) -> Shares | None:
    """By magnitude within each window or row that was summed."""
    positions = call.carriers_named("self", "input")
    return contributions(call, given, dict.fromkeys(positions, 1.0), {})


@rule("embedding")
def lookup(call: OpCall, given: Given) -> Shares | None:
    """A vector's relevance belongs to the index that it was looked up by."""
    positions = call.carriers_named("indices")
    return {position: _summed(given[0], -1) for position in positions} or None


@rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def bags(call: OpCall, given: Given) -> Shares | None:
    """A bag's relevance belongs to its indices, in even shares."""
    positions = call.carriers_named("indices")
    if not positions:
        return None
    indices, offsets = call.leaves[positions[0]].value, call.value("offsets")
    amount = _summed(given[0], -1)
    if indices.dim() == 2 or offsets is None:
        return None
    starts = torch.arange(len(indices), device=indices.device)
    bag = torch.searchsorted(offsets, starts, right=True) - 1
    count = torch.bincount(bag, minlength=len(amount.total)).clamp_min(1)
    share = Amount(amount.total / count, None if amount.net is None else amount.net / count)
    return {positions[0]: Amount(share.total[bag], None if share.net is None else share.net[bag])}


def _summed(amount: Amount, dim: int) -> Amount:
    return Amount(amount.total.sum(dim), None if amount.net is None else amount.net.sum(dim))


# ---------------------------------------------------------------- element by element, or only rescaled


GATES = frozenset({"sigmoid", "hardsigmoid", "rsqrt", "reciprocal"})
TRANSPARENT = frozenset(
    "view reshape unsqueeze squeeze expand to _to_copy clone type_as contiguous getitem split chunk unsafe_chunk "
    "unsafe_split split_with_sizes slice select unbind permute transpose".split()
)


@rule(
    "batch_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "native_layer_norm",
    "native_group_norm",
)
@rule(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm",
)
@rule("_batch_norm_with_update", "_fused_rms_norm", "batch_norm_with_update")
@rule("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax", "softmin")
@rule("dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
@rule(
    "clone",
    "contiguous",
    "to",
    "_to_copy",
    "type_as",
    "alias",
    "detach",
    "detach_",
    "lift_fresh",
    "lift_fresh_copy",
)
@rule("prelu", "rrelu", "rrelu_with_noise", "_prelu_kernel")
def through(call: OpCall, given: Given) -> Shares | None:
    """Element by element to the input; statistics, weights and biases get nothing."""
    positions = call.carriers_named("self", "input")
    if not positions or 0 not in given or call.leaves[positions[0]].value.shape != given[0].total.shape:
        return None
    return {positions[0]: _moving(call, given[0], positions)}


@rule("mul", "__rmul__", "multiply")
def multiplication(call: OpCall, given: Given) -> Shares | None:
    """To the signal where the other factor is a gate or a scale, otherwise in even shares."""
    positions = call.carriers
    signals = [position for position in positions if not call.leaves[position].is_gate()]
    chosen = signals or positions
    return _even(call, given[0], chosen)


@rule("div", "divide", "true_divide", "floor_divide", "remainder", "fmod")
def quotient(call: OpCall, given: Given) -> Shares | None:
    """To the numerator, if it comes from the inputs."""
    chosen = call.carriers_named("self")
    return _even(call, given[0], chosen or call.carriers)


@rule("where")
def choice(call: OpCall, given: Given) -> Shares | None:
    """To the side that was chosen; a constant that was chosen keeps what it got."""
    condition = call.value("condition")
    shares = {}
    for name, mask in (("self", condition), ("other", ~condition)):
        for position in call.positions(name):
            if call.leaves[position].carries:
                shares[position] = given[0].times(mask).like(call.leaves[position].value.shape)
    return shares or None


@rule("masked_fill")
def fill(call: OpCall, given: Given) -> Shares | None:
    """To the elements that were left as they were."""
    positions = call.carriers_named("self")
    kept = ~call.value("mask")
    return {
        position: given[0].times(kept).like(call.leaves[position].value.shape) for position in positions
    } or None


def pointwise(call: OpCall, given: Given) -> Shares | None:
    """Any other operation on elements: evenly to all that it takes of the inputs."""
    if len(given) != 1 or 0 not in given:
        return None
    return _even(call, given[0], call.carriers)


def _even(call: OpCall, amount: Amount, positions: list[int]) -> Shares | None:
    shares = {}
    amount = _moving(call, amount, positions)
    for position in positions:
        shape = call.leaves[position].value.shape
        if len(shape) > amount.total.dim():
            return None
        shares[position] = amount.times(1 / len(positions)).like(shape)
    return shares or None


# random operators of which zero is made zero, whatever is drawn
ZERO_AT_ZERO = frozenset({"dropout", "native_dropout", "feature_dropout", "rrelu", "rrelu_with_noise"})


def _moving(call: OpCall, amount: Amount, positions: list[int]) -> Amount:
    """An output's relevance without that of elements that zeros would have given as well: that stays where it is.

    So it is with a dead ReLU and with a factor that is zero. A zero itself hands on: what made it knows more.
    """
    values = {position: call.leaves[position].value for position in positions}
    if not values or not all(value.is_floating_point() for value in values.values()):
        return amount
    result = call.outs[0]
    if call.name in ZERO_AT_ZERO:
        at_zero: Any = torch.zeros_like(result)
    elif torch.Tag.nondeterministic_seeded in getattr(call.target, "tags", ()):
        return amount
    else:
        # copies, since a batch norm writes to its statistics
        copies = {
            position: leaf.value.clone()
            for position, leaf in enumerate(call.leaves)
            if isinstance(leaf.value, torch.Tensor)
        }
        with without_gradients():
            given = call.run({**copies, **{p: torch.zeros_like(value) for p, value in values.items()}})
        at_zero = given[0] if isinstance(given, (tuple, list)) else given
    # what is compared are elements: an operator that takes none of them apart has no such element
    if at_zero.shape != result.shape:
        return amount
    still = result == at_zero
    if not bool(still.any()):
        return amount
    nonzero = torch.zeros((), dtype=torch.bool, device=result.device)
    for value in values.values():
        nonzero = nonzero | (value != 0)
    return amount.times(~(still & nonzero))


def _is_gate(node: fx.Node | None) -> bool:
    """Whether a factor was made by a gate, perhaps reshaped since."""
    while node is not None and node.op == "call_function":
        name = op_name(node)
        if name in GATES:
            return True
        if name not in TRANSPARENT or not node.args or not isinstance(node.args[0], fx.Node):
            return False
        node = node.args[0]
    return False


def is_pointwise(target: object) -> bool:
    """Whether torch says that an operator works element by element."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


# ---------------------------------------------------------------- elements moved or picked


TAKEN = frozenset({"self", "input", "tensors", "src", "source", "values", "value", "x"})

VIEWS = """view _unsafe_view reshape _reshape_alias flatten unflatten squeeze unsqueeze expand expand_as permute
transpose t numpy_T mT movedim swapaxes swapdims select slice narrow diagonal split split_with_sizes chunk unbind unfold
unsafe_chunk unsafe_split unsafe_split_with_sizes tensor_split hsplit vsplit as_strided view_as diag diag_embed"""
COPIES = """cat concat concatenate stack hstack vstack column_stack dstack pad constant_pad_nd reflection_pad1d
reflection_pad2d replication_pad1d replication_pad2d _pad_circular flip roll rot90 repeat tile repeat_interleave index
index_select gather take take_along_dim masked_select slice_scatter select_scatter index_put scatter masked_scatter tril
triu pixel_shuffle pixel_unshuffle channel_shuffle im2col meshgrid broadcast_tensors broadcast_to atleast_1d atleast_2d
copy unfold_copy view_copy index_copy slice_copy select_copy expand_copy permute_copy combinations"""
PICKS = """max min amax amin aminmax median topk sort msort kthvalue cummax cummin maximum minimum fmax fmin
max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d"""


@rule(*VIEWS.split(), *COPIES.split(), *PICKS.split())
def move(call: OpCall, given: Given) -> Shares | None:
    """To the element itself; one that was repeated gets the sum, one that was filled in nobody."""
    taken = call.carriers_named(*TAKEN, "other")
    if call.value("accumulate"):
        # this adds, and an element has two sources
        return None
    if not taken:
        return _by_index(call, given)
    floats = {
        position: leaf.value.detach().to(wide(leaf.value))
        for position, leaf in enumerate(call.leaves)
        if isinstance(leaf.value, torch.Tensor)
        and (position in taken or (leaf.value.is_floating_point() and leaf.name in (*TAKEN, "other")))
    }
    moved = {position: floats.pop(position) for position in taken}
    totals = call.pull(moved, floats, {position: amount.total for position, amount in given.items()})
    if any(amount.net is None for amount in given.values()):
        return {position: Amount(total) for position, total in totals.items()}
    nets = call.pull(
        moved, floats, {position: amount.net for position, amount in given.items() if amount.net is not None}
    )
    return {position: Amount(total, nets[position]) for position, total in totals.items()}


def _by_index(call: OpCall, given: Given) -> Shares | None:
    """A constant table that was read by computed indices: what was read belongs to its index, as in an embedding."""
    positions = call.carriers_named("indices", "index")
    if not positions or 0 not in given:
        return None
    amount = given[0].times(1 / len(positions))
    shape = torch.broadcast_shapes(*(call.leaves[position].value.shape for position in positions))
    if amount.total.shape[: len(shape)] != shape:
        return None
    rest = tuple(range(len(shape), amount.total.dim()))
    if rest:
        amount = Amount(amount.total.sum(rest), None if amount.net is None else amount.net.sum(rest))
    return {position: amount.like(call.leaves[position].value.shape) for position in positions}
