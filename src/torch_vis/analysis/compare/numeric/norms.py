"""Normalisations, and which of what they make says nothing of its own."""

from __future__ import annotations

from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph

# What gives the mean and the spread of what it read after what it made of it.
NORMS = frozenset({
    "layer_norm", "group_norm", "batch_norm", "batch_norm_legit", "batch_norm_with_update", "fused_layer_norm",
    "cudnn_batch_norm", "miopen_batch_norm",
})  # fmt: skip
MEAN = 1  # the place of the mean among these


def is_norm(graph: Graph, node: int) -> bool:
    """Whether an operation is a normalisation that keeps the mean.

    >>> import torch, torch_vis as tv
    >>> is_norm(tv.trace(torch.nn.LayerNorm(3), torch.ones(1, 3)).graph, 0)
    True
    """
    name = short_name(graph.calls[graph.node_call[node]].op).strip("_").removeprefix("native_")
    return name in NORMS
