"""The tracking interface: what each switch saves against tracking everything, and what everything adds to trace()."""

from __future__ import annotations

from typing import Any

import torch

import torch_vis as tv
from bench import models
from bench.row import Row, at_most, for_information
from bench.timing import Samples, Side, interleave
from torch_vis.capture.session import run_backward
from torch_vis.interfaces.tracking.tracker import (
    ComputationalGraphTracker,
    track_computational_graph_execution,
)

SWITCHES = ("track_timing", "track_memory", "track_tensor_ops")


def run(quick: bool) -> list[Row]:
    """Six figures: time added with each switch off, as a share of the time added with all on, on two models."""
    torch.set_num_threads(1)
    rounds = 5 if quick else 21
    chain, inputs = models.loop(2_000 if quick else 10_000)
    bert, ids = models.small_bert()
    rows = []
    for what, model, args in (("tiny adds", chain, inputs), ("small BERT fwd+bwd", bert, (ids,))):
        samples = compare(model, args, rounds)
        rows += [_row(f"{switch} off, {what}", samples, switch) for switch in SWITCHES]
        rows.append(for_information(_row(f"the untouched run, {what}", samples, "untouched")))
        rows.append(for_information(_row(f"trace(), {what}", samples, "trace")))
    return rows


def compare(model: torch.nn.Module, args: tuple[Any, ...], rounds: int) -> Samples:
    """The plain run and the trackers around it, with everything on and with each switch off, in turns."""

    def plain() -> Any:
        output = model(*args)
        if any(p.requires_grad for p in model.parameters()):
            run_backward(output, None)
        return output

    def tracked(**switches: bool) -> Any:
        with ComputationalGraphTracker(model, **switches) as tracker:
            plain()
        return tracker

    def off(switch: str) -> Any:
        return lambda: tracked(**{switch: False})

    def fresh() -> None:
        model.zero_grad(set_to_none=True)

    backward = any(p.requires_grad for p in model.parameters())
    runs = {
        "plain": plain,
        "all": tracked,
        **{switch: off(switch) for switch in SWITCHES},
        "untouched": lambda: track_computational_graph_execution(model, args),
        "trace": lambda: tv.trace(model, *args, backward=backward),
    }
    return interleave({name: Side(run, before=fresh, repeats=3) for name, run in runs.items()}, rounds=rounds)


def _row(what: str, samples: Samples, side: str) -> Row:
    ours, everything = samples.added(side), samples.added("all")
    best = samples.best_added(side) / samples.best_added("all")
    texts = f"+{ours * 1e3:.1f} ms", f"all on +{everything * 1e3:.1f} ms"
    return at_most(what, *texts, ours / everything, 1.0, best)
