"""The only way to make a graph: interned tables row by row, bulk columns whole."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from torch_vis.graph.call import Call
from torch_vis.graph.graph import Graph
from torch_vis.graph.rows import Module, ResultRow, Site, TensorType
from torch_vis.graph.schema import COLUMNS
from torch_vis.graph.types import Ints

Record = TypeVar("Record", bound=Hashable)


class Table(Generic[Record]):
    """Records kept once each, numbered in the order in which they came.

    >>> names = Table()
    >>> names.intern("a"), names.intern("b"), names.intern("a"), names.rows
    (0, 1, 0, ['a', 'b'])
    """

    __slots__ = ("_numbers", "rows")

    def __init__(self) -> None:
        self.rows: list[Record] = []
        self._numbers: dict[Record, int] = {}

    def intern(self, record: Record) -> int:
        """The record's number, new or old."""
        number = self._numbers.get(record)
        if number is None:
            number = self._numbers[record] = len(self.rows)
            self.rows.append(record)
        return number

    def __len__(self) -> int:
        return len(self.rows)


class GraphBuilder:
    """Collects the tables and columns of a graph and verifies them once, in ``build``.

    Calls are appended and not interned by value: ``1``, ``1.0`` and ``True`` are equal in Python and different to an
    operator, so the capture decides which calls are the same.

    >>> builder = GraphBuilder()
    >>> len(builder.build())
    0
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.types: Table[TensorType] = Table()
        self.sites: Table[Site] = Table()
        self.modules: Table[Module] = Table()
        self.names: Table[str] = Table()
        self.devices: Table[str] = Table()
        self.results: list[ResultRow] = []
        self._columns: dict[str, Ints] = {}

    def set(self, **columns: Ints | Sequence[int]) -> None:
        """Set whole columns by name."""
        for name, column in columns.items():
            spec = COLUMNS[name]
            self._columns[name] = np.asarray(column, dtype=spec.dtype)

    def build(self) -> Graph:
        """The graph; raises ``GraphError`` if the columns break a rule."""
        columns: dict[str, Ints] = {}
        for name, spec in COLUMNS.items():
            if name in self._columns:
                columns[name] = self._columns[name]
            else:
                columns[name] = np.zeros(1 if spec.along.endswith("+1") else 0, dtype=spec.dtype)
        if not len(columns["scope_call"]) and "scope_call" not in self._columns:
            columns["scope_parent"] = np.array([-1], dtype=np.int32)
            columns["scope_module"] = np.array(
                [self.modules.intern(Module("", "run", "run"))], dtype=np.int32
            )
            columns["scope_call"] = np.array([0], dtype=np.int32)
        graph = Graph(columns, self._tables())
        graph.check()
        return graph

    def _tables(self) -> Mapping[str, Sequence[Any]]:
        return {
            "calls": self.calls,
            "types": self.types.rows,
            "sites": self.sites.rows,
            "modules": self.modules.rows,
            "names": self.names.rows,
            "devices": self.devices.rows,
            "results": self.results,
        }
