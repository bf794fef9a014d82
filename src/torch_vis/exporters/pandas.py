"""The operations as a pandas table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torch_vis.errors import missing_extra
from torch_vis.exporters.operations import operations
from torch_vis.graph import Column, Graph, Metrics

if TYPE_CHECKING:
    import pandas


def to_pandas(graph: Graph, metrics: Metrics) -> pandas.DataFrame:
    """A ``pandas.DataFrame`` with one row for each operation and a column for each metric; what is not known is NA.

    ``shape`` and ``dtype`` are those of the first tensor that the operation makes.

    >>> import torch, torch_vis as tv
    >>> frame = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).to_pandas()
    >>> frame[["name", "module", "shape"]].values.tolist()
    [['t', 'Linear', (3, 2)], ['addmm', 'Linear', (1, 2)]]
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise missing_extra("pandas") from error

    frame: dict[str, Any] = {}
    for name, (cells, known) in operations(graph).items():
        frame[name] = cells if known is None else _optional(pd, cells, known)
    for name, column in metrics.items():
        if column.along == "node":
            frame[name] = _metric(pd, column)
    return pd.DataFrame(frame, index=pd.RangeIndex(len(graph), name="node"))


def _optional(pd: Any, numbers: Any, known: Any) -> Any:
    return pd.arrays.IntegerArray(np.where(known, numbers, 0).astype(np.int64), ~known)


def _metric(pd: Any, column: Column) -> Any:
    if column.known is None:
        return column.values
    arrays = {"f": pd.arrays.FloatingArray, "b": pd.arrays.BooleanArray}
    array = arrays.get(column.values.dtype.kind, pd.arrays.IntegerArray)
    return array(column.values.copy(), ~column.known)
