"""Sparse and nested tensors, and lookups: what they store or name is what counts."""

from __future__ import annotations

import pytest
import torch

import torch_vis as tv
from tests.kit.cost_proofs import assert_counts, cost_of, double, traced
from tests.kit.counting import Array, Number, array, sqrt, zeros
from torch_vis.ops.cost import Cost


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_equal_places_are_added_up() -> None:
    places, values = torch.tensor([[0, 1, 1, 2, 1], [2, 0, 0, 1, 0]]), double(5)

    def reference(values: Array) -> Array:
        made = zeros(3, 3)
        for row, column, value in zip(*places.tolist(), values):
            made[row, column] = made[row, column] + value
        return made

    assert_counts(
        lambda v: torch.sparse_coo_tensor(places, v, (3, 3)).coalesce().to_dense(),
        reference,
        values,
        op="_coalesce",
    )


@pytest.mark.filterwarnings("ignore:Sparse")
def test_elementwise_work_on_sparse_tensors_counts_what_they_store() -> None:
    sparse = torch.eye(5).to_sparse()
    assert cost_of(traced(lambda a: a * 2, sparse), "mul").flops == 5
    assert cost_of(traced(lambda a: a + a, sparse), "add").flops == 5
    assert cost_of(traced(lambda a: a.sum(), sparse), "sum").flops == 5
    assert cost_of(traced(lambda a, b: b + a, sparse, torch.ones(5, 5)), "add").flops == 5
    assert cost_of(traced(torch.mm, sparse.to_sparse_csr(), torch.ones(5, 3)), "mm").macs == 15


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("how", ["sum", "mean", "amax"])
def test_sparse_products_reduced(how: str) -> None:
    dense = torch.tensor([[0.5, 0.0, 2.0], [0.0, 1.5, 0.0], [1.0, 3.0, -1.0]], dtype=torch.float64)
    rows = [[(k, float(x)) for k, x in enumerate(row) if x] for row in dense.tolist()]

    def reference(b: Array) -> Array:
        made = []
        for row in rows:
            for j in range(2):
                terms = [Number(x) * b[k, j] for k, x in row]
                if how == "amax":
                    made.append(max(terms))
                else:
                    made.append(sum(terms) / len(row) if how == "mean" else sum(terms))
        return array(made, (3, 2))

    assert_counts(
        lambda b: torch.ops.aten._sparse_mm_reduce_impl(dense.to_sparse_csr(), b, how)[0],
        reference,
        double(3, 2),
        op="_sparse_mm_reduce_impl",
        macs=how != "amax",
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(("how", "expected"), [("sum", 2 * 6 * 2 * 2), ("mean", 2 * 6 * 2 * 2 + 2 * 6)])
def test_gradients_of_sparse_products(how: str, expected: int) -> None:
    """Each stored element meets a row twice: for its own gradient, and for that of the row."""
    dense = torch.tensor([[0.5, 0.0, 2.0], [0.0, 1.5, 0.0], [1.0, 3.0, -1.0]])
    sparse, b = dense.to_sparse_csr().requires_grad_(), torch.rand(3, 2, requires_grad=True)
    trace = tv.trace(lambda a, b: torch.sparse.mm(a, b, how), sparse, b, backward=True)
    assert cost_of(trace, "_sparse_mm_reduce_impl_backward").flops == expected


# Nested


def test_nested_tensors_count_their_parts() -> None:
    parts, layer = [torch.rand(2, 3), torch.rand(4, 3)], torch.nn.Linear(3, 5)

    def function(nested: torch.Tensor) -> torch.Tensor:
        return torch.softmax(layer(nested), -1)

    whole = traced(function, torch.nested.nested_tensor(parts))
    each = [cost_of(traced(function, part)) for part in parts]
    assert cost_of(whole).flops == sum(cost.flops for cost in each)
    assert cost_of(whole).macs == sum(cost.macs for cost in each)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_batch_goes_through_an_encoder_padded_only_for_attention() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = torch.nn.TransformerEncoder(layer, 1).eval(), torch.rand(2, 6, 8)
    plain = cost_of(traced(layer.eval(), x), "_transformer_encoder_layer_fwd")

    def encoded(*lengths: int) -> Cost:
        mask = torch.arange(6) >= torch.tensor(lengths)[:, None]
        trace = traced(lambda x: model(x, src_key_padding_mask=mask), x)
        return cost_of(trace, "_transformer_encoder_layer_fwd")

    assert encoded(6, 5).macs == plain.macs - (4 * 8 * 8 + 2 * 8 * 16)
    assert encoded(6, 3).macs == plain.macs - 3 * (4 * 8 * 8 + 2 * 8 * 16)


def test_rows_are_brought_to_a_norm() -> None:
    x, indices = double(4, 3), torch.tensor([2, 0])

    def reference(x: Array) -> Array:
        for i in indices.tolist():
            size = sqrt(sum(each * each for each in x[i]))
            factor = 1.0 / (size + 1e-7)
            x[i] = x[i] * (factor if size > 1.0 else Number(1))
        return x

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.embedding_renorm_(x.clone(), indices, 1.0, 2.0)

    assert_counts(function, reference, x, op="embedding_renorm_")


def test_a_mask_that_names_nothing_adds_nothing() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.index_put((torch.zeros(4, dtype=torch.bool),), torch.zeros(0, 3), accumulate=True)

    assert cost_of(traced(function, torch.ones(4, 3)), "index_put").flops == 0
