"""A subgraph of a captured program as a graph of its own, run on shapes: what a branch that was not taken would do."""

from __future__ import annotations

import torch

from torch_vis.capture.compilers.hop_bodies import Subgraph
from torch_vis.capture.compilers.program import Stage
from torch_vis.capture.fake.run import Faking
from torch_vis.capture.session import Capture, CapturedRun
from torch_vis.errors import CaptureFailed, UsageError
from torch_vis.graph.record import Limit
from torch_vis.ops.higher_order import TABLE

SHAPES = Limit(
    "a subgraph of a captured program, worked out on shapes: no numbers were computed, and the times mean nothing",
    kind="shapes",
)


def run_on_shapes(subgraph: Subgraph) -> CapturedRun:
    """Run a subgraph by itself."""
    module = subgraph.module
    assert module is not None
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    try:
        with Faking() as faking:
            capture = Capture(keep=False, substitutes=faking.above)
            capture.inputs = [(n, i) for n, i in zip(names, subgraph.inputs) if isinstance(i, torch.Tensor)]
            capture.has_output = True
            with capture:
                player = Stage(capture).player(module)
                player.on_shapes = True
                capture.output = player.play(*subgraph.inputs)
            captured = capture.finish()
    except CaptureFailed as error:
        raise UsageError(
            f"{subgraph.name} goes its way by numbers, and a subgraph is worked out on shapes, which have none"
        ) from error
    run = captured.run
    run.meta.update(fake=True, model=subgraph.name)
    held = {str(node.target) for node in module.graph.nodes if node.op == "call_function"}
    ways = [row.without_numbers for name, row in TABLE.items() if row.without_numbers and name in held]
    run.limits += (SHAPES, *(Limit(text, kind="shapes") for text in ways))
    return captured
