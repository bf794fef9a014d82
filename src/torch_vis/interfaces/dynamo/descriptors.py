"""The descriptor form of captured graphs: operations and their tensors as plain records, for other pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from torch_vis.capture.compilers.interpreter import target_name
from torch_vis.interfaces.dynamo.memory import hint, is_weight, nbytes, total

if TYPE_CHECKING:
    from torch_vis._trace import Trace
    from torch_vis.graph.graph import Graph

COSTS = ("flops", "macs", "moved_bytes")


@dataclass(frozen=True)
class TensorDescriptor:
    """One tensor: its node's name, its shape, its element type, and the bytes of its elements.

    A size that the program leaves open is what it was in the captured run, and None if it depends on data.

    >>> import torch
    >>> TensorDescriptor(name="x", shape=(2, 3), dtype=torch.float16).nbytes
    12
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: torch.dtype
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.nbytes is None:
            object.__setattr__(self, "nbytes", nbytes(self.shape, self.dtype))


@dataclass(frozen=True)
class SubgraphDescriptor:
    """Operations, what goes in and out of them, the weights they use, and what they cost; a cost not known is None.

    >>> SubgraphDescriptor(operations=["conv2d"], input_tensors=[], output_tensors=[]).flops is None
    True
    """

    operations: Sequence[str]
    input_tensors: Sequence[TensorDescriptor]
    output_tensors: Sequence[TensorDescriptor]
    weights: Sequence[TensorDescriptor] = ()
    name: str = ""
    partition: int = 0
    flops: int | None = None
    macs: int | None = None
    moved_bytes: int | None = None


def describe_nodes(modules: Sequence[fx.GraphModule], trace: Trace | None) -> list[SubgraphDescriptor]:
    """One descriptor for each node that computes something, partition after partition."""
    rows = []
    for number, module in enumerate(modules):
        nodes = computing(module)
        costs = node_costs(trace, number, nodes)
        rows += [_descriptor([node], number, node.name, cost) for node, cost in zip(nodes, costs)]
    return rows


def describe_partitions(modules: Sequence[fx.GraphModule], trace: Trace | None) -> list[SubgraphDescriptor]:
    """One descriptor for each partition."""
    rows = []
    for number, module in enumerate(modules):
        nodes = computing(module)
        costs = node_costs(trace, number, nodes)
        whole = tuple(total(cost[column] for cost in costs) for column in range(len(COSTS)))
        rows.append(_descriptor(nodes, number, f"partition {number}", whole))
    return rows


def computing(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes of a graph that call something."""
    return [node for node in module.graph.nodes if node.op.startswith("call_")]


def _descriptor(nodes: list[fx.Node], number: int, name: str, cost: tuple[Any, ...]) -> SubgraphDescriptor:
    inside = set(nodes)
    sources = dict.fromkeys(
        source for node in nodes for source in node.all_input_nodes if source not in inside
    )
    leaving = [node for node in nodes if any(user not in inside for user in node.users) or not node.users]
    weights = [source for source in sources if is_weight(source)]
    return SubgraphDescriptor(
        operations=tuple(target_name(node) for node in nodes),
        input_tensors=tuple(t for s in sources if not is_weight(s) for t in tensors_of(s)),
        output_tensors=tuple(tensor for node in leaving for tensor in tensors_of(node)),
        weights=tuple(tensor for source in weights for tensor in tensors_of(source)),
        name=name,
        partition=number,
        flops=cost[0],
        macs=cost[1],
        moved_bytes=cost[2],
    )


def tensors_of(node: fx.Node) -> list[TensorDescriptor]:
    """The tensors that a node stands for: none, one, or several (``name.0``, ``name.1``)."""
    known = node.meta.get("example_value", node.meta.get("val", node.meta.get("tensor_meta")))
    if hasattr(known, "dtype"):
        return [_tensor(node.name, known)]
    parts = known if isinstance(known, (tuple, list)) else ()
    return [_tensor(f"{node.name}.{i}", part) for i, part in enumerate(parts) if hasattr(part, "dtype")]


def _tensor(name: str, known: Any) -> TensorDescriptor:
    return TensorDescriptor(name, tuple(hint(size) for size in known.shape), known.dtype)


# ---------------------------------------------------------------- costs, from the trace


def node_costs(trace: Trace | None, number: int, nodes: list[fx.Node]) -> list[tuple[Any, ...]]:
    """FLOPs, MACs and bytes moved of a partition's nodes: those of the operations that each of them ran."""
    unknown: list[tuple[Any, ...]] = [(None,) * len(COSTS)] * len(nodes)
    if trace is None:
        return unknown
    scopes = function_scopes(trace.graph, f"partition {number}")
    indices = _matched(trace.graph, scopes, nodes)
    if indices is None:
        return unknown  # it never ran, or not node by node
    owner = _owners(trace.graph, scopes, indices)[trace.graph.node_scope]
    sums = []
    for name in COSTS:
        column = trace.metrics[name]
        chosen = (owner >= 0) & (trace.graph.node_phase == 0)
        known = np.ones(len(column), dtype=bool) if column.known is None else column.known
        amounts = np.bincount(owner[chosen & known], column.values[chosen & known], minlength=len(nodes))
        missing = np.bincount(owner[chosen & ~known], minlength=len(nodes))
        sums.append([None if lost else int(amount) for amount, lost in zip(amounts, missing)])
    return list(zip(*sums))


def function_scopes(graph: Graph, partition: str) -> list[int]:
    """The scopes of a partition's nodes in the order in which they ran, in the first call of the partition."""
    kinds = [module.kind for module in graph.modules]
    started = -1
    inside: set[int] = set()
    scopes = []
    for scope, (module, parent) in enumerate(zip(graph.scope_module.tolist(), graph.scope_parent.tolist())):
        if started < 0 and kinds[module] == "compiled" and graph.modules[module].path == partition:
            started = scope
            inside.add(scope)
        elif parent in inside:
            if kinds[module] == "function":
                scopes.append(scope)  # what a node runs inside itself belongs to the node
            else:
                inside.add(scope)
    return scopes


def _matched(graph: Graph, scopes: list[int], nodes: list[fx.Node]) -> list[int] | None:
    """The index of each scope's node; a node that only makes views has no scope. None where they do not fit."""
    if not scopes:
        return None
    indices: list[int] = []
    for index, node in enumerate(nodes):
        if len(indices) < len(scopes):
            scope = graph.scopes[scopes[len(indices)]]
            if scope.type == target_name(node) and node.name.startswith(scope.path):
                indices.append(index)
    return indices if len(indices) == len(scopes) else None


def _owners(graph: Graph, scopes: list[int], indices: list[int]) -> Any:
    """For every scope, the index that belongs to the one of the given scopes that it lies in, -1 for none."""
    owner = np.full(len(graph.scope_parent), -1, dtype=np.int64)
    owner[scopes] = indices
    nearest = graph.tree.nearest(owner >= 0)
    return np.where(nearest >= 0, owner[nearest], -1)
