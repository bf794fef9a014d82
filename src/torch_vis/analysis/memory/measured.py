"""What the allocators measured of a run that nobody recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from torch_vis.analysis.report import Charts, Report
from torch_vis.capture.timing.allocator_events import CudaFigures, Measured, measure
from torch_vis.errors import NotTraceable, UsageError, takes_kwargs
from torch_vis.graph.text import count, size
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

POINTS = 4000


class ScratchRow(NamedTuple):
    """What the kernels of one operator took for themselves."""

    op: str
    calls: int
    most_bytes: int
    total_bytes: int


class AllocatorReport(Report):
    """What one run took from the allocators: the peak, and what kernels took beyond tensors."""

    title = "Allocators"

    def __init__(self, measured: Measured) -> None:
        self.output = measured.output
        """What the function returned."""
        self.events = measured.cpu
        """What the CPU's allocator gave and took back, in order."""
        self.cuda: tuple[CudaFigures, ...] = measured.cuda
        """The figures of CUDA's allocator, device by device."""

    @property
    def peak_bytes(self) -> int:
        """The CPU allocator's peak, with what was there before."""
        return self.events.peak_bytes

    @property
    def added_bytes(self) -> int:
        """The peak without what was there before: what the run itself took."""
        return self.peak_bytes - self.events.start_bytes

    @property
    def scratch(self) -> list[ScratchRow]:
        """Operators whose kernels took memory for themselves, those that took most at once first."""
        result: dict[str, list[int]] = {}
        for kernel in self.events.kernels:
            if kernel.scratch_bytes:
                result.setdefault(kernel.op, []).append(kernel.scratch_bytes)
        rows = [ScratchRow(op, len(taken), max(taken), sum(taken)) for op, taken in result.items()]
        return sorted(rows, key=lambda row: -row.most_bytes)

    def facts(self) -> dict[str, str]:
        """The peaks, in words."""
        during = f" during {self.events.peak_op}" if self.events.peak_op else ""
        result = {
            "CPU peak": f"{size(self.peak_bytes)}{during}, with all tensors of the process",
            "at the start": f"{size(self.events.start_bytes)} in tensors, of this run or not",
            "taken by the run": f"{size(self.added_bytes)} above that at the peak",
        }
        for row in self.cuda:
            gap = (
                ""
                if row.free_at_peak_bytes is None
                else f", {size(row.free_at_peak_bytes)} of it free at the peak"
            )
            result[row.device] = f"{size(row.peak_bytes)} allocated, {size(row.reserved_bytes)} reserved{gap}"
        return result

    def listings(self) -> list[Listing]:
        """Scratch by operator."""
        fields = (
            Field("op", "operator"),
            Field("calls", "calls", count),
            Field("most_bytes", "most at once", size),
            Field("total_bytes", "in total", size),
        )
        return [Listing("Scratch of CPU kernels", fields, self.scratch)]

    def charts(self) -> Charts:
        """The CPU allocator's level, event by event."""
        return Charts(timeline=self._timeline_chart) if len(self.events.change) else Charts()

    def _timeline_chart(self) -> Chart:
        level = self.events.start_bytes + np.cumsum(self.events.change)
        step = max(1, len(level) // POINTS)
        highest = [int(level[low : low + step].max()) for low in range(0, len(level), step)]
        line = Series("allocated", list(range(0, len(level), step)), highest)
        axes = Axis("allocations and frees, in order", "count"), Axis("allocated", "bytes")
        return Chart("areas", "Memory that the CPU allocator has given out", *axes, [line])


@takes_kwargs
def measure_memory(
    function: Callable[..., Any], *args: Any, kwargs: Mapping[str, Any] | None = None, warmup: int = 1
) -> AllocatorReport:
    """Run a function as it is and report what it took from the allocators, scratch of kernels included.

    The CPU allocator is listened to through torch's profiler; CUDA's caching allocator counts for itself. The function
    runs ``warmup`` times before, in the same hearing: memory that an unheard run left behind, and that this one frees,
    would seem to stay. Nothing is undone: a training step trains.

    >>> import torch, torch_vis as tv
    >>> report = tv.measure.memory(torch.nn.Conv2d(16, 32, 3, bias=False), torch.ones(2, 16, 8, 8))
    >>> report.scratch[0].op
    'aten::convolution'
    """
    if not callable(function):
        raise NotTraceable(f"measure_memory() takes a callable, not {type(function).__name__}")
    if warmup < 0:
        raise UsageError(f"warmup is a number of runs, not {warmup}")
    return AllocatorReport(measure(function, args, dict(kwargs or {}), warmup))
