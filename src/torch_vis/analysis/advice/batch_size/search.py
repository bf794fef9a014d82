"""Batches searched for, run and timed: what fits by prediction, what by a run, and how fast it is."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_vis.analysis.advice.batch_size.step import Fit, Sizes, Step
from torch_vis.graph.text import size
from torch_vis.progress import progress

RUNS = 5  # of which a time is the median
TRIES = 6  # batches that are run to find the largest
MOST = 1 << 20  # the largest batch that is timed


def needed(row: Fit, rows: Iterable[Fit]) -> int:
    """What a batch needs: with what tensors held, if it ran; if not, as the nearest one that ran lets expect."""
    ran = [other for other in rows if other.measured_bytes is not None]
    if row.measured_bytes is not None or not ran:
        return row.needed_bytes
    nearest = min(ran, key=lambda other: (abs(other.batch - row.batch), -other.taken))
    return math.ceil(row.predicted_bytes * nearest.taken)


def search(step: Step, sizes: Sizes, rows: dict[int, Fit], budget: float, largest: int) -> int | None:
    """Close in on the largest batch predicted to fit: by the slope of what is known, by halves where that gains little.

    It is returned; all that were looked at are in ``rows``.
    """
    unit, cap = sizes.unit, max(1, largest // sizes.unit)  # from here on all sizes are in units
    low, high = sizes.least // unit, cap + 1  # fits; does not
    tried = 0
    for batch, row in rows.items():  # an earlier search has narrowed it
        if row.predicted_bytes <= budget:
            low = max(low, batch // unit)
        else:
            high = min(high, batch // unit)
    count = min(low + 1, cap)
    while high - low > 1:
        batch = count * unit
        rows[batch] = step.fit(batch)
        tried += 1
        before = high - low
        if rows[batch].predicted_bytes <= budget:
            low = count
        else:
            high = count
        first, last = rows[min(rows)], rows[max(rows)]
        slope = unit * (last.predicted_bytes - first.predicted_bytes) / (last.batch - first.batch)
        room = (budget - rows[low * unit].predicted_bytes) / slope if slope > 0 else math.inf
        count = low + max(1, int(min(room, cap)))
        # a line through a curve that bends upwards only creeps towards where it crosses
        creeps = tried > 2 and high - low > before / 2
        if high > cap:  # by leaps, as inputs of the largest size may be more than there is memory for
            count = min(4 * low if creeps else count, cap)
        elif count >= high or creeps:
            count = (low + high) // 2
    return max((batch for batch, row in rows.items() if row.predicted_bytes <= budget), default=None)


def prove(
    step: Step, sizes: Sizes, rows: dict[int, Fit], budget: int, largest: int, room: int, notes: list[str]
) -> None:
    """Run a copy of the module with the largest batch that fits, and then with what does by that run: more, or less."""
    taken, tries = 1.0, 0
    while True:
        wanted = search(step, sizes, rows, budget / taken, largest) or sizes.least
        ran = [row for row in rows.values() if row.measured_bytes is not None]
        over = min((row.batch for row in ran if row.needed_bytes > budget), default=math.inf)
        fits = max((row.batch for row in ran if row.needed_bytes <= budget), default=0)
        wanted = int(min(wanted, over - sizes.unit))
        if wanted <= fits or wanted < sizes.least:
            return
        rows.setdefault(wanted, step.fit(wanted))
        if rows[wanted].predicted_bytes * taken * 2 > room:
            notes.append(f"a batch of {wanted:,} was not run: this machine has {size(room)} to spare")
            return
        if tries == TRIES:
            notes.append(f"a batch of {wanted:,} may fit by what ran; {TRIES} were run, and it was not")
            return
        tries += 1
        measured = step.traced(wanted, model=copy.deepcopy(step.model)).memory().peak_bytes
        rows[wanted] = rows[wanted]._replace(measured_bytes=measured)
        taken = rows[wanted].taken


def take_times(step: Step, sizes: Sizes, rows: dict[int, Fit], most: int, room: int) -> None:
    """Time batches of twice the size each up to ``most``, as long as there is room and it pays."""
    model: Any = copy.deepcopy(step.model)
    best, flat = 0.0, 0
    chosen = [sizes.unit << power for power in range(MOST.bit_length())]
    for batch in progress([batch for batch in chosen if sizes.least <= batch <= most], "throughput"):
        row = rows.get(batch) or step.fit(batch)
        if row.predicted_bytes * 2 > room or flat >= 2:
            break
        spent = _timed(step, model, batch)
        pace = batch / (spent / 1e9)
        flat = flat + 1 if pace < best * 1.05 else 0
        best = max(best, pace)
        rows[batch] = row._replace(time_ns=spent, per_second=pace)


def _timed(step: Step, model: Any, batch: int) -> int:
    """The median time of a run, device work included."""
    spent = []
    for turn in range(RUNS + 1):
        if isinstance(model, torch.nn.Module):
            model.zero_grad(set_to_none=True)
        begun = time.perf_counter_ns()
        step.run(model, batch)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if turn:
            spent.append(time.perf_counter_ns() - begun)
    return round(statistics.median(spent))


def free_bytes(step: Step) -> int:
    """What this machine can still give."""
    tensors = [
        leaf for leaf in pytree.tree_leaves((step.args, step.kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    if any(tensor.is_cuda for tensor in tensors):
        return torch.cuda.mem_get_info()[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 2 * 1024**3  # not known: enough for a small run, no more
