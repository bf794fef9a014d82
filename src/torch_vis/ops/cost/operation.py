"""What a formula is given, an operation with tensor types for its tensors, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch_vis.graph import TensorType
from torch_vis.ops.names import is_in_place

# Real arithmetic in one operation on complex numbers: (a+bi)(c+di) is 4 products and 2 sums, and so on.
COMPLEX_ADD, COMPLEX_MUL, COMPLEX_DIV, COMPLEX_MAC = 2, 6, 11, 4
DENSE = frozenset({"strided", "quantized", "zero", "_mkldnn"})  # layouts that hold every element of the shape


UNKNOWN_BYTES = -1


class Cost(NamedTuple):
    """What one call costs.

    ``bytes`` of None means what the call reads and writes going by its types, and ``UNKNOWN_BYTES`` that they
    depend on more than those.
    """

    flops: int
    macs: int = 0
    bytes: int | None = None


class SparseType(TensorType):
    """The type of a sparse matrix of which the number of stored elements is known."""

    stored: int

    @classmethod
    def of(cls, tensor: TensorType, stored: int) -> SparseType:
        """The same type, with that number."""
        result = cls(*tensor)
        result.stored = stored
        return result


class NestedType(TensorType):
    """The type of a nested tensor: its elements together and, where it is known, the box that all its parts fit in.

    The box is how many parts there are and how long the longest may be. The shape of the type says nothing.
    """

    stored: int
    box: tuple[int, int] | None

    @classmethod
    def of(cls, tensor: TensorType, stored: int, box: tuple[int, int] | None) -> NestedType:
        """The same type, with that number and that box."""
        result = cls(*tensor)
        result.stored, result.box = stored, box
        return result


class RepeatedType(TensorType):
    """The type of an argument for which nothing is read: another argument has its bytes, or the call ignores it."""


class Operation:
    """One call of an operator: ``args`` and ``kwargs`` as it was called, with a ``TensorType`` for every tensor.

    What is not a tensor is a literal, a nested tuple, or a ``Special`` such as a dtype. Arguments that were left at
    their default are missing, so they are best asked for with ``arg``. ``outputs`` are the types of the tensors
    that it returns, or of those that it writes if it returns no other.

    >>> from torch_vis.graph import TensorType
    >>> a, b = TensorType("float32", (2, 3), (3, 1)), TensorType("float32", (3, 4), (4, 1))
    >>> op = Operation("aten::mm", (a, b), {}, (TensorType("float32", (2, 4), (4, 1)),), ())
    >>> op.arg(1, "mat2").shape, op.arg(2, "bias", None), op.out.numel
    ((3, 4), None, 8)
    >>> op.count(mac=2 * 3 * 4)
    Cost(flops=48, macs=24, bytes=None)
    """

    __slots__ = ("args", "kwargs", "op", "outputs", "written")

    def __init__(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outputs: tuple[TensorType, ...],
        written: tuple[TensorType, ...],
    ) -> None:
        self.op = op
        self.args = args
        self.kwargs = kwargs
        self.outputs = outputs or written
        self.written = written

    def arg(self, position: int | None, name: str, default: Any = None) -> Any:
        """An argument by its place in the operator's schema (None: only by name) and its name there."""
        if position is not None and position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    @property
    def out(self) -> TensorType:
        """The first tensor it gives."""
        return self.outputs[0]

    @property
    def overload(self) -> str:
        """The operator's overload: ``"Tensor"`` of ``aten::add.Tensor``."""
        return self.op.partition(".")[2]

    @property
    def is_in_place(self) -> bool:
        """Whether its name says that it writes its first argument: ``aten::add_``."""
        return is_in_place(self.op)

    def tensors(self) -> Iterator[TensorType]:
        """Every tensor among its arguments, in order."""
        return iter(tensors_in((self.args, *self.kwargs.values())))

    @property
    def is_complex(self) -> bool:
        """Whether it computes with complex numbers."""
        return any(t.dtype.startswith("complex") for t in (*self.outputs, *self.tensors()))

    def count(
        self,
        *,
        add: int = 0,
        mul: int = 0,
        div: int = 0,
        call: int = 0,
        mac: int = 0,
        bytes: int | None = None,
    ) -> Cost:
        """The cost of so many additions, products, quotients, functions and multiply-adds, complex or not."""
        if self.is_complex:
            add, mul, div, mac = add * COMPLEX_ADD, mul * COMPLEX_MUL, div * COMPLEX_DIV, mac * COMPLEX_MAC
        return Cost(add + mul + div + call + 2 * mac, mac, bytes)


def together(*costs: Cost) -> Cost:
    """The arithmetic of several steps of one kernel; what lies between them is not moved.

    >>> together(Cost(10, 5), Cost(3))
    Cost(flops=13, macs=5, bytes=None)
    """
    return Cost(sum(each.flops for each in costs), sum(each.macs for each in costs))


def tensors_in(item: Any) -> list[TensorType]:
    """Every tensor type in nested arguments, in order."""
    if isinstance(item, TensorType):
        return [item]
    return [result for part in item for result in tensors_in(part)] if type(item) is tuple else []


def numel(tensors: Iterable[TensorType]) -> int:
    """The elements of several tensors together."""
    return sum(tensor.numel for tensor in tensors)


def elements(tensor: TensorType) -> int | None:
    """How many elements a tensor holds: of a sparse or nested one those that it stores, None where that is not known.

    >>> square = TensorType("float32", (3, 3), (), "sparse_coo")
    >>> elements(square), elements(SparseType.of(square, 4))
    (None, 4)
    """
    if isinstance(tensor, (SparseType, NestedType)):
        return tensor.stored
    return tensor.numel if is_sized(tensor) else None


def touched(tensor: TensorType) -> int | None:
    """The bytes of memory under a tensor, each counted once; None where the type does not say.

    >>> touched(TensorType("float32", (2, 1000), (1, 0)))  # expanded: 1000 columns in one place
    8
    """
    if tensor.layout == "zero" or isinstance(tensor, RepeatedType):
        return 0  # known to be zero, without memory; or counted elsewhere
    if tensor.itemsize is None or not is_sized(tensor):
        return None
    if not tensor.stride or not tensor.numel:
        return tensor.itemsize * tensor.numel
    count, span = 1, 1
    for length, step in zip(tensor.shape, tensor.stride):
        count *= length if step else 1
        span += (length - 1) * abs(step)
    return tensor.itemsize * min(count, span)


def nbytes(*tensors: TensorType | None) -> int | None:
    """The bytes under several tensors together, None if one is not known; an absent tensor has none."""
    total = 0
    for tensor in tensors:
        size = 0 if tensor is None else touched(tensor)
        if size is None:
            return None
        total += size
    return total


def is_sized(tensor: TensorType) -> bool:
    """Whether a tensor's elements can be counted: not so for nested and sparse ones, or with a symbolic size."""
    return tensor.layout in DENSE and all(type(size) is int and size >= 0 for size in tensor.shape)
