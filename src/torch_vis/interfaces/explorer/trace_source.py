"""A trace as the explorer sees it: its module calls as rows, whether or not the model is still there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from torch_vis._trace import Trace
from torch_vis.errors import TensorsMissing
from torch_vis.graph import Graph
from torch_vis.graph.lifetimes import ENDING, gradients
from torch_vis.graph.module_table import ModuleTable, output_values, places_of_calls
from torch_vis.graph.schema import Phase, Role
from torch_vis.graph.text import count, duration, many, size, source_text
from torch_vis.graph.tree import inner_path
from torch_vis.views.terminal.forest import RECOMPUTED, Forest, Sharing, measure, share
from torch_vis.views.terminal.source import (
    CallRow,
    Details,
    Gradient,
    Picture,
    Source,
    SourceCode,
    TensorRow,
    sizes,
)
from torch_vis.views.text.module_tree import wall_time

MOST_CALLS = 3  # of one row
AROUND = 30  # lines of a program above and below those that matter


class Maps:
    """The pictures of one trace; made when the first is asked for, and then all at once."""

    def __init__(self, trace: Trace, row_of_scope: Any) -> None:
        self.trace = trace
        self.calls: dict[int, list[tuple[int, int]]] = {}
        """For each row its calls: the number, and the value that came out."""
        graph = trace.graph
        for scope, value in sorted(output_values(graph).items()):
            row = int(row_of_scope[scope])
            producer = int(graph.value_producer[value])
            if row >= 0 and producer >= 0 and graph.node_phase[producer] == Phase.FORWARD:
                self.calls.setdefault(row, []).append((len(self.calls.get(row, ())), value))
        self._images: dict[int, list[Any]] | None = None

    def of(self, row: int) -> Sequence[Picture]:
        """What came out of a row, newest call first; raises ``TensorsMissing`` where the run cannot be repeated."""
        if self._images is None:
            self._images = self._repeat()
        pictures = []
        for number, value in reversed(self.calls.get(row, ())[:MOST_CALLS]):
            images = self._images.get(value)
            if images:
                shape = self.trace.graph.values[value].shape
                pictures.append(Picture(f"output of call {number} {sizes(shape)}", images))
        return pictures

    def _repeat(self) -> dict[int, list[Any]]:
        from torch_vis.capture.tensor_contents import maps_of
        from torch_vis.replay.stepper import observe

        graph = self.trace.graph
        wanted = {value for calls in self.calls.values() for _, value in calls[:MOST_CALLS]}
        last = max((int(graph.value_producer[value]) for value in wanted), default=-1)
        images: dict[int, list[Any]] = {}

        def see(node: int, outputs: Any) -> None:
            if node > last:
                raise AllSeen
            first = int(graph.out_start[node])
            for index, tensor in enumerate(outputs):
                value = int(graph.out_value[first + index])
                if value in wanted:
                    images[value] = [np.asarray(image) for image in maps_of(tensor)]

        try:
            observe(graph, self.trace.kept, see)
        except AllSeen:
            # what follows is backward, and of no interest here
            pass
        except TensorsMissing as error:
            raise TensorsMissing(f"no maps: {error}") from error
        return images


class AllSeen(Exception):
    """All that is wanted has been seen."""


class TraceSource(Source):
    """A recorded run, alone: its rows are the modules, functions and optimizers that were called."""

    def __init__(self, trace: Trace) -> None:
        graph = trace.graph
        forest, row_of_scope = _rows(graph)
        super().__init__(str(trace.meta.get("model") or "run"), forest, notes=trace.limits)
        self.trace = trace
        self.graph, self.metrics, self.row_of_scope = graph, trace.metrics, row_of_scope
        self.tensors = _parameters(graph, forest)
        if len(graph):
            # As in the printed table: what its operations read counts as well, such as a weight tied to another's.
            table = ModuleTable(graph, trace.metrics).columns()
            forest.numbers["params"][row_of_scope[table["scope"]]] = table["parameters"]
            share(forest, "params")
        measure(forest, graph, trace.metrics, row_of_scope)
        phases = [word for phase, word in _PHASES if (graph.node_phase == phase).any()]
        self.facts.append(" and ".join(phases) or "no operations")
        self.facts.append(many(len(graph), "operation"))
        if "params" in forest.numbers:
            self.facts.append(f"{count(int(forest.numbers['params'][0]))} parameters used")
        if trace.meta.get("wall_ns"):
            self.facts.append(duration(int(trace.meta["wall_ns"]) - int(trace.meta.get("overhead_ns") or 0)))
        self.notes += unknown_costs(trace)
        self._maps: Maps | None = None
        self._gradients: list[Gradient] | None = None
        if has_backward(trace):
            forest.later["gradient"] = lambda: gradient_column(forest, self.gradients())

    def details(self, row: int) -> Details:
        """The module's place, class and the parameters that it was seen to use."""
        forest = self.forest
        facts = [("path", forest.paths[row] or "whole run"), ("kind", forest.kind(row))]
        if row == 0:
            facts = [*circumstances(self.trace), *facts[forest.kind(row) == "run" :]]
        if "params" in forest.numbers:
            facts.append(("parameters", f"{int(forest.numbers['params'][row]):,} used in it"))
            facts.append(("memory", f"{size(int(forest.numbers['bytes'][row]))} of parameters"))
        return Details(facts, tensors=[tensor for at, tensor in self.tensors if at == row])

    def calls(self, row: int) -> Sequence[CallRow] | None:
        """The calls in the trace."""
        assert self.row_of_scope is not None
        return calls_of(self.trace, self.row_of_scope, row)

    def source_code(self, row: int) -> SourceCode | None:
        """The lines from which the module's own operations were called, or else those inside it."""
        graph = self.trace.graph
        for below in (False, True):
            nodes = self.nodes(row, below=below)
            sites = graph.node_site[nodes[graph.node_phase[nodes] == Phase.FORWARD]]
            called = [graph.sites[site] for site in dict.fromkeys(sites[sites >= 0].tolist())]
            if called:
                file = called[0].file
                lines = [site.line for site in called if site.file == file]
                return lines_source(file, lines, called[0].function)
        return None

    def gradients(self) -> Sequence[Gradient] | None:
        """The gradients of the run as they were last, where the trace holds them, has norms or can be repeated."""
        if self._gradients is None:
            self._gradients = gradients_of(self.trace, self.forest)
        return self._gradients or None

    @property
    def no_gradients(self) -> str:
        """What would have to be done for gradients to be here."""
        return no_gradients(self.trace) or super().no_gradients

    def pictures(self, row: int) -> Sequence[Picture] | None:
        """What each call of the row gave, from a repetition of the run."""
        if self.trace.kept is None:
            return None
        if self._maps is None:
            self._maps = Maps(self.trace, self.row_of_scope)
        return self._maps.of(row)

    @property
    def no_pictures(self) -> str:
        """What would have to be done for pictures to be here."""
        return NO_TENSORS


NO_TENSORS = (
    "A file keeps no tensors, and this trace was loaded from one or kept none (hold=False). Trace the model again and "
    "open it in the same process: tv.trace(model, x).explore(), or torch-vis explore file.py:make_model --input …"
)


def circumstances(trace: Trace) -> list[tuple[str, str]]:
    """What ran, and where: the script, the step, the time, the versions."""
    meta = trace.meta
    rows = [(name, str(meta[name])) for name in ("script", "traced", "model") if meta.get(name)]
    if meta.get("wall_ns"):
        rows.append(("wall time", wall_time(meta)))
    where = [f"torch {meta['torch']}" if meta.get("torch") else "", ", ".join(meta.get("devices") or ())]
    rows.append(("on", ", ".join(filter(None, where))))
    if meta.get("error"):
        rows.append(("ended by", str(meta["error"])))
    return [(name, text) for name, text in rows if text]


def unknown_costs(trace: Trace) -> list[str]:
    """A sentence about the operations whose FLOPs are not known, if there are any."""
    number = trace.metrics["flops"].uncovered if "flops" in trace.metrics else 0
    return [f"FLOPs of {many(number, 'operation')} are not known and count as none"] if number else []


def has_backward(trace: Trace) -> bool:
    """Whether a backward pass was recorded."""
    return bool((trace.graph.node_phase == Phase.BACKWARD).any())


def gradients_of(trace: Trace, forest: Forest) -> list[Gradient]:
    """The gradients of a trace, none where nothing is known of them.

    They are those of tensors that it holds, and of what the run let go of (``zero_grad()``) the norms that
    ``t.gradients()`` left in the trace, or else those that a repetition of the run shows.
    """
    graph = trace.graph
    values = gradients(graph)
    for result in graph.outcomes:
        if result.kind == "gradient":
            values.setdefault(result.name.removesuffix(ENDING), result.value.index)
    norms = _norms_of(trace, list(values.values()))
    rows = []
    for name, value in values.items():
        row = forest.row(name.rpartition(".")[0])
        rows.append(Gradient(0 if row is None else row, name, norms.get(value), None))
    known = any(gradient.norm is not None for gradient in rows)
    return sorted(rows, key=lambda gradient: (gradient.row, gradient.name)) if known else []


def _norms_of(trace: Trace, values: Sequence[int]) -> dict[int, float | None]:
    from torch_vis.analysis.gradients.tensor_stats import norms_of_values
    from torch_vis.capture.tensor_contents import norm_of

    held, graph = trace.kept, trace.graph
    norms: dict[int, float | None] = {}
    if held is not None:
        for number, result in enumerate(graph.outcomes):
            if result.kind == "gradient" and number in held.results:
                norms[result.value.index] = norm_of(held.results[number])
    absent = [value for value in values if value not in norms]
    column = trace.metrics.get("grad_norm")
    if column is not None:
        norms.update((value, column[value]) for value in absent)
    elif absent and held is not None:
        # told by ``no_gradients``
        with suppress(TensorsMissing):
            norms.update(norms_of_values(graph, held, absent))
    return norms


def no_gradients(trace: Trace) -> str:
    """Why a run with a backward pass shows no gradients; nothing where it had none."""
    if not has_backward(trace):
        return ""
    if trace.kept is not None:
        from torch_vis.replay.stepper import tensors_for_replay

        try:
            tensors_for_replay(trace.graph, trace.kept)
        except TensorsMissing as error:
            return (
                f"The run ended without gradients, and cannot be repeated to see those that it had: {error}."
            )
        return "The backward pass of this run left no gradients in any parameter."
    return (
        "There was a backward pass, but a file keeps no tensors, and this trace was loaded from one or kept none: "
        "t.with_metrics(t.gradients()).save(…) keeps their norms in the file; or look at the trace where it was made."
    )


def gradient_column(forest: Forest, gradients: Sequence[Gradient] | None) -> Any:
    """The norm of all gradients in each row and below; not known where one of them is not."""
    squares, count = np.zeros(len(forest)), np.zeros(len(forest))
    for gradient in gradients or ():
        squares[gradient.row] += np.nan if gradient.norm is None else gradient.norm * gradient.norm
        count[gradient.row] += 1
    total = np.sqrt(forest.subtotal(squares)) if not np.isnan(squares).any() else _slowly(forest, squares)
    return np.where(forest.subtotal(count) > 0, total, np.nan)


def norms_together(holding: Sharing, norms: Sequence[float | None]) -> Any:
    """The norm over each row's subtree of things that several rows may hold, each counted once."""
    squares = np.array([np.nan if norm is None else norm * norm for norm in norms], dtype=np.float64)
    unknown = holding.inclusive(np.isnan(squares).astype(np.int64))
    some = holding.inclusive(np.ones(len(squares), dtype=np.int64))
    known = np.sqrt(np.maximum(holding.inclusive(np.nan_to_num(squares)), 0))
    return np.where((some > 0) & (unknown == 0), known, np.nan)


def _slowly(forest: Forest, squares: Any) -> Any:
    """The same where some are not known, which a running sum would spread to all that follow."""
    known = forest.subtotal(np.nan_to_num(squares))
    return np.where(forest.subtotal(np.isnan(squares).astype(float)) > 0, np.nan, np.sqrt(known))


_PHASES = ((Phase.FORWARD, "forward"), (Phase.BACKWARD, "backward"), (Phase.OPTIMIZER, "optimizer"))


def calls_of(trace: Trace, row_of_scope: Any, row: int) -> list[CallRow]:
    """The calls of one row: when they began and how long they took."""
    graph, metrics = trace.graph, trace.metrics
    above = np.where(graph.scope_parent >= 0, row_of_scope[graph.scope_parent], -1)
    kinds = np.array([module.kind in ("module", "compiled") for module in graph.modules])
    own = (row_of_scope == row) & (kinds[graph.scope_module] | (above != row))
    if "scope_time_ns" not in metrics:
        return []
    calls, again = [], graph.tree.recomputed
    for scope in np.flatnonzero(own).tolist():
        figures = [metrics[name][scope] for name in ("scope_start_ns", "scope_time_ns", "scope_self_ns")]
        note = RECOMPUTED if again[scope] else ""
        calls.append(CallRow(figures[0] or 0, figures[1] or 0, figures[2], (), (), note))
    return calls


def _rows(graph: Graph) -> tuple[Forest, Any]:
    """One row for all calls of one thing from one place, in the order of the first calls; and each call's row.

    They are the printed table's: what backward computes again is in the row of its module.
    """
    places, place_of_scope = places_of_calls(graph)
    inside: list[list[int]] = [[] for _ in places]
    for number, (above, _) in enumerate(places):
        if above >= 0:
            inside[above].append(number)
    names: list[str] = []
    types: list[str] = []
    parents: list[int] = []
    paths: list[str] = []
    kinds: list[str] = []
    row_of = [0] * len(places)
    stack = [(0, -1)] if places else []
    while stack:
        at, parent = stack.pop()
        path, kind_name, kind = graph.modules[places[at][1]]
        row_of[at] = len(names)
        outer = paths[parent] if parent >= 0 else ""
        names.append("whole run" if kind == "run" else inner_path(path, outer) or kind_name)
        types.append("" if kind == "run" else kind_name)
        parents.append(parent)
        paths.append(path)
        kinds.append(kind)
        stack.extend((below, row_of[at]) for below in reversed(inside[at]))
    forest = Forest(names, types, parents, paths=paths, kinds=kinds)
    return forest, np.asarray(row_of, dtype=np.int64)[place_of_scope] if places else place_of_scope


def _parameters(graph: Graph, forest: Forest) -> list[tuple[int, TensorRow]]:
    """The parameters and buffers that the run read, each at the row that holds it by name."""
    rows: list[int] = []
    items: list[int] = []
    numel: list[int] = []
    nbytes: list[int] = []
    tensors: list[tuple[int, TensorRow]] = []
    seen: set[tuple[int, int]] = set()
    which = (graph.value_role == Role.PARAMETER) | (graph.value_role == Role.BUFFER)
    for value in np.flatnonzero(which & (graph.value_name >= 0)).tolist():
        tensor = graph.values[value]
        key = (tensor.storage, tensor.offset)
        if key in seen:
            continue
        seen.add(key)
        holder, _, name = (tensor.name or "").rpartition(".")
        row = forest.row(holder)
        while (
            row is None and holder
        ):  # a module that was not called itself: what it holds is of the one around it
            holder, _, last = holder.rpartition(".")
            name, row = f"{last}.{name}", forest.row(holder)
        row = 0 if row is None else row
        if not holder and len(forest) > 1 and forest.kind(0) == "run":
            row = 1
        tensors.append(
            (row, TensorRow(name, tensor.role, tensor.shape, tensor.dtype, tensor.device, tensor.type.nbytes))
        )
        if tensor.role == "parameter":
            rows.append(row)
            items.append(len(items))
            numel.append(tensor.type.numel)
            nbytes.append(tensor.type.nbytes or 0)
    order = sorted(range(len(rows)), key=rows.__getitem__)
    holding = Sharing(forest, [rows[at] for at in order], [items[at] for at in order], numel)
    forest.sharing = holding
    forest.numbers["params"] = holding.inclusive(holding.size).astype(np.float64)
    forest.numbers["bytes"] = holding.inclusive(np.asarray(nbytes, dtype=np.int64)).astype(np.float64)
    share(forest, "params")
    shapes: dict[int, str] = {}
    for row, tensor_row in tensors:
        if tensor_row.role == "parameter":
            shape = "×".join(map(str, tensor_row.shape or ()))
            shapes[row] = f"{shapes[row]} {shape}" if row in shapes else shape
    forest.texts["shapes"] = lambda row: shapes.get(row, "")
    return tensors


def lines_source(file: str, marks: list[int], title: str) -> SourceCode | None:
    """The stretch of a file around some lines; None where the file cannot be read."""
    lines = source_text(file)
    if not lines or not marks:
        return None
    first, last = max(1, min(marks) - AROUND), min(len(lines), max(marks) + AROUND)
    return SourceCode(file, first, "".join(lines[first - 1 : last]), tuple(sorted(set(marks))), title)
