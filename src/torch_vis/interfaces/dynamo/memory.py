"""Memory over the course of an fx graph, from the lifetimes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.capture.compilers.program import is_state
from torch_vis.errors import UsageError

# Methods and functions that never copy, for graphs whose tensors have no storage to tell.
VIEWS = frozenset(
    "detach diagonal expand expand_as movedim narrow permute select squeeze swapaxes t transpose unfold unsqueeze view "
    "view_as".split()
)


class MemoryPoint(NamedTuple):
    """The memory that tensors hold while one node runs; None where a size is not known."""

    index: int  # type: ignore[assignment]  # the documented name, though tuples have a method of it
    name: str
    size_bytes: int | None


class MemoryBlock(NamedTuple):
    """A block of memory that a node's value lies in."""

    key: object
    size_bytes: int | None


def analyze_memory_timeline(graph: fx.Graph) -> list[MemoryPoint]:
    """The bytes that are live while each node of a graph runs: what it reads, what it makes, and what waits for others.

    Sizes follow the element type; views lie in the memory of what they view and add nothing. A block lives from the
    node that makes it to the last node that reads it or a view of it. Inputs belong to the caller and live throughout,
    outputs to the end. Parameters and buffers are left out: they are there before and after (see ``weight_bytes``).

    >>> import torch
    >>> from torch_vis import analyze_memory_timeline, trace_model_with_dynamo
    >>> extractor = trace_model_with_dynamo(torch.nn.Linear(8, 2), torch.ones(4, 8))
    >>> [tuple(point) for point in analyze_memory_timeline(extractor.graph_modules[0].graph)][-2:]
    [(3, 'linear', 160), (4, 'output', 160)]
    """
    graph = getattr(graph, "graph", graph)
    if not isinstance(graph, fx.Graph):
        raise UsageError(f"analyze_memory_timeline() takes a torch.fx.Graph, not {type(graph).__name__}")
    nodes = list(graph.nodes)
    number_of = {node: number for number, node in enumerate(nodes)}
    blocks = _blocks(nodes)
    weights = {block.key for node in nodes if is_weight(node) for block in blocks[node]}
    first: dict[object, int] = {}
    last: dict[object, int] = {}
    size: dict[object, int | None] = {}
    for number, node in enumerate(nodes):
        end = max([number, *(number_of[user] for user in node.users)])
        if node.op == "placeholder":
            end = len(nodes) - 1
        for block in blocks[node]:
            if block.key not in weights:
                first.setdefault(block.key, number)
                last[block.key] = max(last.get(block.key, 0), end)
                size.setdefault(block.key, block.size_bytes)
    return _timeline(nodes, first, last, size)


def is_last_use(node: fx.Node, graph: fx.Graph, user: fx.Node) -> bool:
    """Whether ``user`` is the last node of the graph that reads what ``node`` makes.

    >>> import torch
    >>> from torch_vis import is_last_use
    >>> graph = torch.fx.symbolic_trace(lambda x: (x + 1) * x).graph
    >>> x, plus, times, out = graph.nodes
    >>> is_last_use(plus, graph, times), is_last_use(x, graph, plus)
    (True, False)
    """
    number_of = {other: number for number, other in enumerate(graph.nodes)}
    return user in node.users and all(number_of[other] <= number_of[user] for other in node.users)


def get_tensor_size(tensor: Any) -> int | None:
    """The bytes of a tensor, or of what ``node.meta["tensor_meta"]`` says of one; None where a size is not known.

    >>> import torch
    >>> from torch_vis import get_tensor_size
    >>> get_tensor_size(torch.ones(2, 3, dtype=torch.float16))
    12
    """
    return nbytes([hint(size) for size in tensor.shape], tensor.dtype)


def weight_bytes(graph: fx.Graph) -> int | None:
    """The bytes of the parameters, buffers and constants that a graph uses; None if one is not known."""
    nodes = list(graph.nodes)
    blocks = _blocks(nodes)
    sizes = dict(block for node in nodes if is_weight(node) for block in blocks[node])
    return total(sizes.values())


def _timeline(nodes: list[fx.Node], first: Any, last: Any, size: Any) -> list[MemoryPoint]:
    change = np.zeros(len(nodes) + 1, dtype=np.int64)
    unknown = np.zeros(len(nodes) + 1, dtype=np.int64)
    for key, start in first.items():
        column, amount = (unknown, 1) if size[key] is None else (change, size[key])
        column[start] += amount
        column[last[key] + 1] -= amount
    live, missing = np.cumsum(change).tolist(), np.cumsum(unknown).tolist()
    return [
        MemoryPoint(number, node.name, None if missing[number] else live[number])
        for number, node in enumerate(nodes)
    ]


def total(amounts: Iterable[int | None]) -> int | None:
    """A sum; None if one of the amounts is not known."""
    known = list(amounts)
    return None if None in known else sum(amount for amount in known if amount is not None)


def is_weight(node: fx.Node) -> bool:
    """Whether a node stands for a parameter, buffer or constant."""
    return node.op == "get_attr" or (node.op == "placeholder" and is_state(node))


def _blocks(nodes: list[fx.Node]) -> dict[fx.Node, list[MemoryBlock]]:
    """For every node, the memory that the tensors it makes lie in."""
    blocks: dict[fx.Node, list[MemoryBlock]] = {}
    is_known = False
    for node in nodes:
        blocks[node] = [] if node.op == "output" else list(_blocks_of(node, blocks))
        computes = node.op != "get_attr"
        is_known = is_known or any(computes and block.size_bytes is not None for block in blocks[node])
    if not is_known and any(node.op.startswith("call_") for node in nodes):
        raise UsageError(
            "the nodes of this graph have no tensor metadata; take it from trace_model_with_dynamo(), or run "
            "torch.fx.passes.shape_prop.ShapeProp over it"
        )
    return blocks


def _blocks_of(node: fx.Node, before: dict[fx.Node, list[MemoryBlock]]) -> Iterator[MemoryBlock]:
    known = node.meta.get("example_value", node.meta.get("val"))
    if known is None and node.op == "get_attr":
        known = _attribute(node)
    if known is not None:
        for tensor in pytree.tree_leaves(known):
            if isinstance(tensor, torch.Tensor):
                yield _block(tensor, node)
        return
    shaped = node.meta.get("tensor_meta")
    if shaped is None and node.op != "get_attr" and not {"example_value", "val"} & node.meta.keys():
        yield MemoryBlock(node.name, None)  # nothing says what it makes
        return
    if shaped is not None and _is_view(node):
        yield from before.get(next(iter(node.all_input_nodes), node), ())
        return
    metas = [shaped] if hasattr(shaped, "dtype") else shaped or ()
    for number, meta in enumerate(metas):
        sizes = [hint(size) for size in meta.shape]
        yield MemoryBlock((node.name, number), nbytes(sizes, meta.dtype))


def _block(tensor: torch.Tensor, node: fx.Node) -> MemoryBlock:
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return MemoryBlock(node.name, None)  # sparse or nested: no plain memory
    return MemoryBlock(storage._cdata, hint(storage.nbytes()))


def _attribute(node: fx.Node) -> Any:
    item: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        item = getattr(item, part, None)
    return item if isinstance(item, torch.Tensor) else None


def _is_view(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.is_view
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op != "call_module" and name in VIEWS


def nbytes(sizes: Any, dtype: torch.dtype) -> int | None:
    """Bytes of a tensor of these sizes; None if one is not known."""
    return None if any(size is None for size in sizes) else math.prod(sizes) * dtype.itemsize


def hint(size: Any) -> int | None:
    """A size of the run that was captured: of an open one, what it was; None where that depends on data."""
    if isinstance(size, int):
        return size
    known = getattr(getattr(size, "node", None), "hint", None)
    return None if known is None else int(known)
