"""How many elements the sparse tensors of a graph store, by the metric ``stored`` or the operations around them.

The type of a sparse tensor has its shape and no more. Where the run did not note it, what made the tensor took its
values, or what reads it takes them out, and the values of a plain matrix are as many as its elements. Some operators
keep the pattern, so that what is known of one tensor is known of the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torch_vis.graph import Column, Graph, Node, TensorType
from torch_vis.graph.flow import follow
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.cost.operation import SparseType

LAYOUTS = frozenset({"sparse_coo", "sparse_csr", "sparse_csc"})
MAKERS = frozenset(
    f"aten::{name}"
    for name in (
        "_sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_unsafe sparse_coo_tensor sparse_csr_tensor "
        "_sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe _sparse_compressed_tensor_unsafe "
        "sparse_compressed_tensor"
    ).split()
)  # their last tensor holds the values
READERS = frozenset({"aten::_values", "aten::values"})
KEEPERS = frozenset(
    f"aten::{name}"
    for name in "_to_sparse _to_sparse_csr _to_sparse_csc "
    "t transpose clone detach alias _to_copy sparse_mask neg abs sin tanh sqrt relu mul.Scalar mul.Tensor "
    "div.Tensor div.Scalar".split()
)  # their last sparse argument has the pattern of the result, if the other is a number


def with_sparse_sizes(graph: Graph, stored: Column | None = None) -> tuple[Ints, list[TensorType]]:
    """The type number of every value and the types, with a ``SparseType`` wherever the stored elements are known."""
    numbers = graph.value_type.astype(np.int64)
    types = list(graph.types)
    sparse = np.array([type_.layout in LAYOUTS for type_ in types], dtype=np.bool_)
    if not sparse.any():
        return numbers, types
    extended: dict[tuple[int, int], int] = {}
    for value, number in _stored(graph, sparse, stored).items():
        key = int(graph.value_type[value]), number
        if key not in extended:
            extended[key] = len(types)
            types.append(SparseType.of(types[key[0]], number))
        numbers[value] = extended[key]
    return numbers, types


def _stored(graph: Graph, sparse: Bools, given: Column | None) -> dict[int, int]:
    """Stored elements by value."""
    is_sparse = sparse[graph.value_type]
    parent = np.arange(len(is_sparse))
    known: dict[int, int] = {}
    if given is not None:
        noted = is_sparse if given.known is None else is_sparse & given.known
        known = {value: int(given.values[value]) for value in np.flatnonzero(noted).tolist()}
    for node in _around(graph, is_sparse):
        taken = [value.index for value in node.inputs if is_sparse[value.index]]
        made = [value.index for value in node.outputs if is_sparse[value.index]]
        if node.call.op in KEEPERS or node.op in KEEPERS:
            if taken and made and (len(taken) == 1 or node.op == "aten::sparse_mask"):
                parent[made[0]] = taken[-1]
            continue
        whole, part = (made, node.inputs[-1:]) if node.op in MAKERS else (taken, node.outputs[:1])
        if (node.op in MAKERS or node.op in READERS) and whole and part and len(part[0].shape) == 1:
            known[whole[0]] = part[0].shape[0]
    root = follow(parent).tolist()
    by_root = {root[value]: stored for value, stored in known.items()}
    values = np.flatnonzero(is_sparse).tolist()
    derived = {value: by_root[root[value]] for value in values if root[value] in by_root}
    return derived | {value: known[value] for value in values if value in known}


def _around(graph: Graph, is_sparse: Bools) -> Iterator[Node]:
    """The operations that take or make a sparse tensor."""
    found = np.concatenate([graph.in_node[is_sparse[graph.in_value]], graph.value_producer[is_sparse]])
    for index in np.unique(found[found >= 0]).tolist():
        yield graph.nodes[index]
