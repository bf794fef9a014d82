"""The graph itself: immutable columns, interned tables, and the edges that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from torch_vis.graph.call import Call
from torch_vis.graph.rows import Module, Node, Result, ResultRow, Row, Scope, Site, TensorType, Value
from torch_vis.graph.schema import COLUMNS, TABLES, Kind
from torch_vis.graph.text import many
from torch_vis.graph.types import Ints

RowType = TypeVar("RowType", bound=Row)


class Rows(Sequence[RowType], Generic[RowType]):
    """Rows of one kind as a sequence, each made when it is asked for.

    >>> import torch, torch_vis as tv
    >>> nodes = tv.trace(torch.nn.ReLU(), torch.ones(2)).graph.nodes
    >>> len(nodes), nodes[0].name
    (1, 'relu')
    """

    __slots__ = ("_graph", "_row", "numbers")

    def __init__(self, graph: Graph, row: type[RowType], numbers: Ints | range) -> None:
        self._graph = graph
        self._row = row
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return Rows(self._graph, self._row, self.numbers[item])
        return self._row(self._graph, int(self.numbers[item]))

    def __iter__(self) -> Iterator[RowType]:
        for number in self.numbers:
            yield self._row(self._graph, int(number))

    def __repr__(self) -> str:
        shown = ",\n ".join(repr(row) for row in self[:20])
        rest = f",\n … {len(self) - 20:,} more" if len(self) > 20 else ""
        return f"[{shown}{rest}]"


class Graph:
    """Everything one run did, as columns.

    A graph is made by ``GraphBuilder`` and never changed. Bulk data is numpy (``graph.node_scope``), repeated
    records are interned tables (``graph.calls``), and ``graph.nodes``, ``graph.values`` and ``graph.scopes`` give rows
    to read. Edges are derived: nothing is kept in two places.

    >>> import torch, torch_vis as tv
    >>> graph = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3)).graph
    >>> [node.name for node in graph.nodes]
    ['t', 'addmm', 'relu']
    >>> [node.name for node in graph.nodes[1].users]
    ['relu']
    """

    node_call: Ints
    node_scope: Ints
    node_site: Ints
    node_link: Ints
    node_phase: Ints
    node_flags: Ints
    in_start: Ints
    out_start: Ints
    in_value: Ints
    in_slot: Ints
    in_kind: Ints
    out_value: Ints
    out_slot: Ints
    value_producer: Ints
    value_type: Ints
    value_storage: Ints
    value_offset: Ints
    value_carries: Ints
    value_name: Ints
    value_role: Ints
    storage_bytes: Ints
    storage_birth: Ints
    storage_death: Ints
    storage_device: Ints
    scope_parent: Ints
    scope_module: Ints
    scope_call: Ints
    result_start: Ints
    result_value: Ints
    result_kind: Ints
    calls: tuple[Call, ...]
    types: tuple[TensorType, ...]
    sites: tuple[Site, ...]
    modules: tuple[Module, ...]
    names: tuple[str, ...]
    devices: tuple[str, ...]
    results: tuple[ResultRow, ...]

    def __init__(self, columns: Mapping[str, Ints], tables: Mapping[str, Sequence[Any]]) -> None:
        for name, spec in COLUMNS.items():
            column = np.ascontiguousarray(columns[name], dtype=spec.dtype)
            column.flags.writeable = False
            self.__dict__[name] = column
        for name in TABLES:
            self.__dict__[name] = tuple(tables[name])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a graph is immutable; {name!r} cannot be set")

    def __len__(self) -> int:
        return len(self.node_call)

    def __repr__(self) -> str:
        parts = ((self, "operation"), (self.value_type, "value"), (self.scope_call, "scope"))
        return f"<Graph: {', '.join(many(len(rows), thing) for rows, thing in parts)}>"

    @property
    def nodes(self) -> Rows[Node]:
        """Every operation, in execution order."""
        return Rows(self, Node, range(len(self.node_call)))

    @property
    def values(self) -> Rows[Value]:
        """Every version of every tensor, in the order in which they appeared."""
        return Rows(self, Value, range(len(self.value_type)))

    @property
    def scopes(self) -> Rows[Scope]:
        """Every call of a module; the first is the whole run."""
        return Rows(self, Scope, range(len(self.scope_call)))

    @property
    def outcomes(self) -> Rows[Result]:
        """What the run gave back: outputs, gradients, changed state."""
        return Rows(self, Result, range(len(self.results)))

    @property
    def inputs(self) -> Rows[Value]:
        """The values that came from outside: inputs, parameters, buffers, constants."""
        return Rows(self, Value, np.flatnonzero(self.value_producer < 0))

    def find(
        self,
        path: str | None = None,
        *,
        op: str | None = None,
        phase: str | None = None,
        dtype: str | None = None,
        flag: str | None = None,
    ) -> Rows[Node]:
        """The operations that match every pattern given.

        ``path`` is a glob over module paths (a module's own operations and those of the modules inside it),
        ``op`` a glob over operator names with or without namespace.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
        >>> [node.name for node in t.graph.find("0", op="add*", phase="forward")]
        ['addmm']
        """
        from torch_vis.graph.query import find

        return Rows(self, Node, find(self, path=path, op=op, phase=phase, dtype=dtype, flag=flag))

    def check(self) -> None:
        """Verify the graph against its own rules; raises ``GraphError`` that names the offending node.

        >>> import torch, torch_vis as tv
        >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).graph.check()
        """
        from torch_vis.graph.verify import check

        check(self)

    def input_span(self, node: int) -> tuple[int, int]:
        """The rows of ``in_value`` that belong to a node."""
        return int(self.in_start[node]), int(self.in_start[node + 1])

    def output_span(self, node: int) -> tuple[int, int]:
        """The rows of ``out_value`` that belong to a node."""
        return int(self.out_start[node]), int(self.out_start[node + 1])

    @cached_property
    def in_node(self) -> Ints:
        """For each row of ``in_value``, the node that reads it."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.in_start))

    @cached_property
    def first_output(self) -> Ints:
        """For each node the value that it returns first, or else the first that it writes; -1 if it makes none."""
        found = np.full(len(self), -1, dtype=np.int64)
        made_by = np.repeat(np.arange(len(self)), np.diff(self.out_start))
        for chosen in (self.out_slot == -1, self.out_slot == 0):  # the later one counts
            found[made_by[chosen]] = self.out_value[chosen]
        some = (np.diff(self.out_start) > 0) & (found < 0)
        found[some] = self.out_value[self.out_start[:-1][some]]
        return found

    def edges(self, *, shape: bool = True) -> tuple[Ints, Ints, Ints, Ints]:
        """Every dependence of a node on a node: source, target, value and kind, as four columns.

        A partial write's dependence on the version it was laid over is an edge of kind ``WHOLE``. With
        ``shape=False``, edges that carry only geometry are left out.

        >>> import torch, torch_vis as tv
        >>> graph = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).graph
        >>> source, target, value, kind = graph.edges()
        >>> [(graph.nodes[s].name, graph.nodes[t].name) for s, t in zip(source, target)]
        [('t', 'addmm')]
        """
        source = self.value_producer[self.in_value]
        keep = source >= 0
        if not shape:
            keep &= self.in_kind != Kind.SHAPE
        parts = [(source[keep], self.in_node[keep], self.in_value[keep], self.in_kind[keep])]
        over = np.flatnonzero(self.value_carries >= 0)
        if len(over):
            below = self.value_carries[over]
            source, target = self.value_producer[below], self.value_producer[over]
            keep = (source >= 0) & (source != target)
            kind = np.full(int(keep.sum()), Kind.WHOLE, dtype=np.int8)
            parts.append((source[keep], target[keep], below[keep], kind))
        source, target, value, kinds = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return source, target, value, kinds

    def producers(self, node: int) -> Ints:
        """The nodes whose bytes a node reads, each once, in order."""
        start, stop = self.input_span(node)
        sources = self.value_producer[self.in_value[start:stop][self.in_kind[start:stop] != Kind.SHAPE]]
        return np.unique(sources[sources >= 0])

    def users(self, node: int) -> Ints:
        """The nodes that read what a node makes, each once, in order."""
        start, stop = self.output_span(node)
        found = [self.value_users(int(value)) for value in self.out_value[start:stop]]
        return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int32)

    def value_users(self, value: int) -> Ints:
        """The nodes that take a value, in order."""
        order, start = self._readers
        return np.unique(self.in_node[order[start[value] : start[value + 1]]])

    @cached_property
    def _readers(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.in_value, kind="stable").astype(np.int32)
        counts = np.bincount(self.in_value, minlength=len(self.value_type))
        return order, np.concatenate([[0], np.cumsum(counts)])

    def ancestors(self, values: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
        """Everything that the given ``(value, kind)`` pairs depend on: a mask of nodes and a mask of values.

        Only bytes count: a reader of one column of a buffer does not depend on a write to another.

        >>> import torch, torch_vis as tv
        >>> graph = tv.trace(lambda x, y: (x + 1, y * 2), torch.ones(2), torch.ones(2)).graph
        >>> nodes, _ = graph.ancestors(graph.outcomes[0].sources())
        >>> [node.name for node, used in zip(graph.nodes, nodes) if used]
        ['add']
        """
        nodes = np.zeros(len(self), dtype=bool)
        taken = np.zeros(len(self.value_type), dtype=bool)
        whole = np.zeros(len(self.value_type), dtype=bool)
        stack = [(value, kind) for value, kind in values if kind != Kind.SHAPE]
        while stack:
            value, kind = stack.pop()
            if kind == Kind.WHOLE and not whole[value]:
                whole[value] = True
                carried = int(self.value_carries[value])
                if carried >= 0:
                    stack.append((carried, Kind.WHOLE))
            if taken[value]:
                continue
            taken[value] = True
            node = int(self.value_producer[value])
            if node < 0 or nodes[node]:
                continue
            nodes[node] = True
            for row in range(*self.input_span(node)):
                if self.in_kind[row] != Kind.SHAPE:
                    stack.append((int(self.in_value[row]), int(self.in_kind[row])))
        return nodes, taken

    @cached_property
    def scope_paths(self) -> tuple[str, ...]:
        """The module path of every scope."""
        paths = [module.path for module in self.modules]
        return tuple(paths[module] for module in self.scope_module)

    @property
    def nbytes(self) -> int:
        """Bytes that the columns hold."""
        return sum(self.__dict__[name].nbytes for name in COLUMNS)
