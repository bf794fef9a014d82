"""Two runs laid over one another: which operation of the one is which of the other.

Operations belong together when they ran in the same call of the same module, in the same phase, and have the same
operator at the same place of the longest common sequence there.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np

from torch_vis.graph import Graph

LONG = 4000  # operations of one call beyond which only common ends are matched


class Alignment(NamedTuple):
    """For each operation of ``a`` the one of ``b`` that it became, -1 for none; and what changed in it."""

    to_b: Any
    changed: Any  # of each operation of b: its arguments or the shapes and types of what it makes


def align(a: Graph, b: Graph) -> Alignment:
    """Match the operations of two graphs."""
    to_b = np.full(len(a), -1, dtype=np.int64)
    groups = _groups(b)
    for key, ours in _groups(a).items():
        theirs = groups.get(key)
        if theirs is not None:
            for one, two in _matched(_names(a, ours), _names(b, theirs)):
                to_b[ours[one]] = theirs[two]
    changed = np.zeros(len(b), dtype=bool)
    made_a, made_b = _made(a), _made(b)
    for one in np.flatnonzero(to_b >= 0).tolist():
        two = int(to_b[one])
        same = a.calls[a.node_call[one]] == b.calls[b.node_call[two]] and made_a(one) == made_b(two)
        changed[two] = not same
    return Alignment(to_b, changed)


def _groups(graph: Graph) -> dict[tuple[str, int, int], list[int]]:
    """The operations of each call of a module in each phase, in order."""
    found: dict[tuple[str, int, int], list[int]] = {}
    paths = graph.scope_paths
    columns = (graph.node_scope.tolist(), graph.node_phase.tolist())
    calls = graph.scope_call.tolist()
    for node, (scope, phase) in enumerate(zip(*columns)):
        found.setdefault((paths[scope], calls[scope], phase), []).append(node)
    return found


def _names(graph: Graph, nodes: list[int]) -> list[str]:
    return [graph.calls[call].op.partition(".")[0] for call in graph.node_call[nodes].tolist()]


def _matched(one: list[str], two: list[str]) -> list[tuple[int, int]]:
    """Places of two sequences that belong together, in order."""
    if one == two:
        return [(place, place) for place in range(len(one))]
    if max(len(one), len(two)) > LONG:
        return _common_ends(one, two)
    blocks = SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()
    return [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]


def _common_ends(one: list[str], two: list[str]) -> list[tuple[int, int]]:
    shorter = min(len(one), len(two))
    head = next((i for i in range(shorter) if one[i] != two[i]), shorter)
    tail = next((i for i in range(shorter - head) if one[-1 - i] != two[-1 - i]), shorter - head)
    ends = [(len(one) - 1 - i, len(two) - 1 - i) for i in range(tail)]
    return [(i, i) for i in range(head)] + ends[::-1]


def _made(graph: Graph) -> Any:
    """A function that says what an operation makes: shapes and types, without strides."""
    types = [(row.dtype, row.shape) for row in graph.types]

    def made(node: int) -> list[Any]:
        values = graph.out_value[slice(*graph.output_span(node))]
        return [types[number] for number in graph.value_type[values].tolist()]

    return made
