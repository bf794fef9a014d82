"""The tree of scopes: what lies inside what, sums over it, and where recomputed calls count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from torch_vis.graph.tree import Tree
from torch_vis.interfaces.explorer.trace_source import TraceSource

parents = st.lists(st.integers(0, 10**6), max_size=40).map(
    lambda draws: [-1, *(draw % (row + 1) for row, draw in enumerate(draws))]
)


def ancestors(parent: list[int], row: int) -> list[int]:
    """A row and all that are around it, from the inside out."""
    chain = [row]
    while parent[chain[-1]] >= 0:
        chain.append(parent[chain[-1]])
    return chain


@given(parents)
def test_relations_agree_with_a_walk_up_the_parents(parent: list[int]) -> None:
    tree, rows = Tree(parent), range(len(parent))
    chains = [ancestors(parent, row) for row in rows]
    assert tree.depth.tolist() == [len(chain) - 1 for chain in chains]
    for a in rows:
        inside = [tree.enter[a] <= tree.enter[b] < tree.leave[a] for b in rows]
        assert inside == [a in chains[b] for b in rows]
    some = np.array([row % 3 == 1 for row in rows])
    assert tree.inside_some(some).tolist() == [any(some[up] for up in chain) for chain in chains]
    assert tree.around_some(some).tolist() == [any(some[b] and a in chains[b] for b in rows) for a in rows]
    assert tree.nearest(some).tolist() == [next((up for up in chain if some[up]), -1) for chain in chains]
    group = np.array([row % 4 for row in rows])
    assert tree.outermost(group).tolist() == [
        all(group[up] != group[chain[0]] for up in chain[1:]) for chain in chains
    ]
    pairs = np.array([(a, b) for a in rows for b in rows]).reshape(-1, 2).T
    common = [next(up for up in chains[a] if up in chains[b]) for a, b in pairs.T.tolist()]
    assert tree.common(*pairs).tolist() == common


@given(parents)
def test_sums_carry_upwards_and_own_takes_them_apart_again(parent: list[int]) -> None:
    tree, rows = Tree(parent), range(len(parent))
    own = np.stack([np.arange(len(parent)), np.arange(len(parent)) ** 2])
    sums = tree.inclusive(own)
    assert sums.tolist() == [
        [sum(int(line[b]) for b in rows if a in ancestors(parent, b)) for a in rows] for line in own
    ]
    assert (tree.own(sums) == own).all()
    assert tree.inclusive(own[0], np.maximum).tolist() == [
        max(b for b in rows if a in ancestors(parent, b)) for a in rows
    ]


def test_a_tree_as_deep_as_it_is_long_needs_no_stack() -> None:
    tree = Tree(np.arange(-1, 9_999))
    assert tree.depth[-1] == 9_999 and tree.inclusive(np.ones(10_000, dtype=np.int64))[0] == 10_000
    assert not tree.outermost(np.zeros(10_000, dtype=np.int64))[1:].any()


class Caller(nn.Module):
    """Calls a module, checkpointed, that another caller has too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, torch.sin(x), use_reentrant=False)


class Callers(nn.Module):
    """Two callers of one module; the second calls it twice."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.a, self.b = Caller(inner), Caller(inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.b(self.a(x)))


@pytest.fixture(scope="module")
def shared() -> tv.Trace:
    """A run that checkpoints a module which two others share."""
    return tv.trace(Callers(), torch.randn(2, 4, requires_grad=True), backward=True)


def test_a_recomputed_call_counts_where_that_very_call_was_made_first(shared: tv.Trace) -> None:
    tree, paths = shared.graph.tree, shared.graph.scope_paths
    outer = np.flatnonzero(tree.recomputed & ~tree.recomputed[tree.parent]).tolist()
    assert [paths[tree.by_first_call.parent[scope]] for scope in outer] == ["b", "b", "a"]


def test_print_explorer_and_time_agree_on_a_checkpointed_module_of_two_callers(shared: tv.Trace) -> None:
    explorer = TraceSource(shared).forest
    recomputed = {path: explorer.numbers["recomputed"][explorer.row(path)] for path in ("a", "b")}
    times = {row.name: row.recomputed_ns for row in shared.time().modules if row.name in recomputed}
    assert recomputed == times and recomputed["b"] > 0 < recomputed["a"]
    ops = {path: explorer.numbers["recomputed_ops"][explorer.row(path)] for path in ("a", "b")}
    printed = {row.path: row.recomputed_ops for row in shared.summary().modules if row.path in ops}
    assert ops == printed and ops["b"] == 2 * ops["a"]
