"""The module explorer: open a model, a trace or a file in the terminal, and the helpers that go with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch_vis.errors import UsageError
from torch_vis.interfaces.explorer.open import program, run
from torch_vis.interfaces.explorer.stats import (
    ForwardStats,
    ModuleStats,
    get_forward_stats,
    record_torch_module_forward_stats,
)
from torch_vis.interfaces.explorer.summary import (
    ModuleInfo,
    analyze_memory_usage,
    export_model_summary,
    format_param_count,
    format_shape,
    format_time,
    get_parameter_statistics,
)
from torch_vis.views.terminal.config import ExplorerConfig

if TYPE_CHECKING:
    import torch

    from torch_vis._trace import Trace
    from torch_vis.views.terminal.app import Explorer
    from torch_vis.views.terminal.source import Source

__all__ = [
    "ExplorerConfig",
    "ForwardStats",
    "ModuleInfo",
    "ModuleStats",
    "analyze_memory_usage",
    "explore",
    "explore_model",
    "explore_torch_module",
    "explorer",
    "export_model_summary",
    "format_param_count",
    "format_shape",
    "format_time",
    "get_forward_stats",
    "get_parameter_statistics",
    "record_torch_module_forward_stats",
    "source_of",
]


def explore_model(
    model: Any,
    *,
    trace: Trace | None = None,
    against: Any = None,
    config: ExplorerConfig | None = None,
    trust: bool = False,
) -> None:
    """Open the explorer in this terminal, until it is quit.

    ``model`` is a module, a trace, a state dict or the path of a file (``.pt``, ``.pth``, ``.safetensors``, ``.pt2``,
    ``.onnx``, ``.tvz``, ``.json``). Nothing has to have run; what ``record_torch_module_forward_stats`` recorded of the
    model, or a ``trace`` of it, adds the columns of a run. ``against`` is a second one of these to compare with.
    ``trust=True`` lets a pickle run code of its own while it loads.

    >>> import torch, torch_vis as tv
    >>> try:
    ...     tv.explore_model(torch.nn.Linear(3, 2))  # here, where there is no terminal
    ... except tv.errors.UsageError as error:
    ...     print(str(error).partition(";")[0])
    the explorer needs a terminal
    """
    explore(model, trace=trace, against=against, config=config, trust=trust)


def explore_torch_module(module: torch.nn.Module, *, config: ExplorerConfig | None = None) -> None:
    """Open the explorer on a module, with what was recorded of it, until it is quit.

    >>> import torch, torch_vis as tv
    >>> try:
    ...     tv.explore_torch_module(torch.nn.Linear(3, 2))  # here, where there is no terminal
    ... except tv.errors.UsageError as error:
    ...     print(str(error).partition(";")[0])
    the explorer needs a terminal
    """
    explore(module, config=config)


def explore(
    source: Any,
    *,
    trace: Trace | None = None,
    against: Any = None,
    config: ExplorerConfig | None = None,
    trust: bool = False,
) -> None:
    """Open the explorer on anything it can read; see ``explore_model``."""
    run(explorer(source, trace=trace, against=against, config=config, trust=trust))


def explorer(
    source: Any,
    *,
    trace: Trace | None = None,
    against: Any = None,
    config: ExplorerConfig | None = None,
    trust: bool = False,
) -> Explorer:
    """The explorer as a Textual application that is not running yet, for a terminal or a test of your own.

    >>> import torch
    >>> explorer(torch.nn.Linear(3, 2)).source.facts[0]
    '8 parameters'
    """
    shown = source_of(source, trace=trace, trust=trust)
    other = None if against is None else source_of(against, trust=trust)
    return program(shown, against=other, config=config)


def source_of(source: Any, *, trace: Trace | None = None, trust: bool = False) -> Source:
    """What the explorer shows for a module, a trace, a state dict or a file."""
    import torch

    from torch_vis._trace import Trace
    from torch_vis.analysis.ranks.world import World
    from torch_vis.interfaces.explorer.model_source import ModuleSource
    from torch_vis.interfaces.explorer.trace_source import TraceSource
    from torch_vis.interfaces.explorer.world_source import WorldSource
    from torch_vis.views.terminal.source import Source

    if isinstance(source, Source):
        return source
    if isinstance(source, Trace):
        return TraceSource(source)
    if isinstance(source, World):
        return WorldSource(source)
    if isinstance(source, torch.nn.Module):
        stats = get_forward_stats(source)
        return ModuleSource(source, trace=trace, stats=stats if isinstance(stats, ForwardStats) else None)
    if isinstance(source, (str, os.PathLike)):
        from torch_vis.interfaces.explorer.file_source import open_file

        return open_file(source, trust=trust)
    if isinstance(source, Mapping):
        from torch_vis.interfaces.explorer.file_source import StateSource

        return StateSource("state dict", source)
    raise UsageError(
        "the explorer takes a module, a trace, a state dict or the path of a file, "
        f"not {type(source).__name__} {str(source)[:40]!r}"
    )
