"""torch_vis shows what a PyTorch model does: one call records a real run, and everything else reads that record.

>>> import torch, torch_vis as tv
>>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
>>> [node.op for node in t.graph.nodes]
['aten::t', 'aten::addmm']

Names for compatibility (``explore_model``, ``DLBacktrace``, ``trace_tensor_ids`` …) can be used as
``tv.name`` as well; ``torch_vis.interfaces`` lists them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Where each name is, loaded when it is first used. `__init__.pyi` has the same for type checkers; a test compares them.
_OBJECTS = {
    "Comparison": ("torch_vis.analysis.compare.comparison", "Comparison"),
    "Graph": ("torch_vis.graph.graph", "Graph"),
    "Metrics": ("torch_vis.graph.metrics", "Metrics"),
    "Trace": ("torch_vis._trace", "Trace"),
    "World": ("torch_vis.analysis.ranks.world", "World"),
    "compare": ("torch_vis.analysis.compare.comparison", "compare"),
    "doctor": ("torch_vis.cli.commands.doctor", "doctor"),
    "extract": ("torch_vis.analysis.activations.extract", "extract"),
    "fit": ("torch_vis.analysis.ranks.fit", "fit"),
    "join": ("torch_vis.analysis.ranks.gathering", "join"),
    "live": ("torch_vis.capture.live", "live"),
    "load": ("torch_vis.api", "load"),
    "open_activations": ("torch_vis.analysis.activations.dataset", "open_activations"),
    "record": ("torch_vis.api", "record"),
    "register_cost": ("torch_vis.ops.cost", "register_cost"),
    "simulate": ("torch_vis.analysis.ranks.simulate", "simulate"),
    "trace": ("torch_vis.api", "trace"),
}
_MODULES = ("advise", "edit", "errors", "hardware", "interfaces", "measure", "stats", "types")
__all__ = sorted([*_OBJECTS, *(name for name in _MODULES if name != "interfaces")])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    try:
        if name in _OBJECTS:
            value = getattr(import_module(_OBJECTS[name][0]), _OBJECTS[name][1])
        elif name in _MODULES:
            value = import_module(f"torch_vis.{name}")
        else:
            return _of_other_tables(name)
    except ImportError as error:
        if error.name != "torch":
            raise
        from torch_vis.errors import needs_torch

        raise needs_torch(f"torch_vis.{name}") from error
    globals()[name] = value
    return value


def _of_other_tables(name: str) -> Any:
    """A name of the source documents, or one that was renamed."""
    from torch_vis._deprecated import NAMES, warn
    from torch_vis.interfaces import DOCUMENTED

    if name in DOCUMENTED:
        value = globals()[name] = getattr(import_module(DOCUMENTED[name]), name)
        return value
    if name not in NAMES:
        raise AttributeError(f"module 'torch_vis' has no attribute {name!r}")
    warn(f"torch_vis.{name} is now torch_vis.{NAMES[name]}", stacklevel=3)
    first, _, last = NAMES[name].partition(".")
    return getattr(__getattr__(first), last)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
