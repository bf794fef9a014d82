"""Measurements beside a graph: named columns, each with the rows it could not cover."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from torch_vis.errors import inert, no_match, shortened
from torch_vis.graph.tree import group_sums
from torch_vis.graph.types import Array, Bools, Floats, Ints

# the columns that follow from call templates and shapes, by a formula for each operator
COSTS = ("flops", "macs", "moved_bytes")


class Column:
    """One measurement for every node, value or scope; a row that is not known is None, never 0.

    >>> column = Column("flops", np.array([6, 0]), along="node", known=np.array([True, False]))
    >>> column[0], column[1], column.uncovered
    (6, None, 1)
    """

    __slots__ = ("along", "known", "name", "values")

    def __init__(self, name: str, values: Array, *, along: str = "node", known: Bools | None = None) -> None:
        self.name = name
        self.values = values
        self.along = along
        self.known = None if known is None or bool(known.all()) else known

    @property
    def known_rows(self) -> Bools:
        """Which rows are known, also where all are."""
        return np.ones(len(self.values), dtype=bool) if self.known is None else self.known

    @property
    def unknown_rows(self) -> Bools:
        """Which rows are not known."""
        return ~self.known_rows

    @property
    def uncovered(self) -> int:
        """How many rows are not known."""
        return 0 if self.known is None else int(self.unknown_rows.sum())

    def total(self) -> int | float | None:
        """The sum over the rows that are known; None if none is."""
        values = self.values if self.known is None else self.values[self.known]
        return values.sum().item() if len(values) or not len(self.values) else None

    def sums(self, group: Ints, count: int, rows: Ints | None = None) -> tuple[list[Any], Bools]:
        """The sum over each of ``count`` groups of rows, and which of the sums are too low.

        ``group`` says which group a row is in, of all rows or of the chosen ones. A group of which no row is known has
        None for a sum; one of which some are not known has a sum that is too low.

        >>> column = Column("flops", np.array([6, 4, 0]), known=np.array([True, True, False]))
        >>> column.sums(np.array([0, 1, 1]), 3)
        ([6, 4, 0], array([False,  True, False]))
        """
        values = self.values if rows is None else self.values[rows]
        if self.known is None:
            return group_sums(group, values, count).tolist(), np.zeros(count, dtype=bool)
        known = self.known if rows is None else self.known[rows]
        sums = group_sums(group[known], values[known], count)
        covered, gaps = (np.bincount(group[mask], minlength=count) > 0 for mask in (known, ~known))
        cells = [
            None if gap and not some else total for total, some, gap in zip(sums.tolist(), covered, gaps)
        ]
        return cells, gaps

    def floats(self, unknown: float = math.nan) -> Floats:
        """The rows as floats, with another number where they are not known.

        >>> Column("flops", np.array([6, 0]), known=np.array([True, False])).floats()
        array([ 6., nan])
        """
        return np.where(self.known_rows, self.values.astype(np.float64), unknown)

    def filled(self, other: Column) -> Column:
        """This column, with the rows of another where it knows none.

        >>> given = Column("flops", np.array([6, 0]), known=np.array([True, False]))
        >>> given.filled(Column("flops", np.array([5, 4])))[:]
        [6, 4]
        """
        if self.known is None:
            return self
        known = self.known | other.known_rows
        return Column(
            self.name, np.where(self.known, self.values, other.values), along=self.along, known=known
        )

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        if self.known is not None and not self.known[row]:
            return None
        return self.values[row].item()

    def __repr__(self) -> str:
        missing = f", {self.uncovered:,} not known" if self.uncovered else ""
        return f"<column {inert(shortened(self.name))} along {self.along}: {len(self):,} rows{missing}>"


Compute = Callable[[], Mapping[str, Column]]


class LazyColumns(NamedTuple):
    """Columns that are computed when one is first asked for, and recomputed when ``version()`` has changed since."""

    compute: Compute
    version: Callable[[], int] | None = None


class Metrics(Mapping[str, Column]):
    """The columns of one trace, by name.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> sorted(t.metrics)[:3]
    ['alloc_bytes', 'flops', 'free_bytes']
    >>> t.metrics["alloc_bytes"].total()
    8
    """

    __slots__ = ("_columns", "_later", "_versions")

    def __init__(
        self,
        columns: Mapping[str, Column] | None = None,
        later: Mapping[str, LazyColumns] | None = None,
        seen: Mapping[str, int] | None = None,
    ) -> None:
        self._columns = dict(columns or {})
        self._later = dict(later or {})
        # the version at which each column was computed
        self._versions = dict(seen or {})

    def __getitem__(self, name: str) -> Column:
        if name in self._later:
            self._compute(self._later[name], name)
        try:
            return self._columns[name]
        except KeyError:
            raise no_match("metric", name, [*self]) from None

    def __getstate__(self) -> tuple[Any, ...]:
        """All columns as they are now: how they are made does not go with them to another process."""
        return {name: self[name] for name in self}, {}, {}

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._columns, self._later, self._versions = state

    def _compute(self, later: LazyColumns, name: str) -> None:
        """Compute a column, and those that are computed with it, unless it is there and up to date."""
        version = 0 if later.version is None else later.version()
        if name in self._columns and self._versions.get(name) == version:
            return
        for column in later.compute().values():
            if self._later.get(column.name) is later:
                self._columns[column.name], self._versions[column.name] = column, version

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or the default where there is none of that name."""
        if name not in self:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns or name in self._later

    def __iter__(self) -> Iterator[str]:
        return iter({**self._columns, **self._later})

    def __len__(self) -> int:
        return len({**self._columns, **self._later})

    def with_column(self, column: Column) -> Metrics:
        """These columns and one more; the original is left as it is."""
        others = {name: later for name, later in self._later.items() if name != column.name}
        return Metrics({**self._columns, column.name: column}, others, self._versions)

    def with_later(
        self, names: Iterable[str], compute: Compute, *, version: Callable[[], int] | None = None
    ) -> Metrics:
        """These columns, and others that ``compute`` makes at the first use of one of them.

        They are made again when ``version()`` has changed. With a version, ``compute`` also replaces a column that is
        there but has unknown rows, and has to keep the rows that are known.

        >>> metrics = Metrics().with_later(["flops"], lambda: {"flops": Column("flops", np.array([6]))})
        >>> metrics["flops"].total()
        6
        """
        later, columns = LazyColumns(compute, version), self._columns
        computed = [
            name for name in names if name not in columns or (version is not None and columns[name].uncovered)
        ]
        return Metrics(columns, {**self._later, **dict.fromkeys(computed, later)}, self._versions)

    def at_hand(self) -> Metrics:
        """The columns that exist already: what was measured, and what has been computed since."""
        return Metrics(self._columns)

    @property
    def nbytes(self) -> int:
        """Bytes that the columns hold."""
        return sum(column.values.nbytes for column in self._columns.values())

    def __repr__(self) -> str:
        return "\n".join(repr(column) for column in self.values()) or "<no metrics>"


class MetricInfo(NamedTuple):
    """How a metric is shown to a person: its name in words, its unit, and whether its figures may be added up."""

    label: str
    unit: str = ""  # "ns", "B", "FLOP", "count" (1.5 K), "share" (0 to 1); "" for a plain number
    is_summed: bool = True  # the figures of several operations may be added up
    is_heat: bool = True  # boxes may be coloured by the sum of it
    heat_label: str = ""  # what it is called there, if not by its label
    is_rare: bool = False  # most operations have none, and it is shown for the others only
    difference_of: str = ""  # in a comparison, the metric of which this is B − A


def _state(label: str, unit: str = "") -> MetricInfo:
    """A metric that describes a state or a moment, so that figures of several operations are not added up."""
    return MetricInfo(label, unit, is_summed=False, is_heat=False)


# A metric that is not here is called by its name, has the unit that the name ends in, and may be added up.
METRIC_INFO: dict[str, MetricInfo] = {
    "start_ns": _state("starts at", "ns"),
    "time_ns": MetricInfo("time", "ns", heat_label="time of operations"),
    "time_low_ns": _state("time, lowest", "ns"),
    "time_high_ns": _state("time, highest", "ns"),
    "waited_ns": MetricInfo("waited for other ranks", "ns", heat_label="waited"),
    "kernel_start_ns": _state("kernels start at", "ns"),
    "kernel_ns": MetricInfo("time of its kernels", "ns", heat_label="time of kernels"),
    "kernel_low_ns": _state("kernels, lowest", "ns"),
    "kernel_high_ns": _state("kernels, highest", "ns"),
    "alloc_bytes": MetricInfo("memory allocated", "B"),
    "free_bytes": MetricInfo("memory freed", "B", is_heat=False),
    "live_bytes": _state("memory alive after it", "B"),
    "flops": MetricInfo("FLOPs", "FLOP"),
    "macs": MetricInfo("multiply-adds", "count"),
    "moved_bytes": MetricInfo("bytes accessed", "B"),
    "parameters": MetricInfo("parameters", "count"),
    "norm": _state("norm of the result"),
    "nans": MetricInfo("NaN values", is_rare=True),
    "infs": MetricInfo("infinite values", is_rare=True),
    "units": MetricInfo("units", is_heat=False, is_rare=True),
    "dead_units": MetricInfo("dead units", is_rare=True),
    "saturated_units": MetricInfo("saturated units", is_rare=True),
    "lowest": _state("lowest number"),
    "highest": _state("highest number"),
    "given_nans": _state("NaN values before the run"),
    "given_infs": _state("infinite values before the run"),
    "bound": _state("bound by"),
    "peak_share": _state("share of the peak reached", "share"),
    "relevance": _state("relevance"),
    "scope_start_ns": _state("call starts at", "ns"),
    "scope_time_ns": _state("time of the call", "ns"),
    "scope_time_low_ns": _state("call, lowest", "ns"),
    "scope_time_high_ns": _state("call, highest", "ns"),
    "scope_self_ns": MetricInfo("self time of the call", "ns", is_heat=False),
    "scope_host_ns": _state("of it Python", "ns"),
    "difference": _state("difference"),
    "difference_ns": MetricInfo("time, B − A", "ns", difference_of="time_ns"),
    "difference_bytes": MetricInfo("memory, B − A", "B", difference_of="alloc_bytes"),
    "difference_flops": MetricInfo("FLOPs, B − A", "FLOP", difference_of="flops"),
    "difference_moved_bytes": MetricInfo("bytes accessed, B − A", "B", difference_of="moved_bytes"),
    "difference_parameters": MetricInfo("parameters, B − A", "count", difference_of="parameters"),
}


class ElementStats(NamedTuple):
    """Figures over the finite elements of a tensor, and how many elements are not finite.

    Of complex numbers it is the magnitudes. All figures are None where no element is finite. ``std`` is that of the
    elements as they are, not an estimate for others.
    """

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    zeros: int
    nans: int
    infs: int
    numel: int
