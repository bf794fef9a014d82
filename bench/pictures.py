"""Pictures and files: how long each takes to make from a trace, and how large it is."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import torch_vis as tv
from bench import models
from bench.row import Row, for_information, within

MOST_S = {"plotly": 3.0, "matplotlib": 3.0, "svg": 3.0, "graphviz": 3.0}


def run(quick: bool) -> list[Row]:
    """BERT-base forward and backward drawn and written, and a time line of 100,000 operations."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    torch.set_num_threads(1)
    rounds = 1 if quick else 5
    bert, ids = models.bert(1, 128)
    trace = tv.trace(bert, ids, backward=True, hold=False)
    rows = [
        within(f"{name} figure of BERT-base", _seconds(rounds, trace.figure, name), most, "s")
        for name, most in MOST_S.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.onnx")
        rows.append(within("ONNX of BERT-base", _seconds(rounds, trace.save, path), 1, "s"))
        rows.append(within("ONNX of BERT-base, size", path.stat().st_size / 1e6, 1, "MB"))
        for ending in (".explorer.json", ".graphml", ".csv", ".md", ".dot"):
            taken = _seconds(rounds, trace.save, Path(folder, f"run{ending}"))
            rows.append(for_information(within(f"{ending} of BERT-base", taken, 1, "s")))
        chain, inputs = models.loop(10_000 if quick else 100_000)
        with torch.no_grad():
            long = tv.trace(chain, *inputs, hold=False)
        line = Path(folder, "run.perfetto.json")
        what = f"Perfetto JSON of {len(long.graph):,} operations"
        rows.append(within(what, _seconds(rounds, long.save, line), 3, "s"))
        rows.append(
            within(f"SVG of {len(long.graph):,} operations", _seconds(rounds, long.figure, "svg"), 3, "s")
        )
    return rows


def _seconds(rounds: int, make: Callable[..., object], *args: object) -> float:
    """The median of several; the first is not counted, since it loads the library that draws."""
    taken = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        make(*args)
        taken.append(time.perf_counter() - started)
    return median(taken[1:])
