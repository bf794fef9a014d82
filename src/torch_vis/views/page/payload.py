"""What the page is given: the graph's columns as they are, its tables, metrics, and the source lines."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.flow import parameters_used
from torch_vis.graph.io.codec import pack
from torch_vis.graph.io.tables_json import tables_to_plain
from torch_vis.graph.lifetimes import MemoryByUse
from torch_vis.graph.record import Run
from torch_vis.graph.repeats import Elements, folds
from torch_vis.graph.schema import COLUMNS, Site
from torch_vis.ops.families import figure_family
from torch_vis.ops.schemas import argument_names

VERSION = 1
DERIVED = ("value_producer",)  # follows from the outputs


def payload(
    run: Run,
    *,
    recomputed: Any = None,
    memory: MemoryByUse | None = None,
    **more: Any,
) -> tuple[dict[str, Any], str]:
    """The page's tables as JSON data, and its columns as text; ``more`` goes into the tables.

    ``recomputed`` says which calls backward ran again, and ``memory`` what memory is for, where the graph was put
    together and cannot be asked.
    """
    graph, metrics = run.graph, run.metrics
    columns = {name: getattr(graph, name) for name in COLUMNS if name not in DERIVED}
    again = graph.tree.recomputed if recomputed is None else recomputed
    if again.any():
        columns["scope_recomputed"] = again
    if "parameters" not in metrics:
        metrics = metrics.with_column(parameters_used(graph))
    measured = []
    for name, column in metrics.items():
        measured.append({"name": name, "along": column.along, "masked": column.known is not None})
        columns[f"metric:{name}"] = column.values
        if column.known is not None:
            columns[f"known:{name}"] = column.known
    if memory is None and run.lifetimes is not None:
        memory = run.lifetimes.by_use
    uses, lines = memory_columns(graph, memory)
    status = metrics["difference"].values if "difference" in metrics else None
    directory, text = pack({**columns, **lines, **fold_columns(graph, again, status)})
    tables = tables_to_plain(graph)
    tables["sources"] = source_lines(graph.sites)  # type: ignore[assignment]
    names = [short_name(call.op) for call in graph.calls]
    ops = dict.fromkeys(call.op for call in graph.calls)
    return {
        "version": VERSION,
        "directory": directory,
        "metrics": measured,
        "uses": uses,
        "limits": list(run.limits),
        "meta": plain_meta(run.meta),
        "families": {name: figure_family(name) for name in names},
        "class_families": {module.type: figure_family(module.type.lower()) for module in graph.modules},
        "arguments": {op: list(known) for op in ops if (known := argument_names(op)) is not None},
        "tables": tables,
        **more,
    }, text


def fold_columns(graph: Graph, recomputed: Any, status: Any) -> dict[str, Any]:
    """What the page draws as one: the repeated stretches of every scope, for each phase alone and for all together.

    One row for each stretch: the phases as bits, the scope, and among its elements the first, how many make a step, and
    how many steps there are; then the instances that differ from the others, by the stretch that they are in.
    """
    present = np.unique(graph.node_phase).tolist()
    views = [[phase] for phase in present] + ([present] if len(present) > 1 else [])
    parts: list[tuple[Any, ...]] = []
    count = 0
    for phases in views:
        result = folds(Elements(graph, phases, recomputed=recomputed, status=status))
        bits = np.full(len(result.scope), sum(1 << phase for phase in phases))
        parts.append((bits, *result[:4], result.odd_fold + count, result.odd_instance))
        count += len(result.scope)
    names = ("phases", "scope", "start", "period", "times", "odd", "odd_instance")
    empty = np.empty(0, dtype=np.int64)
    return {
        f"fold_{name}": np.concatenate([empty, *(part[number] for part in parts)])
        for number, name in enumerate(names)
    }


def plain_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's facts is plain text and numbers."""
    result = {name: value for name, value in meta.items() if _is_plain(value)}
    program = meta.get("program") or {}
    if program:
        result |= {"via": program.get("via"), "ranges": list((program.get("ranges") or {}).values())}
    return result


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, tuple))


def memory_columns(graph: Graph, memory: MemoryByUse | None) -> tuple[list[str], dict[str, Any]]:
    """The words for the uses there are, and the columns; nothing where no memory was recorded.

    ``storage_from`` is there if a block of which the graph says that it came from outside takes up memory only later.
    """
    if memory is None:
        return [], {}
    columns = {"storage_use": memory.use, "storage_value": memory.value}
    if (memory.birth != graph.storage_birth).any():
        columns["storage_from"] = memory.birth
    for number, alive in enumerate(memory.during):
        columns[f"use:{number}"] = alive
    return list(memory.words), columns


AROUND = 4
LONGEST = 240  # characters of a line
MOST_LINES = 20_000


def source_lines(sites: Iterable[Site]) -> dict[str, dict[int, str]]:
    """By file and line number, the text of every line that a site names and of its neighbours.

    A file that is not there (a trace from another machine, a notebook that has gone) is left out.
    """
    wanted: dict[str, set[int]] = {}
    for site in sites:
        wanted.setdefault(site.file, set()).update(range(max(1, site.line - AROUND), site.line + AROUND + 1))
    result: dict[str, dict[int, str]] = {}
    room = MOST_LINES
    for file, numbers in wanted.items():
        lines = linecache.getlines(file)
        excerpt = {n: lines[n - 1].rstrip()[:LONGEST] for n in sorted(numbers)[:room] if n <= len(lines)}
        if excerpt:
            result[file] = excerpt
            room -= len(excerpt)
    return result
