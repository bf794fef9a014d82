"""Runs on shapes alone, recorded: of a whole model, or of a subgraph of a captured program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_vis.capture.compilers.interpreter import ProgramRun
from torch_vis.capture.compilers.program import Subgraph
from torch_vis.capture.fake.tensors import FakeTensors
from torch_vis.capture.session import Capture, CapturedRun, name_inputs
from torch_vis.errors import CaptureFailed, UsageError
from torch_vis.graph.record import Limit
from torch_vis.ops.higher_order import TABLE

FAKE_LIMIT = Limit(
    "shapes only: no numbers were computed, the times are those of working out shapes, and a program that looks at "
    "values before it decides (a mask of ones that is left out) may go another way than it would with them",
    kind="shapes",
)
SUBGRAPH_LIMIT = Limit(
    "a subgraph of a captured program, worked out on shapes: no numbers were computed, and the times mean nothing",
    kind="shapes",
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
) -> CapturedRun:
    """Run a model without numbers."""
    with FakeTensors() as fake:
        modules = [model] if isinstance(model, torch.nn.Module) else []
        capture = Capture(*modules, keep=False, functions=functions, substitutes=fake.above)
        capture.inputs = name_inputs(model, args, kwargs)
        capture.run(lambda: model(*args, **kwargs), backward=backward, loss=loss, partial=partial)
        captured = capture.finish()
    run = captured.run
    run.meta.update(backward=backward or loss is not None, fake=True)
    run.limits += (*fake.limits, FAKE_LIMIT)
    return captured


def run_subgraph(subgraph: Subgraph) -> CapturedRun:
    """Run a subgraph by itself: what a branch that was not taken would do."""
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
            captured = capture.finish()
    except CaptureFailed as error:
        raise UsageError(
            f"{subgraph.name} goes its way by numbers, and a subgraph is worked out on shapes, which have none"
        ) from error
    run = captured.run
    run.meta.update(fake=True, model=subgraph.name)
    called = {str(node.target) for node in module.graph.nodes if node.op == "call_function"}
    undecided = [row.without_numbers for name, row in TABLE.items() if row.without_numbers and name in called]
    run.limits += (SUBGRAPH_LIMIT, *(Limit(text, kind="shapes") for text in undecided))
    return captured
