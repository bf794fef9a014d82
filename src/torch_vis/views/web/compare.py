"""The page of a comparison: both runs as one graph, with what was added, removed and changed, and the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis.graph import Column, Graph, Metrics
from torch_vis.graph.files import PathLike, replacing
from torch_vis.graph.metrics import METRIC_INFO
from torch_vis.graph.recomputed import recomputed_scopes
from torch_vis.graph.schema import COLUMNS, TABLES, Flag, Kind, Phase
from torch_vis.graph.uses import MemoryByUse
from torch_vis.views.breaks import Breaks
from torch_vis.views.web.page import page
from torch_vis.views.web.parameters import looked_through, parameters, sources
from torch_vis.views.web.payload import payload, plain_meta

Parts = tuple[Graph, Metrics, Sequence[str], Mapping[str, Any]]
SAME, ADDED, REMOVED, CHANGED = range(4)
# Of these metrics, what A came to is in the page as well.
COMPARED = tuple(info.difference_of for info in METRIC_INFO.values() if info.difference_of)


def save_comparison(
    path: PathLike,
    a: Parts,
    b: Parts,
    found: Any,
    *,
    names: tuple[str, str] | None = None,
    words: Mapping[int, Sequence[str]] | None = None,
) -> None:
    """Write a page that shows two runs laid over one another; ``a`` is the earlier one.

    Each is ``(graph, metrics, limits, meta)``; ``found`` says for each operation of ``a`` which one of ``b`` it became
    (``to_b``), and which of ``b`` differ (``changed``); ``words`` says of operations of ``b`` what differs.
    """
    title, tables, columns = comparison(a, b, found, names=names, words=words)
    with replacing(path) as file:
        file.write(page(title, tables, columns).encode("utf-8", "backslashreplace"))


def comparison(
    a: Parts,
    b: Parts,
    found: Any,
    *,
    names: tuple[str, str] | None = None,
    words: Mapping[int, Sequence[str]] | None = None,
) -> tuple[str, Mapping[str, Any], str]:
    """Title, tables and columns of the page."""
    one, two = names or tuple(str(parts[3].get("model") or "run") for parts in (a, b))
    title = f"{one} → {two}" if one != two else f"{one}: A → B"
    union = Union(a[0], b[0], found)
    status = union.status()
    metrics = union.metrics(_measured(a), _measured(b), status)
    counts = {
        "the same": int((status == SAME).sum()),
        "added (only in B)": int((status == ADDED).sum()),
        "removed (only in A)": int((status == REMOVED).sum()),
        "changed": int((status == CHANGED).sum()),
    }
    notes = [
        "Operations belong together by structure: modules by name or by what they do, operations by their order. "
        "Differences are B − A: an operation that is only in one of them counts with all that it takes. "
        "Figures that stand alone, and the memory and time lines, are those of B."
    ]
    limits = [f"A: {text}" for text in a[2]] + [f"B: {text}" for text in b[2]]
    meta = {**b[3], "model": title}
    sides = [_side(one, a), _side(two, b)]
    more = {
        "compare": {
            "a": one,
            "b": two,
            "counts": counts,
            "notes": notes,
            "sides": sides,
            "changes": union.changes(words or {}),
            "was": union.was(),
        },
        "breaks": [vars(row) for row in Breaks(b[3].get("program"))],
        "read_before": union.read_before(),
    }
    return title, *payload(union.graph, metrics, limits, meta, recomputed=union.recomputed(), **more)


def _measured(parts: Parts) -> Metrics:
    return parts[1].with_column(parameters(parts[0]))


def _side(name: str, parts: Parts) -> dict[str, Any]:
    """What one of the two runs comes to by itself."""
    graph, metrics, _, meta = parts
    totals = {}
    for metric in ("time_ns", "alloc_bytes", "flops", "moved_bytes"):
        if metric in metrics:
            totals[metric] = [metrics[metric].total(), metrics[metric].uncovered]
    counts = np.bincount(graph.node_phase, minlength=len(Phase))
    again = recomputed_scopes(graph)
    return {
        "name": name,
        "phases": {phase.name.lower(): int(counts[phase]) for phase in Phase if counts[phase]},
        "operations": len(graph),
        "tensors": len(graph.value_type),
        "calls": sum(scope.kind == "module" and not again[scope.index] for scope in graph.scopes),
        "recomputed": int((graph.node_flags & Flag.RECOMPUTE != 0).sum()),
        "peak_bytes": _peak(metrics),
        "totals": totals,
        "meta": plain_meta(meta),
    }


def _peak(metrics: Metrics) -> int | None:
    """The most that was alive at once; what an operation frees is there until it has run."""
    if "live_bytes" not in metrics or not len(metrics["live_bytes"]):
        return None
    live = metrics["live_bytes"]
    alive = live.values + (metrics["free_bytes"].values if "free_bytes" in metrics else 0)
    alive = alive if live.known is None else alive[live.known]
    return int(alive.max()) if len(alive) else None


class Union:
    """The graph of ``b`` with what only ``a`` had put where it was."""

    def __init__(self, a: Graph, b: Graph, found: Any) -> None:
        self.a, self.b, self.found = a, b, found
        self.removed = np.flatnonzero(found.to_b < 0)
        self.order = self._order()  # nodes of b, and ~node for those of a
        self.place_b = np.full(len(b) + 1, len(self.order), dtype=np.int64)
        self.place_a = np.full(len(a), -1, dtype=np.int64)
        places = np.arange(len(self.order))
        self.place_b[self.order[self.order >= 0]] = places[self.order >= 0]
        self.place_a[~self.order[self.order < 0]] = places[self.order < 0]
        self.graph = self._graph()

    def status(self) -> Any:
        """For each operation whether it is the same, added, removed or changed."""
        found = np.full(len(self.order), ADDED, dtype=np.int8)
        matched = self.found.to_b[self.found.to_b >= 0]
        found[self.place_b[matched]] = np.where(self.found.changed[matched], CHANGED, SAME)
        found[self.place_a[self.removed]] = REMOVED
        return found

    def changes(self, words: Mapping[int, Sequence[str]]) -> dict[str, Any]:
        """What differs in which operation: every text once, and each operation with the numbers of its texts."""
        texts: dict[str, int] = {}
        rows = [
            [int(self.place_b[node]), *(texts.setdefault(text, len(texts)) for text in told)]
            for node, told in words.items()
            if told
        ]
        return {"texts": list(texts), "rows": sorted(rows)}

    def was(self) -> list[tuple[int, str]]:
        """Calls of modules with another name or place in ``b``, and the path that they had; not all that is in them."""
        a, b, became = self.a, self.b, self.found.scope_to_b.tolist()
        paths, others = a.scope_paths, b.scope_paths
        found = []
        for scope, at in enumerate(became):
            if scope == 0 or at <= 0 or a.modules[int(a.scope_module[scope])].kind != "module":
                continue
            above, there = int(a.scope_parent[scope]), int(b.scope_parent[at])
            before, after = _below(paths[scope], paths[above]), _below(others[at], others[there])
            if paths[scope] not in ("", others[at]) and (became[above] != there or before != after):
                found.append((at, paths[scope]))
        return found

    def metrics(self, a: Metrics, b: Metrics, status: Any) -> Metrics:
        """The metrics of ``b``, those of ``a`` as ``name@a``, and the status of every operation."""
        inside = self.order >= 0
        columns = [Column("difference", status.astype(np.int64))]
        columns += [
            self._column(name, b[name], np.flatnonzero(inside)) for name in b if b[name].along == "node"
        ]
        where = np.where(self.found.to_b >= 0, self.place_b[self.found.to_b], self.place_a)
        columns += [self._column(name, a[name], where, "@a") for name in COMPARED if name in a and name in b]
        memory = self._memory(b.memory)
        return Metrics({column.name: column for column in columns}, memory=memory)

    def _memory(self, memory: MemoryByUse | None) -> MemoryByUse | None:
        """The memory of ``b`` in the new numbers; while what only ``a`` had runs, it stays as it was."""
        if memory is None:
            return None
        more, columns = np.zeros(len(self.a.storage_bytes), dtype=np.int64), self.graph
        outside = memory.birth < 0
        start = np.bincount(memory.use[outside], memory.size_bytes[outside], minlength=len(memory.words))
        before = np.cumsum(self.order >= 0)  # operations of b up to there
        birth = np.where(memory.birth >= 0, self.place_b[np.maximum(memory.birth, 0)], -1)
        return MemoryByUse(
            memory.words,
            np.append(memory.use, more),
            np.append(memory.value, more - 1),
            np.append(birth, more - 1),
            columns.storage_death,
            columns.storage_bytes,
            np.column_stack([start.astype(np.int64), memory.during])[:, before],
        )

    def read_before(self) -> list[int]:
        """What operations of both read in ``a`` of what only ``a`` made: operation and value in turn."""
        a, to_b = self.a, self.found.to_b
        gone = np.append(to_b < 0, False)
        views = looked_through(a)
        values = sources(a, views)[a.in_value]
        lost = (to_b[a.in_node] >= 0) & gone[a.value_producer[values]]
        lost &= (a.in_kind != Kind.SHAPE) & ~views[a.in_node]
        pairs = np.stack([self.place_b[to_b[a.in_node[lost]]], self.value_of[values[lost]]], axis=1)
        return np.unique(pairs, axis=0).ravel().tolist()

    def recomputed(self) -> Any:
        """Which calls backward ran again: of those that both made, in ``b``."""
        found = np.zeros(len(self.graph.scope_call), dtype=bool)
        found[self.scope_of[recomputed_scopes(self.a)]] = True
        found[: len(self.b.scope_call)] = recomputed_scopes(self.b)
        return found

    def _column(self, name: str, column: Column, where: Any, suffix: str = "") -> Column:
        """A metric in the new order; what is not in that run has none."""
        values = np.zeros(len(self.order), dtype=column.values.dtype)
        known = np.zeros(len(self.order), dtype=bool)
        values[where] = column.values
        known[where] = True if column.known is None else column.known
        return Column(name + suffix, values, along="node" if not suffix else "before", known=known)

    def _order(self) -> Any:
        """What only ``a`` had comes before the next operation that both have."""
        order: list[int] = []
        from_b = np.full(len(self.b), -1, dtype=np.int64)
        matched = np.flatnonzero(self.found.to_b >= 0)
        from_b[self.found.to_b[matched]] = matched
        at, removed = 0, self.removed.tolist()
        for node, one in enumerate(from_b.tolist()):
            while one >= 0 and at < len(removed) and removed[at] < one:
                order.append(~removed[at])
                at += 1
            order.append(node)
        order.extend(~node for node in removed[at:])
        return np.array(order, dtype=np.int64)

    def _graph(self) -> Graph:
        a, b = self.a, self.b
        tables = {name: [*getattr(b, name), *getattr(a, name)] for name in TABLES}
        tables["results"] = list(b.results)
        columns = {name: getattr(b, name) for name in COLUMNS}
        scope_of = self.scope_of = self._scopes(columns)
        value_of = self.value_of = self._values(columns)
        inside = self.order >= 0
        nodes_a = ~self.order[~inside]

        def merged(name: str, shift: int = 0, convert: Any = None) -> Any:
            column = np.zeros(len(self.order), dtype=np.int64)
            column[inside] = getattr(b, name)
            other = getattr(a, name)[nodes_a].astype(np.int64)
            column[~inside] = convert(other) if convert else np.where(other >= 0, other + shift, -1)
            return column

        columns["node_call"] = merged("node_call", len(b.calls))
        columns["node_site"] = merged("node_site", len(b.sites))
        columns["node_phase"], columns["node_flags"] = merged("node_phase"), merged("node_flags")
        columns["node_scope"] = merged("node_scope", convert=lambda scope: scope_of[scope])
        columns["node_link"] = self._links(merged("node_link", convert=lambda link: link))
        self._rows(columns, value_of)
        return Graph(columns, tables)

    def _links(self, link: Any) -> Any:
        inside = self.order >= 0
        known = link >= 0
        link[inside & known] = self.place_b[link[inside & known]]
        ours = link[~inside & known]
        to_b = self.found.to_b[ours]
        link[~inside & known] = np.where(to_b >= 0, self.place_b[to_b], self.place_a[ours])
        return link

    def _scopes(self, columns: dict[str, Any]) -> Any:
        """Add the calls that only ``a`` made; returns where each call of ``a`` is now.

        One without a counterpart stands where ``b`` has a call of that path that is no other's counterpart, so that
        what was put in its place is seen beside it; else it stands by itself, though another may have its path by now.
        """
        a, b = self.a, self.b
        became = self.found.scope_to_b.tolist()
        taken = set(became)
        known = {key: scope for scope, key in enumerate(_calls(b)) if scope not in taken}
        where: list[int] = []
        parents: list[int] = []
        modules: list[int] = []
        calls: list[int] = []
        for scope, key in enumerate(_calls(a)):
            at = 0 if scope == 0 else became[scope]
            parent = where[int(a.scope_parent[scope])] if scope else 0
            if at < 0:
                at = known.get(key, -1)
                if at >= 0 and int(b.scope_parent[at]) != parent:
                    at = -1
            if at < 0:
                at = len(b.scope_call) + len(parents)
                parents.append(parent)
                modules.append(int(a.scope_module[scope]) + len(b.modules))
                calls.append(key[-1])
            where.append(at)
        for name, more in (("scope_parent", parents), ("scope_module", modules), ("scope_call", calls)):
            columns[name] = np.concatenate([getattr(b, name), np.array(more, dtype=np.int64)])
        return np.array(where, dtype=np.int64)

    def _values(self, columns: dict[str, Any]) -> Any:
        """Add the values that only ``a`` had; returns where each value of ``a`` is now."""
        a, b = self.a, self.b
        where = np.full(len(a.value_type), -1, dtype=np.int64)
        for one in np.flatnonzero(self.found.to_b >= 0).tolist():
            two = int(self.found.to_b[one])
            ours, theirs = a.out_value[slice(*a.output_span(one))], b.out_value[slice(*b.output_span(two))]
            count = min(len(ours), len(theirs))
            where[ours[:count]] = theirs[:count]
        named = {
            b.names[b.value_name[v]]: v for v in np.flatnonzero((b.value_producer < 0) & (b.value_name >= 0))
        }
        for value in np.flatnonzero((a.value_producer < 0) & (a.value_name >= 0)).tolist():
            where[value] = named.get(a.names[a.value_name[value]], -1)
        fresh = np.flatnonzero(where < 0)
        where[fresh] = len(b.value_type) + np.arange(len(fresh))
        shifts = {
            "value_type": len(b.types),
            "value_name": len(b.names),
            "value_storage": len(b.storage_bytes),
        }
        for name in ("value_type", "value_name", "value_storage", "value_offset", "value_role"):
            column = getattr(a, name)[fresh].astype(np.int64)
            moved = np.where(column >= 0, column + shifts.get(name, 0), -1)
            columns[name] = np.concatenate([getattr(b, name), moved])
        columns["value_carries"] = np.concatenate([b.value_carries, np.full(len(fresh), -1)])
        columns["value_producer"] = np.full(len(columns["value_type"]), -1)
        self._storages(columns)
        return where

    def _storages(self, columns: dict[str, Any]) -> None:
        """The memory of ``b`` in the new numbers; that of ``a`` takes no room in the time line."""
        a, b = self.a, self.b
        birth = np.where(b.storage_birth >= 0, self.place_b[np.maximum(b.storage_birth, 0)], -1)
        death = self.place_b[np.minimum(b.storage_death, len(b))]
        death = np.where(b.storage_death > len(b), len(self.order) + 1, death)
        empty = np.zeros(len(a.storage_bytes), dtype=np.int64)
        columns["storage_bytes"] = np.concatenate([b.storage_bytes, empty])
        columns["storage_birth"] = np.concatenate([birth, empty - 1])
        columns["storage_death"] = np.concatenate([death, empty + len(self.order) + 1])
        columns["storage_device"] = np.concatenate([b.storage_device, a.storage_device + len(b.devices)])

    def _rows(self, columns: dict[str, Any], value_of: Any) -> None:
        """The inputs and outputs of every operation in the new order."""
        a, b = self.a, self.b
        for side, names in (("in", ("in_value", "in_slot", "in_kind")), ("out", ("out_value", "out_slot"))):
            spans, counts = [], []
            for node in self.order.tolist():
                start, shift = (
                    (getattr(b, f"{side}_start"), 0)
                    if node >= 0
                    else (getattr(a, f"{side}_start"), len(getattr(b, f"{side}_value")))
                )
                row = node if node >= 0 else ~node
                spans.append(np.arange(start[row], start[row + 1]) + shift)
                counts.append(len(spans[-1]))
            rows = np.concatenate([*spans, np.empty(0, dtype=np.int64)]).astype(np.int64)
            for name in names:
                ours = getattr(a, name)
                column = np.concatenate(
                    [getattr(b, name), value_of[ours] if name.endswith("value") else ours]
                )
                columns[name] = column[rows]
            columns[f"{side}_start"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        made = np.repeat(np.arange(len(self.order)), np.diff(columns["out_start"]))
        columns["value_producer"][columns["out_value"]] = made


def _calls(graph: Graph) -> list[tuple[str, bool, int]]:
    """What each call goes by: path, whether it is the run itself, which has the same path as the model, and number."""
    runs = [graph.modules[module].kind == "run" for module in graph.scope_module.tolist()]
    return list(zip(graph.scope_paths, runs, graph.scope_call.tolist()))


def _below(path: str, above: str) -> str:
    """The name of a module within the one that it is in."""
    return path.removeprefix(f"{above}.") if above else path
