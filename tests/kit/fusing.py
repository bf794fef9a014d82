"""What fusion and partition are held against: plain definitions over one node at a time, and no shortcuts."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.graph import Node, Value
from torch_vis.ops.cost.registry import touched


def is_view(node: Node) -> bool:
    return "view" in node.flags


def access(graph: Graph) -> dict[int, list[tuple[int, bool]]]:
    """For each block of memory, who reads (False) or writes (True) it, in the order of the run."""
    found: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for node in graph.nodes:
        if is_view(node):
            continue
        for value, kind in node.reads:
            if kind != "shape":
                found[value.storage].append((node.index, False))
        for value in node.outputs:
            found[value.storage].append((node.index, True))
    return found


def must_precede(graph: Graph) -> set[tuple[int, int]]:
    """Pairs of operations whose order the results rest on: bytes, memory written over, random numbers."""
    source, target, _, _ = graph.edges(shape=False)
    pairs = set(zip(source.tolist(), target.tolist()))
    pairs |= overwrites(graph)
    drawn = [node.index for node in graph.nodes if "random" in node.flags]
    pairs |= set(itertools.pairwise(drawn))
    return {(a, b) for a, b in pairs if a != b}


def overwrites(graph: Graph) -> set[tuple[int, int]]:
    """Pairs of which the second writes memory that the first read or wrote before."""
    found = set()
    for rows in access(graph).values():
        for place, (later, writes) in enumerate(rows):
            if writes:
                found |= {(earlier, later) for earlier, _ in rows[:place] if earlier != later}
    return found


def read_then_overwritten(graph: Graph) -> set[tuple[int, int]]:
    """Pairs of which the first only reads memory that the second writes over."""
    found = set()
    for rows in access(graph).values():
        writers = {node for node, writes in rows if writes}
        for place, (later, writes) in enumerate(rows):
            if writes:
                found |= {(earlier, later) for earlier, _ in rows[:place] if earlier not in writers}
    return found


def has_cycle(pairs: set[tuple[int, int]], part: list[int]) -> bool:
    """Whether parts depend on one another in a circle."""
    users: dict[int, set[int]] = defaultdict(set)
    waiting: dict[int, int] = dict.fromkeys(part, 0)
    for a, b in pairs:
        if part[a] != part[b] and part[b] not in users[part[a]]:
            users[part[a]].add(part[b])
            waiting[part[b]] += 1
    ready = [number for number, count in waiting.items() if not count]
    done = 0
    while ready:
        done += 1
        for user in users[ready.pop()]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return done < len(waiting)


def base(value: Value) -> Value:
    """The value that a chain of views was taken of, as far as the bytes come by the argument itself."""
    while value.producer is not None and is_view(value.producer) and value.producer.op.startswith("aten::"):
        taken = [(v, kind) for v, kind in value.producer.reads if kind != "shape"]
        if len(taken) != 1 or taken[0][0].index not in [v.index for v in value.producer.inputs]:
            return value
        if taken[0][0].storage != value.storage:
            return value
        value = taken[0][0]
    return value


def size_of(value: Value) -> int:
    return touched(value.type) or 0


def given(node: Node) -> list[Value]:
    """The tensors whose bytes a kernel is given as arguments."""
    graph, span = node.graph, range(*node.graph.input_span(node.index))
    rows = [row for row in span if graph.in_slot[row] >= 0 and graph.in_kind[row] != 2]
    return [Value(graph, int(graph.in_value[row])) for row in rows]


def seen_outside(graph: Graph) -> set[int]:
    """The values, by what views are taken of, that more can look at than the operations that are given them."""
    found = {int(value) for value in graph.result_value}
    for node in graph.nodes:
        named = {
            int(graph.in_value[row]) for row in range(*graph.input_span(node.index)) if graph.in_slot[row] < 0
        }
        found |= {value.index for value, kind in node.reads if kind != "shape" and value.index in named}
    for value in graph.values:
        if value.carries is not None:
            found.add(value.carries.index)
        if graph.storage_birth[value.storage] < 0:
            found.add(value.index)
    return found | {base(Value(graph, number)).index for number in found}


def bytes_of(value: Value) -> Any:
    """Of each byte of a value's memory, whether the value shows it."""
    kind, graph = value.type, value.graph
    marked = np.zeros(max(int(graph.storage_bytes[value.storage]), 0), dtype=bool)
    if len(kind.stride) != len(kind.shape) or kind.itemsize is None or not kind.numel:
        marked[: size_of(value)] = True
        return marked
    shown = [size if step else 1 for size, step in zip(kind.shape, kind.stride)]
    seen = np.lib.stride_tricks.as_strided(
        marked[value.offset * kind.itemsize :],
        (*shown, kind.itemsize),
        (*(step * kind.itemsize for step in kind.stride), 1),
    )
    seen[...] = True
    return marked


def read_once(values: Iterable[Value]) -> list[Any]:
    """Of each value the bytes that none before it shows."""
    before: dict[int, Any] = {}
    found = []
    for value in values:
        mine = bytes_of(value)
        found.append(mine & ~before[value.storage] if value.storage in before else mine)
        before[value.storage] = mine | before[value.storage] if value.storage in before else mine
    return found


LOOKUPS = ("index", "embedding", "gather", "index_select")  # in their first tensor


class Reference:
    """The bytes of groups, each worked out by its definition."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outside = seen_outside(graph)
        self.given: dict[int, list[tuple[Value, Any]]] = {}
        self.readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for node in graph.nodes:
            if not is_plain_view(node):
                values = [value for value in given(node) if size_of(value)]
                self.given[node.index] = list(zip(map(base, values), read_once(values), strict=True))
                for root, fresh in self.given[node.index]:
                    self.readers[root.index].append((node.index, int(fresh.sum())))

    def saved(self, kernels: set[int]) -> tuple[int, int]:
        """The bytes of a group's own tensors that need not move, and those of further reads of others."""
        passing = 0
        for number in kernels:
            for value in self.graph.nodes[number].outputs:
                everywhere = self.readers[value.index]
                own = [size for reader, size in everywhere if reader in kernels]
                passing += sum(own)
                if own and len(own) == len(everywhere) and value.index not in self.outside:
                    passing += size_of(value)
        shared = 0
        known: dict[int, Any] = {}
        for number in kernels:
            for place, (root, fresh) in enumerate(self.given[number]):
                if root.producer is not None and root.producer.index in kernels:
                    continue
                if place == 0 and self.graph.nodes[number].name in LOOKUPS:
                    continue  # of which rows are read, nobody knows
                seen = known.get(root.index, np.zeros_like(fresh))
                shared += int((fresh & seen).sum())
                known[root.index] = fresh | seen
        return passing, shared


def is_plain_view(node: Node) -> bool:
    """Whether a node can be looked through."""
    return is_view(node) and bool(node.outputs) and base(node.outputs[0]).index != node.outputs[0].index
