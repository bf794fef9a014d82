"""What the page is given: the graph's columns as they are, its tables, metrics, and the source lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from torch_vis.graph import Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.flow import parameters_used, passing_views, roots
from torch_vis.graph.io.codec import pack
from torch_vis.graph.io.tables_json import tables_to_plain
from torch_vis.graph.lifetimes import MemoryByUse, next_run
from torch_vis.graph.module_table import ModuleTable, output_values
from torch_vis.graph.repeats import Elements, folds, generations
from torch_vis.graph.run import Run, added_by_recording
from torch_vis.graph.schema import COLUMNS, Site
from torch_vis.graph.text import source_text
from torch_vis.ops.api_level import api_level
from torch_vis.ops.collectives import waited
from torch_vis.ops.display_names import ScopeLabels, op_label
from torch_vis.ops.families import figure_family
from torch_vis.ops.schemas import argument_names

VERSION = 1
# the first follows from the outputs, the other is scopes there
DERIVED = ("value_producer", "node_api_first")


def payload(
    run: Run,
    *,
    recomputed: Any = None,
    memory: MemoryByUse | None = None,
    **more: Any,
) -> tuple[dict[str, Any], str]:
    """The page's tables as JSON data, and its columns as text; ``more`` goes into the tables."""
    tables, columns = unpacked(run, recomputed=recomputed, memory=memory, **more)
    directory, text = pack(columns)
    return {"version": VERSION, "directory": directory, **tables}, text


def unpacked(
    run: Run,
    *,
    recomputed: Any = None,
    memory: MemoryByUse | None = None,
    **more: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The page's tables and its columns, by name.

    ``recomputed`` says which calls backward ran again, and ``memory`` what memory is for, where the graph was put
    together and cannot be asked.
    """
    # The figures of modules are those of the printed table, and are worked out once.
    rows = ModuleTable(run.graph, run.metrics).columns() if "difference" not in run.metrics else {}
    run = api_level(run)
    graph, metrics = run.graph, run.metrics
    columns = {name: getattr(graph, name) for name in COLUMNS if name not in DERIVED}
    again = graph.tree.recomputed
    if recomputed is not None:
        # a call of a function is as what it is in
        again = np.append(recomputed, recomputed[graph.scope_parent[len(recomputed) :]])
    if again.any():
        columns["scope_recomputed"] = again
    columns["node_passing"] = passing_views(graph)
    columns["value_root"] = roots(graph, columns["node_passing"])
    if "parameters" not in metrics:
        metrics = metrics.with_column(parameters_used(graph))
    stalls = waited(run)
    if stalls is not None:
        metrics = metrics.with_column(stalls)
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
    labels = ScopeLabels(graph)
    repeats = fold_columns(graph, labels, again, status)
    columns["scope_label"] = labels.index
    columns["scope_output"] = handed_out(graph)
    modules = {f"row_{name}": column for name, column in rows.items()}
    tables = tables_to_plain(graph)
    tables["sources"] = source_lines(graph.sites)  # type: ignore[assignment]
    names = {short_name(call.op): op_label(call.op) for call in graph.calls}
    ops = dict.fromkeys(call.op for call in graph.calls)
    summed, seeds = added_by_recording(run)
    return {
        "metrics": measured,
        "uses": uses,
        "limits": list(run.limits),
        "meta": plain_meta(run),
        "families": {label: figure_family(name) for name, label in names.items()},
        "names": {name: label for name, label in names.items() if name != label},
        "labels": labels.texts,
        "class_families": {module.type: figure_family(module.type.lower()) for module in graph.modules},
        "arguments": {op: list(known) for op in ops if (known := argument_names(op)) is not None},
        "tables": tables,
        "added": {"summed": summed, "seeds": seeds},
        **_written(graph),
        **more,
    }, {**columns, **lines, **repeats, **modules}


def _written(graph: Graph) -> dict[str, Any]:
    """The calls that write a text, where the run is of that kind: the longest, one row for each call."""
    longest = max(generations(graph), key=lambda generation: len(generation.scopes), default=None)
    if longest is None:
        return {}
    return {"generation": [list(row) for row in zip(*(column.tolist() for column in longest))]}


def handed_out(graph: Graph) -> Any:
    """For each scope the value that it hands out, or -1."""
    result = np.full(len(graph.scope_call), -1, dtype=np.int64)
    for scope, value in output_values(graph).items():
        result[scope] = value
    return result


def fold_columns(graph: Graph, labels: ScopeLabels, recomputed: Any, status: Any) -> dict[str, Any]:
    """What the page draws as one: the repeated stretches of every scope, for each phase alone and for all together.

    One row for each stretch: the phases as bits, the scope, and among its elements the first, how many make a step, and
    how many steps there are; what a step of several elements is called; then the instances that differ from the others,
    by the stretch that they are in.
    """
    present = np.unique(graph.node_phase).tolist()
    views = [[phase] for phase in present] + ([present] if len(present) > 1 else [])
    parts: list[tuple[Any, ...]] = []
    count = 0
    for phases in views:
        elements = Elements(graph, phases, recomputed=recomputed, status=status)
        result = folds(elements)
        bits = np.full(len(result.scope), sum(1 << phase for phase in phases))
        names = [_step_label(labels, elements, *row) for row in zip(*(part.tolist() for part in result[:4]))]
        parts.append(
            (bits, *result[:4], np.array(names, np.int64), result.odd_fold + count, result.odd_instance)
        )
        count += len(result.scope)
    columns = ("phases", "scope", "start", "period", "times", "label", "odd", "odd_instance")
    empty = np.empty(0, dtype=np.int64)
    return {
        f"fold_{name}": np.concatenate([empty, *(part[number] for part in parts)])
        for number, name in enumerate(columns)
    }


def _step_label(
    labels: ScopeLabels, elements: Elements, scope: int, start: int, period: int, times: int
) -> int:
    if period == 1:
        return -1
    first = int(elements.start[scope]) + start
    return labels.number(labels.step(elements.element[first : first + period * times].reshape(times, period)))


def plain_meta(run: Run) -> dict[str, Any]:
    """What of a run's facts is plain text and numbers."""
    meta = run.meta
    later = next_run(run.graph, run.metrics, meta)
    result: dict[str, Any] = {} if later is None else {"steady_peak_bytes": later.peak_bytes}
    result |= {name: value for name, value in meta.items() if _is_plain(value)}
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
        lines = source_text(file)
        excerpt = {n: lines[n - 1].rstrip()[:LONGEST] for n in sorted(numbers)[:room] if n <= len(lines)}
        if excerpt:
            result[file] = excerpt
            room -= len(excerpt)
    return result
