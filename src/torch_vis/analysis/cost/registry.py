"""The formulas, by operator name, and the one decorator that adds to them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from torch_vis.analysis.cost.operation import Cost, Operation
from torch_vis.errors import UsageError

Formula = Callable[[Operation], "Cost | None"]
FormulaType = TypeVar("FormulaType", bound=Formula)


class Entry(NamedTuple):
    """A formula, and whether it is to be asked about tensors whose sizes are not all known."""

    formula: Formula
    any_layout: bool


_FORMULAS: dict[str, Entry] = {}


def cost(*ops: str, any_layout: bool = False) -> Callable[[FormulaType], FormulaType]:
    """Make the decorated function the cost formula of some operators; each operator has one.

    A name without overload (``aten::mm``) stands for all its overloads that have no formula of their own. An
    operator of ``aten`` that writes in place (``aten::add_``) is looked up under its plain name as well.
    With ``any_layout=True`` the function is also asked about sparse and nested tensors; otherwise calls that
    involve one are not covered.

    >>> from torch_vis.analysis.cost import Cost, cost, covered
    >>> if "mylib::scaled_sin" not in covered():
    ...     @cost("mylib::scaled_sin")
    ...     def scaled_sin(op):
    ...         return op.count(mul=op.out.numel, call=op.out.numel)
    >>> try:
    ...     cost("mylib::scaled_sin")(lambda op: Cost(flops=0))
    ... except ValueError as error:
    ...     print(str(error)[:46])
    'mylib::scaled_sin' already has a cost formula
    """
    if not ops or not all(isinstance(op, str) for op in ops):
        raise UsageError('cost takes the names of operators: @cost("aten::mm")')
    for op in ops:
        if "::" not in op:
            raise UsageError(f"{op!r} names no operator; write it with its namespace, as in 'aten::mm'")

    def register(formula: FormulaType) -> FormulaType:
        taken = [op for op in ops if op in _FORMULAS]
        if taken:
            owner = _FORMULAS[taken[0]].formula
            raise UsageError(f"{taken[0]!r} already has a cost formula: {_describe(owner)}")
        if len(set(ops)) < len(ops):
            raise UsageError(f"an operator is named twice in cost({', '.join(map(repr, ops))})")
        _FORMULAS.update(dict.fromkeys(ops, Entry(formula, any_layout)))
        return formula

    return register


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


def formula_of(op: str) -> Entry | None:
    """The formula that covers an operator given by its name with overload, or None.

    >>> formula_of("aten::mm.out") is formula_of("aten::mm"), formula_of("aten::no_such")
    (True, None)
    """
    found = _FORMULAS.get(op)
    if found is None:
        name = op.partition(".")[0]
        found = _FORMULAS.get(name)
        if found is None and name.startswith("aten::") and name.endswith("_"):
            found = _FORMULAS.get(name[:-1])
    return found


def covered() -> tuple[str, ...]:
    """The names under which there is a formula, in order.

    >>> "aten::convolution" in covered()
    True
    """
    return tuple(sorted(_FORMULAS))


def _describe(formula: Formula) -> str:
    name, module = getattr(formula, "__qualname__", repr(formula)), inspect.getmodule(formula)
    return f"{name} in {'?' if module is None else module.__name__}"
