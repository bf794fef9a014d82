"""Damaged graphs: every edge deleted, every column changed; ``check`` finds what means something else.

`python -m tools.mutations` prints both figures in full.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import torch_vis as tv
from tests.kit.mutations import (
    MUTATIONS,
    SMALL,
    UNPROVABLE,
    Mutant,
    deletions,
    is_equivalent,
    judge,
    mutant,
    run_of,
)
from tests.zoo import ZOO, close_process_group
from torch_vis.graph.schema import Kind
from torch_vis.replay.check import check

CASES = [name for name, case in ZOO.items() if not case.tags & (UNPROVABLE | {"slow", "deep", "wide"})]


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


@pytest.mark.parametrize("name", SMALL)
def test_every_edge_that_is_deleted_is_missed(name: str) -> None:
    trace = run_of(name)
    trace.check()
    verdicts = [judge(trace, damaged, shuffles=0) for damaged in deletions(trace.graph)]
    assert len(verdicts) > 3
    assert [verdict for verdict in verdicts if not verdict.found and not verdict.equivalent] == []
    assert [verdict for verdict in verdicts if verdict.raw] == []


@pytest.mark.parametrize("name", CASES)
def test_random_changes_are_found(name: str) -> None:
    trace = run_of(name)
    chance = random.Random(f"test {name}")
    verdicts = [judge(trace, mutant(trace.graph, chance)) for _ in range(5 if len(trace.graph) else 0)]
    assert [verdict for verdict in verdicts if not verdict.found and not verdict.equivalent] == []
    assert [verdict for verdict in verdicts if verdict.raw] == []


@pytest.mark.parametrize("what", MUTATIONS)
def test_every_column_is_changed_and_the_changes_are_found(what: str) -> None:
    """Each kind of change, on graphs with views, partial writes, hidden reads, state and several outputs."""
    found = 0
    for name in ("mlp", "cache", "disjoint_view_writes", "batch_norm_train"):
        trace, chance = run_of(name), random.Random(f"{what} {name}")
        for _ in range(4):
            columns = MUTATIONS[what](trace.graph, chance)
            if columns is None:
                continue
            verdict = judge(trace, Mutant(what, trace.graph.replaced(**columns)), shuffles=1)
            assert verdict.found or verdict.equivalent, verdict
            found += verdict.found
    assert found


@pytest.mark.parametrize(
    "said", [{"layout": "strided"}, {"layout": "sparse_csr"}, {"shape": (2, 2)}, {"dtype": "int64"}]
)
def test_what_is_said_of_a_tensor_without_plain_memory_is_proved(said: dict[str, Any]) -> None:
    trace = tv.trace(lambda x: x.to_sparse() * 2, torch.eye(3))
    types = tuple(row._replace(**said) if row.layout == "sparse_coo" else row for row in trace.graph.types)
    trace.check()
    with pytest.raises(tv.errors.CheckFailed):
        check(trace.graph.replaced(types=types), trace.kept)


# ---------------------------------------------------------------- what the mutants mean


def test_equivalence_is_about_what_a_graph_says() -> None:
    trace = tv.trace(lambda x, y: (x * y, x - y, torch.where(x > 9, y, x)), torch.rand(3), torch.rand(3))
    graph = trace.graph

    def swapped(node: int) -> tv.Graph:
        slots = graph.in_slot.copy()
        start, stop = graph.input_span(node)
        slots[start:stop] = slots[start:stop][::-1]
        return graph.replaced(in_slot=slots)

    def without(node: int, slot: int) -> tv.Graph:
        kinds = graph.in_kind.copy()
        kinds[graph.input_span(node)[0] + slot] = Kind.SHAPE
        return graph.replaced(in_kind=kinds)

    names = [node.name for node in graph.nodes]
    assert is_equivalent(trace, graph)
    assert is_equivalent(trace, swapped(names.index("mul")))
    assert not is_equivalent(trace, swapped(names.index("sub")))
    # its contents do not matter in this run, and yet it is read
    assert not is_equivalent(trace, without(names.index("where"), 1))


def test_what_leads_to_no_result_may_be_anything() -> None:
    def wasteful(x: torch.Tensor) -> torch.Tensor:
        (x * 2).exp()
        return x + 1

    trace = tv.trace(wasteful, torch.rand(3))
    kinds = trace.graph.in_kind.copy()
    kinds[1] = Kind.SHAPE
    assert is_equivalent(trace, trace.graph.replaced(in_kind=kinds))
    assert np.array_equal(trace.graph.in_kind, [0, 0, 0])
