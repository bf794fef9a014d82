"""trace() of real models, forward and backward, against the plain run."""

from __future__ import annotations

from typing import Any

import torch

import torch_vis as tv
from bench import models
from bench.row import Row, at_most, for_information
from bench.timing import Samples, Side, cpu, interleave, wall
from torch_vis.capture.session import run_backward

LIMIT = 1.25


def run(quick: bool) -> list[Row]:
    """Two figures in processor time on one thread, and for information the same on the wall's clock with all threads.

    The wall's clock says what a user waits for, but only on a machine that nobody else uses.
    """
    rows = []
    batch = 1 if quick else 4
    threads = torch.get_num_threads()
    makers = {"BERT-base": lambda: models.bert(batch, 128), "ResNet-50": lambda: models.resnet50(batch)}
    for name, make in makers.items():
        model, data = make()
        what = f"trace() of {name} fwd+bwd, batch {batch}"
        torch.set_num_threads(1)
        rows.append(_row(what, compare(model, data, 1 if quick else 4, cpu)))
        torch.set_num_threads(threads)
        if not quick:
            rows.append(
                for_information(
                    _row(f"  and by wall clock, {threads} threads", compare(model, data, 3, wall, warmups=0))
                )
            )
    return rows


def compare(model: torch.nn.Module, data: torch.Tensor, rounds: int, clock: Any, warmups: int = 1) -> Samples:
    """The plain run and trace(), in turns."""

    def plain() -> Any:
        output = model(data)
        run_backward(output, None)
        return output

    def fresh() -> None:
        model.zero_grad(set_to_none=True)

    sides = {
        "plain": Side(plain, before=fresh),
        "trace": Side(lambda: tv.trace(model, data, backward=True), before=fresh),
    }
    return interleave(sides, rounds=rounds, warmups=warmups, clock=clock)


def _row(what: str, samples: Samples) -> Row:
    ours, peer = f"{samples.median('trace'):.2f} s", f"plain {samples.median('plain'):.2f} s"
    ratio, best = samples.ratio("trace", "plain"), samples.best_ratio("trace", "plain")
    return at_most(what, ours, peer, ratio, LIMIT, best)
