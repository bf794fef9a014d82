"""How near each operation comes to what the machine can do, and what holds it back.

``BOUND`` are the codes of the column ``bound``: arithmetic, memory, or the overhead of running an operation at all. An
operation is bound by overhead where both roofs together ask for less time than an operation takes that does nothing.
``peak_share`` is the time at the lower roof over the time that was measured: 1.0 is as fast as the machine can be.
Above 1.0, data came from a cache and not from memory, or the profile does not fit the machine that the trace is from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_vis.analysis.machine.datasheet_efficiency import roof_times
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.kernel_model import ARITHMETIC
from torch_vis.errors import UsageError
from torch_vis.graph import Column, Graph, Metrics
from torch_vis.graph.types import Array, Bools, Floats, Ints
from torch_vis.ops.families import KINDS, REAL_DTYPES, dtypes, kinds

VIEW = KINDS.index("view")
BOUND = ("none", "compute", "memory", "overhead")
"""What holds an operation back, in the order of the codes; 0 is for views, which do nothing."""


class Roofline(NamedTuple):
    """One row per operation. What is not known is NaN, and 0 in ``bound`` where ``known`` is False.

    ``intensity`` is FLOPs per byte, ``ideal_ns`` the time at the roof, ``time_ns`` what was measured, by the column
    that ``measured`` names. ``without`` are operations that arithmetic may bound, in an element type for which the
    machine has no figure: nothing is known of them.
    """

    hardware: Hardware
    measured: str
    kind: Ints
    dtype: Ints
    flops: Floats
    moved: Floats
    intensity: Floats
    ideal_ns: Floats
    time_ns: Floats
    bound: Ints
    known: Bools
    peak_share: Floats
    without: Bools

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
    >>> from torch_vis.analysis.machine.hardware import find_hardware
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
    view = kind == VIEW
    costed = view | (np.isfinite(flops) & np.isfinite(moved))
    without = costed & np.isin(kind, [KINDS.index(name) for name in ARITHMETIC])
    without &= np.array([hardware.figure_for(name) is None for name in REAL_DTYPES])[dtype]
    known = costed & ~without
    bound = np.where(compute >= memory, 1, 2)
    bound[np.nan_to_num(compute) + np.nan_to_num(memory) < hardware.overhead_ns] = 3
    bound[view | ~known] = 0
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = np.where(moved > 0, flops / moved, np.nan)
        share = np.where((took > 0) & known & ~view, ideal / took, np.nan)
    codes = bound.astype(np.int8)
    return Roofline(
        hardware, measured, kind, dtype, flops, moved, intensity, ideal, took, codes, known, share, without
    )


def _floats(column: Column) -> Floats:
    values = column.values.astype(np.float64)
    if column.known is not None:
        values[~column.known] = np.nan
    return values


class Group(NamedTuple):
    """Operations taken together: their number, time, work, time at the roof, and time by what bounds them.

    ``by_bound`` has a time for each of ``BOUND``, the first that of views. ``unknown`` operations, which took
    ``unknown_ns``, have no cost formula, or the machine no figure for their element type: the work is then what the
    others do at least, or None where there are none.
    """

    operations: int
    time_ns: float
    flops: float | None
    moved_bytes: float | None
    ideal_ns: float | None
    by_bound: tuple[float, ...]
    unknown: int
    unknown_ns: float

    @property
    def peak_share(self) -> float | None:
        """The time at the roofs over the time measured; with ``unknown`` operations it is at least this."""
        return self.ideal_ns / self.time_ns if self.time_ns > 0 and self.ideal_ns is not None else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; that of a part of the work says nothing of the whole."""
        if self.unknown or self.flops is None or not self.moved_bytes:
            return None
        return self.flops / self.moved_bytes

    @property
    def bound(self) -> str:
        """What bounds most of the time; ``"none"`` where that are views or is not known."""
        most = max(self.by_bound[1:])
        return BOUND[self.by_bound.index(most, 1)] if most > self.unknown_ns else BOUND[0]


def grouped(found: Roofline, key: Ints, count: int) -> list[Group]:
    """The sums over operations of equal key, which runs from 0 to ``count``."""

    def total(values: Array) -> list[float]:
        sums = np.bincount(key, weights=np.nan_to_num(values), minlength=count)
        return [float(part) for part in sums]

    def known_part(values: Floats) -> list[float | None]:
        """A view beside something unknown says nothing of its work: what is known of the two is not "at least 0"."""
        some = np.bincount(key[np.isfinite(values) & (found.kind != VIEW)], minlength=count) > 0
        return [
            part if any_ or not missing else None for part, any_, missing in zip(total(values), some, unknown)
        ]

    took = np.nan_to_num(found.time_ns)
    ideal = np.where(found.known, np.where(took > 0, np.nan_to_num(found.ideal_ns), 0.0), np.nan)
    number = np.bincount(key, minlength=count).tolist()
    unknown = np.bincount(key[~found.known], minlength=count).tolist()
    work = [known_part(values) for values in (found.flops, found.moved, ideal)]
    views = total(np.where(found.known & (found.bound == 0), took, 0.0))
    bounds = [views, *(total(np.where(found.bound == code, took, 0.0)) for code in range(1, len(BOUND)))]
    unknown_ns = total(np.where(found.known, 0.0, took))
    rows = zip(number, total(took), *work, zip(*bounds), unknown, unknown_ns)
    return [Group(*row) for row in rows]


def dtype_name(code: int) -> str:
    """The element type of a code."""
    return REAL_DTYPES[code]
