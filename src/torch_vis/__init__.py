"""torch_vis shows what a PyTorch model does: one call records a real run, and everything else reads that record.

>>> import torch, torch_vis as tv
>>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
>>> [node.op for node in t.graph.nodes]
['aten::t', 'aten::addmm']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_vis import errors as errors
    from torch_vis.graph.graph import Graph as Graph
    from torch_vis.graph.metrics import Metrics as Metrics
    from torch_vis.tracing import Trace as Trace
    from torch_vis.tracing import load as load
    from torch_vis.tracing import record as record
    from torch_vis.tracing import trace as trace

__version__ = "0.1.0"

_PUBLIC = {
    "Graph": "torch_vis.graph.graph",
    "Metrics": "torch_vis.graph.metrics",
    "Trace": "torch_vis.tracing",
    "errors": "torch_vis",
    "load": "torch_vis.tracing",
    "record": "torch_vis.tracing",
    "trace": "torch_vis.tracing",
}
__all__ = ["Graph", "Metrics", "Trace", "errors", "load", "record", "trace"]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("torch_vis.errors")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'torch_vis' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
