"""Matrix products: a sum over ``k`` terms is ``k`` multiply-adds, its accumulator starting from zero."""

from __future__ import annotations

import string
from collections.abc import Sequence
from math import prod
from typing import Any

from torch_vis.graph import TensorType
from torch_vis.ops.cost.registry import Cost, Operation, SparseType, aten, elements, family, is_sized

cost = family("matmul")


@cost(*aten("bmm dot vdot inner _int_mm matmul linalg_matmul"))
def product(op: Operation) -> Cost:
    """The last dimension of the first argument is summed over, for every element of the result."""
    return op.count(mac=op.out.numel * contracted(op.args[0]))


@cost(*aten("linalg_vecdot"))
def vecdot(op: Operation) -> Cost:
    """The dimension that is named is summed over."""
    dim = op.arg(None, "dim", -1)
    return op.count(mac=op.out.numel * max(op.args[0].shape[dim], op.args[1].shape[dim]))


@cost(*aten("mm mv _sparse_mm"), any_layout=True)
def matrix_product(op: Operation) -> Cost | None:
    """The same for matrices, of which one may be sparse."""
    macs = _matrix_macs(op, op.args[0], op.args[1])
    return None if macs is None else op.count(mac=macs)


def _matrix_macs(op: Operation, a: TensorType, b: TensorType) -> int | None:
    """A stored element of a sparse matrix meets a row or a column of the other; two sparse ones do not say how many."""
    if is_sized(a) and is_sized(b):
        return op.out.numel * contracted(a)
    if isinstance(a, SparseType) and is_sized(b):
        return a.stored * (b.shape[1] if len(b.shape) > 1 else 1)
    return b.stored * a.shape[0] if isinstance(b, SparseType) and is_sized(a) else None


def contracted(first: TensorType) -> int:
    """How many terms a product sums for each element: the first argument's last size, 1 for a number."""
    return first.shape[-1] if first.shape else 1


@cost(*aten("addmm addmv _sparse_addmm"), any_layout=True)
def added_matrix_product(op: Operation) -> Cost | None:
    """``beta c + alpha (a @ b)``, of which one factor may be sparse."""
    macs = _matrix_macs(op, op.args[1], op.args[2])
    if macs is None or not is_sized(op.out):
        return None
    add, mul = _scaled_sum(op)
    return op.count(add=add, mul=mul, mac=macs)


@cost(*aten("_addmm_activation"))
def activated_product(op: Operation) -> Cost:
    """The same with a ReLU, or a GELU, on it."""
    add, mul = _scaled_sum(op)
    product = op.count(add=add, mul=mul, mac=op.out.numel * contracted(op.args[1]))
    activation = 5 if op.arg(None, "use_gelu", False) else 0
    return product._replace(flops=product.flops + activation * op.out.numel)


@cost(*aten("baddbmm addbmm"))
def added_batch_product(op: Operation) -> Cost:
    """``beta c + alpha (a @ b)`` for a batch, which ``addbmm`` sums over as well."""
    a = op.args[1]
    terms = contracted(a) * (a.shape[0] if "aten::addbmm" in op.op else 1)
    add, mul = _scaled_sum(op)
    return op.count(add=add, mul=mul, mac=op.out.numel * terms)


@cost(*aten("sparse_sampled_addmm"), any_layout=True)
def sampled_product(op: Operation) -> Cost | None:
    """``beta c + alpha (a @ b)`` where the sparse ``c`` has elements."""
    c, a = op.args[0], op.args[1]
    if not isinstance(c, SparseType):
        return None
    beta, alpha = op.arg(None, "beta", 1), op.arg(None, "alpha", 1)
    muls = c.stored * ((beta not in (0, 1)) + (alpha != 1))
    return op.count(mac=c.stored * contracted(a), add=c.stored * (beta != 0), mul=muls)


def _scaled_sum(op: Operation) -> tuple[int, int]:
    """Additions and products of ``beta c + alpha x``, where x is there already."""
    beta, alpha, n = op.arg(None, "beta", 1), op.arg(None, "alpha", 1), op.out.numel
    return n * (beta != 0), n * (beta not in (0, 1)) + n * (alpha != 1)


@cost(*aten("ger outer"))
def outer(op: Operation) -> Cost:
    """One product for each element."""
    return op.count(mul=op.out.numel)


@cost(*aten("addr"))
def addr(op: Operation) -> Cost:
    """``beta c + alpha (a ⊗ b)``."""
    add, mul = _scaled_sum(op)
    return op.count(add=add, mul=mul + op.out.numel)


@cost(*aten("kron"))
def kron(op: Operation) -> Cost:
    """Every element of the one times every element of the other."""
    return op.count(mul=op.out.numel)


@cost(*aten("linear mkldnn_linear"), any_layout=True)
def linear(op: Operation) -> Cost | None:
    """``x @ w.T + b``, of every part if it is nested."""
    elements_out, bias = elements(op.out), op.arg(2, "bias")
    if elements_out is None or not is_sized(op.args[1]) or isinstance(op.out, SparseType):
        return None
    return op.count(mac=elements_out * contracted(op.args[1]), add=elements_out if bias is not None else 0)


@cost(*aten("linear_backward mkldnn_linear_backward"))
def linear_backward(op: Operation) -> Cost:
    """``g @ w``, ``g.T @ x`` and the sum of ``g`` over the rows, as far as asked for."""
    g, weight, mask = op.args[1], op.args[2], op.args[3]
    return op.count(mac=g.numel * weight.shape[-1] * (mask[0] + mask[1]), add=g.numel * mask[2])


@cost(*aten("mkldnn_linear_backward_input"))
def linear_backward_input(op: Operation) -> Cost:
    """``g @ w``."""
    return op.count(mac=op.args[1].numel * op.args[2].shape[-1])


@cost(*aten("mkldnn_linear_backward_weights"))
def linear_backward_weights(op: Operation) -> Cost:
    """``g.T @ x`` and, where there is a bias, the sum of ``g``."""
    g = op.args[0]
    return op.count(mac=g.numel * op.args[1].shape[-1], add=g.numel if op.args[3] else 0)


@cost(*aten("matmul_backward"))
def matmul_backward(op: Operation) -> Cost:
    """The gradients of both factors, each as many multiply-adds as the product itself."""
    g, a, mask = op.args[0], op.args[1], op.args[3]
    return op.count(mac=g.numel * contracted(a) * (mask[0] + mask[1]))


@cost(*aten("_scaled_mm _scaled_mm_v2"))
def scaled_mm(op: Operation) -> Cost:
    """``(a @ b) scale_a scale_b + bias``; scales of blocks inside a row are counted once an element as well."""
    bias = op.arg(8, "bias") if op.op.endswith("_v2") else op.arg(4, "bias")
    n = op.out.numel
    return op.count(mac=n * contracted(op.args[0]), mul=2 * n, add=n if bias is not None else 0)


@cost(*aten("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"))
def grouped_mm(op: Operation) -> Cost:
    """Products of matching groups of rows; where both factors are matrices, the summed dimension is what is grouped."""
    a, b, n = op.args[0], op.args[1], op.out.numel
    each = n // max(1, op.out.shape[0]) if len(a.shape) == len(b.shape) == 2 else n
    bias = op.arg(3, "bias") if op.op == "aten::_grouped_mm" else op.arg(5, "bias")
    added = n if isinstance(bias, TensorType) else 0
    return op.count(mac=each * contracted(a), mul=2 * n * ("scaled" in op.op), add=added)


@cost(*aten("_weight_int8pack_mm"))
def int8_weights(op: Operation) -> Cost:
    """``(x @ w.T) scales``."""
    n = op.out.numel
    return op.count(mac=n * contracted(op.args[0]), mul=n)


@cost(*aten("_weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros"))
def int4_weights(op: Operation) -> Cost:
    """``x @ ((w - zero) scale).T``, each weight unpacked once."""
    k = contracted(op.args[0])
    weights = k * op.out.shape[-1]
    return op.count(mac=op.out.numel * k, add=weights, mul=weights)


@cost(*aten("_dyn_quant_matmul_4bit"))
def dynamic_int4(op: Operation) -> Cost:
    """``x @ w.T`` with weights of four bits; what the packing of the scales adds is left out."""
    return op.count(mac=op.out.numel * op.args[3])


@cost(*aten("_mixed_dtypes_linear"))
def mixed_linear(op: Operation) -> Cost | None:
    """``(x @ w) scale + b``, without an activation."""
    if op.arg(None, "activation") not in (None, "none"):
        return None
    bias = op.arg(None, "bias")
    n = op.out.numel
    return op.count(mac=n * contracted(op.args[0]), mul=n, add=n if bias is not None else 0)


@cost(*aten("_trilinear"))
def trilinear(op: Operation) -> Cost:
    """A sum of products of three: first what the third factor does not share is summed, then the rest."""
    i1, i2, i3, expand1, expand2, expand3, summed = op.args[:7]
    a1, a2, a3 = _widened(i1, expand1), _widened(i2, expand2), _widened(i3, expand3)
    both = [max(a, b) for a, b in zip(a1, a2)]
    between = [1 if d in summed and d in expand3 else size for d, size in enumerate(both)]
    whole = [max(a, b) for a, b in zip(between, a3)]
    return op.count(mac=prod(both) + prod(whole))


def _widened(tensor: TensorType, places: Any) -> list[int]:
    shape = list(tensor.shape)
    for position in sorted(places):
        shape.insert(position, 1)
    return shape


@cost(*aten("bilinear"))
def bilinear(op: Operation) -> Cost:
    """``x1 @ w`` for every output feature, then the product with ``x2``, and the bias."""
    x1, weight, bias = op.args[0], op.args[2], op.arg(3, "bias")
    rows, (outputs, first, second) = prod(x1.shape[:-1]), weight.shape
    added = op.out.numel if bias is not None else 0
    return op.count(mac=rows * outputs * (first * second + second), add=added)


@cost(*aten("tensordot"))
def tensordot(op: Operation) -> Cost:
    """Every element of the result is a sum over the dimensions that are named."""
    a, dims = op.args[0], op.args[2]
    return op.count(mac=op.out.numel * prod(a.shape[d] for d in dims))


@cost(*aten("chain_matmul linalg_multi_dot"))
def chain(op: Operation) -> Cost | None:
    """Two matrices only: with more, the order of the products is the kernel's choice."""
    matrices = op.args[0]
    return op.count(mac=op.out.numel * contracted(matrices[0])) if len(matrices) == 2 else None


@cost(*aten("_foreach_mm"))
def foreach_mm(op: Operation) -> Cost:
    """One product for each pair."""
    return op.count(mac=sum(a.numel * b.shape[-1] for a, b in zip(op.args[0], op.args[1])))


@cost(*aten("_sparse_semi_structured_mm _sparse_semi_structured_linear _sparse_semi_structured_addmm"))
def half_sparse(op: Operation) -> Cost:
    """Two of every four weights are stored, and each output sums over those that are."""
    kept = op.args[0] if op.op == "aten::_sparse_semi_structured_mm" else op.args[1]
    bias = op.arg(None, "bias") if "linear" in op.op else None
    added = op.out.numel if bias is not None or "addmm" in op.op else 0
    return op.count(mac=op.out.numel * contracted(kept), add=added)


@cost(*aten("_cslt_sparse_mm"))
def cslt_mm(op: Operation) -> Cost:
    """The same where the compressed factor holds its indices too, so that the dense one tells the terms."""
    bias, alpha, n = op.arg(2, "bias"), op.arg(3, "alpha"), op.out.numel
    return op.count(
        mac=n * (op.args[1].shape[-2] // 2), add=0 if bias is None else n, mul=0 if alpha is None else n
    )


@cost(*aten("linalg_cross cross"))
def cross(op: Operation) -> Cost:
    """Two products and a difference for each element."""
    return op.count(mul=2 * op.out.numel, add=op.out.numel)


# Einsum, as inference mode shows it: one operation. Its operands are combined two by two, as torch does. What only one
# of the two has and nothing needs afterwards is added up first. Then every combination of what is left is one
# multiply-add, or one product where nothing is summed over.
AxisSizes = dict[str, int]


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
        joined = {label: size for label, size in both.items() if label in needed}
        if len(joined) < len(both):
            mac += prod(both.values())
        else:
            mul += prod(both.values())
        operands = [joined, *operands] if not pairs else [*operands, joined]
    if set(operands[0]) - set(wanted):
        add += prod(operands[0].values())
    return op.count(add=add, mul=mul, mac=mac)


def labelled(equation: str, tensors: Sequence[TensorType]) -> tuple[list[AxisSizes], list[str]]:
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
