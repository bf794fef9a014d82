"""Two aligned runs as one graph: the graph of ``b`` with what only ``a`` had inserted where it ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_vis.graph.flow import plain_views, roots
from torch_vis.graph.graph import Graph
from torch_vis.graph.lifetimes import MemoryByUse
from torch_vis.graph.metrics import Column, Metrics
from torch_vis.graph.schema import COLUMNS, TABLES, Kind
from torch_vis.graph.types import Bools, Ints

SAME, ADDED, REMOVED, CHANGED = range(4)


class UnionGraph:
    """The union of two graphs, and for every operation whether it is the same, added, removed or changed.

    The alignment is given as arrays: for each operation, scope and value of ``a`` its counterpart in ``b``, -1 for
    none; ``changed`` says which operations of ``b`` differ from their counterparts. What ``b`` has keeps its order;
    ``node_of_a`` and ``node_of_b`` are the indices of both runs' operations in the union.
    """

    def __init__(
        self, a: Graph, b: Graph, to_b: Ints, scope_to_b: Ints, value_to_b: Ints, changed: Bools
    ) -> None:
        self.a, self.b = a, b
        self.to_b, self.scope_to_b, self.value_to_b, self.changed = to_b, scope_to_b, value_to_b, changed
        # operations of b by their index, those of a alone by ~index
        self._order = self._ordered()
        self._from_b = self._order >= 0
        indices = np.arange(len(self._order))
        self.node_of_b = np.full(len(b) + 1, len(self._order), dtype=np.int64)
        self.node_of_b[self._order[self._from_b]] = indices[self._from_b]
        self.node_of_a = np.full(len(a), -1, dtype=np.int64)
        self.node_of_a[~self._order[~self._from_b]] = indices[~self._from_b]
        matched = np.flatnonzero(to_b >= 0)
        self.node_of_a[matched] = self.node_of_b[to_b[matched]]
        columns = {name: getattr(b, name) for name in COLUMNS}
        self._scope_of_a = self._add_scopes(columns)
        self._value_of_a = self._add_values(columns)
        self._add_storages(columns)
        self._merge_nodes(columns)
        self._merge_reads_and_writes(columns)
        for name in ("comm_node", "wait_node", "resize_node"):
            columns[name] = self.node_of_b[columns[name]]
        tables = {name: [*getattr(b, name), *getattr(a, name)] for name in TABLES}
        tables["results"] = list(b.results)
        self.graph = Graph(columns, tables)

    def status(self) -> NDArray[np.int8]:
        """For each operation ``SAME``, ``ADDED``, ``REMOVED`` or ``CHANGED``."""
        status = np.full(len(self._order), ADDED, dtype=np.int8)
        matched = self.to_b[self.to_b >= 0]
        status[self.node_of_b[matched]] = np.where(self.changed[matched], CHANGED, SAME)
        status[~self._from_b] = REMOVED
        return status

    def renamed_modules(self) -> list[tuple[int, str]]:
        """Calls of modules with another name or parent in ``b``, and their paths in ``a``; not all inside them."""
        a, b, counterpart = self.a, self.b, self.scope_to_b.tolist()
        paths_a, paths_b = a.scope_paths, b.scope_paths
        renamed = []
        for scope, other in enumerate(counterpart):
            if scope == 0 or other <= 0 or a.modules[int(a.scope_module[scope])].kind != "module":
                continue
            parent_a, parent_b = int(a.scope_parent[scope]), int(b.scope_parent[other])
            before = _name_inside(paths_a[scope], paths_a[parent_a])
            after = _name_inside(paths_b[other], paths_b[parent_b])
            moved = counterpart[parent_a] != parent_b or before != after
            if moved and paths_a[scope] not in ("", paths_b[other]):
                renamed.append((other, paths_a[scope]))
        return renamed

    def metrics(self, a: Metrics, b: Metrics, compared: Sequence[str]) -> Metrics:
        """The metrics of ``b``, the ``compared`` ones of ``a`` as ``name@a``, and the status as ``difference``."""
        columns = [Column("difference", self.status().astype(np.int64))]
        indices = np.flatnonzero(self._from_b)
        columns += [self._column(name, b[name], indices) for name in b if b[name].along == "node"]
        columns += [
            self._column(name, a[name], self.node_of_a, "@a") for name in compared if name in a and name in b
        ]
        return Metrics({column.name: column for column in columns})

    def reads_of_one(self) -> tuple[list[int], list[int]]:
        """What operations of both runs read in ``a`` alone, and in ``b`` alone: operation and value in turn.

        A value that both runs computed counts as well where the operation reads it in one of them only.
        """
        reads_a, pairs_a = self._reads(self.a, self.node_of_a, self._value_of_a)
        values_b = np.arange(len(self.b.value_type))
        reads_b, pairs_b = self._reads(self.b, self.node_of_b, values_b)
        both = np.isin(self.node_of_b[: len(self.b)], self.node_of_a)
        of_a = (self.to_b[reads_a] >= 0) & ~np.isin(_keys(pairs_a), _keys(pairs_b))
        of_b = both[reads_b] & ~np.isin(_keys(pairs_b), _keys(pairs_a))
        return _in_turn(pairs_a[of_a][:, ::2]), _in_turn(pairs_b[of_b][:, ::2])

    def _reads(self, graph: Graph, node_of: Ints, value_of: Ints) -> tuple[Ints, Ints]:
        """Each reading of what an operation made: the reader in its own graph; reader, producer and value in the union."""
        views = plain_views(graph)
        values = roots(graph, views)[graph.in_value]
        producer = graph.value_producer[values]
        rows = (producer >= 0) & (graph.in_kind != Kind.SHAPE) & ~views[graph.in_node]
        reader = graph.in_node[rows]
        pairs = np.stack([node_of[reader], node_of[producer[rows]], value_of[values[rows]]], axis=1)
        return reader, pairs

    def recomputed(self) -> Bools:
        """Which scopes backward recomputed: of those that both runs have, in ``b``."""
        recomputed = np.zeros(len(self.graph.scope_call), dtype=bool)
        recomputed[self._scope_of_a[self.a.tree.recomputed]] = True
        recomputed[: len(self.b.scope_call)] = self.b.tree.recomputed
        return recomputed

    def _column(self, name: str, column: Column, indices: Ints, suffix: str = "") -> Column:
        """A metric of one run along the union; unknown for operations that this run does not have."""
        values = np.zeros(len(self._order), dtype=column.values.dtype)
        known = np.zeros(len(self._order), dtype=bool)
        values[indices] = column.values
        known[indices] = True if column.known is None else column.known
        return Column(name + suffix, values, along="before" if suffix else "node", known=known)

    def memory(self, memory: MemoryByUse) -> MemoryByUse:
        """The memory of ``b`` along the union; it stays as it is while operations of ``a`` alone run."""
        nothing = np.zeros(len(self.a.storage_bytes), dtype=np.int64)
        outside = memory.birth < 0
        start = np.bincount(memory.use[outside], memory.size_bytes[outside], minlength=len(memory.words))
        # operations of b up to each one
        before = np.cumsum(self._from_b)
        birth = np.where(memory.birth >= 0, self.node_of_b[np.maximum(memory.birth, 0)], -1)
        return MemoryByUse(
            memory.words,
            np.append(memory.use, nothing),
            np.append(memory.value, nothing - 1),
            np.append(birth, nothing - 1),
            self.graph.storage_death,
            self.graph.storage_bytes,
            np.append(memory.reuses, nothing > 0),
            np.column_stack([start.astype(np.int64), memory.during])[:, before],
        )

    def _ordered(self) -> Ints:
        """The operations of ``b``, each after the removed ones that ran before its counterpart."""
        from_a = np.full(len(self.b), -1, dtype=np.int64)
        matched = np.flatnonzero(self.to_b >= 0)
        from_a[self.to_b[matched]] = matched
        removed = np.flatnonzero(self.to_b < 0).tolist()
        order: list[int] = []
        done = 0
        for node, counterpart in enumerate(from_a.tolist()):
            while counterpart >= 0 and done < len(removed) and removed[done] < counterpart:
                order.append(~removed[done])
                done += 1
            order.append(node)
        order.extend(~node for node in removed[done:])
        return np.array(order, dtype=np.int64)

    def _merge_nodes(self, columns: dict[str, Any]) -> None:
        a, b = self.a, self.b
        removed = ~self._order[~self._from_b]

        def merged(name: str, convert: Callable[[Ints], Ints]) -> Ints:
            column = np.zeros(len(self._order), dtype=np.int64)
            column[self._from_b] = getattr(b, name)
            column[~self._from_b] = convert(getattr(a, name)[removed].astype(np.int64))
            return column

        columns["node_call"] = merged("node_call", lambda call: call + len(b.calls))
        columns["node_site"] = merged("node_site", lambda site: np.where(site >= 0, site + len(b.sites), -1))
        columns["node_phase"] = merged("node_phase", lambda phase: phase)
        columns["node_flags"] = merged("node_flags", lambda flags: flags)
        columns["node_scope"] = merged("node_scope", lambda scope: self._scope_of_a[scope])
        columns["node_api"] = merged("node_api", lambda name: np.where(name >= 0, name + len(b.names), -1))
        for name in ("node_link", "node_api_first"):
            node = merged(name, lambda node: np.where(node >= 0, self.node_of_a[node], -1))
            from_b = self._from_b & (node >= 0)
            node[from_b] = self.node_of_b[node[from_b]]
            columns[name] = node

    def _add_scopes(self, columns: dict[str, Any]) -> Ints:
        """Add the scopes that only ``a`` has; returns the index of each scope of ``a`` in the union.

        One without a counterpart becomes the scope of ``b`` with the same path and parent that is no other's
        counterpart, so that what replaced it is seen beside it; else it is a scope of its own, even if another has its
        path by now.
        """
        a, b = self.a, self.b
        counterpart = self.scope_to_b.tolist()
        taken = set(counterpart)
        free = {key: scope for scope, key in enumerate(_scope_keys(b)) if scope not in taken}
        indices: list[int] = []
        parents: list[int] = []
        modules: list[int] = []
        calls: list[int] = []
        for scope, key in enumerate(_scope_keys(a)):
            index = 0 if scope == 0 else counterpart[scope]
            parent = indices[int(a.scope_parent[scope])] if scope else 0
            if index < 0:
                index = free.get(key, -1)
                if index >= 0 and int(b.scope_parent[index]) != parent:
                    index = -1
            if index < 0:
                index = len(b.scope_call) + len(parents)
                parents.append(parent)
                modules.append(int(a.scope_module[scope]) + len(b.modules))
                calls.append(key[-1])
            indices.append(index)
        for name, more in (("scope_parent", parents), ("scope_module", modules), ("scope_call", calls)):
            columns[name] = np.concatenate([getattr(b, name), np.array(more, dtype=np.int64)])
        return np.array(indices, dtype=np.int64)

    def _add_values(self, columns: dict[str, Any]) -> Ints:
        """Add the values that only ``a`` has; returns the index of each value of ``a`` in the union."""
        a, b = self.a, self.b
        indices = self.value_to_b.astype(np.int64)
        added = np.flatnonzero(indices < 0)
        indices[added] = len(b.value_type) + np.arange(len(added))
        shifts = {
            "value_type": len(b.types),
            "value_name": len(b.names),
            "value_storage": len(b.storage_bytes),
        }
        for name in ("value_type", "value_name", "value_storage", "value_offset", "value_role"):
            column = getattr(a, name)[added].astype(np.int64)
            shifted = np.where(column >= 0, column + shifts.get(name, 0), -1)
            columns[name] = np.concatenate([getattr(b, name), shifted])
        columns["value_carries"] = np.concatenate([b.value_carries, np.full(len(added), -1)])
        columns["value_producer"] = np.full(len(columns["value_type"]), -1)
        return indices

    def _add_storages(self, columns: dict[str, Any]) -> None:
        """The memory of ``b`` by the indices of the union; that of ``a`` has no size and never lives."""
        a, b = self.a, self.b
        birth = np.where(b.storage_birth >= 0, self.node_of_b[np.maximum(b.storage_birth, 0)], -1)
        death = self.node_of_b[np.minimum(b.storage_death, len(b))]
        death = np.where(b.storage_death > len(b), len(self._order) + 1, death)
        nothing = np.zeros(len(a.storage_bytes), dtype=np.int64)
        columns["storage_bytes"] = np.concatenate([b.storage_bytes, nothing])
        columns["storage_birth"] = np.concatenate([birth, nothing - 1])
        columns["storage_death"] = np.concatenate([death, nothing + len(self._order) + 1])
        columns["storage_device"] = np.concatenate([b.storage_device, a.storage_device + len(b.devices)])

    def _merge_reads_and_writes(self, columns: dict[str, Any]) -> None:
        """The inputs and outputs of every operation, in the order of the union."""
        a, b = self.a, self.b
        for side, names in (("in", ("in_value", "in_slot", "in_kind")), ("out", ("out_value", "out_slot"))):
            start_a, start_b = (getattr(graph, f"{side}_start").astype(np.int64) for graph in (a, b))
            starts = np.concatenate([start_b, start_a + len(getattr(b, f"{side}_value"))])
            spans = np.where(self._from_b, self._order, ~self._order + len(start_b))
            start, end = starts[spans], starts[spans + 1]
            ends = np.cumsum(end - start)
            rows = np.arange(ends[-1] if len(ends) else 0) + np.repeat(end - ends, end - start)
            for name in names:
                column_a = getattr(a, name)
                if name.endswith("value"):
                    column_a = self._value_of_a[column_a]
                columns[name] = np.concatenate([getattr(b, name), column_a])[rows]
            columns[f"{side}_start"] = np.concatenate([[0], ends]).astype(np.int64)
        producer = np.repeat(np.arange(len(self._order)), np.diff(columns["out_start"]))
        columns["value_producer"][columns["out_value"]] = producer


def _scope_keys(graph: Graph) -> list[tuple[str, bool, int]]:
    """The path of each call, whether it is the run itself (which has the path of the model), and its number."""
    runs = [graph.modules[module].kind == "run" for module in graph.scope_module.tolist()]
    return list(zip(graph.scope_paths, runs, graph.scope_call.tolist()))


def _name_inside(path: str, parent: str) -> str:
    """The name of a module within its parent."""
    return path.removeprefix(f"{parent}.") if parent else path


def _keys(pairs: Ints) -> Ints:
    """One number for each pair of a reader and a producer."""
    keys: Ints = (pairs[:, 0].astype(np.int64) << 32) | pairs[:, 1]
    return keys


def _in_turn(pairs: Ints) -> list[int]:
    return [int(index) for index in np.unique(pairs, axis=0).ravel()]
