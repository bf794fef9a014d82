"""Which parts of a run do the same: fingerprints of scopes, repeated stretches of them, steps of text generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag
from torch_vis.graph.types import Bools, Ints

# Boxes that a person takes in at once; where there would be more, only operators have to agree, not shapes.
ROOM = 44
PERIODS = 24  # the longest step that is looked for
LONG_PERIODS, LONG_WORK = (
    512,
    8_000_000,
)  # and where shapes do not count, unless the sequence is too long for that
FEWEST_OPERATIONS = 4  # so many equal steps of plain operations in a row are drawn as one
FEWEST_STEPS = 3  # for a stretch of several modules; two neighbours of one kind are enough
FEWEST_NEIGHBOURS = 5  # numbered neighbours of one class, among which the few that differ count as equal
SHARE_OF_ODD = 0.25  # more of them that differ, and they do not
FEWEST_CALLS = 2  # of a model that writes a text
FIRST = 200  # operations of a call among which the first that has tokens is looked for


class Stretch(NamedTuple):
    """``times`` equal steps of ``period`` elements each, from ``start`` on."""

    start: int
    period: int
    times: int


class Elements:
    """For some phases of a run, what each scope holds in the order of execution: operations and calls, fingerprinted.

    An element is a node's number, or ``~scope`` for a call. Two scopes have the same ``loose`` fingerprint if they ran
    the same operators in the same order, all the way down, and the same ``strict`` one if all shapes agree as well and,
    where it is given, the ``status`` of their operations: what a comparison says of each.

    ``recomputed`` says which calls backward ran again, where the graph was put together and cannot be asked.
    """

    def __init__(
        self, graph: Graph, phases: Iterable[int], *, recomputed: Any = None, status: Any = None
    ) -> None:
        self.graph = graph
        self.nodes = np.flatnonzero(np.isin(graph.node_phase, list(phases)))
        count = len(graph.scope_call)
        self.depth = graph.tree.depth
        self.recomputed = graph.tree.recomputed if recomputed is None else recomputed
        first = np.full(count, len(graph), dtype=np.int64)
        np.minimum.at(first, graph.node_scope[self.nodes], self.nodes)
        self.first = graph.tree.inclusive(first, np.minimum)
        used = np.flatnonzero((self.first < len(graph)) & (graph.scope_parent >= 0))
        element = np.concatenate([self.nodes, ~used])
        owner = np.concatenate([graph.node_scope[self.nodes], graph.scope_parent[used]])
        order = np.lexsort((np.concatenate([self.nodes, self.first[used]]), owner))
        self.element, self.owner = element[order], owner[order]
        self.start = np.searchsorted(self.owner, np.arange(count + 1))
        names = _numbered([call.op.partition(".")[0] for call in graph.calls])
        shapes = _numbered([(row.dtype, row.shape) for row in graph.types])
        outputs = graph.out_start[self.nodes]
        has = outputs < graph.out_start[self.nodes + 1]
        shape = np.full(len(self.nodes), -1, dtype=np.int64)
        shape[has] = shapes[graph.value_type[graph.out_value[outputs[has]]]]
        if status is not None:
            shape = shape * 4 + status[self.nodes]
        name = names[graph.node_call[self.nodes]]
        self._node_key = np.zeros(len(graph), dtype=np.uint64)
        self._node_key[self.nodes] = mix(name.astype(np.uint64) * _P + shape.astype(np.uint64))
        self._loose_node_key = np.zeros(len(graph), dtype=np.uint64)
        self._loose_node_key[self.nodes] = mix(name.astype(np.uint64))
        self.strict = self._fingerprints(self._node_key)
        self.loose = self._fingerprints(self._loose_node_key)
        self._stem = _stems([module.path for module in graph.modules])
        self._type = _numbered([module.type for module in graph.modules])

    def keys(self, elements: Any, *, strict: bool) -> Any:
        """Numbers that are equal for elements that may be folded.

        They are operations that do the same, calls of one module, or calls of numbered neighbours with equal shapes
        inside. What backward ran again is not folded with what ran first.
        """
        node, scope = _nodes(elements), _scopes(elements)
        if not len(self.graph):
            return np.zeros(len(elements), dtype=np.uint64)
        recomputed = np.where(
            elements >= 0, self.graph.node_flags[node] & Flag.RECOMPUTE != 0, self.recomputed[scope]
        )
        stem = self._stem[self.graph.scope_module[scope]]
        of_call = np.where((stem >= 0) & strict, self.strict[scope], self.loose[scope])
        of_node = self._node_key if strict else self._loose_node_key
        key = np.where(elements >= 0, of_node[node], mix(of_call ^ mix(stem.astype(np.uint64))))
        return mix(key + recomputed.astype(np.uint64))

    def names(self, elements: Any) -> Any:
        """Numbers that are equal for elements of one name: calls of a module or numbered neighbours of one class."""
        if not len(self.graph):
            return np.zeros(len(elements), dtype=np.uint64)
        module = self.graph.scope_module[_scopes(elements)]
        stem, kind = self._stem[module].astype(np.uint64), self._type[module].astype(np.uint64)
        return np.where(elements >= 0, self._loose_node_key[_nodes(elements)], mix(mix(stem) ^ kind))

    def contents(self, elements: Any) -> Any:
        """Numbers that are equal for elements that do the same with the same shapes, whatever they are called."""
        if not len(self.graph):
            return np.zeros(len(elements), dtype=np.uint64)
        return np.where(elements >= 0, self._node_key[_nodes(elements)], self.strict[_scopes(elements)])

    def neighbours(self, elements: Any) -> Any:
        """Numbers that calls share if their modules are numbered neighbours of one class; -1 for all other elements."""
        scope = _scopes(elements)
        module = self.graph.scope_module[scope]
        number = (self._stem[module] * (len(self._type) + 1) + self._type[module]) * 2 + self.recomputed[
            scope
        ]
        return np.where((elements < 0) & (self._stem[module] >= 0), number, -1)

    def of(self, scopes: Any) -> Any:
        """The elements of scopes that are alike: one row for each scope."""
        length = int(self.start[scopes[0] + 1] - self.start[scopes[0]])
        return self.element[self.start[scopes][:, None] + np.arange(length)[None, :]]

    def calls_modules(self, scope: int) -> bool:
        """Whether a scope holds calls of its own, those of functions aside."""
        part = self.element[self.start[scope] : self.start[scope + 1]]
        modules = self.graph.scope_module[~part[part < 0]]
        return any(self.graph.modules[module].kind != "function" for module in modules.tolist())

    def _fingerprints(self, of_node: Any) -> Any:
        """A number for each scope that depends on what is in it, in order, all the way down."""
        graph = self.graph
        result = np.zeros(len(graph.scope_call), dtype=np.uint64)
        kinds = _numbered([(module.type, module.kind) for module in graph.modules])
        kind = mix(kinds[graph.scope_module].astype(np.uint64) + _P)
        salt = mix((np.arange(len(self.element)) - self.start[self.owner]).astype(np.uint64))
        for part in _by_level(np.arange(len(self.element)), self.depth[self.owner]):
            element, owner = self.element[part], self.owner[part]
            key = np.where(element >= 0, of_node[np.maximum(element, 0)], result[~np.minimum(element, -1)])
            np.add.at(result, owner, mix(key ^ salt[part]))
            scopes = np.unique(owner)
            result[scopes] = mix(result[scopes] ^ kind[scopes])
        return result


def stretches(keys: Any, is_call: Any, longest: int = PERIODS) -> list[Stretch]:
    """The repeated stretches of a sequence, from left to right; where several begin, the one that covers most.

    >>> stretches(np.array([7, 1, 2, 1, 2, 1, 2, 9]), np.ones(8, dtype=bool))
    [Stretch(start=1, period=2, times=3)]
    """
    length = len(keys)
    covered, best = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    calls = np.concatenate([[0], np.cumsum(is_call)])
    for period in range(1, min(longest, length // 2) + 1):
        same = keys[period:] == keys[:-period]
        if not same.any():
            continue
        times = (_run_lengths(same) + period) // period
        has_calls = calls[period:length] > calls[: length - period]
        fewest = np.where(has_calls, 2 if period == 1 else FEWEST_STEPS, FEWEST_OPERATIONS)
        size = np.where(times >= fewest, times * period, 0)
        better = np.flatnonzero(size > covered[: len(size)])
        covered[better], best[better] = size[better], period
    begins = np.flatnonzero(covered)
    result: list[Stretch] = []
    at = 0
    while at < len(begins):
        start = int(begins[at])
        result.append(Stretch(start, int(best[start]), int(covered[start] // best[start])))
        at = int(np.searchsorted(begins, start + covered[start]))
    return result


def repeated(strict: Any, loose: Any, names: Any, is_call: Any) -> list[Stretch]:
    """The stretches of a sequence that are drawn as one, by two kinds of keys; they begin where a turn does.

    Steps must agree in their shapes; but where that leaves more than a person can take in, only in their operators.
    """
    exact = stretches(strict, is_call)
    if _parts(exact, len(strict)) <= ROOM:
        return _from_first(exact, strict, names)
    longest = min(LONG_PERIODS, max(PERIODS, LONG_WORK // len(strict)))
    rough = stretches(loose, is_call, longest)
    if _parts(rough, len(strict)) < _parts(exact, len(strict)):
        return _from_first(rough, loose, names)
    return _from_first(exact, strict, names)


def _from_first(stretches: list[Stretch], keys: Any, names: Any) -> list[Stretch]:
    """The stretches, moved to where a turn begins, as the names of an odd one before them say.

    The first turn of a loop often makes its state. What it calls after that is like the end of every other turn, but no
    turn begins there.

    >>> keys, names = np.array([1, 9, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]), np.array([1, 2, 3] * 4)
    >>> stretches(keys, names > 0)
    [Stretch(start=2, period=3, times=3)]
    >>> _from_first(stretches(keys, names > 0), keys, names)
    [Stretch(start=3, period=3, times=3)]
    """
    result: list[Stretch] = []
    for number, (start, period, times) in enumerate(stretches):
        least = result[-1].start + result[-1].period * result[-1].times if result else 0
        end = start + period * times
        most = stretches[number + 1].start if number + 1 < len(stretches) else len(keys)
        before = start
        while before > least and names[before - 1] == names[before - 1 + period]:
            before -= 1
        moved = (before - start) % period
        after = slice(end, min(end + moved, most))
        if after.stop < end + moved or (keys[after] != keys[end - period : after.stop - period]).any():
            moved = 0
        result.append(Stretch(start + moved, period, times))
    return result


def _parts(stretches: list[Stretch], length: int) -> int:
    """How many boxes a sequence is drawn as."""
    return length - sum(stretch.period * stretch.times - 1 for stretch in stretches)


class Folds(NamedTuple):
    """The repeated stretches of all scopes, as columns, in the order of scopes and of execution.

    ``odd_fold`` and ``odd_instance`` name the instances that are not like most of the others in their stretch.
    """

    scope: Any
    start: Any
    period: Any
    times: Any
    odd_fold: Any
    odd_instance: Any


def folds(elements: Elements) -> Folds:
    """The repeated stretches of every scope; of numbered neighbours, also the few that differ are in them.

    Of scopes in which the same elements are equal only one is looked at: the others are folded as that is.
    """
    element, owner, start = elements.element, elements.owner, elements.start
    index = np.arange(len(element)) - start[owner]
    strict = _with_odd(elements.keys(element, strict=True), elements.neighbours(element), owner)
    loose, contents = elements.keys(element, strict=False), elements.contents(element)
    patterns = [
        _first_equal(owner, keys, index) for keys in (strict, loose, contents, elements.names(element))
    ]
    scopes = np.unique(owner[(patterns[0] != index) | (patterns[1] != index)])
    _, first, kind = np.unique(
        _signatures(elements, [*patterns, element < 0])[scopes], return_index=True, return_inverse=True
    )
    alike = np.split(scopes[np.argsort(kind, kind="stable")], np.cumsum(np.bincount(kind))[:-1])
    rows: list[Any] = [np.empty((0, 4), dtype=np.int64)]
    odd: list[Any] = [np.empty((0, 3), dtype=np.int64)]
    for scope, group in zip(scopes[first].tolist(), alike):
        part = slice(start[scope], start[scope + 1])
        for stretch in repeated(patterns[0][part], patterns[1][part], patterns[3][part], element[part] < 0):
            rows.append(_for_each(group, np.array([stretch])))
            instances = odd_instances(patterns[2][part], stretch)
            odd.append(
                _for_each(group, np.stack([np.full(len(instances), stretch.start), instances], axis=1))
            )
    table, marked = np.concatenate(rows), np.concatenate(odd)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    size = len(element) + 1
    fold = np.searchsorted(table[:, 0] * size + table[:, 1], marked[:, 0] * size + marked[:, 1])
    order = np.lexsort((marked[:, 2], fold))
    scope, first_element, period, times = table.T
    return Folds(scope, first_element, period, times, fold[order], marked[order, 2])


def _for_each(scopes: Any, rows: Any) -> Any:
    """Rows that are the same for several scopes, with the scope before each."""
    return np.column_stack([np.repeat(scopes, len(rows)), np.tile(rows, (len(scopes), 1))])


def _first_equal(owner: Any, keys: Any, position: Any) -> Any:
    """For each element the place of the first one in its scope that has its key."""
    order = np.lexsort((position, keys, owner))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(owner[order]) != 0) | (keys[order][1:] != keys[order][:-1])
    result = np.empty(len(order), dtype=np.int64)
    result[order] = position[order][begins][np.cumsum(begins) - 1]
    return result


def _signatures(elements: Elements, columns: list[Any]) -> Any:
    """For each scope a number that is equal if all columns of its elements are."""
    owner = elements.owner
    salt = mix((np.arange(len(owner)) - elements.start[owner]).astype(np.uint64))
    result = np.zeros(len(elements.graph.scope_call), dtype=np.uint64)
    for number, column in enumerate(columns):
        np.add.at(result, owner, mix(mix(column.astype(np.uint64) ^ salt) + np.uint64(number)))
    return result


def _with_odd(keys: Any, neighbours: Any, owner: Any) -> Any:
    """The keys, in which the few odd ones among numbered neighbours have the key of the others: they are marked."""
    keys = keys.copy()
    ends = np.flatnonzero((np.diff(neighbours) != 0) | (np.diff(owner) != 0)) + 1
    starts = np.concatenate([[0], ends])
    lengths = np.diff(np.append(starts, len(keys)))
    long_runs = np.flatnonzero(lengths >= FEWEST_NEIGHBOURS)
    for start, length in zip(starts[long_runs].tolist(), lengths[long_runs].tolist()):
        if neighbours[start] < 0:
            continue
        odd = _odd(keys[start : start + length])
        if len(odd) and len(odd) <= length * SHARE_OF_ODD and odd[0] > 0 and odd[-1] < length - 1:
            keys[start + odd] = keys[start]
    return keys


def odd_instances(contents: Any, stretch: Stretch) -> Any:
    """The numbers of the instances of a stretch that are not like most of them; none if those are not the fewer."""
    start, period, times = stretch
    steps = contents[start : start + period * times].reshape(times, period)
    return _odd(np.unique(steps, axis=0, return_inverse=True)[1].ravel())


def _odd(keys: Any) -> Any:
    """The places of what is not equal to the key that is there most often, the first of those."""
    _, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    most = min(range(len(counts)), key=lambda number: (-counts[number], first[number]))
    odd = np.flatnonzero(inverse != most)
    return odd if 2 * len(odd) <= len(keys) else odd[:0]


def _run_lengths(same: Any) -> Any:
    """For each place, how many True follow on end from there."""
    stops = np.flatnonzero(~same)
    after = np.append(stops, len(same))
    return np.repeat(after, np.diff(after, prepend=-1))[: len(same)] - np.arange(len(same))


def _nodes(elements: Any) -> Any:
    """The operations among elements, 0 for calls."""
    return np.maximum(elements, 0)


def _scopes(elements: Any) -> Any:
    """The calls among elements, 0 for operations."""
    return ~np.minimum(elements, -1)


def _stems(paths: list[str]) -> Any:
    """For each module what it is numbered under, as a number; for one whose name is no number, its own negative one."""
    stems: dict[str, int] = {}
    result = []
    for index, path in enumerate(paths):
        stem, _, name = path.rpartition(".")
        is_number = name.isascii() and name.isdigit()
        result.append(stems.setdefault(stem, len(stems)) if is_number else -1 - index)
    return np.array(result, dtype=np.int64)


def _by_level(rows: Any, level: Any) -> Iterator[Any]:
    """Rows of one level after another, from the deepest up."""
    order = np.argsort(-level, kind="stable")
    if len(order):
        yield from np.split(rows[order], np.flatnonzero(np.diff(level[order])) + 1)


def _numbered(items: list[Any]) -> Any:
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64)


_P = np.uint64(0x9E3779B97F4A7C15)


def mix(number: Any) -> Any:
    """Hash 64-bit numbers so that sums of them distinguish sequences."""
    number = (number + _P) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(32))


class TokenCalls(NamedTuple):
    """The calls of one model that write a text: prefill first, then a decode step for each further token."""

    scopes: Ints
    """The calls, in order."""
    tokens: Ints
    """How many tokens each call is given: several, then one each."""
    start: Ints
    """The first operation of each call."""
    end: Ints
    """The operation after the last of each call."""


def generations(graph: Graph) -> list[TokenCalls]:
    """Calls of one model on a text and then on one token after another.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.LayerNorm(4)
    >>> t = tv.trace(lambda: [model(torch.ones(1, size, 4)) for size in (5, 1, 1)])
    >>> [generation.tokens.tolist() for generation in generations(t.graph)]
    [[5, 1, 1]]
    """
    if len(graph.scope_call) < 1 + FEWEST_CALLS:
        return []
    outermost: dict[int, list[int]] = {}
    for scope in np.flatnonzero(graph.scope_parent == 0).tolist():
        if graph.modules[graph.scope_module[scope]].kind == "module":
            outermost.setdefault(int(graph.scope_module[scope]), []).append(scope)
    several = [scopes for scopes in outermost.values() if len(scopes) >= FEWEST_CALLS]
    if not several:
        return []
    entered = graph.tree.enter[graph.node_scope]
    order = np.argsort(entered, kind="stable")
    result = []
    for scopes in several:
        begin = np.searchsorted(entered[order], graph.tree.enter[scopes])
        end = np.searchsorted(entered[order], graph.tree.leave[scopes])
        if (begin == end).any():
            continue
        inside = [np.sort(order[a:b]) for a, b in zip(begin.tolist(), end.tolist())]
        tokens = [_tokens(graph, nodes[:FIRST]) for nodes in inside]
        if tokens[0] is not None and tokens[0] > 1 and all(count == 1 for count in tokens[1:]):
            first, last = (np.array([step(nodes) for nodes in inside]) for step in (np.min, np.max))
            result.append(TokenCalls(np.array(scopes), np.array(tokens), first, last + 1))
    return result


def _tokens(graph: Graph, nodes: Ints) -> int | None:
    """How many tokens a call is about: the second size of the first tensor of three that is computed in it."""
    for node in nodes[graph.node_flags[nodes] & Flag.VIEW == 0].tolist():
        for value in graph.out_value[graph.out_start[node] : graph.out_start[node + 1]].tolist():
            row = graph.types[graph.value_type[value]]
            if len(row.shape) == 3 and "float" in row.dtype:
                return int(row.shape[1])
    return None


def cache_blocks(graph: Graph) -> Bools:
    """Which blocks of memory are the cache of keys and values of a model that writes a text.

    A block counts if a call of the model makes or fills it, it outlives that call, and nothing but the model reads it:
    what a model hands out is read by the program that called it.
    """
    count = len(graph.storage_bytes)
    result = np.zeros(count, dtype=bool)
    for generation in generations(graph):
        call = _call_of(graph, generation)
        computed = graph.value_producer >= 0
        computed[computed] = graph.node_flags[graph.value_producer[computed]] & Flag.VIEW == 0
        writer = np.full(len(graph.value_type), -1, dtype=np.int64)
        writer[computed] = call[graph.value_producer[computed]]
        block = graph.value_storage.astype(np.int64)
        outlives = np.zeros(count, dtype=bool)
        filled = writer >= 0
        last = generation.end[writer[filled]]
        outlives[block[filled][graph.storage_death[block[filled]] > last]] = True
        # a block that comes from outside is a cache only if several calls write to it
        outside = np.zeros(count, dtype=bool)
        outside[block[computed & (writer < 0)]] = True
        outside |= graph.storage_birth < 0
        lowest = np.full(count, len(generation.scopes))
        highest = np.full(count, -1)
        np.minimum.at(lowest, block[filled], writer[filled])
        np.maximum.at(highest, block[filled], writer[filled])
        rows = call[graph.in_node] < 0
        elsewhere = np.zeros(count, dtype=bool)
        elsewhere[block[graph.in_value[rows]]] = True
        read = np.zeros(count, dtype=bool)
        read[block[graph.in_value[~rows]]] = True
        result |= outlives & read & ~elsewhere & (~outside | (highest > lowest))
    return result


def _call_of(graph: Graph, generation: TokenCalls) -> Ints:
    """For each operation the number of the call that it is in, -1 outside of all."""
    entered = graph.tree.enter[graph.node_scope]
    starts = graph.tree.enter[generation.scopes]
    number = np.searchsorted(starts, entered, side="right") - 1
    inside = (number >= 0) & (entered < graph.tree.leave[generation.scopes[np.maximum(number, 0)]])
    return np.where(inside, number, -1)
