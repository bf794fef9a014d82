"""Nested files of long runs: time per operation for ONNX and Model Explorer, 100,000 operations against 10,000."""

from __future__ import annotations

import os
import tempfile

from bench.row import Row, at_most
from bench.timing import Side, interleave
from tests.kit.graphs import synthetic
from torch_vis.exporters import model_explorer, onnx
from torch_vis.graph.run import Run

LIMIT = 1.5
WRITERS = {"ONNX": (onnx.save, "run.onnx"), "Model Explorer": (model_explorer.save, "run.explorer.json")}


def run(quick: bool) -> list[Row]:
    """One figure for each kind of file: the ratio would be 10 if the cost grew with the square."""
    small, large = (1_000, 10_000) if quick else (10_000, 100_000)
    sizes = {size: synthetic(size) for size in (small, large)}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (save, file) in WRITERS.items():
            path = os.path.join(folder, file)
            sides = {
                str(size): Side(lambda save=save, path=path, made=made: save(path, Run(*made)))
                for size, made in sizes.items()
            }
            samples = interleave(sides, rounds=3)
            each = [samples.median(str(size)) / size for size in (small, large)]
            best = [samples.best(str(size)) / size for size in (small, large)]
            rows.append(
                at_most(
                    f"{name}, time per operation at {large:,}",
                    f"{each[1] * 1e6:.0f} µs",
                    f"at {small:,}: {each[0] * 1e6:.0f} µs",
                    each[1] / each[0],
                    LIMIT,
                    best[1] / best[0],
                )
            )
    return rows
