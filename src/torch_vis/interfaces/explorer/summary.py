"""A model written down: its tree as text, as data and as a page, with what was recorded of it."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator
from typing import Any

import torch

from torch_vis._trace import Trace
from torch_vis.errors import NotTraceable, no_match
from torch_vis.graph.text import size
from torch_vis.interfaces.explorer.format import format_param_count, format_time, get_parameter_statistics
from torch_vis.interfaces.explorer.modules import ModuleSource
from torch_vis.interfaces.explorer.stats import ForwardStats, get_forward_stats
from torch_vis.views.terminal.config import ExplorerConfig

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
        one: dict[str, Any] = {
            "path": forest.paths[row],
            "class": forest.types[row],
            "depth": int(forest.depth[row]),
        }
        one["arguments"] = forest.texts["args"](row)
        one["shapes"] = {t.name: t.shape for t in source.details(row).tensors if t.role == "parameter"}
        if row in source.shared:
            one["same_as"] = forest.paths[source.shared[row]]
        for name, key in keys.items():
            if name in numbers:
                figure = float(numbers[name][row])
                one[key] = None if math.isnan(figure) else int(figure)
        modules.append(one)
    whole = {"model": type(model).__name__, **get_parameter_statistics(model), "modules": modules}
    return json.dumps(whole, indent=1, ensure_ascii=False)


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
