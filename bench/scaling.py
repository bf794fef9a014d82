"""A million operations: time per operation, memory per operation, and the file."""

from __future__ import annotations

import os
import tempfile
import tracemalloc
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from bench import child, models, process
from bench.row import Row, at_most, for_information, within
from bench.timing import Side, cpu, sample, wall

SMALL = 10_000
TIMES = 1.2
PER_OPERATION, FILE_MB, SAVE_S, LOAD_S = 250, 40, 5, 3  # the targets, the last three for a million operations


def run(quick: bool) -> list[Row]:
    """The figures without tensors held; for information, the same with them, and a program less simple."""
    big = 50_000 if quick else 1_000_000
    found = child.call("bench.scaling:measure", big=big, rounds=1 if quick else 3, keep=False, files=True)
    rows = _rows(found, big, "keep=False")
    counted = child.call("bench.scaling:count", operations=20_000 if quick else 100_000)
    rows.append(within("memory per operation, by tracemalloc", counted, PER_OPERATION, "bytes"))
    if not quick:
        held = child.call("bench.scaling:measure", big=big, rounds=1, keep=True, files=False)
        rows.extend(map(for_information, _rows(held, big, "keep=True")))
        trained = child.call("bench.scaling:train", few=30, many=500, rounds=1)
        rows.append(for_information(_training_row(**trained)))
    return rows


def _training_row(operations: list[int], few: list[float], many: list[float]) -> Row:
    peer, ours = median(few) / operations[0], median(many) / operations[1]
    return at_most(
        f"time per operation, training loop, {operations[1]:,}",
        f"{ours * 1e6:.1f} µs",
        f"{operations[0]:,} operations {peer * 1e6:.1f} µs",
        ours / peer,
        TIMES,
        min(many) / operations[1] / (min(few) / operations[0]),
    )


def _rows(found: dict[str, Any], big: int, how: str) -> list[Row]:
    name = f"{big:,} operations"
    ours, peer = median(found["big"]) / big, median(found["small"]) / SMALL
    rows = [
        at_most(
            f"time per operation, {name}, {how}",
            f"{ours * 1e6:.1f} µs",
            f"{SMALL:,} operations {peer * 1e6:.1f} µs",
            ours / peer,
            TIMES,
            min(found["big"]) / big / (min(found["small"]) / SMALL),
        ),
        within(f"columns per operation, {how}", found["columns"] / big, PER_OPERATION, "bytes"),
        within(
            f"process memory per operation, {how}",
            found["resident"] / big,
            PER_OPERATION,
            "bytes",
            f"while tracing {found['peak'] / big:,.0f} bytes",
        ),
    ]
    if found["size"]:
        share = big / 1_000_000
        rows.append(within(f".tvz of {name}: size", found["size"] / 1e6, FILE_MB * share, "MB"))
        rows.append(within("save", found["save"], SAVE_S * share, "s"))
        rows.append(within("load", found["load"], LOAD_S * share, "s"))
    return rows


def measure(big: int, rounds: int, keep: bool, files: bool) -> dict[str, Any]:
    """In a process of its own: seconds of each trace, bytes held by the first big one, and its file."""
    import torch_vis as tv

    torch.set_num_threads(1)

    def tracer(operations: int) -> Callable[[], Any]:
        model, inputs = models.loop(operations)
        return lambda: tv.trace(model, *inputs, hold=keep)

    small, large = Side(tracer(SMALL)), Side(tracer(big))
    found: dict[str, Any] = {"small": [], "big": [], "size": 0}
    sample(small)
    start = process.held()
    process.forget_peak()
    trace = large.run()
    found["peak"] = process.peak() - start
    found["resident"] = process.held() - start
    found["columns"] = trace.graph.nbytes + trace.metrics.nbytes
    if files:
        found.update(_file(trace))
    del trace
    for _ in range(rounds):
        found["small"].extend(sample(small, cpu) for _ in range(5))
        found["big"].append(sample(large, cpu))
        found["small"].extend(sample(small, cpu) for _ in range(5))
    return found


def _file(trace: Any) -> dict[str, float]:
    import torch_vis as tv

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.tvz")
        saves = [sample(Side(lambda: trace.save(path)), wall) for _ in range(3)]
        loads = [sample(Side(lambda: tv.load(path)), wall) for _ in range(3)]
        return {"size": os.path.getsize(path), "save": median(saves), "load": median(loads)}


def train(few: int, many: int, rounds: int) -> dict[str, list[float]]:
    """In a process of its own: operations and seconds of short and long training, in turns."""
    import torch_vis as tv

    torch.set_num_threads(1)
    loop = models.training_loop()
    short, long = Side(lambda: tv.trace(loop, few)), Side(lambda: tv.trace(loop, many))
    found: dict[str, list[float]] = {
        "operations": [len(short.run().graph), len(long.run().graph)],
        "few": [],
        "many": [],
    }
    for _ in range(rounds):
        found["few"].extend(sample(short) for _ in range(5))
        found["many"].append(sample(long))
        found["few"].extend(sample(short) for _ in range(5))
    return found


def count(operations: int) -> float:
    """In a process of its own: bytes per operation that a finished trace holds, as Python's allocators count them."""
    import torch_vis as tv

    model, inputs = models.loop(operations)
    tv.trace(*models.loop(100)[:1], *inputs)
    process.held()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    trace = tv.trace(model, *inputs, hold=False)
    process.held()
    after = tracemalloc.get_traced_memory()[0]
    assert len(trace.graph) == operations
    return (after - before) / operations
