"""What the tracking interface hands out: nodes, edges, and the kinds of operations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

PLAIN = frozenset({str, int, bool, type(None)})


class OperationType(Enum):
    """What a node of the tracked graph is.

    ``FORWARD`` and ``BACKWARD`` are the two passes as a whole. ``LAYER_OP`` is one call of a module. ``GRADIENT_OP``
    is every operation of a backward pass. ``MEMORY_OP`` only views, copies or allocates, and stands as well for the
    memory that the run began with: inputs, parameters, buffers. ``CUSTOM`` is an operator that is not torch's own, a
    call of a user's autograd function or of a higher-order operator, and a step of an optimizer; the operations
    inside such a step are of their own types, with ``metadata["phase"] == "optimizer"``. Everything else is a
    ``TENSOR_OP``.

    >>> OperationType("layer_op")
    <OperationType.LAYER_OP: 'layer_op'>
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    TENSOR_OP = "tensor_op"
    LAYER_OP = "layer_op"
    GRADIENT_OP = "gradient_op"
    MEMORY_OP = "memory_op"
    CUSTOM = "custom"


@dataclass
class GraphNode:
    """One operation, one call of a layer, one pass, or a tensor that the run began with.

    Parents are the nodes that it takes tensors from, children those that take tensors of its; what a layer contains
    is told by edges of the type ``containment``. Times are in seconds, those of a layer and of a pass include what it
    contains; memory is what was newly allocated, in bytes. A figure that was not tracked, or that a node cannot have,
    is None. ``metadata`` holds ``flops``, ``macs`` and ``moved_bytes``: of an operation None where not known, of a
    layer the sum over the forward operations in it for which it is known, beside ``unknown_flops`` and so on, the
    number of the others.

    >>> GraphNode("op_0", "relu", OperationType.TENSOR_OP).execution_time is None
    True
    """

    id: str
    name: str
    operation_type: OperationType
    module_name: str | None = None
    input_shapes: list[tuple[int, ...]] | None = None
    output_shapes: list[tuple[int, ...]] | None = None
    parameters: dict[str, Any] | None = None
    execution_time: float | None = None
    memory_usage: int | None = None
    metadata: dict[str, Any] | None = None
    parent_ids: list[str] | None = None
    child_ids: list[str] | None = None
    timestamp: float | None = None


@dataclass
class GraphEdge:
    """What leads from one node to another.

    ``data_flow``: the target reads bytes that the source made. ``gradient_flow``: the same where the source is a
    gradient operation; with ``metadata["link"]``, it leads from a forward operation to one that differentiates it.
    ``parameter``: the target reads this parameter or buffer. ``shape_flow``: the target looks at the geometry alone.
    ``containment``: the target ran inside the source. With ``metadata["level"] == "layer"``, an edge repeats for
    layers what the edges between their operations say.

    >>> GraphEdge("op_0", "op_1", "data_flow", (2, 3)).tensor_shape
    (2, 3)
    """

    source_id: str
    target_id: str
    edge_type: str
    tensor_shape: tuple[int, ...] | None = None
    metadata: dict[str, Any] | None = None


def plain(record: GraphNode | GraphEdge) -> dict[str, Any]:
    """A node or an edge as JSON data, one entry for each of its fields.

    >>> plain(GraphEdge("a", "b", "data_flow", (2, 3)))["tensor_shape"]
    [2, 3]
    """
    return {name: part if type(part) in PLAIN else to_plain(part) for name, part in vars(record).items()}


def to_plain(item: Any) -> Any:
    """The same in lists, dictionaries, strings and numbers that JSON has; NaN and infinity become strings."""
    kind = type(item)
    if kind in PLAIN or (kind is float and math.isfinite(item)):
        return item
    if kind is dict:
        return {str(key): part if type(part) in PLAIN else to_plain(part) for key, part in item.items()}
    if isinstance(item, (tuple, list)):
        return [part if type(part) in PLAIN else to_plain(part) for part in item]
    if isinstance(item, Enum):
        return item.value
    return float(item) if isinstance(item, float) and math.isfinite(item) else repr(item)
