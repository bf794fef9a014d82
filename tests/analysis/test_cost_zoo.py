"""Every model of the zoo: no formula fails on it, and what has no formula is listed here with its reason."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import torch_vis as tv
from tests.zoo import ZOO, Case, close_process_group
from torch_vis.analysis.cost import costs, uncovered

OWN = "an operator of the test's own"
UNSEEN = "code that cannot be looked into"
NESTED = "the sizes inside a nested tensor are not in the graph"
SPARSE = "how many elements the sparse tensor stores is not in the graph"
ITERATES = "it iterates until it is done"
REPEATS = "how many rows it visits depends on how many indices are equal"

# The case, and the operators of it that have no formula.
UNCOVERED = {
    "compile_inductor_backend": {"torch_vis::compiled": UNSEEN},
    "custom_operator": {"torch_vis_zoo::scaled_sin": OWN, "torch_vis_zoo::add_into": OWN},
    "embedding_padding": {"aten::embedding_renorm_": REPEATS},
    "encoder_nested_fast_path": {"aten::_transformer_encoder_layer_fwd": NESTED},
    "multi_output": {"aten::_linalg_svd": ITERATES},
    "nested_strided": {"aten::linear": NESTED, "aten::_softmax": NESTED},
    "sparse_coo": {
        "aten::_coalesce": REPEATS,
        "aten::_sparse_addmm": SPARSE,
        "aten::mul.Tensor": SPARSE,
        "aten::mm": SPARSE,
        "aten::add.Tensor": SPARSE,
    },
    "sparse_output_and_input": {"aten::add.Tensor": SPARSE, "aten::mm": SPARSE},
}


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ZOO.items()])
def test_the_zoo_is_covered(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    model, args, kwargs = case.make()
    trace = tv.trace(model, *args, kwargs=kwargs, backward=case.backward, keep=False)
    assert {op for op, _ in uncovered(trace.graph)} == set(UNCOVERED.get(case.name, {}))
    assert [record.getMessage() for record in caplog.records if "cost" in record.name] == []
    columns = costs(trace.graph)
    assert all((column.values >= 0).all() for column in columns.values())
    views = np.array(["view" in node.flags for node in trace.graph.nodes], dtype=bool)
    assert not columns["moved_bytes"].values[views].any()
    flops, macs = columns["flops"].values, columns["macs"].values
    assert (flops >= 2 * macs).all()
    if not UNCOVERED.get(case.name):
        assert columns["macs"].uncovered == columns["flops"].uncovered == 0
