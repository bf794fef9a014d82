"""The columns of a graph, and what follows from them: edges, users, ancestors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from torch_vis.graph.call import Call
from torch_vis.graph.schema import (
    COLUMNS,
    LATER_TABLES,
    TABLES,
    Kind,
    Module,
    Placement,
    RankGroup,
    ResultRow,
    Site,
    TensorType,
)
from torch_vis.graph.text import many
from torch_vis.graph.tree import ScopeTree
from torch_vis.graph.types import Bools, Ints


class Columns:
    """Everything one run did, as immutable columns and interned tables; ``Graph`` adds rows to read."""

    node_call: Ints
    node_scope: Ints
    node_site: Ints
    node_link: Ints
    node_phase: Ints
    node_flags: Ints
    node_api: Ints
    node_api_first: Ints
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
    comm_node: Ints
    comm_group: Ints
    comm_seq: Ints
    comm_peer: Ints
    comm_tag: Ints
    wait_node: Ints
    wait_comm: Ints
    resize_storage: Ints
    resize_node: Ints
    resize_bytes: Ints
    placed_value: Ints
    placed_how: Ints
    calls: tuple[Call, ...]
    types: tuple[TensorType, ...]
    sites: tuple[Site, ...]
    modules: tuple[Module, ...]
    names: tuple[str, ...]
    devices: tuple[str, ...]
    results: tuple[ResultRow, ...]
    groups: tuple[RankGroup, ...]
    placements: tuple[Placement, ...]

    def __init__(self, columns: Mapping[str, Ints], tables: Mapping[str, Sequence[Any]]) -> None:
        rows = {COLUMNS[name].along: len(column) for name, column in columns.items() if name in COLUMNS}
        for name, spec in COLUMNS.items():
            given = columns.get(name)
            if given is None and spec.default is not None:
                given = np.full(rows.get(spec.along, 0), spec.default, dtype=spec.dtype)
            column = np.ascontiguousarray(columns[name] if given is None else given, dtype=spec.dtype)
            column.flags.writeable = False
            self.__dict__[name] = column
        for name in TABLES:
            self.__dict__[name] = tuple(tables.get(name, ()) if name in LATER_TABLES else tables[name])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a graph is immutable; {name!r} cannot be set")

    def __len__(self) -> int:
        return len(self.node_call)

    def __repr__(self) -> str:
        parts = ((self, "operation"), (self.value_type, "value"), (self.scope_call, "scope"))
        return f"<{type(self).__name__}: {', '.join(many(len(rows), noun) for rows, noun in parts)}>"

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
    def out_node(self) -> Ints:
        """For each row of ``out_value``, the node that makes it."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.out_start))

    @cached_property
    def first_output(self) -> Ints:
        """For each node its first returned value, else the first that it writes; -1 without outputs."""
        first = np.full(len(self), -1, dtype=np.int64)
        # the later one counts
        for chosen in (self.out_slot == -1, self.out_slot == 0):
            first[self.out_node[chosen]] = self.out_value[chosen]
        others = (np.diff(self.out_start) > 0) & (first < 0)
        first[others] = self.out_value[self.out_start[:-1][others]]
        return first

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
        result = [self.value_users(int(value)) for value in self.out_value[start:stop]]
        return np.unique(np.concatenate(result)) if result else np.empty(0, dtype=np.int32)

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
    def tree(self) -> ScopeTree:
        """The calls of modules as a tree: depth, what runs inside what, sums over it, recomputed calls."""
        return ScopeTree(self)

    @cached_property
    def scope_paths(self) -> tuple[str, ...]:
        """The module path of every scope."""
        paths = [module.path for module in self.modules]
        return tuple(paths[module] for module in self.scope_module)

    def operator_counts(self, chosen: Bools | None = None) -> list[tuple[str, int]]:
        """The operators of the chosen nodes, or of all, each with how many call it, the most frequent first.

        >>> import torch, torch_vis as tv
        >>> graph = tv.trace(lambda x: (x + x).relu() + x, torch.ones(2)).graph
        >>> graph.operator_counts()
        [('aten::add.Tensor', 2), ('aten::relu', 1)]
        """
        calls = self.node_call if chosen is None else self.node_call[chosen]
        return Counter(self.calls[call].op for call in calls.tolist()).most_common()

    @property
    def nbytes(self) -> int:
        """Bytes that the columns hold."""
        return sum(self.__dict__[name].nbytes for name in COLUMNS)
