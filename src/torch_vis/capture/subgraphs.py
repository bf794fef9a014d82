"""A subgraph of a captured program as a graph of its own, run on shapes: what a branch that was not taken would do."""

from __future__ import annotations

from typing import Any

import torch

from torch_vis.capture.bodies import Subgraph
from torch_vis.capture.eager import Capture
from torch_vis.capture.faking import Faking
from torch_vis.capture.program import Stage
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Metrics

SHAPES = "a subgraph of a captured program, worked out on shapes: no numbers were computed, and the times mean nothing"


def run_on_shapes(
    subgraph: Subgraph,
) -> tuple[Graph, Metrics, tuple[str, ...], dict[str, Any], Any]:
    """The graph, metrics, limits, circumstances and output of a subgraph by itself."""
    module = subgraph.module
    assert module is not None
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    with Faking() as faking:
        capture = Capture(keep=False, faking=faking)
        capture.inputs = [(n, i) for n, i in zip(names, subgraph.inputs) if isinstance(i, torch.Tensor)]
        capture.has_output = True
        with capture:
            capture.output = Stage(capture).player(module).play(*subgraph.inputs)
        graph, metrics, _, limits, meta = capture.finish()
    meta.update(fake=True, model=subgraph.name)
    return graph, metrics, (*limits, SHAPES), meta, capture.output
