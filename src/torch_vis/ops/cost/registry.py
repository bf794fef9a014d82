"""A formula's view of an operation, the formulas by operator name, and the one decorator that adds to them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from torch_vis.errors import UsageError, no_match
from torch_vis.graph import TensorType
from torch_vis.ops.names import is_in_place, out_of_place
from torch_vis.ops.op_table import KINDS

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
    """How many elements a tensor stores; None where that is unknown, as of some sparse or nested ones.

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
        # known to be zero, without memory; or counted elsewhere
        return 0
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


Formula = Callable[[Operation], "Cost | None"]
FormulaType = TypeVar("FormulaType", bound=Formula)
# Namespaces to which only torch adds, so that what it does not have does not exist.
CLOSED = ("aten", "prims")
OURS = f"{__package__}."


class FormulaEntry(NamedTuple):
    """A formula, the family of its operators, and whether it takes tensors whose sizes are not all known.

    ``failed`` are the operators it failed for and the causes, of which one warning each is enough.
    """

    formula: Formula
    family: str
    any_layout: bool
    failed: set[tuple[str, str]]


_FORMULAS: dict[str, FormulaEntry] = {}


def register_cost(
    *ops: str, any_layout: bool = False, family: str = "other"
) -> Callable[[FormulaType], FormulaType]:
    """Make the decorated function the cost formula of some operators; each operator has one.

    The function is called with an ``op`` for each kind of call, and returns what that call costs: ``op.count(add=…,
    mul=…, div=…, call=…, mac=…)`` from how many of each it does, or ``Cost(flops=…, macs=…, bytes=…)`` in figures
    (``bytes`` may be left to the types), or None where it does not know. A plain number is refused. ``op`` has no
    tensors but their types, with ``shape``, ``numel``, ``dtype`` and ``nbytes``: ``op.out`` and ``op.outputs`` of what
    it gives, ``op.arg(position, name, default)`` of one argument, which may be a number or None as well,
    ``op.tensors()`` of all tensors among them. ``op.op`` is the operator's full name, ``op.overload`` what is behind
    its dot.

    A name without overload (``aten::mm``) stands for all its overloads that have no formula of their own. An
    operator of ``aten`` that writes in place (``aten::add_``) is looked up under its plain name as well.
    A name in ``aten`` or ``prims`` that torch does not have is refused; operators of one's own may come later.
    Traces that were made before, or loaded, count by a new formula too: costs are worked out from shapes.
    With ``any_layout=True`` the function is also asked about sparse and nested tensors; otherwise calls that
    involve one are not covered. ``family`` says which operators it takes its time like, for rooflines and latency.

    >>> from torch_vis import register_cost
    >>> from torch_vis.ops.cost import Cost, covered
    >>> if "mylib::scaled_sin" not in covered():
    ...     @register_cost("mylib::scaled_sin")
    ...     def scaled_sin(op):
    ...         return op.count(mul=op.out.numel, call=op.out.numel)
    >>> try:
    ...     register_cost("mylib::scaled_sin")(lambda op: Cost(flops=0))
    ... except ValueError as error:
    ...     print(str(error)[:46])
    'mylib::scaled_sin' already has a cost formula
    """
    if family not in KINDS:
        raise no_match("family of operators", family, KINDS)
    if not ops or not all(isinstance(op, str) for op in ops):
        raise UsageError('register_cost takes the names of operators: @register_cost("aten::mm")')
    for op in ops:
        if not all(op.partition("::")):
            raise UsageError(f"{op!r} names no operator; write it with its namespace, as in 'aten::mm'")

    def register(formula: FormulaType) -> FormulaType:
        if not callable(formula):
            raise UsageError(
                f"a cost formula is a function of the operation, not {formula!r}; "
                f"write it below @register_cost({ops[0]!r})"
            )
        known = [op for op in ops if op in _FORMULAS]
        if known:
            owner = _FORMULAS[known[0]].formula
            raise UsageError(f"{known[0]!r} already has a cost formula: {_describe(owner)}")
        if len(set(ops)) < len(ops):
            raise UsageError(f"an operator is named twice in register_cost({', '.join(map(repr, ops))})")
        # a test holds our own names
        if not str(getattr(formula, "__module__", "")).startswith(OURS):
            for op in ops:
                _require_operator(op)
        _FORMULAS.update(dict.fromkeys(ops, FormulaEntry(formula, family, any_layout, set())))
        return formula

    return register


def family(name: str) -> Callable[..., Callable[[FormulaType], FormulaType]]:
    """``register_cost`` for operators of one family: the ``cost`` that every file of formulas begins with."""
    return functools.partial(register_cost, family=name)


def _require_operator(op: str) -> None:
    """Refuse a name that torch would have if it were an operator.

    A process that has not loaded torch, to read files, stays without it: there any name will do.
    """
    torch, namespace = sys.modules.get("torch"), op.partition("::")[0]
    if torch is None or namespace not in CLOSED:
        return
    full = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{namespace}::")}
    plain = {name.partition(".")[0] for name in full}
    # under which that in place is looked up
    plain |= {out_of_place(name) for name in plain}
    if op in full or op in plain:
        return
    name = op.partition(".")[0]
    overloads = {other for other in full if other.partition(".")[0] == name}
    raise no_match("operator", op, overloads or plain)


def aten(names: str | Iterable[str]) -> tuple[str, ...]:
    """The full names of operators of ``aten`` given by their short ones, in one string or several.

    >>> aten("mm bmm")
    ('aten::mm', 'aten::bmm')
    """
    words = names.split() if isinstance(names, str) else names
    return tuple(f"aten::{name}" for name in words)


def prims(names: str) -> tuple[str, ...]:
    """The same for ``prims``, of which torch's own decompositions are made.

    >>> prims("add")
    ('prims::add',)
    """
    return tuple(f"prims::{name}" for name in names.split())


def formula_of(op: str) -> FormulaEntry | None:
    """The formula that covers an operator given by its name with overload, or None.

    >>> formula_of("aten::mm.out") is formula_of("aten::mm"), formula_of("aten::no_such")
    (True, None)
    """
    name = op.partition(".")[0]
    entry = _FORMULAS.get(op) or _FORMULAS.get(name)
    if entry is None and name.startswith("aten::"):
        entry = _FORMULAS.get(out_of_place(name))
    return entry


def version() -> int:
    """A number that changes with every new formula: costs that were worked out before are then out of date."""
    # none is ever taken away
    return len(_FORMULAS)


def covered() -> tuple[str, ...]:
    """The names under which there is a formula, in order.

    >>> "aten::convolution" in covered()
    True
    """
    return tuple(sorted(_FORMULAS))


def _describe(formula: Formula) -> str:
    name, module = getattr(formula, "__qualname__", repr(formula)), inspect.getmodule(formula)
    return f"{name} in {'?' if module is None else module.__name__}"
