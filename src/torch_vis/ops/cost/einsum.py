"""Einsum as inference mode shows it, one operation: its operands are combined two by two, as torch does.

What only one of the two has and nothing needs afterwards is added up first. Then every combination of what is left is
one multiply-add, or one product where nothing is summed over.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from math import prod

from torch_vis.graph import TensorType
from torch_vis.ops.cost.operation import Cost, Operation
from torch_vis.ops.cost.registry import aten, family

cost = family("matmul")

Sizes = dict[str, int]


@cost(*aten("einsum"))
def einsum(op: Operation) -> Cost | None:
    """In the order of the path if one is given, and from left to right otherwise."""
    if not isinstance(op.args[0], str):
        return None
    operands, wanted = labelled(op.args[0], op.args[1])
    path = op.arg(2, "path") or ()
    pairs = list(zip(path[::2], path[1::2])) if len(path) == 2 * (len(operands) - 1) else []
    add = mul = mac = 0
    while len(operands) > 1:
        first, second = pairs.pop(0) if pairs else (0, 1)
        b, a = operands.pop(max(first, second)), operands.pop(min(first, second))
        needed = set(wanted).union(*operands)
        for mine, other in ((a, b), (b, a)):
            alone = [label for label in mine if label not in other and label not in needed]
            if alone:
                add += prod(mine.values())
                for label in alone:
                    del mine[label]
        both = {**a, **{label: max(size, a.get(label, 1)) for label, size in b.items()}}
        made = {label: size for label, size in both.items() if label in needed}
        if len(made) < len(both):
            mac += prod(both.values())
        else:
            mul += prod(both.values())
        operands = [made, *operands] if not pairs else [*operands, made]
    if set(operands[0]) - set(wanted):
        add += prod(operands[0].values())
    return op.count(add=add, mul=mul, mac=mac)


def labelled(equation: str, tensors: Sequence[TensorType]) -> tuple[list[Sizes], list[str]]:
    """The sizes of every operand by its letters, and the letters of the result; "..." takes letters of its own.

    >>> labelled("ij,jk", [TensorType("float32", (2, 3), (3, 1)), TensorType("float32", (3, 4), (4, 1))])
    ([{'i': 2, 'j': 3}, {'j': 3, 'k': 4}], ['i', 'k'])
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    wide = max(len(tensor.shape) - len(term.replace("...", "")) for term, tensor in zip(terms, tensors))
    rest = spare[: max(wide, 0)]
    operands = []
    for term, tensor in zip(terms, tensors):
        letters = list(term)
        if "..." in term:
            own = len(tensor.shape) - len(term) + 3
            before, after = term.split("...")
            letters = [*before, *rest[len(rest) - own :], *after]
        operands.append(dict(zip(letters, tensor.shape)))
    if arrow:
        before, dots, after = right.partition("...")
        return operands, [*before, *(rest if dots else []), *after]
    once = sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1)
    return operands, [*rest, *once]
