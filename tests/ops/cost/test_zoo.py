"""Every model of the zoo: no formula fails, all of ``aten`` is covered, and what else is not is listed with why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import torch_vis as tv
from tests.zoo import ZOO, Case, close_process_group
from torch_vis.ops.cost import uncovered

OWN = "an operator of the test's own"
UNSEEN = "code that cannot be looked into"

# The case, and the operators of it that have no formula. Of ``aten`` there is none.
UNCOVERED = {
    "compile_inductor_backend": {"torch_vis::compiled": UNSEEN},
    "custom_operator": {"torch_vis_zoo::scaled_sin": OWN, "torch_vis_zoo::add_into": OWN},
}


def test_no_operator_of_aten_is_excepted() -> None:
    assert not [op for ops in UNCOVERED.values() for op in ops if op.startswith("aten::")]


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ZOO.items()])
def test_the_zoo_is_covered(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    model, args, kwargs = case.make()
    trace = tv.trace(model, *args, kwargs=kwargs, backward=case.backward, hold=False)
    open_ = {op for op, _ in uncovered(trace.graph, trace.metrics.get("stored"))}
    assert open_ == set(UNCOVERED.get(case.name, {}))
    assert [record.getMessage() for record in caplog.records if "cost" in record.name] == []
    columns = {name: trace.metrics[name] for name in ("flops", "macs", "moved_bytes")}
    assert all((column.values >= 0).all() for column in columns.values())
    views = np.array(["view" in node.flags for node in trace.graph.nodes], dtype=bool)
    assert not columns["moved_bytes"].values[views].any()
    flops, macs = columns["flops"].values, columns["macs"].values
    assert (flops >= 2 * macs).all()
    if not UNCOVERED.get(case.name):
        assert columns["macs"].uncovered == columns["flops"].uncovered == 0
