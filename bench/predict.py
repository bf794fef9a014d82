"""DLBacktrace.predict(), with every node's inputs and outputs, against the plain model."""

from __future__ import annotations

from typing import Any

import torch

from bench import models
from bench.row import Row, at_most
from bench.timing import Samples, Side, cpu, interleave
from torch_vis import DLBacktrace

LIMIT = 1.15


def run(quick: bool) -> list[Row]:
    """Two figures in processor time on one thread: traced once, then run again and again beside the model."""
    torch.set_num_threads(1)
    batch = 1 if quick else 4
    makers = {"BERT-base": lambda: models.bert(batch, 128), "ResNet-50": lambda: models.resnet50(batch)}
    rows = []
    for name, make in makers.items():
        model, data = make()
        samples = compare(model.eval(), data, 5 if quick else 11)
        ours, peer = f"{samples.median('predict'):.2f} s", f"plain {samples.median('plain'):.2f} s"
        ratio, best = samples.ratio("predict", "plain"), samples.best_ratio("predict", "plain")
        rows.append(at_most(f"predict() of {name}, batch {batch}", ours, peer, ratio, LIMIT, best))
    return rows


def compare(model: torch.nn.Module, data: torch.Tensor, rounds: int) -> Samples:
    """The plain model without gradients, and predict() keeping every node, in turns."""
    traced = DLBacktrace(model=model, input_for_graph=(data,))

    def plain() -> Any:
        with torch.no_grad():
            return model(data)

    sides = {"plain": Side(plain), "predict": Side(lambda: traced.predict(data))}
    return interleave(sides, rounds=rounds, warmups=2, clock=cpu)
