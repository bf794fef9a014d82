"""Time added per operation: recording everything, and the whole trace(), against an empty TorchDispatchMode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_vis as tv
from bench import models
from bench.row import Row, at_most
from bench.timing import Samples, Side, interleave
from torch_vis.capture.session import Capture, run_backward

RECORDING, WHOLE = 2.5, 4.0  # the targets


class Empty(TorchDispatchMode):
    """The least a dispatch mode can do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def run(quick: bool) -> list[Row]:
    """Four figures: each target on the chain of additions and on the small BERT."""
    torch.set_num_threads(1)
    rounds = 3 if quick else 11
    chain, inputs = models.loop(10_000)
    samples = compare(chain, inputs, False, rounds)
    rows = _rows("10,000 tiny adds", samples, 10_000)
    bert, ids = models.small_bert()
    operations = len(tv.trace(bert, ids, backward=True).graph)
    samples = compare(bert, (ids,), True, rounds)
    return rows + _rows("small BERT fwd+bwd", samples, operations)


def compare(model: torch.nn.Module, args: tuple[Any, ...], backward: bool, rounds: int) -> Samples:
    """The plain run, the empty mode, the recording alone and the whole trace(), in turns."""

    def plain() -> Any:
        output = model(*args)
        if backward:
            run_backward(output, None)
        return output

    def empty() -> Any:
        with Empty():
            return plain()

    def recording() -> Any:
        with Capture(model) as capture:
            return plain(), capture

    def whole() -> Any:
        return tv.trace(model, *args, backward=backward)

    def fresh() -> None:
        model.zero_grad(set_to_none=True)

    runs: dict[str, Callable[[], Any]] = {
        "plain": plain,
        "empty": empty,
        "recording": recording,
        "whole": whole,
    }
    return interleave({name: Side(run, before=fresh, repeats=3) for name, run in runs.items()}, rounds=rounds)


def _rows(what: str, samples: Samples, operations: int) -> list[Row]:
    rows = []
    peer, best_peer = samples.added("empty"), samples.best_added("empty")
    for side, title, limit in (("recording", "recording", RECORDING), ("whole", "whole trace()", WHOLE)):
        ours = samples.added(side)
        rows.append(
            at_most(
                f"{title}, {what}",
                f"+{ours / operations * 1e6:.1f} µs/op",
                f"empty mode +{peer / operations * 1e6:.1f} µs/op",
                ours / peer,
                limit,
                samples.best_added(side) / best_peer,
            )
        )
    return rows
