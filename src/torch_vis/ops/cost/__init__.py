"""FLOPs, multiply-adds and bytes accessed of every operation, worked out after the run from shapes and call templates.

``costs(graph)`` gives the columns and ``uncovered(graph)`` lists the operators that have no formula. What is counted:

======================= ==============================================================================================
multiply-add            2 FLOPs and 1 MAC. A sum starts from zero, so that adding up n elements is n additions.
``macs``                the multiply-adds of sums of products: matrix products, convolutions, attention, recurrent
                        layers, factorisations. All else has none: a network's total is the figure that papers give.
``+ - * /``             1 FLOP, on integers too. A scalar factor that is the number 1 is no multiplication.
functions               exp, log, sqrt, sin, pow, tanh, erf, and the special functions: 1 FLOP each, since what they
                        take differs between machines by more than any figure could say. rsqrt is two: ``1 / sqrt``.
activations             by their definition: sigmoid is 1 / (1 + exp(-x)), 3 FLOPs. Both branches of a choice count.
complex numbers         + and - are 2 FLOPs, * is 6, / is 11, a multiply-add is 4 MACs, a function stays 1.
no FLOPs                comparing, choosing, rounding, signs, bits; copies, views, fills, random numbers, sorting.
normalisation, softmax  by their two-pass definitions: see ``normalization``.
convolution             every window is whole, padding included. Backward: each gradient as much as forward.
attention               the whole square of scores, causal or not; backward finds the scores again: see ``attention``.
Fourier transforms      5 n log2 n for n complex numbers, half of it for real ones.
what numbers decide     nothing is skipped: repeated indices, padding rows, labels left out and sequences that are
                        shorter than the tensor count like all others.
sparse, nested tensors  by the elements that they store, which the run notes; attention pads nested ones to their box.
singular, eigenvalues   an estimate: the textbook's direct steps, and two sweeps for each value: see ``linalg``. The
                        exponential of a matrix is one too.
``moved_bytes``         bytes accessed: the least that must pass between kernel and memory. Each byte that is needed is
                        read once, each byte of a result written once. Views access none; an expanded tensor has the
                        bytes under it; a lookup reads the rows that it returns; an operation in place reads and writes.
                        A tensor that is given twice (``x * x``, ``x.t() @ x``) is read once, and so is memory that two
                        views share, unless they cross in two dimensions: see ``shared_reads``. What ``beta=0`` tells
                        ``addmm`` to ignore is not read. Fusion and partition count in the same way, of many operations
                        as of one.
======================= ==============================================================================================

A row is not known where no formula covers the operation: operators of one's own, compiled code, products of two sparse
matrices, and tensors of which nothing noted how many elements they have. Nor is it where memory has contents that no
operation wrote (``unseen_write``): code outside of torch may have, or nobody.
``@register_cost`` adds a formula, for runs that are over as well; ``covered()`` lists the names that have one.
"""

from torch_vis.ops.cost import (  # noqa: F401  (importing a file registers its formulas)
    attention,
    convolution,
    data_movement,
    elementwise,
    fourier,
    indexing,
    linalg,
    loss,
    matmul,
    normalization,
    optimizer,
    pooling,
    quantization,
    recurrent,
    reduction,
    sparse,
)
from torch_vis.ops.cost.compute import costs, uncovered
from torch_vis.ops.cost.registry import UNKNOWN_BYTES, Cost, Operation, covered, register_cost

__all__ = ["UNKNOWN_BYTES", "Cost", "Operation", "costs", "covered", "register_cost", "uncovered"]
