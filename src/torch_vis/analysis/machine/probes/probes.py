"""All operations that a calibration times, in an order in which any beginning of it covers every kind."""

from __future__ import annotations

import random

from torch_vis.analysis.machine.probes import elements, images, products
from torch_vis.analysis.machine.probes.sizes import Bench, Probe

VARIED = ("matmul", "vocabulary", "bmm", "attention", "encoder", "recurrent", "convolution")
"""Families whose time depends on the kernel that a library chooses, forward and backward."""
FIRST = "vocabulary"  # few of them, and rows of odd length are four times slower: no other product tells
SIZES = (1_000, 30_000, 400_000, 3_000_000, 25_000_000)


def all_probes(bench: Bench, dtypes: tuple[str, ...], share: float = 1.0) -> list[Probe]:
    """The operations of every kind for each element type; ``share`` is how many of the usual number."""
    found: list[Probe] = []
    for dtype in dtypes:

        def some(count: int) -> int:
            return max(2, round(count * share))

        found += products.matmuls(bench, dtype, some(220))
        found += products.vocabularies(bench, dtype, some(14))
        found += products.batched(bench, dtype, some(36))
        found += products.attentions(bench, dtype, some(30))
        found += products.encoders(bench, dtype, some(14))
        found += products.recurrent(bench, dtype, some(34))
        found += images.convolutions(bench, dtype, some(110))
        found += images.normalizations(bench, dtype, some(30))
        found += elements.rows(bench, dtype, some(16))
        found += elements.optimizers(bench, dtype)
        if bench.device == "cpu" and dtype == "float32":  # on a GPU it takes seconds to load the library
            found += elements.factorizations(bench, dtype, some(5))
        for size in SIZES:
            if size <= bench.elements / 3:
                found += elements.elements(bench, dtype, round(size * bench.random.uniform(0.6, 1.6)))
                found += images.poolings(bench, dtype, size)
    # when time runs out, what is missing is missing evenly, but rather of what memory alone bounds
    drawn = random.Random(1)

    def place(probe: Probe) -> float:
        late = 0.4 if probe.family == FIRST else 1.0 if probe.family.startswith(VARIED) else 2.0
        return drawn.random() * late

    return sorted(found, key=place)
