"""Bytes: what is needed is read once, what is made is written once, and views move nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.kit.cost_proofs import cost_of, formula, tensor, traced
from torch_vis.graph import TensorType
from torch_vis.ops.cost import UNKNOWN_BYTES, costs
from torch_vis.ops.cost.registry import touched

aten = torch.ops.aten


def moved(function: Callable[..., Any], *args: Any, op: str | None = None) -> int | None:
    return cost_of(traced(function, *args), op).bytes


def test_reads_and_writes() -> None:
    x, y = torch.ones(6, 4), torch.ones(4)
    assert moved(torch.add, x, y) == 4 * (24 + 4 + 24)
    assert moved(lambda x: x.add_(1), torch.ones(10)) == 4 * (10 + 10)
    assert moved(lambda x, y: x.copy_(y), torch.ones(10), torch.ones(10)) == 4 * (10 + 10)
    assert moved(lambda x: x.zero_(), torch.ones(10)) == 4 * 10
    assert moved(lambda x: torch.exp(x, out=torch.empty(10)), torch.ones(10), op="exp") == 4 * 20
    assert moved(lambda x: x.to(torch.float16), torch.ones(10)) == 4 * 10 + 2 * 10
    assert moved(lambda: torch.zeros(10)) == 40
    assert moved(torch.zeros_like, torch.ones(10)) == 40
    assert moved(lambda: torch.empty(10), op="empty") == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x.reshape(-1),
        lambda x: x.expand(3, *x.shape),
        lambda x: x.unbind(0),
        lambda x: x.contiguous(),
        lambda x: x.squeeze_(0),
        lambda x: x.detach(),
    ],
)
def test_views_cost_nothing(view: Callable[..., Any]) -> None:
    trace = traced(view, torch.ones(4, 6))
    if len(trace.graph):
        assert cost_of(trace) == (0, 0, 0)


def test_an_expanded_tensor_has_the_bytes_under_it() -> None:
    assert moved(torch.sum, torch.ones(1).expand(1000)) == 4 + 4
    assert moved(torch.clone, torch.ones(1, 5).expand(100, 5)) == 4 * (5 + 500)
    windows = torch.ones(10).unfold(0, 4, 1)  # 7 windows of 4, over 10 elements
    assert moved(torch.sum, windows) == 4 * (10 + 1)


@pytest.mark.parametrize(
    ("type_", "size"),
    [
        (TensorType("float32", (2, 3), (3, 1)), 24),
        (TensorType("float32", (0, 3), (3, 1)), 0),
        (TensorType("float32", (), ()), 4),
        (TensorType("quint8", (5,), (), "quantized"), 5),
        (TensorType("float32", (5,), (), "zero"), 0),
        (TensorType("float32", (5,), (), "sparse_coo"), None),
        (TensorType("quint4x2", (5,), (), "quantized"), None),
    ],
)
def test_bytes_under_a_tensor(type_: TensorType, size: int | None) -> None:
    assert touched(type_) == size


# Lookups read what they return


def test_lookups() -> None:
    table, rows = torch.ones(1000, 8), torch.tensor([1, 5, 5])
    assert moved(functional.embedding, rows, table) == 8 * 3 + 2 * 4 * 3 * 8
    assert moved(torch.index_select, table, 0, rows) == 8 * 3 + 2 * 4 * 3 * 8
    assert moved(lambda t: t[rows], table, op="index") == 8 * 3 + 2 * 4 * 3 * 8
    assert moved(torch.gather, table, 0, torch.zeros(2, 8, dtype=torch.int64)) == 8 * 16 + 2 * 4 * 16
    assert cost_of(traced(functional.embedding, rows, table)).flops == 0
    back = cost_of(
        traced(lambda g: aten.embedding_dense_backward(g, rows, 1000, -1, False), torch.ones(3, 8))
    )
    assert back[::2] == (24, 4 * 24 + 8 * 3 + 4 * 8000)


def test_bags_of_rows() -> None:
    table, rows, bags = torch.ones(1000, 8), torch.tensor([1, 5, 5, 7]), torch.tensor([0, 3])

    def cost(mode: str, **options: Any) -> Any:
        return cost_of(
            traced(functional.embedding_bag, rows, table, bags, mode=mode, **options),
            "_embedding_bag_forward_only",
        )

    assert [cost(mode).flops for mode in ("sum", "mean", "max")] == [4 * 8, 4 * 8 + 2 * 8, 0]
    assert cost("sum", per_sample_weights=torch.ones(4)).flops == 2 * 4 * 8
    assert cost("sum").bytes < 1000 * 8 * 4


def test_writing_a_part_in_place() -> None:
    big, rows, source = torch.zeros(1000, 8), torch.tensor([1, 5, 7]), torch.ones(3, 8)
    assert moved(lambda: big.index_copy_(0, rows, source)) == 8 * 3 + 4 * (24 + 24)
    added = cost_of(traced(lambda: big.index_add_(0, rows, source)))
    assert (added.flops, added.bytes) == (24, 8 * 3 + 4 * (24 + 2 * 24))
    assert cost_of(traced(lambda: big.index_add_(0, rows, source, alpha=2))).flops == 48
    assert moved(lambda: big.index_put_((rows,), source)) == 8 * 3 + 4 * (24 + 24)
    put = cost_of(traced(lambda: big.index_put_((rows,), source, accumulate=True)))
    assert (put.flops, put.bytes) == (24, 8 * 3 + 4 * (24 + 2 * 24))
    index = rows[:, None].expand(3, 8)
    scattered = cost_of(traced(lambda: big.scatter_add_(0, index, source)), "scatter_add_")
    assert (scattered.flops, scattered.bytes) == (24, 8 * 3 + 4 * (24 + 2 * 24))
    whole = cost_of(traced(lambda: torch.index_add(big, 0, rows, source)))
    assert whole.bytes == 8 * 3 + 4 * (24 + 8000 + 8000)


def test_what_a_mask_leaves_open_is_not_known() -> None:
    x, mask = torch.zeros(10), torch.ones(10, dtype=torch.bool)
    trace = traced(lambda: aten.index_put_(x, [mask], torch.tensor(1.0)))
    assert cost_of(trace, "index_put_") == (0, 0, None)
    put = formula("aten::index_put_", tensor(10), (tensor(10, dtype="bool"),), tensor(), True, out=tensor(10))
    assert put is None  # how many are added is not known either
    one = formula(
        "aten::index_put_", tensor(10), (tensor(10, dtype="bool"),), tensor(), False, out=tensor(10)
    )
    assert one.bytes == UNKNOWN_BYTES


def test_sorting_is_covered_and_free() -> None:
    x = torch.rand(50)
    for function in (torch.sort, torch.argsort, lambda x: x.topk(3), torch.unique, torch.nonzero):
        assert cost_of(traced(function, x)).flops == 0
    assert moved(torch.sort, x) == 4 * 50 + (4 + 8) * 50


def test_random_numbers_are_covered_and_free() -> None:
    assert cost_of(traced(lambda: torch.rand(50)))[::2] == (0, 200)
    dropped = traced(lambda x: functional.dropout(x, 0.5, training=True), torch.ones(50))
    assert cost_of(dropped).flops == 2 * 50


# Quantized and sparse


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_layers() -> None:
    x = torch.randn(5, 4)
    quantized = traced(lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).dequantize(), x)
    assert [costs(quantized.graph)["flops"][i] for i in range(2)] == [2 * 20, 2 * 20]
    assert costs(quantized.graph)["moved_bytes"][0] == 4 * 20 + 20
    layer = torch.ao.nn.quantized.dynamic.Linear(4, 3)
    trace = traced(layer, x)
    found = {node.op: costs(trace.graph)["macs"][node.index] for node in trace.graph.nodes}
    assert found["quantized::linear_dynamic"] == 5 * 4 * 3


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_sparse_products_count_stored_elements() -> None:
    places, values = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 2]]), torch.rand(4)

    def product(values: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.sparse_coo_tensor(places, values, (3, 3), is_coalesced=True) @ b

    trace = traced(product, values, torch.rand(3, 5))
    macs = [costs(trace.graph)["macs"][node.index] for node in trace.graph.nodes if "mm" in node.op]
    assert macs == [4 * 5]
    given = torch.rand(6, 6).relu().to_sparse()
    outside = traced(torch.mm, given, torch.rand(6, 2))  # how many it stores is nowhere in the graph
    assert costs(outside.graph)["flops"][-1] is None
    read = traced(lambda a, b: (a.values().sum(), torch.mm(a, b)), given, torch.rand(6, 2))
    assert cost_of(read, "mm").macs == given.values().numel() * 2
