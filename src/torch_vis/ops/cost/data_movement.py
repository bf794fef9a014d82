"""Operators without arithmetic: views, copies, fills, random numbers, sorting, and questions about a tensor."""

from __future__ import annotations

from torch_vis.ops.collectives import TABLE as COLLECTIVES
from torch_vis.ops.collectives import WAIT, WAIT_TENSOR
from torch_vis.ops.cost.registry import Cost, Operation, aten, family, nbytes, prims
from torch_vis.ops.op_table import names

cost = family("copy")

PRIM_VIEWS = """
    as_strided broadcast_in_dim collapse_view conj empty empty_permuted empty_strided split_dim squeeze transpose
    view_of view_of_dtype
    """
PRIM_COPIES = """
    cat clone collapse convert_element_type copy_strided copy_to device_put fill full full_like iota normal reshape rev
    scalar_tensor uniform as_strided_scatter
    """


@cost(*aten(names("views", "unwritten")), *prims(PRIM_VIEWS), any_layout=True)
@cost(WAIT, WAIT_TENSOR, "_c10d_functional::_wrap_tensor_autograd", any_layout=True)
def view(op: Operation) -> Cost:
    """Nothing is computed and nothing moved."""
    return Cost(0, 0, 0)


@cost(*aten(names("copies", "masked copies", "joins", "rearrangements", "repackings")), any_layout=True)
@cost(*aten(names("conversions", "constants", "fills")), any_layout=True)
@cost(*aten(names("draws", "samplers", "sorting")), any_layout=True)
@cost(*prims(PRIM_COPIES))
def move(op: Operation) -> Cost:
    """Nothing is computed; what is read and written follows from the types."""
    return op.count()


@cost(*aten("_local_scalar_dense item is_nonzero"), "prims::item", any_layout=True)
def read_one(op: Operation) -> Cost:
    """One element leaves for Python."""
    return Cost(0, 0, op.args[0].itemsize or 0)


@cost(*aten("equal allclose"))
def compare_all(op: Operation) -> Cost:
    """Two tensors are compared as far as they agree; ``allclose`` computes a tolerance for each element."""
    n = op.args[0].numel
    return op.count(add=2 * n, mul=n) if "allclose" in op.op else op.count()


@cost(*aten("reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"))
@cost(*aten("replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"))
def padding_backward(op: Operation) -> Cost:
    """Every gradient is added to the element that it is a copy of; the input gives only its shape."""
    return op.count(add=op.args[0].numel, bytes=nbytes(op.args[0], *op.outputs))


@cost(*aten("unfold_backward col2im"))
def overlaps_added(op: Operation) -> Cost:
    """Every element of every window is added to its place."""
    return op.count(add=op.args[0].numel)


@cost(*COLLECTIVES, any_layout=True)
def exchange(op: Operation) -> Cost:
    """Data go between processes; the bytes are those that this one reads and writes, and additions are not counted."""
    return op.count()


@cost("fsdp::split_with_sizes_copy", "fsdp::chunk_cat", "fsdp::copy_")
def shard(op: Operation) -> Cost:
    """What is to be sent is concatenated, or what has arrived is split."""
    return op.count()
