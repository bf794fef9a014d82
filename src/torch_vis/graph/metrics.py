"""Measurements beside a graph: named columns, each with the rows it could not cover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_vis.errors import no_match


class Column:
    """One measurement for every node, value or scope; a row that is not known is None, never 0.

    >>> column = Column("flops", np.array([6, 0]), along="node", known=np.array([True, False]))
    >>> column[0], column[1], column.uncovered
    (6, None, 1)
    """

    __slots__ = ("along", "known", "name", "values")

    def __init__(
        self, name: str, values: NDArray[Any], *, along: str = "node", known: NDArray[np.bool_] | None = None
    ) -> None:
        self.name = name
        self.values = values
        self.along = along
        self.known = None if known is None or bool(known.all()) else known

    @property
    def uncovered(self) -> int:
        """How many rows are not known."""
        return 0 if self.known is None else int((~self.known).sum())

    def total(self) -> int | float | None:
        """The sum over the rows that are known; None if none is."""
        values = self.values if self.known is None else self.values[self.known]
        return values.sum().item() if len(values) or not len(self.values) else None

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
        return f"<column {self.name} along {self.along}: {len(self):,} rows{missing}>"


class Metrics(Mapping[str, Column]):
    """The columns of one trace, by name.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> sorted(t.metrics)[:2]
    ['alloc_bytes', 'free_bytes']
    >>> t.metrics["alloc_bytes"].total()
    8
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Column] | None = None) -> None:
        self._columns = dict(columns or {})

    def __getitem__(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            raise no_match("metric", name, self._columns) from None

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def with_column(self, column: Column) -> Metrics:
        """These columns and one more; the original is left as it is."""
        return Metrics({**self._columns, column.name: column})

    @property
    def nbytes(self) -> int:
        """Bytes that the columns hold."""
        return sum(column.values.nbytes for column in self._columns.values())

    def __repr__(self) -> str:
        return "\n".join(repr(column) for column in self._columns.values()) or "<no metrics>"
