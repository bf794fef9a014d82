"""Sparse and nested tensors: how many elements they store, and the operators that only they have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torch_vis.graph import Column, Graph, Node, TensorType
from torch_vis.graph.flow import follow
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.cost.registry import (
    Cost,
    NestedType,
    Operation,
    SparseType,
    aten,
    elements,
    family,
    is_sized,
)

cost = family("other")


@cost(*aten("_coalesce coalesce"), any_layout=True)
def coalesce(op: Operation) -> Cost | None:
    """Every stored element is added to the one of its place; finding that is sorting."""
    stored = elements(op.args[0])
    return None if stored is None else op.count(add=stored)


@cost(*aten("_sparse_mm_reduce_impl"), any_layout=True)
def product_reduced(op: Operation) -> Cost | None:
    """Every stored element times a row of the other matrix, and of these the sum, the mean, or the largest."""
    a, b, how = op.args[:3]
    if not isinstance(a, SparseType) or not is_sized(b):
        return None
    pairs = a.stored * b.shape[-1]
    if how not in ("sum", "mean"):
        return op.count(mul=pairs)
    return op.count(mac=pairs, div=op.out.numel if how == "mean" else 0)


@cost(*aten("_sparse_mm_reduce_impl_backward"), any_layout=True)
def product_reduced_backward(op: Operation) -> Cost | None:
    """The gradients of both factors; where the largest was chosen, each result has one element that it came from."""
    a, g, _, how, _, mask = op.args[:6]
    if not isinstance(a, SparseType) or not is_sized(g):
        return None
    wanted = bool(mask[0]) + bool(mask[1])
    if how not in ("sum", "mean"):
        return op.count(mac=g.numel * wanted)
    return op.count(mac=a.stored * g.shape[-1] * wanted, div=a.stored * wanted if how == "mean" else 0)


# How many elements sparse tensors store, by the metric ``stored`` or the operations around them. The type of a sparse
# tensor has its shape and no more. Where the run did not note it, what made the tensor took its values, or what reads
# it takes them out, and the values of a plain matrix are as many as its elements. Some operators keep the pattern, so
# that what is known of one tensor is known of the other.

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
        noted = np.flatnonzero(is_sparse & given.known_rows).tolist()
        known = {value: int(given.values[value]) for value in noted}
    for node in _around(graph, is_sparse):
        operands = [value.index for value in node.inputs if is_sparse[value.index]]
        results = [value.index for value in node.outputs if is_sparse[value.index]]
        if node.call.op in KEEPERS or node.op in KEEPERS:
            if operands and results and (len(operands) == 1 or node.op == "aten::sparse_mask"):
                parent[results[0]] = operands[-1]
            continue
        whole, part = (results, node.inputs[-1:]) if node.op in MAKERS else (operands, node.outputs[:1])
        if (node.op in MAKERS or node.op in READERS) and whole and part and len(part[0].shape) == 1:
            known[whole[0]] = part[0].shape[0]
    root = follow(parent).tolist()
    by_root = {root[value]: stored for value, stored in known.items()}
    values = np.flatnonzero(is_sparse).tolist()
    derived = {value: by_root[root[value]] for value in values if root[value] in by_root}
    return derived | {value: known[value] for value in values if value in known}


def _around(graph: Graph, is_sparse: Bools) -> Iterator[Node]:
    """The operations that take or make a sparse tensor."""
    nodes = np.concatenate([graph.in_node[is_sparse[graph.in_value]], graph.value_producer[is_sparse]])
    for index in np.unique(nodes[nodes >= 0]).tolist():
        yield graph.nodes[index]


# How much nested tensors hold: elements by the metric ``stored``, and the box that they were put in. The type of a
# nested tensor has no shape. Operators that pad it inside, such as the encoder fast path, compute with a box of as
# many parts as there are, each as long as the longest. What it is made from says how large that is.

FROM_BOX = frozenset(
    f"aten::{name}"
    for name in "_nested_tensor_from_mask _nested_tensor_from_mask_left_aligned _nested_from_padded".split()
)  # their first tensor is the box, of three dimensions or more
FROM_LIST = frozenset({"aten::_nested_tensor_from_tensor_list"})
NESTED_KEEPERS = frozenset(
    f"aten::{name}"
    for name in "_transformer_encoder_layer_fwd linear _softmax relu gelu native_layer_norm clone detach alias "
    "_to_copy add mul dropout native_dropout".split()
)  # each part of their first result is as long as that of their first argument
Box = tuple[int, int]


def with_nested_sizes(
    graph: Graph, numbers: Ints, types: list[TensorType], stored: Column | None
) -> tuple[Ints, list[TensorType]]:
    """The type number of every value and the types, with a ``NestedType`` wherever the elements were noted."""
    nested = np.array([type_.layout == "nested" for type_ in types], dtype=np.bool_)
    if stored is None or not nested.any():
        return numbers, types
    values = np.flatnonzero(nested[numbers])
    boxes = _boxes(graph, set(values.tolist()))
    extended: dict[tuple[int, int, Box | None], int] = {}
    numbers, types = numbers.copy(), list(types)
    for value in values.tolist():
        held = stored[value]
        if held is None:
            continue
        key = int(numbers[value]), held, boxes.get(value)
        if key not in extended:
            extended[key] = len(types)
            types.append(NestedType.of(types[key[0]], held, key[2]))
        numbers[value] = extended[key]
    return numbers, types


def _boxes(graph: Graph, nested: set[int]) -> dict[int, Box]:
    """Parts and longest part by value, as far as what made them tells."""
    boxes: dict[int, Box] = {}
    producers = {int(graph.value_producer[value]) for value in nested}
    for index in sorted(producers):
        if index >= 0:
            node = graph.nodes[index]
            box = _box_made(node, boxes)
            if box is not None:
                boxes.update(dict.fromkeys((out.index for out in node.outputs if out.index in nested), box))
    return boxes


def _box_made(node: Node, boxes: dict[int, Box]) -> Box | None:
    name = node.op.partition(".")[0]
    inputs = node.inputs
    if name in NESTED_KEEPERS and inputs:
        return boxes.get(inputs[0].index)
    shapes = [tuple(value.shape) for value in inputs]
    if name in FROM_BOX and shapes and len(shapes[0]) > 1:
        return shapes[0][0], shapes[0][1]
    if name in FROM_LIST and shapes and all(shapes):
        return len(shapes), max(shape[0] for shape in shapes)
    return None
