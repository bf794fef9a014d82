"""What two runs come to: operations, parameters, time, memory and FLOPs, and of which of them some are not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_vis.analysis.compare.text import FIGURES

if TYPE_CHECKING:
    from torch_vis._trace import Trace


def figures_of(a: Trace, b: Trace) -> dict[str, tuple[float | None, float | None]]:
    """Of each figure what it is in both; None where it is not known.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> figures_of(t, t)["parameters"]
    (8, 8)
    """
    found: dict[str, tuple[float | None, float | None]] = {}
    for name, (_, metric) in FIGURES.items():
        if metric is not None:
            found[name] = (_total(a, metric), _total(b, metric))
    found["peak memory"] = (a.summary().peak_bytes, b.summary().peak_bytes)
    both = (a.meta.get("parameters"), b.meta.get("parameters"))
    return {"operations": (len(a.graph), len(b.graph)), "parameters": both, **found}


def incomplete_in(a: Trace, b: Trace) -> dict[str, tuple[bool, bool]]:
    """The figures that leave out operations of which they are not known, and in which of the two they do."""
    found = {
        name: (_is_low(a, metric), _is_low(b, metric))
        for name, (_, metric) in FIGURES.items()
        if metric is not None
    }
    return {name: low for name, low in found.items() if any(low)}


def _total(trace: Trace, metric: str) -> float | None:
    if metric == "time_ns" and trace.meta.get("fake"):
        return None
    return trace.metrics[metric].total() if metric in trace.metrics else None


def _is_low(trace: Trace, metric: str) -> bool:
    """Whether operations are missing from a total."""
    column = trace.metrics.get(metric)
    return column is not None and column.uncovered > 0
