"""Which parts of a run do the same: fingerprints of scopes, and repeated stretches in a sequence of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph

PERIODS = 24  # the longest step that is looked for
LONG_PERIODS, LONG_WORK = 512, 8_000_000  # and where a sequence is long, so much at most
FEWEST_OPERATIONS = 4  # so many equal steps of plain operations in a row are drawn as one
FEWEST_STEPS = 3  # for a stretch of several modules; two neighbours of one kind are enough


class Stretch(NamedTuple):
    """``times`` equal steps of ``period`` elements each, from ``start`` on."""

    start: int
    period: int
    times: int


class Elements:
    """For one phase of a run, what each scope holds in the order of execution: operations and calls, with fingerprints.

    An element is a node's number, or ``~scope`` for a call. Two scopes have the same ``loose`` fingerprint if they ran
    the same operators in the same order, all the way down, and the same ``strict`` one if all shapes agree as well.
    """

    def __init__(self, graph: Graph, phase: int) -> None:
        self.graph = graph
        self.nodes = np.flatnonzero(graph.node_phase == phase)
        count = len(graph.scope_call)
        self.depth = graph.tree.depth
        self.again = graph.tree.recomputed
        first = np.full(count, len(graph), dtype=np.int64)
        np.minimum.at(first, graph.node_scope[self.nodes], self.nodes)
        self.first = graph.tree.inclusive(first, np.minimum)
        used = np.flatnonzero((self.first < len(graph)) & (graph.scope_parent >= 0))
        element = np.concatenate([self.nodes, ~used])
        owner = np.concatenate([graph.node_scope[self.nodes], graph.scope_parent[used]])
        order = np.lexsort((np.concatenate([self.nodes, self.first[used]]), owner))
        self._element, self._owner = element[order], owner[order]
        self._start = np.searchsorted(self._owner, np.arange(count + 1))
        names = _numbered([call.op.partition(".")[0] for call in graph.calls])
        shapes = _numbered([(row.dtype, row.shape) for row in graph.types])
        made = graph.out_start[self.nodes]
        has = made < graph.out_start[self.nodes + 1]
        shape = np.full(len(self.nodes), -1, dtype=np.int64)
        shape[has] = shapes[graph.value_type[graph.out_value[made[has]]]]
        name = names[graph.node_call[self.nodes]]
        self.node_key = np.zeros(len(graph), dtype=np.uint64)
        self.node_key[self.nodes] = mix(name.astype(np.uint64) * _P + shape.astype(np.uint64))
        self.loose_node_key = np.zeros(len(graph), dtype=np.uint64)
        self.loose_node_key[self.nodes] = mix(name.astype(np.uint64))
        self.strict = self._fingerprints(self.node_key)
        self.loose = self._fingerprints(self.loose_node_key)

    def of(self, scopes: Any) -> Any:
        """The elements of scopes that are alike: one row for each scope."""
        length = int(self._start[scopes[0] + 1] - self._start[scopes[0]])
        return self._element[self._start[scopes][:, None] + np.arange(length)[None, :]]

    def calls_modules(self, scope: int) -> bool:
        """Whether a scope holds calls of its own."""
        part = self._element[self._start[scope] : self._start[scope + 1]]
        return bool((part < 0).any())

    def _fingerprints(self, of_node: Any) -> Any:
        """A number for each scope that depends on what is in it, in order, all the way down."""
        graph = self.graph
        found = np.zeros(len(graph.scope_call), dtype=np.uint64)
        kinds = _numbered([(module.type, module.kind) for module in graph.modules])
        kind = mix(kinds[graph.scope_module].astype(np.uint64) + _P)
        place = np.arange(len(self._element)) - self._start[self._owner]
        salt = mix(place.astype(np.uint64))
        level = self.depth[self._owner]
        order = np.argsort(-level, kind="stable")
        ends = np.flatnonzero(np.diff(level[order])) + 1
        for part in np.split(order, ends) if len(order) else ():
            element, owner = self._element[part], self._owner[part]
            key = np.where(element >= 0, of_node[np.maximum(element, 0)], found[~np.minimum(element, -1)])
            np.add.at(found, owner, mix(key ^ salt[part]))
            here = np.unique(owner)
            found[here] = mix(found[here] ^ kind[here])
        return found


def stretches(keys: Any, is_call: Any, longest: int = PERIODS) -> list[Stretch]:
    """The repeated stretches of a sequence, from left to right; where several begin, the one that covers most.

    >>> stretches(np.array([7, 1, 2, 1, 2, 1, 2, 9]), np.ones(8, dtype=bool))
    [Stretch(start=1, period=2, times=3)]
    """
    length = len(keys)
    runs: list[tuple[int, Any]] = []
    for period in range(1, min(longest, length // 2) + 1):
        same = keys[period:] == keys[:-period]
        if same.any():
            runs.append((period, _run_lengths(same)))
    found: list[Stretch] = []
    if not runs:
        return found
    begins = np.zeros(length, dtype=bool)
    for _, run in runs:
        begins[: len(run)] |= run > 0
    place = 0
    for candidate in np.flatnonzero(begins).tolist():
        if candidate < place:
            continue
        best: Stretch | None = None
        for period, run in runs:
            count = (int(run[candidate]) + period) // period if candidate < len(run) else 1
            if count < 2 or not _worth_folding(is_call[candidate : candidate + period], count):
                continue
            if best is None or count * period > best.times * best.period:
                best = Stretch(candidate, period, count)
        if best is not None:
            found.append(best)
            place = candidate + best.period * best.times
    return found


def _worth_folding(is_call: Any, count: int) -> bool:
    if not is_call.any():
        return count >= FEWEST_OPERATIONS
    return count >= (2 if len(is_call) == 1 else FEWEST_STEPS)


def _run_lengths(same: Any) -> Any:
    """For each place, how many True follow on end from there."""
    stops = np.flatnonzero(~same)
    after = np.append(stops, len(same))
    places = np.arange(len(same))
    return after[np.searchsorted(after, places)] - places


def _numbered(items: list[Any]) -> Any:
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64)


_P = np.uint64(0x9E3779B97F4A7C15)


def mix(number: Any) -> Any:
    """Scramble 64-bit numbers so that sums of them tell sequences apart."""
    number = (number + _P) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(32))
