"""Parameters of a model that its run did not touch, which a graph of the run does not have."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from torch_vis.capture.containers import named_tensors
from torch_vis.graph import Graph
from torch_vis.graph.schema import Role


def unused(graph: Graph, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, int]:
    """By the path of the module that holds them, how many elements no operation of the run read or wrote."""
    outside = (graph.value_role == Role.PARAMETER) & (graph.value_producer < 0) & (graph.value_name >= 0)
    used = {graph.names[name] for name in np.unique(graph.value_name[outside]).tolist()}
    found: dict[str, int] = {}
    for name, parameter in parameters:
        if name in used or isinstance(parameter, torch.nn.UninitializedParameter):
            continue
        if used.isdisjoint(
            part for part, _ in named_tensors(parameter, name)
        ):  # a wrapper is known by its parts
            path = name.rpartition(".")[0]
            found[path] = found.get(path, 0) + parameter.numel()
    return found
