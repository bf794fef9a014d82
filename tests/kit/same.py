"""Equality of graphs and metrics to the last bit, for round trips."""

from __future__ import annotations

import numpy as np

from torch_vis.graph import Graph, Metrics
from torch_vis.graph.schema import COLUMNS, TABLES


def assert_same_graph(one: Graph, other: Graph) -> None:
    """Every column and table alike; calls by their text, which tells 1 from 1.0 from True and -0.0 from 0.0."""
    for name, spec in COLUMNS.items():
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype == spec.dtype, name
        np.testing.assert_array_equal(left, right, err_msg=name)
    for name in TABLES:
        assert repr(getattr(one, name)) == repr(getattr(other, name)), name


def assert_same_metrics(one: Metrics, other: Metrics) -> None:
    """Every metric alike, in order: type, numbers (NaN and -0.0 included) and what is known."""
    assert list(one) == list(other)
    for name in one:
        left, right = one[name], other[name]
        assert (left.along, left.values.dtype) == (right.along, right.values.dtype), name
        assert [left[row] is None for row in range(len(left))] == [
            right[row] is None for row in range(len(right))
        ]
        known = np.ones(len(left), dtype=bool) if left.known is None else left.known
        assert left.values[known].tobytes() == right.values[known].tobytes(), name
