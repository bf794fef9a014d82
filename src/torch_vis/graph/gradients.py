"""Which value of a run is whose gradient, also where it was freed or zeroed before the end."""

from __future__ import annotations

import numpy as np

from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Role

ZEROING = frozenset({"zero_", "_foreach_zero_"})  # to zero a gradient is to be done with it
ENDING = ".grad"


def gradients(graph: Graph) -> dict[str, int]:
    """For each leaf that was given a gradient, by name, the value that its ``.grad`` was last, before it was let go.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Linear(3, 1)
    >>> def step():
    ...     model(torch.ones(2, 3)).sum().backward()
    ...     model.zero_grad()
    >>> graph = tv.trace(step).graph
    >>> {name: graph.values[value].shape for name, value in gradients(graph).items()}
    {'weight': (1, 3), 'bias': (1,)}
    """
    zeroing = np.array([short_name(call.op) in ZEROING for call in graph.calls], dtype=bool)
    shapes = _leaf_shapes(graph)
    found: dict[str, int] = {}
    for value in np.flatnonzero((graph.value_role == Role.GRADIENT) & (graph.value_name >= 0)).tolist():
        name, _, part = graph.names[int(graph.value_name[value])].rpartition(ENDING)
        maker = int(graph.value_producer[value])
        if part or (maker >= 0 and zeroing[graph.node_call[maker]]):
            continue
        # a gradient's memory has other views too: a bias's is made as a sum that keeps its dimensions
        shape = graph.types[graph.value_type[value]].shape
        if shapes.get(name, shape) == shape or name not in found:
            found[name] = value
    for result in graph.outcomes:
        if result.kind == "gradient" and result.name.endswith(ENDING):
            value = result.value.index
            maker = int(graph.value_producer[value])
            if maker < 0 or not zeroing[graph.node_call[maker]]:
                found[result.name.removesuffix(ENDING)] = value
    return found


def _leaf_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    outside = (graph.value_producer < 0) & (graph.value_name >= 0) & (graph.value_role != Role.GRADIENT)
    return {
        graph.names[int(graph.value_name[value])]: graph.types[graph.value_type[value]].shape
        for value in np.flatnonzero(outside).tolist()
    }
