"""Gradients from before the run: which ones the run added to, how much, and a warning for reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import ENDING, ZEROING, gradients
from torch_vis.ops.names import plain_name

if TYPE_CHECKING:
    import torch

    from torch_vis.capture.kept_tensors import KeptTensors


OVERWRITING = ZEROING | {"copy_", "fill_", "_foreach_copy_"}  # nothing is left of what was there


class Accumulated(NamedTuple):
    """A gradient from before the run: its value then, what the run added, and the operations that added it.

    ``own`` is None where that is no single value: added in several parts, or changed since (clipped, scaled).
    """

    before: int
    own: int | None
    nodes: tuple[int, ...]


def accumulated(graph: Graph) -> dict[str, Accumulated]:
    """The gradients of :func:`gradients` that hold more than this run's, by the same names.

    >>> import torch, torch_vis as tv
    >>> model, x = torch.nn.Linear(3, 1), torch.ones(2, 3)
    >>> first, second = (tv.trace(model, x, backward=True).graph for _ in range(2))
    >>> list(accumulated(first)), list(accumulated(second))
    ([], ['bias', 'weight'])
    """
    result = {}
    for name, value in gradients(graph).items():
        row = _followed(graph, value, f"{name}{ENDING}")
        if row is not None:
            result[name] = row
    return result


def _followed(graph: Graph, value: int, name: str) -> Accumulated | None:
    """Back from a gradient to what it was before the run; None where the run itself began it."""
    parts: list[int] = []
    nodes: list[int] = []
    plain = True
    while (node := int(graph.value_producer[value])) >= 0:
        read = [operand.index for operand in graph.nodes[node].inputs]
        storage = graph.value_storage[value]
        same = [operand for operand in read if graph.value_storage[operand] == storage]
        op = short_name(graph.calls[graph.node_call[node]].op)
        adds = plain_name(op) == "add" and len(read) == 2
        if not same and adds and graph.values[read[0]].name == name:
            # with create_graph=True the sum is a tensor of its own
            same = read[:1]
        if not same or op in OVERWRITING:
            return None
        value = same[0]
        if adds and read[0] == value:
            parts.append(read[1])
        elif "view" not in graph.nodes[node].flags:
            plain = False
        nodes.append(node)
    if graph.values[value].name != name or not nodes:
        return None
    return Accumulated(value, parts[0] if plain and len(parts) == 1 else None, tuple(nodes))


def filled_before(graph: Graph, kept: KeptTensors | None) -> dict[str, Accumulated]:
    """The gradients that the run added to others; those that were zero before are the run's own."""
    result = accumulated(graph)
    if not result:
        return {}
    # graphs are looked at without torch as well
    from torch_vis.analysis.gradients.tensor_stats import outside_tensors

    before = np.array(sorted({row.before for row in result.values()}), dtype=np.int64)
    empty = {value for value, tensor in outside_tensors(graph, kept, before) if _is_zero(tensor)}
    return {name: row for name, row in result.items() if row.before not in empty}


def _is_zero(tensor: torch.Tensor) -> bool:
    if tensor.is_nested or tensor.is_meta:
        return False
    return not bool((tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()).any())


def accumulation_note(accumulated: Mapping[str, Accumulated], where: str = "") -> str:
    """That ``.grad`` was not empty, which of the two is shown, and what to do."""
    mixed = sum(row.own is None for row in accumulated.values())
    shown = "what this run added is shown" if mixed < len(accumulated) else "both together are shown"
    if 0 < mixed < len(accumulated):
        shown += f", and of {mixed:,} both together"
    return (
        f"`.grad` was not empty before the run{where}: {len(accumulated):,} gradients were accumulated into what was "
        f"there; {shown}. Call zero_grad() first"
    )
