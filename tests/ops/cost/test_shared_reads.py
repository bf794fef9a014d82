"""Bytes that an operation is given more than once are read once: held against a mark on every byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import torch_vis as tv
from tests.kit import fusing
from tests.kit.traced import NAMES, traced
from torch_vis.analysis.machine.features import workload
from torch_vis.graph import Graph
from torch_vis.graph.schema import Kind
from torch_vis.ops.cost import costs

BY_TYPES = ("add", "mul", "mm", "addmm", "bmm", "cat", "addcmul_", "_softmax")
N = 4 * 100  # bytes of a 10 × 10 matrix


def last(function: Callable[..., Any], *args: Any) -> int | None:
    """The bytes that a function's last operation moves."""
    trace = tv.trace(function, *args)
    found: int | None = trace.metrics["moved_bytes"][len(trace.graph) - 1]
    return found


@pytest.mark.parametrize(
    ("function", "moved"),
    [
        (lambda x: x * x, 2 * N),
        (lambda x: x @ x, 2 * N),
        (lambda x: x.t() @ x, 2 * N),
        (lambda x: x.view(100) * x.t().view(10, 10).t().reshape(100), 2 * N),
        (lambda x: x + x.view(torch.int32), 2 * N),
        (lambda x: x * x[:1], 2 * N),  # the row lies in the matrix
        (lambda x: x * x[:, :1], 2 * N),
        (lambda x: x[:5] + x[5:], N + N // 2),  # two halves share nothing
        (lambda x: x[:, :5] + x[:, 5:], N + N // 2),
        (lambda x: x[1:] - x[:-1], N + 4 * 90),
        (lambda x: x[:, 1:] - x[:, :-1], N + 4 * 90),
        (lambda x: x[1:, :3] - x[:-1, :3], 4 * 30 + 4 * 27),
        (lambda x: torch.stack([x, x, x]), 4 * N),
        (lambda x: torch.where(x > 0, x, x), N // 4 + 2 * N),
        (lambda x: x.add_(x), 2 * N),
    ],
)
def test_what_is_given_twice_is_read_once(function: Callable[..., Any], moved: int) -> None:
    assert last(function, torch.arange(100.0).view(10, 10)) == moved


def test_attention_to_itself() -> None:
    q = torch.ones(1, 1, 10, 10)
    trace = tv.trace(functional.scaled_dot_product_attention, q, q, q)
    (node,) = [node for node in trace.graph.nodes if "attention" in node.name]
    assert trace.metrics["moved_bytes"][node.index] == N + sum(map(fusing.size_of, node.outputs))


def test_indices_that_are_given_twice() -> None:
    x, i = torch.ones(10, 10), torch.tensor([1, 5, 7])
    assert last(lambda: x[i, i]) == 8 * 3 + 4 * 3 + 4 * 3
    table = torch.arange(50)
    assert last(lambda: table[table[:3]]) == 3 * 8 * 3  # the rows are not those that name them


def test_what_is_put_into_a_copy_of_where_it_lies_is_read_with_it() -> None:
    x, rows = torch.arange(50.0).view(10, 5), torch.tensor([7, 8])
    assert last(lambda: x.index_copy(0, rows, x[:2])) == 8 * 2 + 2 * 4 * 50


@pytest.mark.parametrize("name", ["addmm", "baddbmm", "addbmm", "addmv", "addr"])
def test_a_beta_of_zero_leaves_what_is_added_to_unread(name: str) -> None:
    shapes = {
        "addmm": ((3, 4), (3, 5), (5, 4)),
        "baddbmm": ((2, 3, 4), (2, 3, 5), (2, 5, 4)),
        "addbmm": ((3, 4), (2, 3, 5), (2, 5, 4)),
        "addmv": ((3,), (3, 5), (5,)),
        "addr": ((3, 4), (3,), (4,)),
    }
    c, a, b = (torch.ones(shape) for shape in shapes[name])
    function = getattr(torch, name)
    least = 4 * (a.numel() + b.numel() + c.numel())
    assert last(lambda: function(c, a, b, beta=0)) == least
    assert last(lambda: function(c, a, b, beta=0.5)) == least + 4 * c.numel()
    assert last(lambda: getattr(c, f"{name}_")(a, b, beta=0)) == least
    assert last(lambda: getattr(c, f"{name}_")(a, b)) == least + 4 * c.numel()


def test_the_order_of_equal_calls_does_not_matter() -> None:
    x, y = torch.ones(10, 10), torch.ones(10, 10)
    for function in (lambda: (x * x, x * y), lambda: (x * y, x * x)):
        assert sorted(tv.trace(function).metrics["moved_bytes"][:]) == [2 * N, 3 * N]


# Against a mark on every byte


def marked(graph: Graph, node: int) -> int:
    """The bytes that an operation is given, each once."""
    values = fusing.given(graph.nodes[node])
    return sum(int(fresh.sum()) for fresh in fusing.read_once(values))


def cuts(axes: tuple[int, ...], size: int) -> st.SearchStrategy[tuple[Any, ...]]:
    """Slices along some of three axes."""
    ends = st.tuples(st.integers(0, size - 1), st.integers(1, size)).map(
        lambda a: slice(a[0], max(a[0] + 1, a[1]))
    )
    return st.tuples(*(ends if axis in axes else st.just(slice(None)) for axis in range(3)))


def moved_and_marked(views: list[Callable[[torch.Tensor], torch.Tensor]]) -> tuple[int, int, int]:
    """What reading several views at once is said to read; the bytes under them; and those of each added up."""
    x = torch.zeros(5, 5, 5)
    trace = tv.trace(lambda: torch._foreach_neg([view(x) for view in views]))
    graph, node = trace.graph, len(trace.graph) - 1
    made = sum(fusing.size_of(value) for value in graph.nodes[node].outputs)
    found = costs(graph)["moved_bytes"][node] - made
    each = sum(fusing.size_of(value) for value in fusing.given(graph.nodes[node]))
    return found, marked(graph, node), each


@given(axis=st.integers(0, 2), data=st.data())
@settings(max_examples=60, deadline=None)
def test_slices_along_one_axis(axis: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(cuts((axis,), 5), min_size=1, max_size=4))
    turns = data.draw(st.lists(st.permutations([0, 1, 2]), min_size=len(places), max_size=len(places)))
    views = [lambda x, p=p, t=t: x[p].permute(t) for p, t in zip(places, turns, strict=True)]
    found, least, _ = moved_and_marked(views)  # type: ignore[arg-type]
    assert found == least


@given(places=st.lists(cuts((0, 1, 2), 5), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_slices_of_any_kind_are_never_below_nor_above_each_by_itself(places: list[Any]) -> None:
    found, least, most = moved_and_marked([lambda x, p=p: x[p] for p in places])  # type: ignore[misc]
    assert least <= found <= most


@given(place=cuts((0, 1, 2), 5), other=cuts((0, 1, 2), 5))
@settings(max_examples=60, deadline=None)
def test_equal_slices_and_slices_of_what_is_read_whole(place: Any, other: Any) -> None:
    views = [lambda x: x[place], lambda x: x[place].transpose(0, 2), lambda x: x[place]]
    found, least, _ = moved_and_marked(views)
    assert found == least
    found, least, _ = moved_and_marked([lambda x: x[other], lambda x: x, *views])
    assert found == least == 4 * 125


@pytest.mark.parametrize("name", NAMES)
def test_no_operation_reads_more_than_it_is_given(name: str) -> None:
    """Where a formula leaves bytes to the types, they are those under the tensors and those of what is written."""
    graph = traced(name).graph
    moved = costs(graph)["moved_bytes"]
    by_another_name = {*graph.in_node[(graph.in_slot < 0) & (graph.in_kind != Kind.SHAPE)].tolist()}
    for node in graph.nodes:
        counted = "view" not in node.flags and moved[node.index] is not None
        if counted and node.name in BY_TYPES and node.index not in by_another_name:
            assert moved[node.index] == marked(graph, node.index) + sum(map(fusing.size_of, node.outputs))


def test_many_at_once() -> None:
    """A list that names one tensor ten thousand times, and one whose windows slide."""
    x = torch.zeros(4)
    trace = tv.trace(lambda: torch.cat([x] * 10_000))
    assert trace.metrics["moved_bytes"][len(trace.graph) - 1] == 16 + 16 * 10_000
    long = torch.zeros(10_010)
    trace = tv.trace(lambda: torch.stack([long[i : i + 10] for i in range(10_000)]))
    assert trace.metrics["moved_bytes"][len(trace.graph) - 1] == 4 * 10_009 + 40 * 10_000


def test_what_an_operation_takes_does_not_depend_on_those_before_it() -> None:
    """Equal calls, of which one is given a tensor twice, are two kinds of work."""
    x, y = torch.ones(10, 10), torch.ones(10, 10)
    for function in (lambda: (x * x, x * y), lambda: (x * y, x * x)):
        trace = tv.trace(function)
        found = workload(trace.graph, trace.metrics)
        assert [found.moved[group] for group in found.group] == trace.metrics["moved_bytes"][:]
