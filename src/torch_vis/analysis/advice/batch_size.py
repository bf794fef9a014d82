"""How large a batch can be: what fits a memory, predicted from shapes and proved by running, and what still pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_vis.analysis.advice.batch_size.search import (
    BatchedRun,
    BatchMemory,
    BatchSizes,
    free_bytes,
    needed,
    prove,
    search,
    take_times,
)
from torch_vis.analysis.parse_size import UNITS, amount_bytes
from torch_vis.analysis.report import Report
from torch_vis.errors import UsageError
from torch_vis.graph.text import duration, size
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table import Field, Listing

LARGEST = 1 << 20
# of the best throughput
KNEE = 0.9
# times the largest batch that fits, as far as a chart of the memory goes
BEYOND = 1.25
# of what a sample takes: by less than this it may differ between batches that grow evenly
EVEN = 0.1


class BatchSizeReport(Report):
    """Batch sizes, their memory and their pace."""

    title = "Batch size"

    def __init__(
        self,
        rows: list[BatchMemory],
        budget: int | None,
        sample: int,
        cap: int,
        notes: list[str],
        *,
        dim: int = 0,
    ) -> None:
        self.rows = rows
        self.cap = cap
        self.budget = budget
        self.sample = sample
        self.dim = dim
        self._notes = notes

    @property
    def largest(self) -> int | None:
        """The largest batch that fits the memory, of those that ran if any of them does.

        None without a memory to fit, or if no run stayed within it.
        """
        fitting = [row for row in self.rows if self._fits(row)]
        proved = [row.batch for row in fitting if row.measured_bytes is not None]
        return max(proved or [row.batch for row in fitting], default=None)

    def _fits(self, row: BatchMemory) -> bool:
        return self.budget is not None and needed(row, self.rows) <= self.budget

    @property
    def over(self) -> list[BatchMemory]:
        """The batches that were to fit by prediction, and did not when they ran."""
        if self.budget is None:
            return []
        return [row for row in self.rows if row.predicted_bytes <= self.budget < row.needed_bytes]

    @property
    def per_sample_bytes(self) -> float | None:
        """What one sample more takes, over the upper half of the batches up to the largest that fits.

        Without a memory to fit, up to the largest that was looked at. Over a single step, what kernels and allocators
        round up to would count whole. None where a single batch size was looked at.
        """
        return next((_slope(first, last) for first, last in self._stretches()[:1]), None)

    @property
    def grows_evenly(self) -> bool | None:
        """Whether a sample more takes as much in larger batches as in smaller ones; None where too few are known."""
        slopes = [_slope(first, last, "tensor_bytes") for first, last in self._stretches()]
        if len(slopes) < 2:
            return None
        return abs(slopes[0] - slopes[1]) <= EVEN * max(map(abs, slopes))

    def _stretches(self) -> list[tuple[BatchMemory, BatchMemory]]:
        """The upper half of the batches up to the largest, and the half below it, as their ends."""
        index = next(
            (index for index, row in enumerate(self.rows) if row.batch == self.largest), len(self.rows) - 1
        )
        stretches: list[tuple[BatchMemory, BatchMemory]] = []
        if index == 0 < len(self.rows) - 1:
            index = 1
        while index > 0 and len(stretches) < 2:
            half = max(
                (other for other in range(index) if 2 * self.rows[other].batch <= self.rows[index].batch),
                default=0,
            )
            stretches.append((self.rows[half], self.rows[index]))
            index = half
        return stretches

    @property
    def knee(self) -> int | None:
        """The smallest batch with 90 % of the best throughput; None where it still grows, or nothing was timed."""
        timed = [row for row in self.rows if row.per_second]
        best = max((row.per_second or 0.0 for row in timed), default=0.0)
        knee = next((row.batch for row in timed if (row.per_second or 0.0) >= KNEE * best), None)
        return knee if timed and knee != timed[-1].batch else None

    def facts(self) -> dict[str, str]:
        facts = {"per sample": self._growth()}
        if self.over:
            facts["warning"] = (
                f"a batch of {self.over[-1].batch:,} was to fit and did not: when it ran, tensors held "
                f"{size(self.over[-1].measured_bytes or 0)}, predicted {size(self.over[-1].tensor_bytes)}"
            )
        if self.budget is not None:
            facts.update(self._largest_facts(self.budget))
        timed = [row for row in self.rows if row.per_second]
        if self.knee is not None:
            facts["knee"] = f"{self.knee:,}: 90 % of the best throughput; larger batches bring little more"
        elif len(timed) == 1:
            facts["knee"] = f"not known: {timed[0].batch:,} is the only batch that was timed"
        elif timed:
            facts["knee"] = f"not reached: throughput still grows at {timed[-1].batch:,}, the largest timed"
        return facts

    def _growth(self) -> str:
        slopes = [
            f"{size(round(_slope(first, last)))} from {first.batch:,} to {last.batch:,}"
            for first, last in self._stretches()
        ]
        if not slopes:
            return "not known: one batch size was looked at"
        if self.grows_evenly is False:
            return f"{', '.join(slopes)}: memory does not grow evenly"
        return size(round(self.per_sample_bytes or 0))

    def _largest_facts(self, budget: int) -> dict[str, str]:
        fits = next((row for row in self.rows if row.batch == self.largest), None)
        if fits is None:
            return {"largest": f"none is known to fit in {size(budget)}: every batch that ran took more"}
        needs = needed(fits, self.rows)
        ran = any(row.measured_bytes is not None for row in self.rows)
        how = (
            "needed when it ran" if fits.measured_bytes is not None else "by what ran" if ran else "predicted"
        )
        text = f"{self.largest:,} in {size(budget)}: {size(needs)} {how} ({needs / budget:.0%})"
        if fits.batch == self.cap:
            text += f"; larger ones were not looked at (largest={self.cap:,})"
        if fits.measured_bytes is None:
            return {"largest": text}
        proof = f"it ran: tensors held {size(fits.measured_bytes)}, predicted {size(fits.tensor_bytes)}"
        return {"largest": text, "proved": proof}

    def listings(self) -> list[Listing]:
        """The sizes that ran, the largest that fits and the next one that does not; ``rows`` has all."""
        exact = _telling(self.per_sample_bytes or 0.0)
        fields = (
            Field("batch", "batch", "{:,}".format),
            Field("predicted_bytes", "predicted", exact),
            Field("tensor_bytes", "of it tensors", exact),
            Field("measured_bytes", "measured", exact),
            Field("time_ns", "time", duration),
            Field("per_second", "samples/s", "{:,.1f}".format),
            Field("fits", "fits"),
        )
        return [Listing("Batch sizes", fields, [(*row, self._said(row)) for row in self._useful()])]

    def _useful(self) -> list[BatchMemory]:
        """The rows less those that only a search came by."""
        above = next((row.batch for row in self.rows if row.batch > (self.largest or math.inf)), None)
        chosen = {self.rows[0].batch, self.sample, self.largest, above} if self.budget is not None else None
        return [
            row
            for row in self.rows
            if chosen is None or row.batch in chosen or row.per_second or row.measured_bytes is not None
        ]

    def _said(self, row: BatchMemory) -> str:
        if self.budget is None:
            return ""
        if row.batch == self.largest:
            return "largest"
        return "over" if not self._fits(row) else "yes" if row.batch < (self.largest or 0) else "perhaps"

    def notes(self) -> list[str]:
        return self._notes

    def figure(self, renderer: str = "plotly", *, chart: str | None = None) -> Any:
        """The memory by batch size, with the memory to fit and the largest batch that does.

        ``chart="throughput"`` draws samples per second, where runs were timed: there the knee is seen.
        """
        return super().figure(renderer, chart=chart)

    def _memory_chart(self) -> Chart:
        shown = [row for row in self.rows if row.batch <= BEYOND * (self.largest or math.inf)]
        batches = [row.batch for row in shown]
        series = [Series("predicted peak", batches, [row.predicted_bytes for row in shown])]
        guides = []
        if self.budget is not None:
            guides = [Series(f"to fit: {size(self.budget)}", [batches[0], batches[-1]], [self.budget] * 2)]
        fits = next((row for row in shown if row.batch == self.largest), None)
        if fits is not None:
            name, takes = f"largest that fits: {fits.batch:,}", needed(fits, self.rows)
            series.append(Series(name, [fits.batch], [takes], loose=True))
        along, up = Axis("batch size", "count"), Axis("peak memory", "bytes")
        return Chart("lines", "Memory by batch size", along, up, series, guides)

    def charts(self) -> dict[str, Chart]:
        charts = {"memory": self._memory_chart()}
        timed = [row for row in self.rows if row.per_second]
        if timed:
            pace = Series(
                "throughput", [row.batch for row in timed], [row.per_second or 0.0 for row in timed]
            )
            axes = Axis("batch size", "count", log=True), Axis("samples per second")
            lines, guides = [pace], []
            if self.knee is not None:
                guides = [Series("90 % of the best", [pace.x[0], pace.x[-1]], [KNEE * max(pace.y)] * 2)]
                height = pace.y[pace.x.index(self.knee)]
                lines.append(Series(f"knee: {self.knee:,}", [self.knee], [height], loose=True))
            charts["throughput"] = Chart("lines", "Throughput by batch size", *axes, lines, guides)
        return charts


def _telling(step: float) -> Callable[[int], str]:
    """How to write bytes so that amounts that are a step apart differ.

    >>> _telling(27 * 1024)(67_108_000), _telling(2048)(1_048_000), _telling(5e6)(67_108_000)
    ('64.00 MiB', '0.999 MiB', '64.0 MiB')
    """
    if step <= 0:
        return size
    digits = min(6, max(1, math.ceil(-math.log10(step / UNITS["mi"]))))
    return lambda amount: f"{amount / UNITS['mi']:,.{digits}f} MiB"


def _slope(first: BatchMemory, last: BatchMemory, of: str = "predicted_bytes") -> float:
    """What a sample more takes between two batch sizes."""
    return (getattr(last, of) - getattr(first, of)) / (last.batch - first.batch)


def batch_size(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    memory: int | str | None = None,
    backward: bool = False,
    loss: Callable[[Any], Any] | None = None,
    measure: bool = True,
    largest: int = LARGEST,
    dim: int | None = None,
) -> BatchSizeReport:
    """Find the largest batch whose run fits a memory, and the batch beyond which throughput hardly grows.

    ``args`` and ``kwargs`` are a sample batch: what has the batch in dimension ``dim`` is repeated or cut to other
    sizes. That is the first one, or the second where an RNN or attention of the model reads its inputs with the steps
    first. ``memory`` is bytes, a text like ``"16 GiB"`` or hardware like ``"A100"``; without it, only throughput is
    looked at. Peaks are predicted from shapes alone, without running. With ``measure``, a copy of the module is then
    run with the largest batch, where this machine has room for it, and timed with 1, 2, 4, … samples; where that run
    takes more or less than predicted, smaller or larger ones are run, a few at most. A plain callable is not run: it
    may change things of its own. ``largest`` is where looking ends.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Linear(256, 256)
    >>> report = tv.advise.batch_size(model, torch.ones(4, 256), memory="1 MiB", measure=False)
    >>> report.largest, report.per_sample_bytes
    (383, 2048.0)
    """
    if dim is not None and dim < 0:
        raise UsageError(f"dim={dim}: the dimension of the batch is counted from the front, 0, 1, …")
    if not isinstance(largest, int) or isinstance(largest, bool) or largest < 1:
        raise UsageError(f"largest={largest!r}: the largest batch to look at is a whole number, at least 1")
    budget = None if memory is None else amount_bytes(memory, "memory")
    run = BatchedRun(model, args, dict(kwargs or {}), dim, backward, loss)
    sizes = run.sizes()
    if largest < sizes.least:
        raise UsageError(
            f"largest={largest:,}: this model takes batches from {sizes.least:,} on; {sizes.why}"
        )
    notes = _about(run, sizes)
    rows = _predicted(run, sizes, budget, largest)
    if measure and not isinstance(model, torch.nn.Module):
        notes.append(
            "not run: a plain callable may change things of its own; pass the module to have it timed"
        )
    elif measure:
        with torch.random.fork_rng():
            room = free_bytes(run)
            if budget is not None:
                prove(run, sizes, rows, budget, largest, room, notes)
            most = BatchSizeReport([*rows.values()], budget, run.sample, largest, []).largest or 0
            take_times(run, sizes, rows, largest if budget is None else most, room)
    notes.append(
        "predicted: what the allocator gives out for tensors and kernels, an estimate; see t.memory()"
    )
    ordered = [rows[batch] for batch in sorted(rows)]
    return BatchSizeReport(ordered, budget, run.sample, largest, notes, dim=run.dim)


def _predicted(
    run: BatchedRun, sizes: BatchSizes, budget: int | None, largest: int
) -> dict[int, BatchMemory]:
    """What is predicted of the largest batch that fits, and of half and a quarter of it, which tell how memory grows.

    Without a memory to fit, of the smallest ones and the sample.
    """
    rows = {sizes.least: run.predicted(sizes.least)}
    if budget is None:
        chosen = [sizes.least + sizes.unit, run.sample]
    else:
        if rows[sizes.least].predicted_bytes > budget:
            raise UsageError(
                f"nothing fits in {size(budget)}: a batch of {sizes.least} takes "
                f"{size(rows[sizes.least].predicted_bytes)}; give more memory, or look at t.memory() for what takes it"
            )
        largest_fit = search(run, sizes, rows, budget, largest) or sizes.least
        chosen = [largest_fit // part // sizes.unit * sizes.unit for part in (2, 4)]
    for batch in chosen:
        if sizes.least <= batch <= largest:
            rows[batch] = run.predicted(batch)
    return rows


def _about(run: BatchedRun, sizes: BatchSizes) -> list[str]:
    """Which dimension is the batch, and which sizes of it the model takes."""
    why = f", as {run.reader} reads (steps, batch, features)" if run.reader else ""
    result = [f"the batch is dimension {run.dim} of the inputs{why}; dim= names another"]
    if sizes.unit > 1:
        result.append(f"only multiples of the sample's {sizes.unit} were looked at: {sizes.why}")
    elif sizes.least > 1:
        result.append(f"from {sizes.least} on: {sizes.why}")
    return result
