"""Time and memory of operations and scopes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import torch_vis as tv


def test_times_are_not_negative_and_nest() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)))
    t = tv.trace(model, torch.rand(4, 8), backward=True)
    metrics, graph = t.metrics, t.graph
    spent, begun = metrics["time_ns"].values, metrics["start_ns"].values
    assert (spent >= 0).all() and spent.sum() > 0 and (begun >= 0).all()
    assert (np.diff(begun) >= 0).all(), "operations of one thread begin in order"
    assert (begun[:-1] + spent[:-1] <= begun[1:]).all(), "and do not overlap"
    inclusive, own = metrics["scope_time_ns"].values, metrics["scope_self_ns"].values
    assert (own >= 0).all() and (inclusive >= own).all()
    for scope in graph.scopes[1:]:
        assert inclusive[scope.parent.index] >= inclusive[scope.index], scope
    in_forward = graph.node_phase == 0
    for scope in graph.scopes:
        ran = in_forward & (graph.node_scope == scope.index)
        assert inclusive[scope.index] >= spent[ran].sum(), scope


def test_memory_is_exact_on_an_example_by_hand() -> None:
    """Float tensors of 256 elements are 1,024 bytes; the input is there before the first operation."""

    def f(x: Tensor) -> Tensor:
        a = x + 1  # + 1024: x, a
        b = a[:128]  # a view costs nothing
        c = a * 2  # + 1024: x, a, c
        del a, b  # - 1024
        d = c.sum()  # + 4: x, c, d
        c = torch.zeros(512)  # + 2048, then - 1024
        return c + d  # + 2048, then - 2052

    t = tv.trace(f, torch.ones(256))
    rows = [
        (node.name, t.metrics["alloc_bytes"][i], t.metrics["free_bytes"][i], t.metrics["live_bytes"][i])
        for i, node in enumerate(t.graph.nodes)
    ]
    assert [row[:2] for row in rows] == [
        ("add", 1024),
        ("slice", 0),
        ("mul", 1024),
        ("sum", 4),
        ("zeros", 2048),
        ("add", 2048),
    ]
    # what dies after an operation is counted with it
    assert [row[2] for row in rows[:-1]] == [0, 0, 1024, 0, 1024]
    assert [row[3] for row in rows[:-1]] == [2048, 2048, 2048, 2052, 3076]
    # the peak is the live bytes with what an operation allocates and before what dies after it
    live, freed = t.metrics["live_bytes"].values, t.metrics["free_bytes"].values
    assert int((live + freed).max()) == 1024 + 4 + 2048 + 2048


def test_the_peak_counts_what_lives_while_an_operation_runs() -> None:
    """In `(x + 1) * 2` three tensors of 1 KiB are alive while the product is made, though one dies right after."""
    t = tv.trace(lambda x: ((x + 1) * 2).sum(), torch.ones(256))
    (line,) = [line for line in str(t).splitlines() if "peak memory" in line]
    assert "3.00 KiB" in line, line


def test_memory_that_dies_when_the_run_ends() -> None:
    """What the function's own frame held until it returned is freed by its last operation, not kept for ever."""

    def f(x: Tensor) -> Tensor:
        y = x + 1
        return y * 2

    t = tv.trace(f, torch.ones(256))
    assert t.metrics["free_bytes"].values.tolist() == [0, 1024]
    assert t.metrics["live_bytes"].values.tolist() == [2048, 2048]


def test_memory_of_parameters_inputs_and_backward() -> None:
    model = nn.Linear(4, 2)  # 40 bytes
    t = tv.trace(model, torch.ones(3, 4), backward=True)
    live = t.metrics["live_bytes"].values
    assert live[0] == 40 + 48
    # at the end: parameters, input, output (24), gradients (40)
    assert live[-1] == 40 + 48 + 24 + 40
    assert int(t.graph.storage_bytes[t.graph.storage_birth < 0].sum()) == 88


def test_what_dies_at_the_end_is_told_from_what_lives_on() -> None:
    """A block dies before the operation of that number: n is after the last of n, and n + 1 is not at all."""

    def f(x: Tensor) -> Tensor:
        early = x + 1
        late = early * 2
        del early
        return late.sum()

    t = tv.trace(f, torch.ones(256))
    assert [node.name for node in t.graph.nodes] == ["add", "mul", "sum"]
    lives = dict(zip(t.graph.storage_birth.tolist(), t.graph.storage_death.tolist(), strict=True))
    assert lives == {-1: 4, 0: 2, 1: 3, 2: 4}


def test_memory_that_several_parameters_lie_in_is_none_of_them() -> None:
    one, two = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)
    memory = torch.cat([layer.weight.detach().view(-1) for layer in (one, two)])
    for layer, part in zip((one, two), memory.split([24, 12])):
        layer.weight = torch.nn.Parameter(part.view_as(layer.weight))
    model = torch.nn.Sequential(one, two)
    part = model[1].weight.detach()[1]

    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x) + memory.sum() + part.sum()

    trace = tv.trace(run, torch.ones(3, 4))
    given = {(value.shape, value.name, value.role) for value in trace.graph.values if value.producer is None}
    assert {((6, 4), "0.weight", "parameter"), ((2, 6), "1.weight", "parameter")} <= given
    assert ((36,), None, "constant") in given
    assert ((6,), "1.weight", "parameter") in given, "a part of one goes by its name"
    trace.check()
