"""Operators on lists of tensors: the ``_foreach`` family, and optimizer steps as one operation."""

from __future__ import annotations

from torch_vis.graph import TensorType
from torch_vis.ops.cost.elementwise import SIZES, WORK, Work, factor, work
from torch_vis.ops.cost.reduction import norm_root, norm_work
from torch_vis.ops.cost.registry import Cost, Formula, Operation, aten, family, numel, touched

cost = family("optimizer")

# Operators on lists that do to each tensor what the plain operator of the same name does.
PLAIN = """
    abs acos asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma log log10
    log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
    """


def _each(each: Work) -> Formula:
    def formula(op: Operation) -> Cost:
        return work(op, each, _count(op))

    return formula


def _count(op: Operation) -> int:
    """The elements of the list that is worked on; ``pow`` of a number has its tensors second."""
    first = op.args[0]
    return numel(first if isinstance(first, tuple) else op.args[1])


for _name in PLAIN.split():
    cost(f"aten::_foreach_{_name}")(_each(WORK[_name] if _name not in SIZES.split() else Work()))


@cost(*aten("_foreach_zero _foreach_clone _foreach_copy _foreach_max"))
def move(op: Operation) -> Cost:
    """Copies, fills and comparisons."""
    return op.count()


@cost(*aten("_foreach_add _foreach_sub"))
def foreach_add(op: Operation) -> Cost:
    """``a + alpha b`` for each."""
    return work(op, Work(add=1, mul=factor(op.arg(None, "alpha", 1))), _count(op))


@cost(*aten("_foreach_addcmul _foreach_addcdiv"))
def foreach_addcmul(op: Operation) -> Cost:
    """``a + value b c``, or ``b / c``, for each; a list of values has one for each tensor."""
    quotient = int("addcdiv" in op.op)
    value = op.arg(3, "value", op.kwargs.get("scalars", 1))
    scaled = sum(
        tensor.numel
        * factor(value[index] if isinstance(value, tuple) and not isinstance(value, TensorType) else value)
        for index, tensor in enumerate(op.args[0])
    )
    n = _count(op)
    return op.count(add=n, mul=scaled + n * (1 - quotient), div=n * quotient)


@cost(*aten("_foreach_norm _foreach_powsum"))
def foreach_norm(op: Operation) -> Cost:
    """The norm of each, or its power."""
    p = op.arg(1, "ord", 2)
    counted = norm_work(p, _count(op))
    roots = len(op.args[0]) * norm_root(p) if "norm" in op.op else 0
    return op.count(**{**counted, "call": counted.get("call", 0) + roots})


@cost(*aten("_amp_foreach_non_finite_check_and_unscale"))
def unscale(op: Operation) -> Cost:
    """Every gradient times the inverse of the scale."""
    return op.count(mul=_count(op))


@cost(*aten("_amp_update_scale"))
def update_scale(op: Operation) -> Cost:
    """The scale times its growth or its backoff, and one more step counted."""
    return op.count(mul=2, add=1)


# Fused optimizers: the arithmetic of one element of a parameter. Factors that are the same for all elements are
# worked out once for each tensor and left aside.


def _fused(op: Operation, each: int) -> Cost:
    """The gradients are declared as written, and are so only where they are unscaled on the way."""
    n = numel(op.args[0])
    scaled = op.arg(None, "grad_scale") is not None
    gradients = op.args[1] if not scaled else ()
    sizes = [touched(tensor) for tensor in (*op.tensors(), *op.written)]
    unwritten = [touched(tensor) for tensor in gradients]
    if None in sizes or None in unwritten:
        return Cost(n * (each + scaled))
    moved = sum(size or 0 for size in sizes) - sum(size or 0 for size in unwritten)
    return Cost(n * (each + scaled), 0, moved)


@cost(*aten("_fused_adam _fused_adamw"))
def adam(op: Operation) -> Cost:
    """``m += (1 - b1) (g - m)``, ``v = b2 v + (1 - b2) g g``, ``p -= step m / (sqrt(v) / k + eps)``.

    Weight decay is ``g += wd p`` or, apart from the gradient, ``p -= lr wd p``.
    """
    decay = 2 if op.arg(None, "weight_decay", 0) else 0
    return _fused(op, 3 + 4 + 3 + 3 + decay)


@cost(*aten("_fused_sgd"))
def sgd(op: Operation) -> Cost:
    """``b = momentum b + (1 - dampening) g`` (at first a copy), with Nesterov ``g += momentum b``, ``p -= lr g``."""
    decay = 2 if op.arg(None, "weight_decay", 0) else 0
    momentum = 0
    if op.arg(None, "momentum", 0):
        damped = factor(1 - op.arg(None, "dampening", 0))
        momentum = 0 if op.arg(None, "is_first_step", False) else 2 + damped
        momentum += 2 if op.arg(None, "nesterov", False) else 0
    return _fused(op, 2 + decay + momentum)


@cost(*aten("_fused_adagrad"))
def adagrad(op: Operation) -> Cost:
    """``s += g g``, ``p -= lr g / (sqrt(s) + eps)``."""
    decay = 2 if op.arg(None, "weight_decay", 0) else 0
    return _fused(op, 2 + 2 + 3 + decay)
