"""Runs on shapes alone, recorded: of a whole model, or of a subgraph of a captured program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_vis.capture.compilers.interpreter import ProgramRun
from torch_vis.capture.compilers.program import Subgraph
from torch_vis.capture.fake.tensors import FakeTensors
from torch_vis.capture.session import Capture, name_inputs
from torch_vis.errors import CaptureFailed, UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.metrics import Metrics
from torch_vis.ops.higher_order import TABLE

FAKE_LIMIT = (
    "shapes only: no numbers were computed, the times are those of working out shapes, and a program that looks at "
    "values before it decides (a mask of ones that is left out) may go another way than it would with them"
)
SUBGRAPH_LIMIT = (
    "a subgraph of a captured program, worked out on shapes: no numbers were computed, "
    "and the times mean nothing"
)


def fake_run(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backward: bool,
    loss: Callable[[Any], Any] | None,
    *,
    functions: bool = False,
    partial: bool = False,
) -> tuple[Graph, Metrics, tuple[str, ...], dict[str, Any], Any, BaseException | None]:
    """Run a model without numbers: the graph, metrics, limits, circumstances, output, and what ended it early."""
    with FakeTensors() as fake:
        modules = [model] if isinstance(model, torch.nn.Module) else []
        capture = Capture(*modules, keep=False, functions=functions, substitutes=fake.above)
        capture.inputs = name_inputs(model, args, kwargs)
        error = capture.run(lambda: model(*args, **kwargs), backward=backward, loss=loss, partial=partial)
        graph, metrics, _, limits, meta = capture.finish()
    meta.update(backward=backward or loss is not None, fake=True)
    limits = (*limits, *fake.limits, FAKE_LIMIT)
    return graph, metrics, limits, meta, capture.output, error


def run_subgraph(subgraph: Subgraph) -> tuple[Graph, Metrics, tuple[str, ...], dict[str, Any], Any]:
    """Run a subgraph by itself: what a branch that was not taken would do.

    The graph, metrics, limits, circumstances and output.
    """
    module = subgraph.module
    assert module is not None
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    try:
        with FakeTensors() as fake:
            capture = Capture(keep=False, substitutes=fake.above)
            capture.inputs = [(n, i) for n, i in zip(names, subgraph.inputs) if isinstance(i, torch.Tensor)]
            capture.has_output = True
            with capture:
                capture.output = ProgramRun(capture, on_shapes=True).interpret(module, *subgraph.inputs)
            graph, metrics, _, limits, meta = capture.finish()
    except CaptureFailed as error:
        raise UsageError(
            f"{subgraph.name} goes its way by numbers, and a subgraph is worked out on shapes, which have none"
        ) from error
    meta.update(fake=True, model=subgraph.name)
    called = {str(node.target) for node in module.graph.nodes if node.op == "call_function"}
    undecided = [row.without_numbers for name, row in TABLE.items() if row.without_numbers and name in called]
    return graph, metrics, (*limits, SUBGRAPH_LIMIT, *undecided), meta, capture.output
