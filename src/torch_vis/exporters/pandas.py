"""The operations as a pandas table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_vis.errors import missing_extra
from torch_vis.graph import Column, Graph, Metrics
from torch_vis.graph.schema import Phase
from torch_vis.graph.template import short_name

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

    modules, sites = graph.scope_module[graph.node_scope], graph.node_site
    made = _first_made(graph)
    frame = {
        "op": _take([call.op.partition(".")[0] for call in graph.calls], graph.node_call),
        "name": _take([short_name(call.op) for call in graph.calls], graph.node_call),
        "phase": _take([phase.name.lower() for phase in Phase], graph.node_phase),
        "path": _take([module.path for module in graph.modules], modules),
        "module": _take([module.type for module in graph.modules], modules),
        "call": graph.scope_call[graph.node_scope],
        "file": _take([site.file for site in graph.sites], sites),
        "line": _optional(pd, _take([site.line for site in graph.sites], sites), sites >= 0),
        "function": _take([site.function for site in graph.sites], sites),
        "shape": _take([type_.shape for type_ in graph.types], made),
        "dtype": _take([type_.dtype for type_ in graph.types], made),
        "input_shapes": _input_shapes(graph),
        "link": _optional(pd, graph.node_link, graph.node_link >= 0),
    }
    for name, column in metrics.items():
        if column.along == "node":
            frame[name] = _metric(pd, column)
    return pd.DataFrame(frame, index=pd.RangeIndex(len(graph), name="node"))


def _take(records: Sequence[Any], numbers: Any) -> Any:
    """One field for every operation; None where the number is -1."""
    table = np.empty(len(records) + 1, dtype=object)  # the None at the end is what -1 picks
    for number, record in enumerate(records):
        table[number] = record
    return table[numbers]


def _first_made(graph: Graph) -> Any:
    """The type of the first tensor that each operation returns, or else writes; -1 where it makes none."""
    found = np.full(len(graph), -1, dtype=np.int64)
    made_by = np.repeat(np.arange(len(graph)), np.diff(graph.out_start))
    for chosen in (graph.out_slot == -1, graph.out_slot == 0):  # the later one counts
        found[made_by[chosen]] = graph.value_type[graph.out_value[chosen]]
    some = (np.diff(graph.out_start) > 0) & (found < 0)
    found[some] = graph.value_type[graph.out_value[graph.out_start[:-1][some]]]
    return found


def _input_shapes(graph: Graph) -> Any:
    shapes = _take([type_.shape for type_ in graph.types], graph.value_type[graph.in_value])
    slots, start = graph.in_slot.tolist(), graph.in_start.tolist()
    found = np.empty(len(graph), dtype=object)
    for node in range(len(graph)):
        rows = sorted((slots[row], row) for row in range(start[node], start[node + 1]) if slots[row] >= 0)
        found[node] = tuple(shapes[row] for _, row in rows)
    return found


def _optional(pd: Any, numbers: Any, known: Any) -> Any:
    return pd.arrays.IntegerArray(np.where(known, numbers, 0).astype(np.int64), ~known)


def _metric(pd: Any, column: Column) -> Any:
    if column.known is None:
        return column.values
    arrays = {"f": pd.arrays.FloatingArray, "b": pd.arrays.BooleanArray}
    array = arrays.get(column.values.dtype.kind, pd.arrays.IntegerArray)
    return array(column.values.copy(), ~column.known)
