"""Every analysis of a trace of 100,000 operations, each once on a graph that nothing has been asked of before.

The run is a training loop with modules, forward, backward and optimizer. The peer of each row is the same analysis of
a tenth as many operations, by which it must not take more per operation.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.models import training_loop
from bench.row import Row, at_most, within

LIMIT = 5.0  # seconds, all together
LINEAR = 1.5  # times per operation, against a tenth


def run(quick: bool) -> list[Row]:
    """Seconds of each analysis at both sizes, and of all together."""
    torch.set_num_threads(1)
    large = 10_000 if quick else 100_000
    traces = {operations: _trace(operations) for operations in (large // 10, large)}
    spent = {operations: _spent(trace) for operations, trace in traces.items()}
    few, many = (len(trace.graph) for trace in traces.values())
    rows = []
    for name, seconds in spent[large].items():
        before = spent[large // 10][name]
        ratio = (seconds / many) / (before / few)
        rows.append(
            at_most(
                f"{name}, {many:,} operations",
                f"{seconds:.2f} s",
                f"{before:.3f} s of {few:,}",
                ratio,
                LINEAR,
            )
        )
    total = sum(spent[large].values())
    return [*rows, within(f"all analyses of {many:,} operations", total, LIMIT, "s")]


def _trace(operations: int) -> Any:
    import torch_vis as tv

    train = training_loop()
    once = len(tv.trace(train, 1, hold=False).graph)
    found = tv.trace(train, max(1, round(operations / once)), hold=False)
    # as read from a file: nothing worked out yet
    return found


def _spent(trace: Any) -> dict[str, float]:
    import torch_vis as tv

    analyses: dict[str, Callable[[], Any]] = {
        "costs": lambda: trace.metrics["flops"],
        "summary": lambda: trace.summary().modules,
        "memory": lambda: (trace.memory().peak, trace.memory().by_module, trace.memory().checkpoints),
        "time": lambda: trace.time().listings(),
        "roofline": lambda: trace.roofline("A100").listings(),
        "latency": lambda: trace.latency(hardware="A100").total_ns,
        "fusion": lambda: trace.fusion().listings(),
        "partition": lambda: trace.partition().listings(),
        "compare": lambda: tv.compare(trace, trace).same,
    }
    found = {}
    for name, analyse in analyses.items():
        gc.collect()
        started = time.process_time()
        analyse()
        found[name] = time.process_time() - started
    return found
