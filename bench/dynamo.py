"""Reading a Dynamo capture into our graph, beyond the time that Dynamo itself takes."""

from __future__ import annotations

from typing import Any

import torch

import torch_vis as tv
from bench import models
from bench.row import Row, at_most
from bench.timing import Samples, Side, interleave

LIMIT = 1.10


def run(quick: bool) -> list[Row]:
    """Two figures: the first call of a compiled model whose backend does nothing, and trace(via="dynamo")."""
    torch.set_num_threads(1)
    rounds = 2 if quick else 7
    rows = []
    makers = {"small BERT": models.small_bert, "ResNet-50": lambda: models.resnet50(1)}
    for name, make in makers.items():
        model, data = make()
        samples = compare(model.eval(), data, rounds)
        ours, peer = f"{samples.median('trace'):.2f} s", f"Dynamo {samples.median('dynamo'):.2f} s"
        ratio, best = samples.ratio("trace", "dynamo"), samples.best_ratio("trace", "dynamo")
        rows.append(at_most(f"trace(via='dynamo') of {name}", ours, peer, ratio, LIMIT, best))
    return rows


def compare(model: torch.nn.Module, data: torch.Tensor, rounds: int) -> Samples:
    """Dynamo with a backend that hands the graph back as it is, and a trace through it, in turns, each from scratch."""

    def nothing(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return module.forward

    def dynamo() -> Any:
        with torch.no_grad():
            return torch.compile(model, backend=nothing)(data)

    def trace() -> Any:
        with torch.no_grad():
            return tv.trace(model, data, via="dynamo")

    reset = torch._dynamo.reset
    sides = {"dynamo": Side(dynamo, before=reset), "trace": Side(trace, before=reset)}
    return interleave(sides, rounds=rounds)
