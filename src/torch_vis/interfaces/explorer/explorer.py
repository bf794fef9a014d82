"""The module explorer: open a model, a trace or a file in the terminal; a model and its figures as text."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_vis._trace import Trace
from torch_vis.errors import NotTraceable, UsageError, no_match
from torch_vis.graph.text import inert_lines, size
from torch_vis.interfaces.explorer.model_source import ModuleSource, identity
from torch_vis.interfaces.explorer.stats import (
    ForwardStats,
    ModuleStats,
    get_forward_stats,
    record_torch_module_forward_stats,
)
from torch_vis.views.terminal import program, run
from torch_vis.views.terminal.source import ExplorerConfig

if TYPE_CHECKING:
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
    from torch_vis.analysis.ranks.world import World
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


# Figures of a model as text, and the model written down

_COUNTS = ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K"))


@dataclass
class ModuleInfo:
    """What is known about one module; ``timing_stats`` are seconds, and None where it was not recorded.

    ``parameter_count`` and ``memory_usage`` (bytes) are those of the module with all inside it, tied parameters once;
    ``shapes`` are those of its own parameters.

    >>> import torch, torch_vis as tv
    >>> tv.ModuleInfo.of(torch.nn.Linear(3, 2))
    ModuleInfo(name='', module_type='Linear', parameter_count=8, shapes={'weight': (2, 3), 'bias': (2,)}, \
timing_stats=None, memory_usage=32)
    """

    name: str
    module_type: str
    parameter_count: int
    shapes: dict[str, tuple[int, ...]]
    timing_stats: dict[str, float] | None = None
    memory_usage: int | None = None

    @classmethod
    def of(cls, model: torch.nn.Module, path: str = "") -> ModuleInfo:
        """The module at a path of a model, with what was recorded of it."""
        module = model.get_submodule(path)
        unique = list(_unique(module))
        stats = get_forward_stats(model)
        return cls(
            path,
            type(module).__name__,
            sum(_numel(tensor) for _, tensor in unique),
            {
                name: tuple(tensor.shape)
                for name, tensor in module._parameters.items()
                if tensor is not None and _is_made(tensor)
            },
            stats[path].timing() if path in stats else None,
            sum(_nbytes(tensor) for _, tensor in unique),
        )


def format_shape(shape: Sequence[int | str] | None) -> str:
    """A shape with multiplication signs; nothing for one without dimensions. A size that is left open has a name.

    >>> import torch_vis as tv
    >>> tv.format_shape((3, 224, 224)), tv.format_shape(()), tv.format_shape(("s77", 768))
    ('3×224×224', '', 's77×768')
    """
    return "×".join(str(size) for size in shape) if shape else ""


def format_param_count(count: int) -> str:
    """A count with K, M or B behind it.

    >>> import torch_vis as tv
    >>> [tv.format_param_count(count) for count in (999, 1_700_000, 5_400_000_000)]
    ['999', '1.7M', '5.4B']
    """
    for index, (unit_size, unit) in enumerate(_COUNTS):
        if abs(count) >= unit_size:
            text = f"{count / unit_size:.1f}"
            # rounding reached the next unit
            if text in ("1000.0", "-1000.0") and index:
                unit_size, unit = _COUNTS[index - 1]
                text = f"{count / unit_size:.1f}"
            return text + unit
    return str(count)


def format_time(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> import torch_vis as tv
    >>> [tv.format_time(one) for one in (5e-8, 2.5e-5, 0.00123, 2.5, 12.5, 90, 7200)]
    ['50.0ns', '25.00μs', '1.23ms', '2.5000s', '12.50s', '1.5min', '2.0h']
    >>> tv.format_time(0.9999999), tv.format_time(float("nan"))
    ('1.0000s', 'nan')
    """
    if math.isnan(seconds) or math.isinf(seconds):
        return str(seconds)
    # the limits are those at which rounding would reach the next unit
    magnitude = abs(seconds)
    if magnitude < 999.95e-9:
        return f"{seconds * 1e9:.1f}ns"
    if magnitude < 999.995e-6:
        return f"{seconds * 1e6:.2f}μs"
    if magnitude < 999.995e-3:
        return f"{seconds * 1e3:.2f}ms"
    if magnitude < 60.0:
        return f"{seconds:.4f}s" if magnitude < 10.0 else f"{seconds:.2f}s"
    minutes = seconds / 60.0
    return f"{minutes:.1f}min" if abs(minutes) < 60.0 else f"{minutes / 60.0:.1f}h"


def analyze_memory_usage(model: torch.nn.Module) -> dict[str, int]:
    """The bytes of each parameter by name; one that has several names is there once.

    >>> import torch, torch_vis as tv
    >>> tv.analyze_memory_usage(torch.nn.Linear(3, 2))
    {'weight': 24, 'bias': 8}
    """
    return {name: _nbytes(tensor) for name, tensor in _unique(_model(model))}


def get_parameter_statistics(model: torch.nn.Module) -> dict[str, int]:
    """How many parameters a model has and the bytes they take, tied ones counted once and buffers not at all.

    >>> import torch, torch_vis as tv
    >>> tv.get_parameter_statistics(torch.nn.Linear(3, 2))
    {'total_params': 8, 'trainable_params': 8, 'non_trainable_params': 0, 'memory_usage': 32}
    """
    unique = [tensor for _, tensor in _unique(_model(model))]
    trainable = sum(_numel(tensor) for tensor in unique if tensor.requires_grad)
    total = sum(_numel(tensor) for tensor in unique)
    return {
        "total_params": total,
        "trainable_params": trainable,
        "non_trainable_params": total - trainable,
        "memory_usage": sum(_nbytes(tensor) for tensor in unique),
    }


def _unique(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter under its first name."""
    seen = set()
    for name, tensor in model.named_parameters():
        key = identity(tensor) if _is_made(tensor) else id(tensor)
        if key not in seen:
            seen.add(key)
            yield name, tensor


def _is_made(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)  # type: ignore[attr-defined]


def _numel(tensor: torch.Tensor) -> int:
    return int(tensor.numel()) if _is_made(tensor) else 0


def _nbytes(tensor: torch.Tensor) -> int:
    return _numel(tensor) * tensor.dtype.itemsize


def _model(model: object) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        raise NotTraceable(f"this takes a module, not {type(model).__name__}")
    return model


FORMATS = ("text", "json", "html")
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
:root{{color-scheme:light dark;--ink:#22263a;--dim:#6b7290;--blue:#2e5cb8;--ground:#fbfbfd;--bar:#d4e0fb}}
@media(prefers-color-scheme:dark){{:root{{--ink:#c8d0e8;--dim:#7d86a6;--blue:#7aa2f7;--ground:#14161f;--bar:#2c3a5e}}}}
body{{font:14px/1.6 ui-monospace,monospace;margin:2rem;color:var(--ink);background:var(--ground)}}
h1{{font-size:1.3rem;margin:0}} p{{color:var(--dim);margin:.2rem 0 1rem}}
details>:not(summary){{margin-left:1.4rem}} summary{{cursor:pointer}} .leaf{{margin-left:1.1rem}}
b{{font-weight:600}} i{{font-style:normal;color:var(--blue)}} small{{color:var(--dim);font-size:1em}}
</style>
<h1>{title}</h1><p>{facts}</p>
{tree}
</html>
"""


def export_model_summary(
    model: torch.nn.Module,
    format: str = "text",
    *,
    trace: Trace | None = None,
    config: ExplorerConfig | None = None,
) -> str:
    """A model's tree with its figures: ``"text"``, ``"json"`` or ``"html"``, as a string.

    No input is needed. What ``record_torch_module_forward_stats`` recorded of the model, or a ``trace`` of it, adds
    times and shapes.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> print(tv.export_model_summary(model))
    Sequential: 8 params, 32 B
    ├── 0: Linear(in_features=3, out_features=2, bias=True) [8 params]
    └── 1: ReLU() [0 params]
    """
    if not isinstance(model, torch.nn.Module):
        raise NotTraceable(f"export_model_summary() takes a module, not {type(model).__name__}")
    if format not in FORMATS:
        raise no_match("summary format", str(format), FORMATS)
    stats = get_forward_stats(model)
    source = ModuleSource(model, trace=trace, stats=stats if isinstance(stats, ForwardStats) else None)
    writer = {"text": _text, "json": _json, "html": _html}[format]
    return writer(source, model, config or ExplorerConfig())


def _rows(source: ModuleSource, config: ExplorerConfig) -> Iterator[int]:
    depth = source.forest.depth
    for row in range(len(source.forest)):
        if config.max_depth is None or depth[row] <= config.max_depth:
            yield row


def _text(source: ModuleSource, model: torch.nn.Module, config: ExplorerConfig) -> str:
    forest = source.forest
    last = _last_of_their_parents(source)
    lines = [f"{forest.types[0]}: {_totals(source, config)}"]
    guides: list[str] = [""]
    for row in _rows(source, config):
        if row == 0:
            continue
        depth = int(forest.depth[row])
        del guides[depth:]
        guides.append(guides[-1] + ("    " if row in last else "│   "))
        corner = "└── " if row in last else "├── "
        lines.append(guides[depth - 1] + corner + _line(source, row, config))
    return "\n".join(lines)


def _last_of_their_parents(source: ModuleSource) -> set[int]:
    forest = source.forest
    ends = {}
    for row, parent in enumerate(forest.parent.tolist()):
        ends[parent] = row
    return set(ends.values())


def _totals(source: ModuleSource, config: ExplorerConfig) -> str:
    numbers = source.forest.numbers
    parts = []
    if config.show_parameter_counts:
        parts.append(f"{format_param_count(int(numbers['params'][0]))} params")
    if config.show_memory:
        parts.append(size(int(numbers["bytes"][0])))
    if config.show_timing and "time" in numbers and not math.isnan(numbers["time"][0]):
        parts.append(format_time(numbers["time"][0] / 1e9))
    return ", ".join(parts) or f"{len(source.forest):,} modules"


def _line(source: ModuleSource, row: int, config: ExplorerConfig) -> str:
    forest, numbers = source.forest, source.forest.numbers
    leaf = forest.end[row] == row + 1
    arguments = "" if config.compact_view else forest.texts["args"](row)
    kind = forest.types[row] + (f"({arguments})" if arguments or (leaf and not config.compact_view) else "")
    if row in source.shared:
        return f"{forest.names[row]}: {kind} (the same module as {forest.paths[source.shared[row]] or 'the model'})"
    facts = []
    if config.show_parameter_counts:
        facts.append(f"{format_param_count(int(numbers['params'][row]))} params")
    if config.show_memory and not config.compact_view and numbers["bytes"][row] and "time" in numbers:
        facts.append(size(int(numbers["bytes"][row])))
    if config.show_timing and "time" in numbers and not math.isnan(numbers["time"][row]):
        facts.append(
            f"{format_time(numbers['time'][row] / 1e9)}, self {format_time(numbers['self'][row] / 1e9)}"
        )
    if config.show_shapes and "out" in forest.texts and forest.texts["out"](row):
        facts.append(f"→ {forest.texts['out'](row)}")
    return f"{forest.names[row]}: {kind}" + (f" [{', '.join(facts)}]" if facts else "")


def _json(source: ModuleSource, model: torch.nn.Module, config: ExplorerConfig) -> str:
    forest, numbers = source.forest, source.forest.numbers
    keys = {"params": "parameters", "own_params": "own_parameters", "bytes": "parameter_bytes"}
    keys |= {
        "calls": "calls",
        "time": "time_ns",
        "self": "self_ns",
        "backward": "backward_ns",
        "flops": "flops",
    }
    keys |= {"buffer_bytes": "buffer_bytes", "memory": "allocated_bytes"}
    modules = []
    for row in _rows(source, config):
        row_data: dict[str, Any] = {
            "path": forest.paths[row],
            "class": forest.types[row],
            "depth": int(forest.depth[row]),
        }
        row_data["arguments"] = forest.texts["args"](row)
        row_data["shapes"] = {t.name: t.shape for t in source.details(row).tensors if t.role == "parameter"}
        if row in source.shared:
            row_data["same_as"] = forest.paths[source.shared[row]]
        for name, key in keys.items():
            if name in numbers:
                figure = float(numbers[name][row])
                row_data[key] = None if math.isnan(figure) else int(figure)
        modules.append(row_data)
    whole = {"model": type(model).__name__, **get_parameter_statistics(model), "modules": modules}
    return inert_lines(json.dumps(whole, indent=1, ensure_ascii=False))


def _html(source: ModuleSource, model: torch.nn.Module, config: ExplorerConfig) -> str:
    """Details elements inside one another, opened two levels deep; the text before the bracket, then the figures."""
    forest, parts = source.forest, []
    open_ends: list[int] = []
    for row in _rows(source, config):
        while open_ends and open_ends[-1] <= row:
            open_ends.pop()
            parts.append("</details>")
        words, _, facts = (
            (forest.types[0], "", "") if row == 0 else _line(source, row, config).partition(" [")
        )
        name, _, kind = words.partition(": ")
        text = f"<b>{html.escape(name)}</b> <i>{html.escape(kind)}</i> <small>{html.escape(facts.rstrip(']'))}</small>"
        deeper = config.max_depth is None or forest.depth[row] < config.max_depth
        if forest.end[row] > row + 1 and deeper:
            parts.append(f"<details{' open' if forest.depth[row] < 2 else ''}><summary>{text}</summary>")
            open_ends.append(int(forest.end[row]))
        else:
            parts.append(f'<div class="leaf">{text}</div>')
    parts += ["</details>"] * len(open_ends)
    title = html.escape(type(model).__name__)
    return PAGE.format(title=title, facts=html.escape(_totals(source, config)), tree="\n".join(parts))
