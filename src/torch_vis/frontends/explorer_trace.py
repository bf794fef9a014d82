"""A trace as the explorer sees it: its module calls as rows, whether or not the model is still there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_vis.frontends.explorer_source import lines_source
from torch_vis.graph import Graph
from torch_vis.graph.schema import Phase, Role
from torch_vis.tracing import Trace
from torch_vis.views.tui.forest import Forest, Sharing
from torch_vis.views.tui.measures import measure, share
from torch_vis.views.tui.subject import CallRow, Details, Gradient, Source, Subject, TensorRow
from torch_vis.views.units import count, duration, size


class TraceSubject(Subject):
    """A recorded run, alone: its rows are the modules, functions and optimizers that were called."""

    def __init__(self, trace: Trace) -> None:
        graph = trace.graph
        forest, row_of_scope = _rows(graph)
        super().__init__(str(trace.meta.get("model") or "run"), forest, notes=trace.limits)
        self.trace = trace
        self.graph, self.metrics, self.row_of_scope = graph, trace.metrics, row_of_scope
        self.tensors = _parameters(graph, forest)
        measure(forest, graph, trace.metrics, row_of_scope)
        phases = [word for phase, word in _PHASES if (graph.node_phase == phase).any()]
        self.facts.append(" and ".join(phases) or "no operations")
        self.facts.append(f"{len(graph):,} operations")
        if "params" in forest.numbers:
            self.facts.append(f"{count(int(forest.numbers['params'][0]))} parameters used")
        if trace.meta.get("wall_ns"):
            self.facts.append(duration(int(trace.meta["wall_ns"]) - int(trace.meta.get("overhead_ns") or 0)))
        if trace.metrics["flops"].uncovered:
            self.notes.append(
                f"FLOPs of {trace.metrics['flops'].uncovered:,} operations are not known and count as none"
            )

    def details(self, row: int) -> Details:
        """The module's place, class and the parameters that it was seen to use."""
        forest = self.forest
        facts = [("path", forest.paths[row] or "(the run)"), ("kind", forest.kind(row))]
        if "params" in forest.numbers:
            facts.append(("parameters", f"{int(forest.numbers['params'][row]):,} used in it"))
            facts.append(("memory", f"{size(int(forest.numbers['bytes'][row]))} of parameters"))
        return Details(facts, tensors=[one for at, one in self.tensors if at == row])

    def calls(self, row: int) -> Sequence[CallRow] | None:
        """The calls in the trace."""
        assert self.row_of_scope is not None
        return calls_of(self.trace, self.row_of_scope, row)

    def source(self, row: int) -> Source | None:
        """The lines from which the module's own operations were called, or else those inside it."""
        graph = self.trace.graph
        for below in (False, True):
            nodes = self.nodes(row, below=below)
            sites = graph.node_site[nodes[graph.node_phase[nodes] == Phase.FORWARD]]
            found = [graph.sites[site] for site in dict.fromkeys(sites[sites >= 0].tolist())]
            if found:
                file = found[0].file
                lines = [site.line for site in found if site.file == file]
                return lines_source(file, lines, found[0].function)
        return None

    def gradients(self) -> Sequence[Gradient] | None:
        """The gradients that the run ended with, where the trace still holds them."""
        held = self.trace._held
        if held is None:
            return None
        found = []
        for number, result in enumerate(self.trace.graph.results):
            if result.kind == "gradient" and number in held.results:
                name = result.name.removesuffix(".grad")
                row = self.forest.row(name.rpartition(".")[0])
                with torch.no_grad():
                    norm = float(torch.linalg.vector_norm(held.results[number].detach().to_dense().float()))
                found.append(Gradient(0 if row is None else row, name, norm, None))
        return sorted(found) or None


_PHASES = ((Phase.FORWARD, "forward"), (Phase.BACKWARD, "backward"), (Phase.OPTIMIZER, "optimizer"))


def calls_of(trace: Trace, row_of_scope: Any, row: int) -> list[CallRow]:
    """The calls of one row: when they began and how long they took."""
    graph, metrics = trace.graph, trace.metrics
    above = np.where(graph.scope_parent >= 0, row_of_scope[graph.scope_parent], -1)
    kinds = np.array([module.kind in ("module", "compiled") for module in graph.modules])
    own = (row_of_scope == row) & (kinds[graph.scope_module] | (above != row))
    if "scope_time_ns" not in metrics:
        return []
    found = []
    for scope in np.flatnonzero(own).tolist():
        figures = [metrics[name][scope] for name in ("scope_start_ns", "scope_time_ns", "scope_self_ns")]
        found.append(CallRow(figures[0] or 0, figures[1] or 0, figures[2], (), ()))
    return found


def _rows(graph: Graph) -> tuple[Forest, Any]:
    """One row for all calls of one thing from one place, in the order of the first calls; and each call's row."""
    number: dict[tuple[int, int], int] = {}
    block = np.zeros(len(graph.scope_call), dtype=np.int64)
    inside: list[list[int]] = []
    module_of: list[int] = []
    for scope, (parent, module) in enumerate(zip(graph.scope_parent.tolist(), graph.scope_module.tolist())):
        above = int(block[parent]) if parent >= 0 else -1
        at = number.setdefault((above, module), len(inside))
        if at == len(inside):
            inside.append([])
            module_of.append(module)
            if above >= 0:
                inside[above].append(at)
        block[scope] = at
    names: list[str] = []
    types: list[str] = []
    parents: list[int] = []
    paths: list[str] = []
    kinds: list[str] = []
    row_of = [0] * len(inside)
    stack = [(0, -1)] if inside else []
    while stack:
        at, parent = stack.pop()
        path, kind_name, kind = graph.modules[module_of[at]]
        row_of[at] = len(names)
        outer = paths[parent] if parent >= 0 else ""
        label = path[len(outer) + 1 :] if outer and path.startswith(outer + ".") else path
        names.append(label or kind_name)
        types.append(kind_name)
        parents.append(parent)
        paths.append(path)
        kinds.append(kind)
        stack.extend((below, row_of[at]) for below in reversed(inside[at]))
    forest = Forest(names, types, parents, paths=paths, kinds=kinds)
    return forest, np.asarray(row_of, dtype=np.int64)[block] if inside else block


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
        one = graph.values[value]
        key = (one.storage, one.offset)
        if key in seen:
            continue
        seen.add(key)
        holder, _, name = (one.name or "").rpartition(".")
        row = forest.row(holder)
        row = 0 if row is None else row
        if not holder and len(forest) > 1 and forest.kind(0) == "run":
            row = 1
        tensors.append((row, TensorRow(name, one.role, one.shape, one.dtype, one.device, one.type.nbytes)))
        if one.role == "parameter":
            rows.append(row)
            items.append(len(items))
            numel.append(one.type.numel)
            nbytes.append(one.type.nbytes or 0)
    order = sorted(range(len(rows)), key=rows.__getitem__)
    holding = Sharing(forest, [rows[at] for at in order], [items[at] for at in order], numel)
    forest.sharing = holding
    forest.numbers["params"] = holding.inclusive(holding.size).astype(np.float64)
    forest.numbers["bytes"] = holding.inclusive(np.asarray(nbytes, dtype=np.int64)).astype(np.float64)
    share(forest, "params")
    shapes: dict[int, str] = {}
    for row, tensor in tensors:
        if tensor.role == "parameter":
            sizes = "×".join(map(str, tensor.shape or ()))
            shapes[row] = f"{shapes[row]} {sizes}" if row in shapes else sizes
    forest.texts["shapes"] = lambda row: shapes.get(row, "")
    return tensors
