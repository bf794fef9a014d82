"""How much the nested tensors of a graph hold: elements by the metric ``stored``, and the box that they were put in.

The type of a nested tensor has no shape. Operators that pad it inside, such as the encoder fast path, compute with a
box of as many parts as there are, each as long as the longest. What it is made from says how large that is.
"""

from __future__ import annotations

import numpy as np

from torch_vis.graph import Column, Graph, Node, TensorType
from torch_vis.graph.types import Ints
from torch_vis.ops.cost.operation import NestedType

FROM_BOX = frozenset(
    f"aten::{name}"
    for name in "_nested_tensor_from_mask _nested_tensor_from_mask_left_aligned _nested_from_padded".split()
)  # their first tensor is the box, of three dimensions or more
FROM_LIST = frozenset({"aten::_nested_tensor_from_tensor_list"})
KEEPERS = frozenset(
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
    found: dict[int, Box] = {}
    producers = {int(graph.value_producer[value]) for value in nested}
    for index in sorted(producers):
        if index >= 0:
            node = graph.nodes[index]
            box = _box_made(node, found)
            if box is not None:
                found.update(dict.fromkeys((out.index for out in node.outputs if out.index in nested), box))
    return found


def _box_made(node: Node, found: dict[int, Box]) -> Box | None:
    name = node.op.partition(".")[0]
    given = node.inputs
    if name in KEEPERS and given:
        return found.get(given[0].index)
    shapes = [tuple(value.shape) for value in given]
    if name in FROM_BOX and shapes and len(shapes[0]) > 1:
        return shapes[0][0], shapes[0][1]
    if name in FROM_LIST and shapes and all(shapes):
        return len(shapes), max(shape[0] for shape in shapes)
    return None
