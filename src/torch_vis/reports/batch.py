"""How large a batch can be: what fits a memory, predicted from shapes and proved by running, and what still pays."""

from __future__ import annotations

import copy
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_vis.analysis.hardware import find_hardware
from torch_vis.capture.progress import progress
from torch_vis.errors import NoMatch, UsageError
from torch_vis.reports.batching import Fit, Sizes, Step
from torch_vis.reports.report import Report
from torch_vis.views.charts import Axis, Chart, Series
from torch_vis.views.tables import Field, Listing
from torch_vis.views.units import duration, size

LARGEST = 1 << 20
KNEE = 0.9  # of the best throughput
BEYOND = 1.25  # times the largest batch that fits, as far as a chart of the memory goes
RUNS = 5
TRIES = 5  # runs until one stays within the memory
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
         "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip


class BatchSize(Report):
    """Batch sizes, their memory and their pace."""

    title = "Batch size"

    def __init__(
        self, rows: list[Fit], budget: int | None, sample: int, cap: int, notes: list[str], *, dim: int = 0
    ) -> None:
        self.rows = rows
        self.cap = cap
        self.budget = budget
        self.sample = sample
        self.dim = dim
        self._notes = notes

    @property
    def largest(self) -> int | None:
        """The largest batch that fits the memory; None without a memory to fit, or if no run stayed within it."""
        return max((row.batch for row in self.rows if self._fits(row)), default=None)

    def _fits(self, row: Fit) -> bool:
        return self.budget is not None and _needed(row, self.rows) <= self.budget

    @property
    def over(self) -> list[Fit]:
        """The batches that were to fit by prediction, and did not when they ran."""
        if self.budget is None:
            return []
        return [row for row in self.rows if row.predicted_bytes <= self.budget < row.needed_bytes]

    @property
    def per_sample_bytes(self) -> float:
        """What one sample more takes, over the upper half of the batches up to the largest that fits.

        Without a memory to fit, up to the largest that was looked at. Over a single step, what kernels and allocators
        round up to would count whole.
        """
        batches = [row.batch for row in self.rows]
        at = batches.index(self.largest) if self.largest else len(batches) - 1
        at = max(at, min(1, len(batches) - 1))
        half = max((place for place in range(at) if 2 * batches[place] <= batches[at]), default=0)
        first, last = self.rows[half], self.rows[at]
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
        if self.over:
            found["warning"] = (
                f"a batch of {self.over[-1].batch:,} was to fit and did not: when it ran, tensors held "
                f"{size(self.over[-1].measured_bytes or 0)}, predicted {size(self.over[-1].tensor_bytes)}"
            )
        if self.budget is not None:
            found.update(self._largest_facts(self.budget))
        timed = [row for row in self.rows if row.per_second]
        if self.knee is not None:
            found["knee"] = f"{self.knee:,}: 90 % of the best throughput; larger batches bring little more"
        elif timed:
            found["knee"] = f"not reached: throughput still grows at {timed[-1].batch:,}, the largest timed"
        return found

    def _largest_facts(self, budget: int) -> dict[str, str]:
        fits = next((row for row in self.rows if row.batch == self.largest), None)
        if fits is None:
            return {"largest": f"none is known to fit in {size(budget)}: every batch that ran took more"}
        needed = _needed(fits, self.rows)
        how = "predicted" if not self.over else "by what ran"
        said = f"{self.largest:,} in {size(budget)}: {size(needed)} {how} ({needed / budget:.0%})"
        if fits.batch == self.cap:
            said += f"; larger ones were not looked at (largest={self.cap:,})"
        if fits.measured_bytes is None:
            return {"largest": said}
        held = f"it ran: tensors held {size(fits.measured_bytes)}, predicted {size(fits.tensor_bytes)}"
        return {"largest": said, "proved": held}

    def listings(self) -> list[Listing]:
        """The sizes that ran, the largest that fits and the next one that does not; ``rows`` has all."""
        exact = _telling(self.per_sample_bytes)
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

    def _useful(self) -> list[Fit]:
        """The rows less those that only a search came by."""
        above = next((row.batch for row in self.rows if row.batch > (self.largest or math.inf)), None)
        chosen = {self.rows[0].batch, self.sample, self.largest, above} if self.budget is not None else None
        return [
            row
            for row in self.rows
            if chosen is None or row.batch in chosen or row.per_second or row.measured_bytes is not None
        ]

    def _said(self, row: Fit) -> str:
        if self.budget is None:
            return ""
        return "largest" if row.batch == self.largest else "yes" if self._fits(row) else "over"

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
            name, needed = f"largest that fits: {fits.batch:,}", _needed(fits, self.rows)
            series.append(Series(name, [fits.batch], [needed], loose=True))
        along, up = Axis("batch size", "count"), Axis("peak memory", "bytes")
        return Chart("lines", "Memory by batch size", along, up, series, guides)

    def charts(self) -> dict[str, Chart]:
        found = {"memory": self._memory_chart()}
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
            found["throughput"] = Chart("lines", "Throughput by batch size", *axes, lines, guides)
        return found


def _telling(step: float) -> Callable[[int], str]:
    """How to write bytes so that amounts that are a step apart differ.

    >>> _telling(27 * 1024)(67_108_000), _telling(2048)(1_048_000), _telling(5e6)(67_108_000)
    ('64.00 MiB', '0.999 MiB', '64.0 MiB')
    """
    digits = min(6, max(1, math.ceil(-math.log10(step / UNITS["mi"])))) if step > 0 else 1
    return lambda amount: f"{amount / UNITS['mi']:,.{digits}f} MiB"


def _needed(row: Fit, rows: Iterable[Fit]) -> int:
    """What a batch needs; where others took more than predicted when they ran, it is taken to do so as well."""
    if row.measured_bytes is not None:
        return row.needed_bytes
    return math.ceil(row.predicted_bytes * _excess(rows))


def _excess(rows: Iterable[Fit]) -> float:
    """The most that a run took for each byte that was predicted, at least 1."""
    return max([1.0, *(row.needed_bytes / max(1, row.predicted_bytes) for row in rows)])


def analyze_batch_size(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    memory: int | str | None = None,
    backward: bool = False,
    loss: Callable[[Any], Any] | None = None,
    measure: bool = True,
    largest: int = LARGEST,
    dim: int | None = None,
) -> BatchSize:
    """Find the largest batch whose run fits a memory, and the batch beyond which throughput hardly grows.

    ``args`` and ``kwargs`` are a sample batch: what has the batch in dimension ``dim`` is repeated or cut to other
    sizes. That is the first one, or the second where an RNN or attention of the model reads its inputs with the steps
    first. ``memory`` is bytes, a text like ``"16 GiB"`` or hardware like ``"A100"``; without it, only throughput is
    looked at. Peaks are predicted from shapes alone, without running. With ``measure``, a copy of the module is then
    run with the largest batch, where this machine has room for it, and timed with 1, 2, 4, … samples; if that run
    takes more than predicted, smaller ones are tried. A plain callable is not run: it may change things of its own.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Linear(256, 256)
    >>> found = tv.analyze_batch_size(model, torch.ones(4, 256), memory="1 MiB", measure=False)
    >>> found.largest, found.per_sample_bytes
    (383, 2048.0)
    """
    if dim is not None and dim < 0:
        raise UsageError(f"dim={dim}: the dimension of the batch is counted from the front, 0, 1, …")
    budget = None if memory is None else budget_bytes(memory)
    step = Step(model, args, dict(kwargs or {}), dim, backward, loss)
    sizes = step.sizes()
    notes = _about(step, sizes)
    rows = {sizes.least: step.fit(sizes.least)}
    if budget is not None:
        if rows[sizes.least].predicted_bytes > budget:
            raise UsageError(
                f"nothing fits in {size(budget)}: a batch of {sizes.least} takes "
                f"{size(rows[sizes.least].predicted_bytes)}; give more memory, or look at t.memory() for what takes it"
            )
        _search(step, sizes, rows, budget, largest)
    if measure and not isinstance(model, torch.nn.Module):
        notes.append(
            "not run: a plain callable may change things of its own; pass the module to have it timed"
        )
    elif measure:
        with torch.random.fork_rng():
            room = _free_bytes(step)
            if budget is not None:
                _prove(step, sizes, rows, budget, largest, room, notes)
            _time(step, sizes, rows, budget, room)
    notes.append(
        "predicted: what the allocator gives out for tensors and kernels, an estimate; see t.memory()"
    )
    ordered = [rows[batch] for batch in sorted(rows)]
    return BatchSize(ordered, budget, step.sample, largest, notes, dim=step.dim)


def _about(step: Step, sizes: Sizes) -> list[str]:
    """Which dimension is the batch, and which sizes of it the model takes."""
    why = f", as {step.reader} reads (steps, batch, features)" if step.reader else ""
    found = [f"the batch is dimension {step.dim} of the inputs{why}; dim= names another"]
    if sizes.unit > 1:
        found.append(f"only multiples of the sample's {sizes.unit} were looked at: {sizes.why}")
    elif sizes.least > 1:
        found.append(f"from {sizes.least} on: {sizes.why}")
    return found


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


def _search(step: Step, sizes: Sizes, rows: dict[int, Fit], budget: float, largest: int) -> None:
    """Close in on the largest batch that fits: by the slope of what is known, by halves where that gains too little."""
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


def _prove(
    step: Step, sizes: Sizes, rows: dict[int, Fit], budget: int, largest: int, room: int, notes: list[str]
) -> None:
    """Run a copy of the module with the largest batch that fits; where it does not, with what then seems to."""
    for _ in range(TRIES):
        excess = _excess(rows.values())
        _search(step, sizes, rows, budget / excess, largest)
        wanted = max((batch for batch in rows if _needed(rows[batch], rows.values()) <= budget), default=None)
        if wanted is None or rows[wanted].measured_bytes is not None:
            return
        if rows[wanted].predicted_bytes * excess * 2 > room:
            notes.append(f"a batch of {wanted:,} was not run: this machine has {size(room)} to spare")
            return
        ran = step.traced(wanted, model=copy.deepcopy(step.model))
        rows[wanted] = rows[wanted]._replace(measured_bytes=ran.memory().peak_bytes)


def _time(step: Step, sizes: Sizes, rows: dict[int, Fit], budget: int | None, room: int) -> None:
    """Time batches of twice the size each, as long as they fit and it pays."""
    fitting = [batch for batch in rows if budget is None or _needed(rows[batch], rows.values()) <= budget]
    most = max(fitting, default=0) if budget is not None else sizes.unit << 20
    model: Any = copy.deepcopy(step.model)
    best, flat = 0.0, 0
    chosen = [sizes.unit << power for power in range(21)]
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


def _free_bytes(step: Step) -> int:
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
