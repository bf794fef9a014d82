"""A run as it is written: a scope for each call of a function of torch's, with the operations that it ran inside.

A graph knows of each operation which call ran it; views for people show that call first, and what it is made of when it
is opened. Scopes are added at the end, so that those of the graph keep their numbers.
"""

from __future__ import annotations

import numpy as np

from torch_vis.graph import Column, Graph, Metrics
from torch_vis.graph.module_table import called_by
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Flag, Module, Phase
from torch_vis.graph.types import Bools, Ints
from torch_vis.ops.display_names import op_label
from torch_vis.ops.names import out_of_place


def api_level(run: Run) -> Run:
    """The run with the graph that ``api_graph`` gives, and its metrics along the scopes of that."""
    graph = api_graph(run.graph)
    if graph is run.graph:
        return run
    metrics = _with_scopes(run.metrics, graph, len(run.graph.scope_call))
    # the same memory, whatever scopes there are
    return Run(graph, metrics, run.limits, run.meta, lifetimes=run.lifetimes)


def api_graph(graph: Graph) -> Graph:
    """The graph with a scope around every call of a function that says more than the operations themselves.

    A call of one operation of the same name needs none, nor one that only looks at memory, nor one that is all that
    its module does.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(lambda x: torch.matmul(x, x) + 1, torch.ones(2, 3, 3))
    >>> [scope.path for scope in api_graph(t.graph).scopes]
    ['', 'matmul']
    """
    calls = _calls(graph)
    if not len(calls.first):
        return graph
    before = len(graph.scope_call)
    scope = np.where(calls.of_node >= 0, before + calls.of_node, graph.node_scope)
    linked = (graph.node_link >= 0) & (graph.node_scope == graph.node_scope[graph.node_link])
    scope = np.where(linked, scope[graph.node_link], scope)
    names = graph.node_api[calls.first]
    kinds, module = np.unique(names, return_inverse=True)
    modules = [Module(graph.names[name], graph.names[name], "function") for name in kinds.tolist()]
    order = np.argsort(module, kind="stable")
    number = np.empty(len(module), dtype=np.int64)
    number[order] = np.arange(len(module)) - np.searchsorted(module[order], module[order])
    return graph.replaced(
        node_scope=scope.astype(np.int32),
        scope_parent=_more(graph.scope_parent, graph.node_scope[calls.first]),
        scope_module=_more(graph.scope_module, module + len(graph.modules)),
        scope_call=_more(graph.scope_call, number),
        modules=[*graph.modules, *modules],
    )


def called_functions(graph: Graph) -> tuple[list[str], Ints]:
    """What the program called for each operation, or for what it is the gradient of: names, and a place in them.

    Where no function is known, the operation's own name stands for it.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> names, of_node = called_functions(t.graph)
    >>> sorted({names[number] for number in of_node.tolist()})
    ['linear', 'ones_like', 'sum']
    """
    return [*(op_label(call.op) for call in graph.calls), *graph.names], called_by(graph)


class _Calls:
    """Calls that get a scope: the first operation of each, and for each operation the call that it is in, or -1."""

    def __init__(self, first: Ints, of_node: Ints) -> None:
        self.first, self.of_node = first, of_node


def _calls(graph: Graph) -> _Calls:
    nothing = np.full(len(graph), -1, dtype=np.int64)
    nodes = np.flatnonzero(graph.node_api_first >= 0)
    if not len(nodes):
        return _Calls(nodes, nothing)
    # in a comparison, operations of one call may be in different scopes
    key = graph.node_api_first[nodes].astype(np.int64) * len(graph.scope_call) + graph.node_scope[nodes]
    _, begin, call = np.unique(key, return_index=True, return_inverse=True)
    first, call = nodes[begin], call.ravel()
    is_view = graph.node_flags & Flag.VIEW != 0
    works = np.bincount(call, weights=~is_view[nodes], minlength=len(first)) > 0
    alone = np.bincount(call, minlength=len(first)) == 1
    keep = works & ~(alone & _same_name(graph, first)) & ~_whole_module(graph, first, nodes, call, is_view)
    number = np.where(keep, np.cumsum(keep) - 1, -1)
    nothing[nodes] = number[call]
    return _Calls(first[keep], nothing)


def _same_name(graph: Graph, nodes: Ints) -> Bools:
    """Which operations go by the name of the function already."""
    labels = [out_of_place(op_label(call.op)) for call in graph.calls]
    names = [out_of_place(name) for name in graph.names]
    pairs = zip(graph.node_call[nodes].tolist(), graph.node_api[nodes].tolist())
    return np.array([labels[call] == names[api] for call, api in pairs], dtype=bool)


def _whole_module(graph: Graph, first: Ints, nodes: Ints, call: Ints, is_view: Bools) -> Bools:
    """Which calls are all that the call of a module around them runs, views aside."""
    count = len(graph.scope_call)
    forward = (graph.node_phase == Phase.FORWARD) | (graph.node_flags & Flag.RECOMPUTE != 0)
    works = np.bincount(graph.node_scope[forward & ~is_view], minlength=count)
    inside = np.bincount(call, weights=~is_view[nodes], minlength=len(first))
    scope = graph.node_scope[first]
    calls_others = np.zeros(count, dtype=bool)
    calls_others[graph.scope_parent[graph.scope_parent >= 0]] = True
    whole: Bools = graph.tree.is_module[scope] & ~calls_others[scope] & (inside == works[scope])
    return whole


def _with_scopes(metrics: Metrics, graph: Graph, before: int) -> Metrics:
    """The metrics with rows for the added scopes: when they began, and the time of their operations."""
    more = len(graph.scope_call) - before
    rows = np.flatnonzero((graph.node_scope >= before) & (graph.node_phase != Phase.BACKWARD))
    scope = graph.node_scope[rows] - before
    result = metrics
    for name, column in metrics.at_hand().items():
        if column.along != "scope":
            continue
        values, known = np.zeros(more, dtype=column.values.dtype), np.zeros(more, dtype=bool)
        if name in ("scope_time_ns", "scope_self_ns") and "time_ns" in metrics:
            np.add.at(values, scope, metrics["time_ns"].values[rows].astype(values.dtype))
            known[:] = True
        elif name == "scope_start_ns" and "start_ns" in metrics:
            values[scope[::-1]] = metrics["start_ns"].values[rows[::-1]]
            known[:] = True
        mask = np.append(column.known_rows, known)
        result = result.with_column(Column(name, np.append(column.values, values), along="scope", known=mask))
    return result


def _more(column: Ints, rows: Ints) -> Ints:
    return np.append(column, rows).astype(column.dtype)
