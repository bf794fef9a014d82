"""How near each operation comes to what the machine can do, and what holds it back.

``BOUND`` are the codes of the column ``bound``: arithmetic, memory, or the overhead of running an operation at all. An
operation is bound by overhead where both roofs together ask for less time than an operation takes that does nothing.
``peak_share`` is the time at the lower roof over the time that was measured: 1.0 is as fast as the machine can be.
Above 1.0, data came from a cache and not from memory, or the profile does not fit the machine that the trace is from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_vis.analysis.efficiency import roof_times
from torch_vis.analysis.hardware import Hardware
from torch_vis.analysis.kinds import KINDS, REAL_DTYPES, dtypes, kinds
from torch_vis.errors import UsageError
from torch_vis.graph import Column, Graph, Metrics

Floats = NDArray[np.float64]
BOUND = ("none", "compute", "memory", "overhead")
"""What holds an operation back, in the order of the codes; 0 is for views, which do nothing."""


class Roofline(NamedTuple):
    """One row per operation. What is not known is NaN, and 0 in ``bound`` where ``known`` is False.

    ``intensity`` is FLOPs per byte, ``ideal_ns`` the time at the roof, ``time_ns`` what was measured, by the column
    that ``measured`` names.
    """

    hardware: Hardware
    measured: str
    kind: NDArray[np.int8]
    dtype: NDArray[np.int8]
    flops: Floats
    moved: Floats
    intensity: Floats
    ideal_ns: Floats
    time_ns: Floats
    bound: NDArray[np.int8]
    known: NDArray[np.bool_]
    peak_share: Floats

    def columns(self) -> tuple[Column, Column]:
        """``bound`` and ``peak_share`` as columns, to stand beside a graph."""
        shared = np.isfinite(self.peak_share)
        return (
            Column("bound", self.bound, known=self.known),
            Column("peak_share", np.where(shared, self.peak_share, 0.0), known=shared),
        )


def roofline(graph: Graph, metrics: Metrics, hardware: Hardware) -> Roofline:
    """Every operation of a run against a machine's roofs.

    The time is that of kernels (``kernel_ns``) where it was measured, and of operations (``time_ns``) otherwise.

    >>> import torch, torch_vis as tv
    >>> from torch_vis.analysis.hardware import find_hardware
    >>> t = tv.trace(torch.relu, torch.ones(4_000_000))
    >>> found = roofline(t.graph, t.metrics, find_hardware("epyc-9654"))
    >>> BOUND[found.bound[0]], float(found.intensity[0])
    ('memory', 0.0)
    """
    measured = "kernel_ns" if "kernel_ns" in metrics else "time_ns"
    if measured not in metrics:
        raise UsageError(
            "this trace has no times; trace a run that is timed, or use latency() for a prediction"
        )
    flops, moved, took = (_floats(metrics[name]) for name in ("flops", "moved_bytes", measured))
    kind, dtype = kinds(graph), dtypes(graph)
    compute, memory = roof_times(hardware, kind, dtype, flops, moved)
    ideal = np.fmax(compute, memory)
    view = kind == KINDS.index("view")
    known = view | (np.isfinite(flops) & np.isfinite(moved))
    bound = np.where(compute >= memory, 1, 2)
    bound[np.nan_to_num(compute) + np.nan_to_num(memory) < hardware.overhead_ns] = 3
    bound[view | ~known] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = np.where(moved > 0, flops / moved, np.nan)
        share = np.where((took > 0) & known & ~view, ideal / took, np.nan)
    codes = bound.astype(np.int8)
    return Roofline(
        hardware, measured, kind, dtype, flops, moved, intensity, ideal, took, codes, known, share
    )


def _floats(column: Column) -> Floats:
    values = column.values.astype(np.float64)
    if column.known is not None:
        values[~column.known] = np.nan
    return values


class Group(NamedTuple):
    """Operations taken together: their number, time, work, time at the roof, and time by what bounds them."""

    operations: int
    time_ns: float
    flops: float
    moved_bytes: float
    ideal_ns: float
    by_bound: tuple[float, ...]

    @property
    def peak_share(self) -> float | None:
        """The time at the roofs over the time measured."""
        return self.ideal_ns / self.time_ns if self.time_ns > 0 else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes if self.moved_bytes > 0 else None

    @property
    def bound(self) -> str:
        """What bounds most of the time."""
        return BOUND[int(np.argmax(self.by_bound))] if any(self.by_bound) else BOUND[0]


def grouped(found: Roofline, key: NDArray[np.int64], count: int) -> list[Group]:
    """The sums over operations of equal key, which runs from 0 to ``count``."""

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(key, weights=np.nan_to_num(values), minlength=count), dtype=np.float64)

    took = np.nan_to_num(found.time_ns)
    timed = np.where(took > 0, np.nan_to_num(found.ideal_ns), 0.0)
    number = np.bincount(key, minlength=count)
    sums = [total(values) for values in (took, found.flops, found.moved, timed)]
    bounds = [total(np.where(found.bound == code, took, 0.0)) for code in range(len(BOUND))]
    bounds[0] = np.zeros(count)  # views take no part in what the time is bound by
    rows = zip(number.tolist(), *(part.tolist() for part in sums), zip(*(part.tolist() for part in bounds)))
    return [Group(*row) for row in rows]


def dtype_name(code: int) -> str:
    """The element type of a code."""
    return REAL_DTYPES[code]
