"""How large a batch can be: what fits a memory, predicted from shapes and proved by running, and what still pays."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from torch_vis._trace import Trace
from torch_vis.analysis.machine.hardware import UNITS, Hardware, amount_bytes
from torch_vis.analysis.report import Charts, Report
from torch_vis.api import trace
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.session import run_backward
from torch_vis.capture.state import RngStates
from torch_vis.capture.timing import allocator_events
from torch_vis.capture.undo import Undo, context, hook_calls
from torch_vis.errors import TorchVisError, UsageError, takes_kwargs
from torch_vis.graph.text import duration, size
from torch_vis.progress import progress
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

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
        """A row for each size that was tried, the smallest first."""
        self.cap = cap
        """The largest size that was looked at."""
        self.budget = budget
        """The bytes that it has to fit into; None where none was given."""
        self.sample = sample
        """The batch size of the inputs that were given."""
        self.dim = dim
        """The dimension of the inputs that is the batch."""
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
                f"a batch of {self.over[-1].batch:,} was to fit and did not: when it ran, the allocator gave out "
                f"{size(self.over[-1].measured_bytes or 0)}, predicted {size(self.over[-1].predicted_bytes)}"
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
        given = f"the allocator gave out {size(fits.measured_bytes)}, predicted {size(fits.predicted_bytes)}"
        proof = f"a plain run of it: {given}"
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

    def charts(self) -> Charts:
        if not any(row.per_second for row in self.rows):
            return Charts(memory=self._memory_chart)
        return Charts(memory=self._memory_chart, throughput=self._throughput_chart)

    def _throughput_chart(self) -> Chart:
        timed = [row for row in self.rows if row.per_second]
        pace = Series("throughput", [row.batch for row in timed], [row.per_second or 0.0 for row in timed])
        axes = Axis("batch size", "count", log=True), Axis("samples per second")
        lines, guides = [pace], []
        if self.knee is not None:
            guides = [Series("90 % of the best", [pace.x[0], pace.x[-1]], [KNEE * max(pace.y)] * 2)]
            height = pace.y[pace.x.index(self.knee)]
            lines.append(Series(f"knee: {self.knee:,}", [self.knee], [height], loose=True))
        return Chart("lines", "Throughput by batch size", *axes, lines, guides)


def _telling(step: float) -> Callable[[int], str]:
    """How to print bytes so that amounts one step apart print differently.

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


@takes_kwargs
def batch_size(
    model: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    memory: float | str | Hardware | None = None,
    backward: bool = False,
    loss: Callable[[Any], Any] | None = None,
    measured: bool = True,
    largest: int = LARGEST,
    dim: int | None = None,
) -> BatchSizeReport:
    """Find the largest batch whose run fits a memory, and the batch beyond which throughput hardly grows.

    ``args`` and ``kwargs`` are a sample batch: what has the batch in dimension ``dim`` is repeated or cut to other
    sizes. That is the first one, or the second where an RNN or attention of the model reads its inputs with the steps
    first. ``memory`` is bytes, a text like ``"16 GiB"`` or hardware like ``"A100"``; without it, only throughput is
    looked at. Peaks are predicted from shapes alone, without running. With ``measured``, a copy of the module is then
    run with the largest batch, where this machine has room for it, while the allocator is listened to; where that run
    takes more or less than predicted, smaller or larger ones are run, a few at most. Then it is timed with 1, 2, 4, …
    samples, on this machine. A plain callable is not run: it may change things of its own; nor is a model that has
    shapes alone (on meta). ``largest`` is where looking ends.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Linear(256, 256)
    >>> report = tv.advise.batch_size(model, torch.ones(4, 256), memory="1 MiB", measured=False)
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
    if measured and run.why_not_run is not None:
        notes.append(run.why_not_run)
    elif measured:
        notes.append(
            f"samples/s and time are of this machine, on {', '.join(sorted(run.devices)) or 'cpu'}; measured is the "
            "peak of the allocator in a plain run"
        )
        with RngStates():
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


# read (steps, batch, features) unless told otherwise
STEPS_FIRST = (torch.nn.RNNBase, torch.nn.MultiheadAttention)


class BatchMemory(NamedTuple):
    """One batch size: the peak predicted from shapes, and what a run of it measured; None where it was not run.

    ``predicted_bytes`` is what the allocator gives out or, on CUDA, holds: tensors, kernel scratch, rounding.
    ``tensor_bytes`` is what tensors hold of it, and ``measured_bytes`` what the allocator gave out when it ran.
    """

    batch: int
    predicted_bytes: int
    tensor_bytes: int
    measured_bytes: int | None = None
    time_ns: int | None = None
    per_second: float | None = None

    @property
    def needed_bytes(self) -> int:
        """What is needed as far as is known: measured where it was run, else predicted."""
        return self.predicted_bytes if self.measured_bytes is None else self.measured_bytes

    @property
    def ratio(self) -> float:
        """How many bytes it takes for each one predicted; 1 where it was not run."""
        return self.needed_bytes / max(1, self.predicted_bytes)


class BatchSizes(NamedTuple):
    """The batch sizes that a model takes: ``least``, and from there on in strides of ``unit``."""

    least: int
    unit: int
    why: str
    """What the model says to others; empty where all run."""


class BatchedRun:
    """A run with a batch of any size. Dimension ``dim`` of the inputs is the batch; None to find out."""

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dim: int | None,
        backward: bool,
        loss: Callable[[Any], Any] | None,
    ) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        self.backward, self.loss = backward, loss
        self._predicted: dict[int, BatchMemory] = {}
        self._workspace_bytes = 0
        self.reader = ""
        """The module from which the dimension is known, if that is how."""
        self.dim = 0 if dim is None else dim
        self.sample = self._sample()
        if dim is None:
            self.reader = self._steps_first()
            if self.reader:
                self.dim = 1
                self.sample = self._sample()

    def inputs(self, batch: int, *, fake: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The sample's tensors with another number of samples; on ``fake``, with contents that nobody looks at."""

        def resized(leaf: Any) -> Any:
            dim = self._dim_of(leaf)
            if dim is None:
                return leaf
            with without_gradients():
                if fake:
                    shape = (*leaf.shape[:dim], batch, *leaf.shape[dim + 1 :])
                    tensor = torch.empty(shape, dtype=leaf.dtype, device=leaf.device)
                else:
                    rows = torch.arange(batch, device=leaf.device) % self.sample
                    tensor = leaf.detach().index_select(dim, rows)
            return tensor.requires_grad_(leaf.requires_grad)

        return pytree.tree_map(resized, (self.args, self.kwargs))

    def traced(self, batch: int) -> Trace:
        """The trace of a run by shapes alone."""
        args, kwargs = self.inputs(batch, fake=True)
        return trace(
            self.model, *args, kwargs=kwargs, backward=self.backward, loss=self.loss, fake=True, hold=False
        )

    def predicted(self, batch: int) -> BatchMemory:
        """The peak that is predicted for a batch size."""
        if batch not in self._predicted:
            memory = self.traced(batch).memory()
            cuda = sum(device.reserved_bytes for device in memory.cuda)
            self._workspace_bytes = sum(device.workspace_bytes for device in memory.cuda)
            self._predicted[batch] = BatchMemory(
                batch, cuda or memory.allocator_peak_bytes, memory.peak_bytes
            )
        return self._predicted[batch]

    def measured(self, batch: int) -> int:
        """What a copy of the model takes of the allocator in a plain run: by itself, for its inputs, and to compute.

        The copy is made while the allocator is listened to, so that nobody has to know what the model holds.
        """
        devices = self.devices - {"cpu"}
        for device in devices:
            # cuBLAS keeps its workspace for good: it is there before, and counts as predicted
            torch.ones(1, 1, device=device).mm(torch.ones(1, 1, device=device))
        if devices:
            torch.cuda.empty_cache()
        reserved = {device: torch.cuda.memory_reserved(device) for device in devices}
        taken = allocator_events.measure(
            lambda: self.run(copy.deepcopy(self.model), *self.inputs(batch)), (), {}, warmup=0
        )
        grown = [row.reserved_bytes - reserved[row.device] for row in taken.cuda if row.device in reserved]
        return sum(grown) + self._workspace_bytes if grown else taken.cpu.peak_bytes - taken.cpu.start_bytes

    def run(self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run it for real."""
        output = model(*args, **kwargs)
        if self.backward or self.loss is not None:
            run_backward(output, self.loss)

    @cached_property
    def devices(self) -> set[str]:
        """Where the model and its inputs are; ``meta`` is nowhere."""
        tensors = [
            leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        if isinstance(self.model, torch.nn.Module):
            tensors += [*self.model.parameters(), *self.model.buffers()]
        return {"meta" if isinstance(tensor, FakeTensor) else _device(tensor) for tensor in tensors}

    @property
    def why_not_run(self) -> str | None:
        """Why nothing can be measured, in words; None where it can."""
        if not isinstance(self.model, torch.nn.Module):
            return "not run: a plain callable may change things of its own; pass the module to have it timed"
        if "meta" in self.devices:
            return (
                "not run: the model or its inputs have shapes alone (meta), so that there is nothing to time"
            )
        if torch.autograd._profiler_enabled():
            return "not run: memory is measured by torch's profiler, and one is active already"
        return None

    def sizes(self) -> BatchSizes:
        """The sizes that the model takes, found by trying few: from 1 on, from 2 on, or else whole samples."""
        refusal_of_1, refusal_of_2 = self._refusal(1), self._refusal(2)
        if not refusal_of_1 and not refusal_of_2:
            return BatchSizes(1, 1, "")
        if not refusal_of_2 and self.sample > 1 and not self._refusal(3):
            return BatchSizes(2, 1, f"of 1 the model says {refusal_of_1}")
        self.predicted(self.sample)
        why = f"of 1 the model says {refusal_of_1}" if refusal_of_1 else f"of 2 the model says {refusal_of_2}"
        twice = self._refusal(2 * self.sample)
        if twice:
            raise UsageError(
                f"a batch of {self.sample} runs, others do not: {why}; of {2 * self.sample}, {twice}. Pass what goes "
                "with the batch (labels, masks) as arguments, and see dim="
            )
        return BatchSizes(self.sample, self.sample, why)

    def _refusal(self, batch: int) -> str:
        """What the model says to a batch that it does not take; its own sample it has to take."""
        try:
            self.predicted(batch)
        except TorchVisError:
            raise
        except Exception as error:
            if batch == self.sample:
                raise
            return " ".join(f"{type(error).__name__}: {error}".splitlines()[0].split())
        return ""

    def _sample(self) -> int:
        """The size of the batch that was given: that of the first input that has such a dimension."""
        tensors = [
            leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        sizes = [leaf.shape[self.dim] for leaf in tensors if leaf.dim() > self.dim]
        if any(sizes):
            return next(size for size in sizes if size)
        if sizes:
            raise UsageError(
                f"the batch is empty: dimension {self.dim} of the inputs has no elements; pass a sample batch with one "
                "sample at least"
            )
        raise UsageError(
            f"none of the inputs is a tensor with a dimension {self.dim} for the batch; pass a sample batch as for "
            "trace(), and with dim= the dimension that is the batch"
        )

    def _dim_of(self, leaf: Any) -> int | None:
        """The dimension of an input that is the batch: a mask or labels beside (steps, batch) have it first."""
        if not isinstance(leaf, torch.Tensor):
            return None
        return next(
            (dim for dim in (self.dim, 0) if leaf.dim() > dim and leaf.shape[dim] == self.sample), None
        )

    def _steps_first(self) -> str:
        """The module that reads the inputs as (steps, batch, features), by name and class; empty if none does."""
        if not isinstance(self.model, torch.nn.Module):
            return ""
        readers = {
            module: name
            for name, module in self.model.named_modules()
            if isinstance(module, STEPS_FIRST) and not module.batch_first
        }
        if not readers:
            return ""
        tensors = [
            leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        begins = {tuple(leaf.shape[:2]) for leaf in tensors if leaf.dim() > 1}
        names: list[str] = []

        def look(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read = [leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, torch.Tensor)]
            if read and read[0].dim() == 3 and tuple(read[0].shape[:2]) in begins:
                # as many steps as samples say nothing, unless it is the very input
                if read[0].shape[0] != read[0].shape[1] or any(read[0] is leaf for leaf in tensors):
                    names.append(f"{readers[module] or 'the model'} ({type(module).__name__})")

        with _watching(readers, look):
            trace(self.model, *self.args, kwargs=self.kwargs, fake=True, hold=False)
        return names[0] if names else ""


def _device(tensor: torch.Tensor) -> str:
    """The device with its number, as allocators name it."""
    device = tensor.device
    return f"cuda:{torch.cuda.current_device()}" if device == torch.device("cuda") else str(device)


@context
def _watching(undo: Undo, modules: Any, look: Callable[..., None]) -> None:
    """Have a look at what modules are called with."""
    for module in modules:
        hook_calls(undo, module, look, before=True, with_kwargs=True)


# of which a time is the median
RUNS = 5
# batches that are run to find the largest
TRIES = 6
# the largest batch that is timed
MOST = 1 << 20


def needed(row: BatchMemory, rows: Iterable[BatchMemory]) -> int:
    """The memory that a batch needs: as measured, or extrapolated from the nearest measured batch."""
    ran = [other for other in rows if other.measured_bytes is not None]
    if row.measured_bytes is not None or not ran:
        return row.needed_bytes
    nearest = min(ran, key=lambda other: (abs(other.batch - row.batch), -other.ratio))
    return math.ceil(row.predicted_bytes * nearest.ratio)


def search(
    run: BatchedRun, sizes: BatchSizes, rows: dict[int, BatchMemory], budget: float, largest: int
) -> int | None:
    """Close in on the largest batch predicted to fit: by the slope of what is known, by halves where that gains little.

    It is returned; all that were looked at are in ``rows``.
    """
    # from here on all sizes are in units
    unit, cap = sizes.unit, max(1, largest // sizes.unit)
    # fits; does not
    low, high = sizes.least // unit, cap + 1
    tried = 0
    # an earlier search has narrowed it
    for batch, row in rows.items():
        if row.predicted_bytes <= budget:
            low = max(low, batch // unit)
        else:
            high = min(high, batch // unit)
    count = min(low + 1, cap)
    while high - low > 1:
        batch = count * unit
        rows[batch] = run.predicted(batch)
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
        # by leaps, as inputs of the largest size may be more than there is memory for
        if high > cap:
            count = min(4 * low if creeps else count, cap)
        elif count >= high or creeps:
            count = (low + high) // 2
    return max((batch for batch, row in rows.items() if row.predicted_bytes <= budget), default=None)


def prove(
    run: BatchedRun,
    sizes: BatchSizes,
    rows: dict[int, BatchMemory],
    budget: int,
    largest: int,
    room: int,
    notes: list[str],
) -> None:
    """Run a copy of the module with the largest batch that fits, and then with what does by that run: more, or less."""
    ratio, tries = 1.0, 0
    while True:
        wanted = search(run, sizes, rows, budget / ratio, largest) or sizes.least
        ran = [row for row in rows.values() if row.measured_bytes is not None]
        over = min((row.batch for row in ran if row.needed_bytes > budget), default=math.inf)
        fits = max((row.batch for row in ran if row.needed_bytes <= budget), default=0)
        wanted = int(min(wanted, over - sizes.unit))
        if wanted <= fits or wanted < sizes.least:
            return
        rows.setdefault(wanted, run.predicted(wanted))
        if rows[wanted].predicted_bytes * ratio * 2 > room:
            notes.append(f"a batch of {wanted:,} was not run: this machine has {size(room)} to spare")
            return
        if tries == TRIES:
            notes.append(f"a batch of {wanted:,} may fit by what ran; {TRIES} were run, and it was not")
            return
        tries += 1
        rows[wanted] = rows[wanted]._replace(measured_bytes=run.measured(wanted))
        ratio = rows[wanted].ratio


def take_times(
    run: BatchedRun, sizes: BatchSizes, rows: dict[int, BatchMemory], most: int, room: int
) -> None:
    """Time batches of twice the size each up to ``most``, as long as there is room and it pays."""
    model: Any = copy.deepcopy(run.model)
    best, flat = 0.0, 0
    chosen = [sizes.unit << power for power in range(MOST.bit_length())]
    for batch in progress([batch for batch in chosen if sizes.least <= batch <= most], "throughput"):
        row = rows.get(batch) or run.predicted(batch)
        if row.predicted_bytes * 2 > room or flat >= 2:
            break
        time_ns = _timed(run, model, batch)
        pace = batch / (time_ns / 1e9)
        flat = flat + 1 if pace < best * 1.05 else 0
        best = max(best, pace)
        rows[batch] = row._replace(time_ns=time_ns, per_second=pace)


def _timed(run: BatchedRun, model: Any, batch: int) -> int:
    """The median time of a run, device work included, and without what it takes to make the batch."""
    times = []
    args, kwargs = run.inputs(batch)
    for turn in range(RUNS + 1):
        if isinstance(model, torch.nn.Module):
            model.zero_grad(set_to_none=True)
        start = time.perf_counter_ns()
        run.run(model, args, kwargs)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if turn:
            times.append(time.perf_counter_ns() - start)
    return round(statistics.median(times))


def free_bytes(run: BatchedRun) -> int:
    """What this machine can still give."""
    tensors = [leaf for leaf in pytree.tree_leaves((run.args, run.kwargs)) if isinstance(leaf, torch.Tensor)]
    if any(tensor.is_cuda for tensor in tensors):
        return torch.cuda.mem_get_info()[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        # not known: enough for a small run, no more
        return 2 * 1024**3
