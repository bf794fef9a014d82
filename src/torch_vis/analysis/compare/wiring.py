"""How data flows in two runs that are laid over one another: which matched operations read something else.

What an operation reads is known by who made it: an operation with a counterpart, and which of its results, or a tensor
that was there before. Where something without a counterpart stands between, views are looked through, and of what else
there is nothing is said: that it is there is said already.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.schema import Flag, Kind, Phase

# Their operands can change places without any effect on what they make.
COMMUTATIVE = frozenset(
    f"aten::{name}"
    for name in (
        "add", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "logical_and", "logical_or", "logical_xor",
        "bitwise_and", "bitwise_or", "bitwise_xor", "logaddexp", "logaddexp2", "hypot", "dot",
    )
)  # fmt: skip
# The same tensor once more, which is the same data.
IDENTITIES = frozenset({"aten::detach", "aten::detach_", "aten::alias", "aten::lift_fresh", "aten::lift"})
# What autograd adds up in the order in which gradients arrive.
SUMS = frozenset({"aten::add", "aten::add_"})
NONE, ALIAS = -1, -1


class Read(NamedTuple):
    """What two matched operations read that is not the same: the values of ``a`` and ``b``, and what they are.

    One of them is -1 where only the other reads what was written under an argument, by way of another view of it.
    """

    a: int
    b: int
    code_a: int
    code_b: int


class Codes(NamedTuple):
    """What each value is, as a number that both graphs share; -1 for what has no counterpart."""

    direct: Any
    root: Any
    """The same of what it is a view of."""


class Wiring(NamedTuple):
    """For each operation of ``b`` with a counterpart what the two read that differs; no entry where nothing does."""

    reads: dict[int, list[Read]]
    given_to_b: Any
    """For each value of ``a`` that was there before the run, the one of ``b`` that it is; -1 for none."""
    codes_a: Codes
    codes_b: Codes

    def is_other(self, value_a: int, value_b: int) -> bool:
        """Whether two values are known to be different things."""
        one, two = _compared(self.codes_a, self.codes_b, np.array([value_a]), np.array([value_b]))
        return bool(one[0] >= 0 and two[0] >= 0 and one[0] != two[0])


class Reads(NamedTuple):
    """What matched operations read, by the operation's number in ``b``, argument and part of it."""

    key: Any
    node: Any
    value: Any


def wiring(
    a: Graph, b: Graph, to_b: Any, paths: dict[str, str], shown: tuple[Any, Any] | None = None
) -> Wiring:
    """Find the matched operations that read something else; ``paths`` are those of modules that have another in ``b``.

    >>> import torch, torch_vis as tv
    >>> def swapped(x): return x.exp() - x.sin()
    >>> def plain(x): e, s = x.exp(), x.sin(); return s - e
    >>> one, two = (tv.trace(run, torch.ones(2)).graph for run in (swapped, plain))
    >>> found = wiring(one, two, np.arange(3), {})
    >>> [(one.nodes[node].name, len(reads)) for node, reads in found.reads.items()]
    [('sub', 2)]
    """
    from_a = np.full(len(b), NONE, dtype=np.int64)
    kept = np.flatnonzero(to_b >= 0)
    from_a[to_b[kept]] = kept
    slots = int(max(a.in_slot.max(initial=0), b.in_slot.max(initial=0))) + 1
    here, there = _reads(a, to_b, slots), _reads(b, np.where(from_a >= 0, np.arange(len(b)), NONE), slots)
    at = np.searchsorted(there.key, here.key)
    both = at < len(there.key)
    both[both] = there.key[at[both]] == here.key[both]
    node, value_a, value_b = here.node[both], here.value[both], there.value[at[both]]
    given = _given(a, b, value_a, value_b, paths)
    codes_a, codes_b = _codes(a, b, to_b, from_a, given)
    way_a, way_b = ways_shown(a, b) if shown is None else shown
    backward = b.node_phase[node] == Phase.BACKWARD  # which reads what was saved, by any of its equal views
    one, two = _compared(codes_a, codes_b, value_a, value_b, backward)
    known = (one >= 0) & (two >= 0)
    shown_alike = (codes_a.root[value_a] == codes_b.root[value_b]) & (way_a[value_a] == way_b[value_b])
    found: dict[int, list[Read]] = {}
    for place in np.flatnonzero(known & (one != two) & ~shown_alike & ~is_identity(b)[node]).tolist():
        read = Read(*(int(column[place]) for column in (value_a, value_b, one, two)))
        found.setdefault(int(node[place]), []).append(read)
    for number, read in _written(a, b, to_b, from_a, codes_a, codes_b):
        found.setdefault(number, []).append(read)
    for same in [
        number for number, reads in found.items() if _is_the_same(b, number, reads, codes_a, codes_b)
    ]:
        del found[same]
    return Wiring(found, given, codes_a, codes_b)


def _reads(graph: Graph, number: Any, slots: int) -> Reads:
    """The arguments whose contents are read, of operations that have a number."""
    summed = _is_one_of(graph, SUMS)
    number = np.where(summed & (graph.node_phase == Phase.BACKWARD), NONE, number)
    node = number[graph.in_node]
    rows = np.flatnonzero((node >= 0) & (graph.in_slot != ALIAS) & (graph.in_kind != Kind.SHAPE))
    key = node[rows] * slots + graph.in_slot[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))  # of several parts of one argument
    part = np.arange(len(key)) - np.repeat(first, np.diff(first, append=len(key)))
    most = 1 << 20
    return Reads(key * most + part, node[rows], graph.in_value[rows])


def _written(
    a: Graph, b: Graph, to_b: Any, from_a: Any, codes_a: Codes, codes_b: Codes
) -> list[tuple[int, Read]]:
    """What one of two matched operations reads since it was written under an argument, and the other does not."""
    if not (a.in_slot == ALIAS).any() and not (b.in_slot == ALIAS).any():
        return []
    reads = (b.node_phase != Phase.BACKWARD) & (b.node_flags & Flag.VIEW == 0)
    kept = np.append(np.where((from_a >= 0) & reads, np.arange(len(b)), NONE), NONE)
    one, two = _all_reads(a, kept[to_b], codes_a), _all_reads(b, kept[:-1], codes_b)
    found = []
    for row in np.flatnonzero(_lacks(two, one, len(b))).tolist():
        found.append((int(one.node[row]), Read(int(one.value[row]), NONE, int(one.code[row]), NONE)))
    for row in np.flatnonzero(_lacks(one, two, len(b))).tolist():
        found.append((int(two.node[row]), Read(NONE, int(two.value[row]), NONE, int(two.code[row]))))
    return found


class _AllReads(NamedTuple):
    node: Any
    value: Any
    under: Any  # whether no argument names it
    code: Any
    known: Any


def _all_reads(graph: Graph, number: Any, codes: Codes) -> _AllReads:
    """Everything that operations with a number read."""
    rows = np.flatnonzero((number[graph.in_node] >= 0) & (graph.in_kind != Kind.SHAPE))
    value = graph.in_value[rows]
    code = codes.direct[value]
    known = (code >= 0) & (codes.root[value] >= 0)
    return _AllReads(number[graph.in_node[rows]], value, graph.in_slot[rows] == ALIAS, code, known)


def _lacks(other: _AllReads, one: _AllReads, count: int) -> Any:
    """For each row of one run that no argument names, whether the counterpart is known not to read that."""
    unsure = np.zeros(count, dtype=bool)
    unsure[other.node[~other.known]] = True
    most = int(max(one.code.max(initial=0), other.code.max(initial=0))) + 1
    lacks = ~np.isin(one.node * most + one.code, other.node * most + other.code)
    return lacks & one.under & (one.code >= 0) & ~unsure[one.node]


def _compared(
    codes_a: Codes, codes_b: Codes, value_a: Any, value_b: Any, through: Any = False
) -> tuple[Any, Any]:
    """What pairs of values are: where one of them has no counterpart, or if wanted, what they are views of."""
    one, two = codes_a.direct[value_a], codes_b.direct[value_b]
    between = (one < 0) | (two < 0) | through
    base = codes_a.root[value_a], codes_b.root[value_b]
    return np.where(between, base[0], one), np.where(between, base[1], two)


def _codes(a: Graph, b: Graph, to_b: Any, from_a: Any, given: Any) -> tuple[Codes, Codes]:
    """Numbers of results by operation of ``b`` and place, and after them those of what was there before."""
    place_a, place_b = places(a), places(b)
    many = int(max(place_a.max(initial=0), place_b.max(initial=0))) + 1
    numbers: dict[str, int] = {}
    op_a, op_b = (
        np.array([numbers.setdefault(call.op, len(numbers)) for call in graph.calls], dtype=np.int64)
        for graph in (a, b)
    )
    one_place = np.zeros(len(b) + 1, dtype=bool)  # of another overload, which may return in another way
    paired = np.flatnonzero(from_a >= 0)
    if len(paired):
        one_place[paired] = op_a[a.node_call[from_a[paired]]] != op_b[b.node_call[paired]]
    before = len(b) * many
    found = []
    for graph, number, place, outside in (
        (a, to_b, place_a, given),
        (b, np.where(from_a >= 0, np.arange(len(b)), NONE), place_b, _same_memory(b)),
    ):
        direct = np.where(outside >= 0, outside + before, NONE)
        made = np.flatnonzero(graph.value_producer >= 0)
        maker = number[graph.value_producer[made]]
        which = np.where(one_place[maker], 0, place[made])
        direct[made] = np.where(maker >= 0, maker * many + which, NONE)
        direct = direct[roots(graph, is_identity(graph))]
        found.append(Codes(direct, direct[roots(graph, graph.node_flags & Flag.VIEW != 0)]))
    return found[0], found[1]


def places(graph: Graph) -> Any:
    """For each value which of its maker's results it is."""
    found = np.zeros(len(graph.value_type), dtype=np.int64)
    found[graph.out_value] = np.where(graph.out_slot >= 0, 2 * graph.out_slot, -2 * graph.out_slot - 1)
    return found


def roots(graph: Graph, through: Any) -> Any:
    """For each value what it is a view of, as far as some operations that make views lead."""
    found = np.arange(len(graph.value_type))
    views = through[graph.in_node] & (graph.in_slot == 0)
    base = np.full(len(graph), NONE, dtype=np.int64)
    base[graph.in_node[views]] = graph.in_value[views]
    made = np.flatnonzero(graph.value_producer >= 0)
    above = base[graph.value_producer[made]]
    above = np.where((above >= 0) & (graph.value_storage[above] == graph.value_storage[made]), above, made)
    found[made] = above
    while True:
        further = found[found]
        if (further == found).all():
            return found
        found = further


def ways_shown(a: Graph, b: Graph) -> tuple[Any, Any]:
    """For each value of both graphs the way in which it shows what it is a view of: a number that both share.

    Equal views of one thing are the same, however often they are made; 0 is the thing itself. A view under which
    something was written is like no other.
    """
    known: dict[Any, int] = {}
    return _ways(a, known, 1), _ways(b, known, -1)


def _ways(graph: Graph, known: dict[Any, int], sign: int) -> Any:
    found = np.zeros(len(graph.value_type), dtype=np.int64)
    plain = np.ones(len(graph), dtype=bool)
    plain[graph.in_node[(graph.in_slot != 0) | (graph.in_kind == Kind.SHAPE)]] = False
    same, views = is_identity(graph), np.flatnonzero(graph.node_flags & Flag.VIEW != 0)
    ways, place = found.tolist(), places(graph).tolist()
    start, made, start_in, read = (
        column.tolist() for column in (graph.out_start, graph.out_value, graph.in_start, graph.in_value)
    )
    calls = graph.node_call.tolist()
    for node in views.tolist():
        base = read[start_in[node]] if plain[node] and start_in[node] < start_in[node + 1] else NONE
        for value in made[start[node] : start[node + 1]]:
            if base < 0:
                ways[value] = sign * (value + 1) * 2 + 1 - (1 << 62)  # like no other
            elif same[node]:
                ways[value] = ways[base]
            else:
                key = graph.calls[calls[node]], place[value], ways[base]
                ways[value] = known.setdefault(key, len(known) + 1)
    return np.array(ways, dtype=np.int64)


def _same_memory(graph: Graph) -> Any:
    """For each value that was there before the first one of the same memory, of those with a name if there is one."""
    found = np.full(len(graph.value_type), NONE, dtype=np.int64)
    outside = np.flatnonzero(graph.value_producer < 0)
    order = outside[np.argsort(graph.value_name[outside] < 0, kind="stable")]
    place: dict[Any, int] = {}
    storage, offset, kind = (
        column[order].tolist() for column in (graph.value_storage, graph.value_offset, graph.value_type)
    )
    for value, where in zip(order.tolist(), zip(storage, offset, (graph.types[one].shape for one in kind))):
        found[value] = place.setdefault(where, value)
    return found


def _given(a: Graph, b: Graph, value_a: Any, value_b: Any, paths: dict[str, str]) -> Any:
    """For each value of ``a`` that was there before the one of ``b`` that it is: by name, else by its first reader."""
    mine, theirs = _same_memory(a), _same_memory(b)
    named_a, named_b = _named(a, mine), _named(b, theirs)
    found: dict[int, int] = {}
    taken: set[int] = set()
    for renamed in (lambda name: renamed_in(name, paths), str):
        for name, value in named_a.items():
            other = named_b.get(renamed(name) or "", NONE)
            if value not in found and other >= 0 and other not in taken:
                found[value] = other
                taken.add(other)
    outside = np.flatnonzero((a.value_producer[value_a] < 0) & (b.value_producer[value_b] < 0))
    for one, two in zip(mine[value_a[outside]].tolist(), theirs[value_b[outside]].tolist()):
        if one not in found and two not in taken:
            found[one] = two
            taken.add(two)
    all_of = np.full(len(a.value_type), NONE, dtype=np.int64)
    all_of[list(found)] = list(found.values())
    return np.where(mine >= 0, all_of[mine], NONE)


def _named(graph: Graph, same: Any) -> dict[str, int]:
    outside = np.flatnonzero((graph.value_producer < 0) & (graph.value_name >= 0))
    return {graph.names[int(graph.value_name[value])]: int(same[value]) for value in outside.tolist()}


def renamed_in(name: str, paths: dict[str, str]) -> str | None:
    """The name of a tensor of a module once that is called by its other path; None where none is known.

    >>> renamed_in("body.0.weight", {"body": "trunk", "body.0": "trunk.1"}), renamed_in("scale", {"body": "trunk"})
    ('trunk.1.weight', None)
    """
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        path = paths.get(".".join(parts[:end]))
        if path is not None:
            return ".".join([*([path] if path else []), *parts[end:]])
    return f"{paths['']}.{name}" if paths.get("") else None


def _is_the_same(b: Graph, node: int, reads: list[Read], codes_a: Codes, codes_b: Codes) -> bool:
    """Whether the two operands of one that does not mind have changed places."""
    call = b.calls[int(b.node_call[node])]
    if _operator(call.op) not in COMMUTATIVE or call.kwargs or len(call.args) != 2 or len(reads) != 2:
        return False
    one, two = reads
    here, there = _compared(codes_a, codes_b, np.array([one.a, two.a]), np.array([two.b, one.b]))
    return bool((here == there).all())


def is_identity(graph: Graph) -> Any:
    """Whether each operation gives the same tensor once more."""
    return _is_one_of(graph, IDENTITIES)


def _is_one_of(graph: Graph, operators: Collection[str]) -> Any:
    return np.array([_operator(call.op) in operators for call in graph.calls], dtype=bool)[graph.node_call]


def paths_of(a: Graph, b: Graph, scope_to_b: Any) -> dict[str, str]:
    """For the path of each module of ``a`` that has a counterpart the path of that."""
    found: dict[str, str] = {}
    for here, there in enumerate(scope_to_b.tolist()):
        if there >= 0 and a.modules[int(a.scope_module[here])].kind == "module":
            found.setdefault(a.scope_paths[here], b.scope_paths[there])
    return found


def _operator(op: str) -> str:
    return op.partition(".")[0]
