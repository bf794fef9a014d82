"""Which tensors of a run are zero but for rounding: what an exact computation would have cancelled.

The gradient of a bias before a batch normalisation is such a sum: its elements are what rounding left of zero. By how
much it differs from another run's, relative to itself, says nothing. What a sum may be off by is told by the size of
its summands, and by how finely these were computed; what is made of nothing but such remainders is no more than them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.compare.numeric.paired_inputs import shape_only
from torch_vis.graph.call import Slot
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Flag, Kind
from torch_vis.graph.types import Bools
from torch_vis.ops.names import common_name, plain_name
from torch_vis.replay.stepper import Stepper

Args = Sequence[Any]
Made = Mapping[int, torch.Tensor]  # by the place in what an operation returns
ATTENTION = "scaled_dot_product"
BACKWARD = "_backward"


def size_of(tensor: torch.Tensor) -> float:
    """The norm of a plain floating-point tensor; 0 of any other.

    >>> size_of(torch.tensor([3.0, 4.0])), size_of(torch.tensor([3, 4]))
    (5.0, 0.0)
    """
    if (
        tensor.is_nested
        or tensor.layout is not torch.strided
        or tensor.is_meta
        or not tensor.is_floating_point()
    ):
        return 0.0
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(tensor, dtype=wide))


def centres(name: str) -> bool:
    """Whether an operator of that short name is one of these."""
    return name in CENTRED or (ATTENTION in name and name.endswith(BACKWARD))


def summands(name: str, slot: int, args: Args, made: Made) -> float | None:
    """The norm that one of the results of an operation had if nothing was taken away; None where that is not known.

    ``args`` are the arguments as they were called.
    """
    if ATTENTION in name:
        return _attention(slot, args)
    if (
        name.endswith("norm" + BACKWARD) and slot > 0
    ):  # the gradients of weight and bias: sums over what comes in
        return size_of(args[0])
    return CENTRED[name](args, made) if slot == 0 else None


def _scaled(tensor: torch.Tensor, spread: torch.Tensor, weight: torch.Tensor | None) -> float:
    """The norm of something by the spread that a normalisation divides by, and by its weight."""
    wide = tensor.float() * spread.float()
    return size_of(wide if weight is None else wide * weight.float())


def _along(tensor: torch.Tensor | None, like: torch.Tensor) -> Any:
    """Something by channel, laid along the second axis."""
    return None if tensor is None else tensor.reshape(-1, *[1] * (like.dim() - 2))


def _by_group(spread: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    wide = spread.repeat_interleave(like.shape[1] // spread.shape[1], dim=1)
    return wide.reshape(*wide.shape, *[1] * (like.dim() - 2))


def _batch(args: Args, made: Made) -> float | None:
    training = made[2].numel() > 0
    return _scaled(args[0], _along(made[2], args[0]), _along(args[1], args[0])) if training else None


def _batch_backward(args: Args, made: Made) -> float | None:
    if not args[7]:  # not training: no mean is taken away
        return None
    return _scaled(args[0], _along(args[6], args[0]), _along(args[2], args[0]))


def _attention(slot: int, args: Args) -> float | None:
    """What the gradients of queries and keys would be if the scores' were not centred, about."""
    if slot > 1:
        return None
    gradient, query, key, value = args[:4]
    *heads, length, width = key.shape
    other = key if slot == 0 else query
    count = max(1, torch.Size(heads).numel())
    scale = 1 / width**0.5
    return scale * size_of(gradient) * size_of(value) * size_of(other) / (count * max(1, length) ** 1.5)


CENTRED: dict[str, Callable[[Args, Made], float | None]] = {
    "_softmax_backward_data": lambda args, made: size_of(args[0].float() * args[1].float()),
    "_log_softmax_backward_data": lambda args, made: size_of(args[0]),
    "native_layer_norm": lambda args, made: _scaled(args[0], made[2], args[2]),
    "native_batch_norm": _batch,
    "native_group_norm": lambda args, made: _scaled(
        args[0], _by_group(made[2], args[0]), _along(args[1], args[0])
    ),
    "native_layer_norm_backward": lambda args, made: _scaled(args[0], args[4], args[5]),
    "native_batch_norm_backward": _batch_backward,
    "native_group_norm_backward": lambda args, made: _scaled(
        args[0], _by_group(args[3], args[0]), _along(args[4], args[0])
    ),
}


FOREACH = "_foreach_"
SLACK = 4.0  # times the rounding that is expected
CANCELS = 8.0  # times a result: summands of which most cancelled
BLURS = 256.0  # times the rounding of a type: what is left of its digits says little
ACCUMULATES = 2.0**-23  # eps of what sums are held in: float32, or better
SUMS = frozenset({"sum", "mean"})
MATRICES = frozenset({"mm", "bmm", "mv"})
PRODUCTS = MATRICES | {"addmm", "baddbmm", "addmv", "convolution", "convolution_backward"}
ADDS = frozenset({"add", "sub", "rsub", "lerp", "addcmul"})
SCALES = frozenset({"mul", "div", "neg", "clone", "_to_copy", "detach", "index", "index_select", "gather"})


class Remainder(NamedTuple):
    """Of a tensor that is zero but for rounding: its norm, the norm down to which it would be, and its summands'."""

    size: float
    floor: float
    summands: float

    def scaled(self, size: float) -> Remainder:
        """The same, of what was made of it and has another norm."""
        factor = size / self.size if self.size else 1.0
        return Remainder(size, factor * self.floor, factor * self.summands)


class _Sum(NamedTuple):
    """The norm that a result had if nothing cancelled, and of how many terms each element is the sum."""

    size: float
    terms: float


class Noise:
    """Follows a run that is watched; ``after(node)`` is to be called when an operation has run.

    ``values`` are those that are zero but for rounding, ``sound`` those that were looked at and are not. ``grows`` says
    of each operation by how much a relative difference of its summands grows, because most of them cancels.
    """

    def __init__(self, run: Stepper) -> None:
        self.run, self.graph = run, run.graph
        self.values: dict[int, Remainder] = {}
        self.sound: set[int] = set()
        self.grows = np.ones(len(self.graph))
        names = [plain_name(call.op) for call in self.graph.calls]
        self._foreach = [name.startswith(FOREACH) for name in names]
        self._name = [name.removeprefix(FOREACH) for name in names]
        self._kind = [_kind(name) for name in self._name]
        self._view = ((self.graph.node_flags & Flag.VIEW) != 0).tolist()
        self._wanted = _read_by_sums(self.graph, self._kind)
        outside = np.flatnonzero(self._wanted & (self.graph.value_producer < 0)).tolist()
        self._sizes = {value: size_of(run.replay.tensor(value)) for value in outside}
        self._eps = [_eps(row.dtype) for row in self.graph.types]
        self._shape_only = shape_only(self.graph)
        self._type: list[int] = self.graph.value_type.tolist()
        self._coarse: dict[int, float] = {}  # of what was computed more coarsely than its type says
        self._off: dict[int, float] = {}  # and of what is further off, since something cancelled on the way

    def after(self, node: int) -> None:
        """Look at what an operation made."""
        graph = self.graph
        read = self.run.plan.arguments(node)
        span = slice(*graph.output_span(node))
        made, slots = graph.out_value[span].tolist(), graph.out_slot[span].tolist()
        call = int(graph.node_call[node])
        kind = "views" if self._view[node] else self._kind[call]
        for place, value in enumerate(made):
            own = read[place :: len(made)] if self._foreach[call] else read
            self._inherit(value, [one for one in own if (node, one) not in self._shape_only])
            if self._wanted[value]:
                self._sizes[value] = size_of(self.run.replay.tensor(value))
            if kind:
                self._look(kind, node, own, slots[place], value)

    def off_by(self, value: int) -> float:
        """By how much of its norm rounding may have put a value off."""
        return 1.0 if value in self.values else self._off.get(value) or self.fineness(value)

    def fineness(self, value: int) -> float:
        """The rounding of a value's type, or of what it was computed from, where that is coarser."""
        return self._coarse.get(value) or self._eps[self._type[value]]

    def is_blurred(self, value: int) -> bool:
        """Whether something that cancelled has put a value off by far more than its own rounding."""
        return self._off.get(value, 0.0) > BLURS * self.fineness(value)

    def adds(self, node: int) -> bool:
        """Whether an operation adds tensors up element by element."""
        return self._kind[int(self.graph.node_call[node])] == "adds"

    def _inherit(self, value: int, read: Sequence[int]) -> None:
        """What was computed from something is no finer than that."""
        own = self._eps[self._type[value]]
        if not own:  # whole numbers are exact
            return
        coarse = max(map(self.fineness, read), default=0.0)
        if coarse > own:
            self._coarse[value] = coarse
        off = max((self._off.get(one, 0.0) for one in read), default=0.0) if self._off else 0.0
        if off:
            self._off[value] = off

    def _look(self, kind: str, node: int, read: Sequence[int], slot: int, value: int) -> None:
        handed = self._handed_on(kind, node, read)
        if handed is not None:
            tensor = self.run.replay.tensor(value)
            self.values[value] = handed if kind == "views" else handed.scaled(size_of(tensor))
        elif kind in ADDING:
            made = self.run.replay.tensor(value)
            found = self._summed(kind, node, read, slot, made)
            if found is None or not made.is_floating_point() or not made.numel() or not found.size < np.inf:
                return
            size = self._sizes[value] if value in self._sizes else size_of(made)
            self._weigh(kind, node, read, value, found, size)
        elif read and read[0] in self.sound:
            self.sound.add(value)

    def _weigh(self, kind: str, node: int, read: Sequence[int], value: int, found: _Sum, size: float) -> None:
        """Hold a result against what went into it."""
        eps = self.fineness(value)
        held = min(eps, ACCUMULATES)
        step = (
            held if kind == "centred" else eps
        )  # one kernel, which keeps what it takes away as finely as it sums
        error = found.size * (step + held * found.terms**0.5)
        if error > 0 and size <= SLACK * error:  # where nothing went in, zero is exact
            self.values[value] = Remainder(size, SLACK * error, found.size)
            return
        self.sound.add(value)
        cancelled = found.size / size if size else 1.0
        self.grows[node] = max(self.grows[node], cancelled)
        off = self._off.pop(value, 0.0)
        if kind == "adds":
            off = sum(self._error(one) ** 2 for one in read) ** 0.5 / size if size else 0.0
        elif kind != "products" and cancelled > CANCELS:
            off = max(off, step * cancelled)
        if off > CANCELS * eps:
            self._off[value] = min(off, 1.0)

    def _error(self, value: int) -> float:
        """The norm of what rounding may have put a summand off by."""
        found = self.values.get(value)
        return self.off_by(value) * self._sizes.get(value, 0.0) if found is None else found.floor / SLACK

    def _handed_on(self, kind: str, node: int, read: Sequence[int]) -> Remainder | None:
        """The remainder that a result is made of, where it is made of nothing else."""
        name = self._name[int(self.graph.node_call[node])]
        if not read:
            return None
        if name == "mul" or name in MATRICES:
            return next((self.values[one] for one in read if one in self.values), None)
        if kind in ("views", "scales", "sums") or BACKWARD in name:
            return self.values.get(read[0])
        if kind == "copies":
            return self.values.get(read[-1])
        if kind in ("adds", "cats") and len(read) > 1:
            noisy = [self.values[one] for one in read if one in self.values]
            if noisy and all(one in self.values or self._sizes.get(one) == 0.0 for one in read):
                return max(noisy, key=lambda one: one.floor)
        return None

    def _summed(
        self, kind: str, node: int, read: Sequence[int], slot: int, made: torch.Tensor
    ) -> _Sum | None:
        """What went into a sum; None where that is not known, or there is nothing to cancel."""
        name = self._name[int(self.graph.node_call[node])]
        sizes = [self._sizes.get(one, 0.0) for one in read]
        if kind == "adds":  # to another tensor, not to a number
            return _Sum(max(sizes), 0.0) if len(read) > 1 else None
        if kind == "centred":
            return self._centred(node, name, slot, made) if made.numel() else None
        if not read or not made.numel():
            return None
        if name == "convolution_backward" and made.dim() == 1:
            kind, read = "sums", read[:1]  # the gradient of the bias
        if kind == "sums":
            terms = self._numel(read[0]) / made.numel()
            return _Sum(sizes[0] / terms if name == "mean" else sizes[0], terms)
        factors = _factors(name, read, sizes)
        if len(factors) < 2:
            return None
        (one, many), (two, others) = ((size, self._numel(value)) for value, size in factors)
        terms = max(1.0, (many * others / made.numel()) ** 0.5)
        return _Sum(one * two / terms**0.5, terms)

    def _centred(self, node: int, name: str, slot: int, made: torch.Tensor) -> _Sum | None:
        call = self.graph.calls[int(self.graph.node_call[node])]
        read = self.run.plan.arguments(node)
        args = [
            self.run.replay.tensor(read[one.number]) if isinstance(one, Slot) else one for one in call.args
        ]
        begin, end = self.graph.output_span(node)
        values, slots = self.graph.out_value[begin:end].tolist(), self.graph.out_slot[begin:end].tolist()
        made_there = {place: self.run.replay.tensor(one) for place, one in zip(slots, values) if place >= 0}
        size = summands(name, slot, args, made_there)
        return None if size is None else _Sum(size, self._numel(read[0]) / made.numel() if slot else 0.0)

    def _numel(self, value: int) -> int:
        return self.graph.types[self.graph.value_type[value]].numel


ADDING = frozenset({"sums", "products", "adds", "centred"})


def _factors(name: str, read: Sequence[int], sizes: Sequence[float]) -> list[tuple[int, float]]:
    """Of what a product reads, the two that are multiplied: what is added comes before them, or after."""
    both = list(zip(read, sizes))
    if name == "convolution_backward":  # a gradient by the input, and by the weight
        return [both[0], max(both[1:3], key=lambda one: one[1])]
    return both[:2] if name == "convolution" else both[-2:]


def _kind(name: str) -> str:
    if centres(name):
        return "centred"
    for kind, names in (("sums", SUMS), ("products", PRODUCTS), ("adds", ADDS), ("scales", SCALES)):
        if name in names:
            return kind
    if name in ("cat", "stack"):
        return "cats"
    return "copies" if name == "copy" else "scales" if BACKWARD in name else ""


def _read_by_sums(graph: Graph, kinds: list[str]) -> Bools:
    """A mask of the values that sums of some kind read."""
    adding = np.array([kind in ADDING for kind in kinds], dtype=bool)
    rows = graph.in_kind != Kind.SHAPE
    if len(adding):
        rows &= adding[graph.node_call][graph.in_node]
    found = np.zeros(len(graph.value_type), dtype=bool)
    found[graph.in_value[rows]] = True
    return found


def _eps(dtype: str) -> float:
    """The rounding of an element type; 0 of one that is exact."""
    found = getattr(torch, dtype, None)
    real = found is not None and (found.is_floating_point or found.is_complex)
    return float(torch.finfo(found).eps) if found is not None and real else 0.0


# What gives the mean and the spread of what it read after what it made of it.
NORMS = frozenset({
    "layer_norm", "group_norm", "batch_norm", "batch_norm_legit", "batch_norm_with_update", "fused_layer_norm",
    "cudnn_batch_norm", "miopen_batch_norm",
})  # fmt: skip
MEAN = 1  # the place of the mean among these


def is_norm(graph: Graph, node: int) -> bool:
    """Whether an operation is a normalisation that keeps the mean.

    >>> import torch, torch_vis as tv
    >>> is_norm(tv.trace(torch.nn.LayerNorm(3), torch.ones(1, 3)).graph, 0)
    True
    """
    return common_name(graph.calls[graph.node_call[node]].op) in NORMS
