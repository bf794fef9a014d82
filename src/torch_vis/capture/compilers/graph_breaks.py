"""Graph breaks, guards and recompilations, as Dynamo reports them while it works, kept as plain data."""

from __future__ import annotations

import os
import re
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.recording.source_lines import (
    OURS,
    TORCH,
    kind_of,
    leave_alone,
    resolve,
    resumed,
    shown_file,
)
from torch_vis.capture.undo import Patch, Undo, context, take_out
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Phase, Site
from torch_vis.graph.text import many

PARTITION = re.compile(r"(partition|forward|backward) \d+")


class EagerOp(NamedTuple):
    """An operator that ran outside of all partitions, and how often at that line."""

    op: str
    times: int
    file: str
    line: int


class Break(NamedTuple):
    """One graph break: why, what torch advises, the user's line, and what it cost."""

    reason: str
    explanation: str
    hints: tuple[str, ...]
    context: str
    id: str
    file: str
    line: int
    function: str
    code: str
    partition: int | None = None
    """The partition that it ended; None where it ended none."""
    nodes: int | None = None
    """How many nodes that partition holds."""
    partitions: tuple[int, ...] = ()
    """All that it ended: a break in a function that was called is met in both."""
    times: int = 1
    """How often the same break was met."""
    lost: tuple[EagerOp, ...] = ()
    """What ran in eager mode because of it."""


class Recompilation(NamedTuple):
    """A function that was compiled again, and the guard that failed."""

    function: str
    file: str
    line: int
    guard: str


class BreakReport(NamedTuple):
    """Dynamo's text on a break, the user's stack, the compilation that met it, operations recorded so far."""

    text: str
    stack: Any
    compilation: str
    operations: int


class DynamoLog:
    """What Dynamo reported while a program was captured."""

    def __init__(self, recorder: Any = None) -> None:
        self.recorder = recorder
        self.reports: list[BreakReport] = []
        self.partitions: dict[str, int] = {}
        """By compilation: the partition that it gave."""
        self.guards: dict[str, None] = {}
        self.recompilations: list[Recompilation] = []
        self.compile_ns = 0

    def export_guards(self, guards: Any) -> None:
        """Dynamo's hook for the guards of one frame."""
        for guard in guards:
            for code in guard.code_list or ():
                self.guards[code] = None

    def guard_failed(self, failure: Any) -> None:
        """Dynamo's hook for a guard that does not hold any more."""
        code = failure.orig_code
        name = resumed(getattr(code, "co_qualname", code.co_name))
        site: Site | None = Site(shown_file(code.co_filename), code.co_firstlineno, name)
        # The recorder's way of calling a module stands for the user's line that called it.
        if code.co_filename.startswith(OURS):
            site = _users_line()
        if site is not None:
            row = Recompilation(site.function, site.file, site.line, failure.reason.strip())
            self.recompilations.append(row)

    def compiled(self, partition: int) -> None:
        """A compilation has given a partition."""
        self.partitions.setdefault(compilation(), partition)

    def breaks(self, sizes: list[int]) -> list[tuple[Break, list[int]]]:
        """The breaks, each once, and how many operations were recorded each time it was met.

        A compilation goes on until one break ends it, so of those that it met the last one ended its partition.
        """
        last = {row.compilation: index for index, row in enumerate(self.reports)}
        breaks: dict[tuple[str, str, int], tuple[Break, list[int]]] = {}
        for index, row in enumerate(self.reports):
            theirs = [frame for frame in row.stack or () if not frame.filename.startswith(OURS)]
            if row.stack and not theirs:
                continue  # the same one again, met while Dynamo looked at the recorder's way of calling modules
            users = [frame for frame in theirs if not frame.filename.startswith(TORCH)] or theirs
            item = parsed(row.text, users[-1] if users else None)
            partition = self.partitions.get(row.compilation) if last[row.compilation] == index else None
            key = (item.reason, item.file, item.line)
            operations: list[int] = []
            if key in breaks:
                known, operations = breaks[key]
                item = known._replace(times=known.times + 1)
            ended = item.partitions if partition is None else (*item.partitions, partition)
            breaks[key] = (item._replace(partitions=ended), [*operations, row.operations])
        return [(_sized(item, sizes), operations) for item, operations in breaks.values()]


def _users_line() -> Site | None:
    """The user's line that runs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not kind_of(frame.f_code).user:
        frame = frame.f_back
    return resolve(frame.f_code, frame.f_lasti) if kind_of(frame.f_code).user else None


def _sized(row: Break, sizes: Sequence[int]) -> Break:
    ended = tuple(number for number in row.partitions if number < len(sizes))
    if not ended:
        return row._replace(partitions=())
    return row._replace(partition=ended[0], nodes=sizes[ended[0]], partitions=ended)


def compilation() -> str:
    """The compilation that Dynamo is at, "" outside of any."""
    return str(torch._guards.CompileContext.current_compile_id() or "")


def with_losses(
    rows: list[tuple[Break, list[int]]], graph: Graph
) -> tuple[tuple[Break, ...], tuple[EagerOp, ...]]:
    """The breaks with the operations that ran outside of partitions, and those that no break accounts for.

    An operation belongs to the break at its own line, or else to the one that was met last before it ran.
    """
    by_line = {(row.file, row.line): index for index, (row, _) in enumerate(rows)}
    met = sorted((count, index) for index, (_, counts) in enumerate(rows) for count in counts)
    starts = [count for count, _ in met]
    counters: list[Counter[tuple[str, str, int]]] = [Counter() for _ in range(len(rows) + 1)]
    for node in outside(graph):
        row = graph.nodes[node]
        file, line = (row.site.file, row.site.line) if row.site is not None else ("", 0)
        index = by_line.get((file, line), -1)
        if index < 0 and (before := bisect_right(starts, node)):
            index = met[before - 1][1]
        counters[index][(row.op, file, line)] += 1
    lost = [
        tuple(EagerOp(op, times, file, line) for (op, file, line), times in counter.items())
        for counter in counters
    ]
    return tuple(row._replace(lost=lost[index]) for index, (row, _) in enumerate(rows)), lost[-1]


def with_ends(graph: Graph, breaks: Sequence[Break], sizes: Sequence[int]) -> Graph:
    """The graph with each partition's scope saying how large it is and what ended it, so that every view does."""
    ended = {number: row for row in breaks for number in row.partitions}
    modules = list(graph.modules)
    for index, module in enumerate(modules):
        if module.kind == "compiled" and PARTITION.fullmatch(module.path):
            number = int(module.path.rpartition(" ")[2])
            text = many(sizes[number], "node") if number < len(sizes) else module.type
            if number in ended:
                row = ended[number]
                text += f", ended by {row.reason} at {os.path.basename(row.file) or '?'}:{row.line}"
            modules[index] = module._replace(type=text)
    return graph.replaced(modules=modules)


def outside(graph: Graph) -> list[int]:
    """The forward operations that ran in no partition."""
    partitions = np.array(
        [PARTITION.fullmatch(module.path) is not None for module in graph.modules], dtype=bool
    )
    within = graph.tree.inside_some(partitions[graph.scope_module])[graph.node_scope]
    return list(np.flatnonzero(~within & (graph.node_phase == Phase.FORWARD)).tolist())


def parsed(text: str, frame: Any) -> Break:
    """A break from what torch says of it: a title, then explanation, hints, context and the page that explains it."""
    lines = text.strip().split("\n")
    # Where the break was met on the way, a sentence on that comes before the title.
    title = next(
        (line.strip() for line in lines if line.strip() and not line.strip().endswith(":")), lines[0]
    )
    ends = r"(?=\n\s*Hint:|\n\s*Developer debug context:|\n\s*from user code:|\Z)"
    explanation = re.search(rf"Explanation:\s*(.*?){ends}", text, re.DOTALL)
    hints = re.findall(rf"Hint:\s*(.*?){ends}", text, re.DOTALL)
    context = re.search(r"Developer debug context:\s*(.*?)(?=\n\s*For more details|\Z)", text, re.DOTALL)
    page = re.search(r"/gb/(gb\d+)\.html", text)
    return Break(
        title,
        _one_line(explanation[1]) if explanation else "",
        tuple(_one_line(hint) for hint in hints),
        _one_line(context[1]) if context else "",
        page[1].upper() if page else "",
        shown_file(frame.filename) if frame is not None else "",
        int(frame.lineno or 0) if frame is not None else 0,
        resumed(frame.name) if frame is not None else "",
        (frame.line or "").strip() if frame is not None else "",
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


@context
def listening(undo: Undo, log: DynamoLog) -> None:
    """Hear of every graph break that Dynamo meets inside; there is no hook for it, so its method is wrapped."""
    from torch._dynamo.callback import callback_handler
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    begun: list[int] = []

    def noting(original: Any) -> Any:
        def note(self: Any, code_options: Any, reason: str, exc: Any, *rest: Any, **named: Any) -> Any:
            if not getattr(exc, "logged", False):
                stack = getattr(exc, "real_stack", None)
                if stack is None:
                    stack = torch._guards.TracingContext.extract_stack()
                count = 0 if log.recorder is None else log.recorder.count
                log.reports.append(BreakReport(reason or str(exc), stack, compilation(), count))
            return original(self, code_options, reason, exc, *rest, **named)

        return note

    @leave_alone  # they are called under Dynamo's lock, which it would wait for itself
    def begins(_: Any) -> None:
        begun.append(time.perf_counter_ns())

    @leave_alone
    def ends(_: Any) -> None:
        if begun:
            log.compile_ns += time.perf_counter_ns() - begun.pop()

    breaks = Patch(lambda: InstructionTranslatorBase, "log_graph_break", noting)
    for table, function in (
        (callback_handler.start_callbacks, begins),
        (callback_handler.end_callbacks, ends),
    ):
        undo.add(take_out, table, function)
        table.append(function)
    undo.add(breaks.remove)
    breaks.install()
