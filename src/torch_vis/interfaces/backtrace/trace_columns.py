"""A run that was evaluated, as a trace: the exported graph played once more under the recorder, relevance beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torch_vis._trace import Trace
from torch_vis.capture.compilers.frontends import export_outputs
from torch_vis.capture.compilers.interpreter import PASSIVE
from torch_vis.capture.compilers.program import Program, Stage
from torch_vis.capture.session import Capture
from torch_vis.graph import Column, Graph
from torch_vis.graph.record import Limit


def trace_of(
    program: Any, model: torch.nn.Module, flat: list[Any], relevance: Mapping[str, float], limits: list[str]
) -> Trace:
    """The program run on its flat inputs, with what each node was given as the metric ``relevance``.

    A node of the program may run several operations: its relevance stands at the last of them, which makes its result.
    """
    capture = Capture(model, keep=False)
    specs = program.graph_signature.input_specs
    capture.inputs = [
        (spec.arg.name, value)
        for spec, value in zip(specs, flat)
        if spec.kind.name == "USER_INPUT" and isinstance(value, torch.Tensor)
    ]
    capture.has_output = True
    stage = Stage(capture)
    with torch.no_grad(), capture:
        made = stage.player(program.graph_module).play(*flat)
        capture.output = export_outputs(program, model, made)
    run = capture.finish().run
    run.meta["program"] = Program("export", [program.graph_module], program).to_plain()
    names = [node.name for node in program.graph_module.graph.nodes if node.op not in PASSIVE]
    run.metrics = run.metrics.with_column(_column(run.graph, names, relevance))
    run.limits += tuple(Limit(text, kind="program") for text in limits)
    return Trace.of(run, output=capture.output)


def _column(graph: Graph, names: list[str], relevance: Mapping[str, float]) -> Column:
    """Nodes of the program are calls of functions in the graph, in the same order; what runs inside is part of them."""
    inside = np.zeros(len(graph.scope_call), dtype=bool)
    calls: list[int] = []
    for scope in graph.scopes:
        around = int(graph.scope_parent[scope.index])
        inside[scope.index] = around >= 0 and (inside[around] or around in calls[-1:])
        if scope.kind == "function" and not inside[scope.index]:
            calls.append(scope.index)
    last = np.full(len(graph.scope_call), -1, dtype=np.int64)
    last[graph.node_scope] = np.arange(len(graph))  # the later one counts
    values, known = np.zeros(len(graph)), np.zeros(len(graph), dtype=bool)
    at = 0
    for name in names:
        if at == len(calls) or graph.scopes[calls[at]].path != re.sub(r"_\d+$", "", name):
            continue  # it only takes a result apart, and was not called
        node = int(last[calls[at]])
        at += 1
        if name in relevance and node >= 0:
            values[node] = relevance[name]
            known[node] = True
    return Column("relevance", values, known=known)
