"""Losses: the work of each element, then a sum, and for a mean one division.

In the gradient of a mean the factor ``1 / n`` is a constant that each element is multiplied by.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch_vis.graph import TensorType
from torch_vis.ops.cost.elementwise import Work
from torch_vis.ops.cost.registry import Cost, Operation, aten, family, nbytes, together

cost = family("reduction")

NONE, MEAN = 0, 1  # how a loss is reduced, as the operators number it


def _reduced(op: Operation, each: Work, n: int, reduction: int) -> Cost:
    added = 0 if reduction == NONE else n
    mean = int(reduction == MEAN)
    return op.count(add=each.add * n + added, mul=each.mul * n, div=each.div * n + mean, call=each.call * n)


def _elements(op: Operation, first: int = 0) -> int:
    """Elements of input and target together, the one stretched to the other."""
    return max(op.args[first].numel, op.args[first + 1].numel)


def _plain(each: Work) -> Any:
    def formula(op: Operation) -> Cost:
        return _reduced(op, each, _elements(op), op.arg(2, "reduction", MEAN))

    return formula


def _gradient(each: Work) -> Any:
    def formula(op: Operation) -> Cost:
        return _reduced(op, each, _elements(op, 1), NONE)

    return formula


cost("aten::mse_loss")(_plain(Work(add=1, mul=1)))  # (x - y)²
cost("aten::mse_loss_backward")(_gradient(Work(add=1, mul=2)))  # (2 / n) (x - y) g
cost("aten::l1_loss")(_plain(Work(add=1)))
# d = |x - y|: d d / (2 beta), and d - beta / 2 further out
cost("aten::smooth_l1_loss")(_plain(Work(add=2, mul=2, div=1)))
cost("aten::smooth_l1_loss_backward")(
    _gradient(Work(add=1, mul=2, div=1))
)  # k g d / beta, and k g further out
# d = |x - y|: d d / 2, and delta (d - delta / 2) further out
cost("aten::huber_loss")(_plain(Work(add=2, mul=3)))
cost("aten::huber_loss_backward")(_gradient(Work(add=1, mul=3)))  # k g d, and k g delta further out
cost("aten::soft_margin_loss")(_plain(Work(mul=1, call=2)))  # log1p(exp(-x y))
cost("aten::soft_margin_loss_backward")(
    _gradient(Work(add=1, mul=4, div=1, call=1))
)  # k g y z / (1 + z), z = exp(-x y)


@cost(*aten("binary_cross_entropy"))
def binary_cross_entropy(op: Operation) -> Cost:
    """``(y - 1) log(1 - x) - y log(x)``, weighted; ``log(1 - x)`` is one function."""
    weighted = op.arg(2, "weight") is not None
    each = Work(add=2, mul=2 + weighted, call=2)
    return _reduced(op, each, _elements(op), op.arg(3, "reduction", MEAN))


@cost(*aten("binary_cross_entropy_backward"))
def binary_cross_entropy_backward(op: Operation) -> Cost:
    """``g (x - y) / ((1 - x) x)``, weighted, and divided by n for a mean."""
    weighted, mean = op.arg(3, "weight") is not None, op.arg(4, "reduction", MEAN) == MEAN
    return _reduced(op, Work(add=2, mul=2 + weighted, div=1 + mean), _elements(op, 1), NONE)


@cost(*aten("binary_cross_entropy_with_logits"))
def binary_cross_entropy_with_logits(op: Operation) -> Cost:
    """``(1 - y) x - k log_sigmoid(x)`` with ``k = (pos_weight - 1) y + 1`` where there is such a weight."""
    weighted, positive = op.arg(2, "weight") is not None, op.arg(3, "pos_weight") is not None
    each = Work(add=3 + 2 * positive, mul=1 + weighted + 2 * positive, call=2)
    return _reduced(op, each, _elements(op), op.arg(4, "reduction", MEAN))


@cost(*aten("kl_div"))
def kl_div(op: Operation) -> Cost:
    """``y log(y) - y x``, or ``exp(y) (y - x)`` where the target is given as logarithms."""
    logs = op.arg(None, "log_target", False)
    each = Work(add=1, mul=1, call=1) if logs else Work(add=1, mul=2, call=1)
    return _reduced(op, each, _elements(op), op.arg(2, "reduction", MEAN))


def _picked(op: Operation, target: TensorType, weight: Any, reduction: int) -> Cost:
    """The loss and the weight of every target, added up; one element of each row is read."""
    n = target.numel
    add = 0 if reduction == NONE else 2 * n
    rest = nbytes(target, weight if isinstance(weight, TensorType) else None, *op.outputs)
    read = n * (op.args[0].itemsize or 0)
    return op.count(
        add=add,
        mul=n * (weight is not None),
        div=int(reduction == MEAN),
        bytes=None if rest is None else rest + read,
    )


@cost(*aten("nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d nll_loss_nd"))
def nll_loss(op: Operation) -> Cost:
    """Of each row the element that the target names."""
    return _picked(op, op.args[1], op.arg(2, "weight"), op.arg(3, "reduction", MEAN))


@cost(*aten("nll_loss_backward nll_loss2d_backward"))
def nll_loss_backward(op: Operation) -> Cost:
    """``-w g / total`` where the target points, zero elsewhere; the input gives only its shape."""
    g, _, target, weight, reduction = op.args[:5]
    n = target.numel
    moved = nbytes(g, target, weight, op.args[6], *op.outputs)
    return op.count(mul=n * (weight is not None), div=n * (reduction == MEAN), bytes=moved)


@cost(*aten("cross_entropy_loss"))
def cross_entropy(op: Operation) -> Cost | None:
    """A log-softmax and the negative log likelihood of classes or of probabilities."""
    x, target = op.args[0], op.args[1]
    if op.arg(5, "label_smoothing", 0.0):
        return None
    dim = 1 if len(x.shape) > 1 else 0
    rows = x.numel // max(x.shape[dim], 1)
    logs = Cost(4 * x.numel + rows)
    weight, reduction = op.arg(2, "weight"), op.arg(3, "reduction", MEAN)
    if target.shape != x.shape:
        return together(logs, _picked(op, target, weight, reduction))
    return together(logs, Cost(x.numel * (2 + (weight is not None)) + (reduction == MEAN)))


@cost(*aten("multi_margin_loss multi_margin_loss_backward"))
def multi_margin(op: Operation) -> Cost:
    """``max(0, margin - x[y] + x[i])``, to the power p, over the other classes, divided by their number."""
    back = "backward" in op.op
    x = op.args[int(back)]
    samples, classes = (x.shape[0], x.shape[1]) if len(x.shape) > 1 else (1, x.numel)
    p, weight = op.arg(2 + back, "p", 1), op.arg(4 + back, "weight")
    pairs = samples * (classes - 1)
    weighted = pairs * (weight is not None)
    # the slope of each, collected at the target, then times the gradient
    if back:
        return op.count(add=3 * pairs, mul=weighted + 2 * pairs * (p == 2) + x.numel)
    reduction = op.arg(5, "reduction", MEAN)
    summed = 0 if reduction == NONE else samples
    return op.count(
        add=3 * pairs + summed, mul=weighted + pairs * (p == 2), div=samples + (reduction == MEAN)
    )


@cost(*aten("multilabel_margin_loss_forward"))
def multilabel_margin(op: Operation) -> Cost:
    """``max(0, 1 - x[y] + x[i])`` of every pair of a label ``y`` and another class ``i``, divided by the classes.

    Which pairs there are is in the numbers: every class is counted with every class, those outside masked out.
    """
    x, reduction = op.args[0], op.arg(2, "reduction", MEAN)
    samples, classes = (x.shape[0], x.shape[1]) if len(x.shape) > 1 else (1, x.numel)
    summed = 0 if reduction == NONE else samples
    return op.count(
        add=3 * samples * classes**2 + summed, div=samples + (reduction == MEAN and len(x.shape) > 1)
    )


@cost(*aten("multilabel_margin_loss_backward"))
def multilabel_margin_backward(op: Operation) -> Cost:
    """The same pairs: where one is above zero its slope goes to both classes; then all times the gradient."""
    x = op.args[1]
    samples, classes = (x.shape[0], x.shape[1]) if len(x.shape) > 1 else (1, x.numel)
    return op.count(add=4 * samples * classes**2, mul=x.numel)


def _states(op: Operation, position: int, table: TensorType) -> tuple[int, int, int]:
    """Cells of the forward table beyond its first row, those of one row of each sequence, and sequences.

    Where a tensor holds the lengths, all sequences are as long as the table, which has one row per step of each.
    """
    steps, labels = op.args[position], op.args[position + 1]
    if isinstance(steps, TensorType) or isinstance(labels, TensorType):
        count, rows, states = table.shape
        return count * max(rows - 1, 0) * states, count * states, count
    cells = sum(max(t - 1, 0) * (2 * s + 1) for t, s in zip(steps, labels))
    return cells, sum(2 * s + 1 for s in labels), len(steps)


ALPHA = Work(add=7, call=4)  # the log of a sum of three exps, and the log probability


@cost(*aten("_ctc_loss"))
def ctc_loss(op: Operation) -> Cost:
    """The table of forward log probabilities, each from three before it; at the end two are added."""
    cells, _, sequences = _states(op, 2, op.outputs[1])
    return op.count(add=ALPHA.add * cells + 4 * sequences, call=ALPHA.call * cells + 3 * sequences)


@cost(*aten("_ctc_loss_backward"))
def ctc_loss_backward(op: Operation) -> Cost:
    """The backward table, both tables added up for each label, and the gradient of each probability."""
    beyond, first, _ = _states(op, 3, op.args[6])
    cells = beyond + first
    places = prod(op.args[1].shape)
    return op.count(
        add=ALPHA.add * beyond + 5 * cells + 3 * places,
        mul=places,
        call=ALPHA.call * beyond + 3 * cells + 2 * places,
    )
