"""The verifier: each rule, broken on purpose, and the row that it names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kit.graphs import training_builder, training_graph
from torch_vis.errors import GraphError
from torch_vis.graph import Call, Slot
from torch_vis.graph.schema import COLUMNS, SPARSE

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"node_call": [0, 1, 9, 3, 4]}, r"node 2 \(\?\): node_call is 9, and there is no such call"),
    ({"node_scope": [1, 1, 0, 0, -1]}, r"node 4 \(aten::expand\): node_scope is -1"),
    ({"node_site": [0, 0, 5, 1, -1]}, r"node 2 \(aten::fill_.Scalar\): node_site is 5"),
    ({"in_value": [1, 0, 2, 77, 4, 5]}, r"node 2 \(aten::fill_.Scalar\): in_value is 77"),
    ({"out_value": [2, 3, 4, 5, 70]}, r"node 4 \(aten::expand\): out_value is 70"),
    ({"value_type": [0, 1, 2, 3, 4, 5, 60]}, r"value 6: value_type is 60"),
    ({"scope_module": [0, 7]}, r"scope 1: scope_module is 7"),
    ({"storage_device": [0, 3, 0, 0]}, r"storage 1: storage_device is 3"),
    ({"node_phase": [0, 0, 0, 0]}, r"column node_phase has 4 rows where 5 belong"),
    ({"in_start": [0, 1, 3, 4, 5]}, r"column in_start has 5 rows where 6 belong"),
    ({"in_start": [0, 3, 1, 4, 5, 6]}, r"in_start does not run from 0 to 6 in order"),
    ({"out_start": [0, 1, 2, 3, 4, 4]}, r"out_start does not run from 0 to 5"),
    ({"out_slot": [0, 1, -1, 0, 0]}, r"node 1 \(aten::addmm\) returns a tensor twice or leaves one out"),
    (
        {"out_slot": [0, 0, -2, 0, 0]},
        r"node 2 \(aten::fill_.Scalar\) writes to a tensor that it does not have",
    ),
    ({"result_start": [0, 2, 2]}, r"result 1 rests on no value"),
    ({"result_start": [1, 1, 2]}, r"result_start does not run from 0 to 2"),
    ({"node_phase": [0, 0, 9, 0, 1]}, r"node 2 \(aten::fill_.Scalar\) has an unknown phase"),
    ({"value_role": [1, 2, 99, 0, 0, 7, 5]}, r"value 2 has an unknown role"),
    ({"in_kind": [2, 1, 8, 2, 1, 0]}, r"node 1 \(aten::addmm\) has an unknown kind"),
    (
        {"value_producer": [-1, -1, 1, 1, 2, 3, 4]},
        r"node 0 \(aten::t\) makes a value that names another producer",
    ),
    ({"value_producer": [-1, 3, 0, 1, 2, 3, 4]}, r"value 1 names a producer that does not make it"),
    (
        {"in_value": [1, 0, 2, 6, 4, 5]},
        r"node 2 \(aten::fill_.Scalar\) reads a value that is made by itself or later",
    ),
    (
        {"value_carries": [-1, -1, -1, -1, 5, -1, -1]},
        r"value 4 carries a later version or one of another storage",
    ),
    (
        {"value_carries": [-1, -1, -1, -1, 1, -1, -1]},
        r"value 4 carries a later version or one of another storage",
    ),
    (
        {"in_slot": [0, 0, 0, 0, 0, 0]},
        r"node 1 \(aten::addmm\) has a slot that is filled twice or left empty",
    ),
    (
        {"in_slot": [0, 0, -1, 0, 0, 0]},
        r"node 1 \(aten::addmm\) has more or fewer tensors than its call has slots",
    ),
    (
        {"node_link": [-1, -1, -1, -1, 4]},
        r"node 4 \(aten::expand\) is linked to an operation that comes after it",
    ),
    ({"node_link": [-1, 0, -1, -1, 3]}, r"node 1 \(aten::addmm\) is linked .* but did not run in backward"),
    ({"scope_parent": [-1, 1]}, r"scope 1 is nested in a later scope"),
    ({"scope_parent": [-1, -1]}, r"scope 1 has no parent"),
    ({"storage_bytes": [24, -48, 32, 4]}, r"storage 1 has a negative size"),
    ({"value_offset": [0, 0, 0, 0, -1, 0, 0]}, r"value 4 begins before its storage"),
    ({"value_offset": [0, 0, 0, 0, 99, 0, 0]}, r"value 4 reaches beyond its storage"),
    ({"value_offset": [0, 0, 0, 1 << 62, 0, 0, 0]}, r"value 3 reaches beyond its storage"),
    ({"storage_bytes": [24, 48, 31, 4]}, r"value \d reaches beyond its storage"),
    ({"storage_death": [6, 6, 0, 6]}, r"storage 2 dies before it is made"),
    ({"storage_death": [6, 6, 4, 7]}, r"storage 3 dies after the end"),
    (
        {"storage_birth": [-1, -1, 1, 4], "storage_death": [6, 6, 4, 6]},
        r"value 5 lies in a storage that is made later",
    ),
]


@pytest.mark.parametrize(("columns", "message"), BROKEN)
def test_a_broken_rule_names_the_row(columns: dict[str, Any], message: str) -> None:
    builder = training_builder()
    builder.set(**columns)
    with pytest.raises(GraphError, match=message):
        builder.build()


def test_a_value_made_twice_is_named() -> None:
    builder = training_builder()
    builder.set(out_start=[0, 1, 2, 3, 4, 6], out_value=[2, 3, 4, 5, 6, 6], out_slot=[0, 0, -1, 0, 0, 1])
    with pytest.raises(GraphError, match="value 6 is made more than once"):
        builder.build()


def test_a_call_with_more_slots_than_tensors_is_named() -> None:
    builder = training_builder()
    builder.calls[0] = Call("aten::t", (Slot(0), Slot(1)), ())
    with pytest.raises(GraphError, match=r"node 0 \(aten::t\) has more or fewer tensors"):
        builder.build()


def test_the_number_of_further_rows_is_told() -> None:
    builder = training_builder()
    builder.set(storage_bytes=[-1, -1, -1, 4])
    with pytest.raises(GraphError, match=r"storage 0 has a negative size \(and 2 more\)"):
        builder.build()


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_no_column_with_nonsense_in_it_passes_or_crashes(name: str) -> None:
    """Whatever number a column ends in, the answer is a graph or a GraphError."""
    graph = training_graph()
    for nonsense in (-2, -1, 0, 1, 6, 100):
        builder = training_builder()
        column = getattr(graph, name).astype(np.int64)
        if COLUMNS[name].along in SPARSE:
            beside = [other for other, spec in COLUMNS.items() if spec.along == COLUMNS[name].along]
            builder.set(**{other: [0] for other in beside})
            column = np.zeros(1, dtype=np.int64)
        column[-1] = nonsense
        if nonsense < 0 and name == "node_flags":
            continue
        builder.set(**{name: column})
        try:
            builder.build()
        except GraphError as error:
            assert str(error)
