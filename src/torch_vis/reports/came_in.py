"""What came in where two runs differ: from operations of both, from tensors that both were given, or not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Kind
from torch_vis.run.contents import makes_numbers

if TYPE_CHECKING:
    from torch_vis.run.differences import Gaps


class CameIn(NamedTuple):
    """Along the operations of ``a``: the largest relative difference known among what each reads, and what is not.

    ``lone_a`` and ``lone_b`` are operations without a counterpart that it, or its counterpart, reads from; -1 for none.
    ``open`` says that it reads what has a counterpart of another shape.
    """

    known: NDArray[np.float64]
    lone_a: NDArray[np.int64]
    lone_b: NDArray[np.int64]
    open: NDArray[np.bool_]


def given_to_both(a: Graph, b: Graph, to_b: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs of values from outside that an operation and its counterpart read in the same place."""
    found: dict[int, int] = {}
    for node in np.flatnonzero(to_b >= 0).tolist():
        here, there = _read(a, node), _read(b, int(to_b[node]))
        if len(here) == len(there):
            for one, two in zip(here, there):
                if a.value_producer[one] < 0 and b.value_producer[two] < 0:
                    found.setdefault(one, two)
    return list(found.items())


def came_in(
    a: Graph, b: Graph, to_b: NDArray[np.int64], gaps: Gaps, given: dict[int, float | None]
) -> CameIn:
    """Follow differences through ``a``.

    ``given`` are those of values from outside, None where the two cannot be compared. What an operation reads from
    outside that its counterpart does not read at all is part of how the two differ, and nothing that came in.
    """
    known, lone_a = np.zeros(len(a)), np.full(len(a), -1, dtype=np.int64)
    is_open = np.zeros(len(a), dtype=bool)
    through, lone, unsure = known.copy(), lone_a.copy(), is_open.copy()  # what each hands on
    numbers = makes_numbers(a)
    for node in range(len(a)):
        for value in _read(a, node):
            producer = int(a.value_producer[value])
            if producer < 0:
                gap = given.get(value, 0.0)
                known[node] = max(known[node], gap or 0.0)
                is_open[node] |= gap is None
            else:
                known[node] = max(known[node], through[producer])
                lone_a[node] = max(lone_a[node], lone[producer])
                is_open[node] |= unsure[producer]
        if gaps.known[node]:
            through[node] = gaps.relative[node]
        elif numbers[node] and to_b[node] < 0:
            lone[node], through[node] = node, known[node]
        else:  # views and others that make no numbers hand on what they read
            through[node], lone[node] = known[node], lone_a[node]
            unsure[node] = is_open[node] or (
                to_b[node] >= 0 and _shapes(a, node) != _shapes(b, int(to_b[node]))
            )
    return CameIn(known, lone_a, _lone_in(b, to_b, len(a)), is_open)


def _read(graph: Graph, node: int) -> list[int]:
    """The values whose contents an operation reads."""
    rows = slice(*graph.input_span(node))
    return graph.in_value[rows][graph.in_kind[rows] != Kind.SHAPE].tolist()


def _shapes(graph: Graph, node: int) -> list[tuple[int, ...]]:
    made = graph.value_type[graph.out_value[slice(*graph.output_span(node))]]
    return [graph.types[number].shape for number in made.tolist()]


def _lone_in(b: Graph, to_b: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """For each operation of ``a`` the last one without a counterpart that its own counterpart reads from."""
    has_a = np.zeros(len(b), dtype=bool)
    has_a[to_b[to_b >= 0]] = True
    numbers = makes_numbers(b)
    reads, hands_on = np.full(len(b), -1, dtype=np.int64), np.full(len(b), -1, dtype=np.int64)
    for node in range(len(b)):
        producers = b.producers(node)
        reads[node] = hands_on[producers].max(initial=-1)
        if not has_a[node]:
            hands_on[node] = node if numbers[node] else reads[node]
        elif not numbers[node]:
            hands_on[node] = reads[node]
    found = np.full(count, -1, dtype=np.int64)
    found[to_b >= 0] = reads[to_b[to_b >= 0]]
    return found
