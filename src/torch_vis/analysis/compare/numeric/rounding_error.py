"""What rounding has done to the tensors of a run: by how much each may be off, and which are zero but for rounding.

The gradient of a bias before a batch norm is a sum that cancels exactly: its elements are what rounding left of zero.
By how much it differs from another run's, relative to itself, says nothing. The rounding error of a sum follows from
the size of its summands and from the precision that these were computed in; what is computed from nothing but such
remainders is a remainder as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.numeric.paired_inputs import shape_only
from torch_vis.analysis.compare.numeric.tensor_distance import ACCUMULATES, BLURS, CANCELS, SLACK
from torch_vis.graph.call import Call, Slot
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.names import common_name, plain_name
from torch_vis.ops.schemas import named_arguments
from torch_vis.replay.stepper import Stepper

FOREACH = "_foreach_"
ATTENTION = "scaled_dot_product"
BACKWARD = "_backward"
SUMS = frozenset({"sum", "mean"})
MATRICES = frozenset({"mm", "bmm", "mv"})
PRODUCTS = MATRICES | {"addmm", "baddbmm", "addmv", "convolution", "convolution_backward"}
ADDS = frozenset({"add", "sub", "rsub", "lerp", "addcmul"})
SCALES = frozenset({"mul", "div", "neg", "clone", "_to_copy", "detach", "index", "index_select", "gather"})
# Kinds of operations that add something up, so that it may cancel.
ADDING = frozenset({"sums", "products", "adds", "centred"})
# Normalisations, which return the mean and the spread of their input after the output.
NORMS = frozenset({
    "layer_norm", "group_norm", "batch_norm", "batch_norm_legit", "batch_norm_with_update", "fused_layer_norm",
    "cudnn_batch_norm", "miopen_batch_norm",
})  # fmt: skip
# The slot of the mean among these. It says nothing that the input does not, and is often next to zero.
MEAN = 1

Args = Sequence[Any]
Outputs = Mapping[int, torch.Tensor]


class Remainder(NamedTuple):
    """Of a tensor that is zero but for rounding: its norm, its expected rounding error, and its summands' norm."""

    size: float
    floor: float
    summands: float

    def scaled(self, size: float) -> Remainder:
        """The remainder of what was computed from it and has another norm."""
        factor = size / self.size if self.size else 1.0
        return Remainder(size, factor * self.floor, factor * self.summands)


class _Sum(NamedTuple):
    """The norm that a result would have if nothing cancelled, and of how many terms each element is the sum."""

    size: float
    terms: float


class RoundingError:
    """Follows a replay; ``after(node)`` is to be called when an operation has run; ``slots`` are the declared ones.

    ``remainders`` are the values that are zero but for rounding, ``sound`` those that were looked at and are not.
    ``amplification`` says of each operation by how much a relative error of its summands grows, because most cancels.
    """

    def __init__(self, run: Stepper, slots: Ints) -> None:
        self.run, self.graph, self._slots = run, run.graph, slots
        self.remainders: dict[int, Remainder] = {}
        self.sound: set[int] = set()
        self.amplification = np.ones(len(self.graph))
        names = [plain_name(call.op) for call in self.graph.calls]
        self._is_foreach = [name.startswith(FOREACH) for name in names]
        self._name = [name.removeprefix(FOREACH) for name in names]
        self._kind = [_kind(name) for name in self._name]
        self._is_view = ((self.graph.node_flags & Flag.VIEW) != 0).tolist()
        self._is_summed = _read_by_sums(self.graph, self._kind)
        outside = np.flatnonzero(self._is_summed & (self.graph.value_producer < 0)).tolist()
        self._sizes = {value: size_of(run.replay.tensor(value)) for value in outside}
        self._eps_of_type = [_eps(row.dtype) for row in self.graph.types]
        self._shape_only = shape_only(self.graph)
        self._type: list[int] = self.graph.value_type.tolist()
        # of values that were computed from a coarser dtype than their own
        self._coarser: dict[int, float] = {}
        # of values that are further off, since something cancelled on the way
        self._off: dict[int, float] = {}

    def after(self, node: int) -> None:
        """Look at what an operation computed."""
        graph = self.graph
        inputs = self.run.plan.arguments(node)
        span = slice(*graph.output_span(node))
        outputs, slots = graph.out_value[span].tolist(), self._slots[span].tolist()
        call = int(graph.node_call[node])
        kind = "views" if self._is_view[node] else self._kind[call]
        for index, value in enumerate(outputs):
            own = inputs[index :: len(outputs)] if self._is_foreach[call] else inputs
            self._inherit(value, [read for read in own if (node, read) not in self._shape_only])
            if self._is_summed[value]:
                self._sizes[value] = size_of(self.run.replay.tensor(value))
            if kind:
                self._look(kind, node, own, slots[index], value)

    def relative_error(self, value: int) -> float:
        """By how much of its norm rounding may have put a value off."""
        return 1.0 if value in self.remainders else self._off.get(value) or self.eps(value)

    def eps(self, value: int) -> float:
        """The rounding of a value's dtype, or of what it was computed from, where that is coarser."""
        return self._coarser.get(value) or self._eps_of_type[self._type[value]]

    def has_lost_digits(self, value: int) -> bool:
        """Whether something that cancelled has put a value off by far more than its own rounding."""
        return self._off.get(value, 0.0) > BLURS * self.eps(value)

    def adds(self, node: int) -> bool:
        """Whether an operation adds tensors element by element."""
        return self._kind[int(self.graph.node_call[node])] == "adds"

    def _inherit(self, value: int, inputs: Sequence[int]) -> None:
        """What was computed from something is no more precise than that."""
        own = self._eps_of_type[self._type[value]]
        # integers are exact
        if not own:
            return
        coarsest = max(map(self.eps, inputs), default=0.0)
        if coarsest > own:
            self._coarser[value] = coarsest
        off = max((self._off.get(read, 0.0) for read in inputs), default=0.0) if self._off else 0.0
        if off:
            self._off[value] = off

    def _look(self, kind: str, node: int, inputs: Sequence[int], slot: int, value: int) -> None:
        inherited = self._inherited_remainder(kind, node, inputs)
        if inherited is not None:
            tensor = self.run.replay.tensor(value)
            self.remainders[value] = inherited if kind == "views" else inherited.scaled(size_of(tensor))
        elif kind in ADDING:
            output = self.run.replay.tensor(value)
            summed = self._summed(kind, node, inputs, slot, output)
            if not output.is_floating_point() or not output.numel():
                return
            if summed is None:
                if kind == "adds" and inputs:
                    self._weigh_number(node, inputs[0], value, output)
                return
            if summed.size < np.inf:
                size = self._sizes[value] if value in self._sizes else size_of(output)
                self._weigh(kind, node, inputs, value, summed, size)
        elif inputs and inputs[0] in self.sound:
            self.sound.add(value)

    def _weigh(
        self, kind: str, node: int, inputs: Sequence[int], value: int, summed: _Sum, size: float
    ) -> None:
        """Hold a result against what went into it."""
        eps = self.eps(value)
        accumulated = min(eps, ACCUMULATES)
        # one kernel keeps the mean that it takes away as precisely as it sums
        step = accumulated if kind == "centred" else eps
        error = summed.size * (step + accumulated * summed.terms**0.5)
        # where nothing went in, zero is exact
        if error > 0 and size <= SLACK * error:
            self.remainders[value] = Remainder(size, SLACK * error, summed.size)
            return
        self.sound.add(value)
        cancelled = summed.size / size if size else 1.0
        self.amplification[node] = max(self.amplification[node], cancelled)
        off = self._off.pop(value, 0.0)
        if kind == "adds":
            name = self._name[int(self.graph.node_call[node])]
            errors = [error for _, error in self._summands(node, name, inputs)]
            off = sum(error**2 for error in errors) ** 0.5 / size if size else 0.0
        elif kind != "products" and cancelled > CANCELS:
            off = max(off, step * cancelled)
        if off > CANCELS * eps:
            self._off[value] = min(off, 1.0)

    def _weigh_number(self, node: int, read: int, value: int, output: torch.Tensor) -> None:
        """Hold what a tensor and a number give, as in ``1 - x``, against both; the number is exact, so may zero be."""
        call = self.graph.calls[int(self.graph.node_call[node])]
        numbers = [abs(arg) for arg in call.args if isinstance(arg, (int, float))]
        size = self._sizes.get(value) or size_of(output)
        if numbers and 0 < size < np.inf:
            summed = max(self._sizes.get(read, 0.0), numbers[0] * output.numel() ** 0.5)
            self.amplification[node] = max(self.amplification[node], summed / size)

    def _summands(self, node: int, name: str, inputs: Sequence[int]) -> list[tuple[float, float]]:
        """The norm of each summand, and of its rounding error: with the number that it is multiplied with."""
        factors = _number_factors(name, self.graph.calls[int(self.graph.node_call[node])])
        rows = [(self._sizes.get(read, 0.0), self._error(read)) for read in inputs]
        if name == "addcmul" and len(inputs) == 3:
            (_, error_left), (_, error_right) = rows[1:]
            left, right = (self.run.replay.tensor(read) for read in inputs[1:])
            product = size_of(left * right) if left.is_floating_point() and right.is_floating_point() else 0.0
            sizes = [size for size, _ in rows[1:]]
            relative = sum(error / size for error, size in zip((error_left, error_right), sizes) if size)
            rows = [rows[0], (product, relative * product)]
        return [(factor * size, factor * error) for (size, error), factor in zip(rows, factors)]

    def _error(self, value: int) -> float:
        """The norm of the rounding error of a summand."""
        remainder = self.remainders.get(value)
        if remainder is not None:
            return remainder.floor / SLACK
        return self.relative_error(value) * self._sizes.get(value, 0.0)

    def _inherited_remainder(self, kind: str, node: int, inputs: Sequence[int]) -> Remainder | None:
        """The remainder that a result is computed from, where it is computed from nothing else."""
        name = self._name[int(self.graph.node_call[node])]
        remainders = self.remainders
        if not inputs:
            return None
        if name == "mul" or name in MATRICES:
            return next((remainders[read] for read in inputs if read in remainders), None)
        if kind in ("views", "scales", "sums") or BACKWARD in name:
            return remainders.get(inputs[0])
        if kind == "copies":
            return remainders.get(inputs[-1])
        if kind in ("adds", "cats") and len(inputs) > 1:
            inherited = [remainders[read] for read in inputs if read in remainders]
            if inherited and all(read in remainders or self._sizes.get(read) == 0.0 for read in inputs):
                return max(inherited, key=lambda row: row.floor)
        return None

    def _summed(
        self, kind: str, node: int, inputs: Sequence[int], slot: int, output: torch.Tensor
    ) -> _Sum | None:
        """What went into a sum; None where that is not known, or there is nothing to cancel."""
        name = self._name[int(self.graph.node_call[node])]
        sizes = [self._sizes.get(read, 0.0) for read in inputs]
        if kind == "adds":
            # to another tensor, not to a number
            if len(inputs) < 2:
                return None
            return _Sum(max(size for size, _ in self._summands(node, name, inputs)), 0.0)
        if kind == "centred":
            return self._centred(node, name, slot, output) if output.numel() else None
        if not inputs or not output.numel():
            return None
        # the gradient of the bias
        if name == "convolution_backward" and output.dim() == 1:
            kind, inputs = "sums", inputs[:1]
        if kind == "sums":
            terms = self._numel(inputs[0]) / output.numel()
            return _Sum(sizes[0] / terms if name == "mean" else sizes[0], terms)
        factors = _factors(name, inputs, sizes)
        if len(factors) < 2:
            return None
        (left, size_left), (right, size_right) = factors
        terms = max(1.0, (self._numel(left) * self._numel(right) / output.numel()) ** 0.5)
        return _Sum(size_left * size_right / terms**0.5, terms)

    def _centred(self, node: int, name: str, slot: int, output: torch.Tensor) -> _Sum | None:
        graph, tensor = self.graph, self.run.replay.tensor
        call = graph.calls[int(graph.node_call[node])]
        inputs = self.run.plan.arguments(node)
        args = [tensor(inputs[arg.number]) if isinstance(arg, Slot) else arg for arg in call.args]
        span = slice(*graph.output_span(node))
        outputs = {
            index: tensor(value)
            for index, value in zip(self._slots[span].tolist(), graph.out_value[span].tolist())
            if index >= 0
        }
        size = uncentred_size(name, slot, args, outputs)
        return None if size is None else _Sum(size, self._numel(inputs[0]) / output.numel() if slot else 0.0)

    def _numel(self, value: int) -> int:
        return self.graph.types[self.graph.value_type[value]].numel


def is_norm(graph: Graph, node: int) -> bool:
    """Whether an operation is a normalisation that returns the mean.

    >>> import torch, torch_vis as tv
    >>> is_norm(tv.trace(torch.nn.LayerNorm(3), torch.ones(1, 3)).graph, 0)
    True
    """
    return common_name(graph.calls[graph.node_call[node]].op) in NORMS


def size_of(tensor: torch.Tensor) -> float:
    """The norm of a plain floating-point tensor; 0 of any other.

    >>> size_of(torch.tensor([3.0, 4.0])), size_of(torch.tensor([3, 4]))
    (5.0, 0.0)
    """
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_meta:
        return 0.0
    if not tensor.is_floating_point():
        return 0.0
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(tensor, dtype=wide))


def _factors(name: str, inputs: Sequence[int], sizes: Sequence[float]) -> list[tuple[int, float]]:
    """The two inputs of a product that are multiplied, with their norms; a bias comes before them, or after."""
    both = list(zip(inputs, sizes))
    # a gradient by the input, and by the weight
    if name == "convolution_backward":
        return [both[0], max(both[1:3], key=lambda row: row[1])]
    return both[:2] if name == "convolution" else both[-2:]


def _number_factors(name: str, call: Call) -> tuple[float, float]:
    """By what an operation that adds multiplies its two summands; 1 where that is no number, but a tensor.

    >>> _number_factors("add", Call("aten::add.Tensor", (Slot(0), Slot(1)), (("alpha", -0.5),)))
    (1.0, 0.5)
    >>> _number_factors("lerp", Call("aten::lerp_.Scalar", (Slot(0), Slot(1), 0.25), ()))
    (0.75, 0.25)
    """
    arguments = dict(named_arguments(call))
    number = arguments.get({"lerp": "weight", "addcmul": "value"}.get(name, "alpha"))
    if not isinstance(number, (int, float)):
        return 1.0, 1.0
    size = abs(float(number))
    if name == "lerp":
        return abs(1 - float(number)), size
    return (size, 1.0) if name == "rsub" else (1.0, size)


def _kind(name: str) -> str:
    if name in CENTRED or (ATTENTION in name and name.endswith(BACKWARD)):
        return "centred"
    for kind, names in (("sums", SUMS), ("products", PRODUCTS), ("adds", ADDS), ("scales", SCALES)):
        if name in names:
            return kind
    if name in ("cat", "stack"):
        return "cats"
    return "copies" if name == "copy" else "scales" if BACKWARD in name else ""


def _read_by_sums(graph: Graph, kinds: list[str]) -> Bools:
    """A mask of the values that operations that add up read."""
    adding = np.array([kind in ADDING for kind in kinds], dtype=bool)
    rows = graph.in_kind != Kind.SHAPE
    if len(adding):
        rows &= adding[graph.node_call][graph.in_node]
    mask = np.zeros(len(graph.value_type), dtype=bool)
    mask[graph.in_value[rows]] = True
    return mask


def _eps(dtype: str) -> float:
    """The rounding of an element type; 0 of one that is exact."""
    torch_dtype = getattr(torch, dtype, None)
    if torch_dtype is None or not (torch_dtype.is_floating_point or torch_dtype.is_complex):
        return 0.0
    return float(torch.finfo(torch_dtype).eps)


# --- operations that take a mean away inside one kernel, and how large what they take it from is ---


def uncentred_size(name: str, slot: int, args: Args, outputs: Outputs) -> float | None:
    """The norm that an output would have if no mean was taken away; None where that is not known."""
    if ATTENTION in name:
        return _attention(slot, args)
    # the gradients of weight and bias: sums over the gradient that comes in
    if name.endswith("norm" + BACKWARD) and slot > 0:
        return size_of(args[0])
    return CENTRED[name](args, outputs) if slot == 0 else None


def _scaled(tensor: torch.Tensor, spread: torch.Tensor, weight: torch.Tensor | None) -> float:
    """The norm of a tensor scaled by what a normalisation multiplies with, and by its weight."""
    wide = tensor.float() * spread.float()
    return size_of(wide if weight is None else wide * weight.float())


def _by_channel(tensor: torch.Tensor | None, like: torch.Tensor) -> Any:
    """A tensor of channels, laid along the second axis."""
    return None if tensor is None else tensor.reshape(-1, *[1] * (like.dim() - 2))


def _by_group(spread: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    wide = spread.repeat_interleave(like.shape[1] // spread.shape[1], dim=1)
    return wide.reshape(*wide.shape, *[1] * (like.dim() - 2))


def _layer_norm(args: Args, outputs: Outputs) -> float:
    return _scaled(args[0], outputs[2], args[2])


def _group_norm(args: Args, outputs: Outputs) -> float:
    return _scaled(args[0], _by_group(outputs[2], args[0]), _by_channel(args[1], args[0]))


def _group_norm_backward(args: Args, outputs: Outputs) -> float:
    return _scaled(args[0], _by_group(args[3], args[0]), _by_channel(args[4], args[0]))


def _batch_norm(args: Args, outputs: Outputs) -> float | None:
    is_training = outputs[2].numel() > 0
    if not is_training:
        return None
    return _scaled(args[0], _by_channel(outputs[2], args[0]), _by_channel(args[1], args[0]))


def _batch_norm_backward(args: Args, outputs: Outputs) -> float | None:
    is_training = args[7]
    if not is_training:
        return None
    return _scaled(args[0], _by_channel(args[6], args[0]), _by_channel(args[2], args[0]))


def _attention(slot: int, args: Args) -> float | None:
    """About what the gradients of queries and keys would be if the scores' were not centred."""
    if slot > 1:
        return None
    gradient, query, key, value = args[:4]
    *heads, length, width = key.shape
    other = key if slot == 0 else query
    count = max(1, torch.Size(heads).numel())
    scale = 1 / width**0.5
    return scale * size_of(gradient) * size_of(value) * size_of(other) / (count * max(1, length) ** 1.5)


CENTRED: dict[str, Callable[[Args, Outputs], float | None]] = {
    "_softmax_backward_data": lambda args, outputs: size_of(args[0].float() * args[1].float()),
    "_log_softmax_backward_data": lambda args, outputs: size_of(args[0]),
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": lambda args, outputs: _scaled(args[0], args[4], args[5]),
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}
