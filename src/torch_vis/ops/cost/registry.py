"""The formulas, by operator name, and the one decorator that adds to them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from torch_vis.errors import UsageError, no_match
from torch_vis.ops.cost.operation import Cost, Operation
from torch_vis.ops.names import out_of_place
from torch_vis.ops.op_table import KINDS

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
        if not str(getattr(formula, "__module__", "")).startswith(OURS):  # a test holds our own names
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
    plain |= {out_of_place(name) for name in plain}  # under which that in place is looked up
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
    return len(_FORMULAS)  # none is ever taken away


def covered() -> tuple[str, ...]:
    """The names under which there is a formula, in order.

    >>> "aten::convolution" in covered()
    True
    """
    return tuple(sorted(_FORMULAS))


def _describe(formula: Formula) -> str:
    name, module = getattr(formula, "__qualname__", repr(formula)), inspect.getmodule(formula)
    return f"{name} in {'?' if module is None else module.__name__}"
