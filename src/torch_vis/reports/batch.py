"""How large a batch can be: what fits a memory, predicted from shapes and proved by running, and what still pays."""

from __future__ import annotations

import copy
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_vis.analysis.hardware import find_hardware
from torch_vis.capture.eager import run_backward
from torch_vis.capture.progress import progress
from torch_vis.errors import NoMatch, UsageError
from torch_vis.reports.report import Report
from torch_vis.tracing import trace
from torch_vis.views.charts import Axis, Chart, Series
from torch_vis.views.tables import Field, Listing
from torch_vis.views.units import duration, size

LARGEST = 1 << 20
KNEE = 0.9  # of the best throughput
RUNS = 5
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
         "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip


class Fit(NamedTuple):
    """One batch size: the peak predicted from shapes, and what a run of it measured; None where it was not run.

    ``predicted_bytes`` is what the allocator gives out or, on CUDA, holds: tensors, kernel scratch, rounding.
    ``tensor_bytes`` is what tensors hold of it, and ``measured_bytes`` what they held when it ran.
    """

    batch: int
    predicted_bytes: int
    tensor_bytes: int
    measured_bytes: int | None = None
    time_ns: int | None = None
    per_second: float | None = None


class BatchSize(Report):
    """Batch sizes, their memory and their pace."""

    title = "Batch size"

    def __init__(self, rows: list[Fit], budget: int | None, sample: int, cap: int, notes: list[str]) -> None:
        self.rows = rows
        self.cap = cap
        self.budget = budget
        self.sample = sample
        self._notes = notes

    @property
    def largest(self) -> int | None:
        """The largest batch that fits the memory; None without a memory to fit."""
        return max((row.batch for row in self.rows if self._fits(row)), default=None)

    def _fits(self, row: Fit) -> bool:
        return self.budget is not None and row.predicted_bytes <= self.budget

    @property
    def per_sample_bytes(self) -> float:
        """What one sample more takes, at the largest batch that fits or else the largest that was looked at."""
        chosen = [row.batch for row in self.rows].index(self.largest) if self.largest else len(self.rows) - 1
        at = max(1, min(chosen + 1, len(self.rows) - 1))
        first, last = self.rows[at - 1], self.rows[min(at, len(self.rows) - 1)]
        return (last.predicted_bytes - first.predicted_bytes) / max(1, last.batch - first.batch)

    @property
    def knee(self) -> int | None:
        """The smallest batch with 90 % of the best throughput; None where it still grows, or nothing was timed."""
        timed = [row for row in self.rows if row.per_second]
        best = max((row.per_second or 0.0 for row in timed), default=0.0)
        found = next((row.batch for row in timed if (row.per_second or 0.0) >= KNEE * best), None)
        return found if timed and found != timed[-1].batch else None

    def facts(self) -> dict[str, str]:
        found = {"per sample": size(round(self.per_sample_bytes))}
        if self.budget is not None:
            fits = next(row for row in self.rows if row.batch == self.largest)
            share = fits.predicted_bytes / self.budget
            found["largest"] = (
                f"{self.largest:,} in {size(self.budget)}: {size(fits.predicted_bytes)} predicted ({share:.0%})"
            )
            if fits.measured_bytes is not None:
                found["proved"] = (
                    f"it ran: tensors held {size(fits.measured_bytes)}, predicted {size(fits.tensor_bytes)}"
                )
            if fits.batch == self.cap:
                found["largest"] += f"; larger ones were not looked at (largest={self.cap:,})"
        timed = [row for row in self.rows if row.per_second]
        if self.knee is not None:
            found["knee"] = f"{self.knee:,}: 90 % of the best throughput; larger batches bring little more"
        elif timed:
            found["knee"] = f"not reached: throughput still grows at {timed[-1].batch:,}, the largest timed"
        return found

    def listings(self) -> list[Listing]:
        fields = (
            Field("batch", "batch", "{:,}".format),
            Field("predicted_bytes", "predicted", size),
            Field("tensor_bytes", "of it tensors", size),
            Field("measured_bytes", "measured", size),
            Field("time_ns", "time", duration),
            Field("per_second", "samples/s", "{:,.1f}".format),
        )
        return [Listing("Batch sizes", fields, self.rows)]

    def notes(self) -> list[str]:
        return self._notes

    def charts(self) -> dict[str, Chart]:
        batches = [row.batch for row in self.rows]
        memory = Series("predicted peak", batches, [row.predicted_bytes for row in self.rows])
        guides = []
        if self.budget is not None:
            guides = [Series(f"to fit: {size(self.budget)}", [batches[0], batches[-1]], [self.budget] * 2)]
        found = {
            "memory": Chart(
                "lines",
                "Memory by batch size",
                Axis("batch size", "count"),
                Axis("peak memory", "bytes"),
                [memory],
                guides,
            )
        }
        timed = [row for row in self.rows if row.per_second]
        if timed:
            pace = Series(
                "throughput", [row.batch for row in timed], [row.per_second or 0.0 for row in timed]
            )
            axes = Axis("batch size", "count", log=True), Axis("samples per second")
            guides = []
            if self.knee is not None:
                best = max(pace.y)
                guides = [Series("90 % of the best", [pace.x[0], pace.x[-1]], [KNEE * best] * 2)]
            found["throughput"] = Chart("lines", "Throughput by batch size", *axes, [pace], guides)
        return found


def analyze_batch_size(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    memory: int | str | None = None,
    backward: bool = False,
    loss: Callable[[Any], Any] | None = None,
    measure: bool = True,
    largest: int = LARGEST,
) -> BatchSize:
    """Find the largest batch whose run fits a memory, and the batch beyond which throughput hardly grows.

    ``args`` and ``kwargs`` are a sample batch: what has the batch in its first dimension is repeated or cut to other
    sizes. ``memory`` is bytes, a text like ``"16 GiB"`` or hardware like ``"A100"``; without it, only throughput is
    looked at. Peaks are predicted from shapes alone, without running. With ``measure``, a copy of the module is then
    run with the largest batch, where this machine has room for it, and timed with 1, 2, 4, … samples. A plain
    callable is not run: it may change things of its own.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Linear(256, 256)
    >>> found = tv.analyze_batch_size(model, torch.ones(4, 256), memory="1 MiB", measure=False)
    >>> found.largest, found.per_sample_bytes
    (383, 2048.0)
    """
    named = dict(kwargs or {})
    sample = _batch_of((args, named))
    budget = None if memory is None else budget_bytes(memory)
    step = _Step(model, args, named, sample, backward, loss)
    notes: list[str] = []
    rows = {1: step.fit(1)}
    if budget is not None:
        if rows[1].predicted_bytes > budget:
            raise UsageError(
                f"nothing fits in {size(budget)}: a batch of 1 takes {size(rows[1].predicted_bytes)}; give more "
                "memory, or look at t.memory() for what takes it"
            )
        _search(step, rows, budget, largest)
    if measure and not isinstance(model, torch.nn.Module):
        notes.append(
            "not run: a plain callable may change things of its own; pass the module to have it timed"
        )
    elif measure:
        with torch.random.fork_rng():
            _measure(step, rows, budget, notes)
    notes.append(
        "predicted: what the allocator gives out for tensors and kernels, an estimate; see t.memory()"
    )
    return BatchSize([rows[batch] for batch in sorted(rows)], budget, sample, largest, notes)


def budget_bytes(memory: int | str) -> int:
    """A number of bytes from a number, a text, or the name of hardware.

    >>> budget_bytes("1.5 GiB"), budget_bytes("80GB"), budget_bytes(1024), budget_bytes("T4")
    (1610612736, 80000000000, 1024, 16000000000)
    """
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?i?)b?\s*", str(memory).lower())
    if not found or found[2] not in UNITS or found[1].count(".") > 1:
        try:
            return find_hardware(str(memory)).memory_bytes
        except NoMatch as error:
            raise UsageError(
                f"memory is a number of bytes, a text like '16 GiB' or the name of hardware, not {memory!r} ({error})"
            ) from error
    return int(float(found[1]) * UNITS[found[2]])


class _Step:
    """A run with a batch of any size."""

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sample: int,
        backward: bool,
        loss: Callable[[Any], Any] | None,
    ) -> None:
        self.model, self.args, self.kwargs, self.sample = model, args, kwargs, sample
        self.backward, self.loss = backward, loss

    def inputs(self, batch: int, *, fake: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The sample's tensors with another number of rows; on ``fake``, rows that are all the same memory."""

        def resized(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.dim() or leaf.shape[0] != self.sample:
                return leaf
            rows = torch.arange(batch, device=leaf.device) % self.sample
            with torch.no_grad():
                made = leaf.detach().index_select(0, rows) if not fake else _hollow(leaf, batch)
            return made.requires_grad_(leaf.requires_grad)

        return pytree.tree_map(resized, (self.args, self.kwargs))

    def fit(self, batch: int) -> Fit:
        """The peak that is predicted for a batch size."""
        args, kwargs = self.inputs(batch, fake=True)
        found = trace(
            self.model, *args, kwargs=kwargs, backward=self.backward, loss=self.loss, fake=True, keep=False
        )
        memory = found.memory()
        cuda = sum(device.reserved_bytes for device in memory.cuda)
        return Fit(batch, cuda or memory.allocator_peak_bytes, memory.peak_bytes)

    def run(self, model: Callable[..., Any], batch: int) -> None:
        """Run it for real."""
        args, kwargs = self.inputs(batch)
        output = model(*args, **kwargs)
        if self.backward or self.loss is not None:
            run_backward(output, self.loss)


def _hollow(leaf: torch.Tensor, batch: int) -> torch.Tensor:
    """A tensor of the size that is wanted; its contents are never looked at."""
    return torch.empty((batch, *leaf.shape[1:]), dtype=leaf.dtype, device=leaf.device)


def _batch_of(inputs: Any) -> int:
    """The number of rows of the first input that has any."""
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0]:
            return leaf.shape[0]
    raise UsageError(
        "none of the inputs is a tensor with a first dimension; pass a sample batch as for trace()"
    )


def _search(step: _Step, rows: dict[int, Fit], budget: int, largest: int) -> None:
    """Close in on the largest batch that fits: by the slope of what is known, by halves where that gains too little."""
    low, high = 1, largest + 1  # fits; does not
    batch = min(2, largest)
    while high - low > 1:
        rows[batch] = step.fit(batch)
        before = high - low
        if rows[batch].predicted_bytes <= budget:
            low = batch
        else:
            high = batch
        first, last = rows[1], rows[max(rows)]
        slope = (last.predicted_bytes - first.predicted_bytes) / (last.batch - first.batch)
        room = (budget - rows[low].predicted_bytes) / slope if slope > 0 else math.inf
        batch = low + max(1, int(min(room, largest)))
        # a line through a curve that bends upwards only creeps towards where it crosses
        creeps = len(rows) > 3 and high - low > before / 2
        if batch >= high or creeps:
            batch = (low + high) // 2 if high <= largest else largest


def _measure(step: _Step, rows: dict[int, Fit], budget: int | None, notes: list[str]) -> None:
    """Run a copy of the module with the largest batch, and time smaller ones."""
    room = _free_bytes(step)
    wanted = max(
        rows, key=lambda batch: batch if budget is None or rows[batch].predicted_bytes <= budget else 0
    )
    if budget is not None:
        if rows[wanted].predicted_bytes * 2 < room:
            args, kwargs = step.inputs(wanted)
            ran = trace(
                copy.deepcopy(step.model),
                *args,
                kwargs=kwargs,
                backward=step.backward,
                loss=step.loss,
                keep=False,
            )
            rows[wanted] = rows[wanted]._replace(measured_bytes=ran.memory().peak_bytes)
        else:
            notes.append(f"a batch of {wanted:,} was not run: this machine has {size(room)} to spare")
    sizes = [1 << power for power in range(21) if budget is None or 1 << power <= wanted]
    model: Any = copy.deepcopy(step.model)
    best, flat = 0.0, 0
    for batch in progress(sizes, "throughput"):
        row = rows.get(batch) or step.fit(batch)
        if row.predicted_bytes * 2 > room or flat >= 2:
            break
        spent = _timed(step, model, batch)
        pace = batch / (spent / 1e9)
        flat = flat + 1 if pace < best * 1.05 else 0
        best = max(best, pace)
        rows[batch] = row._replace(time_ns=spent, per_second=pace)


def _timed(step: _Step, model: Any, batch: int) -> int:
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


def _free_bytes(step: _Step) -> int:
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
