"""The table that ``print(trace)`` shows: the module tree with shapes, parameters, operations, time and memory."""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from textwrap import wrap
from typing import Any, Literal, NamedTuple

from torch_vis.errors import UsageError
from torch_vis.graph import Graph, Metrics, TensorType
from torch_vis.graph.lifetimes import Peak, next_run, peak_memory
from torch_vis.graph.module_table import ModuleLine, ModuleNode, ModuleTable, Totals
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import and_more, count, duration, inert, many, shortened, size
from torch_vis.ops.display_names import op_label
from torch_vis.views.text.breaks import Breaks
from torch_vis.views.text.table_layout import PATH, Field, Listing, cut, fitted

AGAIN = "↻"  # stands beside what backward computes again
INSIDE = (
    "the modules inside torch.compile are not shown one by one; tv.trace(model, …, via='dynamo') of the model before "
    "torch.compile keeps them"
)


def wall_time(meta: Mapping[str, Any]) -> str:
    """The time of the recorded run, and how much of it was not the model's.

    >>> wall_time({"wall_ns": 2_500_000, "overhead_ns": 500_000, "compile_ns": 1_500_000})
    '2.50 ms, of which 500 µs to record and 1.50 ms to compile'
    >>> wall_time({"wall_ns": 2_500_000, "overhead_ns": 500_000, "overhead_error_ns": 90_000})
    '2.50 ms, of which 500 µs ± 90.0 µs to record'
    """
    error = meta.get("overhead_error_ns")
    parts = {"record": meta.get("overhead_ns"), "compile": meta.get("compile_ns")}
    spent = [(duration(time), what) for what, time in parts.items() if time]
    if error and spent and parts["record"]:
        spent[0] = (f"{spent[0][0]} ± {duration(error)}", "record")
    texts = " and ".join(f"{time} to {what}" for time, what in spent)
    return duration(meta["wall_ns"]) + (f", of which {texts}" if texts else "")


def remarks(graph: Graph, meta: Mapping[str, Any]) -> list[str]:
    """All that there is to say of a run."""
    return [*compiling(meta), *repeated(meta), *inside_compiled(graph)]


def compiling(meta: Mapping[str, Any]) -> list[str]:
    """How much of the run was compilation, and how to leave it out.

    >>> compiling({"compile_ns": 2_000_000_000, "wall_ns": 2_500_000_000})[0][:62]
    'compiling took 2.00 s of the 2.50 s, and the module around it '
    """
    spent, wall = meta.get("compile_ns"), meta.get("wall_ns")
    # medians are of runs that compiled nothing
    if not spent or not wall or meta.get("repeat"):
        return []
    part = f"{duration(spent)} of the {duration(wall)}, and the module around it counts it as its own"
    if (meta.get("program") or {}).get("via"):
        return [
            f"capturing the program took {part}; trace without via= for the times of the model as it runs"
        ]
    return [f"compiling took {part}; call the compiled model once before tracing to leave it out"]


def repeated(meta: Mapping[str, Any]) -> list[str]:
    """Which runs the times are of, where the wall time is of another."""
    runs = meta.get("repeat")
    if not runs:
        return []
    return [
        f"times of modules and operations are medians of {runs:,} more runs; the wall time is the recorded one's"
    ]


def inside_compiled(graph: Graph) -> list[str]:
    """Where the rows of compiled modules are."""
    compiled = any(kind == "compiled" and type_ == "OptimizedModule" for _, type_, kind in graph.modules)
    return [INSIDE] if compiled else []


MOST_ROWS = 60  # by default; what lies deeper is folded away
WIDEST = 180  # letters; a wider terminal is not filled
MOST_LIMITS = 8
FIRST = 3  # operators without a formula that are named
# The columns of the table, in the order in which they stand: a figure goes by its name in the totals of a module.
# ``drop`` is the order in which they go when there is no room.
TEXTS = (
    Field("name", "module", least=26),
    Field("type", "class", least=12, drop=11),
    Field("output", "output", least=22, drop=14),
    Field("calls", "calls", str, drop=10),
    Field("parameters", "params", str),
)
FIGURES = (
    Field("ops", "ops", "{:,}".format, drop=9),
    Field("time_ns", "time", duration, drop=13),
    Field("self_ns", "self", duration, drop=4),
    Field("alloc_bytes", "allocated", size, drop=5),
    Field("flops", "FLOPs", count, drop=8),
    Field("moved_bytes", "accessed", size, drop=7),
    Field("backward_ops", "ops", "{:,}".format, drop=6, group="backward"),
    Field("backward_ns", "time", duration, drop=12, group="backward"),
    Field("backward_bytes", "allocated", size, drop=2, group="backward"),
    Field("backward_flops", "FLOPs", count, drop=3, group="backward"),
    Field("backward_moved_bytes", "accessed", size, drop=1, group="backward"),
)
CAPTURED = {"dynamo": "Dynamo", "aot": "Dynamo and AOT", "export": "torch.export", "fx": "torch.fx"}


def table(
    run: Run,
    *,
    depth: int | Literal["auto"] | None = "auto",
    width: int | None = None,
) -> str:
    """The module tree of a run as text, with totals and what was not captured below it.

    Each line counts what happened in the module and in all that it called; ``self`` is the time without the modules it
    called, ``allocated`` the bytes of the tensors its operations made, ``accessed`` those that they read and write;
    ``≥`` stands before a sum that leaves out operations of which it is not known, and ``↻`` after a module that was
    checkpointed: backward computes it again. Neighbours that do the same are one line with their sum (``0-11 × 12``).
    ``depth`` is how many levels to show, None for all; by default as many as fit in 60 rows.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> print(tv.trace(model, torch.ones(1, 3)).table(width=110).splitlines()[2].split())
    ['module', 'class', 'output', 'params', 'ops', 'time', 'self', 'allocated', 'FLOPs', 'accessed']
    """
    if depth is not None and depth != "auto" and (type(depth) is not int or depth < 1):
        raise UsageError(f"depth is a number of levels from 1 up, None for all or 'auto', not {depth!r}")
    graph, metrics, meta = run.graph, run.metrics, run.meta
    outline = ModuleTable(graph, metrics)
    width = max(48, width or min(WIDEST, shutil.get_terminal_size((110, 24)).columns))
    levels, rows, hidden = tree_rows(outline, depth)
    title = title_of(graph, meta)
    shown = fitted(module_listing(rows), width)
    lines = [*([title, ""] if title else []), *shown.lines]
    if hidden:
        deeper = f" below level {levels}" if levels else ""
        lines.append(f"… {many(hidden, 'more row')}{deeper}; t.table(depth=None) shows all")
    facts = totals(graph, metrics, meta, outline)
    wide = max(map(len, facts))
    lines.append("")
    for name, fact in facts.items():
        begin, below = f"{name.ljust(wide)}  ", " " * (wide + 2)
        wrapped = wrap(fact, width, initial_indent=begin, subsequent_indent=below, break_long_words=False)
        lines += wrapped or [begin]
    notes = [*gaps(metrics), *_uncovered(graph, metrics), *remarks(graph, meta)]
    if shown.left_out:
        names = ", ".join(field.full_title for field in shown.left_out)
        notes.insert(0, f"no room for {names}; t.table(width={shown.whole_width}) has all columns")
    lines += _footnotes(notes, run.limits, width)
    return "\n".join(inert(shortened(line, LONGEST)).rstrip() for line in lines)


LONGEST = 2000  # letters of a line


# ---------------------------------------------------------------- rows


@dataclass
class ModuleRow:
    """One row of the table: a module's has a number of calls, one of bare operations has none."""

    name: str
    figures: Totals
    type: str = ""
    output: str = ""
    calls: str = ""
    parameters: str = ""
    depth: int = 0
    # The box characters before the name.
    stem: str = ""


class TreeItem(NamedTuple):
    """A place in the tree: a module's line or, where that is None, a row that sums up its parent's own operations."""

    line: ModuleLine | None
    row: ModuleRow | None
    depth: int
    # The box characters before it, and before what is inside it.
    stem: str
    below: str


def module_listing(rows: Sequence[ModuleRow]) -> Listing:
    """The rows of the tree as a listing, with the columns that have something to say."""
    some_calls = any(row.calls not in ("", "1") for row in rows)
    some_backward = any(row.figures.backward_ops for row in rows)
    texts = [field for field in TEXTS if field.name != "calls" or some_calls]
    if not any(row.calls for row in rows):
        texts[0] = texts[0]._replace(title="operation")
    figures = [field for field in FIGURES if some_backward or not field.group]
    cells = [
        [
            row.stem + row.name,
            *(getattr(row, field.name) for field in texts[1:]),
            *(figure_text(field, row.figures) for field in figures),
        ]
        for row in rows
    ]
    fields = (*texts, *(field._replace(show=str) for field in figures))
    return Listing("", fields, cells, most=len(cells), spanning=True)


def figure_text(field: Field, totals: Totals) -> str:
    """A figure of a module; ``≥`` stands before one that leaves out operations, and what is not known is empty."""
    number = getattr(totals, field.name)
    if number is None or field.show is None:
        return ""
    least = "≥ " if field.name in totals.incomplete else ""
    return least + (field.show(number) if number else "0")


def tree_rows(
    outline: ModuleTable, depth: int | Literal["auto"] | None
) -> tuple[int | None, list[ModuleRow], int]:
    """How many levels are shown, their rows, and how many rows are not shown."""
    items = list(_walk(outline))
    levels = max((item.depth for item in items), default=0) + 1
    most = len(items)
    if depth == "auto":
        most = MOST_ROWS
        per_level = Counter(item.depth for item in items)
        rows_within = list(accumulate(per_level[level] for level in range(levels)))
        levels = max(1, bisect_right(rows_within, MOST_ROWS))
    elif depth is not None:
        levels = min(levels, depth)
    inside = [item for item in items if item.depth < levels]
    shown = inside[:most]
    rows = [_row(outline, item, folded=item.depth == levels - 1) for item in shown]
    # even the outermost level has more rows than fit
    cut = len(inside) > most
    return (None if cut else levels), rows, len(items) - len(shown)


def _walk(outline: ModuleTable) -> Iterator[TreeItem]:
    """Everything that the tree could show, in reading order."""
    stack = _inside(outline, None, "")[::-1]
    while stack:
        item = stack.pop()
        yield item
        if item.line is not None:
            stack.extend(reversed(_inside(outline, item.line, item.below)))


def _inside(outline: ModuleTable, line: ModuleLine | None, stem: str) -> list[TreeItem]:
    """A line's modules, then one row for the operations that are its own."""
    lines = outline.children(line)
    depth = 0 if line is None else line.depth + 1
    rows: list[ModuleRow] = []
    if line is not None and lines:
        rows = _own_rows(line.module, line.own, len(line.members))
    elif line is None and outline.run.kind == "run":
        run = outline.run
        rows = (
            _own_rows(run, run.own, 1)
            if lines
            else [ModuleRow(name, sums) for name, sums in outline.by_operator()]
        )
    entries: list[tuple[ModuleLine | None, ModuleRow | None]] = [(child, None) for child in lines] + [
        (None, row) for row in rows
    ]
    items = []
    for number, (child, row) in enumerate(entries, 1):
        corner, below = ("└─ ", "   ") if number == len(entries) else ("├─ ", "│  ")
        if line is None:
            corner = below = ""
        items.append(TreeItem(child, row, depth, stem + corner, stem + below))
    return items


def _row(outline: ModuleTable, item: TreeItem, *, folded: bool) -> ModuleRow:
    if item.row is not None:
        return replace(item.row, stem=item.stem, depth=item.depth)
    line = item.line
    assert line is not None
    more = f" {AGAIN}" if line.module.recomputed else ""
    more += " ▸" if folded and line.module.children else ""
    numel = sum(outline.parameters[number].type.numel for number in line.parameters)
    return ModuleRow(
        name=f"{line.label}{more}",
        depth=item.depth,
        stem=item.stem,
        figures=line.sums,
        type=line.module.type if item.depth or line.label != line.module.type else "",
        output=_shape(list(line.module.outputs)) if line.module.kind != "optimizer" else "",
        calls=f"{line.module.calls:,}",
        parameters=count(numel) if numel else "",
    )


def _own_rows(module: ModuleNode, own: Totals, times: int) -> list[ModuleRow]:
    """A row that names a module's own operations: ``· add ×2, relu``."""
    ops: Counter[str] = Counter()
    for name, number in (module.own_calls or module.own_backward_ops).items():
        ops[op_label(name)] += number
    named = (name if number * times == 1 else f"{name} ×{number * times:,}" for name, number in ops.items())
    return [ModuleRow("· " + ", ".join(named), own)] if ops else []


def _shape(types: Sequence[TensorType]) -> str:
    """The shape of what a module gives; where its calls differ, the range that each size runs through."""
    if len(types) < 2:
        return "".join(map(str, types))
    if len({(type_.dtype, len(type_.shape)) for type_ in types}) > 1:
        return f"{types[-1]} …"
    if (
        len({type_.symbols for type_ in types}) == 1
        and types[0].symbols
        and len({str(type_) for type_ in types}) == 1
    ):
        return str(types[0])
    sizes = [sorted(set(column)) for column in zip(*(type_.shape for type_ in types), strict=True)]
    shape = ", ".join(str(column[0]) if len(column) == 1 else f"{column[0]}-{column[-1]}" for column in sizes)
    return f"{str(types[0]).partition('[')[0]}[{shape}]"


# ---------------------------------------------------------------- above and below the rows


def title_of(graph: Graph, meta: Mapping[str, Any]) -> str:
    """What ran, and where: ``ResNet · forward and backward · torch 2.13.0 · cpu · 2 threads``."""
    phases = [Phase(number).name.lower() for number in sorted(set(graph.node_phase.tolist()))]
    threads = meta.get("threads")
    via = (meta.get("program") or {}).get("via")
    parts = [
        meta.get("model"),
        " and ".join(filter(None, [", ".join(phases[:-1]), *phases[-1:]])),
        f"captured by {CAPTURED.get(via, via)}" if via else "",
        f"torch {meta['torch']}" if meta.get("torch") else "",
        ", ".join(meta.get("devices") or ()),
        "" if not threads else many(threads, "thread"),
    ]
    return " · ".join(part for part in parts if part)


def totals(graph: Graph, metrics: Metrics, meta: Mapping[str, Any], outline: ModuleTable) -> dict[str, str]:
    """What the run comes to, by name."""
    facts = {
        "operations": _operations(graph),
        "computed again": _computed_again(graph, metrics),
        "parameters": _parameters(outline, meta),
        "input": _inputs(graph),
    }
    program = meta.get("program") or {}
    facts["open sizes"] = ", ".join((program.get("ranges") or {}).values())
    if program.get("breaks"):
        facts["graph breaks"] = (
            f"{len(program['breaks']):,}; {Breaks(program).title.partition('; ')[2]}: see t.breaks"
        )
    if {"flops", "macs", "moved_bytes"} <= set(metrics) and len(graph):
        facts["compute"] = _compute(metrics)
    peak = peak_memory(metrics)
    if peak is not None:
        later = next_run(graph, metrics, meta)
        facts["peak memory"] = _peak(graph, peak) + (
            "" if later is None else f"; {size(later.peak_bytes)} from the second step on"
        )
    if meta.get("wall_ns"):
        facts["wall time"] = wall_time(meta)
    if meta.get("error"):
        facts["ended by"] = f"{meta['error']}; what ran until then is shown"
    return {name: fact for name, fact in facts.items() if fact}


def _compute(metrics: Metrics) -> str:
    """What all operations with a formula come to, and how many have none."""
    flops, macs, moved = (metrics[name].total() for name in ("flops", "macs", "moved_bytes"))
    if flops is None or macs is None:
        return ""
    least, less = ("at least " if metrics[name].uncovered else "" for name in ("flops", "moved_bytes"))
    bytes_ = "" if moved is None else f"; {less}{size(int(moved))} accessed"
    return f"{least}{count(int(flops))} FLOPs, {count(int(macs))} MACs{bytes_}"


def _operations(graph: Graph) -> str:
    phases = Counter(graph.node_phase.tolist())
    parts = [f"{number:,} {Phase(phase).name.lower()}" for phase, number in sorted(phases.items())]
    return f"{len(graph):,}" + (f" ({', '.join(parts)})" if len(parts) > 1 else "")


def _computed_again(graph: Graph, metrics: Metrics) -> str:
    """What checkpointing cost: forward operations that ran a second time during backward, and where they count."""
    recomputed = graph.node_flags & Flag.RECOMPUTE != 0
    number = int(recomputed.sum())
    if not number:
        return ""
    parts = [f"{number:,} of the operations of backward"]
    for name, show, unit in (("time_ns", duration, ""), ("flops", count, " FLOPs")):
        column = metrics.get(name)
        if column is not None:
            known = recomputed & column.known_rows
            least = "at least " if (known != recomputed).any() else ""
            parts += [f"{least}{show(int(column.values[known].sum()))}{unit}"] if known.any() else []
    return f"{', '.join(parts)}: what was checkpointed, in the backward columns of its modules ({AGAIN})"


def _parameters(outline: ModuleTable, meta: Mapping[str, Any]) -> str:
    numel = sum(parameter.type.numel for parameter in outline.parameters)
    nbytes = [parameter.type.nbytes for parameter in outline.parameters]
    known = sum(number for number in nbytes if number is not None)
    least = "at least " if None in nbytes else ""
    tensors = many(len(nbytes), "tensor")
    total = meta.get("parameters") or numel
    unused = f"; the model has {total:,}, the rest were not used" if total > numel else ""
    return f"{numel:,} in {tensors} ({least}{size(known)}){unused}" if nbytes else ""


def _inputs(graph: Graph) -> str:
    values = [value for value in graph.inputs if value.role == "input"]
    shown = [f"{value.name} {value.type}" if value.name else str(value.type) for value in values]
    return and_more(shown, 4)


def _peak(graph: Graph, peak: Peak) -> str:
    node = graph.nodes[peak.node]
    where = f" in {cut(node.path, PATH)}" if node.path else ""
    return f"{size(peak.size_bytes)} in live tensors, at {op_label(node.call.op)}{where}"


def gaps(metrics: Metrics) -> list[str]:
    """Which sums leave operations out, in sentences."""
    return [
        f"{name} is not known for {column.uncovered:,} of {len(column):,} operations; sums leave them out"
        for name, column in metrics.items()
        if name in ("time_ns", "alloc_bytes", "live_bytes", "flops", "moved_bytes") and column.uncovered
    ]


def _uncovered(graph: Graph, metrics: Metrics) -> list[str]:
    """The operators that sums of FLOPs leave out, and where it says why."""
    missing = graph.operator_counts(metrics["flops"].unknown_rows) if "flops" in metrics else ()
    names = [name for name, _ in missing]
    if not names:
        return []
    return [f"without FLOPs: {and_more(names, FIRST)}; t.summary().why_uncovered says why"]


def _footnotes(notes: Sequence[str], limits: Sequence[str], width: int) -> list[str]:
    """What the figures leave out, and what the capture could not see."""
    if len(limits) > MOST_LIMITS:
        limits = [*limits[:MOST_LIMITS], f"… and {len(limits) - MOST_LIMITS:,} more in t.limits"]
    lines = []
    for title, sentences in (("", notes), ("not captured", limits)):
        if sentences:
            lines += ["", title] if title else [""]
            for sentence in sentences:
                lines += wrap(
                    sentence, width, initial_indent="• ", subsequent_indent="  ", break_on_hyphens=False
                )
    return lines
